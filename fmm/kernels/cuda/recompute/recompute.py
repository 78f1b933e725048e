"""Computing again: a fast product with inf or NaN is computed once more in the classical order, on the device.

Whatever writes C raises a flag where it stores an inf or NaN; the launches here come after a plan's own, look at the
flag and return at once if it is down. By the tiled kernel (recompute_tiled.cuh) or, for types that are not in
TILED_AGAIN, by a simple one (recompute_simple.cuh). The host is never asked: it reads a count in its own memory at
some later call.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from fmm.dtypes import DTYPES, STORED
from fmm.hardware.chip import Chip
from fmm.kernels.cuda.device_code.entry_source import ENTRY, entry_lines, whole_source
from fmm.kernels.cuda.launch_list import FLAG, HOST_COUNT, Kernel, Launch, Slot
from fmm.kernels.cuda.ops import View, gemm_op, is_column_major, operand_views
from fmm.kernels.cuda.products.kernel_sizes import named_strategy
from fmm.kernels.cuda.products.simt_kernel import COMPILER_OPTIONS, simt_source
from fmm.kernels.cuda.products.simt_tiles import TileOp, pointer_words, tile_op
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES, TriangleTiles
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem

THREADS = 256  # of a thread block, as in recompute_simple.cuh
RECOMPUTE_ENTRY, SCAN_ENTRY = "fmm_rescue", "fmm_scan"  # entry points of the simple kernels
# By type, the strategy with which the tiled kernel computes products again: one for all sizes, so that few kernels must
# be compiled, with large tiles, so that few thread blocks are launched for nothing. Other types are left to the simple
# kernel.
TILED_STRATEGIES = {"float32": named_strategy("Square")}


def may_create_nonfinite(plan: Plan) -> bool:
    """Can a plan put an inf or NaN where the classical product has none?

    It cannot if neither its levels nor its leaf save products, and the leaf multiplies the numbers themselves.
    """
    saves_products = plan.leaf_use.leaf.error.saves_products or any(level.saves_products for level in plan.levels)
    return plan.emulates or saves_products


def can_recompute(problem: Problem) -> bool:
    """Can a product be computed again? Not one that is its own adjoint and updates C, whose old numbers are gone."""
    return not (problem.writes_triangle and problem.updates)


def recompute_launches(
    problem: Problem, unseen: bool, chip: Chip, alignment: Mapping[str, int], kept: View | None = None
) -> tuple[Launch, ...]:
    """The launches that follow a plan's own.

    `unseen`: must C be looked through first, since what writes it raises no flag? `kept`: what beta multiplies, be that
    a copy of what C held.
    """
    whole = problem.fill == "full" or not is_column_major(operand_views(problem)["C"])
    tiled = problem.stored in TILED_STRATEGIES and not problem.updates and whole
    scan = (_simple_launch(problem, SCAN_ENTRY, chip),) if unseen else ()
    again = _tiled_launch(problem, chip, alignment) if tiled else _simple_launch(problem, RECOMPUTE_ENTRY, chip, kept)
    return (*scan, again)


def _simple_launch(problem: Problem, entry: str, chip: Chip, kept: View | None = None) -> Launch:
    """A launch of a simple kernel. Its parameters are struct Rescue of recompute_simple.cuh.

    That is pointers and strides of A, B and C, sizes, the flag, the host's count, pointer and strides of what beta
    multiplies, whether only one half is wanted, alpha and beta.
    """
    a, b, c = (x.strides for x in problem.layouts)
    alpha, beta = complex(problem.alpha), complex(problem.beta)
    scalars = alpha.real, alpha.imag, beta.real, beta.imag
    old = kept.strides if kept else (0, 0)
    lower = problem.fill == "lower"
    parameters = struct.pack("<18q4d", 0, *a, 0, *b, 0, *c, *problem.size, 0, 0, 0, *old, lower, *scalars)
    slots = [Slot(0, "A"), Slot(3, "B"), Slot(6, "C"), Slot(12, FLAG), Slot(13, HOST_COUNT)]
    slots += [Slot(14, kept.base, kept.offset)] if kept else []
    label = "recompute_simple: " + (
        "looks for inf and NaN" if entry == SCAN_ENTRY else "computes again if there is any"
    )
    kernel = Kernel(simple_source, (problem.stored,), entry, THREADS)
    return Launch("recompute", label, kernel, (chip.multiprocessors, 1, 1), parameters, tuple(slots))


def _tiled_launch(problem: Problem, chip: Chip, alignment: Mapping[str, int]) -> Launch:
    """The launch of the tiled kernel. As many thread blocks as run at a time take the tiles in turns.

    Its parameters are struct Again of recompute_tiled.cuh: those of a tiled product, whose flag comes last, and the
    host's count.
    """
    op = recomputed_product(problem)
    aligned = all(alignment[x.base] % VECTOR_BYTES == 0 for x in op.pieces)
    parameters = op.parameters + bytes(8)
    words = len(parameters) // 8
    slots = [Slot(word, x.base, x.offset) for word, x in zip(pointer_words(op), op.pieces, strict=True)]
    slots += [Slot(words - 2, FLAG), Slot(words - 1, HOST_COUNT)]
    s = op.kernel.strategy
    given = op.kernel, op.access if aligned else "scalar"
    kernel = Kernel(simt_source, given, ENTRY, s.threads, op.kernel.shared, COMPILER_OPTIONS)
    grid = min(op.grid[0], chip.multiprocessors * s.blocks), 1, 1
    return Launch(
        "recompute", "recompute_tiled: computes again if C has inf or NaN", kernel, grid, parameters, tuple(slots)
    )


def recomputed_product(problem: Problem) -> TileOp:
    """C = A B by the tiled kernel, if the flag is up."""
    s = TILED_STRATEGIES[problem.stored]
    views = operand_views(problem)
    op = gemm_op(f"tile.{s.name.lower()}", [(views["A"], views["B"], views["C"])], problem.stored)
    product = tile_op(op, problem.stored, s)
    half: TriangleTiles | None = "lower" if problem.fill == "lower" else None
    return replace(product, kernel=replace(product.kernel, flag="obeys", triangle=half))


@lru_cache(maxsize=len(STORED))
def simple_source(dtype: str) -> str:
    """The whole CUDA source for one element type: entry points `COMPUTE_AGAIN` and `SCAN`."""
    element = DTYPES[dtype]
    # Sums per thread along either side of its tile: as many as 64 registers hold, 16 threads side by side.
    each = 8 if element.registers == 1 else 4
    told, bounds = "fmm::classical::Rescue", (THREADS, 1)
    rescue, scan = f"fmm::classical::rescue<{element.cpp}, {each}>(p);", f"fmm::classical::scan<{element.cpp}>(p);"
    again = entry_lines(told, rescue, bounds, entry=RECOMPUTE_ENTRY)
    return whole_source("recompute_simple.cuh", [*again, "", *entry_lines(told, scan, bounds, entry=SCAN_ENTRY)])


# How many products are left to the vendor after one was computed again: at first, and at most. It doubles each time.
MIN_BACKOFF, MAX_BACKOFF = 8, 4096


@dataclass
class Backoff:
    """May the next product be a fast one? Not for a while after one that had to be computed again.

    Such data tend to come again, and to compute a product twice costs more than the vendor's.
    """

    recomputed: int = 0  # how many products had been computed again at the last question
    rest: int = MIN_BACKOFF  # how many are left to the vendor the next time
    left: int = 0  # how many still are
    quiet: int = 0  # how many went well since

    def holds(self, recomputed: int) -> bool:
        """May it be a fast one, if so many have been computed again by now?"""
        if recomputed != self.recomputed:
            self.recomputed, self.left, self.quiet = recomputed, self.rest, 0
            self.rest = min(2 * self.rest, MAX_BACKOFF)
        if self.left:
            self.left -= 1
            return False
        self.quiet += 1
        if self.quiet > self.rest:
            self.rest = MIN_BACKOFF
        return True
