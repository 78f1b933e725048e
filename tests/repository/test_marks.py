"""Which cases of a test with the mark `quick_cases` are quick."""

from __future__ import annotations

from tests.support.marks import covering_cases

CASES = [frozenset({("dtype", i), ("plan", j)}) for i in range(3) for j in range(4)]


def test_few_cases_hold_every_parameter() -> None:
    quick = covering_cases(CASES)
    assert len(quick) == 4 and frozenset().union(*(CASES[i] for i in quick)) == frozenset().union(*CASES)


def test_a_count_is_kept_and_its_cases_are_from_everywhere() -> None:
    alike = [frozenset({("size", i)}) for i in range(12)]
    assert covering_cases(alike, 3) == {0, 4, 8}
    assert covering_cases(alike, 20) == covering_cases(alike) == set(range(12))
    assert covering_cases([], 3) == set()
