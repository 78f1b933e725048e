"""fmm.linalg.qr and lstsq beside LAPACK's Householder factors, on matrices of any condition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.linalg import cholesky_qr, least_squares, qr_steps, solver_steps
from fmm.linalg.solver_library import NUMPY_SOLVERS
from fmm.linalg.solver_steps import StepConditions
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime.decisions.decide import Decision, decide_plan
from tests.support.devices import H200
from tests.support.solver_matrices import (
    DTYPES,
    every_layout,
    matrix_of_condition,
    noted_products,
    random_matrix,
    solve_everything_by_products,
)

scipy_linalg = pytest.importorskip("scipy.linalg")
SHAPES = ((1, 1), (7, 1), (48, 48), (131, 37))
H100_CONDITIONS = StepConditions("float32", "cuda:0")


@pytest.fixture
def by_products(monkeypatch: pytest.MonkeyPatch) -> None:
    solve_everything_by_products(monkeypatch)


@pytest.fixture
def by_inverses(monkeypatch: pytest.MonkeyPatch, by_products: None) -> None:
    """Divide by products with the inverse, as on a GPU."""
    monkeypatch.setattr(cholesky_qr, "inverse_halving_count", lambda n, _: 2)
    monkeypatch.setattr(cholesky_qr, "column_blocks", lambda m, n, _: qr_steps.equal_ranges(n, min(n, 3)))
    monkeypatch.setattr(cholesky_qr, "is_product_with_inverse_faster", lambda *_: True)


@pytest.fixture
def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Predict products by the model of an H200."""

    def plan(m: int, k: int, n: int, *, op: Any, dtype: str, device: str, max_error_growth: float | None) -> Decision:
        return decide_plan(Problem(m, k, n, dtype, op=op), Limits(1 << 36, max_error_growth or 16.0), H200)

    monkeypatch.setattr("fmm.api.plan", plan)
    caches: Any = (
        solver_steps.step_seconds,
        qr_steps.is_cholesky_qr_faster,
        qr_steps.inverse_halving_count,
        qr_steps.column_blocks,
    )
    caches += (qr_steps.is_gram_summed_by_row_blocks,)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def widened(x: Any) -> Any:
    """Return an array in a type of higher precision."""
    single = np.asarray(x).dtype in (np.float32, np.complex64)
    return np.asarray(x).astype(np.result_type(x.dtype, "float64" if single else "longdouble"))


def orthogonality(q: Any) -> float:
    """Return the norm of Q^H Q - I, computed in higher precision."""
    wide = widened(q)
    return float(np.linalg.norm(wide.conj().T @ wide - np.eye(wide.shape[1])))


def assert_factors(a: Any, q: Any, r: Any) -> None:
    """Check that Q R is A, that Q's columns are orthonormal, and that R is upper triangular."""
    wide, n = widened(a), a.shape[1]
    assert q.dtype == r.dtype == a.dtype and q.shape == a.shape and r.shape == (n, n)
    own_q, own_r = scipy_linalg.qr(a, mode="economic")
    eps = float(np.finfo(a.dtype).eps)
    assert orthogonality(q) <= 10 * orthogonality(own_q) + 4 * n * eps
    own_residual = np.linalg.norm(widened(own_q) @ own_r - wide)
    residual = np.linalg.norm(widened(q) @ r - wide)
    assert residual <= 10 * own_residual + 4 * eps * np.linalg.norm(wide)
    assert not np.tril(r, -1).any()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4, 1e12])
@pytest.mark.parametrize("division", ["by_products", "by_inverses"])
def test_factors_are_as_accurate_as_householders(
    division: str, condition: float, dtype: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(division)
    for m, n in SHAPES:
        a = matrix_of_condition(m, n, condition, dtype)
        q, r = fmm.linalg.qr(a)
        assert_factors(a, q, r)
        only_r = fmm.linalg.qr(a, "r")
        assert np.linalg.norm(only_r - r) <= 1e-3 * np.linalg.norm(r)


@pytest.mark.usefixtures("by_products")
def test_stacks_and_every_layout() -> None:
    a = random_matrix(40, 9, "float64")
    expected = fmm.linalg.qr(a)[1]
    for x in every_layout(a):
        np.testing.assert_allclose(fmm.linalg.qr(x)[1], expected, rtol=1e-12, atol=1e-12)
    q, r = fmm.linalg.qr(np.stack([a, 2 * a])[:, None])
    assert q.shape == (2, 1, 40, 9) and r.shape == (2, 1, 9, 9)
    np.testing.assert_allclose(r[1, 0], 2 * expected, rtol=1e-12, atol=1e-12)
    assert fmm.linalg.qr(np.stack([a, a]), "r").shape == (2, 9, 9)


@pytest.mark.usefixtures("by_products")
def test_matrices_that_cholesky_qr_cannot_factor_are_the_librarys() -> None:
    a = random_matrix(40, 9, "float64")
    a[:, 3] = 0
    for x in (a, np.where(a == a[0, 0], np.nan, a), a * 1e200, np.zeros((5, 2)), a[:, :0], a[:0, :0]):
        expected = np.linalg.qr(x)
        q, r = fmm.linalg.qr(x)
        np.testing.assert_array_equal(q, expected[0])
        np.testing.assert_array_equal(r, expected[1])


def test_wide_and_small_matrices_are_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cholesky_qr, "cholesky_qr", lambda *_: pytest.fail("a product ran"))
    for x in (random_matrix(3, 7, "float64"), random_matrix(70, 7, "float32"), [[3, 1], [4, 2]]):
        expected = np.linalg.qr(x)
        for found, own in zip(fmm.linalg.qr(x), expected, strict=True):
            np.testing.assert_array_equal(found, own)
        np.testing.assert_array_equal(fmm.linalg.qr(x, "r"), np.linalg.qr(x, "r"))
    with pytest.raises(ValueError, match="unknown mode 'complete'; valid: reduced, r"):
        fmm.linalg.qr(np.eye(3), "complete")  # type: ignore[arg-type]
    with pytest.raises(np.linalg.LinAlgError, match="at least two-dimensional"):
        fmm.linalg.qr(np.ones(3))


def test_nearly_orthonormal_columns_take_two_passes_and_a_bad_condition_takes_three(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = noted_products(monkeypatch)
    for condition, passes in ((2.0, 2), (1e5, 3)):
        counts.clear()
        a = matrix_of_condition(200, 20, condition, "float32")
        assert cholesky_qr.cholesky_qr(NUMPY_SOLVERS, a, None) is not None
        assert counts.count("gram") == passes


def test_the_growth_of_an_inverse_is_one_for_orthonormal_columns_and_large_for_bad_conditions() -> None:
    assert cholesky_qr.inverse_error_growth(np.eye(5), np.eye(5)) == pytest.approx(1)
    factor = np.linalg.cholesky(np.cov(matrix_of_condition(50, 8, 1e4, "float64").T))
    assert cholesky_qr.inverse_error_growth(factor, np.linalg.inv(factor)) > 10


# ---- least squares


@pytest.mark.usefixtures("by_products")
@pytest.mark.parametrize("dtype", DTYPES)
def test_least_squares_are_as_accurate_as_numpys(dtype: str) -> None:
    for condition in (1.0, 30.0):
        a, b = matrix_of_condition(120, 13, condition, dtype), random_matrix(120, 3, dtype)
        expected = np.linalg.lstsq(a, b, rcond=None)
        for sides, own in ((b, expected), (b[:, 0], np.linalg.lstsq(a, b[:, 0], rcond=None))):
            found = fmm.linalg.lstsq(a, sides)
            tolerance = 200 * condition**2 * float(np.finfo(dtype).eps)
            np.testing.assert_allclose(found.solution, own[0], rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(found.residuals, own[1], rtol=1e-3)
            assert found.residuals.dtype == own[1].dtype and found.rank == 13 and found.singular_values.shape == (0,)
        empty = fmm.linalg.lstsq(a, b[:, :0])
        assert empty.solution.shape == (13, 0) and empty.residuals.shape == (0,) and empty.rank == 13
    square = fmm.linalg.lstsq(random_matrix(9, 9, dtype) + 9 * np.eye(9, dtype=dtype), np.ones(9, dtype))
    assert square.residuals.shape == (0,)


@pytest.mark.usefixtures("by_products")
def test_systems_that_may_be_singular_are_numpys() -> None:
    a, b = random_matrix(40, 6, "float64"), random_matrix(40, 2, "float64")
    a[:, 5] = a[:, 4]
    for x, y in ((a, b), (a[:4], b[:4]), (a, b[:, 0]), (matrix_of_condition(60, 9, 1e12, "float64"), np.ones(60))):
        for found, expected in zip(fmm.linalg.lstsq(x, y), np.linalg.lstsq(x, y, rcond=None), strict=True):
            np.testing.assert_array_equal(found, expected)
    with pytest.raises(np.linalg.LinAlgError, match="Incompatible dimensions"):
        fmm.linalg.lstsq(a, np.ones(7))


def test_a_third_pass_leaves_least_squares_to_the_library() -> None:
    a = matrix_of_condition(200, 20, 1e5, "float32")
    assert least_squares.solve_tall_system(NUMPY_SOLVERS, a, np.ones(200, np.float32), None) is None


# ---- steps


@pytest.mark.usefixtures("on_an_h200")
def test_the_steps_decide_which_matrices_products_factor() -> None:
    gains = {n: qr_steps.is_cholesky_qr_faster(16 * n, n, H100_CONDITIONS) for n in (64, 128, 2048, 4096)}
    assert gains == {64: False, 128: False, 2048: True, 4096: True}
    assert not qr_steps.is_cholesky_qr_faster(4096, 4096, H100_CONDITIONS)
    assert not qr_steps.is_cholesky_qr_faster(32768, 2048, StepConditions("float32", "cpu"))
    assert not qr_steps.is_cholesky_qr_faster(32768, 2048, StepConditions("", "cuda:0"))
    assert not qr_steps.is_cholesky_qr_faster(32768, 0, H100_CONDITIONS)
    assert not qr_steps.is_cholesky_qr_faster(32768, 2048, StepConditions("complex64", "cuda:0"))


def test_the_gram_matrix_of_a_long_matrix_is_the_sum_over_blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cholesky_qr, "BLOCK_ROWS", 8)
    monkeypatch.setattr(cholesky_qr, "is_gram_summed_by_row_blocks", lambda *_: True)
    for m in (8, 80, 83):
        a = random_matrix(m, 3, "complex128")
        np.testing.assert_allclose(cholesky_qr.gram_of_tall_matrix(NUMPY_SOLVERS, a, None), a.conj().T @ a, rtol=1e-13)


@pytest.mark.usefixtures("on_an_h200")
def test_only_the_vendors_gram_matrices_of_long_matrices_are_sums() -> None:
    shapes = ((131072, 256), (8192, 256), (131072, 4096), (4096, 64))
    assert [qr_steps.is_gram_summed_by_row_blocks(m, n, H100_CONDITIONS) for m, n in shapes] == [
        True,
        True,
        False,
        False,
    ]
    assert not qr_steps.is_gram_summed_by_row_blocks(16384, 1024, StepConditions("float64", "cuda:0"))


@pytest.mark.usefixtures("on_an_h200")
def test_blocks_of_columns_cover_the_matrix_and_save_time() -> None:
    blocks = qr_steps.column_blocks(65536, 4096, H100_CONDITIONS)
    assert len(blocks) > 1 and blocks[0][0] == 0 and blocks[-1][1] == 4096
    assert all(stop == start for (_, stop), (start, _) in pairwise(blocks))
    products = {count: list(qr_steps.adjoint_product_steps(65536, 4096, count)) for count in (1, len(blocks))}
    seconds = [solver_steps.predicted_seconds(steps, H100_CONDITIONS) for steps in products.values()]
    assert seconds[1] < seconds[0]
    assert (
        qr_steps.inverse_halving_count(4096, H100_CONDITIONS) > qr_steps.inverse_halving_count(64, H100_CONDITIONS) == 0
    )


def test_steps_of_two_passes_multiply_what_the_factorization_multiplies(
    monkeypatch: pytest.MonkeyPatch, by_inverses: None
) -> None:
    """Count the calls of fmm.gram and of the products, and compare with the list."""
    monkeypatch.setattr(qr_steps, "is_gram_summed_by_row_blocks", lambda *_: False)
    monkeypatch.setattr(qr_steps, "inverse_halving_count", lambda n, _: 2)
    monkeypatch.setattr(qr_steps, "column_blocks", lambda m, n, _: qr_steps.equal_ranges(n, 3))
    listed = [step.operation for step in qr_steps.cholesky_qr_steps(90, 12, H100_CONDITIONS)]
    called = noted_products(monkeypatch)
    monkeypatch.setattr(cholesky_qr, "cholesky_of_stacks", lambda library, a, _: np.linalg.cholesky(a))
    cholesky_qr.cholesky_qr(NUMPY_SOLVERS, random_matrix(90, 12, "float64"), None)
    assert [listed.count(name) for name in ("gram", "product")] == [called.count("gram"), len(called) - 2]
