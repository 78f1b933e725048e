"""The pictures of one type: each drawn from a case by one function in PICTURES; nothing is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log2
from types import MappingProxyType
from typing import Any

import numpy as np

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import Limits, choose, ranked_candidates, usual_growth
from fmm.perfmodel.cost import cost
from fmm.perfmodel.predict import predict
from fmm.perfmodel.stability import expected_growth
from fmm.problem import Problem
from fmm.tuner.devices.formula import cached_work
from fmm.tuner.findings.conclude import FITTED
from fmm.tuner.report.case import Case

# Okabe and Ito's colours, which the colour-blind can tell apart.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#222222",
)  # fmt: skip
PLAN_COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW)
GREY = "#999999"
STYLE: Any = {
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fmm",  # the same picture is the same file
}
NO_LIMIT = 1 << 62
ROUND, MOST_TICKS = 128, 6
LINE = 0.045  # a line of small text, as a share of a picture's height


def cube_side(problem: Problem) -> float:
    """The side of the cube with as much work."""
    return float((problem.m * problem.k * problem.n) ** (1 / 3))


def legend_name(plan: Plan) -> str:
    """A plan's text for a legend: without the leaf that all share."""
    return str(plan).removesuffix(" > vendor").replace(".batched.pad16", "").replace(".pad16", "")


def new_figure(width: float = 6.2, height: float = 4.0, columns: int = 1) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    return made, made.subplots(1, columns)


def measured_and_predicted(case: Case) -> Any:
    """Predicted time over measured time: every shape and plan; those held out on top, those searched below."""
    made, axes = new_figure()
    kinds = (("search",), GREY, "searched", 1), (FITTED, SKY, "fitted", 2), (("held out",), RED, "held out", 3)
    for stages, colour, name, z in kinds:
        seen = case.seen(*stages)
        if not seen:
            continue
        x = [o.seconds for o in seen]
        y = [case.expected(o) for o in seen]
        axes.scatter(x, y, s=14, color=colour, alpha=0.75, linewidths=0, label=f"{name} ({len(seen)})", zorder=z)
    low, high = axes.get_xlim()[0], max(axes.get_xlim()[1], axes.get_ylim()[1])
    low = max(low, min(o.seconds for o in case.seen(*FITTED)) / 2)
    line = np.array([low, high])
    for band, shade in ((0.12, 0.10), (0.05, 0.18)):
        axes.fill_between(line, line * (1 - band), line * (1 + band), color=BLACK, alpha=shade, linewidth=0)
    axes.plot(line, line, color=BLACK, linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured seconds", ylabel="predicted seconds")
    axes.set_title("Predicted and measured time (bands: 5 % and 12 %)")
    axes.legend(loc="upper left")
    return made


def draw_residuals(case: Case) -> Any:
    """What the model is off by: over the size of the product, and how often."""
    made, (left, right) = new_figure(7.6, 3.6, 2)
    bins = np.arange(-0.3, 0.31, 0.02)
    for stages, colour, name in ((FITTED, SKY, "fitted"), (("held out",), RED, "held out")):
        seen = [o for o in case.seen(*stages) if o.run.part == "whole"]
        off = np.array([case.expected(o) / o.seconds - 1 for o in seen])
        left.scatter([cube_side(o.problem) for o in seen], 100 * off, s=12, color=colour, alpha=0.75, linewidths=0)
        right.hist(100 * np.clip(off, -0.299, 0.299), bins=100 * bins, color=colour, alpha=0.65, label=name)
    left.axhline(0, color=BLACK, linewidth=0.8)
    left.set(
        xscale="log", xlabel="side of the cube with as much work", ylabel="predicted over measured, %", ylim=(-30, 30)
    )
    left.set_title("Residuals")
    right.set(xlabel="predicted over measured, %", ylabel="plans and shapes")
    right.legend()
    plain_sides(left)
    return made


def speedup_over_size(case: Case) -> Any:
    """The measured speedup of every plan, and of the model's choice for squares as a line; the library's product is 1.
    (Where the line has teeth, a plan's products are not whole tiles of the device there.)"""
    made, axes = new_figure(7.6)
    won = Counter(_fastest(case).values())
    for name, colour, plans in _groups([p for _, p, *_ in case.speedups], won):
        rows = [(cube_side(p), s, s - low, high - s) for p, q, s, low, high in case.speedups if q in plans]
        x, y, below, above = zip(*rows, strict=True)
        bars = {"elinewidth": 0.8, "capsize": 0, "markersize": 3.5}
        axes.errorbar(x, y, (below, above), fmt="o", color=colour, label=name, alpha=0.85, **bars)
    n = round_sides(min(cube_side(p) for p, *_ in case.speedups), 1.5 * _largest(case))
    best = [ranked_candidates(Problem(x, x, x, case.dtype), case.calibration)[0] for x in n]
    axes.plot(n, [1 / b.time for b in best], color=BLACK, linewidth=1.2, label="best, predicted for squares")
    axes.axhline(1, color=BLACK, linewidth=0.8, linestyle=(0, (4, 3)), label="the library's product")
    axes.set(xscale="log", xlabel="side of the cube with as much work", ylabel="speedup over the vendor")
    axes.set_title("Speedup (points: measured, with 95 % intervals)")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    plain_sides(axes)
    return made


def winning_plans(case: Case) -> Any:
    """The plan that the model chooses for m = n over k, and what was measured to be the fastest."""
    from matplotlib.colors import BoundaryNorm, ListedColormap

    made, axes = new_figure()
    largest = 4 * _largest(case)
    n, k = (_round(np.geomspace(256, largest, 60)) for _ in range(2))
    chosen = [[_chosen(case, int(x), int(y)) for x in n] for y in k]
    plans = sorted({p for row in chosen for p in row}, key=lambda p: (p != VENDOR, str(p)))
    colours = ["#eeeeee" if p == VENDOR else c for p, c in zip(plans, (GREY, *_cycled(len(plans))), strict=False)]
    index = np.array([[plans.index(p) for p in row] for row in chosen])
    norm = BoundaryNorm(np.arange(len(plans) + 1) - 0.5, len(plans))
    axes.pcolormesh(n, k, index, cmap=ListedColormap(colours), norm=norm, shading="nearest", rasterized=True)
    for problem, plan in _fastest(case).items():
        if 0.5 < problem.m / problem.n < 2:
            colour = colours[plans.index(plan)] if plan in plans else BLACK
            axes.plot((problem.m * problem.n) ** 0.5, problem.k, "o", ms=6, mfc=colour, mec=BLACK, mew=0.8)
    for plan, colour in zip(plans, colours, strict=True):
        axes.plot([], [], "s", ms=8, color=colour, label=legend_name(plan))
    axes.set(xscale="log", yscale="log", xlabel="m = n", ylabel="k")
    axes.set_title("The plan that wins (area: the model's choice; points: measured)")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    plain_sides(axes)
    return made


def time_and_error(case: Case) -> Any:
    """Time over expected error of the plans on the largest shape that was measured: filled if they were measured there;
    the line joins those than which none is faster and errs less. Named are these, and what was measured."""
    from matplotlib.ticker import FixedLocator, NullLocator

    made, axes = new_figure(7.0)
    problem = max((p for p, *_ in case.speedups), key=lambda p: p.flops)
    measured = {q: 1 / s for p, q, s, *_ in case.speedups if p == problem}
    everything = {c.plan: c.time for c in ranked_candidates(problem, case.calibration)}
    points = [
        (expected_growth(p, case.dtype, not case.calibration.batches), t, legend_name(p), p in measured or p == VENDOR)
        for p, t in {**everything, **measured}.items()
    ]
    front, least = [], np.inf
    for growth, time, *_ in sorted(points, key=lambda x: x[:2]):
        if time < least:
            least = time
            front.append((growth, time))
    axes.step(*zip(*front, strict=True), where="post", color=GREY, linewidth=1, zorder=1)
    for growth, time, _, known in points:
        axes.plot(growth, time, "o", ms=5, color=BLUE, mfc=BLUE if known else "white")
    axes.axhline(1, color=BLACK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set(xscale="log", xlabel="expected error, the vendor's being 1", ylabel="time, the vendor's being 1")
    axes.set_title(f"Time and error at {' x '.join(map(str, problem.size))} (filled: measured)")
    axes.xaxis.set_major_locator(FixedLocator([1, 2, 3, 5, 10, 20, 50]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:.0f}")
    axes.margins(0.08)
    named_at_right(axes, [x[:3] for x in points if x[3] or x[:2] in front])
    return made


def draw_rates(case: Case) -> Any:
    """pi, the vendor's rate, and alpha, the rate of the sums, by size: measured and fitted."""
    made, (left, right) = new_figure(7.6, 3.6, 2)
    squares = [o for o in case.seen("scale", "rates", "probe") if len(set(o.problem.size)) == 1]
    vendors = sorted((o.problem.m, o.problem.flops / o.seconds) for o in squares if o.kind == "vendor")
    left.plot(*zip(*((n, r / 1e9) for n, r in vendors), strict=True), "o", ms=4, color=BLUE, label="measured")
    n = _round(np.geomspace(vendors[0][0], vendors[-1][0], 80))
    fitted = [predict(VENDOR, Problem(*(int(x),) * 3, case.dtype), case.calibration).effective_flops for x in n]
    left.plot(n, np.array(fitted) / 1e9, color=BLACK, linewidth=1.2, label="fit")
    left.set(xscale="log", xlabel="side", ylabel="Gflop/s", ylim=(0, None), title="pi: the vendor's product")
    left.legend(loc="lower right")
    sums = [o for o in squares if o.kind == "sums"]
    for plan, colour in zip(dict.fromkeys(o.run.plan for o in sums), PLAN_COLOURS, strict=False):
        own = sorted((o for o in sums if o.run.plan == plan), key=lambda o: o.problem.m)
        x = [o.problem.m for o in own]
        moved = [cached_work(plan, o.problem).traffic * o.problem.itemsize / 1e9 for o in own]
        right.plot(
            x,
            [b / o.seconds for b, o in zip(moved, own, strict=True)],
            "o",
            ms=4,
            color=colour,
            label=legend_name(plan),
        )
        right.plot(x, [b / case.expected(o) for b, o in zip(moved, own, strict=True)], color=colour, linewidth=1.2)
    right.set(xscale="log", xlabel="side", ylabel="GB/s", ylim=(0, None), title="alpha: the sums alone")
    right.legend(loc="lower right", fontsize=8)
    for axes in (left, right):
        plain_sides(axes)
    return made


def draw_roofline(case: Case) -> Any:
    """Classical flops a second over classical flops a byte that the plan moves, below the device's roofs."""
    made, axes = new_figure(7.6)
    rate, stream = case.calibration.rate(case.dtype), case.calibration.stream
    memory = rate.memory or stream
    seen = [o for o in case.seen("rates", "probe", "held out", "search", "certify") if o.run.part == "whole"]
    everywhere = []
    for name, colour, plans in _groups([o.run.plan for o in seen]):
        own = [o for o in seen if o.run.plan in plans]
        moved = [cost(o.run.plan, *o.problem.size, o.problem.itemsize).bytes for o in own]
        intensity = [o.problem.flops / b for o, b in zip(own, moved, strict=True)]
        speed = [o.problem.flops / o.seconds / 1e9 for o in own]
        axes.plot(intensity, speed, "o", ms=3.5, alpha=0.8, color=colour, label=name)
        everywhere += intensity
    x = np.geomspace(min(everywhere) / 2, max(everywhere) * 1.5, 100)
    axes.plot(x, np.minimum(rate.flops, x * memory) / 1e9, color=BLACK, linewidth=1.2)
    above = [(8 / 7, "one level saves an eighth"), ((8 / 7) ** 2, "two levels")]
    for saved, _ in above:
        axes.plot(x[-40:], np.full(40, rate.flops * saved / 1e9), color=BLACK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set(xscale="log", yscale="log", xlabel="classical flops per byte moved", ylabel="classical Gflop/s")
    named_at_right(axes, [(x[-1], rate.flops * saved / 1e9, name) for saved, name in above])
    axes.set_title("Roofline, with the plans on it")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, place: f"{value:g}")
        axis.set_minor_formatter(lambda value, place: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    axes.legend(loc="lower left", bbox_to_anchor=(1, 0), fontsize=8)
    return made


PICTURES: dict[str, Callable[[Case], Any]] = {
    "predicted-measured": measured_and_predicted,
    "residuals": draw_residuals,
    "speedup": speedup_over_size,
    "plans": winning_plans,
    "rates": draw_rates,
    "roofline": draw_roofline,
    "error": time_and_error,
}
OF_PAIRS = frozenset({"speedup", "error"})  # need plans that were measured beside the vendor: a short tuning has none


def case_pictures(case: Case) -> dict[str, Callable[[Case], Any]]:
    """Those that there is something to draw for."""
    return {name: draw for name, draw in PICTURES.items() if case.speedups or name not in OF_PAIRS}


def _groups(
    plans: Sequence[Plan], won: Mapping[Plan, int] = MappingProxyType({})
) -> Iterator[tuple[str, str, frozenset[Plan]]]:
    """Name, colour and plans: the vendor in grey, one for each of the plans that won most shapes, or were met most
    often; the rest as one."""
    met = Counter(plans)
    often = sorted((p for p in met if p != VENDOR), key=lambda p: (won.get(p, 0), met[p]), reverse=True)
    own, rest = often[: len(PLAN_COLOURS) - 1], frozenset(often[len(PLAN_COLOURS) - 1 :])
    if VENDOR in plans:
        yield "vendor", GREY, frozenset({VENDOR})
    if rest:
        yield f"{len(rest)} other plans", "#d0c8b8", rest
    for plan, colour in zip(own, PLAN_COLOURS, strict=False):
        yield legend_name(plan), colour, frozenset({plan})


def round_sides(low: float, high: float) -> list[int]:
    """Eight for each doubling, and only such: lines over any sides would show their fringes."""
    every = (2**power * eighths // 8 for power in range(9, 17) for eighths in range(8, 16))
    return [side for side in every if low <= side <= high]


def _round(sides: Any) -> Any:
    """Round sides, each once: lines and areas over any sides would show their alignments instead."""
    return np.unique(np.maximum(sides // ROUND, 1) * ROUND)


def _cycled(count: int) -> list[str]:
    return [PLAN_COLOURS[i % len(PLAN_COLOURS)] for i in range(count)]


def _largest(case: Case) -> float:
    return max(cube_side(o.problem) for o in case.seen(*FITTED, "held out"))


def _chosen(case: Case, n: int, k: int) -> Plan:
    limits = Limits(NO_LIMIT, usual_growth(case.calibration.batches))
    return choose(Problem(n, k, n, case.dtype), case.calibration, limits).best.plan


def _fastest(case: Case) -> dict[Problem, Plan]:
    """The measured winner of every shape, the vendor if no plan beat it."""
    found: dict[Problem, tuple[float, Plan]] = {}
    for problem, plan, speedup, *_ in case.speedups:
        found[problem] = max(found.get(problem, (1.0, VENDOR)), (speedup, plan), key=lambda x: x[0])
    return {problem: plan for problem, (_, plan) in found.items()}


def named_at_right(axes: Any, points: Sequence[tuple[float, float, str]]) -> None:
    """Names in a column at the right, in the order of the heights of their points, with a line to each."""
    if not points:
        return
    axes.autoscale_view()  # the limits are needed now
    ordered = sorted(points, key=lambda x: (x[1], -x[0]))
    heights = _spread(axes.transAxes.inverted().transform(axes.transData.transform([p[:2] for p in ordered]))[:, 1])
    for (x, y, name), height in zip(ordered, heights, strict=True):
        line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5)}
        where = {"xytext": (1.04, height), "textcoords": "axes fraction", "va": "center", "fontsize": 7.5}
        axes.annotate(name, (x, y), arrowprops=line, **where)


def _spread(heights: Any) -> Any:
    """Heights in rising order, moved apart as little as a line of text needs, within 0 and 1."""
    gap = min(LINE, 1 / max(len(heights) - 1, 1))
    steps = gap * np.arange(len(heights))
    lowest = np.maximum.accumulate(heights - steps)
    highest = np.minimum.accumulate((heights - steps)[::-1])[::-1]
    return np.clip((lowest + highest) / 2, 0, 1 - steps[-1]) + steps


def plain_sides(axes: Any) -> None:
    """Ticks at powers of two, as whole numbers, on the logarithmic axes of sides."""
    from matplotlib.ticker import FixedLocator, NullLocator

    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            low, high = axis.get_view_interval()
            ticks = [
                float(2**e) for e in range(max(int(log2(max(low, 1))), 0), int(log2(high)) + 1) if low <= 2**e <= high
            ]
            axis.set_major_locator(FixedLocator(ticks[-1::-2] if len(ticks) > MOST_TICKS else ticks))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(lambda value, place: f"{value:.0f}")
