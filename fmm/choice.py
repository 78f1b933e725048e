"""Choosing a plan: candidates, an estimate for each, the least within the limits. A pure function of sizes.

Until a device is tuned the estimate is one number: how many flops BLAS does in the time that the sums move a byte. It is
set high, so that a plan is only chosen where it pays on machines with slow memory too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from fmm.kernels.explain import table
from fmm.kernels.plan import VENDOR, Plan
from fmm.kernels.recipe import Sum, lower, workspace


def expected_growth(plan):
    return prod((l.scheme.error_growth if getattr(l, "scheme", None) else 2.13) for l in plan.levels)


# Flops per byte of the sums, by the size of an element (of its real part). Two cores of a current server gave 9 and 18.
FLOPS_PER_BYTE = {8: 14.0, 4: 28.0}
# The sums gain nothing from more threads than this: Python's lock and the memory are shared.
SUM_THREADS = 8
DEPTH = 4
# max_error_growth unless the caller says otherwise: ten times the vendor's own error.
ERROR_GROWTH = 10.0


@dataclass(frozen=True)
class Limits:
    """What a plan may cost besides time."""

    workspace: int
    error_growth: float = ERROR_GROWTH


@dataclass(frozen=True)
class Problem:
    """One product: sizes and element. `width` is the bytes of a real number, half an element's if complex."""

    m: int
    k: int
    n: int
    itemsize: int
    width: int

    @property
    def size(self) -> tuple[int, int, int]:
        return self.m, self.k, self.n


@dataclass(frozen=True)
class Estimate:
    """A candidate's time relative to the vendor's, workspace in bytes and expected error relative to the vendor's."""

    plan: Plan
    time: float
    workspace: int
    error_growth: float

    def within(self, limits: Limits) -> bool:
        return self.workspace <= limits.workspace and self.error_growth <= limits.error_growth


@dataclass(frozen=True)
class Decision:
    """What fmm would do with a product, and why. Printing it explains it; matmul takes it as `plan`."""

    plan: Plan
    problem: Problem | None
    reason: str
    considered: tuple[Estimate, ...] = ()

    @property
    def workspace(self) -> int:
        """Peak bytes of temporaries."""
        return workspace(self.plan, *self.problem.size, self.problem.itemsize) if self.problem else 0

    @property
    def error_growth(self) -> float:
        """Expected error as a multiple of the vendor's own."""
        return expected_growth(self.plan)

    def __str__(self) -> str:
        lines = [f"plan: {self.plan}", f"why: {self.reason}"]
        if self.problem:
            lines += ["", table(self.plan, *self.problem.size, self.problem.itemsize)]
        lines += [f"expected error: {self.error_growth:.1f} times the vendor's"]
        if self.considered:
            lines += ["", "estimated time, the vendor's being 1:"]
            lines += [f"  {e.time:5.2f}  {e.plan}" for e in sorted(self.considered, key=lambda e: e.time)]
        return "\n".join(lines)


def choose(problem: Problem, limits: Limits, threads: int) -> Decision:
    """The candidate with the least estimated time within the limits; the vendor if none beats it."""
    considered = _estimates(problem, min(max(threads, 1), 1024))
    fitting = [e for e in considered if e.within(limits)]
    best = min(fitting, key=lambda e: e.time)
    return Decision(best.plan, problem, _reason(best, considered, limits), considered)


def leaner(problem: Problem, than: Plan, limits: Limits, threads: int) -> Iterator[Plan]:
    """What to try when memory ran out: plans with ever less workspace, at last the vendor's."""
    used = workspace(than, *problem.size, problem.itemsize)
    rest = [e for e in choose(problem, limits, threads).considered if e.within(limits) and e.workspace < used]
    for estimate in sorted(rest, key=lambda e: -e.workspace):
        if estimate.time < 1:
            yield estimate.plan
    if than != VENDOR:
        yield VENDOR


def smallest() -> int:
    """A side below which no candidate can win, whatever the other sides are.

    One level saves m k n / 4 flops, and its sums at least read and write an operand once: for m below 8 bytes-per-
    element times the exchange rate the pass over B alone costs more. Complex products save twice as much for each byte.
    """
    return int(min(8 * width * rate for width, rate in FLOPS_PER_BYTE.items()) / 2)


@lru_cache(maxsize=1)
def candidates() -> tuple[Plan, ...]:
    """Winograd's variant to some depth: stacked (least traffic), and as Li's Figure 23 (least workspace)."""
    return (
        VENDOR,
        *(
            Plan.parse(" > ".join([name] * d + ["vendor"]))
            for name in ("winograd", "li-fig23")
            for d in range(1, DEPTH)
        ),
    )


@lru_cache(maxsize=1024)
def _estimates(problem: Problem, threads: int) -> tuple[Estimate, ...]:
    return tuple(
        Estimate(plan, _time(plan, problem, threads), _workspace(plan, problem), expected_growth(plan))
        for plan in candidates()
    )


def _workspace(plan: Plan, problem: Problem) -> int:
    return workspace(plan, *problem.size, problem.itemsize)


def _time(plan: Plan, problem: Problem, threads: int) -> float:
    """Relative to the vendor's: leaf flops, and bytes of the sums at the built-in exchange rate. Leaves out the fall of
    BLAS's rate on small blocks, caches, and the fixed cost of a pass."""
    m, k, n = problem.size
    complex_ = problem.itemsize // problem.width
    flops = 2 * prod(problem.size) * complex_**2
    work, traffic = _work(plan, m, k, n)
    rate = FLOPS_PER_BYTE[problem.width] * max(threads / SUM_THREADS, 1)
    return (2 * work * complex_**2 + traffic * problem.itemsize * rate) / max(flops, 1)


@lru_cache(maxsize=16384)
def _work(plan: Plan, m: int, k: int, n: int) -> tuple[int, int]:
    """(leaf multiplications, elements that the sums read and write)."""
    recipe = lower(plan, m, k, n)
    if recipe is None:
        return m * k * n, 0
    work = traffic = 0
    for step in recipe.flat:
        if isinstance(step, Sum):
            traffic += sum(p.rows * p.cols for p in (*step.reads, *step.writes))
        else:
            inner = _work(step.plan, *step.size)
            work, traffic = work + inner[0], traffic + inner[1]
    return work, traffic


def _reason(best: Estimate, considered: tuple[Estimate, ...], limits: Limits) -> str:
    faster = min(considered, key=lambda e: e.time)
    if faster.plan != best.plan:
        what = "workspace" if faster.workspace > limits.workspace else "error"
        return f"least estimated time within the limits ({faster.plan} would need more {what} than allowed)"
    if best.plan == VENDOR:
        return "no fast plan is estimated to beat the vendor at this size"
    return f"least estimated time: {best.time:.2f} of the vendor's (built-in recursion point, device not tuned)"
