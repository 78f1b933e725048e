"""Functions that replace a library's product functions, and checks of the arguments of matmul, dot and tensordot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial, update_wrapper
from math import prod
from types import MethodType
from typing import Any, NamedTuple

import numpy as np

from fmm.api import explain
from fmm.integrations.report import ProductKind, count_product, is_reporting

# ---- replacing functions

NOT_DEFINED_VALUE = object()  # marks a name that the module or class does not define


def replacement_function(own: Any, answer: Callable[..., Any]) -> ReplacementFunction:
    """Return a function that replaces the library's function `own` and calls fmm's function `answer`.

    Numba finds a function in a table that has a weak reference to each function that allows weak references. The new
    function therefore allows weak references exactly if `own` does.
    """
    kind = WeakReplacementFunction if type(own).__weakrefoffset__ else ReplacementFunction
    return kind(own, answer)


class ReplacementFunction:
    """A function that calls fmm's function `answer`, and otherwise looks like the library's own function.

    The attributes, hash, equality and pickle format are those of the library's function.
    """

    __slots__ = ("__dict__",)

    def __init__(self, own: Any, answer: Callable[..., Any]) -> None:
        update_wrapper(self, own, assigned=("__doc__", "__name__", "__qualname__", "__module__"), updated=())
        self.__wrapped__, self._answer = own, answer
        # Ufuncs of NumPy 1.26 have no __module__; the value None makes pickle search all modules for the function.
        own_module: Any = getattr(own, "__module__", None)
        self.__module__ = own_module

    def __call__(self, *operands: Any, **options: Any) -> Any:
        return self._answer(*operands, **options)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Return a method of `instance` if the library's own function, in a class, would be a method."""
        binds = instance is not None and hasattr(type(self.__wrapped__), "__get__")
        return MethodType(self, instance) if binds else self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # for isinstance(numpy.matmul, numpy.ufunc)
        return type(self.__wrapped__)

    def __eq__(self, other: object) -> Any:  # `==` of an array compares entry by entry
        """Return True if `other` equals the library's own function, so that a program's tables of functions find it."""
        return self.__wrapped__ == other

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __reduce__(self) -> str:
        return str(self.__wrapped__.__name__)  # pickle stores the name, as for the library's own function

    def __reduce_ex__(self, protocol: Any) -> str:
        return self.__reduce__()

    def __repr__(self) -> str:
        return f"{self.__wrapped__!r}, by fmm where a plan is faster"


class WeakReplacementFunction(ReplacementFunction):
    """A replacement function to which weak references are possible."""

    __slots__ = ("__weakref__",)


def attributes_bound_to(value: object, *owners: Any) -> list[tuple[Any, str]]:
    """Return (module or class, name) for each name that is bound to this object."""
    return [(owner, name) for owner in owners for name, bound in list(vars(owner).items()) if bound is value]


def replace_attributes(values: Iterable[tuple[Any, str, Any]]) -> Callable[[], None]:
    """Set attributes of modules and classes; return the function that restores the original objects.

    An attribute that another package has replaced in the meantime is not restored.
    """
    replaced: list[tuple[Any, str, Any, Any]] = []

    def restore_attributes() -> None:
        for owner, name, before, ours in reversed(replaced):
            if vars(owner).get(name, NOT_DEFINED_VALUE) is not ours:
                continue
            if before is NOT_DEFINED_VALUE:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    try:
        for owner, name, value in values:
            before = vars(owner).get(name, NOT_DEFINED_VALUE)
            setattr(owner, name, value)
            replaced.append((owner, name, before, value))
    except BaseException:
        restore_attributes()
        raise
    return restore_attributes


# ---- arguments of matmul

# Options of fmm.matmul that no library's matmul has.
FMM_OPTIONS = frozenset(
    ("plan", "max_error_growth", "workspace", "componentwise", "reproducible", "device", "progress")
)


def accepts_matmul_call(operands: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Return True if fmm.matmul can compute this call of a library's matmul.

    Return False for a second `out` and for options that only fmm.matmul has: the library itself must reject the call.
    """
    if len(operands) > 2 and ("out" in options or type(operands[2]) is tuple):
        return False
    return not options or FMM_OPTIONS.isdisjoint(options)


def multiply_and_count(where: str, product: Callable[..., Any], a: Any, b: Any, /, *rest: Any, **options: Any) -> Any:
    """Return the product of two arrays, and count it if a report is active."""
    if not is_reporting():
        return product(a, b, *rest, **options)
    kind = ProductKind(where, a.shape, b.shape, str(computation_type(a, b, options)))
    return count_product(kind, partial(product, a, b, *rest, **options), partial(explain, a, b, *rest, **options))


def computation_type(a: Any, b: Any, options: Mapping[str, Any]) -> Any:
    """Return the element type in which the library multiplies; the type does not depend on `out`."""
    dtype = options.get("dtype")
    try:
        return np.result_type(a.dtype, b.dtype) if dtype is None else np.dtype(dtype)
    except TypeError:  # the library rejects these operands with its own error
        return a.dtype


# ---- arguments of dot and tensordot


def parse_dot_operands(operands: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Any, Any, Any] | None:
    """Return `a`, `b` and `out` of a dot call; None if there are other arguments, which the library must check."""
    if not options:
        if len(operands) == 2:
            return operands[0], operands[1], None
        return operands if len(operands) == 3 else None
    return (*operands, options["out"]) if len(operands) == 2 and options.keys() == {"out"} else None


class Contraction(NamedTuple):
    """A tensordot as a matrix product.

    `left_axes` and `right_axes` are the axes of the operands in the order of the matrix product. `size` is (m, k, n),
    and `shape` is the result's shape.
    """

    left_axes: tuple[int, ...]
    right_axes: tuple[int, ...]
    size: tuple[int, int, int]
    shape: tuple[int, ...]


def parse_contraction(left: tuple[int, ...], right: tuple[int, ...], axes: Any) -> Contraction | None:
    """Return the Contraction for numpy.tensordot's axes; None if the axes are invalid or no axis is summed."""
    pairs = _summed_axes(len(left), len(right), axes)
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


def _summed_axes(left: int, right: int, axes: Any) -> list[tuple[int, int]]:
    """Return the pairs of axes that are summed; an empty list for invalid axes."""
    if isinstance(axes, int):
        return list(zip(range(left - axes, left), range(axes), strict=True)) if 0 < axes <= min(left, right) else []
    try:
        over, under = (list(x) if isinstance(x, tuple | list) else [x] for x in axes)
        return [(int(i), int(j)) for i, j in zip(over, under, strict=True)]
    except (TypeError, ValueError):
        return []
