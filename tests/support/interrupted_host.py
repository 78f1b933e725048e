"""Interrupts a product on the host at every step that runs on its caller's thread. `python -m
tests.support.interrupted_host every [plan] [type]`, with `every` a number of steps, prints the number of
interrupts."""

from __future__ import annotations

import os
import sys

import numpy as np

import fmm
from fmm.arrays import host_memory
from fmm.kernels.cpu import exact_product, parallel_products, thread_pool, worker_threads
from fmm.runtime import run_host
from tests.support.interrupts import StepInterrupts, time_limit

MODULES = (worker_threads, thread_pool, host_memory, run_host, exact_product)
FILES = [os.path.basename(str(module.__file__)) for module in MODULES]
UNTOUCHED = 100  # a number that no entry of the product equals


def interrupt_each_step(small: int, flops: int, with_out: bool, every: int, plan: str, kind: str) -> int:
    """Interrupt each step; below `small` the caller multiplies, and below `flops` products run one at a time."""
    run_host.SMALL_ARRAY_BYTES, parallel_products.MIN_CONCURRENT_FLOPS = small, flops
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (40, 40)).astype(kind) for _ in range(2))
    right, steps = a @ b, StepInterrupts(FILES)
    assert not (right == UNTOUCHED).any()
    fmm.matmul(a, b, plan=plan)
    step = 1
    while True:
        out = np.full((40, 40), UNTOUCHED, kind) if with_out else None
        with time_limit(30):
            hit = steps.interrupted(lambda out=out: fmm.matmul(a, b, out=out, plan=plan), step)  # type: ignore[misc]
            if out is not None:
                left = out.copy()
                assert (left == right).all() or (hit and (left == UNTOUCHED).all()), f"half written at step {step}"
            assert (fmm.matmul(a, b, plan=plan) == right).all(), f"the next product is wrong after step {step}"
            assert out is None or (out == left).all(), f"written after the call has ended, step {step}"
        assert len(host_memory._cached_blocks) <= 1
        if not hit:
            return step
        step += every


def main(every: int, plan: str = "winograd > vendor", kind: str = "float64") -> None:
    found = [
        interrupt_each_step(small, flops, with_out, every, plan, kind)
        for small, flops in ((1 << 60, 1 << 60), (0, 1 << 60), (0, 0))
        for with_out in (True, False)
    ]
    threads = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 0
    assert threads < 40, f"{threads} threads: each interrupt left one thread behind"
    print(*found)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
