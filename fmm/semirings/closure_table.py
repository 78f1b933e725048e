"""Closure tables: text files with the block operations that compute the closure D* of a matrix D over a semiring.

D* is the sum of all powers of D. Over (min, +), the entries of D are edge lengths, and D* holds the lengths of all
shortest paths. A closure table cuts D into 2 x 2 blocks. A step of the table is either `close` (the closure of a
diagonal block) or a kernel from step_tables/kernels.txt without subtractions.

A proof checks each closure table when the table is read. The proof treats blocks as letters that do not commute, and
the result of a step as a set of words over these letters. Cutting D divides the nodes of the graph into two halves:
block (i, j) of D has the edges from half i to half j. The set of words computed for block (i, j) of D* must be the set
of all walks from half i to half j. The proof holds for every closed semiring with idempotent addition and for blocks of
any size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Final, NamedTuple

from fmm.kernels.algorithms.step_table import (
    PRODUCT_SYMBOL,
    StepTableError,
    TableKernelCall,
    TableStep,
    parse_table_lines,
    step_from_kernel_call,
)

CLOSURE_TABLE_FOLDER: Final = resources.files("fmm.semirings") / "closure_tables"
HEADER_FIELDS = ("name", "source", "blocks", "temps")
# For each of the four blocks of D: the half of the graph's nodes (0 or 1) where the block's edges begin, and the half
# where the edges end.
CUT_SIDES_OF_BLOCKS = ((0, 0), (0, 1), (1, 0), (1, 1))


class CloseStep(NamedTuple):
    """The step that replaces a diagonal block by its closure."""

    place: str

    def __str__(self) -> str:
        return f"close({self.place})"


@dataclass(frozen=True)
class ClosureTable:
    """A named sequence of steps that replaces the four blocks of D by the four blocks of D*."""

    name: str
    source: str
    blocks: tuple[str, ...]
    temporaries: tuple[str, ...]
    steps: tuple[TableStep | CloseStep, ...]

    @property
    def product_count(self) -> int:
        return sum(1 for step in self.steps if isinstance(step, TableStep))


@lru_cache(maxsize=8)
def closure_table(name: str = "r-kleene") -> ClosureTable:
    """Read and prove the closure table of this name; raise StepTableError if the table is missing or wrong."""
    names = sorted(file.name.removesuffix(".txt") for file in CLOSURE_TABLE_FOLDER.iterdir())
    if name not in names:
        raise StepTableError(f"unknown closure table {name!r}; valid: {', '.join(names)}")
    table = parse_closure_table((CLOSURE_TABLE_FOLDER / f"{name}.txt").read_text(encoding="utf-8"), f"{name}.txt")
    if (defect := closure_error(table)) is not None:
        raise StepTableError(f"{name}.txt does not compute the closure: {defect}")
    return table


# ---- reading


def parse_closure_table(text: str, origin: str = "closure table") -> ClosureTable:
    """Parse the text of a closure table; raise StepTableError, with the file and the line, if the text is wrong."""
    head, calls = parse_table_lines(text, origin, HEADER_FIELDS)
    blocks, temporaries = tuple(head["blocks"].split()), tuple(head["temps"].split())
    if len(blocks) != len(CUT_SIDES_OF_BLOCKS) or len({*blocks, *temporaries}) < len(blocks) + len(temporaries):
        raise StepTableError(f"{origin}: four blocks and the temporaries must have distinct names")
    return ClosureTable(head["name"], head["source"], blocks, temporaries, tuple(map(_parse_table_step, calls)))


def _parse_table_step(call: TableKernelCall) -> TableStep | CloseStep:
    if call.name == "close" and len(call.places) == 1:
        return CloseStep(call.places[0])
    step, where = step_from_kernel_call(call), call.where
    kernel = step.kernel
    if kernel.product is None or len(kernel.written_blocks) != 1:
        raise StepTableError(f"{where}: {kernel.name} is not one product")
    if any(coefficient != 1 for _, terms in kernel.assignments for coefficient, _ in terms):
        raise StepTableError(f"{where}: {kernel.name} subtracts, which a semiring cannot")
    if step.overwritten_operands:
        raise StepTableError(
            f"{where}: overwrites its operand {', '.join(step.overwritten_operands)} during the product"
        )
    return step


# ---- the proof


def closure_error(table: ClosureTable) -> str | None:
    """Return the table's first error as text; None if the table computes the closure over every closed semiring."""
    values: dict[str, WordSet] = {name: LetterSet(name) for name in table.blocks}
    for step in table.steps:
        places = (step.place,) if isinstance(step, CloseStep) else step.read_blocks
        if unknown := [p for p in places if p not in values]:
            return f"{step} reads {', '.join(unknown)}, which nothing has written"
        if isinstance(step, CloseStep):
            if step.place not in (table.blocks[0], table.blocks[3]):
                return f"{step}: only blocks of the diagonal are square"
            values[step.place] = repetition(values[step.place])
        else:
            values[step.written_blocks[0]] = _words_of_step_result(step, values)
    moves = dict(zip(table.blocks, CUT_SIDES_OF_BLOCKS, strict=True))
    for block, (begin, end) in moves.items():
        if not is_set_of_walks(values[block], moves, begin, end):
            return f"{block} is not the closure's"
    return None


def _words_of_step_result(step: TableStep, values: Mapping[str, WordSet]) -> WordSet:
    left, right = (values[step.blocks_by_formal_parameter[f]] for f in step.kernel.product or ())
    total = EMPTY_SET
    for _, terms in step.kernel.assignments:
        for _, source in terms:
            total = union_of_words(
                total,
                concatenation(left, right)
                if source == PRODUCT_SYMBOL
                else values[step.blocks_by_formal_parameter[source]],
            )
    return total


# ---- sets of words over letters that do not commute
#
# The proof computes with sets of words, by union, concatenation and repetition. If two expressions give the same set of
# words, they are equal in every closed semiring with idempotent addition, and for matrices over this semiring. Two sets
# are compared through their derivatives (Brzozowski 1964, Antimirov 1996). The derivative of a set by a letter has one
# word for each word that begins with this letter: the word without its first letter. The comparison terminates, since a
# set of words has finitely many derivatives.


@dataclass(frozen=True)
class LetterSet:
    """The set of one word that consists of one letter."""

    name: str


@dataclass(frozen=True)
class SymbolicWordSet:
    """The union of several sets of words."""

    parts: frozenset[WordSet]


@dataclass(frozen=True)
class Concatenation:
    """The set of all words that consist of a word of `first` followed by a word of `then`."""

    first: WordSet
    then: WordSet


@dataclass(frozen=True)
class Repetition:
    """The set of all words that consist of zero or more words of `part`."""

    part: WordSet


WordSet = LetterSet | SymbolicWordSet | Concatenation | Repetition
EMPTY_SET: WordSet = SymbolicWordSet(frozenset())
EMPTY_WORD_SET: WordSet = Repetition(EMPTY_SET)  # the set that contains only the word without letters


def union_of_words(x: WordSet, y: WordSet) -> WordSet:
    """Return the union of two sets of words, in normal form."""
    parts = (x.parts if isinstance(x, SymbolicWordSet) else {x}) | (y.parts if isinstance(y, SymbolicWordSet) else {y})
    return next(iter(parts)) if len(parts) == 1 else SymbolicWordSet(frozenset(parts))


def concatenation(x: WordSet, y: WordSet) -> WordSet:
    """Return the concatenation of two sets of words, in normal form."""
    if EMPTY_SET in (x, y):
        return EMPTY_SET
    return y if x == EMPTY_WORD_SET else x if y == EMPTY_WORD_SET else Concatenation(x, y)


def repetition(x: WordSet) -> WordSet:
    """Return the repetition of a set of words, in normal form."""
    return x if isinstance(x, Repetition) else Repetition(x)


def has_empty_word(x: WordSet) -> bool:
    """Return True if the set of words contains the word without letters."""
    if isinstance(x, SymbolicWordSet):
        return any(has_empty_word(part) for part in x.parts)
    if isinstance(x, Concatenation):
        return has_empty_word(x.first) and has_empty_word(x.then)
    return isinstance(x, Repetition)


@lru_cache(maxsize=4096)
def letter_derivatives(x: WordSet, letter: str) -> frozenset[WordSet]:
    """Return sets of words; the union of these sets is the derivative of x by `letter`."""
    if isinstance(x, LetterSet):
        return frozenset([EMPTY_WORD_SET] if x.name == letter else [])
    if isinstance(x, SymbolicWordSet):
        return frozenset(y for part in x.parts for y in letter_derivatives(part, letter))
    if isinstance(x, Repetition):
        return frozenset(concatenation(y, x) for y in letter_derivatives(x.part, letter))
    rest = frozenset(concatenation(y, x.then) for y in letter_derivatives(x.first, letter))
    return rest | letter_derivatives(x.then, letter) if has_empty_word(x.first) else rest


def is_set_of_walks(x: WordSet, moves: Mapping[str, tuple[int, int]], begin: int, end: int) -> bool:
    """Return True if x is the set of all walks from vertex `begin` to vertex `end`, where each letter is an edge."""
    # After a sequence of letters, the state is the sets of words that may follow, and the vertex that the walk along
    # the letters has reached (None if the letters are no walk).
    state: tuple[frozenset[WordSet], int | None] = (frozenset([x]), begin)
    seen, waiting = {state}, [state]
    while waiting:
        rest, vertex = waiting.pop()
        if any(has_empty_word(y) for y in rest) != (vertex == end):
            return False
        for letter, (start, stop) in moves.items():
            following = frozenset(z for y in rest for z in letter_derivatives(y, letter))
            state = following, stop if vertex == start else None
            if state not in seen:
                seen.add(state)
                waiting.append(state)
    return True
