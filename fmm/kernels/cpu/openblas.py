"""NumPy's BLAS, where it is OpenBLAS with its own threads: how many threads it uses, and its syrk and herk.

`single_threaded_blas` limits BLAS to the calling thread for a while, so that two products run concurrently. The limit
concerns the whole process: products of other threads use one thread meanwhile. Only one call of fmm at a time sets it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any

from fmm.kernels.cpu.worker_threads import ForkSafeLock, after_fork_in_child, retry_until_done

# Names of OpenBLAS's functions in NumPy's wheels (two generations) and in those of the system, of conda and others.
SYMBOL_PREFIXES, SYMBOL_SUFFIXES = ("scipy_openblas_", "openblas_"), ("64_", "", "_64", "_")
OWN_THREADS_MODE = 1  # openblas_get_parallel's value for a library with its own threads (0: none, 2: OpenMP's)


@dataclass(frozen=True)
class OpenBlas:
    """The threads of the OpenBLAS that numpy.matmul calls."""

    count: Callable[[], int]
    limit: Callable[[int], object]


_lock = ForkSafeLock()
_paused_threads = 0


def paused_blas_threads() -> int:
    """Return the number of BLAS threads that a call of fmm has paused; 0 outside such calls."""
    return _paused_threads


@contextmanager
def single_threaded_blas(count: int) -> Iterator[bool]:
    """Limit BLAS to the calling thread, if it would use `count` threads now; yield False where that is impossible."""
    global _paused_threads
    library, lock = loaded_openblas(), _lock.now
    if library is None or not lock.acquire(blocking=False):
        yield False
        return
    try:
        if library.count() != count:
            yield False
            return
        _paused_threads = count
        library.limit(1)
        try:
            yield True
        finally:
            retry_until_done(partial(library.limit, count))
            _paused_threads = 0
    finally:
        lock.release()


@lru_cache(maxsize=1)
def loaded_openblas() -> OpenBlas | None:
    """Return the OpenBLAS that NumPy is linked with; None if there is none, or if its threads are not its own."""
    library = _numpy_blas_library()
    for prefix, suffix in product(SYMBOL_PREFIXES, SYMBOL_SUFFIXES) if library else ():
        names = (f"{prefix}{verb}{suffix}" for verb in ("get_parallel", "get_num_threads", "set_num_threads"))
        parallel, count, limit = (getattr(library, name, None) for name in names)
        if parallel and count and limit:
            return OpenBlas(count, limit) if parallel() == OWN_THREADS_MODE else None
    return None


@lru_cache(maxsize=1)
def openblas_kernel() -> str:
    """Return the name of the kernel that NumPy's OpenBLAS runs, such as SkylakeX; empty for another library."""
    library = _numpy_blas_library()
    for prefix, suffix in product(SYMBOL_PREFIXES, SYMBOL_SUFFIXES) if library else ():
        if (corename := getattr(library, f"{prefix}get_corename{suffix}", None)) is not None:
            corename.restype = ctypes.c_char_p
            return str(corename().decode())
    return ""


def cblas_function(name: str) -> tuple[Any, Any] | None:
    """Return a function of the C interface, such as `dsyrk`, in NumPy's OpenBLAS, and its integer type.

    None if NumPy uses another library.
    """
    library = _numpy_blas_library()
    if library is None or loaded_openblas() is None:
        return None
    for prefix, suffix in product(("scipy_cblas_", "cblas_"), SYMBOL_SUFFIXES):
        if (found := getattr(library, f"{prefix}{name}{suffix}", None)) is not None:
            return found, ctypes.c_int64 if "64" in suffix else ctypes.c_int
    return None


@lru_cache(maxsize=1)
def _numpy_blas_library() -> ctypes.CDLL | None:
    """Return NumPy's module that is linked with BLAS."""
    module = sys.modules.get("numpy.linalg._umath_linalg")
    try:
        return ctypes.CDLL(str(getattr(module, "__file__", "")))
    except OSError:
        return None


@after_fork_in_child
def _restore_threads_after_fork() -> None:
    """Restore the number of BLAS threads in a forked child, which runs none of its parent's calls."""
    global _paused_threads
    if _paused_threads and (library := loaded_openblas()) is not None:
        library.limit(_paused_threads)
    _paused_threads = 0
