"""What the report is drawn from: one type on one device, its section of the config and the trials that led to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fmm.config import certify
from fmm.config.schema import Tuned
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration
from fmm.problem import Problem
from fmm.tuner.devices.formula import cached_work, formula_seconds
from fmm.tuner.findings.conclude import paired_samples
from fmm.tuner.findings.model_in_use import ModelInUse
from fmm.tuner.fit.model import Observation, stage_medians
from fmm.tuner.trials.record import Tuning


@dataclass(frozen=True)
class Case:
    """One element type on one device: its section of the config, and the trials that led to it."""

    device: str
    dtype: str
    section: dict[str, Any]
    tuned: Tuned
    tuning: Tuning
    calibration: Calibration  # as it was fitted
    sections: Mapping[str, Any]  # of the device, by type
    used: ModelInUse  # by which fmm.matmul chooses: it knows more, of leaves that no tuning measures

    @property
    def choosing(self) -> Calibration:
        """The model in use, or of a tuning that is not used its own."""
        return self.used.calibration or self.calibration

    @property
    def title(self) -> str:
        conditions = self.section["conditions"] or {}
        return f"{conditions.get('device', self.device)}, {self.dtype}"

    def seen(self, *stages: str) -> list[Observation]:
        return stage_medians(self.tuning.trials, stages)

    def expected(self, o: Observation) -> float:
        return formula_seconds(o.run, o.problem, cached_work(o.run.plan, o.problem), self.calibration)

    @cached_property
    def speedups(self) -> list[tuple[Problem, Plan, float, float, float]]:
        """Problem, plan, median paired speedup and its interval, of every plan that was measured with the vendor."""
        found = []
        for stage in ("probe", "held out", "search", "certify"):
            trials = [t for t in self.tuning.trials if t.stage == stage]
            for size in dict.fromkeys(t.size for t in trials):
                for plan, base, own in paired_samples([t for t in trials if t.size == size]):
                    ratios = certify.paired_ratios(base, own)
                    low, high = certify.median_interval(ratios)
                    found.append((Problem(*size, self.dtype), Plan.parse(plan), float(np.median(ratios)), low, high))
        return found
