"""Work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

from fmm.kernels.cuda.products.kernel_sizes import DOUBLE, FUSED_SIZES, PRESETS, TMA_FUSED_SIZES, TUNED
from fmm.kernels.plans.level import Level
from fmm.kernels.plans.lower import Footprint, Sides, lower_level, with_steps
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.steps import GemmParams, Product, ProductBatch
from fmm.kernels.plans.sums import Mirror, Sum
from fmm.kernels.plans.workspace import ALIGN, workspace
from fmm.kernels.registry import clear_on_registration
from fmm.perfmodel.calibration import Rate
from fmm.perfmodel.cost import cost
from fmm.problem import Problem, Shape

Leaf = tuple[float, float, float, float, float]  # m, k, n, how many, how many of them start together

# Rows, k, how many, how many of them start together; by which leaf, and may it leave anything in the other half?
Half = tuple[float, float, float, float, str, bool]


@dataclass(frozen=True)
class Work:
    """What the formula needs of a plan: its leaf products, the traffic of its sums, and how many passes those are."""

    leaves: tuple[Leaf, ...]
    traffic: float  # elements
    passes: float
    # Which share of the traffic is moved ...
    sequential: float = 0.0  # by sequential levels
    ragged: float = 0.0  # by the first level, to or from rows of A, B or C that do not begin on cache lines
    overlapped: float = 0.0  # below an overlapped level
    scalar: float = 0.0  # by the first level, to or from rows that it must read and write one number at a time
    deep: float = 0.0  # by three levels in one pass
    parts: float = 0.0  # by levels that have complex products done in real ones
    # Which share of the leaf products reads or writes, in A, B or C themselves, rows that begin ...
    unaligned: float = 0.0  # at multiples of 4 bytes, but not all at multiples of 16
    odd: float = 0.0  # not even all at multiples of 4
    copied: float = 0.0  # ... or takes aligned copies of either kind instead
    alone: bool = False  # are A's rows the only ones of these kinds?
    tiles: Tiles | None = None  # of leaf products by the tiled kernel
    halves: tuple[Half, ...] = ()  # leaf products that are their own adjoints, of which half is computed
    # These read A, B and C themselves: shares whose rows do not begin as wide accesses want, and not even at words.
    halves_unaligned: float = 0.0
    halves_odd: float = 0.0

    @property
    def smallest(self) -> float:
        """The shortest side of the leaf products."""
        found = [min(leaf[:3]) for leaf in self.leaves]
        return min(found + [min(half[:2]) for half in self.halves]) if self.halves else min(found)


# Bytes that a GPU's sums move at a time where rows begin at multiples of them, and those of three levels in one pass.
ACCESS = 16
DEEP_ACCESS = 8
DEEP = 7**3  # products of three levels in one pass


def rows_aligned(problem: Problem, unit: int) -> bool:
    """Does every row begin at a multiple of so many bytes?"""
    return all(aligned_operands(problem, unit))


def aligned_operands(problem: Problem, unit: int) -> tuple[bool, bool, bool]:
    """Does every row of A, of B, of C begin at a multiple of so many bytes, if the first does?"""
    itemsize = problem.itemsize
    b = problem.n * itemsize % unit == 0
    return problem.k * itemsize % unit == 0, b, b


def access_bytes(products: float, itemsize: int) -> int:
    """Bytes that a GPU's sums of a level with so many products move at a time, where rows begin at multiples of them.

    A thread of three levels in one pass has registers for two numbers at most.
    """
    return ACCESS if products < DEEP else min(2 * itemsize, DEEP_ACCESS)


def moved_unaligned(moved: Sequence[float], aligned: Sequence[bool]) -> float:
    """Of what is moved to and from A, B and C: how much belongs to those whose rows do not begin as they should."""
    return sum([x for x, begins in zip(moved, aligned, strict=True) if not begins])


# How many times as long products take that wait for each other. (Sums inside, on two H200s: 1.04 to 1.34 with up to 132
# tiles, the median of 12 shapes 1.14; with more tiles 0.95 to 1.11, the median of 65 shapes 0.99.)
WAITING = 1.14
# Steps along the inner dimension in whose time a thread block writes a tile of C. (Without it products of 128 to 208
# steps are predicted to take 10 to 30 % less than they do on an H200.)
WRITING = 30.0


class Tiles(NamedTuple):
    """How the tiled kernel makes leaf products: the sides of its tiles; how many blocks of A and of B each product adds
    up, and how many of C it writes, on average; how many products may fill the device together."""

    height: int
    width: int
    left: float = 1.0
    right: float = 1.0
    dest: float = 1.0
    together: float = 1.0

    def number(self, m: float, n: float) -> int:
        return ceil(m / self.height) * ceil(n / self.width)

    def slowdown(self, rate: Rate, m: float, k: float, n: float, together: float) -> float:
        """How many times as long as flops / rate a product takes; its sums are instructions, not passes over memory.

        Every row of tiles forms the sums of B again, every column of tiles those of A.
        """
        tiles = self.number(m, n)
        whole = tiles * self.height * self.width / (m * n)
        added = (self.left - 1) / self.width + (self.right - 1) / self.height + (self.dest - 1) / k
        beside = max(together, self.together) * tiles
        start = rate.waves / beside + rate.pipe / (k * max(beside / (rate.sms or beside), 1)) + WRITING / k
        return (rate.tiled or 1.0) * whole * (1 + start + rate.inside * added) * self._waiting(rate, m, n)

    def _waiting(self, rate: Rate, m: float, n: float) -> float:
        """Where the tiles of one product are fewer than the multiprocessors, the next one is begun beside it; of those
        that go to the same block of C one waits for the other."""
        alone = ceil(m / TMA_FUSED_SIZES.m_s) * ceil(n / TMA_FUSED_SIZES.n_s)
        return WAITING if self.dest > 1 and alone <= rate.sms else 1.0


@clear_on_registration
@lru_cache(maxsize=1024)
def tiles_of(plan: Plan, dtype: str) -> Tiles | None:
    """None where the vendor multiplies, and for types in which our own kernel takes about the vendor's time."""
    leaf = plan.leaf_use.leaf
    if not plan.uses_tile_model or dtype in set(leaf.types) - set(leaf.types_with_sums):
        return None
    products = plan.levels[-1].fused_products if plan.levels else None
    found = products.scheme if products else None
    usual = DOUBLE[0] if dtype == "float64" else FUSED_SIZES["float32"] if found else TUNED[0]
    chosen = next((s for s in PRESETS if s.name.lower() in plan.leaf_use.options), usual)
    if found is None:
        return Tiles(chosen.m_s, chosen.n_s)
    left, right, dest = (sum(c != 0 for row in x for c in row) / found.rank for x in (found.u, found.v, found.w))
    return Tiles(chosen.m_s, chosen.n_s, left, right, dest, found.rank)


WORD = 4  # bytes at whose multiples every row must begin for all but the vendor's slowest products
# The fields of Work that are shares of the traffic, and those that are shares of the leaf products.
OF_TRAFFIC = ("sequential", "ragged", "overlapped", "scalar", "deep", "parts")
OF_PRODUCTS = ("unaligned", "odd", "copied")


def product_work(plan: Plan, problem: Problem) -> Work:
    """Work as if unequal blocks and strips were spread evenly: what ranking needs, in microseconds."""
    footprints = level_footprints(plan, problem)
    if footprints is None:
        steps = lower_level(plan, *problem.size)
        direct = steps.in_place if steps and len(plan.levels) == 1 else 0.0
        return Work(*exact_counts(plan, problem), **rows_of_products(plan, problem, direct))
    moves, direct = _moves(plan, problem, footprints)
    sides = footprints[-1].sides if footprints else problem.size
    leaves = ((float(sides[0]), float(sides[1]), float(sides[2]), moves.products, products_together(plan)),)
    whole = moves.traffic or 1.0
    shares = {name: getattr(moves, name) / whole for name in OF_TRAFFIC}
    return Work(leaves, moves.traffic, moves.passes, **shares, **rows_of_products(plan, problem, direct))


def exact_counts(plan: Plan, problem: Problem) -> tuple[tuple[Leaf, ...], float, float]:
    """The leaf products, the elements that the sums move, and how many passes those are: of the plan's steps."""
    counts = cost(plan, *problem.size, problem.itemsize, opened=False)
    leaves = tuple((*size, float(times), products_together(plan)) for size, times in counts.leaves)
    passes = counts.launches - sum(count / together for *_, count, together in leaves)
    return leaves, (counts.bytes_read + counts.bytes_written) / problem.itemsize, passes


def products_together(plan: Plan) -> float:
    """How many leaf products start as one batch."""
    if not plan.levels:
        return 1.0
    last = plan.levels[-1]
    if last.needs_fusing_leaf:
        return last.products / last.launches
    return float(last.products) if last.batched else 1.0


# ---- what the sums of the levels move


@dataclass
class _Moves:
    """What a plan's sums come to, level by level from the outermost inwards: elements, of these the ones that are moved
    in one of the ways of OF_TRAFFIC, and passes; and how many products are below the levels so far."""

    traffic: float = 0.0
    passes: float = 0.0
    sequential: float = 0.0
    ragged: float = 0.0
    overlapped: float = 0.0
    scalar: float = 0.0
    deep: float = 0.0
    parts: float = 0.0
    products: float = 1.0


def _moves(plan: Plan, problem: Problem, footprints: Sequence[Footprint]) -> tuple[_Moves, float]:
    """What the sums come to, and the share of leaf products that use A, B or C themselves."""
    found, direct, below_overlapped = _Moves(), 1.0, False
    itemsize = problem.itemsize
    for level, f in zip(plan.levels, footprints, strict=True):
        each = [found.products * x * itemsize / problem.itemsize for x in f.moved]
        moved = sum(each)
        if f.passes:
            direct = f.in_place if len(plan.levels) == 1 else 0.0
        if found.products == 1:  # the first level: its sums read A and B and write C
            access = access_bytes(f.products, problem.itemsize)
            found.ragged += moved_unaligned(each, aligned_operands(problem, ALIGN))
            found.scalar += moved_unaligned(each, aligned_operands(problem, access))
        itemsize, before = level.itemsize_below(itemsize), itemsize
        found.traffic += moved
        found.sequential += moved if f.sequential else 0.0
        found.parts += moved if itemsize != before else 0.0
        found.deep += moved if f.products >= DEEP else 0.0
        found.overlapped += moved if below_overlapped else 0.0
        below_overlapped = below_overlapped or level.streams > 1
        found.passes += found.products * f.passes
        found.products *= f.products
    return found, direct


def level_footprints(plan: Plan, problem: Problem) -> tuple[Footprint, ...] | None:
    """Of the levels from the outermost inwards; None if one of them has none."""
    return _footprints(plan.levels, problem.size) if plan.levels else ()


@clear_on_registration
@lru_cache(maxsize=4096)  # work and workspace of a plan are asked for one after the other, and of each leaf again
def _footprints(levels: tuple[Level, ...], size: Shape) -> tuple[Footprint, ...] | None:
    found: list[Footprint] = []
    sides: Sides = (float(size[0]), float(size[1]), float(size[2]))
    for level in levels:
        if (footprint := level_footprint(level, sides)) is None:
            return None
        found.append(footprint)
        sides = footprint.sides
    return tuple(found)


@clear_on_registration
@lru_cache(maxsize=4096)
def level_footprint(level: Level, sides: Sides) -> Footprint | None:
    """One level's, kept: candidates for one problem begin alike."""
    return with_steps(level).footprint(VENDOR, sides)


# ---- the rows that leaf products read and write


def vendors_access(itemsize: int) -> int:
    """Bytes to which rows must be aligned for the vendor's fast kernels: two numbers at least. (Complex128 on an H200:
    with an odd number of columns 28 products took 1.21 times as long as 30 others, beside what was predicted.)"""
    return max(ACCESS, 2 * itemsize)


def splits_into_whole_parts(plan: Plan) -> bool:
    """Are its real products those of the parts of complex numbers, in matrices as large as these, without padding?"""
    return bool(plan.levels) and all(level.splits_complex for level in plan.levels)


def rows_of_products(plan: Plan, problem: Problem, direct: float) -> dict[str, Any]:
    """The fields of Work on how rows begin; `direct` is the share of leaf products that use A, B or C themselves.

    A batch reads temporaries alone, whose rows are aligned.
    """
    vectors, worded = aligned_operands(problem, vendors_access(problem.itemsize)), aligned_operands(problem, WORD)
    if splits_into_whole_parts(plan):  # whose rows begin where those of such a real product would
        parts, direct = replace(problem, dtype=plan.leaf_type(problem.dtype)), 1.0
        vectors = aligned_operands(parts, vendors_access(parts.itemsize))
    elif plan.batched:
        direct = 0.0
    unaligned, odd = float(False in vectors), float(False in worded)
    return {
        "unaligned": direct * (unaligned - odd),
        "odd": direct * odd,
        "copied": (1 - direct) * unaligned,
        "alone": vectors[1] and not vectors[0],
        "tiles": tiles_of(plan, plan.leaf_type(problem.dtype)),
    }


@clear_on_registration
@lru_cache(maxsize=4096)
def half_work(plan: Plan, problem: Problem) -> Work:
    """The parts' work together; shares are weighted by what they are shares of."""
    parts = half_parts(plan, problem)
    products = [
        (float(count), float(together), product_work(inner, Problem(*size, problem.dtype)))
        for (inner, size, together), count in parts.products.items()
    ]
    leaves = [(m, k, n, c * times, max(b, t)) for c, t, w in products for m, k, n, times, b in w.leaves]
    halves = [
        (float(m), float(k), float(c), float(t), by, loose) for ((m, k, _), t, by, loose), c in parts.halves.items()
    ]
    traffic = parts.traffic + sum(c * w.traffic for c, _, w in products)
    passes = parts.passes + sum(c * w.passes for c, _, w in products)
    rows = rows_of_products(VENDOR, problem, 1.0)
    return Work(
        tuple(leaves),
        traffic,
        passes,
        alone=any(w.alone for *_, w in products),
        tiles=next((w.tiles for *_, w in products if w.tiles), None),
        halves=tuple(halves),
        halves_unaligned=rows["unaligned"],
        halves_odd=rows["odd"],
        **_weighted(OF_TRAFFIC, [(c * w.traffic, w) for c, _, w in products], traffic),
        **_weighted(OF_PRODUCTS, [(c * _multiply_adds(w), w) for c, _, w in products], 0.0),
    )


def _multiply_adds(work: Work) -> float:
    return sum(m * k * n * times for m, k, n, times, _ in work.leaves)


def _weighted(names: Sequence[str], parts: Sequence[tuple[float, Work]], least: float) -> dict[str, float]:
    """These fields of the parts as shares of the whole: the sum of their weights, or `least` if that is more."""
    whole = max(sum(weight for weight, _ in parts), least) or 1.0
    return {name: sum(weight * getattr(work, name) for weight, work in parts) / whole for name in names}


# ---- the parts


class HalfParts:
    """What the levels that cut the product leave: whole products by plans, halves by the leaf; and their own sums."""

    def __init__(self) -> None:
        self.traffic = self.passes = 0.0
        self.held = 0.0  # the most elements that temporaries have at a time, those of levels below among them
        self.products: Counter[tuple[Plan, Shape, int]] = Counter()  # the last: how many start together
        self.halves: Counter[tuple[Shape, int, str, bool]] = Counter()  # by which leaf, and is it loose

    def walk(self, plan: Plan, size: Shape, asked: GemmParams, together: int = 1) -> None:
        steps = lower_level(plan, *size, *asked) if asked.op != "product" else None
        if asked.op == "product":
            self.products[plan, size, 1 if plan.levels else together] += 1
        elif steps is None:
            self.halves[size, together, plan.leaf, asked.fill == "loose"] += 1
        else:
            own = most = self.held + sum(rows * cols for _, rows, cols in steps.temporaries)
            mirrored = not plan.levels and plan.leaf_use.leaf.mirrors  # by the kernel itself
            for step in steps.steps[: 1 if mirrored else None]:
                self.held = own
                self._step(step)
                most = max(most, self.held)
            self.held = most

    def _step(self, step: object) -> None:
        if isinstance(step, Product):
            self.walk(step.plan, step.size, step.params)
        elif isinstance(step, ProductBatch):
            for product in step.products:
                self.walk(product.plan, product.size, product.params, len(step.products))
        else:
            self.passes += 1
            self.traffic += _moved_elements(step)


def _moved_elements(step: object) -> float:
    """How many a sum or a mirror reads and writes."""
    if isinstance(step, Sum):
        return float(sum(place.rows * place.cols for place in (*step.reads, *step.writes)))
    assert isinstance(step, Mirror)
    return step.dest.rows**2 * (1.0 if step.in_place else 1.5 if step.fill == "full" else 1.0)


@clear_on_registration
@lru_cache(maxsize=4096)
def half_parts(plan: Plan, problem: Problem) -> HalfParts:
    """Kept: a plan's work and its workspace are asked for one after the other."""
    found = HalfParts()
    found.walk(plan, problem.size, GemmParams(1, 0, problem.op, problem.fill))
    return found


def estimated_work(plan: Plan, problem: Problem) -> Work:
    """What ranking needs: as if unequal blocks were all alike, where the plan's levels know such a footprint."""
    return half_work(plan, problem) if problem.writes_triangle else product_work(plan, problem)


def counted_work(plan: Plan, problem: Problem) -> Work:
    """Exact work, from the plan's steps; the shares are the estimate's."""
    if problem.writes_triangle:
        return half_work(plan, problem)
    leaves, traffic, passes = exact_counts(plan, problem)
    return replace(product_work(plan, problem), leaves=leaves, traffic=traffic, passes=passes)


def estimated_workspace(plan: Plan, problem: Problem) -> float:
    """Bytes of temporaries, rows not rounded up: enough to tell most plans that fit from those that do not."""
    if problem.writes_triangle:
        found = half_parts(plan, problem)
        below = (estimated_workspace(inner, Problem(*size, problem.dtype)) for inner, size, _ in found.products)
        return found.held * problem.itemsize + max(below, default=0.0)
    footprints = level_footprints(plan, problem)
    if footprints is None:
        return float(workspace(plan, *problem.size, problem.itemsize))
    held, lanes, itemsize = 0.0, 1, problem.itemsize
    for level, f in zip(plan.levels, footprints, strict=True):
        held += lanes * sum(f.held) * itemsize
        lanes, itemsize = max(lanes, level.streams), level.itemsize_below(itemsize)
    sides = footprints[-1].sides if footprints else problem.size
    m, k, n = (int(side) for side in sides)
    scratch = plan.leaf_use.leaf.workspace_bytes(itemsize, m, k, n, int(products_together(plan)))
    return held + lanes * scratch
