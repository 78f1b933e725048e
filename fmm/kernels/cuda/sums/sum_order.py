"""Find the order of a sum kernel's statements, which load, add and store values.

The order determines how many values a thread holds in registers at a time, and how early the thread's loads start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Literal, NamedTuple

from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient, order_lines_by_use

AliasPairs = tuple[tuple[int, int], ...]  # pairs (index of a write, index of a read) on the same memory
# Limits of the search for an order of a sum kernel's inputs: the number of orders that are tried, and the total number
# of inputs in these orders. The limits are so low that the search takes a quarter of a second for a kernel of three
# levels.
MAX_TRIED_ORDERS = 1000
MAX_ORDERED_INPUTS = 40_000


class RuntimeCoefficient(NamedTuple):
    """A coefficient that is a launch parameter, such as alpha or beta: a new value needs no new compilation."""

    number: int


class SumStatement(NamedTuple):
    """One statement of a sum kernel.

    A `load` reads a value from memory. A `start` creates a sum from its first term. An `add` adds another term to a
    sum. A `store` writes a value to an output.
    """

    kind: Literal["load", "start", "add", "store"]
    value: int
    source: int = -1  # `start` and `add`: index of the term's value, -1 for an empty sum; `store`: index of the output
    factor: Coefficient | RuntimeCoefficient = 1


@lru_cache(maxsize=1024)
def best_statement_order(program: AdditionProgram, aliases: AliasPairs) -> tuple[SumStatement, ...]:
    """Return the statement order with the fewest live values.

    There are three candidates: the program's own order of sums, the sums ordered by use, and an order that forwards
    inputs. An order that completes one sum after the other has few live values in the sums before the products, which
    have few inputs and many outputs: all inputs are loaded first, and each output is stored as soon as it is complete.
    An order that forwards inputs has few live values in the sums after the products (a join): each product is loaded
    once and then added to all sums that contain the product. In a join, the order of the products therefore determines
    how many sums are incomplete at a time. In the join of strassen^3, at most 85 values are live at a time in the
    original order of the products, and at most 43 in the order that the search finds.
    """
    orders = (
        _line_by_line_order(program),
        _line_by_line_order(order_lines_by_use(program)),
        _best_forwarding_order(program, aliases),
    )
    return min(orders, key=peak_live_values)


def peak_live_values(events: Sequence[SumStatement]) -> int:
    """Return the largest number of values that are live at a time."""
    return max(_live_value_counts(events), default=0)


def _live_value_counts(events: Sequence[SumStatement]) -> list[int]:
    """Return the number of live values at each statement, in order."""
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


def _line_by_line_order(program: AdditionProgram) -> tuple[SumStatement, ...]:
    """Return all loads in the order of their first use, then the sums one after the other.

    The loads are consecutive, so that their latencies overlap.
    """
    used = [v for terms in program.lines for _, v in terms] + list(program.outputs)
    events = [SumStatement("load", v) for v in dict.fromkeys(used) if v < program.inputs]
    for value in range(program.inputs):
        events += _store_statements(program, value)
    for value, terms in enumerate(program.lines, program.inputs):
        events += [_term_statement(value, i, source, c) for i, (c, source) in enumerate(terms)] or [
            SumStatement("start", value)
        ]
        events += _store_statements(program, value)
    return tuple(events)


def _term_statement(value: int, index: int, source: int, factor: Coefficient) -> SumStatement:
    """Return the statement for the term with this index in a sum: `start` for index 0, else `add`."""
    return SumStatement("add" if index else "start", value, source, factor)


def _store_statements(program: AdditionProgram, value: int) -> Iterator[SumStatement]:
    """Yield the stores of a value, one for each output that equals the value."""
    return (SumStatement("store", value, o) for o, v in enumerate(program.outputs) if v == value)


def _best_forwarding_order(program: AdditionProgram, aliases: AliasPairs) -> tuple[SumStatement, ...]:
    """Return the best statement order that a short search over orders of inputs finds.

    In the sums after the products (a join), the inputs are the products of a scheme. In a composition of schemes such
    as strassen^2, each product has one index in each of the schemes. The indices of a product in all schemes together
    are the digits of the product's index: in strassen^2, product 5 of outer product 3 has the digits 3 and 5 in base 7.
    The search writes the index of each input as a number with several digits. The bases of an input's digits are the
    prime factors of the number of inputs, in increasing or decreasing order. Each trial exchanges two digits in the
    indices of all inputs, for example the digits 3 and 5 wherever the base is 7. So a good order of Strassen's seven
    products also orders the products of strassen^2 and strassen^3 well.
    """
    free = _ForwardingScheduler(program, aliases).inputs_not_overwritten
    factors = _prime_factors(len(free))
    systems = dict.fromkeys((tuple(factors), tuple(reversed(factors))))
    return min((_find_best_order(program, aliases, free, system) for system in systems), key=_register_pressure)


def _find_best_order(
    program: AdditionProgram, aliases: AliasPairs, free: Sequence[int], system: Sequence[int]
) -> tuple[SumStatement, ...]:
    """Exchange digits in all inputs' indices, and return the statement order with the fewest live values.

    The index of each input is written with several digits; `system` has the base of each digit. The search ends when no
    exchange lowers the register pressure.
    """
    digits = {radix: tuple(range(radix)) for radix in system}
    best = _ForwardingScheduler(program, aliases, _sort_by_digits(free, system, digits)).ordered_statements()
    swaps = sum(1 for _ in _orders_with_digits_swapped(digits))
    for _ in range(min(MAX_TRIED_ORDERS, MAX_ORDERED_INPUTS // program.inputs) // swaps if swaps else 0):
        trials = [
            (_ForwardingScheduler(program, aliases, _sort_by_digits(free, system, d)).ordered_statements(), d)
            for d in _orders_with_digits_swapped(digits)
        ]
        events, trial = min(trials, key=lambda x: _register_pressure(x[0]))
        if _register_pressure(events) >= _register_pressure(best):
            break
        best, digits = events, trial
    return best


def _orders_with_digits_swapped(digits: dict[int, tuple[int, ...]]) -> Iterator[dict[int, tuple[int, ...]]]:
    """Yield all digit orders that differ from `digits` by an exchange of two digits of one base."""
    for radix, (i, j) in ((r, pair) for r in digits for pair in combinations(range(r), 2)):
        swap = {i: j, j: i}
        yield digits | {radix: tuple(digits[radix][swap.get(d, d)] for d in range(radix))}


def _register_pressure(events: Sequence[SumStatement]) -> tuple[int, int]:
    """Return the largest number of values that are live at a time, and the number of live values summed over time."""
    alive = _live_value_counts(events)
    return max(alive, default=0), sum(alive)


def _prime_factors(number: int) -> list[int]:
    """Return the prime factors of a number with multiplicity, the smallest first."""
    factor = next((f for f in range(2, number + 1) if number % f == 0), 0)
    return [factor, *_prime_factors(number // factor)] if factor else []


def _sort_by_digits(values: Sequence[int], system: Sequence[int], digits: dict[int, tuple[int, ...]]) -> list[int]:
    """Return the values sorted by the digits of their indices, the first digit first.

    `system` lists the base of each digit of an index, because the digits can have different bases. `digits` has an
    order of the digits 0 to base - 1 for each base.
    """
    order = [0]
    for radix in system:
        order = [radix * n + digit for n in order for digit in digits[radix]]
    return [values[n] for n in order if n < len(values)]


class _ForwardingScheduler:
    """Orders the statements of a sum kernel so that each value is added to its sums as soon as the value is available.

    A value is an input that is loaded, or a sum that is complete. Inputs are loaded one by one. A sum whose output
    overwrites one of its own inputs, such as C in alpha A B + beta C, loads this input last. Each line of the program
    is one sum.
    """

    def __init__(self, program: AdditionProgram, aliases: AliasPairs, order: Sequence[int] = ()) -> None:
        self.program, self.aliases, self.order = program, aliases, order
        self.events: list[SumStatement] = []
        self.missing = [len(terms) for terms in program.lines]  # number of terms still to be added to each line
        self.started: set[int] = set()  # lines to which at least one term is added
        self.loaded: set[int] = set()  # inputs that are loaded
        self.finished: set[int] = set()  # values that are complete
        # For each value, the program lines (sums) that contain the value, and the value's coefficient in each of these
        # sums.
        self.needed_by: dict[int, list[tuple[int, Coefficient]]] = {v: [] for v in program.outputs}
        for number, terms in enumerate(program.lines, program.inputs):
            for c, source in terms:
                self.needed_by.setdefault(source, []).append((number, c))
        # For each program line (sum), the input that the sum's output overwrites in memory, if no other sum contains
        # this input.
        self.old = {self.needed_by[r][0][0]: r for _, r in aliases if len(self.needed_by.get(r, ())) == 1}

    @property
    def inputs_not_overwritten(self) -> list[int]:
        """The inputs that can be loaded in any order.

        The inputs in `old`, which outputs overwrite, are always loaded last.
        """
        return [v for v in range(self.program.inputs) if v not in self.old.values()]

    def ordered_statements(self) -> tuple[SumStatement, ...]:
        """Return all statements of the program, ordered so that each value is added to its sums as soon as possible."""
        for number, terms in enumerate(self.program.lines, self.program.inputs):
            if not terms:
                self.events.append(SumStatement("start", number))
                self._store_and_forward_value(number)
        for value in (*self.order, *range(self.program.inputs)):
            if value in self.needed_by and value not in self.finished:
                self._load_value(value)
                self._store_and_forward_value(value)
        return tuple(self.events)

    def _load_value(self, value: int) -> None:
        """Append the load of an input, unless the input is loaded already."""
        if value not in self.loaded:
            self.loaded.add(value)
            self.events.append(SumStatement("load", value))

    def _store_and_forward_value(self, value: int) -> None:
        """Append the stores of a complete value, and the additions of the value to all sums that contain it."""
        self.finished.add(value)
        for store in _store_statements(self.program, value):
            for read in (r for o, r in self.aliases if o == store.source and r in self.needed_by):
                self._load_value(read)  # load the input before the store overwrites the input's memory
            self.events.append(store)
        for number, c in self.needed_by.get(value, []):
            self.events.append(_term_statement(number, number in self.started, value, c))
            self.started.add(number)
            self.missing[number - self.program.inputs] -= 1
            self._finish_line_if_complete(number)

    def _finish_line_if_complete(self, number: int) -> None:
        """Finish a sum if all its terms are added.

        If only the input that the sum overwrites is missing, load this input first.
        """
        missing, old = self.missing[number - self.program.inputs], self.old.get(number)
        if not missing:
            self._store_and_forward_value(number)
        elif missing == 1 and old is not None and old not in self.finished:
            self._load_value(old)
            self._store_and_forward_value(old)
