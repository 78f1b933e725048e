"""The steps of a QR factorization by Cholesky factors, with the block sizes that the model predicts to be fastest."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from fmm.kernels.plans.plan import VENDOR
from fmm.linalg.halving_rules import first_half_row_count
from fmm.linalg.solver_steps import VENDOR_COSTS, Step, StepConditions, predicted_seconds, product_decision

# Element types of the matrices that Cholesky QR factors. The vendor's Gram matrices of complex matrices are not
# accurate enough: Q would be up to 20 times less orthogonal than the Q of Householder's method (complex64 on an
# H100).
GAINING_TYPES = ("float32", "float64")
MAX_COLUMN_BLOCKS = 8
MAX_INVERSE_HALVINGS = 4
# If the library's own QR is predicted to take less than this number of seconds, the library factors the matrix, and the
# time of Cholesky QR is not predicted.
LEAST_VENDOR_SECONDS = 2e-3
LEAST_GAIN = 1.1  # smallest predicted speedup over the library's own QR for which products factor the matrix
# Smallest ratio of rows to columns of a matrix that Cholesky QR factors. For random square matrices, the condition
# number of the matrix is too large for two passes of Cholesky QR.
LEAST_ASPECT = 1.5
# If a matrix has at least LONG_ASPECT rows per column, the vendor computes its Gram matrix as a sum over blocks of
# rows. One product of all rows would be slow, and its error grows with the number of rows.
LONG_ASPECT = 32
BLOCK_ROWS = 4096


@lru_cache(maxsize=1024)
def is_cholesky_qr_faster(m: int, n: int, conditions: StepConditions, with_q: bool = True) -> bool:
    """Return True if Cholesky QR of an m x n matrix is predicted to take less time than the library's own QR."""
    if conditions.dtype not in GAINING_TYPES or conditions.device == "cpu" or m < LEAST_ASPECT * n:
        return False
    cost = VENDOR_COSTS["qr"]
    if n * (cost.column_seconds + m * cost.entry_seconds) < LEAST_VENDOR_SECONDS:
        return False
    try:
        own = predicted_seconds([Step("qr", m, n, n)], conditions)
        return own >= LEAST_GAIN * predicted_seconds(cholesky_qr_steps(m, n, conditions, with_q), conditions)
    except ImportError:  # CuPy is missing, so torch multiplies the tensors on the GPU
        return False


def cholesky_qr_steps(m: int, n: int, conditions: StepConditions, with_q: bool = True) -> Iterator[Step]:
    """Yield the steps of the two passes of Cholesky QR of an m x n matrix."""
    for is_last in (False, True):
        yield Step("product" if is_gram_summed_by_row_blocks(m, n, conditions) else "gram", n, m, n)
        yield Step("cholesky", n, n, n)
        if with_q or not is_last:
            yield from inverse_steps(n, inverse_halving_count(n, conditions))
            yield from adjoint_product_steps(m, n, len(column_blocks(m, n, conditions)))
    yield Step("product", n, n, n)


@lru_cache(maxsize=1024)
def is_gram_summed_by_row_blocks(m: int, n: int, conditions: StepConditions) -> bool:
    """Return True if the Gram matrix of an m x n matrix must be computed as a sum over blocks of rows."""
    if m < max(LONG_ASPECT * n, 2 * BLOCK_ROWS):
        return False
    return product_decision(Step("gram", n, m, n), conditions).plan == VENDOR


def inverse_steps(n: int, halvings: int) -> Iterator[Step]:
    """Yield the steps of the inverse of a triangular matrix."""
    if halvings == 0 or n < 2:
        yield Step("solve_triangular", n, n, n)
        return
    h = first_half_row_count(n)
    yield from inverse_steps(h, halvings - 1)
    yield from inverse_steps(n - h, halvings - 1)
    yield Step("product", n - h, h, h)
    yield Step("product", n - h, n - h, h)


@lru_cache(maxsize=1024)
def inverse_halving_count(n: int, conditions: StepConditions) -> int:
    """Return the number of halvings with which the inverse of a triangular matrix is predicted to be fastest."""
    seconds = [predicted_seconds(inverse_steps(n, i), conditions) for i in range(MAX_INVERSE_HALVINGS)]
    return seconds.index(min(seconds))


def adjoint_product_steps(m: int, n: int, blocks: int) -> Iterator[Step]:
    """Yield the products of an m x n matrix and an upper triangular matrix, one for each block of columns."""
    for start, stop in equal_ranges(n, blocks):
        yield Step("product", m, stop, stop - start)


@lru_cache(maxsize=1024)
def column_blocks(m: int, n: int, conditions: StepConditions) -> list[tuple[int, int]]:
    """Return the blocks of columns (start, stop) for the fastest product with an upper triangular matrix."""
    counts = [2**i for i in range(MAX_COLUMN_BLOCKS.bit_length()) if 2**i <= max(n // 256, 1)]
    best = min(counts, key=lambda count: predicted_seconds(adjoint_product_steps(m, n, count), conditions))
    return equal_ranges(n, best)


def equal_ranges(n: int, count: int) -> list[tuple[int, int]]:
    """Return the ranges (start, stop) of `count` nearly equal parts of n columns."""
    edges = [n * i // count for i in range(count + 1)]
    return list(pairwise(edges))
