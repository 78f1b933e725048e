"""The interface of a device that can be tuned, the efforts of a tuning, and the predicted time of a run.

A device opens a session on a problem. The session allocates the problem's operands and times plans on these operands.
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

SHORTEST_SAMPLE_PART = "best"  # value of TimedRun.part: a sample is the shortest of SHORTEST_SAMPLE_COUNT executions
SHORTEST_SAMPLE_COUNT = 15


class TimedRun(NamedTuple):
    """What a session times on its problem: a whole plan, or only the plan's sums, or only its leaf products.

    `part` says what is timed: "whole" is the whole plan, "sums" only its matrix sums, "products" only its leaf
    products. If `part` is SHORTEST_SAMPLE_PART, a sample is the shortest of SHORTEST_SAMPLE_COUNT executions of the
    whole plan. Two runs that differ only in `twin` do the same work, so the difference of their times is noise.
    """

    plan: Plan = VENDOR
    part: str = "whole"
    twin: int = 0


class RunFailedError(Exception):
    """Raised for a run that cannot be timed: it does not compile, does not fit in memory, or has a wrong result.

    The tuner records the error's message in the trials.
    """


class TimingSession(Protocol):
    """Times runs on the operands of one problem, which are in the device's memory."""

    def prepare_run(self, run: TimedRun) -> None:
        """Execute a run once and check its result; raise RunFailedError if the run fails."""

    def sample_seconds(self, run: TimedRun) -> float:
        """Return the seconds of one sample, the mean over several executions if a single execution is too short."""


class TunableDevice(Protocol):
    """The methods and properties that the tuner needs from a device."""

    @property
    def identity(self) -> Identity:
        """Return the device's key and name, and the versions of its libraries."""

    @property
    def option_value(self) -> str:
        """Return the value of the option --device that selects the device; empty if no value is known."""

    @property
    def measurement_conditions(self) -> Mapping[str, Any]:
        """Return the conditions to record: processor and load of a CPU; UUID, memory and clocks of a GPU."""

    @property
    def dtypes(self) -> Sequence[str]:
        """Return the element types that the device can multiply, the most frequently used types first."""

    @property
    def efforts_by_name(self) -> Mapping[str, Effort]:
        """Return this device's efforts by name: coarse, quick, default and full."""

    @property
    def chip(self) -> Chip | None:
        """Return the chip that determines kernels and block sizes; None for a CPU."""

    @property
    def memory_bytes(self) -> int:
        """Return the bytes that operands and workspace of a product may use."""

    def untuned_model(self) -> Calibration:
        """Return the calibration at the start of a tuning, before any measurement."""

    def prior_model(self, dtype: str) -> Calibration:
        """Return the shipped calibration of a type for this kind of device; if none exists, the untuned calibration."""

    def candidate_plans(self) -> Sequence[Plan]:
        """Return the plans that a tuning measures, the vendor's product first."""

    def vendor_alternatives(self) -> Sequence[Plan]:
        """Return plans that call the vendor's other product functions; a certified plan must be faster than these."""

    def open_session(self, problem: Problem, seed: int) -> AbstractContextManager[TimingSession]:
        """Return a context manager that opens a session on a problem; `seed` is the seed of the random operands."""

    def compile_ahead(self, dtypes: Sequence[str]) -> AbstractContextManager[object]:
        """Return a context manager; until its context ends, the kernels of all candidates compile in the background."""

    def wait_for_kernels(self, dtype: str, plan: Plan, seconds: float) -> bool:
        """Wait until the kernels of a plan are compiled; return False if the wait exceeds `seconds`."""


MIN_HELD_OUT_SHAPES = 4  # smallest number of held-out shapes after `effort_within_seconds` has reduced an effort


@dataclass(frozen=True)
class Effort:
    """How much a tuning of one element type measures."""

    seconds: float  # planned time of all stages, in seconds
    most: float  # time limit in seconds, with the fit, the search and the writing of the section
    rounds: int  # number of rounds for each probed shape, each held-out shape and each trial of the search
    held_out: int  # number of held-out shapes
    trials: int  # number of plans that the search times for a shape
    # number of plans of the search that are the best ones by the model; the optimizer proposes the other plans
    enqueued: int
    certify: int  # largest number of rounds of a certification
    # step through the tuner's list of square shapes: with 2 every second shape is tuned, with 1 every shape
    stride: int = 1
    blocks: bool = False  # True if the tile sizes of fmm's own kernel are timed
    max_products_per_level: float = inf  # plans with a level of more products than this number are not measured
    spread: float = 4.0  # largest ratio between the sides of a random shape
    # True for a first look, in which a few measurements scale the prior model of the device
    is_first_look: bool = False

    def effort_within_seconds(self, seconds: float) -> Effort:
        """Return the effort with its planned time reduced to at most `seconds`, and with fewer held-out shapes.

        If the effort planned more time than the time limit allows, the limit would stop the tuning before its held-out
        shapes, and the model would be rejected.
        """
        if seconds >= self.seconds or self.is_first_look:
            return self
        held_out = max(round(self.held_out * seconds / self.seconds), min(MIN_HELD_OUT_SHAPES, self.held_out))
        return replace(self, seconds=seconds, held_out=held_out)


# The efforts on a CPU. For products of 0.1 s or less, plans take about twice as long as the vendor, and the model's
# error for these products says nothing about large products. Products with a short side take little time, so the
# longest side of a random shape is limited to 1.5 or 2 times its shortest side (field `spread`). In a float32 tuning
# with 60 random shapes, whose longest side was up to 4 times the shortest side, 103 of 120 plans took at least 1.6
# times the vendor's time.
CPU_QUICK_EFFORT = Effort(15, 21, 2, 4, 3, 2, 7, spread=1.5)
# A tuning of several types first tunes each type with the effort `coarse`, which takes 90 s for the four types of a
# CPU.
CPU_EFFORTS = {
    "coarse": CPU_QUICK_EFFORT,
    "quick": CPU_QUICK_EFFORT,
    "default": Effort(150, 290, 3, 20, 10, 4, 11, spread=2.0),
    "full": Effort(900, 1500, 5, 60, 24, 6, 21, spread=2.0),
}
# The efforts on a GPU, where compiling kernels takes longer than measuring. The effort `coarse` is a first look, which
# uses only the few kernels that compile first. The first looks at all seven types together take 56 s; a tuning of
# several types with `quick` ends after these first looks. A tuning of seven types with `default` takes five minutes.
GPU_EFFORTS = {
    "coarse": Effort(2, 8, 3, 6, 1, 1, 7, max_products_per_level=7, is_first_look=True),
    "quick": Effort(6, 24, 3, 10, 3, 2, 7, 3),
    "default": Effort(11, 34.5, 5, 20, 10, 4, 11, blocks=True),
    "full": Effort(450, 1500, 7, 120, 24, 6, 21, blocks=True),
}


@lru_cache(maxsize=16384)
def cached_plan_work(plan: Plan, problem: Problem) -> PlanWork:
    """Return the number of sums and products and the traffic of a plan on a problem, from a cache."""
    return counted_work(plan, problem)


def predicted_run_seconds(run: TimedRun, problem: Problem, counts: PlanWork, calibration: Calibration) -> float:
    """Return the seconds that the model predicts for a run: for the whole plan, its sums, or its leaf products."""
    found = predict_from_work(run.plan, problem, counts, calibration)
    if run.part in ("whole", SHORTEST_SAMPLE_PART):
        return found.predicted_seconds
    if calibration.lanes > 1:  # on a CPU, the measured times of sums and products do not include the start of threads
        return found.sums if run.part == "sums" else found.products
    starts = sum(count / together for *_, count, together in counts.leaves)
    if run.part == "sums":
        return found.sums + calibration.launch * counts.passes
    return max(found.products + calibration.launch * starts, calibration.host * starts)
