"""Gradients of linear systems for torch, by functions that have gradients too, so that second derivatives exist."""

from __future__ import annotations

from typing import Any

import torch

from fmm import api
from fmm.linalg.lu_factors import solve_by_factors, solve_systems
from fmm.linalg.solver_library import LuFactors, torch_solvers


class SystemSolution(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of the solution x of a x = b by LU factors."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, limit: float | None) -> Any:
        """Return x; if a has no usable LU factors, torch's own function computes x."""
        library = torch_solvers()
        x, factors = solve_systems(library, a, b, "gen", limit)
        ctx.save_for_backward(a, x, *(factors or ()))
        ctx.limit, ctx.shape_of_b = limit, b.shape
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Return the gradients of a and b, from the gradient g of x.

        For a x = b, the gradient of b is a^-H g, and the gradient of a is -(a^-H g) x^H, where g is the gradient of
        x.
        """
        (a, x, *factors), limit = ctx.saved_tensors, ctx.limit
        if factors and not torch.is_grad_enabled():  # no second derivatives are needed
            of_b = solve_by_factors(torch_solvers(), LuFactors(*factors), gradient, limit, "C")
        else:
            of_b = SystemSolution.apply(a.mH, gradient, limit)
        of_a = None
        if ctx.needs_input_grad[0]:
            of_a = api.matmul(-of_b, x.mH, max_error_growth=limit).sum_to_size(a.shape)
        return of_a, of_b.sum_to_size(ctx.shape_of_b), None
