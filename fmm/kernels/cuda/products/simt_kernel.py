"""Generate the CUDA source of a tiled product with fused sums, for the kernels of gemm_simt.cuh and gemm_mma_f64.cuh.

The generated source contains the number of blocks in each sum, and the epilogue for each element of C. The blocks and
their coefficients are parameters of the launch, so products with equal numbers of blocks use the same compiled kernel
(one for each variant in Figure 6 of Huang, Yu and van de Geijn). The sums of a step table are generated as code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import AdditionProgram, Terms
from fmm.kernels.cuda.device_code.entry_source import entry_source
from fmm.kernels.cuda.products.kernel_sizes import TileSizes
from fmm.kernels.cuda.products.tiling import (
    VECTOR_BYTES,
    ContiguousAxis,
    TriangleTiles,
    cpp_contiguous_axes,
    cpp_strategy_type,
    cpp_triangle_value,
    template_arguments,
)

MemoryAccess = Literal["vector", "scalar"]  # each access moves 16 bytes ("vector") or one element ("scalar")
CopyPath = Literal["async", "plain", "texture"]  # how a tile is copied to shared memory; enum Path of gemm_simt.cuh
# How a product is added to a destination block. "keep": the kernel computes block = keep * block + factor * product; no
# other kernel writes the block at the same time. "atomic": the kernel adds the product atomically, and other thread
# blocks may add to the same block at the same time.
UpdateMode = Literal["keep", "atomic"]
# How a kernel uses the flag for inf and NaN. "raises": the kernel raises the flag when it stores an inf or NaN.
# "obeys": the kernel does nothing unless the flag is raised.
FlagUse = Literal["raises", "obeys"]
ASYNC_PATHS: tuple[CopyPath, CopyPath] = ("async", "async")
# The source orders the multiply-adds so that no register bank conflicts occur. Above -O1, ptxas would change the order
# of the multiply-adds, and each multiply-add would take a third of a cycle longer.
COMPILER_OPTIONS = ("--std=c++17", "--ptxas-options=-O1")
# The float64 mma instruction computes 16 rows and 8 columns of C. The instruction's depth (its length along the inner
# dimension) is 4, 8 or 16; MMA_DEPTH is the smallest depth.
MMA_ROWS, MMA_COLUMNS, MMA_DEPTH = 16, 8, 4


class LaunchScalar(NamedTuple):
    """A coefficient of a destination block, set by the launch: of the product ("factor") or the old value ("keep")."""

    name: Literal["factor", "keep"]
    dest: int

    def __str__(self) -> str:
        return f"dest[{self.dest}].{self.name}"


@dataclass(frozen=True)
class Epilogue:
    """The computation that updates each element of the destination blocks with an element of the product.

    The inputs of `program` are the product and the old values of the blocks `reads`. The outputs of `program` are
    stored to the blocks `writes`, or added to these blocks atomically.
    """

    program: AdditionProgram  # the sums to compute; coefficients may be LaunchScalars
    reads: tuple[int, ...]  # indices of destination blocks
    writes: tuple[int, ...]  # indices of destination blocks
    atomic: bool = False

    def __post_init__(self) -> None:
        inputs, outputs = self.program.inputs, len(self.program.outputs)
        if (len(self.reads) + 1, len(self.writes)) != (inputs, outputs) or len(set(self.writes)) < outputs:
            raise ValueError(f"{inputs} inputs and {outputs} outputs for reads {self.reads}, writes {self.writes}")

    @property
    def destination_count(self) -> int:
        return max((*self.reads, *self.writes)) + 1


@lru_cache(maxsize=256)
def adding_epilogue(destinations: int, update: UpdateMode = "keep") -> Epilogue:
    """Return the epilogue C_d = keep_d * C_d + factor_d * product for each destination block C_d.

    The launch sets the numbers keep_d and factor_d. A block C_d with keep_d = 0 is not read.
    """
    every = tuple(range(destinations))
    reads = every if update == "keep" else ()
    lines: list[Terms] = []
    for d in every:
        old = ((LaunchScalar("keep", d), d + 1),) if reads else ()
        lines.append((*old, (LaunchScalar("factor", d), 0)))  # type: ignore[arg-type]
    program = AdditionProgram(len(reads) + 1, tuple(lines), tuple(len(reads) + 1 + d for d in every))
    return Epilogue(program, reads, every, update == "atomic")


DEFAULT_EPILOGUE = adding_epilogue(1)


@lru_cache(maxsize=256)
def to_adding_epilogue(e: Epilogue) -> tuple[Epilogue, tuple[tuple[float, float], ...]]:
    """Return an `adding_epilogue` equivalent to the epilogue `e`, and a pair (factor, keep) for each destination.

    Return `e` if no `adding_epilogue` is equivalent, for example because a destination's new value depends on another
    destination's old value. An `adding_epilogue` saves compilations: the step tables' operations mulIncInc and
    mulStoreDec, for example, use the same kernel and differ only in coefficients that the launch sets.
    """
    every = range(e.destination_count)
    rows = dict(zip(e.writes, e.program.coefficient_matrix(), strict=True))
    old = {d: i for i, d in enumerate(e.reads, 1)}
    separate = set(rows) == set(every) and all(
        not c or i in (0, old.get(d)) for d in rows for i, c in enumerate(rows[d])
    )
    if e.atomic or len(old) < len(e.reads) or not separate:
        return e, ((1.0, 0.0),) * e.destination_count
    pairs = tuple((float(rows[d][0]), float(rows[d][old[d]]) if d in old else 0.0) for d in every)  # type: ignore[arg-type]
    return adding_epilogue(e.destination_count), pairs


@dataclass(frozen=True)
class TileKernel:
    """A compiled variant of the tiled kernel. One launch computes `products` products of two sums of blocks.

    The left operand is a sum of `left` blocks of A, and the right operand a sum of `right` blocks of B. A kernel that
    uses the flag receives the flag's address in the parameters. A kernel that runs only if the flag is raised also
    receives the address of a counter of recomputed products, in host memory (recompute_tiled.cuh).
    """

    strategy: TileSizes
    element: str
    left: int = 1
    right: int = 1
    epilogue: Epilogue = DEFAULT_EPILOGUE
    # dimensions along which A and B are contiguous; by default both are row-major
    along: tuple[ContiguousAxis, ContiguousAxis] = ("inner", "outer")
    products: int = 1
    flag: FlagUse | None = None
    paths: tuple[CopyPath, CopyPath] = ASYNC_PATHS  # paths by which tiles of A and tiles of B are copied
    triangle: TriangleTiles | None = None

    @property
    def block_counts(self) -> tuple[int, int, int]:
        """The number of blocks of A, of B and of C: (W_A, W_B, W_C) of Huang, Yu and van de Geijn."""
        return self.left, self.right, self.epilogue.destination_count

    @property
    def mma_depth(self) -> int:
        """Depth of the float64 mma instruction along the inner dimension; 0 if the kernel uses no mma instruction."""
        s, (rows, columns) = self.strategy, (MMA_ROWS, MMA_COLUMNS)
        if self.element != "float64" or self.flag == "obeys" or s.m_r * s.warp_m % rows or s.n_r * s.warp_n % columns:
            return 0
        # Sums of blocks, and copies of tiles through registers, leave fewer registers to the mma instruction.
        return min(s.mma_depth, MMA_DEPTH) if self.has_sums or self.paths != ASYNC_PATHS else s.mma_depth

    @property
    def has_sums(self) -> bool:
        """True if an operand is a sum of several blocks of A or of B."""
        return self.left + self.right > 2

    @property
    def min_resident_blocks(self) -> int:
        """Minimum number of resident thread blocks per multiprocessor, for `__launch_bounds__`; 0: no minimum."""
        # If an operand is a sum, the shared memory of a multiprocessor suffices for one thread block only.
        return 1 if self.has_sums and self.mma_depth else self.strategy.blocks

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory: tiles of all pipeline stages, and one tile of each block that is added in a sum."""
        s, item = self.strategy, DTYPES[self.element].itemsize
        vector = VECTOR_BYTES // item  # number of elements in a vector access
        numbers = 0
        for out, along, blocks in zip((s.m_s, s.n_s), self.along, (self.left, self.right), strict=True):
            lines, length = (out, s.k_s) if along == "inner" else (s.k_s, out)
            # Padding puts equal positions of neighbouring lines into different memory banks.
            padding = 2 * vector if self.mma_depth else vector if along == "inner" else 0
            copied = lines * (length + padding)
            transposed = along == "inner" and s.transposed_sums and not self.mma_depth
            summed = (out + vector) * s.k_s if transposed else copied
            numbers += s.stages * copied if blocks == 1 else s.stages * summed + blocks * copied
        return item * numbers


@lru_cache(maxsize=512)
def simt_kernel_source(kernel: TileKernel, access: MemoryAccess) -> str:
    """Return the CUDA source of a kernel; its entry point is `ENTRY_NAME`."""
    s, element = kernel.strategy, DTYPES[kernel.element].cpp
    counts = *kernel.block_counts, kernel.products
    paths = (f"fmm::Path::{path.upper()}" for path in kernel.paths)
    obeys = kernel.flag == "obeys"
    parameters, number, call, tile = (
        f"fmm::Parameters<Number, {template_arguments(counts)}>",
        element,
        "multiply",
        ", blockIdx.x",
    )
    if obeys:
        parameters, number = f"fmm::RecomputeParams<{parameters}>", f"fmm::RecomputeElement<{element}>::Type"
        call, tile = "recompute_tiles", ""
    header = "recompute_tiled" if obeys else "gemm_mma_f64" if kernel.mma_depth else "gemm_simt"
    before = [
        "struct Product {",
        "    static constexpr int LEFT = {}, RIGHT = {}, DEST = {}, PRODUCTS = {};".format(*counts),
        f"    static constexpr bool RAISES = {str(kernel.flag == 'raises').lower()};",
        f"    static constexpr bool SHORT = {str(obeys).lower()};",
        f"    static constexpr fmm::Triangle TRIANGLE = {cpp_triangle_value(kernel.triangle)};",
        "    static constexpr fmm::Path LEFT_PATH = {}, RIGHT_PATH = {};".format(*paths),
        *_epilogue_struct(kernel.epilogue),
        "};",
        f"using Number = {number};",
        "",
    ]
    variant = f"{', '.join(cpp_contiguous_axes(kernel.along))}, fmm::Access::{access.upper()}"
    body = [
        f"using Sizes = {cpp_strategy_type(s)};",
        "extern __shared__ float4 memory[];",
        *_product_call(kernel, call, variant, tile),
    ]
    bounds = (s.thread_count, kernel.min_resident_blocks) if kernel.min_resident_blocks else (s.thread_count,)
    return entry_source(parameters, body, f"{header}.cuh", bounds, before=before)


def _product_call(kernel: TileKernel, name: str, variant: str, tile: str) -> list[str]:
    """Return the lines of C++ that call the product function.

    A kernel with float64 mma instructions contains a second call without them, for devices before compute capability 8.
    """
    arguments = f"    p, reinterpret_cast<Number*>(memory){tile});"
    by_threads = [f"fmm::{name}<Product, Number, Sizes, {variant}>(", arguments]
    if not kernel.mma_depth:
        return by_threads
    by_warps = [f"fmm::multiply_by_warps<Product, Number, Sizes, {kernel.mma_depth}, {variant}>(", arguments]
    return ["#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800", *by_threads, "#else", *by_warps, "#endif"]


def _epilogue_struct(e: Epilogue) -> Iterator[str]:
    """Yield C++ members of struct Product: the destinations to read, the destinations to write, and the update."""
    dests = f"[[maybe_unused]] const fmm::Block<Element> (&dest)[{e.destination_count}]"
    yield f"    static constexpr bool ATOMIC = {str(e.atomic).lower()};"
    yield "    template <class Element>"
    yield f"    __device__ static __forceinline__ bool reads(int d, {dests}) {{"
    conditions = [_cpp_condition_for_reading(e, d) for d in range(e.destination_count)]
    yield f"        return {_select_expression('d', conditions)};"
    yield "    }"
    yield "    __device__ static constexpr bool writes([[maybe_unused]] int d) {"
    yield f"        return {_select_expression('d', [str(d in e.writes).lower() for d in range(e.destination_count)])};"
    yield "    }"
    yield "    template <class Element>"
    yield f"    __device__ static __forceinline__ void update(Element product, {dests},"
    yield f"                                                  Element (&value)[{e.destination_count}]) {{"
    yield from (f"        const Element old{i} = value[{d}];" for i, d in enumerate(e.reads))
    names = ["product", *(f"old{i}" for i, _ in enumerate(e.reads))]
    for number, terms in enumerate(e.program.lines):
        yield f"        const Element sum{number} = {_sum_expression(terms, names)};"
        names.append(f"sum{number}")
    yield from (f"        value[{d}] = {names[v]};" for d, v in zip(e.writes, e.program.outputs, strict=True))
    yield "    }"


def _cpp_condition_for_reading(e: Epilogue, dest: int) -> str:
    """Return the C++ condition for reading a destination: at least one coefficient of the old value is not zero."""
    values = {i for i, d in enumerate(e.reads, 1) if d == dest}
    factors = {c for terms in e.program.lines for c, v in terms if v in values}
    conditions = sorted(f"{c} != Element(0)" for c in factors if isinstance(c, LaunchScalar))
    is_output = any(v in values for v in e.program.outputs)
    return "true" if is_output or len(conditions) < len(factors) else " || ".join(conditions) or "false"


def _sum_expression(terms: Terms, names: Sequence[str]) -> str:
    """Return the C++ expression of a sum, for example `old0 - product`; zero for an empty sum."""
    words = []
    for c, v in terms:
        factor = str(c) if isinstance(c, LaunchScalar) else f"static_cast<Element>({float(c)!r})"  # type: ignore[arg-type]
        sign, size = ("-", "") if c == -1 else ("+", "" if c == 1 else f"{factor} * ")
        words.append(f"{sign} {size}{names[v]}")
    return " ".join(words).removeprefix("+ ") or "Element(0)"


def _select_expression(name: str, values: Sequence[str]) -> str:
    """Return the C++ expression that selects one of `values` by the index in the C++ variable `name`."""
    *first, last = values
    return "".join(f"{name} == {i} ? {v} : " for i, v in enumerate(first)) + last
