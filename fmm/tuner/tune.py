"""One tuning, from the first probe to the section of the config: probe, hold out, fit, search, certify, conclude.

All that is concluded is a function of the recorded trials, so what was measured before the time was up, or before
Ctrl-C, is worth as much as it can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any

from fmm import certify, config
from fmm.config import Entry
from fmm.kernels.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration, Rate
from fmm.perfmodel.choose import ranked
from fmm.perfmodel.problem import Problem
from fmm.tuner import fit as fitting
from fmm.tuner import shapes
from fmm.tuner.journal import Journal, TimeUpError
from fmm.tuner.search import Budget, Found, fits, search
from fmm.tuner.shapes import Effort, Size
from fmm.tuner.trials import Run, Trial

FITTED = ("scale", "probe", "search")  # the stages whose trials the fit may see; never those held out
MARGIN = 0.01  # the least by which a plan must be predicted to win
FRESH = 1  # the seed of the operands on which the search's results are confirmed
SHARES = {"held out": 0.2, "search": 0.3}  # of the planned seconds


@dataclass(frozen=True)
class Outcome:
    """The section that was found, None if nothing was; `stopped` says why it is not all that was asked for."""

    section: dict[str, Any] | None
    stopped: str = ""


def tune(journal: Journal, dtype: str, effort: Effort, wanted: Sequence[Size] = ()) -> Outcome:
    """The whole loop; `wanted` are the shapes to certify, the usual ladder if there are none."""
    stopped = ""
    try:
        side = scale(journal, dtype, effort)
        probe(journal, dtype, side, effort)
        calibration = fit(journal, dtype).calibration
        hold_out(journal, dtype, side, effort, calibration)
        problems = [Problem(*size, dtype) for size in wanted or shapes.ladder(side)]
        if not wanted:
            problems = [p for p in problems if promising(journal, p, calibration)]
        noise = noise_floor(journal.recorded)
        for problem in problems:
            found = search(journal, problem, calibration, budget(journal, effort, len(problems)))
            confirm(journal, found, effort.certify, noise)
    except TimeUpError:
        stopped = "the time was up"
    except KeyboardInterrupt:
        stopped = "interrupted"
    return Outcome(concluded(journal, dtype), stopped)


def scale(journal: Journal, dtype: str, effort: Effort) -> int:
    """The largest side that the effort affords, from one product that every device does in no time."""
    side = 1024
    while True:
        problem = Problem(side, side, side, dtype)
        with journal.open("scale", problem) as desk:
            seconds = min(desk.rounds([Run()], 3)[Run()], default=0.0)
        found = shapes.largest_side(problem, seconds, journal.device, effort) if seconds else side
        if found <= 4 * side or not seconds:
            return found
        side *= 4  # a fast device: small products do not show how fast


def probe(journal: Journal, dtype: str, side: int, effort: Effort) -> None:
    """Products and sums by size and shape, a pair of twins for the noise, and whole plans of one to three levels."""
    plans = [p for p in journal.device.candidates() if p != VENDOR]
    few = [plans[0], plans[len(plans) // 2], plans[-1], plans[1]]
    for size in shapes.probed(side):
        problem, square, large = Problem(*size, dtype), len(set(size)) == 1, min(size) >= side // 4
        runs = [Run()]
        if square and large:
            runs.append(Run(VENDOR, "whole", 1))
            runs += [Run(p) for p in few[: 1 if min(size) == side else 2] if fits(journal.device, p, problem)]
        if square:
            runs += [Run(p, "sums") for p in few[:3] if fits(journal.device, p, problem)]
        with journal.open("probe", problem) as desk:
            desk.rounds(runs, effort.rounds if large else 2 * effort.rounds)


def hold_out(journal: Journal, dtype: str, side: int, effort: Effort, calibration: Calibration) -> None:
    """Shapes that no fit sees: the vendor, and the two plans that the model thinks best there."""
    for size in shapes.held_out(side, effort.held_out, SHARES["held out"]):
        problem = Problem(*size, dtype)
        best = [c.plan for c in ranked(problem, calibration, journal.device.candidates()) if c.plan != VENDOR]
        with journal.open("held out", problem) as desk:
            desk.rounds([Run(), *(Run(p) for p in best[:2] if fits(journal.device, p, problem))], effort.rounds)


def promising(journal: Journal, problem: Problem, calibration: Calibration) -> bool:
    """Might a plan win here, as far as the model can tell?"""
    return min(c.time for c in ranked(problem, calibration, journal.device.candidates()) if c.plan != VENDOR) < 1.05


def budget(journal: Journal, effort: Effort, shares: int) -> Budget:
    seconds = SHARES["search"] * effort.seconds * journal.device.patience / max(shares, 1)
    return Budget(effort.trials, effort.enqueued, effort.rounds, max(seconds, 0.1))


def confirm(journal: Journal, found: Found, rounds: int, noise: float) -> None:
    """The best plans on fresh operands, one after the other until one is certified."""
    base = Run(VENDOR)
    for plan, seen in found.plans[:2]:
        if seen <= 1:
            return
        with journal.open("certify", found.problem, FRESH) as desk:
            samples = desk.rounds([base, Run(plan)], rounds)
        if samples[Run(plan)] and certify.certified(samples[base], samples[Run(plan)], noise):
            return


# ---- what the trials show


def fit(journal: Journal, dtype: str) -> fitting.Fit:
    start = _started(journal.device.untuned(), dtype)
    return fitting.fit(start, dtype, fitting.observations(journal.recorded, FITTED))


def _started(calibration: Calibration, dtype: str) -> Calibration:
    """The calibration to begin with, reduced to one type."""
    rates = calibration.rates
    rate = rates.get(dtype) or (next(iter(rates.values())) if rates else Rate(1e12, 1e4, 32.0))
    return replace(calibration, rates={dtype: rate})


def noise_floor(trials: Iterable[Trial]) -> float:
    """The largest median ratio that a pair of twins showed, less one."""
    pairs: dict[Size, tuple[list[float], list[float]]] = {}
    for t in trials:
        if t.stage == "probe" and t.plan == "vendor" and t.part == "whole" and t.seconds is not None:
            pairs.setdefault(t.size, ([], []))[t.twin].append(t.seconds)
    complete = [(a[: len(b)], b[: len(a)]) for a, b in pairs.values() if a and b]
    return max((abs(median(certify.ratios(a, b)) - 1) for a, b in complete), default=0.0)


def entries(trials: Sequence[Trial], noise: float) -> list[Entry]:
    """An entry for every shape that was searched to the end: the first certified plan's, else the vendor's."""
    rounds: dict[Size, dict[str, list[float]]] = {}
    for t in trials:
        if t.stage == "certify" and t.seconds is not None:
            rounds.setdefault(t.size, {}).setdefault(t.plan, []).append(t.seconds)
    found = []
    for size, samples in rounds.items():
        vendor, used = samples.pop("vendor", []), 0
        shown = None
        for plan, seconds in samples.items():
            base = vendor[used : used + len(seconds)]
            used += len(seconds)
            if len(base) == len(seconds) >= 5:
                shown = certify.entry(size, plan, base, seconds, noise, "certified")
                if shown.plan != "vendor":
                    break
        found += [shown] if shown else []
    return found


def concluded(journal: Journal, dtype: str) -> dict[str, Any] | None:
    """The section of the config; None if not even the vendor was measured."""
    trials, device = journal.recorded, journal.device
    if not fitting.observations(trials, FITTED):
        return None
    noise = noise_floor(trials)
    fitted = fit(journal, dtype)
    error = fitting.errors(fitted.calibration, fitting.observations(trials, ("held out",)))
    calibration = replace(fitted.calibration, margin=max(MARGIN, min(error["speedup"].median, 0.2)))
    found = entries(trials, noise)
    gains = [(e.size, e.speedup, Plan.parse(e.plan).depth) for e in found]
    section = {
        "versions": dict(device.identity.versions),
        "conditions": {"device": device.identity.name, **device.conditions},
        "tuned": {"at": datetime.now(UTC).isoformat(timespec="seconds"), "seconds": round(journal.elapsed, 1)},
        "calibration": config.spelled(calibration, dtype),
        "intervals": {name: list(ends) for name, ends in fitted.intervals.items()},
        "error": {name: asdict(e) for name, e in error.items()},
        "thresholds": fitting.thresholds(calibration, dtype, gains),
        "noise": noise,
        "entries": [asdict(e) for e in found],
    }
    return section
