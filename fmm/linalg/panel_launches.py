"""CUDA launches of solvers: LU factors of panels (lu_panel.cuh), inverses of blocks (triangular_inverse.cuh).

The kernel for panels needs clusters of 16 thread blocks, which GPUs of compute capability 9.0 support.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from fmm.kernels.cuda.device_code.entry_source import entry_source
from fmm.kernels.cuda.launch_list import AddressSlot, Kernel, Launch

CPP_NUMBERS = {"float32": "float", "float64": "double"}
ITEM_BYTES = {"float32": 4, "float64": 8}
CLUSTER = 16  # thread blocks of a cluster
FACTOR_THREADS = 512
ROW_CAPACITY = CLUSTER * FACTOR_THREADS  # rows of a panel in which each thread has one row
MAX_ROWS_PER_THREAD = 4
TILE, TILE_THREADS = 64, 256  # as in lu_panel.cuh
SWAP_COLUMNS, SWAP_THREADS = 32, 256
INVERTED_SIDE, INVERSE_THREADS = 128, 256  # rows of the blocks that one kernel inverts; threads of a thread block
NON_PORTABLE_CLUSTER_ATTRIBUTE = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
REGISTER_BYTES = 256  # bytes of registers in which a thread holds its rows

JOIN_TILE, JOIN_THREADS = 64, 256  # as in triangular_inverse.cuh

PANEL, PIVOTS, MATRIX, INVERSES, SCRATCH, ROWS = "panel", "pivots", "matrix", "inverses", "scratch", "rows"


class PanelShape(NamedTuple):
    """A panel of a matrix: its size, its strides in elements, and its element type."""

    rows: int
    columns: int
    row_step: int
    column_step: int
    dtype: str


def rows_per_thread(rows: int) -> int:
    """Return the number of rows of a panel that each thread holds in its registers: 1, 2 or 4."""
    return 1 if rows <= ROW_CAPACITY else 2 if rows <= 2 * ROW_CAPACITY else 4


def block_width(rows: int, dtype: str) -> int:
    """Return the number of columns of a panel that one launch factors in registers."""
    return min(32, REGISTER_BYTES // (ITEM_BYTES[dtype] * rows_per_thread(rows)))


def panel_launches(shape: PanelShape) -> Iterator[Launch]:
    """Yield the launches that factor a panel in place, and write the pivots, counted from the panel's first row."""
    rows, columns, *_, dtype = shape
    first = 0
    while first < columns:
        block = block_width(rows - first, dtype)
        width = min(block, columns - first)
        yield _factor_launch(shape, first, width, block)
        if width < columns:
            yield _row_exchange_launch(shape, first, width, block)
        if first + width < columns:
            yield _product_launch(shape, first, width, block)
        first += width


def _factor_launch(shape: PanelShape, first: int, width: int, block: int) -> Launch:
    each = rows_per_thread(shape.rows - first)
    # Bytes of struct BlockMemory of lu_panel.cuh. The struct has 33 BestRow structs (32 received, 1 sent), entries of U
    # and L, barriers, a pivot candidate of each warp, and the pivots. A BestRow has 16 bytes and one row of the block
    # of columns.
    item = ITEM_BYTES[shape.dtype]
    shared = 33 * (16 + block * item) + (block * block + each * FACTOR_THREADS * (block + 1)) * item
    shared += 16 + FACTOR_THREADS // 32 * 12 + 4 * block + 64
    kernel = Kernel(factor_source, (shape.dtype, block, each), "fmm_lu_factor", FACTOR_THREADS, shared)
    return _panel_launch("factor_block", kernel, (CLUSTER, 1, 1), shape, first, width)


def _row_exchange_launch(shape: PanelShape, first: int, width: int, block: int) -> Launch:
    kernel = Kernel(row_exchange_source, (shape.dtype, block), "fmm_lu_swap", SWAP_THREADS)
    return _panel_launch("swap_and_solve", kernel, (-(-shape.columns // SWAP_COLUMNS), 1, 1), shape, first, width)


def _product_launch(shape: PanelShape, first: int, width: int, block: int) -> Launch:
    kernel, end = Kernel(product_source, (shape.dtype, block), "fmm_lu_product", TILE_THREADS), first + width
    tiles = -(-(shape.rows - end) // TILE) * -(-(shape.columns - end) // TILE)
    return _panel_launch("subtract_product", kernel, (tiles, 1, 1), shape, first, width)


def _panel_launch(
    label: str, kernel: Kernel, grid: tuple[int, int, int], shape: PanelShape, first: int, width: int
) -> Launch:
    rows, columns, row_step, column_step, _ = shape
    parameters = struct.pack("<4q4i", 0, 0, row_step, column_step, rows, columns, first, width)
    return Launch("product", label, kernel, grid, parameters, (AddressSlot(0, PANEL), AddressSlot(1, PIVOTS)))


def factor_source(dtype: str, width: int, rows: int) -> str:
    """Return the CUDA source of the kernel that factors a block of columns in one cluster."""
    number = CPP_NUMBERS[dtype]
    body = (
        "extern __shared__ float4 memory[];",
        f"fmm::lu::factor_block<{number}, {width}, {rows}, {FACTOR_THREADS}, {CLUSTER}>(p, memory);",
    )
    return entry_source(
        f"fmm::lu::Panel<{number}>",
        body,
        "lu_panel.cuh",
        (FACTOR_THREADS, 1),
        clusters=CLUSTER,
        entry="fmm_lu_factor",
    )


def row_exchange_source(dtype: str, width: int) -> str:
    """Return the CUDA source of the kernel that exchanges rows in the columns outside a factored block of columns."""
    number = CPP_NUMBERS[dtype]
    body = f"__shared__ fmm::lu::SolveMemory<{number}, {width}> memory;", "fmm::lu::swap_and_solve(p, memory);"
    return entry_source(f"fmm::lu::Panel<{number}>", body, "lu_panel.cuh", (SWAP_THREADS,), entry="fmm_lu_swap")


def product_source(dtype: str, width: int) -> str:
    """Return the CUDA source of the kernel that updates the columns right of a block."""
    number = CPP_NUMBERS[dtype]
    body = f"__shared__ fmm::lu::ProductMemory<{number}, {width}> memory;", "fmm::lu::subtract_product(p, memory);"
    return entry_source(f"fmm::lu::Panel<{number}>", body, "lu_panel.cuh", (TILE_THREADS,), entry="fmm_lu_product")


def moved_row_indices_launch(count: int, origin: int) -> Launch:
    """Return the launch that writes the new indices of all rows that `count` exchanges move, and then the old indices.

    `origin` is the value of a pivot that means the first row.
    """
    kernel = Kernel(moved_row_indices_source, (), "fmm_lu_trace", TILE_THREADS)
    slots = AddressSlot(0, PIVOTS), AddressSlot(1, ROWS), AddressSlot(2, ROWS, 16 * count)
    parameters = struct.pack("<3q2i", 0, 0, 0, count, origin)
    return Launch("product", "trace_rows", kernel, (-(-2 * count // TILE_THREADS), 1, 1), parameters, slots)


def moved_row_indices_source() -> str:
    """Return the CUDA source of the kernel that finds the old places of exchanged rows."""
    body = "__shared__ int pivots[fmm::lu::TILE_THREADS];", "fmm::lu::trace_rows(p, pivots);"
    return entry_source("fmm::lu::Exchanges", body, "lu_panel.cuh", (TILE_THREADS,), entry="fmm_lu_trace")


# ---- inverses of triangular blocks


class BlockTriangularMatrix(NamedTuple):
    """A triangular matrix, its diagonal blocks of `side` rows, and the stack of the blocks' inverses.

    The inverses of smaller diagonal blocks, of `known_side` rows, have been written before; 0 means that no inverse has
    been written.
    """

    rows: int
    row_step: int
    column_step: int
    dtype: str
    stacked_side: int  # rows of a stacked matrix; larger than `side` only for a single block
    side: int
    known_side: int
    is_lower: bool
    is_unit: bool


def inverse_launches(form: BlockTriangularMatrix) -> Iterator[Launch]:
    """Yield the launches that write the inverses: first of small blocks, then of blocks with twice the side, and so on.

    If the inverses of blocks of `known_side` rows have been written, the launches begin with blocks of twice this side.
    """
    if not form.known_side:
        yield _small_inverse_launch(form)
    small = form.known_side or INVERTED_SIDE
    while small < form.side:
        yield from _merge_inverses_launches(form, small)
        small *= 2


def scratch_entry_count(form: BlockTriangularMatrix) -> int:
    """Return the number of matrix entries in the scratch memory of `inverse_launches`."""
    return form.rows * form.side // 4


def _small_inverse_launch(form: BlockTriangularMatrix) -> Launch:
    """Return the launch that writes the inverses of all blocks of INVERTED_SIDE rows."""
    numbers = INVERTED_SIDE * (INVERTED_SIDE + 1) + INVERTED_SIDE // 2 * (INVERTED_SIDE // 2 + 1)
    shared = numbers * ITEM_BYTES[form.dtype]
    kernel = Kernel(inverse_source, (form.dtype,), "fmm_invert_blocks", INVERSE_THREADS, shared)
    parameters = struct.pack(
        "<4q4i", 0, 0, form.row_step, form.column_step, form.stacked_side, form.is_lower, form.is_unit, 0
    )
    slots = AddressSlot(0, MATRIX), AddressSlot(1, INVERSES)
    return Launch("product", "invert_blocks", kernel, (form.rows // INVERTED_SIDE, 1, 1), parameters, slots)


def _merge_inverses_launches(form: BlockTriangularMatrix, small: int) -> Iterator[Launch]:
    """Yield the launches that invert blocks [[A, 0], [C, B]] from the inverses of A and B, which have `small` rows.

    For each block, the launches compute T = C A^-1, and X = -B^-1 T, the lower left part of the block's inverse.
    """
    item, pairs, count = ITEM_BYTES[form.dtype], form.side // (2 * small), form.rows // form.side
    of_matrix, of_inverses = (form.row_step, form.column_step), (form.stacked_side, 1)
    if not form.is_lower:  # the strides are exchanged, since the transposed matrix is lower triangular
        of_matrix, of_inverses = of_matrix[::-1], of_inverses[::-1]

    def steps(row: int, column: int, block: int) -> tuple[int, ...]:
        return row, column, 2 * small * (row + column), block

    matrix = steps(*of_matrix, form.side * sum(of_matrix))
    inverses = steps(*of_inverses, form.stacked_side**2)
    scratch = small, 1, small**2, pairs * small**2
    below, inverse_below = item * small * of_matrix[0], item * small * of_inverses[0]
    second = item * small * sum(of_inverses)
    kernel = Kernel(merge_inverses_source, (form.dtype,), "fmm_multiply_blocks", JOIN_THREADS)
    grid = count * pairs * (small // JOIN_TILE) ** 2, 1, 1
    for (left, right, dest), all_steps, sign in (
        (((MATRIX, below), (INVERSES, 0), (SCRATCH, 0)), (matrix, inverses, scratch), 1),
        (((INVERSES, second), (SCRATCH, 0), (INVERSES, inverse_below)), (inverses, scratch, inverses), -1),
    ):
        flat = [step for operand in all_steps for step in operand]
        parameters = struct.pack("<15q4i", 0, 0, 0, *flat, small, pairs, sign < 0, sign)
        slots = tuple(AddressSlot(i, *place) for i, place in enumerate((left, right, dest)))
        yield Launch("product", "multiply_blocks", kernel, grid, parameters, slots)


def merge_inverses_source(dtype: str) -> str:
    """Return the CUDA source of the kernel that multiplies pairs of blocks."""
    number = CPP_NUMBERS[dtype]
    memory = f"__shared__ fmm::triangular::ProductMemory<{number}> memory;"
    body = memory, "fmm::triangular::multiply_blocks(p, memory);"
    parameters = f"fmm::triangular::BlockProducts<{number}>"
    return entry_source(parameters, body, "triangular_inverse.cuh", (JOIN_THREADS,), entry="fmm_multiply_blocks")


def inverse_source(dtype: str) -> str:
    """Return the CUDA source of the kernel that inverts blocks."""
    number = CPP_NUMBERS[dtype]
    body = (
        "extern __shared__ float4 memory[];",
        f"{number}* const numbers = reinterpret_cast<{number}*>(memory);",
        f"fmm::triangular::invert_blocks<{number}, {INVERTED_SIDE}, {INVERSE_THREADS}>(p, numbers);",
    )
    parameters = f"fmm::triangular::DiagonalBlocks<{number}>"
    return entry_source(parameters, body, "triangular_inverse.cuh", (INVERSE_THREADS,), entry="fmm_invert_blocks")


# ---- launching


@lru_cache(maxsize=2048)
def _panel_launch_sequence(shape: PanelShape, device: int) -> Any:
    from cupy_backends.cuda.api import driver

    from fmm.kernels.cuda.launch.player import LaunchSequence

    sequence = LaunchSequence(list(panel_launches(shape)), device)
    for call in sequence.calls:
        if call.launch.label == "factor_block":
            driver.funcSetAttribute(call.function, NON_PORTABLE_CLUSTER_ATTRIBUTE, 1)
    return sequence


@lru_cache(maxsize=256)
def _inverse_launch_sequence(form: BlockTriangularMatrix, device: int) -> Any:
    from fmm.kernels.cuda.launch.player import LaunchSequence

    return LaunchSequence(list(inverse_launches(form)), device)


def factor_panel(shape: PanelShape, panel: int, pivots: int, device: int, stream: int) -> None:
    """Factor a panel in place; `panel` and `pivots` are device addresses."""
    _panel_launch_sequence(shape, device).launch_all({PANEL: panel, PIVOTS: pivots}, stream)


def invert_blocks(
    form: BlockTriangularMatrix, matrix: int, inverses: int, scratch: int, device: int, stream: int
) -> None:
    """Write the inverses of all blocks on the diagonal; `matrix`, `inverses` and `scratch` are device addresses."""
    sequence = _inverse_launch_sequence(form, device)
    sequence.launch_all({MATRIX: matrix, INVERSES: inverses, SCRATCH: scratch}, stream)


@lru_cache(maxsize=2048)
def _moved_row_indices_sequence(count: int, origin: int, device: int) -> Any:
    from fmm.kernels.cuda.launch.player import LaunchSequence

    return LaunchSequence([moved_row_indices_launch(count, origin)], device)


def list_moved_row_indices(count: int, origin: int, pivots: int, rows: int, device: int, stream: int) -> None:
    """Write to `rows`, as int64, the new places and then the old places of the rows that `count` exchanges move.

    The exchanges move at most 2 * count rows. `pivots` and `rows` are device addresses.
    """
    _moved_row_indices_sequence(count, origin, device).launch_all({PIVOTS: pivots, ROWS: rows}, stream)
