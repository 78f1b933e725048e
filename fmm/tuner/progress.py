"""The progress bar of a tuning: which type and stage, how much is left of what is planned, what was gained so far."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, Protocol

from fmm.config import schema
from fmm.tuner.findings.model_in_use import gains_from

BAR = "{desc} {percentage:3.0f}%|{bar:20}| {postfix}"
SHOWN = 4  # gains, the latest: a line holds no more

Section = dict[str, Any] | None  # of a config


class Progress(Protocol):
    """What is told while types are tuned one after the other."""

    def to_come(self, seconds: float) -> None:
        """So many are planned for all that comes behind the type that begins next."""

    def begin(self, label: str, seconds: float) -> None:
        """A type begins, for which so many seconds are planned."""

    def sample(self, stage: str, elapsed: float) -> None:
        """A sample was taken, so many seconds after the type's beginning."""

    def gained_so_far(self, dtype: str, conclude: Callable[[], Section]) -> None:
        """Something was found of the type that is being tuned: `conclude` says what, which takes a moment."""

    def gained(self, dtype: str, section: Section) -> None:
        """A type has ended, with this section."""


class Silent:
    """For nobody who looks."""

    def to_come(self, seconds: float) -> None: ...

    def begin(self, label: str, seconds: float) -> None: ...

    def sample(self, stage: str, elapsed: float) -> None: ...

    def gained_so_far(self, dtype: str, conclude: Callable[[], Section]) -> None: ...

    def gained(self, dtype: str, section: Section) -> None: ...


class Bar:
    """A line on stderr. `bar` is tqdm's, with the planned seconds of all types as its total."""

    def __init__(self, bar: Any, limit: float = inf) -> None:
        self.bar, self.limit = bar, limit
        self._before = self._planned = 0.0
        self._to_come: float | None = None
        self._label = ""
        self._last = "", 0.0  # stage and seconds
        self._gains: dict[str, str] = {}  # of the types that have ended
        self._so_far: dict[str, str] = {}  # of the one that is being tuned

    def to_come(self, seconds: float) -> None:
        self._to_come = seconds

    def begin(self, label: str, seconds: float) -> None:
        self._before += self._planned
        self._label, self._planned = label, seconds
        if self._to_come is not None:
            self.bar.total = min(self._before + seconds + self._to_come, self.limit)
        self.sample("", 0.0)

    def sample(self, stage: str, elapsed: float) -> None:
        self._last = stage, elapsed
        self.bar.n = self._before + min(elapsed, self._planned)
        self.bar.set_description_str(f"{self._label} {stage}".strip(), refresh=False)
        left = f"about {spelled_seconds(self.bar.total - self.bar.n)} left"
        others = [gain for dtype, gain in self._gains.items() if dtype not in self._so_far]
        gains = ", ".join([*others, *self._so_far.values()][-SHOWN:])
        self.bar.set_postfix_str(f"{left}; gained: {gains}" if gains else left)

    def gained_so_far(self, dtype: str, conclude: Callable[[], Section]) -> None:
        gain = best_gain(conclude(), dtype)
        self._so_far = {dtype: f"{dtype} {gain}"} if gain else {}
        self.sample(*self._last)

    def gained(self, dtype: str, section: Section) -> None:
        self._so_far = {}
        if gain := best_gain(section, dtype):
            self._gains.pop(dtype, None)
            self._gains[dtype] = f"{dtype} {gain}"


def best_gain(section: Section, dtype: str) -> str:
    """The largest certified speedup, with the side of the cube with as much work; where no plan was certified the side
    from which on the model takes plans, if it can be trusted; empty where nothing is gained."""
    won = [e for e in (section or {}).get("entries", ()) if e["plan"] != "vendor"]
    if not won:
        if not section or section.get("doubts") or not section.get("calibration"):
            return ""
        side = gains_from(schema.read_calibration(section["calibration"], "calibration", dtype, "", ""), dtype)
        return f"from {side} on" if side else ""
    best = max(won, key=lambda e: float(e["speedup"]))
    m, k, n = best["size"]
    return f"{best['speedup']:.2f} at {round((m * k * n) ** (1 / 3))}"


def spelled_seconds(seconds: float) -> str:
    """Seconds, or minutes from two on."""
    return f"{max(seconds, 0):.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@contextmanager
def shown_progress(planned: Sequence[float], limit: float | None, shown: bool) -> Iterator[Progress]:
    """A bar for jobs that plan for so many seconds each, if somebody looks."""
    if not shown or not sys.stderr.isatty():
        yield Silent()
        return
    from tqdm import tqdm

    total = min(sum(planned), limit or inf)
    with tqdm(total=total, bar_format=BAR, file=sys.stderr, leave=False) as bar:
        yield Bar(bar, limit or inf)
