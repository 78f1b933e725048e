"""Straight-line programs of additions: how a scheme's sums are formed, each shared sum once.

A program reads `inputs` values, numbered 0, 1, ...; every line defines the next number as a linear combination of
earlier ones; `outputs` names the numbers that are the result. A CPU runs it on panels, the counters count its
lines, the symbolic proof runs it on symbols, and the CUDA generator prints it: nobody keeps a second description.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

Coefficient = Fraction | int | float | complex
Terms = tuple[tuple[Coefficient, int], ...]  # (coefficient, value) in the order they are added
Rational = Fraction | int
Matrix = tuple[tuple[Rational, ...], ...]


@dataclass(frozen=True)
class AdditionProgram:
    """Lines of a linear straight-line program; value `inputs + i` is what line i defines."""

    inputs: int
    lines: tuple[Terms, ...]
    outputs: tuple[int, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for number, terms in enumerate(self.lines, self.inputs):
            if any(source >= number or source < 0 for _, source in terms):
                raise ValueError(f"line {number} reads a value that does not exist yet: {terms}")
        # Programs are keys of caches, and hashing a long one on every call would cost milliseconds.
        object.__setattr__(self, "_hash", hash((self.inputs, self.lines, self.outputs)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def additions(self) -> int:
        """Additions and subtractions, one less than the terms of each line (scalings are not counted)."""
        return sum(max(len(terms) - 1, 0) for terms in self.lines)

    def matrix(self) -> tuple[tuple[Coefficient, ...], ...]:
        """The outputs as rows of coefficients over the inputs: what the program computes."""
        rows: list[list[Coefficient]] = [[int(i == j) for j in range(self.inputs)] for i in range(self.inputs)]
        for terms in self.lines:
            rows.append([sum((c * rows[v][j] for c, v in terms), 0) for j in range(self.inputs)])
        return tuple(tuple(rows[v]) for v in self.outputs)


def separate_sums(rows: Sequence[Sequence[Coefficient]], inputs: int) -> AdditionProgram:
    """One line per output, nothing shared: the additions as a paper's equations print them."""
    return _emit([{j: as_int(c) for j, c in enumerate(row) if c} for row in rows], inputs, [])


def shared_sums(rows: Sequence[Sequence[Coefficient]], inputs: int) -> AdditionProgram:
    """The same outputs with common sums formed once: repeatedly the pair that occurs most often (greedy).

    Greedy pair elimination is not optimal in general, but it finds the known counts of the shipped schemes (15 for
    Winograd's variant, 18 for Strassen's), and it is deterministic.
    """
    outputs = [{j: as_int(c) for j, c in enumerate(row) if c} for row in rows]
    lines: list[Terms] = []
    while (pair := _commonest_pair(outputs)) is not None:
        x, y, ratio = pair
        new = inputs + len(lines)
        lines.append(((1, x), (ratio, y)))
        for terms in outputs:
            if x in terms and y in terms and _ratio(terms[y], terms[x]) == ratio:
                terms[new] = terms.pop(x)
                del terms[y]
    return _emit(outputs, inputs, lines)


def _commonest_pair(outputs: Sequence[dict[int, Coefficient]]) -> tuple[int, int, Coefficient] | None:
    counts: Counter[tuple[int, int, Coefficient]] = Counter()
    for terms in outputs:
        values = sorted(terms)
        for i, x in enumerate(values):
            for y in values[i + 1 :]:
                counts[x, y, _ratio(terms[y], terms[x])] += 1
    repeated = [pair for pair, count in counts.items() if count > 1]
    # Ties: the lowest numbers first, so that a file always gives the same program.
    return min(repeated, key=lambda pair: (-counts[pair], pair[:2], str(pair[2])), default=None)


def _ratio(y: Coefficient, x: Coefficient) -> Coefficient:
    if isinstance(x, int | Fraction) and isinstance(y, int | Fraction):
        return as_int(Fraction(y) / x) if y % x else as_int(y // x)
    return y / x


def as_int(c: Coefficient) -> Coefficient:
    """The same number, as an int if it is one: programs are hashed and compared often, and ints are quick at that."""
    return c.numerator if isinstance(c, Fraction) and c.denominator == 1 else c


def _emit(outputs: Sequence[dict[int, Coefficient]], inputs: int, lines: Iterable[Terms]) -> AdditionProgram:
    """Close a program: an output that is just a value with coefficient one names it, any other gets a line."""
    done = list(lines)
    names: list[int] = []
    for terms in outputs:
        if len(terms) == 1 and next(iter(terms.values())) == 1:
            names.append(next(iter(terms)))
            continue
        # A positive first term saves a negation when the line is run.
        ordered = sorted(terms.items(), key=lambda term: (complex(term[1]).real < 0, term[0]))
        done.append(tuple((c, v) for v, c in ordered))
        names.append(inputs + len(done) - 1)
    return AdditionProgram(inputs, tuple(done), tuple(names))


def chained_programs(
    first: Sequence[AdditionProgram], then: Sequence[AdditionProgram], wiring: Sequence[Sequence[tuple[int, int]]]
) -> AdditionProgram:
    """Run the programs of `first` side by side, then those of `then`, whose inputs `wiring` takes from the first.

    The inputs of the chain are those of `first` in turn; its outputs are those of `then` in turn.
    `wiring[j][i] = (p, o)`: input i of then[j] is output o of first[p].
    """
    total = sum(p.inputs for p in first)
    lines: list[Terms] = []
    firsts: list[list[int]] = []
    start = 0
    for program in first:
        firsts.append(_inline(program, range(start, start + program.inputs), total, lines))
        start += program.inputs
    outputs: list[int] = []
    for program, wires in zip(then, wiring, strict=True):
        outputs += _inline(program, [firsts[p][o] for p, o in wires], total, lines)
    return by_demand(AdditionProgram(total, tuple(lines), tuple(outputs)))


def by_demand(program: AdditionProgram) -> AdditionProgram:
    """The same lines, each as late as its first use allows: fewer values are alive at a time."""
    rename = {v: v for v in range(program.inputs)}
    lines: list[Terms] = []

    def emit(value: int) -> None:
        if value not in rename:
            terms = program.lines[value - program.inputs]
            for _, source in terms:
                emit(source)
            lines.append(tuple((c, rename[v]) for c, v in terms))
            rename[value] = program.inputs + len(lines) - 1

    for value in program.outputs:
        emit(value)
    return AdditionProgram(program.inputs, tuple(lines), tuple(rename[v] for v in program.outputs))


def _inline(program: AdditionProgram, values: Sequence[int], total: int, lines: list[Terms]) -> list[int]:
    """Append a program's lines, reading `values` for its inputs; return the numbers of its outputs."""
    names = list(values)
    for terms in program.lines:
        lines.append(tuple((c, names[v]) for c, v in terms))
        names.append(total + len(lines) - 1)
    return [names[v] for v in program.outputs]


def renumbered_inputs(program: AdditionProgram, order: Sequence[int]) -> AdditionProgram:
    """The same program with its inputs renumbered: input i becomes input order[i]."""
    rename = [*order, *range(program.inputs, program.inputs + len(program.lines))]
    lines = tuple(tuple((c, rename[v]) for c, v in terms) for terms in program.lines)
    return AdditionProgram(program.inputs, lines, tuple(rename[v] for v in program.outputs))


def updating_program(program: AdditionProgram, alpha: Coefficient, beta: Coefficient) -> AdditionProgram:
    """The program whose outputs are alpha * old output + beta * one further input each (for C = alpha AB + beta C)."""
    if (alpha, beta) == (1, 0):
        return program
    extra = len(program.outputs) if beta else 0
    shift = [v if v < program.inputs else v + extra for v in range(program.inputs + len(program.lines))]
    lines = [tuple((c, shift[v]) for c, v in terms) for terms in program.lines]
    inputs = program.inputs + extra
    outputs = []
    for o, value in enumerate(program.outputs):
        update: list[tuple[Coefficient, int]] = [(alpha, shift[value])] if alpha else []
        lines.append(tuple(update + ([(beta, program.inputs + o)] if beta else [])))
        outputs.append(inputs + len(lines) - 1)
    return AdditionProgram(inputs, tuple(lines), tuple(outputs))


def restricted_program(program: AdditionProgram, present: Sequence[bool], wanted: Sequence[bool]) -> AdditionProgram:
    """The program with absent inputs taken as zero and unwanted outputs dropped; lines nobody needs go.

    Inputs keep their numbers, so the caller's arrays stay where they are. An output that is zero gets an empty line.
    """
    zero = {v for v in range(program.inputs) if not present[v]}
    kept: list[Terms] = []
    for number, terms in enumerate(program.lines, program.inputs):
        left = tuple((c, v) for c, v in terms if v not in zero)
        kept.append(left)
        if not left:
            zero.add(number)
    outputs = [v for v, want in zip(program.outputs, wanted, strict=True) if want]
    return _prune(program.inputs, kept, outputs, zero)


def _prune(inputs: int, lines: Sequence[Terms], outputs: Sequence[int], zero: set[int]) -> AdditionProgram:
    needed = {v for v in outputs if v not in zero}
    for number in range(inputs + len(lines) - 1, inputs - 1, -1):
        if number in needed:
            needed |= {v for _, v in lines[number - inputs]}
    rename = {v: v for v in range(inputs)}
    kept: list[Terms] = []
    for number, terms in enumerate(lines, inputs):
        if number in needed:
            rename[number] = inputs + len(kept)
            kept.append(tuple((c, rename[v]) for c, v in terms))
    names = []
    for v in outputs:
        if v in zero:
            kept.append(())
        names.append(inputs + len(kept) - 1 if v in zero else rename[v])
    return AdditionProgram(inputs, tuple(kept), tuple(names))
