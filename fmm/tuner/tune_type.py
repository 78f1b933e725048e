"""One tuning, from the first probe to the section of the config: probe, fit, search, certify, conclude.

All that is concluded is a function of the recorded trials, so what was measured before the time was up, or before
Ctrl-C, is worth as much as it can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from fmm.config import certify
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.candidates import device_leaves
from fmm.perfmodel.choose import rank_candidates
from fmm.problem import Problem
from fmm.tuner.devices.device import Device, Effort
from fmm.tuner.findings.conclude import HELD_OUT, concluded_section, model_so_far
from fmm.tuner.findings.diagnostics import noise_floor
from fmm.tuner.fit import blocks
from fmm.tuner.search.certify import confirm_best
from fmm.tuner.search.race import leanest_plan, race_plans, search_plans, within_limits
from fmm.tuner.stages import shapes
from fmm.tuner.stages.first_look import look_first
from fmm.tuner.stages.probes import SHARES, find_scale, probe_rates, probe_strategies, time_quiet_products
from fmm.tuner.trials.journal import Journal, NotReadyError, RoundLimits, TimeUpError
from fmm.tuner.trials.record import Size


@dataclass(frozen=True)
class Outcome:
    """The section that was found, None if nothing was; `stopped` says why it is not all that was asked for."""

    section: dict[str, Any] | None
    stopped: str = ""


def tune_type(journal: Journal, dtype: str, effort: Effort, wanted: Sequence[Size] = ()) -> Outcome:
    """The whole loop; `wanted` are the shapes to certify, the usual ladder if there are none."""
    stopped = ""
    try:
        if effort.look and not wanted:
            look_first(journal, dtype, effort)
        else:
            measure_type(journal, dtype, effort, wanted)
    except TimeUpError as error:
        stopped = "kernels are being compiled" if isinstance(error, NotReadyError) else "the time was up"
        if journal.patience < inf and not any(t.stage == HELD_OUT for t in journal.recorded):
            return Outcome(None, stopped)  # it goes on later; a fit takes seconds, and nothing would confirm it
    except KeyboardInterrupt:
        stopped = "interrupted"
    return Outcome(concluded_section(journal, dtype), stopped)


def measure_type(journal: Journal, dtype: str, effort: Effort, wanted: Sequence[Size] = ()) -> None:
    """Probes, a fit, then search and certification."""
    time_quiet_products(journal, dtype)
    side = find_scale(journal, dtype, effort)
    probe_rates(journal, dtype, side, effort)
    if effort.blocks and dtype == blocks.DTYPE and journal.device.chip is not None:
        probe_strategies(journal, effort)
    calibration = model_so_far(journal, dtype)
    journal.on_finding()
    problems = [Problem(*size, dtype) for size in wanted or shapes.square_ladder(side, effort.stride)]
    if not wanted:
        problems = [p for p in problems if may_win(journal, p, calibration)]
    noise = noise_floor(journal.recorded) or 0.0
    time_quiet_products(journal, dtype)
    for problem in problems:
        share = effort.seconds / len(problems)
        found = search_plans(journal, problem, calibration, effort, share * SHARES["search"])
        confirm_best(journal, found, RoundLimits(certify.ROUNDS + 1, effort.certify, share * SHARES["certify"]), noise)
    for problem in (Problem(*size, dtype) for size in ([] if wanted else shapes.squares_below(side, effort.stride))):
        if plans := leanest_plan(problem, calibration, journal.device):
            found = race_plans(journal, problem, plans, effort)
            confirm_best(journal, found, RoundLimits(certify.ROUNDS + 1, effort.certify), noise)
    tune_halves(journal, [] if wanted else problems, calibration, effort, noise)


def tune_halves(
    journal: Journal, problems: Sequence[Problem], calibration: Calibration, effort: Effort, noise: float
) -> None:
    """Products of a matrix and its transpose of these sides: what the model likes best of plans that compute one half,
    against the vendor's own way."""
    share = SHARES["halves"] * effort.seconds / max(len(problems), 1)
    for problem in (Problem(*p.size, p.dtype, op="gram") for p in problems if p.m == p.n):
        known = rank_candidates(problem, calibration)
        plans = [c.plan for c in known if c.plan != VENDOR and within_limits(journal.device, c.plan, problem)]
        if plans and journal.spent < effort.seconds and min(c.time for c in known if c.plan != VENDOR) < MAY_WIN:
            raced = dict.fromkeys([*plans[:FEW_HALVES], *own_halves(journal.device, problem)])
            found = race_plans(journal, problem, list(raced), effort)
            confirm_best(journal, found, RoundLimits(certify.ROUNDS + 1, effort.certify, share), noise)


def own_halves(device: Device, problem: Problem) -> list[Plan]:
    """One half by our own kernel alone, of types whose time the model may not tell."""
    leaves = device_leaves("cuda" if device.untuned().batches else "cpu")
    silent = [leaf for leaf in leaves if leaf.time_formula == "tiles" and problem.dtype not in leaf.types_with_sums]
    plans = [Plan(leaf=leaf.name) for leaf in silent]
    return [plan for plan in plans if within_limits(device, plan, problem)]


FEW_HALVES = 3  # plans that are raced, the best by the model
MAY_WIN = 1.05  # of the vendor's predicted time: a plan with less may win, as far as the model can tell


def may_win(journal: Journal, problem: Problem, calibration: Calibration) -> bool:
    """Might a plan win here, as far as the model can tell?"""
    return (
        min(c.time for c in rank_candidates(problem, calibration, journal.device.candidates()) if c.plan != VENDOR)
        < MAY_WIN
    )
