"""Doubts: what speaks against a tuning, and how much more must be predicted because of it.

A tuning that was cut short, or made beside others' work, is never to be worse than none. So a model that nothing
confirms is set aside, and the runtime does without it; and what the held-out shapes show of its losses widens the
margin by which a plan must be predicted to win.
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
from fmm.tuner.fit.model import Error, Observation
from fmm.tuner.trials.record import Size, Trial

# The stage in which short products are timed, the best of several: what they take when nobody disturbs them. It is what
# the runtime's own probe does. Other work on the machine slows long products down, which no pair of equal products
# tells, and plans less than the vendor's product: then they seem faster than they are.
UNDISTURBED = "undisturbed"
SOUND, DISTURBED = 1.25, 1.5  # times as long as that the fitted model may say they take: at ease, and at most
# By which a tenth of the vendor's products may differ from the model: with nothing beside 5 to 13 %, and up to 21 % of
# TF32's on an H200.
UNEXPLAINED = 0.25
NOISY = 0.08  # the largest noise floor; on idle machines 0.2 to 4 %
RELEVANT = 0.01  # twins shorter than this share of the longest are not asked: such short products are not tuned
# The margin is by what the model promises too much on held-out shapes (`Error.above`), but no more than it is off by
# (`Error.upper`), and at least its median error and MARGIN; a model that is further off than MOST, or that was checked
# on fewer pairs than ENOUGH, is not used, though its margin is written down.
MARGIN, MOST, ENOUGH, UNKNOWN = 0.01, 0.2, 5, 0.08
REACH = 3  # times the largest side that was measured: where plans pay only from there on, they need this margin
DISTANT = 0.05
LOST = 0.98  # of the vendor's speed: a plan that reaches less was a bad choice
OTHERS = "used the device"  # stands in every doubt of a tuning that was made beside others' work


def noise_floor(trials: Iterable[Trial]) -> float | None:
    """The largest median ratio that a pair of twins showed, less one; None if no pair was measured."""
    return max(twin_differences(trials).values(), default=None)


def twin_differences(trials: Iterable[Trial]) -> dict[Size, float]:
    """By how much equal products differ, by their sizes: those that are large enough to matter."""
    pairs: dict[Size, tuple[list[float], list[float]]] = {}
    for t in trials:
        if t.stage == "probe" and t.plan == "vendor" and t.part == "whole" and t.seconds is not None:
            pairs.setdefault(t.size, ([], []))[t.twin].append(t.seconds)
    complete = {size: (a[: len(b)], b[: len(a)]) for size, (a, b) in pairs.items() if a and b}
    longest = max((median(a) for a, _ in complete.values()), default=0.0)
    relevant = {size: pair for size, pair in complete.items() if median(pair[0]) >= RELEVANT * longest}
    return {size: abs(median(certify.paired_ratios(*pair)) - 1) for size, pair in relevant.items()}


def disturbance(trials: Iterable[Trial], calibration: Calibration, dtype: str) -> float | None:
    """How many times as long as undisturbed a product takes by the fitted model; None where nobody measured that.

    The largest of those that were timed: the formula is not made for smaller ones.
    """
    best: dict[Size, float] = {}
    for t in trials:
        if t.stage == UNDISTURBED and t.seconds:
            best[t.size] = min(best.get(t.size, t.seconds), t.seconds)
    if not best:
        return None
    problem = Problem(*max(best), dtype)
    return formula_seconds(Run(), problem, cached_work(Run().plan, problem), calibration) / best[problem.size]


def unexplained_share(observed: Sequence[Observation], calibration: Calibration) -> float | None:
    """By how much a tenth of the vendor's products, or more, took longer or shorter than the fitted model says: other
    work that came and went hits some sizes and not others. None if there are few."""
    off = [abs(log(_expected(o, calibration) / o.seconds)) for o in observed if o.kind == "vendor"]
    return sorted(off)[-(len(off) // 10 + 1)] if len(off) >= ENOUGH else None


def _expected(o: Observation, calibration: Calibration) -> float:
    return formula_seconds(o.run, o.problem, cached_work(o.run.plan, o.problem), calibration)


def largest_pair(trials: Iterable[Trial]) -> float:
    """The side of the cube with as much work as the largest product that was measured by a plan."""
    sizes = (t.size for t in trials if t.seconds and t.part == "whole" and t.plan != "vendor")
    return float(max((m * k * n for m, k, n in sizes), default=0) ** (1 / 3))


def promised_margin(error: Error) -> float:
    """The margin by which a plan must be predicted to win, where predictions are off by this much: what they promise
    too much. What they promise too little needs none: it loses plans, not time."""
    off = min(error.above, error.upper) if error.count >= ENOUGH else UNKNOWN
    return min(max(MARGIN, off), MOST)


def disturbed_margin(disturbed: float | None) -> float:
    """What a plan may seem to save where only the vendor's product was slowed down so much."""
    return max(1 - SOUND / disturbed, 0.0) if disturbed else 0.0


def losing_margin(calibration: Calibration, held: Sequence[Observation]) -> float:
    """The least margin with which none of the held-out plans that lose time would have been chosen."""
    free = replace(calibration, margin=0.0, tiled_margin=0.0)
    vendor = {o.problem: o.seconds for o in held if o.kind == "vendor"}
    found = 0.0
    for o in held:
        base = vendor.get(o.problem)
        if base is None or o.run == Run() or o.run.part != "whole" or base / o.seconds >= LOST:
            continue
        for candidate in rank_candidates(o.problem, free, [o.run.plan]):
            found = max(found, 1 - candidate.time - candidate.margin)
    return found


def machine_doubts(noise: float | None, disturbed: float | None, unexplained: float | None) -> Iterator[str]:
    """What speaks against all that was measured, entries too."""
    if noise is None:
        yield "the tuning ended before the noise was measured"
    elif noise > NOISY:
        yield f"the same product, timed twice, differed by {noise:.0%}: something else {OTHERS}"
    if disturbed is not None and disturbed > DISTURBED:
        yield f"products took {disturbed:.1f} times as long as at the quietest moment: something else {OTHERS}"
    if unexplained is not None and unexplained > UNEXPLAINED:
        yield (
            f"one in ten of the library's products was at least {exp(unexplained):.1f} times slower, or faster, than "
            f"the others let expect: others {OTHERS} too"
        )


def is_disturbed(doubts: Iterable[str]) -> bool:
    """Is a tuning doubted since others' work was measured with it? Then its figures are not the device's."""
    return any(OTHERS in doubt for doubt in doubts)


def distant_margin(pays: float, measured: float) -> float:
    """More where the model chooses plans only from a side on that is far above the largest with a plan measured."""
    return DISTANT if measured * REACH < pays < inf else 0.0


def model_doubts(error: Error, losing: float) -> Iterator[str]:
    """What speaks against the model: it was not checked, or is wrong."""
    if error.count < ENOUGH:
        made = error.count or "none"
        yield f"the tuning ended too early to check its model: {ENOUGH} plans on other shapes are needed, it has {made}"
    elif (off := max(min(error.above, error.upper), error.median)) > MOST:
        yield f"the model is off by up to {off:.0%} on other shapes"
    elif losing > MOST:
        yield f"plans that the model expects to save {losing:.0%} are slower than the vendor"
