"""Straight-line programs of additions: the sums of a scheme, with common sums computed once.

Every value of a program has a number. Values 0 to `inputs` - 1 are the inputs of the program. Every line defines the
next value as a linear combination of earlier values. `outputs` lists the numbers of the values that the program
returns. A program is the only description of a scheme's sums: the CPU executes it on panels of matrices, the symbolic
proof executes it on symbols, the cost model counts its lines, and the CUDA generator prints it as source code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

Coefficient = Fraction | int | float | complex
Terms = tuple[tuple[Coefficient, int], ...]  # (coefficient, number of the value) of each term, in the order of addition
Rational = Fraction | int
Matrix = tuple[tuple[Rational, ...], ...]


@dataclass(frozen=True)
class AdditionProgram:
    """A program of linear combinations, without branches; line i (from 0) computes value number `inputs + i`."""

    inputs: int
    lines: tuple[Terms, ...]
    outputs: tuple[int, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for number, terms in enumerate(self.lines, self.inputs):
            if any(source >= number or source < 0 for _, source in terms):
                raise ValueError(f"line {number} reads a value that does not exist yet: {terms}")
        # The hash is computed once: programs are keys of caches, and hashing a long program costs milliseconds.
        object.__setattr__(self, "_hash", hash((self.inputs, self.lines, self.outputs)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def addition_count(self) -> int:
        """Return the number of additions and subtractions.

        A line of t terms counts as t - 1 additions; scalings do not count.
        """
        return sum(max(len(terms) - 1, 0) for terms in self.lines)

    def coefficient_matrix(self) -> tuple[tuple[Coefficient, ...], ...]:
        """Return the matrix of the program's linear map: row o holds the coefficient of each input in output o."""
        rows: list[list[Coefficient]] = [[int(i == j) for j in range(self.inputs)] for i in range(self.inputs)]
        for terms in self.lines:
            rows.append([sum((c * rows[v][j] for c, v in terms), 0) for j in range(self.inputs)])
        return tuple(tuple(rows[v]) for v in self.outputs)


def separate_sums_program(rows: Sequence[Sequence[Coefficient]], inputs: int) -> AdditionProgram:
    """Return a program with one line for each output and no shared sums, as papers print schemes."""
    return _program_with_output_lines(
        [{j: integral_as_int(c) for j, c in enumerate(row) if c} for row in rows], inputs, []
    )


def shared_sums_program(rows: Sequence[Sequence[Coefficient]], inputs: int) -> AdditionProgram:
    """Return a program that computes common sums once, by greedy elimination of the most frequent pair of terms.

    Greedy elimination is deterministic, but does not always find the smallest number of additions. For the shipped
    schemes, greedy elimination finds the numbers of additions of the literature: 15 for Winograd's variant, 18 for
    Strassen's scheme.
    """
    outputs = [{j: integral_as_int(c) for j, c in enumerate(row) if c} for row in rows]
    lines: list[Terms] = []
    while (pair := _most_frequent_pair(outputs)) is not None:
        x, y, ratio = pair
        new = inputs + len(lines)
        lines.append(((1, x), (ratio, y)))
        for terms in outputs:
            if x in terms and y in terms and _coefficient_ratio(terms[y], terms[x]) == ratio:
                terms[new] = terms.pop(x)
                del terms[y]
    return _program_with_output_lines(outputs, inputs, lines)


def _most_frequent_pair(outputs: Sequence[dict[int, Coefficient]]) -> tuple[int, int, Coefficient] | None:
    counts: Counter[tuple[int, int, Coefficient]] = Counter()
    for terms in outputs:
        values = sorted(terms)
        for i, x in enumerate(values):
            for y in values[i + 1 :]:
                counts[x, y, _coefficient_ratio(terms[y], terms[x])] += 1
    repeated = [pair for pair, count in counts.items() if count > 1]
    # If several pairs are equally frequent, take the pair with the lowest numbers, so that a scheme always has the same
    # program.
    return min(repeated, key=lambda pair: (-counts[pair], pair[:2], str(pair[2])), default=None)


def _coefficient_ratio(y: Coefficient, x: Coefficient) -> Coefficient:
    if isinstance(x, int | Fraction) and isinstance(y, int | Fraction):
        return integral_as_int(Fraction(y) / x) if y % x else integral_as_int(y // x)
    return y / x


def integral_as_int(c: Coefficient) -> Coefficient:
    """Return an integral Fraction as an int (faster to hash and compare), and any other coefficient unchanged."""
    return c.numerator if isinstance(c, Fraction) and c.denominator == 1 else c


def _program_with_output_lines(
    outputs: Sequence[dict[int, Coefficient]], inputs: int, lines: Iterable[Terms]
) -> AdditionProgram:
    """Return the complete program: add a line for each output that is neither an input nor the value of a line."""
    done = list(lines)
    names: list[int] = []
    for terms in outputs:
        if len(terms) == 1 and next(iter(terms.values())) == 1:
            names.append(next(iter(terms)))
            continue
        # Positive terms come first: a line that begins with a positive term is computed without a negation.
        ordered = sorted(terms.items(), key=lambda term: (complex(term[1]).real < 0, term[0]))
        done.append(tuple((c, v) for v, c in ordered))
        names.append(inputs + len(done) - 1)
    return AdditionProgram(inputs, tuple(done), tuple(names))


def compose_addition_programs(
    first: Sequence[AdditionProgram], second: Sequence[AdditionProgram], wiring: Sequence[Sequence[tuple[int, int]]]
) -> AdditionProgram:
    """Return one program that runs the programs in `first`, and then those in `second` on the outputs of `first`.

    The result has the inputs of all programs in `first`, and the outputs of all programs in `second`.
    `wiring[j][i] = (p, o)` means that input i of second[j] is output o of first[p].
    """
    total = sum(p.inputs for p in first)
    lines: list[Terms] = []
    firsts: list[list[int]] = []
    start = 0
    for program in first:
        firsts.append(_append_program(program, range(start, start + program.inputs), total, lines))
        start += program.inputs
    outputs: list[int] = []
    for program, wires in zip(second, wiring, strict=True):
        outputs += _append_program(program, [firsts[p][o] for p, o in wires], total, lines)
    return order_lines_by_use(AdditionProgram(total, tuple(lines), tuple(outputs)))


def order_lines_by_use(program: AdditionProgram) -> AdditionProgram:
    """Return the program with every line moved directly before the first line that uses its value.

    In this order, fewer values must be in memory at the same time.
    """
    rename = {v: v for v in range(program.inputs)}
    lines: list[Terms] = []

    def append_line_with_inputs(value: int) -> None:
        if value not in rename:
            terms = program.lines[value - program.inputs]
            for _, source in terms:
                append_line_with_inputs(source)
            lines.append(tuple((c, rename[v]) for c, v in terms))
            rename[value] = program.inputs + len(lines) - 1

    for value in program.outputs:
        append_line_with_inputs(value)
    return AdditionProgram(program.inputs, tuple(lines), tuple(rename[v] for v in program.outputs))


def _append_program(program: AdditionProgram, values: Sequence[int], total: int, lines: list[Terms]) -> list[int]:
    """Append a program's lines to `lines`, with the value numbers `values` as its inputs; return its output numbers."""
    names = list(values)
    for terms in program.lines:
        lines.append(tuple((c, names[v]) for c, v in terms))
        names.append(total + len(lines) - 1)
    return [names[v] for v in program.outputs]


def renumber_inputs(program: AdditionProgram, order: Sequence[int]) -> AdditionProgram:
    """Return the program with renumbered inputs: input i becomes input order[i]."""
    rename = [*order, *range(program.inputs, program.inputs + len(program.lines))]
    lines = tuple(tuple((c, rename[v]) for c, v in terms) for terms in program.lines)
    return AdditionProgram(program.inputs, lines, tuple(rename[v] for v in program.outputs))


def program_with_alpha_beta(program: AdditionProgram, alpha: Coefficient, beta: Coefficient) -> AdditionProgram:
    """Return the program that computes alpha * output + beta * old for each output of `program`.

    If beta is not 0, the returned program has one more input for each output: the output's old value. For example, if
    `program` computes the blocks of A B from products, the returned program computes C = alpha A B + beta C.
    """
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


def pruned_program(program: AdditionProgram, present: Sequence[bool], wanted: Sequence[bool]) -> AdditionProgram:
    """Return the program in which absent inputs are zero; unwanted outputs and unused lines are removed.

    Every input keeps its number, so the caller's list of arrays stays valid. A line without terms defines an output
    that becomes zero.
    """
    zero = {v for v in range(program.inputs) if not present[v]}
    lines: list[Terms] = []
    for number, terms in enumerate(program.lines, program.inputs):
        present_terms = tuple((c, v) for c, v in terms if v not in zero)
        lines.append(present_terms)
        if not present_terms:
            zero.add(number)
    outputs = [v for v, want in zip(program.outputs, wanted, strict=True) if want]
    return _remove_unused_lines(program.inputs, lines, outputs, zero)


def _remove_unused_lines(
    inputs: int, lines: Sequence[Terms], outputs: Sequence[int], zero: set[int]
) -> AdditionProgram:
    """Return the program of these lines, without the lines that no output depends on."""
    needed = {v for v in outputs if v not in zero}
    for number in range(inputs + len(lines) - 1, inputs - 1, -1):
        if number in needed:
            needed |= {v for _, v in lines[number - inputs]}
    rename = {v: v for v in range(inputs)}
    pruned: list[Terms] = []
    for number, terms in enumerate(lines, inputs):
        if number in needed:
            rename[number] = inputs + len(pruned)
            pruned.append(tuple((c, rename[v]) for c, v in terms))
    names = []
    for v in outputs:
        if v in zero:
            pruned.append(())
        names.append(inputs + len(pruned) - 1 if v in zero else rename[v])
    return AdditionProgram(inputs, tuple(pruned), tuple(names))
