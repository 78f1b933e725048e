"""NumPy's, SciPy's and CuPy's solvers while fmm is installed: their values, exceptions, and what fmm declines."""

from __future__ import annotations

from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fmm
from fmm import linalg
from fmm.integrations import solver_functions
from fmm.integrations.product_functions import replace_attributes
from fmm.integrations.solver_functions import (
    CUPY_SOLVER_FUNCTIONS,
    CUPYX_SOLVER_FUNCTIONS,
    NUMPY_SOLVER_FUNCTIONS,
    SCIPY_SOLVER_FUNCTIONS,
)
from fmm.linalg.solver_library import solver_library
from tests.support.solver_matrices import (
    noted_products,
    positive_matrices,
    random_matrix,
    solve_everything_by_products,
)

scipy_linalg = pytest.importorskip("scipy.linalg")
S, B = positive_matrices(20, "float64")["normal"], random_matrix(20, 5, "float64")
LOWER = np.tril(S)
INDEFINITE, WITH_NAN = S.copy(), S.copy()
INDEFINITE[7, 7], WITH_NAN[1, 1] = -1, np.nan
Call = tuple[Any, str, tuple[Any, ...], dict[str, Any]]

VALID_CALLS: list[Call] = [
    (np.linalg, "cholesky", (S,), {}),
    (np.linalg, "cholesky", (S,), {"upper": True}),
    (np.linalg, "cholesky", (np.stack([S, 2 * S]),), {}),
    (np.linalg, "inv", (S,), {}),
    (scipy_linalg, "cholesky", (S,), {}),
    (scipy_linalg, "cholesky", (S, True), {"overwrite_a": True}),
    (scipy_linalg, "inv", (S,), {"check_finite": False}),
    (scipy_linalg, "solve_triangular", (S, B), {}),
    (scipy_linalg, "solve_triangular", (S, B[:, 0]), {"trans": 1, "lower": True}),
    (scipy_linalg, "solve_triangular", (LOWER / 9, B), {"unit_diagonal": True, "lower": True}),
    (scipy_linalg, "cho_solve", ((LOWER, True), B), {}),
    (scipy_linalg, "cho_solve", ((LOWER.T, False), B[:, 0]), {}),
    (scipy_linalg, "solve_triangular", (S, B.tolist()), {}),
    (scipy_linalg, "cho_solve", ((LOWER, True), B[:, 0].tolist()), {}),
]
INVALID_CALLS: list[Call] = [
    (np.linalg, "cholesky", (INDEFINITE,), {}),
    (np.linalg, "cholesky", (S, 3), {}),
    (np.linalg, "inv", (0 * S,), {}),
    (np.linalg, "inv", (S[:3],), {}),
    (scipy_linalg, "cholesky", (INDEFINITE,), {}),
    (scipy_linalg, "cholesky", (WITH_NAN,), {}),
    (scipy_linalg, "inv", (0 * S,), {}),
    (scipy_linalg, "inv", (S,), {"unknown": 1}),
    (scipy_linalg, "solve_triangular", (0 * S, B), {}),
    (scipy_linalg, "solve_triangular", (S, B[:3]), {}),
    (scipy_linalg, "solve_triangular", (WITH_NAN, B), {}),
    (scipy_linalg, "cho_solve", ((WITH_NAN, True), B), {}),
]


@pytest.fixture
def by_products(monkeypatch: pytest.MonkeyPatch) -> None:
    solve_everything_by_products(monkeypatch)
    monkeypatch.setattr(solver_functions, "SMALLEST_GAINING_SIDE", 2)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of fmm's products."""
    return noted_products(monkeypatch)


def outcome(call: Call) -> Any:
    """Return the result of a call, or its exception as text."""
    module, name, operands, options = call
    copies = [x.copy() if isinstance(x, np.ndarray) else x for x in operands]
    try:
        return getattr(module, name)(*copies, **options)
    except Exception as error:
        return repr(error)


@pytest.mark.usefixtures("by_products")
@pytest.mark.parametrize("call", VALID_CALLS, ids=lambda call: f"{call[0].__name__}.{call[1]}")
def test_solvers_return_what_the_library_returns(call: Call, products: list[str]) -> None:
    expected = outcome(call)
    assert not products
    with fmm.installed("numpy", "scipy"):
        found = outcome(call)
    assert products and found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("by_products")
@pytest.mark.parametrize("call", INVALID_CALLS, ids=lambda call: f"{call[0].__name__}.{call[1]}")
def test_exceptions_are_the_librarys(call: Call) -> None:
    expected = outcome(call)
    with fmm.installed("numpy", "scipy"):
        assert outcome(call) == expected
    assert isinstance(expected, str)


@pytest.mark.usefixtures("by_products")
@pytest.mark.parametrize("error", [MemoryError, RuntimeError], ids=lambda x: x.__name__)
def test_a_call_that_fails_is_repeated_by_the_library(
    error: type[Exception], products: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(a: Any) -> None:
        raise error("for the test")

    expected = np.linalg.inv(S)
    monkeypatch.setattr(linalg, "inv", fail)
    with fmm.installed("numpy"):
        np.testing.assert_array_equal(np.linalg.inv(S), expected)
    assert not products


def test_uninstalling_restores_the_very_functions() -> None:
    names = [(np.linalg, name) for name in NUMPY_SOLVER_FUNCTIONS]
    names += [(scipy_linalg, name) for name in SCIPY_SOLVER_FUNCTIONS]
    before = [getattr(module, name) for module, name in names]
    with fmm.installed("numpy", "scipy"):
        during = [getattr(module, name) for module, name in names]
    assert all(getattr(module, name) is own for (module, name), own in zip(names, before, strict=True))
    assert all(new is not own and new == own for new, own in zip(during, before, strict=True))


def test_small_matrices_other_types_and_lists_are_declined_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(solver_functions, "solver_library", lambda *_: pytest.fail("fmm was called"))
    large = np.eye(1100)
    with fmm.installed("numpy", "scipy"):
        np.linalg.cholesky(S)
        np.linalg.inv(S.tolist())
        scipy_linalg.solve_triangular(S, B)
        np.linalg.inv(large.view(np.memmap)[:1] @ large[:, :1])
        scipy_linalg.cho_solve((S, True), B)
        for x in (large.astype(np.int64), large.astype(np.longdouble)):
            outcome((np.linalg, "cholesky", (x,), {}))


@pytest.mark.usefixtures("by_products")
def test_a_solvers_own_calls_of_the_library_are_not_solved_again(products: list[str]) -> None:
    with fmm.installed("numpy"):
        np.linalg.cholesky(S)
        once = len(products)
        products.clear()
        with pytest.raises(np.linalg.LinAlgError):
            np.linalg.cholesky(INDEFINITE)
    assert len(products) <= once


@pytest.mark.usefixtures("by_products")
def test_cupys_functions_have_cupys_parameters(products: list[str]) -> None:
    a = random_matrix(40, 6, "float64")
    fake: Any = ModuleType("cupy_linalg")
    for name in CUPY_SOLVER_FUNCTIONS:
        setattr(fake, name, partial(getattr(np.linalg, name)))
    undo = replace_attributes(solver_functions.solver_replacements(fake, CUPY_SOLVER_FUNCTIONS, np.ndarray))
    try:
        q, r = fake.qr(a)
        np.testing.assert_allclose(q @ r, a, atol=1e-12)
        assert (np.diagonal(r) > 0).all() and (np.diagonal(fake.qr(a, mode="r")) > 0).all()
        x, residuals, rank, _ = fake.lstsq(a, a[:, :2])
        np.testing.assert_allclose(x, np.eye(6)[:, :2], atol=1e-12)
        assert rank == 6 and residuals.shape == (2,)
        products.clear()
        np.testing.assert_allclose(fake.solve(S, B), np.linalg.solve(S, B), atol=1e-12)
        assert products
        products.clear()
        assert fake.qr(a, "complete")[0].shape == (40, 40) and len(fake.lstsq(a, a, 1e-3)[3]) == 6
        assert not products
    finally:
        undo()


@pytest.mark.usefixtures("by_products")
@pytest.mark.parametrize("operands", [(WITH_NAN, B), (S, np.inf * B), (WITH_NAN + 0j, B)])
@pytest.mark.parametrize("name", CUPYX_SOLVER_FUNCTIONS)
@pytest.mark.parametrize("check_finite", [True, False])
def test_cupys_functions_raise_for_nan_unless_check_finite_is_false(
    name: str, operands: tuple[Any, ...], check_finite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as CuPy is, another module than NumPy
    monkeypatch.setattr(type(solver_library(S)), "module", SimpleNamespace(**vars(np)))
    fake: Any = ModuleType("cupyx_linalg")
    vars(fake).update({name: partial(getattr(scipy_linalg, name)) for name in CUPYX_SOLVER_FUNCTIONS})
    call = fake, name, operands[:1] if name == "lu_factor" else operands, {"check_finite": check_finite}
    expected = outcome(call)
    undo = replace_attributes(solver_functions.solver_replacements(fake, CUPYX_SOLVER_FUNCTIONS, np.ndarray))
    try:
        found = outcome(call)
    finally:
        undo()
    assert found == expected if isinstance(expected, str) else not isinstance(found, str)
