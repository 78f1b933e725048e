"""Run times of the papers' own devices, predicted from their datasheets."""

from __future__ import annotations

from fmm.perfmodel.papers.li_results import li_predicted


def test_run_times_of_li_are_predicted_within_seven_percent() -> None:
    """All times of Figures 24 and 40; the vendor's within two percent."""
    table = li_predicted()
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert len(rows) == 12 + 6
    for row in rows:
        ratio = row["predicted / printed"]
        assert isinstance(ratio, float)
        assert abs(ratio - 1) < (0.02 if row["plan"] == "vendor" and "gemm" in str(row["code"]) else 0.07), row
