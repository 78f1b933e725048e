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
from typing import NamedTuple

from fmm.kernels.cuda.device_code.entry_source import ENTRY, entry_source
from fmm.kernels.cuda.gemm import GemmOp
from fmm.kernels.cuda.kernel import Kernel
from fmm.kernels.cuda.launch_list import FLAG, Launch, Slot, VendorCall
from fmm.kernels.cuda.products.float16.f16_planes import PIECE
from fmm.kernels.cuda.products.float16.f16_split import THREADS, Planes, operand_planes, planes_to_make, split_launch
from fmm.kernels.cuda.views import Factor

LO_SCALE = 2048.0  # lo is so many times what hi leaves of a number
FLOAT16_BYTES = 2


class PlaneProduct(NamedTuple):
    """A product of planes over a piece of the inner dimension: C = factor (plane of A) (plane of B) + keep C."""

    start: int  # along the inner dimension
    length: int
    lo_of_a: bool = False  # else it is of hi of A
    lo_of_b: bool = False
    factor: float = 1.0
    keep: float = 1.0


def vendor_steps(
    op: GemmOp, multiprocessors: int, divides: Mapping[str, int], flagged: bool
) -> tuple[Launch | VendorCall, ...] | str:
    """Splitting, products of planes, and scaling; or the reason why the vendor's products cannot do it."""
    if op.beta or complex(op.alpha).imag or op.checked:
        return "only the tensor cores of compute capability 9.0 add to C, or check every entry"
    a, b = operand_planes(op)
    to_make = planes_to_make(op, (a, b))
    splits = (split_launch(to_make, divides, "apart"),) if to_make else ()
    calls = (_vendor_call(op, a, b, product) for product in _plane_products(op.k))
    return *splits, *calls, _unscaling(op, a, b, multiprocessors, flagged)


def _plane_products(k: int) -> list[PlaneProduct]:
    """Both corrections over all of the inner dimension, then hi by hi piece by piece."""
    first = PlaneProduct(0, k, lo_of_b=True, factor=1 / LO_SCALE, keep=0.0)
    second = PlaneProduct(0, k, lo_of_a=True, factor=1 / LO_SCALE)
    return [first, second, *(PlaneProduct(start, min(PIECE, k - start)) for start in range(0, k, PIECE))]


def _vendor_call(op: GemmOp, a: Planes, b: Planes, x: PlaneProduct) -> VendorCall:
    """The call of one product of planes. In BLAS's terms the kernel's second operand is the left one.

    What it writes is not C yet, which the last launch makes of it.
    """
    left, right = _factor(b, op.left, x.start, x.lo_of_b), _factor(a, op.right, x.start, x.lo_of_a)
    whole = replace(op.by_vendor, dtype="float16", dest_dtype="float32")
    piece = replace(whole, k=x.length, left=left, right=right, alpha=x.factor, beta=x.keep)
    return VendorCall(piece, f"cuBLAS, float16 products added up in float32, {x.length} of the inner dimension", "sums")


def _factor(x: Planes, source: Factor, start: int, lo: bool) -> Factor:
    """A plane, hi or lo, from a place of the inner dimension on, as BLAS sees it: its lines lie as the operand's."""
    numbers = x.lines * x.room
    first = (x.count * numbers if lo else 0) + (start if x.along == "inner" else start * x.room)
    return Factor(x.base, x.offset + FLOAT16_BYTES * first, x.room, source.transposed, numbers)


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
