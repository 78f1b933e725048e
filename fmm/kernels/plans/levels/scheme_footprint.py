"""What a scheme or step table moves and holds, in blocks: counted once from its steps, good for all sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil

from fmm.kernels.plans.blocks import block_side
from fmm.kernels.plans.level import Sides
from fmm.kernels.plans.level_steps import LevelSteps, Sum
from fmm.problem import Shape

# Sides of A's, B's and C's blocks by which the count tells them apart: primes that divide no scheme's number of
# products, k the shortest, because some tables keep sums of A and B in C.
MARKED = (101, 97, 103)


@dataclass(frozen=True)
class BlockCounts:
    """A level's passes, and how many blocks of A, B and C its sums move and its temporaries hold."""

    passes: int
    moved: Sides
    held: Sides
    # The share of products that read a block of A or B in place, or write one of C: if all blocks are whole, if not.
    in_place: tuple[float, float]

    def elements(self, blocks: Sides, sides: Sides) -> Sides:
        """Elements of so many blocks of A, B and C, of these sides."""
        m, k, n = sides
        return blocks[0] * m * k, blocks[1] * k * n, blocks[2] * m * n


def block_counts(steps: Callable[[int | None, Shape], LevelSteps], size: Shape, usual: int | None) -> BlockCounts:
    """Counted on whole blocks of marked sides. `steps`: a level's, for a unit and sides; `usual`: its unit."""
    m, k, n = (mark * parts for mark, parts in zip(MARKED, size, strict=True))
    found = steps(usual, (m, k, n))
    sums = [step for step in found.steps if isinstance(step, Sum)]
    moved = [(place.rows, place.cols) for step in sums for place in (*step.needed_reads, *step.writes)]
    held = [(rows, cols) for _, rows, cols in found.temporaries]
    padded = steps(16, (m - 1, k - 1, n - 1))
    return BlockCounts(len(sums), _blocks(moved), _blocks(held), (found.in_place, padded.in_place))


def _blocks(shapes: Iterable[tuple[int, int]]) -> Sides:
    """How many blocks of A's, B's and C's sides the rectangles make up (a tall one is several)."""
    m, k, n = MARKED
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
