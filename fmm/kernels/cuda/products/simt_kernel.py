"""Kernel."""

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
    Along,
    TriangleTiles,
    along_cpp,
    comma_list,
    strategy_cpp,
    triangle_cpp,
)

Access = Literal["vector", "scalar"]
CopyPath = Literal["async", "plain", "texture"]  # how tiles come to shared memory: gemm_simt.cuh says it
# How a product is added to a destination: beside what that keeps of its old value while nobody else writes it, or
# number by number, whoever else adds at the same time.
Update = Literal["keep", "atomic"]
# What a kernel does with the device's flag for inf and NaN: it raises it where it stores one; or it does nothing while
# the flag is down.
FlagUse = Literal["raises", "obeys"]
ASYNC: tuple[CopyPath, CopyPath] = ("async", "async")
# -O1, because ptxas's higher levels reorder the multiply-adds, and lose the order in which their operands can be read
# without conflicts between register banks: a third of a cycle is lost for each multiply-add.
COMPILER_OPTIONS = ("--std=c++17", "--ptxas-options=-O1")
# Of a warp's float64 instruction: rows and columns of C, and the fewest steps of the inner dimension (4, 8 or 16).
ROWS, COLS, STEPS = 16, 8, 4


class LaunchScalar(NamedTuple):
    """A coefficient that comes with the launch: what a destination takes of the product, or keeps of its old value."""

    name: Literal["factor", "keep"]
    dest: int

    def __str__(self) -> str:
        return f"dest[{self.dest}].{self.name}"


@dataclass(frozen=True)
class Epilogue:
    """What becomes of every number of some destinations, once the product's is known.

    The program's inputs are the product and the old values of the destinations `reads`; its outputs go to `writes`, or
    are added to what is there, if `atomic`. A destination may be read only.
    """

    program: AdditionProgram  # its coefficients may be Scalars
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    atomic: bool = False

    def __post_init__(self) -> None:
        inputs, outputs = self.program.inputs, len(self.program.outputs)
        if (len(self.reads) + 1, len(self.writes)) != (inputs, outputs) or len(set(self.writes)) < outputs:
            raise ValueError(f"{inputs} inputs and {outputs} outputs for reads {self.reads}, writes {self.writes}")

    @property
    def destinations(self) -> int:
        return max((*self.reads, *self.writes)) + 1


@lru_cache(maxsize=256)
def adding_epilogue(destinations: int, update: Update = "keep") -> Epilogue:
    """The epilogue that adds the product to each destination, with coefficients that come with the launch.

    A destination of which nothing is kept is not read.
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
def as_adding_epilogue(e: Epilogue) -> tuple[Epilogue, tuple[tuple[float, float], ...]]:
    """The epilogue as an `adding_epilogue` and a pair (factor, keep) for each destination, if that says it all.

    It does where no destination's new value depends on another's old one. Other epilogues come back as they are.

    So most kernels of the step tables are one compiled kernel: mulIncInc and mulStoreDec differ only in the numbers
    that come with the launch.
    """
    every = range(e.destinations)
    rows = dict(zip(e.writes, e.program.matrix(), strict=True))
    old = {d: i for i, d in enumerate(e.reads, 1)}
    alone = set(rows) == set(every) and all(not c or i in (0, old.get(d)) for d in rows for i, c in enumerate(rows[d]))
    if e.atomic or len(old) < len(e.reads) or not alone:
        return e, ((1.0, 0.0),) * e.destinations
    pairs = tuple((float(rows[d][0]), float(rows[d][old[d]]) if d in old else 0.0) for d in every)  # type: ignore[arg-type]
    return adding_epilogue(e.destinations), pairs


@dataclass(frozen=True)
class TileKernel:
    """A kernel of `products` in one launch, each (sum of `left` blocks of A)(sum of `right` blocks of B), and what the
    epilogue does with it.

    A kernel that uses the flag is told its address; one that obeys it also where the host's count is
    (recompute_tiled.cuh).
    """

    strategy: TileSizes
    element: str
    left: int = 1
    right: int = 1
    epilogue: Epilogue = DEFAULT_EPILOGUE
    along: tuple[Along, Along] = ("inner", "outer")  # the dimensions along which A and B are contiguous: row by row
    products: int = 1
    flag: FlagUse | None = None
    paths: tuple[CopyPath, CopyPath] = ASYNC  # of A's tiles, of B's
    half: TriangleTiles | None = None

    @property
    def operands(self) -> tuple[int, int, int]:
        """Blocks of A, B and C: Huang's (W_A, W_B, W_C)."""
        return self.left, self.right, self.epilogue.destinations

    @property
    def deep(self) -> int:
        """Steps of the inner dimension in an instruction of a warp; 0 where threads multiply alone."""
        s = self.strategy
        if self.element != "float64" or self.flag == "obeys" or s.m_r * s.warp_m % ROWS or s.n_r * s.warp_n % COLS:
            return 0
        # Sums, and tiles that come through registers, want registers too: then the instruction with the fewest steps.
        return min(s.deep, STEPS) if self.sums or self.paths != ASYNC else s.deep

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
        s, item = self.strategy, DTYPES[self.element].itemsize
        wide = VECTOR_BYTES // item
        numbers = 0
        for out, along, blocks in zip((s.m_s, s.n_s), self.along, (self.left, self.right), strict=True):
            lines, length = (out, s.k_s) if along == "inner" else (s.k_s, out)
            # Lines stand apart, so that equal places of neighbouring lines are in different banks.
            spaced = 2 * wide if self.deep else wide if along == "inner" else 0
            copied = lines * (length + spaced)
            turned = along == "inner" and s.turned and not self.deep
            summed = (out + wide) * s.k_s if turned else copied
            numbers += s.stages * copied if blocks == 1 else s.stages * summed + blocks * copied
        return item * numbers


@lru_cache(maxsize=512)
def simt_source(kernel: TileKernel, access: Access) -> str:
    """The whole CUDA source of a kernel, entry point `ENTRY`."""
    s, element = kernel.strategy, DTYPES[kernel.element].cpp
    counts = *kernel.operands, kernel.products
    paths = (f"fmm::Path::{path.upper()}" for path in kernel.paths)
    obeys = kernel.flag == "obeys"
    parameters, number, call, tile = (
        f"fmm::Parameters<Number, {comma_list(counts)}>",
        element,
        "multiply",
        ", blockIdx.x",
    )
    if obeys:
        parameters, number = f"fmm::Again<{parameters}>", f"fmm::Exactly<{element}>::Type"
        call, tile = "multiply_again", ""
    header = "recompute_tiled" if obeys else "gemm_mma_f64" if kernel.deep else "gemm_simt"
    before = [
        "struct Product {",
        "    static constexpr int LEFT = {}, RIGHT = {}, DEST = {}, PRODUCTS = {};".format(*counts),
        f"    static constexpr bool WATCHES = {str(kernel.flag == 'raises').lower()};",
        f"    static constexpr fmm::Half HALF = {triangle_cpp(kernel.half)};",
        "    static constexpr fmm::Path LEFT_PATH = {}, RIGHT_PATH = {};".format(*paths),
        *_epilogue_struct(kernel.epilogue),
        "};",
        f"using Number = {number};",
        "",
    ]
    variant = f"{', '.join(along_cpp(kernel.along))}, fmm::Access::{access.upper()}"
    body = [
        f"using Sizes = {strategy_cpp(s)};",
        "extern __shared__ float4 memory[];",
        *_product_call(kernel, call, variant, tile),
    ]
    bounds = (s.threads, kernel.blocks) if kernel.blocks else (s.threads,)
    return entry_source(parameters, body, f"{header}.cuh", bounds, before=before)


def _product_call(kernel: TileKernel, name: str, access: str, tile: str) -> list[str]:
    """By warps where the device has instructions for them; else threads alone, with no more shared memory."""
    given = f"    p, reinterpret_cast<Number*>(memory){tile});"
    alone = [f"fmm::{name}<Product, Number, Sizes, {access}>(", given]
    if not kernel.deep:
        return alone
    together = [f"fmm::multiply_by_warps<Product, Number, Sizes, {kernel.deep}, {access}>(", given]
    return ["#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800", *alone, "#else", *together, "#endif"]


def _epilogue_struct(e: Epilogue) -> Iterator[str]:
    """The lines that say which destinations are read and written, and how a number of the product changes them."""
    dests = f"[[maybe_unused]] const fmm::Block<Element> (&dest)[{e.destinations}]"
    yield f"    static constexpr bool ATOMIC = {str(e.atomic).lower()};"
    yield "    template <class Element>"
    yield f"    __device__ static __forceinline__ bool reads(int d, {dests}) {{"
    yield f"        return {_choice_text('d', [_is_read(e, d) for d in range(e.destinations)])};"
    yield "    }"
    yield "    __device__ static constexpr bool writes([[maybe_unused]] int d) {"
    yield f"        return {_choice_text('d', [str(d in e.writes).lower() for d in range(e.destinations)])};"
    yield "    }"
    yield "    template <class Element>"
    yield f"    __device__ static __forceinline__ void update(Element product, {dests},"
    yield f"                                                  Element (&value)[{e.destinations}]) {{"
    yield from (f"        const Element old{i} = value[{d}];" for i, d in enumerate(e.reads))
    names = ["product", *(f"old{i}" for i, _ in enumerate(e.reads))]
    for number, terms in enumerate(e.program.lines):
        yield f"        const Element sum{number} = {_sum_text(terms, names)};"
        names.append(f"sum{number}")
    yield from (f"        value[{d}] = {names[v]};" for d, v in zip(e.writes, e.program.outputs, strict=True))
    yield "    }"


def _is_read(e: Epilogue, dest: int) -> str:
    """The C++ condition for reading a destination: not if all coefficients of its old value are zero at the launch."""
    values = {i for i, d in enumerate(e.reads, 1) if d == dest}
    factors = {c for terms in e.program.lines for c, v in terms if v in values}
    conditions = sorted(f"{c} != Element(0)" for c in factors if isinstance(c, LaunchScalar))
    handed_on = any(v in values for v in e.program.outputs)
    return "true" if handed_on or len(conditions) < len(factors) else " || ".join(conditions) or "false"


def _sum_text(terms: Terms, names: Sequence[str]) -> str:
    """The C++ expression of a sum, such as `old0 - product`; a sum of nothing is zero."""
    words = []
    for c, v in terms:
        sign, size = ("-", "") if c == -1 else ("+", "" if c == 1 else f"{_factor_text(c)} * ")
        words.append(f"{sign} {size}{names[v]}")
    return " ".join(words).removeprefix("+ ") or "Element(0)"


def _factor_text(c: object) -> str:
    return str(c) if isinstance(c, LaunchScalar) else f"static_cast<Element>({float(c)!r})"  # type: ignore[arg-type]


def _choice_text(name: str, values: Sequence[str]) -> str:
    """The C++ expression for the value with the number that is in the variable `name`."""
    *first, last = values
    return "".join(f"{name} == {i} ? {v} : " for i, v in enumerate(first)) + last
