"""One triangle of a product on the host: by NumPy's BLAS, by SciPy, and by whole products."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from fmm.kernels.cpu import triangle_product as module
from fmm.kernels.cpu.openblas import cblas_function, loaded_openblas
from fmm.kernels.cpu.triangle_product import MIRROR_BAND_ROWS, RANK_FUNCTIONS, mirror_tasks, triangle_product
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.sums import Mirror, whole_matrix

Matrix = np.ndarray[Any, Any]


@pytest.fixture(params=["as usual", "SciPy", "NumPy alone"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The library that computes the triangle."""
    found = {"SciPy": _scipys, "NumPy alone": lambda dtype: None}
    if request.param in found:
        monkeypatch.setattr(module, "_rank_update_function", found[request.param])
    return str(request.param)


def _scipys(dtype: str) -> Any:
    blas = pytest.importorskip("scipy.linalg.blas")
    return partial(module._rank_update_by_scipy, getattr(blas, RANK_FUNCTIONS[dtype]))


def numbers(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> Matrix:
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.startswith("complex") else x).astype(dtype)


def spaced(x: Matrix, order: str) -> Matrix:
    """The same numbers in rows (or columns) with gaps between them."""
    rows, cols = x.shape
    whole = np.full((rows, cols + 5) if order == "C" else (rows + 5, cols), np.nan, x.dtype, order=order)  # type: ignore[call-overload]
    part: Matrix = whole[:rows, :cols]
    part[...] = x
    return part


@pytest.mark.parametrize("dtype", RANK_FUNCTIONS)
@pytest.mark.parametrize(("order", "dest_order"), [("C", "C"), ("C", "F"), ("F", "C"), ("F", "F")])
def test_a_triangle(dtype: str, order: str, dest_order: str, way: str) -> None:
    """In every memory order, as exact as the type; the NaN in the upper triangle stay and are not read."""
    rng = np.random.default_rng(1)
    for n, k, alpha, beta in ((1, 1, 1, 0), (7, 3, 1, 0), (6, 9, 2.5, 0), (40, 33, -1, 2), (5, 1, 0, 1), (4, 4, 0, 0)):
        x = numbers(rng, (n, k), dtype)
        left, right = spaced(x, order), spaced(x.conj(), order).T
        old = numbers(rng, (n, n), dtype)
        old = old + old.conj().T
        below = np.tri(n, dtype=bool)
        dest = spaced(np.where(below, old if beta else np.nan, np.nan).astype(dtype), dest_order)
        triangle_product(left, right, dest, GemmParams(alpha, beta, "gram", "lower"))
        wide = x.astype(np.complex128 if dtype.startswith("complex") else np.float64)
        wanted = alpha * (wide @ wide.conj().T) + (beta * old if beta else 0)
        np.testing.assert_allclose(dest[below], wanted[below], rtol=0, atol=100 * k * float(np.finfo(dtype).eps))
        assert np.isnan(dest[~below]).all()


def test_an_empty_inner_dimension(way: str) -> None:
    dest = np.tri(3) * 2
    triangle_product(np.empty((3, 0)), np.empty((0, 3)), dest, GemmParams(1, 0.5, "gram", "lower"))
    np.testing.assert_array_equal(dest, np.tri(3))
    triangle_product(np.empty((0, 3)), np.empty((3, 0)), np.empty((0, 0)), GemmParams(op="gram", fill="lower"))


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_inf_and_nan_are_where_the_whole_product_has_them(dtype: str, way: str) -> None:
    rng = np.random.default_rng(3)
    x = numbers(rng, (30, 20), dtype)
    x[4, 5], x[20, 7] = np.inf, np.nan
    dest = np.zeros((30, 30), dtype)
    with np.errstate(all="ignore"):
        triangle_product(x, x.conj().T, dest, GemmParams(op="gram", fill="lower"))
        whole = x @ x.conj().T
    below = np.tri(30, k=-1, dtype=bool)
    np.testing.assert_array_equal(np.isfinite(dest[below]), np.isfinite(whole[below]))


def test_numpys_own_library_is_called_where_it_is_openblas() -> None:
    if loaded_openblas() is None:
        pytest.skip("NumPy multiplies with another library than OpenBLAS")
    assert all(cblas_function(name) is not None for name in RANK_FUNCTIONS.values())
    assert cblas_function("no_such_function") is None


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("fill", ["full", "lower"])
def test_mirror(order: str, fill: Any) -> None:
    """The bands of rows may run in any order."""
    rng, n = np.random.default_rng(5), MIRROR_BAND_ROWS + 130
    source, dest = numbers(rng, (n, n), "complex64"), spaced(numbers(rng, (n, n), "complex64"), order)
    below, before = np.tri(n, dtype=bool), dest.copy()
    wanted = (2 * source - before).astype("complex64")
    np.einsum("ii->i", wanted).imag[...] = 0
    step = Mirror(whole_matrix("D", n, n), whole_matrix("C", n, n), 2, -1, fill)
    for task in reversed(list(mirror_tasks(step, source, dest))):
        task()
    np.testing.assert_allclose(dest[below], wanted[below], rtol=1e-6, atol=1e-6)
    if fill == "full":
        np.testing.assert_array_equal(dest, dest.conj().T)
    else:
        np.testing.assert_array_equal(dest[~below], before[~below])
