"""The Newton-Schulz iteration of a stack on Hopper's tensor cores, as one launch list.

Each step computes Y = a X + b A X + c A A X with A = X X^T (X^T X if X is tall), by three kernel launches, each for all
matrices of the stack. The launches compute A, then P = a I + b A + c A A^T, then Y = P X (X P if X is tall). Only one
triangle of A and P, which are symmetric, is multiplied, and then mirrored. The next step reads Y and overwrites X.
cuBLAS computes a product without an addend if the full product by cuBLAS is predicted to be faster than one triangle by
the kernel. The term a I of P replaces an addition of a X to the product P X, and causes a rounding error of the same
size.

For a long matrix (one side much larger than the other), two steps form a pair. A pair multiplies by X twice; two single
steps multiply by X four times. A pair computes A and P of its first step, then B = P A P (the A of its second step),
then S (the P of its second step), then Y = (S P) X. P, B and S are polynomials of the symmetric matrix A, so they
commute, and S P is symmetric. For m rows and k columns, a pair takes 3 m^2 k + 5 m^3 flops, and two steps take 6 m^2 k
+ 2 m^3 flops, since half of a symmetric matrix is computed.

Three or more steps are never combined, since rounding errors would grow in each further step. The eigenvalues of X X^T
are never negative, but rounding can make small eigenvalues of P A P negative. A third step without a new X X^T would
multiply an eigenvalue x of P A P by (a + b x + c x^2)^2. With coefficients a > 1, b < 0 and c > 0, (a + b x + c x^2)^2
is above 1 for all negative x and grows with |x|.
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

# sides of matrices must be multiples of this number, because the copy engine (TMA) needs rows of a multiple of 16 bytes
SIDE_UNIT = 8


@dataclass(frozen=True)
class Stack:
    """A contiguous stack of row-major matrices of 16-bit numbers."""

    count: int
    rows: int
    cols: int
    dtype: str

    @property
    def smaller_matrix_side(self) -> int:
        return min(self.rows, self.cols)

    @property
    def symmetric_matrix_bytes(self) -> int:
        """Bytes of one symmetric matrix for each matrix of the stack, rounded up to the alignment of allocators."""
        return round_up(2 * self.count * self.smaller_matrix_side**2, ALLOCATOR_ALIGNMENT[0])


# If (predicted time of a pair) / (predicted time of two single steps) is at most this number, steps run in pairs.
# MAX_PAIR_TIME_RATIO is below 1, because predicted times have an error of 6 %.
MAX_PAIR_TIME_RATIO = 0.95
# The coefficients (a, b, c) of one step, or of two steps that run as a pair.
StepUnit = tuple[StepCoefficients, ...]
SAMPLE_STEP = (1.0, 1.0, 1.0)  # coefficients for predictions of the time: any nonzero coefficients have the same time


@lru_cache(maxsize=1024)
def group_steps_into_pairs(
    stack: Stack, coefficients: tuple[StepCoefficients, ...], multiprocessors: int
) -> tuple[StepUnit, ...]:
    """Return the coefficients of pairs of steps if pairs are predicted to be clearly faster, else of single steps.

    If the number of steps is odd, the last step is not part of a pair.
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
    """Return the launches of all steps; None if fmm's kernel cannot compute one of the products.

    The launches read the scaled stack at base address "A" of the launch list; the workspace contains the symmetric
    matrices. Each element of `units` is one step or a pair of steps. The result is at base address "C" if the number of
    single steps and pairs is odd, else at "A".
    """
    steps: list[LaunchStep] = []
    for op, shift in _iteration_products(stack, units):
        if not op.beta and vendor_stack_seconds(op, multiprocessors) < stack_seconds(op, multiprocessors):
            steps.append(VendorCall(op.as_vendor_gemm, "cuBLAS"))
            continue
        launch = stacked_launch(op, multiprocessors, shift)
        if launch is None:
            return None
        # The kernel may start before the previous launch has ended, since its first instructions need no operand.
        steps.append(replace(launch, overlaps=bool(steps)))
    problem = Problem(stack.rows, stack.cols, stack.cols, stack.dtype, batch=stack.count)
    workspace = (1 + max(map(len, units), default=1)) * stack.symmetric_matrix_bytes
    return LaunchList(VENDOR, problem, tuple(steps), (0,) * len(steps), workspace, ALLOCATOR_ALIGNMENT)


def _iteration_products(stack: Stack, units: Sequence[StepUnit]) -> Iterator[tuple[GemmOp, float]]:
    """Yield the products of the iteration in order, each with the factor a of an identity matrix.

    The kernel adds a times the identity matrix to the product; a is 0 for products without this term.
    """
    x, y = (stack_view(base, stack.rows, stack.cols, stack.dtype) for base in "AC")
    is_tall, side = stack.rows > stack.cols, stack.smaller_matrix_side
    gram, first, second = (stack_view("W", side, side, stack.dtype, i * stack.symmetric_matrix_bytes) for i in range(3))

    def symmetric_product(left: DeviceView, right: DeviceView, dest: DeviceView, **options: Any) -> GemmOp:
        """Return the operation that multiplies two commuting symmetric matrices; only one triangle is computed."""
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
    """Return the two factors of the gram product: X^T and X if X is tall, else X and X^T."""
    return (transposed_view(x), x) if is_tall else (x, transposed_view(x))


# Lower bound of the time of a step by the library's own products: the host needs this time to launch five kernels.
LIBRARY_STEP_SECONDS = 4e-5
# The launches are used if (predicted time of the vendor's products) / (predicted time of the launches) is at least this
# number. MIN_TIME_RATIO is below 1, because the library also copies an addend in each step, and the predicted time does
# not include this copy. The number was chosen on an H200 by 24 random stacks whose predicted ratio is
# from 0.91 to 1.2: measured, the launches were faster than torch's products for all of them, 1.1 to 6.8 times.
MIN_TIME_RATIO = 0.9


def is_faster_by_launches(stack: Stack, multiprocessors: int) -> bool:
    """Return True if one step by the launches is predicted to be faster than one step by the library's products."""
    times = [
        (stack_seconds(op, multiprocessors), vendor_stack_seconds(op, multiprocessors), bool(op.beta))
        for op, _ in _iteration_products(stack, ((SAMPLE_STEP,),))
    ]
    own = sum(time if has_addend else min(time, vendor) for time, vendor, has_addend in times)
    vendor = sum(vendor for _, vendor, _ in times)
    return own <= LIBRARY_STEP_SECONDS or vendor >= MIN_TIME_RATIO * own
