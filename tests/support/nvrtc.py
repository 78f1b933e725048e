"""Compiles CUDA sources with NVRTC, which needs no GPU and no driver, and reads what its assembler reports
about a kernel."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from fmm.kernels.cuda.launch_list import DEVICE_ARCHITECTURE, Kernel
from fmm.kernels.cuda.products.tma_tiles import SM90_SHARED_BYTES
from tests.support.compiled_cache import cached_file

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")
# The parameters of tests for each architecture: the quick run tests Hopper's alone.
EACH_ARCHITECTURE = [pytest.param(a, marks=() if a == "sm_90" else pytest.mark.slow) for a in ARCHITECTURES]
CPP17 = ("--std=c++17",)
T = TypeVar("T")


class Report(NamedTuple):
    """The assembler's report on one kernel."""

    name: str
    registers: int
    shared: int  # bytes a thread block
    local: int  # bytes of local memory a thread, for numbers that did not fit in registers


@cache
def nvrtc() -> Any:
    """Return the compiler's Python bindings, or skip the test if they are missing. The test extra installs
    both packages where there are wheels, so on CI a missing compiler is an error.
    """
    try:
        from cuda.bindings import nvrtc as module

        status, *version = module.nvrtcVersion()
    except Exception as error:  # the bindings raise many kinds of errors where the library is missing
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no NVRTC (packages cuda-bindings and nvidia-cuda-nvrtc): {type(error).__name__}: {error}")
    assert not int(status) and tuple(version) >= (13, 0), f"NVRTC {version}: the test extra requires 13.0"
    return module


def kernel_architecture(kernel: Kernel) -> str:
    """The architecture for which a kernel is compiled on a Hopper GPU."""
    return "sm_90" if kernel.architecture in ("", DEVICE_ARCHITECTURE) else kernel.architecture


def flushes_subnormals(kernel: Kernel) -> bool:
    """Return True if the kernel, compiled with the options of the runtime, has an instruction that flushes subnormal
    numbers to zero. CuPy adds -ftz=true where it compiles a kernel."""
    options = kernel.options if kernel.architecture else (*kernel.options, "-ftz=true")
    return ".ftz" in compile_cuda(kernel.cuda_source, kernel_architecture(kernel), *options)[1]


def compile_cuda(text: str, architecture: str, *options: str) -> tuple[str, str]:
    """Return the compiler's log and the PTX that precedes the machine code. A source that does not compile is
    an error."""
    version = ".".join(map(str, nvrtc().nvrtcVersion()[1:]))

    def compiled(path: Path) -> None:
        path.write_text(json.dumps(_compiled(text, architecture, *options)), encoding="utf-8")

    made = cached_file("nvrtc.json", (version, architecture, *options, text), compiled)
    log, ptx = json.loads(made.read_text(encoding="utf-8"))
    return log, ptx


def _compiled(text: str, architecture: str, *options: str) -> tuple[str, str]:
    module = nvrtc()
    status, program = module.nvrtcCreateProgram(text.encode(), b"sum.cu", 0, [], [])
    assert not int(status)
    flags = [f"--gpu-architecture={architecture}", *options]
    try:
        failed = int(module.nvrtcCompileProgram(program, len(flags), [option.encode() for option in flags])[0])
        # NVRTC writes into these buffers. Python shares one object for all bytes of length 1, so they have a
        # length of at least 2.
        log: bytes = b" " * max(module.nvrtcGetProgramLogSize(program)[1], 2)
        module.nvrtcGetProgramLog(program, log)
        ptx: bytes = b" " * max(0 if failed else module.nvrtcGetPTXSize(program)[1], 2)
        module.nvrtcGetPTX(program, ptx)
    finally:
        module.nvrtcDestroyProgram(program)
    said = str(log, errors="replace").strip("\0 \n")
    assert not failed, f"{architecture}: {said}"
    return said, str(ptx, errors="replace")


def report(name: str, text: str, architecture: str, options: tuple[str, ...] = CPP17) -> Report:
    """Return the kernel's resources; `name` is for messages."""
    said, _ = compile_cuda(text, architecture, "--ptxas-options=-v", *options)
    registers = re.search(r"Used (\d+) registers", said)
    stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", said)
    shared = re.search(r"(\d+) bytes smem", said)
    assert registers and stack, f"{name}: no resources in the log: {said}"
    return Report(name, int(registers[1]), int(shared[1]) if shared else 0, max(int(stack[1]), int(stack[2])))


def check_warpgroups(kernels: Sequence[Any], source: Callable[[Any], str], more: str) -> None:
    """Check kernels that use Hopper's warpgroups (only sm_90a has these instructions): no number is spilled,
    they use all registers that their threads can have, and their tiles fit into shared memory. `more` is C++
    that is added to each source."""
    jobs = [(str(kernel), f"{source(kernel)}{more}\n", "sm_90a", CPP17) for kernel in kernels]
    for kernel, r in zip(kernels, in_parallel(report, jobs), strict=True):
        assert r.local == 0, r
        assert r.registers == 65536 // kernel.sizes.thread_count // 8 * 8, r
        assert kernel.shared_bytes <= SM90_SHARED_BYTES


def in_parallel(function: Callable[..., T], jobs: list[tuple[Any, ...]]) -> list[T]:
    """Return the function's results for each job's arguments. The jobs run in threads, since NVRTC releases
    Python's lock."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda job: function(*job), jobs))
