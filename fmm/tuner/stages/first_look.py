"""Measure a first look at an element type, within seconds: a few rates, to which the shipped model is scaled.

The model of this kind of device is scaled to the times of the vendor's products and of the sums of one plan, and
checked on whole plans on held-out shapes. A first look times only plans with kernels that are compiled first. While a
first look measures, all other kernels of the tuning compile.
"""

from __future__ import annotations

from fmm.config import certification
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import rank_candidates
from fmm.problem import Problem
from fmm.runtime.decisions.decide import ENTRY_OVERRIDE_GAIN
from fmm.tuner.devices.compile_ahead import is_needed_by_first_look
from fmm.tuner.devices.device import Effort, TimedRun
from fmm.tuner.findings.conclude import HELD_OUT_STAGE, interim_calibration, starting_calibration
from fmm.tuner.findings.diagnostics import noise_floor
from fmm.tuner.search.certify import certify_best_plans
from fmm.tuner.search.race import is_within_limits, race_plans
from fmm.tuner.stages import shapes
from fmm.tuner.stages.ladder import measure_ladder
from fmm.tuner.stages.probes import (
    AA_PAIR_RUNS,
    SHAPE_SEEDS,
    TIME_SHARES,
    measure_largest_side,
    quickly_compiled_candidates,
    time_products_on_idle_device,
    time_runs_in_rounds,
)
from fmm.tuner.trials.journal import Journal, RoundLimits

LADDER_SECONDS = 0.8  # seconds that samples of a ladder of squares may take together
PLANS_PER_HELD_OUT_SHAPE = 2  # number of plans that are timed on each held-out shape
# Sides (m, k, n) of the vendor's products that a first look times, divided by the side of the largest square for which
# it has time.
VENDOR_SIDE_SHARES = ((1, 1, 1), (1 / 2, 1 / 2, 1 / 2), (1 / 4, 1 / 4, 1 / 4), (1, 1 / 4, 1), (1 / 2, 1, 1 / 2))


def measure_first_look(journal: Journal, dtype: str, effort: Effort) -> None:
    """Measure the stages of a first look; the vendor's products are timed first, while fmm's kernels compile."""
    time_products_on_idle_device(journal, dtype)
    side = measure_largest_side(journal, dtype, effort)
    for shares in VENDOR_SIDE_SHARES:
        m, k, n = (shapes.rounded_side(share * side) for share in shares)
        time_runs_in_rounds(journal, "rates", Problem(m, k, n, dtype), [TimedRun()], effort)
    half = shapes.rounded_side(side / 2)
    square = Problem(half, half, half, dtype)
    usual, own = first_look_plans(journal, square, effort)
    timed = [TimedRun(plan, "sums") for plan in usual[:1]] + [TimedRun(plan) for plan in own]
    time_runs_in_rounds(journal, "probe", square, [*AA_PAIR_RUNS, *timed], effort)
    for size in shapes.random_probe_shapes(side, effort, TIME_SHARES[HELD_OUT_STAGE], SHAPE_SEEDS[HELD_OUT_STAGE]):
        problem = Problem(*size, dtype)
        usual, own = first_look_plans(journal, problem, effort)
        plans = [*usual[: PLANS_PER_HELD_OUT_SHAPE - len(own)], *own]
        time_runs_in_rounds(journal, HELD_OUT_STAGE, problem, [TimedRun(), *map(TimedRun, plans)], effort)
    if journal.device.untuned_model().batches:
        measure_ladder(journal, dtype, interim_calibration(journal, dtype), effort, LADDER_SECONDS)
    # certify a plan for the largest square that the device can time; on a slow device, `square_ladder` returns no
    # square
    for size in shapes.square_ladder(side)[:1]:
        certify_compiled_plan(journal, Problem(*size, dtype), effort)


def first_look_plans(journal: Journal, problem: Problem, effort: Effort) -> tuple[list[Plan], list[Plan]]:
    """Return the plans that a first look may time on a problem, as two lists, each sorted by predicted time.

    The first list has plans with the vendor's leaf; the kernels of these plans are compiled first. The second list has
    at most one plan: the fastest compiled plan with a leaf that has a separate rate in the calibration.
    """
    light = [p for p in quickly_compiled_candidates(journal.device, effort) if is_needed_by_first_look(p)]
    model = starting_calibration(journal.device.prior_model(problem.dtype), problem.dtype)
    found = [
        c.plan for c in rank_candidates(problem, model, light) if is_within_limits(journal.device, c.plan, problem)
    ]
    usual = [p for p in found if not p.leaf_use.leaf.rate and p != VENDOR]
    own = [p for p in found if p.leaf_use.leaf.rate and journal.has_compiled_kernels(problem.dtype, p)]
    return usual, own[:1]


def certify_compiled_plan(journal: Journal, problem: Problem, effort: Effort) -> None:
    """Certify the compiled plan with the shortest predicted time, unless a plan that is not compiled is far faster.

    A certified entry overrides the model, so fmm.matmul would never choose the faster plan once its kernels are
    compiled.
    """
    ready = _best_compiled_plan(journal, problem, effort)
    if ready is None:
        return
    peers = [p for p in journal.device.vendor_alternatives() if p.accepts_type(problem.dtype)][: effort.enqueued]
    found = race_plans(journal, problem, [ready, *peers], effort)
    share = TIME_SHARES["certify"] * effort.seconds
    limits = RoundLimits(certification.MIN_ROUNDS + 1, effort.certify, share)
    certify_best_plans(journal, found, limits, noise_floor(journal.recorded) or 0.0)


def _best_compiled_plan(journal: Journal, problem: Problem, effort: Effort) -> Plan | None:
    """Return the compiled plan with the shortest predicted time; None if a plan not yet compiled is far faster."""
    device, calibration = journal.device, interim_calibration(journal, problem.dtype)
    candidates = [c for c in rank_candidates(problem, calibration) if is_within_limits(device, c.plan, problem)]
    light = set(quickly_compiled_candidates(device, effort)) - {VENDOR}
    ready = (c for c in candidates if c.plan in light and journal.has_compiled_kernels(problem.dtype, c.plan))
    best = next(ready, None)
    return best.plan if best and best.time < ENTRY_OVERRIDE_GAIN * candidates[0].time else None
