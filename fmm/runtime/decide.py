"""Decisions of the runtime: what answers a product on a device, step by step down to what is always there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fmm.config import environment, files, identity
from fmm.config.identity import Identity
from fmm.config.schema import Tuned
from fmm.dtypes import DTYPES
from fmm.kernels.plans.explain import table
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.workspace import workspace
from fmm.perfmodel.calibration import BUILT_IN, FLOPS_PER_BYTE, Calibration, cpu
from fmm.perfmodel.choose import Candidate, Limits, choose
from fmm.perfmodel.stability import expected_growth
from fmm.problem import Problem
from fmm.runtime import online
from fmm.runtime.probe import MEASURED, measured

# What a model without a config is called, by the source of its calibration.
STEPS = {BUILT_IN: "built-in model", MEASURED: "probed model"}
# From so many flops on, it is worth a line that the device is not tuned.
WORTH_TUNING = 2 * 2048**3


@dataclass(frozen=True)
class Decision:
    """What fmm would do with a product, and why. Printing it explains it; matmul takes it as `plan`."""

    plan: Plan
    problem: Problem | None
    reason: str
    considered: tuple[Candidate, ...] = ()
    step: str = "rule"  # what answered: a rule, an entry, a calibrated, probed, built-in or datasheet model
    trial: online.Trial | None = None  # the measurement that a product of this shape takes part in

    @property
    def workspace(self) -> int:
        """Peak bytes of temporaries."""
        return workspace(self.plan, *self.problem.size, self.problem.itemsize) if self.problem else 0

    @property
    def error_growth(self) -> float:
        """Expected error as a multiple of the vendor's own."""
        return expected_growth(self.plan, self.problem.dtype if self.problem else "float64")

    def __str__(self) -> str:
        lines = [f"plan: {self.plan}", f"why: {self.reason}", f"answered by: {self.step}"]
        if self.problem:
            lines += ["", table(self.plan, *self.problem.size, self.problem.itemsize)]
        lines += [f"expected error: {self.error_growth:.1f} times the vendor's"]
        if self.considered:
            lines += ["", "predicted time, the vendor's being 1:"]
            lines += [f"  {c.time:5.2f}  {c.plan}" for c in self.considered]
        return "\n".join(lines)


def decide(problem: Problem, limits: Limits, threads: int) -> Decision:
    """The choice on this CPU."""
    return answer(problem, limits, identity.cpu(threads), lambda: untuned(problem, limits, threads))


def answer(problem: Problem, limits: Limits, device: Identity, otherwise: Callable[[], Calibration | None]) -> Decision:
    """A certified entry, else the model with the device's calibration or the one `otherwise`, else the vendor."""
    if environment.disabled():
        return Decision(VENDOR, problem, "FMM_DISABLE is set")
    mode = environment.mode()
    tuned = None if mode == "off" else files.configs().tuned(device, problem.dtype)
    if tuned is not None and (entry := certified(problem, limits, tuned)) is not None:
        return entry
    known = tuned.calibration if tuned else None
    if known is None and mode != "off" and problem.flops >= WORTH_TUNING:
        option = "cpu" if device.key.startswith("cpu") else "0"
        environment.once(f"{device.name} is not tuned for {problem.dtype}; run `fmm-tune --device {option}` once")
    chosen = modelled(problem, limits, known or otherwise(), known is not None, device)
    return chosen if mode != "online" else _online(chosen, problem, device)


@lru_cache(maxsize=4096)
def certified(problem: Problem, limits: Limits, tuned: Tuned) -> Decision | None:
    """The entry of exactly this shape, if its plan is within the limits; there may be one for who has no workspace."""
    lean = None if limits.workspace else tuned.entry(problem.size, lean=True)
    found = lean or tuned.entry(problem.size)
    if found is None:
        return None
    entry, plan = found
    if expected_growth(plan, problem.dtype) > limits.error_growth or _workspace(plan, problem) > limits.workspace:
        return None
    return Decision(plan, problem, f"measured on this device: {entry.text}", (), f"{entry.origin} entry")


@lru_cache(maxsize=4096)
def modelled(problem: Problem, limits: Limits, known: Calibration | None, tuned: bool, device: Identity) -> Decision:
    """The model's choice with this calibration, which may be of a tuning; the vendor without one."""
    if known is None:
        return Decision(VENDOR, problem, f"the vendor answers: {device.name} is neither tuned nor in the table")
    if problem.dtype not in known.rates:
        return Decision(VENDOR, problem, f"the vendor answers: {device.name} has no rate for {problem.dtype}")
    choice = choose(problem, known, limits)
    step = "calibrated model" if tuned else STEPS.get(known.source, "datasheet model")
    return Decision(choice.best.plan, problem, choice.reason, choice.considered, step)


def _online(chosen: Decision, problem: Problem, device: Identity) -> Decision:
    """The first products of a shape are measured in place, the model's choice against the vendor."""
    if chosen.plan == VENDOR or problem.flops < WORTH_TUNING:
        return chosen
    trial = online.trial(problem, device, chosen.plan)
    if (entry := trial.entry) is None:
        return Decision(chosen.plan, problem, chosen.reason, chosen.considered, "being measured", trial)
    return Decision(Plan.parse(entry.plan), problem, entry.text, chosen.considered, "measured online")


def _workspace(plan: Plan, problem: Problem) -> int:
    return workspace(plan, *problem.size, problem.itemsize)


@lru_cache(maxsize=64)
def calibration(threads: int) -> Calibration:
    """Of the CPU that this runs on, with so many threads: the built-in one, until a device is tuned."""
    return cpu(threads)


def untuned(problem: Problem, limits: Limits, threads: int) -> Calibration:
    """Without a config: the built-in guess, and where that proposes a plan, rates measured in this process."""
    guessed = calibration(threads)
    if guessed.source == BUILT_IN and choose(problem, guessed, limits).best.plan != VENDOR:
        return measured(threads, problem.dtype)
    return guessed


def _known(problem: Problem, limits: Limits, threads: int) -> Calibration:
    """The calibration by which this CPU's plans are compared."""
    tuned = None if environment.mode() == "off" else files.configs().tuned(identity.cpu(threads), problem.dtype)
    return tuned.calibration if tuned and tuned.calibration else untuned(problem, limits, threads)


def leaner(problem: Problem, than: Plan, limits: Limits, threads: int) -> Iterator[Plan]:
    """What to try when memory ran out: plans with ever less workspace that still win, at last the vendor's."""
    used = workspace(than, *problem.size, problem.itemsize)
    considered = choose(problem, _known(problem, limits, threads), limits).considered
    yield from winning(considered, limits, used)
    if than != VENDOR:
        yield VENDOR


def winning(considered: Sequence[Candidate], limits: Limits, below: int) -> Iterator[Plan]:
    """The fast plans that are predicted to win with a workspace below so many bytes, the hungriest first."""
    rest = [c for c in considered if c.time < 1 and c.error_growth <= limits.error_growth and c.workspace < below]
    yield from (c.plan for c in sorted(rest, key=lambda c: -c.workspace) if c.plan != VENDOR)


def smallest_side() -> int:
    """A side below which no plan can win, whatever the other sides are.

    One level saves an eighth of the m k n multiply-adds, and its sums at least read and write B once, 2 k n elements:
    below 16 times (bytes an element) times (flops a byte) / (flops a multiply-add) for m, that pass alone costs more.
    """
    sides = (16 * DTYPES[t].itemsize * r / DTYPES[t].flops for t, r in FLOPS_PER_BYTE.items())
    return int(min(sides))
