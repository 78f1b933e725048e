"""A sum kernel as data: which blocks a thread loads, adds and stores, how many numbers at a time, and how.

One thread owns one position of every block. In which order it does that sum_order.py decides; sum_source.py writes it
down as CUDA, and sum_launch.py says where the blocks lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient
from fmm.kernels.cuda.device_code.entry_source import entry_source
from fmm.kernels.cuda.sums.sum_order import LaunchCoefficient, Statement, best_order, peak_values

Access = Literal["vector", "scalar"]
SUM_THREADS, WARP = 128, 32  # of a thread block, as in block_sums.cuh
SECTOR = 32  # bytes that memory reads or writes at least
HIGH = 4  # warps of a block below each other where arrays lie crosswise
WIDEST = 16  # bytes of the widest memory access
# Registers that a kernel's live values may take; addresses and what the compiler loads ahead need the rest of the 255.
# (Three levels in one pass hold 84 values: two lanes of float32, one of float64.)
REGISTERS = 176
REGISTERS_AHEAD = 128  # the same where loads are started far ahead: their addresses need registers too
# Registers of live values up to which four thread blocks find room on a multiprocessor, where loads are started far
# ahead or a tile is turned.
FOUR_BLOCKS = 72
LONG = 400  # statements of a long program: more than two levels in one pass
MANY_HELD = 12  # live values beside which the addresses of several lanes find no registers
# A program with at least MANY_LOADS loads, and twice as many as it holds values at a time, has them started far ahead,
# through shared memory: BATCHES of them under way, BYTES_AHEAD in a thread block. Registers alone keep too few loads in
# flight: the join of three levels then moves 1.9 TB/s on an H200, so 3.7 to 4.1.
MANY_LOADS = 32
BATCHES = 8
BYTES_AHEAD = 32 << 10


class BlockIndex(NamedTuple):
    """Where an input or output stands: block (i, j) of one of the kernel's arrays."""

    array: int
    i: int
    j: int
    part: int = 0  # of an array of complex numbers: 0 for the real parts, 1 for the imaginary ones


@dataclass(frozen=True)
class SumKernel:
    """What one kernel computes, and on which blocks; sizes, strides and scalars come with the launch.

    An array holds several blocks of one matrix, or equal layers on top of each other.
    """

    program: AdditionProgram  # its coefficients may be Scalars
    scalars: int  # how many coefficients come with the launch
    reads: tuple[BlockIndex, ...]
    writes: tuple[BlockIndex, ...]
    aliases: tuple[tuple[int, int], ...]  # pairs (write, read) that stand in the same place
    arrays: int
    whole: frozenset[int]  # arrays of equal layers, each as large as the launch: accesses to them need no tests
    element: str
    tall: frozenset[int] = frozenset()  # arrays that lie column by column, where all others lie row by row
    parts: frozenset[int] = frozenset()  # arrays of complex numbers, of which real and imaginary parts are loaded

    @cached_property
    def events(self) -> tuple[Statement, ...]:
        """The kernel's statements, in order."""
        return best_order(self.program, self.aliases)

    @cached_property
    def vector_width(self) -> int:
        """Elements that a thread has: as many as one memory access moves, while their sums stay in registers."""
        element = DTYPES[self.element]
        lanes, room = WIDEST // element.itemsize, REGISTERS_AHEAD if self.ahead else REGISTERS
        while lanes > 1 and lanes * peak_values(self.events) * element.registers > room:
            lanes //= 2
        # With alpha and beta, three levels need more registers than those for values.
        if self.long and self.scalars:
            lanes = max(lanes // 2, 1)
        # Complex numbers come in two accesses, and go so: with four of them NVRTC spills the joins of two levels.
        return min(lanes, 2) if self.parts and len(self.events) > LONG else lanes

    @property
    def long(self) -> bool:
        """Are there so many statements that they should be compiled only once?"""
        return len(self.events) > LONG * (3 if self.parts else 1)  # (both parts of a number are one access)

    @property
    def apart(self) -> bool:
        """Do lanes that need an address each come one after the other, because not all of them fit in registers?"""
        return self.long or (self.ahead and peak_values(self.events) > MANY_HELD)

    @cached_property
    def ahead(self) -> bool:
        """Are loads started far ahead of their use, through shared memory?"""
        if self.tall or any(spot.array in self.parts for spot in self.reads):
            return False
        return sum(event.kind == "load" for event in self.events) >= max(MANY_LOADS, 2 * peak_values(self.events))

    @cached_property
    def batch(self) -> int:
        """How many loads are started together, far ahead of their use; 0 if each is done where it stands."""
        if not self.ahead:
            return 0
        return BYTES_AHEAD // (BATCHES * SUM_THREADS * self.vector_width * DTYPES[self.element].itemsize)

    @property
    def slots(self) -> int:
        """Places in shared memory that each thread has for values under way."""
        return BATCHES * self.batch

    @property
    def bounds(self) -> str:
        """What the compiler is told of thread blocks: their threads, and how many a multiprocessor should hold.

        Left alone it aims at six of the joins of two levels, and at five of the splits that turn, and spills for that;
        with four nothing is spilled.
        """
        values = self.vector_width * peak_values(self.events) * DTYPES[self.element].registers
        four = (self.ahead or bool(self.tall)) and values <= FOUR_BLOCKS and not (self.long and self.scalars)
        return f"{SUM_THREADS}, 4" if four else f"{SUM_THREADS}"

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a thread block: all threads side by side, or a tile where arrays lie crosswise."""
        if not self.tall:
            return 1, SUM_THREADS * self.vector_width
        down = SECTOR // DTYPES[self.element].itemsize
        return HIGH * down, SUM_THREADS // WARP // HIGH * (WARP // down) * self.vector_width

    def partner(self, event: Statement) -> int | None:
        """The other part of a complex number that is loaded or stored: the number of its value, of a store its output.

        The two parts are neighbours. None if the event has no such part, or the other one is not wanted.
        """
        spots = self.reads if event.kind == "load" else self.writes
        number = event.value if event.kind == "load" else event.source
        spot = spots[number]
        neighbour = number + 1 - 2 * spot.part
        if spot.array not in self.parts or not 0 <= neighbour < len(spots):
            return None
        return neighbour if spots[neighbour] == spot._replace(part=1 - spot.part) else None


SUM_OPTIONS = ("--std=c++17",)  # of the compiler
SUM_ENTRY = "fmm_sum"


# ---- text


@lru_cache(maxsize=512)
def sum_source(kernel: SumKernel, access: Access, flag: bool = False) -> str:
    """The whole CUDA source of a kernel, entry point `ENTRY`."""
    parameters = f"fmm::Parameters<{kernel.arrays}, {kernel.scalars}>"
    variant = f"fmm::Access::{access.upper()}, {str(flag).lower()}"
    body = (f"fmm::sum<Step, {DTYPES[kernel.element].cpp}, {kernel.vector_width}, {variant}>(p);",)
    return entry_source(
        parameters, body, "block_sums.cuh", (kernel.bounds,), before=step_lines(kernel), entry=SUM_ENTRY
    )


def step_lines(kernel: SumKernel) -> Iterator[str]:
    """The program itself, as what block_sums.cuh calls a Step."""
    yield from (
        "struct Step {",
        f"    static constexpr bool LONG = {str(kernel.long).lower()};",
        f"    static constexpr bool APART = {str(kernel.apart).lower()};",
        f"    static constexpr bool TURNED = {str(bool(kernel.tall)).lower()};",
        f"    static constexpr int HIGH = {HIGH};",
        f"    static constexpr int SLOTS = {kernel.slots};",
        f"    __device__ static constexpr bool whole(int array) {{ return {_any_of(kernel.whole)}; }}",
        f"    __device__ static constexpr bool tall(int array) {{ return {_any_of(kernel.tall)}; }}",
        f"    __device__ static constexpr bool parts(int array) {{ return {_any_of(kernel.parts)}; }}",
        "    template <class Io>",
        "    __device__ static __forceinline__ void run(Io& io) {",
        "        using Values = typename Io::Values;",
        *(f"        {statement}" for statement in _statements(kernel)),
        "    }",
        "};",
        "",
    )


def _any_of(arrays: frozenset[int]) -> str:
    return " || ".join(f"array == {a}" for a in sorted(arrays)) or "false"


def _statements(kernel: SumKernel) -> Iterator[str]:
    loads = [event.value for event in kernel.events if event.kind == "load"]
    number = {value: i for i, value in enumerate(loads)}
    for batch in range(BATCHES if kernel.batch else 0):
        yield from _start_batch(kernel, loads, batch)
    seen: set[int] = set()  # loads and stores of parts of complex numbers, as _both_parts knows them
    for event in kernel.events:
        if event.kind in ("load", "store") and (other := _partner(kernel, event, loads)) is not None:
            yield from _both_parts(kernel, event, other, seen)
        elif event.kind == "load" and kernel.batch:
            yield from _take_value(kernel, loads, number[event.value])
        elif event.kind == "load":
            yield f"const Values v{event.value} = io.template load<{_spot_text(kernel.reads[event.value])}>();"
        elif event.kind == "store":
            if any(o == event.source for o, _ in kernel.aliases):
                yield "Io::fence();"
            yield f"io.template store<{_spot_text(kernel.writes[event.source])}>(v{event.value});"
        elif event.kind == "start":
            yield f"Values v{event.value} = {_first_term(event)};"
        else:
            yield f"v{event.value} = v{event.value} {_next_term(event)};"


def _partner(kernel: SumKernel, event: Statement, loads: Sequence[int]) -> int | None:
    """The other part of a complex number, if it is loaded or stored too."""
    other = kernel.partner(event)
    return other if event.kind == "store" or other in loads else None


def _both_parts(kernel: SumKernel, event: Statement, other: int, seen: set[int]) -> Iterator[str]:
    """Real and imaginary parts move together: both are loaded with the first of the two, and stored with the second.

    `seen`: the numbers of values loaded so far, and ~ the numbers of outputs stored so far.
    """
    loads = event.kind == "load"
    own = event.value if loads else event.source
    seen.add(own if loads else ~own)
    comes_first = (other if loads else ~other) not in seen
    if comes_first != loads:
        return
    spots = kernel.reads if loads else kernel.writes
    re, im = sorted((own, other), key=lambda x: spots[x].part)
    if loads:
        yield f"Values v{re}, v{im};"
        yield f"io.template load_parts<{_spot_text(spots[re])}>(v{re}, v{im});"
        return
    if any(o in (re, im) for o, _ in kernel.aliases):
        yield "Io::fence();"
    x, y = (kernel.program.outputs[o] for o in (re, im))
    yield f"io.template store_parts<{_spot_text(spots[re])}>(v{x}, v{y});"


def _start_batch(kernel: SumKernel, loads: Sequence[int], batch: int) -> Iterator[str]:
    """Start a batch of loads. Past the last one an empty batch is committed, so that waiting counts right."""
    for i in range(batch * kernel.batch, min((batch + 1) * kernel.batch, len(loads))):
        yield f"io.template fetch<{_spot_text(kernel.reads[loads[i]])}>({i % kernel.slots});"
    yield "Io::commit();"


def _take_value(kernel: SumKernel, loads: Sequence[int], i: int) -> Iterator[str]:
    """Take a fetched value. After the last one of a batch its slots are free, and a later batch is started."""
    batch, within = divmod(i, kernel.batch)
    if within == 0:
        yield f"Io::template wait<{BATCHES - 1}>();"
    yield f"const Values v{loads[i]} = io.template take<{_spot_text(kernel.reads[loads[i]])}>({i % kernel.slots});"
    if within == kernel.batch - 1:
        yield from _start_batch(kernel, loads, batch + BATCHES)


def _spot_text(spot: BlockIndex) -> str:
    return f"{spot.array}, {spot.i}, {spot.j}" + (f", {spot.part}" if spot.part else "")


def _first_term(event: Statement) -> str:
    if event.source < 0:
        return "io.zero()"
    if event.factor == 1:
        return f"v{event.source}"
    return f"{_factor_text(event.factor)} * v{event.source}"


def _next_term(event: Statement) -> str:
    if event.factor in (1, -1):
        return f"{'+' if event.factor == 1 else '-'} v{event.source}"
    return f"+ {_factor_text(event.factor)} * v{event.source}"


def _factor_text(c: Coefficient | LaunchCoefficient) -> str:
    if isinstance(c, LaunchCoefficient):
        return f"io.scalar({c.number})"
    return f"io.constant({float(c.real)!r})"
