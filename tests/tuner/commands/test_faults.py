"""What goes wrong around a tuning: kills, Ctrl-C, full and read-only disks, several at once, bad arguments."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fmm.config import files, identity, schema, store
from fmm.config.identity import BLAS_KERNEL, COMPILED_SUMS, PROCESSOR_MODEL, SUMS_VERSION_NAME, Identity
from fmm.config.reader import ConfigError
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.tuner import cli, device_registry
from fmm.tuner import tune as commands_tune
from fmm.tuner.cli import main
from fmm.tuner.commands import bench, verify
from fmm.tuner.devices.device import CPU_EFFORTS
from fmm.tuner.devices.simulated import SIMULATED_IDENTITY, SimulatedDevice
from fmm.tuner.report.plan_names import find_plan_texts, plan_names_table
from fmm.tuner.trials.record import TrialFile, frame
from fmm.tuner.tune import JobResult, JobTimeLimit, TuningJob
from tests.support import ROOT
from tests.support import configs as tuned
from tests.support.busy_device import BusyDevice, tune_by_clock
from tests.support.chips import H200
from tests.support.configs import SMALL
from tests.support.threads import at_once


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> SimulatedDevice:
    """The command tunes this device, with little effort."""
    device = SimulatedDevice()
    monkeypatch.setattr(commands_tune, "select_devices", lambda name: [device])
    for name in CPU_EFFORTS:
        first = name == "coarse"  # which is another effort than those that refine it
        monkeypatch.setitem(CPU_EFFORTS, name, replace(tuned.SMALL, most=tuned.SMALL.most + first))
    return device


def nursery(kind: str, folder: Path, *more: str) -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.support.tuning_processes", kind, str(folder), *more]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_json_is_the_result_even_of_a_quiet_tuning_and_each_type_is_tuned_once(
    fake: SimulatedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--effort", "quick", "--dtype", "float32,float32", "--output", str(tmp_path), "--quiet"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == ""
    assert main([*arguments, "--json"]) == 0
    assert [found["dtype"] for found in json.loads(capsys.readouterr().out)] == ["float32"]


# ---- kills


@pytest.mark.slow
@pytest.mark.parametrize("kills", [30])
def test_kills_leave_a_whole_config_and_repeat_nothing(kills: int, tmp_path: Path) -> None:
    """However many are tried: more until enough different configs were seen."""
    found = nursery("kill", tmp_path, str(kills))
    least = 5
    assert found["killed"] >= kills / 2 and found["states"] >= least and found["replayed"] >= least
    assert not found["left"]


@pytest.mark.slow
def test_eight_tunings_at_once_lose_nothing(tmp_path: Path) -> None:
    found = nursery("together", tmp_path)
    expected = sorted([("float32", "float64")[i % 2], 4000 + i, 4000, 4000 + j] for i in range(8) for j in range(3))
    assert found["entries"] == expected
    assert found["tunings"] == 8


@pytest.mark.slow
def test_ctrl_c_writes_the_best_so_far_and_exits_with_130(tmp_path: Path) -> None:
    """A real signal in a real process, in the midst of a trial that takes until then."""
    code = (
        "import signal, sys, time; from pathlib import Path; from types import SimpleNamespace\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # jobs in the background are born deaf to it
        "from fmm.tuner import cli\n"
        "from fmm.tuner import tune\n"
        "from fmm.tuner.devices import simulated\n"
        "trials, late = (Path(sys.argv[-1]) / name for name in ('trials.jsonl', 'late'))\n"
        "def sleep(seconds):\n"
        "    if not late.exists() and trials.read_text().count('\\n') > 240:\n"
        "        late.touch()\n"
        "        time.sleep(60)\n"
        "    time.sleep(seconds)\n"
        "simulated.time = SimpleNamespace(sleep=sleep)\n"
        "tune.select_devices = lambda name: [simulated.SimulatedDevice(real_time=0.001)]\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    options = ["--effort", "quick", "--dtype", "float64", "--time-limit", "600"]  # however slow the machine is
    command = [sys.executable, "-c", code, *options, "--output", str(tmp_path)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        wait_until(lambda: (tmp_path / "late").exists() or running.poll() is not None)
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=55)  # it would sleep for longer
    assert running.returncode == 130, said
    assert "interrupted; the best result so far is in" in said and "Traceback" not in said
    assert main(["verify", str(tmp_path)]) == 0


def wait_until(ready: Any) -> None:
    end = time.monotonic() + 120  # a few seconds are usual
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.slow
def test_ctrl_c_then_resume(fake: SimulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, original = 0, SimulatedDevice.open_session

    def interrupted(self: SimulatedDevice, problem: Any, seed: int) -> Any:
        nonlocal asked
        asked += 1
        if asked == 12:
            raise KeyboardInterrupt
        return original(self, problem, seed)

    monkeypatch.setattr(SimulatedDevice, "open_session", interrupted)
    arguments = ["--dtype", "float64", "--quiet", "--output", str(tmp_path)]
    assert main(arguments) == 130
    (first,) = TrialFile(tmp_path / "trials.jsonl").read_tunings()
    assert not first.finished
    before = fake.samples_taken
    assert main([*arguments, "--resume"]) == 0
    (whole,) = TrialFile(tmp_path / "trials.jsonl").read_tunings()
    assert whole.finished and whole.trials[: len(first.trials)] == first.trials
    assert fake.samples_taken - before == len(whole.trials) - len(first.trials)
    assert main([*arguments, "--resume"]) == 0  # nothing to resume: a new one
    assert len(TrialFile(tmp_path / "trials.jsonl").read_tunings()) == 2


@pytest.mark.slow
def test_a_tuning_that_was_hardly_begun_does_not_replace_a_checked_model(
    fake: SimulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    arguments = ["--dtype", "float64", "--output", str(path)]
    assert main(arguments) == 0
    old, original, asked, last = path.read_text(), SimulatedDevice.open_session, 0, 8

    def interrupted(self: SimulatedDevice, problem: Any, seed: int) -> Any:
        nonlocal asked
        asked += 1
        if asked == last:
            raise KeyboardInterrupt
        return original(self, problem, seed)

    monkeypatch.setattr(SimulatedDevice, "open_session", interrupted)
    capsys.readouterr()
    assert main(arguments) == 130
    told = f"float64: interrupted; the present section in {path} is unchanged; --resume continues from the trials"
    assert told in capsys.readouterr().err and path.read_text() == old
    path.unlink()
    asked, last = 0, 2
    assert main([*arguments, "--fresh"]) == 130 and not path.exists()  # a few rough products are no model
    assert "interrupted; nothing was written; --resume continues" in capsys.readouterr().err
    asked, last = 0, 20
    assert main([*arguments, "--fresh"]) == 130  # where there is nothing better, it is the best so far
    assert files.read_config(path)[SIMULATED_IDENTITY.key]["float64"]["error"]["speedup"]["count"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--effort", "full"], ["--dtype", "float32"], ["--fresh"], []])
def test_only_the_same_tuning_is_resumed(more: list[str], fake: SimulatedDevice, tmp_path: Path) -> None:
    assert main(["--dtype", "float64", "--quiet", "--time-limit", "1e-9", "--output", str(tmp_path)]) == 1
    resume = [] if "--fresh" in more else ["--resume"] if more else []
    assert main(["--dtype", "float64", "--quiet", *resume, *more, "--output", str(tmp_path)]) == 0
    assert len(TrialFile(tmp_path / "trials.jsonl").read_tunings()) == 2


# ---- disks

LATER_CONFIG = '{"schema": 9, "devices": {}}'


def unwritable() -> str:
    """A folder in which nobody can make a file, root included."""
    return "/proc/self"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_folder_that_cannot_be_written_is_said_before_anything_is_measured(
    fake: SimulatedDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--output", unwritable()]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("fmm-tune: cannot write /proc/self/config.json: ")
    assert "--output PATH names another file" in printed.err and printed.err.count("\n") == 1
    assert fake.samples_taken == 0


def make_loop(path: Path) -> None:
    path.symlink_to(path)


def lock_folder(path: Path) -> None:
    for name in (".config.json.lock", "trials.jsonl"):
        path.with_name(name).touch()
    path.parent.chmod(0o500)


UNWRITABLE: list[tuple[Callable[[Path], object], str]] = [
    (os.mkfifo, "{}: it is no file; name another file"),
    (lambda path: path.symlink_to("/dev/null"), "/dev/null: it is no file; name another file"),
    (lambda path: path.write_text(LATER_CONFIG), "{}: its schema is 9, of a later fmm; this one reads 1; name another"),
    (make_loop, "cannot write {}: Too many levels of symbolic links; --output PATH names another file"),
    (lock_folder, "cannot write {}: Permission denied; --output PATH names another file"),
]


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and links")
@pytest.mark.parametrize(("make", "message"), UNWRITABLE, ids=["pipe", "device", "later", "loop", "locked"])
def test_what_cannot_become_the_config_is_said_before_anything_is_measured(
    make: Callable[[Path], object],
    message: str,
    fake: SimulatedDevice,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if make is lock_folder and os.geteuid() == 0:
        pytest.skip("root writes into every folder")
    path = tmp_path / "config.json"
    make(path)
    assert main(["--dtype", "float64", "--quiet", "--output", str(path)]) == 1
    tmp_path.chmod(0o700)
    printed = capsys.readouterr()
    assert printed.err.startswith(f"fmm-tune: {message.format(path)}") and printed.err.count("\n") == 1
    assert fake.samples_taken == 0 and not Path("/dev/.null.lock").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_home_that_cannot_be_written(
    fake: SimulatedDevice, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FMM_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", unwritable())
    assert main([]) == 1
    assert "cannot write /proc/self/fmm/config.json" in capsys.readouterr().err


def test_no_home_at_all(
    fake: SimulatedDevice, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(files, "user_folder", homeless)
    monkeypatch.delenv("FMM_CONFIG", raising=False)
    assert main([]) == 1
    assert "Could not determine home directory" in capsys.readouterr().err


@pytest.mark.slow
def test_a_disk_that_fills_up_under_the_config(
    fake: SimulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tuned.write(tmp_path / "config.json", SIMULATED_IDENTITY.key).read_text()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("fmm.config.store.os.fsync", full)
        assert main(["--dtype", "float64", "--quiet", "--output", str(tmp_path)]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert (tmp_path / "config.json").read_text() == old
    assert not list(tmp_path.glob(".*.partial"))
    # The trials are there: with room again, the config is written without measuring anything.
    asked = fake.samples_taken
    trials = tmp_path / "trials.jsonl"
    trials.write_text("".join(line + "\n" for line in trials.read_text().splitlines() if '"finished"' not in line))
    assert main(["--dtype", "float64", "--quiet", "--resume", "--output", str(tmp_path)]) == 0
    assert fake.samples_taken == asked and (tmp_path / "config.json").read_text() != old


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_fills_up_under_the_trials(
    fake: SimulatedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trials.jsonl").symlink_to("/dev/full")
    assert main(["--dtype", "float64", "--quiet", "--output", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "trials.jsonl: No space left on device" in said and "Traceback" not in said


@pytest.mark.skipif(os.name != "posix", reason="needs pipes")
def test_trials_that_are_pipes_keep_nobody_waiting(
    fake: SimulatedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("trials.jsonl", "trials.jsonl.gz"):
        os.mkfifo(tmp_path / name)
    assert TrialFile(tmp_path / "trials.jsonl").read_tunings() == ()
    assert main(["--dtype", "float64", "--quiet", "--output", str(tmp_path)]) == 1
    assert f"{tmp_path / 'trials.jsonl'}: it is a pipe" in capsys.readouterr().err and fake.samples_taken == 0


def test_damaged_trials_cannot_be_resumed(
    fake: SimulatedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trials.jsonl.gz").write_bytes(b"garbage")
    assert main(["--dtype", "float64", "--resume", "--output", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"fmm-tune: {tmp_path / 'trials.jsonl.gz'} cannot be read: ") and said.count("\n") == 1


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(errno.EPIPE, 141, ""), (errno.ENOSPC, 1, "fmm-tune: cannot write the output: No space left on device\n")],
)
def test_an_error_of_stdout_is_none_of_the_config(
    number: int,
    code: int,
    message: str,
    fake: SimulatedDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(text: str) -> int:
        raise OSError(number, os.strerror(number))

    stream = io.StringIO()
    monkeypatch.setattr(stream, "write", fail)
    monkeypatch.setattr(sys, "stdout", stream)
    arguments = ["--dtype", "float64", "--effort", "coarse", "--time-limit", "0.01", "--json"]
    assert main([*arguments, "--output", str(tmp_path)]) == code
    said = capsys.readouterr().err
    assert said.endswith(message) and "cannot write" not in said.replace(message, "")


# ---- the store


def test_a_damaged_config_is_kept_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text("{ damaged")
    store.merge_section(path, "cpu-a", "float64", tuned.section())
    assert (tmp_path / "config.json.damaged").read_text() == "{ damaged"
    assert "was damaged" in capsys.readouterr().err
    assert set(files.read_config(path)) == {"cpu-a"}


def test_nothing_is_merged_into_a_config_of_a_later_fmm(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(LATER_CONFIG)
    with pytest.raises(ConfigError, match="of a later fmm"):
        store.merge_section(path, "cpu-a", "float64", tuned.section())
    assert path.read_text() == LATER_CONFIG


@pytest.mark.slow
def test_a_config_of_a_later_fmm_is_not_touched(
    fake: SimulatedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(LATER_CONFIG)
    assert main(["--dtype", "float64", "--quiet", "--output", str(path)]) == 1
    assert "of a later fmm" in capsys.readouterr().err
    assert path.read_text() == LATER_CONFIG


def test_sections_and_entries_are_merged(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    one, two = tuned.entry((1, 2, 3)), tuned.entry((4, 5, 6))
    store.merge_section(path, "cpu-a", "float64", tuned.section(one, noise=0.5))
    store.merge_section(path, "cpu-a", "float32", tuned.section(one))
    store.merge_section(path, "cpu-b", "float64", tuned.section(one))
    store.merge_section(path, "cpu-a", "float64", tuned.section(two, tuned.entry((1, 2, 3), "hasa > vendor")))
    found = files.read_config(path)
    assert {(key, dtype) for key, types in found.items() for dtype in types} == {
        ("cpu-a", "float64"),
        ("cpu-a", "float32"),
        ("cpu-b", "float64"),
    }
    merged = found["cpu-a"]["float64"]
    assert merged["noise"] is None
    assert [(tuple(e["size"]), e["plan"]) for e in merged["entries"]] == [
        ((1, 2, 3), "hasa > vendor"),
        ((4, 5, 6), "winograd > vendor"),
    ]


def test_old_entries_are_marked_when_versions_have_changed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    store.merge_section(path, "cpu-a", "float64", tuned.section(tuned.entry((1, 2, 3))))
    new = tuned.section(tuned.entry((4, 5, 6)), versions={"blas": "another"})
    store.merge_section(path, "cpu-a", "float64", new)
    entries = files.read_config(path)["cpu-a"]["float64"]["entries"]
    assert [e["verified"] for e in entries] == [False, True]


def test_threads_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path, device = tmp_path / "config.json", Identity("cpu-a", "a", tuned.VERSIONS)

    def write(i: int) -> None:
        for j in range(5):
            store.add_entry(path, device, "float64", tuned.entry((i + 1, j + 1, 1)))

    at_once([partial(write, i) for i in range(8)])
    assert len(files.read_config(path)["cpu-a"]["float64"]["entries"]) == 40


def test_what_a_killed_writer_left_is_swept_away(tmp_path: Path) -> None:
    left = tmp_path / ".config.json.abc.partial"
    left.write_text("{")
    store.merge_section(tmp_path / "config.json", "cpu-a", "float64", tuned.section())
    assert not left.exists()


@pytest.fixture
def umask() -> Iterator[None]:
    old = os.umask(0o022)
    yield
    os.umask(old)


@pytest.mark.usefixtures("umask")
def test_everyone_may_read_a_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    store.merge_section(path, "cpu-a", "float64", tuned.section())
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o600)
    store.merge_section(path, "cpu-a", "float32", tuned.section())
    assert path.stat().st_mode & 0o777 == 0o600


# ---- bad arguments

BAD = [
    (["--device", "7"], "unknown device '7'; valid: cpu, all"),
    (["--device", "cpu", "--dtype", "int8"], "unknown dtype 'int8'; valid: float32, float64, complex64, complex128"),
    (["--device", "cpu", "--dtype", "float32,", "--dry-run"], "unknown dtype ''"),
    (["--device", "cpu", "--time-limit", "-1"], "--time-limit must be a positive number of seconds, not -1"),
    (["--device", "cpu", "--time-limit", "nan"], "not nan"),
    (["--device", "cpu", "--shapes", "SHAPES"], "line 1: '1 2'; a line is M K N"),
    (["--device", "cpu", "--shapes", "none"], "cannot read none"),
    (["bench", "5", "5", "5", "--device", "9"], "unknown device '9'; valid: cpu, all"),
    (["bench", "5", "5", "0"], "sizes must be positive"),
    (["bench", "5", "5", "5", "--dtype", "int8"], "unknown dtype 'int8'; valid: float32"),
    (["bench", "5", "5", "5", "--plan", "nonsense"], "a plan ends in its leaf"),
    (["bench", "5", "5", "5", "--rounds", "0"], "--rounds must be 1 or more"),
    (["verify", "--measure", "--device", "9"], "unknown device '9'"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_bad_arguments_exit_with_2_and_say_what_is_valid(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(device_registry, "gpu_count", lambda: 0)
    (tmp_path / "SHAPES").write_text("1 2\n")
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1 and not printed.out


def test_without_a_device_the_gpu_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(name: str) -> SimulatedDevice:
        made.append(name)
        return SimulatedDevice()

    monkeypatch.setattr(device_registry, "_tunable_device", make)
    for count, name, expected in ((0, None, ["cpu"]), (2, None, ["0"]), (2, "all", ["0", "1", "cpu"]), (2, "1", ["1"])):
        made.clear()
        monkeypatch.setattr(device_registry, "gpu_count", lambda count=count: count)
        device_registry.select_devices(name)
        assert made == expected


# ---- what is printed


def test_a_dry_run_measures_and_writes_nothing(
    fake: SimulatedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--dry-run", "--output", str(tmp_path / "c.json")]) == 0
    assert "a fake CPU (cpu-fake-2t), float32, effort default: about 4 s" in capsys.readouterr().out
    assert main(["--dry-run", "--json", "--output", str(tmp_path / "c.json")]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["dtype"] for row in rows] == ["float32", "float64"] * 2
    assert [row["effort"] for row in rows] == ["coarse"] * 2 + ["default"] * 2
    assert "winograd > vendor" in rows[0]["candidates"]
    assert fake.samples_taken == 0 and not list(tmp_path.iterdir())


def test_a_dry_run_writes_nothing_so_that_any_name_will_do(
    fake: SimulatedDevice, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FMM_CONFIG", "n" * 300)
    assert main(["--dry-run"]) == 0
    printed = capsys.readouterr()
    assert f"writes {'n' * 300}" in printed.out and not printed.err


@pytest.mark.slow
def test_a_tuning_says_what_it_found(fake: SimulatedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = tmp_path / "shapes"
    shapes.write_text("6000 6000 6000\n")
    arguments = ["--shapes", str(shapes), "--output", str(tmp_path)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    details = ("a fake CPU (cpu-fake-2t), float64", "Gflop/s", "2 % gained (tau)", "held-out speedups")
    table = (
        "a fake CPU (fake 0)",
        "tuned in ",
        "float64",
        "recursion",
        f"FMM_CONFIG={tmp_path / 'config.json'}",
        "next",
    )
    assert all(expected in printed for expected in table) and not any(expected in printed for expected in details)
    assert len(printed.splitlines()) <= 25 and "\033" not in printed
    assert main([*arguments, "--verbose"]) == 0
    printed = capsys.readouterr().out
    assert all(expected in printed for expected in (*table, *details))
    assert re.search(r"^ +6000 +1\.\d\d +\[1\.\d\d, 1\.\d\d\] +\d+ +winograd > ", printed, re.M)
    assert main([*arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["dtype"] for row in rows] == ["float32", "float64"]
    assert rows[0]["section"]["calibration"]["stream"] > 0
    assert {1024, 32768} <= {square["side"] for square in rows[0]["fmm.matmul"]["squares"]}
    assert main([*arguments, "--quiet"]) == 0
    printed_at_last = capsys.readouterr()
    assert printed_at_last.out == printed_at_last.err == ""


@pytest.fixture
def clocked(fake: SimulatedDevice, monkeypatch: pytest.MonkeyPatch) -> BusyDevice:
    """Tuned instead, by a clock of its own, which its samples move on."""
    device = BusyDevice()
    tune_by_clock(monkeypatch, device)
    return device


@pytest.mark.slow
def test_the_time_limit_is_of_all_types_together(clocked: BusyDevice, tmp_path: Path) -> None:
    assert main(["--time-limit", "1", "--quiet", "--output", str(tmp_path)]) == 1
    began = {trial.dtype for tuning in TrialFile(tmp_path / "trials.jsonl").read_tunings() for trial in tuning.trials}
    assert began == set(clocked.dtypes) and 0.9 < clocked.now < 1.3


@pytest.mark.slow
def test_a_first_look_that_goes_on_is_told_once(
    clocked: BusyDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At its end, as text and as one JSON document."""
    arguments = ["--effort", "coarse", "--dtype", "float64", "--time-limit", "1"]
    main([*arguments, "--output", str(tmp_path / "text")])
    printed = capsys.readouterr()
    assert " ".join(printed.out.split()).count("the time limit was reached") == 1 and not printed.err
    assert len(TrialFile(tmp_path / "text" / "trials.jsonl").read_tunings()) == 1
    main([*arguments, "--output", str(tmp_path / "json"), "--json"])
    (found,) = json.loads(capsys.readouterr().out)
    assert found["dtype"] == "float64" and found["stopped"] == "the time limit was reached"


@pytest.mark.slow
def test_the_time_limit_begins_anew_when_a_tuning_is_resumed(clocked: BusyDevice, tmp_path: Path) -> None:
    arguments = ["--dtype", "float64", "--quiet", "--time-limit", "0.3", "--output", str(tmp_path)]
    counts = []
    for more in ([], ["--resume"], ["--resume"]):
        assert main([*arguments, *more]) == 1  # too little was measured to be used
        (commands_tune,) = TrialFile(tmp_path / "trials.jsonl").read_tunings()
        counts.append(len(commands_tune.trials))
    assert 0 < counts[0] < counts[1] < counts[2]


SHOWN = (
    "thresholds",
    "squares",
    "certified entries",
    "crossover sides of squares",
    "recursion point",
    "model",
)


@pytest.mark.slow
def test_show_verify_export_and_merge(
    fake: SimulatedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = tmp_path / "shapes"
    shapes.write_text("6000 6000 6000\n")
    assert main(["--shapes", str(shapes), "--quiet", "--output", str(tmp_path)]) == 0
    where = str(tmp_path)
    assert main(["show", where]) == 0
    table = capsys.readouterr().out
    assert main(["show", where, "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(table) and len(table.splitlines()) <= 25
    assert "cpu-fake-2t, float32 (a fake CPU; default, 20" in shown
    assert {*SHOWN} <= {line.strip() for line in shown.splitlines()}
    assert main(["show", where, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["dtype"] for row in rows} == {"float32", "float64"}
    measured = [x for row in rows for x in row["fmm.matmul"]["squares"] if x["known"] == "measured"]
    assert [x["side"] for x in measured] == [6000, 6000]
    assert main(["verify", where]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "cpu-fake-2t, float32: valid, 1 entries"
    assert main(["export", "--csv", where]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("device,dtype,m,k,n,plan,speedup,low,high,") and len(rows) == 2
    assert main(["export", "--csv", "--trials", where]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.endswith(",predicted") and len(rows) == fake.samples_taken
    assert main(["export", "--thresholds", "--json", where]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["dtype"], row["tau1"] > 0) for row in rows} == {("float32", True), ("float64", True)}
    assert all(0 < row["alpha_95_low"] <= row["alpha"] <= row["alpha_95_high"] for row in rows)
    (known,) = files.read_config(tmp_path / "config.json").values()
    for row in rows:  # to the last digit
        stored = known[row["dtype"]]["thresholds"]
        assert (row["alpha"], row["pi"]) == (stored["alpha"], stored["pi"])
    trials = frame(where)
    assert len(trials) == fake.samples_taken and set(trials.dtype) == {"float32", "float64"}
    assert (
        trials[(trials.plan == "vendor") & (trials.stage == "rates")].groupby(["m", "k", "n"]).seconds.median() > 0
    ).all()
    assert main(["merge", str(tmp_path / "config.json"), "--output", str(tmp_path / "other.json")]) == 0
    assert main(["merge", where, "--output", str(tmp_path / "third.json")]) == 0  # a folder stands for its config
    for copy in ("other.json", "third.json"):
        assert files.read_config(tmp_path / copy) == files.read_config(tmp_path / "config.json")


def test_types_share_the_time_limit(fake: SimulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one leaves is the next one's."""
    jobs, limits = [], []

    def tuned(job: TuningJob, path: Path, options: Any, time: JobTimeLimit, progress: Any) -> JobResult:
        jobs.append((job.dtype, job.effort))
        limits.append(time.limit)
        return JobResult(0, "", 2.0)

    monkeypatch.setattr(commands_tune, "tune_job", tuned)
    for module in (commands_tune, cli):
        monkeypatch.setattr(module, "monotonic", lambda: 0.0)
    assert main(["--time-limit", "16", "--quiet", "--output", str(tmp_path)]) == 0
    coarse = [("float32", "coarse"), ("float64", "coarse")]  # these are certain to have their turn
    assert jobs == [*coarse, ("float32", "default"), ("float64", "default")] and limits == [8.0, 14.0, 6.0, 10.0]


def test_without_an_option_the_time_limit_is_of_the_efforts(
    fake: SimulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What starting, concluding and the table take is in it; a type that took longer leaves the others less."""
    limits = []

    def tuned(job: TuningJob, path: Path, options: Any, time: JobTimeLimit, progress: Any) -> JobResult:
        limits.append(time)
        return JobResult(0, "", 2 * time.limit, concluding=4.0)

    monkeypatch.setattr(commands_tune, "tune_job", tuned)
    for name, most in (("coarse", 10.0), ("default", 40.0)):
        monkeypatch.setitem(CPU_EFFORTS, name, replace(SMALL, most=most))
    for module in (commands_tune, cli):
        monkeypatch.setattr(module, "monotonic", lambda: 0.0)
    assert main(["--quiet", "--output", str(tmp_path)]) == 0
    assert [time.limit for time in limits] == [10.0, 10.0, 30.0, 0.0]
    assert [time.conclusion for time in limits] == [commands_tune.FIRST_LOOK_CONCLUSION_SECONDS, 4.0, 3.0, 4.0]
    assert limits[2].measurement_end_seconds == 27.0


@pytest.mark.parametrize(
    ("gpus", "efforts"),
    [([False], ["quick"]), ([True], ["coarse", "quick"]), ([False, True], ["coarse", "quick", "quick"])],
    ids=["cpu", "gpu", "both"],
)
def test_a_quick_tuning_of_a_cpu_is_one_pass(
    gpus: list[bool], efforts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several types of a device have a first pass each before any is refined, if there is more to refine it with."""
    seen: list[tuple[str, str]] = []

    def tuned(job: TuningJob, path: Path, options: Any, time: JobTimeLimit, progress: Any) -> JobResult:
        seen.append((job.effort, job.dtype))
        return JobResult(0, "", 2.0)

    monkeypatch.setattr(commands_tune, "select_devices", lambda name: [SimulatedDevice(gpu=gpu) for gpu in gpus])
    monkeypatch.setattr(commands_tune, "tune_job", tuned)
    assert main(["--effort", "quick", "--output", str(tmp_path)]) == 0
    assert seen == [(effort, dtype) for effort in efforts for dtype in ("float32", "float64")]


def test_on_a_gpu_a_first_pass_that_waited_for_the_compiler_has_a_second_go(
    fake: SimulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the other types' first passes, before anything is refined, and going on where it was."""
    seen: list[tuple[str, str, bool]] = []
    fake.chip = H200

    def tuned(job: TuningJob, path: Path, options: Any, time: JobTimeLimit, progress: Any) -> JobResult:
        seen.append((job.dtype, job.effort, job.again))
        return JobResult(0, "" if job.again or job.dtype == "float64" else "the time limit was reached", 2.0)

    monkeypatch.setattr(commands_tune, "tune_job", tuned)
    assert main(["--output", str(tmp_path)]) == 0
    first = [("float32", "coarse", False), ("float64", "coarse", False), ("float32", "coarse", True)]
    assert seen == [*first, ("float32", "default", False), ("float64", "default", False)]
    fake.chip = None
    seen.clear()
    assert main(["--output", str(tmp_path)]) == 0 and len(seen) == 4  # on a CPU nothing is compiled
    lacking = capsys.readouterr().err.splitlines(keepends=True)[-1]
    assert lacking.startswith("fmm-tune: float32: no result that fmm.matmul can use: the time limit was reached")
    monkeypatch.setattr(commands_tune, "tune_job", lambda *_: JobResult(0, "the time limit was reached", 2.0))
    assert main(["--output", str(tmp_path)]) == 1, "no type has a usable result"


@pytest.mark.parametrize("missing", commands_tune.REQUIRED_PACKAGES)
def test_a_package_that_is_missing_is_named_before_anything_is_measured(
    missing: str,
    fake: SimulatedDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(commands_tune, "find_spec", lambda name: None if name == missing else name)
    assert main(["--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"fmm-tune: {missing} is not installed; pip install '.[tune]' in fmm's clone\n"
    assert not fake.samples_taken and not list(tmp_path.iterdir())


def test_a_canary_that_has_nothing_to_measure_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verify, "select_devices", lambda name: [SimulatedDevice()])
    path = tmp_path / "config.json"
    assert main(["verify", "--measure", "--output", str(path)]) == 1
    assert "there is no config" in capsys.readouterr().err
    tuned.write(path, "cpu-other")
    assert main(["verify", "--measure", "--output", str(path)]) == 1
    assert f"has no section of {SIMULATED_IDENTITY.key}" in capsys.readouterr().err
    path.write_text("{")
    assert main(["verify", "--measure", "--output", str(path)]) == 1
    assert "it is not JSON" in capsys.readouterr().err


def test_verify_names_thresholds_of_another_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = {"tau1": 2569.0, "tau2": 5138.1, "recursion_points": [5138.1], "epsilon": 190.3, "ratio": 152.2}
    path = tuned.write(tmp_path / "config.json", SIMULATED_IDENTITY.key, found=tuned.section(thresholds=old))
    assert main(["show", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (head,) = (i for i, line in enumerate(lines) if line.startswith("recursion"))
    assert lines[head + 1].split()[1:6] == ["-"] * 5  # alpha/pi, n1 and tau1 to tau3
    assert main(["verify", str(path)]) == 0 and "--refit" in capsys.readouterr().out
    assert (
        main(["verify", str(tuned.write(path, SIMULATED_IDENTITY.key))]) == 0
        and "--refit" not in capsys.readouterr().out
    )


def test_the_glossary_has_the_names_of_the_plans_alone() -> None:
    rows = plan_names_table(find_plan_texts("8192  1.1 predicted  winograd^2.batched > vendor")).value_by_label
    assert set(rows) == {"winograd", "^2, ^3", "batched", "vendor"}
    assert "lt0 ... lt31" in plan_names_table(find_plan_texts("winograd > lt3")).value_by_label
    assert not plan_names_table(find_plan_texts("none on square matrices")).rows


@pytest.mark.parametrize("compiled", [True, False])
def test_show_says_what_is_not_in_force_here(
    compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tuning with compiled sums, where llvmlite is installed or not; the line that predict has."""
    here = identity.cpu_identity(blas_threads())
    now = {**here.versions, identity.SUMS_VERSION_NAME: identity.COMPILED_SUMS if compiled else "numpy"}
    monkeypatch.setattr(identity, "cpu_identity", lambda threads: replace(here, versions=now))
    versions = {**here.versions, identity.SUMS_VERSION_NAME: identity.COMPILED_SUMS}
    path = tuned.write(tmp_path / "config.json", here.key, found=tuned.section(versions=versions))
    monkeypatch.setenv("FMM_CONFIG", str(path))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    files.clear_config_cache()
    for command in (["show"], ["predict", "3000"]):
        assert main(command) == 0
        said = "tuning rejected: it was tuned with compiled sums" in capsys.readouterr().out
        assert said == (not compiled), command
    monkeypatch.delenv("FMM_CONFIG")  # a config that is named, though fmm does not read it
    assert main(["show", str(path)]) == 0
    count = capsys.readouterr().out.count("float64: tuning rejected: it was tuned with compiled sums")
    assert count == (not compiled)
    assert main(["show", str(path), "--json"]) == 0
    assert bool(json.loads(capsys.readouterr().out)[0]["not_used_here"]) == (not compiled)


@pytest.mark.parametrize("name", [identity.PROCESSOR_MODEL, identity.BLAS_KERNEL])
@pytest.mark.parametrize("before", ["another", "the same", None])
def test_a_tuning_of_another_processor_of_this_name_is_rejected(
    name: str, before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """None: the tuning recorded nothing, or this machine tells nothing."""
    here = identity.cpu_identity(blas_threads())
    monkeypatch.setattr(
        identity, "cpu_identity", lambda threads: replace(here, versions={**here.versions, name: "the same"})
    )
    versions = {key: version for key, version in {**here.versions, name: before}.items() if version is not None}
    path = tuned.write(tmp_path / "config.json", here.key, found=tuned.section(versions=versions))
    monkeypatch.setenv("FMM_CONFIG", str(path))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    files.clear_config_cache()
    assert main(["predict", "3000"]) == 0
    is_rejected = f"tuning rejected: it was tuned with the {name} another" in capsys.readouterr().out
    assert is_rejected == (before == "another")
    tuning = files.active_configs().find_tuning(identity.cpu_identity(blas_threads()), "float64")
    assert tuning is not None and (tuning.trusted_calibration is None) == (before == "another")


def test_verify_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tuned.write(tmp_path / "config.json", "cpu-a", found=tuned.section(tuned.entry(plan="nonsense > vendor")))
    assert main(["verify", str(path)]) == 1
    assert "unknown algorithm 'nonsense'" in capsys.readouterr().err
    assert main(["show", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"fmm-tune: {path}: cpu-a.float64, entry ")
    (tmp_path / "empty.json").write_text('{"schema": 1, "devices": {}}')
    for command in ("show", "verify", "export", "merge"):
        assert main([command, str(tmp_path / "empty.json")]) == 1
        printed = capsys.readouterr()
        assert "has no section of any device" in printed.err and not printed.out
    for command in ("show", "verify", "export"):
        assert main([command, str(tmp_path / "none.json")]) == 1
        printed = capsys.readouterr()
        assert "there is no config" in printed.err and not printed.out
    assert main(["merge", str(path), "--output", str(tmp_path / "new.json")]) == 1
    assert not (tmp_path / "new.json").exists()


SPREAD = {"value": 4000.0, "low": 3000.0, "high": None}
THRESHOLDS = {
    **{"alpha": 6e-10, "pi": 2e-12, "n1": 3000.0, "n1_measured": None, "epsilon": 12.5, "block_strategy": {}},
    **{"tau1": SPREAD, "tau2": SPREAD, "tau3": SPREAD},
    **{"one_level": {}, "intervals": {}, "without_emulation": {}},
}
DAMAGED_THRESHOLDS: list[tuple[dict[str, Any], str]] = [
    ({"pi": "fast"}, "pi must be a number above 0, not 'fast'"),
    ({"alpha": -1}, "alpha must be a number above 0, not -1"),
    ({"n1": "3000"}, "n1 must be a number or null, not '3000'"),
    ({"tau2": 4000.0}, "tau2 must be an object of value, low and high, each a number or null, not 4000.0"),
    ({"tau1": {**SPREAD, "low": 10**400}}, "tau1 must be an object of value, low and high, each a number or null"),
    ({"block_strategy": [1]}, "block_strategy must be an object of names, by sides, not [1]"),
    ({"intervals": {"pi": [1.0]}}, "intervals must be an object of pairs of numbers or null, not {'pi': [1.0]}"),
    ({"one_level": {"big": 1.1}}, "one_level must be an object of numbers above 0, by sides, not {'big': 1.1}"),
]


@pytest.mark.parametrize(("damage", "named"), DAMAGED_THRESHOLDS, ids=[min(damage) for damage, _ in DAMAGED_THRESHOLDS])
def test_damaged_thresholds_are_not_of_an_earlier_fmm(
    damage: dict[str, Any], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each field is named, beside what else is wrong; no product fails by it."""
    whole = tuned.section(thresholds=THRESHOLDS)
    assert main(["verify", str(tuned.write(tmp_path / "config.json", SIMULATED_IDENTITY.key, found=whole))]) == 0
    bad = {**whole, "thresholds": {**THRESHOLDS, **damage}}
    assert schema.read_section(bad, "", SIMULATED_IDENTITY, "float64").thresholds is None
    path = str(tuned.write(tmp_path / "config.json", SIMULATED_IDENTITY.key, found=bad))
    for command in ("verify", "show"):
        assert main([command, path]) == 1
        assert f"float64.thresholds.{named}" in capsys.readouterr().err
    bad["calibration"] = {**bad["calibration"], "margin": -3}
    assert main(["verify", str(tuned.write(tmp_path / "config.json", SIMULATED_IDENTITY.key, found=bad))]) == 1
    assert re.search(rf"margin must be .*, not -3; .*{re.escape(named)}", capsys.readouterr().err)


def test_thresholds_that_are_no_object_are_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tuned.write(tmp_path / "config.json", SIMULATED_IDENTITY.key, found=tuned.section(thresholds="fast"))
    assert main(["verify", str(path)]) == 1
    assert "float64.thresholds must be an object, not 'fast'" in capsys.readouterr().err


def test_merge_replaces_nothing_silently_and_writes_all_or_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into, one, two = (tmp_path / name for name in ("into.json", "one.json", "two.json"))
    tuned.write(into, "cpu-a", found=tuned.section(tuned.entry((1, 2, 3))))
    slower = {"stream": 1e9, "rate": {"flops": 1e6, "fill": 0.0, "pipe": 0.0}}
    tuned.write(one, "cpu-b")
    tuned.write(two, "cpu-a", found=tuned.section(tuned.entry((4, 5, 6)), calibration=slower))
    before = into.read_text()
    assert main(["merge", str(one), str(two), "--output", str(into)]) == 1
    said = capsys.readouterr()
    assert "different tunings of cpu-a, float64" in said.err and not said.out
    assert f"pass --replace to write the tuning of {two}" in said.err
    assert into.read_text() == before
    assert main(["merge", str(one), str(two), "--output", str(into), "--replace"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("cpu-b, float64: added") and lines[1].startswith("cpu-a, float64: replaced the tuning")
    found = files.read_config(into)
    assert found["cpu-a"]["float64"]["calibration"] == slower and len(found["cpu-a"]["float64"]["entries"]) == 2
    assert main(["merge", str(two), "--output", str(into)]) == 0  # the same once more


def test_a_merge_that_fills_the_disk_leaves_the_old_config(tmp_path: Path) -> None:
    into = tmp_path / "into.json"
    limited = f"ulimit -f 20; exec {sys.executable} -m fmm.tuner.cli merge {files.SHIPPED_CONFIG} --output {into}"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", limited], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "") and "File too large" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [".into.json.lock"]


@pytest.mark.parametrize("damage", [[], "x", {}, {"entries": 1}], ids=str)
def test_entries_are_not_merged_into_a_damaged_section(
    damage: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into, online = tmp_path / "into.json", tmp_path / "online.json"
    into.write_text(json.dumps({"schema": 1, "devices": {"cpu-a": {"float64": damage}}}))
    before = into.read_text()
    tuned.write(online, "cpu-a", found=tuned.section(tuned.entry((4, 5, 6)), calibration=None))
    assert main(["merge", str(online), "--output", str(into)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"fmm-tune: {into}: cpu-a.float64 ") and said.count("\n") == 1
    assert into.read_text() == before


def test_merged_entries_leave_the_model_where_it_is(tmp_path: Path) -> None:
    into, online = tmp_path / "into.json", tmp_path / "online.json"
    tuned.write(into, "cpu-a", found=tuned.section(tuned.entry((1, 2, 3))))
    old = files.read_config(into)["cpu-a"]["float64"]
    tuned.write(online, "cpu-a", found=tuned.section(tuned.entry((4, 5, 6)), calibration=None))
    assert main(["merge", str(online), "--output", str(into)]) == 0
    new = files.read_config(into)["cpu-a"]["float64"]
    assert new["calibration"] == old["calibration"] and len(new["entries"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("slower", "holds"), [(1.0, True), (1.5, False)])
def test_a_canary_restores_trust_or_takes_it(
    slower: float, holds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After an update of the library, by measuring one entry again."""
    device = SimulatedDevice()
    monkeypatch.setattr(commands_tune, "select_devices", lambda name: [device])
    monkeypatch.setattr(verify, "select_devices", lambda name: [device])
    monkeypatch.setitem(CPU_EFFORTS, "quick", tuned.SMALL)
    (tmp_path / "shapes").write_text("6000 6000 6000\n")
    path = tmp_path / "config.json"
    tune = ["--effort", "quick", "--dtype", "float64", "--shapes", str(tmp_path / "shapes"), "--quiet"]
    assert main([*tune, "--output", str(path)]) == 0
    device.identity = Identity(SIMULATED_IDENTITY.key, SIMULATED_IDENTITY.name, {"numpy": "1", "blas": "fake 1"})
    device.truth = replace(device.truth, stream=device.truth.stream / slower**4)
    assert main(["verify", "--measure", "--output", str(path)]) == int(not holds)
    assert ("float64: verified" if holds else "float64: unverified") in capsys.readouterr().out
    raw = files.read_config(path)[SIMULATED_IDENTITY.key]["float64"]
    assert raw["versions"] == {"numpy": "1", "blas": "fake 1"}
    assert [e["verified"] for e in raw["entries"]] == [holds]


@pytest.mark.parametrize(
    ("name", "then", "now"),
    [
        (PROCESSOR_MODEL, "25.1", "25.17"),
        (BLAS_KERNEL, "Zen", "Haswell"),
        (SUMS_VERSION_NAME, COMPILED_SUMS, "numpy"),
    ],
)
def test_a_canary_trusts_no_model_of_another_processor(
    name: str, then: str, now: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = SimulatedDevice(identity=Identity(SIMULATED_IDENTITY.key, "a fake CPU", {name: now}))
    monkeypatch.setattr(verify, "select_devices", lambda name: [device])
    section = tuned.section(tuned.entry(), versions={name: then})
    path = tuned.write(tmp_path / "config.json", SIMULATED_IDENTITY.key, found=section)
    before = path.read_text()
    assert main(["verify", "--measure", "--output", str(path)]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith(f"{SIMULATED_IDENTITY.key}, float64: rejected: it was tuned with")
    assert printed.endswith("; tune again\n") and path.read_text() == before and not device.samples_taken


def test_li_s_codes_are_timed_with_the_tuned_thresholds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shape between tau1 and tau2 has one level; without a tuning there are no thresholds."""
    spread = {"value": 1000.0, "low": 900.0, "high": 1100.0}
    found: dict[str, Any] = {
        "alpha": 1e-9,
        "pi": 1e-11,
        "n1": 2200.0,
        "n1_measured": None,
        "epsilon": None,
        "block_strategy": {},
        "one_level": {},
        "intervals": {},
        "without_emulation": {},
    }
    found |= {"tau1": spread, "tau2": {**spread, "value": 4000.0}, "tau3": dict.fromkeys(spread)}
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path / "config.json"))
    monkeypatch.setattr(bench, "select_devices", lambda name: [SimulatedDevice()])
    tuned.write(tmp_path / "config.json", SIMULATED_IDENTITY.key, found=tuned.section(thresholds=found))
    files.clear_config_cache()
    arguments = ["bench", "1500", "1500", "1500", "--json", "--plan"]
    assert main([*arguments, "winograd(tau1, tau2)"]) == 0
    assert "li-fig13 > vendor" in {row["plan"] for row in json.loads(capsys.readouterr().out)}
    assert main([*arguments, "winograd(tau1, tau2)", "--dtype", "float32"]) == 2
    assert "has no tau1 and tau2 for float32; tune it first" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["show", "export", "verify", "report"])
def test_no_command_prints_the_control_characters_of_a_config(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tuned.write(tmp_path / "config.json", "cpu-\x1b[31m-2t")
    assert main([command, str(path)]) == 1
    found = capsys.readouterr()
    assert "\x1b" not in found.out + found.err and "must be a short text" in found.err


@pytest.mark.slow
def test_a_second_tuning_that_is_not_better_leaves_the_first_in_use(
    fake: SimulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    arguments = ["--dtype", "float64", "--quiet", "--output", str(path)]
    assert main(arguments) == 0
    first = path.read_text()
    module: Any = commands_tune
    conclude = module.tune_type

    def rejected(*rest: Any) -> Any:
        outcome = conclude(*rest)
        assert outcome.section is not None
        return replace(outcome, section={**outcome.section, "doubts": ["noisy"]})

    monkeypatch.setattr(commands_tune, "tune_type", rejected)
    assert main([*arguments, "--fresh"]) == 0
    assert path.read_text() == first and "no result" not in capsys.readouterr().err


def test_without_a_home_show_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(files, "user_folder", homeless)
    monkeypatch.delenv("FMM_CONFIG", raising=False)
    assert main(["show"]) == 1
    assert "set HOME, or FMM_CONFIG" in capsys.readouterr().err


def test_the_error_of_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fmm.config.store.os.fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*report\.html"):
        store.write_file(tmp_path / "report.html", "")
