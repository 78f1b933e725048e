"""`make gpu-check` without a device: which steps it takes, and what it says of them."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from benchmarks.compile_ahead import processes, with_cache
from benchmarks.gpu_check import FEW, GATED, SEVERAL, TIMED, Step, joined, outcome, several_steps, side_by_side, steps


def test_sanitizers_run_a_few_launches_between_the_tests_and_the_benchmark() -> None:
    found = list(steps(["--quick"], "/opt/compute-sanitizer"))
    names = ["kernels", "tests", "timed tests", "hostile use", "random integers", "memcheck", "racecheck", "benchmark"]
    assert [step.name for step in found] == names
    assert found[5].command == ("/opt/compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "1", *FEW, *GATED)
    assert found[6].command[-len(FEW) :] == FEW
    assert found[7].command[1:] == ("-m", "benchmarks.gpu", "--quick")
    assert not any(step.missing for step in found)


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
    together = processes(lambda name: name in packages, cores)
    assert together == options
    _, many, alone, *_ = steps([], None, together)
    assert many.command[-len(options) - 3 :] == (*options, f"--ignore={TIMED}", f"--ignore={SEVERAL}", "tests")
    assert alone.command[-1] == TIMED and "-n" not in alone.command


def test_a_few_processors_are_left_to_the_device_and_its_driver() -> None:
    options = side_by_side()
    assert not options or 1 <= int(options[1]) <= 14


def test_what_needs_several_devices_is_left_out_where_there_is_one() -> None:
    tests, benchmark = several_steps(2, "results/device-x2")
    assert tests.command[-1] == SEVERAL and not tests.missing
    assert benchmark.command[4:6] == ("--nproc-per-node", "2") and not benchmark.missing
    assert benchmark.command[-1] == "results/device-x2/distributed.json"
    assert {step.missing for step in several_steps(1, "")} == {"there is one device"}


def test_kernels_are_compiled_first_and_all_steps_find_them() -> None:
    first = next(steps([], None))
    assert first.command[1:] == ("-m", "benchmarks.compile_ahead")
    assert with_cache({})["CUPY_CACHE_DIR"].endswith(".cupy-cache")
    assert with_cache({"CUPY_CACHE_DIR": "elsewhere"}) == {"CUPY_CACHE_DIR": "elsewhere"}


def test_a_sanitizer_that_is_absent_is_named_and_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    def run(command: tuple[str, ...]) -> int:
        raise AssertionError(command)

    step = list(steps([], None))[6]
    assert outcome(step, run) == {"step": "racecheck", "outcome": "left out: compute-sanitizer is not on PATH"}
    assert "racecheck: left out: compute-sanitizer is not on PATH" in capsys.readouterr().out


@pytest.mark.parametrize(("status", "text"), [(0, "passed"), (3, "failed with status 3")])
def test_a_step_says_how_it_ended(status: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = outcome(Step("tests", ("python", "-m", "pytest")), lambda command: status)
    assert (found["outcome"], found["command"]) == (text, "-m pytest")
    assert f"tests: {text}" in capsys.readouterr().out


def test_some_steps_again_leave_what_is_known_of_the_others() -> None:
    known = [{"step": name, "commit": "old"} for name in ("tests", "memcheck", "benchmark")]
    found = joined(known, [{"step": name, "commit": "new"} for name in ("racecheck", "tests")])
    order = ["tests", "memcheck", "racecheck", "benchmark"]
    assert found == [{"step": s, "commit": "new" if s in ("tests", "racecheck") else "old"} for s in order]


# ---- the benchmark's parts


def part(*rows: str, **changed: str) -> dict[str, Any]:
    """What a run wrote, as far as joining looks at it; a row is 'type side'."""
    environment = {"device": "X", "driver": 1, "cublas": 2, "commit": "c", "command": "run"} | changed
    sizes = [(dtype, [int(side)] * 3) for dtype, side in (row.split() for row in rows)]
    return {"environment": environment, "skipped": [], "rows": [{"dtype": d, "size": s} for d, s in sizes]}


def test_parts_of_the_benchmark_are_all_of_it_and_join_in_order() -> None:
    gpu = pytest.importorskip("benchmarks.gpu", exc_type=ImportError)
    options = argparse.Namespace(only="", quick=False, plans="", part="1/1")
    halves = [gpu.chosen(gpu.CASES, argparse.Namespace(**{**vars(options), "part": f"{i}/2"})) for i in (1, 2)]
    assert sorted(case.name for half in halves for case in half) == sorted(case.name for case in gpu.CASES)
    assert abs(len(halves[0]) - len(halves[1])) <= 1
    first, second = gpu.CASES[0], gpu.CASES[1]
    texts = [f"{case.dtype} {case.size[0]}" for case in (first, second)]
    joined = gpu.merged([part(texts[1]), part(texts[0])])
    assert [row["dtype"] for row in joined["rows"]] == [first.dtype, second.dtype]
    assert joined["environment"]["command"] == "run; run"
    with pytest.raises(SystemExit, match="commit"):
        gpu.merged([part(), part(commit="d")])
