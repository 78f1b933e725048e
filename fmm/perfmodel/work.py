"""fmm/perfmodel/work.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from fmm.kernels.cuda.products.tile_sizes import DOUBLE, PRESETS, SUMMING, TUNED
from fmm.kernels.plans import fused_order
from fmm.kernels.plans.level_steps import Recipe, Sum
from fmm.kernels.plans.lower import lower, side
from fmm.kernels.plans.memory_layout import ALIGN
from fmm.kernels.plans.plan import Balanced, Level, Plan
from fmm.perfmodel.calibration import Rate
from fmm.perfmodel.cost import cost
from fmm.problem import Problem

ACCESS, WORD = 16, 4  # bytes: what a vendor's fastest products ask of every row, and what all but its slowest do
DEEP = 7**3  # products of three levels in one pass
DEEP_ACCESS = 8  # bytes that their sums move at a time, two numbers or one: all others move ACCESS
Leaf = tuple[float, float, float, float, float]  # m, k, n, how many, how many of them start together


class Tiles(NamedTuple):
    """How the tiled kernel makes leaf products: the sides of its tiles; how many blocks of A, B and C each product
    reads, reads and writes, on average; how many products fill the device together, if they may."""

    height: int
    width: int
    left: float = 1.0
    right: float = 1.0
    dest: float = 1.0
    together: float = 1.0

    def number(self, m: float, n: float) -> int:
        return ceil(m / self.height) * ceil(n / self.width)

    def slowdown(self, rate: Rate, m: float, k: float, n: float, together: float) -> float:
        """Of a product against an endless one of the vendor's; here sums are instructions, not passes over memory.

        Each row of tiles adds up B anew, each column A.
        """
        tiles = self.number(m, n)
        whole = tiles * self.height * self.width / (m * n)
        added = (self.left - 1) / self.width + (self.right - 1) / self.height + (self.dest - 1) / k
        start = rate.waves / (max(together, self.together) * tiles) + rate.pipe / k
        return (rate.tiled or 1.0) * whole * (1 + start + rate.inside * added)


@dataclass(frozen=True)
class Work:
    """What the formula needs of a plan: its leaf products, the traffic of its sums, and how many passes those are.

    `sequential` is the share of the traffic that belongs to sequential levels, `deep` to three levels in one pass,
    `overlapped` of that below an overlapped one, `ragged` and `scalar` that of the first level on those of A, B and C
    whose rows do not begin on cache lines, or not even at multiples of what its kernels move at a time (those of
    temporaries do both). `unaligned` is the share of the leaf products that read or write in place rows that do not
    begin at multiples of 16 bytes, `odd` if at none of 4, `copied` of those that take aligned copies of such rows
    instead; `alone`: A's rows are the only such ones. `tiles`: of leaf products by the tiled kernel.
    """

    leaves: tuple[Leaf, ...]
    traffic: float
    passes: float
    sequential: float = 0.0
    ragged: float = 0.0
    overlapped: float = 0.0
    scalar: float = 0.0
    deep: float = 0.0
    unaligned: float = 0.0
    odd: float = 0.0
    copied: float = 0.0
    alone: bool = False
    tiles: Tiles | None = None

    @property
    def smallest(self) -> float:
        """The shortest side of the leaf products."""
        return min(min(leaf[:3]) for leaf in self.leaves)


def counted(plan: Plan, problem: Problem) -> Work:
    """Exact work, from the recipes."""
    counts = cost(plan, *problem.size, problem.itemsize)
    leaves = tuple((*size, float(times), _together(plan)) for size, times in counts.leaves)
    passes = counts.launches - sum(count / together for *_, count, together in leaves)
    shares = estimated(plan, problem)
    traffic = (counts.bytes_read + counts.bytes_written) / problem.itemsize
    return replace(shares, leaves=leaves, traffic=traffic, passes=passes)


def _together(plan: Plan) -> float:
    """How many leaf products start as one batch."""
    last = plan.levels[-1] if plan.levels else None
    if not isinstance(last, Level):
        return 1.0
    if last.traversal == "fused" and last.scheme:
        return last.products / fused_order.launches(last.scheme, last.tasks)
    return float(last.products) if last.traversal == "batched" else 1.0


@lru_cache(maxsize=1024)
def _tiles(plan: Plan, dtype: str) -> Tiles | None:
    """None where the vendor multiplies, or our own kernel about as fast."""
    if not plan.timed_by_tiles or dtype not in plan.leaf_use.leaf.types_inside:
        return None

    last = plan.levels[-1] if plan.levels else None
    found = last.scheme if isinstance(last, Level) and last.fused else None
    usual = DOUBLE[0] if dtype == "float64" else SUMMING["float32"] if found else TUNED[0]
    chosen = next((s for s in PRESETS if s.name.lower() in plan.leaf_use.options), usual)
    if found is None:
        return Tiles(chosen.m_s, chosen.n_s)
    left, right, dest = (sum(c != 0 for row in x for c in row) / found.rank for x in (found.u, found.v, found.w))
    return Tiles(chosen.m_s, chosen.n_s, left, right, dest, found.rank)


def aligned(problem: Problem, unit: int) -> bool:
    """Does every row begin at a multiple of so many bytes?"""
    return all(_rows(problem, unit))


@dataclass(frozen=True)
class Footprint:
    """One level's products and passes, and how many blocks of A, B and C its sums move and its temporaries hold."""

    products: int
    passes: int
    moved: tuple[float, float, float]
    held: tuple[float, float, float]
    # The share of products that read a block of A or B in place, or write one of C: if all blocks are whole, if not.
    direct: tuple[float, float]

    def each(self, blocks: tuple[float, float, float], m: float, k: float, n: float) -> tuple[float, float, float]:
        """Elements of so many blocks of A, B and C."""
        return blocks[0] * m * k, blocks[1] * k * n, blocks[2] * m * n


# Sides of A's, B's and C's blocks by which a footprint tells them apart: primes that divide no scheme's number of
# products, k the shortest, because some tables keep sums of A and B in C.
MARKED = (101, 97, 103)


@lru_cache(maxsize=1024)
def footprint(first: Level) -> Footprint:
    """Counted from the level's own recipe on blocks of marked sides; a fused level does its sums in its products."""
    if first.traversal == "fused":
        return Footprint(first.products, 0, (0, 0, 0), (0, 0, 0), (1, 1))
    fringe = "unequal" if first.traversal in ("stacked", "overlapped") else "pad"
    sides = (mark * parts for mark, parts in zip(MARKED, first.size, strict=True))
    recipe = lower(Plan((Level(first.algorithm, first.traversal, fringe),)), *sides)
    assert recipe is not None
    sums = [step for step in recipe.steps if isinstance(step, Sum)]
    moved = [(place.rows, place.cols) for step in sums for place in (*step.reads, *step.writes)]
    held = [(rows, cols) for _, rows, cols in recipe.temporaries]
    uneven = (mark * parts - 1 for mark, parts in zip(MARKED, first.size, strict=True))
    padded = lower(Plan((Level(first.algorithm, first.traversal, "pad16"),)), *uneven)
    direct = _in_place(recipe), _in_place(padded)
    return Footprint(first.products, len(sums), _blocks(moved), _blocks(held), direct)


def _in_place(recipe: Recipe | None) -> float:
    assert recipe is not None
    products = list(recipe.products)
    return sum(any(place.name in "ABC" for place in (p.left, p.right, p.dest)) for p in products) / len(products)


def _blocks(shapes: Iterable[tuple[int, int]]) -> tuple[float, float, float]:
    """How many blocks of A's, B's and C's sides the rectangles make up (a tall one is several)."""
    m, k, n = MARKED
    found = [0.0, 0.0, 0.0]
    for rows, cols in shapes:
        kind, block = (0, m * k) if cols == k else (1, k * n) if rows % k == 0 else (2, m * n)
        found[kind] += rows * cols / block
    return found[0], found[1], found[2]


def estimated(plan: Plan, problem: Problem) -> Work:
    """Work as if unequal blocks and strips were spread evenly: what ranking needs, in microseconds."""
    traffic = passes = sequential = ragged = overlapped = scalar = deep = 0.0
    vectors, lined, worded = (_rows(problem, unit) for unit in (ACCESS, ALIGN, WORD))
    unaligned, odd = float(not all(vectors)), float(not all(worded))
    direct = 1.0
    beside = False  # below an overlapped level
    count, sides = 1.0, [float(side) for side in problem.size]
    for step in plan.levels:
        if isinstance(step, Balanced):
            count *= _halved(step, sides)
            continue
        if step.fused:
            sides = _block_sides(step, sides)
            count *= step.products
            continue
        f = footprint(step)
        direct = f.direct[_padded(step, sides)] if len(plan.levels) == 1 else 0.0
        sides = _block_sides(step, sides)
        each = [count * x for x in f.each(f.moved, *sides)]
        moved = sum(each)
        traffic += moved
        sequential += moved if step.traversal == "sequential" else 0.0
        if count == 1:
            ragged += _astray(each, lined)
            scalar += _astray(each, _rows(problem, access(f.products, problem.itemsize)))
        deep += moved if f.products >= DEEP else 0.0
        overlapped += moved if beside else 0.0
        beside = beside or step.lanes > 1
        passes += count * f.passes
        count *= f.products
    whole = traffic or 1.0
    leaves = ((sides[0], sides[1], sides[2], count, _together(plan)),)
    direct = 0.0 if _batched(plan) else direct
    return Work(
        leaves,
        traffic,
        passes,
        sequential / whole,
        ragged / whole,
        overlapped / whole,
        scalar / whole,
        deep / whole,
        direct * (unaligned - odd),
        direct * odd,
        (1 - direct) * unaligned,
        vectors[1] and not vectors[0],
        _tiles(plan, problem.dtype),
    )


def access(products: int, itemsize: int) -> int:
    """Bytes that a GPU's sums of a level with so many products move at a time, where rows begin at multiples of them.

    A thread of three levels in one pass has registers for two numbers at most.
    """
    return ACCESS if products < DEEP else min(2 * itemsize, DEEP_ACCESS)


def _rows(problem: Problem, unit: int) -> tuple[bool, bool, bool]:
    """Does every row of A, of B, of C begin at a multiple of so many bytes, if the first does?"""
    a, b = (side * problem.itemsize % unit == 0 for side in (problem.k, problem.n))
    return a, b, b


def _astray(moved: Sequence[float], begin: Sequence[bool]) -> float:
    """What is moved of A, B and C where rows do not begin as they should."""
    return sum(x for x, begins in zip(moved, begin, strict=True) if not begins)


def _batched(plan: Plan) -> bool:
    """A batch reads temporaries alone, whose rows are aligned."""
    return any(isinstance(s, Level) and s.traversal == "batched" for s in plan.levels)


def estimated_workspace(plan: Plan, problem: Problem) -> float:
    """Bytes of temporaries, rows not rounded up: enough to tell most plans that fit from those that do not."""
    held, lanes, sides = 0.0, 1, [float(side) for side in problem.size]
    for step in plan.levels:
        if isinstance(step, Balanced):
            _halved(step, sides)
            continue
        if step.fused:  # the last one: it holds nothing
            break
        f = footprint(step)
        sides = _block_sides(step, sides)
        held += lanes * sum(f.each(f.held, *sides))
        lanes = max(lanes, step.lanes)
    return held * problem.itemsize


def _padded(step: Level, sides: Iterable[float]) -> bool:
    if step.fringe == "unequal":
        return False
    return any(x % (parts * step.unit) for x, parts in zip(sides, step.size, strict=True))


def _block_sides(step: Level, sides: list[float]) -> list[float]:
    if step.fringe.startswith("pad"):
        return [float(side(ceil(x), parts, step.unit)) for x, parts in zip(sides, step.size, strict=True)]
    return [x / parts for x, parts in zip(sides, step.size, strict=True)]


def _halved(step: Balanced, sides: list[float]) -> float:
    """Halve the sides in place as Table 1 does; returns the number of pieces."""
    pieces = 1.0
    while (long := step.side(*(int(x) for x in sides))) is not None:
        sides["mkn".index(long)] /= 2
        pieces *= 2
    return pieces
