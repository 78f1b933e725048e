"""Decide how a stack of products is computed: by launches for several products, by separate products, or by the
vendor's batched product.

If one launch multiplies several matrices of the stack, even small matrices keep all multiprocessors of the GPU busy.
The decision for one matrix compares a plan with the vendor's product of one matrix. For a stack, the vendor's batched
product is faster than the vendor's separate products, so a stack needs a decision of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import NamedTuple

from fmm.config import environment
from fmm.hardware.chip import Chip
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.products.stacked_products import stack_seconds, vendor_stack_seconds
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, filter_candidates, problem_for_ranking, required_margin
from fmm.perfmodel.predict import predict_vendor, quick_prediction
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Problem
from fmm.runtime.decisions.calibration_in_force import calibration_in_force
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.devices import Device

WARPGROUP_PLAN = Plan.parse("tile")
STACKED_TYPES = ("bfloat16", "float16")  # types whose triangles the warpgroup kernel mirrors
# A plan for a stack must be predicted to save this fraction of the vendor's time, in addition to the margin of the
# plan for one matrix. On an H200, launches of float32, float64 and complex stacks take 0.8 to 1.2 times as long as
# predicted.
STACK_MARGIN = 0.08
TILE_MARGIN = 0.08  # the fraction for triangles of 16-bit types; their predicted times have an error of 6 %
# Kernels of emulation compute tiles of C of about TILE_SIDE rows and columns. If C fills less than the fraction
# MIN_TILE_SHARE of the tiles that cover C, the vendor's kernel with smaller tiles is not slower. On an H200, 27
# complex64 products with (m, k, n) = (136, 1656, 280) fill 39 % of their tiles and take 1.02 times the vendor's time;
# 10 products with (400, 768, 296) fill 60 % and take 0.83 times the vendor's time.
TILE_SIDE, MIN_TILE_SHARE = 128, 0.5
# If the vendor computes a stack in fewer than this number of seconds, no plan is used: the host alone takes about as
# long for the call of a plan.
MIN_VENDOR_SECONDS = 25e-6
# Factor on the predicted time in which the vendor computes the triangles of a stack, one matrix after the other. On an
# H200, the triangles of 49 float64 matrices of 1626 x 264 take 1.5 times as long as predicted.
VENDOR_TRIANGLE_SLOWDOWN = 1.5
# The library mirrors one triangle of each C of a stack by about five launches, which take MIRROR_LAUNCH_SECONDS in all
# and read and write C about MIRROR_PASSES times.
MIRROR_LAUNCH_SECONDS, MIRROR_PASSES = 25e-6, 9
# Largest workspace, in bytes, of a group of products that share launches. On an H200, one group of eight float64
# products of side 4096 is 1 % faster than four groups, and needs four times the memory.
MAX_GROUP_BYTES = 1 << 31


class StackPlan(NamedTuple):
    """A plan for all products of a stack, with the predicted seconds and the required margin."""

    seconds: float
    margin: float
    plan: Plan


def is_stackable(problem: Problem, limits: Limits) -> bool:
    """Return True if several products of a stack may share launches; `problem` describes one product."""
    if environment.is_disabled() or limits.componentwise or problem.element_type.exact:
        return False
    if not problem.writes_triangle:
        return not problem.beta and problem.prepared_side is None
    is_triangle = problem.fill == "full" and not problem.element_type.is_complex
    # C must be row-major: with a nonzero beta, the kernel reads the lower triangle of C row by row
    row_major = any(name == "C" and x.order == "C" for name, x in zip("ABC", problem.layouts, strict=True))
    return is_triangle and row_major and limits.allows_plan(WARPGROUP_PLAN, 1.0)


def stacked_decisions(problem: Problem, single: Decision, limits: Limits, device: Device) -> Iterator[Decision]:
    """Yield decisions for groups of the stack's products, the best first; `single` is the decision for one matrix.

    In each decision, `problem.batch` is the number of products in a group, a divisor of the stack's number of products.
    Yield nothing if running the plan for one matrix after the other is predicted to be the fastest. If the limits
    forbid the vendor's product and `single` has a plan, the plans for a stack are compared only with `single`, not
    with the vendor.
    """
    calibration = calibration_in_force(problem, limits, device)
    if calibration is None or problem.dtype not in calibration.rates or device.chip is None:
        return
    if problem.writes_triangle and problem.dtype in STACKED_TYPES and device.chip.has_warpgroups:
        seconds, vendor_seconds = _stack_and_vendor_seconds(problem, device.chip)
        plans = [StackPlan(seconds, TILE_MARGIN, WARPGROUP_PLAN)]
    else:
        vendor_seconds = predict_vendor(replace(problem, op="product", beta=0), calibration).predicted_seconds
        plans = sorted(_plans_for_stack(problem, calibration, limits))
    if problem.writes_triangle and (problem.has_factors or problem.op != "gram"):
        nbytes = problem.batch * problem.m * problem.n * problem.itemsize
        vendor_seconds += MIRROR_LAUNCH_SECONDS + MIRROR_PASSES * nbytes / calibration.stream
    single_seconds = problem.batch * _seconds_of_single_plan(single, calibration)
    if single.plan == VENDOR:
        single_seconds = VENDOR_TRIANGLE_SLOWDOWN * single_seconds if problem.writes_triangle else inf
    allows_vendor = not limits.forbids_vendor or single.plan == VENDOR
    is_worthwhile = vendor_seconds >= MIN_VENDOR_SECONDS or not allows_vendor
    for seconds, margin, plan in plans if is_worthwhile else ():
        if plan == single.plan:  # one launch for all matrices is not slower than one launch for each matrix
            seconds = min(seconds, single_seconds)
        if seconds > min((1 - margin) * vendor_seconds if allows_vendor else inf, single_seconds):
            continue
        gain = f"predicted {vendor_seconds / seconds:.2f}x the vendor's batch"
        for count in stack_group_sizes(problem, plan):
            shared = "one launch" if count == problem.batch else f"launches for {count} of them"
            yield Decision(plan, replace(problem, batch=count), f"{shared} for {problem.batch} products, {gain}")
    if allows_vendor and (single_seconds > (1 - calibration.margin) * vendor_seconds or not is_worthwhile):
        yield Decision(VENDOR, problem, f"the vendor multiplies {problem.batch} matrices as one batch")


def _plans_for_stack(problem: Problem, calibration: Calibration, limits: Limits) -> Iterator[StackPlan]:
    """Yield the plans without levels that may compute a stack by emulation.

    The leaf `tile` is no candidate: on an H200, its float32 stacks take 1.0 times the vendor's time.
    """
    tiled_m, tiled_n = (-(-side // TILE_SIDE) * TILE_SIDE for side in (problem.m, problem.n))
    if problem.m * problem.n < MIN_TILE_SHARE * tiled_m * tiled_n:
        return
    for plan in filter_candidates(problem, calibration):
        growth = expected_error_growth(plan, problem.dtype, False)
        if plan.levels or not plan.uses_emulation or not limits.allows_plan(plan, growth):
            continue
        if problem.writes_triangle and not plan.leaf_use.leaf.mirrors:
            continue
        with suppress(PlanError):
            seconds = quick_prediction(plan, problem, calibration).predicted_seconds
            yield StackPlan(seconds, STACK_MARGIN + required_margin(plan, problem, calibration), plan)


def stack_group_sizes(problem: Problem, plan: Plan) -> list[int]:
    """Return the possible numbers of products in a group, the best first; all groups of a stack have the same number.

    Larger groups are faster, because multiprocessors are idle at the start and at the end of each group.
    """
    leaf, itemsize = plan.leaf_use.leaf, problem.itemsize
    divisors = [count for count in range(problem.batch, 0, -1) if problem.batch % count == 0]
    small = [x for x in divisors if leaf.workspace_bytes(itemsize, *problem.size, x) <= MAX_GROUP_BYTES]
    return small or divisors[-1:]


def _stack_and_vendor_seconds(problem: Problem, chip: Chip) -> tuple[float, float]:
    """Return the predicted seconds of the stack's launch and of the vendor's batched product."""
    (op,) = (op for op in record_operations(WARPGROUP_PLAN, problem).ops if isinstance(op, GemmOp))
    return stack_seconds(op, chip.multiprocessors), vendor_stack_seconds(op, chip.multiprocessors)


def _seconds_of_single_plan(single: Decision, calibration: Calibration) -> float:
    """Return the predicted seconds of the plan for one matrix.

    For a plan that a certified entry chose, return the vendor's predicted seconds divided by the entry's speedup.
    """
    seconds = {c.plan: c.prediction.predicted_seconds for c in single.candidates}
    if single.plan in seconds:
        return seconds[single.plan]
    assert single.problem is not None
    plan = single.plan if single.measured_speedup is None else VENDOR  # Equation 2 chose a plan without a measurement
    problem = problem_for_ranking(single.problem, calibration.batches)
    return quick_prediction(plan, problem, calibration).predicted_seconds / (single.measured_speedup or 1.0)
