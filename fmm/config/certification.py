"""Decide from paired rounds with the vendor whether a plan is certified for a shape."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import median

from fmm.config.schema import Entry, Size

MIN_SPEEDUP = 1.02  # smallest median speedup of a certified plan
CONFIDENCE_LEVEL = 0.95
# Smallest number of rounds of a certified plan. With five rounds, no interval of the median reaches a confidence of 95
# %.
MIN_ROUNDS = 6


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return a 95 % confidence interval of the median, computed from order statistics without an assumed distribution.

    With fewer than six samples, return the smallest and the largest sample. The range of five samples has a confidence
    of 94 %.
    """
    ordered = sorted(samples)
    n = len(ordered)
    rank = max((r for r in range(1, n // 2 + 1) if _median_coverage(n, r) >= CONFIDENCE_LEVEL), default=1)
    return ordered[rank - 1], ordered[n - rank]


def _median_coverage(n: int, rank: int) -> float:
    """Return the probability that the true median is between the rank-th smallest and rank-th largest of n samples."""
    return float(1 - 2 * sum(comb(n, i) for i in range(rank)) / 2**n)


def paired_ratios(vendor: Sequence[float], candidate: Sequence[float]) -> tuple[float, ...]:
    """Return the candidate's speedup in each round: the vendor's time divided by the candidate's time."""
    return tuple(v / c for v, c in zip(vendor, candidate, strict=True))


def is_certified(vendor: Sequence[float], candidate: Sequence[float], noise: float) -> bool:
    """Return True if the paired times of the vendor and the candidate certify the candidate for the measured shape.

    The number of rounds must be at least MIN_ROUNDS. The 95 % interval of the speedup must be above 1, and the median
    speedup above MIN_SPEEDUP and 1 + noise.
    """
    ratios = paired_ratios(vendor, candidate)
    return len(ratios) >= MIN_ROUNDS and median_interval(ratios)[0] > 1 and median(ratios) > max(MIN_SPEEDUP, 1 + noise)


def config_entry_from_rounds(
    size: Size, plan: str, vendor: Sequence[float], candidate: Sequence[float], noise: float, origin: str
) -> Entry:
    """Return a config entry for the measured shape; its plan is `plan` if the rounds certify `plan`, else `vendor`."""
    found, rounds, base = paired_ratios(vendor, candidate), len(vendor), median(vendor)
    if not is_certified(vendor, candidate, noise):
        return Entry(size, "vendor", 1.0, 1.0, 1.0, rounds, base, base, noise, origin=origin)
    low, high = median_interval(found)
    return Entry(size, plan, median(found), low, high, rounds, median(candidate), base, noise, origin=origin)
