"""`make gpu-check` without a device: which steps it takes, and what it says of them."""

from __future__ import annotations

import pytest

from benchmarks.gpu_check import FEW, Step, outcome, steps


def test_sanitizers_run_a_few_launches_between_the_tests_and_the_benchmark() -> None:
    found = list(steps(["--quick"], "/opt/compute-sanitizer"))
    assert [step.name for step in found] == ["tests", "memcheck", "racecheck", "benchmark"]
    assert found[1].command == ("/opt/compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "1", *FEW)
    assert found[3].command[1:] == ("-m", "benchmarks.gpu", "--quick")
    assert not any(step.missing for step in found)


def test_a_sanitizer_that_is_absent_is_named_and_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    def run(command: tuple[str, ...]) -> int:
        raise AssertionError(command)

    step = list(steps([], None))[2]
    assert outcome(step, run) == {"step": "racecheck", "outcome": "left out: compute-sanitizer is not on PATH"}
    assert "racecheck: left out: compute-sanitizer is not on PATH" in capsys.readouterr().out


@pytest.mark.parametrize(("status", "text"), [(0, "passed"), (3, "failed with status 3")])
def test_a_step_says_how_it_ended(status: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = outcome(Step("tests", ("python", "-m", "pytest")), lambda command: status)
    assert (found["outcome"], found["command"]) == (text, "-m pytest")
    assert f"tests: {text}" in capsys.readouterr().out
