"""Experiments part by part: which rows are written and when, and what a time limit and Ctrl-C leave to measure."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.papers import figures, li_errors
from benchmarks.papers.bench import HostBench
from benchmarks.papers.command import main
from benchmarks.papers.experiment import (
    Experiment,
    ExperimentPart,
    Progress,
    Results,
    TimeLimit,
    experiment_progress,
    measured_parts,
    packed_path,
    planned_parts,
    read_results,
    sorted_by_worth,
    unfinished_experiments,
    write_results,
)
from benchmarks.papers.figures import EXPERIMENTS
from tests.support import ROOT

BENCH: Any = SimpleNamespace(
    side=64,
    speed=1.0,
    environment_record=lambda command: {"command": command},
    prepare=lambda products: None,
    free=lambda: None,
)


def counted_experiment(count: int, fail: tuple[int, ...] = (), calls: list[int] | None = None) -> Experiment:
    """Return an experiment of parts with two rows each that note their measurement; some parts fail."""

    def rows(n: int) -> Iterator[dict[str, Any]]:
        if calls is not None:
            calls.append(n)
        if n in fail:
            raise RuntimeError(f"no {n}")
        yield from ({"key": [code, n], "error": 10.0 * n} for code in "ab")

    def parts(bench: Any, scale: float) -> Iterator[ExperimentPart]:
        for n in range(count):
            yield ExperimentPart((n,), lambda n=n: rows(n), work=1.0)  # type: ignore[misc]

    return Experiment("counted", ("code", "n"), 64, parts, ("n",))


def measured(progress: Progress, limit: float | None = None, clock: Callable[[], float] = lambda: 0.0) -> list[str]:
    found = measured_parts(progress, BENCH, progress.missing, TimeLimit(limit, clock), ["x"])
    return [f"{outcome.part.about[0]}{outcome.failed and '!'}" for outcome in found]


def test_a_part_is_in_the_file_before_the_next_one_begins(tmp_path: Path) -> None:
    progress = experiment_progress(counted_experiment(3), BENCH, tmp_path, None, anew=True)
    seen = []
    for _ in measured_parts(progress, BENCH, progress.parts, TimeLimit(None), ["x"]):
        seen.append(len(read_results(progress.path).rows))
    assert seen == [2, 4, 6]


def test_what_is_on_record_is_not_measured_again(tmp_path: Path) -> None:
    measured(experiment_progress(counted_experiment(2), BENCH, tmp_path, None, anew=False))
    calls: list[int] = []
    experiment = counted_experiment(4, calls=calls)
    progress = experiment_progress(experiment, BENCH, tmp_path, None, anew=False)
    assert [part.about for part in progress.missing] == [(2,), (3,)]
    assert measured(progress) == ["2", "3"] == [str(n) for n in calls]
    found = read_results(progress.path)
    assert len(found.rows) == 8 and len(found.runs) == 2
    assert [row.get("run", 0) for row in found.rows.values()] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert not unfinished_experiments([experiment], BENCH, tmp_path, None)


def test_parts_that_are_measured_anew_replace_old_ones_and_old_runs_go(tmp_path: Path) -> None:
    for _ in range(2):
        progress = experiment_progress(counted_experiment(3), BENCH, tmp_path, None, anew=True)
        list(measured_parts(progress, BENCH, progress.parts, TimeLimit(None), ["x"]))
    found = read_results(tmp_path / "counted.json")
    assert len(found.rows) == 6 and len(found.runs) == 1 and not any("run" in row for row in found.rows.values())
    other = experiment_progress(counted_experiment(3), BENCH, tmp_path, 32, anew=True)
    assert other.results.scale == 0.5 and not other.results.rows
    assert experiment_progress(counted_experiment(3), BENCH, tmp_path, 32, anew=False).results.scale == 1.0


def test_a_part_that_fails_is_said_and_stays_missing(tmp_path: Path) -> None:
    experiment = counted_experiment(3, fail=(1,))
    assert measured(experiment_progress(experiment, BENCH, tmp_path, None, anew=False)) == ["0", "1!", "2"]
    (left,) = unfinished_experiments([experiment], BENCH, tmp_path, None)
    assert [part.about for part in left.missing] == [(1,)]


def test_nothing_is_begun_that_would_not_be_done_in_time(tmp_path: Path) -> None:
    """Parts of 1 s by their work take 2.5 s, so in ten seconds four are measured and the fifth does not begin."""
    now = [0.0]

    def clock() -> float:
        return now[0]

    def rows(n: int) -> Iterator[dict[str, Any]]:
        now[0] += 2.5
        yield {"key": [n]}

    def parts(bench: Any, scale: float) -> Iterator[ExperimentPart]:
        return (ExperimentPart((n,), lambda n=n: rows(n), work=1.0) for n in range(9))  # type: ignore[misc]

    progress = experiment_progress(Experiment("slow", ("n",), 64, parts, ("n",)), BENCH, tmp_path, None, anew=False)
    assert measured(progress, 10.0, clock) == ["0", "1", "2", "3"]
    assert now[0] == 10.0


def test_packed_samples_are_read_and_replaced_by_new_ones(tmp_path: Path) -> None:
    experiment, path = counted_experiment(2), tmp_path / "counted.json"
    measured(experiment_progress(experiment, BENCH, tmp_path, None, anew=False))
    results = read_results(path)
    packed_path(path).write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert (
        read_results(path) == results and not experiment_progress(experiment, BENCH, tmp_path, None, anew=False).missing
    )
    write_results(results, experiment, path)
    assert path.is_file() and not packed_path(path).exists()


@pytest.mark.slow
def test_the_papers_figures_come_first_and_the_shortest_of_them(tmp_path: Path) -> None:
    found = sorted_by_worth(unfinished_experiments(EXPERIMENTS.values(), HostBench(), tmp_path, 64))
    names = [x.experiment.name for x in found]
    ours = [name.startswith("error-") for name in names]
    assert ours == sorted(ours) and set(names) == set(EXPERIMENTS) - {"huang-fig10"}
    work = [x.work for x in found if not x.experiment.name.startswith("error-")]
    assert work == sorted(work) and work[-1] > 0


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_no_two_parts_have_the_same_name(name: str) -> None:
    """On a CPU and on a GPU; the parts of a GPU are known without the GPU."""
    experiment = EXPERIMENTS[name]
    for on_host in (True, False):
        parts = planned_parts(experiment, 0.03, on_host)
        about = [part.about for part in parts]
        assert len(set(about)) == len(about) and all(len(x) == len(experiment.by) for x in about)
        assert parts or on_host
        for plan, problem in (x for part in parts for x in part.products):
            assert plan.accepts_type(problem.dtype), (plan, problem)


# ---- by the command


@pytest.fixture
def one_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the registry to one experiment."""
    results = {"li-fig32": EXPERIMENTS["li-fig32"]}
    monkeypatch.setattr(figures, "EXPERIMENTS", results)
    monkeypatch.setattr("benchmarks.papers.command.EXPERIMENTS", results)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    code = main([*arguments, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else None, err


def interrupted_after(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise KeyboardInterrupt during the next part."""
    measure, done = li_errors._level_rows, [0]

    def rows(*arguments: Any) -> Iterator[Any]:
        yield from measure(*arguments)
        done[0] += 1
        if done[0] > parts:
            raise KeyboardInterrupt

    monkeypatch.setattr(li_errors, "_level_rows", rows)


@pytest.mark.slow
def test_no_figure_is_measured_with_an_old_kernel_of_blas(
    one_experiment: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.harness.slow_kernel_warning", lambda: "OpenBLAS runs its Haswell kernel")
    command = ("li-fig32", "--measure", "--output", str(tmp_path), "--side", "64")
    code, _, err = run(capsys, *command)
    assert code == 2 and "Haswell kernel; or pass --any-blas-kernel" in err and not list(tmp_path.iterdir())
    assert run(capsys, *command, "--any-blas-kernel")[0] == 0
    assert read_results(tmp_path / "li-fig32.json").rows


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_measured_and_missing_goes_on(
    one_experiment: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--output", str(tmp_path), "--side", "64")
    with monkeypatch.context() as patch:
        interrupted_after(3, patch)
        code, output, err = run(capsys, "li-fig32", "--measure", *where)
    assert code == 130 and "finished parts are in" in err and str(tmp_path) in err
    assert sum(row.get("measured") is not None for row in output["rows"]) == 3
    assert len(read_results(tmp_path / "li-fig32.json").rows) == 3
    code, output, err = run(capsys, "missing", *where)
    assert (code, err) == (0, "")
    assert [(row["experiment"], row["parts"], row["missing"]) for row in output["rows"]] == [("li-fig32", 10, 7)]
    code, output, err = run(capsys, "missing", "--measure", *where)
    assert (code, err) == (0, "") and output["rows"][0]["measured now"] == 7
    assert run(capsys, "missing", *where)[1]["rows"] == []
    code, output, _ = run(capsys, "li-fig33", "--measured", str(tmp_path))
    assert all(row["measured"] > 0 for row in output["rows"]) and output["name"] == "li-fig32"


@pytest.mark.slow
def test_what_is_missing_of_some_figures_comes_in_their_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures of one experiment are one row; only named figures are listed."""
    where = ("--output", str(tmp_path), "--side", "64")
    code, output, err = run(capsys, "missing", "li-fig36", "li-fig33", "li-fig24", "li-fig43", *where)
    assert (code, err) == (0, "")
    assert [row["experiment"] for row in output["rows"]] == ["li-fig36", "li-fig32", "li-fig43"]
    code, output, err = run(capsys, "missing", "li-fig33", "--measure", *where)
    assert (code, err) == (0, "") and output["rows"][0]["measured now"] == 10
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["li-fig32.json"]
    assert main(["missing", "li-fig11"]) == 2
    assert "li-fig11 is computed, not measured" in capsys.readouterr().err


def test_a_time_limit_leaves_the_rest_for_the_next_call(
    one_experiment: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("missing", "--measure", "--output", str(tmp_path), "--side", "64", "--time-limit", "1e-9")
    code, output, err = run(capsys, *arguments)
    assert code == 0 and output["rows"][0]["measured now"] == 0 and "10 parts were not measured" in err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("li-fig30", "--device", "0"), "--device is for measuring; add --measure"),
        (("li-fig30", "--side", "64"), "--side is for measuring"),
        (("li-fig30", "--time-limit", "5"), "--time-limit is for measuring"),
        (("--measure",), "--measure needs names"),
        (("li-fig30", "--measure", "--side", "0"), "--side must be positive, not 0"),
        (("li-fig30", "--measure", "--time-limit", "-1"), "--time-limit must be positive"),
        (("li-fig30", "--measure", "--measured", "."), "one of them"),
        (("li-fig30", "--measured", "no-such-folder"), "no-such-folder is no folder of samples"),
        (("li-fgi30",), "did you mean li-fig30?"),
        (("li-fig30", "missing"), "unknown table 'missing'"),
        (("missing", "--device", "gpu0"), "'gpu0'"),
        (("li-fig30", "--measure", "--output", "/dev/null/x"), "cannot write to /dev/null/x"),
    ],
)
def test_what_makes_no_sense(arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments]) == 2
    out, err = capsys.readouterr()
    assert not out and named in err and err.startswith("benchmarks papers: ") and err.count("\n") == 1


def test_damaged_samples_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "li-fig32.json").write_text('{"experiment": "li-fig', encoding="utf-8")
    assert main(["li-fig32", "--measured", str(tmp_path)]) == 2
    assert "li-fig32.json is damaged" in capsys.readouterr().err
    assert main(["missing", "--output", str(tmp_path)]) == 2
    assert "li-fig32.json is damaged" in capsys.readouterr().err


def test_a_folder_without_samples_of_a_figure_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, err = run(capsys, "li-fig32", "li-fig33", "--measured", str(tmp_path))
    assert (
        code == 0
        and output["name"] == "li-fig32"
        and err == f"benchmarks papers: no samples of li-fig32 in {tmp_path}\n"
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("li-fig33", "li-fig32"),
        ("li-fig35", "li-fig34"),
        ("li-fig25", "li-fig24"),
        ("li-fig39", "li-fig37"),
        ("huang-fig5", "huang-fig6"),
        ("dalberto-fig9", "dalberto-fig6"),
        ("sforza-fig2", "sforza-depths"),
        ("li-fig23", "li-fig23"),
        ("huang-fig2", "huang-fig2"),
        ("dalberto-table1", "dalberto-table1"),
    ],
)
def test_every_figure_of_a_paper_can_be_named(name: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The table that shows the figure is printed. For other figures the list says what became of them."""
    code, output, err = run(capsys, name)
    assert (code, err, output["name"]) == (0, "", shown) and output["notes"]


def test_results_without_a_run_have_no_environment() -> None:
    assert Results((), 1.0, {}).environment == {}


# ---- on a CUDA device that is none


FIGURES_OF_A_DEVICE = ("li-fig32", "li-fig43", "li-fig40", "huang-fig9", "huang-fig10")


def on_simulated_device(folder: Path, *arguments: str) -> tuple[int, Any, str]:
    command = [sys.executable, "-m", "tests.support.simulated_laboratory", ",".join(FIGURES_OF_A_DEVICE)]
    command += [*arguments, "--device", "0", "--output", str(folder), "--side", "64", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


@pytest.mark.slow
def test_one_command_measures_all_that_is_missing_on_a_device(tmp_path: Path) -> None:
    """One call stops at its time limit, the next call measures the rest; no part fails."""
    code, output, err = on_simulated_device(tmp_path, "missing", "--measure", "--time-limit", "1e-9")
    assert code == 0 and "parts were not measured" in err
    assert all(row["measured now"] == 0 for row in output["rows"])
    code, output, err = on_simulated_device(tmp_path, "missing", "--measure")
    assert (code, err) == (0, "")
    assert {row["experiment"] for row in output["rows"]} == set(FIGURES_OF_A_DEVICE)
    assert all(row["measured now"] == row["missing"] == row["parts"] > 0 for row in output["rows"])
    assert on_simulated_device(tmp_path, "missing")[1]["rows"] == []
    for name in FIGURES_OF_A_DEVICE:
        rows = read_results(tmp_path / f"{name}.json").rows
        assert rows and not any("failed" in row for row in rows.values())


@pytest.mark.slow
def test_what_fmm_would_choose_on_a_device_without_emulation() -> None:
    """The choice is a plan without emulation, and the environment is restored."""
    code = """
import os
from tests.support import simulated_laboratory
simulated_laboratory.install()
from fmm.problem import Problem
from benchmarks.papers.bench import bench_of
bench = bench_of("0")
for emulation in (True, False, True):
    plan = bench.choose_plan(Problem(8192, 8192, 8192, "float32"), emulation=emulation)
    print(plan.leaf_use.leaf.name, len(plan.levels), os.environ.get("FMM_EMULATION"))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    first, second, third = done.stdout.splitlines()
    assert first == third == "f16x3 0 None"
    assert second.split()[0] in ("tile", "vendor") and int(second.split()[1]) > 0 and second.endswith("None")
