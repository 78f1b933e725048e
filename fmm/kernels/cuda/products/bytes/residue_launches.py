"""The launches of a product by residues: measuring, splitting, multiplying, joining."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.residues import remainder_weights
from fmm.kernels.cuda.device_code.entry_source import ENTRY
from fmm.kernels.cuda.kernel import Kernel
from fmm.kernels.cuda.launch_list import FLAG, Launch, Slot, Work
from fmm.kernels.cuda.products.bytes.residue_numbers import MOST_MODULI, Pieces, table_of_moduli
from fmm.kernels.cuda.products.bytes.residue_op import ResidueOp
from fmm.kernels.cuda.products.bytes.residue_side import WARP
from fmm.kernels.cuda.products.bytes.residues_source import (
    THREADS,
    join_source,
    join_whole_source,
    measure_source,
    neighbours,
    product_source,
    split_source,
)
from fmm.kernels.cuda.products.tiles.tiled import WIDE
from fmm.kernels.cuda.tensor_map import MAP_WORDS
from fmm.kernels.plans.memory_layout import whole

OPERAND_WORDS = 11  # of struct Operand


def residue_launches(op: ResidueOp, divides: Mapping[str, int], flagged: bool) -> tuple[Launch, ...]:
    """All launches of a product: exponents, then planes and their products by groups of moduli, then C.

    `divides`: by base, the power of two that divides its address; `flagged`: is a flag raised where an inf or NaN is
    stored in C?
    """
    aligned, exact = _aligned_sides(op, divides), DTYPES[op.dtype].exact
    launches = [measure_launch(op, aligned)] if _needs_measuring(op) else []
    first = 0
    for moduli in op.groups:
        if any(x.split_blocks for x in op.sides):
            launches.append(split_launch(op, aligned, moduli))
        launches.append(planes_launch(op, first, moduli))
        first += len(moduli)
    if not op.sends:
        launches.append(join_whole_launch(op) if exact else join_launch(op, flagged))
    return tuple(launches)


def kept_launches(op: ResidueOp, divides: Mapping[str, int]) -> tuple[tuple[Launch, ...], int]:
    """The launches that make what is kept of one operand, and the bytes of workspace that they need."""
    if not any(x.is_ready for x in op.sides):
        return (), 0
    left, right = (replace(x, is_ready=not x.is_ready) for x in op.sides)
    other_way_round, aligned = replace(op, left=left, right=right), _aligned_sides(op, divides)
    moduli = remainder_weights(op.geometry.moduli).moduli
    room = max(size for x, size in zip(op.sides, op.geometry.turned, strict=True) if x.is_ready)
    return (measure_launch(other_way_round, aligned), split_launch(other_way_round, aligned, moduli)), room


def _aligned_sides(op: ResidueOp, divides: Mapping[str, int]) -> tuple[bool, ...]:
    """Whether A, and whether B, begins where 16 bytes may be read at a time."""
    return tuple(divides[x.source.base] % WIDE == 0 for x in op.sides)


def _needs_measuring(op: ResidueOp) -> bool:
    """Is there an operand to be measured or turned?"""
    scaled = not DTYPES[op.dtype].exact
    return any(x.measure_kernel(False, scaled) is not None for x in op.sides)


def measure_launch(op: ResidueOp, aligned: tuple[bool, ...]) -> Launch:
    """The launch that finds exponents of both operands, and turns what is to be turned."""
    sides = op.sides
    scaled = not DTYPES[op.dtype].exact
    kernels = [x.measure_kernel(wide, scaled) for x, wide in zip(sides, aligned, strict=True)]
    blocks = [x.measure_blocks(kernel) for x, kernel in zip(sides, kernels, strict=True)]
    parameters = b"".join(x.parameters(count) for x, count in zip(sides, blocks, strict=True))
    kernel = Kernel(measure_source, (*kernels, op.dtype), ENTRY, THREADS, architecture="sm_90a")
    slots = (*op.left.slots(0), *op.right.slots(OPERAND_WORDS))
    label = "residue_planes: " + ("how large A's rows and B's columns are" if scaled else "turns what is to be turned")
    return Launch("sums", label, kernel, (sum(blocks), 1, 1), parameters, slots)


def split_launch(op: ResidueOp, aligned: tuple[bool, ...], moduli: tuple[int, ...]) -> Launch:
    """The launch that makes the planes of both operands modulo these numbers."""
    sides, g = op.sides, op.geometry
    wide = tuple(x.splits_wide(each) for x, each in zip(sides, aligned, strict=True))
    parameters = b"".join(x.parameters(x.split_blocks) for x in sides) + table_of_moduli(moduli)
    parameters += struct.pack("<i", len(moduli))
    kernel = Kernel(split_source, (g.levels, *wide, op.dtype), ENTRY, THREADS)
    slots = (*op.left.slots(0), *op.right.slots(OPERAND_WORDS))
    sums = f", sums of {'two levels' if g.levels == 2 else 'a level'} of Strassen's algorithm" if g.levels else ""
    label = f"residue_planes: residues of A and B modulo {len(moduli)} numbers{sums}"
    grid = sum(x.split_blocks for x in sides), 1, 1
    return Launch("sums", label, kernel, grid, parameters + bytes(-len(parameters) % WIDE), slots)


def planes_launch(op: ResidueOp, first: int, moduli: tuple[int, ...]) -> Launch:
    """The launch that multiplies the planes modulo these numbers, of which the first is number `first` of all."""
    product = op.product(first, len(moduli))
    words = [i * MAP_WORDS for i in range(len(product.maps))]
    slots = tuple(Slot(word, x.piece.base, x.piece.offset) for word, x in zip(words, product.maps, strict=True))
    parameters = product.parameters + table_of_moduli(moduli) + struct.pack("<i", op.geometry.products)
    parameters += bytes(-len(parameters) % 64)
    s = product.kernel.sizes
    does: Work = "product" if op.sends else "sums"
    kernel = Kernel(product_source, (product.kernel,), ENTRY, s.threads, product.kernel.shared, architecture="sm_90a")
    count = f"{product.count} product{'s' * (product.count > 1)}"
    products = f"{op.dtype} by {count}" if op.sends else f"{product.count} products"
    products += ", the lower half" if op.lower else ""
    label = f"gemm_residues: {products} of bytes, tiles of {s.m_s} x {s.n_s}, clusters of {s.cluster}"
    maps = tuple(zip(words, product.maps, strict=True))
    return Launch(does, label, kernel, product.grid, parameters, slots, maps)


def join_launch(op: ResidueOp, flagged: bool) -> Launch:
    """The launch that makes C of its planes, of float64 or float32."""
    g, pieces = op.geometry, Pieces(op.geometry.moduli, op.geometry.levels)
    parameters = _result_bytes(op) + struct.pack("<3q2d", 0, 0, 0, op.factor, op.keep) + pieces.packed
    slots = [*_result_slots(op), *(Slot(7 + i, x.base, x.exponents) for i, x in enumerate(op.sides))]
    slots += [Slot(9, FLAG)] if flagged else []
    kernel = Kernel(join_source, (g.levels, g.moduli, pieces.count, op.dtype), ENTRY, THREADS)
    label = f"residue_join: {op.dtype} by {g.moduli} products of 8-bit integers"
    return Launch("product", label, kernel, _join_grid(op), parameters, tuple(slots))


def join_whole_launch(op: ResidueOp) -> Launch:
    """The launch that makes C of its planes, of integers."""
    g, numbers = op.geometry, remainder_weights(op.geometry.moduli)
    spare = [0] * (MOST_MODULI - g.moduli)
    weights = [w % 2**64 for w in numbers.weights] + spare
    shares = [w / numbers.product for w in numbers.weights] + spare
    scalars = struct.pack("<2q", int(op.factor), int(op.keep))
    parameters = _result_bytes(op) + scalars + struct.pack("<21Q20d", numbers.product % 2**64, *weights, *shares)
    kernel = Kernel(join_whole_source, (g.levels, g.moduli, op.dtype), ENTRY, THREADS)
    label = f"residue_join: {op.dtype} by {g.moduli} products of 8-bit integers"
    return Launch("product", label, kernel, _join_grid(op), parameters, _result_slots(op))


def _result_bytes(op: ResidueOp) -> bytes:
    """struct Result of residue_join.cuh, addresses zero."""
    g, (rows, _, columns) = op.geometry, op.geometry.block
    return struct.pack("<4q6i", 0, 0, op.dest.leading, op.dest.stride, g.m, g.n, g.count, rows, columns, op.lower)


def _result_slots(op: ResidueOp) -> tuple[Slot, ...]:
    return Slot(0, op.dest.base, op.dest.offset), Slot(1, "W", op.planes)


def _join_grid(op: ResidueOp) -> tuple[int, int, int]:
    g, (rows, _, columns) = op.geometry, op.geometry.block
    threads = g.count * rows * (columns // neighbours(op.dtype))
    threads = 4 * whole(threads, WARP) if g.levels == 2 else threads  # a warp for each block of the outer level
    return -(-threads // THREADS), 1, 1
