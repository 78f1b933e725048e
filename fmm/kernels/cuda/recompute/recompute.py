"""Recompute a fast product that has an inf or NaN, in the classical order, on the device.

Every kernel that writes C raises a flag where it stores an inf or NaN. The launches here follow a plan's own, and
return at once if the flag is down. Types in TILED_STRATEGIES are recomputed by the tiled kernel (recompute_tiled.cuh),
others by a simple one (recompute_simple.cuh). The host never waits: it reads a count in its own memory at some later
call, and `VendorBackoff` then leaves the next products to the vendor.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from fmm.dtypes import DTYPES, STORED_TYPES
from fmm.hardware.chip import Chip
from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME, entry_source
from fmm.kernels.cuda.launch_list import FLAG, HOST_COUNT, AddressSlot, Kernel, Launch
from fmm.kernels.cuda.ops import MatrixView, gemm_op, is_column_major, operand_views
from fmm.kernels.cuda.products.kernel_sizes import named_strategy
from fmm.kernels.cuda.products.simt_kernel import COMPILER_OPTIONS, simt_source
from fmm.kernels.cuda.products.simt_tiles import TileOp, pointer_words, tile_op
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES, TriangleTiles
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem

SIMPLE_THREADS = 256  # per thread block, as in recompute_simple.cuh
RECOMPUTE_ENTRY_NAME, SCAN_ENTRY_NAME = "fmm_rescue", "fmm_scan"  # entry points of the simple kernels
# By type, the tiled kernel's strategy: one for all sizes, so that few kernels are compiled. The first product of a type
# waits for this kernel. So it is not the fastest one (Square), but one that compiles in half the time and recomputes at
# 3/4 of that speed (H200).
TILED_STRATEGIES = {"float32": replace(named_strategy("Huge"), blocks=1)}


def may_create_nonfinite(plan: Plan) -> bool:
    """Return True if a plan can produce an inf or NaN where the classical product has none.

    A plan cannot if it multiplies the operands' own numbers, and neither its levels nor its leaf save products.
    """
    saves_products = plan.leaf_use.leaf.saves_products or any(level.saves_products for level in plan.levels)
    return plan.emulates or saves_products


def can_recompute(problem: Problem) -> bool:
    """Return False for A A^T added to C: the old numbers of C are overwritten."""
    return not (problem.writes_triangle and problem.updates)


def recompute_launches(
    problem: Problem, unseen: bool, chip: Chip, alignment: Mapping[str, int], addend: MatrixView | None = None
) -> tuple[Launch, ...]:
    """Return the launches that recompute the product if the flag is up; they follow the plan's launches.

    With `unseen`, C is first scanned for inf and NaN, since its writer raises no flag. `addend` is the matrix that beta
    multiplies, which may be a copy of C's old numbers.
    """
    whole = problem.fill == "full" or not is_column_major(operand_views(problem)["C"])
    tiled = problem.stored in TILED_STRATEGIES and not problem.updates and whole
    scan = (_simple_recompute_launch(problem, SCAN_ENTRY_NAME, chip),) if unseen else ()
    again = (
        _tiled_recompute_launch(problem, chip, alignment)
        if tiled
        else _simple_recompute_launch(problem, RECOMPUTE_ENTRY_NAME, chip, addend)
    )
    return (*scan, again)


def _simple_recompute_launch(problem: Problem, entry: str, chip: Chip, addend: MatrixView | None = None) -> Launch:
    """Return a launch of a simple kernel. Its parameters are struct Rescue of recompute_simple.cuh.

    These are pointers and strides of A, B and C, sizes, the flag, the host's count, pointer and strides of what beta
    multiplies, whether only the lower triangle is written, alpha and beta.
    """
    a, b, c = (x.strides for x in problem.layouts)
    alpha, beta = complex(problem.alpha), complex(problem.beta)
    scalars = alpha.real, alpha.imag, beta.real, beta.imag
    old = addend.strides if addend else (0, 0)
    lower = problem.fill == "lower"
    parameters = struct.pack("<18q4d", 0, *a, 0, *b, 0, *c, *problem.size, 0, 0, 0, *old, lower, *scalars)
    slots = [
        AddressSlot(0, "A"),
        AddressSlot(3, "B"),
        AddressSlot(6, "C"),
        AddressSlot(12, FLAG),
        AddressSlot(13, HOST_COUNT),
    ]
    slots += [AddressSlot(14, addend.base, addend.offset)] if addend else []
    label = "recompute_simple: " + (
        "looks for inf and NaN" if entry == SCAN_ENTRY_NAME else "computes again if there is any"
    )
    kernel = Kernel(simple_recompute_source, (problem.stored, entry), entry, SIMPLE_THREADS)
    return Launch("recompute", label, kernel, (chip.multiprocessors, 1, 1), parameters, tuple(slots))


def _tiled_recompute_launch(problem: Problem, chip: Chip, alignment: Mapping[str, int]) -> Launch:
    """Return the launch of the tiled kernel. As many thread blocks as are resident at a time share the tiles.

    Its parameters are struct Again of recompute_tiled.cuh: those of a tiled product, with its flag last, and the host's
    count.
    """
    op = tiled_recompute_op(problem)
    aligned = all(alignment[x.base] % VECTOR_BYTES == 0 for x in op.pieces)
    parameters = op.parameters + bytes(8)
    words = len(parameters) // 8
    slots = [AddressSlot(word, x.base, x.offset) for word, x in zip(pointer_words(op), op.pieces, strict=True)]
    slots += [AddressSlot(words - 2, FLAG), AddressSlot(words - 1, HOST_COUNT)]
    s = op.kernel.strategy
    source_arguments = op.kernel, op.access if aligned else "scalar"
    kernel = Kernel(simt_source, source_arguments, ENTRY_NAME, s.threads, op.kernel.shared, COMPILER_OPTIONS)
    grid = min(op.grid[0], chip.multiprocessors * s.blocks), 1, 1
    return Launch(
        "recompute", "recompute_tiled: computes again if C has inf or NaN", kernel, grid, parameters, tuple(slots)
    )


def tiled_recompute_op(problem: Problem) -> TileOp:
    """Return C = A B by the tiled kernel, which computes only if the flag is up."""
    s = TILED_STRATEGIES[problem.stored]
    views = operand_views(problem)
    op = gemm_op(f"tile.{s.name.lower()}", [(views["A"], views["B"], views["C"])], problem.stored)
    product = tile_op(op, problem.stored, s)
    triangle: TriangleTiles | None = "lower" if problem.fill == "lower" else None
    return replace(product, kernel=replace(product.kernel, flag="obeys", triangle=triangle))


@lru_cache(maxsize=2 * len(STORED_TYPES))
def simple_recompute_source(dtype: str, entry: str) -> str:
    """Return the whole CUDA source of one simple kernel: `RECOMPUTE_ENTRY_NAME` or `SCAN_ENTRY_NAME`.

    Each kernel has its own source, so that a first product compiles both side by side, or only the one that it needs.
    """
    element = DTYPES[dtype]
    # Sums per thread along either side of its tile: as many as 64 registers hold, with 16 threads a side.
    each = 8 if element.registers == 1 else 4
    parameters, bounds = "fmm::classical::Rescue", (SIMPLE_THREADS, 1)
    calls = {RECOMPUTE_ENTRY_NAME: f"rescue<{element.cpp}, {each}>", SCAN_ENTRY_NAME: f"scan<{element.cpp}>"}
    return entry_source(parameters, f"fmm::classical::{calls[entry]}(p);", "recompute_simple.cuh", bounds, entry=entry)


# ---- after a recomputed product

# Products that go to the vendor after a recomputed one: at first and at most. The number doubles each time.
MIN_BACKOFF, MAX_BACKOFF = 8, 4096


@dataclass
class VendorBackoff:
    """Exponential backoff: after a recomputed product, the next ones go to the vendor.

    Data with inf or NaN tend to recur, and computing a product twice costs more than the vendor's product.
    """

    recomputed: int = 0  # number of products recomputed up to the last call
    next_backoff: int = MIN_BACKOFF  # number of products that go to the vendor after the next recomputed one
    vendor_products_left: int = 0  # number of products that still go to the vendor
    plan_products: int = 0  # number of products by plans since the last recomputed one

    def allows_plan(self, recomputed: int) -> bool:
        """Return True if the next product may run by a plan; `recomputed` is the present count."""
        if recomputed != self.recomputed:
            self.recomputed, self.vendor_products_left, self.plan_products = recomputed, self.next_backoff, 0
            self.next_backoff = min(2 * self.next_backoff, MAX_BACKOFF)
        if self.vendor_products_left:
            self.vendor_products_left -= 1
            return False
        self.plan_products += 1
        if self.plan_products > self.next_backoff:
            self.next_backoff = MIN_BACKOFF
        return True
