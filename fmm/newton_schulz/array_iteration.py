"""The Newton-Schulz iteration as products of arrays, by fmm.gram and fmm.gemm or by torch's own products."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from fmm import api
from fmm.newton_schulz.coefficients import StepCoefficients

# A function step(X, a, b, c) that returns Y = a X + (b A + c A A) X with A = X X^T; X has at least as many columns as
# rows.
Step = Callable[[Any, float, float, float], Any]


def run_steps(x: Any, coefficients: Sequence[StepCoefficients], step: Step) -> Any:
    """Return the result of all steps; a matrix with more rows than columns is replaced by its transposed view."""
    is_tall = x.shape[-2] > x.shape[-1]
    y = _transposed(x) if is_tall else x
    for a, b, c in coefficients:
        y = step(y, a, b, c)
    return _transposed(y) if is_tall else y


def _transposed(x: Any) -> Any:
    return x.mT if hasattr(x, "mT") else x.swapaxes(-1, -2)


def iteration_step_by_fmm(x: Any, a: float, b: float, c: float) -> Any:
    """Return the result of one step by fmm.gram and fmm.gemm; each call chooses a plan or the library's product."""
    gram = api.gram(x, rows=True)
    polynomial = gram.clone() if hasattr(gram, "clone") else gram.copy()
    # A is symmetric, so A A = A A^T. fmm.gram computes only one triangle of A A^T, for example with BLAS's syrk.
    api.gram(gram, out=polynomial, rows=True, alpha=c, beta=b)
    return api.gemm(polynomial, x, x, beta=a)


def iteration_step_by_torch(x: Any, a: float, b: float, c: float) -> Any:
    """Return the result of one step by torch's own products, which also record gradients."""
    torch = sys.modules["torch"]
    add_product = torch.addmm if x.ndim == 2 else torch.baddbmm
    gram = x @ x.mT
    polynomial = add_product(gram, gram, gram, beta=b, alpha=c)
    return add_product(x, polynomial, x, beta=a)
