"""The bench of this processor: products in the order of k, and plans that cannot run."""

from __future__ import annotations

import numpy as np

from benchmarks.papers.bench import HostBench, bench_of, time_plans
from tests.support.laboratory import BENCH


def test_the_row_by_column_product_adds_in_the_order_of_k(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((7, 50)).astype(np.float32), rng.standard_normal((50, 5)).astype(np.float32)
    rows, found = BENCH.row_by_column(a, b)
    assert list(rows) == list(range(7)) and found.dtype == np.float32
    total = np.float32(0)
    for x, y in zip(a[3], b[:, 2], strict=True):
        total = np.float32(total + np.float32(x * y))
    assert found[3, 2] == total


def test_a_plan_that_cannot_run_is_a_row_with_the_reason() -> None:
    a = np.ones((4, 4))
    seconds, failed = time_plans(BENCH, {"good": "vendor", "bad": "strassen.batched.unequal > vendor"}, a, a, 1)
    assert list(seconds) == ["good"] and "needs equal blocks" in failed["bad"]
    assert isinstance(bench_of("cpu"), HostBench)
