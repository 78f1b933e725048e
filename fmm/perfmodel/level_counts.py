"""What one level of a plan costs: its sums, its temporaries, and which products it calls.

At fringes a sum is cut into regions in which every array is wholly there or wholly absent, and what is absent is
neither added nor read; on sizes that divide there is one region. Where a level's cut alone decides its steps, its
counts are polynomials in the sides of the blocks, found once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, pairwise, product
from typing import NamedTuple, TypeVar

from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient, restricted_program
from fmm.kernels.plans.level import Cut, Level
from fmm.kernels.plans.lower import lower_leaf_level, lower_level
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.steps import GemmParams, LevelSteps, ProductWithSums
from fmm.kernels.plans.sums import OPERANDS, LineExponents, Mirror, Place, Sum
from fmm.kernels.registry import clear_on_registration
from fmm.problem import Shape

Rectangle = tuple[int, int]  # rows, columns
Moved = tuple[int, bool]  # elements; are they of the type of the level's products, if that is another one?
Key = TypeVar("Key")

# Counting must not fill the cache of what runs with the steps for sizes that nobody runs (there are many).
_uncached: Callable[..., LevelSteps | None] = lower_level.__wrapped__


# ---- one level: its sums, temporaries and products


class LevelCounts(NamedTuple):
    """What one level costs, its products left open."""

    additions: int
    read: Mapping[Moved, int]  # rectangles that sums read -> how many
    written: Mapping[Moved, int]
    launches: int
    temporaries: Mapping[Rectangle, int]
    calls: Mapping[tuple[Plan, Shape, GemmParams], int]
    lanes: int  # how many of them run at a time


def counted_level(plan: Plan, shape: Shape, asked: GemmParams) -> LevelCounts | None:
    """The counts of a plan's first level, None for a leaf; by its formulas if the blocks are large enough."""
    first, (alpha, beta) = plan.levels[0] if plan.levels else None, asked[:2]
    cut = first.cut if first and (first.takes_alpha_beta or (alpha, beta) == (1, 0)) else None
    if first and cut and (powers := _powers(cut, shape)):
        residues = tuple(side % parts for side, parts in zip(shape, cut.parts, strict=True))
        # What the formulas count depends on the leaf only where sums are done inside its products.
        leaf = plan.leaf if plan.leaf_use.leaf.sums_inside and not plan.rest.levels else VENDOR.leaf
        if (formulas := _formulas(first, leaf, powers, residues, alpha, beta)) is not None:
            return formulas.at(shape, plan.rest)
    steps = _uncached(plan, *shape, *asked)
    return None if steps is None else _counted(steps)


def opened_counts(plan: Plan, shape: Shape, itemsize: int, asked: GemmParams) -> LevelCounts | None:
    """The same of a level that a machine does whole, all its products in one launch."""
    steps = lower_leaf_level(plan, *shape, itemsize, asked)
    return None if steps is None else _counted(steps)


def _counted(steps: LevelSteps) -> LevelCounts:
    exponents = [step for step in steps.steps if isinstance(step, LineExponents)]
    passes = (x for x in steps.steps if isinstance(x, Sum | ProductWithSums) and not isinstance(x, LineExponents))
    sums = Counter(map(_summed, passes))
    additions = launches = 0
    read: Counter[Moved] = Counter()
    written: Counter[Moved] = Counter()
    for summed, times in sums.items():
        added, loads, stores = _pass(summed.program, summed.reads, summed.writes)
        additions += added * times
        launches += (any(stores) and not summed.fused) * times
        skipped = int(summed.fused)
        for counter, sizes, below in ((read, loads, summed.reads_below), (written, stores, summed.writes_below)):
            for moved in list(zip(sizes, below, strict=True))[skipped:]:
                counter[moved] += times * (moved[0] > 0)
    for mirror in (step for step in steps.steps if isinstance(step, Mirror) and step.dest.rows):
        more, before, after = _mirrored(mirror)
        additions += more
        launches += 1
        read[before, _below([mirror.source])[0]] += 1
        written[after, _below([mirror.dest])[0]] += 1
    for found in exponents:
        launches += 1
        read[found.source.rows * found.source.cols, _below([found.source])[0]] += 1
        written[found.writes[0].cols, True] += 1
    temporaries = Counter((rows, cols) for _, rows, cols in steps.temporaries)
    calls = Counter((p.plan, p.size, p.params) for p in steps.products)
    return LevelCounts(additions, read, written, launches, temporaries, calls, steps.streams)


def _mirrored(step: Mirror) -> tuple[int, int, int]:
    """Of a half that is updated or mirrored: additions, elements read and written."""
    lower = step.dest.rows * (step.dest.rows + 1) // 2
    upper = lower - step.dest.rows if step.fill == "full" else 0
    added = lower if step.beta else 0
    return added, lower + added, upper + (0 if step.in_place else lower)


class _Summed(NamedTuple):
    """All that the cost of a sum depends on: is it inside a product, what is added, and what is moved."""

    fused: bool
    program: AdditionProgram
    reads: tuple[Rectangle, ...]
    writes: tuple[Rectangle, ...]
    reads_below: tuple[bool, ...]  # which are of the type of the level's products
    writes_below: tuple[bool, ...]


def _summed(step: Sum | ProductWithSums) -> _Summed:
    update = step.update if isinstance(step, ProductWithSums) else step
    shapes = _shapes(update.reads), _shapes(update.writes)
    return _Summed(
        isinstance(step, ProductWithSums), update.program, *shapes, _below(update.reads), _below(update.writes)
    )


def _below(places: Sequence[Place]) -> tuple[bool, ...]:
    """Temporaries are of that type, and so are the parts of complex numbers."""
    return tuple([p.part is not None or p.name not in OPERANDS for p in places])


def _shapes(places: Sequence[Place]) -> tuple[Rectangle, ...]:
    return tuple([(p.rows, p.cols) for p in places])


def _pass(
    program: AdditionProgram, reads: Sequence[Rectangle], writes: Sequence[Rectangle]
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
def _region(
    program: AdditionProgram, present: tuple[bool, ...], wanted: tuple[bool, ...]
) -> tuple[int, tuple[int, ...]]:
    """Additions per element, and which inputs are needed."""
    left = restricted_program(program, present, wanted)
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
    read: tuple[tuple[Digits, bool, int], ...]
    written: tuple[tuple[Digits, bool, int], ...]
    launches: int
    temporaries: tuple[tuple[tuple[Digits, ...], int], ...]
    calls: tuple[tuple[tuple[Digits, ...], GemmParams, int], ...]
    lanes: int

    def at(self, shape: Shape, inner: Plan) -> LevelCounts:
        blocks = [side // parts for side, parts in zip(shape, self.size, strict=True)]
        values = {0: 1, **dict(zip(self.powers, blocks, strict=True))}
        for x, y in combinations(range(3), 2):
            values[self.powers[x] + self.powers[y]] = blocks[x] * blocks[y]

        def value(digits: Digits) -> int:
            return sum(c * values[power] for power, c in digits)

        def sizes(sides: tuple[Digits, ...]) -> tuple[int, ...]:
            return tuple([value(side) for side in sides])

        temporaries = _merged((sizes(sides), times) for sides, times in self.temporaries)
        calls = _merged(((inner, sizes(sides), asked), times) for sides, asked, times in self.calls)
        read = _merged(((value(digits), below), times) for digits, below, times in self.read)
        written = _merged(((value(digits), below), times) for digits, below, times in self.written)
        counts = value(self.additions), read, written, self.launches, temporaries, calls, self.lanes
        return LevelCounts(*counts)  # type: ignore[arg-type]


def _merged(pairs: Iterator[tuple[Key, int]]) -> dict[Key, int]:
    """Sizes that are different formulas may be equal numbers."""
    found: dict[Key, int] = {}
    for key, times in pairs:
        found[key] = found.get(key, 0) + times
    return found


@clear_on_registration
@lru_cache(maxsize=4096)
def _formulas(
    level: Level,
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
        steps = _uncached(Plan((level,), leaf), *sides, alpha, beta)
    except PlanError:
        return None
    assert steps is not None
    counted = _counted(steps)
    return _Formulas(
        level.cut.parts,
        powers,
        _digits(counted.additions),
        tuple((_digits(size), below, times) for (size, below), times in counted.read.items()),
        tuple((_digits(size), below, times) for (size, below), times in counted.written.items()),
        counted.launches,
        tuple((tuple(map(_digits, size)), times) for size, times in counted.temporaries.items()),
        tuple((tuple(map(_digits, size)), asked, times) for (_, size, asked), times in counted.calls.items()),
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
