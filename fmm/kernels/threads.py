"""As many threads for the sums as BLAS uses for the products."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

# Where BLAS libraries look for their number of threads, in the order in which OpenBLAS does.
VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "OMP_NUM_THREADS",
)

Tasks = Sequence[Callable[[], None]]


@dataclass(frozen=True)
class Threads:
    """Runs independent tasks on `count` threads, the caller's among them."""

    count: int

    def run(self, tasks: Tasks) -> None:
        workers = min(self.count, len(tasks))
        shares = [tasks[len(tasks) * i // workers : len(tasks) * (i + 1) // workers] for i in range(workers)]
        others, left = _started(self.count, shares[1:])
        try:
            for share in (*shares[:1], *left):
                _work(share)
        finally:
            wait(others)  # an error must not leave while another thread still writes
        for other in others:
            other.result()


def _started(count: int, shares: Sequence[Tasks]) -> tuple[list[Future[None]], Sequence[Tasks]]:
    """Hand shares to the pool; what it no longer takes, because the interpreter is exiting, is left to the caller."""
    others: list[Future[None]] = []
    try:
        for share in shares:
            others.append(_pool(count).submit(_work, share))
    except RuntimeError:
        pass
    return others, shares[len(others) :]


def _work(tasks: Tasks) -> None:
    with np.errstate(all="ignore"):  # per thread; what overflows here is computed again by the vendor
        for task in tasks:
            task()


_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}


def _pool(count: int) -> ThreadPoolExecutor:
    with _lock:
        if count not in _pools:
            _pools[count] = ThreadPoolExecutor(count - 1, thread_name_prefix="fmm")
        return _pools[count]


def _after_fork() -> None:
    """A forked child has none of its parent's threads, and perhaps a lock that somebody held."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def blas_threads() -> int:
    """How many threads numpy's BLAS would use now: asked of threadpoolctl if it is installed, else guessed as the
    libraries do, from the environment and the processors that this process may use."""
    if (controller := _controller()) is not None:
        counts = [lib.num_threads or 1 for lib in controller.lib_controllers if lib.user_api == "blas"]
        if counts:
            return max(counts)
    for name in VARIABLES:
        value = os.environ.get(name, "").split(",")[0]
        if value.isdecimal() and int(value) > 0:
            return min(int(value), processors())
    return processors()


def processors() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@lru_cache(maxsize=1)
def _controller() -> Any:
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()
