"""The thresholds of a tuning under the papers' names, as they stand in a config's section.

    alpha             seconds of adding one element of a block to another: two reads and one write
    pi                seconds of one flop of the vendor's product, both for large blocks (D'Alberto and Nicolau)
    n1                the recursion point: the side of a cube from which one level pays, by their Equation 3 from alpha
                      and pi, and as it was measured
    epsilon           the least that must be added to alpha / pi so that their Equation 2 says what was measured; null
                      where that is not determined, since all that was measured gained by one level, or nothing did
    one_level         what was measured: the best speedup by one level, by the side of the square
    tau1, tau2, tau3  the sides of squares up to which the tuned model takes no level, one, two (Li, Ranka and Sahni)
    without_emulation the same where no product is made of products in another type (FMM_EMULATION=0); only where that
                      is another model
    intervals         of alpha, pi, n1, epsilon, tau1 to tau3: where 95 % of the models have them that the measurements
                      admit as well as the one that was fitted (fmm.tuner.fit.admitted)
    block_strategy    of our own product kernel, by the side of the product (Huang, Yu and van de Geijn)

tau1 to tau3 are of that one model, by how much it has to promise: `low` is where it predicts no loss, `value` where it
predicts a gain of 2 %, as much as is certified; `high` where it predicts as much as its own margin, which is its error
on other shapes, so that fmm.matmul chooses such a plan. How sure `value` is say the intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import isfinite
from typing import Any

from fmm.config.checks import ConfigError, Raw, wrong_value

Interval = tuple[float | None, float | None]  # None: beyond 65536, or nowhere
TAUS = ("tau1", "tau2", "tau3")
SECONDS = ("alpha", "pi")
EPSILON = "the least that must be added to alpha / pi so that D'Alberto and Nicolau's Equation 2 says what was measured"
UNDETERMINED_EPSILON = "it is not determined where all products gained by one level, or none did"


@dataclass(frozen=True)
class Spread:
    """A threshold with the range in which it may lie; None: beyond 65536, or nowhere."""

    value: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.value is None:
            return "never"
        low, high = ("never" if x is None else f"{x:.0f}" for x in (self.low, self.high))
        return f"{self.value:.0f} [{low}, {high}]"


@dataclass(frozen=True)
class Thresholds:
    """All of them; None for what was not measured."""

    alpha: float
    pi: float
    n1: float | None
    n1_measured: float | None
    epsilon: float | None
    tau1: Spread
    tau2: Spread
    tau3: Spread
    block_strategy: Mapping[str, str] = field(default_factory=dict)  # side -> name; empty where there is no such kernel
    # What older configs do not have is empty: side -> speedup; name -> 95 %; tau1 to tau3 -> value.
    one_level: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    without_emulation: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def recursion_points(self) -> tuple[float | None, ...]:
        """From which sides on one, two and three levels are taken."""
        return self.tau1.value, self.tau2.value, self.tau3.value

    @property
    def fields(self) -> dict[str, Raw]:
        """As they stand in a section."""
        return {**asdict(self), "recursion_points": list(self.recursion_points)}

    def value(self, name: str) -> float | None:
        """One of those that are a number, or a spread around one."""
        found = getattr(self, name)
        return found.value if isinstance(found, Spread) else found


def read_thresholds(raw: Raw) -> Thresholds | None:
    """The thresholds of a section; None where there are none, or those of an older fmm, which meant something else."""
    if not isinstance(raw, dict) or not raw.keys() >= REQUIRED or any(threshold_faults(raw, "")):
        return None
    found = Thresholds(**{name: read(raw.get(name)) for name, (_, read) in FIELDS.items()})
    gained = {gain > 1 for gain in found.one_level.values()}
    determined = bool(found.epsilon) or len(gained) == 2 or "epsilon" in found.intervals
    return found if determined else replace(found, epsilon=None)  # older configs have 0


def threshold_faults(raw: Raw, where: str) -> Iterator[ConfigError]:
    """What is damaged, one error a field. Where fields of today lack, they are an older fmm's: nothing is."""
    if raw is not None and not isinstance(raw, dict):
        yield wrong_value(where, "an object", raw)
    if not isinstance(raw, dict) or not raw.keys() >= REQUIRED:
        return
    for name, (what, read) in FIELDS.items():
        try:
            read(raw.get(name))
        except (KeyError, TypeError, ValueError, AttributeError):
            yield wrong_value(f"{where}.{name}", what, raw[name])


def _number(raw: Raw) -> float | None:
    if raw is None:
        return None
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not isfinite(raw):
        raise ValueError("no number")
    return float(raw)


def _positive(raw: Raw) -> float:
    found = _number(raw)
    if found is None or found <= 0:
        raise ValueError("no positive number")
    return found


def _spread(raw: Raw) -> Spread:
    value, low, high = (_number(raw[end]) for end in ("value", "low", "high"))
    return Spread(value, low, high)


def _interval(raw: Raw) -> Interval:
    low, high = map(_number, raw)
    return low, high


def _named(raw: Raw, read: Callable[[Raw], Any]) -> dict[str, Any]:
    """An object with such values; null is an empty one."""
    return {str(name): read(value) for name, value in ({} if raw is None else raw).items()}


def _gains(raw: Raw) -> dict[str, float]:
    return {str(int(side)): gain for side, gain in _named(raw, _positive).items()}


POSITIVE, NUMBER = ("a number above 0", _positive), ("a number or null", _number)
SPREAD = ("an object of value, low and high, each a number or null", _spread)
FIELDS: Mapping[str, tuple[str, Callable[[Raw], Any]]] = {  # what each must be, and how it is read
    **dict.fromkeys(SECONDS, POSITIVE),
    **dict.fromkeys(("n1", "n1_measured", "epsilon"), NUMBER),
    **dict.fromkeys(TAUS, SPREAD),
    "block_strategy": ("an object of names, by sides", partial(_named, read=str)),
    "one_level": ("an object of numbers above 0, by sides", _gains),
    "intervals": ("an object of pairs of numbers or null", partial(_named, read=_interval)),
    "without_emulation": ("an object of numbers or null", partial(_named, read=_number)),
}
REQUIRED = FIELDS.keys() - {"one_level", "intervals", "without_emulation"}  # which older configs do not have
