"""The built-in calibration of a CPU that nobody has measured, and what any CPU's calibration says of integers."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from fmm.dtypes import DTYPES, INTEGERS
from fmm.kernels.algorithms.digits import RELATIVE_TIME, any_digits
from fmm.kernels.cpu.threads.thread_pool import MOST as SUM_THREADS
from fmm.kernels.leaves import DIGITS_RATE
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
