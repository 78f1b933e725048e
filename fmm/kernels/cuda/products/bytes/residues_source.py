"""CUDA source of products by residues: stubs for residue_planes.cuh, gemm_residues.cuh and residue_join.cuh."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fmm.dtypes import BYTE, DTYPES
from fmm.kernels.algorithms.additions import Matrix
from fmm.kernels.algorithms.catalogue import scheme
from fmm.kernels.cuda.device_code.entry_source import entry_source
from fmm.kernels.cuda.gemm import HalfExtent
from fmm.kernels.cuda.products.tiles.tiled_source import Along
from fmm.kernels.cuda.products.tiles.wgmma_source import GATE, LINE, WgmmaSizes, wgmma_instruction
from fmm.kernels.plans.levels.residue_steps import FAST

THREADS = 256  # of a thread block that measures, splits or joins
CLUSTER = 8  # thread blocks that share the lines of 64 positions
SIDE = 64  # positions of lines that are turned together
SPLITTING = "4", "", "2"  # thread blocks on a multiprocessor, at least, by levels
SPACE = "fmm::residues::"
SIGNED = {DTYPES[name].itemsize: DTYPES[name].cpp for name in ("int8", "int16", "int32", "int64")}


@dataclass(frozen=True)
class ResidueKernel:
    """The kernel of the products of planes."""

    sizes: WgmmaSizes
    half: HalfExtent | None = None  # of which it makes only tiles that reach the diagonal or lie below it

    @property
    def shared(self) -> int:
        """Bytes of shared memory: tiles of A and B, bytes on their way to C, gates."""
        s = self.sizes
        return s.stages * (s.m_s + s.n_s) * LINE + s.m_s * s.n_s + 2 * GATE * (s.stages + s.groups)


@dataclass(frozen=True)
class MeasureKernel:
    """How one operand is measured: its lines by `group` threads each, or turned; are 16 bytes read at a time?"""

    along: Along
    group: int
    wide: bool

    def call(self, operand: str, block: str) -> str:
        """Of a function of residue_planes.cuh."""
        wide = str(self.wide).lower()
        named = f"measure_lines<{self.group}, {wide}>" if self.along == "inner" else f"measure_and_turn<{wide}>"
        return f"{SPACE}{named}({operand}, {block});"


@lru_cache(maxsize=64)
def product_source(kernel: ResidueKernel) -> str:
    """The whole CUDA source of the products of planes, entry point `ENTRY`."""
    s, which = kernel.sizes, "LowerSizes" if kernel.half else "Sizes"
    body = (
        f"using Sizes = fmm::{which}<{BYTE.cpp}, {s.m_s}, {s.n_s}, {s.cluster}, {s.stages}>;",
        f"extern __shared__ __align__(1024) {BYTE.cpp} memory[];",
        f"fmm::multiply_by_groups<Step, {BYTE.cpp}, Sizes, fmm::Along::INNER, fmm::Along::INNER>(",
        "    p.product, fmm::ByModulus{p.moduli, p.each}, memory);",
    )
    before = [*wgmma_instruction(BYTE, s.n_s), ""]
    bounds = s.threads, 1
    return entry_source("fmm::ResidueProduct", body, "gemm_residues.cuh", bounds, clusters=s.cluster, before=before)


@lru_cache(maxsize=64)
def measure_source(left: MeasureKernel | None, right: MeasureKernel | None, dtype: str) -> str:
    """The whole CUDA source of what measures and turns both operands, entry point `ENTRY`; None: nothing to be done."""
    body = (
        "const int block = blockIdx.x;",
        "if (block < p.left.blocks) {",
        *([f"    {left.call('p.left', 'block')}"] if left else []),
        "} else {",
        *([f"    {right.call('p.right', 'block - p.left.blocks')}"] if right else []),
        "}",
    )
    return entry_source(f"{SPACE}Both<{read_as(dtype)}>", body, "residue_planes.cuh", (THREADS,), clusters=CLUSTER)


@lru_cache(maxsize=64)
def split_source(levels: int, left_wide: bool, right_wide: bool, dtype: str) -> str:
    """The whole CUDA source of what splits both operands, entry point `ENTRY`."""
    wide = f"{str(left_wide).lower()}, {str(right_wide).lower()}"
    bounds = tuple(filter(None, (str(THREADS), SPLITTING[levels])))
    body = (f"{SPACE}split_both<Sums, {levels}, {wide}>(p);",)
    return entry_source(f"{SPACE}Split<{read_as(dtype)}>", body, "residue_planes.cuh", bounds, before=[fast_sums()])


@lru_cache(maxsize=64)
def join_source(levels: int, moduli: int, pieces: int, dtype: str) -> str:
    """The whole CUDA source of what puts C together, of float64 or float32, entry point `ENTRY`."""
    body = (f"{SPACE}join<Sums, {levels}, {neighbours(dtype)}, {moduli}, {pieces}>(p);",)
    return _joining(f"Join<{DTYPES[dtype].cpp}>", body)


@lru_cache(maxsize=64)
def join_whole_source(levels: int, moduli: int, dtype: str) -> str:
    """The whole CUDA source of what puts C together, of integers, entry point `ENTRY`."""
    body = (f"{SPACE}join_whole<Sums, {levels}, {neighbours(dtype)}, {moduli}>(p);",)
    return _joining(f"JoinWhole<{DTYPES[dtype].cpp}>", body)


def _joining(told: str, body: tuple[str, ...]) -> str:
    return entry_source(f"{SPACE}{told}", body, "residue_join.cuh", (THREADS,), before=[fast_sums()])


def read_as(dtype: str) -> str:
    """Integers are read with a sign: what they keep of a product is the same."""
    found = DTYPES[dtype]
    return SIGNED[found.itemsize] if found.exact else found.cpp


def neighbours(dtype: str) -> int:
    """In a row of each block of C, that a thread has: at most four, and 16 bytes."""
    return min(4, 16 // DTYPES[dtype].itemsize)


@lru_cache(maxsize=1)
def fast_sums() -> str:
    """The coefficients of the algorithm below, for fast_sums.cuh."""
    found = scheme(FAST)
    code = {0: 0, 1: 1, -1: 2}

    def packed(table: Matrix) -> int:
        """Of a table of blocks, a row each, with a column for each product."""
        return sum(code[int(c)] << (8 * q + 2 * b) for b, row in enumerate(table) for q, c in enumerate(row))

    tables = ", ".join(f"{packed(table):#x}ull" for table in (found.u, found.v, found.w))
    return f"using Sums = fmm::FastSums<{found.rank}, {tables}>;"
