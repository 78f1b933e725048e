"""Probe a device: time products, sums and whole plans of many sizes, to fit the model and to check the fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fmm.config.certification import MIN_SPEEDUP
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.candidates import device_candidate_plans
from fmm.perfmodel.choose import rank_candidates
from fmm.perfmodel.crossovers import count_levels
from fmm.perfmodel.work import are_rows_aligned, estimated_work
from fmm.problem import Problem
from fmm.tuner.devices.compile_ahead import (
    COMPILE_PHASES,
    OWN_KERNELS_PHASE,
    QUICK_KERNELS_PHASE,
    compilation_phase,
    largest_level_products,
)
from fmm.tuner.devices.device import SHORTEST_SAMPLE_PART, Effort, TimedRun, TunableDevice
from fmm.tuner.findings.conclude import HELD_OUT_STAGE, starting_calibration
from fmm.tuner.findings.diagnostics import QUIET_STAGE, aa_pair_differences
from fmm.tuner.findings.ladder import LADDER_STAGE
from fmm.tuner.findings.thresholds import LEVEL_COUNTS, calibration_with_margin, crossover_of_levels
from fmm.tuner.fit import blocks
from fmm.tuner.search.race import is_within_limits
from fmm.tuner.stages import shapes
from fmm.tuner.trials.journal import Journal, RoundLimits

SHAPE_SEEDS = {"probe": 5, HELD_OUT_STAGE: 11}  # stage -> seed of the stage's random shapes
# name of a stage -> fraction of the tuning's planned time for this stage
TIME_SHARES = {
    "probe": 0.15,
    HELD_OUT_STAGE: 0.2,
    LADDER_STAGE: 0.15,
    "search": 0.2,
    "certify": 0.25,
    "halves": 0.1,
}
NOISY_SAMPLE_RATIO = 1.1  # largest ratio of a run's two samples without a third round
MAX_AA_PAIR_DIFFERENCE = 0.03  # largest relative difference of an A/A pair that is not measured again
AA_PAIR_TIME_SHARE = 0.08  # share of the planned seconds that additional rounds of A/A pairs may take
AA_PAIR_RUNS = TimedRun(), TimedRun(twin=1)
OWN_KERNEL_STRIDE = 2  # a plan with fmm's own kernel is timed on every second random shape
# Runs with an uncertain median are timed in additional rounds, until this fraction of the planned time has passed.
EXTRA_ROUNDS_TIME_SHARE = 0.4
# An uncertain median is not measured in more rounds once the samples of its shape have taken this fraction of the
# tuning's planned time.
MAX_SHAPE_TIME_SHARE = 0.03
CROSSOVER_SHAPE_STRIDE = 4  # on a CPU, every 4th held-out shape is near a crossover
# The first product of the quiet stage is a square of this side. Each further product has twice the side, until the next
# product would take more than MAX_QUIET_PRODUCT_SECONDS.
QUIET_STAGE_FIRST_SIDE, MAX_QUIET_PRODUCT_SECONDS = 256, 4e-3


def time_products_on_idle_device(journal: Journal, dtype: str) -> None:
    """Record the shortest of many samples of short products, which is the time on an idle device.

    A tuning calls this function once before the probes and once before the search: other work may disturb one of the
    calls.
    """
    side, seconds = QUIET_STAGE_FIRST_SIDE, 0.0
    while seconds * 8 < MAX_QUIET_PRODUCT_SECONDS:
        problem = Problem(side, side, side, dtype)
        with journal.open_timed_problem(QUIET_STAGE, problem) as timed:
            seconds = min(
                timed.sample_rounds([TimedRun(part=SHORTEST_SAMPLE_PART)], RoundLimits(1))[
                    TimedRun(part=SHORTEST_SAMPLE_PART)
                ],
                default=MAX_QUIET_PRODUCT_SECONDS,
            )
        side *= 2


def measure_largest_side(journal: Journal, dtype: str, effort: Effort) -> int:
    """Return the largest side of products that the effort can time, computed from the times of smaller products."""
    side = 1024
    while True:
        problem = Problem(side, side, side, dtype)
        with journal.open_timed_problem("scale", problem) as timed:
            samples = timed.sample_rounds([TimedRun()], RoundLimits(3, 20, 0.5))[TimedRun()]
            seconds = min(samples, default=0.0)  # other work on the device rarely slows down the shortest sample
        found = shapes.largest_side_within_seconds(problem, seconds, journal.device, effort) if seconds else side
        if found <= 4 * side or not seconds:
            return found
        side *= 4  # on a fast device, small products do not run at the full rate: time a larger product


def measure_probes(journal: Journal, dtype: str, side: int, effort: Effort) -> None:
    """Measure products, sums, A/A pairs and whole plans on shapes of many sizes.

    The vendor's products are timed first, from the largest to the smallest. While the vendor's products are timed,
    fmm's kernels compile in the background. This compilation disturbs the largest products least. Next, plans with
    leaves that have a separate rate in the calibration are timed, since these plans gain most. The remaining plans are
    timed last, in the order in which their kernels compile. Fitted and held-out shapes alternate, so that an
    interrupted tuning has both fitted and held-out shapes.

    On a GPU, sums are timed on squares of at most half of the largest side. Sums already run at their full rate on
    squares of half of the largest side, and initializing larger operands would take longer than the sums. On a CPU,
    sums and products are timed inside whole plans, and not on the largest square. On a CPU, the second largest square
    is measured last, after the held-out shapes.
    """
    device, gpu = journal.device, journal.device.untuned_model().batches
    plans = [p for p in quickly_compiled_candidates(device, effort) if p != VENDOR][: 3 if gpu else 2]
    for size in shapes.probe_shapes(side):
        time_runs_in_rounds(journal, "rates", Problem(*size, dtype), [TimedRun()], effort)
    squares = [Problem(*s, dtype) for s in shapes.probe_shapes(side // 2 if gpu else side) if len(set(s)) == 1]
    squares, last = (squares, []) if gpu else (squares[2:], squares[1:2])
    probe_leaves_with_separate_rate(journal, squares[::2], effort)
    scattered = list(random_shape_plans(device, dtype, side, effort))
    for turn in COMPILE_PHASES:
        time_probe_squares(
            journal, squares, [p for p in plans if required_compile_phase(p, gpu) == turn], turn, side, effort
        )
        if turn == OWN_KERNELS_PHASE:
            probe_own_kernel(journal, squares[::2], effort)
        for stage, problem, found in scattered:
            runnable = [p for p in found if is_within_limits(device, p, problem)]
            runs = [TimedRun(p) for p in runnable if required_compile_phase(p, gpu) == turn]
            if runs or (turn == QUICK_KERNELS_PHASE and not runnable):
                time_runs_in_rounds(journal, stage, problem, [TimedRun(), *runs], effort)
    time_probe_squares(journal, last, plans, QUICK_KERNELS_PHASE, side, effort)
    repeat_noisy_aa_pairs(journal, dtype, effort)


def required_compile_phase(plan: Plan, gpu: bool) -> int:
    """Return the compile phase (see COMPILE_PHASES) after which a plan is probed.

    All plans of a CPU belong to the first phase. On a GPU, plans without levels also belong to the first phase if their
    leaf has a separate rate in the calibration.
    """
    return QUICK_KERNELS_PHASE if not gpu or (plan.leaf_use.leaf.rate and not plan.levels) else compilation_phase(plan)


def time_probe_squares(
    journal: Journal, squares: Sequence[Problem], plans: Sequence[Plan], phase_index: int, side: int, effort: Effort
) -> None:
    """Time A/A pairs and the sums and products of plans on squares, and whole plans on some large squares.

    A/A pairs are timed together with the plans of the first compile phase, and not again in later phases. On a CPU,
    whole plans are not timed on the largest squares, to save time.
    """
    gpu = journal.device.untuned_model().batches
    for problem in squares:
        own = [p for p in plans if is_within_limits(journal.device, p, problem)]
        runs = [TimedRun(p, part) for p in own for part in ("sums", "products")]
        if (side // 2 <= problem.m + shapes.SIDE_STEP < side) if gpu else (side // 3 <= problem.m < 2 * side // 3):
            runs += [TimedRun(p) for p in (*own, *plans_in_another_type(journal.device, problem)[:2])]
        time_runs_in_rounds(
            journal, "probe", problem, [*(AA_PAIR_RUNS if phase_index == QUICK_KERNELS_PHASE else ()), *runs], effort
        )


def repeat_noisy_aa_pairs(journal: Journal, dtype: str, effort: Effort) -> None:
    """Time additional rounds of the A/A pairs with the largest differences, at a later time.

    The median of two or three rounds may be a sample that other work slowed down; without additional rounds, the device
    would seem noisy.
    """
    end = journal.sampled_seconds + AA_PAIR_TIME_SHARE * effort.seconds
    while journal.sampled_seconds < end and (found := aa_pair_differences(journal.recorded)):
        worst = max(found, key=lambda size: found[size])
        if found[worst] <= MAX_AA_PAIR_DIFFERENCE:
            return
        with journal.open_timed_problem("probe", Problem(*worst, dtype)) as timed:
            timed.sample_rounds(AA_PAIR_RUNS, RoundLimits(effort.rounds + 1))


def probe_leaves_with_separate_rate(journal: Journal, squares: Sequence[Problem], effort: Effort) -> None:
    """Time each leaf with a separate rate in the calibration, without levels, in rounds with the vendor's product."""
    for problem in squares:
        if alone := [p for p in plans_with_separate_leaf_rate(journal.device, problem, effort) if not p.levels]:
            time_runs_in_rounds(journal, "tiles", problem, [TimedRun(), *map(TimedRun, alone)], effort)


def probe_own_kernel(journal: Journal, squares: Sequence[Problem], effort: Effort) -> None:
    """Time fmm's own kernel in rounds with the vendor's product: with fused sums, without levels, and on odd sides.

    The rounds include plans with levels and a leaf that has a separate rate in the calibration.
    """
    for problem in squares:
        plans = own_kernel_plans(journal.device, problem, effort)
        own = [*plans, *([Plan(leaf=plans[0].leaf)] if plans else [])]
        if own := [*own, *(p for p in plans_with_separate_leaf_rate(journal.device, problem, effort) if p.levels)]:
            time_runs_in_rounds(journal, "tiles", problem, [TimedRun(), *map(TimedRun, own)], effort)
        if plans:
            odd = Problem(problem.m + 1, problem.k + 1, problem.n + 1, problem.dtype)
            time_runs_in_rounds(journal, "tiles", odd, [TimedRun(), TimedRun(Plan(leaf=plans[0].leaf))], effort)


def probe_strategies(journal: Journal, effort: Effort) -> None:
    """Time the tile strategies of fmm's own kernel on square and thin shapes."""
    chip = journal.device.chip
    assert chip is not None
    for size in blocks.STRATEGY_SHAPES:
        time_runs_in_rounds(
            journal,
            blocks.BLOCK_MODEL_STAGE,
            Problem(*size, blocks.BLOCK_MODEL_DTYPE),
            [TimedRun(), *blocks.strategy_runs(chip)],
            effort,
        )


def random_shape_plans(
    device: TunableDevice, dtype: str, side: int, effort: Effort
) -> Iterator[tuple[str, Problem, Sequence[Plan]]]:
    """Yield (stage, problem, plans to time) for each random shape; fitted and held-out shapes alternate.

    Fitted and held-out shapes alternate, so that a drift of the device's speed affects both alike.
    """
    fitted, held = (
        shapes.random_probe_shapes(side, effort, TIME_SHARES[stage], seed) for stage, seed in SHAPE_SEEDS.items()
    )
    gpu, light = device.untuned_model().batches, quickly_compiled_candidates(device, effort)
    for i, sizes in enumerate(zip(fitted, held, strict=True)):
        for stage, size in zip(SHAPE_SEEDS, sizes, strict=True):
            if stage == HELD_OUT_STAGE and not gpu and i % CROSSOVER_SHAPE_STRIDE == CROSSOVER_SHAPE_STRIDE - 1:
                continue  # on a CPU, probe_crossovers measures another held-out shape instead
            problem = Problem(*size, dtype)
            # Time plans without emulation on each random shape: the model must also be accurate for users who forbid
            # emulation.
            usual = [p for p in light if not p.leaf_use.leaf.rate]
            plans, above = plans_worth_probing(device, problem, usual), plans_in_another_type(device, problem)
            others = plans[1:] or plans  # for a small product on a GPU, there may be only one plan
            beside = own_kernel_plans(device, problem, effort)[:1] if i % OWN_KERNEL_STRIDE == 0 else []
            beside += plans_with_separate_leaf_rate(device, problem, effort)
            found = plans[:2] if stage == HELD_OUT_STAGE else [plans[0], others[i % len(others)]]
            if not gpu:  # on a CPU, fmm.matmul often chooses several levels: time plans with each number of levels
                levels = (2, 3, 1)[(i + (stage == HELD_OUT_STAGE)) % 3]
                found = [plans[0], next((p for p in others if count_levels(p) == levels), found[-1])]
            if above:  # time one plan that changes the element type (3m, residues), and one other plan
                found = [above[0], found[0]] if stage == HELD_OUT_STAGE else [above[i % len(above)], found[i % 2]]
            if gpu:  # add a plan of the first compile phase: the time limit may end the tuning before later phases
                found += [p for p in plans if required_compile_phase(p, True) == QUICK_KERNELS_PHASE][:1]
            yield stage, problem, [*dict.fromkeys([*found, *beside])]


def probe_crossovers(journal: Journal, dtype: str, side: int, calibration: Calibration, effort: Effort) -> None:
    """On a CPU, time the best plan of each number of levels on held-out shapes near the predicted crossovers.

    These samples near the crossovers show whether the predicted speedups of plans with several levels are too large. On
    a GPU, this function does nothing: fmm.tuner.stages.ladder measures the crossovers.
    """
    if calibration.batches:
        return
    required = calibration_with_margin(calibration, MIN_SPEEDUP - 1)
    crossovers = [crossover_of_levels(required, dtype, levels) for levels in LEVEL_COUNTS]
    count = max(effort.held_out // CROSSOVER_SHAPE_STRIDE, 1)
    for size in shapes.crossover_shapes(side, crossovers, count):
        problem = Problem(*size, dtype)
        ranked = rank_candidates(problem, calibration, quickly_compiled_candidates(journal.device, effort))
        usable = [c for c in ranked if c.plan.levels and is_within_limits(journal.device, c.plan, problem)]
        near = [c.plan for c in usable if c.time < MAX_PROBED_TIME_RATIO * usable[0].time]
        best = [next((p for p in near if count_levels(p) == levels), None) for levels in LEVEL_COUNTS]
        time_runs_in_rounds(journal, HELD_OUT_STAGE, problem, [TimedRun(), *(TimedRun(p) for p in best if p)], effort)


def time_runs_in_rounds(
    journal: Journal, stage: str, problem: Problem, runs: Sequence[TimedRun], effort: Effort
) -> None:
    """Time the runs on a problem in shuffled rounds; the effort limits the number of rounds."""
    if runs:
        with journal.open_timed_problem(stage, problem) as timed:
            timed.sample_rounds(runs, round_limits_of_effort(journal, effort))


def round_limits_of_effort(journal: Journal, effort: Effort) -> RoundLimits:
    """Return the limits on the number of rounds for an effort; short runs and uncertain medians have more rounds."""
    planned = effort.seconds
    patient = 2 * effort.rounds if journal.sampled_seconds < EXTRA_ROUNDS_TIME_SHARE * planned else 0
    return RoundLimits(
        effort.rounds,
        4 * effort.rounds,
        0.001 * planned,
        patient,
        max_uncertain_seconds=MAX_SHAPE_TIME_SHARE * planned,
        max_ratio_of_two=NOISY_SAMPLE_RATIO,
    )


# On a CPU that runs several products at a time, plans with many small steps take ten times as long as the best plan.
# Probes therefore skip a plan if its predicted time exceeds this multiple of the best plan's predicted time.
MAX_PROBED_TIME_RATIO = 1.5


def quickly_compiled_candidates(device: TunableDevice, effort: Effort) -> list[Plan]:
    """Return the device's candidates with kernels that compile fast enough for this effort."""
    return [
        p
        for p in device.candidate_plans()
        if not p.levels or largest_level_products(p) <= effort.max_products_per_level
    ]


def plans_worth_probing(device: TunableDevice, problem: Problem, plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans with a predicted time near that of the best plan, by the untuned model, the fastest first."""
    untuned = starting_calibration(device.untuned_model(), problem.dtype)
    ranked = [c for c in rank_candidates(problem, untuned, plans) if c.plan != VENDOR]
    near = [c for c in ranked if untuned.lanes == 1 or c.time < MAX_PROBED_TIME_RATIO * ranked[0].time]
    return [c.plan for c in (near if len(near) > 1 else ranked[:2])]


def plans_in_another_type(device: TunableDevice, problem: Problem) -> list[Plan]:
    """Return plans of a CPU that multiply in another element type, such as 3m (complex as real), the best first."""
    untuned = starting_calibration(device.untuned_model(), problem.dtype)
    if untuned.batches:
        return []
    taking = [p for p in device_candidate_plans(False) if p.accepts_type(problem.dtype)]
    found = [p for p in taking if p.leaf_type(problem.dtype) != problem.dtype]
    return plans_worth_probing(device, problem, found) if found else []


def plans_with_separate_leaf_rate(device: TunableDevice, problem: Problem, effort: Effort) -> list[Plan]:
    """Return two plans for each leaf with a separate rate in the calibration: without levels, and with levels."""
    rates, found = device.untuned_model().rates, []
    light = [p for p in quickly_compiled_candidates(device, effort) if p.leaf_use.leaf.rate in rates]
    plans = [p for p in light if is_within_limits(device, p, problem)]
    for leaf in dict.fromkeys(p.leaf for p in plans):
        own = [p for p in plans if p.leaf == leaf]
        found += [p for p in own if not p.levels] + [p for p in own if p.levels][:1]
    return found


def own_kernel_plans(device: TunableDevice, problem: Problem, effort: Effort) -> list[Plan]:
    """Return the candidates with fmm's own kernel for which the operands are aligned and large enough."""
    plans = [
        p
        for p in quickly_compiled_candidates(device, effort)
        if p.uses_tile_model and is_within_limits(device, p, problem)
    ]
    plans = [p for p in plans if are_rows_aligned(problem, p.leaf_use.leaf.alignment)]
    return [p for p in plans if estimated_work(p, problem).smallest_leaf_side >= device.untuned_model().least]
