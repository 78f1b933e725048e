"""CUDA source of the sums: a straight-line program as a short stub, for the one kernel in cuda/sum.cuh.

The stub is all that depends on a scheme's coefficients: which block of which array each input and output is, and the
additions between them, ordered so that few values are alive at a time (a value that does not fit in a register would
go through memory, and memory is what these kernels wait for).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from typing import Literal, NamedTuple

from fmm.kernels.program import Coefficient, Program, by_demand

Access = Literal["vector", "scalar"]
THREADS = 128  # side by side in a thread block, as in cuda/sum.cuh
WIDEST = 16  # bytes of the widest memory access
ENTRY = "fmm_sum"
# Registers that a kernel's live values may take; addresses and what the compiler loads ahead need the rest of the 255.
# (Three levels in one pass hold 84 values: two lanes of float32, one of float64.)
REGISTERS = 176
LONG = 400  # statements: more than two levels in one pass
# A program with at least so many loads, and twice as many as it holds values at a time, has them started far ahead,
# through shared memory: so many batches under way, and so many bytes a thread block. Registers alone keep too few loads
# in flight: the join of three levels then moves 1.9 TB/s on an H200, so 3.7 to 4.1.
MANY_LOADS = 32
BATCHES = 8
BYTES_AHEAD = 32 << 10


class Element(NamedTuple):
    """How CUDA keeps numbers of one type: its C++ name, bytes in memory, registers while it is being added up."""

    name: str
    itemsize: int
    registers: int


ELEMENTS = {
    "float16": Element("fmm::half", 2, 1),
    "bfloat16": Element("fmm::bfloat16", 2, 1),
    "float32": Element("float", 4, 1),
    "float64": Element("double", 8, 2),
    "complex64": Element("fmm::Complex<float>", 8, 2),
    "complex128": Element("fmm::Complex<double>", 16, 4),
}


class Spot(NamedTuple):
    """Where an input or output stands: block (i, j) of one of the kernel's arrays."""

    array: int
    i: int
    j: int


class Scalar(NamedTuple):
    """A coefficient known only at launch: alpha and beta, so that no new value of theirs is compiled again."""

    number: int


class Event(NamedTuple):
    """One statement of the stub."""

    kind: Literal["load", "start", "add", "store"]
    value: int  # the value that is loaded, started, extended or stored
    source: int = -1  # start, add: the value of the term (-1: none, a sum of nothing); store: the output's number
    factor: Coefficient | Scalar = 1


@dataclass(frozen=True)
class SumKernel:
    """What one kernel computes, and on which blocks; sizes, strides and scalars come with the launch."""

    program: Program  # its coefficients may be Scalars
    scalars: int
    reads: tuple[Spot, ...]
    writes: tuple[Spot, ...]
    aliases: tuple[tuple[int, int], ...]  # (write, read) pairs that stand in the same place
    arrays: int
    whole: frozenset[int]  # arrays of equal layers, each as large as the launch: accesses to them need no tests
    element: str

    @cached_property
    def events(self) -> tuple[Event, ...]:
        return _events(self.program, self.aliases)

    @cached_property
    def lanes(self) -> int:
        """Elements per thread: as many as one memory access moves, while their sums stay in registers."""
        element = ELEMENTS[self.element]
        lanes = WIDEST // element.itemsize
        while lanes > 1 and lanes * peak(self.events) * element.registers > REGISTERS:
            lanes //= 2
        return lanes

    @cached_property
    def batch(self) -> int:
        """How many loads are started together, far ahead of their use; 0: each where it stands."""
        if sum(event.kind == "load" for event in self.events) < max(MANY_LOADS, 2 * peak(self.events)):
            return 0
        return BYTES_AHEAD // (BATCHES * THREADS * self.lanes * ELEMENTS[self.element].itemsize)

    @property
    def slots(self) -> int:
        """Places in shared memory that each thread has for values under way."""
        return BATCHES * self.batch


# ---- the order of the statements


@lru_cache(maxsize=1024)
def _events(program: Program, aliases: tuple[tuple[int, int], ...]) -> tuple[Event, ...]:
    """The best of three orders: the program's own, values made when wanted, inputs handed on when met.

    A split has few inputs and many outputs: all inputs are loaded at once, outputs leave as they are made. A join is
    the opposite: each product is added at once to everything that wants it, and forgotten.
    """
    orders = _wanted(program), _wanted(by_demand(program)), _handed_on(program, aliases)
    return min(orders, key=peak)


def peak(events: Sequence[Event]) -> int:
    """The largest number of values that are alive at a time."""
    last: dict[int, int] = {}
    for at, event in enumerate(events):
        last[event.value] = at
        if event.kind in ("start", "add"):
            last[event.source] = at
    alive: set[int] = set()
    most = 0
    for at, event in enumerate(events):
        alive.add(event.value)
        most = max(most, len(alive))
        alive -= {v for v in (event.value, event.source) if last.get(v) == at}
    return most


def _wanted(program: Program) -> tuple[Event, ...]:
    """All loads in the order of their first use (they wait for memory together), then line by line."""
    used = [v for terms in program.lines for _, v in terms] + list(program.outputs)
    events = [Event("load", v) for v in dict.fromkeys(used) if v < program.inputs]
    for value in range(program.inputs):
        events += _stores(program, value)
    for value, terms in enumerate(program.lines, program.inputs):
        events += [_term(value, i, source, c) for i, (c, source) in enumerate(terms)] or [Event("start", value)]
        events += _stores(program, value)
    return tuple(events)


def _term(value: int, index: int, source: int, factor: Coefficient) -> Event:
    return Event("add" if index else "start", value, source, factor)


def _stores(program: Program, value: int) -> Iterator[Event]:
    return (Event("store", value, o) for o, v in enumerate(program.outputs) if v == value)


def _handed_on(program: Program, aliases: tuple[tuple[int, int], ...]) -> tuple[Event, ...]:
    return _HandingOn(program, aliases).run()


class _HandingOn:
    """Loads one input after the other; whatever becomes known is added at once to every line that wants it."""

    def __init__(self, program: Program, aliases: tuple[tuple[int, int], ...]) -> None:
        self.program, self.aliases = program, aliases
        self.events: list[Event] = []
        self.missing = [len(terms) for terms in program.lines]
        self.started: set[int] = set()
        self.loaded: set[int] = set()
        self.wanted: dict[int, list[tuple[int, Coefficient]]] = {v: [] for v in program.outputs}
        for number, terms in enumerate(program.lines, program.inputs):
            for c, source in terms:
                self.wanted.setdefault(source, []).append((number, c))

    def run(self) -> tuple[Event, ...]:
        for number, terms in enumerate(self.program.lines, self.program.inputs):
            if not terms:
                self.events.append(Event("start", number))
                self._known(number)
        for value in range(self.program.inputs):
            if value in self.wanted:
                self._load(value)
                self._known(value)
        return tuple(self.events)

    def _load(self, value: int) -> None:
        if value not in self.loaded:
            self.loaded.add(value)
            self.events.append(Event("load", value))

    def _known(self, value: int) -> None:
        for store in _stores(self.program, value):
            for read in (r for o, r in self.aliases if o == store.source and r in self.wanted):
                self._load(read)  # before its place is written over
            self.events.append(store)
        for number, c in self.wanted.get(value, []):
            self.events.append(_term(number, number in self.started, value, c))
            self.started.add(number)
            self.missing[number - self.program.inputs] -= 1
            if not self.missing[number - self.program.inputs]:
                self._known(number)


# ---- text


@lru_cache(maxsize=1)
def _template() -> str:
    return (resources.files("fmm.kernels") / "cuda" / "sum.cuh").read_text(encoding="utf-8")


@lru_cache(maxsize=512)
def source(kernel: SumKernel, access: Access, flag: bool = False) -> str:
    """The whole CUDA source of a kernel, entry point `ENTRY`."""
    parameters = f"fmm::Parameters<{kernel.arrays}, {kernel.scalars}>"
    variant = f"fmm::Access::{access.upper()}, {str(flag).lower()}"
    lines = [
        _template(),
        "struct Step {",
        f"    static constexpr bool LONG = {str(len(kernel.events) > LONG).lower()};",
        f"    static constexpr int SLOTS = {kernel.slots};",
        f"    __device__ static constexpr bool whole(int array) {{ return {_any_of(kernel.whole)}; }}",
        "    template <class Io>",
        "    __device__ static __forceinline__ void run(Io& io) {",
        "        using Values = typename Io::Values;",
        *(f"        {statement}" for statement in _statements(kernel)),
        "    }",
        "};",
        "",
        f'extern "C" __global__ void __launch_bounds__({THREADS})',
        f"{ENTRY}(const __grid_constant__ {parameters} p) {{",
        f"    fmm::sum<Step, {ELEMENTS[kernel.element].name}, {kernel.lanes}, {variant}>(p);",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _any_of(arrays: frozenset[int]) -> str:
    return " || ".join(f"array == {a}" for a in sorted(arrays)) or "false"


def _statements(kernel: SumKernel) -> Iterator[str]:
    loads = [event.value for event in kernel.events if event.kind == "load"]
    number = {value: i for i, value in enumerate(loads)}
    for batch in range(BATCHES if kernel.batch else 0):
        yield from _fetches(kernel, loads, batch)
    for event in kernel.events:
        if event.kind == "load" and kernel.batch:
            yield from _taken(kernel, loads, number[event.value])
        elif event.kind == "load":
            yield f"const Values v{event.value} = io.template load<{_spot(kernel.reads[event.value])}>();"
        elif event.kind == "store":
            if any(o == event.source for o, _ in kernel.aliases):
                yield "Io::fence();"
            yield f"io.template store<{_spot(kernel.writes[event.source])}>(v{event.value});"
        elif event.kind == "start":
            yield f"Values v{event.value} = {_first(event)};"
        else:
            yield f"v{event.value} = v{event.value} {_next(event)};"


def _fetches(kernel: SumKernel, loads: Sequence[int], batch: int) -> Iterator[str]:
    """Start a batch of loads; past the last one too there is something to commit: nothing."""
    for i in range(batch * kernel.batch, min((batch + 1) * kernel.batch, len(loads))):
        yield f"io.template fetch<{_spot(kernel.reads[loads[i]])}>({i % kernel.slots});"
    yield "Io::commit();"


def _taken(kernel: SumKernel, loads: Sequence[int], i: int) -> Iterator[str]:
    """Take a fetched value; with the last of its batch, whose slots are free then, start a later batch."""
    batch, within = divmod(i, kernel.batch)
    if within == 0:
        yield f"Io::template wait<{BATCHES - 1}>();"
    yield f"const Values v{loads[i]} = io.template take<{_spot(kernel.reads[loads[i]])}>({i % kernel.slots});"
    if within == kernel.batch - 1:
        yield from _fetches(kernel, loads, batch + BATCHES)


def _spot(spot: Spot) -> str:
    return f"{spot.array}, {spot.i}, {spot.j}"


def _first(event: Event) -> str:
    if event.source < 0:
        return "io.zero()"
    if event.factor == 1:
        return f"v{event.source}"
    return f"{_factor(event.factor)} * v{event.source}"


def _next(event: Event) -> str:
    if event.factor in (1, -1):
        return f"{'+' if event.factor == 1 else '-'} v{event.source}"
    return f"+ {_factor(event.factor)} * v{event.source}"


def _factor(c: Coefficient | Scalar) -> str:
    if isinstance(c, Scalar):
        return f"io.scalar({c.number})"
    return f"io.constant({float(c.real)!r})"
