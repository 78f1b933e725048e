"""The model of a config's section as fmm.matmul uses it, and what it does not know.

A section holds what was fitted to one type. A choice goes by more: on a GPU also by the datasheet's rates of leaves
that this tuning did not measure, of complex numbers also by what is known of real ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any

from fmm.config.identity import Identity, gpu_parts, named_device
from fmm.config.schema import ConfigError, Entry, Raw, Tuned, read_section
from fmm.dtypes import DTYPES
from fmm.hardware.datasheets import device
from fmm.kernels.plans.leaf import Leaf
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.candidates import compared_plans
from fmm.perfmodel.choose import Candidate, Limits, choose, default_error_growth
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Problem
from fmm.runtime.decisions.calibration_in_force import complete_calibration
from fmm.runtime.decisions.decide import Decision, check_runnable, decide_by_tuning
from fmm.runtime.decisions.limits import workspace_share
from fmm.runtime.devices import find_datasheet
from fmm.tuner.findings.thresholds import ROUND, holds_from


@dataclass(frozen=True)
class ModelInUse:
    """By what choices are made for one type of a device."""

    tuned: Tuned
    calibration: Calibration | None  # None: the tuning is not used, or holds no model
    guess: Calibration | None = None  # what is known of the device without a tuning; None of a processor
    # Leaves whose rates are the datasheet's: those that no tuning measures, and others, which this one did not.
    assumed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()  # leaves that are not taken, since they failed when they were measured
    memory: int | None = None  # bytes of the device, where they are known

    @property
    def on_cpu(self) -> bool:
        return not self.tuned.identity.key.startswith("cuda")


def model_in_use(key: str, dtype: str, sections: Mapping[str, Any]) -> ModelInUse:
    """Of a type, by all sections of the device; ConfigError if its own is damaged."""
    tuned, real = _checked(key, dtype, sections[dtype]), _real_type(key, dtype, sections)
    guess = guess_of(key, tuned.identity.name)
    memory = device_memory(sections[dtype], guess)
    calibration = complete_calibration(tuned, real, guess)
    if calibration is None or guess is None:
        return ModelInUse(tuned, calibration, guess, memory=memory)
    measured = {rate for x in (tuned, real) if x and x.trusted for rate in x.trusted.rates}
    own = list(dict.fromkeys(_leaves_with_rates(dtype, guess)))
    guessed = [leaf for leaf, rate in own if rate in calibration.rates.keys() - measured]
    assumed, left_out = ([x.name for x in guessed if bool(x.probed) == probed] for probed in (False, True))
    failed = [leaf.name for leaf, rate in own if rate not in calibration.rates]
    return ModelInUse(tuned, calibration, guess, tuple(assumed), tuple(left_out), tuple(failed), memory)


def guess_of(key: str, name: str) -> Calibration | None:
    """What the datasheet tells of a GPU by its key in a config and its name; None of a processor, or of a GPU that is
    in no table."""
    parts = gpu_parts(key)
    return find_datasheet(name, *parts) if parts else None


def device_name(key: str, section: Raw) -> str:
    """The name of the device that a section is of, else its key."""
    return named_device(section) or key


def device_memory(section: Raw, guess: Calibration | None) -> int | None:
    """Bytes of the device that a section is of, as the tuning wrote them down, else by a GPU's datasheet."""
    conditions = section.get("conditions") if isinstance(section, dict) else None
    found = conditions.get("memory") if isinstance(conditions, dict) else None
    if isinstance(found, int | float) and found > 0:
        return int(found)
    return int(device(guess.name).memory_gb * 1e9) if guess else None


def _checked(key: str, dtype: str, section: Raw) -> Tuned:
    return read_section(section, f"{key}.{dtype}", Identity(key, device_name(key, section)), dtype)


def _real_type(key: str, dtype: str, sections: Mapping[str, Any]) -> Tuned | None:
    """What was tuned for the parts of complex numbers."""
    real = DTYPES[dtype].real
    with suppress(ConfigError):
        return _checked(key, real, sections[real]) if real in sections else None
    return None


def _leaves_with_rates(dtype: str, guess: Calibration) -> Iterator[tuple[Leaf, str]]:
    """Those that are compared unasked for this type and have a rate of their own on such a device, with its name."""
    for plan in compared_plans(guess.batches):
        leaf, rate = plan.leaf_use.leaf, plan.rate_name(dtype)
        if leaf.rate and plan.is_candidate_for(dtype) and rate in guess.rates:
            yield leaf, rate


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


ODD_SIDES = tuple(2**i + 1 for i in range(9, 15))  # whose rows begin anywhere


LARGE = 4096  # from here on the two are compared: of smaller ones the last wave of tiles decides as much


MORE = 1.25  # times as much gained: then odd sides are told of apart


Chosen = Mapping[int, Candidate]


def unmeasured_in_use(used: ModelInUse) -> list[str]:
    """The leaves whose rates are the datasheet's and by which a square that is told of is multiplied."""
    unmeasured = (*used.assumed, *used.left_out)
    if not unmeasured:
        return []
    met = {answer.plan.leaf_use.leaf.name for answer in answers_for(used, (*ROUND, *ODD_SIDES))}
    return [leaf for leaf in unmeasured if leaf in met]


def gains_from(calibration: Calibration, dtype: str) -> int | None:
    """The side from which on the model leaves squares to the vendor no more, if their rows are aligned; None if it
    never does."""
    first = holds_from(lambda side: chosen_square(calibration, dtype, side).plan != VENDOR)
    return int(first) if isfinite(first) else None


def odd_gains(calibration: Calibration, dtype: str) -> Chosen:
    """The choices on odd sides, from the first that gains on, if they gain clearly more there than a side less."""
    found = {side: chosen_square(calibration, dtype, side) for side in ODD_SIDES}
    won = {side: best for side, best in found.items() if best.plan != VENDOR}
    beside = {side: chosen_square(calibration, dtype, side - 1).time for side in won if side > LARGE}
    more = any(MORE * won[side].time < time for side, time in beside.items())
    return won if more else {}


def chosen_square(calibration: Calibration, dtype: str, side: int) -> Candidate:
    """The model's choice for a square product, however much workspace it needs."""
    limits = Limits(1 << 62, default_error_growth(calibration.batches))
    return choose(Problem(side, side, side, dtype), calibration, limits).best


def best_told(used: ModelInUse, first: int, side: int) -> Answer | None:
    """What is done on the larger of two sides, or, where that does not fit, on the largest round one that does."""
    fitting = [answer_for(used, x) for x in dict.fromkeys((max(first, side), *reversed(ROUND)))]
    return next((x for x in fitting if x and x.side >= first and x.gains), None)
