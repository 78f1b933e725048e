"""QR factors of tall matrices by Cholesky factors of Gram matrices.

One pass computes the Cholesky factor L of the Gram matrix, A^H A = L L^H, and divides A by L^H: Q = A L^-H. The columns
of Q are orthonormal up to an error that grows with the square of A's condition number; a second pass on Q removes this
error. The Gram matrix of the second pass shows the error: if ||Q^H Q - I|| is small, the Q of the second pass is as
orthogonal as the Q of Householder's method. If the Gram matrix has no Cholesky factor, a small multiple of the identity
is added to the Gram matrix, and a third pass follows.

The algorithm and its analysis: Yamamoto, Nakatsukasa, Yanagisawa and Fukaya, "Roundoff error analysis of the
CholeskyQR2 algorithm", ETNA 44 (2015); the shift: Fukaya et al., SIAM J. Sci. Comput. 42 (2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from fmm import api
from fmm.linalg.cholesky_recursion import cholesky_of_stacks
from fmm.linalg.halving_rules import first_half_row_count
from fmm.linalg.qr_steps import BLOCK_ROWS, column_blocks, inverse_halving_count, is_gram_summed_by_row_blocks
from fmm.linalg.solver_library import NumpySolvers
from fmm.linalg.solver_steps import StepConditions
from fmm.linalg.triangular_recursion import TriangularForm, solve_triangular_without_gradient

MAX_PASSES = 3
# Largest ||Q^H Q - I|| before a pass that makes the columns of Q orthonormal to working accuracy.
MAX_DEVIATION = 0.25
SHIFT_UNITS = 4.0  # the shift added to the diagonal, in units of the Gram matrix's rounding error: eps * trace(A^H A)
# A product with the inverse of L replaces a triangular solve if the product's backward error is at most this number
# times the backward error of the triangular solve.
MAX_INVERSE_GROWTH = 8.0


class CholeskyQrPasses(NamedTuple):
    """Q and R before the last division, and the Cholesky factor L of Q^H Q: the QR factors are Q L^-H and L^H R."""

    q: Any
    r: Any
    last_factor: Any


def run_cholesky_qr_passes(
    library: NumpySolvers, a: Any, limit: float | None, max_passes: int = MAX_PASSES
) -> CholeskyQrPasses | None:
    """Run all passes except the last division; return None if the columns do not become orthonormal."""
    q, r = a, None
    for step in range(max_passes):
        gram = gram_of_tall_matrix(library, q, limit)
        is_last = step > 0 and deviation_from_identity(library, gram) <= MAX_DEVIATION
        if step == max_passes - 1 and not is_last:
            return None
        # Only the first pass adds a shift: after a shift in a later pass, too few passes remain to make the columns
        # orthonormal.
        if (factor := shifted_cholesky(library, gram, limit, (0.0, SHIFT_UNITS) if step == 0 else (0.0,))) is None:
            return None
        if is_last:
            return CholeskyQrPasses(q, r, factor)
        q, r = right_divide_by_adjoint(library, q, factor, limit), r_factor_after_pass(library, factor, r, limit)
    return None


def cholesky_qr(library: NumpySolvers, a: Any, limit: float | None, with_q: bool = True) -> tuple[Any, Any] | None:
    """Return Q and R of one tall matrix; None if the columns of Q do not become orthonormal.

    If `with_q` is False, Q is not computed and None is returned in its place.
    """
    if (passes := run_cholesky_qr_passes(library, a, limit)) is None:
        return None
    q = right_divide_by_adjoint(library, passes.q, passes.last_factor, limit, is_last=True) if with_q else None
    return q, r_factor_after_pass(library, passes.last_factor, passes.r, limit)


def r_factor_after_pass(library: NumpySolvers, factor: Any, r: Any, limit: float | None) -> Any:
    """Return the R of A = Q R after one more pass with the factor L: the product L^H R."""
    upper = library.adjoint(factor)
    return upper if r is None else library.module.triu(api.matmul(upper, r, max_error_growth=limit))


def deviation_from_identity(library: NumpySolvers, gram: Any) -> float:
    """Return the Frobenius norm of (Gram matrix - identity); NaN if the matrix has NaN."""
    return float(library.module.linalg.norm(gram - library.identity(gram.shape[0], gram)))


def gram_of_tall_matrix(library: NumpySolvers, a: Any, limit: float | None) -> Any:
    """Return A^H A, for a matrix with very many rows as a sum over blocks of rows."""
    m, n = a.shape
    if not is_gram_summed_by_row_blocks(m, n, step_conditions(library, a, limit)):
        return api.gram(a, max_error_growth=limit)
    count = m // BLOCK_ROWS
    rows = count * BLOCK_ROWS
    blocks = a[:rows].reshape(count, BLOCK_ROWS, n)
    gram = api.matmul(library.adjoint(blocks), blocks, max_error_growth=limit).sum(0)
    return gram if rows == m else gram + api.gram(a[rows:], max_error_growth=limit)


def shifted_cholesky(library: NumpySolvers, gram: Any, limit: float | None, shifts: Sequence[float]) -> Any:
    """Return the lower Cholesky factor of the Gram matrix plus a shift of its diagonal.

    The shifts are tried in order until a factor exists; None is returned if no shift gives a factor.
    """
    for shift in shifts:
        if shift:
            diagonal = gram.reshape(-1)[:: gram.shape[0] + 1]
            diagonal += shift * float(np.finfo(str(gram.dtype).removeprefix("torch.")).eps) * diagonal.sum()
        try:
            return cholesky_of_stacks(library, gram, limit)
        except library.linalg_error:
            continue
    return None


def right_divide_by_adjoint(
    library: NumpySolvers, a: Any, factor: Any, limit: float | None, is_last: bool = False
) -> Any:
    """Return a L^-H: on a GPU by products with the inverse of L if the inverse is accurate enough.

    On the host, and if the inverse is not accurate enough, a triangular system is solved instead. In the last pass the
    inverse is accurate, since L L^H is close to the identity.
    """
    if is_product_with_inverse_faster(library, a):
        inverse = library.identity(factor.shape[0], factor)
        halvings = inverse_halving_count(factor.shape[0], step_conditions(library, a, limit))
        invert_lower_in_place(library, factor, inverse, halvings, limit)
        if is_last or inverse_error_growth(factor, inverse) <= MAX_INVERSE_GROWTH:
            return multiply_by_adjoint(library, a, inverse, limit)
    return solve_triangular_without_gradient(
        library, library.adjoint(factor), a, TriangularForm(False, False, False), limit
    )


def is_product_with_inverse_faster(library: NumpySolvers, a: Any) -> bool:
    """Return True for arrays on a GPU, where products with an inverse are faster than a triangular solve.

    On the host, BLAS solves triangular systems as fast as it multiplies.
    """
    return library.device(a) != "cpu"


def multiply_by_adjoint(library: NumpySolvers, a: Any, lower: Any, limit: float | None) -> Any:
    """Return a L^H, one block of columns after the other, so that the zeros of L^H are not multiplied."""
    (m, n), upper = a.shape, library.adjoint(lower)
    product = library.empty((m, n), a)
    for start, stop in column_blocks(m, n, step_conditions(library, a, limit)):
        api.matmul(a[:, :stop], upper[:stop, start:stop], out=product[:, start:stop], max_error_growth=limit)
    return product


def invert_lower_in_place(library: NumpySolvers, a: Any, x: Any, halvings: int, limit: float | None) -> None:
    """Replace x, which is the identity, by the inverse of the lower triangular matrix L.

    For L = [[L11, 0], [L21, L22]], the lower left block of the inverse is -L22^-1 * L21 * L11^-1.
    """
    n = a.shape[0]
    if halvings == 0 or n < 2:
        library.solve_block(a, x, True, False)
        return
    h = first_half_row_count(n)
    for half in (slice(0, h), slice(h, n)):
        invert_lower_in_place(library, a[half, half], x[half, half], halvings - 1, limit)
    panel = api.matmul(a[h:, :h], x[:h, :h], max_error_growth=limit)
    library.overwrite(x[h:, :h], api.gemm(x[h:, h:], panel, alpha=-1, max_error_growth=limit))


def inverse_error_growth(factor: Any, inverse: Any) -> float:
    """Return the factor by which a product with L^-H may exceed the backward error of a triangular solve.

    The backward error of the product A L^-H is the rounding error of the product, multiplied by L^H. The norm of the
    backward error is eps ||A|| sqrt(s), where s is the sum over k of ||row k of L^-1||^2 * ||column k of L||^2. The
    function returns sqrt(s / n), where n is the number of columns of A; if L is the identity, s / n is 1.
    """
    rows, columns = (abs(inverse) ** 2).sum(1), (abs(factor) ** 2).sum(0)
    return sqrt(float((rows * columns).mean()))


def step_conditions(library: NumpySolvers, a: Any, limit: float | None) -> StepConditions:
    """Return the element type, the device and the limit of the error growth, on which predicted times depend."""
    return StepConditions(library.product_type(a), library.device(a), limit)


@np.errstate(all="ignore")  # numpy.linalg does not warn of inf and NaN
def qr_of_tall_stacks(library: NumpySolvers, a: Any, limit: float | None, with_q: bool = True) -> tuple[Any, Any]:
    """Return Q and R of each matrix of a stack; the library's own factors if Cholesky QR fails.

    If `with_q` is False, Q is not computed and None is returned in its place.
    """
    if a.ndim == 2:
        return qr_of_tall_matrix(library, a, limit, with_q)
    *stack, _, n = a.shape
    q = library.empty(tuple(a.shape), a) if with_q else None
    r = library.empty((*stack, n, n), a)
    for i in np.ndindex(*stack):
        one_q, one_r = qr_of_tall_matrix(library, a[i], limit, with_q)
        library.overwrite(r[i], one_r)
        if q is not None:
            library.overwrite(q[i], one_q)
    return q, r


def qr_of_tall_matrix(library: NumpySolvers, a: Any, limit: float | None, with_q: bool) -> tuple[Any, Any]:
    """Return Q and R of one matrix; the library's own factors if Cholesky QR fails.

    If `with_q` is False, Q is not computed and None is returned in its place.
    """
    if (factors := cholesky_qr(library, a, limit, with_q)) is not None:
        return factors
    own = library.qr(a, "reduced" if with_q else "r")
    return own if with_q else (None, own)
