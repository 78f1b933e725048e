"""CUDA source of products by the tensor cores of Hopper's warpgroups: a stub for gemm_wgmma.cuh."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fmm.dtypes import DTYPES, DType
from fmm.kernels.cuda.device_code.entry_source import entry_source
from fmm.kernels.cuda.gemm import HalfExtent
from fmm.kernels.cuda.products.tiles.tiled_source import Along, along_names

LINE = 128  # bytes of a tile's line along the inner dimension
INSTRUCTION = 32  # bytes of a row of A that one instruction multiplies
GATE = 8  # bytes of a barrier in shared memory


@dataclass(frozen=True)
class WgmmaSizes:
    """Sizes of a thread block's tile of C; `cluster` thread blocks below each other share what they read of B."""

    m_s: int
    n_s: int
    cluster: int = 2
    stages: int = 3

    @property
    def groups(self) -> int:
        """Warpgroups that multiply; one more copies tiles in and out."""
        return self.m_s // 64

    @property
    def threads(self) -> int:
        return 128 * (self.groups + 1)


@dataclass(frozen=True)
class WgmmaKernel:
    """The kernel of a product by warpgroups."""

    element: str
    sizes: WgmmaSizes
    along: tuple[Along, Along]  # the dimensions along which A and B are contiguous
    half: HalfExtent | None = None  # of which it makes only tiles that reach the diagonal or lie below it

    @property
    def passes(self) -> int:
        """In how many parts a tile of C goes out through shared memory: parts have equally many bytes in all types."""
        return max(DTYPES[self.element].itemsize // 2, 1)

    @property
    def shared(self) -> int:
        """Bytes of shared memory: tiles of A and B, numbers on their way to C, gates."""
        s = self.sizes
        staged = s.m_s * s.n_s // self.passes * DTYPES[self.element].itemsize
        return s.stages * (s.m_s + s.n_s) * LINE + staged + 2 * GATE * (s.stages + s.groups)


@lru_cache(maxsize=64)
def wgmma_source(kernel: WgmmaKernel) -> str:
    """The whole CUDA source of a kernel, entry point `ENTRY`."""
    s, element = kernel.sizes, DTYPES[kernel.element]
    left, right = along_names(kernel.along)
    body = (
        f"using Element = {element.cpp};",
        f"using Sizes = fmm::{_sizes_type(kernel)};",
        "extern __shared__ __align__(1024) Element memory[];",
        f"fmm::multiply_by_groups<Step, Element, Sizes, {left}, {right}>(p, fmm::ByFactor{{p.factor}}, memory);",
    )
    before = [*wgmma_instruction(element, s.n_s), ""]
    return entry_source("fmm::Product", body, "gemm_wgmma.cuh", (s.threads, 1), clusters=s.cluster, before=before)


def _sizes_type(kernel: WgmmaKernel) -> str:
    s = kernel.sizes
    numbers = f"Element, {s.m_s}, {s.n_s}, {s.cluster}, {s.stages}"
    if not kernel.half:
        return f"Sizes<{numbers}>"
    return f"LowerSizes<{numbers}, {str(kernel.half == 'full').lower()}>"


def wgmma_instruction(element: DType, width: int) -> list[str]:
    """64 rows of A times `width` columns of B, added to the accumulators, or not, if nothing is kept of these.

    Where 16-bit operands are turned, they lie along the outer dimension; bytes are added up in whole numbers. (An
    instruction names all its registers.)
    """
    count, whole = width // 2, element.itemsize == 1
    sums, number, register = ("s32", "int", "r") if whole else ("f32", "float", "f")
    names = ", ".join(f"%{i}" for i in range(count))
    accumulators = ", ".join(f'"+{register}"(x[{i}])' for i in range(count))
    deep = INSTRUCTION // element.itemsize
    signs = "" if whole else ", 1, 1"
    turns = f", %{count + 3}, %{count + 4}" if element.itemsize == 2 else ""
    given = '"l"(a), "l"(b), "r"(keeps)' + (', "n"(int(LEFT_TURNED)), "n"(int(RIGHT_TURNED))' if turns else "")
    name = f"wgmma.mma_async.sync.aligned.m64n{width}k{deep}.{sums}.{element.mma}.{element.mma}"
    return [
        "struct Step {",
        f"    using Sum = {number};",
        "    template <bool LEFT_TURNED, bool RIGHT_TURNED>",
        f"    __device__ static __forceinline__ void multiply(Sum (&x)[{count}], unsigned long long a,",
        "                                                    unsigned long long b, int keeps) {",
        '        asm volatile("{.reg .pred keeps; "',
        f'                     "setp.ne.b32 keeps, %{count + 2}, 0; "',
        f'                     "{name} "',
        f'                     "{{{names}}}, "',
        f'                     "%{count}, %{count + 1}, keeps{signs}{turns};}}"',
        f"                     : {accumulators}",
        f"                     : {given});",
        "    }",
        "};",
    ]
