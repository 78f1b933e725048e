"""The common parts of hostile use of the host and of a device: rounds of attacks, checks after each attack,
and the command. It prints one line with the counts of attacks; if a check fails, it prints the error and
exits with status 1."""

from __future__ import annotations

import argparse
import gc
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.support.interrupts import SignalInterrupts, time_limit

UNTOUCHED = 7.25


class BrokenPromise(Exception):  # noqa: N818
    """A product, or the state after an attack, was not as promised."""


def check_place(read: Callable[[], Any], right: Any, done: bool, what: str) -> None:
    """Check that a result is complete, or (unless the call is done) untouched, and that it does not change
    afterwards."""
    before = read()
    if not (before == right).all() and (done or not (before == UNTOUCHED).all()):
        raise BrokenPromise(f"{what}: neither complete nor untouched")
    time.sleep(0.001)
    if not (before == read()).all():
        raise BrokenPromise(f"{what}: written after the call has ended")


class HostileUse(ABC):
    """Random attacks on products until the time is up. A watchdog ends a process that hangs, with all
    threads' tracebacks."""

    hangs = 60  # seconds after which a round counts as a hang

    def __init__(self, seed: int) -> None:
        self.chance, self.counts, self.fire = random.Random(seed), Counter[str](), SignalInterrupts()

    @abstractmethod
    def attacks(self) -> Sequence[Callable[[], None]]:
        """Return the attacks, of which one at a time is drawn; an attack that is listed twice is drawn twice
        as often."""

    @abstractmethod
    def interrupt(self) -> None:
        """Send signals in the middle of a call."""

    def attack(self) -> None:
        self.chance.choice(self.attacks())()

    def rounds(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with time_limit(self.hangs):
                self.attack()

    def interrupt_among(self, works: Iterable[Callable[[], None]], times: int) -> None:
        """Interrupt `times` calls while other threads work; no other thread may fail."""
        wrong: list[BaseException] = []

        def work(own: Callable[[], None]) -> None:
            try:
                own()
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(own,)) for own in works]
        for thread in threads:
            thread.start()
        for _ in range(times):
            self.interrupt()
        for thread in threads:
            thread.join()
        if wrong:
            raise wrong[0]


def main(attacker: Callable[[int], HostileUse], arguments: Sequence[str], seconds: float) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    gc.disable()  # exceptions in the collector's callbacks are lost
    use = attacker(options.seed)
    use.rounds(options.seconds)
    print(f"{use.fire.hits} interrupts;", *(f"{count} {what};" for what, count in sorted(use.counts.items())))
    return 0
