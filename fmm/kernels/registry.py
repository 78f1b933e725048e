"""Registries of leaves, of kinds of levels, and of users' algorithms.

A registry holds objects with names (its rows) in the order of registration. Some cached results depend on the
registered rows: parsed plans, the steps of plans, and the plans chosen for problems. Every registration clears these
cached results. Registrations happen when a program starts, or in a test, so the time to fill the caches again does not
matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar


class NamedRow(Protocol):
    """Interface of a registry's row: an object with a name."""

    @property
    def name(self) -> str: ...


RowT = TypeVar("RowT", bound=NamedRow)
CachedFunctionT = TypeVar("CachedFunctionT", bound=Callable[..., Any])

_CACHE_CLEARERS: list[Callable[[], None]] = []


def clear_on_registration(cached: CachedFunctionT) -> CachedFunctionT:
    """Mark a cached function whose results depend on registered rows: every registration clears its cache."""
    _CACHE_CLEARERS.append(cached.cache_clear)  # type: ignore[attr-defined]
    return cached


def clear_caches() -> None:
    """Clear every cache that depends on registered rows."""
    for clear in _CACHE_CLEARERS:
        clear()


class RowRegistry(Generic[RowT]):
    """A dict from names to rows, in the order of registration."""

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self._rows: dict[str, RowT] = {}

    def __iter__(self) -> Iterator[RowT]:
        return iter(tuple(self._rows.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __getitem__(self, name: str) -> RowT:
        return self._rows[name]

    def add(self, row: RowT) -> None:
        """Add a row; raise ValueError if another row has the same name, because names in plan texts must be unique."""
        if row.name in self._rows:
            raise ValueError(f"there is a {self.noun} {row.name!r} already")
        self._rows[row.name] = row
        clear_caches()

    def remove(self, name: str) -> None:
        """Remove the row with this name."""
        del self._rows[name]
        clear_caches()
