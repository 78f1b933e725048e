"""Decide how often a solver halves its matrix: as long as a plan is predicted to speed up the product of two halves.

A solver for a matrix of 2h rows consists of two solvers for h rows and a product of h x h matrices. The library's own
function contains the same product, computed by the vendor. A halving therefore saves the time that a plan saves in the
product, minus the time that the library's function loses on smaller matrices. Since no model predicts the time that the
library's function loses on smaller matrices, each solver has a rule with two limits: the smallest speedup of the
product for which the solver halves a matrix, and the smallest number of rows of a half.

On a GPU, the library's functions for triangular matrices are slow, so solvers that invert the blocks on the diagonal
save more time than the speedup of their products shows. The rules of these solvers are measured on a GPU of compute
capability 9.0: the smallest sizes of matrices for which the solvers were faster than the library's functions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from fmm import api
from fmm.linalg.solver_library import SINGLE_TYPES, SOLVER_TYPES, NumpySolvers

SMALLEST_GAINING_SIDE = 1024  # on every device, the library computes matrices whose sides are all shorter
ALIGNMENT = 128  # halves of large matrices are multiples of this number of rows: products of aligned operands are fast


class HalvingRule(NamedTuple):
    """The limits from which a solver halves its matrix: the rows of a half, and the predicted product speedup."""

    smallest_half: int
    gain: float


class SmallestProductSides(NamedTuple):
    """The rows of the smallest matrix for which GPU solvers use products, in single and in double precision."""

    single: int
    double: int


class BlockInversionRule(NamedTuple):
    """The matrix size from which a GPU solver multiplies by inverses of diagonal blocks, and the rows of a block."""

    single_smallest: int  # rows of the smallest matrix
    double_smallest: int
    fewest_entries: int  # smallest number of entries of the right-hand sides
    single_side: int  # rows of a block on the diagonal
    double_side: int
    gain: float  # smallest speedup of the product between two halves, on GPUs that were not measured


# The rules for hosts.
TRIANGULAR_RULE = HalvingRule(4096, 1.05)
CHOLESKY_RULE = HalvingRule(4096, 1.05)
# The rules for GPUs, measured in float32 and float64 on an H200. The measurements compare fmm.linalg with torch.linalg,
# which calls cuBLAS and cuSOLVER.
INVERTED_RULE = BlockInversionRule(4096, 4096, 12_000_000, 1024, 512, 1.5)
POSITIVE_RULE = BlockInversionRule(6144, 12288, 0, 4096, 4096, 3.0)  # Cholesky factors; the library factors the blocks
POSITIVE_INVERSE_RULE = BlockInversionRule(1024, 1024, 0, 1024, 1024, 1.5)  # the library's own inverse factors by LU
UNMEASURED_SMALLEST = 8192  # rows of the smallest matrix on other GPUs, and of complex matrices
# The smallest numbers of rows for which LU factors and inverses are computed by products, on GPUs for which fmm has a
# kernel for panels. For smaller matrices with an odd number of rows, products take longer than the library's own
# function, because Python takes about 0.1 ms for each step of a solver.
LU_SIDES = SmallestProductSides(8192, 6144)
INVERSE_SIDES = SmallestProductSides(7168, 5120)
HOST_LU_RULE = HalvingRule(8192, float("inf"))  # no gain is measured on hosts


def first_half_row_count(n: int) -> int:
    """Return the number of rows of the first half of n rows; the first half is the larger one."""
    half = (n + 1) // 2
    return -(-half // ALIGNMENT) * ALIGNMENT if n >= 8 * ALIGNMENT else half


def first_half_rows_rounded(n: int, side: int) -> int:
    """Return the number of rows of the first half of n rows, a multiple of `side`; n is larger than `side`."""
    return (-(-n // side) // 2 or 1) * side


def lu_split_column(first: int, last: int, width: int) -> int:
    """Return the column at which the LU recursion divides the columns first to last - 1.

    The column is the start of a panel or, for more than two panels, the start of a pair of panels.
    """
    unit = 2 * width if last - first > 2 * width else width
    return first + (-(-(last - first) // unit) + 1) // 2 * unit


def block_side_after_halvings(n: int, levels: int) -> int:
    """Return the number of rows of the blocks on the diagonal after `levels` halvings of n rows."""
    for _ in range(levels):
        n = first_half_row_count(n)
    return n


def diagonal_block_side(
    library: NumpySolvers, a: Any, columns: int, limit: float | None, rule: BlockInversionRule
) -> int:
    """Return the number of rows of the diagonal blocks that a GPU inverts.

    Return 0 if the library's own function must compute the whole matrix.
    """
    n = a.shape[-1]
    if n < min(rule.single_smallest, rule.double_smallest) or n * columns < rule.fewest_entries:
        return 0
    if not is_large_enough_for_products(library, a, SmallestProductSides(rule.single_smallest, rule.double_smallest)):
        return 0
    if library.are_solvers_measured_for(a):
        return diagonal_block_rows(library, a, rule)
    dtype, device = library.product_type(a), library.device(a)
    gain = product_speedup(first_half_row_count(n), columns, dtype, device, limit) if n >= UNMEASURED_SMALLEST else 0
    return diagonal_block_rows(library, a, rule) if gain >= rule.gain else 0


def is_large_enough_for_products(library: NumpySolvers, a: Any, smallest: SmallestProductSides) -> bool:
    """Return True if solvers by products support the matrix's type, and the matrix has enough rows."""
    dtype = library.product_type(a)
    return dtype in SOLVER_TYPES and a.shape[-1] >= (smallest.single if dtype in SINGLE_TYPES else smallest.double)


def diagonal_block_rows(library: NumpySolvers, a: Any, rule: BlockInversionRule) -> int:
    """Return the number of rows of a diagonal block, by the rule and the array's element type."""
    return rule.single_side if library.type_name(a) in SINGLE_TYPES else rule.double_side


def solver_halving_count(
    library: NumpySolvers, a: Any, columns: int | None, limit: float | None, rule: HalvingRule
) -> int:
    """Return how many times a solver halves the matrices of an array; 0 for small matrices."""
    n = a.shape[-1]
    if first_half_row_count(n) < rule.smallest_half:
        return 0
    return count_halvings(n, columns, library.product_type(a), library.device(a), limit, rule)


def count_halvings(n: int, columns: int | None, dtype: str, device: str, limit: float | None, rule: HalvingRule) -> int:
    """Return how many times a solver halves a matrix of n rows.

    Return 0 if the library's own function must compute the whole matrix. `columns` is the number of right-hand sides;
    None for a solver that computes only square products. `limit` is the limit on the error growth.
    """
    levels, half = 0, first_half_row_count(n)
    if dtype not in SOLVER_TYPES or columns == 0:
        return 0
    while half >= rule.smallest_half:
        if product_speedup(half, columns or half, dtype, device, limit) < rule.gain:
            break
        levels, half = levels + 1, first_half_row_count(half)
    return levels


@lru_cache(maxsize=4096)
def product_speedup(n: int, columns: int, dtype: str, device: str, limit: float | None) -> float:
    """Return the predicted speedup over the vendor for the product of an n x n and an n x columns matrix.

    Predictions are cached until the process ends, so a later tuning changes the plans of products, but not the number
    of halvings.
    """
    try:
        return api.plan(n, n, columns, dtype=dtype, device=device, max_error_growth=limit).speedup
    except ImportError:  # CuPy is missing, so torch multiplies the tensors on the GPU
        return 1.0
