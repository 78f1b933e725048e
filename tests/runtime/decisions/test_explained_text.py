"""The text of a decision: every number has its digits, its unit and its origin, and the rows add up."""

from __future__ import annotations

import re

import numpy as np
import pytest

import fmm
from fmm.kernels.plans.explain import plan_rows
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel.choose import Limits, choose
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.problem import Problem
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.matmul import decide_without_arrays
from tests.support.devices import H200

LARGE = 1 << 40


def decided(plan: str = "", dtype: str = "float32", workspace: int = LARGE, growth: float = 16.0) -> Decision:
    problem, limits = Problem(4096, 4096, 4096, dtype), Limits(workspace, growth)
    return decide_without_arrays(problem, limits, H200, Plan.parse(plan) if plan else None)


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        ("vendor", "1.0 times the vendor's"),
        (
            "residues(8) > bytes",
            "about 0.020 times the vendor's (measured, in the Frobenius norm)",
        ),
        (
            "residues(7) > bytes",
            "about 0.30 times the vendor's (measured, in the Frobenius norm)",
        ),
        ("strassen > f16x3", "1.7 times the vendor's (root mean square, by the model)"),
    ],
)
def test_an_expected_error_has_two_digits_and_an_origin(plan: str, line: str) -> None:
    assert f"\nexpected error: {line}\nbound: " in str(decided(plan))


@pytest.mark.parametrize(
    "plan",
    [
        "vendor",
        "f16x3",
        "strassen.batched > f16x3",
        "winograd > strassen > f16x3",
        "winograd.overlapped > vendor",
        "strassen > residues(8) > bytes",
        "strassen.fused > tile",
        "balanced(2) > winograd > vendor",
    ],
)
def test_the_temporaries_of_the_rows_add_up_to_the_workspace(plan: str) -> None:
    size = (4096, 2048, 3072)
    rows = list(plan_rows(Plan.parse(plan), *size, 4))
    assert sum(row.temporaries for row in rows) == plan_workspace_bytes(Plan.parse(plan), *size, 4)
    assert all(row.temporaries >= 0 for row in rows)


def test_one_leaf_product_is_no_plural() -> None:
    assert ", 1 leaf product, workspace" in str(decided("vendor"))
    assert ", 7 leaf products, workspace" in str(decided("strassen > vendor"))


def test_candidates_that_the_limits_forbid_are_marked() -> None:
    accurate, small, free = decided(growth=0.1), decided(workspace=0), decided()
    assert accurate.plan != VENDOR and "f16x3  (forbidden: more error)\n" in str(accurate)
    assert "f16x3  (forbidden: more workspace)\n" in str(small)
    assert "forbidden" not in str(free)
    for found in (accurate, small, free):
        assert not re.search(rf"{re.escape(str(found.plan))}  \(forbidden", str(found))


def test_the_time_that_a_plan_needs_is_given_as_the_table_has_it() -> None:
    reason = fmm.plan(512, 512, 512).reason
    assert re.match(r"no plan is predicted to take at most 0\.\d{3} of the vendor's time \(", reason), reason


def test_a_margin_above_the_vendors_time_is_no_negative_time() -> None:
    for side, margin in ((16, "195"), (32, "24.4"), (64, "3.08")):
        reason = choose(Problem(side, side, side, "tf32"), datasheet_calibration("H100"), Limits(LARGE)).reason
        assert reason.startswith(f"no plan can win: the margin for this shape is {margin} times the vendor's time ("), (
            reason
        )


def test_a_matrix_times_a_stack_is_decided_as_it_is_explained(host_plans: list[Plan]) -> None:
    rng = np.random.default_rng(4)
    a, stack = rng.standard_normal((64, 96)), rng.standard_normal((3, 96, 80))
    explained = fmm.explain(a, stack).plan
    np.testing.assert_allclose(fmm.matmul(a, stack), np.matmul(a, stack), rtol=1e-9, atol=1e-9)
    assert explained.levels and host_plans == [explained]
    few = a[:16]  # a side is too short for any plan
    assert np.array_equal(fmm.matmul(few, stack), np.matmul(few, stack)) and len(host_plans) == 1


def test_a_type_without_plans_has_a_decision_and_a_checked_operation() -> None:
    found = fmm.plan(64, 64, 64, dtype="longdouble")
    assert found.plan == VENDOR and found.reason.startswith("NumPy multiplies: ") and str(found)
    with pytest.raises(ValueError, match="unknown operation 'sum'"):
        fmm.plan(64, 64, 64, dtype="longdouble", op="sum")  # type: ignore[arg-type]
