"""Build the default calibrations of untuned devices: of a CPU from conservative ratios, of a GPU from its datasheet.

fmm chooses plans by the default calibration until the device is tuned. The numbers come from measurements on a few
machines, and the comments name these machines. `with_integer_rates` also completes the calibration of a tuned CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from fmm.dtypes import DTYPES, INTEGERS, DType
from fmm.hardware.datasheets import Datasheet, datasheet_of
from fmm.kernels.algorithms.digits import RELATIVE_TIME, digit_products_for_any_input
from fmm.kernels.cpu.thread_pool import MAX_SUM_THREADS as SUM_THREADS
from fmm.kernels.cuda.products.kernel_sizes import VENDOR_PIECE_LENGTH
from fmm.kernels.cuda.products.small_tiles import SMALL_BLOCKS_PER_SM, SMALL_TILE_SIDE
from fmm.kernels.leaves import DIGITS_RATE, F16X3_RATE, SMALL_RATE, VENDOR3M_RATE
from fmm.kernels.plans.leaf import plan_leaves
from fmm.kernels.plans.levels.residue_planes import STRASSEN_PRODUCTS, planes_per_modulus
from fmm.kernels.plans.levels.residues import residue_leaves
from fmm.kernels.registry import clear_on_registration
from fmm.perfmodel.calibration import Calibration, ProductRate

# ---- CPUs

# The ratio of BLAS's rate to the bandwidth of the sums, in flops per byte. On two cores of a server, 9 flops per byte
# were measured in float64 and 18 in float32. BLAS_FLOPS_PER_BYTE has higher values, so that a chosen plan is also
# faster on machines with slow memory.
BLAS_FLOPS_PER_BYTE = {"float64": 14.0, "float32": 28.0, "complex128": 14.0, "complex64": 28.0}
CPU_STREAM_BANDWIDTH = 10e9  # nominal bytes/s of one thread's sums; choices depend on ratios of rates only
# NumPy's loops over every second number use no vector instructions: two cores with AVX-512 reach 0.49 to 0.73 of the
# rate of contiguous sums.
CPU_COMPLEX_PARTS_SHARE = 0.5
# The time of syrk with fmm's copy of the triangle, as a share of gemm's time. The measured time of syrk in float64 is
# 0.545 of gemm's time at n = 4096 and 0.51 at n = 8192, and in float32 0.65 at n = 4096.
CPU_SYRK_TIME_SHARES = {"float64": 0.53, "float32": 0.65}
BUILT_IN_SOURCE_TEXT = "built-in recursion point, device not tuned"


def cpu_calibration(threads: int) -> Calibration:
    """Return the built-in calibration of a CPU, with conservative ratios of rates and nominal seconds."""
    rates = {
        t: ProductRate(
            r * CPU_STREAM_BANDWIDTH * threads, 64.0**2, 32.0, half=CPU_SYRK_TIME_SHARES.get(t, ProductRate.half)
        )
        for t, r in BLAS_FLOPS_PER_BYTE.items()
    }
    stream = CPU_STREAM_BANDWIDTH * min(threads, SUM_THREADS)
    name = f"cpu, {threads} threads"
    return Calibration(
        name, BUILT_IN_SOURCE_TEXT, MappingProxyType(rates), stream, 1e6, 20e-6, parts=CPU_COMPLEX_PARTS_SHARE
    )


INTEGER_LOOP_FLOPS = 2e9  # flop/s of NumPy's own integer products on one thread, in every integer type
# ratio of the built-in rates to the rates of the server on which INTEGER_LOOP_FLOPS was measured
NOMINAL_RATE_FACTOR = 2.0
# The time to cut one number of A or B into planes, and to add a plane to one number of C, in multiply-adds.
DIGIT_CUT_MULTIPLY_ADDS, DIGIT_ADD_MULTIPLY_ADDS = 40.0, 90.0


@lru_cache(maxsize=64)
def with_integer_rates(found: Calibration) -> Calibration:
    """Return a CPU's calibration with rates for integers, derived from the calibration's floating-point rates.

    NumPy multiplies integers in a simple loop without BLAS. The leaf `digits` instead cuts integers into floating-point
    matrices of small integers, which BLAS multiplies.
    """
    rates, loop = (
        dict(found.rates),
        INTEGER_LOOP_FLOPS * (NOMINAL_RATE_FACTOR if found.source == BUILT_IN_SOURCE_TEXT else 1.0),
    )
    for name in INTEGERS:
        digits, _ = digit_products_for_any_input(8 * DTYPES[name].itemsize, 1024)
        base = found.find_rate(digits.real) or found.find_rate("float64") or found.find_rate("float32")
        if base is None:
            continue
        times = digits.product_count * (RELATIVE_TIME[digits.real] if digits.real not in found.rates else 1.0)
        by_digits = ProductRate(
            base.flops / times,
            base.fill,
            base.pipe + DIGIT_ADD_MULTIPLY_ADDS,
            base.rows + DIGIT_CUT_MULTIPLY_ADDS,
            base.cols + DIGIT_CUT_MULTIPLY_ADDS,
        )
        rates |= {name: ProductRate(loop, 0.0, 0.0), DIGITS_RATE.format(name): by_digits}
    return replace(found, rates=MappingProxyType(rates))


# Costs of concurrent products, measured on two cores with AVX-512: the seconds to pass one step to another thread, to
# begin and end a plan, and to wait for OpenBLAS's second thread, which spins for 2^28 clock ticks after a product and
# takes half of a core for 0.1 s.
HAND_OVER_SECONDS, IDLE_SECONDS, SPIN_SECONDS = 1e-4, 0.008, 0.025


def with_concurrent_products(found: Calibration, lanes: int) -> Calibration:
    """Return a CPU's calibration for `lanes` products at a time, with the starting values of a fit."""
    return (
        replace(found, lanes=lanes, launch=HAND_OVER_SECONDS, idle=IDLE_SECONDS, spin=SPIN_SECONDS)
        if lanes > 1
        else found
    )


# ---- GPUs: the vendor's products and the sums

# The share of the datasheet's peak that the vendor's products reach on large problems (SUM_BANDWIDTH_SHARE is the share
# of the bandwidth that sums reach). On an H200 products reach 0.76 to 0.80 of the peak in float32 and 0.80 to 0.94 in
# float64. Products reach 0.70 to 0.78 of the peak in bfloat16 and 0.68 to 0.73 in TF32. Splitting operands reaches 0.65
# to 0.8 of the bandwidth, and joining results 0.77 to 0.87.
PEAK_SHARES_BY_TYPE = {"bfloat16": 0.72, "float16": 0.72, "tf32": 0.7}
DEFAULT_PEAK_SHARE = 0.8
# The share of the datasheet's peak that products reach on the GPUs of Li, Ranka and Sahni, by compute capability. The
# cores of these GPUs read one operand of each multiply-add from shared memory, which limits products to about 60 % of
# the peak. The shares of 0.6 and 0.58 agree with the times of sgemm and dgemm that Li, Ranka and Sahni print.
LI_GPU_PEAK_SHARES = {"1.3": 0.6, "2.0": 0.58}
SUM_BANDWIDTH_SHARE = 0.75  # share of the datasheet's bandwidth that sums reach
DATASHEET_MARGIN = 0.03  # margin of a device without any measurement, as a share of the vendor's time
MIN_LEAF_SIDE = 512.0  # smallest m, k and n of a leaf product; plans with smaller leaf products are not chosen
LAUNCH_SECONDS = 4e-6
# The host's seconds for a recurring call of torch or CuPy: LIBRARY_CALL_SECONDS for the vendor's product,
# PLAN_CALL_SECONDS for a plan with levels, LEAF_CALL_SECONDS for another leaf. On the hosts of three H200s the vendor's
# product takes 13 to 23 us, and another leaf takes 43 to 60 us. A plan with levels takes 60 to 74 us in the first few
# calls, which launch one kernel after the other. Later calls replay a CUDA graph in 17 to 31 us, or in 35 to 60 us with
# operands at new addresses. results/nvidia-h200/host.json has the times in the table `host`. No tuning measures the
# host's seconds. Choices for products that take less than 0.1 ms may therefore be poorer on a slower host.
LIBRARY_CALL_SECONDS, PLAN_CALL_SECONDS, LEAF_CALL_SECONDS = 18e-6, 40e-6, 40e-6
# The host's seconds for a recurring call of fmm.gram with the leaf `small`. On the hosts of three H200s, a call of
# fmm.gram with 64 or 256 rows takes 17 to 30 us. With cuBLAS's syrk, a call for 1024 rows in float64 takes 66 to 78 us,
# although the device works for only 42 us. results/nvidia-h200/host-transposed.json has the times.
SMALL_LEAF_CALL_SECONDS = 25e-6
# The share of the time of overlapped sums that products hide. On an H200 an overlapped outer level saves 1 to 5 % of a
# plan's time.
HIDDEN_SUMS_SHARE = 0.25
# The factors on the time of products with unaligned rows, and of TF32's products in a batch, measured on an H200.
UNALIGNED_TIME_FACTORS = {
    "float16": 3.5,
    "bfloat16": 3.5,
    "float64": 1.4,
    "float32": 1.05,
    "tf32": 2.1,
    "complex128": 1.2,
}
ODD_ROW_TIME_FACTORS = {"float16": 5.7, "bfloat16": 5.7}
BATCH_TIME_FACTORS = {"tf32": 1.12}
# The element types in which the vendor's time grows by whole waves of tiles (one tile on each multiprocessor). On an
# H200, for held-out float32 products of middle size or thin shape, times predicted with whole waves have a median error
# of 3 % and a third quartile of 7 %. Without whole waves the predicted times have a median error of 5 % and a third
# quartile of 10 %. In float64 and bfloat16, counting whole waves does not change the errors of predicted times. For
# thin complex products on an H200 and an H100, nine tenths of the predicted times are within 15 % of the measured times
# with whole waves, and within 72 to 95 % without.
ROUND_COUNTED_TYPES = ("float32", "complex64", "complex128")
# cuBLAS's complex product by three real products (`vendor3m`), relative to its usual product: the flop/s of a large
# product (a complex product counts as four real ones), and the time of its sums and of its smaller products. Unaligned
# rows hardly slow it down. The numbers are fitted to 303 products in complex128 on an H200 and an H100 (median error
# 4 %). In complex64, `vendor3m` was the fastest plan for 1 of 452 shapes, and is no candidate.
VENDOR3M_SPEED, VENDOR3M_PIPE_STEPS, VENDOR3M_ROWS, VENDOR3M_COLS, VENDOR3M_UNALIGNED = 1.24, 130.0, 3.0, 36.0, 1.06
VENDOR3M_START_SECONDS = 15e-6
# A GPU computes C in tiles with TILE_SIDE rows and columns, and a multiprocessor computes TILE_ENTRIES entries of C at
# a time. A product reaches half of its full rate if C has TILE_ENTRIES / FILLING_TILES_PER_SM entries for each
# multiprocessor (`ProductRate.fill`).
TILE_SIDE, TILE_ENTRIES, FILLING_TILES_PER_SM = 128.0, 128 * 128, 8
PIPE_STEPS = 32.0  # number of steps along the inner dimension with which half of a product's time is start-up
# The time of syrk as a share of gemm's time, measured on an H200 at 8192 (in float64 the share is 0.63 at 16384).
SYRK_TIME_SHARES = {"float32": 0.51, "float64": 0.57}
# For inner dimensions below SYRK_MIN_STEPS cuBLAS's syrk runs another kernel. In float32, syrk and the copy of the
# triangle take 2.2 times as long as gemm for 3020 rows of 170 numbers. In float64, syrk takes 1 / 1.4 of gemm's time
# for 16933 rows of 355 numbers. Inner dimensions below SYRK_MIN_STEPS were not measured in float64; the model assumes
# that syrk then takes gemm's time.
SYRK_MIN_STEPS, SHORT_SYRK_TIME_SHARES = 256.0, {"float32": 2.0}
# Number of rows of a triangle that takes twice the share SYRK_TIME_SHARES of gemm's time, if several triangles run one
# after the other. The measured time of a float32 triangle is 0.65 of gemm's time with 4096 rows, and 0.69 with 2048
# rows.
SYRK_DOUBLING_ROWS = {"float32": 800.0}
# The time of a very large triangle by fmm's own kernels as a share of the whole product's time, and the number of rows
# with which a triangle takes twice this share. In bfloat16 a triangle with 4096, 8192 and 16384 rows takes 0.65, 0.52
# and 0.53 of gemm's time. In float64 a triangle with 8192 or 16384 rows takes 0.58 of gemm's time. In float64 four
# triangles of 2048 rows take about 0.75 of gemm's time, and 16 triangles of 1024 rows take 0.9, computed from measured
# times of products that levels `gram` cut. In float32 two triangles of 4096 rows take 0.52 of gemm's time if A is
# copied to the layout that the kernel reads fastest.
KERNEL_TRIANGLE_SHARES = {
    "float32": (0.49, 256.0),
    "float64": (0.55, 600.0),
    "float16": (0.5, 800.0),
    "bfloat16": (0.5, 800.0),
}
WARPGROUP_CAPABILITY = "9.0"  # the only compute capability with fmm's kernels that use warpgroups
# The compute capabilities with tensor memory: cuBLAS's float16 products are faster there than fmm's portable kernels.
TENSOR_MEMORY_CAPABILITIES = ("10.0", "10.3", "11.0")


def datasheet_calibration(name: str) -> Calibration:
    """Return the calibration of a GPU from the peaks and the bandwidth of its datasheet."""
    gpu = datasheet_of(name)
    rates = _vendor_rates(gpu)
    if gpu.capability == WARPGROUP_CAPABILITY:
        rates[VENDOR3M_RATE.format("complex128")] = _vendor3m_rate(rates["complex128"])
    stream = gpu.bandwidth_gbs * 1e9 * SUM_BANDWIDTH_SHARE
    rates |= _integer_and_leaf_rates(gpu, rates, stream)
    return Calibration(
        gpu.name,
        "datasheet, not measured",
        MappingProxyType(rates),
        stream,
        small=stream * LAUNCH_SECONDS,
        launch=LAUNCH_SECONDS,
        overlap=HIDDEN_SUMS_SHARE,
        batches=True,
        margin=DATASHEET_MARGIN,
        least=MIN_LEAF_SIDE,
        call_of_library=LIBRARY_CALL_SECONDS,
        call=PLAN_CALL_SECONDS,
        call_of_leaf=LEAF_CALL_SECONDS,
        call_of_small=SMALL_LEAF_CALL_SECONDS,
    )


@clear_on_registration
@lru_cache(maxsize=16)
def datasheet_rates(name: str, dtype: str) -> Mapping[str, ProductRate]:
    """Return the rates of the leaves that have their own rate in this element type, from a device's datasheet."""
    rates = datasheet_calibration(name).rates
    own = dict.fromkeys(row.rate for row in plan_leaves() if row.rate and dtype in row.types)
    return MappingProxyType({rate: rates[rate] for rate in own if rate in rates})


def _vendor_rates(gpu: Datasheet) -> dict[str, ProductRate]:
    """Return the vendor's rate in each element type for which the datasheet prints a peak."""
    rates = {}
    for t in DTYPES:
        if peak := _peak_flops(gpu, t):
            by_tiles, edge = (
                KERNEL_TRIANGLE_SHARES.get(t, (1.0, 0.0)) if gpu.capability == WARPGROUP_CAPABILITY else (1.0, 0.0)
            )
            rates[t] = ProductRate(
                peak * PEAK_SHARES_BY_TYPE.get(t, LI_GPU_PEAK_SHARES.get(gpu.capability, DEFAULT_PEAK_SHARE)),
                gpu.sms * TILE_ENTRIES / FILLING_TILES_PER_SM,
                PIPE_STEPS,
                unaligned=UNALIGNED_TIME_FACTORS.get(t, 1.0),
                odd=ODD_ROW_TIME_FACTORS.get(t, 1.0),
                batch=BATCH_TIME_FACTORS.get(t, 1.0),
                tile=TILE_SIDE,
                sms=gpu.sms if t in ROUND_COUNTED_TYPES else 0.0,
                half=SYRK_TIME_SHARES.get(t, ProductRate.half),
                half_least=SYRK_MIN_STEPS if t in SYRK_TIME_SHARES else 0.0,
                half_below=SHORT_SYRK_TIME_SHARES.get(t, ProductRate.half_below),
                half_apart=SYRK_DOUBLING_ROWS.get(t, ProductRate.half_apart),
                half_by_tiles=by_tiles,
                half_edge=edge,
            )
    return rates


def _vendor3m_rate(vendor: ProductRate) -> ProductRate:
    """Return the rate of cuBLAS's complex product by three real products; `vendor`: that of its usual product."""
    return replace(
        vendor,
        flops=VENDOR3M_SPEED * vendor.flops,
        pipe=VENDOR3M_PIPE_STEPS,
        rows=VENDOR3M_ROWS,
        cols=VENDOR3M_COLS,
        unaligned=VENDOR3M_UNALIGNED,
        start=VENDOR3M_START_SECONDS,
    )


def _peak_flops(gpu: Datasheet, dtype: str) -> float:
    """Return the peak flop/s of an element type; 0 if the datasheet has no peak for the type."""
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


# ---- GPUs: leaves with their own rates, which follow from the vendor's rates and the rate of sums (constants: H200)

# The smallest compute capability for `f16x3` and residues without warpgroups.
PORTABLE_MIN_CAPABILITY = 8.0
# The shares of the peaks of a warp's instructions (mma.sync) that the portable kernels reach on large products, in
# float16 for `f16x3` and in int8 for residues. On an H100, the peaks of mma.sync are 643 Tflop/s and 1277 Top/s. On an
# H100, the portable float16 kernel reaches 0.50 of the peak if compiled for compute capability 8.0, and 0.57 if
# compiled for 9.0. The portable int8 kernel, compiled for 9.0, reaches 0.57 of the peak. On other chips the datasheet's
# peak is the peak of mma.sync; no other chip was measured.
PORTABLE_F16X3_PEAK_SHARE, PORTABLE_INT8_PEAK_SHARE = 0.5, 0.5
# The seconds that a thread block of the leaf `small` takes for SMALL_TILE_SIDE steps of the inner dimension. Two thread
# blocks of the leaf `small` run on a multiprocessor at a time. SMALL_LEAF_STEP_SECONDS follow from the times of
# products with 512 rows and columns, without the launch: 26 us in float32 and bfloat16, 37 us in float64.
SMALL_LEAF_STEP_SECONDS = {"float64": 2.07e-6, "float32": 1.38e-6, "float16": 1.38e-6, "bfloat16": 1.38e-6}

# The beginning and end of a tile of the kernel `f16x3` take the time of this number of steps of the inner dimension. On
# an H200, beginning and end of a tile together take 7 us, and 64 steps take 0.9 us.
F16X3_TILE_EDGE_STEPS = 512.0
# F16X3_START_SECONDS are additional seconds at each start of `f16x3`. F16X3_RATE_FACTOR is the rate of `f16x3` divided
# by a third of the vendor's float16 rate. F16X3_START_SECONDS and F16X3_RATE_FACTOR are fitted together with the times
# of tiles in fmm.perfmodel.predict.
F16X3_START_SECONDS, F16X3_RATE_FACTOR = 7.7e-6, 1.08
# Factor on the time of `f16x3` for a batch of 7 or 49 products. With F16X3_BATCH_FACTOR, the predicted time of a plan
# with one level above `f16x3` is 5 % too long, with two levels correct, and with three levels above small products too
# short: they take 27 % longer.
F16X3_BATCH_FACTOR = 1.08
# The time of a very large triangle by `f16x3` as a share of the whole product's time, and the number of rows with which
# a triangle takes twice this share.
F16X3_TRIANGLE_SHARE, F16X3_TRIANGLE_EDGE_ROWS = 0.5, 256.0
# The bytes that the kernel of f16_planes.cuh moves for each number of A (one read of 4 bytes, two planes written) and
# of B (two reads, two planes written). The kernel moves PLANES_STREAM_SHARE times as many bytes per second as a plan's
# sums. On an H100 (306 products) and an H200 (526 products), the kernel moves A with 0.68 and 0.65 of the datasheet's
# bandwidth, and B with 0.69 and 0.71.
LEFT_PLANE_BYTES, RIGHT_PLANE_BYTES, PLANES_STREAM_SHARE = 8.0, 12.0, 0.91
PLANE_FILL_FACTOR = 12  # factor on `ProductRate.fill` if the vendor multiplies the float16 planes

# ---- GPUs: constants of products that are computed with residues: float64 and integer products

# The number of moduli for products of integers depends on the inner dimension. Default rates of integers assume an
# inner dimension of MODULI_INNER_DIMENSION.
MODULI_INNER_DIMENSION = 8192
# The time to split or join one number, without the traffic of the number's residues, for 0, 1 and 2 inner levels
# (levels of Strassen's algorithm on the residues), in units of the time in which memory moves one byte.
# SPLIT_BYTES_PER_NUMBER and JOIN_BYTES_PER_NUMBER were measured in float64 at n = 8192. With two levels on the
# residues, splitting and joining take much longer, since a thread computes many sums with few registers.
SPLIT_BYTES_PER_NUMBER, JOIN_BYTES_PER_NUMBER = (28.0, 28.0, 59.0), (33.0, 45.0, 162.0)
# The traffic in bytes that splitting and joining save for each byte by which a number is shorter than 8 bytes: the
# split reads A and B two or three times, and the join writes C once.
SPLIT_BYTES_SAVED_PER_BYTE, JOIN_BYTES_SAVED_PER_BYTE = 2.5, 1.0
# The kernel that makes C from the residues (the join) needs about 12 float64 flops per real number of C and modulus.
# On GPUs with few float64 units, these flops take longer than the kernel's memory traffic.
JOIN_FLOAT64_FLOPS_PER_MODULUS = 12.0
# RESIDUE_START_SECONDS is the part of the time of a product by residues that does not grow with the sides, for 0, 1 and
# 2 levels of Strassen's algorithm on the residues: measured with 14 moduli for 0 and 1, a guess for 2. Each level on
# the residues halves the inner dimension of the int8 products, which lose 13, 5 and 0 % of their rate at inner
# dimensions of 2048, 4096 and 8192.
RESIDUE_START_SECONDS, RESIDUE_LEVEL_PIPE_STEPS = (25e-6, 135e-6, 250e-6), 200.0
# The seconds that a product by residues without levels on the residues saves on Hopper, where a single kernel computes
# the norms of an operand's rows or columns and splits the operand into residues. On an H200 at n = 1024, the single
# kernel saves 10 microseconds in complex128, and 18 microseconds in float64.
LINE_KERNEL_SAVED_SECONDS = 15e-6
# Number of columns of a tile of int8 products. The kernel for int8 products also has narrower tiles, but two narrow
# tiles take longer than one wide tile. If the model counted narrow tiles, the predicted times of products that fill
# only half of the last tile would be 10 to 25 % too short.
INT8_TILE_COLUMNS = 256.0
# The time of a very large triangle by residues (split and join included) as a share of the whole product's time, and
# the number of rows with which a triangle takes twice this share.
RESIDUE_TRIANGLE_SHARE, RESIDUE_TRIANGLE_EDGE_ROWS = 0.55, 256.0
# The ratio of the rate of CuPy's integer kernels (cupy.matmul) to the vendor's float32 rate, by bytes of a number.
INTEGER_KERNEL_RATE_SHARES = {1: 0.45, 2: 0.4, 4: 0.4, 8: 0.1}


def _integer_and_leaf_rates(gpu: Datasheet, rates: Mapping[str, ProductRate], stream: float) -> dict[str, ProductRate]:
    """Return the rates of integer types and of the leaves with a rate of their own, by name."""
    found = {
        SMALL_RATE.format(t): _small_leaf_rate(gpu, seconds)
        for t, seconds in SMALL_LEAF_STEP_SECONDS.items()
        if t in rates
    }
    if float(gpu.capability) < PORTABLE_MIN_CAPABILITY or "float16" not in rates:
        return found
    vendor = rates["float16"]
    if gpu.capability == WARPGROUP_CAPABILITY:
        found[F16X3_RATE] = _fmm_f16x3_kernel_rate(_f16x3_rate(vendor, stream), F16X3_RATE_FACTOR, gpu)
        return found | _integer_and_residue_rates(gpu, rates, replace(vendor, flops=2 * vendor.flops), stream)
    if gpu.capability in TENSOR_MEMORY_CAPABILITIES:
        three = f16x3_rate_on_vendor_gemm(vendor, stream)
    else:
        three = _f16x3_rate(replace(vendor, flops=_peak_flops(gpu, "float16") * PORTABLE_F16X3_PEAK_SHARE), stream)
        three = _fmm_f16x3_kernel_rate(three, 1.0, gpu)
        if gpu.int8_tops:
            int8 = replace(vendor, flops=gpu.int8_tops * 1e12 * PORTABLE_INT8_PEAK_SHARE)
            found |= _integer_and_residue_rates(gpu, rates, int8, stream)
    if three.flops > rates["float32"].flops:
        found[F16X3_RATE] = three
    return found


def _fmm_f16x3_kernel_rate(three: ProductRate, factor: float, gpu: Datasheet) -> ProductRate:
    """Return the rate of fmm's kernel for `f16x3`.

    `three` is the rate of three float16 products; the rate of fmm's kernel is `factor` times this rate.
    """
    faster = {name: factor * getattr(three, name) for name in ("flops", "rows", "cols", "half_by_tiles")}
    return replace(three, **faster, start=F16X3_START_SECONDS, blocks=float(gpu.sms))


def _integer_and_residue_rates(
    gpu: Datasheet, rates: Mapping[str, ProductRate], int8: ProductRate, stream: float
) -> dict[str, ProductRate]:
    """Return the rates of CuPy's integer products, and of products by residues from the rate of int8 products."""
    found = {}
    for name in INTEGERS:
        flops = rates["float32"].flops * INTEGER_KERNEL_RATE_SHARES[DTYPES[name].itemsize]
        found[name] = ProductRate(flops, rates["float16"].fill, PIPE_STEPS, tile=TILE_SIDE)
    saved_seconds = LINE_KERNEL_SAVED_SECONDS if gpu.capability == WARPGROUP_CAPABILITY else 0.0
    return found | dict(_residue_rates(int8, stream, 1e12 * (gpu.fp64_tflops or 0.0), saved_seconds))


def _small_leaf_rate(gpu: Datasheet, seconds: float) -> ProductRate:
    """Return the rate of the leaf `small`: one thread block computes each tile on or below the diagonal."""
    # Twice the number of thread blocks on the device: the rate counts all tiles of C, but only one triangle is
    # computed.
    at_once = 2 * SMALL_BLOCKS_PER_SM * gpu.sms
    flops = at_once * SMALL_TILE_SIDE**3 / seconds
    return ProductRate(flops, 0.0, 0.0, tile=SMALL_TILE_SIDE, slots=at_once, half_by_tiles=0.5)


def _f16x3_rate(float16: ProductRate, stream: float) -> ProductRate:
    """Return the rate of float32 products made of three float16 products, each as fast as the vendor's product.

    The time to compute the planes of A and B before the products is proportional to the sizes of A and B.
    """
    flops = float16.flops / 3
    flops_per_byte = flops / DTYPES["float32"].flops / (PLANES_STREAM_SHARE * stream)
    rows, cols = RIGHT_PLANE_BYTES * flops_per_byte, LEFT_PLANE_BYTES * flops_per_byte
    # The kernel can compute a tile of C as two tiles of half the width, so half as many tiles as multiprocessors
    # suffice to occupy the device.
    slots = float16.fill / TILE_ENTRIES * FILLING_TILES_PER_SM / 2
    found = ProductRate(
        flops, float16.fill, F16X3_TILE_EDGE_STEPS, rows, cols, batch=F16X3_BATCH_FACTOR, tile=TILE_SIDE, slots=slots
    )
    return replace(found, half_by_tiles=F16X3_TRIANGLE_SHARE, half_edge=F16X3_TRIANGLE_EDGE_ROWS)


def f16x3_rate_on_vendor_gemm(float16: ProductRate, stream: float) -> ProductRate:
    """Return the rate of float32 products if the vendor computes the three float16 products.

    One of the three products is cut into sections of the inner dimension. Each of the vendor's calls reads and writes
    C, and leaves the device partly idle at its start and end. On an H200 at n = 1024, 4096 and 8192, these float32
    products have 0.61, 1.79 and 2.21 times SGEMM's speed (predicted 0.6, 1.7 and 2.0).
    """
    own, flop = (
        _f16x3_rate(float16, stream),
        3 / float16.flops + DTYPES["float32"].itemsize / (VENDOR_PIECE_LENGTH * stream),
    )
    rows, cols = (x / (flop * own.flops) for x in (own.rows, own.cols))
    own = replace(own, half_by_tiles=1.0, half_edge=0.0)
    return replace(
        own, flops=1 / flop, fill=PLANE_FILL_FACTOR * float16.fill, pipe=PIPE_STEPS, rows=rows, cols=cols, slots=0.0
    )


def _residue_rates(
    int8: ProductRate, stream: float, float64_flops: float, saved_seconds: float
) -> Iterator[tuple[str, ProductRate]]:
    """Yield the name and the rate of every leaf that runs a whole level of residues.

    For integer types, the number of moduli suffices for an inner dimension of MODULI_INNER_DIMENSION. A floating-point
    product without levels on the residues takes `saved_seconds` less time to start.
    """
    for row in plan_leaves():
        if (found := residue_leaves().get(row.name)) is not None:
            for name in (*row.types, *row.types_alone):
                moduli = found.level.moduli_count_for(name, MODULI_INNER_DIMENSION)
                rate = _residue_rate(int8, stream, moduli, found.depth, DTYPES[name])
                if not (found.depth or DTYPES[name].exact):
                    rate = replace(rate, start=rate.start - saved_seconds)
                yield row.rate.format(name), _rate_with_float64_join_time(rate, moduli, float64_flops, DTYPES[name])


def _residue_rate(int8: ProductRate, stream: float, moduli: int, levels: int, dtype: DType) -> ProductRate:
    """Return the rate of products that consist of one int8 product for each modulus, or two for complex numbers.

    The kernels read each number of A and B twice and write its
    residues; then they read the residues of C and write C. The time for residues grows with the number of elements of
    A, B and C. A complex number has two planes for each modulus and takes the time of two real numbers.
    """
    each = planes_per_modulus(dtype.is_complex)
    item = dtype.itemsize // each  # bytes of a real number
    flops = int8.flops / moduli * (8 / STRASSEN_PRODUCTS) ** levels * dtype.flops / (2 * each)
    planes = moduli * (STRASSEN_PRODUCTS / 4) ** levels
    lost = each * flops / dtype.flops / stream
    split = (SPLIT_BYTES_PER_NUMBER[levels] - SPLIT_BYTES_SAVED_PER_BYTE * (8 - item) + planes) * lost
    join = (JOIN_BYTES_PER_NUMBER[levels] - JOIN_BYTES_SAVED_PER_BYTE * (8 - item) + planes) * lost
    pipe, slots = join + levels * RESIDUE_LEVEL_PIPE_STEPS, int8.fill / TILE_ENTRIES * FILLING_TILES_PER_SM / 2
    start, width = RESIDUE_START_SECONDS[levels], INT8_TILE_COLUMNS
    found = ProductRate(flops, int8.fill, pipe, split, split, tile=TILE_SIDE, width=width, slots=slots, start=start)
    share, edge = (1.0, 0.0) if levels else (RESIDUE_TRIANGLE_SHARE, RESIDUE_TRIANGLE_EDGE_ROWS)
    return replace(found, half_by_tiles=share, half_edge=edge)


def _rate_with_float64_join_time(rate: ProductRate, moduli: int, float64_flops: float, dtype: DType) -> ProductRate:
    """Return the rate, with the time of the join's float64 flops if they take longer than the join's memory traffic."""
    if not float64_flops:
        return rate
    flops = JOIN_FLOAT64_FLOPS_PER_MODULUS * moduli * planes_per_modulus(dtype.is_complex)
    return replace(rate, pipe=max(rate.pipe, flops / float64_flops * rate.flops / dtype.flops))
