"""Search for the fastest plan of a shape: time the model's best plans and Optuna's proposals against the vendor."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from fmm.config import certification
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, default_error_growth_limit, rank_candidates
from fmm.perfmodel.predict import predict_vendor
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Problem
from fmm.tuner.devices.compile_ahead import largest_level_products
from fmm.tuner.devices.device import Effort, TimedRun, TunableDevice
from fmm.tuner.search.space import SearchSpace, build_plan, choices_of_plan, device_search_space, space_for_dtype
from fmm.tuner.trials.journal import Journal, RoundLimits, SampleSeconds, TimedProblem, median_paired_speedup

SEARCH_STAGE = "search"
OPTUNA = "optuna"  # the proposer of plans from Optuna's sampler, as recorded in the trials
PLANS_BEFORE_OPTUNA = 2  # number of plans that a search times before Optuna's first proposal
# A search takes at most this fraction of the time that remains before the time limit; the rest is for the certification
# of the best plan.
SEARCH_SHARE_OF_REST = 0.7
MIN_SECONDS_TO_COMPILE = 60.0  # with fewer seconds left, a search skips plans whose kernels are not compiled
# Optuna's sampler begins with predicted speedups: of the model's best plans, and of valid plans among random choices.
BEST_PLANS_OF_MODEL, RANDOM_CHOICES = 16, 128
MAX_PROPOSED_TIME_RATIO = 1.1  # a proposal is not timed if its predicted time exceeds this multiple of the shortest


@dataclass(frozen=True)
class RaceResult:
    """The plans that a search has timed on one problem, with median speedups over the vendor, the fastest first."""

    problem: Problem
    plans: tuple[tuple[Plan, float], ...]


def search_plans(
    journal: Journal, problem: Problem, calibration: Calibration, effort: Effort, seconds: float
) -> RaceResult:
    """Time the model's best plans and Optuna's proposals against the vendor; return the plans by speedup.

    The search ends when its samples have taken `seconds`, or after a fixed fraction of the time that remained before
    the time limit. If little time is left, the search skips plans whose kernels are not compiled.
    """
    left = journal.limit - journal.elapsed_seconds
    predicted = [c.plan for c in rank_candidates(problem, calibration) if c.plan != VENDOR]

    def is_searchable_plan(plan: Plan) -> bool:
        ready = left > MIN_SECONDS_TO_COMPILE or journal.has_compiled_kernels(problem.dtype, plan)
        few = largest_level_products(plan) <= effort.max_products_per_level
        return few and ready and is_within_limits(journal.device, plan, problem)

    predicted = [p for p in predicted if is_searchable_plan(p)]
    if problem.writes_triangle:
        return race_plans(journal, problem, predicted[: effort.trials], effort)
    without = best_plan_without_workspace(problem, calibration, journal.device)
    without = [p for p in without if is_searchable_plan(p)]
    peers = [p for p in journal.device.vendor_alternatives() if p.accepts_type(problem.dtype)][: effort.enqueued]
    promising = list(dict.fromkeys([*predicted[:1], *without, *peers, *predicted[1 : effort.enqueued]]))
    trials = effort.trials + len(peers + without)
    end = journal.elapsed_seconds + SEARCH_SHARE_OF_REST * left
    with journal.open_timed_problem(SEARCH_STAGE, problem) as timed:
        race = PlanRace(timed, effort.rounds)
        proposals = optuna_proposals(
            journal.device,
            problem,
            race.results,
            max(trials - len(promising), 0),
            calibration=calibration,
            is_searchable_plan=is_searchable_plan,
        )
        with journal.stage_with_time_limit(end):
            for plan, proposer in alternate_proposals(promising[:trials], proposals):
                if race.spent >= seconds:
                    break
                race.measure_speedup(plan, proposer)
    return RaceResult(problem, race.ranked_speedups())


def whole_search_seconds(problem: Problem, calibration: Calibration, effort: Effort) -> float:
    """Return the predicted seconds of samples of a whole search, in which each plan takes as long as the vendor."""
    plans = effort.trials + effort.enqueued
    return 2 * effort.rounds * plans * predict_vendor(problem, calibration).predicted_seconds


def search_order(
    problems: Sequence[Problem], calibration: Calibration, effort: Effort, seconds: float
) -> list[Problem]:
    """Return the problems in the order in which they are searched, if all samples together may take `seconds`.

    A problem comes first if its whole search is predicted to take at most half of `seconds`. Otherwise, the order of
    `problems` does not change.
    """
    fitting = [p for p in problems if whole_search_seconds(p, calibration, effort) <= seconds / 2]
    return [*fitting, *(p for p in problems if p not in fitting)]


def race_plans(journal: Journal, problem: Problem, plans: Sequence[Plan], effort: Effort) -> RaceResult:
    """Time these plans against the vendor's product; return the plans with their speedups."""
    with journal.open_timed_problem(SEARCH_STAGE, problem) as timed:
        racing = PlanRace(timed, effort.rounds)
        for plan in plans:
            racing.measure_speedup(plan)
    return RaceResult(problem, racing.ranked_speedups())


def best_plan_without_workspace(problem: Problem, calibration: Calibration, device: TunableDevice) -> list[Plan]:
    """Return a list with the best plan by the model that needs no workspace; empty if every plan needs workspace."""
    candidates = rank_candidates(problem, calibration)
    return [
        c.plan for c in candidates if needs_no_workspace(c.plan, problem) and is_within_limits(device, c.plan, problem)
    ][:1]


def needs_no_workspace(plan: Plan, problem: Problem) -> bool:
    """Return True if the plan has levels and needs no workspace."""
    return bool(plan.levels) and plan_workspace_bytes(plan, *problem.size, problem.itemsize, op=problem.op) == 0


def is_within_limits(device: TunableDevice, plan: Plan, problem: Problem) -> bool:
    """Return True if the plan can multiply the element type, and is within the default error limit and the memory."""
    if not plan.is_candidate_for(problem.dtype):
        return False
    m, k, n = problem.size
    operands = (m * k + k * n + m * n) * problem.itemsize
    try:
        needed = plan_workspace_bytes(plan, m, k, n, problem.itemsize, op=problem.op)
    except PlanError:
        return False
    gpu = device.untuned_model().batches
    allowed, growth = (
        Limits(needed, default_error_growth_limit(gpu)),
        expected_error_growth(plan, problem.dtype, not gpu),
    )
    return allowed.allows_plan(plan, growth) and operands + needed <= device.memory_bytes


class PlanRace:
    """Times plans on one problem in rounds with the vendor's product; the rounds of a clearly slower plan end early."""

    def __init__(self, timed: TimedProblem, rounds: int) -> None:
        self.timed, self.rounds = timed, rounds
        self.results: dict[Plan, float] = {}  # plan -> median speedup over the vendor; 0 if the plan failed
        self.best_low = 1.0
        self.spent = 0.0

    def measure_speedup(self, plan: Plan, proposer: str = "") -> float:
        """Return the plan's median speedup over the vendor, which is measured at the first call."""
        if plan in self.results:
            return self.results[plan]
        run, base = TimedRun(plan), TimedRun(VENDOR)
        self.timed.proposer = proposer
        samples = self.timed.sample_rounds(
            (base, run), RoundLimits(self.rounds), lambda s: self._runs_to_stop(s, base, run)
        )
        self.spent += sum(map(sum, samples.values()))
        found = median_paired_speedup(samples, base, run) if samples[run] and samples[base] else 0.0
        self.results[plan] = found
        if found and len(samples[run]) >= self.rounds:
            self.best_low = max(
                self.best_low,
                certification.median_interval(certification.paired_ratios(samples[base], samples[run]))[0],
            )
        return found

    def _runs_to_stop(self, samples: SampleSeconds, base: TimedRun, run: TimedRun) -> Iterable[TimedRun]:
        """Return the plan and the vendor if their rounds can end, since the plan is clearly slower than the best plan.

        A plan is clearly slower if its best round is below the 95 % interval of the best plan's speedup.
        """
        if not samples[run] or not samples[base]:
            return (base, run)
        rounds = len(samples[run])
        best = max(certification.paired_ratios(samples[base][:rounds], samples[run]))
        return (base, run) if rounds >= 2 and best < self.best_low else ()

    def ranked_speedups(self) -> tuple[tuple[Plan, float], ...]:
        """Return the plans that did not fail, with their speedups, the fastest first."""
        return tuple(sorted(((p, s) for p, s in self.results.items() if s), key=lambda x: -x[1]))


def alternate_proposals(promising: Sequence[Plan], proposals: Iterator[Plan]) -> Iterator[tuple[Plan, str]]:
    """Yield pairs (plan, proposer): some promising plans, then alternately Optuna's proposals and promising plans.

    The plans alternate so that a search with a short time limit also times proposals of Optuna.
    """
    yield from ((plan, "") for plan in promising[:PLANS_BEFORE_OPTUNA])
    rest = iter(promising[PLANS_BEFORE_OPTUNA:])
    for pair in zip_longest(((plan, OPTUNA) for plan in proposals), ((plan, "") for plan in rest)):
        yield from (x for x in pair if x is not None)


def optuna_proposals(
    device: TunableDevice,
    problem: Problem,
    results: Mapping[Plan, float],
    count: int,
    sampler: Any = None,
    calibration: Calibration | None = None,
    is_searchable_plan: Callable[[Plan], bool] = lambda plan: True,
) -> Iterator[Plan]:
    """Yield at most `count` new plans that Optuna's TPE sampler proposes from all measured speedups.

    With a calibration, the sampler also receives the predicted speedups of some plans. A proposal is then yielded only
    if its predicted time is near that of the best plan in the search space, since slower plans are not worth a
    measurement. The sampler proposes up to 20 * `count` plans, since repeated, invalid and slow proposals are skipped.
    """
    if count <= 0:
        return
    import optuna
    from optuna.distributions import CategoricalDistribution

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    choices = space_for_dtype(device_search_space(device), problem.dtype)
    space: dict[str, Any] = {name: CategoricalDistribution(tuple(values)) for name, values in choices.items()}
    study = optuna.create_study(
        direction="maximize", sampler=sampler or optuna.samplers.TPESampler(seed=0, n_startup_trials=4)
    )

    def add_results(values: Mapping[Plan, float]) -> None:
        for plan, value in values.items():
            if (params := choices_of_plan(plan, choices)) is not None:
                study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=value))

    predicted = {} if calibration is None else predicted_speedups(device, problem, calibration, choices)
    of_space = (plan for plan in predicted if is_searchable_plan(plan) and choices_of_plan(plan, choices) is not None)
    required = max((predicted[plan] for plan in of_space), default=0.0) / MAX_PROPOSED_TIME_RATIO
    add_results(predicted)
    seen = set[Plan]()
    for _ in range(20 * count):
        if count <= 0:
            return
        add_results({plan: value for plan, value in results.items() if plan not in seen})
        seen |= results.keys()
        trial = study.ask(space)
        proposed = _runnable_plan(trial.params, device, problem)
        if proposed is not None and proposed not in results and is_searchable_plan(proposed):
            if calibration is not None and proposed not in predicted:
                predicted |= {c.plan: 1 / c.time for c in rank_candidates(problem, calibration, [proposed])}
            if predicted.get(proposed, 0.0) >= required:
                count -= 1
                seen.add(proposed)
                yield proposed
        speedups = {**predicted, **results}
        study.tell(trial, speedups.get(proposed, 0.0) if proposed else 0.0)


def predicted_speedups(
    device: TunableDevice, problem: Problem, calibration: Calibration, choices: SearchSpace
) -> dict[Plan, float]:
    """Return the predicted speedups of the model's best plans and of random plans of the search space."""
    rng, plans = random.Random(0), list[Plan]()
    for _ in range(RANDOM_CHOICES):
        plan = _runnable_plan({name: rng.choice(values) for name, values in choices.items()}, device, problem)
        plans += [] if plan is None else [plan]
    ranked = [c for c in rank_candidates(problem, calibration) if c.plan != VENDOR][:BEST_PLANS_OF_MODEL]
    return {c.plan: 1 / c.time for c in (*ranked, *rank_candidates(problem, calibration, plans)) if c.plan != VENDOR}


def _runnable_plan(choices: Mapping[str, str], device: TunableDevice, problem: Problem) -> Plan | None:
    """Return the plan with these choices; None for invalid choices, `vendor`, or a plan that exceeds a limit."""
    try:
        plan = build_plan(choices)
    except PlanError:
        return None
    return plan if plan != VENDOR and is_within_limits(device, plan, problem) else None
