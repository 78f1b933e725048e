"""Decide whether the launches of a plan compute a whole stack of products, or a group of its matrices at a time.

Without such launches, a plan is launched for one matrix after the other. All matrices of one launch share the
multiprocessors, so small matrices fill the device too. The vendor's batched product is the rival in both cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import inf

from fmm.config import environment
from fmm.hardware.chip import Chip
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.products.stacked_products import STEP_SECONDS, stack_time, vendor_stack_time
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, filter_candidates, required_margin
from fmm.perfmodel.predict import quick_prediction
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Problem
from fmm.runtime.decisions.calibration_in_force import calibration_in_force
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.devices import Device

WARPGROUP_PLAN, SMALL_PLAN = Plan.parse("tile"), Plan.parse("small")
STACKED_TYPES = ("bfloat16", "float16")  # types whose triangles the warpgroup kernel mirrors
MIN_MATMUL_GAIN = 1.1  # smallest predicted gain for which the launch replaces the vendor in fmm.matmul(a, a^T)
MAX_SMALL_COUNT = 65535  # largest third dimension of a grid, which counts the products of the kernel for small products
# Largest number of multiply-adds of a stack for the kernel for small products, which uses no tensor cores. On an H100,
# 1000 products of bfloat16 matrices of side 100 take it 215 us, and the vendor 38 us and a pass of the mirror.
MAX_SMALL_MULTIPLY_ADDS = 1 << 27
# Largest side of matrices that are multiplied as one batch by the vendor if no launch of fmm computes the stack. Larger
# matrices fill the device one by one.
MAX_BATCHED_SIDE = 1024


def is_stackable(problem: Problem, limits: Limits) -> bool:
    """Return True if the launches of a plan may compute several products of a stack of these products."""
    if environment.is_disabled() or limits.componentwise or problem.element_type.exact:
        return False
    if not problem.writes_triangle:
        return not problem.beta and problem.prepared_side is None
    is_triangle = problem.fill == "full" and not problem.element_type.is_complex
    # beta reads the lower triangle of the result's rows
    row_major = any(name == "C" and x.order == "C" for name, x in zip("ABC", problem.layouts, strict=True))
    return is_triangle and row_major and limits.allows_plan(WARPGROUP_PLAN, 1.0)


def stacked_decisions(problem: Problem, single: Decision, limits: Limits, device: Device) -> Iterator[Decision]:
    """Yield decisions for groups of the stack's products, the best first; `single` is the decision for one matrix.

    The problem of a decision has the number of products of a group, which divides the number of products of the stack.
    """
    assert device.chip is not None
    if problem.writes_triangle:
        yield from _triangle_decisions(problem, single, device.chip)
    else:
        yield from _product_decisions(problem, single, limits, device, device.chip)


def _triangle_decisions(problem: Problem, single: Decision, chip: Chip) -> Iterator[Decision]:
    if problem.dtype in STACKED_TYPES and chip.has_warpgroups:
        time, vendor_time = _stack_times(problem, chip)
        if time * STEP_SECONDS < problem.batch * _single_seconds(single):
            gain = f"{vendor_time / time:.2f}x the vendor"
            why = f"one launch for a triangle of each of {problem.batch} products, predicted {gain}"
            yield Decision(WARPGROUP_PLAN, problem, why)
    n, k = problem.m, problem.k
    is_small = problem.batch <= MAX_SMALL_COUNT and problem.batch * n * n * k <= MAX_SMALL_MULTIPLY_ADDS
    if single.plan == SMALL_PLAN and is_small:
        yield Decision(SMALL_PLAN, problem, f"one launch for a triangle of each of {problem.batch} products")
    if single.plan in (SMALL_PLAN, VENDOR) and n <= MAX_BATCHED_SIDE:
        yield Decision(VENDOR, problem, f"the vendor multiplies {problem.batch} small matrices as one batch")


def is_faster_than_vendor(decision: Decision, chip: Chip | None) -> bool:
    """Return True if the launch of a stack is predicted to be faster than the vendor's batched product."""
    if decision.plan != WARPGROUP_PLAN or decision.problem is None or chip is None:
        return False
    time, vendor_time = _stack_times(decision.problem, chip)
    return vendor_time >= MIN_MATMUL_GAIN * time


def _stack_times(problem: Problem, chip: Chip) -> tuple[float, float]:
    """Return the predicted times of the stack's launch and of the vendor's batched product, in the same unit."""
    (op,) = (op for op in record_operations(WARPGROUP_PLAN, problem).ops if isinstance(op, GemmOp))
    return stack_time(op, chip.multiprocessors), vendor_stack_time(op, chip.multiprocessors)


def _single_seconds(single: Decision) -> float:
    """Return the predicted seconds of the plan for one matrix.

    A plan of a certified entry has no predicted time; its measured speedup divides the vendor's time.
    """
    seconds = {c.plan: c.prediction.predicted_seconds for c in single.candidates}
    if single.plan in seconds:
        return seconds[single.plan]
    return seconds.get(VENDOR, float("inf")) / (single.measured_speedup or 1.0)


# ---- products with two different operands

CACHE_SHARE_OF_PLANES = 0.75  # largest share of the L2 cache that the planes of a group take; operands pass through too


def _product_decisions(
    problem: Problem, single: Decision, limits: Limits, device: Device, chip: Chip
) -> Iterator[Decision]:
    """Yield the fastest plan without levels for groups, if it beats the vendor's batch; else the vendor's batch.

    Yield nothing if the plan of one matrix, launched for one matrix after the other, is predicted to be the fastest.
    """
    calibration = calibration_in_force(problem, limits, device)
    if calibration is None or problem.dtype not in calibration.rates:
        return
    vendor_seconds = quick_prediction(VENDOR, problem, calibration).predicted_seconds
    single_seconds = problem.batch * _single_seconds(single) if single.plan != VENDOR else inf
    for seconds, margin, plan in sorted(_stacked_plans(problem, calibration, limits), key=lambda x: x[0]):
        if seconds > min((1 - margin) * vendor_seconds, single_seconds):
            break
        gain = f"{vendor_seconds / seconds:.2f}x the vendor's batch"
        for count in group_sizes(problem, plan, chip):
            why = f"{count} of {problem.batch} products in each launch, predicted {gain}"
            yield Decision(plan, replace(problem, batch=count), why)
    if single.plan != VENDOR and single_seconds > (1 - calibration.margin) * vendor_seconds:
        yield Decision(VENDOR, problem, f"the vendor multiplies {problem.batch} matrices as one batch")


def _stacked_plans(problem: Problem, calibration: Calibration, limits: Limits) -> Iterator[tuple[float, float, Plan]]:
    """Yield the predicted seconds, the required margin and the plan, for the plans that may compute a stack."""
    for plan in filter_candidates(problem, calibration):
        growth = expected_error_growth(plan, problem.dtype, False)
        if plan.levels or not plan.uses_emulation or not limits.allows_plan(plan, growth):
            continue
        with suppress(PlanError):
            seconds = quick_prediction(plan, problem, calibration).predicted_seconds
            yield seconds, required_margin(plan, problem, calibration), plan


def group_sizes(problem: Problem, plan: Plan, chip: Chip) -> list[int]:
    """Return the numbers of products in a group, the best first; all groups of a stack have the same number.

    The planes of a group are written by one launch and read by the next, so they are to fit into the L2 cache.
    """
    divisors = [count for count in range(problem.batch, 0, -1) if problem.batch % count == 0]
    leaf, itemsize = plan.leaf_use.leaf, problem.itemsize
    most = CACHE_SHARE_OF_PLANES * chip.cache
    fitting = [x for x in divisors if leaf.workspace_bytes(itemsize, *problem.size, x) <= most]
    return fitting or divisors[-1:]
