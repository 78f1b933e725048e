"""What any plan costs, without running it: arithmetic, memory traffic, launches, leaf products, workspace.

The counts come from the recipes that the executor runs, at the actual sizes. At fringes a sum is cut into regions in
which every array is wholly there or wholly absent, and what is absent is neither added nor read; on sizes that divide
there is one region. A sum moves each block that it needs once (temporaries inside the sum stay in registers or cache),
a leaf moves A and B in and C out once, whatever its own blocking does; sums done inside a product move what they read
besides it, and what they write but for one block, which is the product's C. Left out: scalings by a coefficient, caches
between steps, partly used transactions of rows that are not contiguous; where a level changes the type of numbers, its
sums are counted as if all of them were of the type above. What has no elements costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise, product
from math import prod
from typing import NamedTuple, TypeVar

from fmm.kernels.algorithms.additions import Coefficient, Program, restricted
from fmm.kernels.plans.blocks import Cut
from fmm.kernels.plans.level import PlanLevel
from fmm.kernels.plans.level_steps import Place, Recipe, Sum, Updating
from fmm.kernels.plans.lower import lower
from fmm.kernels.plans.memory_layout import temporary_bytes
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.registry import depends_on_rows
from fmm.problem import Shape

Rectangle = tuple[int, int]  # rows, columns
Leaves = tuple[tuple[Shape, int], ...]
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Cost:
    """Exact counts of one plan on one problem; bytes are those of the problem's item size."""

    flops: int  # 2mkn of every leaf product
    additions: int  # elements added or subtracted by the sums
    bytes_read: int  # by the sums
    bytes_written: int  # by the sums
    leaf_bytes: int  # A, B and C of every leaf product once
    transactions: int  # bytes / transaction, rounded up for every rectangle read or written
    launches: int  # sums and leaf products
    leaves: Leaves  # the multiset of leaf products: (m, k, n), how many
    workspace: int  # bytes of temporaries at the peak
    depth: int  # levels of the plan

    @property
    def bytes(self) -> int:
        """All traffic."""
        return self.bytes_read + self.bytes_written + self.leaf_bytes

    @property
    def arithmetics(self) -> int:
        """As Li et al. count: 2mkn - mn for a product (no addition to zero), and the additions of the sums."""
        return self.flops - sum(m * n * times for (m, k, n), times in self.leaves if k) + self.additions


def cost(
    plan: Plan,
    m: int,
    k: int,
    n: int,
    itemsize: int = 8,
    transaction: int = 128,
    alpha: Coefficient = 1,
    beta: Coefficient = 0,
    *,
    batched: bool = False,
) -> Cost:
    """The cost of C = alpha A B + beta C; a problem with an empty side costs nothing at all.

    The leaf products of a level that the plan calls batched are one launch; `batched` counts those of stacked levels
    so too, one launch for every shape.
    """
    if min(m, k, n) < 0:
        raise ValueError(f"sizes must not be negative: m = {m}, k = {k}, n = {n}")
    if itemsize < 1 or transaction < 1:
        raise ValueError(f"itemsize = {itemsize} and transaction = {transaction} must be positive")
    if 0 in (m, k, n):
        return Cost(0, 0, 0, 0, 0, 0, 0, (), 0, plan.depth)
    t = _tally(plan, (m, k, n), alpha, beta, _Units(itemsize, transaction, batched))
    flops = 2 * sum(prod(shape) * times for shape, times in t.leaves)
    numbers = (t.additions, t.bytes_read, t.bytes_written, t.leaf_bytes, t.transactions, t.launches)
    return Cost(flops, *numbers, tuple(sorted(t.leaves)), t.workspace, plan.depth)


# ---- adding up the levels


class _Units(NamedTuple):
    itemsize: int
    transaction: int
    batched: bool

    def traffic(self, rectangles: Mapping[int, int]) -> tuple[int, int]:
        """Bytes and transactions of rectangles: elements -> how many."""
        elements = sum(size * times for size, times in rectangles.items())
        moves = sum(-(-size * self.itemsize // self.transaction) * times for size, times in rectangles.items())
        return elements * self.itemsize, moves


class _Tally(NamedTuple):
    """A cost in the making."""

    additions: int
    bytes_read: int
    bytes_written: int
    leaf_bytes: int
    transactions: int
    launches: int
    workspace: int
    leaves: Leaves


@depends_on_rows
@lru_cache(maxsize=4096)
def _tally(plan: Plan, shape: Shape, alpha: Coefficient, beta: Coefficient, units: _Units) -> _Tally:
    level = _fused(plan, shape, beta) if plan.fused else _level(plan, shape, alpha, beta)
    if level is None:
        return _leaf(shape, units, plan.leaf_use.leaf.scratch)
    read, loads = units.traffic(level.read)
    written, stores = units.traffic(level.written)
    calls = level.launches - _saved(plan, level, units.batched)
    inside = units._replace(itemsize=plan.itemsize_inside(units.itemsize, [p for p, *_ in level.calls]))
    own = sum(temporary_bytes(*size, inside.itemsize) * times for size, times in level.temporaries.items())
    start = _Tally(level.additions, read, written, 0, loads + stores, calls, own, ())
    inner = [(_tally(p, size, 1, int(acc), inside), times) for (p, size, acc), times in level.calls.items()]
    return _total(start, inner, level.lanes)


def _fused(plan: Plan, shape: Shape, beta: Coefficient) -> _Level:
    """Sums inside the products, alpha and beta too: what they read more than one block for comes out of caches, mostly.

    Where products are added atomically, C is first made beta times what it was.
    """
    level, c = _level(plan, shape, 1, 0), shape[0] * shape[2]
    assert level is not None
    scaled = int(plan.levels[0].atomic and beta != 1)
    read = {c: 1} if scaled and beta else {}
    return level._replace(read=read, written={c: 1} if scaled else {}, launches=scaled, temporaries={})


def _leaf(shape: Shape, units: _Units, scratch: int) -> _Tally:
    m, k, n = shape
    if not m * k * n:
        return _Tally(0, 0, 0, 0, 0, 0, scratch, ((shape, 1),))
    moved, moves = units.traffic(Counter((m * k, k * n, m * n)))
    return _Tally(0, 0, 0, moved, moves, 1, scratch, ((shape, 1),))


def _total(start: _Tally, inner: Sequence[tuple[_Tally, int]], lanes: int) -> _Tally:
    """Everything adds up but the workspace: products take turns, in as many lanes."""
    leaves: dict[Shape, int] = {}
    for tally, times in inner:
        for shape, count in tally.leaves:
            leaves[shape] = leaves.get(shape, 0) + count * times
    return _Tally(
        start.additions + sum([t.additions * times for t, times in inner]),
        start.bytes_read + sum([t.bytes_read * times for t, times in inner]),
        start.bytes_written + sum([t.bytes_written * times for t, times in inner]),
        start.leaf_bytes + sum([t.leaf_bytes * times for t, times in inner]),
        start.transactions + sum([t.transactions * times for t, times in inner]),
        start.launches + sum([t.launches * times for t, times in inner]),
        start.workspace + lanes * max([t.workspace for t, _ in inner], default=0),
        tuple(leaves.items()),
    )


def _saved(plan: Plan, level: _Level, batched: bool) -> int:
    """Launches that batching saves where a level's products are leaves: all but one of every shape."""
    if not plan.levels or plan.rest.levels:
        return 0
    first = plan.levels[0]
    if first.fused:  # blocks that hold nothing are launched by nobody
        calls = sum(times for (_, size, _), times in level.calls.items() if 0 not in size)
        return max(calls - first.launches, 0)
    if not (first.batched or (batched and first.independent)):
        return 0
    return sum(times - 1 for (_, size, _), times in level.calls.items() if 0 not in size)


# Counting must not fill the executor's cache with the recipes of sizes that nobody runs (they are large).
_uncached: Callable[..., Recipe | None] = lower.__wrapped__


# ---- one level: its sums, temporaries and products


class _Level(NamedTuple):
    additions: int
    read: Mapping[int, int]  # rectangles that sums read: elements -> how many
    written: Mapping[int, int]
    launches: int
    temporaries: Mapping[Rectangle, int]
    calls: Mapping[tuple[Plan, Shape, bool], int]
    lanes: int  # how many of them run at a time


def _level(plan: Plan, shape: Shape, alpha: Coefficient, beta: Coefficient) -> _Level | None:
    """The counts of a plan's first level, None for a leaf; by its formulas if the blocks are large enough."""
    first = plan.levels[0] if plan.levels else None
    cut = first.cut if first and (first.takes_alpha_beta or (alpha, beta) == (1, 0)) else None
    if first and cut and (powers := _powers(cut, shape)):
        residues = tuple(side % parts for side, parts in zip(shape, cut.parts, strict=True))
        # What the formulas count depends on the leaf only where sums are done inside its products.
        leaf = plan.leaf if plan.leaf_use.leaf.sums_inside and not plan.rest.levels else VENDOR.leaf
        if (formulas := _formulas(first, leaf, powers, residues, alpha, beta)) is not None:
            return formulas.at(shape, plan.rest)
    recipe = _uncached(plan, *shape, alpha, beta)
    return None if recipe is None else _counted(recipe)


def _counted(recipe: Recipe) -> _Level:
    sums = Counter(_summed(step) for step in recipe.steps if isinstance(step, Sum | Updating))
    additions = launches = 0
    read: Counter[int] = Counter()
    written: Counter[int] = Counter()
    for (fused, program, reads, writes), times in sums.items():
        added, loads, stores = _pass(program, reads, writes)
        additions += added * times
        launches += (any(stores) and not fused) * times
        if fused:
            loads, stores = loads[1:], stores[1:]
        for counter, sizes in ((read, loads), (written, stores)):
            for size in filter(None, sizes):
                counter[size] += times
    temporaries = Counter((rows, cols) for _, rows, cols in recipe.temporaries)
    calls = Counter((p.plan, p.size, p.accumulate) for p in recipe.products)
    return _Level(additions, read, written, launches, temporaries, calls, recipe.lanes)


def _summed(step: Sum | Updating) -> tuple[bool, Program, tuple[Rectangle, ...], tuple[Rectangle, ...]]:
    """All that the cost of a sum depends on: is it inside a product, what is added, and what is moved."""
    update = step.update if isinstance(step, Updating) else step
    return isinstance(step, Updating), update.program, _shapes(update.reads), _shapes(update.writes)


def _shapes(places: Sequence[Place]) -> tuple[Rectangle, ...]:
    return tuple([(p.rows, p.cols) for p in places])


def _pass(
    program: Program, reads: Sequence[Rectangle], writes: Sequence[Rectangle]
) -> tuple[int, list[int], list[int]]:
    """Of one sum: additions, elements read of each input, elements written of each output."""
    additions, read, written = 0, [0] * len(reads), [rows * cols for rows, cols in writes]
    for top, left, area in _regions(reads, writes):
        present = tuple([top < rows and left < cols for rows, cols in reads])
        wanted = tuple([top < rows and left < cols for rows, cols in writes])
        each, needed = _region(program, present, wanted)
        additions += each * area
        for i in needed:
            read[i] += area
    return additions, read, written


def _regions(reads: Sequence[Rectangle], writes: Sequence[Rectangle]) -> Iterator[tuple[int, int, int]]:
    """(top, left, area) of the rectangles into which the arrays' edges cut what is written."""
    shapes = {*reads, *writes}
    ends = [max(w[axis] for w in writes) for axis in (0, 1)]
    edges = [sorted({0, *(min(shape[axis], ends[axis]) for shape in shapes)}) for axis in (0, 1)]
    for (top, bottom), (left, right) in product(*(pairwise(e) for e in edges)):
        yield top, left, (bottom - top) * (right - left)


@lru_cache(maxsize=16384)
def _region(program: Program, present: tuple[bool, ...], wanted: tuple[bool, ...]) -> tuple[int, tuple[int, ...]]:
    """Additions per element, and which inputs are needed."""
    left = restricted(program, present, wanted)
    used = {v for terms in left.lines for _, v in terms} | set(left.outputs)
    return left.additions, tuple(sorted(v for v in used if v < left.inputs))


# ---- formulas: the counts of a level as polynomials in the sizes of its blocks
#
# A level cut into parts p has blocks of q = side // p rows, a few more or fewer, so that all its counts are polynomials
# in the three q, the same for all sides with one remainder. They are found by counting a single problem whose q are
# such large powers of BASE that the coefficients stand side by side as digits (Kronecker substitution).

BASE = 1 << 24
POWERS = (1, 3, 9)  # of BASE, for the three sides; the products of two have 4, 10, 12: all different
Digits = tuple[tuple[int, int], ...]  # (power of BASE, coefficient)


def _powers(cut: Cut, shape: Shape) -> tuple[int, ...] | None:
    """The power of BASE for each side; None for what formulas do not describe: padding, or a block that is empty.

    Where steps depend on which blocks are the larger ones, the sides keep their order of size.
    """
    if cut.unit is not None and cut.unit > 1 and not cut.even(shape):
        return None
    least, most = zip(*(_extremes(*side, cut.unit) for side in zip(shape, cut.parts, strict=True)), strict=True)
    if min(least) < 1:
        return None
    order = sorted((1, 0, 2), key=lambda side: least[side]) if cut.ordered else [0, 1, 2]
    if cut.ordered and any(most[x] > least[y] for x, y in pairwise(order)):
        return None
    return tuple(POWERS[order.index(side)] for side in range(3))


def _extremes(side: int, parts: int, unit: int | None) -> tuple[int, int]:
    """The smallest and the largest block of a side."""
    full = -(-side // parts)
    return (side // parts if unit is None else side - (parts - 1) * full), full


class _Formulas(NamedTuple):
    """A level's counts; the plan of its products is filled in when the formulas are used."""

    size: Shape
    powers: tuple[int, ...]
    additions: Digits
    read: tuple[tuple[Digits, int], ...]
    written: tuple[tuple[Digits, int], ...]
    launches: int
    temporaries: tuple[tuple[tuple[Digits, ...], int], ...]
    calls: tuple[tuple[tuple[Digits, ...], bool, int], ...]
    lanes: int

    def at(self, shape: Shape, inner: Plan) -> _Level:
        blocks = [side // parts for side, parts in zip(shape, self.size, strict=True)]
        values = {0: 1, **dict(zip(self.powers, blocks, strict=True))}
        for x, y in combinations(range(3), 2):
            values[self.powers[x] + self.powers[y]] = blocks[x] * blocks[y]

        def value(digits: Digits) -> int:
            return sum(c * values[power] for power, c in digits)

        def sizes(sides: tuple[Digits, ...]) -> tuple[int, ...]:
            return tuple([value(side) for side in sides])

        temporaries = _merged((sizes(sides), times) for sides, times in self.temporaries)
        calls = _merged(((inner, sizes(sides), acc), times) for sides, acc, times in self.calls)
        read = _merged((value(digits), times) for digits, times in self.read)
        written = _merged((value(digits), times) for digits, times in self.written)
        counts = value(self.additions), read, written, self.launches, temporaries, calls, self.lanes
        return _Level(*counts)  # type: ignore[arg-type]


def _merged(pairs: Iterator[tuple[Key, int]]) -> dict[Key, int]:
    """Sizes that are different formulas may be equal numbers."""
    found: dict[Key, int] = {}
    for key, times in pairs:
        found[key] = found.get(key, 0) + times
    return found


@depends_on_rows
@lru_cache(maxsize=4096)
def _formulas(
    level: PlanLevel,
    leaf: str,
    powers: tuple[int, ...],
    residues: tuple[int, ...],
    alpha: Coefficient,
    beta: Coefficient,
) -> _Formulas | None:
    """None if the level does not take blocks of such an order of size (then its own error is the better one)."""
    assert level.cut is not None
    sides = [p * BASE**power + r for p, power, r in zip(level.cut.parts, powers, residues, strict=True)]
    try:
        recipe = _uncached(Plan((level,), leaf), *sides, alpha, beta)
    except PlanError:
        return None
    assert recipe is not None
    counted = _counted(recipe)
    return _Formulas(
        level.cut.parts,
        powers,
        _digits(counted.additions),
        tuple((_digits(size), times) for size, times in counted.read.items()),
        tuple((_digits(size), times) for size, times in counted.written.items()),
        counted.launches,
        tuple((tuple(map(_digits, size)), times) for size, times in counted.temporaries.items()),
        tuple((tuple(map(_digits, size)), acc, times) for (_, size, acc), times in counted.calls.items()),
        counted.lanes,
    )


def _digits(value: int) -> Digits:
    """The nonzero digits of a number in base BASE, from -BASE/2 to BASE/2."""
    found: list[tuple[int, int]] = []
    power = 0
    while value:
        digit = (value + BASE // 2) % BASE - BASE // 2
        if digit:
            found.append((power, digit))
        value = (value - digit) // BASE
        power += 1
    return tuple(found)
