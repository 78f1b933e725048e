"""Devices without hardware: the device of a recorded tuning, and a simulated device with times from the model."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from math import exp
from types import MappingProxyType
from typing import Any

from fmm.config.files import shipped_model
from fmm.config.identity import Identity
from fmm.hardware.chip import Chip
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.candidates import probed_plans, vendor_alternative_plans
from fmm.perfmodel.default_calibration import cpu_calibration, with_concurrent_products
from fmm.perfmodel.work import counted_work
from fmm.problem import Problem
from fmm.tuner.devices.device import (
    CPU_EFFORTS,
    GPU_EFFORTS,
    SHORTEST_SAMPLE_COUNT,
    SHORTEST_SAMPLE_PART,
    Effort,
    RunFailedError,
    TimedRun,
    TimingSession,
    predicted_run_seconds,
)


@dataclass(frozen=True)
class RecordedDevice:
    """The device of a recorded tuning, which cannot measure; `starting_calibration` is the model before the tuning."""

    identity: Identity
    starting_calibration: Calibration
    measurement_conditions: Mapping[str, Any] = field(default_factory=dict)
    chip: Chip | None = None
    memory_bytes: int = 0
    option_value: str = ""

    @property
    def dtypes(self) -> Sequence[str]:
        return tuple(self.starting_calibration.rates)

    @property
    def efforts_by_name(self) -> Mapping[str, Effort]:
        return GPU_EFFORTS if self.starting_calibration.batches else CPU_EFFORTS

    def untuned_model(self) -> Calibration:
        return self.starting_calibration

    def prior_model(self, dtype: str) -> Calibration:
        """Return the model that fmm ships for GPUs of this name, else the starting calibration."""
        return (
            shipped_model(self.identity, dtype) if self.starting_calibration.batches else None
        ) or self.starting_calibration

    def candidate_plans(self) -> Sequence[Plan]:
        return probed_plans("cuda" if self.starting_calibration.batches else "cpu")

    def vendor_alternatives(self) -> Sequence[Plan]:
        return vendor_alternative_plans("cuda") if self.starting_calibration.batches else ()

    def open_session(self, problem: Problem, seed: int) -> AbstractContextManager[TimingSession]:
        raise RunFailedError("nothing can be measured: only recorded samples are available")

    def compile_ahead(self, dtypes: Sequence[str]) -> AbstractContextManager[object]:
        return nullcontext()

    def wait_for_kernels(self, dtype: str, plan: Plan, seconds: float) -> bool:
        return False


SIMULATED_CALIBRATION = Calibration(
    "fake",
    "by definition",
    MappingProxyType({"float64": ProductRate(1.1e11, 50.0**2, 20.0), "float32": ProductRate(2.3e11, 70.0**2, 30.0)}),
    stream=1.3e10,
    small=3e5,
    launch=3e-5,
)
SIMULATED_IDENTITY = Identity("cpu-fake-2t", "a fake CPU", MappingProxyType({"numpy": "0", "blas": "fake 0"}))


@dataclass
class SimulatedDevice:
    """A device for tests: a sample is the time that the model `truth` predicts, multiplied by lognormal noise.

    Each sample also sleeps for `real_time` times its seconds; with 0, no sample sleeps.
    """

    truth: Calibration = SIMULATED_CALIBRATION
    noise: float = 0.01
    seed: int = 0
    real_time: float = 0.0
    broken: frozenset[str] = frozenset()  # texts of the plans that fail when they are prepared
    identity: Identity = SIMULATED_IDENTITY
    measurement_conditions: Mapping[str, Any] = field(default_factory=lambda: {"load": 0.0})
    memory_bytes: int = 1 << 34
    # time of each alternative product function of the vendor, divided by the time of the plan `vendor`
    vendor_alternative_ratios: Mapping[str, float] = field(default_factory=dict)
    gpu: bool = False
    chip: Chip | None = None
    samples_taken: int = 0  # number of samples that all sessions have taken so far
    prior_calibration: Calibration | None = None  # the shipped model for this kind of device; None without one
    option_value: str = "cpu"

    @property
    def dtypes(self) -> Sequence[str]:
        return tuple(reversed(list(self.truth.rates)))

    def untuned_model(self) -> Calibration:
        return with_concurrent_products(
            replace(cpu_calibration(2), name=self.identity.name, batches=self.gpu), self.truth.lanes
        )

    def prior_model(self, dtype: str) -> Calibration:
        return self.prior_calibration or self.untuned_model()

    def candidate_plans(self) -> Sequence[Plan]:
        return probed_plans("cuda" if self.gpu else "cpu")

    def vendor_alternatives(self) -> Sequence[Plan]:
        return [Plan.parse(leaf) for leaf in self.vendor_alternative_ratios]

    @property
    def efforts_by_name(self) -> Mapping[str, Effort]:
        return GPU_EFFORTS if self.gpu else CPU_EFFORTS

    @contextmanager
    def open_session(self, problem: Problem, seed: int) -> Iterator[SimulatedSession]:
        yield SimulatedSession(self, problem, random.Random(repr((self.seed, problem.size, problem.dtype, seed))))

    def compile_ahead(self, dtypes: Sequence[str]) -> AbstractContextManager[object]:
        return nullcontext()

    def wait_for_kernels(self, dtype: str, plan: Plan, seconds: float) -> bool:
        return True


@dataclass
class SimulatedSession:
    """Returns simulated times of the runs on one problem."""

    device: SimulatedDevice
    problem: Problem
    random: random.Random

    def prepare_run(self, run: TimedRun) -> None:
        if str(run.plan) in self.device.broken:
            raise RunFailedError("it is broken")

    def sample_seconds(self, run: TimedRun) -> float:
        self.device.samples_taken += 1
        if run.part == SHORTEST_SAMPLE_PART:
            return min(self._noisy_seconds(TimedRun(run.plan)) for _ in range(SHORTEST_SAMPLE_COUNT))
        seconds = self._noisy_seconds(run)
        if self.device.real_time:
            time.sleep(seconds * self.device.real_time)
        return seconds

    def _noisy_seconds(self, run: TimedRun) -> float:
        """Return the seconds that the model predicts for a run, multiplied by a random factor."""
        seconds = predicted_run_seconds(run, self.problem, counted_work(run.plan, self.problem), self.device.truth)
        seconds *= self.device.vendor_alternative_ratios.get(run.plan.leaf, 1.0) if not run.plan.levels else 1.0
        return seconds * exp(self.random.gauss(0.0, self.device.noise))
