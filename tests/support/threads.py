"""Work in threads of its own, whose errors are not lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any


def at_once(works: Iterable[Callable[[], Any]], seconds: float = 120) -> list[Any]:
    """What each of them returns, all at the same time, each in a thread of its own; an error of one is raised here."""
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
