"""The measured crossovers tau1 to tau3 in a config bound the number of levels that a decision may have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fmm.config import files
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.crossovers import NEVER_WINS_SIDE, MeasuredCrossovers, baseline_text, count_levels, effective_side
from fmm.problem import Problem
from fmm.runtime.decisions.decide import Decision, decide_plan
from fmm.runtime.devices import cpu_device
from tests.support import configs
from tests.support.devices import H200

TAUS = {"tau1": 1000.0, "tau2": 2000.0, "tau3": 4000.0}


@pytest.fixture
def decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that decides a product by a config in which levels cost nothing but have crossovers."""

    def decided(size: tuple[int, int, int], measured: dict[str, Any] | None) -> Decision:
        thresholds = configs.raw_thresholds(dict.fromkeys(TAUS, 1.0), alpha=1e-9, pi=1e-11, n1=1.0)
        if measured is not None:
            thresholds["measured_taus"] = measured
        section = configs.section(thresholds=thresholds)
        device = cpu_device(2)
        path = configs.write(tmp_path / "config.json", device.identity.key, "float64", section)
        monkeypatch.setenv("FMM_TUNING_MODE", "cache")
        monkeypatch.setenv("FMM_CONFIG", str(path))
        files.clear_config_cache()
        return decide_plan(Problem(*size), Limits(1 << 40), device)

    yield decided
    files.clear_config_cache()


def square(side: int) -> tuple[int, int, int]:
    return side, side, side


@pytest.mark.parametrize(("side", "levels"), [(1000, 0), (1001, 1), (2000, 1), (2001, 2), (4000, 2), (4001, 3)])
def test_each_crossover_bounds_the_levels(decide: Any, side: int, levels: int) -> None:
    assert count_levels(decide(square(side), {"vendor": TAUS}).plan) == levels


@pytest.mark.parametrize(("name", "side", "levels"), [("tau1", 1500, 0), ("tau2", 3000, 1), ("tau3", 5000, 2)])
def test_editing_one_crossover_changes_the_decision(decide: Any, name: str, side: int, levels: int) -> None:
    before = decide(square(side), {"vendor": TAUS})
    after = decide(square(side), {"vendor": {**TAUS, name: 1e6}})
    assert count_levels(before.plan) == levels + 1 and count_levels(after.plan) == levels


def test_without_measured_crossovers_the_model_alone_decides(decide: Any) -> None:
    unbounded = decide(square(500), None)
    assert count_levels(unbounded.plan) == 3 and "levels:" not in str(unbounded)
    assert decide(square(500), {"vendor": dict.fromkeys(TAUS)}).plan == unbounded.plan


def test_a_rectangle_is_compared_by_its_effective_side(decide: Any) -> None:
    """Equation 2 with Winograd's 4, 4 and 7 additions: 15 / (4/m + 4/n + 7/k)."""
    assert effective_side((2000, 2000, 2000)) == pytest.approx(2000)
    assert effective_side((8000, 500, 8000)) == pytest.approx(15 / (8 / 8000 + 7 / 500))
    assert effective_side((0, 5, 5)) == 0
    assert decide((8000, 500, 8000), {"vendor": TAUS}).plan == VENDOR
    assert count_levels(decide((8000, 1000, 8000), {"vendor": TAUS}).plan) == 1


def test_explain_names_the_crossovers_that_bound_the_levels(decide: Any) -> None:
    texts = [str(decide(square(side), {"vendor": TAUS})) for side in (900, 1500, 3000, 5000)]
    assert "levels: 0 (effective side 900 is up to tau1 1,000)" in texts[0]
    assert "levels: 1 (effective side 1,500 is between tau1 1,000 and tau2 2,000)" in texts[1]
    assert "levels: 2 (effective side 3,000 is between tau2 2,000 and tau3 4,000)" in texts[2]
    assert "levels: 3 (effective side 5,000 is above tau3 4,000)" in texts[3]
    never = {**TAUS, "tau2": NEVER_WINS_SIDE, "tau3": NEVER_WINS_SIDE}
    assert "levels: 1 (effective side 9,000 is above tau1 1,000; more than 1 level never won)" in str(
        decide(square(9000), {"vendor": never})
    )


def test_crossovers_belong_to_the_plan_without_levels() -> None:
    plans = {"winograd > vendor": "vendor", "3m > strassen > vendor": "3m > vendor", "vendor": "vendor"}
    assert {text: baseline_text(Plan.parse(text)) for text in plans} == plans
    assert MeasuredCrossovers("vendor", None, 2000.0).max_levels(1500) == 1
    assert MeasuredCrossovers("vendor", None, 2000.0).max_levels(2500) > 9


# ---- a GPU: crossovers of each baseline, for products with aligned rows


@pytest.fixture
def decide_on_h200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that decides a product by the shipped model of an H200 with measured crossovers."""
    key = H200.identity.key
    types = files.read_config(files.SHIPPED_CONFIG)[key]

    def decided(dtype: str, side: int, measured: dict[str, Any], emulation: bool = True) -> Decision:
        shipped = types[dtype]
        section = {**shipped, "thresholds": {**shipped["thresholds"], "measured_taus": measured}}
        path = configs.write(tmp_path / "config.json", key, dtype, section)
        monkeypatch.setenv("FMM_TUNING_MODE", "cache")
        monkeypatch.setenv("FMM_CONFIG", str(path))
        files.clear_config_cache()
        return decide_plan(Problem(*square(side), dtype), Limits(1 << 40, 16.0, emulation), H200)

    yield decided
    files.clear_config_cache()


NO_TAUS: dict[str, float | None] = dict.fromkeys(TAUS)
EDITS = [
    ("float64", "vendor", "tau1", 8192, 0),
    ("float64", "vendor", "tau2", 8192, 1),
    ("float64", "vendor", "tau3", 8192, 2),
    ("bfloat16", "vendor", "tau1", 32768, 0),
    ("float32", "f16x3", "tau1", 32768, 0),
    ("float32", "f16x3", "tau2", 32768, 1),
    ("float32", "f16x3", "tau3", 65536, 2),
    ("float32", "tile", "tau1", 8192, 0),
]


@pytest.mark.parametrize(("dtype", "baseline", "name", "side", "levels"), EDITS)
def test_each_crossover_of_a_gpu_bounds_the_levels_above_its_baseline(
    decide_on_h200: Any, dtype: str, baseline: str, name: str, side: int, levels: int
) -> None:
    emulation = baseline == "f16x3"
    free = decide_on_h200(dtype, side, {baseline: NO_TAUS}, emulation)
    bounded = decide_on_h200(dtype, side, {baseline: {**NO_TAUS, name: side + 1.0}}, emulation)
    assert baseline_text(free.plan) == baseline and count_levels(free.plan) > levels
    assert baseline_text(bounded.plan) != baseline or count_levels(bounded.plan) <= levels
    elsewhere = {"another": {**NO_TAUS, name: side + 1.0}}
    assert decide_on_h200(dtype, side, elsewhere, emulation).plan == free.plan


def test_the_crossovers_of_a_gpu_do_not_bound_unaligned_rows(decide_on_h200: Any) -> None:
    """On rows of odd lengths the vendor is slow, and the ladder measured no such product."""
    never = {"vendor": dict.fromkeys(TAUS, 1e6)}
    assert decide_on_h200("float64", 8192, never, emulation=False).plan == VENDOR
    unaligned = decide_on_h200("float64", 8191, never, emulation=False)
    assert count_levels(unaligned.plan) > 0 and "levels:" not in str(unaligned)


def test_a_damaged_crossover_is_an_error_and_leaves_the_model_unbounded(decide: Any) -> None:
    assert count_levels(decide(square(500), {"vendor": {"tau1": "large", "tau2": 1, "tau3": 2}}).plan) == 3
