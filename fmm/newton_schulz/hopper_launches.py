"""The Newton-Schulz iteration of a stack on Hopper's tensor cores, as one launch list.

Each step is three launches for the whole stack. The first two compute symmetric matrices, so one triangle is multiplied
and mirrored:

    A = X X^T                    (X^T X if X is tall)
    P = a I + b A + c A A^T
    Y = P X                      (X P if X is tall)

X and Y exchange their roles after each step. The vendor computes a product without an addend if its whole product is
predicted to be faster. Since P contains a I, no kernel reads X as an addend; the error is the same.

Two steps of a long matrix are one pair, which multiplies X once instead of twice. All polynomials of A commute, so the
products in the second line are symmetric too:

    A = X X^T,    P = a I + b A + c A A
    B = P (A P),  S = a' I + b' B + c' B B    (B is the A of the second step)
    Y = (S P) X

For m rows and k columns, a pair takes 3 m^2 k + 5 m^3 multiply-adds, and two steps take 6 m^2 k + 2 m^3. Rounding can
make small eigenvalues of B negative, where those of X X^T are not. A third step without a new X X^T would magnify them
without a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

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


# Largest ratio of the predicted time of a pair to the time of two steps; the predicted times have an error of 6 %.
MAX_PAIR_TIME_RATIO = 0.95
# The coefficients of one step, or of a pair of steps. Each unit reads X once at its start, and writes Y at its end.
StepUnit = tuple[StepCoefficients, ...]
SAMPLE_STEP = (1.0, 1.0, 1.0)  # coefficients for predictions of the time, which depends on no coefficient but zero


@lru_cache(maxsize=1024)
def step_units(stack: Stack, coefficients: tuple[StepCoefficients, ...], multiprocessors: int) -> tuple[StepUnit, ...]:
    """Return the steps in pairs if a pair is predicted to be clearly faster than two steps, else one by one.

    The last of an odd number of steps is alone.
    """
    pair_seconds, two_seconds = (
        sum(_product_seconds(op, multiprocessors) for op, _ in _iteration_products(stack, units))
        for units in (((SAMPLE_STEP, SAMPLE_STEP),), ((SAMPLE_STEP,), (SAMPLE_STEP,)))
    )
    length = 2 if pair_seconds < MAX_PAIR_TIME_RATIO * two_seconds else 1
    return tuple(coefficients[i : i + length] for i in range(0, len(coefficients), length))


def _product_seconds(op: GemmOp, multiprocessors: int) -> float:
    """Return the predicted time of a product by the kernel, or by the vendor if the vendor is faster."""
    seconds = stack_seconds(op, multiprocessors)
    return seconds if op.beta else min(seconds, vendor_stack_seconds(op, multiprocessors))


@lru_cache(maxsize=1024)
def iteration_launches(stack: Stack, units: tuple[StepUnit, ...], multiprocessors: int) -> LaunchList | None:
    """Return the launches of all steps; None if the kernel cannot compute them.

    Base "A" holds the scaled stack, and the workspace holds the symmetric matrices. The result is in base "C" if the
    number of units is odd, else in base "A".
    """
    steps: list[LaunchStep] = []
    for op, shift in _iteration_products(stack, units):
        if not op.beta and vendor_stack_seconds(op, multiprocessors) < stack_seconds(op, multiprocessors):
            steps.append(VendorCall(op.as_vendor_gemm, "cuBLAS"))
            continue
        launch = stacked_launch(op, multiprocessors, shift)
        if launch is None:
            return None
        # The kernel begins with work that needs no operand: it may start before the previous launch has ended.
        steps.append(replace(launch, overlaps=bool(steps)))
    problem = Problem(stack.rows, stack.cols, stack.cols, stack.dtype, batch=stack.count)
    workspace = (1 + max(map(len, units), default=1)) * stack.symmetric_bytes
    return LaunchList(VENDOR, problem, tuple(steps), (0,) * len(steps), workspace, ALLOCATOR_ALIGNMENT)


def _iteration_products(stack: Stack, units: Sequence[StepUnit]) -> Iterator[tuple[GemmOp, float]]:
    """Yield the products of all steps in order, each with the multiple of the identity that is added to the product."""
    x, y = (stack_view(base, stack.rows, stack.cols, stack.dtype) for base in "AC")
    is_tall, side = stack.rows > stack.cols, stack.small_side
    gram, first, second = (stack_view("W", side, side, stack.dtype, i * stack.symmetric_bytes) for i in range(3))

    def symmetric_product(left: DeviceView, right: DeviceView, dest: DeviceView, **options: Any) -> GemmOp:
        """Return the product of two symmetric matrices that commute, by the kernel that also computes X X^T."""
        factors = (transposed_view(left), right) if is_tall else (left, transposed_view(right))
        return stacked_gemm(stack.count, *factors, dest, symmetric=True, **options)

    for unit in units:
        yield stacked_gemm(stack.count, *_gram_factors(x, is_tall), gram, symmetric=True), 0
        for i, (a, b, c) in enumerate(unit):
            polynomial = second if i else first
            if i:  # B = P (A P)
                yield symmetric_product(gram, first, second), 0
                yield symmetric_product(first, second, gram), 0
            yield symmetric_product(gram, gram, polynomial, alpha=c, beta=b, addend=gram), a
        if len(unit) == 2:
            polynomial = gram
            yield symmetric_product(second, first, polynomial), 0
        yield stacked_gemm(stack.count, *((x, polynomial) if is_tall else (polynomial, x)), y), 0
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
        for op, _ in _iteration_products(stack, ((SAMPLE_STEP,),))
    ]
    own = sum(time if has_addend else min(time, vendor) for time, vendor, has_addend in times)
    vendor = sum(vendor for _, vendor, _ in times)
    return own <= LIBRARY_STEP_SECONDS or vendor >= MIN_TIME_RATIO * own
