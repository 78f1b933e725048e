"""The seam between the tuner and what it measures: a device opens a session on a problem, a session times runs."""

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
from fmm.perfmodel.work import Work, counted_work
from fmm.problem import Problem

BEST = "best"  # a part: not one sample but the shortest of TRIES, what the product takes if nothing disturbs it
TRIES = 15


class Run(NamedTuple):
    """What is timed: a plan on the problem of a session, whole or only its sums or its leaf products; or BEST.

    A `twin` is the same thing once more under another name: a pair of twins shows the noise.
    """

    plan: Plan = VENDOR
    part: str = "whole"
    twin: int = 0


class FailedError(Exception):
    """A run that cannot be: it does not compile, does not fit, or gives a wrong result. A row in the trials."""


class Session(Protocol):
    """Operands of one problem, in the device's memory."""

    def prepare(self, run: Run) -> None:
        """Check the run's result and warm it up; FailedError if it cannot be."""

    def sample(self, run: Run) -> float:
        """Seconds of one sample, the mean of as many calls as make it measurable."""


class Device(Protocol):
    """What can be tuned."""

    @property
    def identity(self) -> Identity: ...
    @property
    def conditions(self) -> Mapping[str, Any]: ...
    @property
    def dtypes(self) -> Sequence[str]:
        """The element types that it multiplies, those that most programs use first."""

    @property
    def efforts(self) -> Mapping[str, Effort]:
        """What coarse, quick, default and full mean here."""

    @property
    def chip(self) -> Chip | None:
        """A CUDA device as kernels and the block model see it; None for a CPU."""

    @property
    def memory(self) -> int:
        """Bytes for operands and workspace."""

    def untuned(self) -> Calibration:
        """What is believed before anything is measured."""

    def known(self, dtype: str) -> Calibration:
        """The best that is known of such devices for a type before this one is measured."""

    def candidates(self) -> Sequence[Plan]:
        """Plans worth a place among the probes, the vendor's first."""

    def peers(self) -> Sequence[Plan]:
        """What else the vendor has for a product: a plan must beat these too."""

    def open(self, problem: Problem, seed: int) -> AbstractContextManager[Session]: ...

    def ahead(self, dtypes: Sequence[str]) -> AbstractContextManager[object]:
        """While this is open, what the candidates of these types need is made ready beside the measurements."""

    def wait(self, dtype: str, plan: Plan, seconds: float) -> bool:
        """Until that is ready for a plan; False if it took more than so many seconds."""


FEWEST = 4  # held-out shapes by which a model is checked, however little time there is


@dataclass(frozen=True)
class Effort:
    """How much is measured, per element type."""

    seconds: float  # what the stages plan for
    most: float  # where measuring ends, whatever was planned
    rounds: int  # of the probe, the held-out shapes and each trial of the search
    held_out: int  # shapes
    trials: int  # of a shape's search
    enqueued: int  # of them the model's best
    certify: int  # rounds
    stride: int = 1  # one of so many shapes of the ladder is tuned
    blocks: bool = False  # are the strategies of our own product kernel timed?
    heaviest: float = inf  # products of the largest level whose kernels are waited for
    spread: float = 4.0  # of the sides of random shapes: the largest over the smallest
    look: bool = False  # no more than a first look: what is known of such devices, scaled by a few measurements

    def within(self, seconds: float) -> Effort:
        """The same, planned for no more than so many seconds: by smaller products, of which fewer are held out. (As it
        was planned it would be stopped before it came to these, and no model is used that was not checked.)"""
        if seconds >= self.seconds or self.look:
            return self
        held_out = max(round(self.held_out * seconds / self.seconds), min(FEWEST, self.held_out))
        return replace(self, seconds=seconds, held_out=held_out)


# On a CPU, plans are nobody's choice on products that take a tenth of a second or less, where they take twice as long
# as the vendor: what a model is off by there says nothing of large ones. So random shapes are few, large, and in few
# rounds. (Of sixty that were spread by four, 103 of 120 held-out pairs in float32 were of plans that took 1.6 times as
# long or more, and of six in a quick tuning all.)
CPU_QUICK = Effort(15, 21, 2, 4, 3, 2, 7, spread=1.5)
# `coarse` is the first pass when several types are tuned, so that there is something for each soon: for all four types
# of a CPU in a minute and a half.
EFFORTS = {
    "coarse": CPU_QUICK,
    "quick": CPU_QUICK,
    "default": Effort(150, 290, 3, 20, 10, 4, 11, spread=2.0),
    "full": Effort(900, 1500, 5, 60, 24, 6, 21, spread=2.0),
}
# A GPU is fast, but it is told what to do by a processor that is not, and its kernels must be compiled: its first pass
# is a look that needs the few that are compiled first, for all seven types in half a minute.
GPU_EFFORTS = {
    "coarse": Effort(2, 6, 3, 6, 1, 1, 7, heaviest=7, look=True),
    "quick": Effort(6, 24, 3, 10, 3, 2, 7, 3),
    "default": Effort(70, 280, 5, 60, 10, 4, 11, blocks=True),
    "full": Effort(450, 1500, 7, 120, 24, 6, 21, blocks=True),
}


@lru_cache(maxsize=16384)
def cached_work(plan: Plan, problem: Problem) -> Work:
    return counted_work(plan, problem)


def formula_seconds(run: Run, problem: Problem, counts: Work, calibration: Calibration) -> float:
    """The formula's seconds for a run, or for the part of it that is timed."""
    found = predict_from_work(run.plan, problem, counts, calibration)
    if run.part in ("whole", BEST):
        return found.seconds
    if calibration.lanes > 1:  # the workers are timed, without what starts them
        return found.sums if run.part == "sums" else found.products
    starts = sum(count / together for *_, count, together in counts.leaves)
    if run.part == "sums":
        return found.sums + calibration.launch * counts.passes
    return max(found.products + calibration.launch * starts, calibration.host * starts)
