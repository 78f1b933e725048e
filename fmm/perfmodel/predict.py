"""Prediction: seconds from what a plan costs and a calibration. One formula, said in `seconds`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from fmm.kernels.plan import VENDOR, Balanced, Level, Plan
from fmm.kernels.recipe import Sum, lower
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.cost import cost
from fmm.perfmodel.problem import Problem

LEAVES_OUT = (
    "caches between steps, clocks that fall under load, waves that do not fill the device, "
    "alignment of the vendor's operands, page faults of a first call"
)
Leaf = tuple[float, float, float, float, float]  # m, k, n, how many, how many of them start together


@dataclass(frozen=True)
class Work:
    """What the formula needs of a plan: its leaf products, the traffic of its sums, and how many passes those are."""

    leaves: tuple[Leaf, ...]
    traffic: float
    passes: float


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

    @property
    def seconds(self) -> float:
        return self.products + self.sums + self.launches - self.hidden

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
        return f"{self.seconds:.4g} s ({parts}{hidden}; mostly {self.dominant}; leaves out {LEAVES_OUT})"


def predict(plan: Plan, problem: Problem, calibration: Calibration) -> Prediction:
    """Predicted time of a plan, its counts taken from the recipes at the actual sizes."""
    return seconds(plan, problem, counted(plan, problem), calibration)


def seconds(plan: Plan, problem: Problem, work: Work, calibration: Calibration) -> Prediction:
    """Leaf products at the calibrated rate (or the memory's, if that is slower), sums at the streaming rate.

    products  sum over leaves of max(flops / rate (1 + fill / (b m n) + pipe / k), bytes / stream)
    sums      (bytes + small * passes) / stream
    launches  launch * (starts + passes)
    hidden    overlap * min(products, sums)
    """
    rate, item = calibration.rate(problem.dtype), problem.itemsize
    products = starts = 0.0
    for m, k, n, count, together in work.leaves:
        if m and k and n:
            slowdown = 1 + rate.fill / (together * m * n) + rate.pipe / k
            compute = problem.element.flops * m * k * n / rate.flops * slowdown
            moved = (m * k + k * n + m * n) * item / calibration.stream
            products += count * max(compute, moved)
            starts += count / together
    sums = (work.traffic * item + calibration.small * work.passes) / calibration.stream
    launches = calibration.launch * (starts + work.passes)
    hidden = calibration.overlap * min(products, sums)
    return Prediction(plan, problem, calibration.name, products, sums, launches, hidden)


def counted(plan: Plan, problem: Problem) -> Work:
    """Exact work, from the recipes."""
    counts = cost(plan, *problem.size, problem.itemsize)
    leaves = tuple((*size, float(times), _together(plan)) for size, times in counts.leaves)
    passes = counts.launches - sum(count / together for *_, count, together in leaves)
    return Work(leaves, (counts.bytes_read + counts.bytes_written) / problem.itemsize, passes)


def _together(plan: Plan) -> float:
    """How many leaf products start as one batch."""
    last = plan.levels[-1] if plan.levels else None
    return float(last.products) if isinstance(last, Level) and last.traversal == "batched" else 1.0


# ---- the same work in a few multiplications, for ranking candidates quickly


@dataclass(frozen=True)
class Footprint:
    """One level's products and passes, and how many A-, B- and C-sized blocks its sums move."""

    products: int
    passes: int
    a: int
    b: int
    c: int


@lru_cache(maxsize=1024)
def footprint(first: Level) -> Footprint:
    """Counted from the level's own recipe on blocks of 5 x 3, 3 x 7 and 5 x 7, whose areas tell the kinds apart.

    (In this order C's blocks are the largest, as tables that keep sums of A and B in them want it.)
    """
    gm, gk, gn = first.size
    fringe = "unequal" if first.traversal == "stacked" else "pad"
    recipe = lower(Plan((Level(first.algorithm, first.traversal, fringe),)), 5 * gm, 3 * gk, 7 * gn)
    assert recipe is not None
    sums = [step for step in recipe.steps if isinstance(step, Sum)]
    areas = [place.rows * place.cols for step in sums for place in (*step.reads, *step.writes)]
    return Footprint(first.products, len(sums), areas.count(15), areas.count(21), areas.count(35))


def estimated(plan: Plan, problem: Problem) -> Work:
    """Work as if every size divided (fringes and strips spread evenly): what ranking needs, in microseconds."""
    m, k, n = (float(side) for side in problem.size)
    count = 1.0
    traffic = passes = 0.0
    for step in plan.levels:
        if isinstance(step, Balanced):
            count *= _halved(step, sides := [m, k, n])
            m, k, n = sides
            continue
        f = footprint(step)
        gm, gk, gn = step.size
        m, k, n = m / gm, k / gk, n / gn
        traffic += count * (f.a * m * k + f.b * k * n + f.c * m * n)
        passes += count * f.passes
        count *= f.products
    return Work(((m, k, n, count, _together(plan)),), traffic, passes)


def _halved(step: Balanced, sides: list[float]) -> float:
    """Halve the sides in place as Table 1 does; returns the number of pieces."""
    pieces = 1.0
    while (side := step.side(*(int(x) for x in sides))) is not None:
        sides["mkn".index(side)] /= 2
        pieces *= 2
    return pieces


def vendor(problem: Problem, calibration: Calibration) -> Prediction:
    """Predicted time of the vendor's product."""
    return seconds(VENDOR, problem, estimated(VENDOR, problem), calibration)


def plans(texts: Iterable[str]) -> tuple[Plan, ...]:
    """Plans from the texts of their levels, above the vendor's product."""
    return tuple(Plan.parse(f"{text} > vendor" if text else "vendor") for text in texts)
