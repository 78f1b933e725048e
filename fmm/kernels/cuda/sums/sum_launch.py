"""Launches of the sum kernel: which arrays hold the blocks of a step of sums, and what a launch is told of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import AdditionProgram
from fmm.kernels.cuda.launch_list import FLAG, PARAMETER_BYTES, Kernel, Launch, Slot
from fmm.kernels.cuda.ops import View, is_column_major
from fmm.kernels.cuda.sums.sum_kernel import SUM_ENTRY, SUM_THREADS, Access, SumKernel, sum_source
from fmm.kernels.cuda.sums.sum_launch import (
    BlockArray,
    FittedArrays,
    PlacedView,
    aliased_places,
    as_real_array,
    block_size,
    crosswise_arrays,
    holds_block,
    transposed_place,
)
from fmm.kernels.cuda.sums.sum_order import LaunchCoefficient
from fmm.kernels.plans.plan import PlanError
from fmm.kernels.plans.steps.sums import COPY, whole_matrix

ARRAY_BYTES = 56  # of struct Array in block_sums.cuh
GRID_LIMIT = 65535  # thread blocks along the second and third axis of a grid


@dataclass(frozen=True)
class SumOp:
    """One launch of a sum kernel."""

    label: str
    kernel: SumKernel
    arrays: tuple[BlockArray, ...]
    scalars: tuple[complex, ...]
    rows: int
    cols: int

    def __hash__(self) -> int:
        return id(self)

    @cached_property
    def inner(self) -> tuple[int, int]:
        """Rows and columns that every block of this launch has."""
        sizes = [block_size(self.arrays[s.array], s) for s in (*self.kernel.reads, *self.kernel.writes)]
        return max(min(r for r, _ in sizes), 0), max(min(c for _, c in sizes), 0)

    @cached_property
    def parameters(self) -> bytes:
        """struct Parameters of block_sums.cuh, its pointers null: the arrays' come first in each array."""
        arrays = b"".join(struct.pack("<q4q4i", 0, *x[2:]) for x in self.arrays)
        scalars = [part for c in self.scalars for part in (c.real, c.imag)]
        sizes = self.rows, self.cols, *self.inner
        return arrays + struct.pack(f"<{len(scalars) + 1}dq4i", *scalars, 0.0, 0, *sizes)

    @property
    def writes_result(self) -> bool:
        return any(self.arrays[spot.array].base == "C" for spot in self.kernel.writes)

    @cached_property
    def access(self) -> Access:
        """`vector` if every block is aligned, provided that the bases of its arrays are."""
        lanes = self.kernel.lanes
        size = lanes * DTYPES[self.kernel.element].itemsize
        fits = all(
            x.col == (2 if i in self.kernel.parts else 1)
            and x.offset % size == 0
            and not any(step % lanes for step in (x.row, x.down, x.right))
            for i, x in enumerate(self.arrays)
            if i not in self.kernel.tall
        )
        return "vector" if fits and lanes > 1 else "scalar"

    @cached_property
    def alignment(self) -> tuple[int, frozenset[str]]:
        """What `vector` asks of the addresses of bases: to be multiples of so many bytes, for these bases."""
        bases = frozenset(x.base for i, x in enumerate(self.arrays) if i not in self.kernel.tall)
        return self.kernel.lanes * DTYPES[self.kernel.element].itemsize, bases

    @cached_property
    def grid(self) -> tuple[int, int, int]:
        """Thread blocks side by side and below each other; a very tall launch is folded into the third axis."""
        height, width = self.kernel.tile
        down = -(-self.rows // height)
        deep = -(-down // GRID_LIMIT)
        return -(-self.cols // width), -(-down // deep), deep


def sum_op(
    label: str, program: AdditionProgram, reads: Sequence[PlacedView], writes: Sequence[PlacedView]
) -> SumOp | None:
    """The launch that does a step of sums; None where there is nothing to write."""
    rows, cols = max(v.rows for _, v in writes), max(v.cols for _, v in writes)
    if rows == 0 or cols == 0:
        return None
    lines, scalars = _launch_scalars(program)
    # Threads lie along what is contiguous. A split that turns its blocks writes more than it reads, so that what it
    # writes decides.
    if all(is_column_major(v) for _, v in writes):
        reads, writes = ([transposed_place(placed) for placed in side] for side in (reads, writes))
        rows, cols = cols, rows
    (dtype,) = {v.dtype for _, v in (*reads, *writes)}
    fitted = FittedArrays((*reads, *writes))
    arrays, spots, batches = fitted.run()
    element = dtype
    if dtype.startswith("complex") and not any(c.imag for c in scalars) and all(x.col == 1 for x in arrays):
        # Real coefficients: a complex matrix is a real one with twice the columns, at half the registers a value.
        element, cols = {"complex64": "float32", "complex128": "float64"}[dtype], 2 * cols
        arrays = [as_real_array(x) for x in arrays]
    if len(arrays) * ARRAY_BYTES + 16 * len(scalars) + 64 > PARAMETER_BYTES:
        raise PlanError(f"{label}: {len(arrays)} unequal blocks in one pass; on a GPU this level needs pad or peel")
    read, written = spots[: len(reads)], spots[len(reads) :]
    kernel = SumKernel(
        lines,
        len(scalars),
        read,
        written,
        aliased_places(reads, writes),
        len(arrays),
        frozenset(a for a in batches if all(holds_block(arrays[a], s, rows, cols) for s in spots if s.array == a)),
        element,
        crosswise_arrays(arrays, read, written),
        fitted.parts,
    )
    kernel = _interned_kernel(kernel)
    if cols % kernel.lanes:
        kernel = _interned_kernel(replace(kernel, whole=frozenset()))
    return SumOp(label, kernel, tuple(arrays), scalars, rows, cols)


def copy_op(label: str, source: View, dest: View) -> SumOp | None:
    """The launch that copies a matrix; None for an empty one. The source may be one row or column, read repeatedly."""
    place = whole_matrix("source", dest.rows, dest.cols)
    return sum_op(label, COPY, [(place, source)], [(replace(place, name="dest"), dest)])


@lru_cache(maxsize=4096)
def _interned_kernel(kernel: SumKernel) -> SumKernel:
    """One object for equal kernels, so that its order and its lanes are found only once."""
    return kernel


# Coefficients that stand in the code: those of the schemes. Others come with the launch, so that a new alpha or beta
# costs no compilation. By value, since equal plans share a recipe whether alpha was 2 or 2.0.
LITERALS = frozenset(sign * 2.0**e for e in range(-4, 5) for sign in (1, -1))


def _launch_scalars(program: AdditionProgram) -> tuple[AdditionProgram, tuple[complex, ...]]:
    """The program with Scalars for the coefficients that come with the launch, and their values."""
    scalars: dict[complex, Any] = {}
    for c in (complex(c) for terms in program.lines for c, _ in terms):
        if c not in LITERALS:
            scalars.setdefault(c, LaunchCoefficient(len(scalars)))
    if not scalars:
        return program, ()
    lines = tuple(tuple((scalars.get(complex(c), c), v) for c, v in terms) for terms in program.lines)
    return AdditionProgram(program.inputs, lines, program.outputs), tuple(scalars)


# ---- the launch on a chip


def sum_launch(op: SumOp, alignment: Mapping[str, int], flagged: bool) -> Launch:
    """The launch for addresses of this alignment: by base, the power of two that divides its address.

    `flagged`: is a flag raised where an inf or NaN is stored in C?
    """
    size, bases = op.alignment
    aligned = all(alignment[base] % size == 0 for base in bases)
    access: Access = op.access if aligned else "scalar"
    given = op.kernel, access, flagged and op.writes_result
    words = ARRAY_BYTES // 8
    slots = [Slot(words * i, x.base, x.offset) for i, x in enumerate(op.arrays)]
    slots.append(Slot(words * len(op.arrays) + 2 * len(op.scalars) + 1, FLAG))
    how = "16 bytes at a time" if access == "vector" else "one number at a time"
    label = f"block_sums, {op.label}: reads {len(op.kernel.reads)} blocks, writes {len(op.kernel.writes)}, {how}"
    kernel = Kernel(sum_source, given, SUM_ENTRY, SUM_THREADS)
    return Launch("sums", label, kernel, op.grid, op.parameters, tuple(slots), aligned=access == "vector")
