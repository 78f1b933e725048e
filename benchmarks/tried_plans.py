"""Which plans are tried on a shape, beside the chosen one and the vendor's product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

from benchmarks.held_out import OWN, Size
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.candidates import candidate_plans, gram_candidates
from fmm.perfmodel.choose import default_error_growth
from fmm.perfmodel.stability import expected_error_growth
from fmm.perfmodel.work import estimated_work
from fmm.problem import Problem
from fmm.runtime.decisions.decide import Decision

SMALLEST_LEAF = 256  # the shortest side of the products of plans that are tried
MORE = 2  # plans of the first family
FAR = 1.35  # times the least predicted time: beyond, a plan is not tried


def element_type(dtype: str) -> str:
    return dtype.removesuffix(OWN)


@lru_cache(maxsize=1024)
def whole_list(processor: str, size: Size, dtype: str) -> tuple[Plan, ...]:
    """Everything that is ever compared there, but for plans of tiny products, other types and large errors."""
    found, kind, most = [], element_type(dtype), default_error_growth(processor != "cpu")
    for plan in candidate_plans(processor):
        with suppress(PlanError):
            work = estimated_work(plan, Problem(*size, kind))
            possible = plan.is_candidate_for(kind) and (not plan.levels or work.smallest >= SMALLEST_LEAF)
            if (
                possible
                and expected_error_growth(plan, kind) <= most
                and not (dtype.endswith(OWN) and plan.leaf_use.leaf.emulates)
            ):
                found.append(plan)
    return tuple(found)


def family(plan: Plan) -> tuple[object, ...]:
    """Plans of one family make as many products at each level, by the same leaf."""
    return (*(step.products for step in plan.levels), plan.leaf)


def shortlist(chosen: Plan, predicted: Mapping[Plan, float], everything: Sequence[Plan]) -> list[Plan]:
    """The chosen plan, two more of the first one's family, and the first of every other family: in the order of the
    predicted times, then those of which the model says nothing."""
    times = {plan: predicted[plan] for plan in everything if plan in predicted}
    least = min(times.values(), default=0.0)
    liked = sorted((plan for plan in times if times[plan] <= FAR * least), key=lambda plan: times[plan])
    ordered = [p for p in (*liked, *(p for p in everything if p not in times)) if p != VENDOR]
    firsts = {family(p): p for p in reversed(ordered)}
    more = [p for p in ordered if family(p) == family(ordered[0])][: MORE + 1] if ordered else []
    wanted = {*firsts.values(), *more, chosen}
    return [p for p in dict.fromkeys([chosen, *ordered]) if p in wanted and p != VENDOR]


def tried_plans(
    processor: str, size: Size, dtype: str, decision: Decision, whole: bool, half: bool = False
) -> list[Plan]:
    """The plans that are tried on a shape beside the vendor's product."""
    among: Sequence[Plan] = whole_list(processor, size, dtype)
    if half:
        among = [plan for plan in gram_candidates(processor) if plan.is_candidate_for(dtype)]
    if whole:
        return [plan for plan in among if plan != VENDOR]
    return shortlist(decision.plan, {c.plan: c.time for c in decision.candidates}, among)
