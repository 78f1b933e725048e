"""Inverses of the blocks on the diagonal of a triangular matrix, all blocks at once.

The triangular solver of a GPU's library is slow for many right-hand sides. If the blocks on the diagonal are inverted,
all other work consists of products. On a GPU, one kernel inverts small blocks. Each further step computes the inverses
of blocks with twice as many rows:

    inverse of [[A, 0], [C, B]] = [[A^-1, 0], [-B^-1 C A^-1, B^-1]]

If right-hand sides are multiplied by the inverse of a block A, the backward error grows with |A^-1| |A|.
`block_skeel_conditions` returns the largest row sum of |A^-1| |A|, Skeel's condition number. The library's own solver
is used for blocks with a row sum above `MAX_SKEEL_CONDITION`.
"""

from __future__ import annotations

from typing import Any

from fmm.linalg.solver_library import InvertedBlock, NumpySolvers

# Systems with a diagonal block A are solved by the inverse of A if no row sum of |A^-1| |A| exceeds this number. The
# row sum of |A^-1| |A| does not change if rows of A are scaled. For blocks of the LU factors of random matrices, the
# largest row sum of |A^-1| |A| is 2e4 (512 rows) and 8e4 (1024 rows). If blocks of the LU factors are inverted, the
# backward error of a solution is 1.5 to 3 times the backward error of substitution.
MAX_SKEEL_CONDITION = 1e5


def invert_diagonal_blocks(library: NumpySolvers, a: Any, lower: bool, unit_diagonal: bool, side: int) -> Any:
    """Return the inverses of all whole blocks of `side` rows on the diagonal, as a stack of triangular matrices."""
    count = a.shape[0] // side
    stacked = library.zeros((count, side, side), a)
    if count:
        write_inverses(library, a[: count * side], stacked, InvertedBlock(side, side, 0, lower, unit_diagonal))
    return stacked


def write_inverses(library: NumpySolvers, a: Any, stacked: Any, block: InvertedBlock) -> None:
    """Write the inverses of the diagonal blocks of a to the stack `stacked`.

    If `a` is a single block, `stacked` may be a submatrix on the diagonal of a larger inverse.
    """
    if library.invert_blocks(a, stacked, block):
        return
    side = block.side
    for i in range(a.shape[0] // side):
        rows, inverse = slice(i * side, (i + 1) * side), stacked[i] if stacked.ndim == 3 else stacked
        library.overwrite(inverse, library.identity(side, a))
        library.solve_block(a[rows, rows], inverse, block.is_lower, block.is_unit)


def block_skeel_conditions(library: NumpySolvers, a: Any, stacked: Any, lower: bool, unit_diagonal: bool) -> Any:
    """Return the largest row sum of |A^-1| |A| for each block A on the diagonal; NaN for a block with NaN."""
    count, side, _ = stacked.shape
    down, across = library.element_steps(a)
    blocks = library.strided_view(a, (count, side, side), (side * (down + across), down, across))
    first = 1 if unit_diagonal else 0  # a diagonal of ones is not read
    module = library.module
    triangle = abs(module.tril(blocks, -first) if lower else module.triu(blocks, first))
    row_sums = triangle.sum(-1)[..., None] + first
    growth = module.matmul(abs(stacked), row_sums)[..., 0]
    return module.amax(growth, -1)
