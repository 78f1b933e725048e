"""Count the blocks that a level's sums read and write and that its temporaries hold, once for all sizes of a product.

The steps of the level are computed for one product, where the block sides m, k and n are three different primes. The
prime factors of a place's rows and columns then show whether the place has blocks of A, of B or of C.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil

from fmm.kernels.plans.lower import Sides
from fmm.kernels.plans.steps import LevelSteps
from fmm.kernels.plans.sums import Sum, block_side
from fmm.problem import Shape

# Block sides for counting: primes that divide no scheme's number of products.
COUNTING_SIDES = (97, 101, 103)

# A group of equal blocks: the number of blocks, and which side (0, 1, 2 for m, k, n) is the number of rows and which
# side the number of columns of a block.
BlockGroup = tuple[int, int, int]


@dataclass(frozen=True)
class BlockCounts:
    """Counts of one level: passes of its sums, blocks that its sums read or write, and blocks in its temporaries.

    The first value of `held` and `in_place` is for a product with equal blocks, the second value for a product with
    smaller blocks at the edge.
    """

    passes: int
    moved: Sides
    # the blocks in temporaries; blocks with equal sides are one group
    held: tuple[tuple[BlockGroup, ...], tuple[BlockGroup, ...]]
    in_place: tuple[float, float]  # fraction of products that read a block of A or B in place, or write a block of C

    def count_elements(self, blocks: Sides, sides: Sides) -> Sides:
        """Return the numbers of elements in `blocks[0]` blocks of A, `blocks[1]` of B and `blocks[2]` of C."""
        m, k, n = sides
        return blocks[0] * m * k, blocks[1] * k * n, blocks[2] * m * n

    def temporary_elements(self, sides: Sides, equal_blocks: tuple[bool, bool, bool]) -> Sides:
        """Return the elements of temporaries in blocks as large as A's, in blocks as large as B's, and in other blocks.

        The block sides are `sides`. `equal_blocks` has three values, for A, B and C: True if the matrix consists of
        equal blocks.
        """
        found = [0.0, 0.0, 0.0]
        for padded, stacks in enumerate(self.held):
            for count, rows, cols in stacks:
                kind = {(0, 1): 0, (1, 2): 1}.get((rows, cols), 2)
                found[kind] += count * sides[rows] * sides[cols] * (equal_blocks[kind] != bool(padded))
        return found[0], found[1], found[2]


def side_length_ranks(sides: Sides) -> Shape:
    """Return the rank of each side by length: 0 for the shortest, then 1 and 2; equal sides in the order k, m, n."""
    ordered = sorted((1, 0, 2), key=lambda side: sides[side])
    return ordered.index(0), ordered.index(1), ordered.index(2)


def count_blocks(
    steps: Callable[[int | None, Shape], LevelSteps], size: Shape, level_unit: int | None, order: Shape
) -> BlockCounts:
    """Return a level's block counts, computed from its steps for the block sides COUNTING_SIDES.

    The function `steps(unit, (m, k, n))` returns the level's steps for an m x k x n product, with block sides that are
    multiples of `unit`. `size` holds the numbers of blocks along m, k and n. The level's block sides are multiples of
    `level_unit`. `order` holds the ranks of the block sides m, k and n by length: 0 for the shortest.
    """
    counting_sides = COUNTING_SIDES[order[0]], COUNTING_SIDES[order[1]], COUNTING_SIDES[order[2]]
    m, k, n = (mark * parts for mark, parts in zip(counting_sides, size, strict=True))
    found = steps(level_unit, (m, k, n))
    sums = [step for step in found.steps if isinstance(step, Sum)]
    moved = [(place.rows, place.cols) for step in sums for place in (*step.places_read_by_program, *step.writes)]
    padded = steps(1, (m - 1, k - 1, n - 1))  # the last block of each side lacks one row or column
    held = _temporary_blocks_by_sides(found, counting_sides), _temporary_blocks_by_sides(padded, counting_sides)
    return BlockCounts(
        len(sums),
        _count_blocks_in_rectangles(moved, counting_sides),
        held,
        (found.in_place_product_fraction, padded.in_place_product_fraction),
    )


def _temporary_blocks_by_sides(steps: LevelSteps, counting_sides: Shape) -> tuple[BlockGroup, ...]:
    """Return the blocks of all temporaries, grouped by the sides along their rows and columns."""
    found: Counter[tuple[int, int]] = Counter()
    for _, rows, cols in steps.temporaries:
        (down, row), (across, col) = (
            _count_blocks_along_side(rows, counting_sides),
            _count_blocks_along_side(cols, counting_sides),
        )
        found[row, col] += down * across
    return tuple((count, row, col) for (row, col), count in found.items())


def _count_blocks_along_side(length: int, counting_sides: Shape) -> tuple[int, int]:
    """Return the number of blocks in `length`, and the index of their side; the last block can lack one row."""
    return next((x // mark, i) for x in (length, length + 1) for i, mark in enumerate(counting_sides) if x % mark == 0)


def _count_blocks_in_rectangles(shapes: Iterable[tuple[int, int]], counting_sides: Shape) -> Sides:
    """Return the numbers of blocks of A, of B and of C in these rectangles; a rectangle can have several blocks."""
    m, k, n = counting_sides
    found = [0.0, 0.0, 0.0]
    for rows, cols in shapes:
        kind, block = (0, m * k) if cols == k else (1, k * n) if rows % k == 0 else (2, m * n)
        found[kind] += rows * cols / block
    return found[0], found[1], found[2]


def block_sides(size: Shape, fringe: str, unit: int, sides: Sides) -> tuple[Sides, bool]:
    """Return the block sides, and True if all blocks are equal.

    With padding, block sides are integers; without padding, they are averages.
    """
    (m, k, n), (rows, inner, cols) = sides, size
    if not fringe.startswith("pad"):
        blocks = m / rows, k / inner, n / cols
        return blocks, fringe == "unequal" or not (m % rows or k % inner or n % cols)
    blocks = (
        float(block_side(ceil(m), rows, unit)),
        float(block_side(ceil(k), inner, unit)),
        float(block_side(ceil(n), cols, unit)),
    )
    return blocks, not (m % (rows * unit) or k % (inner * unit) or n % (cols * unit))
