"""What a level needs is said without its steps where it can be: the same as its steps say."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fmm.kernels.plans import workspace as module
from fmm.kernels.plans.gemm_params import ACCUMULATE, PLAIN, GemmParams
from fmm.kernels.plans.lower import lower_level
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.kernels.plans.steps import LevelMemoryNeeds, memory_needs_of_steps
from fmm.kernels.plans.workspace import plan_workspace_bytes

PLANS = (
    "strassen > vendor",
    "strassen.batched.pad16 > vendor",
    "strassen^2.batched.pad16 > f16x3",
    "strassen^2.batched > vendor",
    "winograd.overlapped.pad16 > strassen^2.batched.pad16 > vendor",
    "winograd^2.overlapped.pad16 > strassen > vendor",
    "li-fig23.pad16 > strassen.pad16 > strassen^2.batched.pad16 > vendor",
    "li-fig23.pad16 > tile",
    "li-fig23 > strassen > tile",
    "strassen.peel > strassen > vendor",
    "3m > strassen.batched.pad16 > vendor",
    "strassen.sequential > winograd > vendor",
)


@pytest.mark.quick_cases()
@pytest.mark.parametrize("text", PLANS)
@pytest.mark.parametrize("asked", [PLAIN, ACCUMULATE], ids=["A B", "C + A B"])
def test_as_the_steps_say(text: str, asked: GemmParams) -> None:
    plan, rng = Plan.parse(text), random.Random(text)
    for _ in range(12):
        m, k, n = (rng.choice((rng.randrange(40), rng.randrange(100, 3000), 64 * rng.randrange(9, 60))) for _ in "abc")
        wanted: LevelMemoryNeeds | type | None
        found: LevelMemoryNeeds | type | None
        try:
            steps = lower_level(plan, m, k, n, *asked)
            wanted = None if steps is None else memory_needs_of_steps(steps)
        except PlanError:
            wanted = PlanError
        try:
            found = module._first_level_memory_needs(plan, m, k, n, asked)
        except PlanError:
            found = PlanError
        assert found == wanted, (m, k, n)


def test_steps_of_a_large_batch_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice asks for the workspace of many plans; the 343 products of such a batch would take milliseconds each."""
    lowered: list[str] = []

    def noted(plan: Plan, *rest: Any) -> object:
        lowered.append(str(plan))
        return lower_level(plan, *rest)

    monkeypatch.setattr(module, "lower_level", noted)
    below = ("strassen^3.batched.pad16 > vendor", "strassen^2.batched.pad16 > strassen > vendor", "winograd > vendor")
    for text in below:
        assert plan_workspace_bytes(Plan.parse(f"li-fig23.pad16 > {text}"), 30011, 20011, 10011, 4) > 0
    outer = [text for text in lowered if text.startswith("li-fig23")]
    assert len(outer) == 1, "once for all plans below it"
    assert not any(text.startswith(("strassen^3.batched", "strassen^2.batched")) for text in lowered)
