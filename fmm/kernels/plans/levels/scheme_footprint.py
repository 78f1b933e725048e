"""What a scheme or step table moves and holds, in blocks: counted once from its steps, good for all sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil

from fmm.kernels.plans.level_with_steps import Sides
from fmm.kernels.plans.steps.blocks import block_side
from fmm.kernels.plans.steps.level_steps import LevelSteps
from fmm.kernels.plans.steps.sums import Sum
from fmm.problem import Shape

# The sides of blocks for which steps are counted, so that blocks of A, B and C can be told apart by their sides: primes
# that divide no scheme's number of products.
MARKS = (97, 101, 103)

Stack = tuple[int, int, int]  # how many blocks, and which of m, k and n (0, 1, 2) their rows and their columns are


@dataclass(frozen=True)
class BlockCounts:
    """A level's passes, and how many blocks of A, B and C its sums move and its temporaries hold.

    What depends on whether all blocks are whole is a pair: first if they are, then if they are not.
    """

    passes: int
    moved: Sides
    held: tuple[tuple[Stack, ...], tuple[Stack, ...]]  # temporaries, those with the same sides together
    in_place: tuple[float, float]  # the share of products that read a block of A or B in place, or write one of C

    def elements(self, blocks: Sides, sides: Sides) -> Sides:
        """The elements in so many blocks of A, of B and of C, where blocks have these sides."""
        m, k, n = sides
        return blocks[0] * m * k, blocks[1] * k * n, blocks[2] * m * n

    def temporaries(self, sides: Sides, whole: tuple[bool, bool, bool]) -> Sides:
        """The elements of temporaries with the sides of A's blocks, of B's, and of others, for blocks of these sides.

        `whole`: whether A, B and C consist of whole blocks.
        """
        found = [0.0, 0.0, 0.0]
        for padded, stacks in enumerate(self.held):
            for count, rows, cols in stacks:
                kind = {(0, 1): 0, (1, 2): 1}.get((rows, cols), 2)
                found[kind] += count * sides[rows] * sides[cols] * (whole[kind] != bool(padded))
        return found[0], found[1], found[2]


def side_order(sides: Sides) -> Shape:
    """The rank of each side by length: 0 for the shortest, then 1, 2. Of equal sides k counts as shorter, then m."""
    ordered = sorted((1, 0, 2), key=lambda side: sides[side])
    return ordered.index(0), ordered.index(1), ordered.index(2)


def block_counts(
    steps: Callable[[int | None, Shape], LevelSteps], size: Shape, usual: int | None, order: Shape
) -> BlockCounts:
    """A level's counts, found from its steps for blocks whose sides are the MARKS, in this order by length.

    `steps` makes a level's steps for a unit and sides; `usual` is the level's own unit.
    """
    marks = MARKS[order[0]], MARKS[order[1]], MARKS[order[2]]
    m, k, n = (mark * parts for mark, parts in zip(marks, size, strict=True))
    found = steps(usual, (m, k, n))
    sums = [step for step in found.steps if isinstance(step, Sum)]
    moved = [(place.rows, place.cols) for step in sums for place in (*step.needed_reads, *step.writes)]
    padded = steps(1, (m - 1, k - 1, n - 1))  # the last block of each side lacks one row or column
    held = _stacks(found, marks), _stacks(padded, marks)
    return BlockCounts(len(sums), _blocks(moved, marks), held, (found.in_place, padded.in_place))


def _stacks(steps: LevelSteps, marks: Shape) -> tuple[Stack, ...]:
    """All temporaries, those with the same two sides counted together."""
    found: Counter[tuple[int, int]] = Counter()
    for _, rows, cols in steps.temporaries:
        (down, row), (across, col) = _side_of(rows, marks), _side_of(cols, marks)
        found[row, col] += down * across
    return tuple((count, row, col) for (row, col), count in found.items())


def _side_of(length: int, marks: Shape) -> tuple[int, int]:
    """How many times a marked side this length is, and which one; at the edge it may lack one row or column."""
    return next((x // mark, i) for x in (length, length + 1) for i, mark in enumerate(marks) if x % mark == 0)


def _blocks(shapes: Iterable[tuple[int, int]], marks: Shape) -> Sides:
    """How many blocks of A's, B's and C's sides the rectangles make up (a tall one is several)."""
    m, k, n = marks
    found = [0.0, 0.0, 0.0]
    for rows, cols in shapes:
        kind, block = (0, m * k) if cols == k else (1, k * n) if rows % k == 0 else (2, m * n)
        found[kind] += rows * cols / block
    return found[0], found[1], found[2]


def block_sides(size: Shape, fringe: str, unit: int, sides: Sides) -> tuple[Sides, bool]:
    """The sides of blocks, and whether all are whole: padded ones have whole numbers, others are average ones."""
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
