"""The Newton-Schulz iteration by products of arrays: fmm's, or the library's own where fmm's cannot win."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from fmm import api
from fmm.newton_schulz.coefficients import StepCoefficients

# A function that returns Y = a X + (b A + c A A) X with A = X X^T for a wide X.
Step = Callable[[Any, float, float, float], Any]


def iterate(x: Any, coefficients: Sequence[StepCoefficients], step: Step) -> Any:
    """Return the result of all steps; tall matrices are multiplied as their transposed views, without a copy."""
    is_tall = x.shape[-2] > x.shape[-1]
    y = _transposed(x) if is_tall else x
    for a, b, c in coefficients:
        y = step(y, a, b, c)
    return _transposed(y) if is_tall else y


def _transposed(x: Any) -> Any:
    return x.mT if hasattr(x, "mT") else x.swapaxes(-1, -2)


def step_by_plans(x: Any, a: float, b: float, c: float) -> Any:
    """Return one step by fmm's products; each call decides whether a plan or the library multiplies."""
    gram = api.gram(x, rows=True)
    polynomial = gram.clone() if hasattr(gram, "clone") else gram.copy()
    # A is symmetric, so A A is A A^T, of which BLAS's syrk computes one triangle.
    api.gram(gram, out=polynomial, rows=True, alpha=c, beta=b)
    return api.gemm(polynomial, x, x, beta=a)


def step_by_torch(x: Any, a: float, b: float, c: float) -> Any:
    """Return one step by torch's own products, which also record gradients; x is a matrix or a stack of matrices."""
    torch = sys.modules["torch"]
    add_product = torch.addmm if x.ndim == 2 else torch.baddbmm
    gram = x @ x.mT
    polynomial = add_product(gram, gram, gram, beta=b, alpha=c)
    return add_product(x, polynomial, x, beta=a)
