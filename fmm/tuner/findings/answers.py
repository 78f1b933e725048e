"""What fmm.matmul does with square products by a config: a certified entry first, else the model, in its own steps.

With the memory that the device has: plans that do not fit beside the operands are not chosen. Left out: what else lies
in that memory, and what the caller limits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fmm.config.schema import Entry, Tuned
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Candidate, Limits, choose, default_error_growth
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Problem
from fmm.runtime.decisions.decide import Decision, check_runnable, decide_by_tuning
from fmm.runtime.decisions.limits import workspace_share
from fmm.tuner.findings.model_in_use import ModelInUse

NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class Answer:
    """What fmm.matmul does with a square product, and what comes of it."""

    side: int
    plan: Plan
    speedup: float  # times as fast as the library
    error_growth: float
    workspace: int
    entry: Entry | None = None  # by which it is known; None: the model predicts it

    @property
    def gains(self) -> bool:
        return self.plan != VENDOR

    @property
    def known(self) -> str:
        return "measured" if self.entry else "predicted"

    @property
    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        plan = {"side": self.side, "plan": str(self.plan), "speedup": round(self.speedup, 4), "known": self.known}
        return {**plan, "error_growth": self.error_growth, "workspace": self.workspace}


def answer_for(used: ModelInUse, side: int) -> Answer | None:
    """None where A, B and C do not fit into the device's memory, or neither an entry nor a model answers."""
    problem = Problem(side, side, side, used.tuned.dtype)
    limits = usual_limits(used, problem)
    if limits is None:
        return None
    known, entry = _tuned_choice(problem, limits, used), used.tuned.entry(problem.size)
    if known is not None and known.by_entry and entry is not None:
        gain = entry[0].speedup if known.plan != VENDOR else 1.0
        return Answer(side, known.plan, gain, known.error_growth, known.workspace, entry[0])
    if used.calibration is None:
        return None
    best = _chosen(problem, used.calibration, limits)
    return Answer(side, best.plan, 1 / best.time, best.error_growth, best.workspace)


@lru_cache(maxsize=2048)
def _chosen(problem: Problem, calibration: Calibration, limits: Limits) -> Candidate:
    """The model's choice; several lines tell of the same sides."""
    return choose(problem, calibration, limits).best


def _tuned_choice(problem: Problem, limits: Limits, used: ModelInUse) -> Decision | None:
    return decide_by_tuning(problem, limits, used.tuned, used.calibration, used.on_cpu)


# ---- entries that are passed over

UNTIMED = "more is predicted of a plan that was not timed"
ROOM = "it needs more memory beside the operands than is allowed"
CANARY = "set aside until `fmm-tune canary`"


def set_aside(used: ModelInUse, entry: Entry) -> str:
    """Why fmm.matmul does not go by the entry of a square; empty if it does."""
    problem = Problem(*entry.size, used.tuned.dtype)
    limits = usual_limits(used, problem)
    if limits is None:
        return ROOM
    return passed_over(entry, problem, limits, used.tuned, _tuned_choice(problem, limits, used))


def passed_over(entry: Entry, problem: Problem, limits: Limits, tuned: Tuned, known: Decision | None) -> str:
    """Why fmm.matmul does not go by the entry of exactly this product; empty if it does. `known` is what the tuning
    says of it within these limits."""
    if not entry.verified:
        return CANARY
    if tuned.changed:
        return f"measured before an update ({', '.join(tuned.changed)}): {CANARY}"
    if known is not None:
        return "" if known.by_entry else UNTIMED
    return _limit_of(Plan.parse(entry.plan), problem, limits, tuned)


def _limit_of(plan: Plan, problem: Problem, limits: Limits, tuned: Tuned) -> str:
    """What the plan of an entry does not keep."""
    on_cpu = tuned.identity.key.startswith("cpu")
    try:
        check_runnable(plan, problem, on_cpu)
    except PlanError as error:
        return str(error)
    if limits.allow(plan, expected_error_growth(plan, problem.dtype, on_cpu)):
        return ROOM
    if plan.emulates and not limits.emulation:
        return "FMM_EMULATION=0 forbids it"
    return "its expected error is more than is allowed"


def answers_for(used: ModelInUse, sides: Iterable[int]) -> list[Answer]:
    """Those that there are."""
    return [answer for side in sides if (answer := answer_for(used, side))]


def usual_limits(used: ModelInUse, problem: Problem) -> Limits | None:
    """What fmm.matmul allows itself unless it is told: half of the memory that A, B and C leave; None if they do not
    fit. No limit where nobody knows how much the device has."""
    growth = default_error_growth(not used.on_cpu)
    if used.memory is None:
        return Limits(NO_LIMIT, growth)
    left = used.memory - 3 * problem.itemsize * problem.m**2
    return Limits(workspace_share(left), growth) if left >= 0 else None
