"""fmm.matmul against numpy.matmul: the same values, types, layouts, exceptions and warnings, call for call."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fmm
from fmm.arrays.library import ProductSetting
from fmm.arrays.numpy_library import NUMPY
from fmm.config import files
from fmm.kernels import VENDOR, PlanError
from fmm.kernels.cpu.parallel_products import threads_per_product
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.problem import Problem
from fmm.runtime import devices
from fmm.runtime import matmul as calls
from fmm.runtime.decisions import early_declines
from fmm.runtime.decisions.limits import PlanConstraints
from fmm.runtime.prepare import PreparedCall as Prepared
from tests.support import ROOT
from tests.support import configs as tuned

Call = tuple[tuple[Any, ...], dict[str, Any]]
Build = Callable[[], Call]  # makes the same call anew, so that both functions get arrays of their own
Mode = dict[str, Any]

PLANS = (
    "winograd > vendor",  # stacked
    "strassen^2 > vendor",  # two levels in one pass
    "strassen.sequential > winograd.pad > vendor",
    "li-fig23 > winograd > vendor",
    "li-fig3 > vendor",  # a table that uses C as scratch
    "hasa > vendor",  # unequal quadrants
    "adaptive-winograd > adaptive-winograd > vendor",
    "laderman.peel > vendor",
    "balanced(2) > dps > vendor",
    "vendor",
)


@dataclass(frozen=True)
class Outcome:
    """All that a caller can see of a call."""

    value: Any
    error: tuple[type, str] | None
    warned: list[tuple[type, str]]
    call: Call

    @property
    def out(self) -> Any:
        found = self.call[1].get("out", self.call[0][2] if len(self.call[0]) > 2 else None)
        return found[0] if isinstance(found, tuple) and found else found


def outcome(function: Callable[..., Any], call: Call, mode: Mode) -> Outcome:
    value, error = None, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = function(*call[0], **call[1], **mode)
        except Exception as problem:
            error = (type(problem), str(problem))
    return Outcome(value, error, [(w.category, str(w.message)) for w in caught], call)


def agree(build: Build, mode: Mode | None = None) -> Outcome:
    """The same call by both: whatever NumPy does, fmm does."""
    ours, theirs = outcome(fmm.matmul, build(), mode or {}), outcome(np.matmul, build(), {})
    assert ours.error == theirs.error
    assert ours.warned == theirs.warned
    if theirs.error is None:
        same(ours.value, theirs.value, theirs.call)
        assert (ours.value is ours.out) == (theirs.value is theirs.out)
    if isinstance(theirs.out, np.ndarray) and theirs.error is None:
        same(ours.out, theirs.out, theirs.call)
    elif theirs.out is not None:
        np.testing.assert_array_equal(ours.out, theirs.out)
    for mine, yours in zip(ours.call[0][:2], build()[0][:2], strict=True):
        unchanged(mine, yours, ours.out)
    return ours


def unchanged(mine: Any, yours: Any, out: Any) -> None:
    """An operand still holds what it held (unless the caller asked for the product in the same place)."""
    if isinstance(mine, np.ndarray) and not (isinstance(out, np.ndarray) and np.may_share_memory(mine, out)):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(yours))
        assert mine.strides == yours.strides and mine.flags.writeable == yours.flags.writeable


def same(ours: Any, theirs: Any, call: Call) -> None:
    assert type(ours) is type(theirs)
    if not isinstance(theirs, np.ndarray | np.generic):
        assert ours == theirs
        return
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    if isinstance(theirs, np.ndarray):
        assert layout(ours) == layout(theirs)
    if isinstance(theirs, np.ma.MaskedArray):
        np.testing.assert_array_equal(np.ma.getmaskarray(ours), np.ma.getmaskarray(theirs))
    if theirs.dtype.kind in "fc" or (theirs.dtype == object and np.asarray(call[0][0]).dtype != object):
        np.testing.assert_allclose(plain(ours), plain(theirs), rtol=0, atol=tolerance(theirs, call))
    else:
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def plain(x: Any) -> Any:
    return np.asarray(x, complex if x.dtype == object else None)


def layout(x: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """Strides where they matter, and the flags."""
    strides = tuple(s for s, n in zip(x.strides, x.shape, strict=True) if n > 1) if x.size else ()
    return strides, x.flags.c_contiguous, x.flags.f_contiguous, x.flags.writeable, x.flags.aligned, x.flags.owndata


def tolerance(result: Any, call: Call) -> float:
    """A norm-wise bound: k eps max|A| max|B| for the sums, times a little for two levels of a fast algorithm."""
    a, b = (np.asarray(x) for x in call[0][:2])
    if a.size == 0 or b.size == 0 or a.dtype == object or b.dtype == object:
        return 0.0
    used = [t for t in (result.dtype, call[1].get("dtype"), np.result_type(a, b, np.float16)) if t is not None]
    eps = max(float(np.finfo(t).eps) for t in used if np.dtype(t).kind in "fc")
    return (int(a.shape[-1] if a.ndim else 1) + 16) * 4 * eps * float(np.abs(a).max()) * float(np.abs(b).max())


def draw(shape: tuple[int, ...], dtype: str = "f8", seed: int = 1) -> Any:
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape)
    x = (
        x + 1j * rng.standard_normal(shape)
        if np.dtype(dtype).kind == "c"
        else x * (9 if np.dtype(dtype).kind in "iu" else 1)
    )
    return np.asarray(x).astype(dtype)[...]


# ---- shapes

SHAPES = [
    # two matrices: square, odd, thin, one row, one column, one inner product
    ((8, 8), (8, 8)),
    ((7, 5), (5, 9)),
    ((33, 2), (2, 31)),
    ((1, 6), (6, 4)),
    ((5, 6), (6, 1)),
    ((5, 1), (1, 6)),
    ((1, 1), (1, 1)),
    # vectors: the product loses their axis; two of them give a scalar, not an array
    ((6,), (6,)),
    ((1,), (1,)),
    ((6,), (6, 5)),
    ((5, 6), (6,)),
    ((6,), (3, 6, 5)),
    ((3, 5, 6), (6,)),
    ((2, 3, 5, 6), (6,)),
    # stacks: side by side, folded, broadcast on either side, on both
    ((3, 5, 6), (3, 6, 4)),
    ((3, 5, 6), (6, 4)),
    ((2, 3, 5, 6), (6, 4)),
    ((2, 3, 5, 6), (1, 6, 4)),
    ((3, 5, 6), (1, 1, 6, 4)),
    ((5, 6), (3, 6, 4)),
    ((1, 5, 6), (3, 6, 4)),
    ((2, 1, 5, 6), (3, 6, 4)),
    ((2, 1, 5, 6), (1, 3, 6, 4)),
    ((1, 1, 1), (1, 1, 1)),
    # an axis of length zero: rows, inner (the product is zero), columns, batch
    ((0, 4), (4, 3)),
    ((3, 0), (0, 4)),
    ((3, 4), (4, 0)),
    ((0, 0), (0, 0)),
    ((0,), (0,)),
    ((0,), (0, 3)),
    ((3, 0), (0,)),
    ((0, 3, 4), (4, 5)),
    ((2, 3, 0), (0, 5)),
    ((0, 3, 4), (0, 4, 5)),
    ((1, 3, 4), (0, 4, 5)),
    ((2, 0, 4), (4, 5)),
    # shapes that do not match, and scalars: NumPy's exception, to the letter
    ((3, 4), (3, 4)),
    ((3,), (4,)),
    ((3,), (4, 3)),
    ((3, 4), (3,)),
    ((2, 3, 4), (3, 4, 5)),
    ((), (3, 3)),
    ((3, 3), ()),
    ((), ()),
]


@pytest.mark.quick_cases()
@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
@pytest.mark.parametrize("plan", [None, *PLANS])
def test_shapes(left: tuple[int, ...], right: tuple[int, ...], plan: str | None) -> None:
    agree(lambda: ((draw(left), draw(right)), {}), {"plan": plan})


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
@pytest.mark.usefixtures("eager")
def test_shapes_when_the_choice_is_eager(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    agree(lambda: ((draw(left), draw(right)), {}))


@pytest.mark.quick_cases()
@pytest.mark.parametrize(("left", "right"), SHAPES[:24], ids=str)
@pytest.mark.parametrize("plan", PLANS[:4])
def test_out_of_every_shape(left: tuple[int, ...], right: tuple[int, ...], plan: str) -> None:
    shape = np.matmul(draw(left), draw(right)).shape
    agree(lambda: ((draw(left), draw(right), np.full(shape, np.nan)), {}), {"plan": plan})


@pytest.mark.usefixtures("eager")
def test_the_eager_choice_is_fast() -> None:
    # Without this the eager tests could pass because NumPy answers everything.
    for left, right in (((8, 8), (8, 8)), ((3, 5, 6), (6, 4)), ((3, 5, 6), (3, 6, 4)), ((4, 4), (4, 4))):
        assert fmm.explain(draw(left), draw(right)).plan != VENDOR


def test_products_too_large_for_one_panel() -> None:
    a, b = draw((700, 601)), draw((601, 650))
    for plan in ("winograd^2 > vendor", "li-fig23 > li-fig23 > vendor"):
        agree(lambda: ((a.copy(), b.copy()), {}), {"plan": plan})


# ---- types

TYPES = ("?", "i1", "i4", "i8", "u8", "f2", "f4", "f8", "g", "F", "D", "G", ">f4", ">f8", ">c16", ">i4", "O")


@pytest.mark.quick_cases()
@pytest.mark.parametrize("right", TYPES)
@pytest.mark.parametrize("left", TYPES)
@pytest.mark.usefixtures("eager")
def test_mixed_types(left: str, right: str) -> None:
    for shapes in (((6, 5), (5, 7)), ((3, 4, 5), (5, 6))):
        agree(lambda: ((draw(shapes[0], "f8").astype(left), draw(shapes[1], "f8").astype(right)), {}))  # noqa: B023


def test_copies_of_a_folded_stack_are_counted_whole() -> None:
    """All its rows are multiplied at once, so they are copied at once: in a workspace that nothing made larger."""
    a, b = draw((9, 40, 50), "f8").astype("f4"), draw((50, 60), "f8")
    fmm.release_workspace()
    np.testing.assert_allclose(fmm.matmul(a, b, plan="winograd > vendor"), np.matmul(a, b), atol=1e-12)


FAST_PAIRS = [(s, t) for s in ("f4", "f8", "F", "D", ">f8", "i4") for t in ("f4", "f8", "F", "D", ">c8")]


@pytest.mark.quick_cases()
@pytest.mark.parametrize(("left", "right"), FAST_PAIRS)
def test_mixed_types_by_a_given_plan(left: str, right: str) -> None:
    for plan in PLANS[:3]:
        agree(lambda: ((draw((6, 5), left), draw((5, 7), right)), {}), {"plan": plan})


@pytest.mark.quick_cases()
@pytest.mark.parametrize("casting", ["no", "equiv", "safe", "same_kind", "unsafe"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "F", "D", "g", "i8", ">f8", "?"])
@pytest.mark.parametrize("given", ["f4", "f8", "D", ">f8", "i4"])
@pytest.mark.usefixtures("eager")
def test_dtype_with_every_casting(given: str, dtype: str, casting: Any) -> None:
    for shape in ((6, 6), (3, 6, 6)):  # a stack must not warn more often than NumPy
        call = {"dtype": dtype, "casting": casting}
        agree(lambda: ((draw(shape, given), draw(shape, given)), dict(call)))  # noqa: B023


OTHER_DTYPES: list[Any] = [np.float32, np.dtype("f4"), float, complex, "float32", None, "nonsense", "(2", 5, [], {}]


@pytest.mark.parametrize("dtype", [*OTHER_DTYPES, "f8,f8", "m8[zz]", (np.float64,), np.floating, "S3"], ids=repr)
@pytest.mark.usefixtures("eager")
@pytest.mark.filterwarnings("ignore:Converting")
def test_dtype_spelled_in_every_way(dtype: Any) -> None:
    agree(lambda: ((draw((6, 6)), draw((6, 6))), {"dtype": dtype}))


@pytest.mark.parametrize("casting", ["nonsense", None, 3, "SAFE"])
@pytest.mark.usefixtures("eager")
def test_casting_that_numpy_refuses(casting: Any) -> None:
    agree(lambda: ((draw((6, 6)), draw((6, 6))), {"casting": casting}))


# ---- memory order of the result


def arranged(x: Any, how: str) -> Any:
    """The same numbers in another memory order."""
    axes = range(x.ndim)
    if how == "last two swapped":
        return np.ascontiguousarray(np.swapaxes(x, -1, -2)).swapaxes(-1, -2)
    if how == "batch swapped":
        order = [*reversed(axes[:-2]), *axes[-2:]]
        return np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
    if how == "rows outermost":
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, -2, 0)), 0, -2)
    if how == "every second":
        return np.repeat(np.repeat(x, 2, -1), 2, -2)[..., ::2, ::2]
    if how == "backwards":
        return x[..., ::-1, ::-1].copy()[..., ::-1, ::-1]
    if how == "part of wider":
        return np.concatenate([x, x], -1)[..., : x.shape[-1]]
    return np.array(x, order=how)  # type: ignore[call-overload]


ARRANGEMENTS = ("C", "F", "last two swapped", "batch swapped", "rows outermost", "every second", "backwards")


ORDERS = ("C", "F", "A", "K")
PAIRS = list(product(ARRANGEMENTS, (*ARRANGEMENTS, "part of wider")))


# Each pair by one of the orders, and by all of them where they differ most.
@pytest.mark.quick_cases()
@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        *((*pair, ORDERS[i % len(ORDERS)]) for i, pair in enumerate(PAIRS)),
        *product(("C", "F"), ("C", "F", "backwards"), (*ORDERS, "c", "X", None, 3)),
    ],
)
@pytest.mark.usefixtures("eager")
def test_order(left: str, right: str, order: Any) -> None:
    for shapes in (((6, 4), (4, 5)), ((2, 6, 4), (2, 4, 5)), ((2, 3, 6, 4), (4, 5)), ((2, 1, 6, 4), (3, 4, 5))):
        agree(
            lambda: (
                (arranged(draw(shapes[0]), left), arranged(draw(shapes[1]), right)),  # noqa: B023
                {"order": order},
            )
        )


@pytest.mark.quick_cases()
@pytest.mark.parametrize("order", ["C", "F", "A", "K"])
@pytest.mark.parametrize("plan", PLANS)
def test_order_by_a_given_plan(plan: str, order: str) -> None:
    for how in ("C", "F", "backwards"):
        for shape in ((7, 7), (2, 7, 7)):
            build: Build = lambda: ((arranged(draw(shape), how), arranged(draw(shape), how)), {"order": order})  # noqa: B023, E731
            agree(build, {"plan": plan})


# ---- out


def _outs(shape: tuple[int, int]) -> dict[str, Callable[[], Any]]:
    m, n = shape
    read_only = np.full(shape, 7.0)
    read_only.flags.writeable = False
    return {
        "C": lambda: np.full((m, n), np.nan),
        "F": lambda: np.full((m, n), np.nan, order="F"),
        "transposed view": lambda: np.full((n, m), np.nan).T,
        "gaps between rows": lambda: np.full((m, n + 3), np.nan)[:, :n],
        "gaps between columns": lambda: np.full((m, 2 * n), np.nan)[:, ::2],
        "rows backwards": lambda: np.full((m, n), np.nan)[::-1],
        "columns backwards": lambda: np.full((m, n), np.nan)[:, ::-1],
        "both backwards": lambda: np.full((m, n), np.nan)[::-1, ::-1],
        "not aligned": lambda: np.zeros(m * n * 8 + 1, "u1")[1:].view("f8").reshape(m, n),
        "tuple": lambda: (np.full((m, n), np.nan),),
        "tuple of None": lambda: (None,),
        "tuple of two": lambda: (np.zeros((m, n)), np.zeros((m, n))),
        "empty tuple": lambda: (),
        "matrix": lambda: np.zeros((m, n)).view(np.matrix),
        "masked": lambda: np.ma.zeros((m, n)),
        "list": lambda: [[0.0] * n] * m,
        "float32": lambda: np.zeros((m, n), "f4"),
        "float16": lambda: np.zeros((m, n), "f2"),
        "longdouble": lambda: np.zeros((m, n), "g"),
        "complex": lambda: np.zeros((m, n), "D"),
        "big-endian": lambda: np.zeros((m, n), ">f8"),
        "integer": lambda: np.zeros((m, n), "i8"),
        "object": lambda: np.zeros((m, n), "O"),
        "read-only": lambda: read_only,
        "too wide": lambda: np.zeros((m, n + 1)),
        "too high": lambda: np.zeros((m + 1, n)),
        "transposed shape": lambda: np.zeros((n, m)),
        "an axis too many": lambda: np.zeros((1, m, n)),
        "a stack of three": lambda: np.zeros((3, m, n)),
        "an axis too few": lambda: np.zeros(n),
        "no axis": lambda: np.zeros(()),
    }


OUTS = _outs((6, 5))
FOREIGN_OUTS = ("matrix", "masked", "an axis too many", "a stack of three")  # fmm leaves them to NumPy


@pytest.mark.quick_cases()
@pytest.mark.parametrize("casting", ["no", "safe", "same_kind", "unsafe"])
@pytest.mark.parametrize("kind", OUTS)
@pytest.mark.usefixtures("eager")
def test_out_of_every_kind(kind: str, casting: str) -> None:
    for arrangement in ("C", "F"):
        agree(
            lambda: (
                (arranged(draw((6, 7)), arrangement), draw((7, 5))),  # noqa: B023
                {"out": OUTS[kind](), "casting": casting},
            )
        )


@pytest.mark.parametrize("kind", OUTS)
def test_out_of_every_kind_for_a_small_call(kind: str) -> None:
    agree(lambda: ((draw((6, 7)), draw((7, 5))), {"out": OUTS[kind]()}))


@pytest.mark.quick_cases()
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", [kind for kind in OUTS if kind not in FOREIGN_OUTS])
def test_out_of_every_kind_by_a_given_plan(kind: str, plan: str) -> None:
    agree(lambda: ((draw((6, 7)), draw((7, 5))), {"out": OUTS[kind]()}), {"plan": plan})


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (2, 1, 5, 4), (1, 3, 5, 4), (1, 1, 5, 4), (2, 3, 1, 4)])
@pytest.mark.parametrize("cut", [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 1, 1)])
def test_a_stack_into_part_of_a_larger_out(shape: tuple[int, ...], cut: tuple[int, ...]) -> None:
    """A product folded to one must still reach an out whose rows do not lie at equal distances."""

    def build() -> Call:
        larger = np.full([n + extra for n, extra in zip(shape, cut, strict=True)], np.nan)
        return (draw((*shape[:-1], 7)), draw((7, 4))), {"out": larger[tuple(slice(n) for n in shape)]}

    for plan in ("winograd > vendor", "vendor"):
        agree(build, {"plan": plan})


OVERLAPS: dict[str, Callable[[Any], tuple[Any, Any, Any]]] = {
    # 8 x 8 views of one 20 x 20 array
    "out is a": lambda x: (x[:8, :8], x[8:16, 8:16], x[:8, :8]),
    "out is b": lambda x: (x[:8, :8], x[8:16, 8:16], x[8:16, 8:16]),
    "all one": lambda x: (x[:8, :8], x[:8, :8], x[:8, :8]),
    "a transposed": lambda x: (x[:8, :8], x[8:16, 8:16], x[:8, :8].T),
    "part of a": lambda x: (x[:8, :8], x[8:16, 8:16], x[3:11, 3:11]),
    "part of b": lambda x: (x[:8, :8], x[8:16, 8:16], x[8:16, 9:17]),
    "part of both": lambda x: (x[:8, :8], x[8:16, 8:16], x[4:12, 4:12]),
    "interleaved": lambda x: (x[:16:2, :8], x[8:16, 8:16], x[1:16:2, :8]),
    "a backwards": lambda x: (x[:8, :8], x[8:16, 8:16], x[7::-1, :8]),
    "a's transpose in place": lambda x: (x[:8, :8], x[:8, :8].T, x[:8, :8]),
}


@pytest.mark.quick_cases()
@pytest.mark.parametrize("name", OVERLAPS)
@pytest.mark.parametrize("plan", [None, *PLANS])
@pytest.mark.usefixtures("eager")
def test_out_over_the_operands(name: str, plan: str | None) -> None:
    def build() -> Call:
        a, b, out = OVERLAPS[name](draw((20, 20)))
        return (a, b), {"out": out}

    agree(build, {"plan": plan})


def test_out_of_another_type_over_the_operands() -> None:
    def build() -> Call:
        x = draw((8, 16), "f4")
        return (x[:, :8], draw((8, 8))), {"out": x.view("f8")}

    for plan in PLANS:
        agree(build, {"plan": plan})


# ---- what is not a plain array of floating-point numbers


class Tagged(np.ndarray[Any, Any]):
    """A plain subclass: NumPy passes its type on."""


class Counting(np.ndarray[Any, Any]):
    """A subclass that answers ufuncs itself."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return ufunc.__name__, method, len(inputs), sorted(options)


class Refusing:
    __array_ufunc__ = None


class Convertible:
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return draw((8, 8))


def _memmap() -> Any:
    found = np.memmap("/dev/zero", mode="c", shape=(8, 8), dtype="f8")
    found[...] = draw((8, 8))
    return found


FOREIGN: dict[str, Callable[[], Any]] = {
    "matrix": lambda: draw((8, 8)).view(np.matrix),
    "masked": lambda: np.ma.masked_greater(draw((8, 8)), 0.5),
    "tagged": lambda: draw((8, 8)).view(Tagged),
    "counting": lambda: draw((8, 8)).view(Counting),
    "refusing": Refusing,
    "convertible": Convertible,
    "list": lambda: draw((8, 8)).tolist(),
    "ragged list": lambda: [[1.0], [2.0, 3.0]],
    "tuple": lambda: tuple(map(tuple, draw((8, 8)).tolist())),
    "number": lambda: 2.0,
    "numpy number": lambda: np.float64(2),
    "None": lambda: None,
    "text": lambda: "text",
    "texts": lambda: np.full((8, 8), "1.5"),
    "bytes": lambda: np.full((8, 8), b"1"),
    "dates": lambda: np.zeros((8, 8), "M8[s]"),
    "spans of time": lambda: np.ones((8, 8), "m8[s]"),
    "records": lambda: np.zeros((8, 8), "f8,f8"),
    "objects": lambda: draw((8, 8)).astype(object),
    "integers": lambda: draw((8, 8), "i8"),
    "truths": lambda: draw((8, 8)) > 0,
    "long": lambda: draw((8, 8), "g"),
    "half": lambda: draw((8, 8), "f2"),
}


@pytest.mark.parametrize(
    "options",
    [
        {"subok": False},
        {"subok": True},
        {"axes": [(0, 1), (1, 0), (1, 0)]},
        {"axes": [(0, 1)]},  # too few
        {"signature": "ff->f", "casting": "unsafe"},
        {"signature": "xx->x"},
        {"signature": "ff->f", "dtype": "f8"},  # one or the other
        {"keepdims": True},  # of other functions
    ],
    ids=str,
)
@pytest.mark.parametrize("plan", [None, "vendor"])
@pytest.mark.usefixtures("eager")
def test_numpys_other_options_are_numpys(options: dict[str, Any], plan: str | None) -> None:
    agree(lambda: ((draw((8, 8)), draw((8, 8))), options), {"plan": plan})
    agree(lambda: ((draw((8, 8)).view(Tagged), draw((8, 8))), options), {"plan": plan})
    assert fmm.explain(draw((8, 8)), draw((8, 8)), **options).plan == VENDOR


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("out", [False, True])
@pytest.mark.usefixtures("eager")
def test_what_is_left_to_numpy(kind: str, out: bool) -> None:
    options: Callable[[], dict[str, Any]] = lambda: {"out": np.zeros((8, 8))} if out else {}  # noqa: E731
    agree(lambda: ((FOREIGN[kind](), draw((8, 8))), options()))
    agree(lambda: ((draw((8, 8)), FOREIGN[kind]()), options()))
    agree(lambda: ((FOREIGN[kind](), FOREIGN[kind]()), options()))


@pytest.mark.usefixtures("eager")
def test_a_memmap_is_multiplied() -> None:
    agree(lambda: ((_memmap(), draw((8, 8))), {}))
    agree(lambda: ((draw((8, 8)), draw((8, 8))), {"out": _memmap()}))


@pytest.mark.parametrize("kind", ["matrix", "masked", "tagged", "objects", "integers", "long", "half", "list"])
def test_a_fast_plan_for_what_it_cannot_run_is_refused(kind: str) -> None:
    x = FOREIGN[kind]()
    with pytest.raises(PlanError, match=r"the plan winograd > vendor cannot run here: "):
        fmm.matmul(x, x, plan="winograd > vendor")


@pytest.mark.parametrize("kind", ["matrix", "masked", "tagged", "objects", "integers", "long", "half", "list"])
def test_the_vendors_plan_runs_everything(kind: str) -> None:
    agree(lambda: ((FOREIGN[kind](), FOREIGN[kind]()), {}), {"plan": "vendor"})


@pytest.mark.parametrize("kind", ["refusing", "ragged list", "None", "text", "dates", "records", "number"])
def test_what_numpy_refuses_is_refused_as_numpy_does_even_with_a_plan(kind: str) -> None:
    agree(lambda: ((FOREIGN[kind](), draw((8, 8))), {}), {"plan": "vendor"})


# ---- the interface


def shortly(value: Any) -> str:
    """For a test's name; Python writes no numbers of some thousand digits."""
    return f"{value.bit_length()} bits" if isinstance(value, int) and abs(value) > 1 << 64 else repr(value)


def test_the_signature() -> None:
    expected = (
        "(a, b, /, out=None, *, casting='same_kind', order='K', dtype=None, plan=None, max_error_growth=None, "
        "workspace=None, componentwise=False, reproducible=False, device=None, progress=False, **more)"
    )
    bare = [p.replace(annotation=p.empty) for p in inspect.signature(fmm.matmul).parameters.values()]
    assert str(inspect.Signature(bare)) == expected


X = np.eye(4)
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((X,), {}),  # too few
    ((X, X, None, "same_kind"), {}),  # casting is keyword-only
    ((X,), {"b": X}),  # a and b have no names
    ((), {"a": X, "b": X}),
    ((X, X), {"where": True}),
    ((X, X), {"axes": 3}),
    ((X, X), {"no_such_option": 1}),
    ((X, X, X), {"out": X}),  # out given twice
]


@pytest.mark.parametrize(("args", "options"), CALLS, ids=range(len(CALLS)))
def test_calls_that_do_not_fit_the_signature(args: tuple[Any, ...], options: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        fmm.matmul(*args, **options)


@pytest.mark.parametrize("function", [fmm.matmul, fmm.explain])
def test_a_plan_beside_what_only_numpy_knows_is_refused(function: Any) -> None:
    with pytest.raises(fmm.PlanError, match="winograd > vendor cannot run here: subok was passed"):
        function(X, X, plan="winograd > vendor", subok=True)
    with pytest.raises(fmm.PlanError, match="nonsense"):
        function(X, X, plan="nonsense", subok=True)
    function(X, X, plan="vendor", subok=True)


def test_what_numpy_raises_has_no_other_exception_behind_it() -> None:
    """The traceback that a user reads should not tell of fmm's own bookkeeping."""
    modes: tuple[Mode, ...] = ({}, {"plan": "winograd > vendor"})
    for mode in modes:
        with pytest.raises(ValueError, match="mismatch in its core dimension") as caught:
            fmm.matmul(draw((600, 600)), draw((601, 600)), **mode)
        assert caught.value.__context__ is None


BAD_PLANS: list[tuple[Any, str]] = [
    ("", "a plan ends in its leaf"),
    ("winograd", "a plan ends in its leaf: vendor"),
    ("winograd >", "a plan ends in its leaf"),
    ("nonsense > vendor", "unknown algorithm 'nonsense'; valid: .*winograd"),
    ("winograd.sideways > vendor", "unknown option 'sideways'.*; valid: .*peel"),
    ("li-fig3.stacked > vendor", "is sequential, not stacked"),
    ("balanced(1) > vendor", "gamma must be finite and at least 1.5"),
    ("balanced(x) > vendor", "balanced"),
    ("vendor > vendor", "unknown algorithm 'vendor'"),
    (3.5, "a plan is a text such as 'winograd > vendor', not 3.5"),
    (b"vendor", "a plan is a text"),
    ([], r"a plan is a text .*, not \[\]"),
    ({}, r"a plan is a text .*, not \{\}"),
    (np.zeros((2, 2)), "a plan is a text"),
]


@pytest.mark.parametrize(("plan", "message"), BAD_PLANS, ids=lambda x: repr(x)[:30])
def test_bad_plans(plan: Any, message: str) -> None:
    for x in (draw((8, 8)), draw((8, 8), "i8")):
        with pytest.raises(PlanError, match=message):
            fmm.matmul(x, x, plan=plan)


@pytest.mark.parametrize("leaf", ["lt0", "lt3.inner", "lt31.outer", "tile"])
def test_leaves_of_a_gpu_are_not_run_on_a_cpu(leaf: str) -> None:
    name = leaf.partition(".")[0]
    for call in (fmm.matmul, fmm.explain):
        with pytest.raises(PlanError, match=f"cannot run here: {name} is a product on a GPU"):
            call(draw((8, 8)), draw((8, 8)), plan=f"strassen > {leaf}")


@pytest.mark.parametrize("order", ["inner", "outer"])
@pytest.mark.parametrize("levels", ["", "winograd > ", "li-fig3.peel > strassen > "])
def test_how_a_leafs_operands_lie_is_nothing_to_a_cpu(levels: str, order: str) -> None:
    a, b, plan = draw((18, 20)), draw((20, 22)), f"{levels}vendor"
    np.testing.assert_array_equal(fmm.matmul(a, b, plan=f"{plan}.{order}"), fmm.matmul(a, b, plan=plan))
    assert str(fmm.explain(a, b, plan=f"{plan}.{order}").plan) == f"{plan}.{order}"


def test_a_plan_in_its_three_forms() -> None:
    a, b = draw((9, 9)), draw((9, 9))
    vendor = fmm.plan(9, 9, 9)
    results = [fmm.matmul(a, b, plan=p) for p in ("winograd > vendor", fmm.Plan.parse("winograd > vendor"))]
    np.testing.assert_array_equal(*results)
    np.testing.assert_array_equal(fmm.matmul(a, b, plan=vendor), a @ b)
    fast = fmm.Decision(fmm.Plan.parse("winograd > vendor"), vendor.problem, "for the test")
    np.testing.assert_array_equal(fmm.matmul(a, b, plan=fast), results[0])


@pytest.mark.parametrize(
    "value", [0, -1, -0.5, "x", float("nan"), None.__class__, [10], 2j, True, -(10**9999)], ids=shortly
)
def test_bad_error_growth(value: Any) -> None:
    for function in (fmm.matmul, fmm.explain):
        with pytest.raises(ValueError, match="max_error_growth must be a number above 0, not "):
            function(draw((4, 4)), draw((4, 4)), max_error_growth=value)
    with pytest.raises(ValueError, match="max_error_growth must be a number above 0, not "):
        fmm.plan(4, 4, 4, max_error_growth=value)


@pytest.mark.parametrize("value", [-1, 0.5, 1e9, "x", "1 GB", float("nan"), [10], 2j, True, -(10**9999)], ids=shortly)
def test_bad_workspace(value: Any) -> None:
    for function in (fmm.matmul, fmm.explain):
        with pytest.raises(ValueError, match="workspace must be a whole number of bytes, 0 or more, not "):
            function(draw((4, 4)), draw((4, 4)), workspace=value)
    with pytest.raises(ValueError, match="workspace must be a whole number of bytes, 0 or more, not "):
        fmm.plan(4, 4, 4, workspace=value)


def test_wishes_are_checked_beside_what_only_numpy_knows_too() -> None:
    with pytest.raises(ValueError, match="workspace must be"):
        fmm.matmul(X, X, axes=[(0, 1)] * 3, workspace=-1)
    with pytest.raises(ValueError, match="max_error_growth must be"):
        fmm.matmul(X, X, subok=True, max_error_growth=0)


@pytest.mark.parametrize(
    "value", [1, 3.5, np.float32(4), np.float64(4), np.int64(4), float("inf"), 10**400], ids=shortly
)
def test_error_growth_may_be_any_number(value: Any) -> None:
    assert fmm.plan(5000, 5000, 5000, max_error_growth=value).error_growth <= value
    agree(lambda: ((draw((4, 4)), draw((4, 4))), {}), {"max_error_growth": value})


@pytest.mark.parametrize("value", [0, 1, 10**12, 10**30, np.int32(7), np.uint64(7), 10**400], ids=shortly)
def test_workspace_may_be_any_whole_number(value: Any) -> None:
    assert fmm.plan(5000, 5000, 5000, workspace=value).workspace <= value
    agree(lambda: ((draw((4, 4)), draw((4, 4))), {}), {"workspace": value})


def test_who_wants_less_than_the_vendors_error_gets_the_vendor_where_no_plan_has_it() -> None:
    """The docstring promises it, so that one program runs on a GPU and on a CPU."""
    a, b = draw((150, 160)), draw((160, 170))
    assert fmm.explain(a, b, max_error_growth=0.02).plan == VENDOR
    np.testing.assert_array_equal(fmm.matmul(a, b, max_error_growth=0.02), a @ b)
    np.testing.assert_array_equal(fmm.gemm(a, b, max_error_growth=0.5), a @ b)
    np.testing.assert_array_equal(fmm.gram(a, max_error_growth=0.5), fmm.gram(a, max_error_growth=1))


def test_integers_have_no_error_to_limit() -> None:
    whole = fmm.plan(600, 600, 600, dtype="int32").plan
    assert whole != VENDOR and fmm.plan(600, 600, 600, dtype="int32", max_error_growth=0.02).plan == whole


@pytest.mark.usefixtures("eager")
def test_error_growth_limits_the_choice() -> None:
    a, b = np.zeros((256, 256)), np.zeros((256, 256))
    growths = [fmm.explain(a, b, max_error_growth=limit).error_growth for limit in (1, 3, 6, 30)]
    assert growths == sorted(growths)
    assert fmm.explain(a, b, max_error_growth=1).plan == VENDOR
    assert all(growth <= limit for growth, limit in zip(growths, (1, 3, 6, 30), strict=True))
    assert growths[-1] > growths[1] > 1


PROBLEMS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"m": -1, "k": 2, "n": 2}, ValueError, "m must be a whole number, 0 or more, not -1"),
    ({"m": 2, "k": 2.0, "n": 2}, ValueError, "k must be a whole number, 0 or more, not 2.0"),
    ({"m": 2, "k": 2, "n": "2"}, ValueError, "n must be a whole number, 0 or more, not '2'"),
    ({"m": 2, "k": 2, "n": 2, "device": "gpu"}, ValueError, "unknown device 'gpu'; valid: 'cpu'"),
    ({"m": 2, "k": 2, "n": 2, "device": 10**400}, ValueError, "unknown device 10000"),
    ({"m": 3, "k": 3, "n": True}, ValueError, "n must be a whole number, 0 or more, not True"),
    ({"m": 10**400, "k": 2, "n": 2}, ValueError, f"m must be at most {sys.maxsize}, .* not a number of 1329 bits"),
    ({"m": 2, "k": 2, "n": 10**9999}, ValueError, "n must be at most .* not a number of 33216 bits"),
    ({"m": 2, "k": sys.maxsize + 1, "n": 2}, ValueError, f"k must be at most {sys.maxsize}, .* not {sys.maxsize + 1}"),
    ({"m": 2, "k": -(10**9999), "n": 2}, ValueError, "k must be a .* not a negative number of 33216 bits"),
    ({"m": 2, "k": 2, "n": 2, "dtype": "nonsense"}, TypeError, "nonsense"),
]


@pytest.mark.parametrize(("sizes", "error", "message"), PROBLEMS)
def test_bad_problems(sizes: dict[str, Any], error: type[Exception], message: str) -> None:
    options = {k: v for k, v in sizes.items() if k in ("device", "dtype")}
    with pytest.raises(error, match=message):
        fmm.plan(sizes["m"], sizes["k"], sizes["n"], **options)


@pytest.mark.parametrize("dtype", ["f4", "D"])
def test_the_longest_sides_have_a_decision(dtype: str) -> None:
    found = fmm.plan(sys.maxsize, sys.maxsize, sys.maxsize, dtype=dtype)
    assert found.plan == VENDOR and "times the vendor's" in str(found)


def test_a_given_plan_is_explained_without_arrays() -> None:
    a, b = draw((64, 48), "f4"), draw((48, 80), "f4")
    found = fmm.plan(64, 48, 80, dtype="f4", plan="winograd > li-fig23 > vendor")
    assert found == fmm.explain(a, b, plan="winograd > li-fig23 > vendor")
    assert str(found) == str(fmm.explain(a, b, plan=found)) and "this plan was passed" in str(found)
    assert fmm.plan(9, 9, 9, plan=found).plan == found.plan
    assert fmm.plan(64, 48, 80, plan="vendor").reason.startswith("this plan was passed")
    assert fmm.plan(0, 48, 80, plan="winograd > vendor").plan == VENDOR  # there is nothing to multiply
    assert fmm.plan(64, 48, 80, dtype="i8", plan="vendor").plan == VENDOR


@pytest.mark.parametrize(
    ("plan", "dtype", "message"),
    [
        ("winograd > vendor", "i8", "winograd > vendor cannot run here: vendor multiplies .* there, not int64"),
        ("winograd > vendor", "bfloat16", "cannot run here: bfloat16 products have no plan"),
        ("strassen > lt3", "f4", "cannot run here: lt3 is a product on a GPU"),
        ("winograd", "f4", "a plan ends in its leaf"),
        (3.5, "f4", "a plan is a text"),
        (" > ".join(["winograd"] * 30 + ["vendor"]), "f4", "use fewer levels"),
    ],
)
def test_a_given_plan_that_cannot_run_is_refused_without_arrays(plan: Any, dtype: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        fmm.plan(64, 48, 80, dtype=dtype, plan=plan)


@pytest.mark.quick_cases()
@pytest.mark.parametrize("size", [(0, 0, 0), (0, 5, 5), (5, 0, 5), (1, 1, 1), (5000, 1, 5000), (3, 10**6, 3)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "F", "D", "i8", "g", "O", ">f8"])
def test_plans_of_every_problem_can_be_printed(size: tuple[int, int, int], dtype: str) -> None:
    found = fmm.plan(*size, dtype=dtype)
    swapped = fmm.plan(*size, dtype=np.dtype(dtype).newbyteorder())  # matmul takes such arrays too
    assert (found.plan, found.reason) == (swapped.plan, swapped.reason)
    assert found.plan == VENDOR
    assert str(found.plan) in str(found)
    assert found.workspace == 0
    assert found.error_growth == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "tf32"])
def test_types_of_a_gpu_are_no_error_on_a_cpu(dtype: str) -> None:
    found = fmm.plan(5000, 5000, 5000, dtype=dtype)
    assert found.plan == VENDOR and found.reason == f"torch multiplies: {dtype} products have no plan"


def test_what_runs_is_said() -> None:
    a, b = draw((64, 48)), draw((48, 80))
    threads = f"{blas_threads()} thread" + "s" * (blas_threads() != 1)
    assert fmm.explain(a, b).kernels == (f"numpy.matmul on {threads}",)
    (line,) = fmm.explain(a, b, plan="winograd > vendor").kernels
    assert line.startswith(f"numpy.matmul on {threads}, one product after the other")
    (line,) = fmm.explain(np.stack([a] * 3), b, plan="vendor").kernels
    assert line == f"numpy.matmul on {threads}: one product of 192 x 48 x 80"
    assert "\nruns:\n  numpy.matmul on" in str(fmm.plan(64, 48, 80))


@pytest.mark.skipif(blas_threads() != 2, reason="two products run side by side on two threads")
def test_that_two_products_run_side_by_side_is_said() -> None:
    with threads_per_product(2) as (at_a_time, _):
        pass
    big = fmm.explain(np.zeros((1200, 1200)), np.zeros((1200, 1200)), plan="winograd > vendor")
    assert ("products at a time" in big.kernels[0]) == (at_a_time == 2)


# ---- a product with its own transpose


@pytest.mark.slow
def test_a_product_with_its_own_transpose_is_the_vendors_syrk() -> None:
    a = draw((4000, 3000), "f4")
    for left, right in ((a, a.T), (a.T, a), (a[:, :2999], a[:, :2999].T)):
        found = fmm.explain(left, right)
        assert found.plan == VENDOR
        assert "syrk" in found.reason and "half the work" in str(found)
    assert "syrk" not in fmm.explain(a, a.T.copy()).reason


@pytest.mark.usefixtures("eager")
def test_a_product_with_its_own_transpose_stays_symmetric() -> None:
    """NumPy's syrk gives an exactly symmetric result, in a stack too; so must fmm's choice."""
    for shape in ((33, 21), (3, 33, 21)):
        a = draw(shape)
        c = agree(lambda: ((a, a.swapaxes(-1, -2)), {})).value  # noqa: B023
        np.testing.assert_array_equal(c, c.swapaxes(-1, -2))


@pytest.mark.parametrize("plan", PLANS)
def test_a_product_with_its_own_transpose_by_a_given_plan(plan: str) -> None:
    a = draw((33, 21))
    agree(lambda: ((a, a.T), {}), {"plan": plan})


@pytest.mark.usefixtures("eager")
def test_explain_reads_the_options_as_matmul_does() -> None:
    a = np.zeros((8000, 8000), "f4")  # never touched: it takes no memory
    c = np.empty_like(a)
    assert fmm.explain(a, a).plan != VENDOR
    assert fmm.explain(a, a, out=(c,)).plan == fmm.explain(a, a, out=c).plan == fmm.explain(a, a).plan
    assert fmm.explain(a, a, c).plan == fmm.explain(a, a).plan
    for option in ({"dtype": "g"}, {"out": c.view(np.matrix)}, {"out": c[:5]}):
        found = fmm.explain(a, a, **option)
        assert found.plan == VENDOR and found.reason.startswith("NumPy multiplies: ")


@pytest.mark.parametrize(
    ("product", "explained", "count"),
    [(fmm.matmul, fmm.explain, 2), (fmm.gram, fmm.explain_gram, 1), (fmm.gemm, fmm.explain_gemm, 2)],
    ids=["matmul", "gram", "gemm"],
)
def test_what_explains_takes_what_multiplies_takes(product: Any, explained: Any, count: int) -> None:
    own, x = inspect.signature(explained), np.ones((5, 5))
    assert own.parameters == inspect.signature(product).parameters and own.return_annotation == "Decision"
    assert f"fmm.{product.__name__} call" in explained.__doc__
    assert explained(*[x] * count, max_error_growth=3).plan == VENDOR
    with pytest.raises(TypeError, match=r"missing . required positional arguments?: 'a'"):
        explained()
    with pytest.raises(TypeError, match="positional arguments"):
        explained(*[x] * 4)


def test_that_numpy_multiplies_is_remembered_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask again would take milliseconds right after a long product, when all that Python needs is cold."""
    asked: list[fmm.Decision] = []

    def prepared(library: Any, a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Prepared:
        problem = Problem(len(a), len(b), b.shape[1], a.dtype.name)
        asked.append(fmm.Decision(VENDOR, problem, "for tests", (), "probed model"))
        return Prepared(asked[-1], ProductSetting(1))

    monkeypatch.setattr(calls, "prepare_call", prepared)
    monkeypatch.setitem(early_declines.DECLINE_MEMORY, "cpu", early_declines.DeclineCacheLimits(10.0, 2 * 1100**3))
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    a, b = draw((1200, 1200), "f4"), draw((1200, 1200), "f4")
    products: list[tuple[int, Callable[[], object]]] = [
        (1, lambda: fmm.matmul(a, b, workspace=0)),
        (2, lambda: fmm.matmul(a, b)),  # limits of one's own are not the usual ones
        (2, lambda: fmm.matmul(a, b)),
        (2, lambda: fmm.matmul(b, a, out=np.empty_like(a))),
        (3, lambda: fmm.matmul(a, b, max_error_growth=2)),
        (4, lambda: fmm.matmul(a[:1150], b)),
        (5, lambda: fmm.matmul(a[:900], b)),
        (6, lambda: fmm.matmul(a[:900], b)),  # too small to be worth it
    ]
    for expected, multiply in products:
        multiply()
        assert len(asked) == expected
    now[0] += 11
    fmm.matmul(a, b)
    assert len(asked) == 7


@pytest.mark.slow
def test_a_plan_too_deep_for_the_product_is_refused() -> None:
    """It would take 7 times as long for each level more, for ever in the end."""
    a = draw((8, 8))
    deep = " > ".join(["winograd"] * 30 + ["vendor"])
    for call in (fmm.matmul, fmm.explain):
        with pytest.raises(PlanError, match=r"cuts a 8 x 8 x 8 product into .* products; use fewer levels"):
            call(a, a, plan=deep)
    np.testing.assert_allclose(fmm.matmul(a, a, plan=" > ".join(["winograd"] * 4 + ["vendor"])), a @ a)


def test_explain_a_given_plan() -> None:
    a, b = draw((64, 48)), draw((48, 80))
    found = fmm.explain(a, b, plan="winograd > li-fig23 > vendor", workspace=1)
    assert (str(found.plan), found.problem and found.problem.size) == ("winograd > li-fig23 > vendor", (64, 48, 80))
    assert found.workspace > 0 and found.error_growth > 1
    assert "this plan was passed; NumPy multiplies if numbers may overflow" in str(found) and "li-fig23" in str(found)
    # the limits apply to choices only, not to a plan that was passed
    np.testing.assert_allclose(fmm.matmul(a, b, plan=found, workspace=0, max_error_growth=1), a @ b)
    assert fmm.explain(a, b, plan=found).plan == found.plan
    assert fmm.explain(a, b, plan="vendor").plan == VENDOR
    for x, plan in ((a.astype("g"), "winograd > vendor"), (a, "lt0"), (a, "no-such > vendor")):
        with pytest.raises(PlanError):
            fmm.explain(x, b, plan=plan)


def test_what_plan_returned_can_be_sent_to_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a text can; also while products of its shape are being measured, which goes on here alone."""
    a = draw((64, 48))
    for mode in ("cache", "online"):
        monkeypatch.setenv("FMM_TUNING_MODE", mode)
        for found in (fmm.plan(3000, 3000, 3000), fmm.plan(64, 48, 64, plan="winograd > vendor")):
            sent = pickle.loads(pickle.dumps(found))
            assert (sent.plan, sent.problem, str(sent), sent.trial) == (found.plan, found.problem, str(found), None)
    np.testing.assert_array_equal(fmm.matmul(a, a.T, plan=sent), fmm.matmul(a, a.T, plan=found))


@pytest.mark.parametrize(
    "plan", ["winograd^2 > vendor", "gram.tile.outer > strassen > vendor", "3m > residues(14) > bytes"]
)
def test_plans_are_what_they_were_wherever_they_are_copied(plan: str) -> None:
    found = fmm.Plan.parse(plan)
    for copied in (copy.copy(found), copy.deepcopy(found), *(pickle.loads(pickle.dumps(found, p)) for p in range(6))):
        assert copied == found and str(copied) == plan and hash(copied) == hash(found)
        assert copied.leaf_use == found.leaf_use and copied.levels == found.levels


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("mode", ["cache", "online"])
def test_decisions_are_what_they_were_wherever_they_are_copied(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that knows nothing yet reads them, too."""
    monkeypatch.setenv("FMM_TUNING_MODE", mode)
    decisions = [
        fmm.plan(3000, 3000, 3000),
        fmm.plan(64, 48, 64, plan="winograd > vendor"),
        fmm.plan(9, 9, 9, op="gram"),
    ]
    decisions += [fmm.plan(9, 9, 9, op="gram"), fmm.plan(300, 300, 300, dtype="int32")]
    for found in decisions:
        for copied in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
            assert copied == found and hash(copied) == hash(found) and str(copied) == str(found)
    read = "import pickle, sys; print(*map(str, pickle.load(sys.stdin.buffer)), sep='')"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", read], input=pickle.dumps(decisions), capture_output=True, env=environment, check=True
    )
    assert done.stdout.decode().removesuffix("\n") == "".join(map(str, decisions))


def test_a_plan_is_sent_to_the_processes_of_a_pool() -> None:
    a, found = np.arange(16.0).reshape(4, 4), fmm.Plan.parse("winograd > vendor")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for plan in (found, fmm.plan(4, 4, 4, plan=found)):
            np.testing.assert_array_equal(pool.apply(fmm.matmul, (a, a), {"plan": plan}), fmm.matmul(a, a, plan=plan))


# ---- arguments that say something else than they seem to


@pytest.mark.parametrize("value", ["yes", "False", 2, 0.5, [True]])
def test_what_is_neither_yes_nor_no(value: Any) -> None:
    a = np.ones((4, 4))
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("componentwise", lambda: fmm.matmul(a, a, componentwise=value)),
        ("componentwise", lambda: fmm.explain(a, a, componentwise=value)),
        ("rows", lambda: fmm.gram(a, rows=value)),
        ("rows", lambda: fmm.explain_gram(a, rows=value)),
        ("maximum", lambda: fmm.minplus(a, a, maximum=value)),
        ("argmin", lambda: fmm.minplus(a, a, argmin=value)),
    ]
    for name, call in calls:
        with pytest.raises(ValueError, match=f"{name} must be True or False, not "):
            call()


@pytest.mark.parametrize("value", [True, 1, np.True_, np.int64(1)])
def test_what_is_yes(value: Any) -> None:
    a = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(fmm.matmul(a, a.T, componentwise=value), a @ a.T)
    np.testing.assert_array_equal(fmm.gram(a, rows=value), a @ a.T)
    assert fmm.minplus(a, a.T, maximum=value)[0, 0] == 6


TABLES = ("li-fig2", "li-fig12", "li-fig16")


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_a_table_is_refused_before_anything_is_computed(
    table: str, kind: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of A in C's blocks: not where k is longer than n."""
    monkeypatch.setattr(NUMPY, "vendor_product", lambda *operands: pytest.fail("NumPy multiplied"))
    for m, k, n in ((7, 9, 5), (301, 305, 201), (9, 41, 40)):
        for stack in ((), (2,)):
            a, b = draw((*stack, m, k)).astype(kind), draw((*stack, k, n)).astype(kind)
            for out in (None, np.full((*stack, m, n), 7.0)):
                for plan in (f"{table} > vendor", f"winograd > {table} > vendor", f"{table}.peel > {table} > vendor"):
                    try:
                        fmm.matmul(a, b, out=out, plan=plan)
                    except PlanError as error:
                        assert f"{table} keeps a" in str(error)
                        assert out is None or (out == 7).all()
                    else:
                        assert ".peel" in plan
                        out = out if out is None else np.full_like(out, 7.0)


@pytest.mark.parametrize("plan", ["li-fig2 > vendor", "strassen > tile", "no-such > vendor"])
def test_an_entry_whose_plan_cannot_run_is_passed_over(
    plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = devices.cpu_device(blas_threads())
    section = tuned.section(tuned.entry((300, 400, 200), plan), versions=dict(device.identity.versions))
    path = tuned.write(tmp_path / "config.json", device.identity.key, "float64", section)
    monkeypatch.setenv("FMM_CONFIG", str(path))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    files.clear_config_cache()
    a, b = draw((300, 400)), draw((400, 200))
    assert fmm.explain(a, b).source == "calibrated model"
    np.testing.assert_allclose(fmm.matmul(a, b), a @ b, atol=1e-9)
    files.clear_config_cache()


# ---- everything at random

Layout = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # order of axes in memory, steps, gaps


@st.composite
def layouts(draw_: st.DrawFn, ndim: int) -> Layout:
    order = tuple(draw_(st.permutations(range(ndim))))
    steps = tuple(draw_(st.sampled_from((1, 1, 1, 2, -1, -2))) for _ in range(ndim))
    gaps = tuple(draw_(st.sampled_from((0, 0, 0, 1, 3))) for _ in range(ndim))
    return order, steps, gaps


def laid_out(values: Any, how: Layout, rest: Any) -> tuple[Any, Any]:
    """(view with these values, the whole memory below it); what the view leaves out holds `rest`."""
    order, steps, gaps = how
    sides = [n * abs(step) + gap for n, step, gap in zip(values.shape, steps, gaps, strict=True)]
    memory = np.full([sides[axis] for axis in order], rest, values.dtype)
    view = memory.transpose(np.argsort(order)) if order else memory
    cut = tuple(
        slice(0, n * step, step) if step > 0 else slice(n * -step - 1, None, step)
        for n, step in zip(values.shape, steps, strict=True)
    )
    view = view[cut][tuple(slice(n) for n in values.shape)]
    view[...] = values
    return view, memory


@st.composite
def shapes_of_two(draw_: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    m, k, n = (draw_(st.integers(1, 13)) for _ in range(3))
    batch = draw_(st.lists(st.integers(1, 3), max_size=2))
    kept = [tuple(draw_(st.sampled_from((side, 1))) for side in batch[draw_(st.integers(0, len(batch))) :])] * 2
    kept[1] = tuple(draw_(st.sampled_from((side, 1))) for side in batch[draw_(st.integers(0, len(batch))) :])
    left = (k,) if not kept[0] and draw_(st.integers(0, 9)) == 0 else (*kept[0], m, k)
    right = (k,) if not kept[1] and draw_(st.integers(0, 9)) == 0 else (*kept[1], k, n)
    return left, right


@settings(max_examples=120)
@given(
    st.data(),
    shapes_of_two(),
    st.sampled_from(["f4", "f8", "F", "D"]),
    st.sampled_from(PLANS),
    st.booleans(),
    st.sampled_from("CFAK"),
)
def test_everything_at_random(
    data: st.DataObject,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: str,
    plan: str,
    with_out: bool,
    order: str,
) -> None:
    """Operands in read-only memory of any layout; out poisoned, and nothing written beside it."""
    operands = [laid_out(draw(shape, dtype), data.draw(layouts(len(shape))), np.nan) for shape in shapes]
    a, b = (view for view, _ in operands)
    shape = np.matmul(a, b).shape
    how = data.draw(layouts(len(shape)))
    before = [memory.copy() for _, memory in operands]
    for view, memory in operands:
        view.flags.writeable = memory.flags.writeable = False
    called: list[Call] = []
    memories: list[Any] = []

    def build() -> Call:
        out, memory = laid_out(np.full(shape, np.nan, dtype), how, 7) if shape else (None, np.zeros(()))
        memories.append(memory)
        called.append(((a, b), {"out": out} if with_out and len(shape) else {"order": order}))
        return called[-1]

    agree(build, {"plan": plan})
    for (_, memory), kept in zip(operands, before, strict=True):
        np.testing.assert_array_equal(memory, kept)
    ours, theirs = memories[0], memories[1]  # what agree() built first is fmm's
    np.testing.assert_array_equal(ours == 7, theirs == 7)


AWKWARD: dict[str, Callable[[], Any]] = {
    **{kind: FOREIGN[kind] for kind in ("matrix", "masked", "tagged", "counting", "objects", "truths", "half", "list")},
    "no axis": lambda: np.array(2.0),
    "no rows": lambda: draw((0, 8)),
    "no columns": lambda: draw((8, 0)),
    "backwards": lambda: draw((8, 8))[::-1, ::-1],
    "one row for all": lambda: np.broadcast_to(draw((8,)), (8, 8)),
    "every third": lambda: draw((24, 24))[::3, ::-3],
    "a stack": lambda: draw((3, 8, 8)),
    "very tall": lambda: draw((5000, 8)),
    "very wide": lambda: draw((8, 5000)),
    "big-endian": lambda: draw((8, 8)).astype(">f8"),
    "complex": lambda: draw((8, 8), "D"),
}
AWKWARD_OUTS: dict[str, Callable[[], Any]] = {
    **_outs((8, 8)),
    "none": lambda: None,
    "broadcast": lambda: np.broadcast_to(np.zeros(8), (8, 8)),
    "a stack": lambda: np.full((3, 8, 8), np.nan),
}


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([*AWKWARD]), st.sampled_from([*AWKWARD]), st.sampled_from(["none", *AWKWARD_OUTS]))
@pytest.mark.usefixtures("eager")
def test_awkward_operands_at_random(left: str, right: str, out: str) -> None:
    agree(lambda: ((AWKWARD[left](), AWKWARD[right]()), {"out": AWKWARD_OUTS[out]()}))


@pytest.mark.slow
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.sampled_from(PLANS))
def test_the_same_call_twice_gives_the_same_bits(m: int, k: int, n: int, plan: str) -> None:
    a, b = draw((m, k)), draw((k, n))
    np.testing.assert_array_equal(fmm.matmul(a, b, plan=plan), fmm.matmul(a, b, plan=plan))


def test_explain_counts_the_copies_of_operands() -> None:
    """`workspace` is the plan's; a call with operands that BLAS cannot read allocates more."""
    x = np.ones((256, 512))
    plain = fmm.explain(x[:, ::2].copy(), x[:, :256], plan="winograd > vendor")
    copied = fmm.explain(x[:, ::2], x[:, :256], plan="winograd > vendor")
    assert plain.workspace == copied.workspace == plain.call_bytes
    assert copied.call_bytes >= copied.workspace + 256 * 256 * 8
    assert f"{copied.call_bytes} bytes" in str(copied) and "allocates" not in str(plain)
    assert fmm.explain(x[:8, :8], x[:8, :8]).call_bytes == 0
