"""The steps of `make gpu-check` (benchmarks.gpu_check): their commands, and running them as processes.

Steps that only have to succeed run at the same time; a step that measures has the device to itself. Each step has a
time limit of its own, and its output goes to a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import NamedTuple

from benchmarks.compile_ahead import xdist_options

PYTEST = (sys.executable, "-m", "pytest", "-v", "-m", "gpu")  # -v: a test that hangs does not hide the others
BENCHMARK = (sys.executable, "-m", "benchmarks")
TIMED_TESTS = "tests/tuner/stages/test_gpu_tuner.py"  # these tests measure, so they have the device to themselves
KERNELS = "tests/kernels/cuda"
# A sanitizer makes launches a hundred times slower, and a race or a stray access shows in few launches.
FEW_LAUNCHES_TESTS = (
    f"{KERNELS}/test_gpu_kernels.py",
    *(f"{KERNELS}/products/test_gpu_{x}.py" for x in ("tiled", "triangles")),
)
FEW_LAUNCHES = (*PYTEST, "-k", "few_launches", *FEW_LAUNCHES_TESTS)
SEVERAL_GPU_TESTS = "tests/distributed/test_gpu_sharded.py"
# racecheck does not follow mbarriers: it reports every sum that a kernel reads after one as a race.
MBARRIER_TESTS = (f"{KERNELS}/products/test_gpu_tma.py", f"{KERNELS}/products/test_gpu_wgmma.py")
SANITIZER = "compute-sanitizer"
SANITIZER_COMMANDS = {"memcheck": (*FEW_LAUNCHES, *MBARRIER_TESTS), "racecheck": FEW_LAUNCHES}
RANDOM_INTEGERS_OPTIONS = ("--workers", "8", "--seconds", "40")
# Short-lived threads in many processes: in this way the driver has crashed, and in no other.
STRESS_OPTIONS = ("--processes", "14", "--seconds", "60", "--rounds", "2", "--products", "8")
WORKERS = 14  # test processes at the same time, each with a context on the device
OUTSIDE_WORKERS = 4  # test processes of another project, whose tests run twice
# Checkouts of other projects, by the environment variable that names each.
SUITES = {"FMM_TORCH_TESTS": "torch", "FMM_CUPY_TESTS": "cupy"}


class CheckFolders(NamedTuple):
    """The folder of results, and the folder of the steps' output."""

    results: Path
    notes: Path

    @property
    def ended_tests(self) -> Path:
        return self.notes / "ended-tests.txt"


class Step(NamedTuple):
    """One command of the check."""

    name: str
    command: tuple[str, ...]
    missing: str = ""  # text: what the step needs and this machine lacks
    min_seconds: float = 0.0  # seconds: with fewer left the step does not begin
    max_seconds: float = 600.0  # seconds after which the step hangs, and is ended
    limit_option: str = ""  # the command's option for its time limit
    alone: bool = True  # the step has the device to itself
    continues: bool = False  # after a time limit, the step continues in the next call


def parallel_pytest_options() -> tuple[str, ...]:
    """Return pytest's options for many processes, if pytest-xdist is installed."""
    return xdist_options(cores=max(min((os.cpu_count() or 1) - 2, WORKERS), 1))


def single_device_steps(
    sanitizer: str | None,
    places: CheckFolders,
    together: tuple[str, ...] = (),
    checkouts: Mapping[str, str] = os.environ,
) -> Iterator[Step]:
    """Yield all steps for one device: kernels, checks at the same time, then measurements."""
    yield Step("kernels", (*BENCHMARK, "compile_ahead"), max_seconds=400)
    yield from _check_steps(sanitizer, places, together, checkouts)
    stress = (sys.executable, "-m", "tests.support.stress_stream", *STRESS_OPTIONS)
    record = ("--output", str(places.results / "stress.json"))
    yield Step("threads", (*stress, *record), min_seconds=90, max_seconds=200)
    yield Step("timed tests", (*PYTEST, TIMED_TESTS), min_seconds=60, max_seconds=300)
    yield from _measurement_steps(places.results)


def _check_steps(
    sanitizer: str | None, places: CheckFolders, together: tuple[str, ...], checkouts: Mapping[str, str]
) -> Iterator[Step]:
    """Yield the steps that only have to succeed."""
    python = (sys.executable, "-m")
    ended = ("-p", "tests.support.ended_tests", "--ended-tests", str(places.ended_tests))
    tests = (*PYTEST, *together, *ended, f"--ignore={TIMED_TESTS}", f"--ignore={SEVERAL_GPU_TESTS}", "tests")
    yield Step("tests", tests, min_seconds=30, alone=False, continues=True)
    hostile = (*python, "tests.support.hostile_device", "--seconds", "60")
    yield Step("hostile use", hostile, min_seconds=90, max_seconds=300, alone=False)
    yield Step(
        "random integers",
        (*python, "tests.support.random_integers", *RANDOM_INTEGERS_OPTIONS),
        min_seconds=60,
        max_seconds=200,
        alone=False,
    )
    missing = "" if sanitizer else f"{SANITIZER} is not on PATH"
    for tool, command in SANITIZER_COMMANDS.items():
        whole = (sanitizer or SANITIZER, "--tool", tool, "--error-exitcode", "1", *command)
        yield Step(tool, whole, missing, min_seconds=60, alone=False)
    for variable, suite in SUITES.items():
        checkout = checkouts.get(variable, "")
        missing = "" if checkout else f"{variable} names no checkout"
        out = ("--output", str(places.results / f"{suite}.json"))
        several = ("--pytest", "-n", str(OUTSIDE_WORKERS)) if together else ()
        command = (*BENCHMARK, "outside", suite, checkout, *out, *several)
        yield Step(f"{suite}'s tests", command, missing, min_seconds=90, alone=False)


def _measurement_steps(folder: Path) -> Iterator[Step]:
    """Yield the benchmarks that fill results/<device>/."""
    output, device = ("--output", str(folder)), ("--device", "0")

    def step(
        name: str, *command: str, min_seconds: float, max_seconds: float, limit_option: str = "--time-limit"
    ) -> Step:
        return Step(name, (*BENCHMARK, *command, *output), "", min_seconds, max_seconds, limit_option)

    yield step("regret", "regret", *device, min_seconds=60, max_seconds=360)._replace(continues=True)
    yield step("default calls", "gpu_calls", min_seconds=90, max_seconds=360)
    yield step("halves", "gram", "--rounds", "7", "--seconds", "1", min_seconds=60, max_seconds=480)
    yield step("random structures", "random_shapes", "--seconds", "0.05", min_seconds=60, max_seconds=260)
    yield step("complex", "gpu_complex", "--chosen", "--rounds", "5", min_seconds=60, max_seconds=200, limit_option="")
    yield step("integers", "integers", *device, "--quick", min_seconds=30, max_seconds=120, limit_option="")
    yield step("out of core", "out_of_core", min_seconds=60, max_seconds=200)
    yield step("training", "training", min_seconds=60, max_seconds=200, limit_option="--seconds")
    yield Step("kernels of papers", (*BENCHMARK, "compile_ahead", "--paper"), max_seconds=400)
    missing = (*BENCHMARK, "papers", "missing", "--measure", *device, "--output", str(folder / "paper"))
    yield Step("papers", missing, "", 30, 600, "--time-limit", continues=True)


def several_device_steps(gpus: int, places: CheckFolders) -> Iterator[Step]:
    """Yield the steps that need several devices."""
    missing = "" if gpus > 1 else "there is one device"
    run = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus))
    yield Step("several devices' tests", (*PYTEST, SEVERAL_GPU_TESTS), missing, min_seconds=60)
    command = (*run, "-m", "benchmarks.distributed", "--output", str(places.results / "distributed.json"))
    yield Step("several devices' benchmark", command, missing, min_seconds=60, limit_option="--time-limit")


# ---- running steps

GRACE_SECONDS = 8.0  # from Ctrl-C to the kill
POLL_SECONDS = 0.2  # seconds
LIMIT_SHARE = 0.85  # share of a step's time that its command gets as a limit, so that it can end its work
NEARLY_ALL = 0.9
SHOWN_LINES = 25  # last lines of a step's output that are printed
TIME_UP_TEXT = "time was up"


class EndedStep(NamedTuple):
    """The outcome of a step that ran for `seconds`, with a time limit of `allowed` seconds. `stopped` is True
    if this program ended it."""

    step: Step
    status: int
    seconds: float
    allowed: float
    stopped: bool
    log: Path

    def outcome(self, whole: float) -> str:
        """Return the outcome in words; `whole`: the seconds of the whole call.

        "Time was up" means that the step can continue in another call, or that earlier steps left it less than its own
        time. A step that was stopped otherwise has failed.
        """
        limit = LIMIT_SHARE * self.allowed if self.step.limit_option else inf
        if self.status == 0 and not (self.step.continues and self.seconds >= NEARLY_ALL * limit):
            return "passed"
        if self.status != 0 and not self.stopped:
            return f"failed with status {self.status}"
        if self.step.continues or self.allowed < min(self.step.max_seconds, NEARLY_ALL * whole):
            return f"{TIME_UP_TEXT} after {self.seconds:.0f} s"
        return f"failed: stopped after {self.seconds:.0f} s"


class _RunningStep:
    """A step's process, its time and its output."""

    def __init__(self, step: Step, left: float, notes: Path) -> None:
        self.step, self.began, self.allowed = step, time.monotonic(), min(step.max_seconds, left)
        self.log, self.warned = notes / f"{step.name.replace(' ', '-')}.txt", inf
        limit = (step.limit_option, f"{LIMIT_SHARE * self.allowed:.0f}") if step.limit_option else ()
        with self.log.open("w", encoding="utf-8") as file:
            # In a process group of its own, so that all its children can be ended with it.
            self.process = subprocess.Popen(
                (*step.command, *limit), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    def ended(self) -> EndedStep | None:
        """Return the end of the step, None while it runs; interrupt it at its time limit, later kill it."""
        status, now = self.process.poll(), time.monotonic()
        if status is not None:
            self.signal_group(signal.SIGKILL)  # children that it left behind
            return EndedStep(self.step, status, now - self.began, self.allowed, self.warned < inf, self.log)
        if self.warned == inf and now - self.began > self.allowed:
            self.warned = now
            self.signal_group(signal.SIGINT)
        elif now - self.warned > GRACE_SECONDS:
            self.signal_group(signal.SIGKILL)
        return None

    def signal_group(self, how: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, how)


def run_together(batch: Sequence[Step], left: float, notes: Path) -> list[EndedStep]:
    """Run these steps at the same time, within `left` seconds; return their ends."""
    notes.mkdir(parents=True, exist_ok=True)
    print(*(f"{step.name} begins" for step in batch), sep="\n", flush=True)
    running, found = [_RunningStep(step, left, notes) for step in batch], list[EndedStep]()
    try:
        while running:
            for one in list(running):
                if (ended := one.ended()) is not None:
                    running.remove(one)
                    found.append(ended)
            time.sleep(POLL_SECONDS if running else 0)
    finally:
        for one in running:
            one.signal_group(signal.SIGKILL)
    return found


def last_lines(log: Path) -> str:
    """Return the last lines of a step's output, indented."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"    {line[:200]}" for line in lines[-SHOWN_LINES:])
