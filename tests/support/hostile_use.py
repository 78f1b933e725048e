"""Hostile use of the host: interrupts, forks, threads and faults at random moments, each product checked. Run
it by `python -m tests.support.hostile_use --seconds 120`. tests.support.hostile_device does the same on CUDA
device 0.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

import fmm
from fmm.arrays import host_memory
from fmm.kernels.cpu import numpy_backend, parallel_products
from fmm.kernels.cpu.openblas import loaded_openblas
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.kernels.plans.plan import Plan
from fmm.runtime import run_host
from tests.support.hostile import UNTOUCHED, BrokenPromise, HostileUse, check_place, main

Array = np.ndarray[Any, Any]
PLANS = (
    "winograd > vendor",
    "winograd > winograd > vendor",
    "strassen.sequential > vendor",
    "li-fig3.peel > vendor",
    "hasa > strassen.pad > vendor",
)
TRIANGLE_PLANS = ("gram > vendor", "gram^2 > winograd > vendor", "sforza > vendor")
SMALL, PANEL = run_host.SMALL_ARRAY_BYTES, numpy_backend.PANEL_BYTES
LEAST_FLOPS, LEAST_ROWS, ROW_UNIT = (
    parallel_products.MIN_CONCURRENT_FLOPS,
    parallel_products.MIN_PART_ROWS,
    parallel_products.PART_ROW_UNIT,
)


# ---- products


class Case:
    """A random product on the host, and an array for its result. It may be its own adjoint or have alpha.
    Operands are whole numbers, so any plan is exact."""

    def __init__(self, chance: random.Random, sides: tuple[int, int, int] | None = None) -> None:
        rng = np.random.default_rng(chance.randrange(1 << 30))
        m, k, n = sides or [chance.randrange(24, 180) for _ in range(3)]
        dtype = chance.choice(("f4", "f8", "c8"))
        self.op = "product" if sides else chance.choice(("product", "product", "product", "gram", "gemm"))
        self.a, self.b = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((m, k), (k, n)))
        self.plan = chance.choice(TRIANGLE_PLANS if self.op == "gram" else PLANS)
        if self.op == "gram":
            self.right, m, n = np.matmul(self.a.conj().T, self.a), k, k
        else:
            self.right = np.matmul(self.a, self.b) * (3 if self.op == "gemm" else 1)
        place = np.full((m, n), UNTOUCHED, dtype)
        places = {
            "none": None,
            "rows": place,
            "columns": np.full((n, m), UNTOUCHED, dtype).T,
            "backwards": place[::-1],
            "another type": np.full((m, n), UNTOUCHED, "c16" if dtype == "c8" else "f8"),
        }
        self.where = chance.choice(list(places))
        self.out: Array | None = places[self.where]

    def multiply(self) -> Any:
        if self.op == "gram":
            return fmm.gram(self.a, out=self.out, plan=self.plan)
        if self.op == "gemm":
            return fmm.gemm(self.a, self.b, alpha=3, out=self.out, plan=self.plan)
        return fmm.matmul(self.a, self.b, out=self.out, plan=self.plan)

    def check(self, done: bool, found: Any = None) -> None:
        """Check that `out` is complete, or (unless the call is done) untouched, and that it does not change
        afterwards."""
        if self.out is None:
            if done and not np.array_equal(found, self.right):
                raise BrokenPromise(f"{self.op} by {self.plan}: wrong")
            return
        check_place(self.out.copy, self.right, done, f"{self.op} by {self.plan}, {self.where}")


def sound(threads: int) -> None:
    """Check the state after an interrupt: the next product is right, and BLAS has its threads again."""
    case = Case(random.Random(1))
    case.check(True, case.multiply())
    if blas_threads() != threads:
        raise BrokenPromise("BLAS does not have all its threads again")


# ---- what is done to them


class HostileHost(HostileUse):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.threads = blas_threads()
        for plan in (*PLANS, *TRIANGLE_PLANS):
            Plan.parse(plan)  # reading an algorithm for the first time proves it, which takes memory too

    def attacks(self) -> list[Callable[[], None]]:
        rare = [self.fork, self.interrupt_among_threads, self.interrupt_large]
        return [self.interrupt] * 60 + [self.fault] * 8 + rare

    def attack(self) -> None:
        """Run small products on the caller's thread or on fmm's, one or two at a time, before an attack."""
        run_host.SMALL_ARRAY_BYTES = self.chance.choice((0, 0, 0, 256 * 1024))
        parallel_products.MIN_CONCURRENT_FLOPS = self.chance.choice((0, 1 << 60))
        numpy_backend.PANEL_BYTES = self.chance.choice((16, 256)) * 1024
        parallel_products.MIN_PART_ROWS = parallel_products.PART_ROW_UNIT = self.chance.choice((8, 192))
        super().attack()

    def interrupt(self) -> None:
        """Interrupt a call at a random moment, once or several times."""
        case = Case(self.chance)
        again, times = self.chance.choice(((1.0, 1), (1e-6, 3), (2e-5, 50), (1e-4, 1000)))
        found: list[Any] = []
        hit = self.fire.interrupted(
            lambda: found.append(case.multiply()), 10 ** self.chance.uniform(-5, -1.5), again, times
        )
        self.counts["interrupted calls" if hit else "calls that ended before the signal"] += 1
        case.check(not hit and bool(found), found[0] if found else None)
        if hit and not self.chance.randrange(8):
            sound(self.threads)

    def interrupt_large(self) -> None:
        """Interrupt products so large that fmm runs two leaf products at a time."""
        run_host.SMALL_ARRAY_BYTES, parallel_products.MIN_CONCURRENT_FLOPS = SMALL, LEAST_FLOPS
        parallel_products.MIN_PART_ROWS, parallel_products.PART_ROW_UNIT, numpy_backend.PANEL_BYTES = (
            LEAST_ROWS,
            ROW_UNIT,
            PANEL,
        )
        case = Case(self.chance, sides=(1400, 1400, 1400))
        delay = 10 ** self.chance.uniform(-5, -0.5)
        hit = self.fire.interrupted(case.multiply, delay, 1e-3, self.chance.choice((1, 1000)))
        self.counts["interrupted calls of 1400 a side" if hit else "calls that ended before the signal"] += 1
        if case.out is not None:
            case.check(not hit)

    def fault(self) -> None:
        """Let one allocation, or all from some allocation on, fail; in some cases interrupt the call, too."""
        case, at, ever = Case(self.chance), self.chance.randrange(1, 12), self.chance.random() < 0.5
        count = 0

        def scarce(allocate: Callable[..., Any]) -> Callable[..., Any]:
            def allocated(*arguments: Any, **options: Any) -> Any:
                nonlocal count
                count += 1
                if count == at or (ever and count > at):
                    self.counts["allocations refused"] += 1
                    raise MemoryError
                return allocate(*arguments, **options)

            return allocated

        places = (vars(host_memory), "aligned_block"), (vars(numpy_backend), "_run_sums_on_panel")
        kept = [module[name] for module, name in places]
        for (module, name), allocate in zip(places, kept, strict=True):
            module[name] = scarce(allocate)
        fmm.release_workspace()
        found: list[Any] = []
        times = self.chance.choice((0, 3))

        def multiply() -> None:
            with suppress(MemoryError):  # a caller's plan raises the error
                found.append(case.multiply())

        try:
            hit = self.fire.interrupted(multiply, 10 ** self.chance.uniform(-5, -1.5), 5e-5, times)
        finally:
            for (module, name), allocate in zip(places, kept, strict=True):
                module[name] = allocate
        self.counts["calls without memory"] += 1
        case.check(not hit and bool(found), found[0] if found else None)

    def fork(self) -> None:
        """Let a forked child multiply: in some cases without free address space, in some while a thread of
        its parent multiplies. (OpenBLAS stops its threads at a fork and hangs if one is at work; it has only
        one thread then.)"""
        case, other = Case(self.chance), Case(self.chance)
        full, times = self.chance.random() < 0.5, self.chance.choice((0, 20))
        library = loaded_openblas()
        if library is not None and times:
            library.limit(1)
        busy = threading.Thread(target=lambda: [other.multiply() for _ in range(times)])
        busy.start()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            _child(case, full)
        status = os.waitpid(child, 0)[1]
        busy.join()
        if library is not None:
            library.limit(self.threads)
        if times and other.out is not None:
            other.check(True)
        self.counts["forked children without memory" if full else "forked children"] += 1
        if status:
            raise BrokenPromise(f"a forked child ended with status {status} (address space full: {full})")

    def interrupt_among_threads(self) -> None:
        """Interrupt this thread while other threads multiply."""

        def work(case: Case) -> None:
            for _ in range(10):
                case.check(True, case.multiply())

        self.interrupt_among([partial(work, Case(self.chance)) for _ in range(3)], 10)
        self.counts["calls in other threads"] += 30


def _child(case: Case, full: bool) -> None:
    """Multiply in the child and end the process, with status 0 if the product is right. Without memory for a
    thread NumPy multiplies."""
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        if full:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Python reports threads without memory there
            with open("/proc/self/statm", encoding="ascii") as file:
                size = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 20), resource.RLIM_INFINITY))
        found = None
        with suppress(MemoryError):
            found = case.multiply()
        case.check(found is not None, found)
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(HostileHost, sys.argv[1:], 120))
