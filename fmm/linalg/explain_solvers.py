"""fmm.explain for the functions of fmm.linalg: the steps of a call, chosen by the same functions as in the call itself.

Each function here has the parameters of a solver. No array is read, only its shape, element type and device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fmm.linalg.arguments import check_choice, check_limit, check_square, checked_trans_option, common_arrays
from fmm.linalg.cholesky_qr import step_conditions
from fmm.linalg.cholesky_recursion import cholesky_block_side, inverted_block_side
from fmm.linalg.inverse import LU_INVERTED_SIDE, MATRIX_KINDS, inverse_panel_width, positive_definite_block_side
from fmm.linalg.least_squares import is_solved_by_cholesky_qr
from fmm.linalg.qr_factors import QR_MODES, prefers_cholesky_qr
from fmm.linalg.qr_steps import cholesky_qr_steps
from fmm.linalg.recursion_steps import (
    BlocksOfSystem,
    DiagonalBlocks,
    cholesky_steps,
    general_inverse_steps,
    positive_definite_inverse_steps,
    triangular_steps,
)
from fmm.linalg.solver_decision import SolverDecision
from fmm.linalg.solver_library import NumpySolvers
from fmm.linalg.solver_steps import Step
from fmm.linalg.triangular_recursion import inverts_diagonal_blocks, triangular_block_side


def explain_solve_triangular(
    a: Any,
    b: Any,
    trans: Any = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    *,
    left: bool = True,
    out: Any = None,
    max_error_growth: float | None = None,
) -> SolverDecision:
    """Return the decision for a call of solve_triangular."""
    library, (a, b) = common_arrays(a, b, as_in_scipy=True)
    check_square(a)
    n, columns = a.shape[-1], 1 if b.ndim == 1 else b.shape[-1 if left else -2]
    blocks = DiagonalBlocks(0, False)
    if library.is_plain(a, b):
        blocks = diagonal_blocks_function(library, a, max_error_growth)(n, columns)
    vendor = Step("solve_triangular", columns, n, n)
    is_lower = bool(lower) ^ (checked_trans_option(trans) != "N") ^ (not left)
    steps = triangular_steps(n, columns, blocks, is_lower)
    return solver_decision("solve_triangular", library, a, max_error_growth, steps, vendor)


def explain_cholesky(
    a: Any, /, *, upper: bool = False, out: Any = None, max_error_growth: float | None = None
) -> SolverDecision:
    """Return the decision for a call of cholesky."""
    library, (a,) = common_arrays(a)
    check_square(a)
    n, limit = a.shape[-1], max_error_growth
    steps = cholesky_factor_steps(library, a, limit) if library.is_plain(a) else iter((Step("cholesky", n, n, n),))
    return solver_decision("cholesky", library, a, limit, steps, Step("cholesky", n, n, n))


def cholesky_factor_steps(library: NumpySolvers, a: Any, limit: float | None) -> Iterator[Step]:
    """Return the steps of the Cholesky factor of a."""
    side = cholesky_block_side(library, a, limit)
    blocks = DiagonalBlocks(inverted_block_side(library, a, side), inverts_diagonal_blocks(library, a))
    return cholesky_steps(a.shape[-1], side, blocks)


def explain_inv(
    a: Any, /, *, assume_a: str = "gen", out: Any = None, max_error_growth: float | None = None
) -> SolverDecision:
    """Return the decision for a call of inv."""
    check_choice("assume_a", assume_a, MATRIX_KINDS)
    library, (a,) = common_arrays(a)
    check_square(a)
    n, limit, vendor = a.shape[-1], max_error_growth, Step("inv", a.shape[-1], a.shape[-1], a.shape[-1])
    steps: Iterator[Step] = iter((vendor,))
    if library.is_plain(a) and not library.needs_gradient(a):
        select_diagonal_blocks = diagonal_blocks_function(library, a, limit)
        if assume_a == "pos" and (side := positive_definite_block_side(library, a, limit)):
            blocks = DiagonalBlocks(side, inverts_diagonal_blocks(library, a))
            steps = positive_definite_inverse_steps(n, cholesky_factor_steps(library, a, limit), blocks)
        elif assume_a == "gen" and (width := inverse_panel_width(library, a, limit)):
            blocks = select_diagonal_blocks(n, n)
            steps = general_inverse_steps(n, width, blocks._replace(side=min(blocks.side, LU_INVERTED_SIDE)))
    return solver_decision("inv", library, a, limit, steps, vendor)


def explain_qr(a: Any, /, mode: str = "reduced", *, max_error_growth: float | None = None) -> SolverDecision:
    """Return the decision for a call of qr."""
    check_choice("mode", mode, QR_MODES)
    library, (a,) = common_arrays(a)
    is_product = prefers_cholesky_qr(library, a, mode == "reduced", max_error_growth)
    return tall_qr_decision("qr", library, a, max_error_growth, is_product, mode == "reduced")


def explain_lstsq(a: Any, b: Any, /, *, max_error_growth: float | None = None) -> SolverDecision:
    """Return the decision for a call of lstsq; the library's lstsq is predicted to take as long as its QR."""
    library, (a, b) = common_arrays(a, b)
    is_product = is_solved_by_cholesky_qr(library, a, b, max_error_growth)
    return tall_qr_decision("lstsq", library, a, max_error_growth, is_product, with_q=False)


def tall_qr_decision(
    function: str, library: NumpySolvers, a: Any, limit: float | None, by_products: bool, with_q: bool
) -> SolverDecision:
    """Return the decision for a call of qr or lstsq, which factor tall matrices."""
    if a.ndim < 2:
        raise ValueError(f"expected a matrix or a stack of matrices, not the shape {tuple(a.shape)}")
    m, n = a.shape[-2:]
    vendor = Step("qr", m, n, n)
    conditions = step_conditions(library, a, limit)
    steps = cholesky_qr_steps(m, n, conditions, with_q) if by_products else iter((vendor,))
    return solver_decision(function, library, a, limit, steps, vendor)


def diagonal_blocks_function(library: NumpySolvers, a: Any, limit: float | None) -> BlocksOfSystem:
    """Return a function that describes the diagonal blocks of a triangular system with a matrix like a.

    The returned function has two parameters: the number of rows and the number of right-hand sides.
    """

    def select_diagonal_blocks(n: int, columns: int) -> DiagonalBlocks:
        part = a[..., :n, :n]
        return DiagonalBlocks(
            triangular_block_side(library, part, columns, limit), inverts_diagonal_blocks(library, part)
        )

    return select_diagonal_blocks


def solver_decision(
    function: str, library: NumpySolvers, a: Any, limit: float | None, steps: Iterator[Step], vendor: Step
) -> SolverDecision:
    """Return the decision for a call that consists of these steps."""
    check_limit(limit)
    return SolverDecision(function, tuple(a.shape), step_conditions(library, a, limit), tuple(steps), vendor)


EXPLANATIONS = {
    "solve_triangular": explain_solve_triangular,
    "cholesky": explain_cholesky,
    "inv": explain_inv,
    "qr": explain_qr,
    "lstsq": explain_lstsq,
}
