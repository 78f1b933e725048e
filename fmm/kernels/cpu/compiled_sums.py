"""Compute sums in compiled loops that load and store every element once. The compiler is llvmlite, a part of Numba.

NumPy adds two arrays in each call, so a sum of three or more terms is written to the cache and read again after each
addition. Each cache line of a result is also fetched from memory before it is overwritten. This module compiles a
schedule of elementwise calls to one LLVM function. The function loads a 64-byte cache line of each array, computes in
registers, and stores the results. Results that are larger than the caches, and aligned to cache lines, are stored
directly to memory. The operations have the same order as in NumPy, so the results equal NumPy's bit for bit.

If a sum uses both the real and the imaginary parts of a complex matrix, both parts are loaded together, separated in
registers, and combined again before a store.

NumPy still computes small sums, sums with complex coefficients, and sums of arrays with gaps between the numbers of a
row. If little address space is left (`ulimit -v`), NumPy also computes sums that are not compiled yet, because LLVM
would abort the process if it ran out of memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import count as counted
from mmap import mmap
from typing import Any

import numpy as np

from fmm.kernels.cpu.host_arrays import Array
from fmm.kernels.cpu.sum_schedule import ElementwiseSchedule

CACHE_LINE_BYTES = 64
MIN_BLOCK_ELEMENTS = 1 << 16  # smallest number of elements of a block for which compiled sums are used
MIN_STREAMED_BYTES = 4 << 20  # stores bypass the caches if the results have at least this number of bytes
BYTES_PER_TASK = 1 << 20  # number of bytes of one result array that one task writes
LLVM_ADDRESS_BYTES = 512 << 20  # address space in bytes that must be free before LLVM starts or compiles
REAL_PART_TYPES = {"float32": "float32", "float64": "float64", "complex64": "float32", "complex128": "float64"}

Window = tuple[slice, slice]
SlotPairs = tuple[tuple[int, int], ...]

_function_numbers = counted()  # numbers for unique names of compiled functions


def compiled_sum_tasks(
    schedule: ElementwiseSchedule, slots: Sequence[Array | None], window: Window
) -> list[Callable[[], None]]:
    """Return tasks that run the schedule's calls in the rectangle `window`; no tasks if NumPy must run the calls."""
    rows, cols = (side.stop - side.start for side in window)
    if rows * cols < MIN_BLOCK_ELEMENTS:
        return []
    try:
        return _compiled_tasks(schedule, slots, window) if is_compiler_usable() else []
    except MemoryError:
        return []


def _compiled_tasks(
    schedule: ElementwiseSchedule, slots: Sequence[Array | None], window: Window
) -> list[Callable[[], None]]:
    """Return the tasks of `compiled_sum_tasks` for a large block; raise MemoryError if LLVM lacks address space."""
    views = {i: x[window] for i in accessed_array_slots(schedule, len(slots)) if (x := slots[i]) is not None}
    results = {i: views[i] for i in result_slots(schedule, len(slots))}
    first = next(iter(results.values()))
    kind, pairs = first.dtype.name, complex_part_pairs(views, results)
    scaled = any(call.op == "scale" for call in schedule.calls)
    parted = {slot for pair in pairs for slot in pair}
    gaps = any(x.dtype != first.dtype or (x.strides[1] != x.itemsize and i not in parted) for i, x in views.items())
    if gaps or kind not in REAL_PART_TYPES or (scaled and kind != REAL_PART_TYPES[kind]):
        return []
    ends = {second for _, second in pairs}  # imaginary parts, which are stored together with their real parts
    lines = all(_is_line_aligned(x) for i, x in results.items() if i not in ends)
    past = lines and sum(x.nbytes for x in results.values()) >= MIN_STREAMED_BYTES
    function = compiled_function(schedule, len(slots), REAL_PART_TYPES[kind], past, pairs)
    numbers = (window[1].stop - window[1].start) * (1 if kind == REAL_PART_TYPES[kind] else 2)
    return list(_row_block_tasks(function, list(views.values()), numbers))


def complex_part_pairs(views: Mapping[int, Array], results: Container[int]) -> SlotPairs:
    """Return pairs of array indices (slots): the real parts and the imaginary parts of the same complex matrix.

    A pair consists of two inputs or of two results.
    """
    parted = {i: x for i, x in views.items() if x.strides[1] == 2 * x.itemsize and x.dtype.kind == "f"}
    starts = {i: x.__array_interface__["data"][0] for i, x in parted.items()}
    return tuple(
        (i, i + 1)
        for i, start in starts.items()
        if starts.get(i + 1) == start + views[i].itemsize
        and views[i].strides == views[i + 1].strides
        and (i in results) == (i + 1 in results)
    )


def _row_block_tasks(
    function: Callable[..., None], views: Sequence[Array], numbers: int
) -> Iterator[Callable[[], None]]:
    """Yield one task for each block of consecutive rows; each task calls the compiled function."""
    rows = len(views[0])
    height = max(BYTES_PER_TASK // max(views[0].shape[1] * views[0].itemsize, 1), 1)
    strides = (ctypes.c_int64 * len(views))(*(x.strides[0] for x in views))
    for top in range(0, rows, height):
        addresses = (ctypes.c_int64 * len(views))(*(x[top:].__array_interface__["data"][0] for x in views))
        yield partial(function, min(height, rows - top), numbers, addresses, strides)


def _is_line_aligned(x: Array) -> bool:
    return not (x.__array_interface__["data"][0] % CACHE_LINE_BYTES or x.strides[0] % CACHE_LINE_BYTES)


def accessed_array_slots(schedule: ElementwiseSchedule, count: int) -> tuple[int, ...]:
    """Return the indices (slots) of the arrays that the calls read or write; scratch panels are excluded."""
    named = {slot for call in schedule.calls for slot in (call.dest, call.first, call.second)}
    return tuple(slot for slot in range(count) if slot in named)


def result_slots(schedule: ElementwiseSchedule, count: int) -> list[int]:
    return sorted({call.dest for call in schedule.calls if call.dest < count})


# ---- LLVM


def is_compiler_installed() -> bool:
    """Return True if llvmlite is installed; llvmlite is not imported."""
    return find_spec("llvmlite") is not None


@lru_cache(maxsize=1)
def is_compiler_usable() -> bool:
    """Return True if llvmlite is installed and works; raise MemoryError if LLVM lacks address space."""
    if not is_compiler_installed():
        return False
    require_address_space()
    try:
        _compiler_engine()
    except Exception:  # if llvmlite fails for any reason, NumPy computes the sums
        return False
    return True


def require_address_space() -> None:
    """Raise MemoryError unless LLVM_ADDRESS_BYTES of address space are free; LLVM would abort without memory."""
    try:
        mmap(-1, LLVM_ADDRESS_BYTES).close()
    except OSError:
        raise MemoryError(f"less than {LLVM_ADDRESS_BYTES >> 20} MiB of address space for LLVM") from None


@lru_cache(maxsize=1)
def _compiler_engine() -> tuple[Any, Any]:
    """Return an LLVM compiler for this processor, and the engine that holds the compiled functions."""
    from llvmlite import binding

    # newer versions of llvmlite initialize LLVM themselves; `binding.initialize` then raises RuntimeError
    with suppress(RuntimeError):
        binding.initialize()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    features = binding.get_host_cpu_features().flatten()
    target = binding.Target.from_default_triple()
    machine = target.create_target_machine(cpu=binding.get_host_cpu_name(), features=features, opt=3)
    return machine, binding.create_mcjit_compiler(binding.parse_assembly(""), machine)


@lru_cache(maxsize=512)
def compiled_function(
    schedule: ElementwiseSchedule, count: int, kind: str, past_caches: bool, pairs: SlotPairs = ()
) -> Callable[..., None]:
    """Return a compiled function that runs the schedule; raise MemoryError if LLVM lacks address space.

    The function's arguments are the number of rows, the number of elements in a row, and two arrays: the addresses of
    the used arrays, and their row strides in bytes.
    """
    from llvmlite import binding

    require_address_space()

    name = f"sum{next(_function_numbers)}"
    module = binding.parse_assembly(str(_SumFunction(schedule, count, kind, past_caches, pairs, name).module))
    _, engine = _compiler_engine()
    engine.add_module(module)
    engine.finalize_object()
    parameters = ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
    found: Callable[..., None] = ctypes.CFUNCTYPE(None, *parameters)(engine.get_function_address(name))
    return found


class _SumFunction:
    """A builder of one LLVM function: for each row, a loop over whole cache lines, and a loop over the rest."""

    def __init__(
        self, schedule: ElementwiseSchedule, count: int, kind: str, past_caches: bool, pairs: SlotPairs, name: str
    ) -> None:
        from llvmlite import ir

        self.ir, self.schedule, self.count, self.past_caches = ir, schedule, count, past_caches
        # Index of an array of real (imaginary) parts -> index of the array of the same matrix's imaginary (real) parts.
        self.other = {a: b for pair in pairs for a, b in (pair, pair[::-1])}
        self.real_parts = {first for first, _ in pairs}
        self.number = {"float32": ir.FloatType(), "float64": ir.DoubleType()}[kind]
        self.size = np.dtype(kind).itemsize
        self.width = CACHE_LINE_BYTES // self.size
        self.long, self.module = ir.IntType(64), ir.Module(name)
        longs = self.long.as_pointer()
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [self.long, self.long, longs, longs]), name)
        self.builder = ir.IRBuilder(function.append_basic_block())
        rows, numbers, addresses, strides = function.args
        self._emit_loop(self._llvm_int64(0), rows, 1, lambda row: self._emit_row(row, numbers, addresses, strides))
        if past_caches:
            self.builder.fence("seq_cst")
        self.builder.ret_void()

    def _llvm_int64(self, value: int) -> Any:
        return self.ir.Constant(self.long, value)

    def _emit_row(self, row: Any, numbers: Any, addresses: Any, strides: Any) -> None:
        build, starts = self.builder, dict[int, Any]()
        for place, slot in enumerate(accessed_array_slots(self.schedule, self.count)):
            base, step = (build.load(build.gep(x, [self._llvm_int64(place)])) for x in (addresses, strides))
            starts[slot] = build.add(base, build.mul(row, step))
        whole = build.and_(numbers, self._llvm_int64(-self.width))
        vector = self.ir.VectorType(self.number, self.width)
        self._emit_loop(
            self._llvm_int64(0), whole, self.width, lambda index: self._emit_calls_at_index(starts, index, vector)
        )
        self._emit_loop(whole, numbers, 1, lambda index: self._emit_calls_at_index(starts, index, self.number))

    def _emit_loop(self, first: Any, end: Any, step: int, body: Callable[[Any], None]) -> None:
        """Emit the code of the loop `for (index = first; index < end; index += step) body(index)`."""
        build = self.builder
        before, head = build.block, build.append_basic_block()
        inside, after = build.append_basic_block(), build.append_basic_block()
        build.branch(head)
        build.position_at_end(head)
        index = build.phi(self.long)
        index.add_incoming(first, before)
        build.cbranch(build.icmp_signed("<", index, end), inside, after)
        build.position_at_end(inside)
        body(index)
        index.add_incoming(build.add(index, self._llvm_int64(step)), build.block)
        build.branch(head)
        build.position_at_end(after)

    def _emit_calls_at_index(self, starts: dict[int, Any], index: Any, kind: Any) -> None:
        """Emit the code of all calls of the schedule for one cache line, or one element, of each array."""
        values = dict[int, Any]()
        places = {slot: self._emit_address(slot, start, index, kind) for slot, start in starts.items()}

        def slot_value(slot: int) -> Any:
            if slot not in values:
                values.update(self._emit_load(slot, places, kind))
            return values[slot]

        results = result_slots(self.schedule, self.count)
        for slot in accessed_array_slots(self.schedule, self.count):
            if slot not in results:
                slot_value(slot)  # load all reads before the first store, because results may share memory with reads
        for call in self.schedule.calls:
            values[call.dest] = self._emit_call(call.op, call.factor, kind, slot_value, call.first, call.second)
        for slot in results:
            if kind is self.number or slot not in self.other:
                self._emit_store(values[slot], places[slot])
            elif slot in self.real_parts:
                order = [part * self.width + i for i in range(self.width) for part in (0, 1)]
                both = self._emit_shuffle(values[slot], values[self.other[slot]], order)
                self._emit_store(both, places[slot])

    def _emit_address(self, slot: int, start: Any, index: Any, kind: Any) -> Any:
        """Return the address of an array's cache line or element; a complex matrix has one address for both parts."""
        build, parted = self.builder, slot in self.other
        offset = build.mul(index, self._llvm_int64(self.size * (2 if parted else 1)))
        both = self.ir.VectorType(self.number, 2 * self.width)
        where = (both if parted and kind is not self.number else kind).as_pointer()
        return build.inttoptr(build.add(start, offset), where)

    def _emit_load(self, slot: int, places: dict[int, Any], kind: Any) -> dict[int, Any]:
        """Emit the load of a cache line or element of an array; return a dict from array index (slot) to loaded value.

        For an array of real or imaginary parts of a complex matrix, one load serves both parts, so the dict has two
        items.
        """
        if kind is self.number or slot not in self.other:
            return {slot: self.builder.load(places[slot], align=self.size)}
        first, second = sorted((slot, self.other[slot]))
        both = self.builder.load(places[first], align=self.size)
        parts = (range(part, 2 * self.width, 2) for part in (0, 1))
        return {x: self._emit_shuffle(both, both, order) for x, order in zip((first, second), parts, strict=True)}

    def _emit_shuffle(self, one: Any, other: Any, order: Iterable[int]) -> Any:
        """Return a vector of elements chosen from two cache lines; `order` lists the indices of the chosen elements."""
        chosen = list(order)
        mask = self.ir.Constant(self.ir.VectorType(self.ir.IntType(32), len(chosen)), chosen)
        return self.builder.shuffle_vector(one, other, mask)

    def _emit_call(self, op: str, factor: Any, kind: Any, value: Callable[[int], Any], first: int, second: int) -> Any:
        build = self.builder
        if op in ("add", "subtract"):
            return (build.fadd if op == "add" else build.fsub)(value(first), value(second))
        if op == "negate":  # a negation is computed as 0 - x, as in numpy_backend.py
            return build.fsub(self._llvm_constant(kind, 0.0), value(first))
        if op == "scale":
            return build.fmul(value(first), self._llvm_constant(kind, float(factor)))
        return value(first) if op == "copy" else self._llvm_constant(kind, 0.0)

    def _llvm_constant(self, kind: Any, number: float) -> Any:
        one = self.ir.Constant(self.number, number)
        return one if kind is self.number else self.ir.Constant(kind, [one] * self.width)

    def _emit_store(self, value: Any, place: Any) -> None:
        lines = self.past_caches and value.type != self.number
        made = self.builder.store(value, place, align=CACHE_LINE_BYTES if lines else self.size)
        if lines:
            made.set_metadata("nontemporal", self.module.add_metadata([self.ir.Constant(self.ir.IntType(32), 1)]))
