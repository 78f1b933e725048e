"""Recompute a product on the device without a fast algorithm, if C contains an inf or NaN.

fmm's kernels that write C raise a flag when they store an inf or NaN. If a kernel that wrote C cannot raise this flag,
another kernel scans C and raises the flag. The kernels that recompute C run after the kernels of the plan, and return
at once unless the flag is raised. The tiled kernel (recompute_tiled.cuh) recomputes products of the types in
TILED_STRATEGIES, and a simple kernel (recompute_simple.cuh) recomputes products of other types. The host never waits
for the flag. A later call reads the count of recomputed products in host memory; if the count has grown,
`RecomputeBackoff` sends the next products to the vendor.
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
from fmm.kernels.cuda.ops import DeviceView, gemm_op, is_column_major, operand_views, product_views
from fmm.kernels.cuda.products.kernel_sizes import named_strategy
from fmm.kernels.cuda.products.simt_kernel import COMPILER_OPTIONS, simt_kernel_source
from fmm.kernels.cuda.products.simt_tiles import TileOp, pointer_word_indices, tile_op
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES, TriangleTiles
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem

SIMPLE_THREADS = 256  # threads of a thread block, as in recompute_simple.cuh
RECOMPUTE_ENTRY_NAME, SCAN_ENTRY_NAME = "fmm_rescue", "fmm_scan"  # entry points of the simple kernels
# For each type, the tile sizes of the tiled kernel. Products of all sizes use the same tile sizes, so that one kernel
# is compiled; the first product waits for the compilation. On an H200, the strategy Huge recomputes at 3/4 of the speed
# of the fastest strategy (Square), and takes half the time to compile.
TILED_STRATEGIES = {"float32": replace(named_strategy("Huge"), blocks=1)}


def may_create_nonfinite(plan: Plan) -> bool:
    """Return True if a plan can produce an inf or NaN in an entry where the classical product is finite.

    The result is True for plans with emulation, and for plans whose levels or leaf save multiplications.
    """
    saves_products = plan.leaf_use.leaf.saves_products or any(level.saves_products for level in plan.levels)
    return plan.uses_emulation or saves_products


def can_recompute(problem: Problem) -> bool:
    """Return True if the device can recompute a problem.

    A call that writes only a triangle of A A^T with alpha or beta cannot be recomputed: the plan overwrites C, and no
    copy of the old C remains for beta.
    """
    return not (problem.writes_triangle and problem.has_factors)


def recompute_launches(
    problem: Problem,
    is_unchecked: bool,
    chip: Chip,
    alignment: Mapping[str, int],
    addend: DeviceView | None = None,
    conjugates: tuple[bool, bool] = (False, False),
) -> tuple[Launch, ...]:
    """Return the launches that recompute the product if the flag for an inf or NaN in C is raised.

    If `is_unchecked` is True, the first launch scans C for inf and NaN, because the kernel that wrote C raises no flag.
    `addend` is the matrix that beta multiplies: the addend of the call, or a copy of C from before the product.
    `conjugates` has two values, for A and for B: True if the plan multiplies the matrix's complex conjugate.
    """
    whole = problem.fill == "full" or not is_column_major(operand_views(problem)["C"])
    tiled = problem.stored_type in TILED_STRATEGIES and not problem.has_factors and whole
    scan = (_simple_recompute_launch(problem, SCAN_ENTRY_NAME, chip),) if is_unchecked else ()
    again = (
        _tiled_recompute_launch(problem, chip, alignment)
        if tiled
        else _simple_recompute_launch(problem, RECOMPUTE_ENTRY_NAME, chip, addend, conjugates)
    )
    return (*scan, again)


def _simple_recompute_launch(
    problem: Problem,
    entry: str,
    chip: Chip,
    addend: DeviceView | None = None,
    conjugates: tuple[bool, bool] = (False, False),
) -> Launch:
    """Return a launch of a simple kernel: the recomputation, or the scan for inf and NaN.

    The parameters are struct ClassicalParams of recompute_simple.cuh.
    """
    a, b, c = (x.strides for x in problem.layouts)
    alpha, beta = complex(problem.alpha), complex(problem.beta)
    scalars = alpha.real, alpha.imag, beta.real, beta.imag
    old = addend.strides if addend else (0, 0)
    lower = problem.fill == "lower"
    layers = *(problem.batch_strides or (0, 0, 0)), problem.batch
    numbers = *old, lower, *conjugates, *layers, *scalars
    parameters = struct.pack("<24q4d", 0, *a, 0, *b, 0, *c, *problem.size, 0, 0, 0, *numbers)
    slots = [
        AddressSlot(0, "A"),
        AddressSlot(3, "B"),
        AddressSlot(6, "C"),
        AddressSlot(12, FLAG),
        AddressSlot(13, HOST_COUNT),
    ]
    slots += [AddressSlot(14, addend.base, addend.offset)] if addend else []
    label = "recompute_simple: " + (
        "scans C for inf and NaN" if entry == SCAN_ENTRY_NAME else "computes C again if it has any"
    )
    kernel = Kernel(simple_recompute_source, (problem.stored_type, entry), entry, SIMPLE_THREADS)
    return Launch("recompute", label, kernel, (chip.multiprocessors, 1, 1), parameters, tuple(slots))


def _tiled_recompute_launch(problem: Problem, chip: Chip, alignment: Mapping[str, int]) -> Launch:
    """Return the launch of the tiled kernel that recomputes the product.

    All thread blocks of the launch are resident at the same time, and divide the tiles of C among themselves. The
    parameters are struct RecomputeParams of recompute_tiled.cuh: the parameters of a tiled product, which end with the
    flag's address, then the address of the count in host memory, then the number of products.
    """
    op = tiled_recompute_op(problem)
    aligned = all(alignment[x.base] % VECTOR_BYTES == 0 for x in op.all_blocks)
    parameters = op.parameter_bytes + struct.pack("<2q", 0, op.count)
    words = len(op.parameter_bytes) // 8
    slots = [
        AddressSlot(word, x.base, x.offset) for word, x in zip(pointer_word_indices(op), op.all_blocks, strict=True)
    ]
    slots += [AddressSlot(words - 1, FLAG), AddressSlot(words, HOST_COUNT)]
    s = op.kernel.strategy
    source_arguments = op.kernel, op.access if aligned else "scalar"
    kernel = Kernel(
        simt_kernel_source, source_arguments, ENTRY_NAME, s.thread_count, op.kernel.shared_bytes, COMPILER_OPTIONS
    )
    grid = min(op.grid[0], chip.multiprocessors * s.blocks), 1, 1
    return Launch(
        "recompute", "recompute_tiled: computes C again if it has inf or NaN", kernel, grid, parameters, tuple(slots)
    )


def tiled_recompute_op(problem: Problem) -> TileOp:
    """Return the tiled product C = A B with a kernel that computes C only if the flag for an inf or NaN is raised."""
    s = TILED_STRATEGIES[problem.stored_type]
    op = gemm_op(f"tile.{s.name.lower()}", product_views(problem), problem.stored_type)
    product = tile_op(op, problem.stored_type, s)
    triangle: TriangleTiles | None = "lower" if problem.fill == "lower" else None
    return replace(product, kernel=replace(product.kernel, flag="obeys", triangle=triangle))


@lru_cache(maxsize=2 * len(STORED_TYPES))
def simple_recompute_source(dtype: str, entry: str) -> str:
    """Return the complete CUDA source of one simple kernel: `RECOMPUTE_ENTRY_NAME` or `SCAN_ENTRY_NAME`.

    The recomputation and the scan for inf and NaN have separate sources. If a product needs both kernels, the kernels
    are compiled in two threads at the same time. If a product needs one of the kernels, only this kernel is compiled.
    """
    element = DTYPES[dtype]
    # A tile has 16 x 16 threads, and each thread holds `each` x `each` entries of C in at most 64 registers.
    each = 8 if element.registers == 1 else 4
    parameters, bounds = "fmm::classical::ClassicalParams", (SIMPLE_THREADS, 1)
    calls = {RECOMPUTE_ENTRY_NAME: f"recompute_product<{element.cpp}, {each}>", SCAN_ENTRY_NAME: f"scan<{element.cpp}>"}
    return entry_source(parameters, f"fmm::classical::{calls[entry]}(p);", "recompute_simple.cuh", bounds, entry=entry)


# ---- after a recomputed product

# After the first recomputed product, MIN_BACKOFF products go to the vendor. Each later recomputed product doubles the
# number of products that go to the vendor, up to MAX_BACKOFF.
MIN_BACKOFF, MAX_BACKOFF = 8, 4096


@dataclass
class RecomputeBackoff:
    """Exponential backoff: after a recomputed product, the next products go to the vendor.

    An inf or NaN tends to occur again, and computing a product twice takes longer than the vendor's product.
    """

    recomputed: int = 0  # number of recomputed products at the last call of `allows_plan`
    next_backoff: int = MIN_BACKOFF  # number of products that go to the vendor after the next recomputed product
    vendor_products_left: int = 0  # number of products that still go to the vendor
    plan_products: int = 0  # number of products by plans since the last recomputed product

    def allows_plan(self, recomputed: int) -> bool:
        """Return True if the next product may run by a plan; `recomputed` is the total of recomputed products."""
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
