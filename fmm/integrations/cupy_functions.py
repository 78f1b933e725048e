"""cupy.matmul (and so cupy.einsum, which calls it), dot, inner, tensordot and the operator `@` of CuPy's arrays.

Only two plain arrays are fmm's; all else finds CuPy's function as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fmm.api import matmul
from fmm.integrations.product_functions import (
    Replaced,
    array_product,
    as_matmul_takes,
    contraction,
    dot_operands,
    names_of,
    put,
)
from fmm.runtime.decisions.early_declines import is_small_on_device


def install() -> Callable[[], None]:
    import cupy

    return put(CupyFunctions(cupy).replacements())


class CupyFunctions:
    """CuPy's functions as they were, and what answers in their place."""

    def __init__(self, cupy: Any) -> None:
        self.cupy, self.ndarray = cupy, cupy.ndarray
        self.own_matmul, self.own_dot = cupy.matmul, cupy.dot
        self.own_inner, self.own_tensordot = cupy.inner, cupy.tensordot
        self.own_operator = cupy.ndarray.__matmul__

    def replacements(self) -> Iterator[tuple[Any, str, Any]]:
        answers = (
            (self.own_matmul, self.matmul),
            (self.own_dot, self.dot),
            (self.own_inner, self.inner),
            (self.own_tensordot, self.tensordot),
        )
        for own, answer in answers:
            replaced = Replaced(own, answer)
            for owner, name in names_of(own, self.cupy, self.cupy.linalg):
                yield owner, name, replaced
        if can_be_changed(self.ndarray):
            yield self.ndarray, "__matmul__", self.operator()

    def operator(self) -> Callable[[Any, Any], Any]:
        def __matmul__(self_: Any, other: Any) -> Any:  # noqa: N807 - a method by that name
            if type(self_) is type(other) is self.ndarray:
                return array_product("cupy @", matmul, self_, other)
            return self.own_operator(self_, other)

        return __matmul__

    def plain(self, operands: tuple[Any, ...]) -> bool:
        return len(operands) >= 2 and all(type(x) is self.ndarray for x in operands[:2])

    def matmul(self, *operands: Any, **options: Any) -> Any:
        if self.plain(operands) and as_matmul_takes(operands, options):
            return array_product("cupy.matmul", matmul, *operands, **options)
        return self.own_matmul(*operands, **options)

    def dot(self, *operands: Any, **options: Any) -> Any:
        """Two matrices are multiplied as matmul does; with other numbers of axes dot is another product."""
        given = dot_operands(operands, options)
        if given is not None and self.plain(operands) and operands[0].ndim == operands[1].ndim == 2:
            a, b, out = given
            fits = a.shape[1] == b.shape[0] and a.dtype == b.dtype and self.takes(out, a, b)
            ours = fits and not self.small(a, (*a.shape, b.shape[1]))
            return array_product("cupy.dot", matmul if ours else self.own_dot, *operands, **options)
        return self.own_dot(*operands, **options)

    def inner(self, *operands: Any, **options: Any) -> Any:
        """Of two matrices: the product of the first and the other one's transpose."""
        if len(operands) == 2 and not options and self.plain(operands) and operands[0].ndim == operands[1].ndim == 2:
            a, b = operands[0], operands[1].T
            fits = a.shape[1] == b.shape[0] and a.dtype == b.dtype
            ours = fits and not self.small(a, (*a.shape, b.shape[1]))
            return array_product("cupy.inner", matmul if ours else self.inner_of_transposed, a, b)
        return self.own_inner(*operands, **options)

    def inner_of_transposed(self, a: Any, b: Any) -> Any:
        return self.own_inner(a, b.T)

    def tensordot(self, a: Any, b: Any, axes: Any = 2) -> Any:
        if self.plain((a, b)) and a.dtype == b.dtype:
            found = contraction(a.shape, b.shape, axes)
            if found is not None and not self.small(a, found.size):
                m, k, n = found.size
                left = a.transpose(found.left_axes).reshape(m, k)
                right = b.transpose(found.right_axes).reshape(k, n)
                return array_product("cupy.tensordot", matmul, left, right).reshape(found.shape)
        return self.own_tensordot(a, b, axes)

    def takes(self, out: Any, a: Any, b: Any) -> bool:
        """Does cupy.dot write the product there? Of what it does not take, it says so itself."""
        if out is None:
            return True
        fits = type(out) is self.ndarray and out.dtype == a.dtype and out.shape == (a.shape[0], b.shape[1])
        return fits and bool(out.flags.c_contiguous)

    def small(self, a: Any, size: tuple[int, int, int]) -> bool:
        """Is it CuPy's product for certain, by its own way?"""
        return a.dtype.kind not in "fcV" or is_small_on_device(*size, a.itemsize)


HEAP_TYPE, IMMUTABLE_TYPE = 1 << 9, 1 << 8  # flags of Python's types


def can_be_changed(kind: type) -> bool:
    """Can methods be put into the type, or is it one of C's?"""
    return bool(kind.__flags__ & HEAP_TYPE and not kind.__flags__ & IMMUTABLE_TYPE)
