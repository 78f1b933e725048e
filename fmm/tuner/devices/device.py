"""The seam between the tuner and what it measures: a device opens a session on a problem, a session times runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from fmm.config.identity import Identity
from fmm.hardware.chip import Chip
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.problem import Problem
from fmm.tuner.devices.device import Effort

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
