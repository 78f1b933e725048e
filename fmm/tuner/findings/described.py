"""A section of a config in a few lines, each with a label: first what it means to those who multiply and what it costs,
then what was measured, the papers' thresholds, and how sure all that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fmm.config import schema
from fmm.config.thresholds import Spread, Thresholds, read_thresholds
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choosable import candidates
from fmm.tuner.findings.outcome import chosen_square, outcome, vendors_name
from fmm.tuner.trials.record import Size

NOT_MEASURED = "not measured"
NOT_USED = "so that fmm goes by what it measures in each process; tune again when the device is idle"
NEVER = "never"
LABEL = 10  # letters of the labels, so that the lines are aligned


def described(section: dict[str, Any], dtype: str) -> Iterator[str]:
    """All lines of a section."""
    calibration, doubts = section["calibration"], section.get("doubts") or ()
    yield from _lines(("not used", doubt) for doubt in doubts)
    if doubts:
        yield from _lines([("", NOT_USED)])
    if calibration:
        known = schema.checked_calibration(calibration, "calibration", dtype, "", "")
        if not doubts:
            yield from _lines(outcome(known, dtype))
            yield from _lines(unmeasured_leaves(known, dtype))
        yield from _lines(measured_lines(section, known, dtype))
    for raw in section["entries"]:
        entry = schema.checked_entry(raw, "entry")
        trusted = "" if entry.verified else " (set aside until `fmm-tune canary`)"
        of = "" if entry.op == "product" else f" ({entry.op})"
        yield from _lines([("measured", f"{_size(entry.size)}{of}: {entry.plan}, {entry.text}{trusted}")])


def unmeasured_leaves(known: Calibration, dtype: str) -> Iterator[tuple[str, str]]:
    """The leaves that fmm.matmul compares too, though no tuning measures them: `outcome` tells none of their gains."""
    every = [plan for plan in candidates(known.batches) if plan.leaf_use.leaf.rate and plan.considered_for(dtype)]
    lacking = dict.fromkeys(plan.leaf for plan in every if known.known_rate(plan.rate_name(dtype)) is None)
    if lacking:
        yield "besides", f"where the device has them, fmm.matmul compares plans that end in {', '.join(lacking)} too."
        yield "", "No tuning measures these, so that what they gain is not told above: fmm.plan and fmm.explain tell it"


EARLIER = "of an earlier fmm, which meant something else by them"


def of_an_earlier_fmm(thresholds: Any) -> bool:
    """Does a section have thresholds that this fmm does not read?"""
    return bool(thresholds) and read_thresholds(thresholds) is None


def _lines(rows: Iterator[tuple[str, str]] | Sequence[tuple[str, str]]) -> Iterator[str]:
    for label, text in rows:
        yield f"  {label:{LABEL}} {text}"


def _size(size: Size) -> str:
    return " x ".join(map(str, size))


# ---- what was measured, and how sure it is


def measured_lines(section: Mapping[str, Any], calibration: Calibration, dtype: str) -> Iterator[tuple[str, str]]:
    """Rates, thresholds, the noise and the model's error."""
    products, sums = calibration.rate(dtype).flops / 1e9, calibration.stream / 1e9
    yield "rates", f"{vendors_name(calibration)}, large: {products:,.0f} Gflop/s; sums of blocks: {sums:,.0f} GB/s"
    yield from described_thresholds(read_thresholds(section["thresholds"]), calibration, dtype)
    if of_an_earlier_fmm(section["thresholds"]):
        yield "levels", f"the thresholds are {EARLIER}: a new tuning finds today's"
    yield from _blocks(section.get("blocks"))
    noise = section["noise"]
    yield "noise", NOT_MEASURED if noise is None else f"the same product, timed twice, differs by up to {noise:.1%}"
    yield "model", _errors(section["error"], calibration.margin)


def described_thresholds(found: Thresholds | None, calibration: Calibration, dtype: str) -> Iterator[tuple[str, str]]:
    """The sides from which plans are taken; then, as in D'Alberto and Nicolau's Table 3, the recursion point by the
    model beside the measured one; and the tiles of our own product kernel."""
    if found is None:
        return
    taus = found.tau1, found.tau2, found.tau3
    counts = "one level", "two", "three"
    gain = ", ".join(f"{count} {_from(tau.value)}" for count, tau in zip(counts, taus, strict=True))
    yield "levels", f"of recursion, predicted to gain 2 %: {gain} (tau1, tau2, tau3);"
    yield "", f"to lose nothing: {_ends(taus, 'low')}; more than the model's error, so that"
    yield "", f"fmm.matmul takes them: {_ends(taus, 'high')}"
    yield from _above(found.tau1.value, calibration, dtype)
    yield "recursion", f"alpha {found.alpha:.3g} s to add an element, pi {found.pi:.3g} s a flop of large products:"
    n1 = NEVER if found.n1 is None else f"from a side of n1 = {found.n1:.0f} on"
    yield "", f"by these one level pays {n1} (Equation 3); {_seen(found)}"
    if found.block_strategy:
        strategies = ", ".join(f"{name} at {side}" for side, name in found.block_strategy.items())
        yield "blocks", f"tiles of our own kernel, by Huang's strategies: {strategies}"


def _above(tau1: float | None, calibration: Calibration, dtype: str) -> Iterator[tuple[str, str]]:
    """Who multiplies below tau1, if not the vendor: levels must be faster than that, and n1 knows the vendor alone."""
    below = chosen_square(calibration, dtype, int(tau1) // 32 * 16).plan if tau1 else VENDOR
    if below.leaf != VENDOR.leaf and not below.levels:
        yield "", f"(up to there {below.leaf} is faster than {vendors_name(calibration)}: levels must pay above that)"


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
