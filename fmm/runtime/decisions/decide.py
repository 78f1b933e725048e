"""Which plan answers a product on a device, if any, and why: step by step down to the vendor, who is always there.

A certified entry of exactly this shape; else the model, with the calibration of the device's config, or with what is
known of it otherwise; else the vendor. Whatever the layouts of a problem, it is looked up by size, type and operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from fmm.config import environment, files
from fmm.config.identity import Identity
from fmm.config.schema import Tuned
from fmm.dtypes import DTYPES
from fmm.kernels.plans.explain import explained_table
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.steps.asked import Asked
from fmm.kernels.plans.workspace import check_products, check_type, workspace
from fmm.perfmodel.calibration import BUILT_IN, Calibration, with_integers, with_unmeasured
from fmm.perfmodel.choose import Candidate, Limits, choose, few_tiles_doubt
from fmm.perfmodel.papers.hasa_rule import hasa_choice
from fmm.perfmodel.predict import quick_prediction
from fmm.perfmodel.stability import bound_in_words, expected_growth
from fmm.perfmodel.work import estimated_workspace
from fmm.problem import Problem
from fmm.runtime.decisions import online
from fmm.runtime.devices import Device
from fmm.runtime.probe import MEASURED

# What a model without a config is called, by the source of its calibration.
STEPS = {BUILT_IN: "built-in model", MEASURED: "probed model"}
# From so many flops on, it is worth a line in the log that the device is not tuned.
WORTH_TUNING = 2 * 2048**3
# On the host integers with a shorter side are NumPy's, who multiplies them in a millisecond or two.
SMALLEST_EXACT_SIDE = 129


@dataclass(frozen=True)
class Decision:
    """What fmm would do with a product, and why. Printing it explains it; matmul takes it as `plan`."""

    plan: Plan
    problem: Problem | None
    reason: str
    considered: tuple[Candidate, ...] = ()
    step: str = "rule"  # what answered: a rule, an entry, a calibrated, probed, built-in or datasheet model
    trial: online.Trial | None = None  # the measurement that a product of this shape takes part in
    kernels: tuple[str, ...] = ()  # what really runs, a line each
    on_cpu: bool = False

    def __getstate__(self) -> dict[str, object]:
        """For other processes: a measurement stays where it is made."""
        return {**vars(self), "trial": None}

    @property
    def workspace(self) -> int:
        """Peak bytes of temporaries."""
        return _workspace(self.plan, self.problem) if self.problem else 0

    @property
    def error_growth(self) -> float:
        """Expected error as a multiple of the vendor's own."""
        return expected_growth(self.plan, self.problem.dtype if self.problem else "float64", self.on_cpu)

    def __str__(self) -> str:
        lines = [f"plan: {self.plan}", f"why: {self.reason}", f"answered by: {self.step}"]
        if self.problem:
            problem = self.problem
            table = explained_table(
                self.plan, *problem.size, problem.itemsize, _asked(problem), problem.dtype if problem.type.exact else ""
            )
            lines += ["", table]
        if self.kernels:
            lines += ["", "runs:", *_counted(self.kernels), ""]
        notes = dict.fromkeys(level.error_note for level in self.plan.levels if level.error_note)
        if self.problem and self.problem.type.exact:
            lines += ["expected error: none, integers are exact"]
        else:
            lines += [", ".join([f"expected error: {self.error_growth:.1f} times the vendor's", *notes])]
            lines += [f"its bound: {bound_in_words(self.plan, self.problem.componentwise)}"] if self.problem else []
        if self.considered:
            lines += ["", "predicted time, the vendor's being 1:"]
            lines += [f"  {c.time:5.2f}  {c.plan}" for c in self.considered]
        return "\n".join(lines)


def _counted(kernels: tuple[str, ...]) -> Iterator[str]:
    """Each line once, in the order in which it first comes: levels repeat what the levels below them do."""
    for line, count in Counter(kernels).items():
        yield f"  {line}" if count == 1 else f"  {count} times: {line}"


def decide(problem: Problem, limits: Limits, device: Device) -> Decision:
    """The choice on a device: a certified entry, else the model's, else the vendor."""
    if environment.tuning_disabled():
        return Decision(VENDOR, problem, "FMM_DISABLE is set")
    if problem.type.exact:
        return _exact_choice(problem, limits, device)
    mode = environment.tuning_mode()
    if mode == "hasa":
        return _by_equation_2(problem, limits, device)
    tuned = None if mode == "off" else files.configs_in_force().tuned(device.identity, problem.dtype)
    # (What was measured was measured of operands of which nothing is kept.)
    entry = certified_entry(problem, limits, tuned, device.threads > 0) if tuned and not problem.kept else None
    if entry is not None:
        return entry
    known = _known_by_tuning(tuned, device) if tuned else None
    if known is None and mode != "off" and problem.flops >= WORTH_TUNING:
        option = "cpu" if device.identity.key.startswith("cpu") else "0"
        said = f"{device.identity.name} is not tuned for {problem.dtype}; run `fmm-tune --device {option}` once"
        if tuned and tuned.doubts:
            said = f"the tuning of {device.identity.name} for {problem.dtype} is not used: {tuned.doubts[0]}"
        environment.log_once(said)
    chosen = model_choice(
        problem, limits, known or untuned_calibration(problem, limits, device), known is not None, device.identity
    )
    return chosen if mode != "online" or problem.halved else _online(chosen, problem, device.identity)


def _exact_choice(problem: Problem, limits: Limits, device: Device) -> Decision:
    """Integers are not tuned: what is known of floating point products on the device says enough."""
    if device.threads and min(problem.size) < SMALLEST_EXACT_SIDE:
        return Decision(VENDOR, problem, f"NumPy answers: a side of integers is shorter than {SMALLEST_EXACT_SIDE}")
    limits = replace(limits, error_growth=max(limits.error_growth, 1.0))  # they are exact, whatever is asked
    known, tuned = _known_of_integers(problem, limits, device)
    return model_choice(problem, limits, known, tuned, device.identity)


def _known_of_integers(problem: Problem, limits: Limits, device: Device) -> tuple[Calibration | None, bool]:
    """What the model knows, and whether of a tuning. A probe is only worth its time if levels are in question: BLAS is
    by far the fastest, whatever it would say."""
    guess = device.guess
    if not device.threads or guess is None:
        return guess, False
    if environment.tuning_mode() != "off":
        tuned = files.configs_in_force().tuned(device.identity, "float64")
        if tuned is not None and tuned.trusted is not None:
            return with_integers(tuned.trusted), True
    known = with_integers(guess)
    if device.probe is None or not choose(without_layouts(problem), known, limits).best.plan.levels:
        return known, False
    return with_integers(device.probe("float64")), False


def _known_by_tuning(tuned: Tuned, device: Device) -> Calibration | None:
    real = DTYPES[tuned.dtype].real
    other = files.configs_in_force().tuned(device.identity, real) if real and tuned.trusted else None
    return tuned_model(tuned, other, None if device.threads else device.guess)


def tuned_model(tuned: Tuned, real: Tuned | None, guess: Calibration | None) -> Calibration | None:
    """A tuned type's calibration, with the rates of leaves that no tuning measures, as a GPU's guess has them; of
    complex numbers, also with the rate of real ones, if they were tuned too: plans may be made of real products."""
    known = tuned.trusted
    if known is not None and guess is not None:
        known = with_unmeasured(known, guess)
    if known is None or real is None or real.trusted is None:
        return known
    return replace(known, rates=MappingProxyType({**real.trusted.rates, **known.rates}))


@lru_cache(maxsize=4096)
def certified_entry(problem: Problem, limits: Limits, tuned: Tuned, on_cpu: bool = False) -> Decision | None:
    """The entry of exactly this shape, if its plan is within the limits.

    A shape may have two: the second one is the best of the plans that need no workspace, for calls that allow none.
    """
    lean = None if limits.workspace else tuned.entry(problem.size, lean=True, op=problem.op)
    found = lean or tuned.entry(problem.size, op=problem.op)
    if found is None:
        return None
    entry, plan = found
    allowed = limits.allow(plan, expected_growth(plan, problem.dtype, on_cpu))
    try:
        check_runnable(plan, problem, on_cpu)
        needed = _workspace(plan, problem)
    except PlanError as error:
        environment.log_once(f"the plan of the tuned shape {problem.size} is not used: {error}")
        return None
    if not allowed or needed > limits.workspace:
        return None
    why = f"measured on this device: {entry.text}"
    return Decision(plan, problem, why, (), f"{entry.origin} entry", on_cpu=on_cpu)


@lru_cache(maxsize=4096)
def model_choice(
    problem: Problem, limits: Limits, known: Calibration | None, tuned: bool, identity: Identity
) -> Decision:
    """The model's choice with this calibration, which may be of a tuning; the vendor without one."""
    if known is None:
        return Decision(VENDOR, problem, f"the vendor answers: {identity.name} is neither tuned nor in the table")
    if problem.dtype not in known.rates:
        return Decision(VENDOR, problem, f"the vendor answers: {identity.name} has no rate for {problem.dtype}")
    choice = choose(without_layouts(problem), known, limits)
    step = "calibrated model" if tuned else STEPS.get(known.source, "datasheet model")
    return Decision(choice.best.plan, problem, choice.reason, choice.considered, step, on_cpu=not known.batches)


def untuned_calibration(problem: Problem, limits: Limits, device: Device) -> Calibration | None:
    """What the model knows of a device that no config tells of; measured now, where a guess proposes a plan."""
    guess = device.guess
    if guess is None or device.probe is None or choose(without_layouts(problem), guess, limits).best.plan == VENDOR:
        return guess
    return device.probe(problem.dtype)


def _by_equation_2(problem: Problem, limits: Limits, device: Device) -> Decision:
    """D'Alberto and Nicolau's rule instead of the model's choice, by a tuning's alpha, pi and epsilon if there is
    one."""
    known = calibration_of(problem, limits, device)
    if known is None or known.known_rate(problem.dtype) is None:
        return Decision(VENDOR, problem, f"the vendor answers: {device.identity.name} has no rate for {problem.dtype}")
    tuned = files.configs_in_force().tuned(device.identity, problem.dtype)
    epsilon = (tuned.thresholds.epsilon or 0.0) if tuned and tuned.thresholds else 0.0
    plan = hasa_choice(without_layouts(problem), known, limits, epsilon)
    why = f"Equation 2 asks for {plan.depth or 'no'} level{'s' * (plan.depth != 1)} of HASA ({known.source})"
    return Decision(plan, problem, why, (), "Equation 2", on_cpu=not known.batches)


def _online(chosen: Decision, problem: Problem, identity: Identity) -> Decision:
    """The first products of a shape are measured in place, the model's choice against the vendor."""
    if chosen.plan == VENDOR or problem.flops < WORTH_TUNING:
        return chosen
    trial = online.shape_trial(without_layouts(problem), identity, chosen.plan)
    if (entry := trial.entry) is None:
        return replace(chosen, problem=problem, step="being measured", trial=trial)
    return replace(chosen, plan=Plan.parse(entry.plan), problem=problem, reason=entry.text, step="measured online")


def faster_as_half(half: Decision, limits: Limits, device: Device) -> bool:
    """Is one half, with its mirror, clearly predicted to be faster than the whole product by the best plan?"""
    problem = half.problem
    assert problem is not None
    whole = Problem(*problem.size, problem.dtype)
    known = calibration_of(problem, limits, device)
    if known is None or problem.dtype not in known.rates or problem.k > MOST_INNER * problem.m:
        return False
    best = decide(whole, limits, device).plan
    seconds = min(quick_prediction(plan, whole, known).seconds for plan in (VENDOR, best))
    margin = known.margin + few_tiles_doubt(problem, known)
    return quick_prediction(half.plan, without_layouts(problem), known).seconds <= (1 - margin) * seconds


# The vendor's product of few rows and a long inner side is cut along that, which the model does not know of its other
# functions: with more than so many times as many columns as rows, whole products stay whole.
MOST_INNER = 16


def calibration_of(problem: Problem, limits: Limits, device: Device) -> Calibration | None:
    """What the model knows of the device: of its tuning, else otherwise."""
    if problem.type.exact:
        return _known_of_integers(problem, limits, device)[0]
    mode = environment.tuning_mode()
    tuned = None if mode == "off" else files.configs_in_force().tuned(device.identity, problem.dtype)
    return (_known_by_tuning(tuned, device) if tuned else None) or untuned_calibration(problem, limits, device)


@lru_cache(maxsize=4096)
def without_layouts(problem: Problem) -> Problem:
    """The same product of matrices that lie row by row: what choices and trials are made and kept for."""
    own = Problem(*problem.size, problem.dtype, op=problem.op, fill=problem.fill)
    if problem.componentwise or problem.kept:
        own = replace(own, componentwise=problem.componentwise, kept=problem.kept)
    return own


def _asked(problem: Problem) -> Asked:
    return Asked(problem.alpha, problem.beta, problem.op, problem.fill)


def _workspace(plan: Plan, problem: Problem) -> int:
    return workspace(plan, *problem.size, problem.itemsize, *_asked(problem))


def check_runnable(plan: Plan, problem: Problem, on_cpu: bool) -> None:
    """PlanError for a plan that a CPU cannot run, or that is too deep for the product."""
    for use in plan.leaf_uses:  # in which order a leaf wants its operands, a CPU's sums need not hear
        if on_cpu and "cpu" not in use.leaf.devices:
            raise PlanError(f"the plan {plan} cannot run here: {use.product} is a product on a GPU")
    check_type(plan, problem.dtype)
    check_products(plan, *problem.size)


def expected_seconds(plans: Collection[Plan], problem: Problem, limits: Limits, device: Device) -> float:
    """How long the model expects the product to take by the best of these plans within the workspace, or by the vendor;
    0 where it knows nothing of the device. (Choosing among all plans would take a thousand times as long.)"""
    known = calibration_of(problem, limits, device)
    if known is None or problem.dtype not in known.rates:
        return 0.0
    found = [quick_prediction(VENDOR, problem, known).seconds]
    for plan in plans:
        with suppress(PlanError):  # it cannot be done at these sides
            if estimated_workspace(plan, problem) <= limits.workspace:
                found.append(quick_prediction(plan, problem, known).seconds)
    return min(found)


# ---- instead of a plan that could not run


def other_plans(problem: Problem, than: Plan, limits: Limits, device: Device) -> Iterator[Plan]:
    """What to try where a plan cannot run on these arrays after all: what else wins within the limits, fastest first.

    By the model, whoever chose the plan: an entry of a config names no others.
    """
    for c in _considered(problem, limits, device):
        allowed = c.wins and limits.allow(c.plan, c.error_growth) and c.fits(limits.workspace)
        if allowed and c.plan not in (than, VENDOR):
            yield c.plan


def leaner_plans(problem: Problem, than: Plan, limits: Limits, device: Device) -> Iterator[Plan]:
    """What to try when memory ran out: the best plan with at most LEANER of the workspace, and so on; none at last."""
    room = _workspace(than, problem)
    while room > 0:
        room = int(room * LEANER)
        found = next(other_plans(problem, than, replace(limits, workspace=room), device), None)
        if found is None:
            return
        yield found
        room = _workspace(found, problem)


def only_choice(vendors: Decision, limits: Limits, device: Device) -> Decision:
    """Where the library has no such product: the fastest plan within the limits, if there is one."""
    problem = vendors.problem
    assert problem is not None
    for c in () if environment.tuning_disabled() else _considered(problem, limits, device):
        if c.plan != VENDOR and limits.allow(c.plan, c.error_growth) and c.fits(limits.workspace):
            return replace(vendors, plan=c.plan, reason="the library has no product of this type")
    return vendors


LEANER = 0.8  # a share that makes a difference where memory is in pieces


def _considered(problem: Problem, limits: Limits, device: Device) -> tuple[Candidate, ...]:
    """What the model considers within the limits, the fastest first."""
    known = calibration_of(problem, limits, device)
    if known is None or problem.dtype not in known.rates:
        return ()
    return choose(without_layouts(problem), known, limits).considered
