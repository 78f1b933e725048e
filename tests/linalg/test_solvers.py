"""fmm.linalg beside SciPy's and NumPy's functions, and beside solutions in higher precision."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.linalg import arguments, halving_rules, inverse, lu_recursion, solver_library
from fmm.linalg.halving_rules import BlockInversionRule, HalvingRule, first_half_row_count
from fmm.linalg.solver_library import NUMPY_SOLVERS
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime.decisions.decide import decide_plan
from tests.support.devices import H200
from tests.support.solver_matrices import (
    DTYPES,
    SIZES,
    backward_error,
    every_layout,
    positive_matrices,
    random_matrix,
    triangular_matrices,
)

scipy_linalg = pytest.importorskip("scipy.linalg")


recursing = pytest.mark.usefixtures("deep_recursion")


def tolerance(dtype: str, n: int) -> float:
    """Return the largest backward error in a solver of n rows."""
    return 8 * max(n, 4) * float(np.finfo(dtype).eps)


# ---- triangular systems


@pytest.mark.quick_cases()
@recursing
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_triangular_systems_of_every_form_are_solved(n: int, dtype: str) -> None:
    b = random_matrix(n, 5, dtype, seed=2)
    for name, a in triangular_matrices(n, dtype).items():
        for lower, trans, unit, left in [(x, y, z, w) for x in (0, 1) for y in "NTC" for z in (0, 1) for w in (0, 1)]:
            stored = np.where(np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T, a, np.nan)
            if unit:
                stored = stored / max(n, 1) + 0
                np.fill_diagonal(stored, np.nan)
            right = b if left else np.ascontiguousarray(b.T)
            x = fmm.linalg.solve_triangular(stored, right, trans, bool(lower), bool(unit), left=bool(left))
            assert x.dtype == np.dtype(dtype) and x.shape == right.shape
            exact = np.where(np.isnan(stored), 0, stored)
            if unit:
                np.fill_diagonal(exact, 1)
            op = {"N": exact, "T": exact.T, "C": exact.conj().T}[trans]
            error = backward_error(op, x, right) if left else backward_error(op.T, x.T, right.T)
            assert error < tolerance(dtype, n), (name, lower, trans, unit, left)


@recursing
@pytest.mark.parametrize("dtype", DTYPES)
def test_solutions_of_vectors_stacks_and_every_layout_equal_scipys(dtype: str) -> None:
    a, b = random_matrix(37, 37, dtype) + 8 * np.eye(37, dtype=dtype), random_matrix(37, 11, dtype, seed=3)
    expected = scipy_linalg.solve_triangular(a, b, lower=True)
    for x in every_layout(a):
        for y in every_layout(b):
            np.testing.assert_allclose(fmm.linalg.solve_triangular(x, y, lower=True), expected, rtol=1e-3, atol=1e-5)
    vector = fmm.linalg.solve_triangular(a, b[:, 0], lower=True)
    assert vector.shape == (37,)
    np.testing.assert_allclose(vector, expected[:, 0], rtol=1e-3, atol=1e-5)
    row = fmm.linalg.solve_triangular(a, b[:, 0], lower=False, trans="T", left=False)
    np.testing.assert_allclose(row, scipy_linalg.solve_triangular(a, b[:, 0], trans=0), rtol=1e-3, atol=1e-5)
    stack = fmm.linalg.solve_triangular(np.stack([a, 2 * a])[:, None], np.stack([b, 3 * b, b]), lower=True)
    assert stack.shape == (2, 3, 37, 11)
    np.testing.assert_allclose(stack[1, 1], 1.5 * expected, rtol=1e-3, atol=1e-5)


@recursing
def test_out_takes_the_solution_and_may_be_an_operand() -> None:
    a, b = random_matrix(20, 20, "float64") + 8 * np.eye(20), random_matrix(20, 20, "float64", seed=1)
    expected = fmm.linalg.solve_triangular(a, b)
    for out in (np.empty((20, 20)), np.empty((20, 20), order="F"), b.copy(), np.empty((20, 40))[:, ::2]):
        assert fmm.linalg.solve_triangular(a, b, out=out) is out
        np.testing.assert_array_equal(out, expected)
    held = a.copy()
    fmm.linalg.solve_triangular(held, b, out=held)
    np.testing.assert_array_equal(held, expected)
    for wrong in (np.empty((20, 19)), np.empty((20, 20), np.float32), [[0.0]]):
        with pytest.raises(ValueError, match="out is"):
            fmm.linalg.solve_triangular(a, b, out=wrong)


@recursing
def test_a_zero_on_the_diagonal_raises_scipys_exception() -> None:
    a, b = np.tril(random_matrix(9, 9, "float64")), np.ones(9)
    a[6, 6] = 0
    with pytest.raises(np.linalg.LinAlgError) as expected:
        scipy_linalg.solve_triangular(a, b, lower=True)
    with pytest.raises(np.linalg.LinAlgError) as found:
        fmm.linalg.solve_triangular(a, b, lower=True)
    assert str(found.value) == str(expected.value) == "singular matrix: resolution failed at diagonal 6"
    fmm.linalg.solve_triangular(a, b, lower=True, unit_diagonal=True)


@recursing
def test_nan_and_inf_of_the_right_sides_stay_in_their_columns() -> None:
    a, b = random_matrix(16, 16, "float64") + 8 * np.eye(16), random_matrix(16, 4, "float64")
    b[3, 1], b[5, 2] = np.nan, np.inf
    found = fmm.linalg.solve_triangular(a, b, lower=True)
    expected = scipy_linalg.solve_triangular(a, b, lower=True, check_finite=False)
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
    assert np.isfinite(found[:3]).all() and np.isnan(found[3:, 1]).all()


def test_wrong_arguments_are_named() -> None:
    a = np.eye(3)
    with pytest.raises(ValueError, match=r"trans 'X'; valid: 0, 1, 2"):
        fmm.linalg.solve_triangular(a, a, "X")
    with pytest.raises(ValueError, match=r"shapes of a \(3, 3\) and b \(4,\)|\(4, 1\)"):
        fmm.linalg.solve_triangular(a, np.ones(4))
    with pytest.raises(ValueError, match=r"square .*\(2, 3\)"):
        fmm.linalg.solve_triangular(np.ones((2, 3)), np.ones(2))
    with pytest.raises(ValueError, match="assume_a 'sym'; valid: gen, pos"):
        fmm.linalg.inv(a, assume_a="sym")  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [0, -1, "x", np.nan, True])
@pytest.mark.parametrize(
    "name", ["cholesky", "inv", "qr", "det", "slogdet", "lu_factor", "solve", "refined_solve", "lstsq", "lu_solve"]
)
def test_limits_of_the_error_growth_are_numbers_above_zero(name: str, limit: Any) -> None:
    operands: dict[str, Any] = {name: (np.eye(2), np.ones(2)) for name in ("solve", "refined_solve", "lstsq")}
    operands["lu_solve"] = (np.eye(2), np.arange(2)), np.ones(2)
    with pytest.raises(ValueError, match="max_error_growth must be a number above 0, not"):
        getattr(fmm.linalg, name)(*operands.get(name, (np.eye(2),)), max_error_growth=limit)


def test_options_of_transposes_may_be_numpys_integers() -> None:
    a, b = np.array([[2.0, 1.0], [0.0, 4.0]]), np.ones(2)
    found = fmm.linalg.solve_triangular(a, b, np.int64(1))  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, scipy_linalg.solve_triangular(a, b, 1))


def test_lists_and_integers_become_float64() -> None:
    x = fmm.linalg.solve_triangular([[2, 0], [1, 4]], [2, 9], lower=True)
    assert x.dtype == np.float64 and x.tolist() == [1, 2]
    assert fmm.linalg.solve_triangular(np.eye(2, dtype=np.float32), np.ones(2)).dtype == np.float64


@pytest.mark.parametrize("of_a", ["?", "h", "f", "d", "F", "D"])
@pytest.mark.parametrize("of_b", ["?", "h", "f", "d", "F", "D"])
def test_solutions_have_numpys_types(of_a: str, of_b: str) -> None:
    a, b = np.eye(2).astype(of_a), np.ones(2).astype(of_b)
    assert fmm.linalg.solve(a, b).dtype == np.linalg.solve(a, b).dtype
    assert fmm.linalg.lstsq(a, b).solution.dtype == np.linalg.lstsq(a, b, rcond=None)[0].dtype


@pytest.mark.parametrize("of_a", ["e", "f", "d", "g", "F", "D", "G"])
@pytest.mark.parametrize("of_b", ["l", "e", "f", "d", "g", "F", "D", "G"])
def test_solutions_from_factors_have_scipys_types(of_a: str, of_b: str) -> None:
    a, b = np.eye(2).astype(of_a), np.ones(2).astype(of_b)
    assert fmm.linalg.solve_triangular(a, b).dtype == scipy_linalg.solve_triangular(a, b).dtype
    assert fmm.linalg.cho_solve((a, True), b).dtype == scipy_linalg.cho_solve((a, True), b).dtype
    factors = a, np.arange(2, dtype=np.int32)
    assert fmm.linalg.lu_solve(factors, b).dtype == scipy_linalg.lu_solve(factors, b).dtype


# ---- Cholesky


@pytest.mark.quick_cases()
@recursing
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_cholesky_factors_multiply_to_the_matrix(n: int, dtype: str) -> None:
    for name, a in positive_matrices(n, dtype).items():
        for upper in (False, True):
            triangle = np.triu(a) if upper else np.tril(a)
            factor = fmm.linalg.cholesky(triangle, upper=upper)
            assert factor.dtype == np.dtype(dtype) and factor.shape == a.shape
            assert not np.any(np.tril(factor, -1) if upper else np.triu(factor, 1))
            wide = factor.astype(np.result_type(dtype, "longdouble"))
            product = wide.conj().T @ wide if upper else wide @ wide.conj().T
            assert np.linalg.norm(product - a) <= tolerance(dtype, n) * np.linalg.norm(a), (name, upper)


@recursing
@pytest.mark.parametrize("dtype", DTYPES)
def test_factors_of_stacks_and_every_layout_equal_numpys(dtype: str) -> None:
    a = positive_matrices(37, dtype)["normal"]
    expected = np.linalg.cholesky(a)
    for x in every_layout(a):
        np.testing.assert_allclose(fmm.linalg.cholesky(x), expected, rtol=1e-3, atol=1e-4)
    stack = np.stack([a, 4 * a]).reshape(2, 1, 37, 37)
    found = fmm.linalg.cholesky(stack)
    np.testing.assert_allclose(found[1, 0], 2 * expected, rtol=1e-3, atol=1e-4)
    held = a.copy()
    assert fmm.linalg.cholesky(held, out=held) is held
    np.testing.assert_array_equal(held, found[0, 0])


@recursing
@pytest.mark.parametrize("row", [0, 5, 17])
def test_a_matrix_that_is_not_positive_definite_raises_numpys_exception(row: int) -> None:
    a = positive_matrices(18, "float64")["normal"]
    a[row, row] = -1
    with pytest.raises(np.linalg.LinAlgError, match="Matrix is not positive definite"):
        fmm.linalg.cholesky(a)
    with pytest.raises(np.linalg.LinAlgError, match="Matrix is not positive definite"):
        fmm.linalg.cholesky(np.stack([np.eye(18), a]), upper=True)


@recursing
def test_nan_does_to_the_factor_what_numpy_makes_of_it() -> None:
    for row, column in ((3, 3), (9, 2), (2, 9)):
        a = positive_matrices(18, "float64")["normal"]
        a[row, column] = np.nan
        try:
            expected = np.linalg.cholesky(a)
        except np.linalg.LinAlgError:
            with pytest.raises(np.linalg.LinAlgError):
                fmm.linalg.cholesky(a)
        else:
            np.testing.assert_array_equal(np.isnan(fmm.linalg.cholesky(a)), np.isnan(expected))


def test_a_matrix_that_is_not_square_raises_numpys_exception() -> None:
    for function in (fmm.linalg.cholesky, fmm.linalg.inv):
        with pytest.raises(np.linalg.LinAlgError, match="square"):
            function(np.ones((2, 3)))
    for upper in (False, True):
        with pytest.raises(np.linalg.LinAlgError, match="at least two-dimensional"):
            fmm.linalg.cholesky(np.ones(3), upper=upper)


@pytest.mark.quick_cases()
@recursing
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
def test_cho_solve_solves_with_either_factor(lower: bool, dtype: str) -> None:
    a, b = positive_matrices(33, dtype)["normal"], random_matrix(33, 6, dtype)
    factor = fmm.linalg.cholesky(a, upper=not lower)
    out = np.empty_like(b)
    assert fmm.linalg.cho_solve((factor, lower), b, out=out) is out
    assert backward_error(a, out, b) < tolerance(dtype, 33)
    np.testing.assert_allclose(fmm.linalg.cho_solve((factor, lower), b[:, 0]), out[:, 0], rtol=1e-2, atol=1e-4)


@recursing
def test_cho_solve_solves_for_a_vector_with_each_factor_of_a_stack() -> None:
    a, b = positive_matrices(9, "float64")["normal"], np.arange(1.0, 10)
    stack = np.stack([a, 2 * a])
    x = fmm.linalg.cho_solve((np.linalg.cholesky(stack), True), b)
    np.testing.assert_allclose(x, np.linalg.solve(stack, b), rtol=1e-8)


# ---- inverses


@pytest.mark.quick_cases()
@recursing
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_inverses_are_as_accurate_as_numpys(n: int, dtype: str) -> None:
    general = {
        **positive_matrices(n, dtype),
        "general": random_matrix(n, n, dtype) if n != 2 else np.eye(n, dtype=dtype),
    }
    for name, a in general.items():
        identity = np.eye(n, dtype=dtype)
        allowed = 10 * backward_error(a, np.linalg.inv(a), identity) + tolerance(dtype, n)
        found = fmm.linalg.inv(a)
        assert found.dtype == a.dtype
        assert backward_error(a, found, identity) <= allowed, name
        if name != "general":
            inverse = fmm.linalg.inv(np.tril(a) if n > 3 else a, assume_a="pos")
            np.testing.assert_array_equal(inverse, inverse.conj().T) if n > 3 else None
            assert backward_error(a, inverse, identity) <= allowed, name


@recursing
def test_inverses_of_stacks_and_of_singular_matrices() -> None:
    a = random_matrix(21, 21, "float64")
    stack = np.stack([a, 2 * a])
    held = stack.copy()
    assert fmm.linalg.inv(held, out=held) is held
    np.testing.assert_allclose(held, np.linalg.inv(stack), rtol=1e-7, atol=1e-9)
    stack[1, :, 4] = 0
    with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
        fmm.linalg.inv(stack)


# ---- blocks on the diagonal multiplied by their inverses, as on a GPU


@pytest.mark.quick_cases()
@pytest.mark.usefixtures("inverted_blocks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [4, 17, 64])
def test_factors_and_inverses_by_inverted_blocks(n: int, dtype: str) -> None:
    for name, a in positive_matrices(n, dtype).items():
        for upper in (False, True):
            factor = fmm.linalg.cholesky(a, upper=upper)
            product = factor.conj().T @ factor if upper else factor @ factor.conj().T
            assert np.linalg.norm(product - a) <= tolerance(dtype, n) * np.linalg.norm(a), (name, upper)
        allowed = 10 * backward_error(a, np.linalg.inv(a), np.eye(n, dtype=dtype)) + tolerance(dtype, n)
        assert backward_error(a, fmm.linalg.inv(a, assume_a="pos"), np.eye(n, dtype=dtype)) <= allowed, name


@pytest.mark.usefixtures("inverted_blocks")
@pytest.mark.parametrize("dtype", DTYPES)
def test_systems_of_ill_conditioned_blocks_are_solved_again(dtype: str) -> None:
    """The inverse of one block is not accurate: this block alone is substituted."""
    n, b = 16, random_matrix(16, 5, dtype)
    a = np.tril(random_matrix(n, n, dtype)) + 8 * np.eye(n, dtype=dtype)
    a[4:8, 4:8] = np.tril(np.full((4, 4), 1e6, dtype), -1) + np.eye(4, dtype=dtype)
    assert backward_error(a, fmm.linalg.solve_triangular(a, b, lower=True), b) < tolerance(dtype, n)
    x = fmm.linalg.solve_triangular(a, b.T, "T", True, left=False)
    assert backward_error(a, x.T, b) < tolerance(dtype, n)


# ---- where products do not gain


def test_matrices_that_do_not_gain_are_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("a product ran")

    monkeypatch.setattr(halving_rules, "product_speedup", lambda *_: 1.0)
    for name in ("gemm", "gram", "matmul"):
        monkeypatch.setattr(f"fmm.api.{name}", fail)
    a = positive_matrices(40, "float64")["normal"]
    np.testing.assert_array_equal(fmm.linalg.cholesky(a), np.linalg.cholesky(a))
    np.testing.assert_array_equal(fmm.linalg.inv(a), np.linalg.inv(a))
    found, expected = fmm.linalg.solve_triangular(a, a), scipy_linalg.solve_triangular(a, a)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_the_model_decides_how_often_a_matrix_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def speedup(n: int, columns: int, *_: Any) -> float:
        seen.append(columns)
        return 1.2 if n >= 1000 else 1.01

    monkeypatch.setattr(halving_rules, "product_speedup", speedup)

    def levels(n: int, columns: int | None, dtype: str = "float64", device: str = "cpu") -> int:
        return halving_rules.count_halvings(n, columns, dtype, device, None, HalvingRule(512, 1.05))

    assert [levels(n, None) for n in (1000, 2000, 4096, 8192)] == [0, 1, 2, 3]
    assert levels(8192, 0) == levels(8192, None, "float16") == 0
    seen.clear()
    assert levels(8192, 7) == 3 and set(seen) == {7}


def test_an_h200_computes_what_was_measured_to_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    def speedup(n: int, columns: int, dtype: str, *_: Any) -> float:
        return decide_plan(Problem(n, n, columns, dtype), Limits(1 << 36, 16.0), H200).speedup

    monkeypatch.setattr(halving_rules, "product_speedup", speedup)

    monkeypatch.setattr(NUMPY_SOLVERS, "device", lambda x: "cuda:0")

    def sides(rule: BlockInversionRule, dtype: str, *sizes: int, columns: int = 4096) -> list[int]:
        arrays = (np.broadcast_to(np.zeros(1, dtype), (n, n)) for n in sizes)
        return [halving_rules.diagonal_block_side(NUMPY_SOLVERS, a, columns, None, rule) for a in arrays]

    triangular, positive = halving_rules.INVERTED_RULE, halving_rules.POSITIVE_RULE
    assert sides(triangular, "float32", 512, 4096) == [0, 0], "another GPU"
    assert sides(triangular, "float32", 16384, columns=16384) == [1024]
    monkeypatch.setattr(NUMPY_SOLVERS, "are_solvers_measured_for", lambda x: True)
    assert sides(triangular, "float32", 3072, 4096) == [0, 1024]
    assert sides(triangular, "float64", 3072, 4096) == [0, 512]
    assert sides(triangular, "float64", 4096, columns=64) == [0]
    assert sides(positive, "float32", 4096, 8192) == [0, 4096]
    assert sides(positive, "float64", 8192, 16384) == [0, 4096]
    for width, sizes in ((lu_recursion.lu_panel_width, [8192, 6144]), (inverse.inverse_panel_width, [7168, 5120])):
        for smallest, dtype in zip(sizes, ("float32", "float64"), strict=True):
            arrays = (np.broadcast_to(np.zeros(1, dtype), (n, n)) for n in (smallest - 1, smallest))
            assert [width(NUMPY_SOLVERS, a, None) > 0 for a in arrays] == [False, True]


def test_the_speedup_is_that_of_the_products_decision() -> None:
    decision = fmm.plan(4096, 4096, 64, dtype="float32")
    assert halving_rules.product_speedup(4096, 64, "float32", "cpu", None) == decision.speedup
    chosen = next(c for c in decision.candidates if c.plan == decision.plan)
    assert decision.speedup == pytest.approx(1 / chosen.time)


def test_halves_of_large_matrices_are_aligned() -> None:
    assert [first_half_row_count(n) for n in (0, 1, 5, 1000, 1024, 5000, 8191)] == [0, 1, 3, 500, 512, 2560, 4096]


def test_results_are_only_written_to_arrays_of_their_shape() -> None:
    library, (x,) = arguments.common_arrays(np.ones((2, 2)))
    assert arguments.write_result(library, None, x) is x


@recursing
def test_without_scipy_numpys_functions_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver_library, "has_scipy", lambda: False)
    monkeypatch.setitem(sys.modules, "scipy.linalg", None)
    a = positive_matrices(40, "float64")["normal"]
    np.testing.assert_array_equal(fmm.linalg.cholesky(a), np.linalg.cholesky(a))
    for kind in ("gen", "pos"):
        np.testing.assert_array_equal(fmm.linalg.inv(a, assume_a=kind), np.linalg.inv(a))
    with pytest.raises(ImportError, match="needs SciPy: pip install scipy"):
        fmm.linalg.solve_triangular(a, a)


def test_sparse_matrices_and_arrays_of_two_libraries_are_rejected() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(TypeError, match="dense"):
        fmm.linalg.cholesky(sparse.eye_array(3, format="csr"))
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="torch"):
        fmm.linalg.solve_triangular(np.eye(3), torch.eye(3))
