"""Moduli: coprime, enough of them, and the numbers of the Chinese remainder theorem."""

from __future__ import annotations

import random
from itertools import combinations
from math import gcd, prod

import numpy as np
import pytest

from fmm.kernels.algorithms.residues import (
    MAX_MODULI_COUNT,
    first_moduli,
    moduli_count_for_bound,
    moduli_count_for_product,
    remainder_weights,
    symmetric_residue,
)
from tests.support.remainders import whole_number


def test_moduli_are_pairwise_coprime_and_the_largest() -> None:
    found = first_moduli(MAX_MODULI_COUNT)
    assert found[:8] == (256, 255, 253, 251, 247, 241, 239, 233)
    assert all(gcd(x, y) == 1 for x, y in combinations(found, 2))
    for skipped in set(range(found[-1], 257)) - set(found):
        assert any(gcd(skipped, x) > 1 for x in found if x > skipped)


@pytest.mark.parametrize(
    ("bits_a", "bits_b", "k", "expected"),
    [(7, 7, 1, 2), (7, 7, 1024, 4), (31, 31, 8192, 10), (63, 63, 1, 17), (63, 63, 8192, 18), (63, 63, 1 << 17, 19)],
)
def test_how_many_moduli_are_needed(bits_a: int, bits_b: int, k: int, expected: int) -> None:
    assert moduli_count_for_product(bits_a, bits_b, k) == expected
    assert prod(first_moduli(expected)) > 2 * k << (bits_a + bits_b)
    assert prod(first_moduli(expected - 1)) < 2.01 * (k << (bits_a + bits_b))


def test_more_moduli_than_there_are() -> None:
    with pytest.raises(ValueError, match="moduli"):
        first_moduli(MAX_MODULI_COUNT + 1)
    with pytest.raises(ValueError, match="moduli"):
        moduli_count_for_bound(1 << 1000)


@pytest.mark.parametrize("count", [1, 2, 9, 18, MAX_MODULI_COUNT])
def test_numbers_are_found_again(count: int) -> None:
    known, draw = remainder_weights(count), random.Random(count)
    most = known.product * 128 // 257  # what `moduli_count_for_bound` leaves to them
    while moduli_count_for_bound(most) > count:
        most -= most // 100 + 1
    for value in [0, 1, -1, most, -most, *(draw.randint(-most, most) for _ in range(50))]:
        residues = [symmetric_residue(value, p) for p in known.moduli]
        assert all(-128 <= r <= 127 and (value - r) % p == 0 for r, p in zip(residues, known.moduli, strict=True))
        assert whole_number(residues) == value
        assert _modulo_two_to_the_64(count, residues) == value % 2**64


def _modulo_two_to_the_64(count: int, residues: list[int]) -> int:
    """As a kernel does it: q in float64, everything else modulo 2^64."""
    known = remainder_weights(count)
    total, share = 0, np.float64(0)
    for r, w in zip(residues, known.weights, strict=True):
        total += r * (w % 2**64)
        share += np.float64(r) * np.float64(w / known.product)
    return (total - int(np.rint(share)) * known.product) % 2**64


def test_the_margin_is_what_the_docstring_says() -> None:
    """c / M is below 1/2 by more than what is lost where q is found."""
    for bound in (1, 10**3, 10**9, 10**18, 10**38, 10**42):
        count = moduli_count_for_bound(bound)
        assert bound / prod(first_moduli(count)) < 0.5 - 2.0**-10
