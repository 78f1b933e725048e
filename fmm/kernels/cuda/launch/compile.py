"""Compile each kernel once for a device, and cache the machine code in CuPy's cache folder on disk."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import cupy
from cupy_backends.cuda.api import driver
from cupy_backends.cuda.libs import nvrtc

from fmm.kernels.cuda.launch_list import DEVICE_ARCHITECTURE, Kernel
from fmm.kernels.long_waits import log_if_slow
from fmm.output import replace_file

COMPILE_THREADS = 8  # largest number of threads that compile kernels concurrently
MAX_LOADED_KERNELS = 2048  # largest number of compiled kernels in the cache
SHARED_SIZE_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
# length in bytes of the digest at the start of a cache file; a wrong digest reveals a damaged file
DIGEST_BYTES = hashlib.sha256().digest_size
CUPY_OPTIONS = ("-ftz=true",)  # an option that CuPy adds to a kernel's own compiler options; fmm's kernels do without
# With this option, functions without __device__ are device code, as in CuPy. Without this option, NVRTC before 13.5
# rejects generic lambdas.
ALWAYS_OPTIONS = ("-default-device",)
COMPILING_MESSAGE = "kernels are being compiled for this device; they are cached on disk for the next time"


class LoadedKernel(NamedTuple):
    """The address of a compiled kernel, and the module that keeps the code loaded.

    Code that stores the address must store this object too, because the driver unloads the code with the module.
    """

    address: int
    module: Any


# compiled kernels by device index and description; the kernel that was added first is dropped first
_loaded_kernels: dict[tuple[int, Kernel], LoadedKernel] = {}
_compile_locks: dict[tuple[object, ...], threading.Lock] = {}  # one lock for each source that is being compiled


def compile_kernels(device: int, kernels: Collection[Kernel]) -> None:
    """Compile the kernels that are not compiled yet, in several threads at the same time.

    A kernel that forms the sums of three levels in one pass takes at least 10 seconds to compile.
    """

    def compile_one(kernel: Kernel) -> None:
        with cupy.cuda.Device(device):
            compile_kernel(device, kernel)

    new = {kernel for kernel in kernels if (device, kernel) not in _loaded_kernels}
    if not new:
        return
    with log_if_slow(COMPILING_MESSAGE):
        if len(new) == 1:
            compile_one(next(iter(new)))
        else:
            with ThreadPoolExecutor(min(len(new), COMPILE_THREADS)) as pool:
                list(pool.map(compile_one, new))


def compile_kernel(device: int, kernel: Kernel) -> LoadedKernel:
    """Return the compiled kernel for the current device; the kernel may use `kernel.shared` bytes of shared memory.

    `device` is the index of the current device. If several threads need the same source, the first thread compiles the
    source and the others wait. If two kernels are entry points of the same source, CuPy compiles the source for the
    first kernel, and finds the code in memory or on disk for the second kernel.
    """
    key = device, kernel
    source = device, kernel.generate, kernel.source_arguments, kernel.options, kernel.architecture
    loaded = _loaded_kernels.get(key)
    if loaded is None:
        with _compile_locks.setdefault(source, threading.Lock()):
            loaded = _loaded_kernels.get(key)
            if loaded is None:
                loaded = _loaded_kernels[key] = _load_kernel(kernel)
                for oldest in list(_loaded_kernels)[:-MAX_LOADED_KERNELS]:
                    _loaded_kernels.pop(oldest, None)
        _compile_locks.pop(source, None)
    return loaded


def forced_capability() -> str:
    """Return the digits of the compute capability in FMM_CAPABILITY, for example "80" for 8.0; empty if it is not set.

    With FMM_CAPABILITY, plans are recorded as for a GPU of this capability, and the driver translates the kernels for
    the present GPU. Tests and benchmarks use FMM_CAPABILITY to run an older GPU's kernels on a newer GPU.
    """
    return os.environ.get("FMM_CAPABILITY", "").strip().replace(".", "")


def resolved_architecture(architecture: str) -> str:
    """Return the compiler's target for a kernel's architecture; DEVICE_ARCHITECTURE means the current device's."""
    if architecture != DEVICE_ARCHITECTURE:
        return architecture
    forced = forced_capability()
    return f"compute_{forced}" if forced else f"sm_{cupy.cuda.Device().compute_capability}"


def _load_kernel(kernel: Kernel) -> LoadedKernel:
    if kernel.architecture:
        return _load_for_architecture(kernel, resolved_architecture(kernel.architecture))
    if forced_capability():
        return _load_for_architecture(kernel, resolved_architecture(DEVICE_ARCHITECTURE), CUPY_OPTIONS)
    module = cupy.RawModule(code=kernel.cuda_source, options=kernel.options)
    function = module.get_function(kernel.entry)
    if kernel.shared:
        function.max_dynamic_shared_size_bytes = kernel.shared
    return LoadedKernel(function.kernel.ptr, (module, function))


def _load_for_architecture(kernel: Kernel, architecture: str, more_options: tuple[str, ...] = ()) -> LoadedKernel:
    module = cupy.cuda.function.Module()
    module.load(compile_for_architecture(kernel.cuda_source, architecture, (*kernel.options, *more_options)))
    function = module.get_function(kernel.entry)
    driver.funcSetAttribute(function.ptr, SHARED_SIZE_ATTRIBUTE, kernel.shared)
    return LoadedKernel(function.ptr, (module, function))


def compile_for_architecture(source: str, architecture: str, options: tuple[str, ...]) -> bytes:
    """Return a source's machine code for a real architecture (sm_90a), or its PTX for a virtual one (compute_80).

    CuPy cannot compile instructions that exist on one architecture only, so this function calls NVRTC itself.
    """

    all_options = (f"--gpu-architecture={architecture}", *ALWAYS_OPTIONS, *options)

    def compile_code() -> bytes:
        program = nvrtc.createProgram(source, "kernel.cu", (), ())
        try:
            try:
                nvrtc.compileProgram(program, all_options)
            except nvrtc.NVRTCError as error:
                raise RuntimeError(f"{error} for {architecture}: {nvrtc.getProgramLog(program)}") from error
            if architecture.startswith("compute_"):
                text: bytes | str = nvrtc.getPTX(program)
                return text.encode() if isinstance(text, str) else bytes(text)
            return bytes(nvrtc.getCUBIN(program))
        finally:
            nvrtc.destroyProgram(program)

    version = ".".join(map(str, nvrtc.getVersion()))
    return cached_code((version, *all_options, source), compile_code)


# ---- the cache on disk


def cache_folder() -> Path:
    """Return the folder in which CuPy caches kernels."""
    return Path(os.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache"))


def cached_code(inputs: tuple[str, ...], compile_code: Callable[[], bytes]) -> bytes:
    """Return the cached machine code for these inputs of the compiler; on a miss, compile and cache the code.

    A damaged cache file counts as a miss. If the cache folder is not writable, every process compiles the code again.
    """
    path = cache_folder() / f"fmm-{hashlib.sha256(chr(0).join(inputs).encode()).hexdigest()}.cubin"
    with suppress(OSError):
        content = path.read_bytes()
        digest, code = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if hashlib.sha256(code).digest() == digest:
            return code
    code = compile_code()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, hashlib.sha256(code).digest() + code, sync=False)  # the digest reveals a damaged file
    return code
