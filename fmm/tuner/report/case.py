"""What the report is drawn from: one type on one device, its section of the config and the trials that led to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from fmm.config import certify
from fmm.config.schema import Tuned
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Candidate, Limits, choose, default_error_growth
from fmm.problem import Problem
from fmm.runtime.decisions.limits import WORKSPACE_SHARE
from fmm.tuner.devices.device import cached_work, formula_seconds
from fmm.tuner.findings.conclude import HELD_OUT
from fmm.tuner.findings.model_in_use import ModelInUse
from fmm.tuner.fit.model import Observation, stage_medians
from fmm.tuner.search.certify import paired_samples
from fmm.tuner.trials.record import PRODUCT, Trial, Tuning

NO_LIMIT = 1 << 62
MAP_LEAST, MAP_ENOUGH, MAP_POINTS, MAP_ROUND = 256, 16384, 49, 128  # sides: the first, one to reach if possible, ...
REACH = 2.0  # times the largest side that was measured: beyond, nothing is shown


@dataclass(frozen=True)
class Case:
    """One element type on one device: its section of the config, and the trials that led to it."""

    device: str
    dtype: str
    section: dict[str, Any]
    tuned: Tuned
    tuning: Tuning
    calibration: Calibration  # as it was fitted
    sections: Mapping[str, Any]  # of the device, by type
    used: ModelInUse  # by which fmm.matmul chooses: it knows more, of leaves that no tuning measures
    first_look: tuple[Trial, ...] = ()  # what came before the tuning

    @property
    def choosing(self) -> Calibration:
        """The model in use, or of a tuning that is not used its own."""
        return self.used.calibration or self.calibration

    @property
    def title(self) -> str:
        conditions = self.section["conditions"] or {}
        return f"{conditions.get('device', self.device)}, {self.dtype}"

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """All that the section was concluded from: also the first look before the tuning, unless that was disturbed, or
        not yet counted at the time, as the section's number of held-out times tells."""
        own = self.tuning.trials
        count = ((self.section["error"] or {}).get("time") or {}).get("count")
        return own if not self.first_look or _held_out_count(own) == count else self.first_look + own

    def seen(self, *stages: str) -> list[Observation]:
        """Medians of products of those stages."""
        return stage_medians([t for t in self.trials if t.op == PRODUCT], stages)

    def moved_bytes(self, o: Observation) -> float:
        """What the sums move, and the operands and results of the products that are left: each once."""
        work, below = cached_work(o.run.plan, o.problem), o.problem.itemsize
        for level in o.run.plan.levels:
            below = level.itemsize_below(below)
        products = sum((m * k + k * n + m * n) * times for m, k, n, times, _ in work.leaves)
        return work.traffic * o.problem.itemsize + products * below

    def expected(self, o: Observation) -> float:
        return formula_seconds(o.run, o.problem, cached_work(o.run.plan, o.problem), self.calibration)

    @cached_property
    def largest(self) -> float:
        """The side of the cube with as much work as the largest product that was measured."""
        return max((cube_side(t.problem) for t in self.trials if t.seconds and t.part == "whole"), default=0.0)

    def choice(self, m: int, k: int, n: int) -> Candidate:
        """The model's for a product, with half of the memory that is left beside the operands, as the runtime allows
        itself: the same for all tables and pictures."""
        problem = Problem(m, k, n, self.dtype)
        memory = (self.section["conditions"] or {}).get("memory")
        operands = problem.itemsize * (m * k + k * n + m * n)
        left = NO_LIMIT if not memory else max(int(WORKSPACE_SHARE * (memory - operands)), 0)
        return choose(problem, self.choosing, Limits(left, default_error_growth(self.choosing.batches))).best

    @cached_property
    def curve(self) -> list[tuple[int, float]]:
        """Side and speedup of the model's choice for squares, as far as is shown."""
        return self.curve_to(REACH * self.largest)

    def curve_to(self, last: float) -> list[tuple[int, float]]:
        """The same to a side."""
        return [(side, 1 / self.choice(side, side, side).time) for side in round_sides(0, last)]

    @cached_property
    def map(self) -> tuple[list[int], dict[tuple[int, int], Plan]]:
        """Sides, and by their places the plans that are chosen for m = n of the first and k of the second."""
        last = max(self.largest, min(REACH * self.largest, MAP_ENOUGH), 2 * MAP_LEAST)
        some = np.geomspace(MAP_LEAST, last, MAP_POINTS)
        sides = sorted({int(side // MAP_ROUND * MAP_ROUND) for side in some})  # others would show their alignments
        return sides, mapped(lambda i, j: self.choice(sides[i], sides[j], sides[i]).plan, len(sides))

    @cached_property
    def speedups(self) -> list[tuple[Problem, Plan, float, float, float]]:
        """Problem, plan, median paired speedup and its interval, of every plan that was measured with the vendor, in
        whichever stage: those of our own kernels have one of their own."""
        rounds: dict[tuple[str, str, tuple[int, int, int]], list[Trial]] = {}
        for t in self.trials:
            if t.op == PRODUCT and t.part == "whole":
                rounds.setdefault((t.run, t.stage, t.size), []).append(t)
        found = []
        for (_, _, size), trials in rounds.items():
            for plan, base, own in paired_samples(trials):
                ratios = certify.paired_ratios(base, own)
                low, high = certify.median_interval(ratios)
                found.append((Problem(*size, self.dtype), Plan.parse(plan), float(np.median(ratios)), low, high))
        return found


def _held_out_count(trials: Sequence[Trial]) -> int:
    """Of how many times the section's error tells: those of our own tiled kernel are judged apart."""
    return sum(not o.run.plan.uses_tile_model for o in stage_medians(trials, (HELD_OUT,)))


def cube_side(problem: Problem) -> float:
    """The side of the cube with as much work."""
    return float((problem.m * problem.k * problem.n) ** (1 / 3))


def round_sides(low: float, high: float) -> list[int]:
    """Eight for each doubling, and only such: lines over any sides would show their fringes."""
    every = (2**power * eighths // 8 for power in range(9, 17) for eighths in range(8, 16))
    return [side for side in every if low <= side <= high]


BLOCK = 8  # points of a block that is taken for one if its corners agree


def mapped(chosen: Callable[[int, int], Any], count: int) -> dict[tuple[int, int], Any]:
    """What is chosen at each of count x count points. A block whose corners agree is taken to be all alike, any other
    is cut into four, down to single points; so borders are exact, and only islands smaller than a block may be missed.
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
            for x in _halves(i):
                for y in _halves(j):
                    fill(x, y)

    edges = sorted({*range(0, count, BLOCK), count - 1})
    blocks = [range(low, high + 1) for low, high in pairwise(edges)] or [range(count)]
    for i in blocks:
        for j in blocks:
            fill(i, j)
    return found


def _halves(points: range) -> Sequence[range]:
    """Two that share the middle point; one where there is none between."""
    middle = len(points) // 2
    return (points[: middle + 1], points[middle:]) if len(points) > 2 else (points,)
