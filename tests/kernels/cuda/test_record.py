"""Launch lists against the executor: the same numbers for any plan, sizes and layouts."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fmm.dtypes import DTYPES, STORED_TYPES
from fmm.kernels.algorithms.step_table import step_table, step_table_names
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Arena, aligned_block
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.cuda.launch_list import StreamSync
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.products.simt_tiles import TileOp
from fmm.kernels.cuda.record import LaunchRecorder, OperationList, RecordedOp, record_operations
from fmm.kernels.cuda.sums.sum_launch import ARRAY_STRUCT_BYTES, SumOp, sum_op
from fmm.kernels.plans.levels.scheme_level import SchemeLevel, scheme_level
from fmm.kernels.plans.lower import lower_level
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.kernels.plans.sums import Sum
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel.cost import cost
from fmm.problem import Layout, Problem
from tests.support.launch_lists import GUARD, POISON, Matrix, buffer, in_stream_order, matrices, play


def _both(plan: Plan, problem: Problem) -> tuple[Matrix, Matrix, OperationList]:
    """Return the C of the launch list and of the executor; only C and the workspace may change."""
    rng = np.random.default_rng(7)
    memory, (a, b, c) = matrices(problem, rng)
    tape = record_operations(plan, problem)
    memory["W"] = buffer(tape.workspace)
    before = {name: x.copy() for name, x in memory.items()}
    expected = c.copy()
    play(tape, memory)
    arena = Arena(aligned_block(_needed(_vendors(plan), problem)), np.dtype(problem.dtype))
    execute_plan(_vendors(plan), a, b, expected, NumpyBackend(ThreadGroup(1)), arena, problem.alpha, problem.beta)
    assert (memory["A"] == before["A"]).all() and (memory["B"] == before["B"]).all()
    assert all((x[-GUARD:] == POISON).all() for x in memory.values())
    found = c.copy()
    c[...] = np.ndarray(c.shape, c.dtype, before["C"], 0, c.strides)
    assert (memory["C"] == before["C"]).all(), "the gaps between C's rows or columns were touched"
    return found, expected, tape


REPEATED = (
    "strassen.sequential.pad16 > strassen^2.batched.pad16 > vendor",
    "strassen.overlapped.pad16 > winograd.pad16 > vendor",
    "li-fig2.pad16 > li-fig23.pad16 > vendor",
    "winograd > strassen.peel > vendor",
    "li-fig3 > strassen > tile",
    "winograd.sequential > winograd.sequential > vendor.inner",
)


@pytest.mark.quick_cases()
@pytest.mark.parametrize("plan", REPEATED)
@pytest.mark.parametrize("beta", [0, 0.5])
def test_repeated_sums_are_recorded_as_if_new(plan: str, beta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def anew(self: LaunchRecorder, step: Sum, reads: Any, writes: Any) -> SumOp | None:
        read, written = (list(zip(*x, strict=True)) for x in ((step.reads, reads), (step.writes, writes)))
        return sum_op(step.label, step.program, read, written)

    def told(op: RecordedOp) -> Any:
        return (op.label, op.kernel, op.parameters, op.arrays, op.grid, op.access) if isinstance(op, SumOp) else op

    problem = Problem(150, 131, 170, "float32", beta=beta)
    found = [told(op) for op in record_operations.__wrapped__(Plan.parse(plan), problem).ops]
    monkeypatch.setattr(LaunchRecorder, "_sum_op", anew)
    assert found == [told(op) for op in record_operations.__wrapped__(Plan.parse(plan), problem).ops]


def _vendors(plan: Plan) -> Plan:
    """The same plan on a CPU, where nothing is fused."""
    levels = [
        scheme_level(x.algorithm, "sequential", x.fringe)
        if isinstance(x, SchemeLevel) and x.traversal == "fused"
        else x
        for x in plan.levels
    ]
    return Plan(tuple(levels))


def _needed(plan: Plan, problem: Problem) -> int:
    return plan_workspace_bytes(plan, problem.m, problem.k, problem.n, problem.itemsize, problem.alpha, problem.beta)


PLANS = (
    "vendor",
    "strassen",
    "winograd.pad",
    "strassen.pad16",
    "strassen.peel",
    "strassen.batched",
    "winograd.batched.pad8",
    "strassen.sequential",
    "winograd.sequential.pad",
    "laderman",  # three unequal parts: every block stands alone
    "laderman.batched.pad4",
    "hk223.sequential.peel",
    "strassen^2.batched.pad4",
    "strassen^2",
    "strassen*winograd.batched",
    "strassen.pad16 > winograd.batched.pad4",  # blocks in the workspace, cut again
    "strassen.batched > strassen.batched.pad4",  # a batch of products that are not leaves
    "balanced(2) > strassen.batched.pad4",
    "balanced(2) > hasa",
    "li-fig3",  # blocks of C as scratch
    "li-fig3.pad",
    "adaptive-winograd.pad > winograd.batched",
    "adaptive-winograd",
    "li-fig3.peel > strassen.batched",
    "aligned.pad16",
    "aligned.pad16 > strassen.batched",
    "strassen.overlapped",
    "strassen.overlapped.pad4 > winograd.batched.pad4",
    "winograd > strassen.overlapped.pad",
    "strassen.batched.pad4 > vendor.inner",  # sums of B column by column
    "winograd > strassen.pad > vendor.outer",  # sums of A, of the last level alone
)


def parsed(text: str) -> Plan:
    return Plan.parse(text if "vendor" in text else f"{text} > vendor")


SIZES = ((32, 48, 64), (33, 18, 75), (7, 41, 5), (2, 1, 3))


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("text", PLANS)
def test_a_launch_list_computes_what_the_executor_does(text: str) -> None:
    plan = parsed(text)
    for size in SIZES:
        found, expected, _ = _both(plan, Problem(*size, "float64"))
        np.testing.assert_array_equal(found, expected, err_msg=str(size))


# Step tables right above the tiled kernel, and schemes with sums inside it.
FUSED = (
    *step_table_names(),
    "li-fig12.peel",
    "li-fig13.peel",
    "li-fig16 > li-fig12",
    "li-fig23 > li-fig13",
    "adaptive-winograd.pad > hasa",
    "strassen > li-fig13",
    "winograd.fused",
    "strassen.pad16 > winograd.fused.pad4",
)


# Some tables keep sums of A and B in C, which is large enough if the inner side is the shortest.
FUSED_SIZES = ((36, 20, 48), (33, 18, 75), (41, 7, 29), (6, 1, 5))


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("text", FUSED)
def test_products_with_their_updates_compute_what_the_executor_does(text: str) -> None:
    """Any size, row- or column-major; the workspace is the plan's."""
    plan = Plan.parse(f"{text} > tile")
    orders, scalars = ("CCC", "FFF", "CFC", "FCF"), [(1, 0), (2.0, 0.5)] * 2
    for size, order, (alpha, beta) in zip(FUSED_SIZES, orders, scalars, strict=True):
        (m, k, n), shapes = size, ((size[0], size[1]), (size[1], size[2]), (size[0], size[2]))
        layouts = [Layout(o, s[o == "C"] + 3) for o, s in zip(order, shapes, strict=True)]  # type: ignore[arg-type]
        problem = Problem(m, k, n, "float32", (layouts[0], layouts[1], layouts[2]), alpha, beta)
        found, expected, tape = _both(plan, problem)
        np.testing.assert_array_equal(found, expected, err_msg=str(size))
        needed = plan_workspace_bytes(plan, *size, 4, alpha, beta)
        assert tape.workspace <= needed if "peel" in text else tape.workspace == needed


@pytest.mark.parametrize("name", step_table_names())
def test_a_table_above_the_tiled_kernel_is_one_launch_a_step(name: str) -> None:
    """For all tables; the launch has the blocks that the table's kernel reads and writes."""
    plan, problem = Plan.parse(f"{name} > tile"), Problem(64, 64, 64, "float32")
    ops, steps = record_operations(plan, problem).ops, step_table(name).steps
    assert len(ops) == len(steps) == cost(plan, 64, 64, 64, 4).launches
    for op, step in zip(ops, steps, strict=True):
        assert isinstance(op, TileOp if step.kernel.product else SumOp)
        if isinstance(op, TileOp):
            assert (len(op.left), len(op.right)) == (1, 1)
            assert len(op.dest) == len({*step.kernel.read_blocks, *step.kernel.written_blocks})


STREAMED = ("strassen.overlapped", "strassen.fused.streams", "strassen.fused.atomic")
OTHERS = ("strassen", "winograd.sequential", "strassen.batched", "li-fig3", "strassen.fused", "strassen.fused.variants")
OVERLAPPED = ("strassen.overlapped.pad4 > winograd.pad", "winograd.overlapped > strassen", "hk223 > dps.overlapped.pad")


def _plans_on_several_streams() -> list[str]:
    """Return all legal plans of up to three levels in which products run concurrently."""
    found = [f"{text} > vendor" for text in OVERLAPPED]
    for levels in (x for depth in (1, 2, 3) for x in product((*STREAMED, *OTHERS), repeat=depth)):
        text = " > ".join((*levels, "tile" if "fused" in levels[-1] or "li-fig3" in levels[-1] else "vendor"))
        with suppress(PlanError):
            if any(level.needs_extra_streams for level in Plan.parse(text).levels):
                found.append(text)
    return found


@pytest.mark.quick_cases(12)
@pytest.mark.parametrize("text", _plans_on_several_streams())
@pytest.mark.parametrize("turn", [1, -1])
def test_two_streams_may_run_in_any_order(text: str, turn: int) -> None:
    """Between a fork and its join, one stream runs before the other: neither needs the other's results."""
    problem = Problem(45, 38, 51, "float32")
    tape = record_operations(Plan.parse(text), problem)
    assert tape.stream_count > 1 and tape.workspace <= _needed(tape.plan, problem)
    memory, (a, b, c) = matrices(problem, np.random.default_rng(7))
    memory["W"] = buffer(tape.workspace)
    order = tuple(range(tape.stream_count))[::turn]
    play(replace(tape, ops=tuple(in_stream_order(tape, order))), memory)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("text", ["aligned.overlapped.pad16", "aligned.overlapped.pad16 > winograd.pad16"])
def test_a_single_product_uses_one_stream(text: str) -> None:
    problem = Problem(45, 38, 51, "float64")
    found, expected, tape = _both(Plan.parse(f"{text} > vendor"), problem)
    np.testing.assert_array_equal(found, expected)
    assert tape.stream_count == 1 and not any(isinstance(op, StreamSync) for op in tape.ops)
    assert tape.workspace == _needed(tape.plan, problem) == cost(tape.plan, 45, 38, 51).workspace


def test_tf32_is_float32_but_for_the_products() -> None:
    plan = Plan.parse("strassen.pad16 > vendor")
    tf32, ieee = (record_operations(plan, Problem(64, 64, 64, dtype)) for dtype in ("tf32", "float32"))
    assert {op.kernel.element for op in tf32.ops if isinstance(op, SumOp)} == {"float32"}
    assert {op.dtype for op in tf32.ops if isinstance(op, GemmOp)} == {"tf32"}
    alike = [replace(op, dtype="float32") if isinstance(op, GemmOp) else op for op in tf32.ops]
    assert tf32.workspace == ieee.workspace and [repr(op) for op in alike] == [repr(op) for op in ieee.ops]


ORDERED = (
    "strassen.batched.pad4 > vendor",
    "strassen.batched.pad4 > vendor.inner",
    "strassen.batched.pad4 > vendor.outer",
    "strassen > vendor",
    "li-fig3 > vendor",
    "strassen.peel > vendor",
)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("orders", list(product("CF", repeat=3)), ids="".join)
def test_every_memory_order_and_alpha_and_beta(orders: tuple[Any, Any, Any]) -> None:
    """Rows or columns contiguous in any mixture, gaps between them, complex and real scalars."""
    m, k, n = 13, 22, 31
    shapes = (m, k), (k, n), (m, n)
    sides = (cols if order == "C" else rows for order, (rows, cols) in zip(orders, shapes, strict=True))
    layouts = tuple(Layout(order, side + gap) for order, side, gap in zip(orders, sides, (0, 3, 8), strict=True))
    for text, (dtype, alpha, beta) in product(
        ORDERED,
        (("float32", 1, 0), ("float64", -3.0, 0.5), ("complex64", 0.5, 1), ("complex128", 1 - 2j, 0.5j)),
    ):
        problem = Problem(m, k, n, dtype, layouts, alpha, beta)  # type: ignore[arg-type]
        found, expected, _ = _both(Plan.parse(text), problem)
        np.testing.assert_array_equal(found, expected, err_msg=f"{text} {dtype}")


@pytest.mark.parametrize(
    ("text", "alpha", "beta"),
    [
        ("vendor", 0, 0.0),  # C becomes zero
        ("vendor", 0, 2.0),
        ("vendor", 2.0, 1),
        ("strassen.batched > vendor", 0, 0.5),
        ("strassen.sequential > vendor", 2.0, 0.5),
        ("balanced(2) > strassen > vendor", 0.5, 1),
    ],
)
def test_scalars(text: str, alpha: float, beta: float) -> None:
    for size in ((12, 31, 9), (5, 0, 6), (0, 4, 3)):
        found, expected, _ = _both(Plan.parse(text), Problem(*size, "float64", alpha=alpha, beta=beta))
        np.testing.assert_array_equal(found, expected, err_msg=str(size))


@pytest.mark.quick_cases(30)
@pytest.mark.parametrize("text", PLANS)
@pytest.mark.parametrize("dtype", ["float16", "float64", "complex128"])
def test_the_workspace_is_the_plans(text: str, dtype: str) -> None:
    plan = parsed(text)
    for size in ((40, 56, 72), (33, 18, 75)):
        problem = Problem(*size, dtype)
        used, said = record_operations(plan, problem).workspace, _needed(plan, problem)
        # A peeled strip is added by the GEMM itself; the executor of a leaf without beta needs a scratch.
        assert used <= said if "peel" in text or "balanced" in text else used == said


@given(
    size=st.tuples(*[st.integers(0, 60)] * 3),
    text=st.sampled_from([p for p in PLANS if p != "vendor"]),
    dtype=st.sampled_from(("float32", "complex64")),
    scalars=st.sampled_from(((1, 0), (1, 1), (2.0, 0.5), (-1, 0))),
)
def test_any_launch_list_computes_what_the_executor_does(
    size: tuple[int, int, int], text: str, dtype: str, scalars: tuple[float, float]
) -> None:
    problem = Problem(*size, dtype, alpha=scalars[0], beta=scalars[1])
    try:
        found, expected, _ = _both(parsed(text), problem)
    except PlanError as error:
        # A table that keeps sums in C where C is too small for them, neither can run; more blocks of unequal sizes than
        # a launch can be told of, a CPU can.
        if "unequal blocks in one pass" not in str(error):
            with pytest.raises(PlanError):
                lower_level(parsed(text), *size, *scalars)
        return
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("text", ["li-fig3", "strassen.sequential > vendor", "winograd > vendor"])
@pytest.mark.parametrize("sides", ["CC", "FF", "CF"])
def test_blocks_without_columns_are_not_read(text: str, sides: str) -> None:
    """With one row or column of C, half of the blocks are empty and the others are not."""
    for size in product((1, 2, 3), (0, 1, 3), (1, 2)):
        layouts = tuple(Layout(order, max(size) + 1) for order in (*sides, "C"))
        found, expected, _ = _both(parsed(text), Problem(*size, "float32", layouts))  # type: ignore[arg-type]
        np.testing.assert_array_equal(found, expected, err_msg=str(size))


def test_one_level_is_four_launches_and_lists_are_cached() -> None:
    problem = Problem(256, 256, 256, "float32")
    tape = record_operations(Plan.parse("strassen.batched.pad16 > vendor"), problem)
    assert [type(op) for op in tape.ops] == [SumOp, SumOp, GemmOp, SumOp]
    gemm = tape.ops[2]
    assert isinstance(gemm, GemmOp) and (gemm.count, gemm.m, gemm.n, gemm.k) == (7, 128, 128, 128)
    assert record_operations(Plan.parse("strassen.batched.pad16 > vendor"), Problem(256, 256, 256, "float32")) is tape


def test_kernels_do_not_depend_on_sizes_or_scalars() -> None:
    """A kernel compiled for one size serves all sizes; alpha and beta are launch parameters."""
    plan = Plan.parse("strassen^2.batched.pad16 > vendor")
    problems = [
        Problem(*size, "bfloat16", alpha=alpha, beta=0.5)
        for size in ((256, 512, 320), (1000, 777, 901))
        for alpha in (2.5, -3)
    ]
    kernels = {tuple(op.kernel for op in record_operations(plan, p).ops if isinstance(op, SumOp)) for p in problems}
    assert len(kernels) == 1


@pytest.mark.parametrize(
    ("dtype", "n", "access"),
    [
        ("float32", 256, "vector"),
        ("float32", 258, "scalar"),  # rows of 1032 bytes: not a multiple of 16
        ("float64", 258, "vector"),
        ("float64", 259, "scalar"),
        ("bfloat16", 264, "vector"),  # 8 numbers of 2 bytes
        ("bfloat16", 260, "scalar"),
        ("complex64", 258, "vector"),  # as 516 real columns
    ],
)
def test_wide_accesses_only_where_all_is_aligned(dtype: str, n: int, access: str) -> None:
    tape = record_operations(Plan.parse("strassen.batched.pad16 > vendor"), Problem(n, n, n, dtype))
    assert {op.access for op in tape.ops if isinstance(op, SumOp)} == {access}


@pytest.mark.parametrize(
    ("leaf", "transposed", "tall"),
    [
        ("vendor", (False, False), []),
        ("vendor.inner", (True, False), ["split B"]),  # BLAS multiplies columns: its left operand is our right one
        ("lt3.outer", (False, True), ["split A"]),
    ],
)
@pytest.mark.parametrize("order", "CF")
def test_a_leaf_chooses_the_layout_of_its_operands(
    leaf: str, transposed: tuple[bool, bool], tall: list[str], order: Any
) -> None:
    """The product is the same whatever the layout of the caller's arrays; the transposing split has tall tiles."""
    problem = Problem(64, 96, 160, "float32", tuple(Layout(order, 160) for _ in "ABC"))  # type: ignore[arg-type]
    tape = record_operations(Plan.parse(f"strassen.batched.pad16 > {leaf}"), problem)
    sums = [op for op in tape.ops if isinstance(op, SumOp)]
    (gemm,) = (op for op in tape.ops if isinstance(op, GemmOp))
    assert gemm.leaf_use.kernel_text == leaf.partition(".")[0]
    assert (gemm.left.transposed, gemm.right.transposed) == transposed
    other = {"split A": "split B", "split B": "split A"}
    assert [op.label for op in sums if op.kernel.column_major] == (
        tall if order == "C" else [other[label] for label in tall]
    )
    assert {op.access for op in sums} == {"vector"}


def test_every_element_has_a_thread() -> None:
    for n, dtype, leaf in product((1, 129, 1000), ("float64", "bfloat16"), ("vendor", "vendor.outer")):
        tape = record_operations(Plan.parse(f"strassen.batched > {leaf}"), Problem(3 * n, n, 5 * n, dtype))
        for op in (op for op in tape.ops if isinstance(op, SumOp)):
            (across, down, deep), (height, width) = op.grid, op.kernel.tile_shape
            assert across * width >= op.cols > (across - 1) * width
            assert down * deep * height >= op.rows and down <= 65535 and deep <= 65535


def test_a_very_tall_matrix_is_folded_into_the_grid() -> None:
    tape = record_operations(Plan.parse("strassen.batched > vendor"), Problem(4_000_000, 8, 8, "float32"))
    down, deep = tape.ops[0].grid[1:]  # type: ignore[union-attr]
    assert down <= 65535 and deep > 1 and 2_000_000 <= down * deep < 2_000_000 + deep


def test_parameters_are_the_structure_of_the_kernel() -> None:
    problem = Problem(40, 24, 56, "float32", alpha=0.3, beta=-7.0)
    op = record_operations(Plan.parse("strassen.batched > vendor"), problem).ops[-1]
    assert isinstance(op, SumOp)
    assert [complex(c) for c in op.scalars] == [0.3, -7.0]
    arrays, tail = op.parameters[: ARRAY_STRUCT_BYTES * 2], op.parameters[ARRAY_STRUCT_BYTES * 2 :]
    for x, packed in zip(op.arrays, struct.iter_unpack("<q4q4i", arrays), strict=True):
        assert packed == (0, *x[2:])
    assert struct.unpack("<5dq4i", tail) == (0.3, 0.0, -7.0, 0.0, 0.0, 0, op.rows, op.cols, *op.smallest_block_shape)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Problem(2, 3, 4, "int4"), "int4"),
        (lambda: Problem(2, 3, 4, "float32", (Layout("C", 2), Layout("C", 4), Layout("C", 4))), "A is 2 x 3"),
        # 343 products of unequal blocks: more arrays than a launch can describe
        (lambda: record_operations(Plan.parse("strassen^3 > vendor"), Problem(101, 103, 107, "float32")), "pad"),
    ],
)
def test_unrecordable_plans_raise_with_the_reason(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_the_types_are_those_of_the_kernel() -> None:
    assert {name: e.itemsize for name, e in DTYPES.items() if name in STORED_TYPES and name != "bfloat16"} == {
        name: np.dtype(name).itemsize for name in ("float16", "float32", "float64", "complex64", "complex128")
    }
