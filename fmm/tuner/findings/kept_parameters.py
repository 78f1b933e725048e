"""The model's parameters that a tuning's samples do not determine: which of them are as some source has them, and the
value there; of the others no number is told, since none was found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fmm.dtypes import DTYPES
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.default_calibration import cpu_calibration
from fmm.tuner.findings.parameter_words import spelled, unit_of
from fmm.tuner.findings.parts import Part
from fmm.tuner.fit.parameters import OWN_TILES, PARAMETERS, STRIDED, Parameter, exists_on, is_determined

NEUTRAL, BUILT_IN, NOBODYS = "neutral", "built in", "not determined"
SUMS_RATE = "rate.memory"  # 0: the rate of the sums


@dataclass(frozen=True)
class Kept:
    """A parameter that was not fitted, its value, and whose value that is."""

    name: str
    value: float
    source: str

    def __str__(self) -> str:
        if self.source == NOBODYS:
            return self.name
        if self.name == SUMS_RATE and not self.value:
            return f"{self.name} that of the sums"
        (text,), unit = spelled(unit_of(self.name), self.value)
        return f"{self.name} {text} {unit}".rstrip()


def described_kept(
    intervals: Mapping[str, Any], fitted: Calibration, dtype: str, guess: Calibration | None
) -> Part | None:
    """All of them in a sentence, by whose values they are; None if there are none."""
    groups: dict[str, list[str]] = {}
    for kept in kept_parameters(intervals, fitted, dtype, guess):
        groups.setdefault(kept.source, []).append(str(kept))
    if not groups:
        return None
    others = groups.pop(NOBODYS, [])
    told = [f"{', '.join(names)} ({source})" for source, names in groups.items()]
    told += [f"{', '.join(others)} ({NOBODYS}: left at what the fit began with)"] * bool(others)
    return "kept", f"Not determined by these samples, so not fitted: {'; '.join(told)}."


def kept_parameters(
    intervals: Mapping[str, Any], fitted: Calibration, dtype: str, guess: Calibration | None
) -> Iterator[Kept]:
    """Those without an interval that determines them and that mean something for this type on this device; none of a
    model that was not fitted.

    `guess`: what the datasheet says of a GPU.
    """
    known = {name for name, ends in intervals.items() if is_determined(name, *ends)}
    for p in PARAMETERS if intervals else ():
        if p.name not in known and exists_on(p, fitted) and _matters(p, fitted, dtype):
            value = p.get(fitted, dtype)
            yield Kept(p.name, value, _source(p, value, dtype, guess, fitted.batches))


def _matters(p: Parameter, fitted: Calibration, dtype: str) -> bool:
    """Was our own kernel measured, if the parameter is of that? Are numbers complex, if it is of their parts?"""
    if p.informed_by & OWN_TILES:
        return fitted.rate(dtype).tiled > 0
    return p.name not in STRIDED or DTYPES[dtype].is_complex


def _source(p: Parameter, value: float, dtype: str, guess: Calibration | None, gpu: bool) -> str:
    """Whose value it is; `gpu`: of a processor what is built in takes the datasheet's place."""
    if value == p.neutral:
        return NEUTRAL
    known = guess if gpu else cpu_calibration(1)  # whose rates alone depend on the threads
    with suppress(ValueError):  # no rate of this type
        if known is not None and p.get(known, dtype) == value:
            return f"datasheet of the {known.name}" if gpu else BUILT_IN
    return NOBODYS
