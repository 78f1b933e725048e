"""The measured crossovers tau1 to tau3 in a config bound the number of levels that a decision may have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fmm.config import files
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.level_bounds import LevelBounds, baseline_text, count_levels, effective_side
from fmm.problem import Problem
from fmm.runtime.decisions.decide import Decision, decide_plan
from fmm.runtime.devices import cpu_device
from tests.support import configs

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
    assert count_levels(unbounded.plan) == 3 and "effective side" not in unbounded.reason
    assert decide(square(500), {"vendor": dict.fromkeys(TAUS)}).plan == unbounded.plan


def test_a_rectangle_is_compared_by_its_effective_side(decide: Any) -> None:
    """Equation 2 with Winograd's 4, 4 and 7 additions: 15 / (4/m + 4/n + 7/k)."""
    assert effective_side((2000, 2000, 2000)) == pytest.approx(2000)
    assert effective_side((8000, 500, 8000)) == pytest.approx(15 / (8 / 8000 + 7 / 500))
    assert effective_side((0, 5, 5)) == 0
    assert decide((8000, 500, 8000), {"vendor": TAUS}).plan == VENDOR
    assert count_levels(decide((8000, 1000, 8000), {"vendor": TAUS}).plan) == 1


def test_the_reason_names_the_crossover(decide: Any) -> None:
    reasons = [decide(square(side), {"vendor": TAUS}).reason for side in (900, 1500, 3000, 5000)]
    assert "at most 0 levels: effective side 900 is up to tau1 1,000" in reasons[0]
    assert "at most 1 level: effective side 1,500 is between tau1 1,000 and tau2 2,000" in reasons[1]
    assert "at most 2 levels: effective side 3,000 is between tau2 2,000 and tau3 4,000" in reasons[2]
    assert "effective side 5,000 is above tau3 4,000" in reasons[3]


def test_crossovers_belong_to_the_plan_without_levels() -> None:
    plans = {"winograd > vendor": "vendor", "3m > strassen > vendor": "3m > vendor", "vendor": "vendor"}
    assert {text: baseline_text(Plan.parse(text)) for text in plans} == plans
    assert LevelBounds("vendor", None, 2000.0).max_levels(1500) == 1
    assert LevelBounds("vendor", None, 2000.0).max_levels(2500) > 9


def test_a_damaged_crossover_is_an_error_and_leaves_the_model_unbounded(decide: Any) -> None:
    assert count_levels(decide(square(500), {"vendor": {"tau1": "large", "tau2": 1, "tau3": 2}}).plan) == 3
