"""D'Alberto and Nicolau's Table 3 of this device: alpha, pi, and the recursion point by the model and as measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fmm.config.thresholds import Thresholds, read_thresholds
from fmm.perfmodel.papers.recursion_points import WINOGRAD, recursion_point
from fmm.tuner.findings.described import AGAIN, EARLIER, NEVER
from fmm.tuner.findings.threshold_words import UNDETERMINED, determined_epsilon
from fmm.tuner.report.case import Case

HEAD = (
    "type",
    "1/pi, Gflop/s",
    "1/alpha, million additions/s",
    "alpha / pi, flops",
    "n1 by Equation 3, side",
    "n1 measured, side",
    "epsilon, flops",
    "tau1, tau2, tau3, sides",
)
FACTOR = recursion_point(1.0, WINOGRAD)
ABOUT = (
    f"As in D'Alberto and Nicolau's Table 3, by their Equation 3 n1 = {FACTOR:g} alpha / pi for Winograd's variant "
    "(22 in the paper, for 18 sums and 4 copies): the side from which one level of recursion pays. For the measured "
    "one, plans of one level were timed in turn with the library on squares of rising sides, as on a ladder: it is "
    "the first of these from which on all gained; above n1 as a rule, since Equation 3 knows neither the start of a "
    "product nor that smaller products are slower. epsilon is the least that must be added to alpha / pi so that "
    "Equation 2 says what was measured; it is not determined where nothing need be added, since all products gained by "
    "one level, or none did. tau1, tau2, tau3: the sides from which on the whole model, which knows these too, "
    "predicts a gain of 2 % by one, two, three levels (Li, Ranka and Sahni), however much memory they need: where that "
    "is short, leaner plans with more or fewer levels are taken, also where it says never."
)


def recursion_rows(cases: Sequence[Case]) -> Iterator[tuple[str, ...]]:
    """A row a type, as many cells as HEAD; of thresholds of an earlier fmm what makes new ones of them."""
    for case in cases:
        found = read_thresholds(case.section["thresholds"])
        if found is not None:
            yield case.dtype, *_cells(found)
        elif case.section["thresholds"]:
            yield case.dtype, f"{EARLIER}: {AGAIN}"


def _cells(found: Thresholds) -> tuple[str, ...]:
    n1 = NEVER if found.n1 is None else f"{found.n1:.0f}"
    ratio = "" if found.n1 is None else f"{found.n1 / FACTOR:.0f}"
    known = determined_epsilon(found)
    epsilon = UNDETERMINED if known is None else f"{known:+.0f}"
    taus = ", ".join(NEVER if x is None else f"{x:.0f}" for x in found.recursion_points)
    return f"{1e-9 / found.pi:,.0f}", f"{1e-6 / found.alpha:,.0f}", ratio, n1, measured_point(found), epsilon, taus


def measured_point(found: Thresholds) -> str:
    """The measured recursion point, or on which side of the squares that were timed it lies."""
    if found.n1_measured is not None:
        return f"{found.n1_measured:.0f}"
    if not found.one_level:
        return "not measured"
    sides = [int(side) for side in found.one_level]
    gained = list(found.one_level.values())[-1] > 1
    if len(sides) == 1:
        return f"{'below' if gained else 'above'} {sides[0]}, the only square timed"
    return f"below {min(sides)}, the least that was timed" if gained else f"above {max(sides)}, the largest timed"
