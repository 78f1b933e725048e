"""D'Alberto and Nicolau's Figure 2: HASA's levels, and its errors against Priest's summation."""

from __future__ import annotations

import pytest

from benchmarks.papers import dalberto
from benchmarks.papers.figures import FIGURES
from tests.support.laboratory import measure_small


@pytest.mark.slow
def test_hasa_beside_priests_summation() -> None:
    """Section 3.2: at most ten times dgemm's error. Both references agree to a rounding."""
    results = measure_small("dalberto-fig2", 160)
    ratios = FIGURES["dalberto-fig2-ratio"].measured["measured, all entries"](results)
    assert set(ratios) == {(data, n) for data in dalberto.DATA_RANGES for n in dalberto.ERROR_SIZES}
    assert max(ratios.values()) < 10
    apart = [row["references"] for row in results.rows.values() if "references" in row]
    assert len(apart) == len(ratios) and max(apart) < 1e-13


@pytest.mark.parametrize(("n", "depth"), [(800, 0), (1000, 1), (1700, 1), (2000, 2), (3400, 2), (4000, 3), (5000, 3)])
def test_levels_as_figure_2s_caption_has_them(n: int, depth: int) -> None:
    assert dalberto.hasa_depth(n) == depth
