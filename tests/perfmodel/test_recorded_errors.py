"""The shipped models predict the recorded products by `f16x3`, whatever their shape."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import pytest

from benchmarks.harness import RESULTS
from benchmarks.held_out import HELD_OUT_FILE_NAME, Row, Size, recorded_rows
from benchmarks.replay import tuned_model
from fmm.config.files import SHIPPED_CONFIG
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.predict import quick_prediction
from fmm.problem import Problem
from fmm.runtime.devices import gpu_from_description

F16X3 = Plan.parse("f16x3")
CARDS = {"nvidia-h100-80gb-hbm3": "NVIDIA H100 80GB HBM3", "nvidia-h200": "NVIDIA H200"}
KINDS: dict[str, Callable[[Size], bool]] = {
    "all": lambda size: True,
    "few rows or columns of C": lambda size: min(size[0], size[2]) < 256,
    "a long inner side": lambda size: size[1] > 8000 and min(size[0], size[2]) < 1500,
}


def recorded_products(folder: str) -> list[Row]:
    return [
        row
        for row in recorded_rows(RESULTS / folder / HELD_OUT_FILE_NAME)
        if row.dtype == "float32" and "f16x3" in row.seconds
    ]


@pytest.mark.slow
@pytest.mark.parametrize("folder", CARDS)
@pytest.mark.parametrize(
    ("kind", "largest"), [("all", 0.035), ("few rows or columns of C", 0.05), ("a long inner side", 0.05)]
)
def test_times_of_f16x3_are_predicted_on_all_shapes(folder: str, kind: str, largest: float) -> None:
    model = tuned_model(SHIPPED_CONFIG, "float32", gpu_from_description(CARDS[folder], "9.0", 132))
    rows = [row for row in recorded_products(folder) if KINDS[kind](row.size)]
    predicted = [quick_prediction(F16X3, Problem(*row.size, "float32"), model).predicted_seconds for row in rows]
    ratios = [p / median(row.seconds["f16x3"]) for p, row in zip(predicted, rows, strict=True)]
    assert len(rows) >= 15
    assert median(abs(ratio - 1) for ratio in ratios) < largest
    assert abs(median(ratios) - 1) < largest
