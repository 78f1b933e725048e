"""The table of thin products, from rows as the benchmark writes them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import thin
from fmm.kernels.plans.plan import Plan


def row(default: float, f16x3: float, size: tuple[int, int, int] = (128, 4096, 8192)) -> dict[str, Any]:
    """A row with speeds as multiples of the vendor's."""
    times = {"vendor": [100.0, 110.0], "default": [100 / default, 110 / default], "f16x3": [100 / f16x3, 110 / f16x3]}
    return {
        "failure": "", "dtype": "float32", "size": size, "chosen": "vendor", "predicted_speedup": 1.0,
        "microseconds": times,
    }  # fmt: skip


def test_speeds_are_multiples_of_the_vendors_and_shares_of_the_best_call_s() -> None:
    found = row(default=0.9, f16x3=1.8)
    assert thin.speedups_of(found) == pytest.approx({"default": 0.9, "f16x3": 1.8})
    assert thin.share_of_best(found) == pytest.approx(0.5)
    assert thin.share_of_best(row(default=0.9, f16x3=0.8)) == pytest.approx(0.9)  # the vendor's call is the best
    assert "default 0.90  f16x3 1.80  chosen vendor" in thin.text_line(found)


def test_the_summary_names_the_slowest_product() -> None:
    rows = [row(1.0, 2.0), row(0.9, 0.5, (8192, 4096, 128)), {**row(1.0, 1.0), "failure": "MemoryError: none"}]
    expected = (
        "2 products: 0.700 of the best call's speed, 0.500 at least; 1 below 0.98 of cupy.matmul's; "
        "slowest: 0.900 at (8192, 4096, 128)"
    )
    assert thin.summary_line(rows) == expected
    assert thin.summary_line(rows[2:]) == "no product was timed"


def test_every_case_has_a_short_side_and_known_plans() -> None:
    assert len(thin.CASES) == len(set(thin.CASES)) >= 30
    for case in thin.CASES:
        plans = [Plan.parse(name) for name in thin.PLANS[case.dtype]]
        assert all(plan.accepts_type(case.dtype) for plan in plans)
        assert min(case.size) <= 1024
