"""Calibrations: a device as the prediction sees it, a value of a dozen numbers: from a datasheet, or built in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType

from fmm.dtypes import DTYPES, INTEGERS
from fmm.hardware.datasheets import Device, device
from fmm.kernels.algorithms.digits import RELATIVE_TIME, any_digits
from fmm.kernels.cpu.threads.thread_pool import MOST as SUM_THREADS
from fmm.kernels.cuda.products.float16.f16_planes import PIECE
from fmm.kernels.cuda.products.tiles.small import RESIDENT
from fmm.kernels.cuda.products.tiles.small import TILE as SMALL_TILE
from fmm.kernels.leaves import DIGITS_RATE, F16X3_RATE, SMALL_RATE
from fmm.kernels.plans.leaf import ending_rows
from fmm.kernels.plans.levels.residue_room import PRODUCTS
from fmm.kernels.plans.levels.residues import residue_endings
from fmm.kernels.registry import depends_on_rows


@dataclass(frozen=True)
class Rate:
    """How fast one element type is multiplied.

    A batch of b products m x k x n by the vendor takes its flops / `flops` * (1 + fill / (b m n) + pipe / k + rows / m
    + cols / n) seconds, with m and n rounded up to whole tiles; fmm.perfmodel.predict has the whole formula.
    """

    flops: float  # flop/s of a product so large that starting, filling and reading operands no longer count
    fill: float  # with so many entries of C the device is half busy
    pipe: float  # with so many steps along the inner dimension, half of the time is start-up
    rows: float = 0.0  # with so many rows of C, reading B takes as long as multiplying
    cols: float = 0.0  # with so many columns of C, reading A does
    memory: float = 0.0  # bytes/s at which thin products read and write their operands; 0: the rate of the sums
    # The next four are factors on a product's time, 1 where nothing is lost.
    unaligned: float = 1.0  # where rows begin at multiples of 4 bytes, but not all at multiples of 16
    odd: float = 1.0  # where rows do not even all begin at multiples of 4 bytes
    alone: float = 1.0  # on what those two add, where A's rows are the only ones that are not aligned
    # Of products whose operands are aligned copies of such rows. (A device that its power limits runs faster after the
    # vendor's slow product: 0.9 in bfloat16, 0.94 in float64, 0.99 in float32 on an H200.)
    copied: float = 1.0
    batch: float = 1.0  # a factor on the time of products that start together as a batch
    tile: float = 1.0  # C is computed in whole tiles of so many rows and columns
    # Fewer tiles than this take as long as so many: each is computed by one thread block, whatever the inner dimension.
    # (0: where the device would be idle, products are cut along that too, as the vendor's are.)
    slots: float = 0.0
    # The vendor computes C in tiles of several sizes, a tile on each of so many multiprocessors at a time, in whole
    # rounds; where these are few, they count instead of `fill`. (0: rounds do not show.)
    sms: float = 0.0
    start: float = (
        0.0  # seconds that each start takes beside all that: of kernels one after the other, which fill slowly
    )
    # This package's own tiled kernel takes so many times as long as the vendor's product, both very large; 0: nobody
    # measured it, and no plan is chosen that uses it.
    tiled: float = 0.0
    # Where it reads rows that do not begin as its wide accesses want them, it takes so many times as long; 0: nobody
    # measured it, and no plan is chosen that has it read such rows.
    tiled_odd: float = 0.0
    waves: float = 0.0  # with so many of its tiles the device is half busy
    # Adding one number on its way into a product, or into one more block of C, takes as long as so many multiply-adds.
    inside: float = 0.0
    # One half of a product that is its own adjoint takes this share of the whole product's time, where the vendor has a
    # function for it. (On an H200 0.50 in float32, 0.63 in float64.)
    half: float = 0.6
    # With fewer steps along the inner dimension than the first, it takes the second share of that time.
    half_least: float = 0.0
    half_below: float = 1.0
    # Where several follow each other: with so many rows one takes as long again, for want of tiles in its last round.
    half_apart: float = 0.0
    # The same by this package's own kernels, if it is very large; 1: nobody measured it. With so many rows, whole tiles
    # on the diagonal and a last round that is not full take as long again.
    half_by_tiles: float = 1.0
    half_edge: float = 0.0


@dataclass(frozen=True)
class Calibration:
    """A device: rates for each element type, what sums, launches and threads cost, and by how much a plan must win.

    On a CPU with several `lanes`, plans run so many products at a time, each on its share of the threads, with sums
    beside them (`Rate.batch` is what that costs a product). Small plans do one step after the other.
    """

    name: str
    source: str
    rates: Mapping[str, Rate] = field(hash=False)
    stream: float  # bytes a second that sums move
    small: float = 0.0  # bytes of traffic with which one pass of sums reaches half that rate
    launch: float = 0.0  # seconds that each start of a product or sum takes
    overlap: float = 0.0  # the share of the sums below an overlapped level that is hidden behind products
    batches: bool = False  # do equal products of a batched level start together (as on a GPU)?
    # A plan is chosen only if its predicted time is less than the vendor's by this share of it; or by the second one if
    # its products are by kernels of ours, whose time is known less well.
    margin: float = 0.01
    tiled_margin: float = 0.08
    # The share of the rate `stream` that sums reach where something slows them down.
    sequential: float = 1.0  # in sequential levels
    ragged: float = 1.0  # on rows that do not begin on cache lines
    scalar: float = 1.0  # on rows that a kernel must move one number at a time, so badly are they aligned
    parts: float = 1.0  # to and from the real or imaginary parts of complex numbers, every second number in memory
    deep: float = 1.0  # in three levels in one pass: so many values are held that few threads have registers
    host: float = 0.0  # seconds of the processor, at least, to start one product
    # Seconds that a call by a plan takes the processor, at least: by one with levels, and by another leaf than the
    # vendor's alone. (What the tuner times are launches; a user's call has its Python, too.)
    call: float = 0.0
    call_of_leaf: float = 0.0
    call_of_small: float = 0.0  # by the leaf for small halves: looked up, and one launch without the vendor's library
    least: float = 0.0  # plans with leaf products that have a shorter side are not chosen: the formula is wrong there
    lanes: int = 1  # products that run at a time
    idle: float = 0.0  # seconds in which a thread has nothing to do, at a plan's beginning and end
    spin: float = 0.0  # seconds lost to BLAS's own threads: after a product each spins on half of a processor
    apart: float = 1.0  # the share of their rate that the sums of small plans reach, which run one step at a time

    def rate(self, dtype: str) -> Rate:
        found = self.known_rate(dtype)
        if found is None:
            raise ValueError(f"{self.name} has no rate for {dtype}; it has {', '.join(self.rates)}")
        return found

    def known_rate(self, dtype: str) -> Rate | None:
        """None where there is none. Flops of real products take about as long as those of complex ones of the same
        precision; what is known only of these is said of both, but for this package's own kernel."""
        if (found := self.rates.get(dtype)) is not None:
            return found
        twin = self.rates.get(next((name for name, row in DTYPES.items() if row.real == dtype), ""))
        return None if twin is None else replace(twin, tiled=0.0)


# ---- a CPU that nobody has measured

# Flops that BLAS does while the sums move a byte. Two cores of a current server give 9 (float64) and 18 (float32); set
# higher, so that a plan is chosen only where it pays on machines with slow memory too.
FLOPS_PER_BYTE = {"float64": 14.0, "float32": 28.0, "complex128": 14.0, "complex64": 28.0}
# Nominal: only ratios matter to a choice. Bytes/s that the sums of one thread move.
CPU_STREAM = 10e9
# NumPy's loops over every second number do not use vectors: two cores with AVX-512 reach 0.49 to 0.73 of the rate.
CPU_PARTS = 0.5
# Syrk's time, with our mirror, as a share of gemm's: float64 0.545 and 0.51 at 4096 and 8192, float32 0.65 at 4096.
CPU_HALF = {"float64": 0.53, "float32": 0.65}
BUILT_IN = "built-in recursion point, device not tuned"


def cpu(threads: int) -> Calibration:
    """The built-in calibration of a CPU: conservative ratios, nominal seconds."""
    rates = {
        t: Rate(r * CPU_STREAM * threads, 64.0**2, 32.0, half=CPU_HALF.get(t, Rate.half))
        for t, r in FLOPS_PER_BYTE.items()
    }
    stream = CPU_STREAM * min(threads, SUM_THREADS)
    name = f"cpu, {threads} threads"
    return Calibration(name, BUILT_IN, MappingProxyType(rates), stream, 1e6, 20e-6, parts=CPU_PARTS)


# NumPy's own loops over integers: flops a second of one thread, whatever the type and however many threads there are.
LOOP_FLOPS = 2e9
NOMINAL = 2.0  # how many times as fast as such a server are the built-in rates
# A digit product's terms beside BLAS's: to cut a number of A or B into planes, and to add one to C, take as long as so
# many multiply-adds.
CUTTING, ADDED = 40.0, 90.0


@lru_cache(maxsize=64)
def with_integers(found: Calibration) -> Calibration:
    """A CPU's calibration with what its rates of floating point numbers say of integers: NumPy multiplies these in a
    loop, and products of digits take as long as BLAS's."""
    rates, loop = dict(found.rates), LOOP_FLOPS * (NOMINAL if found.source == BUILT_IN else 1.0)
    for name in INTEGERS:
        way, _ = any_digits(8 * DTYPES[name].itemsize, 1024)
        base = found.known_rate(way.real) or found.known_rate("float64") or found.known_rate("float32")
        if base is None:
            continue
        times = way.count * (RELATIVE_TIME[way.real] if way.real not in found.rates else 1.0)
        digits = Rate(base.flops / times, base.fill, base.pipe + ADDED, base.rows + CUTTING, base.cols + CUTTING)
        rates |= {name: Rate(loop, 0.0, 0.0), DIGITS_RATE.format(name): digits}
    return replace(found, rates=MappingProxyType(rates))


# What plans in lanes cost two cores with AVX-512, in seconds: to hand a step to a thread, to begin and to end, and
# OpenBLAS's other thread, which spins for 2^28 ticks after a product: a tenth of a second of half a core.
HAND_OVER, IDLE, SPIN = 1e-4, 0.008, 0.025


def in_lanes(found: Calibration, lanes: int) -> Calibration:
    """The same CPU where plans run so many products at a time: guesses, from which a fit begins."""
    return replace(found, lanes=lanes, launch=HAND_OVER, idle=IDLE, spin=SPIN) if lanes > 1 else found


# ---- a GPU of which only the datasheet is known

# Shares of the printed peaks that the vendor's product and sums reach on large problems. On an H200: float32 0.76 to
# 0.80, float64 0.80 to 0.94, bfloat16 0.70 to 0.78, TF32 0.68 to 0.73 of the peak; splits 0.65 to 0.8 and joins 0.77 to
# 0.87 of the bandwidth.
PRODUCT_SHARES = {"bfloat16": 0.72, "float16": 0.72, "tf32": 0.7}
PRODUCT_SHARE = 0.8
STREAM_SHARE = 0.75
MARGIN = 0.03  # nothing of this device was measured
LEAST = 512.0
LAUNCH = 4e-6
# On the hosts of three H200s: a call of torch's or CuPy's is back after 13 to 23 us where the vendor multiplies, after
# 43 to 60 where another leaf does, after 46 to 105 by a plan with levels. Calls that recur are replayed: such ones took
# 31 to 68 us in all.
CALL, CALL_OF_LEAF = 45e-6, 40e-6
# There a recurring call of fmm.gram was back after 17 to 30 us where the leaf `small` multiplies 64 or 256 rows, and
# after 66 to 78 us by cuBLAS's syrk, of which the device worked for 42 (results/nvidia-h200/host-transposed.json, 1024
# rows of float64, the lower half).
CALL_OF_SMALL = 25e-6
# Seconds in which a thread block of that leaf goes through SMALL_TILE steps of the inner dimension, where its
# multiprocessor has another one too: of what 512 rows and columns take there, but for the launch (26 us in float32 and
# bfloat16, 37 us in float64).
SMALL_STEPS = {"float64": 2.07e-6, "float32": 1.38e-6, "float16": 1.38e-6, "bfloat16": 1.38e-6}
OVERLAP = 0.25  # on an H200: an outer level that is overlapped gains 1 to 5 % of the time
# Products of rows that are not aligned, against those of aligned ones, on an H200; and TF32's products in a batch.
UNALIGNED = {"float16": 3.5, "bfloat16": 3.5, "float64": 1.4, "float32": 1.05, "tf32": 2.1}
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
# of gemm's time at 4096, 8192 and 16384 there, of float64 0.58 at 8192 and 16384.
# (In float32 0.52 of it where two of 4096 rows read a copy that lies as the kernel wants it.)
HALF_BY_TILES = {
    "float32": (0.49, 256.0),
    "float64": (0.57, 128.0),
    "float16": (0.5, 800.0),
    "bfloat16": (0.5, 800.0),
}
HALF_OF_THREE = 0.5, 256.0  # the same of a product by three of float16
HALF_OF_PLANES = 0.55, 256.0  # the same of a product by residues, splitting and joining in it
WARPGROUPS = "9.0"  # the compute capability that has the kernel of three float16 products
SIDE = 128.0  # rows and columns of C that one block of threads computes
TILE = 128 * 128  # entries of C that one SM computes at a time
FILLED = 8  # so many tiles an SM has where the device is busy for all but half of one's time
PIPE = 32.0
# From which compute capability on numbers can be split in two of float16; and how many times as much of C fills a
# device where the vendor multiplies planes.
PAIRS, FILLS_ANEW = 8.0, 12
LONG = 8192  # the inner dimension for which moduli are counted
# Of the vendor's rate in float32, by bytes of a number: that of cupy.matmul's kernels for integers. (An H200.)
OWN_LOOPS = {1: 0.45, 2: 0.4, 4: 0.4, 8: 0.1}
# Of products of planes: a tile ends while nothing is multiplied. (An H200: 7 us a tile, 0.9 us for 64 steps; there are
# tiles of half the width too, so that half as many fill the device.)
THREE_PIPE = 512.0
# Seven or 49 of them as a batch. (On an H200, of shapes with sides of 1152 to 19280: 1.13 to 1.6 times what the formula
# says otherwise where the rows are aligned, 0.84 to 0.95 times where they are not.)
THREE_BATCH = 1.15
# Beside the residues themselves, for every number of A and B, and of C, by levels below: the time in which so many
# bytes are moved. (An H200 at 8192, of float64; of two levels there are few registers for many sums.) So many less for
# every byte that a number has less: A's and B's are read twice or thrice, C's are written.
SPLIT_BYTES, JOIN_BYTES = (28.0, 28.0, 59.0), (33.0, 45.0, 162.0)
SPLIT_LESS, JOIN_LESS = 2.5, 1.0
# Seconds that such a product takes beside what grows with its sides. (Of 14 products on an H200; with two levels a
# guess.) A level halves what its products have of the inner dimension: those of bytes lose 13, 5 and 0 % of their rate
# at 2048, 4096 and 8192.
RESIDUE_STARTS, LEVEL_PIPE = (25e-6, 135e-6, 250e-6), 200.0


def datasheet(name: str) -> Calibration:
    """A GPU's calibration from its printed peaks: what a choice rests on until the device is tuned."""
    gpu = device(name)
    peaks = {t: peak for t, peak in ((t, _peak(gpu, t)) for t in DTYPES) if peak}
    rates = {
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
    stream = gpu.bandwidth_gbs * 1e9 * STREAM_SHARE
    rates |= {SMALL_RATE.format(t): _small_halves(gpu, seconds) for t, seconds in SMALL_STEPS.items() if t in rates}
    if gpu.capability == WARPGROUPS:
        rates[F16X3_RATE] = _three_products(rates["float16"], stream)
        rates |= dict(_integers(rates, stream))
        rates |= dict(_by_residues(rates["float16"], stream))
    elif "float16" in rates and float(gpu.capability) >= PAIRS:
        planes = _planes_by_vendor(rates["float16"], stream)
        if planes.flops > rates["float32"].flops:
            rates[F16X3_RATE] = planes
    source, terms = "datasheet, not measured", (stream * LAUNCH, LAUNCH, OVERLAP)
    found = Calibration(gpu.name, source, MappingProxyType(rates), stream, *terms, batches=True)
    found = replace(found, margin=MARGIN, least=LEAST)
    return replace(found, call=CALL, call_of_leaf=CALL_OF_LEAF, call_of_small=CALL_OF_SMALL)


@depends_on_rows
@lru_cache(maxsize=64)
def with_unmeasured(tuned: Calibration, guess: Calibration) -> Calibration:
    """A tuned calibration, with the guess's rates of leaves that no tuning measures."""
    unmeasured = [x.rate.format(t) for x in ending_rows() if x.rate and not x.probed for t in x.types]
    rates = {name: guess.rates[name] for name in unmeasured if name in guess.rates}
    known = MappingProxyType({**rates, **tuned.rates})
    return replace(tuned, rates=known, call_of_small=tuned.call_of_small or guess.call_of_small)


def _small_halves(gpu: Device, seconds: float) -> Rate:
    """A half by the leaf `small`: tiles on and below the diagonal, each by one thread block, as many at a time as all
    multiprocessors have."""
    at_once = 2 * RESIDENT * gpu.sms  # of tiles on both sides of the diagonal, of which half is computed
    flops = at_once * SMALL_TILE**3 / seconds
    return Rate(flops, 0.0, 0.0, tile=SMALL_TILE, slots=at_once, half_by_tiles=0.5)


def _by_tiles(dtype: str, gpu: Device) -> dict[str, float]:
    """What a half by our own tiles takes; they were measured on Hopper alone."""
    share, edge = HALF_BY_TILES.get(dtype, (1.0, 0.0)) if gpu.capability == WARPGROUPS else (1.0, 0.0)
    return {"half_by_tiles": share, "half_edge": edge}


def _three_products(half: Rate, stream: float) -> Rate:
    """float32 by three float16 products, each as fast as the vendor's; before, every number is read twice and written
    once, by which time is lost that grows as the operands, and not as their product."""
    flops, split = half.flops / 3, 3 * DTYPES["float32"].itemsize / stream
    lost = split * flops / DTYPES["float32"].flops
    slots = half.fill / TILE * FILLED / 2
    share, edge = HALF_OF_THREE
    found = Rate(flops, half.fill, THREE_PIPE, lost, lost, batch=THREE_BATCH, tile=SIDE, slots=slots)
    return replace(found, half_by_tiles=share, half_edge=edge)


def _planes_by_vendor(half: Rate, stream: float) -> Rate:
    """The same where the vendor multiplies: all of C is read and written for every piece of the inner dimension, and
    each of its calls fills the device anew. (This way takes an H200 0.61, 1.79 and 2.21 times less than SGEMM at 1024,
    4096 and 8192; the formula says 0.6, 1.7 and 2.0.)"""
    own, flop = _three_products(half, stream), 3 / half.flops + DTYPES["float32"].itemsize / (PIECE * stream)
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
    found = Rate(flops, half.fill, pipe, split, split, tile=SIDE, slots=slots, start=RESIDUE_STARTS[levels])
    share, edge = (1.0, 0.0) if levels else HALF_OF_PLANES
    return replace(found, half_by_tiles=share, half_edge=edge)


def _by_residues(half: Rate, stream: float) -> Iterator[tuple[str, Rate]]:
    """Of every row of residues, by the name that it has in a calibration; of integers modulo as many numbers as long
    products of their type need."""
    for row in ending_rows():
        if (found := residue_endings().get(row.name)) is not None:
            for name in (*row.types, *row.types_alone):
                moduli, itemsize = found.level.moduli_for(name, LONG), DTYPES[name].itemsize
                yield row.rate.format(name), _residue_products(half, stream, moduli, found.depth, itemsize)


def _integers(rates: Mapping[str, Rate], stream: float) -> Iterator[tuple[str, Rate]]:
    """Integers by the library's own kernels."""
    for name in INTEGERS:
        flops = rates["float32"].flops * OWN_LOOPS[DTYPES[name].itemsize]
        yield name, Rate(flops, rates["float16"].fill, PIPE, tile=SIDE)


@depends_on_rows
@lru_cache(maxsize=16)
def datasheet_rates(name: str, dtype: str) -> Mapping[str, Rate]:
    """Of what multiplies this type with a rate of its own, by a device's datasheet."""
    known = datasheet(name).rates
    own = dict.fromkeys(row.rate for row in ending_rows() if row.rate and dtype in row.types)
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
