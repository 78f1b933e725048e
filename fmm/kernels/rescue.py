"""CUDA source of the rescue: a fast product with inf or NaN is computed again in the classical order, on the device."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

from fmm.kernels.cuda_source import ELEMENTS

THREADS = 256  # of a thread block, as in cuda/rescue.cuh
RESCUE, SCAN = "fmm_rescue", "fmm_scan"


@lru_cache(maxsize=len(ELEMENTS))
def source(dtype: str) -> str:
    """The whole CUDA source for one element type: entry points `RESCUE` and `SCAN`."""
    element = ELEMENTS[dtype]
    # Sums per thread along either side of its tile: as many as 64 registers hold, 16 threads side by side.
    each = 8 if element.registers == 1 else 4
    parameter = "(const __grid_constant__ fmm::classical::Rescue p)"
    lines = [
        *(_text(name) for name in ("sum.cuh", "rescue.cuh")),
        f'extern "C" __global__ void __launch_bounds__({THREADS}, 1)',
        f"{RESCUE}{parameter} {{ fmm::classical::rescue<{element.name}, {each}>(p); }}",
        "",
        f'extern "C" __global__ void __launch_bounds__({THREADS}, 1)',
        f"{SCAN}{parameter} {{ fmm::classical::scan<{element.name}>(p); }}",
    ]
    return "\n".join(lines) + "\n"


def sources() -> dict[str, str]:
    """Every source there is, by element type: what a compiler without a device can check."""
    return {dtype: source(dtype) for dtype in ELEMENTS}


def _text(name: str) -> str:
    return (resources.files("fmm.kernels") / "cuda" / name).read_text(encoding="utf-8")
