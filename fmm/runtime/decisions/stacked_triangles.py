"""Decide whether one launch computes a stack of products that are their own adjoints.

Without such a launch, a plan is launched for one matrix after the other. All matrices of one launch share the
multiprocessors, so small matrices fill the device too.
"""

from __future__ import annotations

from collections.abc import Iterator

from fmm.config import environment
from fmm.hardware.chip import Chip
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.products.stacked_products import STEP_SECONDS, stack_time, vendor_stack_time
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime.decisions.decide import Decision

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


def is_stackable(problem: Problem, limits: Limits, chip: Chip) -> bool:
    """Return True if one launch may compute the triangles of a stack of these products."""
    is_triangle = problem.writes_triangle and problem.fill == "full" and not problem.element_type.is_complex
    # beta reads the lower triangle of the result's rows
    row_major = any(name == "C" and x.order == "C" for name, x in zip("ABC", problem.layouts, strict=True))
    is_allowed = limits.allows_plan(WARPGROUP_PLAN, 1.0) and not limits.componentwise
    return is_triangle and row_major and is_allowed and not environment.is_disabled()


def stacked_decisions(problem: Problem, single: Decision, chip: Chip) -> Iterator[Decision]:
    """Yield the decisions for the complete stack, the best first; `single` is the decision for one matrix."""
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
