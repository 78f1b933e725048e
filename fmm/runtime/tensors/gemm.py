"""fmm.gemm of torch's tensors: what torch does to a call besides multiplying, and gradients.

The gradients of C = alpha A B + beta C0 are alpha* G B^H, alpha* A^H G and beta* G: the first two are products by fmm.
"""

from __future__ import annotations

from typing import Any

import torch

from fmm.arrays.torch_calls import explain_torch_fallback, plain_call, resolve_marks
from fmm.arrays.torch_library import TORCH, torch_gemm, torch_library_of
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.kernels.plans.steps.asked import Asked
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.limits import PlanConstraints
from fmm.runtime.gemm import BlasGemmParams, explain_gemm, run_gemm
from fmm.runtime.prepare import prepare_call
from fmm.runtime.torch_autograd.functions import save_factors


def gemm(a: Any, b: Any, c: Any, out: Any, update: BlasGemmParams, constraints: PlanConstraints) -> Any:
    """alpha op(a) op(b) + beta c, which gradients may be asked of."""
    if not _plain(a, b, c, out):
        if constraints.plan not in (None, VENDOR):
            raise PlanError(f"the plan {constraints.plan} cannot run here: {_why_not(a, b, c, out)}")
        return _by_torch(a, b, c, out, update)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (a, b, c)):
        return _differentiable(a, b, c, out, update, constraints)
    return _product(a, b, c, out, update, constraints)


def explained(a: Any, b: Any, c: Any, out: Any, update: BlasGemmParams, constraints: PlanConstraints) -> Decision:
    """What `gemm` would do, and why."""
    if not _plain(a, b, c, out):
        return Decision(VENDOR, None, f"torch answers: {_why_not(a, b, c, out)}", kernels=(TORCH.gemm_name,))
    a, b, update = _without_marks(a, b, update)
    return explain_gemm(torch_library_of(a), a, b, c, out, update, constraints)


def _plain(a: Any, b: Any, c: Any, out: Any) -> bool:
    """What fmm can do; of other types than a's, torch says itself that they cannot be added."""
    return plain_call(a, b, out) and (c is None or (plain_call(a, c, out) and c.dtype == a.dtype))


def _why_not(a: Any, b: Any, c: Any, out: Any) -> str:
    if not plain_call(a, b, out):
        return explain_torch_fallback(a, b, out)
    if plain_call(a, c, out):
        return f"this call is torch's own: c is of {c.dtype}, a of {a.dtype}"
    return explain_torch_fallback(a, c, out).replace(": b is", ": c is")


def _product(a: Any, b: Any, c: Any, out: Any, update: BlasGemmParams, constraints: PlanConstraints) -> Any:
    a, b, update = _without_marks(a, b, update)
    if c is not None and c is not out:
        c, _ = resolve_marks(c, c)
    return run_gemm(torch_library_of(a), a, b, c, out, update, constraints)


def _without_marks(a: Any, b: Any, update: BlasGemmParams) -> tuple[Any, Any, BlasGemmParams]:
    """A tensor that is marked as an adjoint is the matrix that it is of: nothing need be copied."""
    a, op_a = _without_mark(a, update.op_a)
    b, op_b = _without_mark(b, update.op_b)
    return a, b, update._replace(op_a=op_a, op_b=op_b)


def _without_mark(x: Any, op: str) -> tuple[Any, str]:
    if not x.is_conj() or x.is_neg():
        return resolve_marks(x, x)[0], op
    whole = x.conj()  # of which x is the conjugate
    return (whole.mT, "C") if op == "N" else (whole, {"T": "C", "C": "T"}[op])


def _turned(x: Any, op: str) -> Any:
    return {"N": lambda: x, "T": lambda: x.mT, "C": lambda: x.mH}[op]()


def _by_torch(a: Any, b: Any, c: Any, out: Any, update: BlasGemmParams) -> Any:
    """torch's own, with its own exceptions; it records what it does."""
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return TORCH.vendor(a, b)
    a, b = _turned(a, update.op_a), _turned(b, update.op_b)
    return torch_gemm(a, b, c if update.beta else None, update.alpha, update.beta, out)


def _differentiable(a: Any, b: Any, c: Any, out: Any, update: BlasGemmParams, constraints: PlanConstraints) -> Any:
    """By torch where no plan pays, and where torch rejects the call."""
    a, b = _turned(a, update.op_a), _turned(b, update.op_b)
    update = update._replace(op_a="N", op_b="N")
    if out is not None or min(a.dim(), b.dim()) < 2:
        return _by_torch(a, b, c, out, update)
    left, right = resolve_marks(a, b)
    asked = constraints._replace(asked=Asked(update.alpha, 0))
    if prepare_call(torch_library_of(a), left.detach(), right.detach(), None, asked).plan in (None, VENDOR):
        return _by_torch(a, b, c, out, update)
    return UpdatedProduct.apply(a, b, c if update.beta else None, update, constraints)


class UpdatedProduct(torch.autograd.Function):  # type: ignore[misc]
    """alpha a b + beta c by fmm, whose gradients are products by fmm (and so can be differentiated again)."""

    @staticmethod
    def forward(a: Any, b: Any, c: Any, update: BlasGemmParams, constraints: PlanConstraints) -> Any:
        return _product(a, b, c, None, update, constraints)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, Any, Any, BlasGemmParams, PlanConstraints], output: Any) -> None:
        a, b, c, update, constraints = inputs
        save_factors(ctx, a, b)
        ctx.update, ctx.added = update, None if c is None else c.shape
        ctx.constraints = constraints._replace(plan=None)  # a plan that was given was meant for this product's size

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, Any, Any, None, None]:
        (grad,), (a, b), update, constraints = gradients, ctx.saved_tensors, ctx.update, ctx.constraints
        alpha = complex(update.alpha).conjugate() if isinstance(update.alpha, complex) else update.alpha
        beta = complex(update.beta).conjugate() if isinstance(update.beta, complex) else update.beta
        scaled, needed = BlasGemmParams(alpha), ctx.needs_input_grad
        left = gemm(grad, b.mH, None, None, scaled, constraints).sum_to_size(ctx.shapes[0]) if needed[0] else None
        right = gemm(a.mH, grad, None, None, scaled, constraints).sum_to_size(ctx.shapes[1]) if needed[1] else None
        added = (grad * beta).sum_to_size(ctx.added) if needed[2] else None
        return left, right, added, None, None
