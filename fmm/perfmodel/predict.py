"""Prediction: seconds from what a plan costs and a calibration. One formula, said in `seconds`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from fmm.kernels import tasks
from fmm.kernels.flow import LEAST
from fmm.kernels.lowering import lower, side
from fmm.kernels.needs import ALIGN
from fmm.kernels.plan import VENDOR, Balanced, Level, Plan, leaf_parts
from fmm.kernels.recipe import Recipe, Sum
from fmm.kernels.strategy import DOUBLE, SUMMING, TUNED
from fmm.perfmodel.calibration import Calibration, Rate
from fmm.perfmodel.cost import cost
from fmm.perfmodel.problem import Problem

LEAVES_OUT = (
    "caches between steps, clocks that fall under load, waves that do not fill the device, page faults of a first call"
)
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


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of a plan on a problem, by term."""

    plan: Plan
    problem: Problem
    device: str
    products: float
    sums: float
    launches: float
    hidden: float
    ends: float = 0.0

    @property
    def seconds(self) -> float:
        return self.products + self.sums + self.launches + self.ends - self.hidden

    @property
    def dominant(self) -> str:
        """The term that takes most of the time."""
        terms = {"products": self.products, "sums": self.sums, "launches": self.launches}
        return max(terms, key=lambda name: terms[name])

    @property
    def effective_flops(self) -> float:
        """Classical flops per second: what the plan is worth, above the device's peak where it saves enough."""
        return self.problem.flops / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        parts = f"products {self.products:.3g} s, sums {self.sums:.3g} s, launches {self.launches:.3g} s"
        hidden = f", {self.hidden:.3g} s of it hidden" if self.hidden else ""
        ends = f", beginning and end {self.ends:.3g} s" if self.ends else ""
        return f"{self.seconds:.4g} s ({parts}{ends}{hidden}; mostly {self.dominant}; leaves out {LEAVES_OUT})"


def predict(plan: Plan, problem: Problem, calibration: Calibration) -> Prediction:
    """Predicted time of a plan, its counts taken from the recipes at the actual sizes."""
    return seconds(plan, problem, counted(plan, problem), calibration)


def seconds(plan: Plan, problem: Problem, work: Work, calibration: Calibration) -> Prediction:
    """Leaf products at the calibrated rate (or the memory's, if that is slower), sums at the streaming rate.

    products  over leaves: max(flops / rate (1 + fill / (b m n) + pipe / k + rows / m + cols / n), bytes / memory), with
              m and n in whole tiles; the first of the two takes `unaligned`, `odd`, `copied` or `batch` times as long
              where it is (of what the first two add, `alone` times as much where only A's rows are so); by the tiled
              kernel flops / rate * tiled (1 + waves / tiles + pipe / k + inside * numbers added a multiply-add)
    sums      (bytes, those of sequential, ragged, ... levels over that share, + small * passes) / stream
    hidden    overlap * min(products, sums below an overlapped level)
    launches  launch * (starts + passes), and what `host` takes longer for the starts than the device for all its work
    ends      in lanes: idle + spin, which takes no more than half of each processor but one

    In lanes, a leaf is one of a batch of as many as run at a time; sums and products are the time of all lanes at work,
    and the check for overflow, which reads A and B, is one of the sums.
    """
    rate, item = calibration.rate(problem.dtype), problem.itemsize
    lanes = _lanes(plan, problem, calibration)
    products = starts = 0.0
    tiles = work.tiles
    aside = (work.unaligned * (rate.unaligned - 1) + work.odd * (rate.odd - 1)) * (rate.alone if work.alone else 1)
    aside += 1 + work.copied * (rate.copied - 1)
    for m, k, n, count, batch in work.leaves:
        if m and k and n:
            together = max(batch, lanes)
            slowdown = tiles.slowdown(rate, m, k, n, together) if tiles else aside * _vendors(rate, m, k, n, together)
            compute = problem.element.flops * m * k * n / rate.flops * slowdown
            left, right, dest = tiles[2:5] if tiles else (1, 1, 1)
            moved = (left * m * k + right * k * n + dest * m * n) * item / (rate.memory or calibration.stream)
            products += count * max(compute, moved)
            starts += count / batch
    traffic = work.traffic
    for share, rest in (
        (calibration.sequential, work.sequential),
        (calibration.ragged, work.ragged),
        (calibration.scalar, work.scalar),
        (calibration.deep, work.deep),
    ):
        traffic *= 1 - rest + rest / share
    if plan.levels and calibration.lanes > 1:
        traffic += (problem.m + problem.n) * problem.k
        traffic /= 1.0 if lanes > 1 else calibration.apart
    sums = (traffic * item + calibration.small * work.passes) / calibration.stream
    hidden = calibration.overlap * min(products, sums * work.overlapped)
    calls = starts + work.passes
    launches = max(calibration.launch * calls, calibration.host * starts - (products + sums - hidden))
    ends = 0.0
    if lanes > 1:
        ends = calibration.idle
        ends += min(calibration.spin, (products + sums + ends) * (lanes - 1) / (lanes + 1))
    return Prediction(plan, problem, calibration.name, products, sums, launches, hidden, ends)


def _vendors(rate: Rate, m: float, k: float, n: float, together: float) -> float:
    """How much longer a product of the vendor's takes than an endless one, where its rows are aligned."""
    slowdown = 1 + rate.fill / (together * m * n) + rate.pipe / k + rate.rows / m + rate.cols / n
    if rate.tile > 1:
        slowdown *= ceil(m / rate.tile) * ceil(n / rate.tile) * rate.tile**2 / (m * n)
    return slowdown * (rate.batch if together > 1 else 1.0)


def _lanes(plan: Plan, problem: Problem, calibration: Calibration) -> int:
    """How many products of a plan run at a time, each on its share of the threads."""
    m, k, n = problem.size
    return calibration.lanes if plan.levels and 2 * m * k * n >= LEAST else 1


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
        return last.products / tasks.launches(last.scheme, last.tasks)
    return float(last.products) if last.traversal == "batched" else 1.0


@lru_cache(maxsize=1024)
def _tiles(plan: Plan, dtype: str) -> Tiles | None:
    """None where the vendor multiplies, or our own kernel about as fast."""
    if not plan.tiled:
        return None
    from fmm.kernels.tape import GROUPED  # which a CPU has no need of
    from fmm.kernels.tile import strategy_of

    if dtype in GROUPED:
        return None

    last = plan.levels[-1] if plan.levels else None
    found = last.scheme if isinstance(last, Level) and last.fused else None
    usual = DOUBLE[0] if dtype == "float64" else SUMMING["float32"] if found else TUNED[0]
    chosen = strategy_of(leaf_parts(plan.leaf)[0]) or usual
    if found is None:
        return Tiles(chosen.m_s, chosen.n_s)
    left, right, dest = (sum(c != 0 for row in x for c in row) / found.rank for x in (found.u, found.v, found.w))
    return Tiles(chosen.m_s, chosen.n_s, left, right, dest, found.rank)


def aligned(problem: Problem) -> bool:
    """Does every row begin at a multiple of ACCESS bytes?"""
    return all(_rows(problem, ACCESS))


# ---- the same work in a few multiplications, for ranking candidates quickly


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


def vendor(problem: Problem, calibration: Calibration) -> Prediction:
    """Predicted time of the vendor's product."""
    return seconds(VENDOR, problem, estimated(VENDOR, problem), calibration)


def plans(texts: Iterable[str]) -> tuple[Plan, ...]:
    """Plans from the texts of their levels, above the vendor's product."""
    return tuple(Plan.parse(f"{text} > vendor" if text else "vendor") for text in texts)
