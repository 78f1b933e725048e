"""Products of torch tensors, with torch's rules for modes, conjugate bits (`Tensor.is_conj`) and gradients.

Tensors on the host are multiplied as NumPy views of their memory. If an operand requires gradients, fmm computes the
product and its gradients by these formulas. In the formulas, G is the gradient of C, dX is the gradient of X, and
alpha* is the complex conjugate of alpha.

* The gradients of C = A B are dA = G B^H and dB = A^H G.

* The gradients of C = alpha A B + beta D are dA = alpha* G B^H, dB = alpha* A^H G and dD = beta* G.

* The gradient of C = alpha A^H A is dA = alpha A (G + G^H).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fmm.arrays.library import Library
from fmm.arrays.torch_calls import (
    explain_torch_fallback,
    is_any_autocast_enabled,
    is_out_rejected_by_torch,
    is_plain_call,
    is_tracing,
    resolve_conj_and_neg_bits,
    tracing_state,
)
from fmm.arrays.torch_library import TORCH, same_memory_transposed, torch_gemm, torch_library_of
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.runtime import gram as array_gram
from fmm.runtime import matmul as array_matmul
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.early_declines import RecurringCall, find_declined_gram_function, remember_declined_call
from fmm.runtime.decisions.limits import NO_CONSTRAINTS, PlanConstraints
from fmm.runtime.gemm import BlasGemmParams, explain_gemm, run_gemm
from fmm.runtime.gram import GramParams, Triangle, explain_conjugating_plan, run_conjugating_plan, run_gram
from fmm.runtime.prepare import prepare_call

# ---- matmul


def matmul_tensors(a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Any:
    """Return the product of two tensors; gradients are recorded if an operand requires them."""
    if not is_plain_call(a, b, out):
        if constraints.forbids_vendor:
            must_fail = out is not None and is_out_rejected_by_torch(out)
            TORCH.vendor_product(a, b, out if must_fail else None)  # raises torch's own error if torch rejects the call
            _decide_fallback(explain_torch_fallback(a, b, out), constraints)  # raises PlanError
        return TORCH.vendor_product(a, b, out)
    if (c := _hermitian_product(a, b, out, constraints)) is not None:
        return c
    a, b = resolve_conj_and_neg_bits(a, b)
    library = torch_library_of(a)
    if not (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)):
        return array_matmul.run_matmul(library, a, b, out, constraints)
    if constraints.reproducible and min(a.dim(), b.dim()) < 2:
        raise PlanError("a reproducible product of a vector records no gradients: pass a matrix of one row or column")
    # If no plan is faster, torch's own product runs and records gradients. For an invalid call, torch's own product
    # raises the error.
    if out is not None or min(a.dim(), b.dim()) < 2 or prepare_call(library, a, b, None, constraints).plan is None:
        return library.vendor_product(a, b, out)
    return Product.apply(a, b, constraints)


def _hermitian_product(a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Any:
    """Return the product of a complex matrix and its adjoint, by a plan that computes one triangle.

    The adjoint is a view with torch's conjugate bit. Return None for other products, and if the chosen plan would
    need a copy of the adjoint.
    """
    if (found := _match_gram_operands(a, b)) is None or out is not None or constraints is not NO_CONSTRAINTS:
        return None
    x, rows = found
    if torch.is_grad_enabled() and x.requires_grad:
        return None
    return run_conjugating_plan(torch_library_of(x), x, None, GramParams(rows), constraints)


def _match_gram_operands(a: Any, b: Any) -> tuple[Any, bool] | None:
    """Return (x, True) if the operands are x and x.mH, (x, False) if they are x.mH and x, else None."""
    if not a.is_cuda or a.dim() != 2 or a.is_conj() == b.is_conj() or a.is_neg() or b.is_neg():
        return None
    x, adjoint = (a, b) if b.is_conj() else (b, a)
    return (x, b.is_conj()) if same_memory_transposed(x, adjoint.conj()) else None


def explain_tensors(a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Decision:
    """Return the decision that `matmul_tensors` makes; nothing is computed."""
    if not is_plain_call(a, b, out):
        return _decide_fallback(explain_torch_fallback(a, b, out), constraints)
    if (found := _match_gram_operands(a, b)) is not None and out is None and constraints is NO_CONSTRAINTS:
        x, rows = found
        decision = explain_conjugating_plan(torch_library_of(x), x, None, GramParams(rows), constraints)
        if decision is not None:
            return decision
    a, b = resolve_conj_and_neg_bits(a, b)
    return array_matmul.explain_matmul(torch_library_of(a), a, b, out, constraints)


def _decide_fallback(reason: str, constraints: PlanConstraints, function: str = TORCH.vendor_name) -> Decision:
    """Return the decision for a call that only torch can compute; raise PlanError if the caller passed a plan."""
    if constraints.forbids_vendor:
        what = "a reproducible product" if constraints.reproducible else f"the plan {constraints.plan}"
        raise PlanError(f"{what} cannot run here: {reason}")
    return Decision(VENDOR, None, f"torch multiplies: {reason}", kernels=(function,))


class Product(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of fmm.matmul; fmm computes its gradients, and the gradients of gradients."""

    @staticmethod
    def forward(a: Any, b: Any, constraints: PlanConstraints) -> Any:
        return array_matmul.run_matmul(torch_library_of(a), a, b, None, constraints)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, Any, PlanConstraints], output: Any) -> None:
        a, b, constraints = inputs
        save_factors_for_gradients(ctx, a, b)
        ctx.constraints = constraints._replace(plan=None)  # the gradients' products have other sizes

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, Any, None]:
        (grad,), constraints = grads, ctx.constraints
        left, right = saved_gradients(ctx, grad, lambda x, y: matmul_tensors(x, y, None, constraints))
        return left, right, None


# ---- gram


def gram_tensors(
    a: Any,
    b: Any,
    out: Any,
    params: GramParams,
    constraints: PlanConstraints,
    recurring: RecurringCall | None = None,
) -> Any:
    """Return the result of fmm.gram for tensors; gradients are recorded if an operand requires them."""
    if isinstance(a, torch.Tensor) and (a.is_floating_point() or a.is_complex()):  # torch takes no int above 64 bits
        params = params._replace(alpha=float(params.alpha), beta=float(params.beta))
    other = a if b is None else b
    if not is_plain_call(a, other, out):
        return _gram_by_torch(a, b, out, params, constraints)
    a, other = resolve_conj_and_neg_bits(a, other)
    b = None if b is None else other
    if torch.is_grad_enabled() and (a.requires_grad or other.requires_grad):
        if out is not None:
            return TORCH.vendor_product(a, other, out)  # raises torch's own error
        return Gram.apply(a, b, params, constraints)
    return run_gram(torch_library_of(a), a, b, out, params, constraints, recurring)


def recurring_gram_tensors(library: Library, a: Any, out: Any, rows: bool, fill: Triangle) -> Any:
    """Return the product of a CUDA tensor and its adjoint by a cached call; None if gram_tensors must decide."""
    if not a.is_cuda:
        return None
    is_whole_stack = out is None and fill == "full" and a.ndim > 2
    if is_whole_stack and tracing_state() is None and not (is_tracing() or is_any_autocast_enabled()):
        multiply = find_declined_gram_function(library, a, rows)
        if multiply is not None:
            return multiply(a, a.mT) if rows else multiply(a.mT, a)
    if not is_plain_call(a, a, out) or a.is_neg() or a.is_conj():
        return None
    if a.requires_grad and torch.is_grad_enabled():
        return None
    return array_gram.run_recurring_gram(library, a, out, rows, fill)


def _gram_by_torch(a: Any, b: Any, out: Any, params: GramParams, constraints: PlanConstraints) -> Any:
    """Return the result of fmm.gram, computed by torch's own functions, which torch can trace and transform."""
    if constraints.forbids_vendor:
        _decide_fallback(explain_torch_fallback(a, a if b is None else b, out), constraints)  # raises PlanError
    left, right = (a, b) if b is not None else (a, a.mH) if params.rows else (a.mH, a)
    if params.alpha == 0:  # as in BLAS, the operands are not read if alpha is 0
        left, right = left[..., :0], right[..., :0, :]
    is_sparse = not (left.layout is right.layout is torch.strided)
    if out is None:
        c = TORCH.vendor_product(left, right) * params.alpha
        c = _with_real_diagonal(c.to_dense() if is_sparse else c)  # torch selects no triangle of a sparse tensor
        if params.fill == "full":
            return c.tril() + c.tril(-1).mH
        return c.tril() if params.fill == "lower" else c.triu()
    # into a new tensor of the type of `out`: as in torch.matmul with `out`, torch raises an error for another type
    c = TORCH.vendor_product(left, right, None if is_sparse else out.new_empty(0)) * params.alpha
    c = c.to_dense() if is_sparse else c
    if c.shape != out.shape:
        raise ValueError(f"out is {tuple(out.shape)}, the product {tuple(c.shape)}")
    c = _with_real_diagonal(c + out * params.beta if params.beta else c)
    if params.fill == "full":
        return torch.add(c.tril(), c.tril(-1).mH, out=out)
    if params.fill == "lower":
        return torch.add(c.tril(), out.triu(1), out=out)
    return torch.add(c.triu(), out.tril(-1), out=out)


def _with_real_diagonal(c: Any) -> Any:
    """Return the matrices with real numbers on their diagonals, as BLAS's herk stores them."""
    if not c.is_complex():
        return c
    return torch.diagonal_scatter(c, c.diagonal(dim1=-2, dim2=-1).real.to(c.dtype), dim1=-2, dim2=-1)


def explain_gram_tensors(a: Any, b: Any, out: Any, params: GramParams, constraints: PlanConstraints) -> Decision:
    """Return the decision that `gram_tensors` makes; nothing is computed."""
    other = a if b is None else b
    if not is_plain_call(a, other, out):
        return _decide_fallback(explain_torch_fallback(a, other, out), constraints)
    a, other = resolve_conj_and_neg_bits(a, other)
    b = None if b is None else other
    decision: Decision = array_gram.explain_gram(torch_library_of(a), a, b, out, params, constraints)
    return decision


class Gram(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of fmm.gram; fmm computes its gradients."""

    @staticmethod
    def forward(a: Any, b: Any, params: GramParams, constraints: PlanConstraints) -> Any:
        return run_gram(torch_library_of(a), a, b, None, params, constraints)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, Any, GramParams, PlanConstraints], output: Any) -> None:
        a, b, params, constraints = inputs
        save_factors_for_gradients(ctx, a, b)
        ctx.params, ctx.constraints = params, constraints._replace(plan=None)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, Any, None, None]:
        (grad,), params, constraints = grads, ctx.params, ctx.constraints

        def multiply(x: Any, y: Any) -> Any:
            return matmul_tensors(x, y, None, constraints)

        if params.fill != "full":
            grad = grad.tril() if params.fill == "lower" else grad.triu()
        grad = grad * params.alpha
        if ctx.shapes[1] is None:
            a, both = ctx.saved_tensors[0], grad + grad.mH
            left = multiply(both, a) if params.rows else multiply(a, both)
            return left, None, None, None
        left, right = saved_gradients(ctx, grad, multiply)
        return left, right, None, None


# ---- gemm


def gemm_tensors(
    a: Any,
    b: Any,
    c: Any,
    out: Any,
    params: BlasGemmParams,
    constraints: PlanConstraints,
    recurring: RecurringCall | None = None,
) -> Any:
    """Return alpha op(a) op(b) + beta c; gradients are recorded if an operand requires them."""
    c = c if params.beta else None
    if not _is_plain_gemm(a, b, c, out):
        if constraints.plan not in (None, VENDOR):
            _decide_fallback(_explain_gemm_fallback(a, b, c, out), constraints)  # raises PlanError
        return _gemm_by_torch(a, b, c, out, params)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (a, b, c)):
        return _differentiable_gemm(a, b, c, out, params, constraints, recurring)
    return _run_plain_gemm(a, b, c, out, params, constraints, recurring)


def explain_gemm_tensors(
    a: Any, b: Any, c: Any, out: Any, params: BlasGemmParams, constraints: PlanConstraints
) -> Decision:
    """Return the decision that `gemm_tensors` makes; nothing is computed."""
    c = c if params.beta else None
    if not _is_plain_gemm(a, b, c, out):
        return _decide_fallback(_explain_gemm_fallback(a, b, c, out), constraints, TORCH.gemm_name)
    a, b, params = _conjugate_marks_as_ops(a, b, params)
    return explain_gemm(torch_library_of(a), a, b, c, out, params, constraints)


def _is_plain_gemm(a: Any, b: Any, c: Any, out: Any) -> bool:
    """Return True if fmm can compute the fmm.gemm call.

    If `c` and `a` have different types, return False: torch computes the call, and raises its own error.
    """
    return is_plain_call(a, b, out, c) and (c is None or c.dtype == a.dtype)


def _explain_gemm_fallback(a: Any, b: Any, c: Any, out: Any) -> str:
    if not is_plain_call(a, b, out):
        return explain_torch_fallback(a, b, out)
    if is_plain_call(a, c, out):
        return f"this call is torch's own: c is of {c.dtype}, a of {a.dtype}"
    return explain_torch_fallback(a, c, out).replace(": b is", ": c is")


def _run_plain_gemm(
    a: Any,
    b: Any,
    c: Any,
    out: Any,
    params: BlasGemmParams,
    constraints: PlanConstraints,
    recurring: RecurringCall | None = None,
) -> Any:
    a, b, params = _conjugate_marks_as_ops(a, b, params)
    if c is not None and c is not out:
        c, _ = resolve_conj_and_neg_bits(c, c)
    return run_gemm(torch_library_of(a), a, b, c, out, params, constraints, recurring)


def _conjugate_marks_as_ops(a: Any, b: Any, params: BlasGemmParams) -> tuple[Any, Any, BlasGemmParams]:
    """Return the tensors without torch's conjugate bits, and the parameters with ops that conjugate instead.

    Where possible, the op "C" replaces the conjugate bit of a tensor, so that the tensor is not copied.
    """
    a, op_a = _conjugate_mark_as_op(a, params.op_a)
    b, op_b = _conjugate_mark_as_op(b, params.op_b)
    return a, b, params._replace(op_a=op_a, op_b=op_b)


def _conjugate_mark_as_op(x: Any, op: str) -> tuple[Any, str]:
    if not x.is_conj() or x.is_neg():
        return resolve_conj_and_neg_bits(x, x)[0], op
    unmarked = x.conj()
    return (unmarked.mT, "C") if op == "N" else (unmarked, {"T": "C", "C": "T"}[op])


def _apply_op(x: Any, op: str) -> Any:
    return x if op == "N" else x.mT if op == "T" else x.mH


def _gemm_by_torch(a: Any, b: Any, c: Any, out: Any, params: BlasGemmParams) -> Any:
    """Return the result of fmm.gemm, computed by torch's own functions.

    torch's functions record gradients, and raise torch's errors for invalid operands.
    """
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return TORCH.vendor_product(a, b)
    a, b = _apply_op(a, params.op_a), _apply_op(b, params.op_b)
    return torch_gemm(a, b, c if params.beta else None, params.alpha, params.beta, out)


def _differentiable_gemm(
    a: Any,
    b: Any,
    c: Any,
    out: Any,
    params: BlasGemmParams,
    constraints: PlanConstraints,
    recurring: RecurringCall | None,
) -> Any:
    """Return the result of fmm.gemm and record gradients.

    A plan computes the result if a plan is faster than torch. If no plan is faster, or if the call is invalid, torch's
    own functions are called.
    """
    a, b = _apply_op(a, params.op_a), _apply_op(b, params.op_b)
    params = params._replace(op_a="N", op_b="N")
    if out is not None or min(a.dim(), b.dim()) < 2:
        return _gemm_by_torch(a, b, c, out, params)
    left, right = resolve_conj_and_neg_bits(a, b)
    own = constraints._replace(params=GemmParams(params.alpha, 0))
    if prepare_call(torch_library_of(a), left.detach(), right.detach(), None, own).plan in (None, VENDOR):
        remember_declined_call(recurring, torch_library_of(a))
        return _gemm_by_torch(a, b, c, out, params)
    return Gemm.apply(a, b, c if params.beta else None, params, constraints)


class Gemm(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of fmm.gemm; fmm computes its gradients, and the gradients of gradients."""

    @staticmethod
    def forward(a: Any, b: Any, c: Any, params: BlasGemmParams, constraints: PlanConstraints) -> Any:
        return _run_plain_gemm(a, b, c, None, params, constraints)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, Any, Any, BlasGemmParams, PlanConstraints], output: Any) -> None:
        a, b, c, params, constraints = inputs
        save_factors_for_gradients(ctx, a, b)
        ctx.params, ctx.addend_shape = params, None if c is None else c.shape
        ctx.constraints = constraints._replace(plan=None)  # the gradients' products have other sizes

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, Any, Any, None, None]:
        (grad,), (a, b), params, constraints = gradients, ctx.saved_tensors, ctx.params, ctx.constraints
        alpha = complex(params.alpha).conjugate() if isinstance(params.alpha, complex) else params.alpha
        beta = complex(params.beta).conjugate() if isinstance(params.beta, complex) else params.beta
        scaled, needed = BlasGemmParams(alpha), ctx.needs_input_grad
        left = right = None
        if needed[0]:
            left = gemm_tensors(grad, b.mH, None, None, scaled, constraints).sum_to_size(ctx.shapes[0])
        if needed[1]:
            right = gemm_tensors(a.mH, grad, None, None, scaled, constraints).sum_to_size(ctx.shapes[1])
        addend = (grad * beta).sum_to_size(ctx.addend_shape) if needed[2] else None
        return left, right, addend, None, None


# ---- gradients of a product

Factors = tuple[Any, Any]
Shapes = tuple[Sequence[int], Sequence[int]]


def save_factors_for_gradients(ctx: Any, a: Any, b: Any) -> None:
    """Save `a` if the gradient of `b` is needed, and `b` if the gradient of `a` is needed, as torch's product does.

    A program may overwrite or free an operand that is not saved. If `b` is None, the product is that of `a` and its
    adjoint, and the gradient of `a` needs `a`.
    """
    of_a, of_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(a if of_b or b is None else None, b if of_a else None)
    ctx.shapes = a.shape, None if b is None else b.shape


def saved_gradients(ctx: Any, grad: Any, multiply: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Return the gradients of both operands, computed from the operands that `save_factors_for_gradients` saved."""
    return product_gradients(ctx.saved_tensors, ctx.shapes, grad, ctx.needs_input_grad, multiply)


def product_gradients(
    factors: Factors, shapes: Shapes, grad: Any, needed: Sequence[bool], multiply: Callable[[Any, Any], Any]
) -> tuple[Any, Any]:
    """Return the gradients of both operands of a product of matrices or stacks.

    Return None for an operand that needs no gradient.
    """
    (a, b), (of_a, of_b) = factors, shapes
    left = multiply(grad, b.mH).sum_to_size(of_a) if needed[0] else None
    if not needed[1]:
        return left, None
    if len(of_b) == 2:  # `b` is one matrix and `a` is a stack: one product of all rows replaces a sum of products
        tall, rows = a.reshape(-1, a.shape[-1]), grad.reshape(-1, grad.shape[-1])
        return left, multiply(tall.mH, rows)
    return left, multiply(a.mH, grad).sum_to_size(of_b)
