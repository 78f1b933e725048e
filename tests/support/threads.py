"""Runs functions in new threads without losing their errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any


def at_once(works: Iterable[Callable[[], Any]], seconds: float = 120) -> list[Any]:
    """Run functions at the same time, each in a new thread, and return their results; raise an error of any
    of them."""
    found: dict[int, Any] = {}
    errors: list[BaseException] = []

    def run(i: int, work: Callable[[], Any]) -> None:
        try:
            found[i] = work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    if errors:
        raise errors[0]
    assert len(found) == len(threads), "a thread hangs"
    return [found[i] for i in range(len(threads))]
