"""Default calibrations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from fmm.dtypes import DTYPES, INTEGERS
from fmm.hardware.datasheets import Device, device
from fmm.kernels.algorithms.digits import RELATIVE_TIME, any_digits
from fmm.kernels.cpu.thread_pool import MAX_SUM_THREADS as SUM_THREADS
from fmm.kernels.cuda.products.kernel_sizes import VENDOR_PIECE
from fmm.kernels.cuda.products.small_tiles import SMALL_BLOCKS_PER_SM, SMALL_TILE
from fmm.kernels.leaves import DIGITS_RATE, F16X3_RATE, SMALL_RATE
from fmm.kernels.plans.leaf import ending_rows
from fmm.kernels.plans.levels.residue_room import PRODUCTS
from fmm.kernels.plans.levels.residues import residue_endings
from fmm.kernels.registry import depends_on_rows
from fmm.perfmodel.calibration import Calibration, Rate

# Flops that BLAS does while the sums move a byte. Two cores of a current server give 9 (float64) and 18 (float32); set
# higher, so that a plan is chosen only where it pays on machines with slow memory too.
FLOPS_PER_BYTE = {"float64": 14.0, "float32": 28.0, "complex128": 14.0, "complex64": 28.0}
# Nominal: only ratios matter to a choice. Bytes/s that the sums of one thread move.
CPU_STREAM = 10e9
# NumPy's loops over every second number do not use vectors: two cores with AVX-512 reach 0.49 to 0.73 of the rate.
CPU_PARTS = 0.5
# Syrk's time, with our mirror, as a share of gemm's: float64 0.545 and 0.51 at 4096 and 8192, float32 0.65 at 4096.
CPU_HALF = {"float64": 0.53, "float32": 0.65}
BUILT_IN_SOURCE = "built-in recursion point, device not tuned"


def cpu_calibration(threads: int) -> Calibration:
    """The built-in calibration of a CPU: conservative ratios, nominal seconds."""
    rates = {
        t: Rate(r * CPU_STREAM * threads, 64.0**2, 32.0, half=CPU_HALF.get(t, Rate.half))
        for t, r in FLOPS_PER_BYTE.items()
    }
    stream = CPU_STREAM * min(threads, SUM_THREADS)
    name = f"cpu, {threads} threads"
    return Calibration(name, BUILT_IN_SOURCE, MappingProxyType(rates), stream, 1e6, 20e-6, parts=CPU_PARTS)


# NumPy's own loops over integers: flops a second of one thread, whatever the type and however many threads there are.
LOOP_FLOPS = 2e9
NOMINAL = 2.0  # how many times as fast as such a server are the built-in rates
# A digit product's terms beside BLAS's: to cut a number of A or B into planes, and to add one to C, take as long as so
# many multiply-adds.
CUTTING, ADDED = 40.0, 90.0


@lru_cache(maxsize=64)
def with_integer_rates(found: Calibration) -> Calibration:
    """A CPU's calibration with what its rates of floating point numbers say of integers: NumPy multiplies these in a
    loop, and products of digits take as long as BLAS's."""
    rates, loop = dict(found.rates), LOOP_FLOPS * (NOMINAL if found.source == BUILT_IN_SOURCE else 1.0)
    for name in INTEGERS:
        way, _ = any_digits(8 * DTYPES[name].itemsize, 1024)
        base = found.find_rate(way.real) or found.find_rate("float64") or found.find_rate("float32")
        if base is None:
            continue
        times = way.count * (RELATIVE_TIME[way.real] if way.real not in found.rates else 1.0)
        digits = Rate(base.flops / times, base.fill, base.pipe + ADDED, base.rows + CUTTING, base.cols + CUTTING)
        rates |= {name: Rate(loop, 0.0, 0.0), DIGITS_RATE.format(name): digits}
    return replace(found, rates=MappingProxyType(rates))


# What plans in lanes cost two cores with AVX-512, in seconds: to hand a step to a thread, to begin and to end, and
# OpenBLAS's other thread, which spins for 2^28 ticks after a product: a tenth of a second of half a core.
HAND_OVER, IDLE, SPIN = 1e-4, 0.008, 0.025


def with_concurrent_products(found: Calibration, lanes: int) -> Calibration:
    """The same CPU where plans run so many products at a time: guesses, from which a fit begins."""
    return replace(found, lanes=lanes, launch=HAND_OVER, idle=IDLE, spin=SPIN) if lanes > 1 else found


# Shares of the printed peaks that the vendor's product and sums reach on large problems. On an H200: float32 0.76 to
# 0.80, float64 0.80 to 0.94, bfloat16 0.70 to 0.78, TF32 0.68 to 0.73 of the peak; splits 0.65 to 0.8 and joins 0.77 to
# 0.87 of the bandwidth.
PRODUCT_SHARES = {"bfloat16": 0.72, "float16": 0.72, "tf32": 0.7}
PRODUCT_SHARE = 0.8
STREAM_SHARE = 0.75
MARGIN = 0.03  # nothing of this device was measured
LEAST = 512.0
LAUNCH = 4e-6
# On the hosts of three H200s a call of torch's or CuPy's is back after 13 to 23 us where the vendor multiplies, after
# 43 to 60 where another leaf does. By a plan with levels it is back after 60 to 74 us where its launches are made one
# by one, which only the first few calls are; where they are replayed as a graph, after 17 to 31 us with all in its old
# place, after 35 to 60 with operands elsewhere (the table `host` of results/nvidia-h200/host.json). No tuning measures
# these: on a slower host, choices of products that take less than 0.1 ms may be poorer.
CALL_OF_LIBRARY, CALL, CALL_OF_LEAF = 18e-6, 40e-6, 40e-6
# There a recurring call of fmm.gram was back after 17 to 30 us where the leaf `small` multiplies 64 or 256 rows, and
# after 66 to 78 us by cuBLAS's syrk, of which the device worked for 42 (results/nvidia-h200/host-transposed.json, 1024
# rows of float64, the lower half).
CALL_OF_SMALL = 25e-6
OVERLAP = 0.25  # on an H200: an outer level that is overlapped gains 1 to 5 % of the time
# Products of rows that are not aligned, against those of aligned ones, on an H200; and TF32's products in a batch.
UNALIGNED = {"float16": 3.5, "bfloat16": 3.5, "float64": 1.4, "float32": 1.05, "tf32": 2.1, "complex128": 1.2}
ODD = {"float16": 5.7, "bfloat16": 5.7}
BATCH = {"tf32": 1.12}
# Types of which the vendor's rounds show. (An H200: with them float32's middling and thin products, which no fit saw,
# are off by 3 % at the median and 7 % at three quarters, without them by 5 and 10 %; those of float64 and bfloat16 are
# off as much as without them.)
IN_ROUNDS = ("float32",)
# Syrk's time as a share of gemm's, on an H200 at 8192 (of float64 more at 16384: 0.63).
HALF = {"float32": 0.51, "float64": 0.57}
# With short inner dimensions it is another kernel: in float32 3020 rows of 170 numbers and 3932 of 72 took 2.2 and 2.4
# times as long by it, mirror and all, as by gemm, or a third of gemm's rate both times. In float64, of which 16933 rows
# of 355 numbers took 1.4 times less, shorter ones were not measured: it is taken to be no faster than gemm.
HALF_LEAST, HALF_BELOW = 256.0, {"float32": 2.0}
# How many rows of several halves cost as much again. (0.65 and 0.69 of gemm's time there of 4096 and 2048 rows.)
HALF_APART = {"float32": 800.0}
# The same by our own tiles, of very large ones, and how many rows cost as much again: of bfloat16 0.65, 0.52 and 0.53
# of gemm's time at 4096, 8192 and 16384 there, of float64 0.58 at 8192 and 16384, and, by what cuts of these take more
# with it than with syrk, some 0.75 of four times 2048 rows and 0.9 of sixteen times 1024.
# (In float32 0.52 of it where two of 4096 rows read a copy that lies as the kernel wants it.)
HALF_BY_TILES = {
    "float32": (0.49, 256.0),
    "float64": (0.55, 600.0),
    "float16": (0.5, 800.0),
    "bfloat16": (0.5, 800.0),
}


def datasheet_calibration(name: str) -> Calibration:
    """A GPU's calibration from its printed peaks."""
    gpu = device(name)
    rates = _vendors_rates(gpu)
    stream = gpu.bandwidth_gbs * 1e9 * STREAM_SHARE
    rates |= own_leaf_rates(gpu, rates, stream)
    source, terms = "datasheet, not measured", (stream * LAUNCH, LAUNCH, OVERLAP)
    found = Calibration(gpu.name, source, MappingProxyType(rates), stream, *terms, batches=True)
    found = replace(found, margin=MARGIN, least=LEAST)
    return replace(
        found,
        call_of_library=CALL_OF_LIBRARY,
        call=CALL,
        call_of_leaf=CALL_OF_LEAF,
        call_of_small=CALL_OF_SMALL,
    )


def _vendors_rates(gpu: Device) -> dict[str, Rate]:
    """How fast the vendor multiplies each type of which the datasheet prints a peak."""
    peaks = {t: peak for t, peak in ((t, _peak(gpu, t)) for t in DTYPES) if peak}
    return {
        t: Rate(
            peak * PRODUCT_SHARES.get(t, PRODUCT_SHARE),
            gpu.sms * TILE / FILLED,
            PIPE,
            unaligned=UNALIGNED.get(t, 1.0),
            odd=ODD.get(t, 1.0),
            batch=BATCH.get(t, 1.0),
            tile=SIDE,
            sms=gpu.sms if t in IN_ROUNDS else 0.0,
            half=HALF.get(t, Rate.half),
            half_least=HALF_LEAST if t in HALF else 0.0,
            half_below=HALF_BELOW.get(t, Rate.half_below),
            half_apart=HALF_APART.get(t, Rate.half_apart),
            **_by_tiles(t, gpu),
        )
        for t, peak in peaks.items()
    }


def _by_tiles(dtype: str, gpu: Device) -> dict[str, float]:
    """What a half by our own tiles takes; they were measured on Hopper alone."""
    share, edge = HALF_BY_TILES.get(dtype, (1.0, 0.0)) if gpu.capability == WARPGROUPS else (1.0, 0.0)
    return {"half_by_tiles": share, "half_edge": edge}


@depends_on_rows
@lru_cache(maxsize=16)
def datasheet_rates(name: str, dtype: str) -> Mapping[str, Rate]:
    """Of what multiplies this type with a rate of its own, by a device's datasheet."""
    known = datasheet_calibration(name).rates
    own = dict.fromkeys(row.time.rate for row in ending_rows() if row.time.rate and dtype in row.types.below)
    return MappingProxyType({rate: known[rate] for rate in own if rate in known})


def _peak(gpu: Device, dtype: str) -> float:
    """flop/s, or 0 if the datasheet prints none for this type."""
    tflops = {
        "float64": gpu.fp64_tensor_tflops or gpu.fp64_tflops,
        "complex128": gpu.fp64_tensor_tflops or gpu.fp64_tflops,
        "float32": gpu.fp32_tflops,
        "complex64": gpu.fp32_tflops,
        "tf32": gpu.tf32_tflops,
        "float16": gpu.fp16_tflops,
        "bfloat16": gpu.fp16_tflops if gpu.capability >= "8.0" or len(gpu.capability) > 3 else None,
    }
    return (tflops.get(dtype) or 0.0) * 1e12


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
