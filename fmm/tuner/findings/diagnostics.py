"""Diagnostics of a tuning: noise, slowdown and model error, and the margin that they require.

A tuning that was cut short, or that ran beside other work, must never be worse than none. So a model that nothing
confirms is rejected, and the error on held-out shapes widens the margin by which a plan must be predicted to win.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import exp, inf, log
from statistics import median

from fmm.config import certify
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import rank_candidates
from fmm.problem import Problem
from fmm.tuner.devices.device import Run, cached_work, formula_seconds
from fmm.tuner.fit.model import Observation, PredictionError
from fmm.tuner.trials.record import Size, Trial

# The stage that times short products, the best of several: their time while the device is quiet. Other work slows long
# products down, which no pair of equal products shows, and slows plans less than the vendor's product: then plans seem
# faster than they are.
QUIET_STAGE = "undisturbed"
SOUND_SLOWDOWN, MAX_SLOWDOWN = 1.25, 1.5  # the fitted model's time over the quiet time: without a margin, and at most
# The deviation from the model that a tenth of the vendor's products may have: 5 to 13 % on an idle device, up to 21 %
# for TF32 on an H200.
MAX_DEVIATION = 0.25
MAX_NOISE_FLOOR = 0.08  # the largest noise floor; 0.2 to 4 % on idle machines
MIN_TWIN_SHARE = 0.01  # twins shorter than this share of the longest do not count: such short products are not tuned
MIN_MARGIN = 0.01  # the least margin
MAX_MODEL_ERROR = 0.2  # the largest model error: a model with a larger one is rejected
MIN_HELD_OUT_PAIRS, UNCHECKED_MARGIN = 5, 0.08  # the least number of held-out pairs, and the margin with fewer
EXTRAPOLATION_FACTOR, EXTRAPOLATION_MARGIN = (
    3,
    0.05,
)  # where plans pay only beyond REACH times the largest measured side, the margin is DISTANT
MIN_ACCEPTED_SPEED = 0.98  # of the vendor's speed: a slower plan was a bad choice
NOISE_MARK = "used the device"  # part of every diagnostic of a noisy tuning, in a config too
OTHER_WORK = f"other work {NOISE_MARK}"


def is_noisy(diagnostics: Iterable[str]) -> bool:
    """Return True if other work disturbed the tuning: its figures are not the device's."""
    return any(NOISE_MARK in diagnostic for diagnostic in diagnostics)


def machine_diagnostics(noise: float | None, slower: float | None, unexplained: float | None) -> Iterator[str]:
    """Yield the diagnostics against all measurements, entries included."""
    if noise is None:
        yield "the tuning ended before the noise was measured"
    elif noise > MAX_NOISE_FLOOR:
        yield f"noise {noise:.0%} between equal products (limit {MAX_NOISE_FLOOR:.0%}): {OTHER_WORK}"
    if slower is not None and slower > MAX_SLOWDOWN:
        yield f"products took {slower:.1f} times their quiet time (limit {MAX_SLOWDOWN:g}): {OTHER_WORK}"
    if unexplained is not None and unexplained > MAX_DEVIATION:
        limit = exp(MAX_DEVIATION)
        yield (
            f"10 % of the vendor's products deviate {exp(unexplained):.1f}x or more from the fit (limit {limit:.2f}x): "
            f"{OTHER_WORK}"
        )


def model_diagnostics(error: PredictionError, losing: float) -> Iterator[str]:
    """Yield the diagnostics against a model: unchecked, or wrong on held-out shapes."""
    if error.count < MIN_HELD_OUT_PAIRS:
        yield f"the tuning ended before its model was checked: {error.count} held-out speedups, {MIN_HELD_OUT_PAIRS} are needed"
    elif (off := max(min(error.above, error.upper), error.median)) > MAX_MODEL_ERROR:
        yield f"model error {off:.0%} on held-out shapes (limit {MAX_MODEL_ERROR:.0%})"
    elif losing > MAX_MODEL_ERROR:
        yield f"plans predicted to save {losing:.0%} are slower than the vendor (limit {MAX_MODEL_ERROR:.0%})"


# ---- the machine


def noise_floor(trials: Iterable[Trial]) -> float | None:
    """Return the largest difference of a pair of twins; None if no pair was measured."""
    return max(twin_differences(trials).values(), default=None)


def twin_differences(trials: Iterable[Trial]) -> dict[Size, float]:
    """Return the relative difference of equal products by size, for sizes that are large enough to matter."""
    pairs: dict[Size, tuple[list[float], list[float]]] = {}
    for t in trials:
        if t.stage == "probe" and t.plan == "vendor" and t.part == "whole" and t.seconds is not None:
            pairs.setdefault(t.size, ([], []))[t.twin].append(t.seconds)
    complete = {size: (a[: len(b)], b[: len(a)]) for size, (a, b) in pairs.items() if a and b}
    longest = max((median(a) for a, _ in complete.values()), default=0.0)
    relevant = {size: pair for size, pair in complete.items() if median(pair[0]) >= MIN_TWIN_SHARE * longest}
    return {size: abs(median(certify.paired_ratios(*pair)) - 1) for size, pair in relevant.items()}


def slowdown_from_quiet(trials: Iterable[Trial], calibration: Calibration, dtype: str) -> float | None:
    """Return the fitted model's time over the quiet time of the largest product timed so; None without one.

    The formula is not meant for smaller products.
    """
    best: dict[Size, float] = {}
    for t in trials:
        if t.stage == QUIET_STAGE and t.seconds:
            best[t.size] = min(best.get(t.size, t.seconds), t.seconds)
    if not best:
        return None
    problem = Problem(*max(best), dtype)
    return formula_seconds(Run(), problem, cached_work(Run().plan, problem), calibration) / best[problem.size]


def upper_decile_deviation(observed: Sequence[Observation], calibration: Calibration) -> float | None:
    """Return the deviation (of logarithms) from the model that 10 % of the vendor's products exceed; None for few.

    Other work that comes and goes hits some sizes and not others.
    """
    off = []
    for o in observed:
        if o.kind == "vendor":
            expected = formula_seconds(o.run, o.problem, cached_work(o.run.plan, o.problem), calibration)
            off.append(abs(log(expected / o.seconds)))
    return sorted(off)[-(len(off) // 10 + 1)] if len(off) >= MIN_HELD_OUT_PAIRS else None


def largest_measured_side(trials: Iterable[Trial]) -> float:
    """Return the side of the cube with as much work as the largest product measured with a plan."""
    sizes = (t.size for t in trials if t.seconds and t.part == "whole" and t.plan != "vendor")
    return float(max((m * k * n for m, k, n in sizes), default=0) ** (1 / 3))


# ---- the margin


def margin_for_error(error: PredictionError) -> float:
    """Return the margin for predictions with this error: only too high a prediction costs time."""
    off = min(error.above, error.upper) if error.count >= MIN_HELD_OUT_PAIRS else UNCHECKED_MARGIN
    return min(max(MIN_MARGIN, off), MAX_MODEL_ERROR)


def margin_for_slowdown(slower: float | None) -> float:
    """Return the saving that a plan seems to have if only the vendor's product was slowed down so much."""
    return max(1 - SOUND_SLOWDOWN / slower, 0.0) if slower else 0.0


def margin_for_losses(calibration: Calibration, held: Sequence[Observation]) -> float:
    """Return the least margin with which no held-out plan that loses time would have been chosen."""
    free = replace(calibration, margin=0.0, tiled_margin=0.0)
    vendor = {o.problem: o.seconds for o in held if o.kind == "vendor"}
    found = 0.0
    for o in held:
        base = vendor.get(o.problem)
        if base is None or o.run == Run() or o.run.part != "whole" or base / o.seconds >= MIN_ACCEPTED_SPEED:
            continue
        for candidate in rank_candidates(o.problem, free, [o.run.plan]):
            found = max(found, 1 - candidate.time - candidate.margin)
    return found


def margin_for_extrapolation(pays: float, measured: float) -> float:
    """Return the margin if plans pay only far beyond the largest side measured with a plan; 0 otherwise."""
    return EXTRAPOLATION_MARGIN if measured * EXTRAPOLATION_FACTOR < pays < inf else 0.0
