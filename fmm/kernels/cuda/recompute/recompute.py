"""The rescue: a fast product with inf or NaN is computed again in the classical order, on the device.

By the tiled kernel (recompute_tiled.cuh) or, for types that are not in AGAIN, by a simple one (recompute_simple.cuh).
Here is what the launches are told; fmm.kernels.cuda.recompute.flags makes them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from fmm.dtypes import DTYPES, STORED
from fmm.kernels.cuda.device_code.read import expanded
from fmm.kernels.cuda.launch_list import TILED, Op, Tape
from fmm.kernels.cuda.products.gemm import GemmOp
from fmm.kernels.cuda.products.tile_sizes import strategy
from fmm.kernels.cuda.products.tiled import Several, TileOp, pointers
from fmm.kernels.cuda.products.tiled_gemm import is_tiled, tile_op
from fmm.kernels.cuda.record import record
from fmm.kernels.plans.plan import Level, Plan
from fmm.problem import Layout, Problem

THREADS = 256  # of a thread block, as in recompute_simple.cuh
RESCUE, SCAN = "fmm_rescue", "fmm_scan"
# By which strategy the tiled kernel computes a type's products again: one for all sizes, so that few kernels are to be
# compiled, of large tiles, so that few thread blocks are launched for nothing. The simple kernel does the other types.
AGAIN = {"float32": strategy("Square")}
FIRST_REST, LAST_REST = 8, 4096  # products left to the vendor after a rescue: doubled each time, up to this


@dataclass
class Trust:
    """May the next product be a fast one? Not for a while after one that had to be computed again: such data tend to
    come again, and computing a product twice costs more than the vendor's."""

    rescues: int = 0  # as many as were known of at the last question
    rest: int = FIRST_REST
    left: int = 0
    quiet: int = 0

    def holds(self, rescues: int) -> bool:
        """`rescues`: how many there have been by now."""
        if rescues != self.rescues:
            self.rescues, self.left, self.quiet = rescues, self.rest, 0
            self.rest = min(2 * self.rest, LAST_REST)
        if self.left:
            self.left -= 1
            return False
        self.quiet += 1
        if self.quiet > self.rest:
            self.rest = FIRST_REST
        return True


# ---- which plans have one


def needed(tape: Tape) -> bool:
    """Can its plan put an inf or NaN where the classical product has none? Not one whose levels save no product."""
    levels = [level for level in tape.plan.levels if isinstance(level, Level)]
    return any(level.products < prod(level.size) for level in levels)


def unseen(tape: Tape) -> bool:
    """Is C written by what raises no flag: products of the vendor's, or such as are added atomically? (A plan that is
    one GEMM is the vendor's own.)"""
    return len(tape.ops) > 1 and any(_silent(op, tape.problem.dtype) for op in tape.ops)


def _silent(op: Op, dtype: str) -> bool:
    if isinstance(op, GemmOp):
        return op.writes_result and not (is_tiled(op) and dtype in TILED)
    return isinstance(op, TileOp | Several) and op.writes_result and op.kernel.epilogue.atomic


# ---- what a launch is told


class Classical:
    """struct Rescue of recompute_simple.cuh."""

    words = 14  # of 8 bytes
    _pack = struct.Struct("<QqqQqqQqqqqqQQ").pack_into

    def __init__(self, problem: Problem) -> None:
        self._a, self._b, self._c = (_strides(x) for x in problem.layouts)
        self._size = problem.m, problem.k, problem.n

    def fill(self, memory: Any, at: int, bases: tuple[int, int, int], flag: int, count: int) -> None:
        """Into memory, from a byte on."""
        a, b, c = bases
        self._pack(memory, at, a, *self._a, b, *self._b, c, *self._c, *self._size, flag, count)


class Again:
    """struct Again of recompute_tiled.cuh."""

    def __init__(self, problem: Problem) -> None:
        self.op = again(problem)
        self.words = len(self.op.parameters) // 8 + 1  # the flag's and the count's pointers come last
        self._values = [*struct.unpack(f"<{self.words - 1}q", self.op.parameters), 0]
        self._where = [(word, "ABC".index(x.base)) for word, x in zip(pointers(self.op), self.op.pieces, strict=True)]
        self._pack = struct.Struct(f"<{self.words}q").pack_into

    def fill(self, memory: Any, at: int, bases: tuple[int, int, int], flag: int, count: int) -> None:
        """Into memory, from a byte on."""
        values = self._values.copy()
        for word, base in self._where:
            values[word] = bases[base]
        values[-2:] = flag, count
        self._pack(memory, at, *values)

    def blocks(self, multiprocessors: int) -> int:
        """Thread blocks that run at a time; they take the tiles in turns."""
        return min(self.op.grid[0], multiprocessors * self.op.kernel.strategy.blocks)


def again(problem: Problem) -> TileOp:
    """C = A B by the tiled kernel, if the flag is up. (What is rescued has neither alpha nor beta.)"""
    whole = replace(problem, dtype=problem.stored, alpha=1, beta=0)
    (op,) = record(Plan.parse(f"tile.{AGAIN[whole.dtype].name.lower()}"), whole).ops
    assert isinstance(op, GemmOp)
    made = tile_op(op, None, whole.dtype)
    return replace(made, kernel=replace(made.kernel, flag="obeys"))


def _strides(x: Layout) -> tuple[int, int]:
    return (x.leading, 1) if x.order == "C" else (1, x.leading)


# ---- the simple kernel's source


@lru_cache(maxsize=len(STORED))
def source(dtype: str) -> str:
    """The whole CUDA source for one element type: entry points `RESCUE` and `SCAN`."""
    element = DTYPES[dtype]
    # Sums per thread along either side of its tile: as many as 64 registers hold, 16 threads side by side.
    each = 8 if element.registers == 1 else 4
    parameter = "(const __grid_constant__ fmm::classical::Rescue p)"
    lines = [
        '#include "recompute_simple.cuh"',
        "",
        f'extern "C" __global__ void __launch_bounds__({THREADS}, 1)',
        f"{RESCUE}{parameter} {{ fmm::classical::rescue<{element.cpp}, {each}>(p); }}",
        "",
        f'extern "C" __global__ void __launch_bounds__({THREADS}, 1)',
        f"{SCAN}{parameter} {{ fmm::classical::scan<{element.cpp}>(p); }}",
    ]
    return expanded("\n".join(lines) + "\n")


def sources() -> dict[str, str]:
    """Every source there is, by element type: what a compiler without a device can check."""
    return {dtype: source(dtype) for dtype in STORED}
