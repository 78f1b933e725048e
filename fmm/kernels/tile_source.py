"""CUDA source of a product with sums in it: a short stub for the one kernel in cuda/tile.cuh.

The stub is all that depends on a scheme: how many blocks of A, B and C a product touches, their coefficients, and what
becomes of each number of C.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Final, Literal, NamedTuple

from fmm.kernels.program import Program, Terms
from fmm.kernels.strategy import Strategy

Along = Literal["inner", "outer"]
Access = Literal["vector", "scalar"]
Update = Literal["store", "add", "scale"]
Path = Literal["async", "plain", "texture"]
ENTRY = "fmm_tile"
# The assembler's better optimization moves multiply-adds about, and with them goes the order in which a multiprocessor
# can read their operands without waiting: a third of a cycle is lost for each of them.
OPTIONS = ("--std=c++17", "--ptxas-options=-O1")
WIDE = 16  # bytes of the widest access


class Element(NamedTuple):
    """How CUDA keeps numbers of one type: its C++ name, bytes in memory."""

    name: str
    itemsize: int


ELEMENTS = {"float32": Element("float", 4), "float64": Element("double", 8)}


class Target(NamedTuple):
    """A destination: the product's factor, and what becomes of the old value (`scale`: beta times)."""

    factor: float
    update: Update


class Scalar(NamedTuple):
    """A coefficient that comes with the launch, by its name in the kernel."""

    name: str


BETA: Final = Scalar("beta")


@dataclass(frozen=True)
class Epilogue:
    """What becomes of every number of so many destinations, once the product's is known.

    The program's inputs are the product and the old values of the destinations `reads`; its outputs go to `writes`. A
    destination may be read only.
    """

    program: Program
    reads: tuple[int, ...]
    writes: tuple[int, ...]

    def __post_init__(self) -> None:
        inputs, outputs = self.program.inputs, len(self.program.outputs)
        if (len(self.reads) + 1, len(self.writes)) != (inputs, outputs) or len(set(self.writes)) < outputs:
            raise ValueError(f"{inputs} inputs and {outputs} outputs for reads {self.reads}, writes {self.writes}")

    @property
    def destinations(self) -> int:
        return max((*self.reads, *self.writes)) + 1


@lru_cache(maxsize=1024)
def added(*targets: Target) -> Epilogue:
    """Every destination for itself: stored, added to, or scaled and added to."""
    reads = tuple(d for d, t in enumerate(targets) if t.update != "store")
    inputs = len(reads) + 1
    lines: list[Terms] = []
    for d, (factor, update) in enumerate(targets):
        keep = BETA if update == "scale" else 1
        old = ((keep, reads.index(d) + 1),) if d in reads else ()
        lines.append((*old, (int(factor) if factor == int(factor) else factor, 0)))
    outputs = tuple(range(inputs, inputs + len(lines)))
    return Epilogue(Program(inputs, tuple(lines), outputs), reads, tuple(range(len(targets))))


STORE = added(Target(1.0, "store"))


@dataclass(frozen=True)
class TileKernel:
    """(sum of left_i A_i)(sum of right_j B_j) and its epilogue; sizes, addresses, alpha, beta come with the launch."""

    strategy: Strategy
    element: str
    left: tuple[float, ...] = (1.0,)
    right: tuple[float, ...] = (1.0,)
    epilogue: Epilogue = STORE
    along: tuple[Along, Along] = ("inner", "outer")  # how A and B are contiguous: rows of both, here
    paths: tuple[Path, Path] = ("async", "async")  # how their tiles come to shared memory

    def __post_init__(self) -> None:
        if any(len(terms) == 1 and terms != (1.0,) for terms in (self.left, self.right)):
            raise ValueError("a lone block is copied as it is: its coefficient belongs to the epilogue")

    @property
    def shared(self) -> int:
        """Bytes of shared memory: tiles that are used, and beside them copies of what is added up."""
        s, item = self.strategy, ELEMENTS[self.element].itemsize
        spaced = s.k_s + WIDE // item  # lines along the inner dimension, in other banks
        numbers = 0
        for out, along, terms in zip((s.m_s, s.n_s), self.along, (self.left, self.right), strict=True):
            copied = out * (spaced if along == "inner" else s.k_s)
            summed = (out + WIDE // item) * s.k_s if along == "inner" and s.turned else copied
            numbers += s.stages * copied if len(terms) == 1 else s.stages * summed + len(terms) * copied
        return item * numbers


@lru_cache(maxsize=1)
def _template() -> str:
    return (resources.files("fmm.kernels") / "cuda" / "tile.cuh").read_text(encoding="utf-8")


@lru_cache(maxsize=512)
def source(kernel: TileKernel, access: Access) -> str:
    """The whole CUDA source of a kernel, entry point `ENTRY`."""
    s, element = kernel.strategy, ELEMENTS[kernel.element].name
    sizes = s.m_s, s.n_s, s.k_s, s.m_r, s.n_r, s.warp_m, s.warp_n, s.stages, int(s.turned)
    counts = len(kernel.left), len(kernel.right), kernel.epilogue.destinations
    left, right = (f"fmm::Along::{along.upper()}" for along in kernel.along)
    lines = [
        _template(),
        "struct Product {",
        "    static constexpr int LEFT = {}, RIGHT = {}, DEST = {};".format(*counts),
        _listed("double", "left", kernel.left),
        _listed("double", "right", kernel.right),
        *_epilogue(kernel.epilogue),
        "    static constexpr fmm::Path LEFT_PATH = fmm::Path::{}, RIGHT_PATH = fmm::Path::{};".format(
            *(path.upper() for path in kernel.paths)
        ),
        "};",
        "",
        f'extern "C" __global__ void __launch_bounds__({s.threads}{f", {s.blocks}" if s.blocks else ""})',
        f"{ENTRY}(const __grid_constant__ fmm::Parameters<{_commas(counts)}> p) {{",
        f"    using Sizes = fmm::Strategy<{_commas(sizes)}>;",
        "    extern __shared__ float4 memory[];",
        f"    fmm::multiply<Product, {element}, Sizes, {left}, {right}, fmm::Access::{access.upper()}>(",
        f"        p, reinterpret_cast<{element}*>(memory));",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _epilogue(e: Epilogue) -> Iterator[str]:
    """Which destinations are read and written, and how a number of the product changes those in its place."""
    for name, places in (("reads", e.reads), ("writes", e.writes)):
        yield _listed("bool", name, [str(d in places).lower() for d in range(e.destinations)])
    yield "    template <class Element>"
    yield "    __device__ static __forceinline__ void update(Element product, [[maybe_unused]] Element beta,"
    yield f"                                                  Element (&value)[{e.destinations}]) {{"
    names = ["product", *(f"old{i}" for i, _ in enumerate(e.reads))]
    yield from (f"        const Element old{i} = value[{d}];" for i, d in enumerate(e.reads))
    for number, terms in enumerate(e.program.lines):
        yield f"        const Element sum{number} = {_sum(terms, names)};"
        names.append(f"sum{number}")
    yield from (f"        value[{d}] = {names[v]};" for d, v in zip(e.writes, e.program.outputs, strict=True))
    yield "    }"


def _sum(terms: Terms, names: Sequence[str]) -> str:
    """`old0 - product`; a sum of nothing is zero."""
    words = []
    for c, v in terms:
        sign, size = ("-", "") if c == -1 else ("+", "" if c == 1 else f"{_factor(c)} * ")
        words.append(f"{sign} {size}{names[v]}")
    return " ".join(words).removeprefix("+ ") or "Element(0)"


def _factor(c: object) -> str:
    return c.name if isinstance(c, Scalar) else f"static_cast<Element>({float(c)!r})"  # type: ignore[arg-type]


def _listed(kind: str, name: str, values: Sequence[object]) -> str:
    """A function from an index to one of these values, known when the kernel is compiled."""
    *first, last = values
    choice = "".join(f"i == {i} ? {v} : " for i, v in enumerate(first))
    return f"    __device__ static constexpr {kind} {name}([[maybe_unused]] int i) {{ return {choice}{last}; }}"


def _commas(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
