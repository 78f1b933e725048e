"""A refinement that is cut short: it never ends with a worse config than the first look before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fmm.config import schema
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, default_error_growth_limit
from fmm.problem import Problem
from fmm.runtime.decisions.calibration_in_force import complete_calibration
from fmm.runtime.decisions.decide import decide_by_model, find_certified_entry
from fmm.tuner.devices.device import GPU_EFFORTS
from fmm.tuner.findings.conclude import conclude_section
from fmm.tuner.findings.ladder import LADDER_STAGE
from fmm.tuner.trials.journal import Journal
from fmm.tuner.trials.record import Trial
from fmm.tuner.tune_type import tune_type
from tests.support.chips import H200
from tests.support.cold_gpu import SHEET, TYPES, ColdGpu, scaled

SIDES = (2048, 4096, 8192, 16384)
LOST = 0.97  # of the first look's speed: what noise may cost
WHOLE = 400.0  # seconds, of which the compiler takes some
BRIEF = 90.0  # seconds of the refinement in the quick run


def with_faster_leaves(known: Calibration, by: float) -> Calibration:
    """As an H200 has them beside the datasheet: its leaves with rates of their own are faster, the library slower."""
    rates = {x: rate if x in TYPES else replace(rate, flops=by * rate.flops) for x, rate in known.rates.items()}
    return replace(known, rates=rates)


@dataclass(frozen=True)
class Tuned:
    """A type's first look, and the whole refinement that followed."""

    device: ColdGpu
    dtype: str
    first: tuple[Trial, ...]
    refined: tuple[Trial, ...]

    def first_section(self) -> dict[str, Any]:
        found = conclude_section(Journal("first", self.device, self.first, is_live=False), self.dtype)
        assert found is not None and not found["doubts"]
        return found

    def section_at(self, seconds: float) -> dict[str, Any] | None:
        """What a refinement would write that was cut then."""
        past = [t for t in self.refined if t.elapsed <= seconds]
        return conclude_section(Journal("then", self.device, past, is_live=False, first_look=self.first), self.dtype)

    def speeds(self, section: object) -> dict[int, float]:
        """The true speedups of what would be run."""
        tuned = schema.read_section(section, "test", self.device.identity, self.dtype)
        known, limits = (
            complete_calibration(tuned, None, SHEET),
            Limits(self.device.memory_bytes, default_error_growth_limit(True)),
        )
        found = {}
        for side in SIDES:
            problem = Problem(side, side, side, self.dtype)
            entry = find_certified_entry(problem, limits, tuned)
            plan: Plan = (entry or decide_by_model(problem, limits, known, True, self.device.identity)).plan
            found[side] = self.device.true_speedup(plan, problem)
        return found


LONG_TYPES = ("float64", "float32", "complex64")
REFINEMENTS = [("float64", BRIEF), *(pytest.param((dtype, WHOLE), marks=pytest.mark.slow) for dtype in LONG_TYPES)]


@pytest.fixture(scope="module", params=REFINEMENTS, ids=lambda x: f"{x[0]} {x[1]:g}")
def tuned(request: pytest.FixtureRequest) -> Iterator[Tuned]:
    dtype, limit = request.param
    truth = with_faster_leaves(scaled(SHEET, 0.93, 1.1), 1.15)
    device = ColdGpu(truth=truth, noise=0.01, gpu=True, chip=H200, memory_bytes=1 << 37, prior_calibration=None)
    first = Journal("first", device, clock=device.clock)
    assert tune_type(first, dtype, GPU_EFFORTS["coarse"]).stopped == ""
    after = Journal("refined", device, clock=device.clock, limit=limit, first_look=first.recorded)
    tune_type(after, dtype, GPU_EFFORTS["default"])
    yield Tuned(device, dtype, tuple(first.recorded), tuple(after.recorded))


@pytest.mark.slow
def test_a_refinement_that_is_cut_short_is_used_and_loses_nothing(tuned: Tuned) -> None:
    """At moments when as many more samples were taken, from the first one on."""
    before, count = tuned.speeds(tuned.first_section()), len(tuned.refined)
    counts = {min(i, count - 1) for i in (5, 60, 130, 180, 300, 600, 1200, 2500, count)}
    for seconds in (tuned.refined[i].elapsed for i in sorted(counts)):
        section = tuned.section_at(seconds)
        if section is not None:  # else the first look's stands
            assert section["doubts"] == [], (seconds, section["doubts"])
            found = tuned.speeds(section)
            assert all(found[side] > LOST * before[side] for side in SIDES), (tuned.dtype, seconds, found, before)


@pytest.mark.slow
def test_leaves_with_rates_of_their_own_are_measured_early(tuned: Tuned) -> None:
    """Before any plan with levels, except those of the ladder, which has its own short time, and of the search."""
    plans = list(dict.fromkeys(t.plan for t in tuned.refined if t.stage not in (LADDER_STAGE, "search")))
    own = [i for i, text in enumerate(plans) if Plan.parse(text).leaf_use.leaf.rate and not Plan.parse(text).levels]
    with_levels = [i for i, text in enumerate(plans) if Plan.parse(text).levels]
    assert max(own, default=-1) < min(with_levels, default=len(plans))
