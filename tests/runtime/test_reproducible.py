"""fmm.matmul(..., reproducible=True): the same bits for any blocks, threads, memory orders and devices."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.arrays.library import ProductSetting, contiguous_operand
from fmm.kernels.algorithms.residues import max_scaled_norm
from fmm.kernels.cpu.residue_product import residue_product, row_norm_bounds, scaling_exponents
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.plans.levels.residues import RELATIVE_ERROR_BY_MODULI
from fmm.kernels.plans.plan import PlanError
from fmm.perfmodel.choose import Limits
from fmm.runtime.decisions.reproducible import ERROR_BY_MODULI, reproducible_plan
from fmm.runtime.prepare import ProblemQuery, prepare_query
from tests.support import chips
from tests.support.devices import H200
from tests.support.residue_products import product_on_host, real_numbers
from tests.support.residues_on_host import exponents
from tests.support.same_bits import DIGESTS, digest, fixed_operands

Matrix = np.ndarray[Any, Any]
TYPES = ("float64", "float32", "complex128", "complex64")
PLANS = {
    "float64": "residues(14) > bytes",
    "float32": "residues(8) > bytes",
    "complex128": "residues2m(15) > bytes",
    "complex64": "residues2m(8) > bytes",
}
MODULI = {"float64": 14, "float32": 8, "complex128": 15, "complex64": 8}


def reproducible(a: Any, b: Any, **options: Any) -> Any:
    return fmm.matmul(a, b, reproducible=True, **options)


def assert_same_bits(x: Matrix, y: Matrix) -> None:
    assert x.dtype == y.dtype and np.ascontiguousarray(x).tobytes() == np.ascontiguousarray(y).tobytes()


def graded_operands(dtype: str, shape: tuple[int, int, int]) -> tuple[Matrix, Matrix]:
    """Return operands with rows of very different norms, zero rows and columns, negative zeros and subnormals."""
    a, b = fixed_operands(dtype, shape)
    most = 60 if dtype in ("float32", "complex64") else 480
    a *= np.exp2(np.linspace(-most, most, len(a))).astype(a.real.dtype)[:, None]
    b *= np.exp2(np.linspace(most, -most, b.shape[1])).astype(b.real.dtype)
    a[1], a[2, ::2], b[:, 3] = 0, -0.0, 0
    a[3] = np.finfo(a.dtype).smallest_subnormal * 5
    return a, b


def lines_in_doubt(dtype: str, lines: int, length: int, moduli: int) -> Matrix:
    """Return rows with norms so close to a limit that the order of the sum can select the exponent."""
    rng, complex_ = np.random.default_rng(5), dtype.startswith("complex")
    x: Matrix = rng.standard_normal((lines, length * (1 + complex_)))
    top = np.frexp(max_scaled_norm(moduli, length, complex_))[0]
    for _ in range(30):  # the rounding of each number moves the norm again
        x *= (top / (np.sqrt((x**2).sum(axis=1)) * (1 + 2.0**-24)))[:, None]
    return x.view(complex) if complex_ else x


# ---- the choice of the plan


@pytest.mark.parametrize("dtype", TYPES)
def test_the_type_determines_the_plan(dtype: str) -> None:
    a, b = fixed_operands(dtype)
    decision = fmm.explain(a, b, reproducible=True)
    assert str(decision.plan) == PLANS[dtype] == str(reproducible_plan(dtype))
    assert "reproducible" in decision.reason


@pytest.mark.parametrize(
    ("dtype", "limit", "moduli"),
    [("float64", 1, 14), ("float64", 0.1, 15), ("float64", 0.05, 16), ("complex128", 0.5, 17), ("complex64", 20, 8)],
)
def test_the_error_limit_selects_the_number_of_moduli(dtype: str, limit: float, moduli: int) -> None:
    a, b = fixed_operands(dtype)
    assert f"({moduli})" in str(fmm.explain(a, b, reproducible=True, max_error_growth=limit).plan)


def test_the_table_of_errors_is_that_of_the_levels() -> None:
    for dtype, errors in ERROR_BY_MODULI.items():
        assert errors == {moduli: RELATIVE_ERROR_BY_MODULI[dtype].get(moduli, 1.0) for moduli in errors}
        assert list(errors) == sorted(errors)


def test_errors_name_the_type_and_the_valid_types() -> None:
    with pytest.raises(ValueError, match=r"bfloat16.*float64, float32, complex128, complex64"):
        reproducible_plan("bfloat16")
    half = np.ones((4, 4), np.float16)
    with pytest.raises(ValueError, match=r"float16.*valid types: float64, float32, complex128, complex64, integers"):
        reproducible(half, half)
    a, b = fixed_operands("float64")
    with pytest.raises(PlanError, match=r"float64 has an error growth of at most 0\.01; the smallest is 0\.04"):
        reproducible(a, b, max_error_growth=0.01)
    with pytest.raises(ValueError, match="pass plan or reproducible, not both"):
        reproducible(a, b, plan="vendor")
    with pytest.raises(PlanError, match="componentwise"):
        reproducible(a, b, componentwise=True)
    with pytest.raises(ValueError, match="reproducible must be True or False"):
        fmm.matmul(a, b, reproducible="yes")  # type: ignore[arg-type]
    with np.errstate(under="raise"), pytest.raises(PlanError, match="errstate"):
        reproducible(a, b)
    with pytest.raises(PlanError, match="a cast to float32 can lose numbers"):
        reproducible(a, b, dtype=np.float32, casting="unsafe")
    with pytest.raises(PlanError, match="on a CPU"):
        fmm.gram(a, plan=PLANS["float64"])


def test_integers_are_exact_by_any_plan() -> None:
    a = np.arange(60, dtype=np.int32).reshape(6, 10)
    assert_same_bits(reproducible(a, a.T), a @ a.T)


def test_a_gpu_runs_its_own_kernels_or_raises() -> None:
    """Before compute capability 8.0 the vendor would multiply."""
    operand = contiguous_operand((300, 300), "float64")
    limits, setting = Limits(1 << 34, reproducible=True), ProductSetting(0, "float64")
    devices = [replace(H200, chip=chip) for chip in (chips.H200, chips.A100, chips.V100)]
    queries = [ProblemQuery(operand, operand, None, setting, x, limits, reproducible_plan("float64")) for x in devices]
    for query in queries[:2]:
        call = prepare_query(query)
        assert call.launches is not None and any(x.does == "product" for x in call.launches.launches)
    with pytest.raises(PlanError, match=r"cannot run on this GPU: .*compute capability 8\.0"):
        prepare_query(queries[2])


# ---- bits on the host


@pytest.mark.parametrize(("dtype", "level"), DIGESTS)
def test_bits_of_the_plan(dtype: str, level: str) -> None:
    a, b = fixed_operands(dtype)
    assert digest(fmm.matmul(a, b, plan=f"{level} > bytes")) == DIGESTS[dtype, level]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("dtype", TYPES)
def test_blocks_and_memory_orders(dtype: str) -> None:
    a, b = fixed_operands(dtype)
    c = reproducible(a, b)
    for m, n in ((13, 7), (64, 1), (1, 76)):
        parts = [[reproducible(x, y) for y in (b[:, :n], b[:, n:])] for x in (a[:m], a[m:])]
        assert_same_bits(np.block(parts), c)
    for x, y in product((np.asfortranarray(a), np.repeat(a, 2, 1)[:, ::2], a[::-1][::-1]), (np.asfortranarray(b), b)):
        assert_same_bits(reproducible(x, y), c)
    out = np.empty((*c.T.shape,), dtype).T
    assert_same_bits(reproducible(a, b, out=out), c)
    assert_same_bits(reproducible(b.T, a.T).T, c)
    assert_same_bits(reproducible(np.stack([a, 2 * a]), b), np.stack([c, 2 * c]))
    assert_same_bits(reproducible(a[5], b), c[5])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
def test_threads_and_blocks_of_the_product(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = fixed_operands(dtype)
    expected = reproducible(a, b)
    for count, side, length in ((1, 2048, 1024), (2, 40, 32), (5, 17, 100)):
        monkeypatch.setattr("fmm.kernels.cpu.residue_product.BLOCK_SIDE", side)
        monkeypatch.setattr("fmm.kernels.cpu.residue_product.SUM_LENGTH", length)
        monkeypatch.setattr("fmm.kernels.cpu.residue_product.PANEL_NUMBERS", 300)
        c = np.empty_like(expected)
        memory, complex_ = np.empty(0, np.uint8), dtype.startswith("complex")
        residue_product(a, b, c, memory, ThreadGroup(count), moduli=MODULI[dtype], for_complex=complex_)
        assert_same_bits(c, expected)


@pytest.mark.parametrize("dtype", TYPES)
def test_nonfinite_numbers_are_the_vendors(dtype: str) -> None:
    a, b = fixed_operands(dtype)
    a[3, 4] = np.inf
    b[5, 6] = np.nan
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(reproducible(a, b), a @ b)


def test_products_that_overflow_are_the_vendors() -> None:
    a = np.full((3, 4), 1e200)
    with np.errstate(over="ignore"):
        assert np.isinf(reproducible(a, a.T)).all()


# ---- bits of the kernels, compiled for the host


@pytest.mark.parametrize("layouts", ["CCC", "FCC", "CFF"])
@pytest.mark.parametrize("dtype", TYPES)
def test_kernels_compiled_for_the_host(dtype: str, layouts: str) -> None:
    a, b = graded_operands(dtype, (21, 70, 34))
    c, _ = product_on_host(a, b, PLANS[dtype], layouts)
    assert_same_bits(reproducible(a, b), c)
    assert np.isfinite(c).all() and (c[1] == 0).all() and c[3].any()


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("length", [100, 1000])
def test_exponents_do_not_depend_on_the_order_of_sums(dtype: str, length: int) -> None:
    complex_ = dtype.startswith("complex")
    top, lines = max_scaled_norm(MODULI[dtype], length, complex_), lines_in_doubt(dtype, 200, length, MODULI[dtype])
    numbers = real_numbers(lines)
    forward, backward = (exponents(numbers, top, backwards, checked=False) for backwards in (False, True))
    assert (forward != backward).any()  # the order does select the exponent of some of these lines
    expected = scaling_exponents(row_norm_bounds(lines), top)
    for backwards in (False, True):
        np.testing.assert_array_equal(exponents(numbers, top, backwards), expected)
    for ends in (-1060, -1000, -700, 700, 1000):  # smaller norms are sums of subnormal numbers
        scaled = numbers * 2.0 ** (ends // 2) * 2.0 ** (ends - ends // 2)
        with np.errstate(all="ignore"):
            expected = scaling_exponents(row_norm_bounds(scaled), top)
        for backwards in (False, True):
            np.testing.assert_array_equal(exponents(scaled, top, backwards), expected)


# ---- torch, and a GPU


@pytest.mark.parametrize("dtype", TYPES)
def test_tensors_and_gradients(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    a, b = fixed_operands(dtype)
    x, y = (torch.tensor(v, requires_grad=True) for v in (a, b))
    c = reproducible(x, y)
    assert_same_bits(c.detach().numpy(), reproducible(a, b))
    c.sum().abs().backward()
    assert x.grad.shape == x.shape


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
def test_a_gpu_has_the_bits_of_a_cpu(dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    cases = [fixed_operands(dtype, shape) for shape in ((65, 131, 77), (300, 5000, 200), (1, 9, 2))]
    cases.append(graded_operands(dtype, (64, 300, 50)))
    moduli = MODULI[dtype]
    for length in (100, 1000, 5000) if dtype in ("float64", "complex128") else ():
        doubtful = lines_in_doubt(dtype, 40, length, moduli)
        cases.append((doubtful, np.ascontiguousarray(doubtful[::-1].T)))
    for a, b in cases:
        expected = reproducible(a, b)
        for orders, stream in product(("CC", "FC", "CF", "FF"), (cupy.cuda.Stream.null, cupy.cuda.Stream())):
            with stream:
                x, y = (cupy.asarray(v, order=order) for v, order in zip((a, b), orders, strict=True))
                assert_same_bits(cupy.asnumpy(reproducible(x, y)), expected)
    for limit in (0.05, 0.1):
        if dtype != "complex64":
            assert_same_bits(
                cupy.asnumpy(reproducible(x, y, max_error_growth=limit)), reproducible(a, b, max_error_growth=limit)
            )
