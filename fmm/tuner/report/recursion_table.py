"""D'Alberto and Nicolau's Table 3 of this device: alpha, pi, and the recursion point by the model and as measured; for
the report, with 95 % intervals, and for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from fmm.config.schema import EPSILON, UNDETERMINED_EPSILON, Interval, Raw, Thresholds, read_thresholds
from fmm.perfmodel.papers.recursion_points import WINOGRAD, recursion_point
from fmm.tuner.findings.described import AGAIN, EARLIER, NEVER
from fmm.tuner.findings.diagnostics import is_disturbed
from fmm.tuner.findings.parts import table_of
from fmm.tuner.findings.threshold_words import TOO_DISTURBED, UNDETERMINED, spelled

FACTOR = recursion_point(1.0, WINOGRAD)


@dataclass(frozen=True)
class Column:
    """What stands in it: a threshold as a number that people read."""

    head: str  # in the report
    short: str  # in a terminal
    name: str
    spelled: Callable[[float], str]
    falls: bool = False  # is that number the smaller, the larger the threshold?

    def cell(self, found: Thresholds, intervals: bool) -> str:
        value = found.value(self.name)
        if self.name == "n1_measured":
            told = measured_point(found)
            return told if intervals else told.partition(",")[0]
        if value is None:
            return UNDETERMINED if self.name == "epsilon" else NEVER
        interval = found.intervals.get(self.name) if intervals else None
        return f"{self.spelled(value)} {self._ends(interval)}" if interval else self.spelled(value)

    def _ends(self, interval: Interval) -> str:
        ends = [NEVER if end is None else self.spelled(end) for end in interval]
        return f"[{', '.join(reversed(ends) if self.falls else ends)}]"


def _whole(x: float) -> str:
    return f"{x:.0f}"


COLUMNS = (
    Column("1/pi, Gflop/s", "1/pi", "pi", lambda x: f"{1e-9 / x:,.0f}", falls=True),
    Column("1/alpha, million additions/s", "1/alpha", "alpha", lambda x: f"{1e-6 / x:,.0f}", falls=True),
    Column("alpha / pi, flops", "alpha/pi", "n1", lambda x: f"{x / FACTOR:.0f}"),
    Column("n1 by Equation 3, side", "n1", "n1", _whole),
    Column("n1 measured, side", "n1 measured", "n1_measured", _whole),
    Column("epsilon, flops", "epsilon", "epsilon", partial(spelled, "epsilon")),
    Column("tau1, side", "tau1", "tau1", _whole),
    Column("tau2, side", "tau2", "tau2", _whole),
    Column("tau3, side", "tau3", "tau3", _whole),
)
HEAD = ("type", *(column.head for column in COLUMNS))
ABOUT = (
    f"As in D'Alberto and Nicolau's Table 3, by their Equation 3 n1 = {FACTOR:g} alpha / pi for Winograd's variant "
    "(22 in the paper, for 18 sums and 4 copies): the side from which one level of recursion pays. For the measured "
    "one, plans of one level were timed in turn with the library on squares of rising sides, as on a ladder: it is "
    "the first of these from which on all gained; above n1 as a rule, since Equation 3 knows neither the start of a "
    f"product nor that smaller products are slower. epsilon is {EPSILON}; {UNDETERMINED_EPSILON}. "
    "tau1, tau2, tau3: the sides from which on the whole model, which knows these too, "
    "predicts a gain of 2 % by one, two, three levels (Li, Ranka and Sahni), however much memory they need: where that "
    "is short, leaner plans with more or fewer levels are taken, also where it says never. In brackets: where 95 % of "
    "the models have it that the measurements admit as well; such intervals know nothing of other cards of this kind."
)
# The same in a terminal, whose lines below the table are no longer than this.
ABOVE = "The papers' thresholds, as D'Alberto and Nicolau's Table 3 has them:"
BELOW = (
    "1/pi: Gflop/s of the library's large products. 1/alpha: million additions a second in sums.",
    f"n1 = {FACTOR:g} alpha/pi: by Equation 3 one level pays on squares from that side on; n1 measured: on those",
    "that were timed it did. epsilon: the least to be added to alpha/pi for Equation 2 to say so too.",
    "Up to tau1 no level, up to tau2 one, up to tau3 two, by the whole model (Li, Ranka and Sahni).",
)


def recursion_rows(types: Iterable[tuple[str, Raw]], intervals: bool = True) -> Iterator[tuple[str, ...]]:
    """A row for each type whose section has thresholds, as many cells as HEAD; of those of an earlier fmm what makes
    new ones, of a disturbed tuning that it was one."""
    for dtype, section in types:
        raw = section["thresholds"]
        found = read_thresholds(raw)
        if found is None:
            if raw:
                yield dtype, f"{EARLIER}: {AGAIN}"
        elif is_disturbed(section.get("doubts") or ()):
            yield dtype, TOO_DISTURBED
        else:
            yield dtype, *(column.cell(found, intervals) for column in COLUMNS)


def recursion_lines(types: Iterable[tuple[str, Raw]]) -> Iterator[str]:
    """The same for a terminal; nothing where no type has any that are read."""
    found = list(recursion_rows(types, intervals=False))
    rows = [row for row in found if len(row) == len(HEAD)]
    disturbed = [row[0] for row in found if row[1:] == (TOO_DISTURBED,)]
    if rows:
        yield ABOVE
        head = "type", *(column.short for column in COLUMNS)
        told = [f"{', '.join(disturbed)}: {TOO_DISTURBED}."] if disturbed else []
        yield from (f"  {line}" for line in (*table_of(head, rows).lines, *told, *BELOW))


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
