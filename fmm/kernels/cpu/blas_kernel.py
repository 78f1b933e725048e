"""Find the kernel that NumPy's OpenBLAS runs, and warn if the kernel is for an older processor.

OpenBLAS chooses a kernel for the processor when NumPy loads OpenBLAS. A kernel for an older processor has two possible
causes: the environment variable OPENBLAS_CORETYPE selects the kernel, or this build of OpenBLAS has no kernel for a new
processor.
"""

from __future__ import annotations

import os
from functools import lru_cache

from fmm.kernels.cpu.openblas import openblas_kernel

# Vector instruction sets of x86, from oldest to newest -> flags in /proc/cpuinfo that a processor must have.
INSTRUCTION_SETS: dict[str, tuple[str, ...]] = {
    "SSE": (),
    "AVX": ("avx",),
    "AVX2": ("avx2", "fma"),
    "AVX-512": ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
}
# Instruction set -> OpenBLAS's kernels with these instructions. Kernels for architectures other than x86 are not
# listed.
OPENBLAS_KERNELS = {
    "SSE": (
        *("Katmai", "Coppermine", "Northwood", "Prescott", "Banias"),
        *("Core2", "Penryn", "Dunnington", "Nehalem", "Atom"),
    ),
    "AVX": ("Sandybridge", "Bulldozer", "Piledriver", "Steamroller"),
    "AVX2": ("Haswell", "Zen", "Excavator"),
    "AVX-512": ("SkylakeX", "Cooperlake", "Sapphirerapids"),
}
SLOWDOWN_TEXTS = {("AVX2", "AVX-512"): "about half the speed"}


@lru_cache(maxsize=1)
def slow_kernel_warning() -> str:
    """Return a warning if OpenBLAS runs a kernel for an older type of processor.

    Return an empty string if the kernel fits the processor, and if the kernel or the processor's instruction set is
    unknown.
    """
    return kernel_warning_text(openblas_kernel(), processor_flags(), os.environ.get("OPENBLAS_CORETYPE", ""))


def kernel_warning_text(kernel: str, flags: frozenset[str], forced: str = "") -> str:
    """Return the warning for this kernel and these processor flags; `forced` is the value of OPENBLAS_CORETYPE."""
    order = list(INSTRUCTION_SETS)
    used = next((name for name, kernels in OPENBLAS_KERNELS.items() if kernel.lower() in map(str.lower, kernels)), None)
    newest = [name for name, needed in INSTRUCTION_SETS.items() if flags and flags.issuperset(needed)]
    if used is None or not newest or order.index(used) >= order.index(newest[-1]):
        return ""
    speed = SLOWDOWN_TEXTS.get((used, newest[-1]), "far below its speed")
    remedy = "unset OPENBLAS_CORETYPE" if forced else f"install a NumPy whose OpenBLAS has kernels for {newest[-1]}"
    return f"OpenBLAS runs its {kernel} kernel on an {newest[-1]} processor: {speed}; {remedy}"


def processor_flags() -> frozenset[str]:
    """Return the flags of this x86 processor from /proc/cpuinfo; an empty set on other systems."""
    return frozenset(cpuinfo_field("flags").split())


def cpuinfo_field(name: str) -> str:
    """Return the first value of a field of Linux's /proc/cpuinfo; an empty string on other systems."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
    except OSError:
        return ""
