"""CUDA source of float32 products by three of float16: stubs for f16_planes.cuh and gemm_f16x3.cuh."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.device_code.read import with_headers
from fmm.kernels.cuda.products.f16_planes import PLANES
from fmm.kernels.cuda.products.tiled_source import ENTRY, Along
from fmm.kernels.cuda.products.wgmma_source import GATE, LINE, wgmma_instruction

PLANE_THREADS = 256  # of a thread block that splits
CLUSTER = 8  # thread blocks that share the lines of 64 positions


@dataclass(frozen=True)
class F16x3Sizes:
    """Sizes of a thread block's tile of C; `cluster` thread blocks below each other share what they read of B."""

    m_s: int
    n_s: int
    cluster: int = 2
    stages: int = 3

    @property
    def threads(self) -> int:
        return 128 * (self.m_s // 64 + 1)


@dataclass(frozen=True)
class F16x3Kernel:
    """The product of planes."""

    sizes: F16x3Sizes
    along: tuple[Along, Along]  # how A and B are contiguous

    @property
    def shared(self) -> int:
        """Bytes of shared memory: tiles of hi and lo of A and B, gates."""
        s = self.sizes
        return s.stages * (PLANES * (s.m_s + s.n_s) * LINE + 2 * GATE)


@dataclass(frozen=True)
class SplitKernel:
    """How one operand is split: its lines by `group` threads each, `kept` loads of which stay in registers (for lines
    along the inner dimension); whether 16 bytes are read at a time."""

    along: Along
    group: int
    kept: int
    wide: bool

    @property
    def call(self) -> str:
        wide = str(self.wide).lower()
        return f"by_line<{self.group}, {self.kept}, {wide}>" if self.along == "inner" else f"by_position<{wide}>"


@lru_cache(maxsize=64)
def f16x3_source(kernel: F16x3Kernel) -> str:
    """The whole CUDA source of a product, entry point `ENTRY`."""
    s = kernel.sizes
    left, right = (f"fmm::Along::{along.upper()}" for along in kernel.along)
    lines = [
        '#include "gemm_f16x3.cuh"',
        "",
        *wgmma_instruction(DTYPES["float16"], s.n_s),
        "",
        f'extern "C" __global__ void __cluster_dims__({s.cluster}, 1, 1) __launch_bounds__({s.threads}, 1)',
        f"{ENTRY}(const __grid_constant__ fmm::Product3 p) {{",
        f"    using Sizes = fmm::Sizes3<{s.m_s}, {s.n_s}, {s.cluster}, {s.stages}>;",
        "    extern __shared__ __align__(1024) fmm::half memory[];",
        f"    fmm::multiply_f16x3<Step, Sizes, {left}, {right}>(p, memory);",
        "}",
    ]
    return with_headers("\n".join(lines) + "\n")


@lru_cache(maxsize=64)
def split_source(left: SplitKernel, right: SplitKernel) -> str:
    """The whole CUDA source of what splits both operands, entry point `ENTRY`."""
    lines = [
        '#include "f16_planes.cuh"',
        "",
        f'extern "C" __global__ void __cluster_dims__({CLUSTER}, 1, 1) __launch_bounds__({PLANE_THREADS})',
        f"{ENTRY}(const __grid_constant__ fmm::planes::Both p) {{",
        "    const int block = blockIdx.x;",
        "    if (block < p.left.blocks)",
        f"        fmm::planes::{left.call}(p.left, block);",
        "    else",
        f"        fmm::planes::{right.call}(p.right, block - p.left.blocks);",
        "}",
    ]
    return with_headers("\n".join(lines) + "\n")
