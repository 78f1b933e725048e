"""Log messages about slow compilations: the first product of a program can wait some seconds for a compiler."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

WAIT_SECONDS_BEFORE_LOG = 1.0  # seconds of waiting after which a message is logged
log = logging.getLogger("fmm")
_logged_messages: set[str] = set()


@contextmanager
def log_if_slow(message: str) -> Iterator[None]:
    """Log the message if the body of the `with` statement runs longer than a second.

    Each message is logged once in a process, as a warning of the logger `fmm`; by default, Python prints warnings on
    stderr.
    """
    if message in _logged_messages:
        yield
        return
    timer = threading.Timer(WAIT_SECONDS_BEFORE_LOG, _log_once, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _log_once(message: str) -> None:
    if message not in _logged_messages:
        _logged_messages.add(message)
        log.warning("fmm: %s", message)
