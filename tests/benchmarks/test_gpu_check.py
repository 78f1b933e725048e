"""`make gpu-check` without a device: its steps, their time, and their outcomes."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_check, harness
from benchmarks.__main__ import BENCHMARKS
from benchmarks.compile_ahead import with_cache, xdist_options
from benchmarks.gpu_check import (
    EXIT_STEPS_LEFT,
    Checks,
    chosen_steps,
    code_digest,
    merged_checks,
    parsed_options,
    report_outcomes,
    run_steps,
    step_batches,
)
from benchmarks.gpu_steps import (
    FEW_LAUNCHES,
    LIMIT_SHARE,
    MBARRIER_TESTS,
    SEVERAL_GPU_TESTS,
    TIMED_TESTS,
    CheckFolders,
    EndedStep,
    Step,
    parallel_pytest_options,
    run_together,
    several_device_steps,
    single_device_steps,
)

PLACES = CheckFolders(Path("results/device"), Path("notes"))
CHECKS = ["tests", "hostile use", "random integers", "memcheck", "racecheck", "torch's tests", "cupy's tests"]
MEASURED = ["regret", "default calls", "halves", "random structures", "complex", "integers", "out of core", "training"]


def found_steps(sanitizer: str | None = None, **more: Any) -> dict[str, Step]:
    return {step.name: step for step in single_device_steps(sanitizer, PLACES, **{"checkouts": {}, **more})}


# ---- which steps


def test_kernels_come_first_then_checks_beside_each_other_then_what_measures_alone() -> None:
    found = found_steps(sanitizer="/opt/compute-sanitizer")
    assert [*found] == ["kernels", *CHECKS, "threads", "timed tests", *MEASURED, "kernels of papers", "papers"]
    assert [name for name, step in found.items() if not step.alone] == CHECKS
    together = next(batch for batch in step_batches(found.values()) if len(batch) > 1)
    assert [step.name for step in together] == CHECKS
    assert found["memcheck"].command == (
        *("/opt/compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "1"),
        *(*FEW_LAUNCHES, *MBARRIER_TESTS),
    )
    assert found["racecheck"].command[-len(FEW_LAUNCHES) :] == FEW_LAUNCHES
    assert {name for name, step in found.items() if step.missing} == {"torch's tests", "cupy's tests"}


@pytest.mark.parametrize(
    ("packages", "cores", "options"),
    [
        ((), 16, ()),
        (("xdist",), 16, ("-n", "16", "--dist", "worksteal")),
        (("xdist", "pytest_benchmark"), 1, ("-n", "1", "--dist", "worksteal", "-p", "no:benchmark")),
    ],
)
def test_tests_run_side_by_side_but_for_those_that_measure(
    packages: tuple[str, ...], cores: int, options: tuple[str, ...]
) -> None:
    together = xdist_options(lambda name: name in packages, cores)
    assert together == options
    found = found_steps(together=together)
    many, alone = found["tests"].command, found["timed tests"].command
    assert many[-3:] == (f"--ignore={TIMED_TESTS}", f"--ignore={SEVERAL_GPU_TESTS}", "tests")
    assert options == many[6 : 6 + len(options)] and str(PLACES.ended_tests) in many
    assert alone[-1] == TIMED_TESTS and "-n" not in alone


def test_a_few_processors_are_left_to_the_device_and_its_driver() -> None:
    options = parallel_pytest_options()
    assert not options or 1 <= int(options[1]) <= 14


def test_other_projects_tests_run_where_their_checkouts_are_named() -> None:
    found = found_steps(together=("-n", "14"), checkouts={"FMM_CUPY_TESTS": "cupy-sources"})
    command = found["cupy's tests"].command
    assert command[2:6] == ("benchmarks", "outside", "cupy", "cupy-sources") and command[-3:-1] == ("--pytest", "-n")
    assert not found["cupy's tests"].missing and "FMM_TORCH_TESTS" in found["torch's tests"].missing


def test_steps_for_several_devices_are_left_out_on_one_device() -> None:
    tests, benchmark = several_device_steps(2, PLACES._replace(results=Path("results/device-x2")))
    assert tests.command[-1] == SEVERAL_GPU_TESTS and not tests.missing
    assert benchmark.command[4:6] == ("--nproc-per-node", "2") and not benchmark.missing
    assert benchmark.command[-1] == os.path.join("results", "device-x2", "distributed.json")
    assert {step.missing for step in several_device_steps(1, PLACES)} == {"there is one device"}


@pytest.mark.parametrize("name", [*MEASURED, "papers"])
def test_commands_of_benchmarks_are_understood(name: str) -> None:
    """The benchmarks' parsers have these options; no device is needed to check it."""
    step = found_steps()[name]
    assert step.command[1:3] == ("-m", "benchmarks")
    module = Path(*BENCHMARKS[step.command[3]].split(".")).with_suffix(".py")
    text = module.read_text(encoding="utf-8") + Path("benchmarks/harness.py").read_text(encoding="utf-8")
    options = [x for x in (*step.command[4:], step.limit_option) if x.startswith("--")]
    assert all(f'"{option}"' in text for option in options), options


def test_kernels_are_compiled_first_and_all_steps_find_them() -> None:
    first = next(single_device_steps(None, PLACES))
    assert first.command[1:] == ("-m", "benchmarks", "compile_ahead")
    assert with_cache({})["CUPY_CACHE_DIR"].endswith(".cupy-cache")
    assert with_cache({"CUPY_CACHE_DIR": "elsewhere"}) == {"CUPY_CACHE_DIR": "elsewhere"}


# ---- how a step ends


def ended(step: Step, status: int = 0, seconds: float = 5, allowed: float = 100, stopped: bool = False) -> EndedStep:
    return EndedStep(step, status, seconds, allowed, stopped, Path("log"))


ALONE = Step("alone", (), max_seconds=100, limit_option="--time-limit")
RESUMED = ALONE._replace(continues=True)


@pytest.mark.parametrize(
    ("found", "whole", "outcome"),
    [
        (ended(ALONE), 500, "passed"),
        (ended(ALONE, 3), 500, "failed with status 3"),
        (ended(ALONE, -9, 100, 100, stopped=True), 500, "failed: stopped after 100 s"),
        # The step had less than its own time, because earlier steps took it; or all the time of the call.
        (ended(ALONE, -9, 50, 50, stopped=True), 500, "time was up after 50 s"),
        (ended(ALONE, -9, 50, 50, stopped=True), 50, "failed: stopped after 50 s"),
        (ended(ALONE, 0, 95), 500, "passed"),
        # A step that can continue has ended if it ends before its limit.
        (ended(RESUMED, 0, 95), 500, "time was up after 95 s"),
        (ended(RESUMED, 0, 20), 500, "passed"),
        (ended(RESUMED, 2, 100, 100, stopped=True), 500, "time was up after 100 s"),
        (ended(RESUMED, 1, 20), 500, "failed with status 1"),
    ],
)
def test_the_outcome_of_a_step_is_a_text(found: EndedStep, whole: float, outcome: str) -> None:
    assert found.outcome(whole) == outcome


def python(text: str) -> tuple[str, ...]:
    return sys.executable, "-c", text


def test_steps_run_at_the_same_time_and_their_output_is_kept(tmp_path: Path) -> None:
    """Each step waits until the other one has begun."""
    wait = "import pathlib, sys, time\nmine, other = map(pathlib.Path, sys.argv[1:3])\nmine.touch()\n"
    wait += "while not other.exists(): time.sleep(0.01)\nprint('met', *sys.argv[3:])"
    places = [str(tmp_path / name) for name in "ab"]
    both = [Step(f"step {i}", (*python(wait), *places[:: 1 - 2 * i]), limit_option="--limit") for i in range(2)]
    found = run_together(both, 40, tmp_path / "notes")
    assert sorted(x.step.name for x in found) == ["step 0", "step 1"] and all(x.status == 0 for x in found)
    assert (tmp_path / "notes" / "step-0.txt").read_text() == f"met --limit {LIMIT_SHARE * 40:.0f}\n"


@pytest.mark.slow
def test_a_step_whose_time_is_up_is_ended_with_all_that_it_began(tmp_path: Path) -> None:
    child = "import signal, subprocess, sys, time\n"
    # jobs in the background start with SIGINT ignored
    child += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    child += f"x = subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(60)'])\n"
    child += "print(x.pid, flush=True)\ntime.sleep(60)"
    (found,) = run_together([Step("hangs", python(child))], 1.0, tmp_path)
    assert found.stopped and found.status not in (0, -signal.SIGKILL), "the interrupt is enough"
    number = int((tmp_path / "hangs.txt").read_text().split()[0])
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.kill(number, 0)
            state = Path(f"/proc/{number}/stat")
            if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
                raise ProcessLookupError  # the process ended; its new parent has not collected it yet
            time.sleep(0.02)


@pytest.mark.slow
def test_a_step_that_ignores_signals_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu_steps.GRACE_SECONDS", 0.3)
    deaf = (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(60)"
    )
    (found,) = run_together([Step("deaf", python(deaf))], 1.0, tmp_path)
    assert found.stopped and found.status == -signal.SIGKILL


# ---- a call, and the next one


class FakeProcesses:
    """Ends steps without processes, as `found` says by the step's name; it records the steps that began."""

    def __init__(self, clock: Any = None, **found: dict[str, Any]) -> None:
        self.found, self.begun, self.clock = found, list[str](), clock

    def __call__(self, batch: Sequence[Step], left: float, notes: Path) -> list[EndedStep]:
        notes.mkdir(parents=True, exist_ok=True)
        made = []
        for step in batch:
            self.begun.append(step.name)
            log = notes / f"{step.name}.txt"
            log.write_text(f"{step.name} says so\n")
            more = {"seconds": 1.0, "allowed": min(step.max_seconds, left), "status": 0, "stopped": False}
            made.append(EndedStep(step, log=log, **(more | self.found.get(step.name, {}))))
        return made


def begun_checks(folder: Path, code: str = "code", **more: Any) -> tuple[Checks, CheckFolders]:
    order = ["first", "second", "third", "fourth"]
    places = CheckFolders(folder / "results", folder / "notes")
    return Checks(places.results / "checks.json", {"commit": "abc"}, code, order, places.notes, **more), places


FOUR = [
    Step("first", ("python", "first")),
    Step("second", ("python",), alone=False, continues=True),
    Step("third", ("python",), alone=False),
    Step("fourth", ("python",), min_seconds=50),
]


def test_a_step_that_fails_keeps_none_from_being_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks, places = begun_checks(tmp_path)
    run = FakeProcesses(first={"status": 7})
    assert run_steps(FOUR, checks, places, 1000, run) == []
    assert run.begun == ["first", "second", "third", "fourth"]
    content = json.loads(checks.path.read_text())
    assert content["environment"] == {"commit": "abc"}
    assert [x["outcome"] for x in content["checks"]] == ["failed with status 7", *["passed"] * 3]
    assert content["checks"][0]["command"] == "first" and content["checks"][0]["commit"] == "abc"
    assert report_outcomes(FOUR, [], checks) == 1
    assert "first says so" in capsys.readouterr().out
    # No step runs again unless it is named, also after the tree was replaced.
    checks.path.write_text(json.dumps({"checks": [{"step": "first", "outcome": "passed", "commit": "old"}]}))
    assert chosen_steps(FOUR, [], False, checks) == [] and chosen_steps(FOUR, [], True, checks) == FOUR
    assert [step.name for step in chosen_steps(FOUR, ["third"], False, checks)] == ["third"]


def test_the_next_call_goes_on_with_what_is_left(tmp_path: Path) -> None:
    checks, places = begun_checks(tmp_path)
    run = FakeProcesses(second={"stopped": True, "status": 2})
    left = run_steps(FOUR, checks, places, 40, run)
    assert left == ["second", "fourth"] and run.begun == ["first", "second", "third"]
    assert report_outcomes(FOUR, left, checks) == EXIT_STEPS_LEFT
    again = chosen_steps(FOUR, [], False, checks)
    assert [step.name for step in again] == left
    assert run_steps(again, checks, places, 40, second := FakeProcesses()) == ["fourth"] and second.begun == ["second"]
    # The first step begins with any time, because otherwise it would never begin.
    last = chosen_steps(FOUR, [], False, checks)
    assert run_steps(last, checks, places, 40, third := FakeProcesses()) == [] and third.begun == ["fourth"]
    assert report_outcomes(FOUR, [], checks) == 0


def test_other_code_is_checked_anew(tmp_path: Path) -> None:
    checks, places = begun_checks(tmp_path)
    run_steps(FOUR, checks, places, 1000, FakeProcesses())
    later, _ = begun_checks(tmp_path, code="changed")
    assert chosen_steps(FOUR, [], False, later) == FOUR
    tree = tmp_path / "fmm"
    tree.mkdir()
    (tree / "x.py").write_text("1")
    first = code_digest(tmp_path)
    (tmp_path / "results" / "new.json").write_text("{}")
    assert code_digest(tmp_path) == first
    (tree / "x.py").write_text("2")
    assert code_digest(tmp_path) != first


def test_a_step_that_lacks_something_is_reported_each_time_and_never_run(tmp_path: Path) -> None:
    checks, places = begun_checks(tmp_path)
    planned = [FOUR[0]._replace(missing="no such tool"), FOUR[3]]
    assert run_steps(planned, checks, places, 1000, run := FakeProcesses()) == [] and run.begun == ["fourth"]
    assert checks.recorded[0] == {"step": "first", "outcome": "left out: no such tool", "commit": "abc", "code": "code"}
    assert chosen_steps(planned, [], False, checks) == planned[:1] and report_outcomes(planned, [], checks) == 0


def test_new_files_are_copied_after_each_step(tmp_path: Path) -> None:
    to = tmp_path / "fetched"
    checks, places = begun_checks(tmp_path, copy_to=to)
    places.results.mkdir()
    (places.results / "old.json").write_text("{}")
    os.utime(places.results / "old.json", (0, 0))
    run_steps(FOUR[:1], checks, places, 1000, FakeProcesses())
    found = sorted(str(path.relative_to(to)) for path in to.rglob("*") if path.is_file())
    assert found == [os.path.join("notes", x) for x in ("first.txt", "results-checks.json")] + ["results/checks.json"]


def test_new_files_of_several_devices_are_copied_too(tmp_path: Path) -> None:
    checks, places = begun_checks(tmp_path, copy_to=tmp_path / "fetched")
    several = tmp_path / "results-x2"
    several.mkdir()
    (several / "distributed.json").write_text("{}")
    run_steps(FOUR[:1], checks, places, 1000, FakeProcesses(), (several,))
    assert (tmp_path / "fetched" / "results-x2" / "distributed.json").exists()


@pytest.fixture
def device_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of results of a machine with two devices; the command runs no step."""
    monkeypatch.setattr(harness, "gpu_folder", lambda: tmp_path / "device")
    monkeypatch.setattr(harness, "gpu_count", lambda: 2)
    monkeypatch.setattr(harness, "gpu_environment", lambda: {"commit": "abc"})
    monkeypatch.setattr(gpu_check, "NOTES_FOLDER", tmp_path / "notes")
    monkeypatch.setattr(gpu_check, "code_digest", lambda: "code")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    return tmp_path / "device"


def test_a_list_of_all_steps_deletes_nothing(device_folder: Path, tmp_path: Path) -> None:
    ended_tests = CheckFolders(device_folder, tmp_path / "notes" / "code").ended_tests
    ended_tests.parent.mkdir(parents=True)
    ended_tests.touch()
    assert gpu_check.main(["--list", "--anew"]) == EXIT_STEPS_LEFT and ended_tests.exists()


def test_results_of_several_devices_are_named_to_the_copy(
    device_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_result(batch: Sequence[Step], left: float, notes: Path) -> list[EndedStep]:
        output = Path(batch[0].command[-1])
        (output if output.name == "distributed.json" else tmp_path / "other").write_text("{}")
        return FakeProcesses()(batch, left, notes)

    monkeypatch.setattr(gpu_check, "run_together", write_result)
    benchmark = "several devices' benchmark"
    assert gpu_check.main(["--steps", benchmark, "--copy-to", str(tmp_path / "fetched")]) == 0
    assert (tmp_path / "fetched" / "device-x2" / "distributed.json").exists()


def test_a_space_separates_each_name_from_its_outcome(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_outcomes(list(several_device_steps(1, PLACES)), [], begun_checks(tmp_path)[0])
    assert "several devices' benchmark  left out: there is one device\n" in capsys.readouterr().out


def test_unknown_arguments_are_refused() -> None:
    options = parsed_options(["--time-limit", "570", "--steps", "tests,papers"])
    assert (options.time_limit, options.steps) == (570, "tests,papers")
    with pytest.raises(SystemExit):
        parsed_options(["--quick"])


def test_running_some_steps_again_keeps_the_other_outcomes() -> None:
    recorded = [{"step": name, "commit": "old"} for name in ("tests", "memcheck", "benchmark", "of another day")]
    found = merged_checks(
        recorded, [{"step": name, "commit": "new"} for name in ("racecheck", "tests")], [*CHECKS, "benchmark"]
    )
    order = ["tests", "memcheck", "racecheck", "benchmark", "of another day"]
    assert found == [{"step": s, "commit": "new" if s in ("tests", "racecheck") else "old"} for s in order]
