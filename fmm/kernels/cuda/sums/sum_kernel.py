"""Describe a sum kernel: the blocks that it adds, the width of its memory accesses, and its CUDA source.

Each thread reads the elements at its own position from all input blocks, and writes the elements at the same position
of all output blocks. This module generates `struct Step` with the statements that a thread runs, without branches. The
kernel of block_sums.cuh calls the functions of struct `Step`. Only the struct depends on a scheme's coefficients. The
module sum_order.py orders the statements so that few values are live at a time: values that do not fit in registers
would be spilled to memory, and memory bandwidth limits the kernels. The module sum_launch.py describes the blocks in
memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient
from fmm.kernels.cuda.device_code.entry_source import entry_source
from fmm.kernels.cuda.sums.sum_order import RuntimeCoefficient, SumStatement, best_statement_order, peak_live_values

AccessWidth = Literal["vector", "scalar"]  # "vector": each memory access moves several elements; "scalar": one
SUM_THREADS, WARP_THREADS = 128, 32  # threads of a thread block and of a warp, as in block_sums.cuh
SECTOR_BYTES = 32  # bytes of the smallest memory transaction of a GPU
CROSSWISE_WARP_ROWS = 4  # rows of warps in a thread block of a transposing kernel
MAX_ACCESS_BYTES = 16  # bytes of the widest memory access of a thread
# Largest number of registers, of the 255 that a thread has, that may hold live values. Addresses and early loads need
# the remaining registers. Three levels in one pass have 84 live values, which need 168 registers for two float32
# elements or one float64 element.
MAX_VALUE_REGISTERS = 176
MAX_PREFETCH_VALUE_REGISTERS = 128  # the same limit for prefetching kernels: their addresses need more registers
# If the live values of a kernel that prefetches or transposes need at most this number of registers, the launch bounds
# specify four thread blocks on a multiprocessor.
MAX_FOUR_BLOCK_REGISTERS = 72
MAX_SHORT_PROGRAM_STATEMENTS = 400  # a program with more statements is long; it has more than two levels in one pass
MAX_JOINT_PASS_VALUES = 12  # with more live values, a thread of a prefetching kernel processes one element at a time
# A program prefetches through shared memory if it has at least PREFETCH_MIN_LOADS loads and at least twice as many
# loads as live values. A prefetching thread block has PREFETCH_BATCHES batches of loads in flight, with PREFETCH_BYTES
# bytes in total. Without prefetching, registers limit the number of loads in flight: the kernel that adds the products
# of three levels to C reads and writes only 1.9 TB/s on an H200. With prefetching, the kernel that adds the products of
# three levels reads and writes 3.7 to 4.1 TB/s.
PREFETCH_MIN_LOADS = 32
PREFETCH_BATCHES = 8
PREFETCH_BYTES = 32 << 10


class BlockIndex(NamedTuple):
    """The block of an input or output: its array's index, and row i and column j in the array's grid of blocks."""

    array: int
    i: int
    j: int
    part: int = 0  # 1 for the imaginary parts of complex numbers, 0 for real parts or complete numbers


@dataclass(frozen=True)
class SumKernel:
    """A kernel that adds blocks, described by its program and its blocks. Sizes and strides are launch parameters.

    The blocks are in arrays: an array is a grid of blocks of one matrix, or equal blocks at a constant distance.
    """

    program: AdditionProgram  # coefficients are literals, or launch parameters of type RuntimeCoefficient
    scalars: int  # number of coefficients that are launch parameters
    reads: tuple[BlockIndex, ...]
    writes: tuple[BlockIndex, ...]
    aliases: tuple[tuple[int, int], ...]  # pairs (index of a write, index of a read) on the same memory
    arrays: int  # number of arrays
    unchecked: frozenset[int]  # indices of arrays that need no bounds checks, because all their blocks have full size
    element: str  # element type
    column_major: frozenset[int] = frozenset()  # indices of the column-major arrays; all other arrays are row-major
    in_parts: frozenset[int] = frozenset()  # indices of complex arrays, whose parts are separate values

    @cached_property
    def statements(self) -> tuple[SumStatement, ...]:
        """The kernel's statements in the order of execution."""
        return best_statement_order(self.program, self.aliases)

    @cached_property
    def vector_width(self) -> int:
        """Number of elements that a thread computes at once: the largest number with all live values in registers.

        The number is at most the number of elements in MAX_ACCESS_BYTES.
        """
        element = DTYPES[self.element]
        width = MAX_ACCESS_BYTES // element.itemsize
        registers = MAX_PREFETCH_VALUE_REGISTERS if self.prefetches_loads else MAX_VALUE_REGISTERS
        while width > 1 and width * peak_live_values(self.statements) * element.registers > registers:
            width //= 2
        # Programs of three levels with alpha and beta need many registers in addition to the registers of live values.
        if self.always_checks_bounds and self.scalars:
            width = max(width // 2, 1)
        # Each complex number in registers counts as two live values. With four complex numbers for each thread, the
        # kernels that add the products of two levels to C would spill registers.
        return min(width, 2) if self.in_parts and len(self.statements) > MAX_SHORT_PROGRAM_STATEMENTS else width

    @property
    def always_checks_bounds(self) -> bool:
        """True if the program is so long that the kernel is compiled with bounds checks only.

        The kernel of a shorter program also contains a copy of the statements without bounds checks.
        """
        # In programs of complex numbers, one access replaces the two loads or stores of a number's parts.
        longest = MAX_SHORT_PROGRAM_STATEMENTS * (3 if self.in_parts else 1)
        return len(self.statements) > longest

    @property
    def processes_elements_singly(self) -> bool:
        """True if a thread processes its elements one by one, because registers cannot hold all elements' addresses."""
        return self.always_checks_bounds or (
            self.prefetches_loads and peak_live_values(self.statements) > MAX_JOINT_PASS_VALUES
        )

    @cached_property
    def prefetches_loads(self) -> bool:
        """True if the kernel prefetches its loads through shared memory."""
        if self.column_major or any(block.array in self.in_parts for block in self.reads):
            return False
        loads = sum(event.kind == "load" for event in self.statements)
        return loads >= max(PREFETCH_MIN_LOADS, 2 * peak_live_values(self.statements))

    @cached_property
    def loads_per_batch(self) -> int:
        """The number of loads in one prefetched batch; 0 without prefetching."""
        if not self.prefetches_loads:
            return 0
        return PREFETCH_BYTES // (PREFETCH_BATCHES * SUM_THREADS * self.vector_width * DTYPES[self.element].itemsize)

    @property
    def prefetch_slots_per_thread(self) -> int:
        """The number of prefetched values for which each thread has shared memory."""
        return PREFETCH_BATCHES * self.loads_per_batch

    @property
    def launch_bounds(self) -> str:
        """The launch bounds: threads of a thread block, and optionally thread blocks on a multiprocessor.

        If the launch bounds specify only the number of threads, the compiler spills registers to memory, so that more
        thread blocks fit on a multiprocessor: six for the sums after products of two levels, and five for transposing
        sums before products. If the launch bounds specify four thread blocks, the compiler spills no register.
        """
        values = self.vector_width * peak_live_values(self.statements) * DTYPES[self.element].registers
        holds_much = self.prefetches_loads or bool(self.column_major)
        four = holds_much and values <= MAX_FOUR_BLOCK_REGISTERS and not (self.always_checks_bounds and self.scalars)
        return f"{SUM_THREADS}, 4" if four else f"{SUM_THREADS}"

    @property
    def tile_shape(self) -> tuple[int, int]:
        """Rows and columns of a thread block's tile; a kernel that does not transpose has tiles of one row."""
        if not self.column_major:
            return 1, SUM_THREADS * self.vector_width
        down = SECTOR_BYTES // DTYPES[self.element].itemsize
        warp_columns = SUM_THREADS // WARP_THREADS // CROSSWISE_WARP_ROWS
        return CROSSWISE_WARP_ROWS * down, warp_columns * (WARP_THREADS // down) * self.vector_width

    def other_complex_part_index(self, event: SumStatement) -> int | None:
        """Return the index of the input (for a load) or output (for a store) with the complex numbers' other parts.

        If the statement loads or stores real parts, the other parts are the imaginary parts, and the reverse. Return
        None if the statement loads or stores complete numbers, or if no input or output has the other parts.
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
    """Return the complete CUDA source of a sum kernel with the entry point `SUM_ENTRY_NAME`."""
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
    """Yield the lines of `struct Step`: the kernel's program, as a template argument for block_sums.cuh."""
    yield from (
        "struct Step {",
        f"    static constexpr bool LONG = {str(kernel.always_checks_bounds).lower()};",
        f"    static constexpr bool ONE_BY_ONE = {str(kernel.processes_elements_singly).lower()};",
        f"    static constexpr bool TRANSPOSES = {str(bool(kernel.column_major)).lower()};",
        f"    static constexpr int WARP_ROWS = {CROSSWISE_WARP_ROWS};",
        f"    static constexpr int SLOTS = {kernel.prefetch_slots_per_thread};",
        "    __device__ static constexpr bool unchecked(int array) "
        f"{{ return {_cpp_index_condition(kernel.unchecked)}; }}",
        "    __device__ static constexpr bool column_major(int array) "
        f"{{ return {_cpp_index_condition(kernel.column_major)}; }}",
        f"    __device__ static constexpr bool parts(int array) {{ return {_cpp_index_condition(kernel.in_parts)}; }}",
        "    template <class Io>",
        "    __device__ static __forceinline__ void run(Io& io) {",
        "        using Values = typename Io::Values;",
        *(f"        {statement}" for statement in _kernel_statements(kernel)),
        "    }",
        "};",
        "",
    )


def _cpp_index_condition(arrays: frozenset[int]) -> str:
    """Return a C++ condition that is true if the C++ variable `array` is one of the indices in `arrays`."""
    return " || ".join(f"array == {a}" for a in sorted(arrays)) or "false"


def _kernel_statements(kernel: SumKernel) -> Iterator[str]:
    """Yield the kernel's statements as lines of C++."""
    loads = [event.value for event in kernel.statements if event.kind == "load"]
    number = {value: i for i, value in enumerate(loads)}
    for batch in range(PREFETCH_BATCHES if kernel.loads_per_batch else 0):
        yield from _prefetch_start_lines(kernel, loads, batch)
    seen: set[int] = set()  # the parts of complex numbers that are loaded or stored already; see _complex_access_lines
    for event in kernel.statements:
        if (
            event.kind in ("load", "store")
            and (other := _other_complex_part_if_accessed(kernel, event, loads)) is not None
        ):
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


def _other_complex_part_if_accessed(kernel: SumKernel, event: SumStatement, loads: Sequence[int]) -> int | None:
    """Return the index of a complex number's other part; None if no statement loads or stores the other part."""
    other = kernel.other_complex_part_index(event)
    return other if event.kind == "store" or other in loads else None


def _complex_access_lines(kernel: SumKernel, event: SumStatement, other: int, seen: set[int]) -> Iterator[str]:
    """Yield the C++ lines that load or store both parts of a complex number in one memory access.

    A program has one statement for each part. Of two loads, the first yields the lines and the second yields nothing;
    of two stores, the second yields the lines. `seen` contains v for each value v that is loaded already, and the
    negative number ~o for each output o that is stored already.
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


def _prefetch_start_lines(kernel: SumKernel, loads: Sequence[int], batch: int) -> Iterator[str]:
    """Yield the lines of C++ that start a batch of prefetched loads.

    The instruction cp.async.wait_group, which waits for a batch, contains as a constant the number of later batches
    that may still be in flight. Empty batches follow the last batch of loads, so that the same constant also serves for
    the last batches.
    """
    for i in range(batch * kernel.loads_per_batch, min((batch + 1) * kernel.loads_per_batch, len(loads))):
        yield f"io.template fetch<{_block_index_text(kernel.reads[loads[i]])}>({i % kernel.prefetch_slots_per_thread});"
    yield "Io::commit();"


def _prefetched_value_lines(kernel: SumKernel, loads: Sequence[int], i: int) -> Iterator[str]:
    """Yield the lines of C++ that read a prefetched value.

    The lines for the last value of a batch also start the loads of a later batch.
    """
    batch, within = divmod(i, kernel.loads_per_batch)
    if within == 0:
        yield f"Io::template wait<{PREFETCH_BATCHES - 1}>();"
    index = _block_index_text(kernel.reads[loads[i]])
    yield f"const Values v{loads[i]} = io.template take<{index}>({i % kernel.prefetch_slots_per_thread});"
    if within == kernel.loads_per_batch - 1:
        yield from _prefetch_start_lines(kernel, loads, batch + PREFETCH_BATCHES)


def _block_index_text(block: BlockIndex) -> str:
    """Return the index of an array and the block's row and column in this array as C++ template arguments."""
    return f"{block.array}, {block.i}, {block.j}" + (f", {block.part}" if block.part else "")


def _first_term_text(event: SumStatement) -> str:
    """Return the C++ expression of a sum's first term."""
    if event.source < 0:
        return "io.zero()"
    if event.factor == 1:
        return f"v{event.source}"
    return f"{_factor_text(event.factor)} * v{event.source}"


def _next_term_text(event: SumStatement) -> str:
    """Return the C++ text that adds a term to a sum."""
    if event.factor in (1, -1):
        return f"{'+' if event.factor == 1 else '-'} v{event.source}"
    return f"+ {_factor_text(event.factor)} * v{event.source}"


def _factor_text(c: Coefficient | RuntimeCoefficient) -> str:
    """Return a coefficient as a C++ expression."""
    if isinstance(c, RuntimeCoefficient):
        return f"io.scalar({c.number})"
    return f"io.constant({float(c.real)!r})"
