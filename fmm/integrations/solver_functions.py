"""Installation of fmm in the solvers of NumPy, SciPy and CuPy (fmm.install installs it with the products).

A replaced function calls fmm.linalg for large matrices where the model predicts a gain. For all other calls, a replaced
function calls the library's own function. If fmm.linalg raises an error, the library's own function is called, and
raises the library's own error.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from fmm import linalg
from fmm.integrations.product_functions import attributes_bound_to, replace_attributes, replacement_function
from fmm.linalg.arguments import is_square
from fmm.linalg.cholesky_recursion import cholesky_block_side
from fmm.linalg.halving_rules import SMALLEST_GAINING_SIDE
from fmm.linalg.inverse import inverse_panel_width
from fmm.linalg.least_squares import is_solved_by_cholesky_qr
from fmm.linalg.lu_recursion import lu_panel_width
from fmm.linalg.qr_factors import QR_MODES, prefers_cholesky_qr
from fmm.linalg.solver_library import SOLVER_TYPES, NumpySolvers, solver_library
from fmm.linalg.triangular_recursion import triangular_halving_count

SolverFunction = Callable[..., Any]  # returns the solver's result, or None if the library's own function must run

# ---- the functions of each library, with the library's parameters


def cholesky(a: Any, /, *, upper: bool = False) -> Any:
    """Return the result of numpy.linalg.cholesky or CuPy's cholesky; None if no speedup is predicted."""
    return linalg.cholesky(a, upper=upper) if cholesky_block_side(solver_library(a), a, None) else None


def inv(a: Any) -> Any:
    """Return the result of numpy.linalg.inv or CuPy's inv; None if no speedup is predicted."""
    return linalg.inv(a) if inverse_panel_width(solver_library(a), a, None) else None


def qr(a: Any, mode: str = "reduced") -> Any:
    """Return the result of CuPy's qr; None if no speedup is predicted."""
    if mode not in QR_MODES or not prefers_cholesky_qr(solver_library(a), a, mode == "reduced", None):
        return None
    return linalg.qr(a, mode)  # type: ignore[arg-type]


def solve(a: Any, b: Any) -> Any:
    """Return the result of CuPy's solve; None if no speedup is predicted."""
    return linalg.solve(a, b) if is_square(a) and lu_panel_width(solver_library(a, b), a, None) else None


def lu_factor(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """Return the result of CuPy's lu_factor; None if no speedup is predicted."""
    library = solver_library(a)
    if not is_square(a) or not lu_panel_width(library, a, None) or (check_finite and not are_finite(library, a)):
        return None
    return linalg.lu_factor(a)


def lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
    """Return the result of CuPy's lstsq; None if the program sets a rank threshold, or if no speedup is predicted."""
    if rcond is not None or not is_solved_by_cholesky_qr(solver_library(a, b), a, b, None):
        return None
    return tuple(linalg.lstsq(a, b))


def solve_triangular(
    a: Any,
    b: Any,
    trans: Any = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Any:
    """Return the result of scipy.linalg.solve_triangular or CuPy's; None if no speedup is predicted."""
    columns = right_side_count(b)
    library = solver_library(a, b)
    if not is_matrix(a) or not triangular_halving_count(library, a, columns, None):
        return None
    if check_finite and not are_finite(library, a, b):
        return None
    return linalg.solve_triangular(a, b, trans, lower, unit_diagonal)


def scipy_cholesky(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """Return the result of scipy.linalg.cholesky; None if no speedup is predicted."""
    return cholesky(checked_matrix(a, check_finite), upper=not lower) if is_matrix(a) else None


def scipy_inv(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """Return the result of scipy.linalg.inv; None if no speedup is predicted."""
    return inv(checked_matrix(a, check_finite)) if is_matrix(a) else None


def cho_solve(c_and_lower: Any, b: Any, overwrite_b: bool = False, check_finite: bool = True) -> Any:
    """Return the result of scipy.linalg.cho_solve; None if no speedup is predicted."""
    factor, lower = c_and_lower
    columns = right_side_count(b)
    if not is_matrix(factor) or not triangular_halving_count(solver_library(factor, b), factor, columns, None):
        return None
    checked_matrix(factor, check_finite), checked_matrix(b, check_finite)
    return linalg.cho_solve((factor, lower), b)


def are_finite(library: NumpySolvers, *arrays: Any) -> bool:
    """Return False if an array has inf or NaN: the library's own function then raises its error, or computes NaN."""
    return all(bool(library.module.isfinite(x).all()) for x in arrays)


def right_side_count(b: Any) -> int:
    """Return the number of columns of a matrix; 1 for a vector. Both may be lists, which SciPy accepts."""
    shape = np.shape(b)
    return int(shape[1]) if len(shape) == 2 else 1


def is_matrix(a: Any) -> bool:
    """Return True for a matrix; SciPy's own functions handle stacks."""
    return bool(a.ndim == 2)


def checked_matrix(a: Any, check_finite: bool) -> Any:
    """Return the matrix; if `check_finite` is True, raise ValueError for inf and NaN, as SciPy does."""
    return np.asarray_chkfinite(a) if check_finite else a


NUMPY_SOLVER_FUNCTIONS: dict[str, SolverFunction] = {"cholesky": cholesky, "inv": inv}
CUPY_SOLVER_FUNCTIONS: dict[str, SolverFunction] = {
    "cholesky": cholesky,
    "inv": inv,
    "qr": qr,
    "lstsq": lstsq,
    "solve": solve,
}
CUPYX_SOLVER_FUNCTIONS: dict[str, SolverFunction] = {"solve_triangular": solve_triangular, "lu_factor": lu_factor}
SCIPY_SOLVER_FUNCTIONS: dict[str, SolverFunction] = {
    "cholesky": scipy_cholesky,
    "inv": scipy_inv,
    "cho_solve": cho_solve,
    "solve_triangular": solve_triangular,
}

# ---- replacing functions

running_solver = threading.local()  # while its attribute `on` is True in a thread, the library's own functions run


def install() -> Callable[[], None]:
    """Replace SciPy's functions; return the function that restores them."""
    import scipy.linalg

    return replace_attributes(solver_replacements(scipy.linalg, SCIPY_SOLVER_FUNCTIONS, np.ndarray))


def solver_replacements(
    module: Any, functions: Mapping[str, SolverFunction], array_type: type
) -> Iterator[tuple[Any, str, Any]]:
    """Yield (module, name, replacement) for each name in `module` that is bound to one of the replaced functions."""
    for function, solver in functions.items():
        own = getattr(module, function, None)
        if own is not None:
            replaced = replacement_function(own, make_solver_replacement(own, solver, array_type))
            for owner, name in attributes_bound_to(
                own, *dict.fromkeys((module, sys.modules.get(getattr(own, "__module__", ""), module)))
            ):
                yield owner, name, replaced


def make_solver_replacement(own: Any, solver: SolverFunction, array_type: type) -> Callable[..., Any]:
    """Return a function that calls the solver for large matrices, and otherwise the library's own function."""

    def solve_or_call_library(*operands: Any, **options: Any) -> Any:
        if not operands or not is_large_matrix(operands[0], array_type) or getattr(running_solver, "on", False):
            return own(*operands, **options)
        running_solver.on = True
        try:
            result = solver(*operands, **options)
        except (RuntimeError, MemoryError, TypeError, ValueError, np.linalg.LinAlgError):
            result = None  # the library's own function raises its own exception
        finally:
            running_solver.on = False
        return own(*operands, **options) if result is None else result

    return solve_or_call_library


def is_large_matrix(a: Any, array_type: type) -> bool:
    """Return True if an array is so large that a solver by products may be faster than the library's own.

    `a` is an array, or the tuple (factor, lower) that scipy.linalg.cho_factor returns.
    """
    a = a[0] if type(a) is tuple and a else a
    if type(a) is not array_type:
        return False
    x: Any = a
    return x.ndim >= 2 and max(x.shape[-2:]) >= SMALLEST_GAINING_SIDE and x.dtype.name in SOLVER_TYPES
