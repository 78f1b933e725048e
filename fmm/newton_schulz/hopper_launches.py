"""The Newton-Schulz iteration of a stack on Hopper's tensor cores, as one launch list.

Each step is three launches for the whole stack. The first two compute symmetric matrices, so one triangle is multiplied
and mirrored:

    A = X X^T                    (X^T X if X is tall)
    P = a I + b A + c A A^T
    Y = P X                      (X P if X is tall)

X and Y exchange their roles after each step. The vendor computes the first and the last product of a step if its whole
product is predicted to be faster. Since P contains a I, no kernel reads X as an addend; the error is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fmm.kernels.cuda.launch_list import LaunchList, LaunchStep, VendorCall
from fmm.kernels.cuda.ops import DeviceView, GemmOp, transposed_view
from fmm.kernels.cuda.products.stacked_products import (
    stack_seconds,
    stack_view,
    stacked_gemm,
    stacked_launch,
    vendor_stack_seconds,
)
from fmm.kernels.cuda.target import ALLOCATOR_ALIGNMENT
from fmm.kernels.plans.memory_layout import round_up
from fmm.kernels.plans.plan import VENDOR
from fmm.newton_schulz.coefficients import StepCoefficients
from fmm.problem import Problem

SIDE_UNIT = 8  # sides of matrices must be multiples of this number: the copy engine writes 16 bytes at a time


@dataclass(frozen=True)
class Stack:
    """A contiguous stack of row-major matrices of 16-bit numbers."""

    count: int
    rows: int
    cols: int
    dtype: str

    @property
    def small_side(self) -> int:
        return min(self.rows, self.cols)

    @property
    def symmetric_bytes(self) -> int:
        """Bytes of the symmetric matrices, one for each matrix of the stack, rounded up to the alignment of
        allocators."""
        return round_up(2 * self.count * self.small_side**2, ALLOCATOR_ALIGNMENT[0])


@lru_cache(maxsize=1024)
def iteration_launches(
    stack: Stack, coefficients: tuple[StepCoefficients, ...], multiprocessors: int
) -> LaunchList | None:
    """Return the launches of all steps; None if the kernel cannot compute them.

    Base "A" holds the scaled stack, and the workspace holds the symmetric matrices. The result is in base "C" if the
    number of steps is odd, else in base "A".
    """
    steps: list[LaunchStep] = []
    for op, shift in _iteration_products(stack, coefficients):
        if not op.beta and vendor_stack_seconds(op, multiprocessors) < stack_seconds(op, multiprocessors):
            steps.append(VendorCall(op.as_vendor_gemm, "cuBLAS"))
            continue
        launch = stacked_launch(op, multiprocessors, shift)
        if launch is None:
            return None
        # The kernel begins with work that needs no operand: it may start before the previous launch has ended.
        steps.append(replace(launch, overlaps=bool(steps)))
    problem = Problem(stack.rows, stack.cols, stack.cols, stack.dtype, batch=stack.count)
    workspace = 2 * stack.symmetric_bytes
    return LaunchList(VENDOR, problem, tuple(steps), (0,) * len(steps), workspace, ALLOCATOR_ALIGNMENT)


def _iteration_products(stack: Stack, coefficients: Sequence[StepCoefficients]) -> Iterator[tuple[GemmOp, float]]:
    """Yield the products of all steps in order, each with the multiple of the identity that is added to the product."""
    count, rows, cols, dtype = stack.count, stack.rows, stack.cols, stack.dtype
    is_tall, side = rows > cols, stack.small_side
    x, y = (stack_view(base, rows, cols, dtype) for base in "AC")
    gram, polynomial = (stack_view("W", side, side, dtype, i * stack.symmetric_bytes) for i in range(2))
    for a, b, c in coefficients:
        yield stacked_gemm(count, *_gram_factors(x, is_tall), gram, symmetric=True), 0
        # A is symmetric, so A A is A A^T: the same kernel computes both symmetric products.
        factors = _gram_factors(gram, is_tall)
        yield stacked_gemm(count, *factors, polynomial, alpha=c, beta=b, addend=gram, symmetric=True), a
        yield stacked_gemm(count, *((x, polynomial) if is_tall else (polynomial, x)), y), 0
        x, y = y, x


def _gram_factors(x: DeviceView, is_tall: bool) -> tuple[DeviceView, DeviceView]:
    """Return the factors of the smaller of X X^T and X^T X."""
    return (transposed_view(x), x) if is_tall else (x, transposed_view(x))


# A step by the library's own products takes at least this time: five launches of the host.
LIBRARY_STEP_SECONDS = 4e-5
# Smallest ratio of the predicted time of the vendor's products to the time of the launches. The library's step takes
# longer than its products, because beta needs a copy of the addend. On an H200, 24 random stacks with ratios of 0.91 to
# 1.2 are 1.1 to 6.8 times as fast as torch's products.
MIN_TIME_RATIO = 0.9


def is_faster(stack: Stack, multiprocessors: int) -> bool:
    """Return True if the launches are predicted to be faster than the library's products."""
    times = [
        (stack_seconds(op, multiprocessors), vendor_stack_seconds(op, multiprocessors), bool(op.beta))
        for op, _ in _iteration_products(stack, ((1.0, 1.0, 1.0),))
    ]
    own = sum(time if has_addend else min(time, vendor) for time, vendor, has_addend in times)
    vendor = sum(vendor for _, vendor, _ in times)
    return own <= LIBRARY_STEP_SECONDS or vendor >= MIN_TIME_RATIO * own
