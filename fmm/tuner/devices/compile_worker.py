"""The background process of compile_ahead.py: read jobs from stdin, compile their kernels, print a line per job."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fmm.hardware.chip import Chip
from fmm.kernels.cuda.launch_list import Kernel
from fmm.kernels.cuda.recompute.recompute import may_create_nonfinite
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import chip_target
from fmm.problem import Problem
from fmm.tuner.devices.compile_ahead import CompileJob


def kernels_of_compile_job(job: CompileJob, chip: Chip) -> Iterator[Kernel]:
    """Yield the kernels that the job's plan launches on a chip; if the job has a label, only its sum kernels."""
    plan = Plan.parse(job.plan)
    target = chip_target(chip, flagged=job.flagged and may_create_nonfinite(plan))
    found = record_launches(plan, Problem(*job.size, job.dtype), target)
    chosen = (x.kernel for x in found.launches if not job.label or f"_sums, {job.label}:" in x.label)
    yield from dict.fromkeys(chosen)


def chip_from_driver(device: int) -> Chip:
    """Return the description of a CUDA device from properties that the driver reports, without loading cuBLAS."""
    from fmm.kernels.cuda.launch.device_facts import cuda_device_chip

    return cuda_device_chip(device)


def claim_kernel_for_this_process(text: str, folder: Path) -> bool:
    """Claim a kernel source for this process; return False if another process has already claimed the source.

    A claim is a file in `folder`, named by the hash of the source.
    """
    try:
        os.close(os.open(folder / hashlib.sha256(text.encode()).hexdigest(), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class _SavedToDiskCacheError(Exception):
    """Raised when CuPy has saved the compiled code to its disk cache and would load it into device memory next."""


class _DiskOnlyCudaModule:
    """Replaces CuPy's module class, so that compiled code is not loaded into device memory."""

    def load(self, code: bytes) -> None:
        raise _SavedToDiskCacheError

    def _set_mapping(self, mapping: Any) -> None:
        pass


def compile_to_disk_cache(kernel: Kernel, text: str, device: int) -> None:
    """Compile a kernel into CuPy's disk cache.

    The function makes the same CuPy calls as fmm's CUDA backend, so that the backend finds the compiled code in the
    cache.
    """
    import cupy
    from cupy.cuda import compiler

    from fmm.kernels.cuda.launch.compile import compile_for_architecture, resolved_architecture

    if kernel.architecture:
        with cupy.cuda.Device(device):
            compile_for_architecture(text, resolved_architecture(kernel.architecture), kernel.options)
        return

    class FunctionModule:
        Module = _DiskOnlyCudaModule

    compiler.function = FunctionModule
    with cupy.cuda.Device(device), suppress(_SavedToDiskCacheError):
        cupy.RawModule(code=text, options=kernel.options).compile()


def compile_requested_jobs(arguments: list[str]) -> int:
    """Read jobs from stdin and compile their kernels, until the input ends; return exit code 0.

    `arguments` are the index of the CUDA device, and the folder with a file for each kernel that a process has claimed.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the process at once, even inside the compiler
    if hasattr(os, "nice"):
        os.nice(10)  # lower priority than the tuner, which times launches
    device, folder = int(arguments[0]), Path(arguments[1])
    for line in sys.stdin:
        try:
            dtype, plan, size, *how = json.loads(line)
            for kernel in kernels_of_compile_job(CompileJob(dtype, plan, tuple(size), *how), chip_from_driver(device)):
                if claim_kernel_for_this_process(text := kernel.cuda_source, folder):
                    compile_to_disk_cache(kernel, text, device)
            outcome = "done"
        # The error is only returned as text: the tuner compiles the kernel again, and records the error in the trials.
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}".replace("\n", " ")
        print(outcome, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(compile_requested_jobs(sys.argv[1:]))
