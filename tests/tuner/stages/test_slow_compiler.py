"""A tuning of a GPU whose kernels take long to compile: what was measured by then can be used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pytest

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.problem import Problem
from fmm.tuner.devices.compile_ahead import MIN_HEAVY_PRODUCTS, largest_level_products
from fmm.tuner.devices.device import TimedRun
from fmm.tuner.stages.probes import measure_probes
from fmm.tuner.trials.journal import Journal, RoundLimits, TimeUpError
from fmm.tuner.tune_type import tune_type
from tests.support.busy_device import BusyDevice, BusySession, decided_plan

GPU = Calibration(
    "fake GPU",
    "",
    MappingProxyType({"float64": ProductRate(5e13, 5e4, 30.0, unaligned=1.4)}),
    4e12,
    1e5,
    3e-6,
    batches=True,
)
SOON, OWN_KERNEL, LAST = 3.0, 2.0, 100.0  # seconds until kernels are there, from the beginning or from the question on


@dataclass
class ColdGpu(BusyDevice):
    """Workers compile sums from the beginning on; product kernels of our own are compiled when one is prepared."""

    def wait_for_kernels(self, dtype: str, plan: Plan, seconds: float) -> bool:
        ready = LAST if largest_level_products(plan) >= MIN_HEAVY_PRODUCTS else SOON
        if ready > self.now + seconds:
            self.now += seconds
            return False
        self.now = max(self.now, ready)
        return True


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> ColdGpu:
    compiled = set[str]()
    prepare = BusySession.prepare_run

    def compiling(session: BusySession, run: TimedRun) -> None:
        if run.plan.uses_tile_model and str(run.plan) not in compiled:
            compiled.add(str(run.plan))
            session.device.now += OWN_KERNEL  # type: ignore[attr-defined]
        prepare(session, run)

    monkeypatch.setattr(BusySession, "prepare_run", compiling)
    known = replace(
        GPU, rates={"float64": replace(GPU.require_rate("float64"), flops=4.5e13)}, stream=3.5e12
    )  # of such cards
    return ColdGpu(truth=GPU, noise=0.01, gpu=True, memory_bytes=1 << 38, prior_calibration=known)


def tuned(device: ColdGpu, limit: float) -> tuple[Journal, dict[str, Any]]:
    journal = Journal("run", device, limit=limit, clock=device.clock)
    section = tune_type(journal, "float64", device.efforts_by_name["quick"]).section
    assert section is not None
    return journal, section


@pytest.mark.slow
def test_held_out_shapes_come_before_what_is_waited_for(cold: ColdGpu) -> None:
    """Those of the fit too; each with a plan whose kernels are there."""
    effort = replace(cold.efforts_by_name["quick"], held_out=5)
    journal = Journal("run", cold, limit=effort.most, clock=cold.clock)
    with pytest.raises(TimeUpError):
        measure_probes(journal, "float64", 8192, effort)
    assert max(largest_level_products(Plan.parse(t.plan)) for t in journal.recorded) < MIN_HEAVY_PRODUCTS
    for stage in ("held out", "probe"):
        seen = {t.size for t in journal.recorded if t.stage == stage and Plan.parse(t.plan).levels}
        assert len(seen) >= effort.held_out


def test_waiting_for_the_compiler_does_not_count_up_to_a_bound(cold: ColdGpu) -> None:
    """Sums that are there after three seconds, and some that never are."""
    light, heavy = (TimedRun(Plan.parse(f"{name}.batched.pad16 > vendor")) for name in ("strassen", "strassen^3"))
    journal = Journal("run", cold, limit=1.0, clock=cold.clock, compiler_wait_seconds=10.0)
    with journal.open_timed_problem("probe", Problem(512, 512, 512)) as timed:
        assert timed.sample_rounds([light], RoundLimits(1))[light]
        assert journal.limit == pytest.approx(1.0 + SOON) and journal.waits == pytest.approx(10.0 - SOON)
        with pytest.raises(TimeUpError):
            timed.sample_rounds([heavy], RoundLimits(1))
    assert cold.now == pytest.approx(11.0) and journal.waits == 0


def test_who_has_something_else_to_do_does_not_wait_for_the_compiler(cold: ColdGpu) -> None:
    """The first pass ends with what needs no kernels, and concludes nothing; the second one goes on there."""
    effort = cold.efforts_by_name["coarse"]
    first = Journal("run", cold, limit=effort.most, clock=cold.clock, kernel_wait_seconds=0.1)
    outcome = tune_type(first, "float64", effort)
    assert outcome.section is None and "compiled" in outcome.stopped
    assert cold.now < SOON and {t.plan for t in first.recorded} == {"vendor"}
    cold.now = SOON
    before = max(t.elapsed for t in first.recorded)
    second = Journal("run", cold, first.recorded, limit=before + effort.most, clock=cold.clock)
    section = tune_type(second, "float64", effort).section
    assert section is not None and section["error"]["speedup"]["count"] >= 5 and section["doubts"] == []


@pytest.mark.slow
def test_a_first_look_that_is_cut_short_concludes_nothing(cold: ColdGpu) -> None:
    """It is taken up again, so that a fit of what nothing confirms would only cost seconds."""
    journal = Journal("run", cold, limit=0.2, clock=cold.clock, kernel_wait_seconds=0.1)
    outcome = tune_type(journal, "float64", cold.efforts_by_name["coarse"])
    assert outcome.section is None and outcome.stopped == "the time limit was reached" and journal.recorded
    firm = Journal("run", cold, limit=2.0, clock=cold.clock)
    assert tune_type(firm, "float64", cold.efforts_by_name["coarse"]).section is not None, "nobody takes it up again"


@pytest.mark.slow
def test_what_is_soon_compiled_is_checked_before_the_rest_is_waited_for(cold: ColdGpu) -> None:
    """The time is up while the compiler works: the model was fitted to what had been measured, and is used."""
    journal, section = tuned(cold, cold.efforts_by_name["quick"].most)
    assert cold.now >= cold.efforts_by_name["quick"].most < LAST
    assert section["doubts"] == [] and section["error"]["speedup"]["count"] >= cold.efforts_by_name["quick"].held_out
    assert max(largest_level_products(Plan.parse(t.plan)) for t in journal.recorded) < MIN_HEAVY_PRODUCTS
    problem = Problem(16384, 16384, 16384)
    plan = decided_plan(cold, problem, section)
    assert plan != VENDOR and cold.true_speedup(plan, problem) > 1.05


@pytest.mark.slow
def test_with_time_enough_all_plans_are_probed(cold: ColdGpu) -> None:
    """Each on the shapes and in the stages that are meant for it, however long it had to be waited for."""
    journal, section = tuned(cold, 10 * LAST)
    assert section["doubts"] == []
    seen = {t.stage for t in journal.recorded if largest_level_products(Plan.parse(t.plan)) >= MIN_HEAVY_PRODUCTS}
    assert {"probe", "held out"} <= seen
    last = max(i for i, t in enumerate(journal.recorded) if t.stage == "held out" and t.plan != "vendor")
    assert largest_level_products(Plan.parse(journal.recorded[last].plan)) >= MIN_HEAVY_PRODUCTS
