"""The harness on a clock of its own, and the command that runs benchmarks by name."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.harness import (
    Machine,
    cases_in_time,
    environment_variable,
    has_failures,
    noise_floor,
    paired_samples,
    paired_speedup,
    recorded_failure,
    repeats_of,
    rounds_within,
    run_cases,
    shuffled_rounds,
    speedup_interval,
    write_result,
)
from benchmarks.tables.markdown import loaded_results
from tests.support import ROOT

NEEDS_DEVICE = {"gpu_calls", "gpu_complex", "gpu_emulation", "gram", "portable"}
NEEDS = {
    **dict.fromkeys([*NEEDS_DEVICE, "gpu_added", "gpu_host", "out_of_core"], "cupy"),
    "distributed": "torch",
    "training": "torch",
    "dask_arrays": "dask",
    "jax_products": "jax",
    "notebooks": "nbclient",
}


class FakeClock:
    """A clock on which calls take fixed times, and later calls take longer; it records the order of the calls."""

    def __init__(self, seconds: dict[str, float], drift: float = 0.0) -> None:
        self.seconds, self.drift, self.order = seconds, drift, list[str]()

    def calls(self) -> dict[str, Callable[[], object]]:
        return {name: lambda name=name: name for name in self.seconds}  # type: ignore[misc]

    def __call__(self, call: Callable[[], object], repeats: int) -> float:
        self.order.append(str(call()))
        return self.seconds[self.order[-1]] * (1 + self.drift * len(self.order))


def test_every_round_has_one_sample_of_each_call_in_changing_order() -> None:
    clock = FakeClock({"a": 1.0, "b": 2.0, "c": 3.0})
    samples = shuffled_rounds(clock.calls(), 40, clock)
    assert samples == {"a": [1.0] * 40, "b": [2.0] * 40, "c": [3.0] * 40}
    rounds = [tuple(clock.order[i : i + 3]) for i in range(0, 120, 3)]
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds) and len(set(rounds)) > 3


def test_no_round_begins_after_the_time_but_the_first_one_does() -> None:
    clock = FakeClock({"a": 1.0})
    assert shuffled_rounds(clock.calls(), 9, clock, seconds=0.0) == {"a": [1.0]}


def test_drift_meets_both_calls_alike() -> None:
    clock = FakeClock({"baseline": 2.0, "candidate": 1.0, "again": 2.0}, drift=0.01)
    samples = paired_samples(clock.calls(), 60, 1e-3, clock)
    assert paired_speedup(samples["baseline"], samples["candidate"]) == pytest.approx(2.0, rel=0.02)
    assert noise_floor(samples, "baseline", "again") < 0.02
    low, high = speedup_interval(samples["baseline"], samples["candidate"])
    assert low <= paired_speedup(samples["baseline"], samples["candidate"]) <= high


def test_repeats_and_rounds_fill_the_time() -> None:
    assert (repeats_of(1e-3, 5e-3), repeats_of(1.0, 5e-3), repeats_of(0.0, 5e-3, most=200)) == (5, 1, 200)
    assert [rounds_within(8.0, seconds, 5, 11) for seconds in (0.1, 1.0, 100.0)] == [11, 8, 5]


def test_the_time_limit_leaves_the_last_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(cases_in_time("abc", 1e9)) == ["a", "b", "c"]
    assert list(cases_in_time("abc", -1.0)) == []
    assert "3 of 3 cases were not measured" in capsys.readouterr().out


def test_a_run_writes_every_row_those_of_failed_cases_and_those_that_were_left(tmp_path: Path) -> None:
    machine = Machine("a machine", tmp_path, lambda **more: {"device": "a card", **more}, FakeClock({}))

    def measure(case: str) -> dict[str, object]:
        if case == "b":
            raise MemoryError("too large")
        return {"case": case}

    measured = recorded_failure(measure, lambda case: {"case": case})
    options = argparse.Namespace(output=None, time_limit=1e9)
    rows = run_cases(options, machine, "x.json", "ab", measured, str, left=lambda count: [{"case": "c"}][count - 2 :])
    assert rows == [{"failure": "", "case": "a"}, {"case": "b", "failure": "MemoryError: too large"}, {"case": "c"}]
    assert has_failures(rows[:2]) == 1 and has_failures(rows[:1]) == 0
    written = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert written == {"environment": {"device": "a card"}, "rows": rows}


@pytest.mark.parametrize("before", [None, "1"])
def test_a_variable_of_the_environment_is_restored(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FMM_EMULATION", raising=False)
    if before is not None:
        monkeypatch.setenv("FMM_EMULATION", before)
    with environment_variable("FMM_EMULATION", "0"):
        assert os.environ["FMM_EMULATION"] == "0"
        with environment_variable("FMM_EMULATION", None):
            assert "FMM_EMULATION" not in os.environ
    assert os.environ.get("FMM_EMULATION") == before


# ---- the command


def test_the_names_are_listed_and_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in BENCHMARKS)
    assert main(["nothing"]) == 2
    assert "no benchmark 'nothing'; valid: cpu, " in capsys.readouterr().err


def test_a_missing_library_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "benchmarks.distributed", raising=False)
    assert main(["distributed", "--help"]) == 2
    assert capsys.readouterr().err == "benchmarks distributed: needs torch, which is not installed\n"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_a_module_and_a_main(name: str) -> None:
    path = ROOT.joinpath(*BENCHMARKS[name].split(".")).with_suffix(".py")
    assert "\ndef main(" in path.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", [x for x in BENCHMARKS if find_spec(NEEDS.get(x, "numpy"))])
def test_every_benchmark_prints_its_help(name: str) -> None:
    command = [sys.executable, "-m", "benchmarks", name, "--help"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("usage: "), done.stderr


LOADED_WITH_STUBS = """
from importlib import import_module
from tests.support.stub_modules import install_stubs
install_stubs("cupy", "cupy_backends", "cupyx", "torch", "dask", "distributed")
from benchmarks.__main__ import BENCHMARKS
for name in NAMES:
    try:
        import_module(BENCHMARKS[name]).main(["--help"])
    except SystemExit as end:
        assert end.code == 0, name
"""


@pytest.mark.slow
def test_benchmarks_of_missing_libraries_load_and_parse_their_options() -> None:
    """A name that a benchmark imports from fmm and that is gone is found without CuPy, torch and Dask."""
    names = [name for name, library in NEEDS.items() if library in ("cupy", "torch", "dask")]
    command = [sys.executable, "-c", LOADED_WITH_STUBS.replace("NAMES", repr(names))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: ") == len(names)


# ---- the kernel of BLAS


def test_nothing_is_measured_with_an_old_kernel_unless_the_user_insists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "slow_kernel_warning", lambda: "OpenBLAS runs its Haswell kernel")
    command = ["threads", "--counts", "1", "--sides", "8", "--plans", "numpy", "--quick", "--output", str(tmp_path)]
    assert main(command) == 2
    assert "Haswell kernel; or pass --any-blas-kernel" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert main([*command, "--any-blas-kernel"]) == 0
    assert json.loads((tmp_path / "threads.json").read_text(encoding="utf-8"))["rows"]


def test_tables_leave_out_what_was_measured_with_an_old_kernel(tmp_path: Path) -> None:
    for name, environment in {"good": {}, "old": {"blas_warning": "old kernel"}}.items():
        write_result(tmp_path / name / "speed.json", environment, [{"side": 8}])
    assert [path.parent.name for path, *_ in loaded_results(tmp_path, "*/speed.json")] == ["good"]


def test_recorded_commands_name_no_folder_of_this_machine() -> None:
    parts = [sys.executable, "-m benchmarks", "gram", "--output", str(harness.RESULTS / "machine")]
    assert harness.recorded_command(parts) == "python -m benchmarks gram --output results/machine"
