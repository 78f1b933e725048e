"""The data of the report: one element type of one device, its section of the config and its trials."""

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
from fmm.tuner.devices.device import cached_work, formula_seconds
from fmm.tuner.findings.conclude import HELD_OUT_STAGE
from fmm.tuner.findings.model_in_use import ModelInUse
from fmm.tuner.fit.model import Observation, observed_medians
from fmm.tuner.search.certify import paired_samples
from fmm.tuner.trials.record import DEFAULT_OPERATION, RecordedTuning, Trial

UNLIMITED_BYTES = 1 << 62
MIN_MAP_SIDE, MAX_PREDICTED_MAP_SIDE, MAP_SIDE_COUNT, MAP_SIDE_MULTIPLE = (
    256,
    16384,
    49,
    128,
)  # sides of the map: first, last, number, multiple
MAX_SHOWN_SIDE_RATIO = 2.0  # predictions are shown up to this multiple of the largest measured side


@dataclass(frozen=True)
class TypeReport:
    """One element type of one device: its section of the config, and the trials that led to the section."""

    device: str
    dtype: str
    section: dict[str, Any]
    tuned: Tuning
    tuning: RecordedTuning
    calibration: Calibration  # the fitted calibration of the section
    sections: Mapping[str, Any]  # sections of the device by type
    used: ModelInUse  # the model of fmm.matmul, with the datasheet's rates of unmeasured leaves
    first_look: tuple[Trial, ...] = ()  # trials before the tuning

    @property
    def choice_calibration(self) -> Calibration:
        """The model in use, or the fitted model of a rejected tuning."""
        return self.used.calibration or self.calibration

    @property
    def title(self) -> str:
        conditions = self.section["conditions"] or {}
        return f"{conditions.get('device', self.device)}, {self.dtype}"

    @cached_property
    def section_trials(self) -> tuple[Trial, ...]:
        """The trials of the section, with those of the first look if the section's held-out times include them."""
        own = self.tuning.trials
        count = ((self.section["error"] or {}).get("time") or {}).get("count")
        return own if not self.first_look or _held_out_count(own) == count else self.first_look + own

    def observations_of_stages(self, *stages: str) -> list[Observation]:
        """Return the median seconds of products in these stages."""
        return observed_medians([t for t in self.section_trials if t.op == DEFAULT_OPERATION], stages)

    def moved_bytes(self, o: Observation) -> float:
        """Return the bytes moved by the sums, and once by each operand and result of the leaf products."""
        work, below = cached_work(o.run.plan, o.problem), o.problem.itemsize
        for level in o.run.plan.levels:
            below = level.itemsize_below(below)
        products = sum((m * k + k * n + m * n) * times for m, k, n, times, _ in work.leaves)
        return work.traffic * o.problem.itemsize + products * below

    def predicted_seconds(self, o: Observation) -> float:
        return formula_seconds(o.run, o.problem, cached_work(o.run.plan, o.problem), self.calibration)

    @cached_property
    def largest_cube_side(self) -> float:
        """The side of the cube with as much work as the largest measured product."""
        return max(
            (equal_work_side(t.problem) for t in self.section_trials if t.seconds and t.part == "whole"), default=0.0
        )

    def model_choice(self, m: int, k: int, n: int) -> Candidate:
        """Return the model's choice for a product with the runtime's default share of the memory as workspace."""
        problem = Problem(m, k, n, self.dtype)
        memory = (self.section["conditions"] or {}).get("memory")
        operands = problem.itemsize * (m * k + k * n + m * n)
        left = UNLIMITED_BYTES if not memory else max(int(WORKSPACE_SHARE * (memory - operands)), 0)
        return choose(
            problem, self.choice_calibration, Limits(left, default_error_growth_limit(self.choice_calibration.batches))
        ).best

    @cached_property
    def speedup_curve(self) -> list[tuple[int, float]]:
        """Side and speedup of the model's choice for squares, up to MAX_SHOWN_SIDE_RATIO times the measured sides."""
        return self.speedup_curve_to(MAX_SHOWN_SIDE_RATIO * self.largest_cube_side)

    def speedup_curve_to(self, last: float) -> list[tuple[int, float]]:
        """Return side and speedup of the model's choice for squares up to a side."""
        return [(side, 1 / self.model_choice(side, side, side).time) for side in round_number_sides(0, last)]

    @cached_property
    def plan_map(self) -> tuple[list[int], dict[tuple[int, int], Plan]]:
        """The sides of the map, and the plan at each pair of their indices: m = n first, k second."""
        last = max(
            self.largest_cube_side,
            min(MAX_SHOWN_SIDE_RATIO * self.largest_cube_side, MAX_PREDICTED_MAP_SIDE),
            2 * MIN_MAP_SIDE,
        )
        some = np.geomspace(MIN_MAP_SIDE, last, MAP_SIDE_COUNT)
        sides = sorted(
            {int(side // MAP_SIDE_MULTIPLE * MAP_SIDE_MULTIPLE) for side in some}
        )  # other sides would show their alignment
        return sides, choices_on_grid(lambda i, j: self.model_choice(sides[i], sides[j], sides[i]).plan, len(sides))

    @cached_property
    def measured_speedups(self) -> list[tuple[Problem, Plan, float, float, float]]:
        """Problem, plan, median paired speedup and its interval of every plan timed with the vendor, in any stage."""
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


def _held_out_count(trials: Sequence[Trial]) -> int:
    """Return the number of held-out times in the section's error, which excludes fmm's own tiled kernel."""
    return sum(not o.run.plan.uses_tile_model for o in observed_medians(trials, (HELD_OUT_STAGE,)))


def equal_work_side(problem: Problem) -> float:
    """Return the side of the cube with as much work."""
    return float((problem.m * problem.k * problem.n) ** (1 / 3))


def round_number_sides(low: float, high: float) -> list[int]:
    """Return eight round sides for each doubling: lines over other sides would show their fringes."""
    every = (2**power * eighths // 8 for power in range(9, 17) for eighths in range(8, 16))
    return [side for side in every if low <= side <= high]


MAP_TILE_POINTS = 8  # number of points along a side of a block


def choices_on_grid(chosen: Callable[[int, int], Any], count: int) -> dict[tuple[int, int], Any]:
    """Return the choice at each of count x count points, from few evaluations.

    A block whose corners agree is uniform; any other is split into four. Borders are exact; islands smaller than a
    block may be missed.
    """
    found: dict[tuple[int, int], Any] = {}

    def at(i: int, j: int) -> Any:
        if (i, j) not in found:
            found[i, j] = chosen(i, j)
        return found[i, j]

    def fill(i: range, j: range) -> None:
        corners = {at(x, y) for x in (i[0], i[-1]) for y in (j[0], j[-1])}
        if len(corners) == 1:
            found.update({(x, y): found[i[0], j[0]] for x in i for y in j if (x, y) not in found})
        elif max(len(i), len(j)) > 2:
            for x in _split_range(i):
                for y in _split_range(j):
                    fill(x, y)

    edges = sorted({*range(0, count, MAP_TILE_POINTS), count - 1})
    blocks = [range(low, high + 1) for low, high in pairwise(edges)] or [range(count)]
    for i in blocks:
        for j in blocks:
            fill(i, j)
    return found


def _split_range(points: range) -> Sequence[range]:
    """Return two ranges that share the middle point, or the range itself if no point is between its ends."""
    middle = len(points) // 2
    return (points[: middle + 1], points[middle:]) if len(points) > 2 else (points,)
