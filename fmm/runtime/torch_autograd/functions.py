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
from fmm.arrays.torch_library import TORCH, torch_gemm, torch_library_of
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.runtime import gram as gram_module
from fmm.runtime import matmul
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.limits import PlanConstraints
from fmm.runtime.gemm import BlasGemmParams, explain_gemm, run_gemm
from fmm.runtime.gram import GramParams, Triangle, run_gram
from fmm.runtime.prepare import prepare_call


def matmul_tensors(a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Any:
    """The matmul_tensors of two tensors, which gradients may be asked of."""
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


def explain_tensors(a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Decision:
    """What `matmul_tensors` would do, and why."""
    if not plain_call(a, b, out):
        if constraints.plan not in (None, VENDOR):
            raise PlanError(f"the plan {constraints.plan} cannot run here: {explain_torch_fallback(a, b, out)}")
        return Decision(
            VENDOR, None, f"torch answers: {explain_torch_fallback(a, b, out)}", kernels=(TORCH.vendor_name,)
        )
    a, b = resolve_marks(a, b)
    return matmul.explain_matmul(torch_library_of(a), a, b, out, constraints)


def gram_tensors(a: Any, b: Any, out: Any, request: GramParams, constraints: PlanConstraints) -> Any:
    """A matmul_tensors that is its own adjoint, which gradients may be asked of."""
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


def recurring_gram_tensors(library: Library, a: Any, out: Any, rows: bool, fill: Triangle) -> Any:
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


def explain_gram_tensors(a: Any, b: Any, out: Any, request: GramParams, constraints: PlanConstraints) -> Decision:
    """What `gram_tensors` would do, and why."""
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
    """A matmul_tensors that is its own adjoint, by fmm, whose gradients are products by fmm."""

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
            left = (
                matmul_tensors(both, a, None, constraints)
                if request.rows
                else matmul_tensors(a, both, None, constraints)
            )
            return left, None, None, None
        left, right = kept_gradients(ctx, grad, lambda x, y: matmul_tensors(x, y, None, constraints))
        return left, right, None, None


def _differentiable(library: Library, a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Any:
    """torch's own matmul_tensors where no plan pays, and where torch rejects the call; both record what they do."""
    if out is not None or min(a.dim(), b.dim()) < 2 or prepare_call(library, a, b, None, constraints).plan is None:
        return library.vendor(a, b, out)
    return Product.apply(a, b, constraints)


class Product(torch.autograd.Function):  # type: ignore[misc]
    """A matmul_tensors by fmm, whose gradients are products by fmm (and so can be differentiated again)."""

    @staticmethod
    def forward(a: Any, b: Any, constraints: PlanConstraints) -> Any:
        return matmul.run_matmul(torch_library_of(a), a, b, None, constraints)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, Any, PlanConstraints], output: Any) -> None:
        a, b, constraints = inputs
        save_factors(ctx, a, b)
        ctx.constraints = constraints._replace(
            plan=None
        )  # a plan that was given was meant for this matmul_tensors's size

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, Any, None]:
        (grad,), constraints = grads, ctx.constraints
        left, right = kept_gradients(ctx, grad, lambda x, y: matmul_tensors(x, y, None, constraints))
        return left, right, None


def save_factors(ctx: Any, a: Any, b: Any) -> None:
    """Of a matmul_tensors, for its gradients: each factor if the other one's is asked for, as torch's own matmul_tensors keeps them.
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
    """What a gradient of the matmul_tensors of two matrices, or of stacks of them, gives to both; None where none is asked."""
    (a, b), (of_a, of_b) = factors, shapes
    left = multiply(grad, b.mH).sum_to_size(of_a) if needed[0] else None
    if not needed[1]:
        return left, None
    if len(of_b) == 2:  # one matrix for a whole stack: one matmul_tensors of all rows, rather than a sum of products
        tall, rows = a.reshape(-1, a.shape[-1]), grad.reshape(-1, grad.shape[-1])
        return left, multiply(tall.mH, rows)
    return left, multiply(a.mH, grad).sum_to_size(of_b)


def gemm_tensors(a: Any, b: Any, c: Any, out: Any, update: BlasGemmParams, constraints: PlanConstraints) -> Any:
    """alpha op(a) op(b) + beta c, which gradients may be asked of."""
    if not _plain(a, b, c, out):
        if constraints.plan not in (None, VENDOR):
            raise PlanError(f"the plan {constraints.plan} cannot run here: {_why_not(a, b, c, out)}")
        return _by_torch(a, b, c, out, update)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (a, b, c)):
        return _differentiable_gemm(a, b, c, out, update, constraints)
    return _gemm_product(a, b, c, out, update, constraints)


def explain_gemm_tensors(
    a: Any, b: Any, c: Any, out: Any, update: BlasGemmParams, constraints: PlanConstraints
) -> Decision:
    """What `gemm_tensors` would do, and why."""
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


def _gemm_product(a: Any, b: Any, c: Any, out: Any, update: BlasGemmParams, constraints: PlanConstraints) -> Any:
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


def _differentiable_gemm(a: Any, b: Any, c: Any, out: Any, update: BlasGemmParams, constraints: PlanConstraints) -> Any:
    """By torch where no plan pays, and where torch rejects the call."""
    a, b = _turned(a, update.op_a), _turned(b, update.op_b)
    update = update._replace(op_a="N", op_b="N")
    if out is not None or min(a.dim(), b.dim()) < 2:
        return _by_torch(a, b, c, out, update)
    left, right = resolve_marks(a, b)
    asked = constraints._replace(asked=GemmParams(update.alpha, 0))
    if prepare_call(torch_library_of(a), left.detach(), right.detach(), None, asked).plan in (None, VENDOR):
        return _by_torch(a, b, c, out, update)
    return UpdatedProduct.apply(a, b, c if update.beta else None, update, constraints)


class UpdatedProduct(torch.autograd.Function):  # type: ignore[misc]
    """alpha a b + beta c by fmm, whose gradients are products by fmm (and so can be differentiated again)."""

    @staticmethod
    def forward(a: Any, b: Any, c: Any, update: BlasGemmParams, constraints: PlanConstraints) -> Any:
        return _gemm_product(a, b, c, None, update, constraints)

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
        left = (
            gemm_tensors(grad, b.mH, None, None, scaled, constraints).sum_to_size(ctx.shapes[0]) if needed[0] else None
        )
        right = (
            gemm_tensors(a.mH, grad, None, None, scaled, constraints).sum_to_size(ctx.shapes[1]) if needed[1] else None
        )
        added = (grad * beta).sum_to_size(ctx.added) if needed[2] else None
        return left, right, added, None, None
