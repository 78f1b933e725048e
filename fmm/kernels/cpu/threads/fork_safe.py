"""After a fork: the child has none of its parent's other threads, but would find shut the locks that they held."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any


def in_child(renew: Callable[[], None]) -> Callable[[], None]:
    """Have this called in every forked child, before anything else runs there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
    return renew


class Lock:
    """A lock that a forked child finds open: `with lock.now`.

    `now` is Python's own, which Ctrl-C cannot leave shut: a lock entered by Python code could be. `kind` makes it:
    threading.RLock for one that its holder may enter again.
    """

    def __init__(self, kind: Callable[[], Any] = threading.Lock) -> None:
        self._kind = kind
        self._renew()
        in_child(self._renew)

    def _renew(self) -> None:
        self.now = self._kind()
