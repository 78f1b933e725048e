"""Paired measurements: candidate and vendor in shuffled rounds, so that a machine's drift hits both alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from fmm.config.certify import median_interval, paired_ratios

Call = Callable[[], Any]


@dataclass(frozen=True)
class PairedRoundLimits:
    """How long to go on: at least `least` rounds, then until `seconds` are over, at most `most`."""

    least: int
    most: int
    seconds: float


@dataclass(frozen=True)
class PairedSamples:
    """Seconds of each round, vendor and candidate measured next to each other; `repeat` calls make one sample."""

    vendor: tuple[float, ...]
    candidate: tuple[float, ...]
    repeat: int = 1

    @property
    def ratios(self) -> tuple[float, ...]:
        """The vendor's time over the candidate's in each round: above 1 where the candidate is faster."""
        return paired_ratios(self.vendor, self.candidate)

    @property
    def speedup(self) -> float:
        return median(self.ratios)

    @property
    def interval(self) -> tuple[float, float]:
        return median_interval(self.ratios)

    def as_dict(self) -> dict[str, Any]:
        low, high = self.interval
        return {"speedup": self.speedup, "low": low, "high": high, "rounds": len(self.vendor), **asdict(self)}


def paired_rounds(vendor: Call, candidate: Call, rounds: PairedRoundLimits, seed: int = 0) -> PairedSamples:
    """Measure both in shuffled rounds after one warm-up each; short calls are repeated to be measurable."""
    shuffled = random.Random(seed)
    repeat = max(int(0.01 / max(_seconds(vendor, 1), _seconds(candidate, 1), 1e-7)), 1)
    calls = (vendor, candidate)
    samples: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + rounds.seconds
    while len(samples[0]) < rounds.most:
        order = [0, 1]  # by place: both may be the same function, for the noise floor
        shuffled.shuffle(order)
        for which in order:
            samples[which].append(_seconds(calls[which], repeat))
        if time.perf_counter() > end and len(samples[0]) >= rounds.least:
            break
    return PairedSamples(tuple(samples[0]), tuple(samples[1]), repeat)


def _seconds(call: Call, repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat
