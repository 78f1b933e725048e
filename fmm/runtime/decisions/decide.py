"""The decision for a product on a device: by a certified entry for exactly this shape, else by the model.

`decide_plan` takes a problem, limits and a device, and touches no array. Other functions of this module yield the plans
to try if the decided plan cannot run, and predict the seconds of a plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING

from fmm.config import environment
from fmm.config.files import active_configs
from fmm.config.identity import Identity
from fmm.config.schema import Thresholds, Tuning
from fmm.kernels.cpu.blas_kernel import slow_kernel_warning
from fmm.kernels.plans.explain import format_error_growth, plan_table
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import check_plan_type, check_product_count, plan_workspace_bytes
from fmm.kernels.registry import clear_on_registration
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Candidate, Limits, choose, problem_for_ranking, recurring_call_seconds, required_margin
from fmm.perfmodel.crossovers import NO_LEVEL_BOUND, count_levels
from fmm.perfmodel.default_calibration import BUILT_IN_SOURCE_TEXT
from fmm.perfmodel.predict import Prediction, is_b_column_major, is_slow_on_column_major_b, quick_prediction
from fmm.perfmodel.prediction_terms import PredictionTerms, prediction_terms
from fmm.perfmodel.stability import error_bound_text, expected_error_growth, is_error_measured
from fmm.perfmodel.work import estimated_workspace
from fmm.problem import Problem, reduced_problem
from fmm.runtime.decisions import online
from fmm.runtime.decisions.calibration_in_force import (
    arithmetic_variables_unlike_tuning,
    calibration_in_force,
    integer_calibration,
    tuned_calibration,
    tuning_in_force,
    untuned_calibration,
)
from fmm.runtime.decisions.first_product import (
    allows_portable_kernels,
    first_product_entry,
    first_product_trial,
    has_portable_kernels,
)
from fmm.runtime.devices import Device
from fmm.runtime.probe import PROBE_SOURCE

if TYPE_CHECKING:
    from fmm.perfmodel.papers.recursion_points import HasaThresholds

# The value of `Decision.source` if the model decided without a tuning, for each source of the calibration.
MODEL_SOURCES = {BUILT_IN_SOURCE_TEXT: "built-in model", PROBE_SOURCE: "probed model"}
SHOWN_CANDIDATES = 6  # number of the fastest candidates that the text of a decision lists
ENTRY_SOURCE_SUFFIX = " entry"  # suffix of `Decision.source` if a certified entry decided
# A missing tuning is logged, and a product is measured online, only for products of at least this number of flops.
MIN_TUNED_FLOPS = 2 * 2048**3
# A plan with an unmeasured leaf replaces a certified entry's plan if its predicted speedup over the entry's plan is
# at least this number.
ENTRY_OVERRIDE_GAIN = 1.25
# Smallest side of an integer product on the host that a plan may compute. If all three sides are shorter than this
# number, NumPy computes the integer product in at most 2 ms.
MIN_INTEGER_PLAN_SIDE = 129


@dataclass(frozen=True)
class Decision:
    """The decision for a product, with its reason.

    `print` shows the decision as text; fmm.matmul accepts the decision as `plan`.
    """

    plan: Plan
    problem: Problem | None
    reason: str
    candidates: tuple[Candidate, ...] = ()  # the plans that the model compared, the fastest first
    source: str = "rule"  # what decided: "rule", an entry, or a calibrated, probed, built-in or datasheet model
    # The running online measurement, or the measurement that the first large product of a type will make; else None.
    trial: online.OnlineTrial | None = field(default=None, compare=False)
    kernels: tuple[str, ...] = ()  # descriptions of the kernels that run
    on_cpu: bool = False
    calibration: Calibration | None = field(default=None, compare=False, repr=False)  # the model that decided
    limits: Limits | None = field(default=None, compare=False, repr=False)  # the limits that filtered the candidates
    # Bytes that the explained call allocates in addition to A, B and C: the workspace, copies of operands, and on a
    # device the memory of a CUDA graph. `call_bytes` is 0 if the vendor multiplies, and in decisions that fmm.plan
    # returns.
    call_bytes: int = field(default=0, compare=False)
    measured_speedup: float | None = None  # median measured speedup of the entry that decided

    def __getstate__(self) -> dict[str, object]:
        """Return the state to pickle, without `trial`: an OnlineTrial times products of its own process only."""
        calibration = self.calibration  # a read-only mapping cannot be pickled, so the rates become a dict
        calibration = calibration and replace(calibration, rates=dict(calibration.rates))
        return {**vars(self), "trial": None, "calibration": calibration}

    @property
    def by_entry(self) -> bool:
        """True if an entry of exactly this shape decided."""
        return self.source.endswith(ENTRY_SOURCE_SUFFIX)

    @property
    def speedup(self) -> float:
        """The plan's speedup over the vendor: measured by the certified entry, or predicted by the model, or 1."""
        if self.measured_speedup is not None:
            return self.measured_speedup
        return next((1 / c.time for c in self.candidates if c.plan == self.plan), 1.0)

    @property
    def terms(self) -> tuple[PredictionTerms, ...]:
        """The terms of the predicted times of the plan and of the vendor's product.

        If a certified entry decided, the tuple is empty, since the entry has no predicted times. If the caller passed
        the plan, the terms come from the model that would have decided. `print` shows the terms as the formula of
        docs/model.md, with the amount of work, the rate and the unit of each term.
        """
        calibration = self.calibration
        return tuple(prediction_terms(x, calibration) for x in self._predictions) if calibration else ()

    @property
    def _predictions(self) -> tuple[Prediction, ...]:
        """The predicted times of the plan and of the vendor's product.

        A plan that the decision did not compare is predicted when this property is read.
        """
        calibration, problem = self.calibration, self.problem
        if calibration is None or problem is None:
            return ()
        known = {c.plan: c.prediction for c in self.candidates}
        plans = [x for x in dict.fromkeys((self.plan, VENDOR)) if calibration.find_rate(x.rate_name(problem.dtype))]
        ranked = problem_for_ranking(problem, calibration.batches)
        return tuple(known.get(plan) or quick_prediction(plan, ranked, calibration) for plan in plans)

    @property
    def workspace(self) -> int:
        """Peak bytes of the plan's temporaries; `call_bytes` counts all memory that the call allocates."""
        return peak_workspace(self.plan, self.problem) if self.problem else 0

    @property
    def error_growth(self) -> float:
        """The plan's expected error as a multiple of the vendor's expected error."""
        return expected_error_growth(self.plan, self.problem.dtype if self.problem else "float64", self.on_cpu)

    def __str__(self) -> str:
        lines = [f"plan: {self.plan}", f"why: {self.reason}", f"decided by: {self.source}", *self._level_lines()]
        if self.on_cpu and (warning := slow_kernel_warning()):
            lines += [f"warning: {warning}"]
        if self.problem:
            problem = self.problem
            exact = problem.dtype if problem.element_type.exact else ""
            lines += ["", plan_table(self.plan, *problem.size, problem.itemsize, _gemm_params(problem), exact)]
        if self.kernels:
            counts = Counter(self.kernels).items()  # kernels can run several times, for example those of inner levels
            lines += ["", "runs:", *(f"  {x}" if count == 1 else f"  {count} times: {x}" for x, count in counts), ""]
        if self.call_bytes > self.workspace:
            lines += [f"the call allocates: {self.call_bytes} bytes, including copies and memory for launches"]
        notes = dict.fromkeys(level.error_note for level in self.plan.levels if level.error_note)
        if self.problem and self.problem.element_type.exact:
            lines += ["expected error: none, integers are exact"]
        else:
            lines += [self._expected_error_line(notes)]
            lines += [f"bound: {error_bound_text(self.plan, self.problem.componentwise)}"] if self.problem else []
        if self.candidates or self.calibration:
            lines += ["", *self._candidate_lines(), *self._predicted_lines()]
        return "\n".join(lines)

    def _level_lines(self) -> list[str]:
        """Return a line with the plan's number of levels and the crossovers that limit this number.

        Return an empty list if no crossover limits the number of levels.
        """
        calibration, problem = self.calibration, self.problem
        if not self.candidates or calibration is None or problem is None or problem.writes_triangle:
            return []
        bounds, levels = calibration.crossovers_of_plan(self.plan), count_levels(self.plan)
        side = calibration.matrix_side_for_crossovers(problem)
        position = bounds.crossover_position_text(side) if bounds else ""
        if not bounds or not position:
            return []
        fewer = f": at most {bounds.max_levels(side)}" if levels < bounds.max_levels(side) < NO_LEVEL_BOUND else ""
        return [f"levels: {levels} ({position}{fewer})"]

    def _candidate_lines(self) -> list[str]:
        """Return lines with the predicted times of the fastest candidates, the plan and the vendor."""
        if not self.candidates:
            return []
        shown = [c for i, c in enumerate(self.candidates) if i < SHOWN_CANDIDATES or c.plan in (self.plan, VENDOR)]
        times = [f"{c.time:.3f}" for c in shown]
        width = max(5, *map(len, times))
        lines = ["predicted time as a multiple of the vendor's:"]
        lines += [f"  {time:>{width}}  {c.plan}{self._exceeded_limit(c)}" for time, c in zip(times, shown, strict=True)]
        if len(shown) < len(self.candidates):
            lines += [f"  and {len(self.candidates) - len(shown)} slower ones"]
        return lines

    def _predicted_lines(self) -> list[str]:
        """Return a line with the predicted seconds of plan and vendor; an empty list if no model decided."""
        parts = ", ".join(f"{x.plan} {x.predicted_seconds:.4g} s" for x in self._predictions)
        if not parts or self.calibration is None:
            return []
        nominal = " by nominal rates (only ratios are meaningful)"
        rates = nominal if self.calibration.source == BUILT_IN_SOURCE_TEXT else ""
        return [f"predicted{rates}: {parts} (each term: print(*fmm.explain(a, b).terms, sep='\\n'))"]

    def _expected_error_line(self, notes: Iterable[str]) -> str:
        """Return the line with the expected error growth; the line says whether the growth is measured or predicted."""
        text, origin = format_error_growth(self.error_growth), " (root mean square, by the model)"
        if is_error_measured(self.plan):
            text, origin = f"about {text}", " (measured, in the Frobenius norm)"
        line = ", ".join([f"expected error: {text} times the vendor's", *notes])
        return line if self.plan == VENDOR else f"{line}{origin}"

    def _exceeded_limit(self, candidate: Candidate) -> str:
        """Return a note for a candidate with too much error, too much workspace or forbidden emulation; else ""."""
        limits, plan = self.limits, candidate.plan
        if limits is None or plan == VENDOR:
            return ""
        if not limits.allows_plan(plan, candidate.error_growth):
            is_type = plan.uses_emulation and not limits.emulation
            return f"  (forbidden: {'multiplies in another type' if is_type else 'more error'})"
        return "" if candidate.fits_workspace(limits.workspace) else "  (forbidden: more workspace)"


def decide_plan(problem: Problem, limits: Limits, device: Device) -> Decision:
    """Return the decision for a problem: a plan within the limits of error growth and workspace, or the vendor.

    A certified entry for a shape applies to all memory layouts, except to a column-major B with which the entry's plan
    is slow.
    """
    if environment.is_disabled():
        return Decision(VENDOR, problem, "FMM_DISABLE is set")
    if problem.element_type.exact:
        return _decide_integers(problem, limits, device)
    mode = environment.tuning_mode()
    if untuned := arithmetic_variables_unlike_tuning(problem.dtype, device):
        what = f"{untuned} changes the vendor's {problem.dtype} products; no calibration was measured with it"
        return Decision(VENDOR, problem, f"the vendor multiplies: {what}; run `fmm-tune --device 0`")
    if mode == "hasa":
        return _decide_by_equation_2(problem, limits, device)
    tuned = None if mode == "off" else active_configs().find_tuning(device.identity, problem.dtype)
    calibration = tuned_calibration(tuned, device) if tuned else None
    # Certified entries were measured on operands that were not prepared (fmm.prepare), so no entry applies to a product
    # with a prepared operand.
    if tuned and not problem.prepared_side:
        by_tuning = decide_by_tuning(problem, limits, tuned, calibration, device.threads > 0)
        if by_tuning is not None:
            if not by_tuning.by_entry:
                name = device.identity.name
                environment.log_once(f"a tuning of {name} for {problem.dtype} is old: {by_tuning.reason}")
            return by_tuning
    if calibration is None:
        _log_untuned(problem, tuned, device)
    known = calibration or untuned_calibration(problem, limits, device)
    decision = decide_by_model(problem, limits, known, calibration is not None, device.identity)
    if mode == "online":
        return decision if limits.forbids_vendor else _decide_online(decision, problem, device.identity)
    trial = first_product_trial(problem, limits, device) if calibration is None else None
    if trial is None:
        return decision
    return replace(
        decision, trial=trial, reason=f"{decision.reason}; the first large product will measure {trial.plan}"
    )


def _log_untuned(problem: Problem, tuned: Tuning | None, device: Device) -> None:
    """Log that the device has no tuning, or why its tuning is not used; log once per process, for a large product."""
    if environment.tuning_mode() == "off" or problem.flops < MIN_TUNED_FLOPS:
        return
    option = "cpu" if device.identity.key.startswith("cpu") else "0"
    message = f"{device.identity.name} is not tuned for {problem.dtype}; run `fmm-tune --device {option}` once"
    if tuned and tuned.diagnostics:
        message = f"the tuning of {device.identity.name} for {problem.dtype} is not used: {tuned.diagnostics[0]}"
    environment.log_once(message)


def _decide_integers(problem: Problem, limits: Limits, device: Device) -> Decision:
    """Return the decision for a product of integers.

    Integer types are not tuned, so the model uses the rates of a floating-point type.
    """
    if device.threads and min(problem.size) < MIN_INTEGER_PLAN_SIDE:
        return Decision(VENDOR, problem, f"NumPy multiplies: a side of integers is below {MIN_INTEGER_PLAN_SIDE}")
    limits = replace(limits, error_growth=max(limits.error_growth, 1.0))  # integers are exact with any plan
    calibration, is_tuned = integer_calibration(problem, limits, device)
    decision = decide_by_model(problem, limits, calibration, is_tuned, device.identity)
    if decision.plan == VENDOR or not has_portable_kernels(device):
        return decision
    entry = first_product_entry(device.identity, problem.dtype)
    if entry is not None and allows_portable_kernels(entry, problem):
        return decision
    why = entry.evidence_text if entry else "fmm's kernels have not been measured on this GPU"
    trial = first_product_trial(problem, limits, device)
    return replace(decision, plan=VENDOR, reason=f"the vendor multiplies: {why}", trial=trial)


# ---- by a tuning's entries


def decide_by_tuning(
    problem: Problem, limits: Limits, tuned: Tuning, calibration: Calibration | None, on_cpu: bool
) -> Decision | None:
    """Return the decision from the certified entry for exactly this shape; None without an entry.

    On a GPU, a plan may replace the entry's plan if the tuning never measured the leaf of that plan. `calibration`: the
    tuning's calibration, with added rates of the leaves that the tuning did not measure.
    """
    entry = find_certified_entry(problem, limits, tuned, on_cpu)
    if entry is None or calibration is None or on_cpu:
        return entry
    return decide_for_unmeasured_leaf(entry.plan, problem, limits, tuned, calibration) or entry


@clear_on_registration
@lru_cache(maxsize=4096)
def find_certified_entry(problem: Problem, limits: Limits, tuned: Tuning, on_cpu: bool = False) -> Decision | None:
    """Return the decision from the certified entry for exactly this shape.

    Return None without an entry, and if the entry's plan exceeds the limits. For calls with a workspace limit of 0, a
    shape may have a second entry, for the best plan without workspace.
    """
    lean = None if limits.workspace else tuned.find_entry(problem.size, lean=True, op=problem.op)
    entry_and_plan = lean or tuned.find_entry(problem.size, op=problem.op)
    if entry_and_plan is None:
        return None
    entry, plan = entry_and_plan
    column_major = is_b_column_major(problem) and not problem.writes_triangle
    if column_major and is_slow_on_column_major_b(plan.leaf_use, problem.dtype):
        return None  # the entry was measured with a row-major B, and this plan is slow with a column-major B
    is_allowed = limits.allows_plan(plan, expected_error_growth(plan, problem.dtype, on_cpu))
    try:
        check_plan_is_runnable(plan, problem, on_cpu)
        needed = peak_workspace(plan, problem)
    except PlanError as error:
        environment.log_once(f"the plan of the tuned shape {problem.size} is not used: {error}")
        return None
    if not is_allowed or needed > limits.workspace:
        return None
    why = f"measured on this device: {entry.evidence_text}"
    source, speedup = f"{entry.origin}{ENTRY_SOURCE_SUFFIX}", 1.0 if plan == VENDOR else entry.speedup
    return Decision(plan, problem, why, (), source, on_cpu=on_cpu, measured_speedup=speedup)


@clear_on_registration
@lru_cache(maxsize=4096)
def decide_for_unmeasured_leaf(
    certified: Plan, problem: Problem, limits: Limits, tuned: Tuning, calibration: Calibration
) -> Decision | None:
    """Return the decision for a plan with an unmeasured leaf if it is predicted to be far faster than the entry's plan.

    Return None if no plan with an unmeasured leaf is predicted to be far faster. An entry is evidence about the plans
    that the tuning compared, but not about leaves that were added to fmm after the tuning. For a shape without an
    entry, the model may choose a plan with an unmeasured leaf if the predicted gain exceeds the margin.
    """
    entry = tuned.find_entry(problem.size, op=problem.op)
    decision = decide_by_model(problem, limits, calibration, True, tuned.identity)
    leaf, rate = decision.plan.leaf_use.leaf, decision.plan.rate_name(problem.dtype)
    measured = {*(tuned.calibration.rates if tuned.calibration else ()), *tuned.failed}
    if entry is None or not leaf.rate or not leaf.probed_plan_forms or rate in measured:
        return None
    gain = 1 / next(c.time for c in decision.candidates if c.plan == decision.plan)
    gain /= entry[0].speedup if certified != VENDOR else 1.0
    if gain < ENTRY_OVERRIDE_GAIN:
        return None
    was = f"the entry ({entry[0].evidence_text}) is older than the leaf {leaf.name}, predicted {gain:.2f} times as fast"
    return replace(decision, reason=f"{was}; tune again to measure the leaf ({decision.reason})")


# ---- by the model


@clear_on_registration
@lru_cache(maxsize=4096)
def decide_by_model(
    problem: Problem, limits: Limits, calibration: Calibration | None, is_tuned: bool, identity: Identity
) -> Decision:
    """Return the decision for the model's choice with this calibration; without a calibration, for the vendor."""
    if calibration is None:
        return Decision(VENDOR, problem, f"the vendor multiplies: {identity.name} has neither a tuning nor a datasheet")
    if problem.dtype not in calibration.rates:
        return Decision(VENDOR, problem, f"the vendor multiplies: {identity.name} has no rate for {problem.dtype}")
    choice = choose(problem_for_ranking(problem, calibration.batches), calibration, limits)
    source = "calibrated model" if is_tuned else MODEL_SOURCES.get(calibration.source, "datasheet model")
    plan, reason, on_cpu = choice.best.plan, choice.reason, not calibration.batches
    if calibration.source == BUILT_IN_SOURCE_TEXT and plan == VENDOR and any(c.beats_vendor for c in choice.candidates):
        reason = f"{reason}; with wider limits, this processor would be measured before a plan is chosen"
    found = choice.candidates
    return Decision(plan, problem, reason, found, source, on_cpu=on_cpu, calibration=calibration, limits=limits)


def _decide_by_equation_2(problem: Problem, limits: Limits, device: Device) -> Decision:
    """Return the decision by D'Alberto and Nicolau's rule instead of the model.

    The rule compares the side of a product of square matrices with the recursion point n1, and decides for other
    sizes by Equation 2 of D'Alberto and Nicolau's paper. The config contains the rule's constants alpha, pi, n1 and
    epsilon. Without a tuning, alpha and pi are from the calibration in force.
    """
    from fmm.perfmodel.papers.recursion_points import calibrated_thresholds, choose_hasa_plan

    calibration = calibration_in_force(problem, limits, device)
    if calibration is None or calibration.find_rate(problem.dtype) is None:
        return Decision(
            VENDOR, problem, f"the vendor multiplies: {device.identity.name} has no rate for {problem.dtype}"
        )
    tuned = tuning_in_force(problem.dtype, device)
    recorded = tuned.thresholds if tuned and tuned.trusted_calibration else None
    if recorded is None:
        thresholds, rule = calibrated_thresholds(calibration, problem.dtype), f"Equation 2 ({calibration.source})"
    else:
        thresholds, rule = _hasa_thresholds(recorded, problem)
    plan = choose_hasa_plan(reduced_problem(problem), thresholds, limits, not calibration.batches)
    why = f"{rule} asks for {plan.depth or 'no'} level{'s' * (plan.depth != 1)} of HASA"
    return Decision(plan, problem, why, (), "Equation 2", on_cpu=not calibration.batches)


def _hasa_thresholds(recorded: Thresholds, problem: Problem) -> tuple[HasaThresholds, str]:
    """Return the thresholds of HASA's rule, computed from a config's alpha, pi, n1 and epsilon, and the rule as text.

    The config's n1 is the recursion point of Winograd's variant. HASA (D'Alberto and Nicolau's adaptive algorithm) has
    more passes over blocks than Winograd's variant, so HASA's recursion point is larger.
    """
    from fmm.perfmodel.papers.recursion_points import HASA_POINT_RATIO, HasaThresholds

    ratio = 2 * recorded.alpha / (recorded.pi * problem.element_type.flops)
    epsilon = recorded.epsilon or 0.0
    point = inf if recorded.n1 is None else HASA_POINT_RATIO * recorded.n1
    if len(set(problem.size)) == 1:
        rule = f"the recursion point {point:,.0f} ({HASA_POINT_RATIO:.3g} n1 of the config)"
    else:
        rule = f"Equation 2 with alpha/pi {ratio:,.0f} and epsilon {epsilon:,.0f} of the config"
    return HasaThresholds(ratio, epsilon, point), rule


def _decide_online(decision: Decision, problem: Problem, identity: Identity) -> Decision:
    """Return the decision with an OnlineTrial, which times the first products of this shape.

    The decided plan computes half of the timed products, the vendor the other half. So the caller's limits must allow
    the vendor.
    """
    if decision.plan == VENDOR or problem.writes_triangle or problem.flops < MIN_TUNED_FLOPS:
        return decision
    trial = online.trial_for_shape(reduced_problem(problem), identity, decision.plan)
    if (entry := trial.entry) is None:
        return replace(decision, problem=problem, source="being measured", trial=trial)
    return replace(
        decision, plan=Plan.parse(entry.plan), problem=problem, reason=entry.evidence_text, source="measured online"
    )


# ---- workspace and validity of a plan


def _gemm_params(problem: Problem) -> GemmParams:
    return GemmParams(problem.alpha, problem.beta, problem.op, problem.fill)


def peak_workspace(plan: Plan, problem: Problem) -> int:
    """Return the peak number of bytes of the plan's temporaries for this problem."""
    return plan_workspace_bytes(plan, *problem.size, problem.itemsize, *_gemm_params(problem))


def check_plan_is_runnable(plan: Plan, problem: Problem, on_cpu: bool) -> None:
    """Raise PlanError if a leaf does not support the processor or the type, or if the plan has too many products."""
    for use in plan.all_leaves:
        if on_cpu and "cpu" not in use.leaf.devices:
            raise PlanError(f"the plan {plan} cannot run here: {use.kernel_text} is a product on a GPU")
        if on_cpu and use.leaf.level is not None and problem.writes_triangle:
            raise PlanError(f"the plan {plan} cannot run here: on a CPU, {use.kernel_text} computes no triangle")
    check_plan_type(plan, problem.dtype, "cpu" if on_cpu else "cuda")
    check_product_count(plan, *problem.size)


# ---- other plans, if the decided one cannot run

# After memory ran out for a plan, the workspace limit of the next plan is this fraction of that plan's workspace. (Free
# memory may be fragmented, so its size is no limit.)
RETRY_WORKSPACE_SHARE = 0.8


def next_winning_plans(problem: Problem, refused: Plan, limits: Limits, device: Device) -> Iterator[Plan]:
    """Yield the plans within the limits that are predicted to beat the vendor, the fastest first, without `refused`."""
    for candidate in _ranked_candidates(problem, limits, device):
        if candidate.beats_vendor and _is_within_limits(candidate, limits) and candidate.plan not in (refused, VENDOR):
            yield candidate.plan


def plans_with_less_memory(problem: Problem, refused: Plan, limits: Limits, device: Device) -> Iterator[Plan]:
    """Yield plans to try after memory ran out for the plan `refused`.

    Each plan is the fastest within a workspace limit, and each limit is RETRY_WORKSPACE_SHARE times the workspace of
    the plan before.
    """
    nbytes = peak_workspace(refused, problem)
    while nbytes > 0:
        nbytes = int(nbytes * RETRY_WORKSPACE_SHARE)
        plan = next(next_winning_plans(problem, refused, replace(limits, workspace=nbytes), device), None)
        if plan is None:
            return
        yield plan
        # The workspace of candidates is an estimate, so the plan can need more bytes than the limit `nbytes`. Each
        # limit is smaller than the limit before, so that the loop ends.
        nbytes = min(nbytes, peak_workspace(plan, problem))


def decide_without_vendor(vendor: Decision, limits: Limits, device: Device) -> Decision:
    """Return the decision for the fastest plan within the limits, for a type that the library cannot multiply.

    If no plan is within the limits, return `vendor`, the decision for the vendor.
    """
    problem = vendor.problem
    assert problem is not None
    for candidate in () if environment.is_disabled() else _ranked_candidates(problem, limits, device):
        if candidate.plan != VENDOR and _is_within_limits(candidate, limits):
            return replace(vendor, plan=candidate.plan, reason="the library has no product of this type", trial=None)
    return vendor


def _is_within_limits(candidate: Candidate, limits: Limits) -> bool:
    return limits.allows_plan(candidate.plan, candidate.error_growth) and candidate.fits_workspace(limits.workspace)


def _ranked_candidates(problem: Problem, limits: Limits, device: Device) -> tuple[Candidate, ...]:
    """Return all candidates with their predictions, the fastest first."""
    calibration = calibration_in_force(problem, limits, device)
    if calibration is None or problem.dtype not in calibration.rates:
        return ()
    return choose(problem_for_ranking(problem, calibration.batches), calibration, limits).candidates


# ---- expected times outside a choice

# Largest ratio k / m for which one triangle of an m x k matrix times its adjoint is computed. If k / m exceeds
# MAX_INNER_SIDE_RATIO, fmm computes the full product by the vendor's gemm, which splits the inner side k among thread
# blocks. The vendor's syrk may not split k and is then slower; the performance model does not know which is the case.
MAX_INNER_SIDE_RATIO = 16
# Largest number of rows of C for which the vendor's syrk takes about as long on a GPU as its gemm. (On an H200 with
# 1024 rows and columns, syrk takes 63 us and gemm 59 us in float32; syrk takes 41 us and gemm 42 us in float64.)
MAX_SLOW_SYRK_ROWS = 1024


def is_gram_faster(gram: Decision, limits: Limits, device: Device) -> bool:
    """Return True if computing and mirroring one triangle is predicted to beat the best full product by the margin.

    The required gain is the larger of two margins: the margin of the plan in `gram`, and the margin of the vendor's
    product of one triangle.
    """
    problem = gram.problem
    assert problem is not None
    whole = Problem(*problem.size, problem.dtype)
    calibration = calibration_in_force(problem, limits, device)
    if calibration is None or problem.dtype not in calibration.rates or problem.k > MAX_INNER_SIDE_RATIO * problem.m:
        return False
    if calibration.batches and gram.plan == VENDOR and problem.m <= MAX_SLOW_SYRK_ROWS:
        return False
    best = decide_plan(whole, limits, device).plan
    whole_seconds = min(
        recurring_call_seconds(quick_prediction(plan, whole, calibration), calibration) for plan in (VENDOR, best)
    )
    gram_prediction = quick_prediction(gram.plan, reduced_problem(problem), calibration)
    gram_seconds = recurring_call_seconds(gram_prediction, calibration)
    margin = max(required_margin(plan, problem, calibration) for plan in (VENDOR, gram.plan))
    return gram_seconds <= (1 - margin) * whole_seconds


def expected_seconds(plans: Collection[Plan], problem: Problem, limits: Limits, device: Device) -> float:
    """Return the smallest predicted seconds of the vendor and of `plans`; 0 if there is no calibration.

    Plans that exceed the workspace limit are ignored. Only the passed plans are predicted, since a choice among all
    plans would take a thousand times as long.
    """
    calibration = calibration_in_force(problem, limits, device)
    if calibration is None or problem.dtype not in calibration.rates:
        return 0.0
    seconds = [recurring_call_seconds(quick_prediction(VENDOR, problem, calibration), calibration)]
    for plan in plans:
        with suppress(PlanError):  # the plan cannot run at these sizes
            if estimated_workspace(plan, problem) <= limits.workspace:
                seconds.append(recurring_call_seconds(quick_prediction(plan, problem, calibration), calibration))
    return min(seconds)
