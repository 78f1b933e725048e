"""CuPy's functions while fmm is installed, on a CuPy simulated by NumPy, and on CuPy if there is a device."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fmm
from fmm.integrations import cupy_functions
from fmm.integrations.cupy_functions import CupyFunctions, can_set_methods_on_type
from fmm.integrations.product_functions import parse_contraction, replace_attributes
from fmm.integrations.report import begin_report, end_report


class Array(np.ndarray[Any, Any]):
    """A mutable array type, like CuPy's."""


def drawn(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).view(Array)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A simulated CuPy module that records its own calls and fmm's products."""
    calls: list[str] = []

    def noting(name: str) -> Any:
        def own(*operands: Any, **options: Any) -> Any:
            calls.append(name)
            return np.asarray(getattr(np, name)(*(np.asarray(x) for x in operands), **options)).view(Array)

        return own

    linalg = SimpleNamespace()
    made = SimpleNamespace(ndarray=Array, linalg=linalg, calls=calls)
    for name in ("matmul", "dot", "inner", "tensordot"):
        setattr(made, name, noting(name))
    linalg.matmul = made.matmul

    def by_fmm(a: Any, b: Any, *rest: Any, **options: Any) -> Any:
        calls.append("fmm")
        return np.matmul(np.asarray(a), np.asarray(b), *rest, **options).view(Array)

    monkeypatch.setattr(cupy_functions, "matmul", by_fmm)
    monkeypatch.setattr(cupy_functions, "is_small_on_device", lambda m, k, n, itemsize: m * k * n < 1000)
    return made


def test_products_of_plain_arrays_are_fmms_and_all_else_is_cupys(cupy: Any, rng: np.random.Generator) -> None:
    a, b, small, v = drawn(rng, 20, 30), drawn(rng, 30, 20), drawn(rng, 3, 3), drawn(rng, 30)
    other = np.ones((30, 20))  # another type
    undo = replace_attributes(CupyFunctions(cupy).function_replacements())
    try:
        cases: list[tuple[str, Any, str]] = [
            ("matmul", (a, b), "fmm"),
            ("matmul", (small, small), "fmm"),  # whose way to cuBLAS is the shorter one
            ("matmul", (a, v), "fmm"),
            ("matmul", (a, other), "matmul"),
            ("dot", (a, b), "fmm"),
            ("dot", (small, small), "dot"),
            ("dot", (a, v), "dot"),
            ("dot", (a, other), "dot"),
            ("dot", (a, b.astype("f4").view(Array)), "dot"),
            ("dot", (a.astype(int).view(Array), b.astype(int).view(Array)), "dot"),
            ("inner", (a, b.T), "fmm"),
            ("inner", (small, small), "inner"),
            ("inner", (a, v), "inner"),
            ("inner", (a, other.T), "inner"),
            ("inner", (a, b.T.astype("f4").view(Array)), "inner"),
            ("tensordot", (a, b, 1), "fmm"),
            ("tensordot", (a, b, ((1,), (0,))), "fmm"),
            ("tensordot", (a, b, ((0, 1), (1, 0))), "tensordot"),  # few numbers
            ("tensordot", (a, v, 1), "tensordot"),
            ("tensordot", (a, other, 1), "tensordot"),
        ]
        for name, operands, who in cases:
            cupy.calls.clear()
            found = getattr(cupy, name)(*operands)
            np.testing.assert_allclose(
                np.asarray(found), getattr(np, name)(*map(np.asarray, operands[:2]), *operands[2:])
            )
            assert cupy.calls == [who], (name, operands)
        cupy.calls.clear()
        np.testing.assert_allclose(np.asarray(a @ b), np.asarray(a).dot(np.asarray(b)))
        assert cupy.calls == ["fmm"] and cupy.linalg.matmul is cupy.matmul
    finally:
        undo()
    cupy.calls.clear()
    assert (a @ b).shape == (20, 20) and "__matmul__" not in vars(Array)
    cupy.matmul(a, b)
    assert cupy.calls == ["matmul"]


def test_inner_products_are_counted_whoever_answers(cupy: Any, rng: np.random.Generator) -> None:
    a, small = drawn(rng, 20, 30), drawn(rng, 3, 3)
    counts = begin_report()
    undo = replace_attributes(CupyFunctions(cupy).function_replacements())
    try:
        cupy.inner(a, a)
        cupy.inner(small, small)
        with pytest.raises(ValueError, match="aligned"):
            cupy.inner(a, a.T)
    finally:
        undo()
        end_report()
    kinds = {(kind.where, kind.left, kind.right) for kind, _ in counts.counts}
    assert kinds == {
        ("cupy.inner", (20, 30), (30, 20)),
        ("cupy.inner", (3, 3), (3, 3)),
        ("cupy.inner", (20, 30), (20, 30)),
    }
    assert cupy.calls == ["fmm", "inner", "inner"]


def test_options_go_on_to_who_answers(cupy: Any, rng: np.random.Generator) -> None:
    a, out = drawn(rng, 20, 20), drawn(rng, 20, 20)
    undo = replace_attributes(CupyFunctions(cupy).function_replacements())
    try:
        cupy.dot(a, a, out=np.asarray(out))
        cupy.dot(a, a, out=None)
        cupy.matmul(a, a, order="F")
        with pytest.raises(TypeError):
            cupy.tensordot(a, a, 1, 2)
    finally:
        undo()
    assert cupy.calls == ["dot", "fmm", "fmm"]


def test_cupys_own_matmul_judges_what_is_fmms_alone(cupy: Any, rng: np.random.Generator) -> None:
    a, out = drawn(rng, 20, 20), drawn(rng, 20, 20)
    undo = replace_attributes(CupyFunctions(cupy).function_replacements())
    try:
        for name, value in {"plan": "vendor", "workspace": 0, "device": 0, "progress": True}.items():
            with pytest.raises(TypeError, match=name):
                cupy.matmul(a, a, **{name: value})
        with pytest.raises(TypeError):
            cupy.matmul(a, a, out, out=out)
    finally:
        undo()
    assert set(cupy.calls) == {"matmul"}


def test_dot_writes_by_fmm_where_cupys_own_would_write(cupy: Any, rng: np.random.Generator) -> None:
    a, out = drawn(rng, 20, 20), drawn(rng, 20, 20)
    undo = replace_attributes(CupyFunctions(cupy).function_replacements())
    try:
        cupy.dot(a, a, out=out)
        cupy.dot(a, a, out)
        np.testing.assert_allclose(np.asarray(out), np.asarray(a) @ np.asarray(a))
        assert cupy.calls == ["fmm"] * 2
        for wrong in (out.T, out.astype("f4").view(Array), drawn(rng, 20, 21), drawn(rng, 20, 40)[:, ::2]):
            cupy.calls.clear()
            with pytest.raises(ValueError, match="output array"):
                cupy.dot(a, a, out=wrong)
            assert cupy.calls == ["dot"]
        cupy.calls.clear()
        cupy.dot(drawn(rng, 3, 3), drawn(rng, 3, 3), drawn(rng, 3, 3))  # few numbers
        assert cupy.calls == ["dot"]
    finally:
        undo()


def test_types_of_c_are_left_alone() -> None:
    assert (
        can_set_methods_on_type(Array) and not can_set_methods_on_type(np.ndarray) and not can_set_methods_on_type(int)
    )


def test_installing_touches_no_device(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installing uses no device: a process that forks must not have a context."""
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    own = cupy.matmul
    with fmm.installed("cupy"):
        assert cupy.matmul is not own
    assert cupy.matmul is own


# ---- sums over pairs of axes

AXES = [
    ((3, 4), (4, 5), 1),
    ((3, 4, 5), (4, 5, 2), 2),
    ((3, 4, 5), (5, 4, 2), ((1, 2), (1, 0))),
    ((3, 4, 5), (5, 2), (2, 0)),
    ((3, 4, 5), (2, 5), [[-1], [-1]]),
    ((4, 4), (4, 4), 2),
]


@pytest.mark.parametrize(("left", "right", "axes"), AXES)
def test_a_contraction_is_a_product(left: Any, right: Any, axes: Any, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal(left), rng.standard_normal(right)
    found = parse_contraction(left, right, axes)
    assert found is not None
    m, k, n = found.size
    x, y = a.transpose(found.left_axes).reshape(m, k), b.transpose(found.right_axes).reshape(k, n)
    np.testing.assert_allclose((x @ y).reshape(found.shape), np.tensordot(a, b, axes))


WRONG = [0, 3, -1, ((0,), (0,)), ((0, 0), (0, 1)), ((0, 1), (0,)), "ab", None, ((9,), (0,)), 1.5, ((1,), (0,), (0,))]


@pytest.mark.parametrize("axes", WRONG)
def test_what_the_library_must_say_is_left_to_it(axes: Any) -> None:
    assert parse_contraction((3, 4), (4, 5), axes) is None


@given(st.lists(st.integers(1, 4), max_size=4), st.lists(st.integers(1, 4), max_size=4), st.data())
def test_contractions_of_any_axes_are_numpys(left: list[int], right: list[int], data: st.DataObject) -> None:
    pairs = [(i, j) for i, x in enumerate(left) for j, y in enumerate(right) if x == y]
    chosen = data.draw(st.lists(st.sampled_from(pairs), max_size=3)) if pairs else []
    axes = [i for i, _ in chosen], [j for _, j in chosen]
    found = parse_contraction(tuple(left), tuple(right), axes)
    if found is None:
        assert not chosen or len({*axes[0]}) < len(chosen) or len({*axes[1]}) < len(chosen)
    else:
        assert found.shape == np.tensordot(np.ones(left), np.ones(right), axes).shape


# ---- CuPy itself


@pytest.mark.gpu
def test_cupy_is_as_ever_but_faster(rng: np.random.Generator) -> None:
    cupy: Any = pytest.importorskip("cupy")
    own = cupy.matmul, cupy.dot, cupy.inner, cupy.tensordot, cupy.einsum, vars(cupy.ndarray).get("__matmul__")
    a, b = (cupy.asarray(rng.standard_normal(shape)) for shape in ((900, 1100), (1100, 1000)))
    expected = cupy.asnumpy(a) @ cupy.asnumpy(b)
    report = begin_report()
    try:
        with fmm.installed("cupy"):
            assert cupy.matmul is not own[0]
            found = [
                a @ b,
                cupy.matmul(a, b),
                cupy.dot(a, b),
                cupy.inner(a, b.T),
                cupy.tensordot(a, b, 1),
                cupy.einsum("ij,jk->ik", a, b),
                np.matmul(a, b),
                cupy.matmul(a[None], b)[0],
            ]
            a @ cupy.ones(1100)
            with pytest.raises(ValueError, match=r"mismatch|match|dimension"):
                a @ a
    finally:
        end_report()
    for x in found:
        np.testing.assert_allclose(cupy.asnumpy(x), expected, rtol=1e-9, atol=1e-9)
    assert sum(report.counts.values()) >= 7
    now = cupy.matmul, cupy.dot, cupy.inner, cupy.tensordot, cupy.einsum, vars(cupy.ndarray).get("__matmul__")
    assert all(x is y for x, y in zip(now, own, strict=True))
