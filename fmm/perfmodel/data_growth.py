"""Estimate the error growth of a plan on two matrices: the plan's expected error divided by the vendor's error.

Errors are measured in the Frobenius norm. A leaf product is modelled as a classical product in which every partial sum
is rounded. The variance of a leaf product's error is therefore the sum of the squares of all partial sums. The squares
of the partial sums are estimated by products of the matrices with random vectors. The estimate includes the effects of
sums of blocks: cancellation, large rows that are added to small rows, and differences of positive numbers, which have
both signs. fmm.perfmodel.stability.expected_error_growth needs no data and assumes independent random numbers of equal
size. The model leaves out the rounding of sums of blocks of A and B (1/k of the error), the dependence of rounding
errors in one product, and rows and columns beyond the last whole block.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import isfinite, prod, sqrt
from typing import Any

import numpy as np

from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.plans.level import Level
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.stability import plan_schemes

Array = Any
DataTransform = Scheme | None  # a level's scheme; None for a level of three real products
# Number of terms that a product adds up before a new partial sum begins; complex products have half this number. (A
# complex product has the errors of its four real products, and each real product has its own partial sums.)
PARTIAL_SUM_TERMS = 256
SAMPLED_SUM_STEP = 32  # number of terms between two estimated partial sums
RANDOM_VECTOR_COUNT = 4  # number of random vectors that one estimate of squared partial sums uses


def error_growth_on_data(
    plan: Plan | str, a: Array, b: Array, partial_sum_terms: int = PARTIAL_SUM_TERMS, seed: int = 0
) -> float:
    """Return the ratio of the plan's expected error on NumPy matrices A and B to the classical product's error.

    `partial_sum_terms` is the number of terms in a partial sum of the vendor's product; 0 if all k terms are one sum.
    Raise ValueError if A and B are no finite matrices with equal inner sides.
    """
    plan = Plan.parse(plan) if isinstance(plan, str) else plan
    a, b = (_scaled_to_one(np.asarray(x)) for x in (a, b))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"A and B must be matrices with equal inner sides, not of the shapes {a.shape} and {b.shape}")
    stages = data_transforms_of_plan(plan)
    m, k, n = (prod(s.size[axis] for s in stages if s) for axis in range(3))
    a, b = a[: len(a) // m * m, : a.shape[1] // k * k], b[: len(b) // k * k, : b.shape[1] // n * n]
    rng = np.random.default_rng(seed)
    whole = _variance_of_error((), a, b, partial_sum_terms, rng)
    own = plan.leaf_use.leaf.relative_error * prod(x.error_growth for x in plan.levels if not _multiplies_real_parts(x))
    return own * sqrt(_variance_of_error(stages, a, b, partial_sum_terms, rng) / whole) if whole else own


def _scaled_to_one(x: Array) -> Array:
    """Return the array divided by its largest magnitude, since squares of large numbers would overflow."""
    largest = float(abs(x).max(initial=0))
    if not isfinite(largest):
        raise ValueError("the error growth of inf and NaN is not defined")
    return x / largest if largest else x


def data_transforms_of_plan(plan: Plan) -> tuple[DataTransform, ...]:
    """Return a DataTransform for each level that adds up blocks or splits complex numbers, outermost first."""
    found: list[DataTransform] = []
    for level in plan.levels:
        found += [None] if _multiplies_real_parts(level) else []
        found += plan_schemes(Plan((level,), VENDOR.leaf))
    return tuple(found)


def _multiplies_real_parts(level: Level) -> bool:
    """Return True if the level multiplies the real and imaginary parts of complex numbers."""
    return level.dtype_of_products("complex128") != "complex128"


def _variance_of_error(stages: Sequence[DataTransform], a: Array, b: Array, partial_sum_terms: int, rng: Any) -> float:
    """Return the variance of C's error in units of the squared unit roundoff, summed over the entries of C."""
    if not stages:
        return _classical_error_variance(a, b, partial_sum_terms, rng)
    first, rest = stages[0], stages[1:]
    if first is None:
        pairs = (a.real, b.real), (a.imag, b.imag), (a.real + a.imag, b.real + b.imag)
        p, q, r = (_variance_of_error(rest, *pair, partial_sum_terms, rng) for pair in pairs)
        return 2 * p + 2 * q + r  # the real part of C is P - Q, the imaginary part is R - P - Q
    lefts, rights = _split_blocks(a, first.m, first.k), _split_blocks(b, first.k, first.n)
    additions = [sum(1 for c in row if c) - 1 for row in first.w]
    columns = zip(*(zip(*x, strict=True) for x in (first.u, first.v, first.w)), strict=True)
    found = 0.0
    for u, v, w in columns:
        left, right = _linear_combination(u, lefts), _linear_combination(v, rights)
        squares = [float(c) ** 2 for c in w]
        found += sum(squares) * _variance_of_error(rest, left, right, partial_sum_terms, rng)
        vectors = rng.choice((-1.0, 1.0), (right.shape[1], RANDOM_VECTOR_COUNT))
        size = _estimated_squared_norm(left @ (right @ vectors))
        found += size * sum(x * n for x, n in zip(squares, additions, strict=True))
    return found


def _split_blocks(x: Array, rows: int, cols: int) -> list[Array]:
    return [block for band in np.vsplit(x, rows) for block in np.hsplit(band, cols)]


def _linear_combination(coefficients: Sequence[Any], blocks: Sequence[Array]) -> Array:
    terms = [float(c) * x for c, x in zip(coefficients, blocks, strict=True) if c]
    return sum(terms[1:], terms[0])


def _classical_error_variance(a: Array, b: Array, partial_sum_terms: int, rng: Any) -> float:
    """Return the variance of a classical product's error: the estimated sum of all squared partial sums."""
    if a.dtype.kind == "c":
        parts = product((a.real, a.imag), (b.real, b.imag))
        half = (partial_sum_terms + 1) // 2  # rounded up, since 0 would mean one sum of all k terms
        return sum(_classical_error_variance(x, y, half, rng) for x, y in parts)
    k = a.shape[1]
    length = partial_sum_terms or max(k, 1)
    right = b @ rng.choice((-1.0, 1.0), (b.shape[1], RANDOM_VECTOR_COUNT))
    total = np.zeros((len(a), RANDOM_VECTOR_COUNT))
    found = 0.0
    for start in range(0, k, length):
        part, before = np.zeros_like(total), 0.0
        end = min(start + length, k)
        for at in range(start, end, SAMPLED_SUM_STEP):
            terms = min(SAMPLED_SUM_STEP, end - at)
            part = part + a[:, at : at + terms] @ right[at : at + terms]
            after = _estimated_squared_norm(part)
            found += terms / 2 * (before + after)
            before = after
        total = total + part
        found += _estimated_squared_norm(total) if partial_sum_terms else 0.0
    return found


def _estimated_squared_norm(x: Array) -> float:
    return float((np.abs(x) ** 2).sum()) / RANDOM_VECTOR_COUNT
