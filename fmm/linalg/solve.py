"""fmm.linalg.solve: linear systems by LU or Cholesky factors, or by factors of lower precision and refinement."""

from __future__ import annotations

from typing import Any, Literal

from fmm.linalg.arguments import check_choice, check_limit, check_right_sides, check_square, common_arrays, write_result
from fmm.linalg.cholesky_factors import cho_solve, cholesky
from fmm.linalg.cholesky_recursion import cholesky_block_side
from fmm.linalg.lu_factors import solve_systems
from fmm.linalg.lu_recursion import lu_panel_width
from fmm.linalg.refinement import RefinementReport, refine_solution
from fmm.linalg.solver_library import NUMPY_SOLVERS, NumpySolvers, TorchSolvers

SYSTEM_KINDS = ("gen", "pos", "sym")


def solve(
    a: Any,
    b: Any,
    /,
    *,
    assume_a: Literal["gen", "pos", "sym"] = "gen",
    refine: bool = False,
    out: Any = None,
    max_error_growth: float | None = None,
) -> Any:
    """Return the solution x of a x = b, as numpy.linalg.solve does.

    Parameters
    ----------
    a : array
        A square matrix, or a stack of square matrices, of NumPy, CuPy or torch.
    b : array
        The right-hand sides: a vector, a matrix, or a stack of matrices. The stacks of a and b are broadcast. For torch
        also a stack of vectors, as in torch.linalg.solve: b of the shape of a without its last dimension.
    assume_a : {"gen", "pos", "sym"}, optional
        "pos" for a Hermitian positive definite matrix: its Cholesky factor is computed, and only the lower triangle of
        a is read. "sym" for a symmetric matrix: SciPy's own solver is called for NumPy arrays for which no gain is
        predicted, and other matrices are factored by LU, as with "gen".
    refine : bool, optional
        If True, factor a float64 matrix in float32, and refine the solution to the backward error of float64. See
        `refined_solve`, which also returns the number of steps.
    out : array, optional
        Array for the solution. `out` may be `b`.
    max_error_growth : float, optional
        Limit on the error growth of the products, as in fmm.matmul.

    Returns
    -------
    array
        The solution x, with the shape of b; `out` if it was passed.

    Raises
    ------
    LinAlgError
        The matrix is singular; with "pos", the matrix is not positive definite. The exception is the library's own.
    ValueError
        The shapes do not match, or assume_a has an unknown value.

    Notes
    -----
    The library's own function solves systems for which no gain is predicted. Gradients are computed for tensors that
    require gradients.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> fmm.linalg.solve(np.array([[1.0, 2.0], [4.0, 4.0]]), np.array([5.0, 12.0]))
    array([1., 2.])
    """
    if refine:
        x, _ = refined_solve(a, b, assume_a=assume_a, max_error_growth=max_error_growth)
        return write_result(common_arrays(a, b)[0], out, x)
    library, a, b, is_vector = _check_system(a, b, assume_a, max_error_growth)
    x = solve_columns(library, a, b, assume_a, max_error_growth)
    return write_result(library, out, x[..., 0] if is_vector else x)


def refined_solve(
    a: Any, b: Any, /, *, assume_a: Literal["gen", "pos", "sym"] = "gen", max_error_growth: float | None = None
) -> tuple[Any, RefinementReport]:
    """Return the solution of a x = b from float32 factors with refinement, and a report, as LAPACK's dsgesv does.

    Parameters
    ----------
    a, b, assume_a, max_error_growth
        The arguments of fmm.linalg.solve with these names. Systems of other types than float64, and stacks, are solved
        without refinement.

    Returns
    -------
    x : array
        The solution, with the shape of b.
    report : RefinementReport
        The element type of the factors, the numbers of refinement and GMRES steps, and the backward error: the largest
        norm of b - a x divided by the norms of a and x. The norm of a matrix is its largest row sum. The backward error
        is NaN if x was computed without refinement, also where refinement failed.

    Notes
    -----
    Each step computes the residual b - a x in float64, and adds the solution for the residual to x. A solution is
    accepted if the residual of each right-hand side is at most sqrt(n) eps times the norms of a and x, as in LAPACK.
    Steps continue while the residuals fall. If the residuals stagnate above this bound, GMRES computes corrections of
    x, with the float32 factors as preconditioner. If GMRES fails too, or if the factors are singular or overflow, the
    matrix is factored in float64.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> x, report = fmm.linalg.refined_solve(np.array([[1.0, 2.0], [4.0, 4.0]]), np.array([5.0, 12.0]))
    >>> x, report.factors
    (array([1., 2.]), 'float32')
    """
    library, a, b, is_vector = _check_system(a, b, assume_a, max_error_growth)
    x, report = None, RefinementReport("", 0, 0, float("nan"))
    is_refinable = a.ndim == b.ndim == 2 and 0 not in (*a.shape, *b.shape) and library.is_plain(a, b)
    if is_refinable and library.type_name(a) == "float64" and not library.needs_gradient(a, b):
        x, report = refine_solution(library, a, b, assume_a, max_error_growth)
    if x is None:
        x = solve_columns(library, a, b, assume_a, max_error_growth)
        report = report._replace(factors=library.type_name(a), backward_error=float("nan"))
    return x[..., 0] if is_vector else x, report


def _check_system(a: Any, b: Any, assume_a: str, limit: float | None) -> tuple[NumpySolvers, Any, Any, bool]:
    """Return the functions of the arrays' library, a, b as a matrix or a stack, and True if b was a vector.

    For torch, b may also be a stack of vectors: NumPy 2 takes the same b for a matrix.
    """
    check_choice("assume_a", assume_a, SYSTEM_KINDS)
    check_limit(limit)
    library, (a, b) = common_arrays(a, b)
    check_square(a)
    is_vector = b.ndim == 1 or (isinstance(library, TorchSolvers) and b.shape == a.shape[:-1])
    if is_vector:
        b = b[..., None]
    check_right_sides(a, b)
    return library, a, b, is_vector


def solve_columns(library: NumpySolvers, a: Any, b: Any, assume_a: str, limit: float | None) -> Any:
    """Return the solutions of a x = b for checked arrays, where b is a matrix or a stack."""
    if assume_a == "pos" and (library is not NUMPY_SOLVERS or cholesky_block_side(library, a, limit)):
        return cho_solve((cholesky(a, max_error_growth=limit), True), b, max_error_growth=limit)
    if assume_a == "pos" or not lu_panel_width(library, a, limit) or not library.is_plain(a, b):
        return library.solve(a, b, assume_a)
    if library.needs_gradient(a, b):
        from fmm.linalg.torch_system_gradients import SystemSolution

        return SystemSolution.apply(a, b, limit)
    return solve_systems(library, a, b, assume_a, limit)[0]
