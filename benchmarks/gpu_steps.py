"""The steps of `make gpu-check` (benchmarks.gpu_check): what each runs, how long it takes, what may run beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.compile_ahead import processes

PYTEST = (sys.executable, "-m", "pytest", "-v", "-m", "gpu")  # names as they end: a test that hangs hides none
# Tests that measure: they have the device to themselves.
TIMED = "tests/tuner/stages/test_gpu_tuner.py"
KERNELS = "tests/kernels/cuda"
# A sanitizer makes launches a hundred times slower, and a race or a stray access shows in few of them.
WITH_FEW = (f"{KERNELS}/test_gpu_kernels.py", *(f"{KERNELS}/products/test_gpu_{x}.py" for x in ("tiled", "halves")))
FEW = (*PYTEST, "-k", "few_launches", *WITH_FEW)
SEVERAL = "tests/distributed/test_gpu_sharded.py"
# Racecheck does not follow gates (mbarriers): it calls every sum that such a kernel reads behind one a race.
GATED = (f"{KERNELS}/products/test_gpu_tma.py", f"{KERNELS}/products/test_gpu_wgmma.py")
SANITIZER = "compute-sanitizer"
TOOLS = {"memcheck": (*FEW, *GATED), "racecheck": FEW}
RANDOM = ("--workers", "8", "--seconds", "40")
WORKERS = 14  # processes that test at the same time, each with a context on the device
BESIDE = 4  # of another project's tests, which run twice, beside these
# Checkouts of other projects, by the environment variable that names each.
SUITES = {"FMM_TORCH_TESTS": "torch", "FMM_CUPY_TESTS": "cupy"}


class Places(NamedTuple):
    """Where measurements are kept, and what steps say."""

    results: Path
    notes: Path

    @property
    def ended_tests(self) -> Path:
        return self.notes / "ended-tests.txt"


class Step(NamedTuple):
    name: str
    command: tuple[str, ...]
    missing: str = ""  # what it needs and is not there
    least: float = 0.0  # seconds: with fewer left it is not begun
    most: float = 600.0  # after so many it hangs, and is ended
    told: str = ""  # the option that says within how many seconds it is to end
    alone: bool = True  # it measures, or others wait for it
    goes_on: bool = False  # what it has done is on record: ended by a time limit, it goes on when it is run again


def side_by_side() -> tuple[str, ...]:
    """pytest's options for many processes, if pytest-xdist is there."""
    return processes(cores=max(min((os.cpu_count() or 1) - 2, WORKERS), 1))


def steps(
    arguments: Sequence[str],
    sanitizer: str | None,
    places: Places,
    together: tuple[str, ...] = (),
    checkouts: Mapping[str, str] = os.environ,
) -> Iterator[Step]:
    """All for one device: kernels, checks beside each other, then what measures."""
    python = (sys.executable, "-m")
    yield Step("kernels", (*python, "benchmarks.compile_ahead"), most=400)
    yield from _checks(sanitizer, places, together, checkouts)
    yield Step("timed tests", (*PYTEST, TIMED), least=60, most=300)
    yield from _measurements(places.results)
    yield Step(
        "benchmark",
        (*python, "benchmarks.gpu", "--output", str(places.results), *arguments),
        least=120,
        most=560,
        told="--time-limit",
    )


def _checks(
    sanitizer: str | None, places: Places, together: tuple[str, ...], checkouts: Mapping[str, str]
) -> Iterator[Step]:
    """What only has to end well: one beside the other."""
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
        several = ("--pytest", "-n", str(BESIDE)) if together else ()
        command = (*python, "benchmarks.outside", suite, checkout, *out, *several)
        yield Step(f"{suite}'s tests", command, missing, least=90, alone=False)


def _measurements(folder: Path) -> Iterator[Step]:
    """The benchmarks whose results are read most, as they are to be run for results/<device>/."""
    output, device = ("--output", str(folder)), ("--device", "0")

    def step(name: str, module: str, *given: str, least: float, most: float, told: str = "--time-limit") -> Step:
        return Step(name, (sys.executable, "-m", f"benchmarks.{module}", *given), "", least, most, told)

    found = step("regret", "regret", *device, *output, least=60, most=360)
    yield found._replace(goes_on=True)
    yield step("default calls", "gpu_calls", *output, least=90, most=360)
    yield step("halves", "gram", "--rounds", "7", "--seconds", "1", *output, least=60, most=480)
    yield step("random structures", "structured_random", "--seconds", "0.05", *output, least=60, most=260)
    yield step("complex", "gpu_complex", "--chosen", "--rounds", "5", *output, least=60, most=200, told="")
    yield step("integers", "integers", *device, "--quick", *output, least=30, most=120, told="")
    yield step("out of core", "out_of_core", "--out", str(folder / "out_of_core.json"), least=60, most=200)
    training = ("--out", str(folder / "training.json"))
    yield step("training", "training", *training, least=60, most=200, told="--seconds")
    missing = (sys.executable, "-m", "benchmarks", "papers", "missing", "--measure", *device)
    into = ("--output", str(folder / "paper"))
    papers = (sys.executable, "-m", "benchmarks.compile_ahead", "--paper")
    yield Step("kernels of papers", papers, most=400)
    yield Step("papers", (*missing, *into), "", 30, 600, "--time-limit", goes_on=True)


def several_steps(gpus: int, places: Places) -> Iterator[Step]:
    """What needs several devices."""
    missing = "" if gpus > 1 else "there is one device"
    run = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus))
    yield Step("several devices' tests", (*PYTEST, SEVERAL), missing, least=60)
    command = (*run, "-m", "benchmarks.distributed", "--out", str(places.results / "distributed.json"))
    yield Step("several devices' benchmark", command, missing, least=60, told="--time-limit")
