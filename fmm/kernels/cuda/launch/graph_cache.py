"""Replays: calls that recur are captured, and from then on replayed as a whole.

Knows nothing of graphs: `make` captures a call, and whatever it returns is kept and handed out. What is kept holds no
memory of the call's: what it depends on is compared at each call, so it does not matter what became of it in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

REPEATS = 3  # the call at which capturing pays: twice could be a chance, and it takes as long as some calls
MADE = 64  # captured calls that are kept in all
COUNTED = 64  # keys that one call is counted for


class GraphCache:
    """Keeps so many captured calls, of all threads; the oldest goes first.

    Without a lock, which an exception at the wrong moment might leave shut: each step is one of C's, and whatever comes
    between two of them leaves at most a call that is not found again.
    """

    def __init__(self, limit: int = MADE) -> None:
        self.limit, self.repeats = limit, REPEATS
        self._made: deque[tuple[Replays, Hashable]] = deque()

    def add(self, owner: Replays, key: Hashable, made: Any) -> None:
        self._made.append((owner, key))
        owner.known[key] = made
        while len(self._made) > self.limit and self._forget_oldest():
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
            owner, key = self._made.popleft()
        except IndexError:
            return False
        owner.known.pop(key, None)
        return True


class Replays:
    """What one call, on one stream and in one thread, has made of the keys that recurred: of what it depends on."""

    def __init__(self, make: Callable[..., Any], cache: GraphCache) -> None:
        """`make` returns None where it cannot, and is not asked again."""
        self.make, self.cache = make, cache
        self.known: dict[Hashable, Any] = {}  # keys -> how often they came, or what was made of them

    def made(self, key: Hashable) -> Any:
        """What was made for this key, if it is still kept."""
        return self.known.get(key)

    def find(self, key: Hashable, *arguments: Any) -> Any:
        """What was made for this key, of these arguments; None if the call must be made as any other."""
        known = self.known.get(key, 0)
        return known if type(known) is not int else self._counted(key, known + 1, arguments)

    def _counted(self, key: Hashable, count: int, arguments: tuple[Any, ...]) -> Any:
        if count < self.cache.repeats:
            if len(self.known) >= COUNTED and key not in self.known:
                for old in [k for k, v in list(self.known.items()) if type(v) is int]:
                    self.known.pop(old, None)
            self.known[key] = count
            return None
        made = self.make(*arguments)
        if made is None:
            self.known[key] = None
        else:
            self.cache.add(self, key, made)
        return made
