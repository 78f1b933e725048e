"""NumPy's functions while fmm is installed: what they answered before, and plans where one pays."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy
import pytest

import fmm
from fmm.kernels.plans.plan import Plan

np: Any = numpy
MATMUL, DOT = np.matmul, np.dot


@pytest.fixture
def run(host_plans: list[Plan]) -> Iterator[list[Plan]]:
    """NumPy's products by plans, whatever their size; which plans have run."""
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


def test_all_other_calls_are_numpys(run: list[Plan], rng: numpy.random.Generator) -> None:
    class Mine(numpy.ndarray):
        pass

    a, v = draw(rng, 96, 96), draw(rng, 96)
    mine, whole = a.view(Mine), np.arange(96 * 96).reshape(96, 96)
    calls = [
        ((a, v), {}),
        ((v, v), {}),
        ((mine, a), {}),
        ((whole, whole), {}),
        ((a.tolist(), v.tolist()), {}),
        ((a[:2], a), {}),
        ((a, a), {"out": np.empty((96, 96))}),
    ]
    for operands, options in calls:
        for ours, theirs in ((np.matmul, MATMUL), (np.dot, DOT)):
            if options and theirs is MATMUL:
                continue
            found, expected = ours(*operands, **options), theirs(*operands, **options)
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


def test_the_functions_are_still_what_others_look_for(run: list[Plan]) -> None:
    assert np.matmul.signature == "(n?,k),(k,m?)->(n?,m?)" and np.matmul.nin == 2
    assert isinstance(np.matmul, np.ufunc) and isinstance(np.dot, type(DOT)) and not isinstance(np.dot, np.ufunc)
    for function, protocol in product((np.dot, np.matmul), range(pickle.HIGHEST_PROTOCOL + 1)):
        assert pickle.loads(pickle.dumps(function, protocol)) is function
    assert copy.copy(np.matmul) is np.matmul and copy.deepcopy(np.dot) is np.dot
    assert inspect.signature(np.dot) == inspect.signature(DOT)

    class Answering:
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
            return ufunc, method

    assert np.matmul(Answering(), np.ones((2, 2))) == (MATMUL, "__call__")


def test_the_operator_is_numpys_own(run: list[Plan], rng: numpy.random.Generator) -> None:
    """Of a type that is written in C, which nobody can change: docs/everywhere.md says so."""
    a = draw(rng, 96, 96)
    assert (a @ a).shape == (96, 96) and not run
