"""How far ahead a schedule's products are launched: what is launched cannot be stopped, and Ctrl-C waits for it.

Behind the product that runs there is at most a second of others, or a single one. What takes longer by itself (float64
on a card that has few units for it) is launched in bands of its rows, if by the model these take no longer together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from fmm.problem import Shape
from fmm.runtime.out_of_core.choose import STEP
from fmm.runtime.out_of_core.transfers import Event

AHEAD = 1.0  # seconds of products that are launched behind the one that runs
SLOWER = 1.01  # times as long as the whole product its bands may take together
LEAST_ROWS = 256  # of a band
UNKNOWN = AHEAD / 4  # seconds, for products of which the model knows nothing


class Pace(NamedTuple):
    """How a product of one size is launched: so many rows at a time, which take so long."""

    rows: int
    seconds: float


def whole_pace(size: Shape, product_seconds: Callable[[Shape], float]) -> Pace:
    return Pace(size[0], product_seconds(size) or UNKNOWN)


def paced(size: Shape, product_seconds: Callable[[Shape], float]) -> Pace:
    """In the largest bands of at most a second; in larger ones where smaller ones would cost time."""
    found = whole = whole_pace(size, product_seconds)
    while found.seconds > AHEAD:
        rows = -(-found.rows // (2 * STEP)) * STEP
        seconds = product_seconds((rows, size[1], size[2]))
        if not LEAST_ROWS <= rows < found.rows or seconds * size[0] > SLOWER * whole.seconds * rows:
            break
        found = Pace(rows, seconds)
    return found


class Launched:
    """Products that are launched and not known to have ended; `done` hears of the multiply-adds of those that have."""

    def __init__(self, done: Callable[[int], object]) -> None:
        self.done, self.seconds = done, 0.0
        self.running: deque[tuple[Event, float, int]] = deque()

    def make_room(self, seconds: float) -> None:
        """Wait until a product that takes so long may be launched: behind one alone always, else within a second."""
        while len(self.running) > 1 and self.seconds - self.running[0][1] + seconds > AHEAD:
            self._end_first()

    def add(self, event: Event, seconds: float, work: int) -> None:
        self.running.append((event, seconds, work))
        self.seconds += seconds
        while self.running and self.running[0][0].happened():
            self._end_first()

    def end_all(self) -> None:
        while self.running:
            self._end_first()

    def _end_first(self) -> None:
        event, seconds, work = self.running[0]
        event.wait()
        self.running.popleft()
        self.seconds -= seconds
        self.done(work)
