"""Confirming what a search found: on fresh operands, against the vendor and what else the vendor has."""

from __future__ import annotations

from fmm.config import certify
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.problem import Problem
from fmm.tuner.devices.device import Run
from fmm.tuner.search.race import Found, needs_no_workspace
from fmm.tuner.trials.journal import Journal, RoundLimits

FRESH = 1  # the seed of the operands on which the search's results are confirmed


def confirm_best(journal: Journal, found: Found, limits: RoundLimits, noise: float) -> None:
    """The best plans on fresh operands, one after the other until one is certified: against the vendor's product, and
    against the best of what else the vendor has for it (which needs workspace). The best without workspace as well."""
    promising = [plan for plan, seen in found.plans if seen > 1]
    peer = next((plan for plan in promising if not plan.levels), None)
    raced = []
    for plan in dict.fromkeys([*promising[:2], *([peer] if peer else [])]):
        raced.append(plan)
        if _faster(journal, "certify", found.problem, VENDOR, plan, limits, noise) and (
            peer in (None, plan) or _faster(journal, "peer", found.problem, peer, plan, limits, noise)
        ):
            break
    without = next((plan for plan in promising if needs_no_workspace(plan, found.problem)), None)
    if without and without not in raced:
        _faster(journal, "certify", found.problem, VENDOR, without, limits, noise)
    journal.on_finding()


def _faster(
    journal: Journal, stage: str, problem: Problem, than: Plan, plan: Plan, limits: RoundLimits, noise: float
) -> bool:
    """Is the plan certified to be faster than another?"""
    base, run = Run(than), Run(plan)
    with journal.open(stage, problem, FRESH) as timed:
        samples = timed.rounds([base, run], limits)
    return bool(samples[run] and samples[base]) and certify.is_certified(samples[base], samples[run], noise)
