"""D'Alberto and Nicolau's way of choosing: HASA for as many levels as Equation 2 asks for, from alpha and pi.

What FMM_TUNING_MODE=hasa does. alpha is the time of an element of a block addition, pi that of a flop of the vendor's
product, which depends on its size. Left out, beside what Equation 2 leaves out: a margin, so that what is predicted to
gain a little is done.
"""

from __future__ import annotations

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.papers.recursion_points import levels
from fmm.perfmodel.stability import expected_growth
from fmm.perfmodel.work.estimate import estimated_workspace
from fmm.problem import Problem


def alpha(calibration: Calibration, itemsize: int) -> float:
    """Seconds of one element of a block addition: two reads, one write."""
    return 3 * itemsize / calibration.stream


def pi(calibration: Calibration, problem: Problem) -> float:
    """Seconds of one flop of the vendor's product of this problem."""
    rate = calibration.rate(problem.dtype)
    slower = 1 + rate.fill / (problem.m * problem.n) + rate.pipe / problem.k
    return slower / rate.flops


def alpha_over_pi(calibration: Calibration, problem: Problem) -> float:
    """Their ratio, on which Equation 2 rests. (A complex multiply-add counts as the two flops of Equation 2.)"""
    one = pi(calibration, problem) * problem.type.flops / 2
    return alpha(calibration, problem.itemsize) / one


def hasa_plan(depth: int) -> Plan:
    """So many levels of HASA above the vendor's product."""
    return Plan.parse(" > ".join(["hasa"] * depth + ["vendor"]))


def hasa_choice(problem: Problem, calibration: Calibration, limits: Limits, epsilon: float = 0.0) -> Plan:
    """As many levels as Equation 2 asks for, at most as many as the limits of error and workspace admit."""
    if 0 in problem.size or problem.halved:
        return VENDOR

    def ratio(m: int, k: int, n: int) -> float:
        return alpha_over_pi(calibration, Problem(m, k, n, problem.dtype))

    for depth in range(len(levels(problem.size, ratio, epsilon=epsilon)), 0, -1):
        plan = hasa_plan(depth)
        allowed = limits.allow(plan, expected_growth(plan, problem.dtype, not calibration.batches))
        if allowed and estimated_workspace(plan, problem) <= limits.workspace:
            return plan
    return VENDOR
