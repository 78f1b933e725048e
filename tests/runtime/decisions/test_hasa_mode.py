"""FMM_TUNING_MODE=hasa decides by alpha, pi, n1 and epsilon of the config: a changed number changes the decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fmm.config import files
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime.decisions.decide import Decision, decide_plan
from fmm.runtime.devices import cpu_device
from tests.support import configs

THRESHOLDS = {"alpha": 2e-9, "pi": 1e-11, "n1": 3000.0, "epsilon": 20.0}
SQUARE, OBLONG = (9000, 9000, 9000), (9000, 12000, 8000)

Decide = Callable[..., Decision]


@pytest.fixture
def decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Decide]:
    """Yield a function that decides in the mode hasa by a config with these thresholds."""

    def decided(size: tuple[int, int, int], dtype: str = "float64", **changed: float | None) -> Decision:
        found = configs.raw_thresholds(dict.fromkeys(("tau1", "tau2", "tau3"), 1.0), **{**THRESHOLDS, **changed})
        device = cpu_device(2)
        path = configs.write(tmp_path / "config.json", device.identity.key, dtype, configs.section(thresholds=found))
        monkeypatch.setenv("FMM_TUNING_MODE", "hasa")
        monkeypatch.setenv("FMM_CONFIG", str(path))
        files.clear_config_cache()
        return decide_plan(Problem(*size, dtype), Limits(1 << 40), device)

    yield decided
    files.clear_config_cache()


def test_n1_decides_for_squares(decide: Decide) -> None:
    """HASA's recursion point is 22/15 of n1, the recursion point of Winograd's variant."""
    assert [decide((side,) * 3).plan.depth for side in (4399, 4400, 8798, 8800)] == [0, 1, 1, 2]
    assert decide(SQUARE, n1=6200.0).plan.depth == 0 and decide(SQUARE, n1=6000.0).plan.depth == 1
    assert decide(SQUARE, n1=None).plan.depth == 0
    assert decide(SQUARE, alpha=1.0).plan.depth == decide(SQUARE, epsilon=1e6).plan.depth == 2
    assert "n1 of the config" in decide(SQUARE).reason


@pytest.mark.parametrize(("name", "value"), [("alpha", 8e-9), ("pi", 2.5e-12), ("epsilon", 620.0)])
def test_alpha_pi_and_epsilon_decide_for_rectangles(decide: Decide, name: str, value: float) -> None:
    before, after = decide(OBLONG), decide(OBLONG, **{name: value})
    assert before.plan.depth == 2 and after.plan.depth < 2
    assert "alpha/pi 200 and epsilon 20" in before.reason and before.source == "Equation 2"


def test_a_complex_product_has_four_times_the_flops(decide: Decide) -> None:
    """pi is a time per flop, and Equation 2 counts a multiply-add as two flops."""
    assert "alpha/pi 50 " in decide(OBLONG, dtype="complex128").reason


def test_without_thresholds_the_calibration_has_alpha_and_pi(decide: Decide, tmp_path: Path) -> None:
    decided = decide(SQUARE, alpha=None)  # damaged thresholds are none
    assert "config" not in decided.reason and "Equation 2 (" in decided.reason
