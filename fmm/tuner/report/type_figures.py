"""Draw the figures of one element type from recorded trials.

FIGURE_FUNCTIONS has the function that draws each figure, and CAPTION_TEXTS the caption, by the figure's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import rank_candidates
from fmm.perfmodel.predict import predict
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Problem
from fmm.tuner.devices.device import cached_plan_work
from fmm.tuner.findings.conclude import FITTED_STAGES, HELD_OUT_STAGE
from fmm.tuner.report.figures import (
    BEIGE,
    BLACK,
    BLUE,
    GREY,
    PLAN_COLOURS,
    POINT_MARKERS,
    RED,
    SKY_BLUE,
    add_labels_at_right,
    add_legend_below,
    new_figure,
    plan_legend_name,
    set_power_of_two_ticks,
)
from fmm.tuner.report.maps import draw_plan_map, fastest_measured_plans
from fmm.tuner.report.type_report import TypeReport, equal_work_side

HALF_FIGURE_TICKS = 3  # largest number of ticks on an axis in a figure with two pairs of axes
CURVE_SIDE_MULTIPLE = 128  # fitted curves are drawn through sides that are multiples of this side
# minor ticks have labels if (largest number on the axis) / (smallest number on the axis) is below this ratio
MAX_MINOR_LABEL_RATIO = 60


def draw_predicted_over_measured(report: TypeReport) -> Any:
    """Return the figure of predicted over measured seconds, with a point for each shape and plan."""
    figure, axes = new_figure()
    kinds = (
        (("search",), GREY, "searched", 1),
        (FITTED_STAGES, SKY_BLUE, "fitted", 2),
        ((HELD_OUT_STAGE,), RED, "held out", 3),
    )
    for stages, colour, name, z in kinds:
        seen = report.observations_of_stages(*stages)
        if not seen:
            continue
        x = [o.seconds for o in seen]
        y = [report.predicted_seconds(o) for o in seen]
        axes.scatter(x, y, s=14, color=colour, alpha=0.75, linewidths=0, label=f"{name} ({len(seen)})", zorder=z)
    low, high = axes.get_xlim()[0], max(axes.get_xlim()[1], axes.get_ylim()[1])
    low = max(low, min(o.seconds for o in report.observations_of_stages(*FITTED_STAGES)) / 2)
    line = np.array([low, high])
    for band, shade in ((0.12, 0.10), (0.05, 0.18)):
        axes.fill_between(line, line * (1 - band), line * (1 + band), color=BLACK, alpha=shade, linewidth=0)
    axes.plot(line, line, color=BLACK, linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured seconds", ylabel="predicted seconds")
    axes.set_title("Predicted and measured time (bands: 5 % and 12 %)")
    axes.legend(loc="upper left")
    return figure


def draw_residuals(report: TypeReport) -> Any:
    """Return the figure of the relative errors of predicted times: over the side, and as a histogram.

    The figure shows only runs of whole plans, without runs in which only the sums or leaf products were timed.
    """
    figure, (left, right) = new_figure(columns=2)
    bins = np.arange(-0.3, 0.31, 0.02)
    for stages, colour, name in ((FITTED_STAGES, SKY_BLUE, "fitted"), ((HELD_OUT_STAGE,), RED, "held out")):
        seen = [o for o in report.observations_of_stages(*stages) if o.run.part == "whole"]
        off = np.array([report.predicted_seconds(o) / o.seconds - 1 for o in seen])
        label = f"{name} ({len(seen)})"
        left.scatter(
            [equal_work_side(o.problem) for o in seen], 100 * off, s=12, color=colour, alpha=0.75, linewidths=0
        )
        right.hist(100 * np.clip(off, -0.299, 0.299), bins=100 * bins, color=colour, alpha=0.65, label=label)
    left.axhline(0, color=BLACK, linewidth=0.8)
    left.set(xscale="log", xlabel="side of the cube\nwith as much work", ylim=(-30, 30))
    left.set_ylabel("predicted over measured, %")
    left.set_title("Residuals")
    right.set(xlabel="predicted over\nmeasured, %", ylabel="plans and shapes")
    add_legend_below(figure, right)
    set_power_of_two_ticks(left, HALF_FIGURE_TICKS)
    return figure


MIN_DRAWN_SPEEDUP = 0.5  # smallest measured speedup over the vendor with which a plan is drawn


def draw_speedup(report: TypeReport) -> Any:
    """Return the figure of speedup over the side: a point for each timed plan, and a line for the model's choice."""
    figure, axes = new_figure()
    known = [x for x in report.measured_speedups if x[2] >= MIN_DRAWN_SPEEDUP]
    won = Counter(fastest_measured_plans(report).values())
    for name, colour, shape, plans in _plan_groups([p for _, p, *_ in known], won):
        rows = [(equal_work_side(p), s, s - low, high - s) for p, q, s, low, high in known if q in plans]
        x, y, below, above = zip(*rows, strict=True)
        bars = {"elinewidth": 0.8, "capsize": 0, "markersize": 3.5}
        axes.errorbar(x, y, (below, above), fmt=shape, color=colour, label=name, alpha=0.85, **bars)
    least = min((equal_work_side(p) for p, *_ in known), default=0.0)
    line = [(side, gain) for side, gain in report.speedup_curve if side >= least / 2]
    if line:
        axes.plot(*zip(*line, strict=True), color=BLACK, linewidth=1.2, label="the model's choice, squares")
    axes.axhline(1, color=BLACK, linewidth=0.8, linestyle=(0, (4, 3)), label="vendor")
    axes.set(xscale="log", xlabel="side of the cube with as much work", ylabel="speedup")
    axes.set_title("Speedup (points: measured, with 95 % intervals)")
    add_legend_below(figure, axes)
    set_power_of_two_ticks(axes)
    return figure


def draw_time_and_error(report: TypeReport) -> Any:
    """Return the figure of time over expected error, with a point for each plan on the largest measured shape.

    A line connects the plans of the Pareto front: no plan is both faster and more accurate than a plan of the front.
    """
    from matplotlib.ticker import FixedLocator, NullLocator

    figure, axes = new_figure(height=3.6)
    problem = max((p for p, *_ in report.measured_speedups), key=lambda p: p.flops)
    measured = {q: 1 / s for p, q, s, *_ in report.measured_speedups if p == problem}
    everything = {c.plan: c.time for c in rank_candidates(problem, report.choice_calibration)}
    points = [
        (
            expected_error_growth(p, report.dtype, not report.calibration.batches),
            t,
            plan_legend_name(p),
            p in measured or p == VENDOR,
        )
        for p, t in {**everything, **measured}.items()
    ]
    front, least = [], np.inf
    for growth, time, *_ in sorted(points, key=lambda x: x[:2]):
        if time < least:
            least = time
            front.append((growth, time))
    axes.step(*zip(*front, strict=True), where="post", color=GREY, linewidth=1, zorder=1)
    for kind, face in ((True, BLUE), (False, "white")):
        some = [(growth, time) for growth, time, _, known in points if known == kind]
        name = "measured on this shape" if kind else "predicted"
        if some:
            axes.plot(*zip(*some, strict=True), "o", ms=5, color=BLUE, mfc=face, label=name)
    axes.axhline(1, color=BLACK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set(xscale="log", xlabel="expected error over the vendor's", ylabel="time over the vendor's")
    axes.set_title(f"Time and error at {' x '.join(map(str, problem.size))}")
    axes.xaxis.set_major_locator(FixedLocator([0.01, 0.1, 0.3, 1, 2, 3, 5, 10, 20, 50]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    axes.margins(0.08)
    add_legend_below(figure, axes)
    add_labels_at_right(axes, [x[:3] for x in points if x[3] or x[:2] in front])
    return figure


def draw_rates(report: TypeReport) -> Any:
    """Return the figure of two rates over the side: of the vendor's products, and of matrix sums.

    Points are measured rates, and lines are fitted rates. The rate of products is 1 / pi in flop/s. A sum moves 3
    numbers per element in alpha seconds (two reads and one write); the rate of sums in bytes/s follows.
    """
    figure, (left, right) = new_figure(columns=2)
    squares = [o for o in report.observations_of_stages("scale", "rates", "probe") if len(set(o.problem.size)) == 1]
    vendors = sorted((o.problem.m, o.problem.flops / o.seconds) for o in squares if o.run_kind == "vendor")
    name = "vendor"
    left.plot(*zip(*((n, r / 1e9) for n, r in vendors), strict=True), "o", ms=4, color=BLACK, label=name)
    n = np.geomspace(vendors[0][0], vendors[-1][0], 80) // CURVE_SIDE_MULTIPLE * CURVE_SIDE_MULTIPLE
    sides = sorted({int(x) for x in n if x})
    fitted = [predict(VENDOR, Problem(x, x, x, report.dtype), report.calibration).effective_flops / 1e9 for x in sides]
    left.plot(sides, fitted, color=BLACK, linewidth=1.2)
    left.set(xscale="log", xlabel="side", ylabel="Gflop/s", ylim=(0, None), title="1 / pi")
    sums = [o for o in squares if o.run_kind == "sums"]
    for plan, colour in zip(dict.fromkeys(o.run.plan for o in sums), PLAN_COLOURS, strict=False):
        own = sorted((o for o in sums if o.run.plan == plan), key=lambda o: o.problem.m)
        x = [o.problem.m for o in own]
        moved = [cached_plan_work(plan, o.problem).traffic * o.problem.itemsize / 1e9 for o in own]
        seen = [b / o.seconds for b, o in zip(moved, own, strict=True)]
        right.plot(x, seen, "o", ms=4, color=colour, label=f"sums of {plan_legend_name(plan)}")
        right.plot(
            x, [b / report.predicted_seconds(o) for b, o in zip(moved, own, strict=True)], color=colour, linewidth=1.2
        )
    right.set(xscale="log", xlabel="side", ylabel="GB/s", ylim=(0, None), title="3 numbers / alpha")
    for axes in (left, right):
        set_power_of_two_ticks(axes, HALF_FIGURE_TICKS)
    add_legend_below(figure, left, right)
    return figure


def draw_roofline(report: TypeReport) -> Any:
    """Return the roofline figure of all timed plans: flops per second over flops per moved byte.

    The flops are those of the classical algorithm, 2 m k n, for every plan.
    """
    figure, axes = new_figure(height=3.6)
    rate, stream = report.calibration.require_rate(report.dtype), report.calibration.stream
    memory = rate.memory or stream
    seen = [
        o
        for o in report.observations_of_stages("rates", "probe", "tiles", "held out", "search", "certify")
        if o.run.part == "whole"
    ]
    everywhere = []
    for name, colour, shape, plans in _plan_groups([o.run.plan for o in seen]):
        own = [o for o in seen if o.run.plan in plans]
        intensity = [o.problem.flops / report.bytes_moved_by_plan(o) for o in own]
        speed = [o.problem.flops / o.seconds / 1e9 for o in own]
        axes.plot(intensity, speed, shape, ms=3.5, alpha=0.8, color=colour, label=name)
        everywhere += intensity
    x = np.geomspace(min(everywhere) / 2, max(everywhere) * 1.5, 100)
    axes.plot(x, np.minimum(rate.flops, x * memory) / 1e9, color=BLACK, linewidth=1.2)
    above = [(8 / 7, "one level saves an eighth"), ((8 / 7) ** 2, "two levels")]
    for saved, _ in above:
        axes.plot(x[-40:], np.full(40, rate.flops * saved / 1e9), color=BLACK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set(xscale="log", yscale="log", xlabel="classical flops per byte moved", ylabel="classical Gflop/s")
    add_labels_at_right(axes, [(x[-1], rate.flops * saved / 1e9, name) for saved, name in above])
    axes.set_title("Roofline, with the plans on it")
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        axis.set_major_formatter(lambda value, place: f"{value:g}")
        between = "25" if high < MAX_MINOR_LABEL_RATIO * low else ""
        axis.set_minor_formatter(lambda value, place, named=between: f"{value:g}" if f"{value:e}"[0] in named else "")
    add_legend_below(figure, axes)
    return figure


FIGURE_FUNCTIONS: dict[str, Callable[[TypeReport], Any]] = {
    "speedup": draw_speedup,
    "plans": draw_plan_map,
    "error": draw_time_and_error,
    "predicted-measured": draw_predicted_over_measured,
    "residuals": draw_residuals,
    "rates": draw_rates,
    "roofline": draw_roofline,
}
CAPTION_TEXTS = {
    "speedup": "Measured speedup of every plan over the vendor, with 95 % intervals; pale points are other plans. "
    "Line: the model's choice for squares; its dips are sides that do not divide into whole tiles.",
    "plans": "The model's choice for m x k by k x m products, one area a plan; points: the fastest measured plan.",
    "error": "Time over expected error on the largest measured shape. Line: the Pareto front, labelled with its plans.",
    "predicted-measured": "Predicted over measured time of every shape and plan, by stage of the tuning.",
    "residuals": "Error of predicted times of whole products, over size and as a histogram; held-out shapes apart.",
    "rates": "Left: rate of the vendor's product (1 / pi). Right: rate of sums (3 numbers / alpha). Points are "
    "measured, lines fitted.",
    "roofline": "Classical flops per second over classical flops per moved byte, below the device's roofs; all plans "
    "count 2 m k n flops.",
}
# Figures that are drawn only if plans were timed in rounds with the vendor's product.
PAIRED_SAMPLE_FIGURES = frozenset({"speedup", "error"})


def available_figures(report: TypeReport) -> dict[str, Callable[[TypeReport], Any]]:
    """Return the functions of all figures that can be drawn from the report's data, by the name of the figure."""
    return {
        name: draw
        for name, draw in FIGURE_FUNCTIONS.items()
        if report.measured_speedups or name not in PAIRED_SAMPLE_FIGURES
    }


def _plan_groups(
    plans: Sequence[Plan], won: Mapping[Plan, int] = MappingProxyType({})
) -> Iterator[tuple[str, str, str, frozenset[Plan]]]:
    """Yield (name in the legend, colour, marker, plans) for each group of points in a figure.

    The points of the vendor's product form one group. For each of the plans that were most often the fastest, the
    points form a separate group. The points of all other plans form one group.
    """
    met = Counter(plans)
    often = sorted((p for p in met if p != VENDOR), key=lambda p: (won.get(p, 0), met[p]), reverse=True)
    own, rest = often[: len(PLAN_COLOURS) - 1], frozenset(often[len(PLAN_COLOURS) - 1 :])
    if VENDOR in plans:
        yield "vendor", GREY, "o", frozenset({VENDOR})
    if rest:
        yield f"{len(rest)} other plan{'s' * (len(rest) > 1)}", BEIGE, "o", rest
    for plan, colour, shape in zip(own, PLAN_COLOURS, POINT_MARKERS, strict=False):
        yield plan_legend_name(plan), colour, shape, frozenset({plan})


def caption_text(name: str, report: TypeReport) -> str:
    """Return a figure's caption, with the number of held-out points or the number of points that are not drawn."""
    text = CAPTION_TEXTS[name]
    if name == "predicted-measured":
        return f"{text} {held_out_points_text(report)}"
    slow = sum(x[2] < MIN_DRAWN_SPEEDUP for x in report.measured_speedups)
    if name == "speedup" and slow:
        return f"{text} Not drawn: {slow} below {MIN_DRAWN_SPEEDUP:g}."
    return text


def held_out_points_text(report: TypeReport) -> str:
    """Return a sentence with the numbers of held-out points: of the vendor, of plans, and of fmm's own kernel."""
    seen = report.observations_of_stages(HELD_OUT_STAGE)
    if not seen:
        return "No shapes were held out."
    kinds = Counter(
        "library" if o.run_kind == "vendor" else "own" if o.run.plan.uses_tile_model else "plan" for o in seen
    )
    names = {"library": "vendor", "plan": "plans", "own": "fmm's own kernel"}
    counts = ", ".join(f"{kinds[kind]} {text}" for kind, text in names.items() if kinds[kind])
    return f"{len(seen)} held-out points: {counts}."
