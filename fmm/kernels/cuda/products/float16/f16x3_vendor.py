"""A float32 product by three of float16 where there are no warpgroups: the vendor multiplies the planes.

Tensor cores cut what they add to their accumulators, so that long sums drift. The products of hi by hi are therefore
made over pieces of the inner dimension, each of which the vendor adds to float32 numbers in memory; the two others are
so small that their drift does not matter. All are summed up in C, which is scaled at the end.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from fmm.kernels.cuda.device_code.entry_source import ENTRY, entry_source
from fmm.kernels.cuda.gemm import GemmOp
from fmm.kernels.cuda.kernel import Kernel
from fmm.kernels.cuda.launch_list import FLAG, Launch, Slot, VendorCall
from fmm.kernels.cuda.products.float16.f16_planes import PIECE
from fmm.kernels.cuda.products.float16.f16_split import THREADS, Planes, operand_planes, planes_to_make, split_launch
from fmm.kernels.cuda.views import Factor

BELOW = 2048.0  # lo is so many times what hi leaves
HALF = 2  # bytes


def vendor_steps(
    op: GemmOp, multiprocessors: int, divides: Mapping[str, int], flagged: bool
) -> tuple[Launch | VendorCall, ...] | str:
    """Splitting, products of planes, scaling; or why not."""
    if op.beta or complex(op.alpha).imag or op.checked:
        return "only the tensor cores of compute capability 9.0 add to C, or check every entry"
    a, b = operand_planes(op)
    made = planes_to_make(op, (a, b))
    splits = (split_launch(made, divides, "apart"),) if made else ()
    calls = (_call(op, a, b, *part) for part in _parts(op.k))
    return *splits, *calls, _unscaling(op, a, b, multiprocessors, flagged)


def _parts(k: int) -> list[tuple[int, int, bool, bool, float, float]]:
    """Of every product: where it begins along the inner dimension and how long it is, is it of lo of A, of B, its
    factor, and of what is there already."""
    corrections = [(0, k, False, True, 1 / BELOW, 0.0), (0, k, True, False, 1 / BELOW, 1.0)]
    return corrections + [(at, min(PIECE, k - at), False, False, 1.0, 1.0) for at in range(0, k, PIECE)]


def _call(
    op: GemmOp, a: Planes, b: Planes, at: int, length: int, low_a: bool, low_b: bool, factor: float, keep: float
) -> VendorCall:
    """In BLAS's terms the kernel's second operand is the left one. (Its result is not C yet.)"""
    left, right = _factor(b, op.left, at, low_b), _factor(a, op.right, at, low_a)
    made = replace(op.by_vendor, dtype="float16", dest_dtype="float32", k=length, left=left, right=right)
    part = replace(made, alpha=factor, beta=keep)
    return VendorCall(part, f"cuBLAS, float16 products added up in float32, {length} of the inner dimension", "sums")


def _factor(x: Planes, source: Factor, at: int, low: bool) -> Factor:
    """A part of a plane as BLAS sees it: its lines lie as those of the operand."""
    numbers = x.lines * x.room
    start = (x.count * numbers if low else 0) + (at if x.along == "inner" else at * x.room)
    return Factor(x.base, x.offset + HALF * start, x.room, source.transposed, numbers)


# ---- the end


def _unscaling(op: GemmOp, a: Planes, b: Planes, multiprocessors: int, flagged: bool) -> Launch:
    """struct Unscaled of f16_unscale.cuh, addresses zero. C is read and written in place."""
    m, n, c = op.n, op.m, op.dest
    counts = m, n, op.count
    parameters = struct.pack("<7q3if", *[0] * 5, c.leading, c.stride, *counts, complex(op.alpha).real)
    slots = [Slot(0, c.base, c.offset), Slot(1, c.base, c.offset)]
    slots += [Slot(2, a.base, a.exponents), Slot(3, b.base, b.exponents), *([Slot(4, FLAG)] if flagged else [])]
    grid = min(m * op.count, 8 * multiprocessors), 1, 1
    kernel = Kernel(unscale_source, (), ENTRY, THREADS)
    label = "f16_unscale: takes back by which rows and columns were scaled"
    return Launch("product", label, kernel, grid, parameters, tuple(slots))


@lru_cache(maxsize=1)
def unscale_source() -> str:
    """The whole CUDA source, entry point `ENTRY`."""
    return entry_source("fmm::planes::Unscaled", "fmm::planes::unscale(p);", "f16_unscale.cuh", (THREADS,))
