"""Tune one element type: measure probes, fit the model, search and certify plans, and compute a config section.

The section is computed from the recorded trials alone, so a tuning that Ctrl-C or a time limit stopped has a section,
too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from fmm.config import certification
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.candidates import device_leaves
from fmm.perfmodel.choose import rank_candidates
from fmm.problem import Problem
from fmm.tuner.devices.device import Effort, TunableDevice
from fmm.tuner.findings.conclude import HELD_OUT_STAGE, conclude_section, interim_calibration
from fmm.tuner.findings.diagnostics import noise_floor
from fmm.tuner.findings.ladder import LADDER_STAGE
from fmm.tuner.fit import blocks
from fmm.tuner.search.certify import certify_best_plans
from fmm.tuner.search.race import best_plan_without_workspace, is_within_limits, race_plans, search_plans
from fmm.tuner.stages import shapes
from fmm.tuner.stages.first_look import measure_first_look
from fmm.tuner.stages.ladder import measure_ladder
from fmm.tuner.stages.probes import (
    TIME_SHARES,
    measure_largest_side,
    measure_probes,
    probe_crossovers,
    probe_strategies,
    time_products_on_idle_device,
)
from fmm.tuner.trials.journal import Journal, KernelsNotReadyError, RoundLimits, TimeUpError
from fmm.tuner.trials.record import ProductSize

TIME_UP_TEXT = "the time limit was reached"


@dataclass(frozen=True)
class TuningOutcome:
    """The result of a tuning: its config section (None if too little was measured), and why it ended early."""

    section: dict[str, Any] | None
    stopped: str = ""


def tune_type(journal: Journal, dtype: str, effort: Effort, wanted: Sequence[ProductSize] = ()) -> TuningOutcome:
    """Tune an element type, and return the outcome; `wanted` has the shapes to certify, by default squares."""
    stopped = ""
    try:
        if effort.is_first_look and not wanted:
            measure_first_look(journal, dtype, effort)
        else:
            measure_element_type(journal, dtype, effort, wanted)
    except TimeUpError as error:
        stopped = "kernels are being compiled" if isinstance(error, KernelsNotReadyError) else TIME_UP_TEXT
        if journal.patience < inf and not any(t.stage == HELD_OUT_STAGE for t in journal.recorded):
            # no section yet: without held-out shapes the fit cannot be checked, and a later job continues this tuning
            return TuningOutcome(None, stopped)
    except KeyboardInterrupt:
        stopped = "interrupted"
    return TuningOutcome(conclude_section(journal, dtype), stopped)


def measure_element_type(journal: Journal, dtype: str, effort: Effort, wanted: Sequence[ProductSize] = ()) -> None:
    """Measure the probes, fit the model, then search for plans and certify plans for each shape."""
    time_products_on_idle_device(journal, dtype)
    side = measure_largest_side(journal, dtype, effort)
    has_ladder = journal.device.untuned_model().batches and not wanted
    # measure the ladder before the probes, since a time limit may end the tuning during the probes
    if has_ladder and journal.first_look:
        measure_crossover_ladder(journal, dtype, interim_calibration(journal, dtype), effort)
    measure_probes(journal, dtype, side, effort)
    if effort.blocks and dtype == blocks.BLOCK_MODEL_DTYPE and journal.device.chip is not None:
        probe_strategies(journal, effort)
    calibration = interim_calibration(journal, dtype)
    journal.on_finding()
    probe_crossovers(journal, dtype, side, calibration, effort)
    if has_ladder and not journal.first_look:
        measure_crossover_ladder(journal, dtype, calibration, effort)
    problems = [Problem(*size, dtype) for size in wanted or shapes.square_ladder(side, effort.stride)]
    if not wanted:
        problems = [p for p in problems if may_beat_vendor(journal, p, calibration)]
    noise = noise_floor(journal.recorded) or 0.0
    time_products_on_idle_device(journal, dtype)
    for problem in problems:
        share = effort.seconds / len(problems)
        found = search_plans(journal, problem, calibration, effort, share * TIME_SHARES["search"])
        certify_best_plans(
            journal,
            found,
            RoundLimits(certification.MIN_ROUNDS + 1, effort.certify, share * TIME_SHARES["certify"]),
            noise,
        )
    for problem in (
        Problem(*size, dtype) for size in ([] if wanted else shapes.squares_below_ladder(side, effort.stride))
    ):
        if plans := best_plan_without_workspace(problem, calibration, journal.device):
            found = race_plans(journal, problem, plans, effort)
            certify_best_plans(journal, found, RoundLimits(certification.MIN_ROUNDS + 1, effort.certify), noise)
    tune_gram_products(journal, [] if wanted else problems, calibration, effort, noise)


def measure_crossover_ladder(journal: Journal, dtype: str, calibration: Calibration, effort: Effort) -> None:
    """Measure the crossovers on a ladder of squares, within the share of the planned seconds for this stage."""
    measure_ladder(journal, dtype, calibration, effort, TIME_SHARES[LADDER_STAGE] * effort.seconds)


def tune_gram_products(
    journal: Journal, problems: Sequence[Problem], calibration: Calibration, effort: Effort, noise: float
) -> None:
    """Search for and certify plans for gram products (a matrix times its adjoint), which compute one triangle."""
    share = TIME_SHARES["halves"] * effort.seconds / max(len(problems), 1)
    for problem in (Problem(*p.size, p.dtype, op="gram") for p in problems if p.m == p.n):
        known = rank_candidates(problem, calibration)
        plans = [c.plan for c in known if c.plan != VENDOR and is_within_limits(journal.device, c.plan, problem)]
        if (
            plans
            and journal.sampled_seconds < effort.seconds
            and min(c.time for c in known if c.plan != VENDOR) < MAX_PREDICTED_TIME_RATIO
        ):
            raced = dict.fromkeys([*plans[:MAX_GRAM_PLANS], *unpredicted_gram_plans(journal.device, problem)])
            found = race_plans(journal, problem, list(raced), effort)
            certify_best_plans(journal, found, RoundLimits(certification.MIN_ROUNDS + 1, effort.certify, share), noise)


def unpredicted_gram_plans(device: TunableDevice, problem: Problem) -> list[Plan]:
    """Return plans without levels for leaves that the model cannot predict for gram products of this type."""
    leaves = device_leaves("cuda" if device.untuned_model().batches else "cpu")
    silent = [leaf for leaf in leaves if leaf.time_formula == "tiles" and problem.dtype not in leaf.types_with_sums]
    plans = [Plan(leaf=leaf.name) for leaf in silent]
    return [plan for plan in plans if is_within_limits(device, plan, problem)]


MAX_GRAM_PLANS = 3  # number of plans that are timed for each gram product: the plans with the shortest predicted times
# shapes on which every plan has a predicted time above this multiple of the vendor's are not searched
MAX_PREDICTED_TIME_RATIO = 1.05


def may_beat_vendor(journal: Journal, problem: Problem, calibration: Calibration) -> bool:
    """Return True if the predicted time of any plan is below MAX_PREDICTED_TIME_RATIO times the vendor's."""
    return (
        min(c.time for c in rank_candidates(problem, calibration, journal.device.candidate_plans()) if c.plan != VENDOR)
        < MAX_PREDICTED_TIME_RATIO
    )
