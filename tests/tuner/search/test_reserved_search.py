"""The seconds that a time limit leaves for the search: the probes end early, and Optuna's proposals are reached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import rank_candidates
from fmm.problem import Problem
from fmm.tuner.commands.bench import OPTUNA_SOURCE, print_search_gains, time_plans
from fmm.tuner.devices.device import CPU_EFFORTS, GPU_EFFORTS, TimedRun
from fmm.tuner.devices.simulated import SIMULATED_CALIBRATION, SimulatedDevice
from fmm.tuner.findings.search_gains import search_gains, search_gains_of_device
from fmm.tuner.search.race import (
    MAX_PROPOSED_TIME_RATIO,
    OPTUNA,
    alternate_proposals,
    optuna_proposals,
    search_order,
    search_plans,
    whole_search_seconds,
)
from fmm.tuner.search.space import choices_by_plan, choices_of_plan, search_space, space_for_dtype
from fmm.tuner.trials.journal import Journal, RoundLimits, TimeUpError
from fmm.tuner.trials.record import RecordedTuning, Trial, TrialFile, TuningHeader
from fmm.tuner.tune_type import SEARCH_LIMIT_SHARE, tune_type
from tests.support.busy_device import BusyDevice

PROBLEM = Problem(4096, 4096, 4096)
WINOGRAD, STRASSEN = (Plan.parse(f"{name} > vendor") for name in ("winograd", "strassen"))


def proposers(trials: list[Trial]) -> dict[str, str]:
    return {t.plan: t.proposer for t in trials if t.stage == "search"}


@pytest.mark.slow
@pytest.mark.parametrize("effort", ["quick", "default"])
def test_every_effort_reaches_optuna(effort: str) -> None:
    """Within its time limit by the device's own clock, in a tuning that has not stopped early."""
    device = BusyDevice(noise=0.02, seed=1, memory_bytes=1 << 33)
    most = CPU_EFFORTS[effort].most
    journal = Journal("run", device, clock=device.clock, limit=most)
    outcome = tune_type(journal, "float64", CPU_EFFORTS[effort])
    assert outcome.stopped == "" and outcome.section is not None and outcome.section["doubts"] == []
    assert OPTUNA in proposers(journal.recorded).values() and device.now <= 1.05 * most


@pytest.mark.slow
def test_probes_end_early_enough_for_the_search() -> None:
    """Of a tuning that has a third of its time; the search has what is reserved for it."""
    effort = replace(CPU_EFFORTS["default"], seconds=40.0)
    device = BusyDevice(noise=0.02, seed=1, memory_bytes=1 << 33)
    limit = 30.0
    journal = Journal("run", device, clock=device.clock, limit=limit)
    outcome = tune_type(journal, "float64", effort)
    assert outcome.stopped == "" and not outcome.is_complete and outcome.section is not None
    assert outcome.section["doubts"] == []
    searched = [t.elapsed for t in journal.recorded if t.stage in ("search", "certify")]
    assert max(searched) - min(searched) > 0.5 * SEARCH_LIMIT_SHARE * limit


# ---- stages with a limit of their own


def timed_stage(journal: Journal, problem: Problem, rounds: int) -> int:
    """Return the number of the samples."""
    with journal.open_timed_problem("probe", problem) as timed:
        timed.sample_rounds([TimedRun()], RoundLimits(rounds))
    return len(journal.recorded)


def test_a_stage_ends_and_the_tuning_goes_on() -> None:
    device = BusyDevice()
    journal = Journal("run", device, clock=device.clock, limit=100.0)
    with journal.stage_with_time_limit(2.0):
        timed_stage(journal, PROBLEM, 10**6)
    assert 2.0 <= device.now < 8.0 and journal.recorded
    before = len(journal.recorded)
    assert timed_stage(journal, PROBLEM, 3) >= before


def test_a_stage_that_is_needed_goes_on_until_the_time_limit() -> None:
    device = BusyDevice()
    journal = Journal("run", device, clock=device.clock, limit=20.0)
    with pytest.raises(TimeUpError), journal.stage_with_time_limit(2.0, lambda: False):
        timed_stage(journal, PROBLEM, 10**6)
    assert device.now >= 20.0


# ---- the search


def test_optuna_and_the_model_propose_in_turn() -> None:
    of_model = [Plan.parse(f"winograd > lt{i}") for i in range(5)]
    of_optuna = [Plan.parse(f"strassen > lt{i}") for i in range(2)]
    found = [plan for plan, _ in alternate_proposals(of_model, iter(of_optuna))]
    assert found == [*of_model[:2], of_optuna[0], of_model[2], of_optuna[1], *of_model[3:]]
    assert [proposer for _, proposer in alternate_proposals(of_model, iter(of_optuna))].count(OPTUNA) == 2


def test_proposals_are_near_the_best_by_the_model_and_may_run() -> None:
    device, calibration = SimulatedDevice(), SIMULATED_CALIBRATION
    refused = "strassen"
    results = dict[Plan, float]()

    def proposed() -> Iterator[Plan]:
        plans = optuna_proposals(
            device,
            PROBLEM,
            results,
            5,
            calibration=calibration,
            is_searchable_plan=lambda plan: refused not in str(plan),
        )
        for plan in plans:
            results[plan] = 1.0
            yield plan

    found = list(proposed())
    times = {c.plan: c.time for c in rank_candidates(PROBLEM, calibration, found)}
    best = min(c.time for c in rank_candidates(PROBLEM, calibration) if c.plan != VENDOR)
    assert found and len(set(found)) == len(found) and not any(refused in str(plan) for plan in found)
    assert max(times.values()) <= MAX_PROPOSED_TIME_RATIO * max(best, min(times.values())) * 1.1
    assert list(optuna_proposals(device, PROBLEM, {}, 0)) == []


@pytest.mark.slow
def test_the_choices_of_a_plan_are_the_first_that_build_it() -> None:
    space = space_for_dtype(search_space("cpu"), "complex128")
    plans = choices_by_plan(tuple((name, tuple(values)) for name, values in space.items()))
    for plan, choices in islice(plans.items(), 0, None, 7):
        assert choices_of_plan(plan, space) == choices
    assert choices_of_plan(VENDOR, space) is None


def test_affordable_searches_come_first() -> None:
    effort = CPU_EFFORTS["default"]
    squares = [Problem(side, side, side) for side in (8192, 4096, 2048, 1024)]
    seconds = 2 * whole_search_seconds(squares[1], SIMULATED_CALIBRATION, effort)
    assert search_order(squares, SIMULATED_CALIBRATION, effort, seconds) == [*squares[1:], squares[0]]


# ---- what Optuna added


def searched_trials() -> list[Trial]:
    """A search whose last plan is Optuna's, and faster than the model's first choice."""

    def trial(plan: Plan, seconds: float, proposer: str = "") -> Trial:
        return Trial(
            "run", "search", (96, 96, 96), "float64", str(plan), "whole", 0, 0, 1.0, seconds, None, "product", proposer
        )

    pairs = [(WINOGRAD, 1.0, ""), (Plan.parse("winograd > winograd > vendor"), 2.0, ""), (STRASSEN, 0.8, OPTUNA)]
    return [x for plan, seconds, who in pairs for x in [trial(VENDOR, 1.2), trial(plan, seconds, who)] * 3]


def test_what_optuna_added_is_its_best_plan_beside_the_models_first_choice() -> None:
    (found,) = search_gains(searched_trials())
    assert (found.model_plan, found.optuna_plan, found.proposals) == (WINOGRAD, STRASSEN, 1)
    assert found.model_speedup == pytest.approx(1.2) and found.gain == pytest.approx(1.25)
    assert list(search_gains([t for t in searched_trials() if t.proposer != OPTUNA])) == []
    header = TuningHeader("run", "cpu-fake-2t", {}, {}, {}, "", "")
    tunings = [RecordedTuning(header, tuple(searched_trials()), True)] * 2
    assert search_gains_of_device(tunings, "cpu-fake-2t") == [found] and search_gains_of_device(tunings, "other") == []


def test_the_proposer_is_recorded(tmp_path: Path) -> None:
    effort = replace(CPU_EFFORTS["default"], trials=4, enqueued=2)
    file = TrialFile(tmp_path / "trials.jsonl")
    file.add_header(TuningHeader("run", "cpu-fake-2t", {}, {}, {}, "", ""))
    journal = Journal("run", SimulatedDevice(), save_trial=file.add_trial)
    search_plans(journal, PROBLEM, SIMULATED_CALIBRATION, effort, 1e9)
    (tuning,) = file.read_tunings()
    assert proposers(list(tuning.trials)) == proposers(journal.recorded)
    assert set(proposers(journal.recorded).values()) == {"", OPTUNA}
    assert proposers(journal.recorded)["vendor"] == ""
    assert len(list(search_gains(tuning.trials))) == 1


def test_bench_times_both_plans_and_prints_what_was_added(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = search_gains(searched_trials())
    rows = list(time_plans(SimulatedDevice(), PROBLEM, (), 3, found))
    by_plan = {row["plan"]: row["answered_by"] for row in rows}
    assert by_plan[str(STRASSEN)] == OPTUNA_SOURCE and "model's first choice" in by_plan[str(WINOGRAD)]
    assert print_search_gains([found], False) == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row == ["float64", "96", "x", "96", "x", "96", "1.200", "1.500", "1.250", "1", *str(STRASSEN).split()]
    assert print_search_gains([], False) == 0
    assert "no recorded tuning" in capsys.readouterr().out


def test_a_first_look_has_no_search_by_optuna() -> None:
    assert GPU_EFFORTS["coarse"].is_first_look and not any(e.is_first_look for e in CPU_EFFORTS.values())
