"""The interface of a device that can be tuned, the efforts of a tuning, and the model's seconds of a run.

A device opens a session on a problem; a session times runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple, Protocol

from fmm.config.identity import Identity
from fmm.hardware.chip import Chip
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.predict import predict_from_work
from fmm.perfmodel.work import PlanWork, counted_work
from fmm.problem import Problem

SHORTEST_SAMPLE_PART = (
    "best"  # value of TimedRun.part: the shortest of SHORTEST_SAMPLE_COUNT samples, as on a quiet device
)
SHORTEST_SAMPLE_COUNT = 15


class TimedRun(NamedTuple):
    """A timed run of a plan on the problem of a session: whole, only its sums, or only its leaf products.

    With SHORTEST_SAMPLE_PART as `part`, the sample of the whole run is the shortest of SHORTEST_SAMPLE_COUNT samples.
    A `twin` is the same run under another name: a pair of twins shows the noise.
    """

    plan: Plan = VENDOR
    part: str = "whole"
    twin: int = 0


class RunFailedError(Exception):
    """A run that fails: it does not compile, does not fit in memory, or gives a wrong result.

    The failure is recorded in the trials.
    """


class TimingSession(Protocol):
    """The operands of one problem in the device's memory."""

    def prepare_run(self, run: TimedRun) -> None:
        """Check the run's result and warm up; raise RunFailedError if it fails."""

    def sample_seconds(self, run: TimedRun) -> float:
        """Return the seconds of one sample, the mean of enough calls to be measurable."""


class TunableDevice(Protocol):
    """A device that can be tuned."""

    @property
    def identity(self) -> Identity: ...
    @property
    def measurement_conditions(self) -> Mapping[str, Any]: ...
    @property
    def dtypes(self) -> Sequence[str]:
        """The element types of the device, the most used first."""

    @property
    def efforts_by_name(self) -> Mapping[str, Effort]:
        """The efforts coarse, quick, default and full on this device."""

    @property
    def chip(self) -> Chip | None:
        """The chip for kernels and the block model; None for a CPU."""

    @property
    def memory_bytes(self) -> int:
        """Bytes for operands and workspace."""

    def untuned_model(self) -> Calibration:
        """Return the model before any measurement."""

    def prior_model(self, dtype: str) -> Calibration:
        """Return the best known model of such devices for a type, before this device is measured."""

    def candidate_plans(self) -> Sequence[Plan]:
        """Return the plans to probe, the vendor first."""

    def vendor_alternatives(self) -> Sequence[Plan]:
        """Return the vendor's other products: a plan must beat these too."""

    def open_session(self, problem: Problem, seed: int) -> AbstractContextManager[TimingSession]:
        """Open a session on a problem with random operands of a seed."""

    def compile_ahead(self, dtypes: Sequence[str]) -> AbstractContextManager[object]:
        """Compile the kernels of the candidates of these types in the background while this is open."""

    def wait_for_kernels(self, dtype: str, plan: Plan, seconds: float) -> bool:
        """Wait until the kernels of a plan are compiled; return False after this many seconds."""


MIN_HELD_OUT_SHAPES = 4  # least number of held-out shapes of an effort with fewer planned seconds


@dataclass(frozen=True)
class Effort:
    """How much is measured, per element type."""

    seconds: float  # planned seconds of the stages, for one type
    most: float  # seconds after which measuring ends
    rounds: int  # rounds of the probes, of the held-out shapes, and of each trial of the search
    held_out: int  # number of held-out shapes
    trials: int  # number of trials of a shape's search
    enqueued: int  # how many of these trials are of the model's best plans
    certify: int  # rounds of a certification
    stride: int = 1  # step along the ladder of squares: with 2, every second square is tuned
    blocks: bool = False  # True to time the tile strategies of fmm's own kernel
    heaviest: float = inf  # largest number of products of a level for whose kernels the tuning waits
    spread: float = 4.0  # ratio of the largest to the smallest side of random shapes
    look: bool = False  # True for a first look only: the known model of such devices, scaled by a few measurements

    def limited_to_seconds(self, seconds: float) -> Effort:
        """Return the effort planned for at most this many seconds, with smaller products and fewer held-out shapes.

        The original plan would be stopped before its held-out shapes, and an unchecked model is rejected.
        """
        if seconds >= self.seconds or self.look:
            return self
        held_out = max(round(self.held_out * seconds / self.seconds), min(MIN_HELD_OUT_SHAPES, self.held_out))
        return replace(self, seconds=seconds, held_out=held_out)


# On a CPU, plans take twice as long as the vendor on products of 0.1 s or less; the model's error there says nothing
# about large products. So random shapes are few, large, and have few rounds. (Measured: among sixty shapes with a
# spread of four, 103 of 120 held-out plans in float32 took 1.6 times the vendor's time or more; in a quick tuning all
# six did.)
CPU_QUICK_EFFORT = Effort(15, 21, 2, 4, 3, 2, 7, spread=1.5)
# `coarse` is the first pass when several types are tuned: 90 seconds for all four types of a CPU.
CPU_EFFORTS = {
    "coarse": CPU_QUICK_EFFORT,
    "quick": CPU_QUICK_EFFORT,
    "default": Effort(150, 290, 3, 20, 10, 4, 11, spread=2.0),
    "full": Effort(900, 1500, 5, 60, 24, 6, 21, spread=2.0),
}
# A GPU is fast, but the host that launches is not, and kernels must be compiled: the first pass is a first look with
# the few kernels that compile first, half a minute for all seven types.
GPU_EFFORTS = {
    "coarse": Effort(2, 6, 3, 6, 1, 1, 7, heaviest=7, look=True),
    "quick": Effort(6, 24, 3, 10, 3, 2, 7, 3),
    "default": Effort(70, 280, 5, 60, 10, 4, 11, blocks=True),
    "full": Effort(450, 1500, 7, 120, 24, 6, 21, blocks=True),
}


@lru_cache(maxsize=16384)
def cached_plan_work(plan: Plan, problem: Problem) -> PlanWork:
    """Return the counted work of a plan, cached."""
    return counted_work(plan, problem)


def predicted_run_seconds(run: TimedRun, problem: Problem, counts: PlanWork, calibration: Calibration) -> float:
    """Return the model's seconds for a run, or for its timed part."""
    found = predict_from_work(run.plan, problem, counts, calibration)
    if run.part in ("whole", SHORTEST_SAMPLE_PART):
        return found.predicted_seconds
    if calibration.lanes > 1:  # threads are started before the time is taken
        return found.sums if run.part == "sums" else found.products
    starts = sum(count / together for *_, count, together in counts.leaves)
    if run.part == "sums":
        return found.sums + calibration.launch * counts.passes
    return max(found.products + calibration.launch * starts, calibration.host * starts)
