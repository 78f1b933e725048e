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

    Two of the three orders that are compared complete one sum after the other. These orders suit the sums before
    products: the few inputs are loaded first, and each of the many outputs is stored as soon as it is complete. The
    third order adds each input to all its sums as soon as the input is loaded. This order suits the sums after
    products, because each product is loaded once. In the sums after the products of strassen^3, at most 85 values are
    live at a time if the products are loaded in their original order, and at most 43 if they are loaded in the order
    that `_search_input_orders` finds.
    """
    orders = (
        _line_by_line_order(program),
        _line_by_line_order(order_lines_by_use(program)),
        _search_input_orders(program, aliases),
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


def _search_input_orders(program: AdditionProgram, aliases: AliasPairs) -> tuple[SumStatement, ...]:
    """Search orders of the inputs, and return the statement order with the fewest live values.

    Each input is added to all its sums as soon as the input is loaded, so the order of the inputs determines the number
    of live values. The index of each input is written with several digits. The bases of these digits are the prime
    factors of the number of inputs, in increasing or decreasing order. Each trial exchanges two digit values, for
    example 3 and 5 in base 7, in the indices of all inputs. In strassen^2, product 5 of outer product 3 has the digits
    3 and 5 in base 7. An exchange therefore reorders Strassen's seven products in the same way in both levels.
    """
    free = _ImmediateAdditionScheduler(program, aliases).inputs_not_overwritten
    factors = _prime_factors(len(free))
    systems = dict.fromkeys((tuple(factors), tuple(reversed(factors))))
    return min(
        (_best_order_by_digit_swaps(program, aliases, free, system) for system in systems), key=_register_pressure
    )


def _best_order_by_digit_swaps(
    program: AdditionProgram, aliases: AliasPairs, free: Sequence[int], system: Sequence[int]
) -> tuple[SumStatement, ...]:
    """Return the best statement order that repeated exchanges of two digits in the inputs' indices lead to.

    The inputs in `free` may be loaded in any order. `system` lists the base of each digit of an input's index. The
    search ends when no exchange lowers the register pressure.
    """
    digits = {radix: tuple(range(radix)) for radix in system}
    best = _ImmediateAdditionScheduler(program, aliases, _sort_by_digits(free, system, digits)).ordered_statements()
    swaps = sum(1 for _ in _digit_orders_with_one_swap(digits))
    for _ in range(min(MAX_TRIED_ORDERS, MAX_ORDERED_INPUTS // program.inputs) // swaps if swaps else 0):
        trials = [
            (_ImmediateAdditionScheduler(program, aliases, _sort_by_digits(free, system, d)).ordered_statements(), d)
            for d in _digit_orders_with_one_swap(digits)
        ]
        events, trial = min(trials, key=lambda x: _register_pressure(x[0]))
        if _register_pressure(events) >= _register_pressure(best):
            break
        best, digits = events, trial
    return best


def _digit_orders_with_one_swap(digits: dict[int, tuple[int, ...]]) -> Iterator[dict[int, tuple[int, ...]]]:
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
    """Return the values sorted by the first digit of their index, then by the second digit, and so on.

    `system` lists the base of each digit, which can differ from digit to digit. `digits[base]` lists the numbers 0 to
    base - 1 in the order in which digits of this base are sorted.
    """
    order = [0]
    for radix in system:
        order = [radix * n + digit for n in order for digit in digits[radix]]
    return [values[n] for n in order if n < len(values)]


class _ImmediateAdditionScheduler:
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
        # For each value, pairs: the number of a sum with this value as a term, and the term's coefficient.
        self.needed_by: dict[int, list[tuple[int, Coefficient]]] = {v: [] for v in program.outputs}
        for number, terms in enumerate(program.lines, program.inputs):
            for c, source in terms:
                self.needed_by.setdefault(source, []).append((number, c))
        # For the number of a sum, the input that occurs in this sum alone and that an output overwrites in memory.
        self.old = {self.needed_by[r][0][0]: r for _, r in aliases if len(self.needed_by.get(r, ())) == 1}

    @property
    def inputs_not_overwritten(self) -> list[int]:
        """The inputs that can be loaded in any order.

        An input that occurs in one sum only, and that an output overwrites, is loaded last.
        """
        return [v for v in range(self.program.inputs) if v not in self.old.values()]

    def ordered_statements(self) -> tuple[SumStatement, ...]:
        """Return all statements of the program, ordered so that each value is added to its sums as soon as possible."""
        for number, terms in enumerate(self.program.lines, self.program.inputs):
            if not terms:
                self.events.append(SumStatement("start", number))
                self._append_stores_and_additions(number)
        for value in (*self.order, *range(self.program.inputs)):
            if value in self.needed_by and value not in self.finished:
                self._load_value(value)
                self._append_stores_and_additions(value)
        return tuple(self.events)

    def _load_value(self, value: int) -> None:
        """Append the load of an input, unless the input is loaded already."""
        if value not in self.loaded:
            self.loaded.add(value)
            self.events.append(SumStatement("load", value))

    def _append_stores_and_additions(self, value: int) -> None:
        """Append the stores of a complete value, then the additions of this value to other sums."""
        self.finished.add(value)
        for store in _store_statements(self.program, value):
            for read in (r for o, r in self.aliases if o == store.source and r in self.needed_by):
                self._load_value(read)  # load the input before the store overwrites the input's memory
            self.events.append(store)
        for number, c in self.needed_by.get(value, []):
            self.events.append(_term_statement(number, number in self.started, value, c))
            self.started.add(number)
            self.missing[number - self.program.inputs] -= 1
            self._finish_sum_if_complete(number)

    def _finish_sum_if_complete(self, number: int) -> None:
        """Append the stores and the uses of a sum if all terms of the sum are added.

        If the only term that is not added yet is an input that an output overwrites, load and add this input now.
        """
        missing, old = self.missing[number - self.program.inputs], self.old.get(number)
        if not missing:
            self._append_stores_and_additions(number)
        elif missing == 1 and old is not None and old not in self.finished:
            self._load_value(old)
            self._append_stores_and_additions(old)
