"""Search for the fastest plan of a shape: time the model's best plans and Optuna's proposals against the vendor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fmm.config import certification
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, default_error_growth_limit, rank_candidates
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Problem
from fmm.tuner.devices.compile_ahead import largest_level_products
from fmm.tuner.devices.device import Effort, TimedRun, TunableDevice
from fmm.tuner.search.space import build_plan, choices_by_plan, device_search_space, space_for_dtype
from fmm.tuner.trials.journal import Journal, RoundLimits, SampleSeconds, TimedProblem, median_paired_speedup

SEARCH_STAGE = "search"


@dataclass(frozen=True)
class RaceResult:
    """The plans that a search has timed on one problem, with median speedups over the vendor, the fastest first."""

    problem: Problem
    plans: tuple[tuple[Plan, float], ...]


def search_plans(
    journal: Journal, problem: Problem, calibration: Calibration, effort: Effort, seconds: float
) -> RaceResult:
    """Time plans against the vendor until enough plans are timed or `seconds` have passed; return the timed plans.

    The search times `effort.trials` plans, and in addition the vendor's alternatives and a plan without workspace.
    """
    predicted = [c.plan for c in rank_candidates(problem, calibration) if c.plan != VENDOR]
    predicted = [
        p
        for p in predicted
        if largest_level_products(p) <= effort.max_products_per_level and is_within_limits(journal.device, p, problem)
    ]
    if problem.writes_triangle:
        return race_plans(journal, problem, predicted[: effort.trials], effort)
    without = best_plan_without_workspace(problem, calibration, journal.device)
    peers = [p for p in journal.device.vendor_alternatives() if p.accepts_type(problem.dtype)][: effort.enqueued]
    promising = list(dict.fromkeys([*predicted[:1], *without, *peers, *predicted[1 : effort.enqueued]]))
    with journal.open_problem(SEARCH_STAGE, problem) as timed:
        race = PlanRace(timed, effort.rounds)
        for plan in search_proposals(
            promising, journal.device, problem, race.results, effort.trials + len(peers + without)
        ):
            if race.spent >= seconds:
                break
            race.measure_speedup(plan)
    return RaceResult(problem, race.ranked_speedups())


def race_plans(journal: Journal, problem: Problem, plans: Sequence[Plan], effort: Effort) -> RaceResult:
    """Time these plans against the vendor's product; return the plans with their speedups."""
    with journal.open_problem(SEARCH_STAGE, problem) as timed:
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

    def measure_speedup(self, plan: Plan) -> float:
        """Return the plan's median speedup over the vendor, which is measured at the first call."""
        if plan in self.results:
            return self.results[plan]
        run, base = TimedRun(plan), TimedRun(VENDOR)
        samples = self.timed.sample_rounds(
            (base, run), RoundLimits(self.rounds), lambda s: self._losing_runs(s, base, run)
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

    def _losing_runs(self, samples: SampleSeconds, base: TimedRun, run: TimedRun) -> Iterable[TimedRun]:
        """Return the runs to stop after a round: both runs if the plan is clearly slower than the best plan, else none.

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


def search_proposals(
    promising: Sequence[Plan], device: TunableDevice, problem: Problem, results: Mapping[Plan, float], trials: int
) -> Iterator[Plan]:
    """Yield the promising plans, then plans that Optuna's sampler proposes, up to `trials` plans in total."""
    yield from promising[:trials]
    if trials > len(promising):
        yield from optuna_proposals(device, problem, results, trials - len(promising))


def optuna_proposals(
    device: TunableDevice, problem: Problem, results: Mapping[Plan, float], count: int, sampler: Any = None
) -> Iterator[Plan]:
    """Yield at most `count` new plans that Optuna's TPE sampler proposes from all measured speedups.

    Repeated and invalid proposals are skipped, so the sampler proposes up to 20 * `count` plans.
    """
    import optuna
    from optuna.distributions import CategoricalDistribution

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    choices = space_for_dtype(device_search_space(device), problem.dtype)
    space: dict[str, Any] = {name: CategoricalDistribution(tuple(values)) for name, values in choices.items()}
    study = optuna.create_study(
        direction="maximize", sampler=sampler or optuna.samplers.TPESampler(seed=0, n_startup_trials=4)
    )
    plans = choices_by_plan(tuple((name, tuple(values)) for name, values in choices.items()))
    for plan, value in results.items():
        if plan in plans:
            study.add_trial(optuna.trial.create_trial(params=plans[plan], distributions=space, value=value))
    for _ in range(20 * count):
        if count <= 0:
            return
        trial = study.ask(space)
        proposed = _runnable_plan(trial.params, device, problem)
        if proposed is not None and proposed not in results:
            count -= 1
            yield proposed
        study.tell(trial, results.get(proposed, 0.0) if proposed else 0.0)


def _runnable_plan(choices: Mapping[str, str], device: TunableDevice, problem: Problem) -> Plan | None:
    """Return the plan with these choices; None for invalid choices, `vendor`, or a plan that exceeds a limit."""
    try:
        plan = build_plan(choices)
    except PlanError:
        return None
    return plan if plan != VENDOR and is_within_limits(device, plan, problem) else None
