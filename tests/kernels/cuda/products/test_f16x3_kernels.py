"""float32 by three float16 products, kernel by kernel on the host: planes bit for bit, every memory order, triangles,
addends, batches, edges, the flag."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from fmm.kernels.cuda.ops import GemmOp, MirroredGemm
from fmm.kernels.cuda.products.f16_planes import SPLIT_THREADS, SplitKernel, operand_planes, plane_split_kernel_source
from fmm.kernels.cuda.products.f16x3 import F16X3_SIZES
from fmm.kernels.cuda.products.f16x3_mma import F16X3_MMA_SIZES
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.sums import ADDEND
from fmm.problem import Fill, Layout, Problem
from tests.support.f16x3_on_host import product_on_host
from tests.support.hard_matrices import BOUND_BY_NORMS, hard_matrices, relative_errors
from tests.support.host_launch import aligned
from tests.support.marks import quick_and_slow
from tests.support.planes_on_host import launches_of, multiplied
from tests.support.warpgroups_on_host import compiled

Array = np.ndarray[Any, Any]
WIDE, NARROW, WIDE_PAIR, NARROW_PAIR = (
    next(s for s in F16X3_SIZES if (s.n_s, s.cluster) == x) for x in ((128, 1), (64, 1), (128, 2), (64, 2))
)
# the portable kernel's sizes
WARPS, NARROW_WARPS = F16X3_MMA_SIZES


def placed(x: Array, order: str, gap: int = 0) -> tuple[Array, Array, Layout]:
    """Return memory with NaN around a matrix of this layout, the matrix in it, and the layout."""
    lines_in_memory = x if order == "C" else x.T
    memory = aligned((len(lines_in_memory) + 1) * (lines_in_memory.shape[1] + gap), np.float32, np.nan)
    inside = memory[: len(lines_in_memory) * (lines_in_memory.shape[1] + gap)].reshape(len(lines_in_memory), -1)[
        :, : lines_in_memory.shape[1]
    ]
    inside[...] = lines_in_memory
    layout = Layout(order, lines_in_memory.shape[1] + gap)  # type: ignore[arg-type]
    return memory, inside if order == "C" else inside.T, layout


def only_product(problem: Problem) -> tuple[GemmOp, int]:
    found = record_operations(Plan.parse("f16x3"), problem)
    (op,) = found.ops
    op = op.as_full_product if isinstance(op, MirroredGemm) else op
    assert isinstance(op, GemmOp)
    return op, found.workspace


def computed(
    a: Array, b: Array, orders: str = "CCC", gap: int = 0, sizes: Any = WIDE, **params: Any
) -> tuple[Array, Array, bool]:
    """Return C, all of its memory, and whether the flag was raised; C is NaN before."""
    (m, k), n = a.shape, b.shape[1]
    old = params.pop("old", np.full((m, n), np.nan, np.float32))
    placed_ones = [placed(x, order, gap) for x, order in zip((a, b, old), orders, strict=True)]
    layouts: Any = tuple(x[2] for x in placed_ones)
    op, room = only_product(Problem(m, k, n, "float32", layouts, **params))
    memory = dict(zip("ABC", (x[0] for x in placed_ones), strict=True))
    raised = multiplied(op, sizes, memory, room)
    return placed_ones[2][1], placed_ones[2][0], raised


ORDERS = ("CCC", "FCC", "CFC", "FFF")
SHAPES = [(1, 1, 1), (130, 70, 129), (5, 200, 260), (257, 64, 66)]


@pytest.mark.parametrize(
    ("orders", "sizes"),
    quick_and_slow(
        [("FFF", NARROW)],
        [
            ("CCC", NARROW_WARPS),
            ("CCC", WIDE_PAIR),
            *((orders, s) for orders in ORDERS for s in (WIDE, NARROW_PAIR, WARPS)),
            *((orders, NARROW_WARPS) for orders in ORDERS[1:]),
        ],
    ),
)
def test_every_memory_order_agrees_with_numpy(orders: str, sizes: Any) -> None:
    """Equal up to the rounding of sums; memory around C stays as it is."""
    rng = np.random.default_rng(1)
    for m, k, n in SHAPES:
        a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
        c, memory, raised = computed(a, b, orders, 1, sizes)
        expected, _, _ = product_on_host(a, b, checked=False)
        np.testing.assert_allclose(c, expected, rtol=0, atol=2.0**-20 * np.sqrt(k))
        assert not raised and np.isnan(memory).sum() == memory.size - m * n


HALVES: list[tuple[Fill, float]] = [("full", 0), ("lower", 0), ("full", -2), ("lower", 3)]


SMALL_HALVES, LARGE_HALF = ((1, 3), (70, 70)), ((300, 33), (130, 70))


@pytest.mark.parametrize(
    ("rows", "sizes", "shapes"),
    quick_and_slow(
        [(False, NARROW_WARPS, SMALL_HALVES)],
        [
            (True, NARROW_PAIR, SMALL_HALVES),
            *(
                (rows, s, (*SMALL_HALVES, *LARGE_HALF))
                for rows in (True, False)
                for s in (WIDE, NARROW, WIDE_PAIR, WARPS, NARROW_WARPS)
            ),
        ],
    ),
)
def test_triangles_equal_those_of_the_whole_product(rows: bool, sizes: Any, shapes: Any) -> None:
    """Bit for bit equal; one operand is split, once. Above the diagonal is the mirror, or the old numbers."""
    rng = np.random.default_rng(2)
    for (n, k), (fill, beta) in product(shapes, HALVES):
        x, old = rng.standard_normal((n, k)).astype(np.float32), rng.standard_normal((n, n)).astype(np.float32)
        old = old + old.T
        orders, scalars = "CFC" if rows else "FCC", {"alpha": 0.5, "beta": beta, "old": old}
        whole, _, _ = computed(x, x.T, orders, 2, sizes, **scalars)
        half, memory, raised = computed(x, x.T, orders, 2, sizes, op="gram", fill=fill, **scalars)
        below = np.tri(n, dtype=bool)
        np.testing.assert_array_equal(half[below], whole[below])
        np.testing.assert_array_equal(half[~below], (half.T if fill == "full" else old)[~below])
        assert not raised and np.isnan(memory).sum() == memory.size - n * n


def test_a_gram_product_splits_its_operand_once() -> None:
    layouts = Layout("C", 100), Layout("F", 100), Layout("C", 200)
    op, room = only_product(Problem(200, 100, 200, "float32", layouts, op="gram"))
    left, right = operand_planes(op)
    assert left == right and left.end_offset <= room
    for sizes, name in ((WIDE, "gemm_f16x3"), (WARPS, "gemm_f16x3_mma")):
        launches = launches_of(op, sizes)
        assert [x.label.split(":")[0] for x in launches] == ["f16_planes", name] and "splits A in" in launches[0].label
        assert len(launches_of(replace(op, checked=True), sizes)) == 4
    # Two matrices with a symmetric product are not recognized as one; and checked products record rows and columns
    # apart.
    left, right = operand_planes(only_product(Problem(200, 100, 200, "float32", layouts, op="symmetric"))[0])
    assert left != right


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("sizes", [WIDE, NARROW_WARPS])
@pytest.mark.parametrize("broadcast", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_separate_addend(order: Any, broadcast: bool, sizes: Any) -> None:
    """The addend is one broadcast line, or a matrix; C is NaN before."""
    rng = np.random.default_rng(3)
    m, k, n = 131, 40, 75
    a, b = (rng.integers(-3, 4, s).astype(np.float32) for s in ((m, k), (k, n)))
    lines, length = (m, n) if order == "C" else (n, m)
    added = aligned(1 if broadcast else lines, np.float32).repeat(length).reshape(-1, length).copy()
    added[...] = rng.integers(-9, 10, added.shape)
    steps = (0 if broadcast else length, 1)[:: 1 if order == "C" else -1]
    placed_ones = [placed(x, o) for x, o in ((a, "C"), (b, "C"), (np.full((m, n), np.nan), order))]
    layouts: Any = tuple(x[2] for x in placed_ones)
    op, room = only_product(Problem(m, k, n, "float32", layouts, 2, -3, addend_strides=(steps[0], steps[1])))
    memory = {**dict(zip("ABC", (x[0] for x in placed_ones), strict=True)), ADDEND: added}
    before = added.copy()
    assert op.addend is not None and not multiplied(op, sizes, memory, room)
    old = np.broadcast_to(added, (lines, length))
    wanted = 2 * (a.astype(np.float64) @ b) - 3 * (old if order == "C" else old.T)
    np.testing.assert_array_equal(placed_ones[2][1], wanted)
    np.testing.assert_array_equal(added, before)


@pytest.mark.parametrize("sizes", [NARROW, NARROW_WARPS])
def test_a_batch(sizes: Any) -> None:
    """Products at irregular distances, each with the exponents of its rows and columns."""
    rng = np.random.default_rng(4)
    count, m, k, n = 3, 70, 90, 100
    a, b = (rng.standard_normal((count, *s)).astype(np.float32) for s in ((m, k), (k, n)))
    a *= np.exp2(rng.integers(-30, 30, (count, m, 1))).astype(np.float32)
    c = aligned(count * (m * n + 5), np.float32, np.nan)
    one, _ = only_product(Problem(m, k, n, "float32"))
    left, right, dest = (
        x._replace(stride=s) for x, s in zip(one.operands_and_result, (k * n, m * k, m * n + 5), strict=True)
    )
    op = replace(one, count=count, left=left, right=right, dest=dest)
    memory = {"A": aligned(a.size, np.float32), "B": aligned(b.size, np.float32), "C": c}
    memory["A"][:], memory["B"][:] = a.ravel(), b.ravel()
    assert not multiplied(op, sizes, memory, one.leaf_use.leaf.scratch(m, k, n, count))
    for i, layer in enumerate(c.reshape(count, -1)):
        expected, _, _ = product_on_host(a[i], b[i], checked=False)
        found, _ = relative_errors(a[i], b[i], layer[: m * n].reshape(m, n))
        assert found <= BOUND_BY_NORMS and np.isfinite(expected).all() and np.isnan(layer[m * n :]).all()


@pytest.mark.parametrize("sizes", quick_and_slow([NARROW_WARPS], [WIDE]))
def test_inf_and_nan_raise_the_flag(sizes: Any) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((70, 90), (90, 100)))
    for value in (np.inf, -np.inf, np.nan, 3e38):
        x = a.copy()
        x[66, 80] = value
        c, _, raised = computed(x, b * 3 if value == 3e38 else b, sizes=sizes)
        assert raised and not np.isfinite(c[66]).all() and np.isfinite(np.delete(c, 66, axis=0)).all()


@pytest.mark.slow
@pytest.mark.parametrize("sizes", quick_and_slow([NARROW], [NARROW_WARPS]))
def test_inf_and_nan_in_triangles_raise_the_flag(sizes: Any) -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((140, 50)).astype(np.float32)
    fills: tuple[Fill, ...] = ("full", "lower")
    for (place, value), fill in product(((0, np.inf), (65, np.nan), (139, 1e30)), fills):
        y = x.copy()
        y[place, 7] = value
        c, _, raised = computed(y, y.T, "CFC", sizes=sizes, op="gram", fill=fill)
        assert raised and not np.isfinite(c[place, place])
        others = np.delete(np.arange(140), place)
        assert np.isfinite(c[np.ix_(others, others)][np.tri(139, dtype=bool)]).all()


EXTREMES = (0, -0.0, 2.0**-149, 2.0**-127, 2.0**-126, 1, -1, 2.0**24 - 1, 65520, 1e-30, 1e30, 3.4e38, -3.4e38)


@pytest.mark.parametrize("seed", quick_and_slow(range(2), range(2, 12)))
def test_extreme_numbers(seed: int) -> None:
    """Extreme numbers at random places in rows of any size: finite results are within the bound, and inf raises the
    flag."""
    rng = np.random.default_rng(seed)
    for k in (1, 2, 65, 130):
        m, n = rng.integers(1, 40, 2)
        a, b = (
            rng.choice(np.array(EXTREMES, np.float32), s)
            if seed % 2
            else np.ldexp(rng.standard_normal(s), rng.integers(-149, 60, (s[0], 1))).astype(np.float32)
            for s in ((m, k), (k, n))
        )
        with np.errstate(over="ignore"):
            c, _, raised = computed(a, b, "CFC" if seed % 4 > 1 else "FCC", 1, (NARROW, NARROW_WARPS)[seed % 2])
        there = np.isfinite(c)
        assert raised == (not there.all())
        rounded = np.where(there, c, a.astype(np.float64) @ b)
        assert relative_errors(a, b, rounded)[0] <= BOUND_BY_NORMS


FEW_HARD = ("inner dimension opposite, 2^40", "near overflow")


@pytest.mark.parametrize(
    ("componentwise", "sizes", "names"),
    quick_and_slow(
        [(False, NARROW, FEW_HARD), (True, NARROW_WARPS, FEW_HARD[:1])],
        [(c, s, None) for c in (True, False) for s in (NARROW, NARROW_WARPS)],
    ),
)
def test_hard_data(componentwise: bool, sizes: Any, names: tuple[str, ...] | None) -> None:
    """Results, and the entries that count as accurate, are those of the NumPy copy."""
    matrices = hard_matrices(20, 300, 36)
    for name in names or matrices:
        a, b = matrices[name]
        c, _, raised = computed(a, b, sizes=sizes, componentwise=componentwise)
        expected, certain, _ = product_on_host(a, b, checked=componentwise)
        finite = np.isfinite(expected).all()
        assert raised == (not finite or (componentwise and not certain.all())), name
        if finite:
            assert relative_errors(a, b, c)[0] <= BOUND_BY_NORMS, name
            sums = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
            assert (np.abs(c.astype(np.float64) - expected) <= 2.0**-19 * sums + 2.0**-148).all(), name


RESET = """
extern "C" void reset(const void* p, int block) {
    threadIdx.x = 0;  // an earlier kernel of this process may have left another thread
    fmm::planes::reset_inner(*static_cast<const fmm::planes::SpreadOperand*>(p), block);
}
"""


def test_each_thread_block_resets_its_own_exponents() -> None:
    """With more than 2^24 thread blocks, numbers of threads exceed 32 bits."""
    blocks, depth = (1 << 24) + 1, 512
    source = plane_split_kernel_source((SplitKernel("inner", SPLIT_THREADS, 1, False),), "recorded", 1)
    library = compiled(source + RESET, SPLIT_THREADS, 1, False)
    for block, written in ((0, [0]), (1, [SPLIT_THREADS]), (2, []), (blocks - 1, [])):
        inner = np.ones(depth, np.int32)
        operand = struct.pack("<6q4i", 0, 0, 0, depth, 0, depth, blocks, depth, 1, blocks)
        operand += struct.pack("<3q2i", inner.ctypes.data, 0, 0, depth, 1)
        library.reset(operand, ctypes.c_int(block))  # the first thread of the block
        assert np.flatnonzero(inner == 0).tolist() == written
