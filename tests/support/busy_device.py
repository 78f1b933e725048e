"""A simulated device that other programs use too. Its clock is simulated: true times are known, and no time
passes. The time of a plan is the model's, times a random factor of a few per cent for each plan and shape.
Other programs' work comes in slices of milliseconds and slows down the vendor's product more or less than
plans. Short products sometimes fall between two slices, long ones never.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import exp

import pytest

from fmm.config import schema
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import Limits, default_error_growth_limit
from fmm.perfmodel.predict import predict
from fmm.problem import Problem
from fmm.runtime.decisions.decide import decide_by_model, find_certified_entry
from fmm.tuner import cli, tune
from fmm.tuner.devices.device import SHORTEST_SAMPLE_COUNT, SHORTEST_SAMPLE_PART, TimedRun
from fmm.tuner.devices.simulated import SimulatedDevice, SimulatedSession
from fmm.tuner.trials.journal import Journal
from fmm.tuner.trials.record import ProductSize

TIME_DEVIATION = (
    0.015  # standard deviation of the true times of a plan, and of the vendor's product, around the model's
)
OVERHEAD = 0.002  # seconds between samples


@dataclass(frozen=True)
class Load:
    """Other programs' work: its first and last second, its share of the time, the seconds of a slice, and the
    factors by which the vendor's product and a plan take longer meanwhile."""

    begin: float = 0.0
    end: float = 0.0
    share: float = 0.5
    slice: float = 0.005
    vendor: float = 1.0
    plan: float = 1.0


@dataclass
class BusyDevice(SimulatedDevice):
    """A simulated device that also runs other programs' work."""

    load: Load = field(default_factory=Load)
    now: float = 0.0

    def clock(self) -> float:
        return self.now

    def true_seconds(self, plan: Plan, problem: Problem) -> float:
        """Return the seconds of a plan on a quiet device."""
        return predict(plan, problem, self.truth).predicted_seconds * self.unknown(plan, problem)

    def unknown(self, plan: Plan, problem: Problem) -> float:
        """Return the factor between the plan's true time and the model's."""
        return exp(random.Random(repr((str(plan), problem.size, problem.dtype))).gauss(0.0, TIME_DEVIATION))

    def true_speedup(self, plan: Plan, problem: Problem) -> float:
        return self.true_seconds(VENDOR, problem) / self.true_seconds(plan, problem)

    @contextmanager
    def open_session(self, problem: Problem, seed: int) -> Iterator[SimulatedSession]:
        yield BusySession(self, problem, random.Random(repr((self.seed, problem.size, problem.dtype, seed, self.now))))


@dataclass
class BusySession(SimulatedSession):
    """Samples during which the simulated clock advances."""

    def prepare_run(self, run: TimedRun) -> None:
        super().prepare_run(run)
        self.sample_seconds(TimedRun(run.plan))

    def sample_seconds(self, run: TimedRun) -> float:
        return min(self._passed(run) for _ in range(SHORTEST_SAMPLE_COUNT if run.part == SHORTEST_SAMPLE_PART else 1))

    def _passed(self, run: TimedRun) -> float:
        device = self.device
        assert isinstance(device, BusyDevice)
        seconds = self._noisy_seconds(TimedRun(run.plan) if run.part == SHORTEST_SAMPLE_PART else run)
        if run.part in ("whole", SHORTEST_SAMPLE_PART):
            seconds *= (
                device.true_seconds(run.plan, self.problem)
                / predict(run.plan, self.problem, device.truth).predicted_seconds
            )
        load = device.load
        if load.begin <= device.now < load.end:
            slices = max(round(seconds / load.slice), 1)
            met = sum(self.random.random() < load.share for _ in range(min(slices, 200))) / min(slices, 200)
            slower = load.vendor if run.plan == VENDOR else load.plan
            seconds *= 1 + (slower - 1) * met
        device.now += seconds + OVERHEAD
        return seconds


def tune_by_clock(monkeypatch: pytest.MonkeyPatch, device: BusyDevice) -> None:
    """Make fmm-tune tune this device, with all times by the device's clock."""
    monkeypatch.setattr(tune, "select_devices", lambda name: [device])
    monkeypatch.setattr(tune, "Journal", partial(Journal, clock=device.clock))
    for module in (tune, cli):
        monkeypatch.setattr(module, "monotonic", device.clock)


def decided_plan(device: BusyDevice, problem: Problem, section: object) -> Plan:
    """Return the plan that the runtime chooses by a section of a config: the vendor's if the section has
    doubts."""
    if section is None:
        return VENDOR
    tuned = schema.read_section(section, "test", device.identity, problem.dtype)
    limits = Limits(device.memory_bytes, default_error_growth_limit(device.gpu))
    found = find_certified_entry(problem, limits, tuned)
    return (found or decide_by_model(problem, limits, tuned.trusted_calibration, True, device.identity)).plan


def random_load(rng: random.Random, seconds: float) -> Load:
    """Return no load, a load for some time, or a load for the whole time; it may slow down plans less than
    the vendor."""
    if rng.random() < 0.25:
        return Load()
    begin, end = sorted(rng.uniform(-0.5 * seconds, 1.5 * seconds) for _ in range(2))
    if rng.random() < 0.4:
        begin, end = 0.0, 1e9
    vendor = rng.uniform(1.1, 4.0)
    return Load(
        begin, end, rng.uniform(0.2, 0.9), rng.uniform(0.001, 0.02), vendor, 1 + (vendor - 1) * rng.uniform(0.2, 1.3)
    )


def random_shapes(rng: random.Random, count: int, largest: int) -> list[ProductSize]:
    """Return random shapes whose sides are spread evenly by logarithm."""
    return [(*(round(largest ** rng.uniform(0.72, 1.0)) for _ in range(3)),) for _ in range(count)]
