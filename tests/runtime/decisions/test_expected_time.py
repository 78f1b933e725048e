"""What calls are expected to take: the device's work, or the processor's where that is longer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import Limits, recurring_call_seconds
from fmm.perfmodel.predict import quick_prediction
from fmm.problem import Problem
from fmm.runtime.decisions import decide
from fmm.runtime.decisions.decide import decide_plan, expected_seconds, is_gram_faster
from fmm.runtime.devices import Device
from tests.support.devices import H200

LIMITS = Limits(1 << 36, 16.0)
RECORDED = Path(__file__).parents[3] / "results" / "nvidia-h200" / "host.json"


def device(**calls: Any) -> Device:
    """An H200 whose host's calls take so long."""
    assert H200.guess is not None
    return replace(H200, guess=replace(H200.guess, **calls))


@pytest.fixture(autouse=True)
def no_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMM_TUNING_MODE", "off")


@pytest.mark.parametrize(("seconds", "faster"), [(0.0, True), (40e-6, False)])
def test_one_half_is_no_faster_if_the_processor_takes_longer_than_the_whole_product(
    seconds: float, faster: bool
) -> None:
    own = device(call_of_leaf=seconds, call=seconds)
    half = decide_plan(Problem(4096, 512, 4096, "bfloat16", op="gram"), LIMITS, own)
    assert str(half.plan) == "tile"
    assert is_gram_faster(half, LIMITS, own) is faster


@pytest.mark.parametrize(("rows", "faster"), [(1024, False), (3072, True)])
def test_the_vendors_half_of_few_rows_is_no_faster(rows: int, faster: bool) -> None:
    own, limits = device(call_of_leaf=0.0, call=0.0), replace(LIMITS, emulation=False)
    half = decide_plan(Problem(rows, rows, rows, "float64", op="gram"), limits, own)
    assert str(half.plan) == "vendor"
    assert is_gram_faster(half, limits, own) is faster


def test_a_call_takes_the_longer_of_both_times() -> None:
    own, plan = device(call=1.0, call_of_library=0.5), Plan.parse("strassen.batched > vendor")
    problem = Problem(256, 256, 256, "float32")
    assert own.guess is not None
    assert recurring_call_seconds(quick_prediction(plan, problem, own.guess), own.guess) == 1.0
    assert recurring_call_seconds(quick_prediction(VENDOR, problem, own.guess), own.guess) == 0.5
    large = quick_prediction(plan, Problem(1 << 17, 1 << 17, 1 << 17, "float32"), own.guess)
    assert recurring_call_seconds(large, own.guess) == large.predicted_seconds > 1


def test_no_product_is_expected_sooner_than_the_library_s_call_is_back() -> None:
    assert expected_seconds([], Problem(16, 16, 16, "float32"), LIMITS, device(call_of_library=2.0)) == 2.0


def test_what_calls_take_is_within_what_was_recorded() -> None:
    """Medians of the way from Python to the last launch, by the way in which a call was answered."""
    found: dict[str, list[float]] = {}
    for row in json.loads(RECORDED.read_text())["rows"]:
        if row["table"] == "host":
            found.setdefault(row["way"], []).append(median(row["microseconds"]) / 1e6)
    guess = H200.guess
    assert guess is not None
    assert min(found["vendor"]) <= guess.call_of_library <= max(found["vendor"])
    assert max(found["replay"]) < min(found["moved"]) <= guess.call <= max(found["moved"])
    assert guess.call < min(found["launches"])


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_one_half_replaces_the_whole_product_by_the_margin_of_plans(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule of every plan: here the vendor's triangle must win by 1 - its time over the whole product's."""
    own, limits = device(call_of_leaf=0.0, call=0.0), replace(LIMITS, emulation=False)
    half = decide_plan(Problem(3072, 3072, 3072, "float64", op="gram"), limits, own)
    calibration = own.guess
    assert calibration is not None and half.problem is not None
    seconds = quick_prediction(VENDOR, half.problem, calibration).predicted_seconds
    whole = quick_prediction(VENDOR, replace(half.problem, op="product"), calibration).predicted_seconds
    limit = share * (1 - seconds / whole)
    monkeypatch.setattr(decide, "required_margin", lambda plan, problem, calibration: limit * (plan == VENDOR))
    assert is_gram_faster(half, limits, own) is (share < 1)
