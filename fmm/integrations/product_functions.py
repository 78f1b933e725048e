"""Objects of other modules under whose names functions of ours stand for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial, update_wrapper
from math import prod
from typing import Any, NamedTuple

import numpy as np

from fmm.api import explain
from fmm.integrations.report import counted, reporting
from fmm.integrations.report_value import Kind

NOTHING = object()  # the name was not there, or came from an ancestor


class Replaced:
    """Called in the place of a library's function, and in all else that function: its attributes are handed on."""

    def __init__(self, own: Any, answer: Callable[..., Any]) -> None:
        update_wrapper(self, own, assigned=("__doc__", "__name__", "__qualname__", "__module__"), updated=())
        self.__wrapped__, self._answer = own, answer
        # The ufuncs of NumPy 1.26 have none: pickle is to look for them everywhere, and not in this module.
        home: Any = getattr(own, "__module__", None)
        self.__module__ = home

    def __call__(self, *operands: Any, **options: Any) -> Any:
        return self._answer(*operands, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # for isinstance(numpy.matmul, numpy.ufunc)
        return type(self.__wrapped__)

    def __eq__(self, other: object) -> Any:  # of an array NumPy says it entry by entry
        """Who looks the function up in a table of his own finds what he knows of it."""
        return self.__wrapped__ == other

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __reduce__(self) -> str:
        return str(self.__wrapped__.__name__)  # pickled by its name, as the function itself would be

    def __reduce_ex__(self, protocol: Any) -> str:
        return self.__reduce__()

    def __repr__(self) -> str:
        return f"{self.__wrapped__!r}, by fmm where a plan pays"


def names_of(value: object, *owners: Any) -> list[tuple[Any, str]]:
    """Under which names of these modules the object stands."""
    return [(owner, name) for owner in owners for name, found in list(vars(owner).items()) if found is value]


def put(values: Iterable[tuple[Any, str, Any]]) -> Callable[[], None]:
    """Puts objects under names of modules and classes. The call that puts the former ones back: the very ones, where
    nobody has put another there since."""
    former: list[tuple[Any, str, Any, Any]] = []

    def undo() -> None:
        for owner, name, before, ours in reversed(former):
            if vars(owner).get(name, NOTHING) is not ours:
                continue
            if before is NOTHING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    try:
        for owner, name, value in values:
            before = vars(owner).get(name, NOTHING)
            setattr(owner, name, value)
            former.append((owner, name, before, value))
    except BaseException:
        undo()
        raise
    return undo


# Options of fmm.matmul that no library's matmul has.
OURS = frozenset(("plan", "max_error_growth", "workspace", "componentwise", "device", "progress"))


def as_matmul_takes(operands: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Can fmm.matmul stand for the library's? Of options that are fmm's alone, and of two places for the result or a
    tuple of some, the library is to say itself that it takes none."""
    if len(operands) > 2 and ("out" in options or type(operands[2]) is tuple):
        return False
    return not options or OURS.isdisjoint(options)


def array_product(where: str, product: Callable[..., Any], a: Any, b: Any, /, *rest: Any, **options: Any) -> Any:
    """What the product of the two returns or raises."""
    if not reporting():
        return product(a, b, *rest, **options)
    kind = Kind(where, a.shape, b.shape, str(computed_type(a, b, options)))
    return counted(kind, partial(product, a, b, *rest, **options), partial(explain, a, b, *rest, **options))


def computed_type(a: Any, b: Any, options: Mapping[str, Any]) -> Any:
    """The type in which the library multiplies them, whatever the type of `out` is."""
    given = options.get("dtype")
    try:
        return np.result_type(a.dtype, b.dtype) if given is None else np.dtype(given)
    except TypeError:  # the library rejects the call
        return a.dtype


class Contraction(NamedTuple):
    """How the axes of both arrays are ordered for it, the product's sizes, and the result's shape."""

    left_axes: tuple[int, ...]
    right_axes: tuple[int, ...]
    size: tuple[int, int, int]
    shape: tuple[int, ...]


def contraction(left: tuple[int, ...], right: tuple[int, ...], axes: Any) -> Contraction | None:
    """numpy.tensordot's axes, read as it reads them; None where it would raise, or there is nothing to sum."""
    pairs = _pairs(len(left), len(right), axes)
    if not pairs or any(not (-len(left) <= i < len(left) and -len(right) <= j < len(right)) for i, j in pairs):
        return None
    over, under = ([i % len(left) for i, _ in pairs], [j % len(right) for _, j in pairs])
    if len({*over}) < len(over) or len({*under}) < len(under):
        return None
    if any(left[i] != right[j] for i, j in pairs):
        return None
    rows = [i for i in range(len(left)) if i not in over]
    columns = [j for j in range(len(right)) if j not in under]
    shape = (*(left[i] for i in rows), *(right[j] for j in columns))
    size = prod(left[i] for i in rows), prod(left[i] for i in over), prod(right[j] for j in columns)
    return Contraction((*rows, *over), (*under, *columns), size, shape)


def _pairs(left: int, right: int, axes: Any) -> list[tuple[int, int]]:
    """Which axis of one array is summed with which of the other; none where it cannot be told."""
    if isinstance(axes, int):
        return list(zip(range(left - axes, left), range(axes), strict=True)) if 0 < axes <= min(left, right) else []
    try:
        over, under = (list(x) if isinstance(x, tuple | list) else [x] for x in axes)
        return [(int(i), int(j)) for i, j in zip(over, under, strict=True)]
    except (TypeError, ValueError):
        return []


OUT = {"out"}


def dot_operands(operands: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Any, Any, Any] | None:
    """Both operands and the place for the result (None: a new one), which is named or comes third; None where the call
    is another one, which the library is to judge."""
    if not options:
        if len(operands) == 2:
            return operands[0], operands[1], None
        return operands if len(operands) == 3 else None
    return (*operands, options["out"]) if len(operands) == 2 and options.keys() == OUT else None
