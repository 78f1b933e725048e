"""A section of a config in a few lines: what was found, what was not measured, and why something is not used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fmm.config import schema
from fmm.config.thresholds import Thresholds, read_thresholds
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, choose, usual_growth
from fmm.problem import Problem

NOT_MEASURED = "not measured"


SIDES = tuple(round(2 ** (i / 2)) for i in range(16, 33))  # of squares, from 256 to 65536
SHOWN = (2048, 4096, 8192, 16384, 32768)


def described(section: dict[str, Any], dtype: str) -> Iterator[str]:
    """A section in a few lines: first what it means to those who multiply."""
    if section["calibration"]:
        if not section.get("doubts"):
            known = schema.checked_calibration(section["calibration"], "calibration", dtype, "", "")
            yield f"  {meaning(known, dtype)}"
        rates = section["calibration"]
        yield f"  products at {rates['rate']['flops'] / 1e9:.4g} Gflop/s, sums at {rates['stream'] / 1e9:.4g} GB/s"
        yield from described_thresholds(read_thresholds(section["thresholds"]))
        yield from _blocks(section.get("blocks"))
        yield f"  noise floor {share_or_nothing(section['noise'])}"
        yield f"  {_errors(section['error'])}"
    for doubt in section.get("doubts") or ():
        yield f"  the model is not used: {doubt}"
    for raw in section["entries"]:
        entry = schema.checked_entry(raw, "entry")
        trusted = "" if entry.verified else " (set aside until `fmm-tune canary`)"
        yield f"  {' x '.join(map(str, entry.size))}: {entry.plan}, {entry.text}{trusted}"


def meaning(calibration: Calibration, dtype: str) -> str:
    """From which side on squares are not left to the vendor, and what the model promises, however much workspace that
    takes."""
    limits = Limits(1 << 62, usual_growth(calibration.batches))

    def gain(side: int) -> float:
        best = choose(Problem(side, side, side, dtype), calibration, limits).best
        return 1.0 if best.plan == VENDOR else 1 / best.time

    first = next((side for side in SIDES if gain(side) > 1), None)
    if first is None:
        return "fmm.matmul leaves all squares to the vendor's product: no plan is predicted to be faster"
    gains = ", ".join(f"{gain(side):.2f} at {side}" for side in SHOWN if side >= first)
    return f"fmm.matmul gains on squares from a side of about {first} on; predicted times as fast: {gains}"


def share_or_nothing(value: float | None) -> str:
    """A share in per cent, or that nobody measured it."""
    return NOT_MEASURED if value is None else f"{value:.1%}"


def described_thresholds(found: Thresholds | None) -> Iterator[str]:
    """As in D'Alberto and Nicolau's Table 3, the model's recursion point beside the measured one; then the sides from
    which plans are taken, and the tiles of our own product kernel."""
    if found is None:
        return
    ends = [NOT_MEASURED if x is None else f"{x:.0f}" for x in (found.n1, found.n1_measured)]
    epsilon = "" if found.epsilon is None else f", epsilon {found.epsilon:+.0f}"
    rates = f"alpha {found.alpha:.3g} s an element, pi {found.pi:.3g} s a flop"
    yield f"  {rates}: n1 {ends[0]}, measured {ends[1]}{epsilon}"
    yield f"  one level from tau1 {found.tau1}, two from tau2 {found.tau2}, three from tau3 {found.tau3}"
    if found.block_strategy:
        yield f"  block strategy: {', '.join(f'{name} at {side}' for side, name in found.block_strategy.items())}"


def _blocks(found: dict[str, Any] | None) -> Iterator[str]:
    if found:
        terms = "fitted to this device" if found["fitted"] else "as built in"
        yield f"  block model on {found['shapes']} shapes, its terms {terms}: off by {found['error']:.1%}"


def _errors(error: dict[str, Any] | None) -> str:
    time, speedup = ((error or {}).get(name) or {"count": 0} for name in ("time", "speedup"))
    if not speedup["count"] or not time["count"]:
        return "model not checked: held-out shapes were not measured"
    return (
        f"model on {speedup['count']} held-out pairs: time off by {time['median']:.1%} (95 %: {time['p95']:.1%}), "
        f"speedup by {speedup['median']:.1%}"
    )
