"""Decisions of the runtime: the model's choice for a product on this device, and what to fall back to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from fmm.kernels.explain import table
from fmm.kernels.plan import VENDOR, Plan
from fmm.kernels.recipe import workspace
from fmm.perfmodel.calibration import BUILT_IN, FLOPS_PER_BYTE, Calibration, cpu
from fmm.perfmodel.choose import Candidate, Choice, Limits, choose
from fmm.perfmodel.problem import ELEMENTS, Problem
from fmm.perfmodel.stability import expected_growth
from fmm.probe import measured


@dataclass(frozen=True)
class Decision:
    """What fmm would do with a product, and why. Printing it explains it; matmul takes it as `plan`."""

    plan: Plan
    problem: Problem | None
    reason: str
    considered: tuple[Candidate, ...] = ()

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
            lines += ["", "predicted time, the vendor's being 1:"]
            lines += [f"  {c.time:5.2f}  {c.plan}" for c in self.considered]
        return "\n".join(lines)


def decide(problem: Problem, limits: Limits, threads: int) -> Decision:
    """The model's choice on this CPU."""
    choice = _choice(problem, limits, threads)
    return Decision(choice.best.plan, problem, choice.reason, choice.considered)


@lru_cache(maxsize=64)
def calibration(threads: int) -> Calibration:
    """Of the CPU that this runs on, with so many threads: the built-in one, until a device is tuned."""
    return cpu(threads)


def _choice(problem: Problem, limits: Limits, threads: int) -> Choice:
    """By the calibration; what a guessed one proposes is chosen again with rates measured in this process."""
    found = choose(problem, calibration(threads), limits)
    if found.best.plan != VENDOR and calibration(threads).source == BUILT_IN:
        found = choose(problem, measured(threads, problem.dtype), limits)
    return found


def leaner(problem: Problem, than: Plan, limits: Limits, threads: int) -> Iterator[Plan]:
    """What to try when memory ran out: plans with ever less workspace that still win, at last the vendor's."""
    used = workspace(than, *problem.size, problem.itemsize)
    considered = _choice(problem, limits, threads).considered
    rest = [c for c in considered if c.time < 1 and c.error_growth <= limits.error_growth and c.workspace < used]
    for candidate in sorted(rest, key=lambda c: -c.workspace):
        if candidate.plan != VENDOR:
            yield candidate.plan
    if than != VENDOR:
        yield VENDOR


def smallest_side() -> int:
    """A side below which no plan can win, whatever the other sides are.

    One level saves an eighth of the m k n multiply-adds, and its sums at least read and write B once, 2 k n elements:
    below 16 times (bytes an element) times (flops a byte) / (flops a multiply-add) for m, that pass alone costs more.
    """
    sides = (16 * ELEMENTS[t].itemsize * r / ELEMENTS[t].flops for t, r in FLOPS_PER_BYTE.items())
    return int(min(sides))
