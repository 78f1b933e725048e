"""A section of a config in a few lines, each with a label: first what it means to those who multiply and what it costs,
then what was measured, the papers' thresholds, and how sure all that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fmm.config import schema
from fmm.config.thresholds import Spread, Thresholds, read_thresholds
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Candidate, Limits, choose, usual_growth
from fmm.problem import Problem
from fmm.tuner.trials.record import Size

NOT_MEASURED = "not measured"
NEVER = "never"
LABEL = 10  # letters of the labels, so that the lines are aligned

SIDES = tuple(round(2 ** (i / 2)) for i in range(16, 33))  # of squares, from 256 to 65536
SHOWN = (2048, 4096, 8192, 16384, 32768, 65536)
MOST = 4  # of them
CLOSE = 1.05


def described(section: dict[str, Any], dtype: str) -> Iterator[str]:
    """All lines of a section."""
    calibration, doubts = section["calibration"], section.get("doubts") or ()
    if calibration:
        known = schema.checked_calibration(calibration, "calibration", dtype, "", "")
        if not doubts:
            yield from _lines(outcome(known, dtype))
        yield from _lines(measured_lines(section, known, dtype))
    yield from _lines(("not used", doubt) for doubt in doubts)
    for raw in section["entries"]:
        entry = schema.checked_entry(raw, "entry")
        trusted = "" if entry.verified else " (set aside until `fmm-tune canary`)"
        of = "" if entry.op == "product" else f" ({entry.op})"
        yield from _lines([("measured", f"{_size(entry.size)}{of}: {entry.plan}, {entry.text}{trusted}")])


def _lines(rows: Iterator[tuple[str, str]] | Sequence[tuple[str, str]]) -> Iterator[str]:
    for label, text in rows:
        yield f"  {label:{LABEL}} {text}"


def _size(size: Size) -> str:
    return " x ".join(map(str, size))


# ---- what it means


def outcome(calibration: Calibration, dtype: str) -> Iterator[tuple[str, str]]:
    """From which side on squares are not left to the vendor, what the model promises, and what that costs."""
    base, first = "cuBLAS" if calibration.batches else "NumPy's product", gains_from(calibration, dtype)
    if first is None:
        yield "gain", f"none on square matrices: no plan is predicted to be faster than {base}, which multiplies them"
        return
    best = {side: chosen_square(calibration, dtype, side) for side in [s for s in SHOWN if s >= first][:MOST]}
    gains = ", ".join(f"{1 / found.time:.2f} at {side}" for side, found in best.items())
    yield "gain", f"fmm.matmul is faster than {base} on squares from a side of about {first} on;"
    yield "", f"predicted times as fast: {gains}"
    growth = max(found.error_growth for found in best.values())
    yield "cost", f"an error of up to {growth:.1f} times the usual one is expected (max_error_growth= limits it);"
    costs = ", ".join(f"{_gibibytes(found.workspace)} at {side}" for side, found in best.items())
    yield "", f"memory beside the operands, where there is so much (workspace= limits it): {costs}"


def gains_from(calibration: Calibration, dtype: str) -> int | None:
    """The side from which on the model leaves squares to the vendor no more, to 5 %; None if it never does."""
    high = next((side for side in SIDES if chosen_square(calibration, dtype, side).plan != VENDOR), None)
    if high is None or high == SIDES[0]:
        return high
    low = SIDES[SIDES.index(high) - 1]
    while high > CLOSE * low:
        middle = (low + high) // 2 // 16 * 16
        low, high = (middle, high) if chosen_square(calibration, dtype, middle).plan == VENDOR else (low, middle)
    return high


def _gibibytes(count: int) -> str:
    found = count / 2**30
    return f"{found:.1f} GiB" if found < 10 else f"{found:.0f} GiB"


def chosen_square(calibration: Calibration, dtype: str, side: int) -> Candidate:
    """The model's choice for a square product, however much workspace it needs."""
    limits = Limits(1 << 62, usual_growth(calibration.batches))
    return choose(Problem(side, side, side, dtype), calibration, limits).best


# ---- what was measured, and how sure it is


def measured_lines(section: Mapping[str, Any], calibration: Calibration, dtype: str) -> Iterator[tuple[str, str]]:
    """Rates, thresholds, the noise and the model's error."""
    rates = (
        f"large products {calibration.rate(dtype).flops / 1e9:.4g} Gflop/s, sums {calibration.stream / 1e9:.4g} GB/s"
    )
    yield "rates", rates
    yield from described_thresholds(read_thresholds(section["thresholds"]))
    yield from _blocks(section.get("blocks"))
    noise = section["noise"]
    yield "noise", NOT_MEASURED if noise is None else f"the same product, timed twice, differs by up to {noise:.1%}"
    yield "model", _errors(section["error"], calibration.margin)


def described_thresholds(found: Thresholds | None) -> Iterator[tuple[str, str]]:
    """The sides from which plans are taken; then, as in D'Alberto and Nicolau's Table 3, the recursion point by the
    model beside the measured one; and the tiles of our own product kernel."""
    if found is None:
        return
    taus = found.tau1, found.tau2, found.tau3
    counts = "one level", "two", "three"
    gain = ", ".join(f"{count} {_from(tau.value)}" for count, tau in zip(counts, taus, strict=True))
    yield "levels", f"predicted to gain 2 %: {gain} (tau1, tau2, tau3);"
    yield "", f"to lose nothing: {_ends(taus, 'low')}; chosen, since the gain exceeds the error: {_ends(taus, 'high')}"
    yield "recursion", f"alpha {found.alpha:.3g} s to add an element, pi {found.pi:.3g} s a flop of large products:"
    n1 = NEVER if found.n1 is None else f"from a side of n1 = {found.n1:.0f} on"
    yield "", f"by these one level pays {n1} (Equation 3); {_seen(found)}"
    if found.block_strategy:
        strategies = ", ".join(f"{name} at {side}" for side, name in found.block_strategy.items())
        yield "blocks", f"tiles of our own kernel, by Huang's strategies: {strategies}"


def _ends(taus: Sequence[Spread], end: str) -> str:
    return ", ".join(_from(getattr(tau, end)) for tau in taus)


def _from(x: float | None) -> str:
    return NEVER if x is None else f"from {x:.0f}"


def _seen(found: Thresholds) -> str:
    """What the measured products say of the recursion point."""
    if found.n1_measured is None:
        point = "no measured square shows such a side"
    else:
        point = f"measured: from {found.n1_measured:.0f} on"
    if found.epsilon is None:
        return point
    if not found.epsilon:
        return f"{point}, and Equation 2 needs no correction (epsilon 0)"
    return f"{point}, and Equation 2 agrees best with that if alpha / pi is changed by epsilon = {found.epsilon:+.0f}"


def _blocks(found: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if found:
        terms = "fitted to this device" if found["fitted"] else "as built in"
        yield "", f"block model on {found['shapes']} shapes, its terms {terms}: off by {found['error']:.1%}"


def _errors(error: Mapping[str, Any] | None, margin: float) -> str:
    time, speedup = ((error or {}).get(name) or {"count": 0} for name in ("time", "speedup"))
    if not speedup["count"] or not time["count"]:
        return "not checked: held-out shapes were not measured"
    return (
        f"on {speedup['count']} held-out pairs of a plan and the usual product: speedups off by "
        f"{speedup['median']:.1%}, times by {time['median']:.1%} (95 %: {time['p95']:.1%}); to be chosen, a plan "
        f"must be predicted to save {margin:.1%}"
    )


def share_or_nothing(value: float | None) -> str:
    """A share in per cent, or that nobody measured it."""
    return NOT_MEASURED if value is None else f"{value:.1%}"
