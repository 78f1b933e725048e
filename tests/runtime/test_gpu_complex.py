"""Complex products by three real ones and fmm.gemm on a CUDA device, with CuPy's arrays and torch's tensors."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import fmm
from tests.support.device_arrays import CORRUPTIONS, EPS, CupyLibrary, TorchLibrary, close, draw, same_places

pytestmark = pytest.mark.gpu

BY_THREE = ("3m > vendor", "3m.batched > vendor", "3m.overlapped > strassen.batched.pad16 > vendor", "vendor3m")
DTYPES = ("complex64", "complex128")


@pytest.fixture(params=[CupyLibrary, TorchLibrary], ids=["cupy", "torch"])
def library(request: pytest.FixtureRequest) -> Any:
    return request.param()


# ---- products


@pytest.mark.parametrize("plan", (*BY_THREE, "3m.sequential > winograd.pad16 > vendor"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_and_views(library: Any, dtype: str, plan: str) -> None:
    x = library.array(draw((130, 130), dtype), dtype)
    for a in (x, x.T, x[3:67, 5:69], x[::2], x[:, ::2], x.conj(), x.T.conj()):
        b = library.array(draw((a.shape[1], 75), dtype, 1), dtype)
        library.spoil(1 << 22)
        close(library, fmm.matmul(a, b, plan=plan), a, b, dtype)
    a, b = library.array(draw((3, 40, 50), dtype), dtype), library.array(draw((3, 50, 60), dtype, 1), dtype)
    close(library, fmm.matmul(a, b, plan=plan), a, b, dtype)


@pytest.mark.parametrize("corrupt", CORRUPTIONS)
@pytest.mark.parametrize("plan", BY_THREE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_inf_and_nan_stand_where_the_vendor_has_them(library: Any, dtype: str, plan: str, corrupt: Any) -> None:
    x, y = draw((140, 133), dtype), draw((133, 150), dtype, 1)
    corrupt(x, y)
    a, b = library.array(x, dtype), library.array(y, dtype)
    same_places(library, fmm.matmul(a, b, plan=plan), library.matmul(a, b))


@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_in_norm_are_what_is_expected(library: Any, dtype: str) -> None:
    x, y = draw((1024, 1024), dtype), draw((1024, 1024), dtype, 1)
    a, b = library.array(x, dtype), library.array(y, dtype)
    exact = library.host(a).astype(np.clongdouble)[:16] @ library.host(b)
    own, vendor = (
        np.linalg.norm((library.host(c)[:16] - exact).astype(complex))
        for c in (fmm.matmul(a, b, plan="3m > vendor"), library.matmul(a, b))
    )
    assert own < 3 * vendor


# ---- gemm

PLANS = (None, "vendor", "strassen.batched.pad16 > vendor", "li-fig3.peel > vendor", "winograd.pad16 > vendor")
OPS: tuple[tuple[Any, Any], ...] = ((False, False), (True, False), (False, True), ("C", "C"))


def turned(x: Any, op: Any) -> Any:
    return x if op is False else np.swapaxes(x, -1, -2) if op is True else np.swapaxes(x, -1, -2).conj()


@pytest.mark.parametrize("plan", (*PLANS, "3m > vendor"))
@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float32", "float64", *DTYPES))
def test_gemm(library: Any, dtype: str, plan: str | None) -> None:
    """Into a new array, and in place; c is left as it is unless it is out."""
    if plan is not None and not fmm.Plan.parse(plan).accepts_type(dtype):
        pytest.skip("for complex numbers")
    for (op_a, op_b), (alpha, beta) in product(OPS, ((1, 1), (-0.5, 2), (2, 0))):
        x, y = draw((140, 96), dtype), draw((96, 75), dtype, 1)
        a, b = library.array(turned(x, op_a), dtype), library.array(turned(y, op_b), dtype)
        c = library.array(draw((140, 75), dtype, 2), dtype)
        before = library.host(c)
        left, right = turned(library.host(a), op_a), turned(library.host(b), op_b)
        expected = alpha * (left @ right) + beta * before
        library.spoil(1 << 22)
        options: dict[str, Any] = {"alpha": alpha, "beta": beta, "transpose_a": op_a, "transpose_b": op_b, "plan": plan}
        found = fmm.gemm(a, b, c, **options)
        np.testing.assert_array_equal(library.host(c), before)
        assert fmm.gemm(a, b, c, **options, out=c) is c
        for result in (found, c):
            assert np.abs(library.host(result) - expected).max() <= 40 * 96**0.5 * EPS[dtype] * np.abs(expected).max()


@pytest.mark.parametrize(
    ("plan", "dtype"),
    [
        *((plan, dtype) for plan in ("tile", "strassen.batched.pad16 > tile") for dtype in ("float32", "float64")),
        ("tile", "bfloat16"),
        ("f16x3", "float32"),
        ("winograd > f16x3", "float32"),
        ("strassen.fused > tile", "float32"),
        ("winograd > vendor", "bfloat16"),
        ("3m > vendor", "complex64"),
    ],
)
def test_what_is_added_may_be_a_row_for_all_rows(library: Any, dtype: str, plan: str) -> None:
    """Or a column, a number, a matrix: read where it lies, and left as it is; the result may have inf and NaN."""
    x, y = draw((144, 96), dtype), draw((96, 80), dtype, 1)
    for shape, broken in product(((80,), (144, 1), (1, 1), (144, 80)), (False, True)):
        x[3, 5] = np.inf if broken else 1
        a, b, c = (library.array(z, dtype) for z in (x, y, draw(shape, dtype, 2)))
        library.spoil(1 << 22)
        before = library.host(c)
        found, vendor = (fmm.gemm(a, b, c, alpha=-0.5, beta=2, plan=p) for p in (plan, "vendor"))
        np.testing.assert_array_equal(library.host(c), before)
        if broken:
            same_places(library, found, vendor)
        else:
            expected = -0.5 * (library.host(a) @ library.host(b)) + 2 * before
            close = 40 * 96**0.5 * EPS[dtype] * np.abs(expected).max()
            assert np.abs(library.host(found) - expected).max() <= close


@pytest.mark.parametrize("corrupt", CORRUPTIONS)
@pytest.mark.parametrize("dtype", ("float16", "float32", "float64", "complex64"))
def test_gemm_begins_anew_with_the_old_numbers(library: Any, dtype: str, corrupt: Any) -> None:
    """In place: where inf or NaN has the product computed again, what C held must not be lost."""
    x, y, z = draw((140, 133), dtype), draw((133, 150), dtype, 1), draw((140, 150), dtype, 2)
    corrupt(x, y)
    a, b = library.array(x, dtype), library.array(y, dtype)
    for plan in (*PLANS[2:], *(("3m > vendor",) if dtype in DTYPES else ())):
        for alpha, beta in ((2, 1), (1, -0.5), (3, 0)):
            c, vendor = (library.array(z, dtype) for _ in range(2))
            fmm.gemm(a, b, c, alpha=alpha, beta=beta, out=c, plan=plan)
            fmm.gemm(a, b, vendor, alpha=alpha, beta=beta, out=vendor, plan="vendor")
            same_places(library, c, vendor)


def test_gemm_of_stacks_and_of_nothing(library: Any) -> None:
    a, b = library.array(draw((3, 40, 50)), "float32"), library.array(draw((3, 50, 60), seed=1), "float32")
    c = library.array(draw((40, 60), seed=2), "float32")
    for plan in PLANS:
        found = library.host(fmm.gemm(a, b, c, alpha=2, beta=3, plan=plan))
        expected = 2 * library.host(a) @ library.host(b) + 3 * library.host(c)
        assert np.abs(found - expected).max() < 1e-3
    empty = library.array(np.zeros((4, 0)), "float32"), library.array(np.zeros((0, 3)), "float32")
    old = library.array(np.ones((4, 3)), "float32")
    np.testing.assert_array_equal(library.host(fmm.gemm(*empty, old, beta=2)), 2 * np.ones((4, 3)))
    nan = library.array(np.full((40, 40), np.nan), "float32")
    np.testing.assert_array_equal(library.host(fmm.gemm(nan, nan, nan, alpha=0)), np.zeros((40, 40)))


def test_gemm_in_place_may_overlap_its_operands(library: Any) -> None:
    x = library.array(draw((96, 96)), "float64")
    for op in (False, True):
        c = library.array(library.host(x), "float64")
        before = library.host(c)
        out = c.T if op else c
        fmm.gemm(c, c, out, alpha=2, beta=3, out=out, plan=PLANS[2])
        expected = 2 * before @ before + 3 * turned(before, op)
        np.testing.assert_allclose(library.host(out), expected, rtol=0, atol=1e-9)
