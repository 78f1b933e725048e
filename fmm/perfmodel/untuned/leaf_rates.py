"""How fast leaves with rates of their own multiply on a GPU of which only the datasheet is known.

Each follows from the vendor's rates there and the bytes a second that sums move, by what was measured on an H200.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from fmm.dtypes import DTYPES, INTEGERS
from fmm.hardware.datasheets import Device
from fmm.kernels.cuda.products.kernel_sizes import VENDOR_PIECE
from fmm.kernels.cuda.products.small_tiles import SMALL_BLOCKS_PER_SM, SMALL_TILE
from fmm.kernels.leaves import F16X3_RATE, SMALL_RATE
from fmm.kernels.plans.leaf import ending_rows
from fmm.kernels.plans.levels.residue_room import PRODUCTS
from fmm.kernels.plans.levels.residues import residue_endings
from fmm.perfmodel.calibration import Rate

WARPGROUPS = "9.0"  # the compute capability that has the kernels of three float16 products and of products of bytes
# From this compute capability on, float32 numbers can be split in two of float16, whose products the vendor makes.
PAIRS = 8.0
# How a GPU is filled by products: C is computed in tiles of SIDE rows and columns, one multiprocessor has TILE entries
# of C at a time, and with FILLED tiles for each of them the device is busy for all but half of one tile's time.
SIDE, TILE, FILLED = 128.0, 128 * 128, 8
PIPE = 32.0  # with so many steps along the inner dimension, half of a product's time is start-up

# ---- one half, by the leaf `small`

# Seconds in which a thread block goes through SMALL_TILE steps of the inner dimension, where its multiprocessor has
# another one too. (Of what 512 rows and columns take on an H200, but for the launch: 26 us in float32 and bfloat16, 37
# us in float64.)
SMALL_STEPS = {"float64": 2.07e-6, "float32": 1.38e-6, "float16": 1.38e-6, "bfloat16": 1.38e-6}

# ---- float32 by three products of float16

# Steps along the inner dimension that a tile takes to begin and to end, while nothing is multiplied. (An H200: 7 us a
# tile, 0.9 us for 64 steps; there are tiles of half the width too, so that half as many fill the device.)
THREE_PIPE = 512.0
# Seconds that it starts with beside that; and its rate while it multiplies, as a multiple of a third of the vendor's in
# float16. (Settled with the tiles' times, see work/plane_rounds.py.)
THREE_START, FULL_THREE = 7.7e-6, 1.08
# A factor on the time of seven or 49 of them as a batch. (On an H200 one level is predicted to take 5 % too long by it,
# and two as long as they do; three levels of small products take 27 % longer.)
THREE_BATCH = 1.08
# What one half takes, very large, as a share of the whole product; and how many rows take as long again.
HALF_OF_THREE = 0.5, 256.0
FILLS_ANEW = 12  # where the vendor multiplies the planes, so many times as much of C fills the device

# ---- float64 and integers by residues

LONG = 8192  # the inner dimension for which moduli are counted
# Bytes in whose time a number is split, and one is joined, by levels below, beside the time of the residues themselves.
# (An H200 at 8192, of float64; with two levels there are few registers for many sums.) So many bytes less for every
# byte by which a number is shorter: numbers of A and B are read twice or thrice, those of C are written.
SPLIT_BYTES, JOIN_BYTES = (28.0, 28.0, 59.0), (33.0, 45.0, 162.0)
SPLIT_LESS, JOIN_LESS = 2.5, 1.0
# Seconds that such a product takes beside what grows with its sides, by levels below. (Of 14 products on an H200; with
# two levels a guess.) A level halves what its products have of the inner dimension: those of bytes lose 13, 5 and 0 %
# of their rate at 2048, 4096 and 8192.
RESIDUE_STARTS, LEVEL_PIPE = (25e-6, 135e-6, 250e-6), 200.0
# Columns of a tile of bytes. (There are narrower ones, of which two take longer than one such; with these alone
# products whose last tile is half empty were predicted to take 10 to 25 % less than they do.)
BYTES_WIDTH = 256.0
HALF_OF_PLANES = 0.55, 256.0  # as HALF_OF_THREE, splitting and joining in it
# How fast the library's own kernels multiply integers, beside the vendor's rate in float32, by the bytes of a number.
# (cupy.matmul on an H200.)
OWN_LOOPS = {1: 0.45, 2: 0.4, 4: 0.4, 8: 0.1}


def own_leaf_rates(gpu: Device, rates: Mapping[str, Rate], stream: float) -> dict[str, Rate]:
    """Of all leaves that such a GPU has, and of integers, by the names that they have in a calibration."""
    found = {SMALL_RATE.format(t): _small_halves(gpu, seconds) for t, seconds in SMALL_STEPS.items() if t in rates}
    if gpu.capability == WARPGROUPS:
        found[F16X3_RATE] = _three_by_own_kernel(rates["float16"], stream, gpu.sms)
        found |= dict(_integers(rates))
        found |= dict(_by_residues(rates["float16"], stream))
    elif "float16" in rates and float(gpu.capability) >= PAIRS:
        planes = planes_by_vendor(rates["float16"], stream)
        if planes.flops > rates["float32"].flops:
            found[F16X3_RATE] = planes
    return found


def _small_halves(gpu: Device, seconds: float) -> Rate:
    """A half by the leaf `small`: tiles on and below the diagonal, each by one thread block, as many at a time as all
    multiprocessors have."""
    at_once = 2 * SMALL_BLOCKS_PER_SM * gpu.sms  # of tiles on both sides of the diagonal, of which half is computed
    flops = at_once * SMALL_TILE**3 / seconds
    return Rate(flops, 0.0, 0.0, tile=SMALL_TILE, slots=at_once, half_by_tiles=0.5)


def _three_products(half: Rate, stream: float) -> Rate:
    """float32 by three float16 products, each as fast as the vendor's; before, every number is read twice and written
    once, by which time is lost that grows as the operands, and not as their product."""
    flops, split = half.flops / 3, 3 * DTYPES["float32"].itemsize / stream
    lost = split * flops / DTYPES["float32"].flops
    slots = half.fill / TILE * FILLED / 2
    share, edge = HALF_OF_THREE
    found = Rate(flops, half.fill, THREE_PIPE, lost, lost, batch=THREE_BATCH, tile=SIDE, slots=slots)
    return replace(found, half_by_tiles=share, half_edge=edge)


def _three_by_own_kernel(half: Rate, stream: float, blocks: int) -> Rate:
    """The same in whole rounds of the kernel's own tiles."""
    own = _three_products(half, stream)
    faster = {name: FULL_THREE * getattr(own, name) for name in ("flops", "rows", "cols", "half_by_tiles")}
    return replace(own, **faster, start=THREE_START, blocks=float(blocks))


def planes_by_vendor(half: Rate, stream: float) -> Rate:
    """The same where the vendor multiplies: all of C is read and written for every piece of the inner dimension, and
    each of its calls fills the device anew. (This way takes an H200 0.61, 1.79 and 2.21 times less than SGEMM at 1024,
    4096 and 8192; the formula says 0.6, 1.7 and 2.0.)"""
    own, flop = _three_products(half, stream), 3 / half.flops + DTYPES["float32"].itemsize / (VENDOR_PIECE * stream)
    lost = own.rows / (flop * own.flops)
    own = replace(own, half_by_tiles=1.0, half_edge=0.0)
    return replace(own, flops=1 / flop, fill=FILLS_ANEW * half.fill, pipe=PIPE, rows=lost, cols=lost, slots=0.0)


def _residue_products(half: Rate, stream: float, moduli: int, levels: int, item: int = 8) -> Rate:
    """Numbers of so many bytes by products of bytes, which are twice as fast as those of float16, one for each modulus
    (and fewer with levels below). Numbers of A and B are read and perhaps turned, read again, and written as residues;
    those of C are read as such, and written: time that grows as the operands, and as C."""
    flops = 2 * half.flops / moduli * (8 / PRODUCTS) ** levels
    planes = moduli * (PRODUCTS / 4) ** levels
    lost = flops / DTYPES["float64"].flops / stream
    split = (SPLIT_BYTES[levels] - SPLIT_LESS * (8 - item) + planes) * lost
    join = (JOIN_BYTES[levels] - JOIN_LESS * (8 - item) + planes) * lost
    pipe, slots = join + levels * LEVEL_PIPE, half.fill / TILE * FILLED / 2
    start, width = RESIDUE_STARTS[levels], BYTES_WIDTH
    found = Rate(flops, half.fill, pipe, split, split, tile=SIDE, width=width, slots=slots, start=start)
    share, edge = (1.0, 0.0) if levels else HALF_OF_PLANES
    return replace(found, half_by_tiles=share, half_edge=edge)


def _by_residues(half: Rate, stream: float) -> Iterator[tuple[str, Rate]]:
    """Of every row of residues, by the name that it has in a calibration; of integers modulo as many numbers as long
    products of their type need."""
    for row in ending_rows():
        if (found := residue_endings().get(row.name)) is not None:
            for name in (*row.types.below, *row.types.alone):
                moduli, itemsize = found.level.moduli_for(name, LONG), DTYPES[name].itemsize
                yield row.time.rate.format(name), _residue_products(half, stream, moduli, found.depth, itemsize)


def _integers(rates: Mapping[str, Rate]) -> Iterator[tuple[str, Rate]]:
    """Integers by the library's own kernels."""
    for name in INTEGERS:
        flops = rates["float32"].flops * OWN_LOOPS[DTYPES[name].itemsize]
        yield name, Rate(flops, rates["float16"].fill, PIPE, tile=SIDE)
