"""CUDA source of a product with sums in it: a short stub for the kernel in cuda/tile.cuh or cuda/tile_mma.cuh.

The stub is all that depends on a scheme: how many blocks of A, B and C a product touches. Which blocks, and their
coefficients, come with the launch: a variant of Huang, Yu, van de Geijn's Figure 6 is one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Literal, NamedTuple

from fmm.kernels.strategy import Strategy

Along = Literal["inner", "outer"]
Access = Literal["vector", "scalar"]
Update = Literal["keep", "atomic"]  # how a product comes to a destination: cuda/tile.cuh says it
Flag = Literal["", "raises", "obeys"]
ENTRY = "fmm_tile"
# The assembler's better optimization moves multiply-adds about, and with them goes the order in which a multiprocessor
# can read their operands without waiting: a third of a cycle is lost for each of them.
OPTIONS = ("--std=c++17", "--ptxas-options=-O1")
WIDE = 16  # bytes of the widest access
ROWS, COLS, STEPS = 16, 8, 4  # of an instruction of a warp: 4 steps, or 8 or 16


class Element(NamedTuple):
    """How CUDA keeps numbers of one type: its C++ name, bytes in memory."""

    name: str
    itemsize: int


ELEMENTS = {"float32": Element("float", 4), "float64": Element("double", 8)}


@dataclass(frozen=True)
class TileKernel:
    """`products` at a time of (sum of `left` blocks of A)(sum of `right` blocks of B) into so many destinations.

    With a flag comes its address too: a kernel that `raises` it does so where what it stores is inf or NaN; one that
    `obeys` does nothing if it is down, and comes with the address of the host's count (cuda/again.cuh).
    """

    strategy: Strategy
    element: str
    left: int = 1
    right: int = 1
    updates: tuple[Update, ...] = ("keep",)  # one a destination
    along: tuple[Along, Along] = ("inner", "outer")  # how A and B are contiguous: rows of both, here
    products: int = 1
    flag: Flag = ""

    @property
    def operands(self) -> tuple[int, int, int]:
        """Blocks of A, B and C: Huang's (W_A, W_B, W_C)."""
        return self.left, self.right, len(self.updates)

    @property
    def deep(self) -> int:
        """Steps of the inner dimension in an instruction of a warp; 0 where threads multiply alone."""
        s = self.strategy
        if self.element != "float64" or self.flag == "obeys" or s.m_r * s.warp_m % ROWS or s.n_r * s.warp_n % COLS:
            return 0
        return min(s.deep, STEPS) if self.sums else s.deep  # sums want registers too

    @property
    def sums(self) -> bool:
        return self.left + self.right > 2

    @property
    def blocks(self) -> int:
        """Thread blocks on a multiprocessor for which the compiler leaves registers; 0: as it likes."""
        return 1 if self.sums and self.deep else self.strategy.blocks  # no shared memory for more

    @property
    def shared(self) -> int:
        """Bytes of shared memory: tiles that are used, and beside them copies of what is added up."""
        s, item = self.strategy, ELEMENTS[self.element].itemsize
        wide = WIDE // item
        numbers = 0
        for out, along, blocks in zip((s.m_s, s.n_s), self.along, (self.left, self.right), strict=True):
            lines, length = (out, s.k_s) if along == "inner" else (s.k_s, out)
            spaced = 2 * wide if self.deep else wide if along == "inner" else 0  # so lines are in other banks
            copied = lines * (length + spaced)
            turned = along == "inner" and s.turned and not self.deep
            summed = (out + wide) * s.k_s if turned else copied
            numbers += s.stages * copied if blocks == 1 else s.stages * summed + blocks * copied
        return item * numbers


@lru_cache(maxsize=8)
def _text(name: str) -> str:
    return (resources.files("fmm.kernels") / "cuda" / name).read_text(encoding="utf-8")


@lru_cache(maxsize=512)
def source(kernel: TileKernel, access: Access) -> str:
    """The whole CUDA source of a kernel, entry point `ENTRY`."""
    s, element = kernel.strategy, ELEMENTS[kernel.element].name
    sizes = s.m_s, s.n_s, s.k_s, s.m_r, s.n_r, s.warp_m, s.warp_n, s.stages, int(s.turned)
    counts = *kernel.operands, kernel.products
    updates = [f"fmm::Update::{update.upper()}" for update in kernel.updates]
    left, right = (f"fmm::Along::{along.upper()}" for along in kernel.along)
    obeys = kernel.flag == "obeys"
    told, number, call, tile = f"fmm::Parameters<Number, {_commas(counts)}>", element, "multiply", ", blockIdx.x"
    if obeys:
        told, number, call, tile = f"fmm::Again<{told}>", f"fmm::Exactly<{element}>::Type", "multiply_again", ""
    files = "tile.cuh", *(("tile_mma.cuh",) if kernel.deep else ()), *(("slot.cuh", "again.cuh") if obeys else ())
    lines = [
        *(_text(name) for name in files),
        "struct Product {",
        "    static constexpr int LEFT = {}, RIGHT = {}, DEST = {}, PRODUCTS = {};".format(*counts),
        f"    static constexpr bool WATCHES = {str(kernel.flag == 'raises').lower()};",
        _listed("fmm::Update", "update", updates),
        "};",
        f"using Number = {number};",
        "",
        f'extern "C" __global__ void __launch_bounds__({s.threads}{f", {kernel.blocks}" if kernel.blocks else ""})',
        f"{ENTRY}(const __grid_constant__ {told} p) {{",
        f"    using Sizes = fmm::Strategy<{_commas(sizes)}>;",
        "    extern __shared__ float4 memory[];",
        *_call(kernel, call, f"{left}, {right}, fmm::Access::{access.upper()}", tile),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _call(kernel: TileKernel, name: str, access: str, tile: str) -> list[str]:
    """By warps where the device has instructions for them; else threads alone, with no more shared memory."""
    given = f"        p, reinterpret_cast<Number*>(memory){tile});"
    alone = [f"    fmm::{name}<Product, Number, Sizes, {access}>(", given]
    if not kernel.deep:
        return alone
    together = [f"    fmm::multiply_by_warps<Product, Number, Sizes, {kernel.deep}, {access}>(", given]
    return ["#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800", *alone, "#else", *together, "#endif"]


def _listed(kind: str, name: str, values: Sequence[str]) -> str:
    """A function from an index to one of these values, known when the kernel is compiled."""
    *first, last = values
    choice = "".join(f"i == {i} ? {v} : " for i, v in enumerate(first))
    return f"    __device__ static constexpr {kind} {name}([[maybe_unused]] int i) {{ return {choice}{last}; }}"


def _commas(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
