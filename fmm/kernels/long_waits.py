"""What takes long says so, once: compilers, for which a program's first product may wait some seconds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 1.0  # seconds
log = logging.getLogger("fmm")
_said: set[str] = set()


@contextmanager
def said_if_long(what: str) -> Iterator[None]:
    """While the block is executed: after a second, one line in the log, which Python prints on stderr unless told
    otherwise. The same is said once in a process."""
    if what in _said:
        yield
        return
    timer = threading.Timer(PATIENCE, _say, (what,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(what: str) -> None:
    if what not in _said:
        _said.add(what)
        log.warning("fmm: %s", what)
