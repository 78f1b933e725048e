"""A sum kernel: which blocks a thread loads, adds and stores, how many numbers at a time, and its CUDA source.

One thread owns one position of every block. sum_order.py orders its statements; sum_launch.py places the blocks in
memory. The source is a short stub of statements without branches, which the kernel in block_sums.cuh includes. Only
the stub depends on a scheme's coefficients. Its statements are ordered so that few values are live at a time: a value
that does not fit in a register would go through memory, which these kernels wait for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient
from fmm.kernels.cuda.device_code.entry_source import entry_source
from fmm.kernels.cuda.sums.sum_order import LaunchCoefficient, Statement, best_statement_order, peak_live_values

AccessWidth = Literal["vector", "scalar"]
SUM_THREADS, WARP_THREADS = 128, 32  # threads of a thread block and of a warp, as in block_sums.cuh
SECTOR_BYTES = 32  # bytes of the smallest memory transaction
CROSSWISE_WARP_ROWS = 4  # warps of a thread block along the rows, where a kernel transposes
MAX_ACCESS_BYTES = 16  # bytes of the widest memory access
# Registers for a kernel's live values; addresses and the compiler's early loads need the rest of the 255. (Three levels
# in one pass hold 84 values: two float32 a thread, or one float64.)
MAX_VALUE_REGISTERS = 176
MAX_PREFETCH_VALUE_REGISTERS = 128  # the same with prefetched loads: their addresses need registers too
# Registers of live values up to which four thread blocks fit on a multiprocessor, where a kernel prefetches or
# transposes.
MAX_FOUR_BLOCK_REGISTERS = 72
MAX_SHORT_PROGRAM_STATEMENTS = 400  # statements of a long program: more than two levels in one pass
MAX_JOINT_PASS_VALUES = 12  # with more live values, registers hold the addresses of one element at a time
# A program with at least PREFETCH_MIN_LOADS loads, and twice as many loads as live values, prefetches through shared
# memory: PREFETCH_BATCHES batches of loads are in flight, PREFETCH_BYTES bytes in a thread block. Loads to registers
# alone are too few at a time: the join of three levels moves 1.9 TB/s on an H200, and 3.7 to 4.1 with prefetching.
PREFETCH_MIN_LOADS = 32
PREFETCH_BATCHES = 8
PREFETCH_BYTES = 32 << 10


class BlockIndex(NamedTuple):
    """The block (i, j) of one of the kernel's arrays, where an input or output is."""

    array: int
    i: int
    j: int
    part: int = 0  # 1 for the imaginary parts of an array of complex numbers, 0 for real parts and whole numbers


@dataclass(frozen=True)
class SumKernel:
    """What one kernel computes, and on which blocks; sizes, strides and coefficients are launch parameters.

    An array holds several blocks of one matrix, or equal layers on top of each other.
    """

    program: AdditionProgram  # its coefficients may be LaunchCoefficients
    scalars: int  # number of coefficients that are launch parameters
    reads: tuple[BlockIndex, ...]
    writes: tuple[BlockIndex, ...]
    aliases: tuple[tuple[int, int], ...]  # pairs (write, read) of the same place
    arrays: int  # number of arrays
    unchecked: frozenset[int]  # indices of arrays whose layers are as large as the launch: no bounds checks
    element: str
    column_major: frozenset[int] = frozenset()  # indices of the column-major arrays; all other arrays are row-major
    in_parts: frozenset[int] = frozenset()  # indices of complex arrays, accessed as real and imaginary parts

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """The kernel's statements, in order."""
        return best_statement_order(self.program, self.aliases)

    @cached_property
    def vector_width(self) -> int:
        """Elements per thread: as many as one memory access moves, as long as their sums fit in registers."""
        element = DTYPES[self.element]
        width = MAX_ACCESS_BYTES // element.itemsize
        registers = MAX_PREFETCH_VALUE_REGISTERS if self.prefetches_loads else MAX_VALUE_REGISTERS
        while width > 1 and width * peak_live_values(self.statements) * element.registers > registers:
            width //= 2
        # With alpha and beta, three levels need more registers than those for values.
        if self.is_long_program and self.scalars:
            width = max(width // 2, 1)
        # A complex number takes two accesses: with four numbers a thread NVRTC spills the joins of two levels.
        return min(width, 2) if self.in_parts and len(self.statements) > MAX_SHORT_PROGRAM_STATEMENTS else width

    @property
    def is_long_program(self) -> bool:
        """Whether the program is so long that its statements should be compiled only once."""
        longest = MAX_SHORT_PROGRAM_STATEMENTS * (3 if self.in_parts else 1)  # both parts of a number are one access
        return len(self.statements) > longest

    @property
    def processes_elements_singly(self) -> bool:
        """Whether a thread's elements are processed one by one, because their addresses do not all fit in registers."""
        return self.is_long_program or (
            self.prefetches_loads and peak_live_values(self.statements) > MAX_JOINT_PASS_VALUES
        )

    @cached_property
    def prefetches_loads(self) -> bool:
        """Whether loads are prefetched through shared memory."""
        if self.column_major or any(block.array in self.in_parts for block in self.reads):
            return False
        loads = sum(event.kind == "load" for event in self.statements)
        return loads >= max(PREFETCH_MIN_LOADS, 2 * peak_live_values(self.statements))

    @cached_property
    def loads_per_batch(self) -> int:
        """The number of loads in a prefetched batch; 0 without prefetching."""
        if not self.prefetches_loads:
            return 0
        return PREFETCH_BYTES // (PREFETCH_BATCHES * SUM_THREADS * self.vector_width * DTYPES[self.element].itemsize)

    @property
    def prefetch_slots(self) -> int:
        """Shared-memory slots of each thread for prefetched values."""
        return PREFETCH_BATCHES * self.loads_per_batch

    @property
    def launch_bounds(self) -> str:
        """The kernel's launch bounds: threads of a block, and blocks that a multiprocessor should hold.

        By default the compiler aims at six thread blocks for the joins of two levels, and at five for transposing
        splits, and spills registers to reach that. With four thread blocks it spills none.
        """
        values = self.vector_width * peak_live_values(self.statements) * DTYPES[self.element].registers
        holds_much = self.prefetches_loads or bool(self.column_major)
        four = holds_much and values <= MAX_FOUR_BLOCK_REGISTERS and not (self.is_long_program and self.scalars)
        return f"{SUM_THREADS}, 4" if four else f"{SUM_THREADS}"

    @property
    def tile_shape(self) -> tuple[int, int]:
        """Rows and columns of a thread block: one row of threads, or a tile where a kernel transposes."""
        if not self.column_major:
            return 1, SUM_THREADS * self.vector_width
        down = SECTOR_BYTES // DTYPES[self.element].itemsize
        warp_columns = SUM_THREADS // WARP_THREADS // CROSSWISE_WARP_ROWS
        return CROSSWISE_WARP_ROWS * down, warp_columns * (WARP_THREADS // down) * self.vector_width

    def other_complex_part(self, event: Statement) -> int | None:
        """Return the other part of the complex number that a statement loads or stores: a value, or an output.

        The two parts are neighbours. None if the statement accesses no part, or if the other part is not accessed.
        """
        block_indices = self.reads if event.kind == "load" else self.writes
        number = event.value if event.kind == "load" else event.source
        block = block_indices[number]
        neighbour = number + 1 - 2 * block.part
        if block.array not in self.in_parts or not 0 <= neighbour < len(block_indices):
            return None
        return neighbour if block_indices[neighbour] == block._replace(part=1 - block.part) else None


SUM_ENTRY_NAME = "fmm_sum"


# ---- CUDA source


@lru_cache(maxsize=512)
def sum_source(kernel: SumKernel, access: AccessWidth, flag: bool = False) -> str:
    """Return the whole CUDA source of a kernel, with entry point `SUM_ENTRY_NAME`."""
    parameters = f"fmm::Parameters<{kernel.arrays}, {kernel.scalars}>"
    variant = f"fmm::Access::{access.upper()}, {str(flag).lower()}"
    body = (f"fmm::sum<Step, {DTYPES[kernel.element].cpp}, {kernel.vector_width}, {variant}>(p);",)
    return entry_source(
        parameters,
        body,
        "block_sums.cuh",
        (kernel.launch_bounds,),
        before=program_struct_lines(kernel),
        entry=SUM_ENTRY_NAME,
    )


def program_struct_lines(kernel: SumKernel) -> Iterator[str]:
    """Yield the lines of the program: struct Step, a template argument of block_sums.cuh."""
    yield from (
        "struct Step {",
        f"    static constexpr bool LONG = {str(kernel.is_long_program).lower()};",
        f"    static constexpr bool ONE_BY_ONE = {str(kernel.processes_elements_singly).lower()};",
        f"    static constexpr bool TRANSPOSES = {str(bool(kernel.column_major)).lower()};",
        f"    static constexpr int WARP_ROWS = {CROSSWISE_WARP_ROWS};",
        f"    static constexpr int SLOTS = {kernel.prefetch_slots};",
        f"    __device__ static constexpr bool unchecked(int array) {{ return {_is_one_of(kernel.unchecked)}; }}",
        f"    __device__ static constexpr bool column_major(int array) {{ return {_is_one_of(kernel.column_major)}; }}",
        f"    __device__ static constexpr bool parts(int array) {{ return {_is_one_of(kernel.in_parts)}; }}",
        "    template <class Io>",
        "    __device__ static __forceinline__ void run(Io& io) {",
        "        using Values = typename Io::Values;",
        *(f"        {statement}" for statement in _kernel_statements(kernel)),
        "    }",
        "};",
        "",
    )


def _is_one_of(arrays: frozenset[int]) -> str:
    return " || ".join(f"array == {a}" for a in sorted(arrays)) or "false"


def _kernel_statements(kernel: SumKernel) -> Iterator[str]:
    loads = [event.value for event in kernel.statements if event.kind == "load"]
    number = {value: i for i, value in enumerate(loads)}
    for batch in range(PREFETCH_BATCHES if kernel.loads_per_batch else 0):
        yield from _batch_start_lines(kernel, loads, batch)
    seen: set[int] = set()  # loads and stores of parts of complex numbers, as in _complex_access_lines
    for event in kernel.statements:
        if event.kind in ("load", "store") and (other := _accessed_other_part(kernel, event, loads)) is not None:
            yield from _complex_access_lines(kernel, event, other, seen)
        elif event.kind == "load" and kernel.loads_per_batch:
            yield from _prefetched_value_lines(kernel, loads, number[event.value])
        elif event.kind == "load":
            yield f"const Values v{event.value} = io.template load<{_block_index_text(kernel.reads[event.value])}>();"
        elif event.kind == "store":
            if any(o == event.source for o, _ in kernel.aliases):
                yield "Io::fence();"
            yield f"io.template store<{_block_index_text(kernel.writes[event.source])}>(v{event.value});"
        elif event.kind == "start":
            yield f"Values v{event.value} = {_first_term_text(event)};"
        else:
            yield f"v{event.value} = v{event.value} {_next_term_text(event)};"


def _accessed_other_part(kernel: SumKernel, event: Statement, loads: Sequence[int]) -> int | None:
    """Return the other part of a complex number, if it is loaded or stored too."""
    other = kernel.other_complex_part(event)
    return other if event.kind == "store" or other in loads else None


def _complex_access_lines(kernel: SumKernel, event: Statement, other: int, seen: set[int]) -> Iterator[str]:
    """Yield one access to both parts of a complex number: a load at the first of the two, a store at the second.

    `seen` holds the values loaded so far, and ~ the outputs stored so far.
    """
    loads = event.kind == "load"
    own = event.value if loads else event.source
    seen.add(own if loads else ~own)
    comes_first = (other if loads else ~other) not in seen
    if comes_first != loads:
        return
    block_indices = kernel.reads if loads else kernel.writes
    re, im = sorted((own, other), key=lambda x: block_indices[x].part)
    if loads:
        yield f"Values v{re}, v{im};"
        yield f"io.template load_parts<{_block_index_text(block_indices[re])}>(v{re}, v{im});"
        return
    if any(o in (re, im) for o, _ in kernel.aliases):
        yield "Io::fence();"
    x, y = (kernel.program.outputs[o] for o in (re, im))
    yield f"io.template store_parts<{_block_index_text(block_indices[re])}>(v{x}, v{y});"


def _batch_start_lines(kernel: SumKernel, loads: Sequence[int], batch: int) -> Iterator[str]:
    """Start a batch of loads. Past the last one, commit an empty batch, so that the waits count right."""
    for i in range(batch * kernel.loads_per_batch, min((batch + 1) * kernel.loads_per_batch, len(loads))):
        yield f"io.template fetch<{_block_index_text(kernel.reads[loads[i]])}>({i % kernel.prefetch_slots});"
    yield "Io::commit();"


def _prefetched_value_lines(kernel: SumKernel, loads: Sequence[int], i: int) -> Iterator[str]:
    """Take a prefetched value. After the last one of a batch, start a later batch in its slots."""
    batch, within = divmod(i, kernel.loads_per_batch)
    if within == 0:
        yield f"Io::template wait<{PREFETCH_BATCHES - 1}>();"
    index = _block_index_text(kernel.reads[loads[i]])
    yield f"const Values v{loads[i]} = io.template take<{index}>({i % kernel.prefetch_slots});"
    if within == kernel.loads_per_batch - 1:
        yield from _batch_start_lines(kernel, loads, batch + PREFETCH_BATCHES)


def _block_index_text(block: BlockIndex) -> str:
    return f"{block.array}, {block.i}, {block.j}" + (f", {block.part}" if block.part else "")


def _first_term_text(event: Statement) -> str:
    if event.source < 0:
        return "io.zero()"
    if event.factor == 1:
        return f"v{event.source}"
    return f"{_factor_text(event.factor)} * v{event.source}"


def _next_term_text(event: Statement) -> str:
    if event.factor in (1, -1):
        return f"{'+' if event.factor == 1 else '-'} v{event.source}"
    return f"+ {_factor_text(event.factor)} * v{event.source}"


def _factor_text(c: Coefficient | LaunchCoefficient) -> str:
    if isinstance(c, LaunchCoefficient):
        return f"io.scalar({c.number})"
    return f"io.constant({float(c.real)!r})"
