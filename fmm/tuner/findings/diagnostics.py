"""Diagnose a tuning: compute its noise, slowdown and model error, and the margin for decisions.

The aim is that fmm.matmul is not slower with an interrupted or noisy tuning than without a tuning. A model is rejected
if too few held-out shapes were measured to check its predictions. The margin is the model's error on held-out shapes: a
plan is chosen if its predicted gain exceeds the margin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import exp, inf, log
from statistics import median

from fmm.config import certification
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import rank_candidates
from fmm.problem import Problem
from fmm.tuner.devices.device import TimedRun, cached_plan_work, predicted_run_seconds
from fmm.tuner.fit.model import Observation, PredictionError
from fmm.tuner.trials.record import ProductSize, Trial

# Name of the quiet stage, which records the shortest of many samples of short products as the time on an idle device.
# If other programs run without a pause, long products always take longer, but both products of an A/A pair take equally
# longer. Other programs slow the vendor's product more than plans, so that plans seem faster than they are.
QUIET_STAGE = "undisturbed"
# Two limits of the slowdown: the time of a product by the fitted model, divided by its time on the idle device. A
# slowdown above TOLERATED_SLOWDOWN raises the margin. For a slowdown above MAX_SLOWDOWN, the tuning is rejected.
TOLERATED_SLOWDOWN, MAX_SLOWDOWN = 1.25, 1.5
# The largest upper decile of |log(predicted / measured)| of the vendor's products with which a tuning is not rejected.
# On idle devices, the upper decile of |log(predicted / measured)| is 0.05 to 0.13, and 0.21 for TF32 on an H200.
MAX_VENDOR_DEVIATION = 0.25
# largest noise floor (a relative difference of times) of a valid tuning; idle machines have 0.002 to 0.04
MAX_NOISE_FLOOR = 0.08
# an A/A pair is ignored if its product takes less than this fraction of the time of the longest A/A pair's product
MIN_AA_PAIR_SHARE = 0.01
MIN_MARGIN = 0.01  # smallest margin of any tuning
MAX_MODEL_ERROR = 0.2  # largest relative error of predicted speedups with which a model is not rejected
MIN_HELD_OUT_PAIRS = 5  # smallest number of held-out speedups with which a model is not rejected
UNCHECKED_MARGIN = 0.08  # margin of a model with fewer than MIN_HELD_OUT_PAIRS held-out speedups
# The smallest margin of plans with fmm's own leaves, if some held-out plan has a leaf with a separate rate in the
# calibration. An error of the vendor's predicted time cancels in a predicted speedup only if the plan's leaf is also
# the vendor's product. The model predicts times of the vendor's product that are too long: in three float64 tunings by
# at least 4.5 to 6 % for one product in ten, and by at least 6 to 8 % for one product in twenty. With margins of 2.7
# and 5.5 % instead of 8 %, the models of two H200 tunings choose plans below 0.98 of the vendor's speed for 32 instead
# of 18 of 529 recorded float64 shapes.
MIN_OWN_RATE_MARGIN = 0.08
# The margin is at least EXTRAPOLATION_MARGIN if every side on which plans are predicted to gain exceeds
# EXTRAPOLATION_FACTOR times the largest side on which a plan was timed.
EXTRAPOLATION_MARGIN, EXTRAPOLATION_FACTOR = 0.05, 3
# the margins are raised until the model chooses no plan with a measured speedup below this number
MIN_ACCEPTED_SPEEDUP = 0.98
# A plan wins if its predicted gain equals the margin. The margin that excludes a plan is larger than the plan's gain by
# EXCLUSION_SURPLUS, a fraction of the vendor's time.
EXCLUSION_SURPLUS = 1e-6
NOISE_PHRASE = "used the device"  # every diagnostic of a noisy tuning contains this phrase, in old configs too
OTHER_WORK_PHRASE = f"other work {NOISE_PHRASE}"


def is_noisy_tuning(diagnostics: Iterable[str]) -> bool:
    """Return True if a diagnostic says that other work used the device during the tuning."""
    return any(NOISE_PHRASE in diagnostic for diagnostic in diagnostics)


def machine_diagnostics(noise: float | None, slower: float | None, unexplained: float | None) -> Iterator[str]:
    """Yield the reasons to reject all measurements of a tuning, including its certified entries."""
    if noise is None:
        yield "the tuning ended before the noise was measured"
    elif noise > MAX_NOISE_FLOOR:
        yield f"noise {noise:.0%} between equal products (limit {MAX_NOISE_FLOOR:.0%}): {OTHER_WORK_PHRASE}"
    if slower is not None and slower > MAX_SLOWDOWN:
        yield f"products took {slower:.1f} times their quiet time (limit {MAX_SLOWDOWN:g}): {OTHER_WORK_PHRASE}"
    if unexplained is not None and unexplained > MAX_VENDOR_DEVIATION:
        limit = exp(MAX_VENDOR_DEVIATION)
        yield (
            f"10 % of the vendor's products deviate {exp(unexplained):.1f}x or more from the fit (limit {limit:.2f}x): "
            f"{OTHER_WORK_PHRASE}"
        )


def model_diagnostics(error: PredictionError, losing: float, excluded: int = 0) -> Iterator[str]:
    """Yield the reasons to reject a model: too few held-out speedups, or too large errors of their predictions.

    `excluded` is the number of held-out plans with more levels than the measured crossovers allow. Held-out plans with
    more levels than the measured crossovers allow are never chosen, so they count as held-out speedups without an
    error.
    """
    if error.count + excluded < MIN_HELD_OUT_PAIRS:
        counts = f"{error.count} held-out speedups, {MIN_HELD_OUT_PAIRS} are needed"
        yield f"the tuning ended before its model was checked: {counts}"
    elif (model_error := max(min(error.above, error.upper), error.median)) > MAX_MODEL_ERROR:
        yield f"model error {model_error:.0%} on held-out shapes (limit {MAX_MODEL_ERROR:.0%})"
    elif losing > MAX_MODEL_ERROR:
        yield f"plans predicted to save {losing:.0%} are slower than the vendor (limit {MAX_MODEL_ERROR:.0%})"


# ---- noise and slowdown of the machine


def noise_floor(trials: Iterable[Trial]) -> float | None:
    """Return the largest relative time difference of the A/A pairs; None if there is no A/A pair."""
    return max(aa_pair_differences(trials).values(), default=None)


def aa_pair_differences(trials: Iterable[Trial]) -> dict[ProductSize, float]:
    """Return the relative time difference of each A/A pair, by size.

    An A/A pair is one product that is timed under two names. A/A pairs of very short products are left out.
    """
    pairs: dict[ProductSize, tuple[list[float], list[float]]] = {}
    for t in trials:
        if t.stage == "probe" and t.plan == "vendor" and t.part == "whole" and t.seconds is not None:
            pairs.setdefault(t.size, ([], []))[t.twin].append(t.seconds)
    complete = {size: (a[: len(b)], b[: len(a)]) for size, (a, b) in pairs.items() if a and b}
    longest = max((median(a) for a, _ in complete.values()), default=0.0)
    relevant = {size: pair for size, pair in complete.items() if median(pair[0]) >= MIN_AA_PAIR_SHARE * longest}
    return {size: abs(median(certification.paired_ratios(*pair)) - 1) for size, pair in relevant.items()}


def slowdown_by_other_work(trials: Iterable[Trial], calibration: Calibration, dtype: str) -> float | None:
    """Return how much other work slowed the tuning down: (fitted time of a product) / (its time in the quiet stage).

    The product is the largest product of the quiet stage, since times of smaller products are not predicted accurately.
    Return None if the quiet stage was not measured.
    """
    best: dict[ProductSize, float] = {}
    for t in trials:
        if t.stage == QUIET_STAGE and t.seconds:
            best[t.size] = min(best.get(t.size, t.seconds), t.seconds)
    if not best:
        return None
    problem = Problem(*max(best), dtype)
    return (
        predicted_run_seconds(TimedRun(), problem, cached_plan_work(TimedRun().plan, problem), calibration)
        / best[problem.size]
    )


def upper_decile_of_vendor_errors(observed: Sequence[Observation], calibration: Calibration) -> float | None:
    """Return the upper decile of |log(predicted / measured)| of the vendor's products; None for fewer than 5 products.

    If other work runs from time to time, it slows down only some sizes, and the upper decile rises.
    """
    deviations = []
    for o in observed:
        if o.run_kind == "vendor":
            deviations.append(abs(log(o.predicted_seconds(calibration) / o.seconds)))
    return sorted(deviations)[-(len(deviations) // 10 + 1)] if len(deviations) >= MIN_HELD_OUT_PAIRS else None


def largest_measured_side(trials: Iterable[Trial]) -> float:
    """Return the side (m k n)^(1/3) of the largest product that was timed with a plan other than `vendor`."""
    sizes = (t.size for t in trials if t.seconds and t.part == "whole" and t.plan != "vendor")
    return float(max((m * k * n for m, k, n in sizes), default=0) ** (1 / 3))


# ---- the margin


def margin_for_error(error: PredictionError) -> float:
    """Return the margin that a model with these errors needs; only errors of too large predicted speedups count."""
    model_error = min(error.above, error.upper) if error.count >= MIN_HELD_OUT_PAIRS else UNCHECKED_MARGIN
    return min(max(MIN_MARGIN, model_error), MAX_MODEL_ERROR)


def margin_for_slowdown(slower: float | None) -> float:
    """Return the fraction of time that a plan only seems to save because other work slows down the vendor's product."""
    return max(1 - TOLERATED_SLOWDOWN / slower, 0.0) if slower else 0.0


def margin_for_losses(calibration: Calibration, held: Sequence[Observation]) -> float:
    """Return the smallest margin with which the model chooses no held-out plan that is slower than the vendor."""
    free = replace(calibration, margin=0.0, tiled_margin=0.0)
    vendor = {o.problem: o.seconds for o in held if o.run_kind == "vendor"}
    found = 0.0
    for o in held:
        base = vendor.get(o.problem)
        if base is None or o.run == TimedRun() or o.run.part != "whole" or base / o.seconds >= MIN_ACCEPTED_SPEEDUP:
            continue
        for candidate in rank_candidates(o.problem, free, [o.run.plan]):
            found = max(found, margin_excluding_plan(candidate.time, candidate.margin))
    return found


def margin_excluding_plan(time: float, shape_margin: float) -> float:
    """Return the smallest margin of a calibration with which a plan does not win; 0 if the plan is predicted to lose.

    `time` is the plan's predicted time divided by the vendor's, and `shape_margin` is the additional margin for the
    problem's shape.
    """
    gain = 1 - time - shape_margin
    return gain + EXCLUSION_SURPLUS if gain >= 0 else 0.0


def margin_for_extrapolation(pays: float, measured: float) -> float:
    """Return EXTRAPOLATION_MARGIN if plans gain only on sides far above all sides timed with plans, else 0."""
    return EXTRAPOLATION_MARGIN if measured * EXTRAPOLATION_FACTOR < pays < inf else 0.0
