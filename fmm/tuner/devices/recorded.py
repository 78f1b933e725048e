"""A device of which only what was recorded is at hand: its trials are concluded from anew, and nothing is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from fmm.config.files import shipped_model
from fmm.config.identity import Identity
from fmm.hardware.chip import Chip
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.candidates import peer_plans, probed_plans
from fmm.problem import Problem
from fmm.tuner.devices.device import EFFORTS, GPU_EFFORTS, Effort, FailedError, Session


@dataclass(frozen=True)
class RecordedDevice:
    """What a tuning's header and config tell of a device; `guess` is what was believed before anything was measured."""

    identity: Identity
    guess: Calibration
    conditions: Mapping[str, Any] = field(default_factory=dict)
    chip: Chip | None = None
    memory: int = 0

    @property
    def dtypes(self) -> Sequence[str]:
        return tuple(self.guess.rates)

    @property
    def efforts(self) -> Mapping[str, Effort]:
        return GPU_EFFORTS if self.guess.batches else EFFORTS

    def untuned(self) -> Calibration:
        return self.guess

    def known(self, dtype: str) -> Calibration:
        """As a GPU of this kind has it: what ships with the package, if anything does."""
        return (shipped_model(self.identity, dtype) if self.guess.batches else None) or self.guess

    def candidates(self) -> Sequence[Plan]:
        return probed_plans("cuda" if self.guess.batches else "cpu")

    def peers(self) -> Sequence[Plan]:
        return peer_plans("cuda") if self.guess.batches else ()

    def open(self, problem: Problem, seed: int) -> AbstractContextManager[Session]:
        raise FailedError("nothing can be measured: only what was recorded is at hand")

    def ahead(self, dtypes: Sequence[str]) -> AbstractContextManager[object]:
        return nullcontext()

    def wait(self, dtype: str, plan: Plan, seconds: float) -> bool:
        return False
