"""One tuning, from the first probe to the section of the config: probe, fit, search, certify, conclude.

All that is concluded is a function of the recorded trials, so what was measured before the time was up, or before
Ctrl-C, is worth as much as it can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
from fmm.tuner.device import Device
from fmm.tuner.journal import Journal, Pace, TimeUpError
from fmm.tuner.search import Budget, Found, fits, search
from fmm.tuner.shapes import Effort, Size
from fmm.tuner.trials import Run, Trial

FITTED = ("scale", "probe", "search")  # the stages whose trials the fit may see; never those held out
MARGIN = 0.01  # the least by which a plan must be predicted to win
FRESH = 1  # the seed of the operands on which the search's results are confirmed
SEEDS = {"probe": 5, "held out": 11}  # of random shapes
SHARES = {"probe": 0.15, "held out": 0.2, "search": 0.2, "certify": 0.25}  # of the planned seconds


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
        calibration = fit(journal, dtype, FITTED[:2]).calibration
        problems = [Problem(*size, dtype) for size in wanted or shapes.ladder(side)]
        if not wanted:
            problems = [p for p in problems if promising(journal, p, calibration)]
        noise = noise_floor(journal.recorded)
        for problem in problems:
            share = effort.seconds * journal.device.patience / len(problems)
            found = search(journal, problem, calibration, budget(effort, share * SHARES["search"]))
            confirm(journal, found, Pace(certify.ROUNDS + 1, effort.certify, share * SHARES["certify"]), noise)
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
            seconds = min(desk.rounds([Run()], Pace(3))[Run()], default=0.0)
        found = shapes.largest_side(problem, seconds, journal.device, effort) if seconds else side
        if found <= 4 * side or not seconds:
            return found
        side *= 4  # a fast device: small products do not show how fast


def probe(journal: Journal, dtype: str, side: int, effort: Effort) -> None:
    """Products and sums by size and shape, twins for the noise, and whole plans on shapes of all kinds."""
    device, pace = journal.device, pace_of(journal, effort)
    plans = [p for p in device.candidates() if p != VENDOR]
    for size in shapes.probed(side):
        problem, square = Problem(*size, dtype), len(set(size)) == 1
        runs = [Run()]
        if square:
            parts = ("sums", "products") if device.untuned().batches else ("sums",)
            runs += [Run(VENDOR, "whole", 1)]
            runs += [Run(p, part) for p in plans[:2] for part in parts if fits(device, p, problem)]
        if square and side // 2 <= min(size) < side:
            runs += [Run(p) for p in plans[:2] if fits(device, p, problem)]
        with journal.open("probe", problem) as desk:
            desk.rounds(runs, pace)
    for stage, problem, some in scattered(device, dtype, side, effort):
        with journal.open(stage, problem) as desk:
            desk.rounds([Run(), *(Run(p) for p in some if fits(device, p, problem))], pace)


def scattered(device: Device, dtype: str, side: int, effort: Effort) -> Iterator[tuple[str, Problem, Sequence[Plan]]]:
    """Random shapes: every second one is held out, no fit sees it. In turns, so that drift hits both alike."""
    fitted, held = (shapes.scattered(side, effort, SHARES[stage], seed) for stage, seed in SEEDS.items())
    untuned = _started(device.untuned(), dtype)
    for i, sizes in enumerate(zip(fitted, held, strict=True)):
        for stage, size in zip(SEEDS, sizes, strict=True):
            problem = Problem(*size, dtype)
            plans = [c.plan for c in ranked(problem, untuned, device.candidates()) if c.plan != VENDOR]
            yield stage, problem, plans[:2] if stage == "held out" else [plans[0], plans[1 + i % (len(plans) - 1)]]


def pace_of(journal: Journal, effort: Effort) -> Pace:
    """At least the effort's rounds, more where they cost next to nothing."""
    return Pace(effort.rounds, 4 * effort.rounds, 0.001 * effort.seconds * journal.device.patience)


def promising(journal: Journal, problem: Problem, calibration: Calibration) -> bool:
    """Might a plan win here, as far as the model can tell?"""
    return min(c.time for c in ranked(problem, calibration, journal.device.candidates()) if c.plan != VENDOR) < 1.05


def budget(effort: Effort, seconds: float) -> Budget:
    return Budget(effort.trials, effort.enqueued, effort.rounds, seconds)


def confirm(journal: Journal, found: Found, pace: Pace, noise: float) -> None:
    """The best plans on fresh operands, one after the other until one is certified."""
    base = Run(VENDOR)
    for plan, seen in found.plans[:2]:
        if seen <= 1:
            return
        with journal.open("certify", found.problem, FRESH) as desk:
            samples = desk.rounds([base, Run(plan)], pace)
        if samples[Run(plan)] and certify.certified(samples[base], samples[Run(plan)], noise):
            return


# ---- what the trials show


def fit(journal: Journal, dtype: str, stages: Sequence[str] = FITTED) -> fitting.Fit:
    start = _started(journal.device.untuned(), dtype)
    return fitting.fit(start, dtype, fitting.observations(journal.recorded, stages))


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
    """An entry for every shape that was searched: the first certified plan's, else the vendor's.

    A shape that was left before its best plan was confirmed has none.
    """
    found = []
    for size in dict.fromkeys(t.size for t in trials if t.stage == "search"):
        searched, confirmed = ([t for t in trials if t.stage == s and t.size == size] for s in ("search", "certify"))
        shown = [certify.entry(size, *pairs, noise, "certified") for pairs in paired_samples(confirmed)]
        best = next((e for e in shown if e.plan != "vendor"), None)
        if best is None and not confirmed:
            seen = [certify.entry(size, *pairs, noise, "certified") for pairs in paired_samples(searched)]
            shown = seen if seen and all(e.plan == "vendor" for e in seen) and not _promise(searched) else []
        elif best is None:
            shown = [e for e in shown if e.rounds >= certify.ROUNDS]
        found += [best] if best else shown[-1:]
    return found


RACES = ("search", "certify")  # stages in which every plan has rounds of its own with the vendor, one after the other


def paired_samples(trials: Sequence[Trial]) -> Iterator[tuple[str, list[float], list[float]]]:
    """Each plan with the vendor's seconds and its own, round by round, of one shape's trials in one stage."""
    trials = [t for t in trials if t.part == "whole" and not t.twin]
    vendor = [t.seconds for t in trials if t.plan == "vendor" and t.seconds is not None]
    for plan in dict.fromkeys(t.plan for t in trials if t.plan != "vendor"):
        rounds = [t.seconds for t in trials if t.plan == plan]  # a failure takes a round, the last
        own = [s for s in rounds if s is not None]
        base = vendor[: len(own)]
        if trials[0].stage in RACES:
            vendor = vendor[len(rounds) :]
        if base and len(own) == len(rounds):
            yield plan, base, own[: len(base)]


def one_level(trials: Sequence[Trial]) -> list[tuple[Size, float]]:
    """Shape and best speedup of one-level plans that the fit may see: what the epsilon correction is found from."""
    found: dict[Size, float] = {}
    for stage in FITTED:
        own = [t for t in trials if t.stage == stage]
        for size in dict.fromkeys(t.size for t in own):
            for plan, base, seconds in paired_samples([t for t in own if t.size == size]):
                if Plan.parse(plan).depth == 1:
                    found[size] = max(found.get(size, 0.0), median(certify.ratios(base, seconds)))
    return list(found.items())


def _promise(trials: Sequence[Trial]) -> bool:
    """Did any plan look faster than the vendor?"""
    return any(median(certify.ratios(base, own)) > 1 for _, base, own in paired_samples(trials))


def concluded(journal: Journal, dtype: str) -> dict[str, Any] | None:
    """The section of the config; None if not even the vendor was measured."""
    trials, device = journal.recorded, journal.device
    if not any(o.kind == "vendor" for o in fitting.observations(trials, FITTED)):
        return None
    noise = noise_floor(trials)
    fitted = fit(journal, dtype)
    error = fitting.errors(fitted.calibration, fitting.observations(trials, ("held out",)))
    calibration = replace(fitted.calibration, margin=max(MARGIN, min(error["speedup"].median, 0.2)))
    found = entries(trials, noise)
    section = {
        "versions": dict(device.identity.versions),
        "conditions": {"device": device.identity.name, **device.conditions},
        "tuned": {"at": datetime.now(UTC).isoformat(timespec="seconds"), "seconds": round(journal.elapsed, 1)},
        "calibration": config.spelled(calibration, dtype),
        "intervals": {name: list(ends) for name, ends in fitted.intervals.items()},
        "error": {name: asdict(e) for name, e in error.items()},
        "thresholds": fitting.thresholds(calibration, dtype, one_level(trials)),
        "noise": noise,
        "entries": [asdict(e) for e in found],
    }
    return section
