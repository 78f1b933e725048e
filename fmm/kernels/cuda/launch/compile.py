"""Compile kernels, each once for a device, and cache the machine code on disk where CuPy caches its own."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import cupy
from cupy_backends.cuda.api import driver
from cupy_backends.cuda.libs import nvrtc

from fmm.kernels.cuda.launch_list import Kernel
from fmm.kernels.long_waits import log_if_slow

COMPILE_THREADS = 8  # number of threads that compile at a time
MAX_LOADED = 2048  # number of cached kernels; a launch holds its kernel as long as the launch exists
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
DIGEST_BYTES = hashlib.sha256().digest_size  # bytes of the digest before cached code, which reveals a damaged file
COMPILING_MESSAGE = "kernels are being compiled for this device; they are cached on disk for the next time"


class LoadedKernel(NamedTuple):
    """The address of a compiled kernel, and the module that keeps the code loaded.

    Every holder of the address must hold this object, since the driver unloads the code with the module.
    """

    address: int
    module: Any


_loaded: dict[tuple[int, Kernel], LoadedKernel] = {}  # by device and description; the oldest is dropped first
_compile_locks: dict[tuple[object, ...], threading.Lock] = {}  # one lock for each source that is being compiled


def compile_kernels(device: int, kernels: Collection[Kernel]) -> None:
    """Compile the kernels that are not compiled yet, several at a time.

    The sums of three levels in one pass take the compiler ten seconds and more.
    """

    def compile_one(kernel: Kernel) -> None:
        with cupy.cuda.Device(device):
            compile_kernel(device, kernel)

    new = {kernel for kernel in kernels if (device, kernel) not in _loaded}
    if not new:
        return
    with log_if_slow(COMPILING_MESSAGE):
        if len(new) == 1:
            compile_one(next(iter(new)))
        else:
            with ThreadPoolExecutor(min(len(new), COMPILE_THREADS)) as pool:
                list(pool.map(compile_one, new))


def compile_kernel(device: int, kernel: Kernel) -> LoadedKernel:
    """Return a kernel compiled for the current device, which has the number `device`, and allow its shared memory.

    Threads that need the same source at once compile it once: the first compiles, the others wait. (Two kernels may be
    entry points of one source, whose code is then in CuPy's memory or on disk.)
    """
    key = device, kernel
    source = device, kernel.generate, kernel.source_arguments, kernel.options, kernel.architecture
    loaded = _loaded.get(key)
    if loaded is None:
        with _compile_locks.setdefault(source, threading.Lock()):
            loaded = _loaded.get(key)
            if loaded is None:
                loaded = _loaded[key] = _load(kernel)
                for oldest in list(_loaded)[:-MAX_LOADED]:
                    _loaded.pop(oldest, None)
        _compile_locks.pop(source, None)
    return loaded


def _load(kernel: Kernel) -> LoadedKernel:
    if kernel.architecture:
        return _load_for_architecture(kernel)
    module = cupy.RawModule(code=kernel.cuda_source, options=kernel.options)
    function = module.get_function(kernel.entry)
    if kernel.shared:
        function.max_dynamic_shared_size_bytes = kernel.shared
    return LoadedKernel(function.kernel.ptr, (module, function))


def _load_for_architecture(kernel: Kernel) -> LoadedKernel:
    module = cupy.cuda.function.Module()
    module.load(compile_for_architecture(kernel.cuda_source, kernel.architecture, kernel.options))
    function = module.get_function(kernel.entry)
    driver.funcSetAttribute(function.ptr, MAX_DYNAMIC_SHARED, kernel.shared)
    return LoadedKernel(function.ptr, (module, function))


def compile_for_architecture(source: str, architecture: str, options: tuple[str, ...]) -> bytes:
    """Return machine code for one architecture, such as sm_90a.

    CuPy compiles only for the instructions that all devices of a compute capability share, so NVRTC is called here.
    """

    def compile_code() -> bytes:
        program = nvrtc.createProgram(source, "kernel.cu", (), ())
        try:
            nvrtc.compileProgram(program, (f"--gpu-architecture={architecture}", *options))
            return bytes(nvrtc.getCUBIN(program))
        finally:
            nvrtc.destroyProgram(program)

    version = ".".join(map(str, nvrtc.getVersion()))
    return cached_code((version, architecture, *options, source), compile_code)


# ---- the cache on disk


def cache_folder() -> Path:
    """Return the folder of CuPy's kernel cache, as CuPy finds it."""
    return Path(os.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache"))


def cached_code(inputs: tuple[str, ...], compile_code: Callable[[], bytes]) -> bytes:
    """Return the cached machine code of these inputs; without cached code, compile and cache it.

    A damaged file counts as a miss. A folder that cannot be written to is no error: the code is compiled every time.
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
        with NamedTemporaryFile(dir=path.parent, prefix="fmm-", delete=False) as file:
            file.write(hashlib.sha256(code).digest() + code)
        # the file is replaced atomically, so that another process finds a complete file or none
        Path(file.name).replace(path)
    return code
