"""Do two tunings of one device find the same thresholds? One beside the other, with the difference and a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from fmm.config.schema import TAU_NAMES, Interval, Thresholds
from fmm.tuner.findings.summary import interval_text, threshold_text

NAMES = ("alpha", "pi", "n1", *TAU_NAMES)
NEAR = 0.1  # of the first one: so far apart two tunings may be


@dataclass(frozen=True)
class Table:
    """Rows of text cells; the first row is the head."""

    rows: tuple[tuple[str, ...], ...]

    @property
    def lines(self) -> Iterator[str]:
        """Yield the rows, aligned by spaces."""
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        for row in self.rows:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def table_of(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table of this head and these rows."""
    return Table((tuple(head), *map(tuple, rows)))


@dataclass(frozen=True)
class ComparedThreshold:
    """One threshold of both tunings; None: it never pays."""

    name: str
    first: float | None
    second: float | None
    first_interval: Interval | None  # of 95 %; None where none is recorded
    second_interval: Interval | None

    @property
    def difference(self) -> float | None:
        """Of the second from the first, as a share of that; None where one of them alone is never."""
        if self.first is None or self.second is None:
            return 0.0 if self.first == self.second else None
        return self.second / self.first - 1

    @property
    def near(self) -> bool:
        return self.difference is not None and abs(self.difference) <= NEAR

    @property
    def overlapping(self) -> bool:
        """Is a value in the intervals of both? (Never is beyond all sides.)"""
        if self.first_interval is None or self.second_interval is None:
            return False
        lows, highs = zip(_ends(self.first_interval), _ends(self.second_interval), strict=True)
        return max(lows) <= min(highs)

    @property
    def agrees(self) -> bool:
        return self.near or self.overlapping

    @property
    def verdict(self) -> str:
        """In words."""
        if self.near:
            return "agree"
        return "agree: the intervals overlap" if self.overlapping else "differ"

    @property
    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "difference": self.difference, "agrees": self.agrees}


def _ends(interval: Interval) -> tuple[float, float]:
    low, high = (inf if x is None else x for x in interval)
    return low, high


def compared_thresholds(first: Thresholds | None, second: Thresholds | None) -> tuple[ComparedThreshold, ...]:
    """Each of both; nothing if a section has none, or those of an earlier fmm."""
    if first is None or second is None:
        return ()
    apart = [bool(x.without_emulation) for x in (first, second)]
    # Of a tuning that measured no leaf which makes products in another type tau1 to tau3 are without these.
    alike = [name for name in NAMES if name not in TAU_NAMES or apart[0] == apart[1]]
    own = [_compared(name, first, second) for name in alike]
    return (*own, *(_without_emulation(name, first, second) for name in TAU_NAMES if any(apart)))


def _compared(name: str, first: Thresholds, second: Thresholds) -> ComparedThreshold:
    intervals = first.intervals.get(name), second.intervals.get(name)
    return ComparedThreshold(name, first.value(name), second.value(name), *intervals)


def _without_emulation(name: str, first: Thresholds, second: Thresholds) -> ComparedThreshold:
    """Where no product is made of products in another type; intervals are recorded of a tuning that knows none."""
    (one, its), (two, others) = (_value_without_emulation(name, x) for x in (first, second))
    return ComparedThreshold(f"{name} without emulation", one, two, its, others)


def _value_without_emulation(name: str, found: Thresholds) -> tuple[float | None, Interval | None]:
    if found.without_emulation:
        return found.without_emulation.get(name), None
    return found.value(name), found.intervals.get(name)


def agreement_table(compared: Sequence[ComparedThreshold]) -> Table:
    """A row for each threshold, with its 95 % intervals."""
    return table_of(("threshold", "first", "second", "difference", "verdict"), map(_row, compared))


def _row(x: ComparedThreshold) -> tuple[str, ...]:
    apart = "" if x.difference is None else f"{x.difference:+.1%}"
    cells = (_cell(x.name, *own) for own in ((x.first, x.first_interval), (x.second, x.second_interval)))
    return x.name, *cells, apart, x.verdict


def _cell(name: str, value: float | None, interval: Interval | None) -> str:
    return " ".join(filter(None, (threshold_text(name, value), interval_text(name, interval))))
