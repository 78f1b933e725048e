"""Variables that change cuBLAS's arithmetic: a calibration holds only under those that it was taken under."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fmm.config import environment
from fmm.config.files import active_configs
from fmm.config.schema import Tuning, read_section
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime.decisions import calibration_in_force as in_force
from fmm.runtime.decisions import decide
from tests.support.devices import H200

EAGER = {"CUBLAS_EMULATE_DOUBLE_PRECISION": "1", "CUBLAS_EMULATION_STRATEGY": "eager"}
LIMITS = Limits(1 << 36, 16.0)


def plan_of(dtype: str) -> decide.Decision:
    return decide.decide_plan(Problem(8192, 8192, 8192, dtype), LIMITS, H200)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUBLAS_EMULATE_SINGLE_PRECISION", "NVIDIA_TF32_OVERRIDE", *EAGER):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "changed"),
    [
        (EAGER, {"float64", "complex128"}),
        ({"CUBLAS_EMULATE_DOUBLE_PRECISION": "0"}, set()),
        ({"CUBLAS_EMULATION_STRATEGY": "eager"}, set()),
        ({"NVIDIA_TF32_OVERRIDE": "0"}, {"tf32"}),
        ({"NVIDIA_TF32_OVERRIDE": "1"}, {"float32", "complex64"}),
        ({"CUBLAS_EMULATE_SINGLE_PRECISION": "1"}, {"float32", "complex64"}),
    ],
)
def test_only_the_types_that_a_variable_changes_are_left_alone(
    variables: dict[str, str], changed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for dtype in ("float64", "complex128", "float32", "complex64", "tf32", "float16", "bfloat16"):
        decision = plan_of(dtype)
        assert ("changes the vendor's" in decision.reason) is (dtype in changed), (dtype, decision.reason)
        if dtype in changed:
            assert decision.plan == VENDOR and next(iter(variables)) in decision.reason


def test_a_tuning_under_the_same_variables_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    assert plan_of("float64").plan != VENDOR
    shipped = active_configs().find_tuning(H200.identity, "float64")
    assert shipped is not None
    taken = replace(shipped, vendor_arithmetic=environment.vendor_arithmetic("float64", EAGER))
    other = active_configs().__class__

    def tuned(self: object, identity: object, dtype: str) -> Tuning | None:
        return taken if dtype == "float64" else None

    monkeypatch.setattr(other, "find_tuning", tuned)
    assert in_force.arithmetic_variables_unlike_tuning("float64", H200) == f"the absence of {taken.vendor_arithmetic}"
    assert plan_of("float64").plan == VENDOR
    for name, value in EAGER.items():
        monkeypatch.setenv(name, value)
    assert in_force.arithmetic_variables_unlike_tuning("float64", H200) == "" and plan_of("float64").plan != VENDOR


def test_a_section_says_under_which_variables_it_was_taken() -> None:
    section: dict[str, Any] = {
        **dict.fromkeys(("tuned", "calibration", "intervals", "error", "thresholds", "noise")),
        "versions": {},
        "doubts": [],
        "entries": [],
    }
    for conditions, expected in (
        ({"vendor_variables": EAGER}, "CUBLAS_EMULATE_DOUBLE_PRECISION=1, CUBLAS_EMULATION_STRATEGY=eager"),
        ({"device": "H200"}, ""),
        ({"vendor_variables": 3}, ""),
        (None, ""),
    ):
        found = read_section({**section, "conditions": conditions}, "here", H200.identity, "float64")
        assert found.vendor_arithmetic == expected
