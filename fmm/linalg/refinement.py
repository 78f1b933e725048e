"""Solutions of float64 systems from float32 factors: iterative refinement as in LAPACK's dsgesv, or GMRES."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fmm.linalg.cholesky_factors import cholesky
from fmm.linalg.lu_factors import lu_of_stacks, row_orders_after_exchanges
from fmm.linalg.solver_library import NumpySolvers
from fmm.linalg.triangular_recursion import solve_blocks, triangular_blocks

MAX_STEPS = 30  # as in dsgesv
# A step of refinement stagnates if the largest residual is more than this fraction of the residual before the step.
STAGNATION = 0.5
GMRES_DIMENSION, MAX_GMRES_CYCLES = 10, 3
INVERTED_SIDE = 1024  # rows of the blocks on the diagonals of the factors, which a GPU inverts once for all steps

Preconditioner = Callable[[Any], Any]  # returns the solutions for right-hand sides from the float32 factors, in float64


class RefinementReport(NamedTuple):
    """The number of steps and the precision with which a system was solved."""

    factors: str  # the element type of the factors
    steps: int  # steps of iterative refinement
    gmres_steps: int  # steps of GMRES, which follow if refinement stagnates
    backward_error: float  # largest norm of b - a x, divided by the norms of a and x; NaN without refinement


class _LinearSystem:
    """The system a x = b, and the residuals of approximate solutions."""

    def __init__(self, library: NumpySolvers, a: Any, b: Any, norm: float) -> None:
        eps = float(np.finfo(np.float64).eps) / 2
        self.library, self.a, self.b = library, a, b
        self.tolerance = float(np.sqrt(len(a))) * eps * norm
        self.precise_ratio = eps * norm / self.tolerance

    def residual(self, x: Any) -> tuple[Any, float]:
        """Return the residual b - a x, and the largest ratio of a column of the residual to the column's bound.

        The ratio of a column is the largest entry of the residual in this column, divided by the column's bound. The
        bound of a column is `tolerance` times the largest entry of the same column of x.
        """
        module = self.library.module
        columns = self.b - module.matmul(self.a, x)
        largest, bound = module.amax(abs(columns), -2), module.amax(abs(x), -2) * self.tolerance
        return columns, self.library.element_as_float((largest / (bound + (largest == 0))).max())


@np.errstate(all="ignore")  # float32 overflows, and SciPy does not warn of inf and NaN
def refine_solution(
    library: NumpySolvers, a: Any, b: Any, assume_a: str, limit: float | None
) -> tuple[Any | None, RefinementReport]:
    """Return solutions refined from float32 factors, and a report; the solutions are None if they do not converge."""
    if assume_a == "pos":  # the residuals are those of the lower triangle, which is the only one that is factored
        a = library.module.tril(a) + library.transpose(library.module.tril(a, -1))
    single = library.cast(a, "float32")
    norm = library.element_as_float(abs(single).sum(-1).max())
    precondition = _factor_in_float32(library, single, assume_a, limit) if norm < np.inf else None
    if precondition is None:
        return None, RefinementReport("", 0, 0, float("nan"))
    system = _LinearSystem(library, a, b, norm)
    x, ratio, steps = _refine_by_residuals(system, precondition(b), precondition)
    cycles = 0
    while 1 < ratio < np.inf and cycles < MAX_GMRES_CYCLES:
        residual, _ = system.residual(x)
        x, ratio, more = _refine_by_residuals(
            system, x + gmres_corrections(library, a, residual, precondition), precondition
        )
        cycles, steps = cycles + 1, steps + more
    report = RefinementReport("float32", steps, cycles * GMRES_DIMENSION, ratio * system.tolerance / norm)
    return (x if ratio <= 1 else None), report


def _refine_by_residuals(system: _LinearSystem, x: Any, precondition: Preconditioner) -> tuple[Any, float, int]:
    """Return refined solutions, the largest ratio of residual to bound (see `residual`), and the number of steps.

    The solutions are accurate enough if the largest ratio is at most 1. The steps still continue until the backward
    error is about float64's precision, or until the largest ratio no longer falls.
    """
    residual, ratio = system.residual(x)
    steps = 0
    while ratio > system.precise_ratio and steps < MAX_STEPS:
        corrected = x + precondition(residual)
        residual, new_ratio = system.residual(corrected)
        steps += 1
        if not new_ratio < ratio:
            break
        stagnates = new_ratio > STAGNATION * ratio
        x, ratio = corrected, new_ratio
        if stagnates:
            break
    return x, ratio, steps


def _factor_in_float32(library: NumpySolvers, a: Any, assume_a: str, limit: float | None) -> Preconditioner | None:
    """Factor a float32 matrix, and return a function that solves systems by the factors.

    Return None if the matrix is singular in float32.
    """
    order = None
    if assume_a == "pos":
        try:
            factor = cholesky(a, max_error_growth=limit)
        except library.linalg_error:
            return None
        triangles = (factor, True, False), (library.transpose(factor), False, False)
    else:
        if (factors := lu_of_stacks(library, a, limit)) is None and (factors := library.lu(a)) is None:
            return None
        triangles = (factors.lu, True, True), (factors.lu, False, False)
        order = row_orders_after_exchanges(library, factors.pivots)
    side = INVERTED_SIDE if a.shape[0] >= 2 * INVERTED_SIDE else 0
    solvers = [(triangular_blocks(library, *triangle, side, limit), triangle[0]) for triangle in triangles]

    def solve(y: Any) -> Any:
        x = library.overwrite(library.empty(tuple(y.shape), y), y if order is None else y[order])
        for blocks, matrix in solvers:
            solve_blocks(blocks, matrix, x)
        return x

    return lambda y: _solve_scaled(library, solve, y)


def _solve_scaled(library: NumpySolvers, solve: Callable[[Any], Any], y: Any) -> Any:
    """Return solutions that were computed in float32, as float64 arrays.

    Each column of y is scaled to the magnitude 1 before the solution and scaled back after it, so that no column
    underflows in float32.
    """
    largest = library.module.amax(abs(y), -2)[None]
    scale = largest + (largest == 0)
    return library.cast(solve(library.cast(y / scale, "float32")), "float64") * scale


# ---- GMRES


def gmres_corrections(library: NumpySolvers, a: Any, right_sides: Any, precondition: Preconditioner) -> Any:
    """Return approximate solutions z of a z = r for all right-hand sides r, by GMRES_DIMENSION steps of GMRES."""
    module = library.module
    start = precondition(right_sides)
    norms = _column_norms(library, start)
    basis, columns = [start / norms], []
    for j in range(GMRES_DIMENSION):
        z, column = precondition(module.matmul(a, basis[j])), []
        for v in basis:  # modified Gram-Schmidt
            column.append((v * z).sum(-2))
            z = z - column[-1] * v
        norm = _column_norms(library, z)
        columns.append([*column, norm])
        basis.append(z / norm)
    coefficients = _min_residual_coefficients(library, columns, norms)
    return sum(library.from_host(y, start) * v for y, v in zip(coefficients, basis, strict=False))


def _column_norms(library: NumpySolvers, x: Any) -> Any:
    """Return the Euclidean norm of each column plus a tiny number, so that no norm is zero."""
    return (x * x).sum(-2) ** 0.5 + float(np.finfo(np.float64).tiny)


def _min_residual_coefficients(library: NumpySolvers, columns: list[list[Any]], norms: Any) -> Any:
    """Return the coefficients of GMRES's basis vectors that minimise the residuals, one row for each basis vector.

    Return NaN if a number overflowed: numpy.linalg.lstsq would raise an exception.
    """
    count = len(columns)
    hessenberg = np.zeros((int(norms.shape[0]), count + 1, count))
    for j, column in enumerate(columns):
        hessenberg[:, : len(column), j] = library.to_host(library.module.stack(column)).T
    target = np.zeros((len(hessenberg), count + 1))
    target[:, 0] = library.to_host(norms)
    if not (np.isfinite(hessenberg).all() and np.isfinite(target).all()):
        return np.full((count, len(hessenberg)), np.nan)
    return np.array([np.linalg.lstsq(h, t, rcond=None)[0] for h, t in zip(hessenberg, target, strict=True)]).T
