"""The rule of certification at its very edges, and the interval of a median against binomial probabilities."""

from __future__ import annotations

from itertools import product

import pytest

from fmm.config.certification import (
    CONFIDENCE_LEVEL,
    MIN_ROUNDS,
    MIN_SPEEDUP,
    config_entry_from_rounds,
    is_certified,
    median_interval,
    paired_ratios,
)

CASES = [
    # (the vendor's seconds over the candidate's, noise floor, certified)
    ([1.5] * 6, 0.0, True),
    ([1.5] * 5, 0.0, False),  # a round too few
    ([1.0, *[1.5] * 5], 0.0, False),  # the interval ends at 1, and is to be above
    ([1.001, *[1.5] * 5], 0.0, True),
    ([MIN_SPEEDUP] * 9, 0.0, False),  # the median is not above the least gain
    ([MIN_SPEEDUP + 0.001] * 9, 0.0, True),
    ([1.25] * 9, 0.25, False),  # nor above the noise
    ([1.26] * 9, 0.25, True),
]


@pytest.mark.parametrize(("ratios", "noise", "certified"), CASES)
def test_a_plan_is_certified_only_above_each_bound(ratios: list[float], noise: float, certified: bool) -> None:
    ones = [1.0] * len(ratios)
    assert is_certified(ratios, ones, noise) == certified
    entry = config_entry_from_rounds((8, 8, 8), "winograd > vendor", ratios, ones, noise, "test")
    assert entry.plan == ("winograd > vendor" if certified else "vendor")
    assert entry.rounds == len(ratios) and entry.vendor_seconds == sorted(ratios)[len(ratios) // 2]
    if not certified:
        assert entry.speedup == entry.low == entry.high == 1.0


def test_ratios_are_of_the_same_round() -> None:
    """Neither of sorted seconds nor of medians: what disturbs a machine for a round disturbs both."""
    assert paired_ratios([3.0, 8.0], [2.0, 4.0]) == (1.5, 2.0)
    with pytest.raises(ValueError, match="shorter"):
        paired_ratios([3.0, 8.0], [2.0])
    disturbed = [1.0, 1.0, 1.0, 10.0, 1.0, 1.0]
    assert is_certified([1.5 * x for x in disturbed], disturbed, 0.0)


def covered(n: int, rank: int) -> float:
    """How often the median is within these samples: of all ways in which n samples are below or above it."""
    within = sum(rank <= sum(below) <= n - rank for below in product((0, 1), repeat=n))
    return float(within / 2**n)


@pytest.mark.parametrize("n", range(1, 13))
def test_the_interval_is_the_narrowest_that_is_sure_enough(n: int) -> None:
    low, high = median_interval([float(i) for i in range(n, 0, -1)])
    rank = int(low)
    assert high == n + 1 - rank
    assert covered(n, rank) >= CONFIDENCE_LEVEL or (n < MIN_ROUNDS and rank == 1)
    assert 2 * (rank + 1) > n + 1 or covered(n, rank + 1) < CONFIDENCE_LEVEL
