"""What a caller asks of a plan, and which of numpy.matmul's options were given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fmm.kernels.plans.plan import Plan, PlanError
from fmm.request import check_error_growth, check_flag, check_workspace
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.limits import NO_CONSTRAINTS, PlanConstraints

NO_OPTIONS: Mapping[str, Any] = {}


def checked_wishes(
    plan: Plan | Decision | str | None, max_error_growth: Any, workspace: Any, componentwise: bool = False
) -> PlanConstraints:
    """What the caller asks of a plan."""
    if plan is None and max_error_growth is None and workspace is None and componentwise is False:
        return NO_CONSTRAINTS
    if componentwise is not False and not check_flag("componentwise", componentwise):
        return checked_wishes(plan, max_error_growth, workspace)
    growth = None if max_error_growth is None else check_error_growth(max_error_growth)
    nbytes = None if workspace is None else check_workspace(workspace)
    given = given_plan(plan)
    if given is not None and any(given.conjugates):
        raise PlanError(f"{given} multiplies conjugates: of fmm.gemm, transpose_a and transpose_b ask for them")
    return PlanConstraints(given, growth, nbytes, componentwise=bool(componentwise))


def given_plan(plan: Plan | Decision | str | None) -> Plan | None:
    if plan is None or isinstance(plan, Plan):
        return plan
    return plan.plan if isinstance(plan, Decision) else Plan.parse(plan)


def given_options(casting: Any, order: Any, dtype: Any, more: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of numpy.matmul's options that were given, by name."""
    if dtype is None and order == "K" and casting == "same_kind" and not more:
        return NO_OPTIONS
    given = {"casting": (casting, "same_kind"), "order": (order, "K"), "dtype": (dtype, None)}
    return {name: value for name, (value, usual) in given.items() if value is not usual} | dict(more)
