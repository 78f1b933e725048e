"""Work: what the prediction needs of a plan on a problem, counted exactly or estimated in microseconds.

An estimate takes each level's footprint, as if its blocks were all alike; a level without one has its steps counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

from fmm.kernels.cuda.products.tiles.tile_sizes import DOUBLE, PRESETS, SUMMING, TMA_SUMMING, TUNED
from fmm.kernels.plans.level import PlanLevel
from fmm.kernels.plans.level_with_steps import Footprint, Sides, with_steps
from fmm.kernels.plans.lower import lower_level
from fmm.kernels.plans.memory_layout import ALIGN
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.steps.asked import Asked
from fmm.kernels.plans.steps.level_steps import Product, ProductBatch
from fmm.kernels.plans.steps.sums import Mirror, Sum
from fmm.kernels.plans.workspace import workspace
from fmm.kernels.registry import depends_on_rows
from fmm.perfmodel.calibration import Rate
from fmm.perfmodel.cost import cost
from fmm.problem import Problem, Shape

# Bytes at whose multiples every row must begin: for the vendor's fastest products, and for all but its slowest.
ACCESS, WORD = 16, 4
# How many times as long products take that wait for each other. (Sums inside, on two H200s: 1.04 to 1.34 with up to 132
# tiles, the median of 12 shapes 1.14; with more tiles 0.95 to 1.11, the median of 65 shapes 0.99.)
WAITING = 1.14
DEEP = 7**3  # products of three levels in one pass
DEEP_ACCESS = 8  # bytes that their sums move at a time at most, where all others move ACCESS
Leaf = tuple[float, float, float, float, float]  # m, k, n, how many, how many of them start together

# Rows, k, how many, how many of them start together; by which leaf, and may it leave anything in the other half?
Half = tuple[float, float, float, float, str, bool]


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
        start = rate.waves / beside + rate.pipe / (k * max(beside / (rate.sms or beside), 1))
        return (rate.tiled or 1.0) * whole * (1 + start + rate.inside * added) * self._waiting(rate, m, n)

    def _waiting(self, rate: Rate, m: float, n: float) -> float:
        """Where the tiles of one product are fewer than the multiprocessors, the next one is begun beside it; of those
        that go to the same block of C one waits for the other."""
        alone = ceil(m / TMA_SUMMING.m_s) * ceil(n / TMA_SUMMING.n_s)
        return WAITING if self.dest > 1 and alone <= rate.sms else 1.0


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


def counted_work(plan: Plan, problem: Problem) -> Work:
    """Exact work, from the plan's steps; the shares are the estimate's."""
    if problem.halved:
        return estimated_work(plan, problem)
    leaves, traffic, passes = _counts(plan, problem)
    return replace(estimated_work(plan, problem), leaves=leaves, traffic=traffic, passes=passes)


def _counts(plan: Plan, problem: Problem) -> tuple[tuple[Leaf, ...], float, float]:
    """The leaf products, the elements that the sums move, and how many passes those are."""
    counts = cost(plan, *problem.size, problem.itemsize, opened=False)
    leaves = tuple((*size, float(times), _together(plan)) for size, times in counts.leaves)
    passes = counts.launches - sum(count / together for *_, count, together in leaves)
    return leaves, (counts.bytes_read + counts.bytes_written) / problem.itemsize, passes


def _together(plan: Plan) -> float:
    """How many leaf products start as one batch."""
    if not plan.levels:
        return 1.0
    last = plan.levels[-1]
    if last.needs_fusing_leaf:
        return last.products / last.launches
    return float(last.products) if last.batched else 1.0


@depends_on_rows
@lru_cache(maxsize=1024)
def _tiles(plan: Plan, dtype: str) -> Tiles | None:
    """None where the vendor multiplies, and for types in which our own kernel takes about the vendor's time."""
    leaf = plan.leaf_use.leaf
    if not plan.timed_by_tiles or dtype in set(leaf.types) - set(leaf.types_inside):
        return None
    products = plan.levels[-1].fused_products if plan.levels else None
    found = products.scheme if products else None
    usual = DOUBLE[0] if dtype == "float64" else SUMMING["float32"] if found else TUNED[0]
    chosen = next((s for s in PRESETS if s.name.lower() in plan.leaf_use.options), usual)
    if found is None:
        return Tiles(chosen.m_s, chosen.n_s)
    left, right, dest = (sum(c != 0 for row in x for c in row) / found.rank for x in (found.u, found.v, found.w))
    return Tiles(chosen.m_s, chosen.n_s, left, right, dest, found.rank)


def rows_aligned(problem: Problem, unit: int) -> bool:
    """Does every row begin at a multiple of so many bytes?"""
    return all(_rows(problem, unit))


def estimated_work(plan: Plan, problem: Problem) -> Work:
    """Work as if unequal blocks and strips were spread evenly: what ranking needs, in microseconds.

    Levels that know no such footprint are counted exactly instead.
    """
    if problem.halved:
        return half_work(plan, problem)
    footprints = _footprints(plan, problem)
    if footprints is None:
        steps = lower_level(plan, *problem.size)
        direct = steps.in_place if steps and len(plan.levels) == 1 else 0.0
        return Work(*_counts(plan, problem), **_rows_of_products(plan, problem, direct))
    moves, direct = _moves(plan, problem, footprints)
    sides = footprints[-1].sides if footprints else problem.size
    leaves = ((float(sides[0]), float(sides[1]), float(sides[2]), moves.products, _together(plan)),)
    whole = moves.traffic or 1.0
    shares = {name: getattr(moves, name) / whole for name in OF_TRAFFIC}
    return Work(leaves, moves.traffic, moves.passes, **shares, **_rows_of_products(plan, problem, direct))


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
    """That, and the share of leaf products that use A, B or C themselves."""
    found, direct, beside = _Moves(), 1.0, False  # beside: below an overlapped level
    itemsize = problem.itemsize
    for step, f in zip(plan.levels, footprints, strict=True):
        each = [found.products * x * itemsize / problem.itemsize for x in f.moved]
        moved = sum(each)
        if f.passes:
            direct = f.in_place if len(plan.levels) == 1 else 0.0
        if found.products == 1:
            found.ragged += _astray(each, _rows(problem, ALIGN))
            found.scalar += _astray(each, _rows(problem, access_bytes(f.products, problem.itemsize)))
        itemsize, before = step.itemsize_below(itemsize), itemsize
        found.traffic += moved
        found.sequential += moved if f.sequential else 0.0
        found.parts += moved if itemsize != before else 0.0
        found.deep += moved if f.products >= DEEP else 0.0
        found.overlapped += moved if beside else 0.0
        beside = beside or step.lanes > 1
        found.passes += found.products * f.passes
        found.products *= f.products
    return found, direct


# ---- products that are their own adjoints


class _Parts:
    """What a plan of such a product comes to, below its levels that cut such ones: products by plans, and halves by the
    leaf."""

    def __init__(self) -> None:
        self.traffic = self.passes = self.held = 0.0  # held: elements of temporaries, levels below each other
        self.products: Counter[tuple[Plan, Shape, int]] = Counter()  # the last: how many start together
        self.halves: Counter[tuple[Shape, int, str, bool]] = Counter()  # by which leaf, and is it loose

    def walk(self, plan: Plan, size: Shape, asked: Asked, together: int = 1) -> None:
        steps = lower_level(plan, *size, *asked) if asked.op != "product" else None
        if asked.op == "product":
            self.products[plan, size, 1 if plan.levels else together] += 1
        elif steps is None:
            self.halves[size, together, plan.leaf, asked.fill == "loose"] += 1
        else:
            held = self.held
            self.held = most = held + sum(rows * cols for _, rows, cols in steps.temporaries)
            mirrored = not plan.levels and plan.leaf_use.leaf.mirrors  # by the kernel itself
            for step in steps.steps[: 1 if mirrored else None]:
                before, self.held = self.held, most
                self._step(step)
                self.held = max(before, self.held)

    def _step(self, step: object) -> None:
        if isinstance(step, Product):
            self.walk(step.plan, step.size, step.asked)
        elif isinstance(step, ProductBatch):
            for product in step.products:
                self.walk(product.plan, product.size, product.asked, len(step.products))
        else:
            self.passes += 1
            self.traffic += _moved(step)


def _moved(step: object) -> float:
    """Elements that a sum or a mirror reads and writes."""
    if isinstance(step, Sum):
        return float(sum(place.rows * place.cols for place in (*step.reads, *step.writes)))
    assert isinstance(step, Mirror)
    return step.dest.rows**2 * (1.0 if step.in_place else 1.5 if step.fill == "full" else 1.0)


OF_TRAFFIC, OF_PRODUCTS = (
    ("sequential", "ragged", "overlapped", "scalar", "deep", "parts"),
    ("unaligned", "odd", "copied"),
)


@depends_on_rows
@lru_cache(maxsize=4096)
def half_work(plan: Plan, problem: Problem) -> Work:
    """Of a product that is its own adjoint: its parts' work together, shares weighted by what they are shares of."""
    found = _half_parts(plan, problem)
    parts = [
        (float(count), float(together), estimated_work(inner, Problem(*size, problem.dtype)))
        for (inner, size, together), count in found.products.items()
    ]
    leaves = [(m, k, n, c * times, max(b, t)) for c, t, w in parts for m, k, n, times, b in w.leaves]
    halves = [
        (float(m), float(k), float(c), float(t), by, loose) for ((m, k, _), t, by, loose), c in found.halves.items()
    ]
    traffic = found.traffic + sum(c * w.traffic for c, _, w in parts)
    passes = found.passes + sum(c * w.passes for c, _, w in parts)
    rows = _rows_of_products(VENDOR, problem, 1.0)
    return Work(
        tuple(leaves),
        traffic,
        passes,
        alone=any(w.alone for *_, w in parts),
        tiles=next((w.tiles for *_, w in parts if w.tiles), None),
        halves=tuple(halves),
        halves_unaligned=rows["unaligned"],
        halves_odd=rows["odd"],
        **_weighted(OF_TRAFFIC, [(c * w.traffic, w) for c, _, w in parts], traffic),
        **_weighted(OF_PRODUCTS, [(c * _multiply_adds(w), w) for c, _, w in parts], 0.0),
    )


@depends_on_rows
@lru_cache(maxsize=4096)
def _half_parts(plan: Plan, problem: Problem) -> _Parts:
    found = _Parts()
    found.walk(plan, problem.size, Asked(1, 0, problem.op, problem.fill))
    return found


def _multiply_adds(work: Work) -> float:
    return sum(m * k * n * times for m, k, n, times, _ in work.leaves)


def _weighted(names: Sequence[str], parts: Sequence[tuple[float, Work]], least: float) -> dict[str, float]:
    """Shares of the parts as shares of the whole."""
    whole = max(sum(weight for weight, _ in parts), least) or 1.0
    return {name: sum(weight * getattr(work, name) for weight, work in parts) / whole for name in names}


def _footprints(plan: Plan, problem: Problem) -> list[Footprint] | None:
    """Of the levels from the outermost inwards; None if one of them has none."""
    found: list[Footprint] = []
    m, k, n = problem.size
    sides: Sides = (float(m), float(k), float(n))
    for step in plan.levels:
        if (footprint := level_footprint(step, sides)) is None:
            return None
        found.append(footprint)
        sides = footprint.sides
    return found


@depends_on_rows
@lru_cache(maxsize=4096)
def level_footprint(level: PlanLevel, sides: Sides) -> Footprint | None:
    """A level's, kept: candidates for one problem begin alike."""
    return with_steps(level).footprint(VENDOR, sides)


def _rows_of_products(plan: Plan, problem: Problem, direct: float) -> dict[str, Any]:
    """The fields of Work on how rows begin; `direct` is the share of leaf products that use A, B or C themselves.

    A batch reads temporaries alone, whose rows are aligned.
    """
    vectors, worded = _rows(problem, ACCESS), _rows(problem, WORD)
    unaligned, odd = float(False in vectors), float(False in worded)
    direct = 0.0 if plan.batched else direct
    return {
        "unaligned": direct * (unaligned - odd),
        "odd": direct * odd,
        "copied": (1 - direct) * unaligned,
        "alone": vectors[1] and not vectors[0],
        "tiles": _tiles(plan, plan.leaf_type(problem.dtype)),
    }


def access_bytes(products: float, itemsize: int) -> int:
    """Bytes that a GPU's sums of a level with so many products move at a time, where rows begin at multiples of them.

    A thread of three levels in one pass has registers for two numbers at most.
    """
    return ACCESS if products < DEEP else min(2 * itemsize, DEEP_ACCESS)


def _rows(problem: Problem, unit: int) -> tuple[bool, bool, bool]:
    """Does every row of A, of B, of C begin at a multiple of so many bytes, if the first does?"""
    itemsize = problem.itemsize
    b = problem.n * itemsize % unit == 0
    return problem.k * itemsize % unit == 0, b, b


def _astray(moved: Sequence[float], begin: Sequence[bool]) -> float:
    """How much is moved to and from those of A, B and C whose rows do not begin as they should."""
    return sum([x for x, begins in zip(moved, begin, strict=True) if not begins])


def estimated_workspace(plan: Plan, problem: Problem) -> float:
    """Bytes of temporaries, rows not rounded up: enough to tell most plans that fit from those that do not."""
    if problem.halved:
        found = _half_parts(plan, problem)
        below = (estimated_workspace(inner, Problem(*size, problem.dtype)) for inner, size, _ in found.products)
        return found.held * problem.itemsize + max(below, default=0.0)
    footprints = _footprints(plan, problem)
    if footprints is None:
        return float(workspace(plan, *problem.size, problem.itemsize))
    held, lanes, itemsize = 0.0, 1, problem.itemsize
    for step, f in zip(plan.levels, footprints, strict=True):
        held += lanes * sum(f.held) * itemsize
        lanes, itemsize = max(lanes, step.lanes), step.itemsize_below(itemsize)
    sides = footprints[-1].sides if footprints else problem.size
    m, k, n = (int(side) for side in sides)
    scratch = plan.leaf_use.leaf.room(itemsize, m, k, n, int(_together(plan)))
    return held + lanes * scratch
