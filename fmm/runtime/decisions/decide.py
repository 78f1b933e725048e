"""Which plan answers a product on a device, if any, and why: step by step down to the vendor, who is always there.

A certified entry of exactly this shape; else the model, with the calibration of the device's config, or with what is
known of it otherwise; else the vendor. Whatever the layouts of a problem, it is looked up by size, type and operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache

from fmm.config import environment
from fmm.config.files import active_configs
from fmm.config.identity import Identity
from fmm.config.schema import Tuned
from fmm.kernels.plans.explain import explained_table
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.steps.asked import Asked
from fmm.kernels.plans.workspace import check_products, check_type, workspace
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Candidate, Limits, choose, few_tiles_margin, ranking_problem, recurring_call_seconds
from fmm.perfmodel.default_calibration import BUILT_IN_SOURCE
from fmm.perfmodel.papers.recursion_points import hasa_choice
from fmm.perfmodel.predict import is_b_column_major, is_slow_on_column_major_b, quick_prediction
from fmm.perfmodel.stability import error_bound_text, expected_error_growth
from fmm.perfmodel.work import estimated_workspace
from fmm.problem import Problem, without_layouts
from fmm.runtime.decisions import online
from fmm.runtime.decisions.calibration_in_force import (
    calibration_in_force,
    integer_calibration,
    tuned_calibration,
    tuning_in_force,
    untuned_calibration,
)
from fmm.runtime.devices import Device
from fmm.runtime.probe import MEASURED

# What a model without a config is called, by the source of its calibration.
STEPS = {BUILT_IN_SOURCE: "built-in model", MEASURED: "probed model"}
ENTRY = " entry"  # behind an entry's origin
# Flops from which on a product is large enough to log that the device is not tuned, or to be measured in place.
WORTH_TUNING = 2 * 2048**3
# So many times as fast as the plan of a shape's entry another one is predicted to be that comes before it.
ENTRY_OVERRIDE_GAIN = 1.25
# On the host NumPy multiplies integers with a shorter side: it takes a millisecond or two.
SMALLEST_INTEGER_SIDE = 129


@dataclass(frozen=True)
class Decision:
    """What fmm would do with a product, and why. Printing it explains it; matmul takes it as `plan`."""

    plan: Plan
    problem: Problem | None
    reason: str
    candidates: tuple[Candidate, ...] = ()  # what the model compared, the fastest first
    source: str = "rule"  # what answered: a rule, an entry, a calibrated, probed, built-in or datasheet model
    trial: online.Trial | None = field(default=None, compare=False)  # the measurement that it takes part in
    kernels: tuple[str, ...] = ()  # what really runs, a line each
    on_cpu: bool = False

    def __getstate__(self) -> dict[str, object]:
        """For other processes, without the trial: a measurement goes on in the process that began it."""
        return {**vars(self), "trial": None}

    @property
    def by_entry(self) -> bool:
        """Did an entry of exactly this shape answer?"""
        return self.source.endswith(ENTRY)

    @property
    def workspace(self) -> int:
        """Peak bytes of temporaries."""
        return peak_workspace(self.plan, self.problem) if self.problem else 0

    @property
    def error_growth(self) -> float:
        """Expected error as a multiple of the vendor's own."""
        return expected_error_growth(self.plan, self.problem.dtype if self.problem else "float64", self.on_cpu)

    def __str__(self) -> str:
        lines = [f"plan: {self.plan}", f"why: {self.reason}", f"answered by: {self.source}"]
        if self.problem:
            problem = self.problem
            table = explained_table(
                self.plan,
                *problem.size,
                problem.itemsize,
                _gemm_params(problem),
                problem.dtype if problem.type.exact else "",
            )
            lines += ["", table]
        if self.kernels:
            lines += ["", "runs:", *_counted(self.kernels), ""]
        notes = dict.fromkeys(level.error_note for level in self.plan.levels if level.error_note)
        if self.problem and self.problem.type.exact:
            lines += ["expected error: none, integers are exact"]
        else:
            lines += [", ".join([f"expected error: {self.error_growth:.1f} times the vendor's", *notes])]
            lines += [f"its bound: {error_bound_text(self.plan, self.problem.componentwise)}"] if self.problem else []
        if self.candidates:
            lines += ["", "predicted time, the vendor's being 1:"]
            times = [f"{c.time:.2f}" for c in self.candidates]
            width = max(5, *map(len, times))
            lines += [f"  {time:>{width}}  {c.plan}" for time, c in zip(times, self.candidates, strict=True)]
        return "\n".join(lines)


def _counted(kernels: tuple[str, ...]) -> Iterator[str]:
    """Each line once, with how often it comes: levels repeat what the levels below them do."""
    for line, count in Counter(kernels).items():
        yield f"  {line}" if count == 1 else f"  {count} times: {line}"


def decide_plan(problem: Problem, limits: Limits, device: Device) -> Decision:
    """The choice on a device: a certified entry, else the model's, else the vendor."""
    if environment.is_disabled():
        return Decision(VENDOR, problem, "FMM_DISABLE is set")
    if problem.type.exact:
        return _exact_choice(problem, limits, device)
    mode = environment.tuning_mode()
    if mode == "hasa":
        return _by_equation_2(problem, limits, device)
    tuned = None if mode == "off" else active_configs().tuned(device.identity, problem.dtype)
    measured = tuned_calibration(tuned, device) if tuned else None
    # An entry was measured on operands as they lie: it says nothing of one that a leaf has prepared.
    on_cpu = device.threads > 0
    known = decide_by_tuning(problem, limits, tuned, measured, on_cpu) if tuned and not problem.prepared_side else None
    if known is not None:
        _log_surpassed(known, problem, device)
        return known
    if measured is None:
        _log_untuned(problem, tuned, device)
    calibration = measured or untuned_calibration(problem, limits, device)
    chosen = decide_by_model(problem, limits, calibration, measured is not None, device.identity)
    return _online(chosen, problem, device.identity) if mode == "online" else chosen


def _log_untuned(problem: Problem, tuned: Tuned | None, device: Device) -> None:
    """Say of a large product, once in the process, that the device is not tuned, or why its tuning is not used."""
    if environment.tuning_mode() == "off" or problem.flops < WORTH_TUNING:
        return
    option = "cpu" if device.identity.key.startswith("cpu") else "0"
    message = f"{device.identity.name} is not tuned for {problem.dtype}; run `fmm-tune --device {option}` once"
    if tuned and tuned.doubts:
        message = f"the tuning of {device.identity.name} for {problem.dtype} is not used: {tuned.doubts[0]}"
    environment.log_once(message)


def _exact_choice(problem: Problem, limits: Limits, device: Device) -> Decision:
    """The choice for integers. They are not tuned: the rates of floating point products on the device say enough."""
    if device.threads and min(problem.size) < SMALLEST_INTEGER_SIDE:
        return Decision(VENDOR, problem, f"NumPy answers: a side of integers is shorter than {SMALLEST_INTEGER_SIDE}")
    limits = replace(limits, error_growth=max(limits.error_growth, 1.0))  # they are exact, whatever is asked
    calibration, is_tuned = integer_calibration(problem, limits, device)
    return decide_by_model(problem, limits, calibration, is_tuned, device.identity)


@lru_cache(maxsize=4096)
def find_certified_entry(problem: Problem, limits: Limits, tuned: Tuned, on_cpu: bool = False) -> Decision | None:
    """The entry of exactly this shape, if its plan is within the limits.

    A shape may have two entries: the second one is the best of the plans that need no workspace, for calls that allow
    none.
    """
    lean = None if limits.workspace else tuned.entry(problem.size, lean=True, op=problem.op)
    entry_and_plan = lean or tuned.entry(problem.size, op=problem.op)
    if entry_and_plan is None:
        return None
    entry, plan = entry_and_plan
    if (
        is_b_column_major(problem)
        and not problem.writes_triangle
        and is_slow_on_column_major_b(plan.leaf_use, problem.dtype)
    ):
        return None  # it was measured on a B that lies row by row
    allowed = limits.allow(plan, expected_error_growth(plan, problem.dtype, on_cpu))
    try:
        check_runnable(plan, problem, on_cpu)
        needed = peak_workspace(plan, problem)
    except PlanError as error:
        environment.log_once(f"the plan of the tuned shape {problem.size} is not used: {error}")
        return None
    if not allowed or needed > limits.workspace:
        return None
    why = f"measured on this device: {entry.text}"
    return Decision(plan, problem, why, (), f"{entry.origin}{ENTRY}", on_cpu=on_cpu)


def decide_by_tuning(
    problem: Problem, limits: Limits, tuned: Tuned, calibration: Calibration | None, on_cpu: bool
) -> Decision | None:
    """What a tuning says of exactly this shape: the certified entry, or on a GPU what comes before that (on a CPU a
    calibration has no rates but those that were measured); `calibration` is the tuning's, as choices rest on it."""
    entry = find_certified_entry(problem, limits, tuned, on_cpu)
    if entry is None or calibration is None or on_cpu:
        return entry
    return decide_over_entry(entry.plan, problem, limits, tuned, calibration) or entry


def _log_surpassed(known: Decision, problem: Problem, device: Device) -> None:
    """Say once that an entry is passed over, if it is."""
    if not known.by_entry:
        environment.log_once(f"a tuning of {device.identity.name} for {problem.dtype} is old: {known.reason}")


@lru_cache(maxsize=4096)
def decide_over_entry(
    certified: Plan, problem: Problem, limits: Limits, tuned: Tuned, calibration: Calibration
) -> Decision | None:
    """A far faster plan than that of the shape's entry, by a leaf that the tuning never measured; else None.

    An entry is evidence of the plans that it compared. What a config from before a leaf says of its shapes is none
    against that leaf, by which all other shapes of the type go already: `with_unmeasured` adds its rate.
    """
    found = tuned.entry(problem.size, op=problem.op)
    chosen = decide_by_model(problem, limits, calibration, True, tuned.identity)
    leaf, rate = chosen.plan.leaf_use.leaf, chosen.plan.rate_name(problem.dtype)
    measured = {*(tuned.calibration.rates if tuned.calibration else ()), *tuned.failed}
    if found is None or not leaf.time.rate or not leaf.candidacy.probed or rate in measured:
        return None
    gain = 1 / next(c.time for c in chosen.candidates if c.plan == chosen.plan)
    gain /= found[0].speedup if certified != VENDOR else 1.0
    if gain < ENTRY_OVERRIDE_GAIN:
        return None
    was = f"its entry ({found[0].text}) is from before {leaf.name}, predicted to be {gain:.2f} times as fast"
    return replace(chosen, reason=f"{was}; tune again to have that measured ({chosen.reason})")


@lru_cache(maxsize=4096)
def decide_by_model(
    problem: Problem, limits: Limits, calibration: Calibration | None, is_tuned: bool, identity: Identity
) -> Decision:
    """The model's choice by a calibration, which may be of a tuning; the vendor where there is none."""
    if calibration is None:
        return Decision(VENDOR, problem, f"the vendor answers: {identity.name} is neither tuned nor in the table")
    if problem.dtype not in calibration.rates:
        return Decision(VENDOR, problem, f"the vendor answers: {identity.name} has no rate for {problem.dtype}")
    choice = choose(ranking_problem(problem, calibration.batches), calibration, limits)
    step = "calibrated model" if is_tuned else STEPS.get(calibration.source, "datasheet model")
    on_cpu = not calibration.batches
    return Decision(choice.best.plan, problem, choice.reason, choice.candidates, step, on_cpu=on_cpu)


def _by_equation_2(problem: Problem, limits: Limits, device: Device) -> Decision:
    """D'Alberto and Nicolau's rule (Equation 2) instead of the model's choice. Alpha and pi are the calibration's;
    epsilon is the tuning's, zero where there is none."""
    calibration = calibration_in_force(problem, limits, device)
    if calibration is None or calibration.find_rate(problem.dtype) is None:
        return Decision(VENDOR, problem, f"the vendor answers: {device.identity.name} has no rate for {problem.dtype}")
    tuned = tuning_in_force(problem.dtype, device)
    epsilon = (tuned.thresholds.epsilon or 0.0) if tuned and tuned.thresholds else 0.0
    plan = hasa_choice(without_layouts(problem), calibration, limits, epsilon)
    why = f"Equation 2 asks for {plan.depth or 'no'} level{'s' * (plan.depth != 1)} of HASA ({calibration.source})"
    return Decision(plan, problem, why, (), "Equation 2", on_cpu=not calibration.batches)


def _online(chosen: Decision, problem: Problem, identity: Identity) -> Decision:
    """The first products of a shape are measured in place, the model's choice against the vendor."""
    if chosen.plan == VENDOR or problem.writes_triangle or problem.flops < WORTH_TUNING:
        return chosen
    trial = online.shape_trial(without_layouts(problem), identity, chosen.plan)
    if (entry := trial.entry) is None:
        return replace(chosen, problem=problem, source="being measured", trial=trial)
    return replace(chosen, plan=Plan.parse(entry.plan), problem=problem, reason=entry.text, source="measured online")


def _gemm_params(problem: Problem) -> Asked:
    return Asked(problem.alpha, problem.beta, problem.op, problem.fill)


def peak_workspace(plan: Plan, problem: Problem) -> int:
    """Bytes of temporaries that the plan has at a time, for all that is asked of it."""
    return workspace(plan, *problem.size, problem.itemsize, *_gemm_params(problem))


def check_runnable(plan: Plan, problem: Problem, on_cpu: bool) -> None:
    """PlanError for a plan whose leaf is not on a CPU, that does not multiply the type, or that makes too many
    products of these sizes."""
    for use in plan.leaf_uses:
        if on_cpu and "cpu" not in use.leaf.devices:
            raise PlanError(f"the plan {plan} cannot run here: {use.product} is a product on a GPU")
    check_type(plan, problem.dtype, "cpu" if on_cpu else "cuda")
    check_products(plan, *problem.size)


LEANER = 0.8  # the share of a plan's workspace that the next one may have: a difference where memory is in pieces


def next_plans(problem: Problem, than: Plan, limits: Limits, device: Device) -> Iterator[Plan]:
    """Where the plan `than` cannot run on these arrays after all: what else wins within the limits, the fastest first.

    The model says so, even if an entry of a config had chosen the plan: that names no others.
    """
    for candidate in _candidates(problem, limits, device):
        if candidate.wins and _is_allowed(candidate, limits) and candidate.plan not in (than, VENDOR):
            yield candidate.plan


def smaller_plans(problem: Problem, than: Plan, limits: Limits, device: Device) -> Iterator[Plan]:
    """Where memory ran out for the plan `than`: the best plan with at most LEANER of its workspace, then the best with
    at most LEANER of that one's, and so on until there is none."""
    room = peak_workspace(than, problem)
    while room > 0:
        room = int(room * LEANER)
        leaner = next(next_plans(problem, than, replace(limits, workspace=room), device), None)
        if leaner is None:
            return
        yield leaner
        room = peak_workspace(leaner, problem)


def decide_without_vendor(vendors: Decision, limits: Limits, device: Device) -> Decision:
    """Instead of the decision for the vendor, where the library has no such product: the fastest plan within the
    limits, even if it does not win; the same decision where there is none."""
    problem = vendors.problem
    assert problem is not None
    for candidate in () if environment.is_disabled() else _candidates(problem, limits, device):
        if candidate.plan != VENDOR and _is_allowed(candidate, limits):
            return replace(vendors, plan=candidate.plan, reason="the library has no product of this type")
    return vendors


def _is_allowed(candidate: Candidate, limits: Limits) -> bool:
    return limits.allow(candidate.plan, candidate.error_growth) and candidate.fits(limits.workspace)


def _candidates(problem: Problem, limits: Limits, device: Device) -> tuple[Candidate, ...]:
    """All candidates with their predictions, the fastest first."""
    calibration = calibration_in_force(problem, limits, device)
    if calibration is None or problem.dtype not in calibration.rates:
        return ()
    return choose(ranking_problem(problem, calibration.batches), calibration, limits).candidates


# The vendor cuts a product of few rows along a long inner side; whether its functions for one half do so too, the model
# does not know. So with an inner side of more than so many times the rows, a product stays whole.
MOST_INNER = 16
# On a GPU the vendor's half of so few rows takes as long as the whole product, or longer. (1024 of an H200, with as
# many columns: 63 us by syrk and 59 for all in float32, 41 and 42 in float64.)
FEW_ROWS = 1024


def is_gram_faster(half: Decision, limits: Limits, device: Device) -> bool:
    """Is a call for one half, with its mirror, clearly predicted to be faster than one for the whole product by the
    best plan?"""
    problem = half.problem
    assert problem is not None
    whole = Problem(*problem.size, problem.dtype)
    calibration = calibration_in_force(problem, limits, device)
    if calibration is None or problem.dtype not in calibration.rates or problem.k > MOST_INNER * problem.m:
        return False
    if calibration.batches and half.plan == VENDOR and problem.m <= FEW_ROWS:
        return False
    best = decide_plan(whole, limits, device).plan
    of_whole = min(
        recurring_call_seconds(quick_prediction(plan, whole, calibration), calibration) for plan in (VENDOR, best)
    )
    of_half = recurring_call_seconds(quick_prediction(half.plan, without_layouts(problem), calibration), calibration)
    margin = calibration.margin + few_tiles_margin(problem, calibration)
    return of_half <= (1 - margin) * of_whole


def expected_seconds(plans: Collection[Plan], problem: Problem, limits: Limits, device: Device) -> float:
    """Seconds by the vendor, or by the fastest of these plans that fits into the workspace; 0 where nothing is known of
    the device. (Choosing among all plans would take a thousand times as long.)"""
    calibration = calibration_in_force(problem, limits, device)
    if calibration is None or problem.dtype not in calibration.rates:
        return 0.0
    seconds = [recurring_call_seconds(quick_prediction(VENDOR, problem, calibration), calibration)]
    for plan in plans:
        with suppress(PlanError):  # it cannot be done at these sides
            if estimated_workspace(plan, problem) <= limits.workspace:
                seconds.append(recurring_call_seconds(quick_prediction(plan, problem, calibration), calibration))
    return min(seconds)
