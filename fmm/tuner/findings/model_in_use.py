"""Compute the model by which fmm.matmul decides from a config section, and its decisions for square products.

A config section contains the fitted model of one element type. Decisions on a GPU also use the datasheet's rates for
leaves that the tuning did not measure. Decisions for a complex type also use the model of the real type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any

from fmm.config.environment import environment_value
from fmm.config.files import shipped_model
from fmm.config.identity import Identity, recorded_device_name
from fmm.config.schema import ConfigError, Entry, JsonValue, Tuning, read_section
from fmm.dtypes import DTYPES
from fmm.hardware.datasheets import datasheet_of
from fmm.kernels.plans.leaf import Leaf
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.candidates import device_candidate_plans
from fmm.perfmodel.choose import (
    Candidate,
    Limits,
    choose,
    default_error_growth_limit,
    pick_candidate,
    rank_candidates,
)
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Problem
from fmm.runtime.decisions.calibration_in_force import complete_calibration
from fmm.runtime.decisions.decide import Decision, check_plan_is_runnable, decide_by_tuning
from fmm.runtime.decisions.limits import workspace_limit_for_free_bytes
from fmm.runtime.devices import calibration_from_datasheet
from fmm.tuner.findings.thresholds import ROUND_SIDES, smallest_side_satisfying

NO_WORKSPACE_LIMIT = 1 << 62  # a workspace limit in bytes that is above the memory of any device


@dataclass(frozen=True)
class ModelInUse:
    """The model by which fmm.matmul decides for one element type of a device."""

    tuned: Tuning
    calibration: Calibration | None  # calibration of the tuning; None if the tuning is rejected or has no model
    guess: Calibration | None = None  # calibration from a GPU's datasheet; None for a CPU
    assumed: tuple[str, ...] = ()  # leaves with a rate from the datasheet, because no tuning ever measures these leaves
    left_out: tuple[str, ...] = ()  # leaves with a rate from the datasheet, because this tuning has not measured them
    failed: tuple[str, ...] = ()  # leaves that failed in the tuning; no plan with these leaves is chosen
    memory: int | None = None  # device memory in bytes; None if unknown

    @property
    def is_cpu(self) -> bool:
        """True for the model of a CPU."""
        return not self.tuned.identity.key.startswith("cuda")


def model_in_use(key: str, dtype: str, sections: Mapping[str, Any]) -> ModelInUse:
    """Return the model of an element type from a device's sections; raise ConfigError for a damaged section."""
    tuned, real = _read_tuning(key, dtype, sections[dtype]), None
    with suppress(ConfigError):
        if (name := DTYPES[dtype].real) in sections:
            real = _read_tuning(key, name, sections[name])
    guess = calibration_from_datasheet(key, tuned.identity.name)
    memory = device_memory_bytes(sections[dtype], guess)
    calibration = complete_calibration(tuned, real, guess)
    if calibration is None or guess is None:
        return ModelInUse(tuned, calibration, guess, memory=memory)
    measured = {rate for x in (tuned, real) if x and x.trusted_calibration for rate in x.trusted_calibration.rates}
    own = list(dict.fromkeys(_leaves_with_separate_rate(dtype, guess)))
    guessed = [leaf for leaf, rate in own if rate in calibration.rates.keys() - measured]
    assumed, left_out = ([x.name for x in guessed if bool(x.probed_plan_forms) == probed] for probed in (False, True))
    failed = [leaf.name for leaf, rate in own if rate not in calibration.rates]
    return ModelInUse(tuned, calibration, guess, tuple(assumed), tuple(left_out), tuple(failed), memory)


def _read_tuning(key: str, dtype: str, section: JsonValue) -> Tuning:
    return read_section(section, f"{key}.{dtype}", Identity(key, device_name(key, section)), dtype)


def _leaves_with_separate_rate(dtype: str, guess: Calibration) -> Iterator[tuple[Leaf, str]]:
    """Yield each candidate leaf that has a separate rate in the calibration, with the name of the rate."""
    for plan in device_candidate_plans(guess.batches):
        leaf, rate = plan.leaf_use.leaf, plan.rate_name(dtype)
        if leaf.rate and plan.is_candidate_for(dtype) and rate in guess.rates:
            yield leaf, rate


# ---- the device of a section


def device_name(key: str, section: JsonValue) -> str:
    """Return the device's name from a config section; the device key if the section has no name."""
    return recorded_device_name(section) or key


def device_memory_bytes(section: JsonValue, guess: Calibration | None) -> int | None:
    """Return the device memory in bytes from the section, else from the datasheet; None if neither has the number."""
    conditions = section.get("conditions") if isinstance(section, dict) else None
    found = conditions.get("memory") if isinstance(conditions, dict) else None
    if isinstance(found, int | float) and found > 0:
        return int(found)
    return int(datasheet_of(guess.name).memory_gb * 1e9) if guess else None


def fallback_model_text(identity: Identity, dtype: str) -> str:
    """Return a text that says by what fmm.matmul decides if a tuning is rejected."""
    if not identity.key.startswith("cuda"):
        return "a short probe in each process"
    if not environment_value("FMM_CONFIG") and shipped_model(identity, dtype) is not None:
        return "the shipped model of this card"
    return "the datasheet" if calibration_from_datasheet(identity.key, identity.name) else "the vendor"


# ---- decisions for squares


@dataclass(frozen=True)
class SquareDecision:
    """fmm.matmul's decision for one square product."""

    side: int
    plan: Plan
    speedup: float  # speedup over the vendor
    error_growth: float
    workspace: int  # bytes of workspace
    entry: Entry | None = None  # the certified entry that decided; None if the model decided

    @property
    def has_gain(self) -> bool:
        """True if the decision is a plan other than the vendor's product."""
        return self.plan != VENDOR

    @property
    def speedup_basis(self) -> str:
        """Whether the speedup is `measured` or `predicted`, as text."""
        return "measured" if self.entry else "predicted"

    @property
    def json_fields(self) -> dict[str, Any]:
        """Dictionary of the decision for JSON."""
        plan = {
            "side": self.side,
            "plan": str(self.plan),
            "speedup": round(self.speedup, 4),
            "known": self.speedup_basis,
        }
        return {**plan, "error_growth": self.error_growth, "workspace": self.workspace}


def decide_square(used: ModelInUse, side: int) -> SquareDecision | None:
    """Return the decision for a square product; None if memory is too small, or without a model and an entry."""
    problem = Problem(side, side, side, used.tuned.dtype)
    limits = default_limits(used, problem)
    if limits is None:
        return None
    decision, entry = _decide_by_tuning(problem, limits, used), used.tuned.find_entry(problem.size)
    if decision is not None and decision.by_entry and entry is not None:
        gain = entry[0].speedup if decision.plan != VENDOR else 1.0
        return SquareDecision(side, decision.plan, gain, decision.error_growth, decision.workspace, entry[0])
    if used.calibration is None:
        return None
    best = _model_choice(problem, used.calibration, limits)
    return SquareDecision(side, best.plan, 1 / best.time, best.error_growth, best.workspace_bytes)


@lru_cache(maxsize=2048)
def _model_choice(problem: Problem, calibration: Calibration, limits: Limits) -> Candidate:
    """Return the model's choice for a problem; choices are cached, since several tables show the same sides."""
    return choose(problem, calibration, limits).best


def _decide_by_tuning(problem: Problem, limits: Limits, used: ModelInUse) -> Decision | None:
    return decide_by_tuning(problem, limits, used.tuned, used.calibration, used.is_cpu)


def decide_squares(used: ModelInUse, sides: Iterable[int]) -> list[SquareDecision]:
    """Return the decisions for square products of these sides; sides without a decision are left out."""
    return [answer for side in sides if (answer := decide_square(used, side))]


def default_limits(used: ModelInUse, problem: Problem) -> Limits | None:
    """Return the default limits on workspace and error; None if A, B and C exceed the memory."""
    growth = default_error_growth_limit(not used.is_cpu)
    if used.memory is None:
        return Limits(NO_WORKSPACE_LIMIT, growth)
    left = used.memory - 3 * problem.itemsize * problem.m**2
    return Limits(workspace_limit_for_free_bytes(left), growth) if left >= 0 else None


def decide_large_square(used: ModelInUse, first: int, side: int) -> SquareDecision | None:
    """Return a decision with a gain: for the side max(first, side), or else for the largest possible of ROUND_SIDES.

    Return None if no square with a side of `first` or more has a gain.
    """
    decisions = [decide_square(used, x) for x in dict.fromkeys((max(first, side), *reversed(ROUND_SIDES)))]
    return next((x for x in decisions if x and x.side >= first and x.has_gain), None)


# ---- entries that are not used

UNTIMED_REASON = "the model predicts more for a plan that was not timed"
NO_MEMORY_REASON = "the workspace exceeds the limit"
UNVERIFIED_REASON = "unverified: run `fmm-tune verify --measure`"


def skip_reason_by_default_limits(used: ModelInUse, entry: Entry) -> str:
    """Return as text why fmm.matmul skips a certified entry under the default limits; empty if the entry is used."""
    if not entry.verified:
        return UNVERIFIED_REASON
    if len(set(entry.size)) > 1 or entry.op != "product" or entry.lean:
        return ""
    problem = Problem(*entry.size, used.tuned.dtype)
    limits = default_limits(used, problem)
    if limits is None:
        return NO_MEMORY_REASON
    return entry_skip_reason(entry, problem, limits, used.tuned, _decide_by_tuning(problem, limits, used))


def entry_skip_reason(entry: Entry, problem: Problem, limits: Limits, tuned: Tuning, decision: Decision | None) -> str:
    """Return as text why fmm.matmul skips the certified entry of a product; empty if the entry is used.

    `decision` is the decision by the tuning within the limits; None if the tuning makes no decision.
    """
    if not entry.verified:
        return UNVERIFIED_REASON
    if tuned.changed:
        return f"measured before an update ({', '.join(tuned.changed)}); {UNVERIFIED_REASON}"
    if decision is not None:
        return "" if decision.by_entry else UNTIMED_REASON
    plan, on_cpu = Plan.parse(entry.plan), tuned.identity.key.startswith("cpu")
    try:
        check_plan_is_runnable(plan, problem, on_cpu)
    except PlanError as error:
        return str(error)
    if limits.allows_plan(plan, expected_error_growth(plan, problem.dtype, on_cpu)):
        return NO_MEMORY_REASON
    if plan.uses_emulation and not limits.emulation:
        return "FMM_EMULATION=0 forbids emulation"
    if plan.is_for_smaller_errors:
        return "used only with max_error_growth below 1"
    return "the expected error exceeds the limit"


# ---- crossovers of the model

ODD_SIDES = tuple(2**i + 1 for i in range(9, 15))  # odd sides of square matrices, which have unaligned rows
# The speedups of odd and even sides are compared only above this side. On smaller squares than 4096, the last wave of
# tiles fills the GPU only in part, and changes the time as much as unaligned rows do.
MIN_COMPARED_ODD_SIDE = 4096
# odd sides are shown if the speedup of one of them is at least this multiple of the speedup of the next smaller even
# side
MIN_ODD_SIDE_GAIN = 1.25


def choose_square_plan(calibration: Calibration, dtype: str, side: int) -> Candidate:
    """Return the model's choice for a square product without a workspace limit."""
    limits = Limits(NO_WORKSPACE_LIMIT, default_error_growth_limit(calibration.batches))
    return choose(Problem(side, side, side, dtype), calibration, limits).best


def first_gaining_side(calibration: Calibration, dtype: str) -> int | None:
    """Return the smallest side from which the model chooses a plan for every square with aligned rows; else None."""
    first = smallest_side_satisfying(lambda side: is_plan_chosen_for_square(calibration, dtype, side))
    return int(first) if isfinite(first) else None


def is_plan_chosen_for_square(calibration: Calibration, dtype: str, side: int) -> bool:
    """Return True if the model chooses a plan for a square product without a workspace limit.

    Compositions of levels, which take most of the time to rank, are ranked only if no other candidate wins.
    """
    limits = Limits(NO_WORKSPACE_LIMIT, default_error_growth_limit(calibration.batches))
    usual = pick_candidate(rank_candidates(Problem(side, side, side, dtype), calibration), limits)
    return usual.plan != VENDOR or choose_square_plan(calibration, dtype, side).plan != VENDOR


def gaining_odd_sides(calibration: Calibration, dtype: str) -> Mapping[int, Candidate]:
    """Return the model's choices with a gain, by odd side; empty unless odd sides gain clearly more than even sides."""
    found = {side: choose_square_plan(calibration, dtype, side) for side in ODD_SIDES}
    won = {side: best for side, best in found.items() if best.plan != VENDOR}
    beside = {
        side: choose_square_plan(calibration, dtype, side - 1).time for side in won if side > MIN_COMPARED_ODD_SIDE
    }
    more = any(MIN_ODD_SIDE_GAIN * won[side].time < time for side, time in beside.items())
    return won if more else {}


def unmeasured_leaves(used: ModelInUse) -> list[str]:
    """Return the leaves that plans for squares use although this tuning has measured no rate of these leaves."""
    unmeasured = (*used.assumed, *used.left_out)
    if not unmeasured:
        return []
    met = {answer.plan.leaf_use.leaf.name for answer in decide_squares(used, (*ROUND_SIDES, *ODD_SIDES))}
    return [leaf for leaf in unmeasured if leaf in met]
