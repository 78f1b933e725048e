"""The steps of `make gpu-check` (benchmarks.gpu_check): their commands, and running them as processes.

Steps that only have to end well run beside each other; steps that measure have the device to themselves. Each step has
a time limit of its own, and its output goes to a file.
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
TIMED = "tests/tuner/stages/test_gpu_tuner.py"  # tests that measure: they have the device to themselves
KERNELS = "tests/kernels/cuda"
# A sanitizer makes launches a hundred times slower, and a race or a stray access shows in few launches.
WITH_FEW = (f"{KERNELS}/test_gpu_kernels.py", *(f"{KERNELS}/products/test_gpu_{x}.py" for x in ("tiled", "triangles")))
FEW = (*PYTEST, "-k", "few_launches", *WITH_FEW)
SEVERAL = "tests/distributed/test_gpu_sharded.py"
# racecheck does not follow mbarriers: it reports every sum that such a kernel reads behind one as a race.
MBARRIER = (f"{KERNELS}/products/test_gpu_tma.py", f"{KERNELS}/products/test_gpu_wgmma.py")
SANITIZER = "compute-sanitizer"
TOOLS = {"memcheck": (*FEW, *MBARRIER), "racecheck": FEW}
RANDOM = ("--workers", "8", "--seconds", "40")
WORKERS = 14  # test processes at the same time, each with a context on the device
OUTSIDE_WORKERS = 4  # of another project's tests, which run twice, beside those
# Checkouts of other projects, by the environment variable that names each.
SUITES = {"FMM_TORCH_TESTS": "torch", "FMM_CUPY_TESTS": "cupy"}


class Places(NamedTuple):
    """The folder of results, and the folder of what steps print."""

    results: Path
    notes: Path

    @property
    def ended_tests(self) -> Path:
        return self.notes / "ended-tests.txt"


class Step(NamedTuple):
    """One command of the check."""

    name: str
    command: tuple[str, ...]
    missing: str = ""  # what the step needs and this machine lacks; empty: nothing
    least: float = 0.0  # seconds: with fewer left the step does not begin
    most: float = 600.0  # seconds after which the step hangs, and is ended
    limit_option: str = ""  # the command's option for its time limit
    alone: bool = True  # the step measures, or others wait for it
    goes_on: bool = False  # ended by a time limit, the step goes on when it runs again


def side_by_side() -> tuple[str, ...]:
    """Return pytest's options for many processes, if pytest-xdist is installed."""
    return xdist_options(cores=max(min((os.cpu_count() or 1) - 2, WORKERS), 1))


def steps(
    sanitizer: str | None,
    places: Places,
    together: tuple[str, ...] = (),
    checkouts: Mapping[str, str] = os.environ,
) -> Iterator[Step]:
    """Yield all steps for one device: kernels, checks beside each other, then measurements."""
    yield Step("kernels", (*BENCHMARK, "compile_ahead"), most=400)
    yield from _checks(sanitizer, places, together, checkouts)
    yield Step("timed tests", (*PYTEST, TIMED), least=60, most=300)
    yield from _measurements(places.results)


def _checks(
    sanitizer: str | None, places: Places, together: tuple[str, ...], checkouts: Mapping[str, str]
) -> Iterator[Step]:
    """Yield the steps that only have to end well."""
    python = (sys.executable, "-m")
    ended = ("-p", "tests.support.ended_tests", "--ended-tests", str(places.ended_tests))
    tests = (*PYTEST, *together, *ended, f"--ignore={TIMED}", f"--ignore={SEVERAL}", "tests")
    yield Step("tests", tests, least=30, alone=False, goes_on=True)
    hostile = (*python, "tests.support.hostile_device", "--seconds", "60")
    yield Step("hostile use", hostile, least=90, most=300, alone=False)
    yield Step("random integers", (*python, "tests.support.random_integers", *RANDOM), least=60, most=200, alone=False)
    missing = "" if sanitizer else f"{SANITIZER} is not on PATH"
    for tool, command in TOOLS.items():
        whole = (sanitizer or SANITIZER, "--tool", tool, "--error-exitcode", "1", *command)
        yield Step(tool, whole, missing, least=60, alone=False)
    for variable, suite in SUITES.items():
        checkout = checkouts.get(variable, "")
        missing = "" if checkout else f"{variable} names no checkout"
        out = ("--out", str(places.results / f"{suite}.json"))
        several = ("--pytest", "-n", str(OUTSIDE_WORKERS)) if together else ()
        command = (*BENCHMARK, "outside", suite, checkout, *out, *several)
        yield Step(f"{suite}'s tests", command, missing, least=90, alone=False)


def _measurements(folder: Path) -> Iterator[Step]:
    """Yield the benchmarks that fill results/<device>/."""
    output, device = ("--output", str(folder)), ("--device", "0")

    def step(name: str, *command: str, least: float, most: float, limit_option: str = "--time-limit") -> Step:
        return Step(name, (*BENCHMARK, *command, *output), "", least, most, limit_option)

    yield step("regret", "regret", *device, least=60, most=360)._replace(goes_on=True)
    yield step("default calls", "gpu_calls", least=90, most=360)
    yield step("halves", "gram", "--rounds", "7", "--seconds", "1", least=60, most=480)
    yield step("random structures", "random_shapes", "--seconds", "0.05", least=60, most=260)
    yield step("complex", "gpu_complex", "--chosen", "--rounds", "5", least=60, most=200, limit_option="")
    yield step("integers", "integers", *device, "--quick", least=30, most=120, limit_option="")
    yield step("out of core", "out_of_core", least=60, most=200)
    yield step("training", "training", least=60, most=200, limit_option="--seconds")
    yield Step("kernels of papers", (*BENCHMARK, "compile_ahead", "--paper"), most=400)
    missing = (*BENCHMARK, "papers", "missing", "--measure", *device, "--output", str(folder / "paper"))
    yield Step("papers", missing, "", 30, 600, "--time-limit", goes_on=True)


def several_steps(gpus: int, places: Places) -> Iterator[Step]:
    """Yield the steps that need several devices."""
    missing = "" if gpus > 1 else "there is one device"
    run = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus))
    yield Step("several devices' tests", (*PYTEST, SEVERAL), missing, least=60)
    command = (*run, "-m", "benchmarks.distributed", "--out", str(places.results / "distributed.json"))
    yield Step("several devices' benchmark", command, missing, least=60, limit_option="--time-limit")


# ---- running steps

GRACE = 8.0  # seconds from Ctrl-C, which a process gets first, to the kill
POLL = 0.2  # seconds
LIMIT_SHARE = 0.85  # of a step's time is the limit that its command gets: it ends what it has begun by then
NEARLY = 0.9
SHOWN = 25  # last lines of a step's output that are printed
TIME_WAS_UP = "time was up"


class Ended(NamedTuple):
    """How a step ended, after `seconds` of the `allowed` ones; `stopped`: by this program."""

    step: Step
    status: int
    seconds: float
    allowed: float
    stopped: bool
    log: Path

    def outcome(self, whole: float) -> str:
        """Return the outcome in words; `whole`: the seconds of the call, of which each step gets the rest.

        The time was up for a step that goes on when it runs again, and for one that had less than its own time because
        others came first. Otherwise a stopped step has failed.
        """
        limit = LIMIT_SHARE * self.allowed if self.step.limit_option else inf
        if self.status == 0 and not (self.step.goes_on and self.seconds >= NEARLY * limit):
            return "passed"
        if self.status != 0 and not self.stopped:
            return f"failed with status {self.status}"
        if self.step.goes_on or self.allowed < min(self.step.most, NEARLY * whole):
            return f"{TIME_WAS_UP} after {self.seconds:.0f} s"
        return f"failed: stopped after {self.seconds:.0f} s"


class _Running:
    """A step's process, its time and its output."""

    def __init__(self, step: Step, left: float, notes: Path) -> None:
        self.step, self.began, self.allowed = step, time.monotonic(), min(step.most, left)
        self.log, self.warned = notes / f"{step.name.replace(' ', '-')}.txt", inf
        limit = (step.limit_option, f"{LIMIT_SHARE * self.allowed:.0f}") if step.limit_option else ()
        with self.log.open("w", encoding="utf-8") as file:
            # In a process group of its own, so that all its children can be ended with it.
            self.process = subprocess.Popen(
                (*step.command, *limit), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    def ended(self) -> Ended | None:
        """Return how the step ended, None while it runs. When its time is up, interrupt it, then kill it."""
        status, now = self.process.poll(), time.monotonic()
        if status is not None:
            self.signal_group(signal.SIGKILL)  # children that it left behind
            return Ended(self.step, status, now - self.began, self.allowed, self.warned < inf, self.log)
        if self.warned == inf and now - self.began > self.allowed:
            self.warned = now
            self.signal_group(signal.SIGINT)
        elif now - self.warned > GRACE:
            self.signal_group(signal.SIGKILL)
        return None

    def signal_group(self, how: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, how)


def run_together(batch: Sequence[Step], left: float, notes: Path) -> list[Ended]:
    """Run these steps at the same time, within `left` seconds; return how they ended."""
    notes.mkdir(parents=True, exist_ok=True)
    print(*(f"{step.name} begins" for step in batch), sep="\n", flush=True)
    running, found = [_Running(step, left, notes) for step in batch], list[Ended]()
    try:
        while running:
            for one in list(running):
                if (ended := one.ended()) is not None:
                    running.remove(one)
                    found.append(ended)
            time.sleep(POLL if running else 0)
    finally:
        for one in running:
            one.signal_group(signal.SIGKILL)
    return found


def last_lines(log: Path) -> str:
    """Return the last lines of a step's output, indented."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"    {line[:200]}" for line in lines[-SHOWN:])
