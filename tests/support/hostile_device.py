"""Hostile use of a CUDA device: interrupts, threads and faults at random moments, each product checked.

`python -m tests.support.hostile_device --seconds 60`. Operands are whole numbers, so every plan is exact.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.kernels.cuda.launch import bound_calls
from fmm.runtime import run_device
from tests.support.device_arrays import CupyLibrary, TorchLibrary
from tests.support.hostile import UNTOUCHED, HostileUse, check_place, main

PLANS = (
    "strassen.batched.pad16 > vendor",
    "winograd > vendor",
    "winograd.pad16 > strassen.overlapped.pad16 > vendor",
    "strassen.overlapped > vendor",
    "li-fig3.peel > vendor",
    "strassen-huang.fused.streams > tile.medium",
)
TRIANGLE_PLANS = "gram^2 > vendor", "gram > strassen.batched.pad16 > vendor"
SHAPES = (
    ((256, 192), (192, 320)),
    ((130, 257), (257, 191)),
    ((512, 512), (512, 512)),
    ((3, 96, 128), (3, 128, 160)),
)


def libraries() -> list[Any]:
    """Return CuPy, and torch if it is installed."""
    found: list[Any] = [CupyLibrary()]
    with suppress(pytest.skip.Exception):
        found.append(TorchLibrary())
    return found


class Operands:
    """Operands that are kept, so that calls recur and are replayed as graphs."""

    def __init__(self, library: Any, shapes: Any, dtype: str, plan: str, seed: int, op: str = "product") -> None:
        rng = np.random.default_rng(seed)
        x, y = (rng.integers(-3, 4, shape) for shape in shapes)
        self.library, self.plan, self.dtype, self.op = library, plan, dtype, op
        self.a, self.b = library.array(x, dtype), library.array(y, dtype)
        self.right = np.matmul(x.T, x) if op == "gram" else np.matmul(x, y) * (3 if op == "gemm" else 1)

    def new_out(self) -> Any:
        return self.library.array(np.full(self.right.shape, UNTOUCHED), self.dtype)

    def multiply(self, out: Any = None) -> Any:
        if self.op == "gram":
            return fmm.gram(self.a, None, out, plan=self.plan)
        if self.op == "gemm":
            return fmm.gemm(self.a, self.b, alpha=3, out=out, plan=self.plan)
        return fmm.matmul(self.a, self.b, out, plan=self.plan)

    def check(self, found: Any, done: bool) -> None:
        """Check the result, which is read once the device has computed it."""
        check_place(lambda: self.library.host(found), self.right, done, f"{self.op} by {self.plan}, {self.dtype}")


class HostileDevice(HostileUse):
    hangs = 120

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.operands = [
            Operands(library, shapes, dtype, plan, 7 * i)
            for library in libraries()
            for i, shapes in enumerate(SHAPES)
            for dtype in ("float32", "float64")
            for plan in PLANS
            if not (dtype == "float64" and "tile" in plan)
        ]
        self.operands += [
            Operands(library, SHAPES[1], "float32", plan, 3, op)
            for library in libraries()
            for op, plan in (("gemm", PLANS[0]), ("gemm", PLANS[1]), *(("gram", plan) for plan in TRIANGLE_PLANS))
        ]
        for each in self.operands:  # kernels are compiled before the interrupts begin
            each.check(each.multiply(), True)

    def attacks(self) -> list[Callable[[], None]]:
        return [self.interrupt] * 40 + [self.fault] * 8 + [self.among_threads]

    def interrupt(self) -> None:
        """Interrupt calls; some replay graphs, into one array or into changing ones."""
        each = self.chance.choice(self.operands)
        outs = [each.new_out() for _ in range(self.chance.choice((1, 3)))]
        for i in range(self.chance.choice((1, 1, 8))):
            out = outs[i % len(outs)]
            out[...] = UNTOUCHED
            again, times = self.chance.choice(((1.0, 1), (1e-6, 3), (2e-5, 50)))
            hit = self.fire.interrupted(partial(each.multiply, out), 10 ** self.chance.uniform(-5.3, -3), again, times)
            self.counts["interrupted calls" if hit else "calls that ended before the signal"] += 1
            each.check(out, not hit)
        if not self.chance.randrange(8):
            other = self.chance.choice(self.operands)
            other.check(other.multiply(), True)

    def fault(self) -> None:
        """Let a launch fail, in some cases only in one of many calls; `out` must be complete, and the next
        product right."""
        each, at = self.chance.choice(self.operands), self.chance.randrange(1, 30)
        out, count, make = each.new_out(), 0, operator.call

        def failing(prepared: Callable[[], Any]) -> Any:
            nonlocal count
            count += 1
            if count == at:
                raise RuntimeError("for the test")
            return make(prepared)

        run_device.GRAPH_CACHE.clear()
        vars(bound_calls)["call"] = failing
        try:
            each.multiply(out)
        except RuntimeError:
            self.counts["failed launches"] += 1
        finally:
            vars(bound_calls)["call"] = make
        each.check(out, True)
        each.check(each.multiply(), True)

    def among_threads(self) -> None:
        """Interrupt this thread while other threads multiply."""

        def work(some: list[Operands]) -> None:
            for each in some:
                each.check(each.multiply(), True)

        self.interrupt_among([partial(work, self.chance.sample(self.operands, 6)) for _ in range(3)], 6)
        self.counts["calls in other threads"] += 18


if __name__ == "__main__":
    sys.exit(main(HostileDevice, sys.argv[1:], 60))
