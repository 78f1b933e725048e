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

from fmm.kernels.cuda.products import tiled_source
from fmm.kernels.cuda.products.tiled import TileOp
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.cuda.sums.sum_launch import SumOp
from fmm.kernels.cuda.sums.sum_source import OPTIONS, sum_source
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem

Source = tuple[str, tuple[str, ...]]  # and the compiler's options


def kernel_sources(dtype: str, plan: str, size: tuple[int, int, int], label: str) -> Iterator[Source]:
    """The sources of the kernels of a plan that are so labelled, of all without a label."""
    found = record_operations(Plan.parse(plan), Problem(*size, dtype))
    sums = {(op.kernel, op.access): None for op in found.ops if isinstance(op, SumOp) and label in ("", op.label)}
    for kernel, access in sums:
        yield sum_source(kernel, access, False), OPTIONS
    for op in dict.fromkeys((op.kernel, op.access) for op in found.ops if isinstance(op, TileOp)):
        yield tiled_source.tiled_source(*op), tiled_source.OPTIONS


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


def compile_source(text: str, options: tuple[str, ...], device: int) -> None:
    """Into CuPy's cache, by the same call as the backend's, so under the same name."""
    import cupy
    from cupy.cuda import compiler

    class Functions:
        Module = _Unloaded

    compiler.function = Functions
    with cupy.cuda.Device(device), suppress(_OnDiskError):
        cupy.RawModule(code=text, options=options).compile()


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # at once, whatever the compiler is doing
    if hasattr(os, "nice"):
        os.nice(10)  # what is being timed goes first
    device, folder = int(arguments[0]), Path(arguments[1])
    for line in sys.stdin:
        try:
            dtype, plan, size, label = json.loads(line)
            for text, options in kernel_sources(dtype, plan, tuple(size), label):
                if claim_source(text, folder):
                    compile_source(text, options, device)
            said = "done"
        except Exception as error:  # the tuner meets it where it needs the kernel, and records it
            said = f"{type(error).__name__}: {error}".replace("\n", " ")
        print(said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
