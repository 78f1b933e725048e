"""Operands on the host: which calls are fmm's, and the layouts and folds that it reads off strides alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fmm.arrays.library import product_shape
from fmm.arrays.numpy_library import BLAS_DTYPES, NUMPY, same_memory_transposed
from fmm.kernels.plans.plan import Plan
from fmm.runtime.decisions.limits import NO_CONSTRAINTS, PlanConstraints
from fmm.runtime.operands import byte_span, matrix_layout, may_overlap, stack_as_tall_matrix
from fmm.runtime.prepare import PreparedCall, prepare_uncached
from fmm.runtime.run_host import _split_stack

Array = np.ndarray[Any, Any]
X = np.zeros((6, 7))
LEVEL = PlanConstraints(Plan.parse("winograd > vendor"))


def prepared(
    a: Any, b: Any, out: Any = None, constraints: PlanConstraints = NO_CONSTRAINTS, **options: Any
) -> PreparedCall:
    return prepare_uncached(NUMPY.adapter_for_matmul_options(options), a, b, out, constraints)


def new_result(a: Array, b: Array, order: str = "K") -> Any:
    """As fmm.matmul allocates it."""
    library, shape = NUMPY.adapter_for_matmul_options({"order": order}), product_shape(a.shape, b.shape)
    assert shape is not None
    return library.new_array(library.describe_result(a, b, shape, np.result_type(a, b).name))


def numbered(*shape: int) -> Any:
    return np.arange(1.0, 1 + np.prod(shape, dtype=int)).reshape(shape)


STACKS: list[tuple[str, Any, bool]] = [
    # what, a stack, do its rows collapse to one axis without a copy?
    ("a matrix", numbered(4, 5), True),
    ("a stack", numbered(2, 3, 4, 5), True),
    ("rows part of wider ones", numbered(2, 3, 4, 9)[..., :5], True),
    ("columns of the rows swapped with nothing", numbered(2, 3, 4, 10)[..., ::2], True),
    ("a part of the rows", numbered(2, 3, 6, 5)[:, :, :4], False),
    ("a part of the rows, stacked by a single axis", numbered(2, 1, 6, 5)[:, :, :4], False),
    ("a part of the rows, twice single", numbered(2, 1, 1, 6, 5)[:, :, :, :4], False),
    ("a part of the rows of one matrix", numbered(1, 1, 6, 5)[:, :, :4], True),
    ("a part of the second axis", numbered(2, 4, 4, 5)[:, :3], False),
    ("one row each, at equal distances", numbered(2, 3, 4, 5)[:, :, :1], True),
    ("one row each, not at equal distances", numbered(2, 4, 4, 5)[:, :3, :1], False),
    ("every second of the first axis", numbered(4, 3, 4, 5)[::2], False),
    ("the last two axes swapped", numbered(2, 3, 5, 4).swapaxes(-1, -2), False),
    ("the first two axes swapped", numbered(3, 2, 4, 5).swapaxes(0, 1), False),
    ("broadcast over the first axis", np.broadcast_to(numbered(4, 5), (2, 4, 5)), False),
    ("one row, broadcast", np.broadcast_to(numbered(1, 5), (2, 4, 5)), True),
    ("a new axis in front", numbered(4, 5)[None, None], True),
    ("a new axis in between", numbered(3, 4, 5)[:, None], True),
    ("wholly backwards", numbered(2, 3, 4, 5)[::-1, ::-1, ::-1], True),
    ("the stack backwards", numbered(2, 4, 5)[::-1], False),
]


@pytest.mark.parametrize(("what", "x", "collapses"), STACKS, ids=[s[0] for s in STACKS])
def test_stacked_rows(what: str, x: Array, collapses: bool) -> None:
    tall = x.reshape(-1, x.shape[-1])
    assert np.shares_memory(tall, x) is collapses, "the table is wrong: NumPy decides"
    assert (stack_as_tall_matrix(NUMPY.describe_operand(x)) is not None) is collapses


@st.composite
def views(draw: st.DrawFn, ndim: int | None = None) -> Any:
    """A view of a numbered array: any cut, step and order of the axes."""
    shape = draw(st.lists(st.integers(1, 4), min_size=ndim or 2, max_size=ndim or 5))
    x = numbered(*shape)
    cuts = [draw(st.sampled_from([slice(None), slice(1, None), slice(0, 2), slice(None, None, 2)])) for _ in shape]
    cuts = [cut if n > 1 else slice(None) for cut, n in zip(cuts, shape, strict=True)]
    turned = [cut if draw(st.integers(0, 4)) else slice(None, None, -1) for cut in cuts]
    return x[tuple(turned)].transpose(draw(st.permutations(range(len(shape)))))


@given(views())
def test_stacked_rows_is_never_wrong_about_a_copy(x: Array) -> None:
    """Wrong the one way, a product would be written into a copy of out and be lost."""
    if stack_as_tall_matrix(NUMPY.describe_operand(x)) is not None:
        assert np.shares_memory(x.reshape(-1, x.shape[-1]), x)


READY: list[tuple[str, Any, bool]] = [
    ("C", numbered(4, 5), True),
    ("F", numbered(5, 4).T, True),
    ("a part of C", numbered(6, 9)[1:5, 2:7], True),
    ("a part of F", numbered(9, 6).T[1:5, 2:7], True),
    ("every second row", numbered(8, 5)[::2], True),
    ("every second column of F", numbered(8, 5).T[:, ::2], True),
    ("every second column", numbered(4, 10)[:, ::2], False),
    ("rows backwards", numbered(4, 5)[::-1], False),
    ("columns backwards", numbered(4, 5)[:, ::-1], False),
    ("one row broadcast", np.broadcast_to(numbered(5), (4, 5)), False),
    ("one number broadcast", np.broadcast_to(np.float64(1), (4, 5)), False),
    ("overlapping rows", np.lib.stride_tricks.sliding_window_view(numbered(20), 5), False),
    ("another byte order", numbered(4, 5).astype(">f8"), False),
    ("long double", numbered(4, 5).astype("g"), False),
    ("not aligned", np.zeros(161, "u1")[1:].view("f8").reshape(4, 5), False),
    ("rows at no whole number of elements", np.zeros((4, 44), "u1")[:, :40].view("f8"), False),
    ("complex", numbered(4, 5).astype("D"), True),
    ("the real part of complex", numbered(4, 5).astype("D").real, False),
]


@pytest.mark.parametrize(("what", "x", "ready"), READY, ids=[r[0] for r in READY])
def test_blas_ready(what: str, x: Array, ready: bool) -> None:
    operand = NUMPY.describe_operand(x)
    assert (matrix_layout(operand) is not None and operand.dtype in {t.name for t in BLAS_DTYPES}) is ready


TRANSPOSES: list[tuple[str, Callable[[Any], tuple[Any, Any]], bool]] = [
    ("a and a.T", lambda a: (a, a.T), True),
    ("a.T and a", lambda a: (a.T, a), True),
    ("a part", lambda a: (a[1:, 2:], a[1:, 2:].T), True),
    ("two different parts", lambda a: (a[:3], a[1:4].T), False),
    ("a copy", lambda a: (a, a.T.copy()), False),
    ("a and a", lambda a: (a[:5, :5], a[:5, :5]), False),
    ("rows backwards", lambda a: (a[::-1], a.T), False),
    ("each of a stack", lambda a: (a.reshape(2, 3, 7), a.reshape(2, 3, 7).swapaxes(1, 2)), True),
    ("the other of a stack", lambda a: (a.reshape(2, 3, 7), a.reshape(2, 3, 7)[::-1].swapaxes(1, 2)), False),
]


@pytest.mark.parametrize(("what", "pair", "same"), TRANSPOSES, ids=[t[0] for t in TRANSPOSES])
def test_same_memory_transposed(what: str, pair: Callable[[Any], tuple[Any, Any]], same: bool) -> None:
    assert bool(same_memory_transposed(*pair(X))) is same


# ---- the layout of a result that NumPy would have made


@pytest.mark.slow
@settings(max_examples=200)
@given(st.data(), st.sampled_from("CFAK"))
def test_a_result_lies_in_memory_as_numpys(data: st.DataObject, order: Any) -> None:
    a, b = data.draw(views()), data.draw(views())
    batch = np.broadcast_shapes((1,) * (a.ndim - 2), (1,) * (b.ndim - 2))
    k = min(a.shape[-1], b.shape[-2])
    a, b = a[..., :k], b[..., :k, :]
    for i in range(-3, -len(batch) - 3, -1):  # make the stacks fit by cutting
        if -i <= min(a.ndim, b.ndim) and 1 not in (a.shape[i], b.shape[i]):
            n = min(a.shape[i], b.shape[i])
            a, b = (np.moveaxis(np.moveaxis(x, i, 0)[:n], 0, i) for x in (a, b))
    if data.draw(st.integers(0, 5)) == 0:
        b = b[(0,) * (b.ndim - 2)][:, 0]
    theirs = np.matmul(a, b, order=order)
    ours = new_result(a, b, order)
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    strides = [tuple(s for s, n in zip(x.strides, x.shape, strict=True) if n > 1) for x in (ours, theirs)]
    assert strides[0] == strides[1]
    assert ours.flags.owndata  # no view of another array: it can be resized


@pytest.mark.filterwarnings("error")
def test_the_layout_is_found_without_arithmetic_on_the_data() -> None:
    a, b = np.full((2, 3, 2, 2), np.inf), np.full((2, 3, 2, 2), -np.inf)
    with np.errstate(all="raise"):
        assert new_result(a, b).shape == (2, 3, 2, 2)


# ---- the products that a call is made of

CALLS: list[tuple[tuple[int, ...], tuple[int, ...], int]] = [
    # shapes of a and b, and how many two-dimensional products
    ((4, 5), (5, 6), 1),
    ((5,), (5, 6), 1),
    ((4, 5), (5,), 1),
    ((5,), (5,), 1),
    ((3, 4, 5), (5, 6), 1),
    ((2, 3, 4, 5), (5, 6), 1),
    ((2, 3, 4, 5), (1, 5, 6), 1),
    ((2, 3, 4, 5), (1, 1, 1, 5, 6), 1),
    ((2, 3, 4, 5), (5,), 1),
    ((4, 5), (3, 5, 6), 3),
    ((3, 4, 5), (3, 5, 6), 3),
    ((2, 1, 4, 5), (3, 5, 6), 6),
    ((5,), (2, 3, 5, 6), 6),
    ((1, 4, 5), (3, 5, 6), 3),
]


@pytest.mark.parametrize(("left", "right", "count"), CALLS, ids=str)
def test_products_fill_the_result(left: tuple[int, ...], right: tuple[int, ...], count: int) -> None:
    a, b = numbered(*left), numbered(*right)
    call = prepared(a, b, constraints=LEVEL)
    c = np.full(call.shape, np.nan)
    made = 0
    for x, y, part in _split_stack(call, a, b, c):
        assert x.ndim == y.ndim == part.ndim == 2
        assert np.isnan(part).all(), "a part is computed twice"
        np.matmul(x, y, out=part)
        made += 1
    np.testing.assert_allclose(c, np.matmul(a, b), rtol=1e-14)
    assert made == count
    m, _, n = size(call)
    assert (m * count == np.matmul(a, b).size // n) is True


def size(call: PreparedCall) -> tuple[int, int, int]:
    assert call.decision.problem is not None
    return call.decision.problem.size


def test_a_fold_copies_nothing() -> None:
    a, b = numbered(3, 4, 5), numbered(5, 6)
    call = prepared(a, b, constraints=LEVEL)
    c = np.empty(call.shape)
    assert size(call) == (12, 5, 6)
    ((x, y, part),) = _split_stack(call, a, b, c)
    assert np.shares_memory(x, a) and np.shares_memory(y, b) and np.shares_memory(part, c)
    swapped = prepared(a.swapaxes(0, 1), b, constraints=LEVEL)
    assert not swapped.flattens_stack and size(swapped) == (3, 5, 6)


# ---- which calls are ours

SUBCLASS = np.zeros((6, 6)).view(np.matrix)
NOT_OURS: list[tuple[str, Any, Any, dict[str, Any], str]] = [
    # (what, A, B, options, what the reason says)
    ("a list", [[1.0]], X, {}, "operands are list and ndarray, not plain arrays"),
    ("a subclass", SUBCLASS, SUBCLASS, {}, "operands are matrix and matrix, not plain arrays"),
    ("complex integers", X.astype(int), X.T.astype(int), {"dtype": "G"}, "products have no plan"),
    ("long doubles", X, X.T.astype("g"), {}, "products have no plan"),
    ("objects", X, X.T.astype(object), {}, "object products have no plan"),
    ("halves", X.astype("f2"), X.T.astype("f2"), {}, "float16 products have no plan"),
    ("texts", X.astype("U"), X.T, {}, "products have no plan"),
    ("times", X.astype("M8[s]"), X.T, {}, "could not be promoted"),
    ("no match", X, X, {}, "shapes (6, 7) and (6, 7) do not match"),
    ("no axis", X, np.zeros(()), {}, "shapes (6, 7) and () do not match"),
    ("stacks that do not match", np.zeros((2, 3, 3)), np.zeros((3, 3, 3)), {}, "(2, 3, 3) and (3, 3, 3) do not match"),
    ("complex to real", X.astype("D"), X.T, {"dtype": "f8"}, "cannot cast to float64 with casting 'same_kind'"),
    ("a cast that can lose numbers", X, X.T, {"dtype": "f4"}, "a cast to float32 can lose numbers"),
    ("a cast that is not safe", X, X.T, {"dtype": "f4", "casting": "safe"}, "to float32 with casting 'safe'"),
    ("an unknown casting", X, X.T, {"casting": "any"}, "casting='any' or order='K' is unknown"),
    ("an unknown order", X, X.T, {"order": "Z"}, "order='Z' is unknown"),
    ("an order that means K", X, X.T, {"order": None}, "order=None is unknown"),
    ("an unknown dtype", X, X.T, {"dtype": "nonsense"}, "'nonsense' not understood"),
    ("a byte order as dtype", X, X.T, {"dtype": ">f8"}, "only native types"),
    ("out of another shape", X, X.T, {"out": np.zeros((6, 7))}, "out has another shape or type"),
    ("out of integers", X, X.T, {"out": np.zeros((6, 6), int)}, "cannot hold the result"),
    ("out of a subclass", X, X.T, {"out": SUBCLASS}, "out is a matrix"),
    ("out that is no array", X, X.T, {"out": "out"}, "out is a str"),
]


@pytest.mark.parametrize(("what", "a", "b", "options", "said"), NOT_OURS, ids=[n[0] for n in NOT_OURS])
def test_what_is_not_ours_says_why(what: str, a: Any, b: Any, options: dict[str, Any], said: str) -> None:
    call = prepared(a, b, **options)
    assert call.plan is None and call.decision.problem is None
    assert call.decision.reason.startswith("NumPy multiplies: ") and said in call.decision.reason


def test_a_read_only_out_is_not_ours_but_read_only_operands_are() -> None:
    frozen = np.zeros((6, 6))
    frozen.flags.writeable = False
    assert prepared(frozen, frozen).decision.problem is not None
    assert prepared(frozen, frozen, frozen).decision.problem is None


COMMON: list[tuple[str, str, Any, str]] = [
    ("f4", "f4", None, "f4"),
    ("f4", "f8", None, "f8"),
    ("i4", "f4", None, "f8"),
    ("i2", "f4", None, "f4"),
    ("i2", "f2", None, "f4"),
    ("?", "f4", None, "f4"),
    ("f8", "F", None, "D"),
    (">f8", ">f8", None, "f8"),
    ("i8", "i8", "f8", "f8"),
    ("f4", "f4", complex, "D"),
]


@pytest.mark.parametrize(("left", "right", "dtype", "common"), COMMON)
def test_the_common_type_is_numpys(left: str, right: str, dtype: Any, common: str) -> None:
    a, b = X.astype(left), X.T.astype(right)
    found = np.dtype(prepared(a, b, **({"dtype": dtype} if dtype else {})).dtype)
    assert found == np.dtype(common) == np.matmul(a, b, dtype=dtype).dtype
    assert found.isnative


def test_the_bytes_of_arrays_that_lie_in_no_usual_way_are_known_too() -> None:
    """Strides that are no whole numbers of elements, backwards, not aligned: as NumPy's own bounds have them."""
    memory = np.zeros(4000, np.uint8)
    strided = np.ndarray((5, 6), np.float64, memory, 501, (100, -9))
    shifted = np.ndarray((5, 6), np.float64, memory, 3, (48, 8))
    for x in (strided, strided[::-2, 1:], shifted, shifted.T, np.zeros((4, 5))[::-1, ::2]):
        low, high = np.lib.array_utils.byte_bounds(x)
        found = byte_span(NUMPY.describe_operand(x))
        assert found is not None and found[:2] == (low - x.ctypes.data, high - x.ctypes.data)
    assert NUMPY.describe_operand(strided).strides is NUMPY.describe_operand(shifted).strides is None
    a, c = (np.ndarray((16, 16), np.float64, np.zeros(4000, np.uint8), 3, (128, 8)) for _ in range(2))
    call = prepared(a, np.zeros((16, 16)), np.zeros((16, 16)), LEVEL)
    assert not call.may_c_share_memory(a.ctypes.data, 0, c.ctypes.data) and call.may_c_share_memory(
        a.ctypes.data, 0, a.ctypes.data + 2047
    )


def test_blocks_of_one_matrix_overlap_only_where_they_share_entries() -> None:
    rng = np.random.default_rng(0)
    for memory in (np.zeros((13, 17)), np.zeros((13, 17)).T, np.zeros((3, 13, 17)), np.zeros((26, 34))[::2, :17]):
        for _ in range(200):
            x, y = (_random_block(rng, memory) for _ in range(2))
            shared, found = np.shares_memory(x, y), _may_share_memory(x, y)
            assert found or not shared
            if min(*x.shape[-2:], *y.shape[-2:]) > 1 and memory.ndim == 2:
                assert found == shared


def test_other_arrays_overlap_where_their_spans_do() -> None:
    """Other distances between rows, backwards, strided and broadcast rows: never reported disjoint by mistake."""
    rng, memory = np.random.default_rng(1), np.zeros(600)
    views = [
        memory.reshape(20, 30),
        memory.reshape(30, 20),
        memory.reshape(20, 30)[::-1],
        memory.reshape(20, 30)[:, ::3],
    ]
    views += [memory.reshape(5, 4, 30), np.broadcast_to(memory[:30], (4, 30)), memory.reshape(10, 60)[:, ::-1]]
    for _ in range(2000):
        x, y = (_random_block(rng, views[i]) for i in rng.integers(0, len(views), 2))
        assert _may_share_memory(x, y) or not np.shares_memory(x, y)


def _random_block(rng: np.random.Generator, x: Array) -> Array:
    (top, bottom), (left, right) = (sorted(rng.choice(n + 1, 2, replace=False)) for n in x.shape[-2:])
    return x[..., top:bottom, left:right]


def _may_share_memory(x: Array, y: Array) -> bool:
    spans = (byte_span(NUMPY.describe_operand(v)) for v in (x, y))
    return may_overlap(x.ctypes.data, next(spans), y.ctypes.data, next(spans))
