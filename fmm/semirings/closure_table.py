"""Closure tables: orders of operations that compute D* = 1 + D + D D + ... over a semiring, as data.

Over (min, +), where a number of D is the length of an edge, D* holds the lengths of all shortest paths. A table cuts D
into two by two blocks and calls `close` (on blocks of the diagonal, which are smaller problems of the same kind) and
those kernels of step_tables/kernels.txt that subtract nothing. A table is proved when it is read: its blocks are
letters that do not commute, its results sets of words, and these must be the words that are walks between the blocks'
sides. So it holds in every closed semiring, and for blocks of any sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Final, NamedTuple

from fmm.kernels.algorithms.step_table import PRODUCT, Step, StepError, TableCall, kernel_step, table_text

FOLDER: Final = resources.files("fmm.semirings") / "closure_tables"
HEAD = ("name", "source", "blocks", "temps")
# The blocks, in this order: from which side of the cut to which one they lead.
SIDES = ((0, 0), (0, 1), (1, 0), (1, 1))


class Close(NamedTuple):
    """A block of the diagonal becomes its own closure."""

    place: str

    def __str__(self) -> str:
        return f"close({self.place})"


@dataclass(frozen=True)
class ClosureTable:
    """A named sequence of steps that turns D, in its four blocks, into D*."""

    name: str
    source: str
    blocks: tuple[str, ...]
    temporaries: tuple[str, ...]
    steps: tuple[Step | Close, ...]

    @property
    def products(self) -> int:
        return sum(1 for step in self.steps if isinstance(step, Step))


def parse_closure_table(text: str, origin: str = "closure table") -> ClosureTable:
    """A closure table from its text form; StepError names the file and the line."""
    head, calls = table_text(text, origin, HEAD)
    blocks, temporaries = tuple(head["blocks"].split()), tuple(head["temps"].split())
    if len(blocks) != len(SIDES) or len({*blocks, *temporaries}) < len(blocks) + len(temporaries):
        raise StepError(f"{origin}: four blocks and the temporaries must have names of their own")
    return ClosureTable(head["name"], head["source"], blocks, temporaries, tuple(map(_step, calls)))


def _step(call: TableCall) -> Step | Close:
    if call.name == "close" and len(call.places) == 1:
        return Close(call.places[0])
    step, where = kernel_step(call), call.where
    kernel = step.kernel
    if kernel.product is None or len(kernel.writes) != 1:
        raise StepError(f"{where}: {kernel.name} is not one product")
    if any(coefficient != 1 for _, terms in kernel.assignments for coefficient, _ in terms):
        raise StepError(f"{where}: {kernel.name} subtracts, which a semiring cannot")
    if step.overwritten_operands:
        raise StepError(f"{where}: overwrites its operand {', '.join(step.overwritten_operands)} during the product")
    return step


# ---- the proof


def closure_defect(table: ClosureTable) -> str | None:
    """What is wrong with the table; None if it computes the closure of every matrix over every closed semiring."""
    held: dict[str, Words] = {name: Letter(name) for name in table.blocks}
    for step in table.steps:
        places = (step.place,) if isinstance(step, Close) else step.reads
        if unknown := [p for p in places if p not in held]:
            return f"{step} reads {', '.join(unknown)}, which nothing has written"
        if isinstance(step, Close):
            if step.place not in (table.blocks[0], table.blocks[3]):
                return f"{step}: only blocks of the diagonal are square"
            held[step.place] = repeated(held[step.place])
        else:
            held[step.writes[0]] = _written(step, held)
    moves = dict(zip(table.blocks, SIDES, strict=True))
    for block, (begin, end) in moves.items():
        if not same_walks(held[block], moves, begin, end):
            return f"{block} is not the closure's"
    return None


def _written(step: Step, held: Mapping[str, Words]) -> Words:
    left, right = (held[step.bound[f]] for f in step.kernel.product or ())
    found = EMPTY
    for _, terms in step.kernel.assignments:
        for _, source in terms:
            found = either(found, both(left, right) if source == PRODUCT else held[step.bound[source]])
    return found


@lru_cache(maxsize=8)
def closure_table(name: str = "r-kleene") -> ClosureTable:
    """A closure table by name, proved."""
    names = sorted(file.name.removesuffix(".txt") for file in FOLDER.iterdir())
    if name not in names:
        raise StepError(f"unknown closure table {name!r}; valid: {', '.join(names)}")
    table = parse_closure_table((FOLDER / f"{name}.txt").read_text(encoding="utf-8"), f"{name}.txt")
    if (defect := closure_defect(table)) is not None:
        raise StepError(f"{name}.txt does not compute the closure: {defect}")
    return table


@dataclass(frozen=True)
class Letter:
    name: str


@dataclass(frozen=True)
class Either:
    parts: frozenset[Words]


@dataclass(frozen=True)
class Both:
    first: Words
    then: Words


@dataclass(frozen=True)
class Repeated:
    part: Words


Words = Letter | Either | Both | Repeated
EMPTY: Words = Either(frozenset())
ONE: Words = Repeated(EMPTY)  # the word without letters


def either(x: Words, y: Words) -> Words:
    parts = (x.parts if isinstance(x, Either) else {x}) | (y.parts if isinstance(y, Either) else {y})
    return next(iter(parts)) if len(parts) == 1 else Either(frozenset(parts))


def both(x: Words, y: Words) -> Words:
    if EMPTY in (x, y):
        return EMPTY
    return y if x == ONE else x if y == ONE else Both(x, y)


def repeated(x: Words) -> Words:
    return x if isinstance(x, Repeated) else Repeated(x)


def has_empty_word(x: Words) -> bool:
    """Is the word without letters one of them?"""
    if isinstance(x, Either):
        return any(has_empty_word(part) for part in x.parts)
    if isinstance(x, Both):
        return has_empty_word(x.first) and has_empty_word(x.then)
    return isinstance(x, Repeated)


@lru_cache(maxsize=4096)
def after(x: Words, letter: str) -> frozenset[Words]:
    """What may follow `letter` at the beginning of a word: sets whose union it is."""
    if isinstance(x, Letter):
        return frozenset([ONE] if x.name == letter else [])
    if isinstance(x, Either):
        return frozenset(y for part in x.parts for y in after(part, letter))
    if isinstance(x, Repeated):
        return frozenset(both(y, x) for y in after(x.part, letter))
    found = frozenset(both(y, x.then) for y in after(x.first, letter))
    return found | after(x.then, letter) if has_empty_word(x.first) else found


def same_walks(x: Words, moves: Mapping[str, tuple[int, int]], begin: int, end: int) -> bool:
    """Are these just the walks from `begin` to `end`? Each letter is a move from one place to another."""
    state: tuple[frozenset[Words], int | None] = (frozenset([x]), begin)  # what may follow, and where a walk stands
    seen, waiting = {state}, [state]
    while waiting:
        rest, place = waiting.pop()
        if any(has_empty_word(y) for y in rest) != (place == end):
            return False
        for letter, (start, stop) in moves.items():
            follows = frozenset(z for y in rest for z in after(y, letter))
            state = follows, stop if place == start else None
            if state not in seen:
                seen.add(state)
                waiting.append(state)
    return True
