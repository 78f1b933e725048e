"""The order of a sum kernel's statements: when each value is loaded, added up and stored.

The order decides how many values a thread holds at a time (its registers), and how early its loads start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Literal, NamedTuple

from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient, by_demand

Aliases = tuple[tuple[int, int], ...]  # pairs (write, read) that stand in the same place
# Limits of the search for an order of the inputs: orders that are tried, and inputs in all of them together (three
# levels: a quarter of a second).
TRIES = 1000
WORK = 40_000


class LaunchCoefficient(NamedTuple):
    """A coefficient known only at launch: alpha and beta, so that no new value of theirs is compiled again."""

    number: int


class Statement(NamedTuple):
    """One statement of a kernel.

    A `load` gets a value from memory. A `start` forms a new value of a first term, an `add` adds another one to it. A
    `store` writes a value to an output.
    """

    kind: Literal["load", "start", "add", "store"]
    value: int
    source: int = -1  # of a start or add: the value of the term, -1 for a sum of nothing; of a store: the output
    factor: Coefficient | LaunchCoefficient = 1


@lru_cache(maxsize=1024)
def best_order(program: AdditionProgram, aliases: Aliases) -> tuple[Statement, ...]:
    """The best of three orders: the program's own, values made when wanted, inputs handed on when met.

    A split has few inputs and many outputs: all inputs are loaded at once, outputs leave as they are made. A join is
    the opposite: each product is added at once to everything that wants it, and forgotten; in which order the products
    come decides how many sums are unfinished at a time (strassen^3: 85 in their own order, 43 in the one found).
    """
    orders = _order_by_line(program), _order_by_line(by_demand(program)), _handed_on(program, aliases)
    return min(orders, key=peak_values)


def peak_values(events: Sequence[Statement]) -> int:
    """The largest number of values that are alive at a time."""
    return max(_values_alive(events), default=0)


def _values_alive(events: Sequence[Statement]) -> list[int]:
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


def _order_by_line(program: AdditionProgram) -> tuple[Statement, ...]:
    """All loads in the order of their first use (they wait for memory together), then line by line."""
    used = [v for terms in program.lines for _, v in terms] + list(program.outputs)
    events = [Statement("load", v) for v in dict.fromkeys(used) if v < program.inputs]
    for value in range(program.inputs):
        events += _store_events(program, value)
    for value, terms in enumerate(program.lines, program.inputs):
        events += [_term_event(value, i, source, c) for i, (c, source) in enumerate(terms)] or [
            Statement("start", value)
        ]
        events += _store_events(program, value)
    return tuple(events)


def _term_event(value: int, index: int, source: int, factor: Coefficient) -> Statement:
    return Statement("add" if index else "start", value, source, factor)


def _store_events(program: AdditionProgram, value: int) -> Iterator[Statement]:
    return (Statement("store", value, o) for o, v in enumerate(program.outputs) if v == value)


def _handed_on(program: AdditionProgram, aliases: Aliases) -> tuple[Statement, ...]:
    """Inputs are handed on in the best order that a short search finds, which swaps digits of their numbers.

    The inputs are numbered in a mixed radix of prime factors, the smallest first or last. The products of a composed
    scheme are numbered like that too, a digit for each factor, so that a good order of strassen's seven products is one
    of its compositions as well.
    """
    free = _HandingOn(program, aliases).free
    factors = _prime_factors(len(free))
    systems = dict.fromkeys((tuple(factors), tuple(reversed(factors))))
    return min((_searched(program, aliases, free, system) for system in systems), key=_register_pressure)


def _searched(
    program: AdditionProgram, aliases: Aliases, free: Sequence[int], system: Sequence[int]
) -> tuple[Statement, ...]:
    """The best order found by replacing digits of the inputs' numbers, written in this system of radices.

    Digits are swapped as long as that makes fewer values alive.
    """
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


def _register_pressure(events: Sequence[Statement]) -> tuple[int, int]:
    """What a good order has little of: values alive at a time, and their sum over all statements."""
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
    """Loads one input after the other; each value that becomes known is added at once to every line that wants it.

    An old value that a line overwrites (C in alpha A B + beta C) comes last, as soon as nothing else is missing.
    """

    def __init__(self, program: AdditionProgram, aliases: Aliases, order: Sequence[int] = ()) -> None:
        self.program, self.aliases, self.order = program, aliases, order
        self.events: list[Statement] = []
        self.missing = [len(terms) for terms in program.lines]  # terms that a line still waits for
        self.started: set[int] = set()  # lines that have a term already
        self.loaded: set[int] = set()
        self.finished: set[int] = set()  # values that are known
        # By value: the lines that want it, and with which coefficient.
        self.wanted: dict[int, list[tuple[int, Coefficient]]] = {v: [] for v in program.outputs}
        for number, terms in enumerate(program.lines, program.inputs):
            for c, source in terms:
                self.wanted.setdefault(source, []).append((number, c))
        # By line: the old value that it overwrites, if no other line wants that.
        self.old = {self.wanted[r][0][0]: r for _, r in aliases if len(self.wanted.get(r, ())) == 1}

    @property
    def free(self) -> list[int]:
        """The inputs whose order is free."""
        return [v for v in range(self.program.inputs) if v not in self.old.values()]

    def run(self) -> tuple[Statement, ...]:
        for number, terms in enumerate(self.program.lines, self.program.inputs):
            if not terms:
                self.events.append(Statement("start", number))
                self._finish(number)
        for value in (*self.order, *range(self.program.inputs)):
            if value in self.wanted and value not in self.finished:
                self._load(value)
                self._finish(value)
        return tuple(self.events)

    def _load(self, value: int) -> None:
        if value not in self.loaded:
            self.loaded.add(value)
            self.events.append(Statement("load", value))

    def _finish(self, value: int) -> None:
        """A value is known now: store it, and add it to the lines that want it."""
        self.finished.add(value)
        for store in _store_events(self.program, value):
            for read in (r for o, r in self.aliases if o == store.source and r in self.wanted):
                self._load(read)  # before its place is written over
            self.events.append(store)
        for number, c in self.wanted.get(value, []):
            self.events.append(_term_event(number, number in self.started, value, c))
            self.started.add(number)
            self.missing[number - self.program.inputs] -= 1
            self._go_on(number)

    def _go_on(self, number: int) -> None:
        """Go on with a line that has got another term: finish it, or load the old value if only that is missing."""
        missing, old = self.missing[number - self.program.inputs], self.old.get(number)
        if not missing:
            self._finish(number)
        elif missing == 1 and old is not None and old not in self.finished:
            self._load(old)
            self._finish(old)
