"""The report's first table: what is gained by type and size, as measured or predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fmm.config.schema import Entry
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.workspace import workspace
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Operation, Problem
from fmm.tuner.findings.model_in_use import MORE, ODD_SIDES, UNTIMED, gains_from, odd_gains, set_aside
from fmm.tuner.findings.outcome import vendors_name
from fmm.tuner.report.case import REACH, Case
from fmm.tuner.report.figures import BLACK, GREY, MARKERS, PLAN_COLOURS, named_at_right, new_figure, plain_sides

SIDES = tuple(1024 << i for i in range(7))
MEASURED, PREDICTED, LEFT = "measured", "predicted", "vendor"
BEYOND = "beyond"  # predicted, further than REACH: where the model's first plans are


@dataclass(frozen=True)
class Gain:
    """What is gained on squares of a side: measured with its interval, predicted, or nothing, the vendor's."""

    dtype: str
    side: int
    kind: str
    speedup: float
    low: float
    high: float
    plan: str
    error_growth: float
    workspace: int
    op: Operation = "product"
    untried: float = 0.0  # by another plan, which was not tried, if clearly more is predicted of that
    beside: int = 0  # how many rows larger than the side in whose column it stands


def shown_gains(cases: Sequence[Case]) -> list[Gain]:
    """Of all types, on the sides that are shown: of products, and of halves where they were measured."""
    found: list[Gain] = []
    for case in cases:
        products, halves = ([g for side in SIDES if (g := at(case, side))] for at in (gain_at, half_gain_at))
        beyond = [] if won_by(products, case.dtype) else gains_beyond(case, products)
        found += [*products, *beyond, *odd_sides(case), *halves]
    return found


def won_by(gains: Sequence[Gain], dtype: str) -> list[Gain]:
    """The products of a type, of round sides, that are not left to the vendor."""
    own = (gain for gain in gains if gain.op == "product" and gain.dtype == dtype and not gain.beside)
    return [gain for gain in own if gain.kind != LEFT]


def odd_sides(case: Case) -> list[Gain]:
    """Of squares one row larger than those that are shown, of a type for which the vendor is slow on odd sides."""
    if case.tuned.trusted is None or not case.choosing.batches or not odd_gains(case.choosing, case.dtype):
        return []
    found = (gain_at(case, side + 1) for side in SIDES if side + 1 in ODD_SIDES)
    return [replace(gain, beside=1) for gain in found if gain]


def gains_beyond(case: Case, shown: Sequence[Gain]) -> list[Gain]:
    """Of a type for which the model takes plans beyond all that was measured only: the first two sides that it does."""
    if case.tuned.trusted is None:
        return []
    last = max((gain.side for gain in shown), default=0)
    found = [(side, case.choice(side, side, side)) for side in SIDES if side > last]
    gains = [(side, best.plan, 1 / best.time) for side, best in found if best.plan != VENDOR][:2]
    return [_gain(case, side, BEYOND, plan, (gain, gain, gain)) for side, plan, gain in gains]


def half_gain_at(case: Case, side: int) -> Gain | None:
    """Of a matrix times its adjoint, against the vendor's own way, by a trusted entry."""
    known = case.tuned.entry((side, side, side), op="gram")
    if known is None:
        return None
    entry, plan = known
    kind = LEFT if plan == VENDOR else MEASURED
    return _gain(case, side, kind, plan, (entry.speedup, entry.low, entry.high), "gram")


def gain_at(case: Case, side: int) -> Gain | None:
    """A trusted entry of that square, if fmm.matmul goes by it; else the model's choice; None beyond what was timed."""
    known = case.tuned.entry((side, side, side))
    if known is None and (side > REACH * case.largest or case.tuned.trusted is None):
        return None
    best = case.choice(side, side, side)
    predicted = 1 / best.time
    if known is None or set_aside(case.used, known[0]) == UNTIMED:
        kind = LEFT if best.plan == VENDOR else PREDICTED
        return _gain(case, side, kind, best.plan, (predicted, predicted, predicted))
    entry, plan = known
    kind = LEFT if plan == VENDOR else MEASURED
    more = predicted if case.tuned.trusted is not None and predicted > MORE * entry.high else 0.0
    return _gain(case, side, kind, plan, (entry.speedup, entry.low, entry.high), untried=more)


def _gain(
    case: Case,
    side: int,
    kind: str,
    plan: Plan,
    speedup: tuple[float, float, float],
    op: Operation = "product",
    untried: float = 0.0,
) -> Gain:
    problem = Problem(side, side, side, case.dtype, op=op)
    needed = workspace(plan, *problem.size, problem.itemsize, op=op)
    growth = expected_error_growth(plan, case.dtype, not case.calibration.batches)
    return Gain(case.dtype, side, kind, *speedup, str(plan), growth, needed, op, untried)


def gains_frame(gains: Sequence[Gain]) -> Any:
    """The same as a pandas DataFrame, a row a type and side."""
    import pandas

    return pandas.DataFrame([vars(gain) for gain in gains], columns=list(Gain.__dataclass_fields__))


def library(cases: Sequence[Case]) -> str:
    """With whose products all is compared."""
    return vendors_name(cases[0].calibration) if cases else "the vendor's product"


def largest_timed(cases: Sequence[Case]) -> str:
    """How large the products were that were timed: `12800 (float32), 30144 (bfloat16, tf32)`."""
    found: dict[int, list[str]] = {}
    for case in cases:
        if case.largest:
            found.setdefault(round(case.largest), []).append(case.dtype)
    return ", ".join(f"{side} ({', '.join(types)})" for side, types in sorted(found.items()))


def starts_at(case: Case) -> int | None:
    """From which side on the model takes plans; None where it never does, or is not used."""
    return gains_from(case.choosing, case.dtype) if case.tuned.trusted is not None else None


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
