"""fmm.linalg.lu_factor, lu_solve, solve, det and slogdet beside LAPACK's functions, and solutions with refinement."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.linalg import refinement, solver_library
from fmm.linalg.lu_recursion import factor_matrix
from fmm.linalg.refinement import gmres_corrections
from fmm.linalg.solver_library import NUMPY_SOLVERS
from tests.support.solver_matrices import (
    DTYPES,
    SIZES,
    Array,
    backward_error,
    every_layout,
    general_matrices,
    positive_matrices,
    random_matrix,
)

scipy_linalg = pytest.importorskip("scipy.linalg")
BOTH_WAYS = pytest.mark.parametrize("way", ["deep_recursion", "inverted_blocks"])


@pytest.fixture
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def recursion(request: pytest.FixtureRequest) -> None:
    """Recurse to the smallest blocks, by substitution or as the test's parameter `way` says."""
    callspec = getattr(request.node, "callspec", None)
    request.getfixturevalue(callspec.params.get("way", "deep_recursion") if callspec else "deep_recursion")


def tolerance(name: str, dtype: str, n: int) -> float:
    """Return the largest backward error; pivots that double allow a larger one."""
    return 4 * max(n, 4) * float(np.finfo(dtype).eps) * (1000 if name == "growth" else 1)


def factor_error(a: Array, lu: Array, pivots: Array) -> float:
    """Return the norm of P a - L U over the norm of a, computed in higher precision."""
    wide = lu.astype(np.result_type(lu.dtype, "longdouble"))
    n, exchanged = len(a), a.astype(wide.dtype)
    for i, j in enumerate(pivots):
        exchanged[[i, j]] = exchanged[[j, i]]
    product = (np.tril(wide, -1) + np.eye(n)) @ np.triu(wide)
    return float(np.linalg.norm(product - exchanged)) / max(float(np.linalg.norm(a)), 1e-30) if n else 0.0


@pytest.mark.quick_cases()
@BOTH_WAYS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_factors_are_as_accurate_as_lapacks(n: int, dtype: str, way: str) -> None:
    for name, a in general_matrices(n, dtype).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", scipy_linalg.LinAlgWarning)
            lu, pivots = fmm.linalg.lu_factor(a)
            expected, rows = scipy_linalg.lu_factor(a) if n else (a, np.empty(0, np.int32))
        assert lu.dtype == a.dtype and lu.shape == a.shape and pivots.shape == (n,)
        allowed = 10 * factor_error(a, expected, rows) + tolerance(name, dtype, n)
        assert factor_error(a, lu, pivots) <= allowed, name
        if name == "normal":
            np.testing.assert_array_equal(pivots, rows)


@pytest.mark.quick_cases()
@BOTH_WAYS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_solutions_are_as_accurate_as_lapacks(n: int, dtype: str, way: str) -> None:
    b = random_matrix(n, 3, dtype, seed=4)
    for name, a in general_matrices(n, dtype).items():
        if not np.linalg.det(a.astype(complex)):
            continue
        expected = np.linalg.solve(a, b)
        allowed = 10 * backward_error(a, expected, b) + tolerance(name, dtype, n)
        assert backward_error(a, fmm.linalg.solve(a, b), b) <= allowed, name
        factors = fmm.linalg.lu_factor(a)
        for trans, op in (("N", a), ("T", a.T), ("C", a.conj().T)):
            x = fmm.linalg.lu_solve(factors, b, trans)
            assert x.dtype == a.dtype
            assert backward_error(op, x, b) <= 10 * allowed, (name, trans)


def test_factors_of_stacks_and_every_layout_are_scipys() -> None:
    a, b = random_matrix(21, 21, "float64"), random_matrix(21, 4, "float64", seed=1)
    expected, rows = scipy_linalg.lu_factor(a)
    for x in every_layout(a):
        lu, pivots = fmm.linalg.lu_factor(x)
        np.testing.assert_allclose(lu, expected, rtol=1e-9, atol=1e-11)
        np.testing.assert_array_equal(pivots, rows)
        np.testing.assert_allclose(fmm.linalg.solve(x, b), np.linalg.solve(a, b), rtol=1e-7, atol=1e-9)
    stack = np.stack([a, a[::-1]])[:, None]
    lu, pivots = fmm.linalg.lu_factor(stack)
    assert lu.shape == stack.shape and pivots.shape == (2, 1, 21)
    np.testing.assert_array_equal(pivots[0, 0], rows)
    for trans in "NT":
        op = stack if trans == "N" else stack.swapaxes(-1, -2)
        found = fmm.linalg.lu_solve((lu, pivots), np.stack([b, 2 * b, b]), trans)
        np.testing.assert_allclose(op @ found, np.broadcast_to(np.stack([b, 2 * b, b]), (2, 3, 21, 4)), atol=1e-9)
    np.testing.assert_allclose(fmm.linalg.solve(stack, b), np.linalg.solve(stack, b), rtol=1e-7, atol=1e-9)
    vector = fmm.linalg.solve(a, b[:, 0])
    assert vector.shape == (21,)
    np.testing.assert_allclose(a @ vector, b[:, 0], atol=1e-9)


def test_a_vector_is_solved_for_each_factor_of_a_stack() -> None:
    stack, b = np.stack([random_matrix(9, 9, "float64", seed) for seed in (1, 2)]), np.arange(1.0, 10)
    x = fmm.linalg.lu_solve(fmm.linalg.lu_factor(stack), b)
    np.testing.assert_allclose(x, np.linalg.solve(stack, b), rtol=1e-8)


def test_pivots_may_be_a_list_with_one_number_for_each_row() -> None:
    a, b = random_matrix(9, 9, "float64"), np.ones(9)
    lu, pivots = fmm.linalg.lu_factor(a)
    np.testing.assert_array_equal(fmm.linalg.lu_solve((lu, pivots.tolist()), b), fmm.linalg.lu_solve((lu, pivots), b))
    with pytest.raises(ValueError, match=r"factors \(9, 9\) and pivots \(8,\) are incompatible"):
        fmm.linalg.lu_solve((lu, pivots[:8]), b)


def test_empty_stacks_are_solved() -> None:
    stack, b = np.empty((0, 9, 9)), np.ones((9, 2))
    assert fmm.linalg.lu_solve(fmm.linalg.lu_factor(stack), b).shape == (0, 9, 2)
    for trans in "NTC":
        assert fmm.linalg.lu_solve(fmm.linalg.lu_factor(stack), b[:, 0], trans).shape == (0, 9)
    for kind in ("gen", "pos"):
        assert fmm.linalg.solve(stack, b, assume_a=kind).shape == (0, 9, 2)


@pytest.mark.parametrize("shape", [(8,), (10,), (10, 2), (8, 2), (3, 10, 2), ()])
def test_right_sides_need_the_rows_of_the_factors(shape: tuple[int, ...]) -> None:
    factors = fmm.linalg.lu_factor(random_matrix(9, 9, "float64"))
    with pytest.raises(ValueError, match=r"shapes of a \(9, 9\) and b \(.*\) are incompatible"):
        fmm.linalg.lu_solve(factors, np.ones(shape))


def test_out_takes_factors_and_solutions() -> None:
    a, b = random_matrix(20, 20, "float64"), random_matrix(20, 20, "float64", seed=1)
    lu, pivots = fmm.linalg.lu_factor(a)
    held = a.copy()
    found, rows = fmm.linalg.lu_factor(held, out=held)
    assert found is held
    np.testing.assert_array_equal(held, lu)
    np.testing.assert_array_equal(rows, pivots)
    expected = fmm.linalg.solve(a, b)
    for refine in (False, True):
        out = b.copy()
        assert fmm.linalg.solve(a, out, refine=refine, out=out) is out
        np.testing.assert_allclose(out, expected, rtol=1e-8, atol=1e-10)
    with pytest.raises(ValueError, match="out is"):
        fmm.linalg.lu_solve((lu, pivots), b, out=np.empty((20, 19)))


def test_singular_matrices_do_what_they_do_without_fmm() -> None:
    a = random_matrix(18, 18, "float64")
    a[:, 5] = 0
    with pytest.warns(scipy_linalg.LinAlgWarning, match="exactly zero"):
        lu, _ = fmm.linalg.lu_factor(a)
    assert lu[5, 5] == 0
    for refine in (False, True):
        with pytest.raises(np.linalg.LinAlgError), warnings.catch_warnings():
            warnings.simplefilter("ignore", scipy_linalg.LinAlgWarning)
            fmm.linalg.solve(a, np.ones(18), refine=refine)
    assert fmm.linalg.det(a) == 0
    sign, logarithm = fmm.linalg.slogdet(a)
    assert sign == 0 and logarithm == -np.inf


def test_rectangular_matrices_and_nan_are_the_librarys() -> None:
    a = random_matrix(9, 14, "float64")
    lu, pivots = fmm.linalg.lu_factor(a)
    expected = scipy_linalg.lu_factor(a)
    np.testing.assert_array_equal(lu, expected[0])
    np.testing.assert_array_equal(pivots, expected[1])
    a = random_matrix(18, 18, "float64")
    a[4, 7] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy_linalg.LinAlgWarning)
        assert np.isnan(fmm.linalg.solve(a, np.ones(18))).any()
    with np.errstate(invalid="ignore"):
        assert np.isnan(fmm.linalg.det(a))


@BOTH_WAYS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_determinants_are_numpys(n: int, dtype: str, way: str) -> None:
    a = random_matrix(n, n, dtype) / 4
    rtol = 1e-3 if np.finfo(dtype).bits == 32 else 1e-10
    np.testing.assert_allclose(fmm.linalg.det(a), np.linalg.det(a), rtol=rtol)
    found, expected = fmm.linalg.slogdet(np.stack([a, 2 * a])), np.linalg.slogdet(np.stack([a, 2 * a]))
    np.testing.assert_allclose(found.sign, expected.sign, rtol=rtol)
    np.testing.assert_allclose(found.logabsdet, expected.logabsdet, rtol=rtol, atol=rtol)


def test_assume_a_names_the_solver() -> None:
    a, b = positive_matrices(20, "float64")["normal"], random_matrix(20, 2, "float64")
    kinds: tuple[Any, ...] = "gen", "pos", "sym"
    for kind in kinds:
        np.testing.assert_allclose(fmm.linalg.solve(a, b, assume_a=kind), np.linalg.solve(a, b), rtol=1e-8)
        x, report = fmm.linalg.refined_solve(a, b, assume_a=kind)
        np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=1e-8)
        assert report.factors == "float32"
    with pytest.raises(np.linalg.LinAlgError):
        fmm.linalg.solve(-a, b, assume_a="pos")
    with pytest.raises(ValueError, match="assume_a 'her'; valid: gen, pos, sym"):
        fmm.linalg.solve(a, b, assume_a="her")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"shapes of a \(20, 20\) and b \(19, 1\)"):
        fmm.linalg.solve(a, np.ones(19))
    with pytest.raises(ValueError, match="square"):
        fmm.linalg.solve(np.ones((2, 3)), np.ones(2))


@pytest.mark.parametrize("with_scipy", [True, False])
@pytest.mark.parametrize("by_products", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_only_the_lower_triangle_of_positive_definite_systems_is_read(
    dtype: str, by_products: bool, with_scipy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_products:
        monkeypatch.setattr(sys.modules["fmm.linalg.solve"], "cholesky_block_side", lambda *_: 0)
    if not with_scipy:
        monkeypatch.setattr(solver_library, "has_scipy", lambda: False)
    a, b = positive_matrices(20, dtype)["normal"], random_matrix(20, 2, dtype)
    for matrix in (a, np.stack([a, 2 * a])):
        for refine in (False, True):
            x = fmm.linalg.solve(np.tril(matrix), b, assume_a="pos", refine=refine)
            np.testing.assert_allclose(x, np.linalg.solve(matrix, b), rtol=1e-8, atol=1e-10)
        with pytest.raises(np.linalg.LinAlgError):
            fmm.linalg.solve(-matrix, b, assume_a="pos")


@pytest.mark.usefixtures("inverted_blocks")
@pytest.mark.parametrize("whole", [0, 1])
def test_the_inverse_of_a_single_panel_at_the_end_is_checked(whole: int) -> None:
    """The last panel has no inverse; the panel before it has one, but no second panel to make a whole block."""
    width, first = 32, 64 * whole
    n = first + 48
    a = random_matrix(n, n, "float64")
    assert factor_matrix(NUMPY_SOLVERS, a, width, None) is not None
    a[:first, first:] = a[first:, :first] = 0
    a[first:, first:] = np.eye(48) - np.tril(np.ones((48, 48)), -1)  # a factor L whose inverse grows as 2^32
    a[first:, -1] = 1
    assert factor_matrix(NUMPY_SOLVERS, a, width, None) is None


# ---- refinement


def conditioned_matrix(n: int, condition: float) -> Array:
    """Return a matrix whose singular values fall geometrically from 1 to 1 / condition."""
    left, right = (np.linalg.qr(random_matrix(n, n, "float64", seed))[0] for seed in (5, 6))
    return np.asarray((left * np.geomspace(1, 1 / condition, n)) @ right)


@pytest.mark.parametrize("kind", ["gen", "pos"])
@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6])
def test_refined_solutions_have_the_backward_error_of_float64(condition: float, kind: Any) -> None:
    n = 60
    a, b = conditioned_matrix(n, condition), random_matrix(n, 5, "float64")
    a = a @ a.T * 7 if kind == "pos" and condition < 1e4 else a @ a.T + np.eye(n) if kind == "pos" else a
    x, report = fmm.linalg.refined_solve(a, b, assume_a=kind)
    assert report.factors == "float32" and report.steps <= 20
    assert report.backward_error <= np.sqrt(n) * np.finfo(np.float64).eps
    assert backward_error(a, x, b) <= 10 * backward_error(a, np.linalg.solve(a, b), b) + 1e-16
    np.testing.assert_array_equal(fmm.linalg.solve(a, b, assume_a=kind, refine=True), x)


def test_matrices_that_are_singular_in_float32_are_factored_in_float64() -> None:
    n, b = 40, random_matrix(40, 3, "float64")
    for a in (conditioned_matrix(n, 1e13), 1e200 * random_matrix(n, n, "float64"), np.diag(np.geomspace(1e-60, 1, n))):
        x, report = fmm.linalg.refined_solve(a, b)
        assert report.factors == "float64"
        assert backward_error(a, x, b) <= 10 * backward_error(a, np.linalg.solve(a, b), b) + 1e-16


@pytest.mark.parametrize(
    ("condition", "scale", "right_scale"), [(1e3, 1e-36, 1.0), (1e8, 1e-31, 1.0), (1e9, 1e-30, 1e150)]
)
def test_refinement_solves_systems_that_overflow_in_float32(condition: float, scale: float, right_scale: float) -> None:
    for n in (3, 5, 20):
        a = scale * conditioned_matrix(n, condition)
        for seed in range(8):
            b = right_scale * random_matrix(n, 3, "float64", seed)
            x = fmm.linalg.solve(a, b, refine=True)
            assert backward_error(a, x, b) <= 10 * backward_error(a, np.linalg.solve(a, b), b) + 1e-15
    generator = np.random.default_rng(18)
    a, vector = generator.standard_normal((3, 3)) * 1e-38, generator.standard_normal(3) * 1e-38
    np.testing.assert_allclose(fmm.linalg.solve(a, vector, refine=True), np.linalg.solve(a, vector), rtol=1e-10)


def test_gmres_converges_where_refinement_stagnates(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 60
    a, b = conditioned_matrix(n, 3e8), random_matrix(n, 3, "float64")
    x, report = fmm.linalg.refined_solve(a, b)
    assert report.factors == "float32" and report.gmres_steps > 0
    assert backward_error(a, x, b) <= 1e-15
    monkeypatch.setattr(refinement, "MAX_GMRES_CYCLES", 0)
    report = fmm.linalg.refined_solve(a, b)[1]
    assert report.factors == "float64" and np.isnan(report.backward_error)


def test_gmres_steps_solve_for_each_column() -> None:
    a, b = random_matrix(10, 10, "float64") + 4 * np.eye(10), random_matrix(10, 3, "float64")
    b[:, 1] = 0
    z = gmres_corrections(NUMPY_SOLVERS, a, b, lambda y: y)  # ten steps in ten dimensions
    np.testing.assert_allclose(a @ z, b, atol=1e-10)


def test_right_sides_of_any_magnitude_are_refined() -> None:
    a, b = random_matrix(30, 30, "float64"), random_matrix(30, 3, "float64") * np.array([1e-300, 0, 1e200])
    x, report = fmm.linalg.refined_solve(a, b)
    assert report.factors == "float32" and not x[:, 1].any()
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=1e-9)


def test_other_types_and_stacks_are_solved_without_refinement() -> None:
    a, b = random_matrix(12, 12, "float32"), random_matrix(12, 2, "float32")
    assert fmm.linalg.refined_solve(a, b)[1].factors == "float32"
    x, report = fmm.linalg.refined_solve(np.stack([a, a]).astype(float), b.astype(float))
    assert x.shape == (2, 12, 2) and report.factors == "float64" and np.isnan(report.backward_error)
