"""NumPy's functions while fmm is installed: unchanged results, and plans where they pay."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import fmm
from fmm.kernels.plans.plan import Plan

np: Any = numpy
DOT, INNER = np.dot, np.inner


@pytest.fixture
def run(host_plans: list[Plan]) -> Iterator[list[Plan]]:
    """Run NumPy's products of any size by plans; collect the plans."""
    with fmm.installed("numpy"):
        yield host_plans


def classical(a: Any, b: Any) -> Any:
    """Return the product by NumPy's einsum, which calls neither matmul nor dot."""
    return np.einsum("...ij,...jk->...ik", a, b)


def draw(rng: numpy.random.Generator, *shape: int, dtype: Any = np.float64) -> Any:
    return rng.standard_normal(shape).astype(dtype)


def test_products_of_two_matrices_run_plans(run: list[Plan], rng: numpy.random.Generator) -> None:
    a, b, d = draw(rng, 96, 128), draw(rng, 128, 64), draw(rng, 64, 48)
    out, ab, square = np.empty((96, 64)), classical(a, b), classical(a, a.T) / 96
    calls: list[tuple[Any, Any]] = [
        (np.matmul(a, b), ab),
        (np.matmul(a, b, out), ab),
        (np.matmul(a, b, order="F"), ab),
        (a @ b, ab),
        (np.dot(a, b), ab),
        (np.linalg.multi_dot([a, b, d]), classical(ab, d)),
        (np.tensordot(a, b, 1), ab),
        (np.linalg.matrix_power(square, 3), classical(classical(square, square), square)),
    ]
    for found, expected in calls:
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert np.shares_memory(calls[1][0], out) and calls[2][0].flags.f_contiguous
    assert len(run) == 4 + 1 + 2 + 1 + 2


@pytest.mark.slow
def test_numpys_own_functions_come_to_them(run: list[Plan], rng: numpy.random.Generator) -> None:
    """NumPy functions that call matmul or dot by a name in their own module."""
    a, b, w = draw(rng, 96, 128), draw(rng, 128, 64), rng.uniform(1, 2, 128)
    stack = draw(rng, 2, 96, 128)
    away, ab = a - np.average(a, axis=1, weights=w)[:, None], classical(a, b)
    definite = np.eye(96) + classical(a, a.T)
    calls: list[tuple[str, Any, Any]] = [
        ("einsum", lambda: np.einsum("ij,jk->ik", a, b, optimize=True), ab),
        ("einsum of stacks", lambda: np.einsum("sij,jk->sik", stack, b, optimize=True), classical(stack, b)),
        ("einsum of three", lambda: np.einsum("ij,jk,lk->il", a, b, b, optimize="greedy"), classical(ab, b.T)),
        ("inner", lambda: np.inner(a, np.ascontiguousarray(b.T)), ab),
        ("cov", lambda: np.cov(a, aweights=w, ddof=0), classical(away * w, away.T) / w.sum()),
        ("pinv", lambda: np.linalg.pinv(definite), np.linalg.inv(definite)),
        ("ma.dot", lambda: np.ma.dot(np.ma.array(a), np.ma.array(b)).data, ab),
    ]
    for name, call, expected in calls:
        before = len(run)
        np.testing.assert_allclose(call(), expected, rtol=1e-7, atol=1e-7)
        assert len(run) > before, name
    for function in (np.einsum, np.tensordot, np.cov, np.polyfit, np.linalg.multi_dot):
        module = sys.modules[function._implementation.__globals__["__name__"]]
        assert not [name for name, value in vars(module).items() if value is DOT or value is INNER]


def test_dot_writes_where_numpys_does_and_refuses_the_rest_in_its_words(
    run: list[Plan], rng: numpy.random.Generator
) -> None:
    a, b = draw(rng, 96, 128), draw(rng, 128, 64)
    for by_name in (True, False):
        out = np.empty((96, 64))
        assert (np.dot(a, b, out=out) if by_name else np.dot(a, b, out)) is out
        np.testing.assert_allclose(out, classical(a, b), rtol=1e-9, atol=1e-9)
    assert len(run) == 2
    square = draw(rng, 96, 96)
    expected = classical(square, square)
    assert np.dot(square, square, out=square) is square
    np.testing.assert_allclose(square, expected, rtol=1e-9, atol=1e-9)
    assert len(run) == 3
    locked = np.empty((96, 64))
    locked.flags.writeable = False
    refused = [
        np.empty((96, 64), "f4"),
        np.empty((64, 96)).T,
        np.empty((96, 65)),
        np.empty((96, 128))[:, ::2],
        np.empty((2, 96, 64)),
        np.empty((96, 64), ">f8"),
        locked,
        [0.0],
        7,
    ]
    for wrong in refused:
        with pytest.raises(Exception) as theirs:
            DOT(a, b, out=wrong)
        with pytest.raises(type(theirs.value)) as ours:
            np.dot(a, b, out=wrong)
        assert str(ours.value) == str(theirs.value)
    assert len(run) == 3


def test_inner_of_other_things_is_numpys(run: list[Plan], rng: numpy.random.Generator) -> None:
    a, v = draw(rng, 96, 96), draw(rng, 96)
    for operands in ((a, v), (v, v), (2.0, a), (a.tolist(), v), (a[:2], a), (draw(rng, 2, 3, 4), draw(rng, 5, 4))):
        np.testing.assert_array_equal(np.inner(*operands), INNER(*operands))
    assert not run
    for wrong in ((a,), (a, draw(rng, 96, 7)), (a, v, v)):
        with pytest.raises(Exception) as theirs:
            INNER(*wrong)
        with pytest.raises(type(theirs.value)) as ours:
            np.inner(*wrong)
        assert str(ours.value) == str(theirs.value)


def test_dot_of_other_things_is_numpys(run: list[Plan], rng: numpy.random.Generator) -> None:
    class Mine(numpy.ndarray):
        pass

    a, v = draw(rng, 96, 96), draw(rng, 96)
    mine, whole = a.view(Mine), np.arange(96 * 96).reshape(96, 96)
    calls = [(a, v), (v, v), (mine, a), (whole, whole), (a.tolist(), v.tolist()), (a[:2], a)]
    for operands in calls:
        found, expected = np.dot(*operands), DOT(*operands)
        assert type(found) is type(expected)
        np.testing.assert_array_equal(found, expected)
    stack = draw(rng, 2, 40, 40)
    np.testing.assert_array_equal(np.dot(stack, stack), DOT(stack, stack))  # another product than matmul's
    assert not run
    for wrong in ((a,), (a, v, v, v), (a, draw(rng, 3, 3)), (a, "text")):
        with pytest.raises(Exception) as theirs:
            DOT(*wrong)
        with pytest.raises(type(theirs.value)) as ours:
            np.dot(*wrong)
        assert str(ours.value) == str(theirs.value)


NOT_FINITE = pytest.mark.parametrize("number", [1e300, np.inf], ids=["overflow", "inf"])
FUNCTIONS = "matmul", "dot", "inner"


@NOT_FINITE
def test_errors_of_floating_point_name_the_function_where_numpy_does_it_again(
    host_plans: list[Plan], number: float
) -> None:
    """A plan is tried, and could have overflowed."""
    check_errors_of_floating_point(number, 96)
    assert len(host_plans) == 2 * 3


@pytest.mark.slow
@NOT_FINITE
@pytest.mark.parametrize("side", [8, 1000])
def test_errors_of_floating_point_name_the_function_where_no_plan_pays(number: float, side: int) -> None:
    check_errors_of_floating_point(number, side)


def check_errors_of_floating_point(number: float, side: int) -> None:
    a = np.full((side, side), number)
    a[0, 0] = -number
    theirs = [errors_of_floating_point(getattr(np, name), a) for name in FUNCTIONS]
    with fmm.installed("numpy"):
        ours = [errors_of_floating_point(getattr(np, name), a) for name in FUNCTIONS]
    assert ours == theirs and theirs[0]  # (NumPy 1.26 has no such warnings of dot and inner)


def errors_of_floating_point(function: Any, a: Any) -> list[str]:
    """NumPy's warnings, also as errors."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        function(a, a)
    reported = [str(warning.message) for warning in warned]
    try:
        with np.errstate(all="raise"):
            function(a, a)
    except FloatingPointError as error:
        reported.append(str(error))
    return reported


def test_dot_is_still_what_others_look_for(run: list[Plan]) -> None:
    assert isinstance(np.dot, type(DOT)) and not isinstance(np.dot, np.ufunc)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(np.dot, protocol)) is np.dot
    assert {DOT: 2}[np.dot] == 2 and {np.dot: 2}[DOT] == 2  # as compilers look functions up
    assert np.dot == DOT == np.dot and np.dot != np.matmul != DOT
    assert copy.deepcopy(np.dot) is np.dot
    assert signature_of(np.dot) == signature_of(DOT)


def signature_of(function: Any) -> Any:
    try:
        return inspect.signature(function)
    except ValueError:  # NumPy 1.26's dot has none
        return None
