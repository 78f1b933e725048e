"""Time a candidate and the vendor in paired rounds: each round times both, so that a drift affects both alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from fmm.config.certification import median_interval, paired_ratios

ProductCall = Callable[[], Any]


@dataclass(frozen=True)
class PairedRoundLimits:
    """Limits of the number of rounds.

    After `min_rounds` rounds, the measurement ends when `seconds` have passed, or after `max_rounds` rounds.
    """

    min_rounds: int
    max_rounds: int
    seconds: float


@dataclass(frozen=True)
class PairedSamples:
    """The seconds of the vendor and of the candidate in each round; each sample is the mean of `repeat` calls."""

    vendor: tuple[float, ...]
    candidate: tuple[float, ...]
    repeat: int = 1

    @property
    def round_speedups(self) -> tuple[float, ...]:
        """Return the speedup in each round: the vendor's seconds divided by the candidate's seconds."""
        return paired_ratios(self.vendor, self.candidate)

    @property
    def median_speedup(self) -> float:
        """Return the median of the speedups of all rounds."""
        return median(self.round_speedups)

    @property
    def speedup_interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the median speedup."""
        return median_interval(self.round_speedups)

    def as_dict(self) -> dict[str, Any]:
        """Return the samples and their statistics as a dictionary for JSON."""
        low, high = self.speedup_interval
        return {"speedup": self.median_speedup, "low": low, "high": high, "rounds": len(self.vendor), **asdict(self)}


def measure_paired_rounds(
    vendor: ProductCall, candidate: ProductCall, rounds: PairedRoundLimits, seed: int = 0
) -> PairedSamples:
    """Time both calls in rounds, in random order, after one untimed call of each.

    If a call takes less than 10 ms, a sample is the mean of several calls.
    """
    shuffled = random.Random(seed)
    repeat = max(int(0.01 / max(_mean_call_seconds(vendor, 1), _mean_call_seconds(candidate, 1), 1e-7)), 1)
    calls = (vendor, candidate)
    samples: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + rounds.seconds
    while len(samples[0]) < rounds.max_rounds:
        order = [0, 1]  # indices instead of the functions: for the noise floor, both calls are the same function
        shuffled.shuffle(order)
        for which in order:
            samples[which].append(_mean_call_seconds(calls[which], repeat))
        if time.perf_counter() > end and len(samples[0]) >= rounds.min_rounds:
            break
    return PairedSamples(tuple(samples[0]), tuple(samples[1]), repeat)


def _mean_call_seconds(call: ProductCall, repeat: int) -> float:
    """Return the mean time of `repeat` calls in seconds."""
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat
