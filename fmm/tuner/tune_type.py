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
from fmm.tuner.findings.diagnostics import MIN_HELD_OUT_PAIRS, noise_floor
from fmm.tuner.findings.ladder import LADDER_STAGE
from fmm.tuner.fit import blocks
from fmm.tuner.search.certify import certify_best_plans
from fmm.tuner.search.race import (
    SEARCH_STAGE,
    best_plan_without_workspace,
    is_within_limits,
    race_plans,
    search_order,
    search_plans,
    whole_search_seconds,
)
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
# Two fractions of a tuning's time limit: the ladder of squares ends after the first fraction of the limit, and the
# probes end early enough to leave the second fraction for the search.
LADDER_LIMIT_SHARE, SEARCH_LIMIT_SHARE = 1 / 4, 1 / 11
FIT_SECONDS = 2.0  # seconds of fitting the model between the probes and the search


@dataclass(frozen=True)
class TuningOutcome:
    """The config section of a tuning, or None if too little was measured; `stopped` says why the tuning ended early.

    `is_complete` is False if the tuning ended early, or if the time limit ended the search before its last shape.
    """

    section: dict[str, Any] | None
    stopped: str = ""
    is_complete: bool = True


def tune_type(journal: Journal, dtype: str, effort: Effort, wanted: Sequence[ProductSize] = ()) -> TuningOutcome:
    """Tune an element type, and return the outcome; `wanted` has the shapes to certify (default: squares).

    The search takes the rest of the time limit. A tuning that reaches the limit during the search does not count as
    stopped early, although it can be continued.
    """
    stopped, is_complete = "", True
    try:
        if effort.is_first_look and not wanted:
            measure_first_look(journal, dtype, effort)
        else:
            calibration, side = measure_and_fit_model(journal, dtype, effort, wanted)
            is_complete = search_and_certify_plans(journal, dtype, effort, wanted, calibration, side)
    except TimeUpError as error:
        stopped = "kernels are being compiled" if isinstance(error, KernelsNotReadyError) else TIME_UP_TEXT
        if journal.patience < inf and not any(t.stage == HELD_OUT_STAGE for t in journal.recorded):
            # no section yet: without held-out shapes the fit cannot be checked, and a later job continues this tuning
            journal.measurements_end = journal.elapsed_seconds
            return TuningOutcome(None, stopped, False)
    except KeyboardInterrupt:
        stopped = "interrupted"
    journal.measurements_end = journal.elapsed_seconds
    return TuningOutcome(conclude_section(journal, dtype), stopped, is_complete and not stopped)


def measure_and_fit_model(
    journal: Journal, dtype: str, effort: Effort, wanted: Sequence[ProductSize] = ()
) -> tuple[Calibration, int]:
    """Measure the crossovers and the probes, and fit the model; return the model and the largest side to time.

    Probes that take too long are ended to leave one eleventh of the time limit to the search, but not before a quarter
    of the held-out shapes is measured.
    """
    time_products_on_idle_device(journal, dtype)
    side = measure_largest_side(journal, dtype, effort)
    has_ladder = journal.device.untuned_model().batches and not wanted
    search_begin = journal.limit * (1 - SEARCH_LIMIT_SHARE) - FIT_SECONDS
    # measure the ladder before the probes, since a time limit may end the tuning during the probes
    if has_ladder and journal.first_look:
        measure_crossover_ladder(journal, dtype, interim_calibration(journal, dtype), effort)
    with journal.stage_with_time_limit(search_begin, lambda: is_model_checked(journal, effort)):
        measure_probes(journal, dtype, side, effort)
        if effort.blocks and dtype == blocks.BLOCK_MODEL_DTYPE and journal.device.chip is not None:
            probe_strategies(journal, effort)
    calibration = interim_calibration(journal, dtype)
    journal.on_finding()
    with journal.stage_with_time_limit(search_begin, lambda: is_model_checked(journal, effort)):
        probe_crossovers(journal, dtype, side, calibration, effort)
    if has_ladder and not journal.first_look:
        measure_crossover_ladder(journal, dtype, calibration, effort)
    return calibration, side


def is_model_checked(journal: Journal, effort: Effort) -> bool:
    """Return True if a quarter of the effort's held-out shapes, and enough plans to check a model, are measured.

    Held-out shapes of the first look count as measured. The last measured held-out shape does not count, since some of
    its rounds may be missing.
    """
    trials = [t for t in (*journal.first_look, *journal.recorded) if t.stage == HELD_OUT_STAGE]
    complete = [t for t in trials if t.size != trials[-1].size]
    pairs = {(t.size, t.plan) for t in complete if t.plan != str(VENDOR) and t.seconds is not None}
    return len(pairs) >= MIN_HELD_OUT_PAIRS and 4 * len({size for size, _ in pairs}) >= effort.held_out


def search_and_certify_plans(
    journal: Journal,
    dtype: str,
    effort: Effort,
    wanted: Sequence[ProductSize],
    calibration: Calibration,
    side: int,
) -> bool:
    """Search and certify plans for each shape until the time limit; return False if the limit ended the search."""
    try:
        search_squares(journal, dtype, effort, wanted, calibration, side)
    except TimeUpError:
        if not any(t.stage == SEARCH_STAGE for t in journal.recorded):
            raise
        return False
    return True


def search_squares(
    journal: Journal,
    dtype: str,
    effort: Effort,
    wanted: Sequence[ProductSize],
    calibration: Calibration,
    side: int,
) -> None:
    """Search and certify plans for the shapes in `wanted` (default: squares), for workspace=0 and for gram products."""
    left = TIME_SHARES["search"] * effort.seconds  # seconds of samples that are left for searches
    problems = [Problem(*size, dtype) for size in wanted or shapes.square_ladder(side, effort.stride)]
    if not wanted:
        problems = [p for p in problems if may_beat_vendor(journal, p, calibration)]
        problems = search_order(problems, calibration, effort, left)
    noise = noise_floor(journal.recorded) or 0.0
    time_products_on_idle_device(journal, dtype)
    for problem in problems:
        share, before = effort.seconds / len(problems), journal.sampled_seconds
        whole = whole_search_seconds(problem, calibration, effort)
        budget = max(share * TIME_SHARES["search"], min(whole, left))
        found = search_plans(journal, problem, calibration, effort, budget)
        left -= journal.sampled_seconds - before
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
    """Measure the ladder of squares for at most a fraction of the planned time and a quarter of the time limit."""
    end = journal.elapsed_seconds + LADDER_LIMIT_SHARE * journal.limit
    with journal.stage_with_time_limit(end):
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
