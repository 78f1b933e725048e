"""Installation of fmm in cupy.matmul, dot, inner, tensordot, the operator `@` of CuPy arrays, and CuPy's solvers.

fmm computes products of two arrays of exactly the class cupy.ndarray. CuPy's own functions compute the products of
arrays of other classes. cupy.einsum calls cupy.matmul.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

from fmm.api import matmul
from fmm.integrations.product_functions import (
    accepts_matmul_call,
    attributes_bound_to,
    multiply_and_count,
    parse_contraction,
    parse_dot_operands,
    replace_attributes,
    replacement_function,
)
from fmm.integrations.solver_functions import CUPY_SOLVER_FUNCTIONS, CUPYX_SOLVER_FUNCTIONS, solver_replacements
from fmm.runtime.decisions.early_declines import is_small_on_device


def install() -> Callable[[], None]:
    """Replace CuPy's functions; return the function that restores them."""
    import cupy

    solvers = [solver_replacements(cupy.linalg, CUPY_SOLVER_FUNCTIONS, cupy.ndarray)]
    with suppress(ImportError):  # a CuPy without its SciPy
        from cupyx.scipy import linalg

        solvers += [solver_replacements(linalg, CUPYX_SOLVER_FUNCTIONS, cupy.ndarray)]
    return replace_attributes(chain(CupyFunctions(cupy).function_replacements(), *solvers))


class CupyFunctions:
    """CuPy's own functions, and their replacements."""

    def __init__(self, cupy: Any) -> None:
        self.cupy, self.ndarray = cupy, cupy.ndarray
        self.own_matmul, self.own_dot = cupy.matmul, cupy.dot
        self.own_inner, self.own_tensordot = cupy.inner, cupy.tensordot
        self.own_operator = cupy.ndarray.__matmul__

    def function_replacements(self) -> Iterator[tuple[Any, str, Any]]:
        answers = (
            (self.own_matmul, self.matmul),
            (self.own_dot, self.dot),
            (self.own_inner, self.inner),
            (self.own_tensordot, self.tensordot),
        )
        for own, answer in answers:
            replaced = replacement_function(own, answer)
            for owner, name in attributes_bound_to(own, self.cupy, self.cupy.linalg):
                yield owner, name, replaced
        if can_set_methods_on_type(self.ndarray):
            yield self.ndarray, "__matmul__", self.matmul_operator()

    def matmul_operator(self) -> Callable[[Any, Any], Any]:
        def __matmul__(self_: Any, other: Any) -> Any:  # noqa: N807 - becomes a method
            if type(self_) is type(other) is self.ndarray:
                return multiply_and_count("cupy @", matmul, self_, other)
            return self.own_operator(self_, other)

        return __matmul__

    def are_plain_arrays(self, operands: tuple[Any, ...]) -> bool:
        return len(operands) >= 2 and all(type(x) is self.ndarray for x in operands[:2])

    def matmul(self, *operands: Any, **options: Any) -> Any:
        if len(operands) == 2 and not options and type(operands[0]) is type(operands[1]) is self.ndarray:
            return multiply_and_count("cupy.matmul", matmul, *operands)
        if self.are_plain_arrays(operands) and accepts_matmul_call(operands, options):
            return multiply_and_count("cupy.matmul", matmul, *operands, **options)
        return self.own_matmul(*operands, **options)

    def dot(self, *operands: Any, **options: Any) -> Any:
        """Return cupy.dot's result; fmm computes the product only if both arrays have two dimensions."""
        arguments = parse_dot_operands(operands, options)
        if arguments is not None and self.are_plain_arrays(operands) and operands[0].ndim == operands[1].ndim == 2:
            a, b, out = arguments
            matches = a.shape[1] == b.shape[0] and a.dtype == b.dtype and self.is_valid_out(out, a, b)
            by_fmm = matches and not self.is_too_small_for_plans(a, (*a.shape, b.shape[1]))
            return multiply_and_count("cupy.dot", matmul if by_fmm else self.own_dot, *operands, **options)
        return self.own_dot(*operands, **options)

    def inner(self, *operands: Any, **options: Any) -> Any:
        """Return cupy.inner's result.

        For two matrices, fmm multiplies the first matrix by the transpose of the second matrix.
        """
        if (
            len(operands) == 2
            and not options
            and self.are_plain_arrays(operands)
            and operands[0].ndim == operands[1].ndim == 2
        ):
            a, b = operands[0], operands[1].T
            matches = a.shape[1] == b.shape[0] and a.dtype == b.dtype
            by_fmm = matches and not self.is_too_small_for_plans(a, (*a.shape, b.shape[1]))
            return multiply_and_count("cupy.inner", matmul if by_fmm else self.product_by_cupy_inner, a, b)
        return self.own_inner(*operands, **options)

    def product_by_cupy_inner(self, a: Any, b: Any) -> Any:
        return self.own_inner(a, b.T)

    def tensordot(self, a: Any, b: Any, axes: Any = 2) -> Any:
        if self.are_plain_arrays((a, b)) and a.dtype == b.dtype:
            matrices = parse_contraction(a.shape, b.shape, axes)
            if matrices is not None and not self.is_too_small_for_plans(a, matrices.size):
                m, k, n = matrices.size
                left = a.transpose(matrices.left_axes).reshape(m, k)
                right = b.transpose(matrices.right_axes).reshape(k, n)
                return multiply_and_count("cupy.tensordot", matmul, left, right).reshape(matrices.shape)
        return self.own_tensordot(a, b, axes)

    def is_valid_out(self, out: Any, a: Any, b: Any) -> bool:
        """Return True if cupy.dot can write to `out`; CuPy raises its own error for invalid arrays."""
        if out is None:
            return True
        valid = type(out) is self.ndarray and out.dtype == a.dtype and out.shape == (a.shape[0], b.shape[1])
        return valid and bool(out.flags.c_contiguous)

    def is_too_small_for_plans(self, a: Any, size: tuple[int, int, int]) -> bool:
        """Return True if a product is so small, or of such a type, that no plan is faster than CuPy."""
        return a.dtype.kind not in "fcV" or is_small_on_device(*size, a.itemsize)


HEAP_TYPE, IMMUTABLE_TYPE = 1 << 9, 1 << 8  # CPython's flags of type objects


def can_set_methods_on_type(kind: type) -> bool:
    """Return True if Python can set methods on the type; many types written in C are immutable."""
    return bool(kind.__flags__ & HEAP_TYPE and not kind.__flags__ & IMMUTABLE_TYPE)
