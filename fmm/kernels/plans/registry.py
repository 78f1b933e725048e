"""A registry: rows by name, in the order in which they came. Leaves and kinds of levels stand in one each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar


class Named(Protocol):
    """What a registry holds."""

    @property
    def name(self) -> str: ...


Row = TypeVar("Row", bound=Named)
Cached = TypeVar("Cached", bound=Callable[..., Any])


class Registry(Generic[Row]):
    """Rows by name. What was computed from them and kept is forgotten as soon as a row comes or goes."""

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self._rows: dict[str, Row] = {}
        self._caches: list[Callable[[], None]] = []

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __getitem__(self, name: str) -> Row:
        return self._rows[name]

    def add(self, row: Row) -> None:
        """ValueError for a name that is taken: two meanings of one plan would be read from one text."""
        if row.name in self._rows:
            raise ValueError(f"there is a {self.noun} {row.name!r} already")
        self._rows[row.name] = row
        self.forget()

    def remove(self, name: str) -> None:
        del self._rows[name]
        self.forget()

    def forget(self) -> None:
        for clear in self._caches:
            clear()

    def forgets(self, cached: Cached) -> Cached:
        """Decorates a function under lru_cache whose answers depend on the rows."""
        self._caches.append(cached.cache_clear)  # type: ignore[attr-defined]
        return cached
