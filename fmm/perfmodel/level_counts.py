"""Count the cost of one level of a plan: the level's sums, temporaries and calls of products.

At a fringe, the blocks of one sum have different sizes. The sum is then counted by rectangles: in each rectangle, only
the blocks that cover the rectangle are read and added. If a level has the same steps for all sizes, its counts are
polynomials in the sides of the blocks; the polynomials are cached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, pairwise, product
from typing import NamedTuple, TypeVar

from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient, pruned_program
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.level import Level, LevelBlockGrid
from fmm.kernels.plans.lower import lower_level, lower_level_run_by_leaf
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.steps import LevelSteps, ProductWithSums
from fmm.kernels.plans.sums import OPERAND_NAMES, Mirror, Place, RowOrColumnExponents, Sum
from fmm.kernels.registry import clear_on_registration
from fmm.problem import Shape

RectangleShape = tuple[int, int]  # number of rows and number of columns of a rectangle
# (number of elements of a rectangle, True if the elements have the type of the level's products)
MovedElements = tuple[int, bool]
KeyT = TypeVar("KeyT")

# The function `lower_level` without its lru_cache: most products are only counted and never run, and in the cache their
# steps would displace the steps of products that run.
_lower_level_uncached: Callable[..., LevelSteps | None] = lower_level.__wrapped__


class LevelCounts(NamedTuple):
    """The cost of one level's sums and temporaries, and the number of products of each shape."""

    additions: int  # number of elements that sums add or subtract
    read: Mapping[MovedElements, int]  # rectangle that sums read -> number of reads
    written: Mapping[MovedElements, int]  # rectangle that sums write -> number of writes
    launches: int  # number of launches of sums
    temporaries: Mapping[RectangleShape, int]  # shape of a temporary -> number of temporaries
    # (plan, shape, parameters) of a product -> number of products with this key
    calls: Mapping[tuple[Plan, Shape, GemmParams], int]
    streams: int  # number of products that may run at a time


def count_level(plan: Plan, shape: Shape, params: GemmParams) -> LevelCounts | None:
    """Return the counts of a plan's first level, from polynomials if blocks are large enough; None for a leaf."""
    first, (alpha, beta) = plan.levels[0] if plan.levels else None, params[:2]
    cut = first.cut if first and (first.takes_alpha_beta or (alpha, beta) == (1, 0)) else None
    if first and cut and (powers := _side_digit_powers(cut, shape)):
        residues = tuple(side % parts for side, parts in zip(shape, cut.parts, strict=True))
        # The counts depend on the leaf only if the leaf's kernel computes sums inside products.
        leaf = plan.leaf if plan.leaf_use.leaf.can_compute_sums and not plan.inner_plan.levels else VENDOR.leaf
        if (formulas := _level_polynomials(first, leaf, powers, residues, alpha, beta)) is not None:
            return formulas.evaluate_counts(shape, plan.inner_plan)
    steps = _lower_level_uncached(plan, *shape, *params)
    return None if steps is None else _count_steps(steps)


def count_leaf_level(plan: Plan, shape: Shape, itemsize: int, params: GemmParams) -> LevelCounts | None:
    """Return the counts of a level that one leaf runs as a whole, with one launch; None for other leaves."""
    steps = lower_level_run_by_leaf(plan, *shape, itemsize, params)
    return None if steps is None else _count_steps(steps)


# ---- counting steps


def _count_steps(steps: LevelSteps) -> LevelCounts:
    exponents = [step for step in steps.steps if isinstance(step, RowOrColumnExponents)]
    passes = (
        x for x in steps.steps if isinstance(x, Sum | ProductWithSums) and not isinstance(x, RowOrColumnExponents)
    )
    additions = launches = 0
    read: Counter[MovedElements] = Counter()
    written: Counter[MovedElements] = Counter()
    for key, times in Counter(map(_sum_cost_key, passes)).items():
        added, loads, stores = _count_sum(key.program, key.reads, key.writes)
        additions += added * times
        launches += (any(stores) and not key.fused) * times
        # A sum inside a product's kernel does not read its first array, because the kernel already reads this array as
        # an operand of the product.
        skipped = int(key.fused)
        for counter, sizes, below in ((read, loads, key.reads_below), (written, stores, key.writes_below)):
            for moved in list(zip(sizes, below, strict=True))[skipped:]:
                counter[moved] += times * (moved[0] > 0)
    for mirror in (step for step in steps.steps if isinstance(step, Mirror) and step.dest.rows):
        lower = mirror.dest.rows * (mirror.dest.rows + 1) // 2
        upper = lower - mirror.dest.rows if mirror.fill == "full" else 0
        added = lower if mirror.beta else 0
        additions += added
        launches += 1
        read[lower + added, _product_type_flags([mirror.source])[0]] += 1
        written[upper + (0 if mirror.is_in_place else lower), _product_type_flags([mirror.dest])[0]] += 1
    for step in exponents:
        launches += 1
        read[step.source_place.rows * step.source_place.cols, _product_type_flags([step.source_place])[0]] += 1
        written[step.writes[0].cols, True] += 1
    temporaries = Counter((rows, cols) for _, rows, cols in steps.temporaries)
    calls = Counter((p.plan, p.size, p.params) for p in steps.products)
    return LevelCounts(additions, read, written, launches, temporaries, calls, steps.streams)


class _SumCostKey(NamedTuple):
    """The properties of a sum on which its cost depends."""

    fused: bool  # True for a sum inside a product's kernel
    program: AdditionProgram
    reads: tuple[RectangleShape, ...]
    writes: tuple[RectangleShape, ...]
    reads_below: tuple[bool, ...]  # True for each array with the element type of the level's products
    writes_below: tuple[bool, ...]


def _sum_cost_key(step: Sum | ProductWithSums) -> _SumCostKey:
    fused = isinstance(step, ProductWithSums)
    update = step.update if isinstance(step, ProductWithSums) else step
    reads, writes = (tuple([(p.rows, p.cols) for p in places]) for places in (update.reads, update.writes))
    below = _product_type_flags(update.reads), _product_type_flags(update.writes)
    return _SumCostKey(fused, update.program, reads, writes, *below)


def _product_type_flags(places: Sequence[Place]) -> tuple[bool, ...]:
    """Return for each array: True if its elements have the type of the level's products.

    Temporaries have the type of the products, and so have the real or imaginary parts of complex matrices.
    """
    return tuple([p.part is not None or p.name not in OPERAND_NAMES for p in places])


def _count_sum(
    program: AdditionProgram, reads: Sequence[RectangleShape], writes: Sequence[RectangleShape]
) -> tuple[int, list[int], list[int]]:
    """Return the number of additions, the elements read from each input, and the elements written to each output."""
    additions, read, written = 0, [0] * len(reads), [rows * cols for rows, cols in writes]
    for top, left, area in _written_regions(reads, writes):
        present = tuple([top < rows and left < cols for rows, cols in reads])
        wanted = tuple([top < rows and left < cols for rows, cols in writes])
        each, needed = _region_additions_and_inputs(program, present, wanted)
        additions += each * area
        for i in needed:
            read[i] += area
    return additions, read, written


def _written_regions(
    reads: Sequence[RectangleShape], writes: Sequence[RectangleShape]
) -> Iterator[tuple[int, int, int]]:
    """Yield (top, left, area) of rectangles that cover the written area; no edge of an array crosses a rectangle."""
    shapes = {*reads, *writes}
    ends = [max(w[axis] for w in writes) for axis in (0, 1)]
    edges = [sorted({0, *(min(shape[axis], ends[axis]) for shape in shapes)}) for axis in (0, 1)]
    for (top, bottom), (left, right) in product(*(pairwise(e) for e in edges)):
        yield top, left, (bottom - top) * (right - left)


@lru_cache(maxsize=16384)
def _region_additions_and_inputs(
    program: AdditionProgram, present: tuple[bool, ...], wanted: tuple[bool, ...]
) -> tuple[int, tuple[int, ...]]:
    """Return the additions for each element of a rectangle, and the indices of the inputs that are read there."""
    left = pruned_program(program, present, wanted)
    used = {v for terms in left.lines for _, v in terms} | set(left.outputs)
    return left.addition_count, tuple(sorted(v for v in used if v < left.inputs))


# ---- formulas: the counts of a level as polynomials in the sides of its blocks

# A level that cuts a side into p parts has blocks of about q = side // p rows. The counts of a level are polynomials in
# the three block sizes q, one for each side; the coefficients depend only on the remainders side % p. Kronecker
# substitution finds all coefficients from the counts of a single problem: its block sizes q are powers of DIGIT_BASE,
# so that the coefficients are the digits of the counts in base DIGIT_BASE.

DIGIT_BASE = 1 << 24
# exponents of DIGIT_BASE for the three sides; products of two sides have the different exponents 4, 10 and 12
SIDE_DIGIT_POWERS = (1, 3, 9)
BaseDigits = tuple[tuple[int, int], ...]  # pairs (power of DIGIT_BASE, coefficient)


def _side_digit_powers(cut: LevelBlockGrid, shape: Shape) -> tuple[int, ...] | None:
    """Return the power of DIGIT_BASE for each side; None if padding or empty blocks rule out polynomials.

    If the order of a block's sides by length determines the level's steps, the powers have the same order.
    """
    if cut.unit is not None and cut.unit > 1 and not cut.has_equal_blocks(shape):
        return None
    least, most = zip(*(_block_size_range(*side, cut.unit) for side in zip(shape, cut.parts, strict=True)), strict=True)
    if min(least) < 1:
        return None
    order = sorted((1, 0, 2), key=lambda side: least[side]) if cut.ordered else [0, 1, 2]
    if cut.ordered and any(most[x] > least[y] for x, y in pairwise(order)):
        return None
    return tuple(SIDE_DIGIT_POWERS[order.index(side)] for side in range(3))


def _block_size_range(side: int, parts: int, unit: int | None) -> tuple[int, int]:
    """Return the smallest and the largest block size into which a side is cut."""
    full = -(-side // parts)
    return (side // parts if unit is None else side - (parts - 1) * full), full


class _LevelPolynomials(NamedTuple):
    """The counts of a level as polynomials in the block sizes."""

    size: Shape
    powers: tuple[int, ...]
    additions: BaseDigits
    read: tuple[tuple[BaseDigits, bool, int], ...]
    written: tuple[tuple[BaseDigits, bool, int], ...]
    launches: int
    temporaries: tuple[tuple[tuple[BaseDigits, ...], int], ...]
    calls: tuple[tuple[tuple[BaseDigits, ...], GemmParams, int], ...]
    streams: int

    def evaluate_counts(self, shape: Shape, inner: Plan) -> LevelCounts:
        blocks = [side // parts for side, parts in zip(shape, self.size, strict=True)]
        values = {0: 1, **dict(zip(self.powers, blocks, strict=True))}
        for x, y in combinations(range(3), 2):
            values[self.powers[x] + self.powers[y]] = blocks[x] * blocks[y]

        def polynomial_value(digits: BaseDigits) -> int:
            return sum(c * values[power] for power, c in digits)

        def polynomial_values(sides: tuple[BaseDigits, ...]) -> tuple[int, ...]:
            return tuple([polynomial_value(side) for side in sides])

        temporaries = _merge_counts((polynomial_values(sides), times) for sides, times in self.temporaries)
        calls = _merge_counts(((inner, polynomial_values(sides), params), times) for sides, params, times in self.calls)
        read = _merge_counts(((polynomial_value(digits), below), times) for digits, below, times in self.read)
        written = _merge_counts(((polynomial_value(digits), below), times) for digits, below, times in self.written)
        counts = polynomial_value(self.additions), read, written, self.launches, temporaries, calls, self.streams
        return LevelCounts(*counts)  # type: ignore[arg-type]


def _merge_counts(pairs: Iterator[tuple[KeyT, int]]) -> dict[KeyT, int]:
    """Return a dictionary: key -> sum of the counts of all pairs with this key.

    The pairs may contain a key several times: two polynomials can have the same value at the sizes of one problem.
    """
    found: dict[KeyT, int] = {}
    for key, times in pairs:
        found[key] = found.get(key, 0) + times
    return found


@clear_on_registration
@lru_cache(maxsize=4096)
def _level_polynomials(
    level: Level,
    leaf: str,
    powers: tuple[int, ...],
    residues: tuple[int, ...],
    alpha: Coefficient,
    beta: Coefficient,
) -> _LevelPolynomials | None:
    """Return the counts of a level as polynomials in the block sizes, found from the counts of a single problem.

    Side i of the counted problem is p * DIGIT_BASE ** powers[i] + residues[i], where p is the number of blocks into
    which the level cuts this side. The result is None if the level cannot run at these sides.
    """
    assert level.cut is not None
    sides = [p * DIGIT_BASE**power + r for p, power, r in zip(level.cut.parts, powers, residues, strict=True)]
    try:
        steps = _lower_level_uncached(Plan((level,), leaf), *sides, alpha, beta)
    except PlanError:
        return None
    assert steps is not None
    counts = _count_steps(steps)
    return _LevelPolynomials(
        level.cut.parts,
        powers,
        _base_digits(counts.additions),
        tuple((_base_digits(size), below, times) for (size, below), times in counts.read.items()),
        tuple((_base_digits(size), below, times) for (size, below), times in counts.written.items()),
        counts.launches,
        tuple((tuple(map(_base_digits, size)), times) for size, times in counts.temporaries.items()),
        tuple((tuple(map(_base_digits, size)), params, times) for (_, size, params), times in counts.calls.items()),
        counts.streams,
    )


def _base_digits(value: int) -> BaseDigits:
    """Return the nonzero digits of a number in base DIGIT_BASE, each from -DIGIT_BASE/2 to DIGIT_BASE/2."""
    found: list[tuple[int, int]] = []
    power = 0
    while value:
        digit = (value + DIGIT_BASE // 2) % DIGIT_BASE - DIGIT_BASE // 2
        if digit:
            found.append((power, digit))
        value = (value - digit) // DIGIT_BASE
        power += 1
    return tuple(found)
