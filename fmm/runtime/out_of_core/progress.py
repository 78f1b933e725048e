"""A bar on stderr for products that take long, where it was asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONG = 10.0  # predicted seconds from which on it is shown
BAR = "{desc} {percentage:3.0f}%|{bar:30}| {elapsed}<{remaining}"


@contextmanager
def shown_progress(total: int, wanted: bool, seconds: float) -> Iterator[Callable[[int], object]]:
    """What is told of multiply-adds that are done; it shows them if that was wanted and so many seconds are long."""
    if not wanted or seconds < LONG:
        yield lambda done: None
        return
    from tqdm import tqdm

    with tqdm(total=total, desc="fmm.matmul", bar_format=BAR, file=sys.stderr, leave=False) as bar:
        yield bar.update
