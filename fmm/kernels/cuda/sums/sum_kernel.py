"""A sum kernel as data: which numbers a thread loads, adds and stores, and in which order.

One thread owns one position of every block. The order decides how many values it holds at a time (its registers) and
how early its loads start; sum_source.py writes the order down as CUDA, sum_launch.py says where the blocks lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Literal, NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient, by_demand

Access = Literal["vector", "scalar"]
THREADS, WARP = 128, 32  # of a thread block, as in block_sums.cuh
SECTOR = 32  # bytes that memory reads or writes at least
HIGH = 4  # warps of a block below each other where arrays lie crosswise
WIDEST = 16  # bytes of the widest memory access
# Registers that a kernel's live values may take; addresses and what the compiler loads ahead need the rest of the 255.
# (Three levels in one pass hold 84 values: two lanes of float32, one of float64.)
REGISTERS = 176
REGISTERS_AHEAD = 128  # where loads are started far ahead: their addresses need registers too
FOUR_BLOCKS = 72  # where loads are started ahead, or a tile is turned: with so many, four thread blocks find room
# Orders of the inputs that are tried, and inputs in all of them together (three levels: a quarter of a second).
TRIES = 1000
WORK = 40_000
LONG = 400  # statements: more than two levels in one pass
MANY_HELD = 12  # values at a time, beside addresses that are under way
# A program with at least so many loads, and twice as many as it holds values at a time, has them started far ahead,
# through shared memory: so many batches under way, and so many bytes a thread block. Registers alone keep too few loads
# in flight: the join of three levels then moves 1.9 TB/s on an H200, so 3.7 to 4.1.
MANY_LOADS = 32
BATCHES = 8
BYTES_AHEAD = 32 << 10


class Spot(NamedTuple):
    """Where an input or output stands: block (i, j) of one of the kernel's arrays."""

    array: int
    i: int
    j: int
    part: int = 0  # of an array of complex numbers: 0 for the real parts, 1 for the imaginary ones


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

    program: AdditionProgram  # its coefficients may be Scalars
    scalars: int
    reads: tuple[Spot, ...]
    writes: tuple[Spot, ...]
    aliases: tuple[tuple[int, int], ...]  # (write, read) pairs that stand in the same place
    arrays: int
    whole: frozenset[int]  # arrays of equal layers, each as large as the launch: accesses to them need no tests
    element: str
    tall: frozenset[int] = frozenset()  # arrays that lie column by column, where all others lie row by row
    parts: frozenset[int] = frozenset()  # arrays of complex numbers, of which real and imaginary parts are loaded

    @cached_property
    def events(self) -> tuple[Event, ...]:
        return _best_order(self.program, self.aliases)

    @cached_property
    def lanes(self) -> int:
        """Elements per thread: as many as one memory access moves, while their sums stay in registers.

        With alpha and beta, three levels need more registers than those for values.
        """
        element = DTYPES[self.element]
        lanes, room = WIDEST // element.itemsize, REGISTERS_AHEAD if self.ahead else REGISTERS
        while lanes > 1 and lanes * peak_values(self.events) * element.registers > room:
            lanes //= 2
        if self.long and self.scalars:
            lanes = max(lanes // 2, 1)
        # Complex numbers come in two accesses, and go so: with four of them NVRTC spills the joins of two levels.
        return min(lanes, 2) if self.parts and len(self.events) > LONG else lanes

    @property
    def long(self) -> bool:
        """So many statements that they come once only."""
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
        """How many loads are started together, far ahead of their use; 0: each where it stands."""
        if not self.ahead:
            return 0
        return BYTES_AHEAD // (BATCHES * THREADS * self.lanes * DTYPES[self.element].itemsize)

    @property
    def bounds(self) -> str:
        """What the compiler is told of thread blocks: their threads, and how many a multiprocessor should hold.

        Left alone it aims at six of the joins of two levels, and at five of the splits that turn, and spills for that;
        with four nothing is spilled.
        """
        values = self.lanes * peak_values(self.events) * DTYPES[self.element].registers
        four = (self.ahead or bool(self.tall)) and values <= FOUR_BLOCKS and not (self.long and self.scalars)
        return f"{THREADS}, 4" if four else f"{THREADS}"

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a thread block: all threads side by side, or a tile where arrays lie crosswise."""
        if not self.tall:
            return 1, THREADS * self.lanes
        down = SECTOR // DTYPES[self.element].itemsize
        return HIGH * down, THREADS // WARP // HIGH * (WARP // down) * self.lanes

    def partner(self, event: Event) -> int:
        """Of a load or store in an array of parts: the other part's value (of a store, output) number, which is the
        next one or the one before; -1: none."""
        spots = self.reads if event.kind == "load" else self.writes
        number = event.value if event.kind == "load" else event.source
        spot = spots[number]
        near = number + 1 - 2 * spot.part
        found = spot.array in self.parts and 0 <= near < len(spots) and spots[near] == spot._replace(part=1 - spot.part)
        return near if found else -1

    @property
    def slots(self) -> int:
        """Places in shared memory that each thread has for values under way."""
        return BATCHES * self.batch


@lru_cache(maxsize=1024)
def _best_order(program: AdditionProgram, aliases: tuple[tuple[int, int], ...]) -> tuple[Event, ...]:
    """The best of three orders: the program's own, values made when wanted, inputs handed on when met.

    A split has few inputs and many outputs: all inputs are loaded at once, outputs leave as they are made. A join is
    the opposite: each product is added at once to everything that wants it, and forgotten; in which order the products
    come decides how many sums are unfinished at a time (strassen^3: 85 in their own order, 43 in the one found).
    """
    orders = _order_by_line(program), _order_by_line(by_demand(program)), _handed_on(program, aliases)
    return min(orders, key=peak_values)


def peak_values(events: Sequence[Event]) -> int:
    """The largest number of values that are alive at a time."""
    return max(_values_alive(events), default=0)


def _values_alive(events: Sequence[Event]) -> list[int]:
    """How many values are alive, event by event."""
    last: dict[int, int] = {}
    for at, event in enumerate(events):
        last[event.value] = at
        if event.kind in ("start", "add"):
            last[event.source] = at
    alive: set[int] = set()
    counts = []
    for at, event in enumerate(events):
        alive.add(event.value)
        counts.append(len(alive))
        alive -= {v for v in (event.value, event.source) if last.get(v) == at}
    return counts


def _order_by_line(program: AdditionProgram) -> tuple[Event, ...]:
    """All loads in the order of their first use (they wait for memory together), then line by line."""
    used = [v for terms in program.lines for _, v in terms] + list(program.outputs)
    events = [Event("load", v) for v in dict.fromkeys(used) if v < program.inputs]
    for value in range(program.inputs):
        events += _store_events(program, value)
    for value, terms in enumerate(program.lines, program.inputs):
        events += [_term_event(value, i, source, c) for i, (c, source) in enumerate(terms)] or [Event("start", value)]
        events += _store_events(program, value)
    return tuple(events)


def _term_event(value: int, index: int, source: int, factor: Coefficient) -> Event:
    return Event("add" if index else "start", value, source, factor)


def _store_events(program: AdditionProgram, value: int) -> Iterator[Event]:
    return (Event("store", value, o) for o, v in enumerate(program.outputs) if v == value)


def _handed_on(program: AdditionProgram, aliases: tuple[tuple[int, int], ...]) -> tuple[Event, ...]:
    """Inputs in the best order that a short search finds: digits are swapped as long as fewer values are alive.

    The inputs are numbered in a mixed radix of prime factors, the smallest first or last. The products of a composed
    scheme are numbered like that too, a digit for each factor, so that a good order of strassen's seven products is one
    of its compositions as well.
    """
    free = _HandingOn(program, aliases).free
    factors = _prime_factors(len(free))
    systems = dict.fromkeys((tuple(factors), tuple(reversed(factors))))
    return min((_searched(program, aliases, free, system) for system in systems), key=_register_pressure)


def _searched(
    program: AdditionProgram, aliases: tuple[tuple[int, int], ...], free: Sequence[int], system: Sequence[int]
) -> tuple[Event, ...]:
    """In the best order found of those that replace digits of this system."""
    digits = {radix: tuple(range(radix)) for radix in system}
    best = _HandingOn(program, aliases, _in_digit_order(free, system, digits)).run()
    swaps = sum(1 for _ in _digit_swaps(digits))
    for _ in range(min(TRIES, WORK // program.inputs) // swaps if swaps else 0):
        trials = [
            (_HandingOn(program, aliases, _in_digit_order(free, system, d)).run(), d) for d in _digit_swaps(digits)
        ]
        events, trial = min(trials, key=lambda x: _register_pressure(x[0]))
        if _register_pressure(events) >= _register_pressure(best):
            break
        best, digits = events, trial
    return best


def _digit_swaps(digits: dict[int, tuple[int, ...]]) -> Iterator[dict[int, tuple[int, ...]]]:
    """Every exchange of two digits of one radix."""
    for radix, (i, j) in ((r, pair) for r in digits for pair in combinations(range(r), 2)):
        swap = {i: j, j: i}
        yield digits | {radix: tuple(digits[radix][swap.get(d, d)] for d in range(radix))}


def _register_pressure(events: Sequence[Event]) -> tuple[int, int]:
    alive = _values_alive(events)
    return max(alive, default=0), sum(alive)


def _prime_factors(number: int) -> list[int]:
    """The prime factors of a number, each as often as it occurs."""
    factor = next((f for f in range(2, number + 1) if number % f == 0), 0)
    return [factor, *_prime_factors(number // factor)] if factor else []


def _in_digit_order(values: Sequence[int], system: Sequence[int], digits: dict[int, tuple[int, ...]]) -> list[int]:
    """The values by number, after every digit of the number in this system has been replaced."""
    order = [0]
    for radix in system:
        order = [radix * n + digit for n in order for digit in digits[radix]]
    return [values[n] for n in order if n < len(values)]


class _HandingOn:
    """Loads one input after the other; whatever becomes known is added at once to every line that wants it.

    An old value of what a line overwrites (C in alpha A B + beta C) comes last, as soon as nothing else is missing.
    """

    def __init__(
        self, program: AdditionProgram, aliases: tuple[tuple[int, int], ...], order: Sequence[int] = ()
    ) -> None:
        self.program, self.aliases, self.order = program, aliases, order
        self.events: list[Event] = []
        self.missing = [len(terms) for terms in program.lines]
        self.started: set[int] = set()
        self.loaded: set[int] = set()
        self.known: set[int] = set()
        self.wanted: dict[int, list[tuple[int, Coefficient]]] = {v: [] for v in program.outputs}
        for number, terms in enumerate(program.lines, program.inputs):
            for c, source in terms:
                self.wanted.setdefault(source, []).append((number, c))
        self.old = {self.wanted[r][0][0]: r for _, r in aliases if len(self.wanted.get(r, ())) == 1}

    @property
    def free(self) -> list[int]:
        """The inputs whose order is free."""
        return [v for v in range(self.program.inputs) if v not in self.old.values()]

    def run(self) -> tuple[Event, ...]:
        for number, terms in enumerate(self.program.lines, self.program.inputs):
            if not terms:
                self.events.append(Event("start", number))
                self._known(number)
        for value in (*self.order, *range(self.program.inputs)):
            if value in self.wanted and value not in self.known:
                self._load(value)
                self._known(value)
        return tuple(self.events)

    def _load(self, value: int) -> None:
        if value not in self.loaded:
            self.loaded.add(value)
            self.events.append(Event("load", value))

    def _known(self, value: int) -> None:
        self.known.add(value)
        for store in _store_events(self.program, value):
            for read in (r for o, r in self.aliases if o == store.source and r in self.wanted):
                self._load(read)  # before its place is written over
            self.events.append(store)
        for number, c in self.wanted.get(value, []):
            self.events.append(_term_event(number, number in self.started, value, c))
            self.started.add(number)
            self.missing[number - self.program.inputs] -= 1
            self._met(number)

    def _met(self, number: int) -> None:
        """After another term of a line: is it finished, or is only the old value missing?"""
        missing, old = self.missing[number - self.program.inputs], self.old.get(number)
        if not missing:
            self._known(number)
        elif missing == 1 and old is not None and old not in self.known:
            self._load(old)
            self._known(old)
