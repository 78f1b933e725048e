"""Block counts of a level: the traffic and the temporaries of its sums in blocks, counted once for all sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil

from fmm.kernels.plans.lower import Sides
from fmm.kernels.plans.steps import LevelSteps
from fmm.kernels.plans.sums import Sum, block_side
from fmm.problem import Shape

# Block sides for counting: primes that divide no scheme's number of products, so that blocks of A, B and C can be
# distinguished by their sides.
COUNTING_SIDES = (97, 101, 103)

# number of blocks, and the sides (0, 1, 2 for m, k, n) that their rows and columns have
BlockGroup = tuple[int, int, int]


@dataclass(frozen=True)
class BlockCounts:
    """The passes of a level, and the blocks of A, B and C that its sums move and its temporaries hold.

    Pairs hold a value for whole blocks, then a value for blocks with a fringe.
    """

    passes: int
    moved: Sides
    # numbers of blocks in temporaries, grouped by the blocks' sides
    held: tuple[tuple[BlockGroup, ...], tuple[BlockGroup, ...]]
    in_place: tuple[float, float]  # share of products that read a block of A or B in place, or write a block of C

    def elements(self, blocks: Sides, sides: Sides) -> Sides:
        """Return the elements of these numbers of blocks of A, B and C, for these block sides."""
        m, k, n = sides
        return blocks[0] * m * k, blocks[1] * k * n, blocks[2] * m * n

    def temporaries(self, sides: Sides, whole: tuple[bool, bool, bool]) -> Sides:
        """Return the elements of temporaries like blocks of A, like blocks of B, and of others, for these block sides.

        `whole`: for each of A, B and C, True if the matrix consists of whole blocks.
        """
        found = [0.0, 0.0, 0.0]
        for padded, stacks in enumerate(self.held):
            for count, rows, cols in stacks:
                kind = {(0, 1): 0, (1, 2): 1}.get((rows, cols), 2)
                found[kind] += count * sides[rows] * sides[cols] * (whole[kind] != bool(padded))
        return found[0], found[1], found[2]


def side_ranks(sides: Sides) -> Shape:
    """Return the rank of each side by length: 0 for the shortest, then 1, 2. Of equal sides k ranks first, then m."""
    ordered = sorted((1, 0, 2), key=lambda side: sides[side])
    return ordered.index(0), ordered.index(1), ordered.index(2)


def count_blocks(
    steps: Callable[[int | None, Shape], LevelSteps], size: Shape, usual: int | None, order: Shape
) -> BlockCounts:
    """Return a level's counts, from its steps for block sides equal to the COUNTING_SIDES, in this order by length.

    `steps` makes the level's steps for a unit and sides; `usual` is the level's own unit.
    """
    marks = COUNTING_SIDES[order[0]], COUNTING_SIDES[order[1]], COUNTING_SIDES[order[2]]
    m, k, n = (mark * parts for mark, parts in zip(marks, size, strict=True))
    found = steps(usual, (m, k, n))
    sums = [step for step in found.steps if isinstance(step, Sum)]
    moved = [(place.rows, place.cols) for step in sums for place in (*step.used_reads, *step.writes)]
    padded = steps(1, (m - 1, k - 1, n - 1))  # the last block of each side lacks one row or column
    held = _group_temporaries(found, marks), _group_temporaries(padded, marks)
    return BlockCounts(len(sums), _count_in_blocks(moved, marks), held, (found.in_place, padded.in_place))


def _group_temporaries(steps: LevelSteps, marks: Shape) -> tuple[BlockGroup, ...]:
    """Return all temporaries, grouped by their two sides."""
    found: Counter[tuple[int, int]] = Counter()
    for _, rows, cols in steps.temporaries:
        (down, row), (across, col) = _find_counting_side(rows, marks), _find_counting_side(cols, marks)
        found[row, col] += down * across
    return tuple((count, row, col) for (row, col), count in found.items())


def _find_counting_side(length: int, marks: Shape) -> tuple[int, int]:
    """Return the multiple and the number of the marked side of this length, or of one row or column more (an edge)."""
    return next((x // mark, i) for x in (length, length + 1) for i, mark in enumerate(marks) if x % mark == 0)


def _count_in_blocks(shapes: Iterable[tuple[int, int]], marks: Shape) -> Sides:
    """Return the number of blocks of A, B and C that the rectangles amount to (a tall one is several)."""
    m, k, n = marks
    found = [0.0, 0.0, 0.0]
    for rows, cols in shapes:
        kind, block = (0, m * k) if cols == k else (1, k * n) if rows % k == 0 else (2, m * n)
        found[kind] += rows * cols / block
    return found[0], found[1], found[2]


def block_sides(size: Shape, fringe: str, unit: int, sides: Sides) -> tuple[Sides, bool]:
    """Return the block sides, and whether all blocks are whole.

    Sides with padding are whole numbers, sides without padding are averages.
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
