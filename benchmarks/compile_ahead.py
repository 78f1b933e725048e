"""Compile CUDA kernels before a device runs them.

`python -m benchmarks compile_ahead [--chip H200] [--paper [NAME ...]]`

The kernels are those of the device's tests, or with `--paper` those of `python -m benchmarks papers missing --measure`.
All processors compile, each kernel once, into CuPy's cache on disk: CUPY_CACHE_DIR, or .cupy-cache/ in the working
folder. The tests run on NumPy instead of a device to list their kernels. So with `--chip`, a name of the datasheets,
any machine with the same CuPy and NVRTC fills the cache for the device. Tests compile missing kernels themselves.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.papers.experiment import Results, has_results, planned_parts, read_results
from benchmarks.papers.figures import EXPERIMENTS
from fmm.dtypes import STORED_TYPES
from fmm.hardware.chip import Chip
from fmm.hardware.datasheets import datasheet_of
from fmm.kernels.cuda.launch_list import DEVICE_ARCHITECTURE, Kernel
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.plans.level import PlanError
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import chip_target
from fmm.perfmodel.papers.huang_blocks import datasheet_chip
from fmm.problem import Problem

CACHE_FOLDER = Path(".cupy-cache")
# samples of the papers; only experiments without samples are compiled
PAPER_SAMPLES = Path(__file__).parents[1] / "results" / "nvidia-h200" / "paper"
# These tests run on NumPy instead of a device.
KERNEL_TESTS = ("tests/kernels/cuda/test_gpu_kernels.py", "tests/kernels/cuda/products")
PYTEST_ON_NUMPY = (sys.executable, "-m", "pytest", "-q", "-p", "tests.support.numpy_device", "-m", "gpu")

# What fmm.matmul launches in tests/runtime/test_gpu_matmul.py and tests/kernels/cuda/recompute/: what writes C raises a
# flag. On rows that are aligned, on those that are not, and with the outer level's blocks of several sizes.
FLAGGED_PLANS = {
    "strassen.batched.pad16 > vendor": (*STORED_TYPES, "tf32"),
    "winograd.pad16 > strassen.batched.pad16 > vendor": tuple(STORED_TYPES),
    "li-fig3.peel > vendor": tuple(STORED_TYPES),
    "strassen.fused.pad4 > tile": ("float32",),
    "strassen.pad4 > strassen.fused.pad4 > tile": ("float32",),
    "strassen.batched.pad16 > tile.half": ("float32",),
    "winograd.fused > tile.medium": ("float32",),
    # Plans of tests/kernels/cuda/products/test_gpu_residues.py.
    "residues(13) > strassen > bytes": ("float64",),
    **{f"residues(14){below} > bytes": ("float64",) for below in ("", " > strassen", " > strassen^2")},
    **{f"residues2m(15){below} > bytes": ("complex128",) for below in ("", " > strassen")},
    "residues2m(17) > bytes": ("complex128",),
    **{f"residues({moduli}) > bytes": ("float32",) for moduli in (7, 8)},
    **{f"residues({moduli}) > strassen > bytes": ("float32",) for moduli in (8, 9)},
}
FLAGGED_PLAN_SIZES = ((130, 257, 191), (128, 128, 96), (300, 264, 280))


def with_cache(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with CuPy's cache in the working folder, unless the user named another."""
    return {"CUPY_CACHE_DIR": str(CACHE_FOLDER.resolve()), **environment}


def xdist_options(installed: Callable[[str], object] = find_spec, cores: int = os.cpu_count() or 1) -> tuple[str, ...]:
    """Return pytest's options for one process on each processor, if pytest-xdist is installed."""
    if not installed("xdist"):
        return ()
    # With xdist, pytest-benchmark warns that it is off, and warnings are errors.
    quiet = ("-p", "no:benchmark") if installed("pytest_benchmark") else ()
    return ("-n", str(cores), "--dist", "worksteal", *quiet)


def named_chip(name: str) -> Chip:
    """Return a chip by its datasheet, with the compute capability and the shared memory that kernels depend on."""
    sheet = datasheet_of(name)
    made = datasheet_chip(sheet)
    return replace(made, version=int(sheet.capability.replace(".", "")), shared=made.limits.shared_per_block)


def write_kernel(kernel: Kernel, folder: Path) -> None:
    """Write the compiler's input for a kernel into a file, unless another process has written it."""
    content = {"source": kernel.cuda_source, "options": kernel.options, "architecture": kernel.architecture}
    text = json.dumps(content)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
    with suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
        file.write(text)


def flagged_kernels(of: Chip) -> Iterator[Kernel]:
    """Yield the kernels of the plans in FLAGGED_PLANS."""
    target = chip_target(of, flagged=True)
    for text, dtypes in FLAGGED_PLANS.items():
        for dtype, size in product(dtypes, FLAGGED_PLAN_SIZES):
            with suppress(PlanError):  # a type that the leaf does not multiply
                launches = record_launches(Plan.parse(text), Problem(*size, dtype), target).launches
                yield from dict.fromkeys(launch.kernel for launch in launches)


def paper_kernels(of: Chip, samples: Path, names: Sequence[str] = ()) -> Iterator[Kernel]:
    """Yield the kernels of these experiments, or of all, without samples in this folder."""
    target = chip_target(of)
    for experiment in map(EXPERIMENTS.__getitem__, names or EXPERIMENTS):
        path = samples / f"{experiment.name}.json"
        results = read_results(path) if has_results(path) else Results((), 1.0, {})
        done = {experiment.about(key) for key in results.rows}
        parts = [part for part in planned_parts(experiment, results.scale) if part.about not in done]
        for plan, problem in dict.fromkeys(x for part in parts for x in part.products):
            with suppress(PlanError):
                launches = record_launches(plan, problem, target).launches
                yield from dict.fromkeys(launch.kernel for launch in launches)


def written_kernels(found: Iterable[Kernel], folder: Path) -> list[Path]:
    """Write a file for each of these kernels; return them, the longest first."""
    folder.mkdir()
    for kernel in dict.fromkeys(found):
        write_kernel(kernel, folder)
    return sorted(folder.iterdir(), key=lambda path: -path.stat().st_size)


def kernels_of_tests(of: Chip, folder: Path) -> list[Path]:
    """Write a file for each kernel of the tests on this chip; return them, the longest first.

    The outcome of the tests is ignored here, because another test runs them in the same way and checks it.
    """
    kernels = folder / "kernels"
    kernels.mkdir()
    for kernel in flagged_kernels(of):
        write_kernel(kernel, kernels)
    (folder / "chip").write_bytes(pickle.dumps(of))
    content = {"FMM_CHIP": str(folder / "chip"), "FMM_KERNELS": str(kernels), "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run(
        [*PYTEST_ON_NUMPY, *xdist_options(), *KERNEL_TESTS],
        env={**os.environ, **content},
        stdout=subprocess.DEVNULL,
        check=False,
    )
    return sorted(kernels.iterdir(), key=lambda path: -path.stat().st_size)  # the longest first


class _OnDiskError(Exception):
    """CuPy has saved the compiled code."""


class _DiskOnlyCudaModule:
    """Replaces a loaded module: the code is on disk, and there may be no device to load it."""

    def load(self, code: bytes) -> None:
        raise _OnDiskError

    def _set_mapping(self, mapping: Any) -> None: ...


def compile_kernel(path: Path, capability: int) -> str:
    """Compile a kernel into the cache; return the reason of a failure, or an empty text."""
    from cupy._core import core
    from cupy.cuda import compiler

    from fmm.kernels.cuda.launch.compile import compile_for_architecture

    content = json.loads(path.read_text(encoding="utf-8"))
    source, options, architecture = content["source"], tuple(content["options"]), content["architecture"]
    # CuPy caches these options for each device by asking the driver, which may be absent.
    options_for = compiler._get_arch_for_options_for_nvrtc
    compiler._get_arch_for_options_for_nvrtc = getattr(options_for, "__wrapped__", options_for)
    compiler.function = type("Functions", (), {"Module": _DiskOnlyCudaModule})
    try:
        if architecture:
            exact = f"sm_{capability}" if architecture == DEVICE_ARCHITECTURE else architecture
            compile_for_architecture(source, exact, options)
        else:
            arch = min(str(capability), compiler._get_max_compute_capability(), key=int)
            with suppress(_OnDiskError):  # RawModule's own call, without the device
                core.compile_with_cache(source, options, arch=arch, prepend_cupy_headers=False)
    except Exception as error:  # the test that needs the kernel fails
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def compile_all(paths: Iterable[Path], capability: int) -> list[str]:
    """Compile all kernels on all processors; return the reasons of failures."""
    # Not forked: a process that has used a CUDA driver must not be. Ctrl-C ends the processes at once.
    at_once = (signal.SIGINT, signal.SIG_DFL)
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), signal.signal, at_once) as pool:
        jobs = [pool.submit(compile_kernel, path, capability) for path in paths]
        return [said for job in jobs if (said := job.result())]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="compile_ahead", description=__doc__.partition("\n")[0])
    parser.add_argument("--chip", help="a device of the datasheets, such as H200; else device 0")
    paper = "for these experiments of the papers, or all of them, instead of the tests"
    parser.add_argument("--paper", nargs="*", choices=tuple(EXPERIMENTS), metavar="NAME", help=paper)
    options = parser.parse_args(arguments)
    os.environ.update(with_cache(os.environ))
    if options.chip:
        of = named_chip(options.chip)
    else:
        from fmm.kernels.cuda.launch.device_facts import cuda_device_chip

        of = cuda_device_chip(0)
    began = time.perf_counter()
    with TemporaryDirectory() as folder:
        if options.paper is not None:
            kernels = written_kernels(paper_kernels(of, PAPER_SAMPLES, options.paper), Path(folder) / "kernels")
        else:
            kernels = kernels_of_tests(of, Path(folder))
        noted = time.perf_counter() - began
        failed = compile_all(kernels, of.compute_capability)
    seconds = time.perf_counter() - began
    print(f"{len(kernels)} kernels noted in {noted:.0f} s, in {os.environ['CUPY_CACHE_DIR']} after {seconds:.0f} s")
    for said in sorted(set(failed)):
        print(f"not compiled: {said}")
    nothing_missing = options.paper is not None and not kernels
    return 0 if (kernels or nothing_missing) and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
