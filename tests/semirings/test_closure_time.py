"""What shortest paths are predicted to take, beside what they took on an H200."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fmm.semirings.closure_launches import closure_seconds, product_seconds
from fmm.semirings.minplus_kernel import TROPICAL_RINGS
from tests.support import ROOT
from tests.support.chips import H200

MEASURED: dict[str, Any] = json.loads((ROOT / "results/nvidia-h200/tiles/minplus.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", MEASURED["closures"], ids=lambda row: f"{row['ring']} {row['n']}")
def test_shortest_paths_take_what_is_predicted(row: dict[str, Any]) -> None:
    """Within a sixth, from 36 launches to 694, a thousand times the work."""
    assert row["seconds"] == pytest.approx(closure_seconds(TROPICAL_RINGS[row["ring"]], row["n"], H200), rel=1 / 6)


def test_large_products_take_what_is_predicted() -> None:
    """Those of 4096, with the tiles that were the fastest, within a twentieth."""
    rows = [row for row in MEASURED["products"] if row["n"] == 4096 and row["ring"] in TROPICAL_RINGS]
    assert len(rows) == 6
    for row in rows:
        predicted = product_seconds(TROPICAL_RINGS[row["ring"]], [(4096, 4096, 4096)], H200)
        assert min(row["seconds"].values()) == pytest.approx(predicted, rel=0.05), row["ring"]


def test_nodes_before_the_ends_cost_more() -> None:
    ring = TROPICAL_RINGS["float32"]
    assert closure_seconds(ring, 4096, H200, with_predecessors=True) > 1.5 * closure_seconds(ring, 4096, H200)


def test_the_papers_leading_term() -> None:
    """Twice the nodes take eight times as long, once products fill the device."""
    ring = TROPICAL_RINGS["int32"]
    assert closure_seconds(ring, 32768, H200) / closure_seconds(ring, 16384, H200) == pytest.approx(8, rel=0.05)
