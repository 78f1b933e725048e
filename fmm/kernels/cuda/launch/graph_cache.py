"""Replays: calls that recur are captured, and from then on replayed as a whole.

This module knows nothing of graphs: `make` captures a call, and whatever it returns is kept and handed out. What is
kept holds no memory of the call's. What it depends on is compared at each call, so it does not matter what became of it
in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final

REPEATS = 3  # the call at which capturing pays: twice could be a chance, and it takes as long as some calls
CAPTURES = 64  # captured calls that are kept in all
COUNTED = 64  # keys of one call that are counted or captured
_NOT_CAPTURED: Final = object()


class GraphCache:
    """Keeps so many captured calls, of all threads; the oldest goes first.

    There is no lock, which an exception at the wrong moment might leave shut: each step is one of C's, and whatever
    comes between two of them leaves at most a call that is not found again.
    """

    def __init__(self, limit: int = CAPTURES) -> None:
        self.limit, self.repeats = limit, REPEATS
        self._oldest_first: deque[tuple[Replays, Hashable]] = deque()

    def add(self, owner: Replays, key: Hashable, captured: Any) -> None:
        """Keep what was captured for a key of this owner's, and forget the oldest if there are too many."""
        self._oldest_first.append((owner, key))
        owner.captured[key] = captured
        while len(self._oldest_first) > self.limit and self._forget_oldest():
            self.repeats *= 2  # a program with so many calls should not capture them in turns

    def clear(self) -> int:
        """Forget all; returns how many there were."""
        count = 0
        while self._forget_oldest():
            count += 1
        self.repeats = REPEATS
        return count

    def _forget_oldest(self) -> bool:
        try:
            owner, key = self._oldest_first.popleft()
        except IndexError:
            return False
        owner.captured.pop(key, None)
        return True


class Replays:
    """The captures of one call, on one stream and in one thread. A key says everything that a capture depends on."""

    def __init__(self, make: Callable[..., Any], cache: GraphCache) -> None:
        """`make` returns None for a call that cannot be captured, and is not asked again."""
        self.make, self.cache = make, cache
        self.captured: dict[Hashable, Any] = {}  # None for what cannot be captured
        self.counts: dict[Hashable, int] = {}  # how often other keys have come

    def made(self, key: Hashable) -> Any:
        """What was captured for this key; None if nothing was, or if it is kept no longer."""
        return self.captured.get(key)

    def find(self, key: Hashable, *arguments: Any) -> Any:
        """What was captured for this key, now at the latest, by `make` from these arguments.

        None if the call must be made as any other.
        """
        captured = self.captured.get(key, _NOT_CAPTURED)
        return captured if captured is not _NOT_CAPTURED else self._counted(key, arguments)

    def _counted(self, key: Hashable, arguments: tuple[Any, ...]) -> Any:
        """Count a key that is not captured, and capture it if it has come often enough."""
        count = self.counts.get(key, 0) + 1
        if count < self.cache.repeats:
            if len(self.counts) + len(self.captured) >= COUNTED and key not in self.counts:
                self.counts.clear()
            self.counts[key] = count
            return None
        captured = self.make(*arguments)
        self.counts.pop(key, None)
        if captured is None:
            self.captured[key] = None
        else:
            self.cache.add(self, key, captured)
        return captured
