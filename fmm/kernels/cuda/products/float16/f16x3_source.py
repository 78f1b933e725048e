"""CUDA source of float32 products by three of float16: a stub for gemm_f16x3.cuh."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.device_code.entry_source import entry_source
from fmm.kernels.cuda.products.float16.f16_planes import PLANES
from fmm.kernels.cuda.products.tiles.tiled_source import Along, Half, along_names
from fmm.kernels.cuda.products.tiles.wgmma_source import GATE, LINE, WgmmaSizes, wgmma_instruction


@dataclass(frozen=True)
class F16x3Kernel:
    """The kernel of a product of planes."""

    sizes: WgmmaSizes
    along: tuple[Along, Along]  # the dimension along which A, and B, are contiguous
    checked: bool = False  # does it raise the flag where an entry may be wrong beside its own size?
    half: Half | None = None

    @property
    def shared(self) -> int:
        """Bytes of shared memory: tiles of hi and lo of A and B, gates."""
        s = self.sizes
        return s.stages * (PLANES * (s.m_s + s.n_s) * LINE + 2 * GATE)


@lru_cache(maxsize=64)
def f16x3_source(kernel: F16x3Kernel) -> str:
    """The whole CUDA source of a product, entry point `ENTRY`."""
    s = kernel.sizes
    left, right = along_names(kernel.along)
    body = (
        f"using Sizes = fmm::{_sizes_type(kernel)};",
        "extern __shared__ __align__(1024) fmm::half memory[];",
        f"fmm::multiply_f16x3<Step, Sizes, {left}, {right}, {str(kernel.checked).lower()}>(p, memory);",
    )
    before = [*wgmma_instruction(DTYPES["float16"], s.n_s), ""]
    return entry_source("fmm::Product3", body, "gemm_f16x3.cuh", (s.threads, 1), clusters=s.cluster, before=before)


def _sizes_type(kernel: F16x3Kernel) -> str:
    s = kernel.sizes
    numbers = f"{s.m_s}, {s.n_s}, {s.cluster}, {s.stages}"
    return f"LowerSizes3<{numbers}, {str(kernel.half == 'full').lower()}>" if kernel.half else f"Sizes3<{numbers}>"
