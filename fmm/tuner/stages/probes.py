"""Probe a device: measure products, sums and whole plans by size and shape, for the model's fit and its check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fmm.config.certification import MIN_SPEEDUP
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.candidates import device_candidates
from fmm.perfmodel.choose import rank_candidates
from fmm.perfmodel.level_bounds import count_levels
from fmm.perfmodel.work import are_rows_aligned, estimated_work
from fmm.problem import Problem
from fmm.tuner.devices.compile_ahead import COMPILE_TURNS, FIRST_TURN, OWN_KERNELS_TURN, compile_turn, compile_weight
from fmm.tuner.devices.device import SHORTEST_SAMPLE_PART, Device, Effort, Run
from fmm.tuner.findings.conclude import HELD_OUT_STAGE, starting_calibration
from fmm.tuner.findings.diagnostics import QUIET_STAGE, twin_differences
from fmm.tuner.findings.thresholds import LEVEL_COUNTS, side_choosing_levels, with_margin
from fmm.tuner.fit import blocks
from fmm.tuner.search.race import within_limits
from fmm.tuner.stages import shapes
from fmm.tuner.trials.journal import Journal, RoundLimits

SHAPE_SEEDS = {"probe": 5, HELD_OUT_STAGE: 11}  # seeds of the random shapes
# shares of the planned seconds, by stage
TIME_SHARES = {
    "probe": 0.15,
    HELD_OUT_STAGE: 0.2,
    "search": 0.2,
    "certify": 0.25,
    "halves": 0.1,
}
NOISY_SAMPLE_RATIO = 1.1  # two samples of one run with a larger ratio are noisy: a third sample follows
MAX_TWIN_DIFFERENCE = 0.03  # equal products with a larger relative difference get more rounds ...
TWIN_TIME_SHARE = 0.08  # ... for this share of the planned seconds
TWIN_RUNS = Run(), Run(twin=1)
SHAPES_PER_OWN_KERNEL = 2  # every second random shape, with round sides, also has a plan with fmm's own kernel
PATIENT_TIME_SHARE = 0.4  # uncertain medians get more rounds until this share of the planned seconds is spent ...
LONG_ROUNDS_SHARE = 0.03  # ... but only while the rounds of the shape have taken less than this share of them
CROSSOVER_STRIDE = 4  # on a CPU every 4th held-out shape is around a crossover
# side of the first quiet product; the side is doubled until the next product would take longer than these seconds
FIRST_QUIET_SIDE, MAX_QUIET_SECONDS = 256, 4e-3


def time_quiet_products(journal: Journal, dtype: str) -> None:
    """Time products of a few milliseconds, the shortest of many samples each: the times of a quiet device.

    Every tuning calls this twice, at different moments.
    """
    side, seconds = FIRST_QUIET_SIDE, 0.0
    while seconds * 8 < MAX_QUIET_SECONDS:
        problem = Problem(side, side, side, dtype)
        with journal.open(QUIET_STAGE, problem) as timed:
            seconds = min(
                timed.rounds([Run(part=SHORTEST_SAMPLE_PART)], RoundLimits(1))[Run(part=SHORTEST_SAMPLE_PART)],
                default=MAX_QUIET_SECONDS,
            )
        side *= 2


def find_scale(journal: Journal, dtype: str, effort: Effort) -> int:
    """Return the largest side that the effort affords, from products that are short on every device."""
    side = 1024
    while True:
        problem = Problem(side, side, side, dtype)
        with journal.open("scale", problem) as timed:
            samples = timed.rounds([Run()], RoundLimits(3, 20, 0.5))[Run()]
            seconds = min(samples, default=0.0)  # the shortest sample, since other work may disturb some
        found = shapes.largest_side(problem, seconds, journal.device, effort) if seconds else side
        if found <= 4 * side or not seconds:
            return found
        side *= 4  # small products do not reach the rate of a fast device


def probe_rates(journal: Journal, dtype: str, side: int, effort: Effort) -> None:
    """Measure products and sums by size and shape, twins for the noise, and whole plans on all kinds of shapes.

    The vendor's products come first, from the largest down: they need none of fmm's kernels, and the compilers disturb
    the largest least. Leaves with their own rate follow, since they gain most. Plans follow in the order in which their
    kernels compile. Held-out shapes are among them, so that the model can be fitted and checked whenever the time is
    up.

    On a GPU sums are measured up to half of the largest side, where they reach their rate; to fill larger operands
    would take longer than to add them. On a CPU sums and products are timed inside whole plans, without the largest
    square. The second largest square comes last, so that a tuning that is stopped earlier has its held-out shapes.
    """
    device, gpu = journal.device, journal.device.untuned_model().batches
    plans = [p for p in compilable_candidates(device, effort) if p != VENDOR][: 3 if gpu else 2]
    for size in shapes.probe_shapes(side):
        measure_runs(journal, "rates", Problem(*size, dtype), [Run()], effort)
    squares = [Problem(*s, dtype) for s in shapes.probe_shapes(side // 2 if gpu else side) if len(set(s)) == 1]
    squares, last = (squares, []) if gpu else (squares[2:], squares[1:2])
    probe_leaves(journal, squares[::2], effort)
    scattered = list(probe_scattered(device, dtype, side, effort))
    for turn in COMPILE_TURNS:
        probe_squares(journal, squares, [p for p in plans if probing_turn(p, gpu) == turn], turn, side, effort)
        if turn == OWN_KERNELS_TURN:
            probe_own_kernel(journal, squares[::2], effort)
        for stage, problem, found in scattered:
            runnable = [p for p in found if within_limits(device, p, problem)]
            runs = [Run(p) for p in runnable if probing_turn(p, gpu) == turn]
            if runs or (turn == FIRST_TURN and not runnable):
                measure_runs(journal, stage, problem, [Run(), *runs], effort)
    probe_squares(journal, last, plans, FIRST_TURN, side, effort)
    repeat_noisy_twins(journal, dtype, effort)


def probing_turn(plan: Plan, gpu: bool) -> int:
    """Return the turn in which a plan is probed: a leaf with its own rate alone, and every CPU plan, in the first."""
    return FIRST_TURN if not gpu or (plan.leaf_use.leaf.rate and not plan.levels) else compile_turn(plan)


def probe_squares(
    journal: Journal, squares: Sequence[Problem], plans: Sequence[Plan], turn: int, side: int, effort: Effort
) -> None:
    """Measure sums and products of the plans, whole plans on some large squares, and twins in the first turn.

    On a CPU the largest square has no whole plans, which would take as long as their parts once more.
    """
    gpu = journal.device.untuned_model().batches
    for problem in squares:
        own = [p for p in plans if within_limits(journal.device, p, problem)]
        runs = [Run(p, part) for p in own for part in ("sums", "products")]
        if (side // 2 <= problem.m + shapes.SIDE_STEP < side) if gpu else (side // 3 <= problem.m < 2 * side // 3):
            runs += [Run(p) for p in (*own, *plans_of_other_numbers(journal.device, problem)[:2])]
        measure_runs(journal, "probe", problem, [*(TWIN_RUNS if turn == FIRST_TURN else ()), *runs], effort)


def repeat_noisy_twins(journal: Journal, dtype: str, effort: Effort) -> None:
    """Measure more rounds of the equal products that differ most, at another moment.

    Among two or three rounds a single interruption can be the median, so that a quiet device seems noisy.
    """
    end = journal.spent + TWIN_TIME_SHARE * effort.seconds
    while journal.spent < end and (found := twin_differences(journal.recorded)):
        worst = max(found, key=lambda size: found[size])
        if found[worst] <= MAX_TWIN_DIFFERENCE:
            return
        with journal.open("probe", Problem(*worst, dtype)) as timed:
            timed.rounds(TWIN_RUNS, RoundLimits(effort.rounds + 1))


def probe_leaves(journal: Journal, squares: Sequence[Problem], effort: Effort) -> None:
    """Measure leaves with their own rate, alone, with the vendor's product."""
    for problem in squares:
        if alone := [p for p in plans_of_own_rate(journal.device, problem, effort) if not p.levels]:
            measure_runs(journal, "tiles", problem, [Run(), *map(Run, alone)], effort)


def probe_own_kernel(journal: Journal, squares: Sequence[Problem], effort: Effort) -> None:
    """Measure fmm's own kernel beside the vendor's product: with sums inside, alone, and alone on odd sides.

    Plans with levels above a leaf with its own rate are measured too.
    """
    for problem in squares:
        plans = plans_of_own_kernel(journal.device, problem, effort)
        own = [*plans, *([Plan(leaf=plans[0].leaf)] if plans else [])]
        if own := [*own, *(p for p in plans_of_own_rate(journal.device, problem, effort) if p.levels)]:
            measure_runs(journal, "tiles", problem, [Run(), *map(Run, own)], effort)
        if plans:
            odd = Problem(problem.m + 1, problem.k + 1, problem.n + 1, problem.dtype)
            measure_runs(journal, "tiles", odd, [Run(), Run(Plan(leaf=plans[0].leaf))], effort)


def probe_strategies(journal: Journal, effort: Effort) -> None:
    """Measure the tile strategies of fmm's own kernel on all kinds of shapes."""
    for size in blocks.STRATEGY_SHAPES:
        measure_runs(
            journal, blocks.BLOCKS_STAGE, Problem(*size, blocks.BLOCKS_DTYPE), [Run(), *blocks.strategy_runs()], effort
        )


def probe_scattered(
    device: Device, dtype: str, side: int, effort: Effort
) -> Iterator[tuple[str, Problem, Sequence[Plan]]]:
    """Yield random shapes with their plans, alternately for the fit and held out: drift affects both kinds alike."""
    fitted, held = (
        shapes.scattered_shapes(side, effort, TIME_SHARES[stage], seed) for stage, seed in SHAPE_SEEDS.items()
    )
    gpu, light = device.untuned_model().batches, compilable_candidates(device, effort)
    for i, sizes in enumerate(zip(fitted, held, strict=True)):
        for stage, size in zip(SHAPE_SEEDS, sizes, strict=True):
            if stage == HELD_OUT_STAGE and not gpu and i % CROSSOVER_STRIDE == CROSSOVER_STRIDE - 1:
                continue  # probe_crossovers holds out another shape instead
            problem = Problem(*size, dtype)
            # Plans that do not emulate: the model must also be right for a user who forbids emulation.
            usual = [p for p in light if not p.leaf_use.leaf.rate]
            plans, above = plans_worth_probing(device, problem, usual), plans_of_other_numbers(device, problem)
            others = plans[1:] or plans  # a GPU may have a single plan for a small product
            beside = plans_of_own_kernel(device, problem, effort)[:1] if i % SHAPES_PER_OWN_KERNEL == 0 else []
            beside += plans_of_own_rate(device, problem, effort)
            found = plans[:2] if stage == HELD_OUT_STAGE else [plans[0], others[i % len(others)]]
            if not gpu:  # plans like those that will be chosen have several levels
                levels = (2, 3, 1)[(i + (stage == HELD_OUT_STAGE)) % 3]
                found = [plans[0], next((p for p in others if count_levels(p) == levels), found[-1])]
            if above:  # one plan that changes the numbers, and one other plan
                found = [above[0], found[0]] if stage == HELD_OUT_STAGE else [above[i % len(above)], found[i % 2]]
            if gpu:  # plans of later turns may find no time
                found += [p for p in plans if probing_turn(p, True) == FIRST_TURN][:1]
            yield stage, problem, [*dict.fromkeys([*found, *beside])]


def probe_crossovers(journal: Journal, dtype: str, side: int, calibration: Calibration, effort: Effort) -> None:
    """Measure held-out shapes around the model's crossovers on a CPU: the best plan for each number of levels.

    These samples show whether the model is too optimistic about plans with several levels. A GPU has such plans among
    its other held-out samples.
    """
    if calibration.batches:
        return
    required = with_margin(calibration, MIN_SPEEDUP - 1)
    crossovers = [side_choosing_levels(required, dtype, levels) for levels in LEVEL_COUNTS]
    count = max(effort.held_out // CROSSOVER_STRIDE, 1)
    for size in shapes.crossover_shapes(side, crossovers, count):
        problem = Problem(*size, dtype)
        ranked = rank_candidates(problem, calibration, compilable_candidates(journal.device, effort))
        usable = [c for c in ranked if c.plan.levels and within_limits(journal.device, c.plan, problem)]
        near = [c.plan for c in usable if c.time < MAX_PROBED_TIME * usable[0].time]
        best = [next((p for p in near if count_levels(p) == levels), None) for levels in LEVEL_COUNTS]
        measure_runs(journal, HELD_OUT_STAGE, problem, [Run(), *(Run(p) for p in best if p)], effort)


def measure_runs(journal: Journal, stage: str, problem: Problem, runs: Sequence[Run], effort: Effort) -> None:
    """Measure the runs in common rounds, as many as the effort affords."""
    if runs:
        with journal.open(stage, problem) as timed:
            timed.rounds(runs, round_limits(journal, effort))


def round_limits(journal: Journal, effort: Effort) -> RoundLimits:
    """Return the effort's number of rounds, with more for short runs and for uncertain medians."""
    planned = effort.seconds
    patient = 2 * effort.rounds if journal.spent < PATIENT_TIME_SHARE * planned else 0
    return RoundLimits(
        effort.rounds,
        4 * effort.rounds,
        0.001 * planned,
        patient,
        dear=LONG_ROUNDS_SHARE * planned,
        unlike=NOISY_SAMPLE_RATIO,
    )


# On a CPU that runs several products at a time, only plans predicted within this multiple of the best plan's time are
# probed: plans of many small steps take ten times as long.
MAX_PROBED_TIME = 1.5


def compilable_candidates(device: Device, effort: Effort) -> list[Plan]:
    """Return the device's candidates whose kernels take no longer to compile than this effort allows."""
    return [p for p in device.candidates() if not p.levels or compile_weight(p) <= effort.heaviest]


def plans_worth_probing(device: Device, problem: Problem, plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans among which the model will choose, sorted by the untuned model."""
    untuned = starting_calibration(device.untuned_model(), problem.dtype)
    ranked = [c for c in rank_candidates(problem, untuned, plans) if c.plan != VENDOR]
    near = [c for c in ranked if untuned.lanes == 1 or c.time < MAX_PROBED_TIME * ranked[0].time]
    return [c.plan for c in (near if len(near) > 1 else ranked[:2])]


def plans_of_other_numbers(device: Device, problem: Problem) -> list[Plan]:
    """Return the CPU's candidates that change the numbers (3m: complex products by real ones), the best first."""
    untuned = starting_calibration(device.untuned_model(), problem.dtype)
    if untuned.batches:
        return []
    taking = [p for p in device_candidates(False) if p.accepts_type(problem.dtype)]
    found = [p for p in taking if p.leaf_type(problem.dtype) != problem.dtype]
    return plans_worth_probing(device, problem, found) if found else []


def plans_of_own_rate(device: Device, problem: Problem, effort: Effort) -> list[Plan]:
    """Return the plans for each leaf with its own rate: the leaf alone, and the first candidate above the leaf."""
    rates, found = device.untuned_model().rates, []
    light = [p for p in compilable_candidates(device, effort) if p.leaf_use.leaf.rate in rates]
    plans = [p for p in light if within_limits(device, p, problem)]
    for leaf in dict.fromkeys(p.leaf for p in plans):
        own = [p for p in plans if p.leaf == leaf]
        found += [p for p in own if not p.levels] + [p for p in own if p.levels][:1]
    return found


def plans_of_own_kernel(device: Device, problem: Problem, effort: Effort) -> list[Plan]:
    """Return candidates with fmm's own kernel that could win if the kernel is as fast as possible."""
    plans = [
        p for p in compilable_candidates(device, effort) if p.uses_tile_model and within_limits(device, p, problem)
    ]
    plans = [p for p in plans if are_rows_aligned(problem, p.leaf_use.leaf.alignment)]
    return [p for p in plans if estimated_work(p, problem).smallest_leaf_side >= device.untuned_model().least]
