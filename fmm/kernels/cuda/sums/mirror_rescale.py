"""Describe the launches that mirror a triangle and that scale rows or columns of a matrix by powers of two.

The kernels are in mirror_triangle.cuh and rescale.cuh.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.device_code.entry_source import entry_source
from fmm.kernels.cuda.launch_list import DEVICE_ARCHITECTURE, FLAG, AddressSlot, Kernel, Launch
from fmm.kernels.cuda.ops import DeviceView, MirrorOp
from fmm.kernels.plans.sums import RescaledCopy, RowOrColumnExponents

MIRROR_THREADS = 256  # threads of a thread block, as in mirror_triangle.cuh
MIRROR_ENTRY_NAME = "fmm_mirror"


class MirrorVariant(NamedTuple):
    """Template arguments of the mirror kernel: fmm::MirrorVariant of mirror_triangle.cuh."""

    in_place: bool  # True if source and dest are the same matrix, and its lower triangle stays unchanged
    reads_source: bool  # False if alpha is 0
    reads_dest: bool  # False if beta is 0
    full: bool  # True if the kernel also writes the upper triangle
    raises_flag: bool  # True if the kernel raises the flag for an inf or NaN


def mirror_launch(op: MirrorOp, flagged: bool) -> Launch:
    """Return the launch that writes the lower triangle of `op.dest`, and also its mirror if `op.full` is True.

    If `flagged` is True, the kernel raises the flag when it stores an inf or NaN in C.
    """
    x, y = op.source.strides, op.dest.strides
    parameters = struct.pack("<7q2dq", 0, *x, 0, *y, op.dest.rows, op.alpha, op.beta, 0)
    slots = [AddressSlot(0, op.source.base, op.source.offset), AddressSlot(3, op.dest.base, op.dest.offset)]
    raises = flagged and op.writes_result
    slots += [AddressSlot(9, FLAG)] if raises else []
    variant = MirrorVariant(op.is_in_place, op.alpha != 0, op.beta != 0, op.full, raises)
    arguments = op.dest.dtype, op.tile_side, variant
    kernel = Kernel(mirror_source, arguments, MIRROR_ENTRY_NAME, MIRROR_THREADS, architecture=DEVICE_ARCHITECTURE)
    result = "the upper triangle is the lower one's mirror" if op.full else "the lower triangle"
    label = f"mirror_triangle: {result}{'' if op.is_in_place else ', from a temporary' if op.alpha else ', scaled'}"
    return Launch("sums", label, kernel, (op.tile_count, 1, 1), parameters, tuple(slots))


@lru_cache(maxsize=256)
def mirror_source(dtype: str, tile: int, variant: MirrorVariant) -> str:
    """Return the complete CUDA source of a mirror kernel with the entry point `MIRROR_ENTRY_NAME`."""
    flags = ", ".join(str(flag).lower() for flag in variant)
    body = (f"fmm::mirror_triangle<{DTYPES[dtype].cpp}, {tile}, fmm::MirrorVariant<{flags}>>(p);",)
    return entry_source("fmm::TriangleMirror", body, "mirror_triangle.cuh", (MIRROR_THREADS,), entry=MIRROR_ENTRY_NAME)


# ---- scaling by powers of two

RESCALE_THREADS, ADJACENT_LINES_PER_BLOCK, LINES_PER_BLOCK, RESCALE_TILE = 256, 32, 8, 32  # as in rescale.cuh
RESCALE_ENTRY_NAME = "fmm_rescale"
SignedExponents = tuple[DeviceView | None, int]  # a vector of exponents (None: no scaling), and its sign: 1 or -1


@dataclass(frozen=True)
class LineExponentsOp:
    """The operation that finds the exponent of the largest number in each row (axis 0) or column (axis 1)."""

    label: str
    source: DeviceView
    dest: DeviceView
    axis: int
    # Number i of a row or column is multiplied by 2^shifts[i] before the row's or column's largest number is found.
    shifts: SignedExponents = (None, 0)
    # If `against` holds exponents of another matrix, the result is not the exponent e itself but (e - against[i]) / 2,
    # rounded down, for row or column i.
    against: DeviceView | None = None
    writes_result = False


@dataclass(frozen=True)
class RescaleOp:
    """The operation that scales the rows and columns of a matrix by powers of two, in place or into a copy."""

    label: str
    source: DeviceView
    dest: DeviceView
    rows: SignedExponents = (None, 0)
    cols: SignedExponents = (None, 0)

    @property
    def writes_result(self) -> bool:
        """True if dest is in C and not a temporary."""
        return self.dest.base == "C"


ScalingOp = LineExponentsOp | RescaleOp


def scaling_launch(op: ScalingOp, flagged: bool) -> Launch:
    """Return the launch that finds exponents of rows or columns, or that scales a matrix by powers of two.

    If `flagged` is True, the kernel raises the flag when it stores an inf or NaN in C.
    """
    return exponents_launch(op) if isinstance(op, LineExponentsOp) else rescale_launch(op, flagged)


def scaling_op(step: RowOrColumnExponents | RescaledCopy, reads: Sequence[DeviceView], dest: DeviceView) -> ScalingOp:
    """Return the operation for a step of a plan that finds exponents or scales a matrix."""
    source, *vectors = reads
    if isinstance(step, RowOrColumnExponents):
        shifts, against = vectors[0] if step.sign else None, vectors[-1] if step.against else None
        return LineExponentsOp(step.label, source, dest, step.axis, (shifts, step.sign), against)
    rows = vectors.pop(0) if step.row_sign else None
    cols = vectors.pop(0) if step.col_sign else None
    return RescaleOp(step.label, source, dest, (rows, step.row_sign), (cols, step.col_sign))


class _KernelParameterWords:
    """The parameters of a kernel as 8-byte words, with a list of the words that hold addresses."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.slots: list[AddressSlot] = []

    def add_address(self, x: DeviceView | None) -> None:
        """Append a word for the address of a view, or a null pointer if `x` is None."""
        if x is not None:
            self.slots.append(AddressSlot(len(self.words), x.base, x.offset))
        self.words.append(0)

    def add_numbers(self, *values: int) -> None:
        """Append integers; each integer is one 8-byte word."""
        self.words += values

    def add_exponents(self, exponents: SignedExponents) -> None:
        """Append struct Exponents of rescale.cuh: the address, stride and sign of a vector of exponents."""
        vector, sign = exponents
        self.add_address(vector)
        self.add_numbers(vector.right if vector else 0, sign)

    def packed_launch(self, label: str, kernel: Kernel, blocks: int) -> Launch:
        """Return the launch of a kernel with these parameters on `blocks` thread blocks."""
        parameters = struct.pack(f"<{len(self.words)}q", *self.words)
        return Launch("sums", label, kernel, (blocks, 1, 1), parameters, tuple(self.slots))


def exponents_launch(op: LineExponentsOp) -> Launch:
    """Return the launch that finds the exponent of the largest number in each row or column.

    The parameters are struct LineExponents of rescale.cuh.
    """
    x, parameters = op.source, _KernelParameterWords()
    steps, sides = (x.strides, x.shape) if op.axis == 0 else (x.strides[::-1], x.shape[::-1])
    parameters.add_address(x)
    parameters.add_numbers(*steps, *sides)
    parameters.add_exponents(op.shifts)
    parameters.add_exponents((op.against, 1))
    parameters.add_address(op.dest)
    parameters.add_numbers(op.dest.right)
    adjacent = abs(steps[0]) < abs(steps[1])  # True if neighbouring lines are adjacent in memory
    kernel = _scaling_kernel("line_exponents", "LineExponents", x.dtype, (adjacent,))
    return parameters.packed_launch(
        f"line_exponents: {op.label}",
        kernel,
        -(-sides[0] // (ADJACENT_LINES_PER_BLOCK if adjacent else LINES_PER_BLOCK)),
    )


def rescale_launch(op: RescaleOp, flagged: bool) -> Launch:
    """Return the launch that scales a matrix. The parameters are struct Rescaled of rescale.cuh.

    If `flagged` is True, the kernel raises the flag when it stores an inf or NaN in C.
    """
    x, y, parameters = op.source, op.dest, _KernelParameterWords()
    for view in (x, y):
        parameters.add_address(view)
        parameters.add_numbers(*view.strides)
    parameters.add_numbers(*y.shape)
    parameters.add_exponents(op.rows)
    parameters.add_exponents(op.cols)
    raises = flagged and op.writes_result
    parameters.slots += [AddressSlot(len(parameters.words), FLAG)] if raises else []
    parameters.add_numbers(0)
    column_major = abs(y.down) < abs(y.right)
    kernel = _scaling_kernel("rescale", "Rescaled", y.dtype, (column_major, raises))
    return parameters.packed_launch(
        f"rescale: {op.label}", kernel, -(-y.rows // RESCALE_TILE) * -(-y.cols // RESCALE_TILE)
    )


def _scaling_kernel(*arguments: str | tuple[bool, ...]) -> Kernel:
    """Return the kernel with the source `rescale_source(*arguments)`; the kernel scales subnormal numbers exactly."""
    return Kernel(rescale_source, arguments, RESCALE_ENTRY_NAME, RESCALE_THREADS, architecture=DEVICE_ARCHITECTURE)


@lru_cache(maxsize=64)
def rescale_source(function: str, struct_name: str, dtype: str, flags: tuple[bool, ...]) -> str:
    """Return the complete CUDA source of a scaling kernel.

    The kernel calls the function template fmm::`function` with the element type and `flags` as template arguments.
    """
    options = ", ".join(str(flag).lower() for flag in flags)
    body = (f"fmm::{function}<{DTYPES[dtype].cpp}, {options}>(p);",)
    return entry_source(f"fmm::{struct_name}", body, "rescale.cuh", (RESCALE_THREADS,), entry=RESCALE_ENTRY_NAME)
