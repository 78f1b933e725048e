"""A GPU's calibration from its datasheet: what a choice rests on until the device is tuned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from fmm.dtypes import DTYPES
from fmm.hardware.datasheets import Device, device
from fmm.kernels.plans.leaf import ending_rows
from fmm.kernels.registry import depends_on_rows
from fmm.perfmodel.calibration import Calibration, Rate
from fmm.perfmodel.untuned.leaf_rates import FILLED, PIPE, SIDE, TILE, WARPGROUPS, own_leaf_rates

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


def datasheet(name: str) -> Calibration:
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
    known = datasheet(name).rates
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
