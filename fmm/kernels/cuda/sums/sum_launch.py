"""Describe launches of the sum kernel.

A few arrays in the kernel's parameters describe all blocks that a step of a plan reads and writes. An array is a grid
of blocks of one matrix, a sequence of equal blocks at equal distances, or one block. `BlockArrayFinder` finds the
arrays for a step of sums. `sum_op` describes a launch when the plan is recorded, and `sum_launch` returns the launch
for a chip.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple, cast

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient
from fmm.kernels.cuda.launch_list import FLAG, MAX_PARAMETER_BYTES, AddressSlot, Kernel, Launch
from fmm.kernels.cuda.ops import DeviceView, distance_between_views, is_column_major, transposed_view
from fmm.kernels.cuda.sums.sum_kernel import SUM_ENTRY_NAME, SUM_THREADS, AccessWidth, BlockIndex, SumKernel, sum_source
from fmm.kernels.cuda.sums.sum_order import RuntimeCoefficient
from fmm.kernels.plans.plan import PlanError
from fmm.kernels.plans.sums import ADDEND, COPY_PROGRAM, Place, whole_matrix

PlacedView = tuple[Place, DeviceView]  # a block's place in the plan, and the view of the block's memory
ARRAY_STRUCT_BYTES = 56  # bytes of struct Array in block_sums.cuh
MAX_GRID_BLOCKS = 65535  # largest number of thread blocks along the second and third axis of a grid


@dataclass(frozen=True)
class SumOp:
    """One launch of a sum kernel on any chip: the kernel, its arrays, the sizes and the coefficients."""

    label: str
    kernel: SumKernel
    arrays: tuple[BlockArray, ...]
    scalars: tuple[complex, ...]
    rows: int
    cols: int

    def __hash__(self) -> int:
        return id(self)

    @cached_property
    def smallest_block_shape(self) -> tuple[int, int]:
        """The smallest number of rows and the smallest number of columns of all blocks of the launch."""
        sizes = [block_size(self.arrays[s.array], s) for s in (*self.kernel.reads, *self.kernel.writes)]
        return max(min(r for r, _ in sizes), 0), max(min(c for _, c in sizes), 0)

    @cached_property
    def parameters(self) -> bytes:
        """The bytes of struct Parameters of block_sums.cuh, with zeros in place of all addresses."""
        arrays = b"".join(struct.pack("<q4q4i", 0, *x[2:]) for x in self.arrays)
        scalars = [part for c in self.scalars for part in (c.real, c.imag)]
        sizes = self.rows, self.cols, *self.smallest_block_shape
        return arrays + struct.pack(f"<{len(scalars) + 1}dq4i", *scalars, 0.0, 0, *sizes)

    @property
    def writes_result(self) -> bool:
        """True if the kernel writes blocks of C."""
        return any(self.arrays[block.array].base == "C" for block in self.kernel.writes)

    @cached_property
    def access(self) -> AccessWidth:
        """The width of memory accesses: `vector` if offsets and strides of all blocks are aligned, else `scalar`."""
        width = self.kernel.vector_width
        size = width * DTYPES[self.kernel.element].itemsize
        fits = all(
            x.col == (2 if i in self.kernel.in_parts else 1)
            and x.offset % size == 0
            and not any(step % width for step in (x.row, x.down, x.right))
            for i, x in enumerate(self.arrays)
            if i not in self.kernel.column_major
        )
        return "vector" if fits and width > 1 else "scalar"

    @cached_property
    def vector_alignment(self) -> tuple[int, frozenset[str]]:
        """The alignment in bytes that `vector` access requires, and the bases that must have this alignment."""
        bases = frozenset(x.base for i, x in enumerate(self.arrays) if i not in self.kernel.column_major)
        return self.kernel.vector_width * DTYPES[self.kernel.element].itemsize, bases

    @cached_property
    def grid(self) -> tuple[int, int, int]:
        """The number of thread blocks: x along columns, y along rows; z is 1 unless y would exceed its limit."""
        height, width = self.kernel.tile_shape
        down = -(-self.rows // height)
        deep = -(-down // MAX_GRID_BLOCKS)
        return -(-self.cols // width), -(-down // deep), deep


def sum_op(
    label: str, program: AdditionProgram, reads: Sequence[PlacedView], writes: Sequence[PlacedView]
) -> SumOp | None:
    """Return the operation that computes a step of sums; None if the step writes no element."""
    rows, cols = max(v.rows for _, v in writes), max(v.cols for _, v in writes)
    if rows == 0 or cols == 0:
        return None
    lines, scalars = _coefficients_as_parameters(program)
    # Neighbouring threads access neighbouring elements of a row. If all outputs are column-major, the kernel therefore
    # computes the transposed outputs from the transposed inputs. The layout of the inputs has no influence on this
    # choice, because sums before products write more than they read.
    if all(is_column_major(v) for _, v in writes):
        reads, writes = ([transposed_placed_view(placed) for placed in side] for side in (reads, writes))
        rows, cols = cols, rows
    (dtype,) = {v.dtype for _, v in (*reads, *writes)}
    fitter = BlockArrayFinder((*reads, *writes))
    arrays, block_indices, batches = fitter.find_block_arrays()
    element = dtype
    if dtype.startswith("complex") and not any(c.imag for c in scalars) and all(x.col == 1 for x in arrays):
        # If all coefficients are real, complex matrices are added as real matrices with twice the number of columns.
        element, cols = {"complex64": "float32", "complex128": "float64"}[dtype], 2 * cols
        arrays = [as_real_array(x) for x in arrays]
    if len(arrays) * ARRAY_STRUCT_BYTES + 16 * len(scalars) + 64 > MAX_PARAMETER_BYTES:
        raise PlanError(f"{label}: {len(arrays)} unequal blocks in one pass; on a GPU this level needs pad or peel")
    read, written = block_indices[: len(reads)], block_indices[len(reads) :]
    kernel = SumKernel(
        lines,
        len(scalars),
        read,
        written,
        aliased_write_read_pairs(reads, writes),
        len(arrays),
        frozenset(
            a
            for a in batches
            if all(is_block_size_at_least(arrays[a], s, rows, cols) for s in block_indices if s.array == a)
        ),
        element,
        transposed_arrays(arrays, read, written),
        fitter.parts,
    )
    kernel = _interned_sum_kernel(kernel)
    if cols % kernel.vector_width:
        kernel = _interned_sum_kernel(replace(kernel, unchecked=frozenset()))
    return SumOp(label, kernel, tuple(arrays), scalars, rows, cols)


def copy_op(label: str, source: DeviceView, dest: DeviceView) -> SumOp | None:
    """Return the operation that copies a matrix; None if the matrix is empty. The source may have a stride of 0."""
    place = whole_matrix("source", dest.rows, dest.cols)
    return sum_op(label, COPY_PROGRAM, [(place, source)], [(replace(place, name="dest"), dest)])


@lru_cache(maxsize=4096)
def _interned_sum_kernel(kernel: SumKernel) -> SumKernel:
    """Return the same object for all equal kernels, so that the order of their statements is searched only once."""
    return kernel


# Coefficients that most schemes have; they are literals in the CUDA source. Other coefficients are launch parameters,
# so that a new alpha or beta needs no compilation. Coefficients are compared by value: 2 and 2.0 are equal.
LITERAL_COEFFICIENTS = frozenset(sign * 2.0**e for e in range(-4, 5) for sign in (1, -1))


def _coefficients_as_parameters(program: AdditionProgram) -> tuple[AdditionProgram, tuple[complex, ...]]:
    """Return the program with launch parameters in place of all coefficients that are not literals.

    The second item that is returned contains the values of the launch parameters.
    """
    scalars: dict[complex | str, tuple[RuntimeCoefficient, complex]] = {}

    def launch_parameter(c: Coefficient) -> Coefficient:
        value = complex(c)
        if value in LITERAL_COEFFICIENTS:
            return c
        key = value if value == value else repr(value)  # a NaN is not equal to itself, so its text is the key
        return cast(Coefficient, scalars.setdefault(key, (RuntimeCoefficient(len(scalars)), value))[0])

    lines = tuple(tuple((launch_parameter(c), v) for c, v in terms) for terms in program.lines)
    if not scalars:
        return program, ()
    return AdditionProgram(program.inputs, lines, program.outputs), tuple(value for _, value in scalars.values())


# ---- the launch on a chip


def sum_launch(op: SumOp, alignment: Mapping[str, int], flagged: bool) -> Launch:
    """Return the launch of a sum kernel.

    `alignment` maps the name of a base, such as A or C, to the largest power of two that divides the base's address. If
    `flagged` is True, the kernel raises the flag when it stores an inf or NaN in C.
    """
    size, bases = op.vector_alignment
    aligned = all(alignment[base] % size == 0 for base in bases)
    access: AccessWidth = op.access if aligned else "scalar"
    source_arguments = op.kernel, access, flagged and op.writes_result
    words = ARRAY_STRUCT_BYTES // 8
    slots = [AddressSlot(words * i, x.base, x.offset) for i, x in enumerate(op.arrays)]
    slots.append(AddressSlot(words * len(op.arrays) + 2 * len(op.scalars) + 1, FLAG))
    how = "16 bytes at a time" if access == "vector" else "one number at a time"
    label = f"block_sums, {op.label}: reads {len(op.kernel.reads)} blocks, writes {len(op.kernel.writes)}, {how}"
    kernel = Kernel(sum_source, source_arguments, SUM_ENTRY_NAME, SUM_THREADS)
    return Launch("sums", label, kernel, op.grid, op.parameters, tuple(slots), aligned=access == "vector")


# ---- arrays of blocks


class BlockArray(NamedTuple):
    """One array of a sum kernel: a grid of blocks of a matrix, or equal blocks at equal distances.

    Strides and sizes count elements.
    """

    base: str
    offset: int  # bytes from the base
    row: int  # elements from one row to the next
    col: int  # elements from one column to the next
    down: int  # elements from one block to the block below it
    right: int  # elements from one block to the block right of it
    rows: int  # rows of the whole array
    cols: int  # columns of the whole array
    height: int  # rows of a block
    width: int  # columns of a block


def block_size(array: BlockArray, block: BlockIndex) -> tuple[int, int]:
    """Return the number of rows and of columns of a block; a block at an edge of the array can be smaller."""
    return (
        min(array.height, array.rows - block.i * array.height),
        min(array.width, array.cols - block.j * array.width),
    )


def is_block_size_at_least(array: BlockArray, block: BlockIndex, rows: int, cols: int) -> bool:
    """Return True if the block has at least `rows` rows and at least `cols` columns."""
    size = block_size(array, block)
    return size[0] >= rows and size[1] >= cols


def transposed_arrays(
    arrays: Sequence[BlockArray], reads: Sequence[BlockIndex], writes: Sequence[BlockIndex]
) -> frozenset[int]:
    """Return the indices of the input arrays that the kernel transposes: all input arrays, or none.

    The kernel transposes if all input arrays are column-major and all output arrays are row-major.
    """
    read, written = ({block.array for block in side} for side in (reads, writes))
    crosswise = all(arrays[a].col == 1 for a in written) and all(arrays[a].col != 1 == arrays[a].row for a in read)
    return frozenset(read) if crosswise else frozenset()


def aliased_write_read_pairs(reads: Sequence[PlacedView], writes: Sequence[PlacedView]) -> tuple[tuple[int, int], ...]:
    """Return pairs (index of an output, index of an input): the output overwrites the memory of the input.

    A block of an addend outside C counts as the block at the same place in C. The kernel then has the same statements
    with and without an addend, so gemm returns equal results in both cases.
    """
    starts: dict[tuple[object, ...], list[int]] = {}
    for i, (p, v) in enumerate(reads):
        key = (p.row, p.col, p.part) if p.name == ADDEND else (v.base, v.offset)
        starts.setdefault(key, []).append(i)
    keys = (((w.base, w.offset), *([(p.row, p.col, p.part)] if p.name == "C" else [])) for p, w in writes)
    return tuple((o, i) for o, found in enumerate(keys) for key in found for i in starts.get(key, ()))


def transposed_placed_view(placed: PlacedView) -> PlacedView:
    """Return the place and view of the same block in the transposed matrix."""
    p, v = placed
    return Place(p.name, p.col, p.row, p.cols, p.rows, p.part), transposed_view(v)


def as_real_array(x: BlockArray) -> BlockArray:
    """Return a complex array as an array of real numbers with twice the number of columns."""
    return x._replace(row=2 * x.row, down=2 * x.down, right=2 * x.right, cols=2 * x.cols, width=2 * x.width)


class BlockArrayFinder:
    """Finds few arrays that contain all blocks of a step of sums.

    An array is a grid of blocks of one matrix, a sequence of equal blocks at equal distances, or one block.
    """

    def __init__(self, placed: Sequence[PlacedView]) -> None:
        self.placed = placed
        self.arrays: list[BlockArray] = []
        # Indices of the arrays that may need no bounds checks: blocks of a temporary, equal blocks at equal distances,
        # and the real and imaginary parts of a single block.
        self.batches: list[int] = []
        self.parts: frozenset[int] = frozenset()  # indices of complex arrays whose parts are separate values
        self.block_indices: list[BlockIndex | None] = [None] * len(placed)

    def find_block_arrays(self) -> tuple[list[BlockArray], tuple[BlockIndex, ...], list[int]]:
        """Return the arrays, all `BlockIndex`es, and the indices of the arrays that may need no bounds checks."""
        by_matrix: dict[tuple[str, bool], list[int]] = {}
        for i, (place, _) in enumerate(self.placed):
            by_matrix.setdefault((place.name, place.part is not None), []).append(i)
        alone = [i for members in by_matrix.values() if not self._add_block_grid(members) for i in members]
        for run in self._runs_of_equal_blocks(sorted(alone)):
            self._add_array_of_equal_blocks(run)
        return self.arrays, tuple(s for s in self.block_indices if s is not None), self.batches

    def _add_block_grid(self, members: Sequence[int]) -> bool:
        """Append one array that contains these blocks of one matrix; return False if the blocks do not form a grid.

        Blocks form a grid if every block begins at a multiple of the block size, and if only blocks at the matrix's
        edges are smaller. A block may be empty only outside the matrix.
        """
        places = [self.placed[i][0] for i in members]
        height, width = max(max(p.rows for p in places), 1), max(max(p.cols for p in places), 1)
        rows, cols = max(p.row + p.rows for p in places), max(p.col + p.cols for p in places)
        single, parts = len({(p.row, p.col) for p in places}) < 2, places[0].part is not None
        if single and not parts:
            return False
        corners = [(-(-p.row // height), -(-p.col // width)) for p in places]
        for p, (i, j) in zip(places, corners, strict=True):
            size = min(height, rows - i * height), min(width, cols - j * width)
            if p.rows and p.cols:
                if p.row % height or p.col % width or size != (p.rows, p.cols):
                    return False
            elif min(size) > 0:
                return False
        place, view = self.placed[members[0]]
        steps = place.row * view.down + place.col * view.right + (place.part == "im")
        blocks = (0, 0) if single else (height * view.down, width * view.right)
        if place.name not in "ABC" or single:
            self.batches.append(len(self.arrays))
        if parts:
            self.parts |= {len(self.arrays)}
        offset = view.offset - steps * view.itemsize
        self.arrays.append(BlockArray(view.base, offset, *view.strides, *blocks, rows, cols, height, width))
        for i, p, corner in zip(members, places, corners, strict=True):
            self.block_indices[i] = BlockIndex(len(self.arrays) - 1, *corner, int(p.part == "im"))
        return True

    def _runs_of_equal_blocks(self, members: Sequence[int]) -> Iterator[list[int]]:
        """Yield sequences of equal blocks at equal distances, as lists of indices."""
        run: list[int] = []
        for i in members:
            if run and not self._continues_block_run(run, i):
                yield run
                run = []
            run.append(i)
        if run:
            yield run

    def _continues_block_run(self, run: Sequence[int], i: int) -> bool:
        """Return True if block i extends the sequence `run`: it has the same size, and all distances remain equal."""
        nearest = [self.placed[j][1] for j in (*run[:2], *run[-1:], i)]
        first, last = (distance_between_views(pair) for pair in (nearest[:2], nearest[-2:]))
        return last not in (None, 0) and (len(run) == 1 or first == last)

    def _add_array_of_equal_blocks(self, run: Sequence[int]) -> None:
        """Append one array to the arrays found so far: a sequence of equal blocks at equal distances, or one block."""
        views = [self.placed[i][1] for i in run]
        v, distance = views[0], distance_between_views(views) or 0
        array = BlockArray(v.base, v.offset, *v.strides, distance, 0, v.rows * len(run), v.cols, v.rows, v.cols)
        if len(run) > 1:
            self.batches.append(len(self.arrays))
        self.arrays.append(array)
        for layer, i in enumerate(run):
            self.block_indices[i] = BlockIndex(len(self.arrays) - 1, layer, 0)
