"""torch.matmul's contract for tensors: what torch does to a call besides multiplying, and gradients.

Inputs that require gradients get them: forward and backward are products by fmm. Tensors on the host are multiplied on
NumPy's view of the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fmm.arrays.library import Library
from fmm.arrays.torch_calls import explain_torch_fallback, plain_call, refused_out, resolve_marks
from fmm.arrays.torch_library import TORCH, torch_library_of
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.runtime import gram as gram_module
from fmm.runtime import matmul
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.limits import PlanConstraints
from fmm.runtime.gram import GramParams, Triangle, run_gram
from fmm.runtime.prepare import prepare_call


def product(a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Any:
    """The product of two tensors, which gradients may be asked of."""
    if not plain_call(a, b, out):
        if constraints.plan not in (None, VENDOR):
            refused = out is not None and refused_out(out)
            TORCH.vendor(a, b, out if refused else None)  # torch's own exception, if it rejects the call
            raise PlanError(f"the plan {constraints.plan} cannot run here: {explain_torch_fallback(a, b, out)}")
        return TORCH.vendor(a, b, out)
    a, b = resolve_marks(a, b)
    library = torch_library_of(a)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return _differentiable(library, a, b, out, constraints)
    return matmul.run_matmul(library, a, b, out, constraints)


def explained(a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Decision:
    """What `product` would do, and why."""
    if not plain_call(a, b, out):
        if constraints.plan not in (None, VENDOR):
            raise PlanError(f"the plan {constraints.plan} cannot run here: {explain_torch_fallback(a, b, out)}")
        return Decision(
            VENDOR, None, f"torch answers: {explain_torch_fallback(a, b, out)}", kernels=(TORCH.vendor_name,)
        )
    a, b = resolve_marks(a, b)
    return matmul.explain_matmul(torch_library_of(a), a, b, out, constraints)


def gram(a: Any, b: Any, out: Any, request: GramParams, constraints: PlanConstraints) -> Any:
    """A product that is its own adjoint, which gradients may be asked of."""
    if isinstance(a, torch.Tensor) and (a.is_floating_point() or a.is_complex()):  # no whole factors beyond 64 bits
        request = request._replace(alpha=float(request.alpha), beta=float(request.beta))
    other = a if b is None else b
    if not plain_call(a, other, out):
        return _gram_by_torch(a, b, out, request, constraints)
    a, other = resolve_marks(a, other)
    b = None if b is None else other
    if torch.is_grad_enabled() and (a.requires_grad or other.requires_grad):
        if out is not None:
            return TORCH.vendor(a, other, out)  # torch's own exception
        return Gram.apply(a, b, request, constraints)
    return run_gram(torch_library_of(a), a, b, out, request, constraints)


def known_gram(library: Library, a: Any, out: Any, rows: bool, fill: Triangle) -> Any:
    """The same of a tensor on a device of which nothing else is asked, if it is known; None where that is not all."""
    if not a.is_cuda or not plain_call(a, a, out) or a.is_neg() or (a.requires_grad and torch.is_grad_enabled()):
        return None
    return gram_module.run_recurring_gram(library, a, out, rows, fill)


def _gram_by_torch(a: Any, b: Any, out: Any, request: GramParams, constraints: PlanConstraints) -> Any:
    """By torch's own functions, which it may trace, transform or record: of compiled functions, modes and the like."""
    if out is not None or constraints.plan not in (None, VENDOR):
        raise TypeError(
            f"fmm.gram takes neither out nor plan here: {explain_torch_fallback(a, a if b is None else b, out)}"
        )
    left, right = (a, b) if b is not None else (a, a.mH) if request.rows else (a.mH, a)
    c = TORCH.vendor(left, right) * request.alpha
    if request.fill == "full":
        return c.tril() + c.tril(-1).mH
    return c.tril() if request.fill == "lower" else c.triu()


def gram_explained(a: Any, b: Any, out: Any, request: GramParams, constraints: PlanConstraints) -> Decision:
    """What `gram` would do, and why."""
    other = a if b is None else b
    if not plain_call(a, other, out):
        return Decision(
            VENDOR, None, f"torch answers: {explain_torch_fallback(a, other, out)}", kernels=(TORCH.vendor_name,)
        )
    a, other = resolve_marks(a, other)
    found: Decision = gram_module.explain_gram(
        torch_library_of(a), a, None if b is None else other, out, request, constraints
    )
    return found


class Gram(torch.autograd.Function):  # type: ignore[misc]
    """A product that is its own adjoint, by fmm, whose gradients are products by fmm."""

    @staticmethod
    def forward(a: Any, b: Any, request: GramParams, constraints: PlanConstraints) -> Any:
        return run_gram(torch_library_of(a), a, b, None, request, constraints)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, Any, GramParams, PlanConstraints], output: Any) -> None:
        a, b, request, constraints = inputs
        save_factors(ctx, a, b)
        ctx.request, ctx.constraints = request, constraints._replace(plan=None)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, Any, None, None]:
        (grad,), request, constraints = grads, ctx.request, ctx.constraints
        if request.fill != "full":
            grad = grad.tril() if request.fill == "lower" else grad.triu()
        grad = grad * request.alpha
        if ctx.shapes[1] is None:  # with G + G^H, which is its own adjoint
            a, both = ctx.saved_tensors[0], grad + grad.mH
            left = product(both, a, None, constraints) if request.rows else product(a, both, None, constraints)
            return left, None, None, None
        left, right = kept_gradients(ctx, grad, lambda x, y: product(x, y, None, constraints))
        return left, right, None, None


def _differentiable(library: Library, a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Any:
    """torch's own product where no plan pays, and where torch rejects the call; both record what they do."""
    if out is not None or min(a.dim(), b.dim()) < 2 or prepare_call(library, a, b, None, constraints).plan is None:
        return library.vendor(a, b, out)
    return Product.apply(a, b, constraints)


class Product(torch.autograd.Function):  # type: ignore[misc]
    """A product by fmm, whose gradients are products by fmm (and so can be differentiated again)."""

    @staticmethod
    def forward(a: Any, b: Any, constraints: PlanConstraints) -> Any:
        return matmul.run_matmul(torch_library_of(a), a, b, None, constraints)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, Any, PlanConstraints], output: Any) -> None:
        a, b, constraints = inputs
        save_factors(ctx, a, b)
        ctx.constraints = constraints._replace(plan=None)  # a plan that was given was meant for this product's size

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, Any, None]:
        (grad,), constraints = grads, ctx.constraints
        left, right = kept_gradients(ctx, grad, lambda x, y: product(x, y, None, constraints))
        return left, right, None


def save_factors(ctx: Any, a: Any, b: Any) -> None:
    """Of a product, for its gradients: each factor if the other one's is asked for, as torch's own product keeps them.
    What is not kept may be written over, and its memory be given back. Without b, a is a factor of its own gradient."""
    of_a, of_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(a if of_b or b is None else None, b if of_a else None)
    ctx.shapes = a.shape, None if b is None else b.shape


def kept_gradients(ctx: Any, grad: Any, multiply: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    return gradients(ctx.saved_tensors, ctx.shapes, grad, ctx.needs_input_grad, multiply)


Factors = tuple[Any, Any]
Shapes = tuple[Sequence[int], Sequence[int]]


def gradients(
    factors: Factors, shapes: Shapes, grad: Any, needed: Sequence[bool], multiply: Callable[[Any, Any], Any]
) -> tuple[Any, Any]:
    """What a gradient of the product of two matrices, or of stacks of them, gives to both; None where none is asked."""
    (a, b), (of_a, of_b) = factors, shapes
    left = multiply(grad, b.mH).sum_to_size(of_a) if needed[0] else None
    if not needed[1]:
        return left, None
    if len(of_b) == 2:  # one matrix for a whole stack: one product of all rows, rather than a sum of products
        tall, rows = a.reshape(-1, a.shape[-1]), grad.reshape(-1, grad.shape[-1])
        return left, multiply(tall.mH, rows)
    return left, multiply(a.mH, grad).sum_to_size(of_b)
