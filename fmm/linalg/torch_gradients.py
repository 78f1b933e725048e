"""Gradients of the solvers for torch, by functions that have gradients too, so that second derivatives exist."""

from __future__ import annotations

from typing import Any

import torch

from fmm import api
from fmm.linalg.cholesky_qr import qr_of_tall_stacks
from fmm.linalg.cholesky_recursion import cholesky_of_stacks
from fmm.linalg.solver_library import torch_solvers
from fmm.linalg.triangular_recursion import TriangularForm, solve_triangular_without_gradient


class TriangularSolution(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of a triangular system a x = b or x a = b."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, form: TriangularForm, limit: float | None) -> Any:
        """Return x."""
        x = solve_triangular_without_gradient(torch_solvers(), a, b, form, limit)
        ctx.save_for_backward(a, x)
        ctx.form, ctx.limit, ctx.shape_of_b = form, limit, b.shape
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Return the gradients of a and b, from the gradient g of x.

        For a x = b, the gradient of b is a^-H g, and the gradient of a is the triangle of -(a^-H g) x^H.
        """
        (a, x), form, limit = ctx.saved_tensors, ctx.form, ctx.limit
        of_b = TriangularSolution.apply(a.mH, gradient, form._replace(lower=not form.lower), limit)
        of_a = None
        if ctx.needs_input_grad[0]:
            factors = (-of_b, x.mH) if form.left else (-x.mH, of_b)
            product = api.matmul(*factors, max_error_growth=limit)
            offset = int(form.unit_diagonal)
            of_a = (product.tril(-offset) if form.lower else product.triu(offset)).sum_to_size(a.shape)
        return of_a, of_b.sum_to_size(ctx.shape_of_b), None, None


class CholeskyFactor(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of the lower Cholesky factor."""

    @staticmethod
    def forward(ctx: Any, a: Any, limit: float | None) -> Any:
        """Return the factor; torch's own function computes it if a block has no factor."""
        library = torch_solvers()
        try:
            factor = cholesky_of_stacks(library, a, limit)
        except library.linalg_error:
            factor = library.cholesky(a)
        ctx.save_for_backward(factor)
        ctx.limit = limit
        return factor

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Return the gradient of a from the gradient g of L: the Hermitian part of L^-H P L^-1.

        P is the lower triangle of the matrix L^H g, where g is the gradient of L; P's diagonal is divided by 2.
        """
        (factor,), limit = ctx.saved_tensors, ctx.limit
        product = api.matmul(factor.mH, gradient, max_error_growth=limit).tril()
        product = product - torch.diag_embed(product.diagonal(dim1=-2, dim2=-1)) / 2
        solve, upper, lower = (
            TriangularSolution.apply,
            TriangularForm(False, False, True),
            TriangularForm(True, False, False),
        )
        result = solve(factor, solve(factor.mH, product, upper, limit), lower, limit)
        return (result + result.mH) / 2, None


class QrFactors(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of the reduced QR factors of tall matrices."""

    @staticmethod
    def forward(ctx: Any, a: Any, limit: float | None) -> tuple[Any, Any]:
        """Return Q and R."""
        q, r = qr_of_tall_stacks(torch_solvers(), a, limit)
        ctx.save_for_backward(q, r)
        ctx.limit = limit
        return q, r

    @staticmethod
    def backward(ctx: Any, gradient_q: Any, gradient_r: Any) -> Any:
        """Return the gradient of a, (g_Q + Q S) R^-H, from the gradients g_Q of Q and g_R of R.

        S is the Hermitian matrix with the same lower triangle as R g_R^H - g_Q^H Q, for a = Q R and the gradients g_Q
        and g_R.
        """
        (q, r), limit = ctx.saved_tensors, ctx.limit
        product = api.matmul(r, gradient_r.mH, max_error_growth=limit)
        product = (product - api.matmul(gradient_q.mH, q, max_error_growth=limit)).tril()
        symmetric = product + product.mH
        symmetric = symmetric - torch.diag_embed(symmetric.diagonal(dim1=-2, dim2=-1)) / 2
        right = gradient_q + api.matmul(q, symmetric, max_error_growth=limit)
        form = TriangularForm(True, False, False)
        return TriangularSolution.apply(r.mH, right, form, limit), None
