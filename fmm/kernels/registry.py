"""Registries: rows by name, in the order in which they came. Leaves, kinds of levels and users' own algorithms.

Much of what is computed from rows is kept: a text's plan, a plan's steps, what is chosen for a problem. When a row
comes or goes, all of that is forgotten at once: it happens when a program starts, or in a test, and never where it
matters how long it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar


class Named(Protocol):
    """What a registry holds."""

    @property
    def name(self) -> str: ...


Row = TypeVar("Row", bound=Named)
Cached = TypeVar("Cached", bound=Callable[..., Any])

_FORGET: list[Callable[[], None]] = []


def depends_on_rows(cached: Cached) -> Cached:
    """Decorates a function under lru_cache whose answers depend on what is registered."""
    _FORGET.append(cached.cache_clear)  # type: ignore[attr-defined]
    return cached


def forget_everything() -> None:
    """Everything that was kept."""
    for clear in _FORGET:
        clear()


class Registry(Generic[Row]):
    """Rows by name."""

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self._rows: dict[str, Row] = {}

    def __iter__(self) -> Iterator[Row]:
        return iter(tuple(self._rows.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __getitem__(self, name: str) -> Row:
        return self._rows[name]

    def add(self, row: Row) -> None:
        """ValueError for a name that is taken: one text would have two meanings."""
        if row.name in self._rows:
            raise ValueError(f"there is a {self.noun} {row.name!r} already")
        self._rows[row.name] = row
        forget_everything()

    def remove(self, name: str) -> None:
        del self._rows[name]
        forget_everything()
