"""Compute and draw the overview of the report: measured or predicted speedups of square products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fmm.config.schema import Entry
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Operation, Problem
from fmm.tuner.findings.model_in_use import (
    MIN_ODD_SIDE_GAIN,
    ODD_SIDES,
    UNTIMED_REASON,
    first_gaining_side,
    gaining_odd_sides,
    skip_reason_by_default_limits,
)
from fmm.tuner.findings.summary import vendor_name
from fmm.tuner.report.figures import (
    BLACK,
    GREY,
    PLAN_COLOURS,
    POINT_MARKERS,
    add_labels_at_right,
    new_figure,
    set_power_of_two_ticks,
)
from fmm.tuner.report.type_report import MAX_SHOWN_SIDE_RATIO, TypeReport

TABLE_SIDES = tuple(1024 << i for i in range(7))  # sides of the square products in the table of speedups: 1024 to 65536
# Values of SideSpeedup.kind: whether a speedup is measured or predicted. VENDOR_SPEEDUP: fmm.matmul calls the vendor,
# so that the speedup is about 1.
MEASURED_SPEEDUP, PREDICTED_SPEEDUP, VENDOR_SPEEDUP = "measured", "predicted", "vendor"
# value of SideSpeedup.kind: predicted for a side above MAX_SHOWN_SIDE_RATIO times the largest measured side
EXTRAPOLATED_SPEEDUP_KIND = "beyond"


@dataclass(frozen=True)
class SideSpeedup:
    """The speedup of fmm over the vendor for square products of one side; `low` and `high` are its 95 % interval."""

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
    untried: float = 0.0  # predicted speedup of a plan that was not timed, if clearly above `speedup`; else 0
    beside: int = 0  # `side` minus the side of its column in the table: 1 for odd sides


def speedups_of_table_sides(reports: Sequence[TypeReport]) -> list[SideSpeedup]:
    """Return the speedups of all types for the sides of the table, of products and of measured gram products."""
    found: list[SideSpeedup] = []
    for report in reports:
        products, grams = (
            [g for side in TABLE_SIDES if (g := at(report, side))] for at in (speedup_at_side, gram_speedup_at_side)
        )
        beyond = [] if product_speedups(products, report.dtype) else first_extrapolated_speedups(report, products)
        found += [*products, *beyond, *odd_side_speedups(report), *grams]
    return found


def product_speedups(gains: Sequence[SideSpeedup], dtype: str) -> list[SideSpeedup]:
    """Return a type's speedups of products on even sides, without sides on which fmm.matmul calls the vendor."""
    own = (gain for gain in gains if gain.op == "product" and gain.dtype == dtype and not gain.beside)
    return [gain for gain in own if gain.kind != VENDOR_SPEEDUP]


def odd_side_speedups(report: TypeReport) -> list[SideSpeedup]:
    """Return a type's speedups on the odd sides 1025, 2049, ...; none unless the vendor is slow on odd sides."""
    if (
        report.tuned.trusted_calibration is None
        or not report.choice_calibration.batches
        or not gaining_odd_sides(report.choice_calibration, report.dtype)
    ):
        return []
    found = (speedup_at_side(report, side + 1) for side in TABLE_SIDES if side + 1 in ODD_SIDES)
    return [replace(gain, beside=1) for gain in found if gain]


def first_extrapolated_speedups(report: TypeReport, shown: Sequence[SideSpeedup]) -> list[SideSpeedup]:
    """Return the predicted speedups of the two smallest sides that have a gain and exceed all sides in `shown`."""
    if report.tuned.trusted_calibration is None:
        return []
    last = max((gain.side for gain in shown), default=0)
    found = [(side, report.model_choice(side, side, side)) for side in TABLE_SIDES if side > last]
    gains = [(side, best.plan, 1 / best.time) for side, best in found if best.plan != VENDOR][:2]
    return [
        _make_side_speedup(report, side, EXTRAPOLATED_SPEEDUP_KIND, plan, (gain, gain, gain))
        for side, plan, gain in gains
    ]


def gram_speedup_at_side(report: TypeReport, side: int) -> SideSpeedup | None:
    """Return the certified speedup of gram (A^H A) for a square A; None if there is no entry to use."""
    known = report.tuned.find_entry((side, side, side), op="gram")
    if known is None:
        return None
    entry, plan = known
    kind = VENDOR_SPEEDUP if plan == VENDOR else MEASURED_SPEEDUP
    return _make_side_speedup(report, side, kind, plan, (entry.speedup, entry.low, entry.high), "gram")


def speedup_at_side(report: TypeReport, side: int) -> SideSpeedup | None:
    """Return the speedup for square products of one side; None if the side is far above the timed sides.

    If fmm.matmul uses a certified entry of this side, the speedup of the entry is returned, else that of the model's
    choice.
    """
    known = report.tuned.find_entry((side, side, side))
    if known is None and (
        side > MAX_SHOWN_SIDE_RATIO * report.largest_cube_side or report.tuned.trusted_calibration is None
    ):
        return None
    best = report.model_choice(side, side, side)
    predicted = 1 / best.time
    if known is None or skip_reason_by_default_limits(report.used, known[0]) == UNTIMED_REASON:
        kind = VENDOR_SPEEDUP if best.plan == VENDOR else PREDICTED_SPEEDUP
        return _make_side_speedup(report, side, kind, best.plan, (predicted, predicted, predicted))
    entry, plan = known
    kind = VENDOR_SPEEDUP if plan == VENDOR else MEASURED_SPEEDUP
    more = (
        predicted
        if report.tuned.trusted_calibration is not None and predicted > MIN_ODD_SIDE_GAIN * entry.high
        else 0.0
    )
    return _make_side_speedup(report, side, kind, plan, (entry.speedup, entry.low, entry.high), untried=more)


def _make_side_speedup(
    report: TypeReport,
    side: int,
    kind: str,
    plan: Plan,
    speedup: tuple[float, float, float],
    op: Operation = "product",
    untried: float = 0.0,
) -> SideSpeedup:
    """Return a SideSpeedup with the plan's error growth and workspace; `speedup` is (value, low, high)."""
    problem = Problem(side, side, side, report.dtype, op=op)
    needed = plan_workspace_bytes(plan, *problem.size, problem.itemsize, op=op)
    growth = expected_error_growth(plan, report.dtype, not report.calibration.batches)
    return SideSpeedup(report.dtype, side, kind, *speedup, str(plan), growth, needed, op, untried)


def speedups_frame(gains: Sequence[SideSpeedup]) -> Any:
    """Return the speedups as a pandas DataFrame; each row is one speedup."""
    import pandas

    return pandas.DataFrame([vars(gain) for gain in gains], columns=list(SideSpeedup.__dataclass_fields__))


def reported_vendor_name(reports: Sequence[TypeReport]) -> str:
    """Return the name of the vendor's library, such as cuBLAS, from the first report."""
    return vendor_name(reports[0].calibration) if reports else "the vendor"


def largest_timed_sides_text(reports: Sequence[TypeReport]) -> str:
    """Return the largest timed side of each type as text, such as `12800 (float32), 30144 (bfloat16, tf32)`."""
    found: dict[int, list[str]] = {}
    for report in reports:
        if report.largest_cube_side:
            found.setdefault(round(report.largest_cube_side), []).append(report.dtype)
    return ", ".join(f"{side} ({', '.join(types)})" for side, types in sorted(found.items()))


def crossover_side(report: TypeReport) -> int | None:
    """Return the side from which gains are predicted; None if no gain is predicted or the tuning is rejected."""
    return (
        first_gaining_side(report.choice_calibration, report.dtype)
        if report.tuned.trusted_calibration is not None
        else None
    )


SCREEN_FIGURE_INCHES, PHONE_FIGURE_INCHES = (7.6, 3.7), (3.8, 3.4)  # width and height of the overview figure in inches
ALL_TYPES_CAPTION = (
    "Lines: the model's choice, dashed beyond twice the largest measured side. Points: certified entries with 95 % "
    "intervals. Each type has one colour and one shape of points."
)


def draw_speedups_of_types(
    reports: Sequence[TypeReport], gains: Sequence[SideSpeedup], size: tuple[float, float] = SCREEN_FIGURE_INCHES
) -> Any:
    """Return the figure of speedup over side for all types: lines are predicted, points are certified entries."""
    figure, axes = new_figure(*size)
    ends, colours = [], {}
    for i, report in enumerate(reports):
        colour, shape = PLAN_COLOURS[i % len(PLAN_COLOURS)], POINT_MARKERS[i % len(POINT_MARKERS)]
        colours[report.dtype] = colour
        own = [gain for gain in gains if gain.dtype == report.dtype and gain.op == "product" and not gain.beside]
        known, beyond = speedup_curves(report, own)
        if known:
            axes.plot(*zip(*known, strict=True), color=colour, linewidth=1.6)
            joined = [*known[-1:], *beyond]
            axes.plot(*zip(*joined, strict=True), color=colour, linewidth=1.6, linestyle=(0, (2, 1.5)))
            ends.append((*joined[-1], report.dtype))
        points = [(e.size[0], e) for e in certified_square_entries(report)]
        if points:
            x, y = [side for side, _ in points], [e.speedup for _, e in points]
            spread = [e.speedup - e.low for _, e in points], [e.high - e.speedup for _, e in points]
            axes.errorbar(x, y, spread, fmt=shape, color=colour, markersize=4, elinewidth=0.8)
        if not known and own:
            ends.append((own[-1].side, own[-1].speedup, report.dtype))
    axes.axhline(1, color=BLACK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set(xscale="log", xlabel="side of square matrices", ylabel=f"speedup over {reported_vendor_name(reports)}")
    axes.set_title("Speedup by size", color=GREY if not gains else BLACK)
    add_labels_at_right(axes, ends, colours)
    set_power_of_two_ticks(axes)
    return figure


def all_types_caption(reports: Sequence[TypeReport], gains: Sequence[SideSpeedup]) -> str:
    """Return the caption of the figure from draw_speedups_of_types."""
    none = "" if any(map(certified_square_entries, reports)) else " No square was certified to gain."
    untried = list(dict.fromkeys(gain.dtype for gain in gains if gain.untried))
    why = f" {', '.join(untried)}: the plan of the line was not tried at points far below."
    assumed = [
        report.dtype
        for report in reports
        if report.tuned.trusted_calibration is not None and uses_datasheet_rates(report)
    ]
    by = f" {', '.join(assumed)}: the line includes datasheet rates that no tuning measured."
    return f"{ALL_TYPES_CAPTION}{none}{why if untried else ''}{by if assumed else ''}{model_error_text(reports)}"


def uses_datasheet_rates(report: TypeReport) -> bool:
    """Return True if some plan on the speedup curve has a leaf with a datasheet rate instead of a measured rate."""
    assumed = {*report.used.assumed, *report.used.left_out}
    return any(
        report.model_choice(side, side, side).plan.leaf_use.leaf.name in assumed for side, _ in report.speedup_curve
    )


def model_error_text(reports: Sequence[TypeReport]) -> str:
    """Return a sentence with the errors of predicted speedups on held-out shapes; empty if no shape was held out."""
    errors = [
        (report.section["error"] or {}).get("speedup") or {} for report in reports if report.tuned.trusted_calibration
    ]
    median, most = (
        _percent_range_text([e[name] for e in errors if e.get(name) is not None]) for name in ("median", "p95")
    )
    if not median:
        return ""
    tail = f", 95th percentile {most}" if most else ""
    return f" Error of predicted speedups on held-out shapes: median {median}{tail}."


def _percent_range_text(known: Sequence[float]) -> str:
    """Return the smallest and the largest of these fractions as text in percent; an empty text if there are none."""
    if not known:
        return ""
    low, high = f"{min(known):.1%}", f"{max(known):.1%}"
    return low if low == high else f"{low} to {high}, by type"


def speedup_curves(
    report: TypeReport, own: Sequence[SideSpeedup]
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return two curves of (side, predicted speedup): for sides near the measured sides, and for larger sides."""
    if report.tuned.trusted_calibration is None:
        return [], []
    last = max((gain.side for gain in own if gain.kind == EXTRAPOLATED_SPEEDUP_KIND), default=0)
    further = report.speedup_curve_up_to(last)[len(report.speedup_curve) :]
    return [(float(side), gain) for side, gain in report.speedup_curve], [(float(side), gain) for side, gain in further]


def certified_square_entries(report: TypeReport) -> list[Entry]:
    """Return verified entries of squares with a plan faster than the vendor; entries for workspace=0 are left out."""
    products = [e for e in report.tuned.entries.values() if e.op == "product" and len(set(e.size)) == 1]
    return [e for e in products if e.verified and not e.lean and e.plan != "vendor"]
