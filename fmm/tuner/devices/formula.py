"""What the performance model expects a device to take for a run: what a fit compares with, and a fake device takes."""

from __future__ import annotations

from functools import lru_cache

from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.predict import predict_from_work
from fmm.perfmodel.work import Work, counted_work
from fmm.problem import Problem
from fmm.tuner.devices.device import BEST, Run


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
