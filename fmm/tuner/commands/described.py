"""A section of a config in a few lines: what was found, what was not measured, and why something is not used."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from fmm.config import schema

NOT_MEASURED = "not measured"


def described(section: dict[str, Any]) -> Iterator[str]:
    """A section in a few lines."""
    if section["calibration"]:
        rates = section["calibration"]
        yield f"  products at {rates['rate']['flops'] / 1e9:.4g} Gflop/s, sums at {rates['stream'] / 1e9:.4g} GB/s"
        yield f"  {_points(section['thresholds'])}; noise floor {share_or_nothing(section['noise'])}"
        yield f"  {_errors(section['error'])}"
    for doubt in section.get("doubts") or ():
        yield f"  the model is not used: {doubt}"
    for raw in section["entries"]:
        entry = schema.checked_entry(raw, "entry")
        trusted = "" if entry.verified else " (set aside until `fmm-tune canary`)"
        yield f"  {' x '.join(map(str, entry.size))}: {entry.plan}, {entry.text}{trusted}"


def share_or_nothing(value: float | None) -> str:
    """A share in per cent, or that nobody measured it."""
    return NOT_MEASURED if value is None else f"{value:.1%}"


def _points(thresholds: dict[str, Any] | None) -> str:
    first, second, *_ = (thresholds or {}).get("recursion_points") or (0, 0)
    one, two = (f"from about {x:.0f}" if 0 < x < inf else "nowhere" for x in (first, second))
    return f"one level pays {one}, two {two}"


def _errors(error: dict[str, Any] | None) -> str:
    time, speedup = ((error or {}).get(name) or {"count": 0} for name in ("time", "speedup"))
    if not speedup["count"] or not time["count"]:
        return "model not checked: held-out shapes were not measured"
    return (
        f"model on {speedup['count']} held-out pairs: time off by {time['median']:.1%} (95 %: {time['p95']:.1%}), "
        f"speedup by {speedup['median']:.1%}"
    )
