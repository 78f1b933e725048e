"""A worker process of compile_ahead.py: reads jobs from its input and compiles their kernels, one answer a job, until
that input ends."""

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
from fmm.tuner.devices.compile_ahead import Job


def launched_kernels(job: Job, chip: Chip) -> Iterator[Kernel]:
    """What a plan launches on such a chip; with a label, of its sums those that are so labelled."""
    plan = Plan.parse(job.plan)
    target = chip_target(chip, flagged=job.flagged and may_create_nonfinite(plan))
    found = record_launches(plan, Problem(*job.size, job.dtype), target)
    chosen = (x.kernel for x in found.launches if not job.label or f"_sums, {job.label}:" in x.label)
    yield from dict.fromkeys(chosen)


def chip_here(device: int) -> Chip:
    """Asked of the driver alone: nothing is to be loaded that only products need."""
    from fmm.kernels.cuda.launch.device_facts import chip_of

    return chip_of(device)


def claim_source(text: str, folder: Path) -> bool:
    """Is this source ours to compile? The first worker that asks has it."""
    try:
        os.close(os.open(folder / hashlib.sha256(text.encode()).hexdigest(), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class _OnDiskError(Exception):
    """CuPy has saved the code."""


class _Unloaded:
    """In place of a loaded module: the code is on disk by now, and loading it would take memory of the device."""

    def load(self, code: bytes) -> None:
        raise _OnDiskError

    def _set_mapping(self, mapping: Any) -> None:
        pass


def compile_to_disk(kernel: Kernel, text: str, device: int) -> None:
    """Into the cache, by the same call as the backend's, so under the same name."""
    import cupy
    from cupy.cuda import compiler

    from fmm.kernels.cuda.launch.compile import compile_for_architecture

    if kernel.architecture:
        compile_for_architecture(text, kernel.architecture, kernel.options)
        return

    class Functions:
        Module = _Unloaded

    compiler.function = Functions
    with cupy.cuda.Device(device), suppress(_OnDiskError):
        cupy.RawModule(code=text, options=kernel.options).compile()


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # at once, whatever the compiler is doing
    if hasattr(os, "nice"):
        os.nice(10)  # what is being timed goes first
    device, folder = int(arguments[0]), Path(arguments[1])
    for line in sys.stdin:
        try:
            dtype, plan, size, *how = json.loads(line)
            for kernel in launched_kernels(Job(dtype, plan, tuple(size), *how), chip_here(device)):
                if claim_source(text := kernel.source, folder):
                    compile_to_disk(kernel, text, device)
            said = "done"
        except Exception as error:  # the tuner meets it where it needs the kernel, and records it
            said = f"{type(error).__name__}: {error}".replace("\n", " ")
        print(said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
