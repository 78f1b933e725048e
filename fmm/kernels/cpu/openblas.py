"""Control the threads of NumPy's OpenBLAS, and find its syrk and herk.

`single_threaded_blas` temporarily limits each BLAS product to the thread that calls BLAS, so that two products can run
concurrently. The limit of one thread applies to the whole process, also to products of other threads. At most one call
of fmm at a time limits BLAS.

`counted_plan_product` counts the products that plans compute now, in all threads of the program. If several threads of
the program compute products by plans at the same time on two processors, each product and its sums use one thread. With
two threads for each product, OpenBLAS would run the products one after the other, and OpenBLAS's waiting threads would
take the processors from the sums.
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

# Prefixes and suffixes of OpenBLAS's function names in older and newer wheels of NumPy, and in builds of Linux
# distributions and conda.
SYMBOL_PREFIXES, SYMBOL_SUFFIXES = ("scipy_openblas_", "openblas_"), ("64_", "", "_64", "_")
# value of openblas_get_parallel for a library with its own threads; 0 means no threads, 2 means OpenMP
OWN_THREADS_MODE = 1


@dataclass(frozen=True)
class OpenBlas:
    """The OpenBLAS that numpy.matmul calls: `count` returns its number of threads, and `limit` sets this number."""

    count: Callable[[], int]
    limit: Callable[[int], object]


_lock = ForkSafeLock()  # held while fmm limits BLAS to one thread
_paused_threads = 0

# If BLAS uses this number of threads and products of several plans run at the same time, BLAS is limited to one thread
# for each product.
SHARED_PROCESSORS = 2
# This lock protects _running_products and _is_limited_by_products; only worker threads acquire it.
_count_lock = ForkSafeLock()
_running_products = 0
_is_limited_by_products = False


def paused_blas_threads() -> int:
    """Return BLAS's number of threads from before fmm limited BLAS to one thread; 0 if BLAS is not limited now."""
    return _paused_threads


@contextmanager
def single_threaded_blas(count: int) -> Iterator[bool]:
    """Limit BLAS to one thread for each product, and yield True; yield False if BLAS cannot be limited.

    BLAS can be limited if it uses `count` threads now, and if no other call of fmm limits it.
    """
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


def running_plan_products() -> int:
    """Return the number of products that plans compute now on worker threads."""
    return _running_products


@contextmanager
def counted_plan_product(count: int) -> Iterator[None]:
    """Count a product of a plan on `count` threads; worker threads alone may enter this context."""
    _count_products(1, count)
    try:
        yield
    finally:
        retry_until_done(partial(_count_products, -1, count))


def _count_products(change: int, count: int) -> None:
    """Add `change` to the number of running products.

    Limit BLAS to one thread for each product while several products share SHARED_PROCESSORS processors.
    """
    global _running_products, _is_limited_by_products, _paused_threads
    library = loaded_openblas()
    with _count_lock.now:
        _running_products += change
        if library is None:
            return
        if not _is_limited_by_products:
            is_crowded = count == SHARED_PROCESSORS <= _running_products
            if is_crowded and library.count() == count and _lock.now.acquire(blocking=False):
                _is_limited_by_products, _paused_threads = True, count
                library.limit(1)
        elif _running_products < SHARED_PROCESSORS:
            library.limit(_paused_threads)
            _is_limited_by_products, _paused_threads = False, 0
            _lock.now.release()


@lru_cache(maxsize=1)
def loaded_openblas() -> OpenBlas | None:
    """Return the OpenBLAS that NumPy is linked with; None for another BLAS, or if OpenBLAS uses OpenMP's threads."""
    library = _numpy_blas_library()
    for prefix, suffix in product(SYMBOL_PREFIXES, SYMBOL_SUFFIXES) if library else ():
        names = (f"{prefix}{verb}{suffix}" for verb in ("get_parallel", "get_num_threads", "set_num_threads"))
        parallel, count, limit = (getattr(library, name, None) for name in names)
        if parallel and count and limit:
            return OpenBlas(count, limit) if parallel() == OWN_THREADS_MODE else None
    return None


@lru_cache(maxsize=1)
def openblas_kernel() -> str:
    """Return the name of the kernel that NumPy's OpenBLAS runs, such as SkylakeX; an empty string for another BLAS."""
    library = _numpy_blas_library()
    for prefix, suffix in product(SYMBOL_PREFIXES, SYMBOL_SUFFIXES) if library else ():
        if (corename := getattr(library, f"{prefix}get_corename{suffix}", None)) is not None:
            corename.restype = ctypes.c_char_p
            return str(corename().decode())
    return ""


def cblas_function(name: str) -> tuple[Any, Any] | None:
    """Return a CBLAS function of NumPy's OpenBLAS, such as `dsyrk`, and the integer type of its arguments.

    Return None if NumPy uses a BLAS other than OpenBLAS.
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
    """Return the NumPy extension module that is linked with BLAS, as a ctypes library."""
    module = sys.modules.get("numpy.linalg._umath_linalg")
    try:
        return ctypes.CDLL(str(getattr(module, "__file__", "")))
    except OSError:
        return None


@after_fork_in_child
def _restore_threads_after_fork() -> None:
    """Restore the number of BLAS threads in a forked child: the calls that limited BLAS run only in the parent."""
    global _paused_threads, _running_products, _is_limited_by_products
    if _paused_threads and (library := loaded_openblas()) is not None:
        library.limit(_paused_threads)
    _paused_threads = _running_products = 0
    _is_limited_by_products = False
