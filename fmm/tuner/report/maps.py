"""Draw the plan map of one element type: the chosen plan over m = n and k, and the fastest measured plans."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.problem import Problem
from fmm.tuner.report.figures import (
    BEIGE,
    BLACK,
    LIGHT_GREY,
    PLAN_COLOURS,
    add_legend_below,
    new_figure,
    plan_legend_name,
    set_power_of_two_ticks,
)
from fmm.tuner.report.type_report import TypeReport

# the plan map shows a measured shape only if m / n is between 1 / MAX_SIDE_RATIO and MAX_SIDE_RATIO
MAX_SIDE_RATIO = 2.0


def draw_plan_map(report: TypeReport) -> Any:
    """Return the figure of the plan map.

    The colour of an area shows which plan the model chooses for products of m x k by k x m matrices. The colour of a
    point shows which plan was measured to be the fastest for this problem.
    """
    from matplotlib.colors import BoundaryNorm, ListedColormap

    figure, axes = new_figure()
    sides, chosen = report.plan_map
    met = Counter(chosen.values())
    coloured = _area_colours(met)
    plans = list(coloured)
    every = range(len(sides))
    index = np.array([[plans.index(_coloured_plan_or_none(chosen[i, j], coloured)) for i in every] for j in every])
    cells = ListedColormap(list(coloured.values())), BoundaryNorm(np.arange(len(plans) + 1) - 0.5, len(plans))
    axes.pcolormesh(sides, sides, index, cmap=cells[0], norm=cells[1], shading="nearest", rasterized=True)
    for plan, colour in coloured.items():
        name = f"{len(met.keys() - coloured.keys())} other plans" if plan is None else plan_legend_name(plan)
        axes.plot([], [], "s", ms=8, color=colour, label=name)
    best = {
        p: plan for p, plan in fastest_measured_plans(report).items() if 1 / MAX_SIDE_RATIO < p.m / p.n < MAX_SIDE_RATIO
    }
    points = _point_colours(Counter(best.values()), coloured)
    for problem, plan in best.items():
        where = (problem.m * problem.n) ** 0.5, problem.k
        axes.plot(*where, "o", ms=5, mfc=points.get(plan, coloured.get(plan, "white")), mec=BLACK, mew=0.7)
    for plan, colour in points.items():
        axes.plot([], [], "o", ms=5, mfc=colour, mec=BLACK, mew=0.7, label=f"measured: {plan_legend_name(plan)}")
    if set(best.values()) - points.keys() - coloured.keys():
        axes.plot([], [], "o", ms=5, mfc="white", mec=BLACK, mew=0.7, label="measured: another plan")
    axes.set(xscale="log", yscale="log", xlabel="m = n", ylabel="k")
    axes.set_title("The fastest plan: predicted and measured")
    add_legend_below(figure, axes)
    set_power_of_two_ticks(axes)
    return figure


def fastest_measured_plans(report: TypeReport) -> dict[Problem, Plan]:
    """Return the fastest measured plan of each problem; the vendor's product if no plan was faster."""
    found: dict[Problem, tuple[float, Plan]] = {}
    for problem, plan, speedup, *_ in report.measured_speedups:
        found[problem] = max(found.get(problem, (1.0, VENDOR)), (speedup, plan), key=lambda x: x[0])
    return {problem: plan for problem, (_, plan) in found.items()}


def _area_colours(plans_on_map: Counter[Plan]) -> dict[Plan | None, str]:
    """Return the colour of each plan's areas on the map; the key None has the one colour of all other plans."""
    often = [plan for plan, _ in plans_on_map.most_common() if plan != VENDOR]
    own = sorted(often[: len(PLAN_COLOURS)], key=str)
    known: dict[Plan | None, str] = {VENDOR: LIGHT_GREY}
    known.update(zip(own, PLAN_COLOURS, strict=False))
    return known | ({None: BEIGE} if len(often) > len(own) else {})


def _point_colours(best: Counter[Plan], coloured: dict[Plan | None, str]) -> dict[Plan, str]:
    """Return a colour for each plan that is the fastest at a measured point and has no coloured area on the map."""
    often = [plan for plan, _ in best.most_common() if plan not in coloured]
    free = [colour for colour in PLAN_COLOURS if colour not in coloured.values()]
    return dict(zip(often, free, strict=False))


def _coloured_plan_or_none(plan: Plan, coloured: dict[Plan | None, str]) -> Plan | None:
    """Return the plan if the plan map has a colour for this plan, else None."""
    return plan if plan in coloured else None
