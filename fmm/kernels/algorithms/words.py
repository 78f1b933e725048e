"""Sets of words over letters that do not commute: what a program over a closed semiring computes, and whether two
programs compute the same.

What holds of such sets (with union, concatenation and repetition) holds in every closed semiring whose addition is
idempotent, and of matrices over it. Sets are compared by derivatives: what may follow a word's first letter (Brzozowski
1964, Antimirov 1996), of which a set has finitely many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache


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
