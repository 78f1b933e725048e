"""Installation of fmm in numpy.dot, numpy.inner, numpy.linalg, and the loops of numpy.matmul and `@` (numpy_loops.py).

NumPy's einsum, cov and multi_dot call dot, inner or matmul, so fmm also computes the products of einsum, cov and
multi_dot. The names `dot` and `inner` are bound to fmm's functions in numpy, and in all modules of NumPy that import
dot or inner by name. Methods such as a.dot(b) do not change, since they belong to a type written in C. fmm computes
products of two arrays of exactly the class numpy.ndarray. NumPy's own dot handles lists, subclasses and other
libraries' arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from fmm.arrays.numpy_library import NUMPY_DOT, TYPE_NAMES
from fmm.config.environment import log_once
from fmm.integrations import numpy_loops
from fmm.integrations.product_functions import (
    attributes_bound_to,
    multiply_and_count,
    parse_dot_operands,
    replace_attributes,
    replacement_function,
)
from fmm.integrations.report import is_reporting
from fmm.integrations.solver_functions import NUMPY_SOLVER_FUNCTIONS, solver_replacements
from fmm.kernels.cpu.host_arrays import dot as numpy_dot
from fmm.kernels.cpu.host_arrays import inner as numpy_inner
from fmm.runtime.decisions.early_declines import is_small_on_host, was_declined
from fmm.runtime.decisions.limits import NO_CONSTRAINTS
from fmm.runtime.matmul import run_matmul

ndarray = np.ndarray
# NumPy's functions that call dot or inner. Some modules of NumPy import dot or inner by name; fmm finds the modules by
# the functions in FUNCTIONS_CALLING_DOT, since the modules' names differ between versions of NumPy.
FUNCTIONS_CALLING_DOT = "einsum", "tensordot", "cov", "polyfit", "linalg.multi_dot"


def install() -> Callable[[], None]:
    """Replace the loops of numpy.matmul, dot, inner and solvers; return the function that restores them."""
    solvers = solver_replacements(np.linalg, NUMPY_SOLVER_FUNCTIONS, ndarray)
    undo_functions = replace_attributes(chain(_function_replacements(), solvers))
    try:
        undo_loops = numpy_loops.install()
    except OSError as error:
        log_once(f"numpy.matmul and the operator @ stay NumPy's own; fmm computes only numpy.dot and inner: {error}")
        return undo_functions
    except BaseException:
        undo_functions()
        raise

    def undo_installation() -> None:
        undo_loops()
        undo_functions()

    return undo_installation


def _function_replacements() -> Iterator[tuple[Any, str, Any]]:
    modules = dict.fromkeys((np, *_modules_importing_dot()))
    for own, answer in ((numpy_dot, compute_dot), (numpy_inner, compute_inner)):
        replaced = replacement_function(own, answer)
        for owner, name in attributes_bound_to(own, *modules):
            yield owner, name, replaced


def _modules_importing_dot() -> Iterator[Any]:
    """Yield the modules of this NumPy version that import dot and inner by name."""
    for caller in FUNCTIONS_CALLING_DOT:
        function: Any = np
        for name in caller.split("."):
            function = getattr(function, name, None)
        own = getattr(function, "_implementation", getattr(function, "__wrapped__", function))
        module = sys.modules.get(str(getattr(own, "__globals__", {}).get("__name__")))
        if module is not None:
            yield module


def compute_dot(*operands: Any, **options: Any) -> Any:
    """Return numpy.dot's result; fmm computes the product only if both arrays have two dimensions."""
    arguments = parse_dot_operands(operands, options)
    if arguments is None:
        return numpy_dot(*operands, **options)
    a, b, out = arguments
    by_fmm = _are_large_matrices(a, b) and _is_valid_out(out, a, b)
    if by_fmm or (is_reporting() and _are_plain_matrices(a, b)):
        return multiply_and_count("numpy.dot", _dot_by_plan if by_fmm else numpy_dot, *operands, **options)
    return numpy_dot(*operands, **options)


def compute_inner(*operands: Any, **options: Any) -> Any:
    """Return numpy.inner's result.

    For two matrices, fmm multiplies the first matrix by the transpose of the second matrix.
    """
    if len(operands) == 2 and not options and type(operands[1]) is ndarray:
        a, b = operands[0], operands[1].T
        by_fmm = _are_large_matrices(a, b)
        if by_fmm or (is_reporting() and _are_plain_matrices(a, b)):
            return multiply_and_count("numpy.inner", _dot_by_plan if by_fmm else _product_by_numpy_inner, a, b)
    return numpy_inner(*operands, **options)


def _dot_by_plan(a: Any, b: Any, /, out: Any = None) -> Any:
    """Return the product of two matrices, computed by a plan if a plan is faster, else by numpy.dot."""
    if was_declined(NUMPY_DOT, a, b):
        return numpy_dot(a, b, out)
    return run_matmul(NUMPY_DOT, a, b, out, NO_CONSTRAINTS)


def _product_by_numpy_inner(a: Any, b: Any) -> Any:
    return numpy_inner(a, b.T)


def _are_large_matrices(a: Any, b: Any) -> bool:
    """Return True if a and b are two matrices of matching shapes and are large enough for a plan."""
    return not is_small_on_host(a, b) and _are_plain_matrices(a, b) and a.shape[1] == b.shape[0]


def _are_plain_matrices(a: Any, b: Any) -> bool:
    """Return True if a and b are two NumPy matrices with element types that plans support."""
    return (
        type(a) is ndarray
        and type(b) is ndarray
        and a.ndim == b.ndim == 2
        and a.dtype in TYPE_NAMES
        and b.dtype in TYPE_NAMES
    )


def _is_valid_out(out: Any, a: Any, b: Any) -> bool:
    """Return True if numpy.dot can write to `out`: dot requires a row-major array of the exact result type.

    For any other `out`, numpy.dot is called, and raises its own error.
    """
    if out is None:
        return True
    valid = type(out) is ndarray and out.flags.carray and out.shape == (a.shape[0], b.shape[1])
    return bool(valid and out.dtype.isnative and out.dtype.num == np.result_type(a.dtype, b.dtype).num)
