"""The probes of a tuning: products, sums and whole plans by size and shape, for the model's fit and for its check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.candidates import compared_plans
from fmm.perfmodel.choose import rank_candidates
from fmm.perfmodel.work import are_rows_aligned, estimated_work
from fmm.problem import Problem
from fmm.tuner.devices.compile_ahead import OWN_KERNELS, SOON, TURNS, compile_turn, compile_weight
from fmm.tuner.devices.device import BEST, Device, Effort, Run
from fmm.tuner.findings.conclude import HELD_OUT, starting_calibration
from fmm.tuner.findings.diagnostics import QUIET, twin_differences
from fmm.tuner.fit import blocks
from fmm.tuner.search.race import within_limits
from fmm.tuner.stages import shapes
from fmm.tuner.trials.journal import Journal, RoundLimits

SEEDS = {"probe": 5, HELD_OUT: 11}  # of random shapes
SHARES = {"probe": 0.15, HELD_OUT: 0.2, "search": 0.2, "certify": 0.25, "halves": 0.1}  # of the planned seconds
UNLIKE = 1.1  # of two samples of one run, that which takes so many times as long was disturbed
CALM = 0.03  # equal products may differ by so much; those that differ most get more rounds ...
SETTLING = 0.08  # ... for this share of the planned seconds
TWINS = Run(), Run(twin=1)
OWN = 2  # on one of so many random shapes (those with round sides) a plan with our own kernel is measured too
PATIENCE = 0.4  # until this share of the planned seconds is spent, medians that scatter get more rounds ...
DEAR = 0.03  # ... but not on a shape whose rounds have taken this share of them
SHORTEST, SHORT = 256, 4e-3  # side of the first of those products; seconds that the last takes at most


def time_quiet_products(journal: Journal, dtype: str) -> None:
    """Products of a millisecond or a few, the shortest of many: by these it is told whether the others were disturbed.
    Of every tuning twice, at different moments."""
    side, seconds = SHORTEST, 0.0
    while seconds * 8 < SHORT:
        problem = Problem(side, side, side, dtype)
        with journal.open(QUIET, problem) as timed:
            seconds = min(timed.rounds([Run(part=BEST)], RoundLimits(1))[Run(part=BEST)], default=SHORT)
        side *= 2


def find_scale(journal: Journal, dtype: str, effort: Effort) -> int:
    """The largest side that the effort affords, from one product that every device does in no time."""
    side = 1024
    while True:
        problem = Problem(side, side, side, dtype)
        with journal.open("scale", problem) as timed:
            samples = timed.rounds([Run()], RoundLimits(3, 20, 0.5))[Run()]
            seconds = min(samples, default=0.0)  # others may multiply meanwhile
        found = shapes.largest_side(problem, seconds, journal.device, effort) if seconds else side
        if found <= 4 * side or not seconds:
            return found
        side *= 4  # a fast device: small products do not show how fast


def probe_rates(journal: Journal, dtype: str, side: int, effort: Effort) -> None:
    """Products and sums by size and shape, twins for the noise, and whole plans on shapes of all kinds.

    The vendor's products come first, the largest ahead: they need no kernels of ours, and suffer least while the
    processor compiles those. Then leaves that have a rate of their own, by which most is gained. Then plans in turns,
    those on held-out shapes among them, so that the model can be fitted and is checked whenever the time is up: on a
    GPU first what is soon compiled.

    On a GPU sums are measured up to half of the largest side, since they reach their rate long before that, and since
    filling large operands takes longer than adding them. On a CPU sums and products are timed inside whole plans, and
    the largest square is left out: it would take more time than it tells. The next one comes last, so that for as long
    as possible a tuning that is stopped has held-out shapes to be checked on.
    """
    device, gpu = journal.device, journal.device.untuned().batches
    plans = [p for p in light_candidates(device, effort) if p != VENDOR][: 3 if gpu else 2]
    for size in shapes.probe_shapes(side):
        measure_runs(journal, "rates", Problem(*size, dtype), [Run()], effort)
    squares = [Problem(*s, dtype) for s in shapes.probe_shapes(side // 2 if gpu else side) if len(set(s)) == 1]
    squares, last = (squares, []) if gpu else (squares[2:], squares[1:2])
    probe_leaves(journal, squares[::2], effort)
    scattered = list(probe_scattered(device, dtype, side, effort))
    for turn in TURNS:
        probe_squares(journal, squares, [p for p in plans if turn_of(p, gpu) == turn], turn, side, effort)
        if turn == OWN_KERNELS:
            probe_own_kernel(journal, squares[::2], effort)
        for stage, problem, found in scattered:
            able = [p for p in found if within_limits(device, p, problem)]
            runs = [Run(p) for p in able if turn_of(p, gpu) == turn]
            if runs or (turn == SOON and not able):
                measure_runs(journal, stage, problem, [Run(), *runs], effort)
    probe_squares(journal, last, plans, SOON, side, effort)
    settle_twins(journal, dtype, effort)


def turn_of(plan: Plan, gpu: bool) -> int:
    """In which turn a plan is probed: a leaf alone that has a rate of its own in the first one, since its kernels are
    compiled first of all."""
    return SOON if not gpu or (plan.leaf_use.leaf.rate and not plan.levels) else compile_turn(plan)


def probe_squares(
    journal: Journal, squares: Sequence[Problem], plans: Sequence[Plan], turn: int, side: int, effort: Effort
) -> None:
    """Sums and products of the plans, of some large squares whole plans too; in the first turn twins beside them.

    On a CPU the whole plans are not those of the largest square, where they would take as long as their parts again.
    """
    gpu = journal.device.untuned().batches
    for problem in squares:
        own = [p for p in plans if within_limits(journal.device, p, problem)]
        runs = [Run(p, part) for p in own for part in ("sums", "products")]
        if (side // 2 <= problem.m + shapes.STEP < side) if gpu else (side // 3 <= problem.m < 2 * side // 3):
            runs += [Run(p) for p in (*own, *plans_of_other_numbers(journal.device, problem)[:2])]
        measure_runs(journal, "probe", problem, [*(TWINS if turn == SOON else ()), *runs], effort)


def settle_twins(journal: Journal, dtype: str, effort: Effort) -> None:
    """More rounds of the equal products that differ most, at another moment: of two or three rounds a single
    interruption is the median, and the device would be taken for a disturbed one."""
    end = journal.spent + SETTLING * effort.seconds
    while journal.spent < end and (found := twin_differences(journal.recorded)):
        worst = max(found, key=lambda size: found[size])
        if found[worst] <= CALM:
            return
        with journal.open("probe", Problem(*worst, dtype)) as timed:
            timed.rounds(TWINS, RoundLimits(effort.rounds + 1))


def probe_leaves(journal: Journal, squares: Sequence[Problem], effort: Effort) -> None:
    """Leaves that have a rate of their own, alone, beside the vendor's product."""
    for problem in squares:
        if alone := [p for p in plans_of_own_rate(journal.device, problem, effort) if not p.levels]:
            measure_runs(journal, "tiles", problem, [Run(), *map(Run, alone)], effort)


def probe_own_kernel(journal: Journal, squares: Sequence[Problem], effort: Effort) -> None:
    """Products by our own kernel, with sums inside and alone, beside the vendor's; alone on odd sides too. And plans
    with levels above a leaf that has a rate of its own."""
    for problem in squares:
        plans = own_plans(journal.device, problem, effort)
        own = [*plans, *([Plan(leaf=plans[0].leaf)] if plans else [])]
        if own := [*own, *(p for p in plans_of_own_rate(journal.device, problem, effort) if p.levels)]:
            measure_runs(journal, "tiles", problem, [Run(), *map(Run, own)], effort)
        if plans:
            odd = Problem(problem.m + 1, problem.k + 1, problem.n + 1, problem.dtype)
            measure_runs(journal, "tiles", odd, [Run(), Run(Plan(leaf=plans[0].leaf))], effort)


def probe_strategies(journal: Journal, effort: Effort) -> None:
    """The strategies of our own product kernel, on shapes of all kinds."""
    for size in blocks.SIZES:
        measure_runs(journal, blocks.STAGE, Problem(*size, blocks.DTYPE), [Run(), *blocks.strategy_runs()], effort)


def probe_scattered(
    device: Device, dtype: str, side: int, effort: Effort
) -> Iterator[tuple[str, Problem, Sequence[Plan]]]:
    """Random shapes: every second one is held out, no fit sees it. In turns, so that drift hits both alike."""
    fitted, held = (shapes.scattered_shapes(side, effort, SHARES[stage], seed) for stage, seed in SEEDS.items())
    gpu, light = device.untuned().batches, light_candidates(device, effort)
    for i, sizes in enumerate(zip(fitted, held, strict=True)):
        for stage, size in zip(SEEDS, sizes, strict=True):
            problem = Problem(*size, dtype)
            # Whoever forbids emulation needs a model that is right without it.
            usual = [p for p in light if not p.leaf_use.leaf.rate]
            plans, above = worth_probing(device, problem, usual), plans_of_other_numbers(device, problem)
            others = plans[1:] or plans  # for a small product a GPU may have a single plan
            beside = own_plans(device, problem, effort)[:1] if i % OWN == 0 else []
            beside += plans_of_own_rate(device, problem, effort)
            found = plans[:2] if stage == HELD_OUT else [plans[0], others[i % len(others)]]
            if above:  # one of these beside one without them
                found = [above[0], found[0]] if stage == HELD_OUT else [above[i % len(above)], found[i % 2]]
            if gpu:  # for others there may be no time
                found += [p for p in plans if turn_of(p, True) == SOON][:1]
            yield stage, problem, [*dict.fromkeys([*found, *beside])]


def measure_runs(journal: Journal, stage: str, problem: Problem, runs: Sequence[Run], effort: Effort) -> None:
    """All of them beside each other, for as many rounds as the effort affords."""
    if runs:
        with journal.open(stage, problem) as timed:
            timed.rounds(runs, round_limits(journal, effort))


def round_limits(journal: Journal, effort: Effort) -> RoundLimits:
    """The effort's rounds at least; more where they cost next to nothing, or where times scatter and there is time."""
    planned = effort.seconds
    patient = 2 * effort.rounds if journal.spent < PATIENCE * planned else 0
    return RoundLimits(effort.rounds, 4 * effort.rounds, 0.001 * planned, patient, dear=DEAR * planned, unlike=UNLIKE)


# On a CPU with several lanes, only plans are probed that are predicted to take at most so many times as long as the
# best one: plans of many small steps take ten times as long as those that matter.
WORTH_PROBING = 1.5


def light_candidates(device: Device, effort: Effort) -> list[Plan]:
    """The device's candidates whose kernels the effort waits for."""
    return [p for p in device.candidates() if not p.levels or compile_weight(p) <= effort.heaviest]


def worth_probing(device: Device, problem: Problem, plans: Sequence[Plan]) -> list[Plan]:
    """Those between which the model is to choose, by what is believed before anything is measured the fastest first."""
    untuned = starting_calibration(device.untuned(), problem.dtype)
    known = [c for c in rank_candidates(problem, untuned, plans) if c.plan != VENDOR]
    near = [c for c in known if untuned.lanes == 1 or c.time < WORTH_PROBING * known[0].time]
    return [c.plan for c in (near if len(near) > 1 else known[:2])]


def plans_of_other_numbers(device: Device, problem: Problem) -> list[Plan]:
    """On a CPU, the candidates that change the numbers (a complex product into real ones), the model's best first."""
    untuned = starting_calibration(device.untuned(), problem.dtype)
    if untuned.batches:
        return []
    taking = [p for p in compared_plans(False) if p.accepts_type(problem.dtype)]
    found = [p for p in taking if p.leaf_type(problem.dtype) != problem.dtype]
    return worth_probing(device, problem, found) if found else []


def plans_of_own_rate(device: Device, problem: Problem, effort: Effort) -> list[Plan]:
    """Of each leaf that has a rate of its own: the leaf alone, and the first candidate with levels above it."""
    rates, found = device.untuned().rates, []
    light = [p for p in light_candidates(device, effort) if p.leaf_use.leaf.rate in rates]
    plans = [p for p in light if within_limits(device, p, problem)]
    for leaf in dict.fromkeys(p.leaf for p in plans):
        own = [p for p in plans if p.leaf == leaf]
        found += [p for p in own if not p.levels] + [p for p in own if p.levels][:1]
    return found


def own_plans(device: Device, problem: Problem, effort: Effort) -> list[Plan]:
    """Candidates with our own kernel that could be chosen for the problem if the kernel proved as fast as possible."""
    plans = [p for p in light_candidates(device, effort) if p.uses_tile_model and within_limits(device, p, problem)]
    plans = [p for p in plans if are_rows_aligned(problem, p.leaf_use.leaf.alignment)]
    return [p for p in plans if estimated_work(p, problem).smallest >= device.untuned().least]
