"""Log lines for compilers: the first product of a program may wait some seconds for them."""

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
    """Log the message if the block runs longer than a second; each message once in a process.

    Python prints a warning of this log on stderr by default.
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
