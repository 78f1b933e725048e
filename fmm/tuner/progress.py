"""The progress bar of a tuning: the element type, the stage, the remaining time and the speedups so far."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, Protocol

from fmm.config import schema
from fmm.tuner.findings.model_in_use import first_gaining_side

BAR_FORMAT = "{desc} {percentage:3.0f}%|{bar:20}| {postfix}"
SHOWN_SPEEDUP_COUNT = 4  # number of the latest speedups that the bar shows

OptionalSection = dict[str, Any] | None  # a config section; None if too little was measured


class TuningProgress(Protocol):
    """Receives the events of a tuning: ProgressBar shows the events, SilentProgress ignores them."""

    def set_remaining_seconds(self, seconds: float) -> None:
        """Set the planned seconds of the tunings that remain after the next element type."""

    def begin_element_type(self, label: str, seconds: float) -> None:
        """Show that the tuning of an element type begins; `seconds` is its planned time."""

    def show_sample(self, stage: str, elapsed: float) -> None:
        """Show the stage of a sample that was taken `elapsed` seconds after the tuning of the element type began."""

    def show_speedup_so_far(self, dtype: str, conclude_section: Callable[[], OptionalSection]) -> None:
        """Show the speedup so far of an element type; `conclude_section` returns its present config section."""

    def end_element_type(self, dtype: str, section: OptionalSection) -> None:
        """Show that the tuning of an element type has ended; `section` is its config section."""


class SilentProgress:
    """Ignores all events of a tuning, for example if stderr is no terminal."""

    def set_remaining_seconds(self, seconds: float) -> None: ...

    def begin_element_type(self, label: str, seconds: float) -> None: ...

    def show_sample(self, stage: str, elapsed: float) -> None: ...

    def show_speedup_so_far(self, dtype: str, conclude_section: Callable[[], OptionalSection]) -> None: ...

    def end_element_type(self, dtype: str, section: OptionalSection) -> None: ...


class ProgressBar:
    """A progress bar on stderr; `bar` is a tqdm bar with the planned seconds of all element types as its total."""

    def __init__(self, bar: Any, limit: float = inf) -> None:
        self.bar, self.limit = bar, limit
        self._before = self._planned = 0.0
        self._to_come: float | None = None
        self._label = ""
        self._last = "", 0.0  # stage of the latest sample, and seconds from the start of its element type
        self._gain_lines: dict[str, str] = {}  # element type -> text of its speedup, for types with a finished tuning
        self._so_far: dict[str, str] = {}  # element type -> text of its speedup, only for the type that is being tuned

    def set_remaining_seconds(self, seconds: float) -> None:
        self._to_come = seconds

    def begin_element_type(self, label: str, seconds: float) -> None:
        self._before += self._planned
        self._label, self._planned = label, seconds
        if self._to_come is not None:
            self.bar.total = min(self._before + seconds + self._to_come, self.limit)
        self.show_sample("", 0.0)

    def show_sample(self, stage: str, elapsed: float) -> None:
        self._last = stage, elapsed
        # tqdm warns if n exceeds the total, which --time-limit may make smaller than the planned seconds
        self.bar.n = min(self._before + min(elapsed, self._planned), self.bar.total)
        self.bar.set_description_str(f"{self._label} {stage}".strip(), refresh=False)
        left = f"about {duration_text(self.bar.total - self.bar.n)} left"
        others = [gain for dtype, gain in self._gain_lines.items() if dtype not in self._so_far]
        gains = ", ".join([*others, *self._so_far.values()][-SHOWN_SPEEDUP_COUNT:])
        self.bar.set_postfix_str(f"{left}; speedup: {gains}" if gains else left)

    def show_speedup_so_far(self, dtype: str, conclude_section: Callable[[], OptionalSection]) -> None:
        gain = best_speedup_text(conclude_section(), dtype)
        self._so_far = {dtype: f"{dtype} {gain}"} if gain else {}
        self.show_sample(*self._last)

    def end_element_type(self, dtype: str, section: OptionalSection) -> None:
        self._so_far = {}
        if gain := best_speedup_text(section, dtype):
            self._gain_lines.pop(dtype, None)
            self._gain_lines[dtype] = f"{dtype} {gain}"


def best_speedup_text(section: OptionalSection, dtype: str) -> str:
    """Return as text the largest certified speedup with its side, or the first side with a predicted gain, or ""."""
    won = [e for e in (section or {}).get("entries", ()) if e["plan"] != "vendor"]
    if not won:
        if not section or section.get("doubts") or not section.get("calibration"):
            return ""
        side = first_gaining_side(schema.read_calibration(section["calibration"], "calibration", dtype, "", ""), dtype)
        return f"from {side}" if side else ""
    best = max(won, key=lambda e: float(e["speedup"]))
    m, k, n = best["size"]
    return f"{best['speedup']:.2f} at {round((m * k * n) ** (1 / 3))}"


def duration_text(seconds: float) -> str:
    """Return a duration as text: below two minutes in seconds, otherwise in minutes."""
    return f"{max(seconds, 0):.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@contextmanager
def open_progress(planned: Sequence[float], limit: float | None, shown: bool) -> Iterator[TuningProgress]:
    """Yield a progress bar for jobs with these planned seconds; without a terminal, an object that shows nothing."""
    if not shown or not sys.stderr.isatty():
        yield SilentProgress()
        return
    from tqdm import tqdm

    total = min(sum(planned), limit or inf)
    with tqdm(total=total, bar_format=BAR_FORMAT, file=sys.stderr, leave=False) as bar:
        yield ProgressBar(bar, limit or inf)
