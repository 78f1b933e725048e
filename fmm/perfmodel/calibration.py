"""Calibrations: a device as the prediction sees it, a value of a dozen numbers: from a datasheet, or built in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from fmm.dtypes import DTYPES
from fmm.hardware.datasheets import Device, device
from fmm.kernels.cpu.thread_pool import MOST as SUM_THREADS


@dataclass(frozen=True)
class Rate:
    """How fast one element type is multiplied: `flops` on large products, less on small ones.

    A batch of b products m x k x n takes flops / rate * (1 + fill / (b m n) + pipe / k): `fill` entries of C keep the
    device half busy, and after `pipe` steps of the inner dimension half the time is start-up. `rows / m + cols / n` is
    added to the sum: what reading B and A once costs. `memory` is the rate of thin products in bytes/s, the sums' if 0.
    Products whose rows do not begin at multiples of 16 bytes take `unaligned` times as long, if not even at multiples
    of 4 `odd` times, and what that adds is `alone` times as much where it is A's rows alone. Those of aligned copies of
    such rows take `copied` times as long as those of rows that are aligned anyway: a device that its power limits runs
    faster after the vendor's slow product (H200: 0.9 in bfloat16, 0.94 in float64, 0.99 in float32). Those of a batch
    take `batch` times as long. C is computed in whole tiles of `tile` rows and columns.

    Products by this package's own tiled kernel take `tiled` times as long as the vendor's endless ones; 0: nobody
    measured it, and no plan is chosen for it. So many tiles as `waves` keep the device half busy; a number that is
    added on its way into the product, or into one more block of C, takes as long as `inside` multiply-adds.
    """

    flops: float
    fill: float
    pipe: float
    rows: float = 0.0
    cols: float = 0.0
    memory: float = 0.0
    unaligned: float = 1.0
    odd: float = 1.0
    alone: float = 1.0
    copied: float = 1.0
    batch: float = 1.0
    tile: float = 1.0
    tiled: float = 0.0
    waves: float = 0.0
    inside: float = 0.0


@dataclass(frozen=True)
class Calibration:
    """Rates per element type, the streaming rate of sums in bytes/s, seconds per launch, and what overlaps.

    `small` is the traffic at which a pass of sums reaches half its rate; `overlap` the share of the sums below an
    overlapped level that is hidden behind products; with `batches`, equal products of a batched level start together.
    Plans whose leaf products have a side below `least` are not chosen: the formula does not hold for them.
    Sums reach these shares of their rate: `sequential` levels, those on rows that do not begin on cache lines
    (`ragged`) or at multiples of what their kernels move at a time (`scalar`: one number at a time), and three levels
    in one pass (`deep`: so many values at a time leave registers for few threads). `host`: what starting a product
    takes at least. `tiled_margin`: the margin of plans whose products are the tiled kernel's.

    On a CPU, plans run `lanes` products at a time, each on its share of the threads (`batch` of the rate is what that
    costs a product), and sums beside them. They lose `idle` seconds at the beginning and the end, where a thread has
    nothing to do, and `spin` seconds to BLAS's own threads, which after a product keep half of a processor each for a
    while. Smaller plans do one step after the other; their sums reach the share `apart` of the rate.
    """

    name: str
    source: str
    rates: Mapping[str, Rate] = field(hash=False)
    stream: float
    small: float = 0.0
    launch: float = 0.0
    overlap: float = 0.0
    batches: bool = False
    margin: float = 0.01
    tiled_margin: float = 0.08
    sequential: float = 1.0
    ragged: float = 1.0
    scalar: float = 1.0
    deep: float = 1.0
    host: float = 0.0
    least: float = 0.0
    lanes: int = 1
    idle: float = 0.0
    spin: float = 0.0
    apart: float = 1.0

    def rate(self, dtype: str) -> Rate:
        if dtype not in self.rates:
            raise ValueError(f"{self.name} has no rate for {dtype}; it has {', '.join(self.rates)}")
        return self.rates[dtype]


# ---- a CPU that nobody has measured

# Flops that BLAS does while the sums move a byte. Two cores of a current server give 9 (float64) and 18 (float32); set
# higher, so that a plan is chosen only where it pays on machines with slow memory too.
FLOPS_PER_BYTE = {"float64": 14.0, "float32": 28.0, "complex128": 14.0, "complex64": 28.0}
# Nominal: only ratios matter to a choice. Bytes/s that the sums of one thread move.
CPU_STREAM = 10e9
BUILT_IN = "built-in recursion point, device not tuned"


def cpu(threads: int) -> Calibration:
    """The built-in calibration of a CPU: conservative ratios, nominal seconds."""
    rates = {t: Rate(r * CPU_STREAM * threads, 64.0**2, 32.0) for t, r in FLOPS_PER_BYTE.items()}
    stream = CPU_STREAM * min(threads, SUM_THREADS)
    return Calibration(f"cpu, {threads} threads", BUILT_IN, MappingProxyType(rates), stream, 1e6, 20e-6)


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
OVERLAP = 0.25  # on an H200: an outer level that is overlapped gains 1 to 5 % of the time
# Products of rows that are not aligned, against those of aligned ones, on an H200; and TF32's products in a batch.
UNALIGNED = {"float16": 3.5, "bfloat16": 3.5, "float64": 1.4, "float32": 1.05, "tf32": 1.5}
ODD = {"float16": 5.7, "bfloat16": 5.7}
BATCH = {"tf32": 1.12}
SIDE = 128.0  # rows and columns of C that one block of threads computes
TILE = 128 * 128  # entries of C that one SM computes at a time
PIPE = 32.0


def datasheet(name: str) -> Calibration:
    """A GPU's calibration from its printed peaks: what a choice rests on until the device is tuned."""
    gpu = device(name)
    peaks = {t: peak for t, peak in ((t, _peak(gpu, t)) for t in DTYPES) if peak}
    rates = {
        t: Rate(
            peak * PRODUCT_SHARES.get(t, PRODUCT_SHARE),
            gpu.sms * TILE / 8,
            PIPE,
            unaligned=UNALIGNED.get(t, 1.0),
            odd=ODD.get(t, 1.0),
            batch=BATCH.get(t, 1.0),
            tile=SIDE,
        )
        for t, peak in peaks.items()
    }
    stream = gpu.bandwidth_gbs * 1e9 * STREAM_SHARE
    source, terms = "datasheet, not measured", (stream * LAUNCH, LAUNCH, OVERLAP)
    return Calibration(
        gpu.name, source, MappingProxyType(rates), stream, *terms, batches=True, margin=MARGIN, least=LEAST
    )


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
    return (tflops[dtype] or 0.0) * 1e12
