"""The report's first picture: speedup over size, for all types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fmm.config.schema import Entry
from fmm.tuner.report.case import Case
from fmm.tuner.report.figures import BLACK, GREY, MARKERS, PLAN_COLOURS, named_at_right, new_figure, plain_sides
from fmm.tuner.report.overview import BEYOND, Gain, library

WIDE, NARROW = (7.6, 3.7), (3.8, 3.4)  # inches, on a screen and on a phone


def speedup_of_all_types(cases: Sequence[Case], gains: Sequence[Gain], size: tuple[float, float] = WIDE) -> Any:
    """Lines: the model's choice for square matrices, dashed further than twice what was measured. Points: certified
    measurements, with 95 % intervals. A type's line, points and the line to its name have one colour, its points one
    shape."""
    made, axes = new_figure(*size)
    ends, colours = [], {}
    for i, case in enumerate(cases):
        colour, shape = PLAN_COLOURS[i % len(PLAN_COLOURS)], MARKERS[i % len(MARKERS)]
        colours[case.dtype] = colour
        own = [gain for gain in gains if gain.dtype == case.dtype and gain.op == "product" and not gain.beside]
        known, beyond = curves(case, own)
        if known:
            axes.plot(*zip(*known, strict=True), color=colour, linewidth=1.6)
            joined = [*known[-1:], *beyond]
            axes.plot(*zip(*joined, strict=True), color=colour, linewidth=1.6, linestyle=(0, (2, 1.5)))
            ends.append((*joined[-1], case.dtype))
        points = [(e.size[0], e) for e in certified_squares(case)]
        if points:
            x, y = [side for side, _ in points], [e.speedup for _, e in points]
            spread = [e.speedup - e.low for _, e in points], [e.high - e.speedup for _, e in points]
            axes.errorbar(x, y, spread, fmt=shape, color=colour, markersize=4, elinewidth=0.8)
        if not known and own:
            ends.append((own[-1].side, own[-1].speedup, case.dtype))
    axes.axhline(1, color=BLACK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set(xscale="log", xlabel="side of square matrices", ylabel=f"times as fast as {library(cases)}")
    axes.set_title("Speedup by size", color=GREY if not gains else BLACK)
    named_at_right(axes, ends, colours)
    plain_sides(axes)
    return made


def caption_of_all_types(cases: Sequence[Case], gains: Sequence[Gain]) -> str:
    """What that picture shows, that it has no points, if so, and which points are far below their line, and why."""
    said = " ".join((speedup_of_all_types.__doc__ or "").split())
    none = "" if any(map(certified_squares, cases)) else " No square was certified to gain, so that there are none."
    untried = list(dict.fromkeys(gain.dtype for gain in gains if gain.untried))
    why = f" Where points of {', '.join(untried)} lie far below the line, the plan of the line was not tried."
    assumed = [case.dtype for case in cases if case.tuned.trusted is not None and goes_by_datasheet(case)]
    by = f" In {', '.join(assumed)} it goes by rates of the datasheet too, which no tuning has confirmed."
    return f"{said}{none}{why if untried else ''}{by if assumed else ''}{model_error(cases)}"


def goes_by_datasheet(case: Case) -> bool:
    """Does a plan of the line end in what multiplies by rates of the datasheet?"""
    assumed = {*case.used.assumed, *case.used.left_out}
    return any(case.choice(side, side, side).plan.leaf_use.leaf.name in assumed for side, _ in case.curve)


def model_error(cases: Sequence[Case]) -> str:
    """How far the lines are off, as shapes tell that no fit saw."""
    errors = [(case.section["error"] or {}).get("speedup") or {} for case in cases if case.tuned.trusted]
    median, most = (_shares([e[name] for e in errors if e.get(name) is not None]) for name in ("median", "p95"))
    if not median:
        return ""
    tail = f", 95 % of them by less than {most}" if most else ""
    return f" On shapes that were held out, predicted speedups are off by {median} (median){tail}."


def _shares(known: Sequence[float]) -> str:
    """The least and the largest in per cent."""
    if not known:
        return ""
    low, high = f"{min(known):.1%}", f"{max(known):.1%}"
    return low if low == high else f"{low} to {high}, by type"


def curves(case: Case, own: Sequence[Gain]) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Side and speedup of the model's choice as far as was measured, to twice that, and beyond, as far as gains are
    shown there."""
    if case.tuned.trusted is None:
        return [], []
    last = max((gain.side for gain in own if gain.kind == BEYOND), default=0)
    further = case.curve_to(last)[len(case.curve) :]
    return [(float(side), gain) for side, gain in case.curve], [(float(side), gain) for side, gain in further]


def certified_squares(case: Case) -> list[Entry]:
    """The certified entries of square products that gain, but for those without workspace."""
    products = [e for e in case.tuned.entries.values() if e.op == "product" and len(set(e.size)) == 1]
    return [e for e in products if e.verified and not e.lean and e.plan != "vendor"]
