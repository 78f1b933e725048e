"""The harness of every benchmark: clocks, paired shuffled rounds, machines, options, and one JSON writer.

A benchmark is a table of cases and a function that returns, for one case, the calls to compare. All calls are warmed
up, then timed in shuffled rounds: every round has one sample of each call, so drift affects all calls alike. A speedup
is the median of the paired ratios. Raw samples and the environment go to results/<device>/<name>.json.

Nothing here imports CuPy until a function needs a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from fmm.config.certification import median_interval, paired_ratios
from fmm.config.store import write_file
from fmm.kernels.cpu.blas_kernel import slow_kernel_warning
from fmm.runtime.source_commit import source_commit
from fmm.tuner.trials.environment import command_line_words, environment_record, results_folder_name

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
Row = dict[str, Any]
Call = Callable[[], object]
Clock = Callable[[Call, int], float]  # seconds of one of `repeats` calls


# Clocks


def host_seconds(call: Call, repeats: int) -> float:
    """Return the seconds of one of `repeats` calls by the host's clock."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def gpu_seconds(call: Call, repeats: int, ahead: float = 0.0) -> float:
    """Return the seconds of one of `repeats` calls by events around them on CuPy's current stream.

    With `ahead` a kernel first spins for that many seconds, so that the host is ahead of the device. Then the events
    time the device alone, even if the host takes longer to launch a call than the device to run it.
    """
    from fmm.tuner.devices.cuda import mean_event_milliseconds

    if ahead:
        keep_gpu_busy(ahead)
    return mean_event_milliseconds(lambda _: call(), repeats) / 1e3


SPIN_CYCLES = 2e9  # approximate clock cycles per second
SPIN_SOURCE = r"""
extern "C" __global__ void spin(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {}
}
"""


def keep_gpu_busy(seconds: float) -> None:
    """Launch a kernel that spins for approximately this many seconds."""
    _spin_kernel()((1,), (1,), (int(seconds * SPIN_CYCLES),))


@lru_cache(maxsize=1)
def _spin_kernel() -> Any:
    import cupy

    return cupy.RawKernel(SPIN_SOURCE, "spin")


# Paired rounds


def shuffled_rounds(
    calls: Mapping[str, Any],
    rounds: int,
    clock: Callable[[Any, int], float] = gpu_seconds,
    repeats: Mapping[str, int] | int = 1,
    seconds: float = float("inf"),
) -> dict[str, list[float]]:
    """Return the samples of every call: one in each round, the calls of a round in random order.

    No round begins after `seconds`, but the first one always does.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    began = time.monotonic()
    for number in range(rounds):
        if number and time.monotonic() - began > seconds:
            break
        for name in random.sample(list(calls), len(calls)):
            count = repeats if isinstance(repeats, int) else repeats[name]
            samples[name].append(clock(calls[name], count))
    return samples


def paired_samples(
    calls: Mapping[str, Call],
    rounds: int,
    sample: float,
    clock: Clock = gpu_seconds,
    warm: int = 2,
    seconds: float = float("inf"),
) -> dict[str, list[float]]:
    """Warm all calls up; return their samples in shuffled rounds, short calls repeated for `sample` seconds."""
    for call in calls.values():
        clock(call, warm)
    repeats = {name: repeats_of(clock(call, 1), sample) for name, call in calls.items()}
    return shuffled_rounds(calls, rounds, clock, repeats, seconds)


def rounded_samples(samples: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return samples with five significant digits, which keeps the files of results small."""
    return {name: [float(f"{x:.5g}") for x in seconds] for name, seconds in samples.items()}


def samples_with_first_call(
    calls: Mapping[str, Call], rounds: int, sample: float, long: float, clock: Clock
) -> dict[str, list[float]]:
    """Return the samples of warm calls in shuffled rounds, short calls repeated for `sample` seconds.

    Where every call takes longer than `long` seconds, the first timing of each call is the first round.
    """
    first = {name: clock(call, 1) for name, call in calls.items()}
    repeats = {name: repeats_of(seconds, sample, most=1 << 20) for name, seconds in first.items()}
    is_long = min(first.values(), default=0.0) > long
    samples = shuffled_rounds(calls, rounds - is_long, clock, repeats)
    return {name: [first[name]] * is_long + found for name, found in samples.items()}


def rounds_within(seconds: float, round_seconds: float, least: int, most: int) -> int:
    """Return the number of rounds of this length that fit into `seconds`, limited to [least, most]."""
    return max(min(most, int(seconds / round_seconds)), least)


def repeats_of(seconds: float, sample: float, most: int = 200) -> int:
    """Return the number of calls of this many seconds that make a sample of `sample` seconds."""
    return min(max(round(sample / max(seconds, 1e-7)), 1), most)


def paired_speedup(baseline: Sequence[float], candidate: Sequence[float]) -> float:
    """Return the median of the ratios of each round: larger than 1 if the candidate is faster."""
    return median(x / y for x, y in zip(baseline, candidate, strict=True))


def compared_with_torch(theirs: Call, own: Call, rounds: int, sample: float, clock: Clock, warm: int) -> Row:
    """Return the paired samples of torch's call and of fmm's, and the speedup, as fields of a row."""
    samples = rounded_samples(paired_samples({"torch": theirs, "fmm": own}, rounds, sample, clock, warm=warm))
    return {"speedup": round(paired_speedup(samples["torch"], samples["fmm"]), 4), "samples": samples}


def speedup_interval(baseline: Sequence[float], candidate: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the paired speedup."""
    return median_interval(paired_ratios(tuple(baseline), tuple(candidate)))


def noise_floor(samples: Mapping[str, Sequence[float]], baseline: str, again: str) -> float:
    """Return the distance from 1 of the speedup of a call over itself (an A/A pair)."""
    return abs(paired_speedup(samples[baseline], samples[again]) - 1)


# Machines


class Machine(NamedTuple):
    """The device under test: its name for a header, its folder of results, its environment, and its clock."""

    name: str
    folder: Path
    environment: Callable[..., Row]
    clock: Clock
    on_gpu: bool = False


def machine_of(device: str) -> Machine:
    """Return this CPU ("cpu"), or the CUDA device of this number, which becomes CuPy's current device."""
    if device == "cpu":
        where = environment_record(command_line_words())
        name = f"{where['processor']}, {where['blas_threads']} threads, NumPy {where['numpy']}, {where['blas']}"
        folder = RESULTS / results_folder_name()
        return Machine(name, folder, lambda **more: {**environment_record(command_line_words()), **more}, host_seconds)
    import cupy

    cupy.cuda.Device(int(device)).use()
    where = gpu_environment()
    name = f"{where['device']}, CUDA {where['cuda']}, cuBLAS {where['cublas']}, CuPy {where['cupy']}"
    return Machine(name, gpu_folder(), gpu_environment, gpu_seconds, on_gpu=True)


def gpu_environment(**more: Any) -> Row:
    """Return the record of CuPy's current GPU: card, versions, commit, command, time."""
    import cupy

    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(runtime.getDevice())
    return {
        "device": properties["name"].decode(),
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "multiprocessors": properties["multiProcessorCount"],
        "memory": properties["totalGlobalMem"],
        "driver": runtime.driverGetVersion(),
        "cuda": runtime.runtimeGetVersion(),
        "cublas": cupy.cuda.cublas.getVersion(cupy.cuda.device.get_cublas_handle()),
        "cupy": cupy.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "commit": source_commit() or "unknown",
        "command": recorded_command([f"python -m {_started_module()}", *sys.argv[1:]]),
        "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        **more,
    }


def recorded_command(parts: Sequence[str]) -> str:
    """Return a command as one line, without the folders of this machine."""
    return " ".join(parts).replace(sys.executable, "python").replace(f"{ROOT}/", "")


def _started_module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name.removesuffix(".__main__") if spec else Path(sys.argv[0]).stem


def gpu_folder() -> Path:
    """Return results/<name of CuPy's current GPU>."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    name: str = properties["name"].decode()
    return RESULTS / name.lower().replace(" ", "-")


def gpu_count() -> int:
    """Return the number of CUDA devices that CuPy sees."""
    import cupy

    return int(cupy.cuda.runtime.getDeviceCount())


def free_gpu_memory() -> None:
    """Free CuPy's cached memory, so that the next case finds the device empty."""
    import cupy

    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()


@contextmanager
def environment_variable(name: str, value: str | None) -> Iterator[None]:
    """Set a variable of the environment, or remove it (None), and restore it at the end."""
    before = os.environ.pop(name, None)
    try:
        if value is not None:
            os.environ[name] = value
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


@contextmanager
def cupy_tf32(enabled: bool) -> Iterator[None]:
    """Let CuPy multiply float32 in TF32 while the block runs."""
    import cupy

    cupy._core.set_compute_type(cupy.float32, 7 if enabled else 1)
    try:
        yield
    finally:
        cupy._core.set_compute_type(cupy.float32, 1)


# The command line, and the results of a run


def benchmark_parser(
    name: str, doc: str | None, time_limit: float | None = None, device: str | None = None, quick: str = ""
) -> argparse.ArgumentParser:
    """Return a parser with the options that benchmarks share.

    These are --output and --any-blas-kernel; and, if a default or a help text is passed, --time-limit, --device and
    --quick.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="write to this folder (default: results/<device>)")
    any_kernel = "on a CPU: measure although BLAS runs a kernel for an older processor; pages leave such samples out"
    parser.add_argument("--any-blas-kernel", action="store_true", help=any_kernel)
    if device is not None:
        parser.add_argument("--device", default=device, help=f"cpu, or the number of a CUDA device ({device})")
    if quick:
        parser.add_argument("--quick", action="store_true", help=quick)
    if time_limit is not None:
        limit = f"begin no case after S seconds ({time_limit:g})"
        parser.add_argument("--time-limit", type=float, default=time_limit, metavar="S", help=limit)
    return parser


class SlowKernelError(RuntimeError):
    """NumPy's BLAS runs a kernel for an older processor: its times are no baseline."""


def check_blas_kernel(options: argparse.Namespace) -> None:
    """Raise SlowKernelError if OpenBLAS runs an old kernel, unless --any-blas-kernel was passed."""
    if (warning := slow_kernel_warning()) and not getattr(options, "any_blas_kernel", False):
        raise SlowKernelError(f"{warning}; or pass --any-blas-kernel to measure against this kernel")


def quick_cases(cases: Iterable[Any], quick: bool) -> list[Any]:
    """Return all cases, or the quick ones alone."""
    return [case for case in cases if case.quick or not quick]


def run_cases(
    options: argparse.Namespace,
    machine: Machine,
    file: str,
    cases: Iterable[Any],
    measure: Callable[[Any], Row | Sequence[Row]],
    show: Callable[[Row], str],
    *,
    key: str = "rows",
    left: Callable[[int], Sequence[Row]] = lambda measured_count: (),
    **environment: Any,
) -> list[Row]:
    """Measure the cases within options.time_limit, print every row, and write all rows after each case.

    `left` takes the number of measured cases and returns the rows of the others, which are written at the end. Return
    all rows.
    """
    rows: list[Row] = []
    path = (options.output or machine.folder) / file
    if not machine.on_gpu:
        check_blas_kernel(options)
    print(machine.name, flush=True)

    def add_rows(new: Sequence[Row]) -> None:
        rows.extend(new)
        print(*map(show, new), sep="\n", flush=True)
        write_result(path, machine.environment(**environment), rows, key=key)

    count = 0
    for case in cases_in_time(cases, getattr(options, "time_limit", float("inf"))):
        found, count = measure(case), count + 1
        add_rows([found] if isinstance(found, dict) else found)
    if missing := left(count):
        add_rows(missing)
    return rows


def recorded_failure(measure: Callable[[Any], Row], fields: Callable[[Any], Row]) -> Callable[[Any], Row]:
    """Return a function that measures a case, or records its exception in a row with the case's fields."""

    def measured(case: Any) -> Row:
        try:
            return {"failure": "", **measure(case)}
        except Exception as error:  # the next case is measured
            return {**fields(case), "failure": failure_text(error)}

    return measured


def cases_in_time(cases: Iterable[Any], seconds: float) -> Iterator[Any]:
    """Yield the cases one by one until `seconds` are over; print the number of the remaining cases."""
    began, every = time.monotonic(), list(cases)
    for number, case in enumerate(every):
        if time.monotonic() - began > seconds:
            print(f"time limit of {seconds:g} s: {len(every) - number} of {len(every)} cases were not measured")
            return
        yield case


def failure_text(error: BaseException) -> str:
    """Return the kind of an exception and its message."""
    return f"{type(error).__name__}: {error}"


def has_failures(rows: Iterable[Row]) -> int:
    """Return the exit code: 1 if a row failed, else 0."""
    return int(any(row["failure"] for row in rows))


def write_result(
    path: Path, environment: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], key: str = "rows", **more: Any
) -> None:
    """Write {"environment", ...more, key: rows} as JSON, one line per row; replace an older file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "".join(f"{json.dumps(name)}: {json.dumps(value, indent=1)},\n" for name, value in more.items())
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    write_file(path, f'{{\n"environment": {json.dumps(environment, indent=1)},\n{head}"{key}": [\n{lines}\n]\n}}\n')
