"""fmm in numpy.matmul, numpy.dot and numpy.inner, also for NumPy's functions that call them: einsum, cov, multi_dot.

The operator `@` and methods cannot be replaced: they belong to a type written in C. fmm computes products of two plain
arrays; lists, subclasses and other libraries' arrays go to NumPy's own function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fmm.api import matmul
from fmm.arrays.numpy_library import NUMPY_DOT, TYPE_NAMES
from fmm.integrations.product_functions import (
    ReplacedFunction,
    array_product,
    dot_operands,
    matmul_accepts,
    names_bound_to,
    replace_attributes,
)
from fmm.integrations.report import is_reporting
from fmm.kernels.cpu.host_arrays import dot as numpy_dot
from fmm.kernels.cpu.host_arrays import inner as numpy_inner
from fmm.kernels.cpu.host_arrays import matmul as numpy_matmul
from fmm.runtime.decisions.early_declines import is_small_on_host, was_declined
from fmm.runtime.decisions.limits import NO_CONSTRAINTS
from fmm.runtime.matmul import run_matmul

ndarray = np.ndarray
# NumPy functions whose modules bind the three functions by name; the modules' names differ between versions.
CALLERS = "einsum", "tensordot", "cov", "polyfit", "linalg.multi_dot"


def install() -> Callable[[], None]:
    """Replace the three functions; return the function that restores them."""
    return replace_attributes(_replacements())


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    modules = dict.fromkeys((np, *_calling_modules()))
    for own, answer in ((numpy_matmul, matmul_answer), (numpy_dot, dot_answer), (numpy_inner, inner_answer)):
        replaced = ReplacedFunction(own, answer)
        for owner, name in names_bound_to(own, *modules):
            yield owner, name, replaced


def _calling_modules() -> Iterator[Any]:
    """Yield NumPy's modules that bind the three functions by name, as far as this version has them."""
    for caller in CALLERS:
        function: Any = np
        for name in caller.split("."):
            function = getattr(function, name, None)
        own = getattr(function, "_implementation", getattr(function, "__wrapped__", function))
        module = sys.modules.get(str(getattr(own, "__globals__", {}).get("__name__")))
        if module is not None:
            yield module


def matmul_answer(*operands: Any, **options: Any) -> Any:
    """Return numpy.matmul's result."""
    plain = 1 < len(operands) < 4 and type(operands[0]) is ndarray and type(operands[1]) is ndarray
    if plain and matmul_accepts(operands, options):
        return array_product("numpy.matmul", matmul, *operands, **options)
    return numpy_matmul(*operands, **options)


def dot_answer(*operands: Any, **options: Any) -> Any:
    """Return numpy.dot's result; fmm multiplies two matrices (for other ranks dot is not a matrix product)."""
    arguments = dot_operands(operands, options)
    if arguments is None:
        return numpy_dot(*operands, **options)
    a, b, out = arguments
    by_fmm = _may_pay(a, b) and _is_valid_out(out, a, b)
    if by_fmm or (is_reporting() and _are_matrices(a, b)):
        return array_product("numpy.dot", _dot_product if by_fmm else numpy_dot, *operands, **options)
    return numpy_dot(*operands, **options)


def inner_answer(*operands: Any, **options: Any) -> Any:
    """Return numpy.inner's result, for two matrices the product of the first and the second's transpose."""
    if len(operands) == 2 and not options and type(operands[1]) is ndarray:
        a, b = operands[0], operands[1].T
        by_fmm = _may_pay(a, b)
        if by_fmm or (is_reporting() and _are_matrices(a, b)):
            return array_product("numpy.inner", _dot_product if by_fmm else _inner_of_transposed, a, b)
    return numpy_inner(*operands, **options)


def _dot_product(a: Any, b: Any, /, out: Any = None) -> Any:
    """Return the product by a plan where one pays, else by numpy.dot, which numpy.inner calls too."""
    if was_declined(NUMPY_DOT, a, b):
        return numpy_dot(a, b, out)
    return run_matmul(NUMPY_DOT, a, b, out, NO_CONSTRAINTS)


def _inner_of_transposed(a: Any, b: Any) -> Any:
    return numpy_inner(a, b.T)


def _may_pay(a: Any, b: Any) -> bool:
    """Return True for two matching matrices that are not too small for any plan."""
    return not is_small_on_host(a, b) and _are_matrices(a, b) and a.shape[1] == b.shape[0]


def _are_matrices(a: Any, b: Any) -> bool:
    """Return True for two plain matrices of types that plans support."""
    return (
        type(a) is ndarray
        and type(b) is ndarray
        and a.ndim == b.ndim == 2
        and a.dtype in TYPE_NAMES
        and b.dtype in TYPE_NAMES
    )


def _is_valid_out(out: Any, a: Any, b: Any) -> bool:
    """Return True if numpy.dot writes to `out`: unlike matmul it requires a C array of the exact type.

    NumPy raises its own error for others.
    """
    if out is None:
        return True
    valid = type(out) is ndarray and out.flags.carray and out.shape == (a.shape[0], b.shape[1])
    return bool(valid and out.dtype.isnative and out.dtype.num == np.result_type(a.dtype, b.dtype).num)
