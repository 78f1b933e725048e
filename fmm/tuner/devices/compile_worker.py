"""The worker process of compile_ahead.py: compiles the jobs on its input and prints one line a job."""

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


def launched_kernels(job: CompileJob, chip: Chip) -> Iterator[Kernel]:
    """Yield the kernels that a plan launches on a chip; with a label, the sums of that label."""
    plan = Plan.parse(job.plan)
    target = chip_target(chip, flagged=job.flagged and may_create_nonfinite(plan))
    found = record_launches(plan, Problem(*job.size, job.dtype), target)
    chosen = (x.kernel for x in found.launches if not job.label or f"_sums, {job.label}:" in x.label)
    yield from dict.fromkeys(chosen)


def chip_from_driver(device: int) -> Chip:
    """Return the chip of a device from the driver alone, without loading the libraries of products."""
    from fmm.kernels.cuda.launch.device_facts import chip_of

    return chip_of(device)


def claim_source(text: str, folder: Path) -> bool:
    """Return True for the first worker that claims a source."""
    try:
        os.close(os.open(folder / hashlib.sha256(text.encode()).hexdigest(), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class _SavedToDiskError(Exception):
    """CuPy has saved the compiled code."""


class _UnloadedModule:
    """Replaces a loaded module: the code is on disk, and loading would take device memory."""

    def load(self, code: bytes) -> None:
        raise _SavedToDiskError

    def _set_mapping(self, mapping: Any) -> None:
        pass


def compile_to_disk_cache(kernel: Kernel, text: str, device: int) -> None:
    """Compile a kernel into CuPy's cache with the backend's call, hence under the same name."""
    import cupy
    from cupy.cuda import compiler

    from fmm.kernels.cuda.launch.compile import compile_for_architecture

    if kernel.architecture:
        compile_for_architecture(text, kernel.architecture, kernel.options)
        return

    class Functions:
        Module = _UnloadedModule

    compiler.function = Functions
    with cupy.cuda.Device(device), suppress(_SavedToDiskError):
        cupy.RawModule(code=text, options=kernel.options).compile()


def compile_requested_jobs(arguments: list[str]) -> int:
    """Compile jobs until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # end at once, even inside the compiler
    if hasattr(os, "nice"):
        os.nice(10)  # timed work has priority
    device, folder = int(arguments[0]), Path(arguments[1])
    for line in sys.stdin:
        try:
            dtype, plan, size, *how = json.loads(line)
            for kernel in launched_kernels(CompileJob(dtype, plan, tuple(size), *how), chip_from_driver(device)):
                if claim_source(text := kernel.cuda_source, folder):
                    compile_to_disk_cache(kernel, text, device)
            said = "done"
        except Exception as error:  # the tuner records the error where it needs the kernel
            said = f"{type(error).__name__}: {error}".replace("\n", " ")
        print(said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(compile_requested_jobs(sys.argv[1:]))
