"""The kernel that NumPy's OpenBLAS runs, and a warning where the kernel is older than the processor.

OpenBLAS chooses its kernel when NumPy loads it. OPENBLAS_CORETYPE forces a kernel, and OPENBLAS_L2_SIZE the size of its
blocks. A build of OpenBLAS may also lack the kernel of a new processor.
"""

from __future__ import annotations

import os
from functools import lru_cache

from fmm.kernels.cpu.openblas import openblas_kernel

# x86's vector instructions, from the oldest to the newest, with the flags of /proc/cpuinfo that a processor needs.
INSTRUCTION_SETS: dict[str, tuple[str, ...]] = {
    "SSE": (),
    "AVX": ("avx",),
    "AVX2": ("avx2", "fma"),
    "AVX-512": ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
}
# OpenBLAS's kernels by their instructions. Kernels of other architectures are in no row: nothing is known of them.
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
    """Return a warning if OpenBLAS runs a kernel for an older processor than this one; empty if it does not.

    Empty also where the kernel or the processor's instructions are unknown.
    """
    return kernel_warning_text(openblas_kernel(), processor_flags(), os.environ.get("OPENBLAS_CORETYPE", ""))


def kernel_warning_text(kernel: str, flags: frozenset[str], forced: str = "") -> str:
    """Return the warning for this kernel on a processor with these flags; `forced`: the value of OPENBLAS_CORETYPE."""
    order = list(INSTRUCTION_SETS)
    used = next((name for name, kernels in OPENBLAS_KERNELS.items() if kernel.lower() in map(str.lower, kernels)), None)
    newest = [name for name, needed in INSTRUCTION_SETS.items() if flags and flags.issuperset(needed)]
    if used is None or not newest or order.index(used) >= order.index(newest[-1]):
        return ""
    speed = SLOWDOWN_TEXTS.get((used, newest[-1]), "far below its speed")
    remedy = "unset OPENBLAS_CORETYPE" if forced else f"install a NumPy whose OpenBLAS has kernels for {newest[-1]}"
    return f"OpenBLAS runs its {kernel} kernel on an {newest[-1]} processor: {speed}; {remedy}"


def processor_flags() -> frozenset[str]:
    """Return the flags of this x86 processor as Linux lists them; none on other systems."""
    return frozenset(cpuinfo_field("flags").split())


def cpuinfo_field(name: str) -> str:
    """Return the first value of a field of Linux's /proc/cpuinfo; empty on other systems."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
    except OSError:
        return ""
