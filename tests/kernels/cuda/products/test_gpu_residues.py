"""Real and complex products by residues on a device: as accurate as the vendor's, for every kind of data and memory
order."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.dtypes import INTEGERS
from fmm.kernels.cuda.products.residue_planes import MAX_SPLIT_LINE_LENGTH
from fmm.kernels.plans.levels.residues import TYPES_WITH_LEVEL_BELOW, residue_leaves
from fmm.kernels.plans.plan import Plan
from fmm.problem import Layout, Problem

pytest.importorskip("cupy")

import cupy

from fmm.kernels.cuda.launch.device_facts import cuda_device_chip
from fmm.runtime.device_backend import DeviceBackend, record_plan_for_device

pytestmark = pytest.mark.gpu
ONE = "residues(14) > bytes"
FAST = "residues(14) > strassen > bytes"
FASTER = "residues(14) > strassen^2 > bytes"

# |error| of an entry relative to the norms of its row of A and its column of B. Each of these loses half a unit for
# each
# of k numbers, and a norm has at least 2^52.5 units (14 moduli); DGEMM's error grows as fast with k.
PROMISED = {13: 2.0**-49, 14: 2.0**-52.5, 15: 2.0**-53, 16: 2.0**-53}


@pytest.fixture(autouse=True)
def _skip_without_kernel() -> None:
    if not cuda_device_chip(cupy.cuda.runtime.getDevice()).has_warp_mma:
        pytest.skip("matrix instructions for bytes need compute capability 8.0")


def promised(leaf: str, k: int) -> float:
    return float(PROMISED[residue_leaves()[leaf].level.moduli] * np.sqrt(k) + 2.0**-52)


def worst(a: Any, b: Any, c: Any) -> float:
    """Return the largest error relative to the norms, computed on the host in extended precision."""
    a, b, c = (x.get().astype(np.longdouble) for x in (a, b, c))
    norms = np.sqrt((a * a).sum(axis=1))[:, None] * np.sqrt((b * b).sum(axis=0))[None]
    off = np.abs(c - a @ b)
    return float(np.where(off == 0, 0, off / np.maximum(norms, np.longdouble("1e-4000"))).max())


def normal(shape: tuple[int, ...], seed: int = 0) -> Any:
    return cupy.random.default_rng(seed).standard_normal(shape)


SHAPES = [
    (1, 1, 1),
    (128, 64, 128),
    (129, 65, 131),
    (1, 1000, 1),
    (300, 1, 200),
    (7, 5000, 9),
    (257, 511, 253),
    (200, 33, 17),
    (9, 131072, 11),
    (8, 140000, 8),
    (331, 331, 331),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_and_order(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    for leaf, orders in zip(
        (ONE, FAST, FASTER, "residues(13) > strassen > bytes"), product("CF", repeat=2), strict=True
    ):
        a, b = (
            cupy.asarray(normal(s, i), order=o) for i, (s, o) in enumerate(zip(((m, k), (k, n)), orders, strict=True))
        )
        assert worst(a, b, fmm.matmul(a, b, plan=leaf)) <= promised(leaf, k), (leaf, orders)


@pytest.mark.parametrize("leaf", [text for text, x in residue_leaves().items() if x.float_type == "float64"])
def test_every_leaf(leaf: str) -> None:
    a, b = normal((300, 700)), normal((700, 200), 1)
    assert worst(a, b, fmm.matmul(a, b, plan=leaf)) <= promised(leaf, 700)


@pytest.mark.parametrize(
    "leaf",
    ["residues(7) > bytes", "residues(8) > bytes", "residues(8) > strassen > bytes", "residues(9) > strassen > bytes"],
)
def test_float32(leaf: str) -> None:
    """Every order; graded rows and columns; inf and nan are where the vendor's are."""
    bits = {7: 26, 8: 30, 9: 34}[residue_leaves()[leaf].level.moduli]
    rng = np.random.default_rng(23)
    for (m, k, n), orders in product(((1, 1, 1), (129, 65, 131), (300, 700, 200), (9, 131072, 11)), ("CC", "FC", "CF")):
        x, y = (
            rng.standard_normal(s) * np.exp2(rng.integers(-30, 30, g)) for s, g in (((m, k), (m, 1)), ((k, n), (1, n)))
        )
        a, b = (cupy.asarray(v.astype(np.float32), order=o) for v, o in zip((x, y), orders, strict=True))
        assert worst(a, b, fmm.matmul(a, b, plan=leaf)) <= 2.0**-bits * np.sqrt(k) + 2.0**-24, (m, k, n, orders)
    for value in (np.inf, np.nan, 1e38):
        a, b = (cupy.asarray(rng.standard_normal(s).astype(np.float32)) for s in ((215, 300), (300, 401)))
        a[3, 4], b[7, 9] = value, value
        c, expected = fmm.matmul(a, b, plan=leaf), a @ b
        assert bool((cupy.isnan(c) == cupy.isnan(expected)).all()), value
        assert bool((cupy.isinf(c) == cupy.isinf(expected)).all()), value


@pytest.mark.parametrize("n", [2048, 4096])
def test_float32_has_a_fiftieth_of_sgemms_error(n: int) -> None:
    """In the Frobenius norm of some rows and columns; with 7 moduli less than half of SGEMM's error."""
    rng = cupy.random.default_rng(n)
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    exact = a[:64].get().astype(np.float64) @ b[:, :64].get().astype(np.float64)
    vendor, seven, eight, below = (
        float(np.linalg.norm(c[:64, :64].get() - exact))
        for c in (
            fmm.matmul(a, b, plan="vendor"),
            *(
                fmm.matmul(a, b, plan=x)
                for x in ("residues(7) > bytes", "residues(8) > bytes", "residues(8) > strassen > bytes")
            ),
        )
    )
    print(n, seven / vendor, eight / vendor, below / vendor)
    assert max(eight, below) <= 0.05 * vendor and seven <= 0.5 * vendor


@pytest.mark.parametrize("leaf", [ONE, FAST, FASTER])
@pytest.mark.parametrize("k", [1, 1000, 131071, 140000])
def test_integers_are_exact(leaf: str, k: int) -> None:
    """All numbers have the largest exact magnitude, so that sums of bytes are as large as possible."""
    rng = np.random.default_rng(k)
    for low, high in ((-8000, 8000), (8190, 8191)):
        a, b = (cupy.asarray(rng.integers(low, high + 1, s).astype(float)) for s in ((20, k), (k, 24)))
        assert bool((fmm.matmul(a, b, plan=leaf) == a @ b).all())


def test_poisoned_memory_strides_and_gaps() -> None:
    """Neither old numbers in the workspace nor gaps between lines affect C; gaps of C stay as they are."""
    m, k, n = 300, 200, 100
    memory = [cupy.full((rows + 3) * (cols + 5), cupy.nan) for rows, cols in ((m, k), (k, n), (m, n))]
    a, b, c = (
        x.reshape(rows + 3, cols + 5)[:rows, :cols]
        for x, (rows, cols) in zip(memory, ((m, k), (k, n), (m, n)), strict=True)
    )
    a[...], b[...] = normal((m, k)), normal((k, n), 1)
    layouts = Layout("C", k + 5), Layout("C", n + 5), Layout("C", n + 5)
    for leaf in (ONE, FAST):
        c[...] = cupy.nan
        found = record_plan_for_device(Plan.parse(leaf), Problem(m, k, n, "float64", layouts))
        work = cupy.full(found.workspace, 0x7F, cupy.uint8)
        DeviceBackend().run_launches(found, a.data.ptr, b.data.ptr, c.data.ptr, work.data.ptr)
        assert worst(a, b, c) <= promised(leaf, k)
        assert int(cupy.isnan(memory[2]).sum()) == memory[2].size - m * n


def families() -> dict[str, tuple[Any, Any]]:
    """Data that is hard for numbers cut into pieces."""
    rng = np.random.default_rng(1)
    m, k, n = 130, 600, 110
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    grade = np.exp2(np.linspace(-60, 60, k))
    found = {
        "uniform": (rng.random((m, k)), rng.random((k, n))),
        "log-normal": (a * np.exp(4 * rng.standard_normal((m, k))), b * np.exp(4 * rng.standard_normal((k, n)))),
        "rows and columns": (
            a * np.exp2(rng.integers(-500, 400, (m, 1))),
            b * np.exp2(rng.integers(-300, 400, (1, n))),
        ),
        "inner dimension, alike": (a * grade, b * grade[:, None]),
        "inner dimension, opposite": (a * grade, b / grade[:, None]),
        "huge and tiny": (a * 1e300, b * 1e-300),
        "near overflow": (a * 1e150, b * 1e150),
        "subnormal": (a * 1e-310, b * 1e10),
        "one huge entry": (np.where(rng.random((m, k)) < 1 / k, 1e20, a), b),
        "zeros": (a * 0, b),
        "some zero rows": (a * (rng.random((m, 1)) < 0.5), b * (rng.random((1, n)) < 0.5)),
    }
    return {name: (cupy.asarray(x), cupy.asarray(y)) for name, (x, y) in found.items()}


@pytest.mark.parametrize("leaf", [ONE, FAST])
def test_every_kind_of_data(leaf: str) -> None:
    for name, (a, b) in families().items():
        assert worst(a, b, fmm.matmul(a, b, plan=leaf)) <= promised(leaf, a.shape[1]), name


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("k", [1024, 4096, 16384])
def test_no_less_accurate_than_dgemm(kind: str, k: int) -> None:
    """In the Frobenius norm, with 14 moduli, and with levels below, which do not add to the error."""
    rng = cupy.random.default_rng(k)
    a, b = ((rng.random if kind == "uniform" else rng.standard_normal)(s) for s in ((64, k), (k, 64)))
    wide = [cupy.concatenate([x] * 32, axis=i) for i, x in enumerate((a, b))]  # so that cuBLAS does not cut k
    exact = a.get().astype(np.longdouble) @ b.get().astype(np.longdouble)
    vendor, *own = (
        float(np.linalg.norm((c[:64, :64].get() - exact).astype(float)))
        for c in (wide[0] @ wide[1], *(fmm.matmul(*wide, plan=leaf) for leaf in (ONE, FAST, FASTER)))
    )
    assert max(own) <= vendor


@pytest.mark.parametrize("plan", [ONE, FAST, "strassen.batched.pad16 > residues(14) > bytes"])
def test_inf_and_nan_are_where_the_vendors_are(plan: str) -> None:
    for a_value, b_value in ((cupy.inf, 1), (cupy.nan, 1), (cupy.inf, -cupy.inf), (1e308, 1e308)):
        a, b = normal((215, 300)), normal((300, 401), 1)
        a[3, 4], b[7, 9] = a_value, b_value
        c, expected = fmm.matmul(a, b, plan=plan), a @ b
        assert bool((cupy.isnan(c) == cupy.isnan(expected)).all()), (a_value, b_value)
        assert bool((cupy.isinf(c) == cupy.isinf(expected)).all()), (a_value, b_value)


@pytest.mark.parametrize("plan", [ONE, FAST, FASTER])
def test_the_same_bits_every_time(plan: str) -> None:
    a, b = normal((1000, 900)), normal((900, 1100), 1)
    first = fmm.matmul(a, b, plan=plan)
    for _ in range(5):
        assert bool((fmm.matmul(a, b, plan=plan) == first).all())


def test_levels_below_change_no_bit() -> None:
    """Sums of residues are exact, so C is the same integers, rounded."""
    a, b = normal((500, 1000)), normal((1000, 700), 1)
    first = fmm.matmul(a, b, plan=ONE)
    for leaf in (FAST, FASTER):
        c = fmm.matmul(a, b, plan=leaf)
        assert float((abs(c - first) / abs(first)).max()) <= 2.0**-52


def test_stacks_and_updates() -> None:
    a, b = normal((3, 200, 300)), normal((3, 300, 100), 1)
    c = fmm.matmul(a, b, plan=FAST)
    for i in range(3):
        assert worst(a[i], b[i], c[i]) <= promised(ONE, 300)
    x, y, z = (cupy.rint(100 * v) for v in (a[0], b[0], c[0]))
    assert bool((fmm.gemm(x, y, z, alpha=-2, beta=0.5, plan=ONE) == -2 * (x @ y) + 0.5 * z).all())


# ---- complex numbers


TWO = "residues2m(15) > bytes"
TWO_FAST = "residues2m(15) > strassen > bytes"
COMPLEX_PROMISED = {14: 2.0**-50, 15: 2.0**-53.4, 16: 2.0**-54, 17: 2.0**-54, 7: 2.0**-25, 8: 2.0**-28.8, 9: 2.0**-32}


def complex_normal(shape: tuple[int, ...], seed: int = 0) -> Any:
    return normal(shape, seed) + 1j * normal(shape, seed + 100)


def worst_part(a: Any, b: Any, c: Any) -> float:
    """Return the largest error of a real or imaginary part relative to the norms, in extended precision."""
    a, b, c = (x.get().astype(np.clongdouble) for x in (a, b, c))
    norms = np.sqrt((abs(a) ** 2).sum(axis=1))[:, None] * np.sqrt((abs(b) ** 2).sum(axis=0))[None]
    off = c - a @ b
    off = np.maximum(abs(off.real), abs(off.imag))
    return float(np.where(off == 0, 0, off / np.maximum(norms, np.longdouble("1e-4000"))).max())


def complex_promised(leaf: str, k: int) -> float:
    found = residue_leaves()[leaf]
    rounding = 2.0**-23 if found.float_type == "complex64" else 2.0**-52
    return float(COMPLEX_PROMISED[found.level.moduli] * np.sqrt(k) + rounding)


@pytest.mark.parametrize(("dtype", "plan"), [("float64", ONE), ("complex128", TWO)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_prepared_operands_give_the_same_bits(side: Any, order: Any, dtype: str, plan: str) -> None:
    """The prepared planes are of a matrix that is overwritten later."""
    numbers = complex_normal if dtype == "complex128" else normal
    a, b = numbers((300, 700)), numbers((700, 264), 1)
    x = a if side == "left" else b
    held = cupy.array(x, order=order)
    p = fmm.prepare(held, side=side)
    assert p.prepared_leaf == plan
    held[...] = cupy.nan
    expected = fmm.matmul(a, b, plan=plan)
    left, right = (p, b) if side == "left" else (a, p)
    for _ in range(2):
        assert bool((fmm.matmul(left, right, plan=plan) == expected).all())
    turned = cupy.empty_like(expected, order="F")
    assert bool((fmm.matmul(left, right, turned, plan=plan) == expected).all())


@pytest.mark.parametrize("shape", SHAPES)
def test_complex_of_every_shape_and_order(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    for leaf, orders in zip((TWO, TWO_FAST, "residues2m(17) > bytes", TWO), product("CF", repeat=2), strict=True):
        a, b = (
            cupy.asarray(complex_normal(s, i), order=o)
            for i, (s, o) in enumerate(zip(((m, k), (k, n)), orders, strict=True))
        )
        assert worst_part(a, b, fmm.matmul(a, b, plan=leaf)) <= complex_promised(leaf, k), (leaf, orders)


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_lines_of_views_up_to_the_longest_that_one_kernel_splits(dtype: str, orders: str) -> None:
    """Views with NaN between their lines; the last length is the shortest that two kernels split."""
    leaf = {"float64": ONE, "float32": "residues(8) > bytes", "complex128": TWO}.get(dtype, "residues2m(8) > bytes")
    lengths = 33, 513, 1027, MAX_SPLIT_LINE_LENGTH, MAX_SPLIT_LINE_LENGTH + 1
    for (m, n), k in zip(((3, 50), (65, 17), (40, 66), (19, 35), (18, 20)), lengths, strict=True):
        a, b = (
            view_between_nan(complex_normal(s, i) if dtype[0] == "c" else normal(s, i), dtype, o)
            for i, (s, o) in enumerate(zip(((m, k), (k, n)), orders, strict=True))
        )
        c = fmm.matmul(a, b, plan=leaf)
        if dtype[0] == "c":
            assert worst_part(a, b, c) <= complex_promised(leaf, k), (m, k, n)
        else:
            bound = promised(ONE, k) if dtype == "float64" else 2.0**-30 * np.sqrt(k) + 2.0**-24
            assert worst(a, b, c) <= bound, (m, k, n)


def view_between_nan(x: Any, dtype: str, order: str) -> Any:
    """Return a copy of the matrix whose lines have gaps of three NaN."""
    lines = x if order == "C" else x.T
    memory = cupy.full((lines.shape[0], lines.shape[1] + 3), cupy.nan, dtype)
    memory[:, : lines.shape[1]] = lines
    view = memory[:, : lines.shape[1]]
    return view if order == "C" else view.T


@pytest.mark.parametrize(
    "leaf", [text for text, x in residue_leaves().items() if x.level.for_complex and not any(x.level.conjugates)]
)
def test_every_complex_leaf(leaf: str) -> None:
    dtype = residue_leaves()[leaf].float_type
    a, b = complex_normal((300, 700)).astype(dtype), complex_normal((700, 200), 1).astype(dtype)
    assert worst_part(a, b, fmm.matmul(a, b, plan=leaf)) <= complex_promised(leaf, 700)


def test_complex64_of_every_shape_and_order() -> None:
    for (m, k, n), orders in product(((1, 1, 1), (129, 65, 131), (300, 700, 200), (9, 131072, 11)), ("CC", "FC", "CF")):
        a, b = (
            cupy.asarray(complex_normal(s, i).astype(np.complex64), order=o)
            for i, (s, o) in enumerate(zip(((m, k), (k, n)), orders, strict=True))
        )
        for leaf in ("residues2m(7) > bytes", "residues2m(8) > strassen > bytes"):
            assert worst_part(a, b, fmm.matmul(a, b, plan=leaf)) <= complex_promised(leaf, k), (leaf, m, k, n, orders)


@pytest.mark.parametrize("n", [1024, 4096])
def test_complex64_is_more_accurate_than_cgemm(n: int) -> None:
    rng = cupy.random.default_rng(n)
    a, b = ((rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))).astype(np.complex64) for _ in range(2))
    exact = a[:64].get().astype(complex) @ b[:, :64].get().astype(complex)
    plans = ("vendor", "3m > f16x3", "residues2m(7) > bytes", "residues2m(8) > bytes")
    vendor, *own = (float(np.linalg.norm(fmm.matmul(a, b, plan=x)[:64, :64].get() - exact)) for x in plans)
    print(n, [x / vendor for x in own])
    assert own[1] <= 0.6 * vendor and own[2] <= 0.05 * vendor


@pytest.mark.parametrize("leaf", [TWO, TWO_FAST])
@pytest.mark.parametrize("k", [1, 1000, 131071])
def test_gaussian_integers_are_exact(leaf: str, k: int) -> None:
    rng = np.random.default_rng(k)
    for low, high in ((-4000, 4000), (4090, 4091)):
        parts = [rng.integers(low, high + 1, s).astype(float) for s in ((20, k), (20, k), (k, 24), (k, 24))]
        a, b = cupy.asarray(parts[0] + 1j * parts[1]), cupy.asarray(parts[2] - 1j * parts[3])
        assert bool((fmm.matmul(a, b, plan=leaf) == a @ b).all())


@pytest.mark.parametrize("k", [1024, 4096, 16384])
def test_no_less_accurate_than_zgemm(k: int) -> None:
    """In the Frobenius norm; with 17 moduli the error is hardly more than the rounding of C."""
    a, b = complex_normal((64, k), 1), complex_normal((k, 64), 2)
    wide = [cupy.concatenate([x] * 32, axis=i) for i, x in enumerate((a, b))]  # so that cuBLAS does not cut k
    exact = a.get().astype(np.clongdouble) @ b.get().astype(np.clongdouble)
    vendor, *own = (
        float(np.linalg.norm((c[:64, :64].get() - exact).astype(complex)))
        for c in (wide[0] @ wide[1], *(fmm.matmul(*wide, plan=x) for x in (TWO, TWO_FAST, "residues2m(17) > bytes")))
    )
    print(k, [x / vendor for x in own], [x / float(np.linalg.norm(exact.astype(complex))) for x in own])
    assert max(own) <= vendor and own[-1] <= 0.2 * vendor


@pytest.mark.parametrize("plan", [TWO, TWO_FAST, "3m > residues(14) > bytes"])
@pytest.mark.parametrize("conjugate", [False, True])
def test_complex_inf_and_nan_are_where_the_vendors_are(plan: str, conjugate: bool) -> None:
    """Other entries are the product, also if A is conjugated: the recomputed product too."""
    for a_value, b_value in ((cupy.inf, 1), (complex(0, np.nan), 1), (cupy.inf, -1j * cupy.inf), (1e308, 1e308)):
        a, b = complex_normal((300, 215)), complex_normal((300, 101), 1)
        a[4, 3], b[9, 7] = a_value, b_value
        x = a.conj() if conjugate else a
        c = fmm.gemm(a, b, transpose_a="C" if conjugate else True, plan=plan)
        expected = cupy.ascontiguousarray(x.T) @ b
        finite = cupy.isfinite(expected)
        assert bool((cupy.isfinite(c) == finite).all()), (a_value, b_value)
        assert float(abs(c - expected)[finite].max()) <= 1e-12 * float(abs(expected)[finite].max())


@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (-2, 0.5), (2 - 1j, 1 + 3j)])
def test_complex_gemm(alpha: complex, beta: complex) -> None:
    ops: tuple[Any, ...] = (False, True, "C")
    for op_a, op_b in product(ops, repeat=2):
        a = cupy.rint(100 * complex_normal((300, 200) if op_a else (200, 300)))
        b = cupy.rint(100 * complex_normal((130, 300) if op_b else (300, 130), 1))
        c = cupy.rint(100 * complex_normal((200, 130), 2))
        x, y = (v.conj().T if op == "C" else v.T if op else v for v, op in ((a, op_a), (b, op_b)))
        expected = alpha * (cupy.ascontiguousarray(x) @ cupy.ascontiguousarray(y)) + (beta * c if beta else 0)
        found = fmm.gemm(a, b, c, alpha=alpha, beta=beta, transpose_a=op_a, transpose_b=op_b, plan=TWO)
        assert bool((found == expected).all()), (op_a, op_b)


def test_stacks_of_complex_products() -> None:
    a, b = complex_normal((3, 200, 300)), complex_normal((3, 300, 100), 1)
    for leaf in (TWO, TWO_FAST, f"strassen.batched.pad16 > {TWO}"):
        c = fmm.matmul(a, b, plan=leaf)
        for i in range(3):
            assert worst_part(a[i], b[i], c[i]) <= 4 * complex_promised(TWO, 300)


@pytest.mark.parametrize("rows", [False, True])
def test_hermitian_products(rows: bool) -> None:
    """Bit for bit its own adjoint, as accurate as other products."""
    for shape in ((700, 300), (129, 1000), (7, 5)):
        a = complex_normal(shape)
        c = fmm.gram(a, rows=rows, plan=TWO)
        x = a if rows else cupy.ascontiguousarray(a.conj().T)
        assert bool((c == c.conj().T).all()) and not bool(c.diagonal().imag.any())
        assert worst_part(x, cupy.ascontiguousarray(x.conj().T), c) <= complex_promised(TWO, x.shape[1])


# ---- integers


def wrapped_product(a: Any, b: Any) -> Any:
    """Return NumPy's product: for bool, whether any term is true; for others, the lowest bits of the sum."""
    x, y = a.get(), b.get()
    if x.dtype == bool:
        return cupy.asarray((x.astype(np.float64) @ y.astype(np.float64)) != 0)
    wide = f"uint{8 * x.itemsize}"
    found = x.view(wide).astype(np.uint64) @ y.view(wide).astype(np.uint64)
    return cupy.asarray(found.astype(wide).view(x.dtype))


def integer_product(a: Any, b: Any, order: str = "C", plan: str = "residues > bytes") -> Any:
    (m, k), n = a.shape, b.shape[1]
    x, y = ("C" if v.flags.c_contiguous else "F" for v in (a, b))
    layouts = (
        Layout("C", k) if x == "C" else Layout("F", m),
        Layout("C", n) if y == "C" else Layout("F", k),
        Layout("C", n) if order == "C" else Layout("F", m),
    )
    found = record_plan_for_device(Plan.parse(plan), Problem(m, k, n, a.dtype.name, layouts))
    work, c = cupy.full(found.workspace, 0x7F, cupy.uint8), cupy.full((m, n), 77, a.dtype, order=order)
    DeviceBackend().run_launches(found, a.data.ptr, b.data.ptr, c.data.ptr, work.data.ptr)
    return c


def integers(dtype: str, shape: tuple[int, int], rng: np.random.Generator) -> Any:
    if dtype == "bool":
        return cupy.asarray(rng.random(shape) < 0.1)
    info = np.iinfo(dtype)
    kind = rng.integers(4)
    if kind == 0:
        return cupy.full(shape, info.min, dtype)
    if kind == 1:
        ends = np.array([info.max, info.min], dtype)  # of uint64 both in one expression would become a float64
        return cupy.asarray(ends[np.indices(shape).sum(axis=0) % 2])
    some = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return cupy.asarray(some >> int(rng.integers(0, 8 * some.itemsize)))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_equal_those_of_numpy(dtype: str) -> None:
    rng = np.random.default_rng(20)
    for trial in range(40):
        m, k, n = (int(x) for x in rng.integers(1, (130, 700, 130)))
        orders = rng.choice(["C", "F"], 3)
        a, b = (cupy.asarray(integers(dtype, s, rng), order=o) for s, o in zip(((m, k), (k, n)), orders, strict=False))
        c = integer_product(a, b, orders[2])
        assert bool((c == wrapped_product(a, b)).all()), (trial, m, k, n, orders)


@pytest.mark.parametrize("dtype", TYPES_WITH_LEVEL_BELOW)
def test_levels_below_integers(dtype: str) -> None:
    rng = np.random.default_rng(24)
    for trial in range(12):
        m, k, n = (int(x) for x in rng.integers(1, (140, 400, 140)))
        orders = rng.choice(["C", "F"], 3)
        a, b = (cupy.asarray(integers(dtype, s, rng), order=o) for s, o in zip(((m, k), (k, n)), orders, strict=False))
        c = integer_product(a, b, orders[2], "residues > strassen > bytes")
        assert bool((c == wrapped_product(a, b)).all()), (trial, m, k, n, orders)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_bytes_multiplied_in_place(dtype: str) -> None:
    """The copy engine reads lines that begin at multiples of 16; others are transposed, and C is written at once. Sizes
    that
    are no multiples of a tile, and one whose sums would exceed 32 bits."""
    rng, info = np.random.default_rng(22), np.iinfo(dtype)
    sides = ((16, 16, 16), (256, 512, 384), (144, 1040, 272), (1008, 64, 80), (16, 140000, 16), (160, 100, 176))
    for (m, k, n), orders in product(sides, product("CF", repeat=3)):
        least = info.min if k < 140000 else -128 if dtype == "int8" else 255
        most = info.max if k < 140000 else least
        a, b = (
            cupy.asarray(rng.integers(least, most, s, dtype, endpoint=True), order=o)
            for s, o in zip(((m, k), (k, n)), orders, strict=False)
        )
        assert bool((integer_product(a, b, orders[2]) == wrapped_product(a, b)).all()), (m, k, n, orders)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint64"])
def test_integers_of_long_sums(dtype: str) -> None:
    rng = np.random.default_rng(21)
    for k in (131071, 140000):
        a, b = integers(dtype, (9, k), rng), integers(dtype, (k, 11), rng)
        assert bool((integer_product(a, b) == wrapped_product(a, b)).all())
