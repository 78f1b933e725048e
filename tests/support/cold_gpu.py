"""A simulated GPU for which no kernel is compiled when its tuning begins. Its clock is simulated, too."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.candidates import probed_plans
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.problem import Problem
from fmm.tuner.devices.compile_ahead import (
    CompileJob,
    compilation_phase,
    is_needed_by_first_look,
    kernel_keys,
    tuning_compile_jobs,
)
from fmm.tuner.devices.device import TimedRun
from tests.support.busy_device import BusyDevice, BusySession

TYPES = ("float32", "float64", "bfloat16", "tf32", "float16", "complex64", "complex128")
STORED = tuple(t for t in TYPES if t != "tf32")  # TF32 is stored as float32
SHEET = datasheet_calibration("H200")
WORKERS, STARTED = 14, 3.0  # processes that compile, and the seconds until they have begun
# The seconds in which the tuner opens a problem, the bytes a second with which it fills operands, and the
# least seconds of a sample, as in the first tunings of an H200.
OPENED, FILLED, SHORTEST = 0.06, 6e9, 5e-3
CANDIDATES: tuple[Plan, ...] = probed_plans("cuda")


def scaled(known: Calibration, flops: float, stream: float) -> Calibration:
    """Return the calibration of another card, with scaled rates."""
    rates = {name: replace(rate, flops=flops * rate.flops) for name, rate in known.rates.items()}
    return replace(known, rates=rates, stream=stream * known.stream)


def compile_seconds(job: CompileJob) -> float:
    """Return the seconds that NVRTC takes for a job, on the host of an H200."""
    plan = Plan.parse(job.plan)
    return (
        5.0
        if is_needed_by_first_look(plan) and not plan.leaf_use.leaf.rate
        else (12.0, 15.0, 30.0)[compilation_phase(plan)]
    )


def ready_times(jobs: list[CompileJob]) -> Mapping[Any, float]:
    """Return the seconds after which all jobs of each kernel are done, if workers take one job after the
    other."""
    free, found = [STARTED] * WORKERS, dict[Any, float]()
    for job in jobs:
        end = heapq.heappop(free) + compile_seconds(job)
        heapq.heappush(free, end)
        for made in kernel_keys(Plan.parse(job.plan), job.dtype):
            found[made] = max(found.get(made, 0.0), end)
    return found


@dataclass
class ColdGpu(BusyDevice):
    """A simulated GPU with all its types, for which no kernel is compiled when the tuning begins."""

    ready: Mapping[Any, float] = field(
        default_factory=lambda: ready_times(list(tuning_compile_jobs(STORED, CANDIDATES)))
    )

    @property
    def dtypes(self) -> tuple[str, ...]:
        return TYPES

    def untuned_model(self) -> Calibration:
        return SHEET

    def wait_for_kernels(self, dtype: str, plan: Plan, seconds: float) -> bool:
        ready = max((self.ready.get(x, 0.0) for x in kernel_keys(plan, dtype)), default=0.0)
        if ready > self.now + seconds:
            self.now += seconds
            return False
        self.now = max(self.now, ready)
        return True

    @contextmanager
    def open_session(self, problem: Problem, seed: int) -> Iterator[BusySession]:
        m, k, n = problem.size
        self.now += OPENED + (m * k + k * n + m * n) * problem.itemsize / FILLED
        with super().open_session(problem, seed) as session:
            assert isinstance(session, BusySession)
            yield ShortSession(session.device, problem, session.random)


class ShortSession(BusySession):
    """Samples in which short products are repeated so that they can be measured."""

    def sample_seconds(self, run: TimedRun) -> float:
        assert isinstance(self.device, BusyDevice)
        seconds = super().sample_seconds(run)
        self.device.now += max(SHORTEST - seconds, 0.0)
        return seconds
