"""NumPy's functions while fmm is installed: unchanged results, and plans where they pay."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy
import pytest

import fmm
from fmm.kernels.plans.plan import Plan

np: Any = numpy
MATMUL, DOT, INNER = np.matmul, np.dot, np.inner
ONLY_FMMS = {
    "plan": "winograd > vendor",
    "max_error_growth": 3,
    "workspace": 0,
    "componentwise": True,
    "device": 0,
    "progress": True,
}


@pytest.fixture
def run(host_plans: list[Plan]) -> Iterator[list[Plan]]:
    """Run NumPy's products of any size by plans; collect the plans."""
    with fmm.installed("numpy"):
        yield host_plans


def draw(rng: numpy.random.Generator, *shape: int, dtype: Any = np.float64) -> Any:
    return rng.standard_normal(shape).astype(dtype)


def test_products_of_two_matrices_run_plans(run: list[Plan], rng: numpy.random.Generator) -> None:
    a, b, d = draw(rng, 96, 128), draw(rng, 128, 64), draw(rng, 64, 48)
    out = np.empty((96, 64))
    calls: list[tuple[Any, Any]] = [
        (np.matmul(a, b), a @ b),
        (np.matmul(a, b, out), a @ b),
        (np.matmul(a, b, order="F"), a @ b),
        (np.dot(a, b), a @ b),
        (np.linalg.multi_dot([a, b, d]), a @ b @ d),
        (np.tensordot(a, b, 1), a @ b),
        (np.linalg.matrix_power(a @ a.T / 96, 3), (a @ a.T / 96) @ (a @ a.T / 96) @ (a @ a.T / 96)),
    ]
    for found, expected in calls:
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert np.shares_memory(calls[1][0], out) and calls[2][0].flags.f_contiguous
    assert len(run) == 3 + 1 + 2 + 1 + 2


def test_numpys_own_functions_come_to_them(run: list[Plan], rng: numpy.random.Generator) -> None:
    """NumPy functions that call matmul or dot by a name in their own module."""
    a, b, w = draw(rng, 96, 128), draw(rng, 128, 64), rng.uniform(1, 2, 128)
    stack = draw(rng, 2, 96, 128)
    away = a - np.average(a, axis=1, weights=w)[:, None]
    calls: list[tuple[str, Any, Any]] = [
        ("einsum", lambda: np.einsum("ij,jk->ik", a, b, optimize=True), a @ b),
        ("einsum of stacks", lambda: np.einsum("sij,jk->sik", stack, b, optimize=True), stack @ b),
        ("einsum of three", lambda: np.einsum("ij,jk,lk->il", a, b, b, optimize="greedy"), a @ b @ b.T),
        ("inner", lambda: np.inner(a, np.ascontiguousarray(b.T)), a @ b),
        ("cov", lambda: np.cov(a, aweights=w, ddof=0), (away * w) @ away.T / w.sum()),
        ("pinv", lambda: np.linalg.pinv(np.eye(96) + a @ a.T), np.linalg.inv(np.eye(96) + a @ a.T)),
        ("ma.dot", lambda: np.ma.dot(np.ma.array(a), np.ma.array(b)).data, a @ b),
    ]
    for name, call, expected in calls:
        before = len(run)
        np.testing.assert_allclose(call(), expected, rtol=1e-7, atol=1e-7)
        assert len(run) > before, name
    for function in (np.einsum, np.tensordot, np.cov, np.polyfit, np.linalg.multi_dot):
        module = sys.modules[function._implementation.__globals__["__name__"]]
        assert not [name for name, value in vars(module).items() if value is MATMUL or value is DOT]


def test_dot_writes_where_numpys_does_and_refuses_the_rest_in_its_words(
    run: list[Plan], rng: numpy.random.Generator
) -> None:
    a, b = draw(rng, 96, 128), draw(rng, 128, 64)
    for by_name in (True, False):
        out = np.empty((96, 64))
        assert (np.dot(a, b, out=out) if by_name else np.dot(a, b, out)) is out
        np.testing.assert_allclose(out, a @ b, rtol=1e-9, atol=1e-9)
    assert len(run) == 2
    square = draw(rng, 96, 96)
    expected = square @ square
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


def test_all_other_calls_are_numpys(run: list[Plan], rng: numpy.random.Generator) -> None:
    class Mine(numpy.ndarray):
        pass

    a, v = draw(rng, 96, 96), draw(rng, 96)
    mine, whole = a.view(Mine), np.arange(96 * 96).reshape(96, 96)
    calls = [
        (a, v),
        (v, v),
        (mine, a),
        (whole, whole),
        (a.tolist(), v.tolist()),
        (a[:2], a),
    ]
    for operands in calls:
        for ours, theirs in ((np.matmul, MATMUL), (np.dot, DOT)):
            found, expected = ours(*operands), theirs(*operands)
            assert type(found) is type(expected)
            np.testing.assert_array_equal(found, expected)
    stack = draw(rng, 2, 40, 40)
    np.testing.assert_array_equal(np.dot(stack, stack), DOT(stack, stack))  # another product than matmul's
    assert not run
    for wrong in ((a,), (a, v, v, v), (a, draw(rng, 3, 3)), (a, "text")):
        for ours, theirs in ((np.matmul, MATMUL), (np.dot, DOT)):
            with pytest.raises(Exception) as theirs_said:
                theirs(*wrong)
            with pytest.raises(type(theirs_said.value)) as ours_said:
                ours(*wrong)
            assert str(ours_said.value) == str(theirs_said.value)


def test_what_only_fmms_own_matmul_takes_is_refused_in_numpys_words(
    run: list[Plan], rng: numpy.random.Generator
) -> None:
    a, out = draw(rng, 96, 96), np.empty((96, 96))
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        *(((a, a), {name: value}) for name, value in ONLY_FMMS.items()),
        ((a, a, (out,)), {}),
        ((a, a, (None,)), {}),
        ((a, a, out), {"out": out}),
    ]
    for operands, options in calls:
        with pytest.raises(TypeError) as theirs:
            MATMUL(*operands, **options)
        with pytest.raises(TypeError) as ours:
            np.matmul(*operands, **options)
        assert str(ours.value) == str(theirs.value)
    assert not run
    own = inspect.signature(fmm.matmul).parameters.keys() - {"a", "b", "out", "casting", "order", "dtype", "more"}
    assert own == ONLY_FMMS.keys()


NOT_FINITE = pytest.mark.parametrize("number", [1e300, np.inf], ids=["overflow", "inf"])


@NOT_FINITE
def test_errors_of_floating_point_name_the_function_where_numpy_does_it_again(run: list[Plan], number: float) -> None:
    """A plan is tried, and could have overflowed."""
    check_errors_of_floating_point(number, 96)
    assert len(run) == 2 * 3


@NOT_FINITE
@pytest.mark.parametrize("side", [8, 1000])
def test_errors_of_floating_point_name_the_function_where_no_plan_pays(number: float, side: int) -> None:
    with fmm.installed("numpy"):
        check_errors_of_floating_point(number, side)


def check_errors_of_floating_point(number: float, side: int) -> None:
    a = np.full((side, side), number)
    a[0, 0] = -number
    for ours, theirs in (np.matmul, MATMUL), (np.dot, DOT), (np.inner, INNER):
        assert errors_of_floating_point(ours, a) == errors_of_floating_point(theirs, a) != []


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


def test_the_functions_are_still_what_others_look_for(run: list[Plan]) -> None:
    assert np.matmul.signature == "(n?,k),(k,m?)->(n?,m?)" and np.matmul.nin == 2
    assert isinstance(np.matmul, np.ufunc) and isinstance(np.dot, type(DOT)) and not isinstance(np.dot, np.ufunc)
    for function, protocol in product((np.dot, np.matmul), range(pickle.HIGHEST_PROTOCOL + 1)):
        assert pickle.loads(pickle.dumps(function, protocol)) is function
    assert {MATMUL: 1, DOT: 2}[np.matmul] == 1 and {np.dot: 2}[DOT] == 2  # as compilers look functions up
    assert np.dot == DOT == np.dot and np.dot != np.matmul != DOT and np.matmul != "matmul"
    assert copy.copy(np.matmul) is np.matmul and copy.deepcopy(np.dot) is np.dot
    assert inspect.signature(np.dot) == inspect.signature(DOT)

    class Answering:
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
            return ufunc, method

    assert np.matmul(Answering(), np.ones((2, 2))) == (MATMUL, "__call__")


def test_the_operator_is_numpys_own(run: list[Plan], rng: numpy.random.Generator) -> None:
    """The operator of a type written in C cannot be replaced (docs/everywhere.md)."""
    a = draw(rng, 96, 96)
    assert (a @ a).shape == (96, 96) and not run
