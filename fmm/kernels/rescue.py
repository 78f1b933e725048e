"""CUDA source of the rescue: a fast product with inf or NaN is computed again in the classical order, on the device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from fmm.kernels.cuda_source import ELEMENTS

THREADS = 256  # of a thread block, as in cuda/rescue.cuh
RESCUE, SCAN = "fmm_rescue", "fmm_scan"
FIRST_REST, LAST_REST = 8, 4096  # products left to the vendor after a rescue: doubled each time, up to this


@dataclass
class Trust:
    """May the next product be a fast one? Not for a while after one that had to be computed again: such data tend to
    come again, and computing a product twice costs more than the vendor's."""

    rescues: int = 0  # as many as were known of at the last question
    rest: int = FIRST_REST
    left: int = 0
    quiet: int = 0

    def holds(self, rescues: int) -> bool:
        """`rescues`: how many there have been by now."""
        if rescues != self.rescues:
            self.rescues, self.left, self.quiet = rescues, self.rest, 0
            self.rest = min(2 * self.rest, LAST_REST)
        if self.left:
            self.left -= 1
            return False
        self.quiet += 1
        if self.quiet > self.rest:
            self.rest = FIRST_REST
        return True


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
