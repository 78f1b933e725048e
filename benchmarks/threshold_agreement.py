"""Compare the thresholds of two tunings of one device: both values, the difference and a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from fmm.config.schema import TAU_NAMES, Interval, Thresholds
from fmm.tuner.findings.summary import interval_text, threshold_text

NAMES = ("alpha", "pi", "n1", *TAU_NAMES)
NEAR = 0.1  # largest relative difference of thresholds that agree


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
    """One threshold of both tunings; None: the plan never pays."""

    name: str
    first: float | None
    second: float | None
    first_interval: Interval | None  # of 95 %; None where none is recorded
    second_interval: Interval | None

    @property
    def difference(self) -> float | None:
        """Return the relative difference from the first; None where only one of them never pays."""
        if self.first is None or self.second is None:
            return 0.0 if self.first == self.second else None
        return self.second / self.first - 1

    @property
    def near(self) -> bool:
        return self.difference is not None and abs(self.difference) <= NEAR

    @property
    def overlapping(self) -> bool:
        """Return True if both intervals overlap. ("Never" is beyond all sides.)"""
        if self.first_interval is None or self.second_interval is None:
            return False
        lows, highs = zip(_ends(self.first_interval), _ends(self.second_interval), strict=True)
        return max(lows) <= min(highs)

    @property
    def agrees(self) -> bool:
        return self.near or self.overlapping

    @property
    def verdict(self) -> str:
        """Return the verdict in words."""
        if self.near:
            return "agree"
        return "agree: the intervals overlap" if self.overlapping else "differ"

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of the JSON record."""
        return {**asdict(self), "difference": self.difference, "agrees": self.agrees}


def _ends(interval: Interval) -> tuple[float, float]:
    low, high = (inf if x is None else x for x in interval)
    return low, high


def compared_thresholds(first: Thresholds | None, second: Thresholds | None) -> tuple[ComparedThreshold, ...]:
    """Return the thresholds of both; nothing if a section has none."""
    if first is None or second is None:
        return ()
    apart = [bool(x.without_emulation) for x in (first, second)]
    # Without a leaf that emulates, tau1 to tau3 are those without emulation.
    alike = [name for name in NAMES if name not in TAU_NAMES or apart[0] == apart[1]]
    own = [_compared(name, first, second) for name in alike]
    return (*own, *(_without_emulation(name, first, second) for name in TAU_NAMES if any(apart)))


def _compared(name: str, first: Thresholds, second: Thresholds) -> ComparedThreshold:
    intervals = first.intervals.get(name), second.intervals.get(name)
    return ComparedThreshold(name, first.value(name), second.value(name), *intervals)


def _without_emulation(name: str, first: Thresholds, second: Thresholds) -> ComparedThreshold:
    """Return a threshold without emulation; only a tuning without emulating leaves records its interval."""
    (one, its), (two, others) = (_value_without_emulation(name, x) for x in (first, second))
    return ComparedThreshold(f"{name} without emulation", one, two, its, others)


def _value_without_emulation(name: str, found: Thresholds) -> tuple[float | None, Interval | None]:
    if found.without_emulation:
        return found.without_emulation.get(name), None
    return found.value(name), found.intervals.get(name)


def agreement_table(compared: Sequence[ComparedThreshold]) -> Table:
    """Return a row for each threshold, with its 95 % intervals."""
    return table_of(("threshold", "first", "second", "difference", "verdict"), map(_row, compared))


def _row(x: ComparedThreshold) -> tuple[str, ...]:
    apart = "" if x.difference is None else f"{x.difference:+.1%}"
    cells = (_cell(x.name, *own) for own in ((x.first, x.first_interval), (x.second, x.second_interval)))
    return x.name, *cells, apart, x.verdict


def _cell(name: str, value: float | None, interval: Interval | None) -> str:
    return " ".join(filter(None, (threshold_text(name, value), interval_text(name, interval))))
