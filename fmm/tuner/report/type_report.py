"""The data from which the report of one element type on one device is drawn: config section, trials and model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from fmm.config import certification
from fmm.config.schema import Tuning
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Candidate, Limits, choose, default_error_growth_limit
from fmm.problem import Problem
from fmm.runtime.decisions.limits import WORKSPACE_SHARE
from fmm.tuner.devices.device import cached_plan_work, predicted_run_seconds
from fmm.tuner.findings.conclude import HELD_OUT_STAGE
from fmm.tuner.findings.model_in_use import ModelInUse
from fmm.tuner.fit.model import Observation, observed_medians
from fmm.tuner.search.certify import paired_samples
from fmm.tuner.trials.record import DEFAULT_OPERATION, RecordedTuning, Trial

UNLIMITED_BYTES = 1 << 62
MIN_MAP_SIDE = 256  # smallest matrix side that the plan map shows
MAX_PREDICTED_MAP_SIDE = 16384  # the plan map shows sides above this side only if products of that size were measured
MAP_SIDE_COUNT = 49  # number of sides along an axis of the plan map, before rounding makes some of the sides equal
MAP_SIDE_MULTIPLE = 128  # sides on the plan map are rounded down to multiples of this number
MAX_SHOWN_SIDE_RATIO = 2.0  # predictions are shown for sides up to this multiple of the largest measured side


@dataclass(frozen=True)
class TypeReport:
    """The config section of one element type on one device, and the trials that produced the section."""

    device: str
    dtype: str
    section: dict[str, Any]
    tuned: Tuning
    tuning: RecordedTuning
    calibration: Calibration  # the fitted calibration of the section
    sections: Mapping[str, Any]  # all config sections of the device, by element type
    used: ModelInUse  # the model that fmm.matmul uses: leaves without a measured rate have a rate from the datasheet
    first_look: tuple[Trial, ...] = ()  # trials of the coarse tuning before this tuning

    @property
    def choice_calibration(self) -> Calibration:
        """Return the calibration that fmm.matmul uses; for a rejected tuning, the tuning's fitted calibration."""
        return self.used.calibration or self.calibration

    @property
    def title(self) -> str:
        conditions = self.section["conditions"] or {}
        return f"{conditions.get('device', self.device)}, {self.dtype}"

    @cached_property
    def section_trials(self) -> tuple[Trial, ...]:
        """Return the trials from which the section was computed.

        The trials of the first look are included if the section's number of held-out times shows that the fit used
        them.
        """
        own = self.tuning.trials
        count = ((self.section["error"] or {}).get("time") or {}).get("count")
        return own if not self.first_look or _held_out_time_count(own) == count else self.first_look + own

    def observations_of_stages(self, *stages: str) -> list[Observation]:
        """Return the median seconds of each run that was timed in these stages, without runs of gram products."""
        return observed_medians([t for t in self.section_trials if t.op == DEFAULT_OPERATION], stages)

    def bytes_moved_by_plan(self, o: Observation) -> float:
        """Return the bytes that a plan moves: by its sums, and for the operands and results of its leaf products."""
        work, below = cached_plan_work(o.run.plan, o.problem), o.problem.itemsize
        for level in o.run.plan.levels:
            below = level.itemsize_of_products(below)
        products = sum((m * k + k * n + m * n) * times for m, k, n, times, _ in work.leaves)
        return work.traffic * o.problem.itemsize + products * below

    def predicted_seconds(self, o: Observation) -> float:
        """Return the seconds that the fitted calibration predicts for an observed run."""
        return predicted_run_seconds(o.run, o.problem, cached_plan_work(o.run.plan, o.problem), self.calibration)

    @cached_property
    def largest_cube_side(self) -> float:
        """Return the side of the square product with as many flops as the largest measured product."""
        return max(
            (equal_work_side(t.problem) for t in self.section_trials if t.seconds and t.part == "whole"), default=0.0
        )

    def model_choice(self, m: int, k: int, n: int) -> Candidate:
        """Return the model's choice for a product within the default limits of workspace and error."""
        problem = Problem(m, k, n, self.dtype)
        memory = (self.section["conditions"] or {}).get("memory")
        operands = problem.itemsize * (m * k + k * n + m * n)
        left = UNLIMITED_BYTES if not memory else max(int(WORKSPACE_SHARE * (memory - operands)), 0)
        return choose(
            problem, self.choice_calibration, Limits(left, default_error_growth_limit(self.choice_calibration.batches))
        ).best

    @cached_property
    def speedup_curve(self) -> list[tuple[int, float]]:
        """Return (side, predicted speedup) of squares up to MAX_SHOWN_SIDE_RATIO times the largest measured side."""
        return self.speedup_curve_up_to(MAX_SHOWN_SIDE_RATIO * self.largest_cube_side)

    def speedup_curve_up_to(self, last: float) -> list[tuple[int, float]]:
        """Return (side, predicted speedup of the model's choice) of square products, up to the side `last`."""
        return [(side, 1 / self.model_choice(side, side, side).time) for side in round_number_sides(0, last)]

    @cached_property
    def plan_map(self) -> tuple[list[int], dict[tuple[int, int], Plan]]:
        """Return the sides of the plan map, and the chosen plans by (index of the side m = n, index of the side k)."""
        last = max(
            self.largest_cube_side,
            min(MAX_SHOWN_SIDE_RATIO * self.largest_cube_side, MAX_PREDICTED_MAP_SIDE),
            2 * MIN_MAP_SIDE,
        )
        spaced = np.geomspace(MIN_MAP_SIDE, last, MAP_SIDE_COUNT)
        # The map shows only aligned sides: for unaligned sides, it would show plans that repair unaligned operands.
        sides = sorted({int(side // MAP_SIDE_MULTIPLE * MAP_SIDE_MULTIPLE) for side in spaced})
        return sides, choices_on_grid(lambda i, j: self.model_choice(sides[i], sides[j], sides[i]).plan, len(sides))

    @cached_property
    def measured_speedups(self) -> list[tuple[Problem, Plan, float, float, float]]:
        """Return (problem, plan, median speedup, low, high) for each plan that was timed in rounds with the vendor."""
        rounds: dict[tuple[str, str, tuple[int, int, int]], list[Trial]] = {}
        for t in self.section_trials:
            if t.op == DEFAULT_OPERATION and t.part == "whole":
                rounds.setdefault((t.run, t.stage, t.size), []).append(t)
        found = []
        for (_, _, size), trials in rounds.items():
            for plan, base, own in paired_samples(trials):
                ratios = certification.paired_ratios(base, own)
                low, high = certification.median_interval(ratios)
                found.append((Problem(*size, self.dtype), Plan.parse(plan), float(np.median(ratios)), low, high))
        return found


def _held_out_time_count(trials: Sequence[Trial]) -> int:
    """Return the number of held-out times as a config section counts them: without runs of fmm's own tiled kernel."""
    return sum(not o.run.plan.uses_tile_model for o in observed_medians(trials, (HELD_OUT_STAGE,)))


def equal_work_side(problem: Problem) -> float:
    """Return the side of the square product with as many flops as the problem: (m k n)^(1/3)."""
    return float((problem.m * problem.k * problem.n) ** (1 / 3))


def round_number_sides(low: float, high: float) -> list[int]:
    """Return the sides 2^p e / 8 from `low` to `high`, for integers p from 9 to 16 and e from 8 to 15.

    The block sizes of levels divide these sides, so that a curve of speedups does not show the cost of fringes.
    """
    every = (2**power * eighths // 8 for power in range(9, 17) for eighths in range(8, 16))
    return [side for side in every if low <= side <= high]


MAP_TILE_POINTS = 8  # `choices_on_grid` first divides the grid in squares with this number of steps along a side


def choices_on_grid(chosen: Callable[[int, int], Any], count: int) -> dict[tuple[int, int], Any]:
    """Return chosen(i, j) for each point of a count x count grid, with fewer calls of `chosen` than points.

    If the four corners of a rectangle of the grid have the same choice, all its points have this choice. A rectangle
    with different choices at its corners is split into four. A small area with another choice is missed if it is inside
    a rectangle with the same choice at all four corners.
    """
    found: dict[tuple[int, int], Any] = {}

    def choice_at(i: int, j: int) -> Any:
        if (i, j) not in found:
            found[i, j] = chosen(i, j)
        return found[i, j]

    def fill_rectangle_of_grid(i: range, j: range) -> None:
        corners = {choice_at(x, y) for x in (i[0], i[-1]) for y in (j[0], j[-1])}
        if len(corners) == 1:
            found.update({(x, y): found[i[0], j[0]] for x in i for y in j if (x, y) not in found})
        elif max(len(i), len(j)) > 2:
            for x in _split_range(i):
                for y in _split_range(j):
                    fill_rectangle_of_grid(x, y)

    edges = sorted({*range(0, count, MAP_TILE_POINTS), count - 1})
    intervals = [range(low, high + 1) for low, high in pairwise(edges)] or [range(count)]
    for i in intervals:
        for j in intervals:
            fill_rectangle_of_grid(i, j)
    return found


def _split_range(points: range) -> Sequence[range]:
    """Return the two halves of a range, each with the middle point; a range of at most two points is not split."""
    middle = len(points) // 2
    return (points[: middle + 1], points[middle:]) if len(points) > 2 else (points,)
