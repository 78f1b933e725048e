"""torch.ops.fmm.matmul: the product as a torch operator, with a shape function and gradients for compiled graphs.

In a function that torch.compile compiles, a call of fmm.matmul causes no graph break. A product that a plan may make
faster becomes this operator. A product that no plan can make faster becomes torch's own product, which the compiler may
fuse with neighbouring operations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fmm.arrays.torch_calls import PLAIN_TENSORS, TORCH_MATMUL, is_compiling, is_exporting
from fmm.arrays.torch_library import HOST_TYPES, TYPE_NAMES
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.runtime.decisions.early_declines import SMALL_MULTIPLY_ADDS
from fmm.runtime.decisions.limits import PlanConstraints
from fmm.runtime.torch_autograd.functions import matmul_tensors, product_gradients, save_factors_for_gradients

OPERATOR_SCHEMA = (
    "matmul(Tensor a, Tensor b, str? plan=None, float? max_error_growth=None, int? workspace=None) -> Tensor"
)
# Inductor leaves an operator with the tag cudagraph_unsafe out of the CUDA graphs that Inductor captures. In a version
# of torch without the tag cudagraph_unsafe, Inductor captures fmm's operator in CUDA graphs. While a CUDA graph is
# captured, fmm's operator runs torch's own product, since no plan runs while a stream is captured
# (fmm/runtime/run_device.py).
OPERATOR_TAGS = tuple(getattr(torch.Tag, name) for name in ("cudagraph_unsafe",) if hasattr(torch.Tag, name))
_OPERATOR_LIBRARY = torch.library.Library("fmm", "FRAGMENT")
_OPERATOR_LIBRARY.define(OPERATOR_SCHEMA, tags=OPERATOR_TAGS)
MATMUL_OPERATOR: Any = torch.ops.fmm.matmul.default


def traced_matmul(a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Any:
    """Return the product while torch records calls.

    While torch.compile compiles a graph, large products call the operator; all other products call torch's own matmul.
    """
    if constraints.reproducible:
        raise PlanError("a reproducible product cannot run while torch traces or compiles the call")
    if out is None and not constraints.componentwise and _is_worth_traced_operator(a, b):
        plan = None if constraints.plan is None else str(constraints.plan)
        return MATMUL_OPERATOR(a, b, plan, constraints.error_growth, constraints.workspace)
    if constraints.plan not in (None, VENDOR):
        return matmul_tensors(a, b, out, constraints)  # raises PlanError with the reason
    return TORCH_MATMUL(a, b) if out is None else TORCH_MATMUL(a, b, out=out)


def _is_worth_traced_operator(a: Any, b: Any) -> bool:
    """Return True for large operands while torch compiles a graph.

    During torch.export, return False, since exported programs must run without fmm.
    """
    if not is_compiling() or is_exporting() or type(a) not in PLAIN_TENSORS or type(b) not in PLAIN_TENSORS:
        return False
    if a.dtype is not b.dtype or min(a.dim(), b.dim()) < 2 or a.device != b.device:
        return False
    kind = a.device.type
    if kind not in ("cpu", "cuda") or a.dtype not in (TYPE_NAMES if kind == "cuda" else HOST_TYPES):
        return False
    if torch.is_autocast_enabled(kind):
        return False
    return bool(statically_known_true(a.shape[-2] * a.shape[-1] * b.shape[-1] >= SMALL_MULTIPLY_ADDS))


# ---- the operator: product, shape, gradients


def _operator_product(
    a: Any, b: Any, plan: str | None = None, error_growth: float | None = None, workspace: int | None = None
) -> Any:
    with torch.no_grad():  # the gradients of this operator are registered, so no gradient is recorded here
        constraints = PlanConstraints(None if plan is None else Plan.parse(plan), error_growth, workspace)
        return matmul_tensors(a, b, None, constraints).contiguous()


def _fake_product(
    a: Any, b: Any, plan: str | None = None, error_growth: float | None = None, workspace: int | None = None
) -> Any:
    return a.new_empty(TORCH_MATMUL(a, b).shape)


def _save_operator_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, _, *limits = inputs  # the gradients' products have other sizes, so the caller's plan does not apply to them
    save_factors_for_gradients(ctx, a, b)
    ctx.limits = limits


def _operator_gradients(ctx: Any, grad: Any) -> tuple[Any, ...]:
    """Return the gradients of both operands; a vector is multiplied as a matrix of one row or one column."""
    (a, b), (of_a, of_b), limits = ctx.saved_tensors, ctx.shapes, ctx.limits
    rows = a[None, :] if a is not None and len(of_a) == 1 else a
    columns = b[:, None] if b is not None and len(of_b) == 1 else b
    shapes = of_a if len(of_a) > 1 else (1, *of_a), of_b if len(of_b) > 1 else (*of_b, 1)
    if len(of_a) == 1:
        grad = grad.unsqueeze(-1 if len(of_b) == 1 else -2)
    if len(of_b) == 1:
        grad = grad.unsqueeze(-1)
    needed = ctx.needs_input_grad
    found = product_gradients((rows, columns), shapes, grad, needed, lambda x, y: MATMUL_OPERATOR(x, y, None, *limits))
    left, right = (None if g is None else g.reshape(of) for g, of in zip(found, (of_a, of_b), strict=True))
    return left, right, None, None, None


def _autocast_operator(kind: str) -> Callable[..., Any]:
    """Return the operator's function for autocast on this type of device; it casts operands as torch.mm does."""

    def multiply(a: Any, b: Any, *limits: Any) -> Any:
        dtype = torch.get_autocast_dtype(kind)

        def cast(x: Any) -> Any:
            is_cast = x.is_floating_point() and x.dtype is not torch.float64 and x.device.type == kind
            return x.to(dtype) if is_cast else x

        with torch.autocast(kind, enabled=False):
            return MATMUL_OPERATOR(cast(a), cast(b), *limits)

    return multiply


# ---- torch.vmap


def _batched_operator_product(
    info: Any, batch_axes: tuple[int | None, ...], a: Any, b: Any, *limits: Any
) -> tuple[Any, int]:
    """Return the operator's result under torch.vmap, computed as one product of two stacks of matrices."""
    at_a, at_b, *_ = batch_axes
    of_a, of_b = a.dim() - (at_a is not None), b.dim() - (at_b is not None)
    axes = max(of_a, of_b, 2)
    row, column = of_a == 1, of_b == 1
    left = _as_stack(a, at_a, axes, -2 if row else None)
    right = _as_stack(b, at_b, axes, -1 if column else None)
    c = MATMUL_OPERATOR(left, right, *limits)
    c = c.squeeze(-1) if column else c
    return (c.squeeze(-1 if column else -2) if row else c), 0


def _as_stack(x: Any, batch_axis: int | None, axes: int, missing_axis: int | None) -> Any:
    """Return an operand with the batch axis first.

    Axes of length 1 are inserted behind the batch axis, so that the number of axes behind the batch axis is `axes`.
    """
    x = x if batch_axis is None else x.movedim(batch_axis, 0)
    x = x if missing_axis is None else x.unsqueeze(missing_axis)
    while batch_axis is not None and x.dim() <= axes:
        x = x.unsqueeze(1)
    return x


# ---- forward-mode gradients and DTensors, which torch.library does not support
#
# torch generates an autograd kernel from the operator's gradients. The generated autograd kernel silently drops the
# tangents of dual tensors, so a kernel of fmm replaces the generated kernel at torch's autograd keys. In versions of
# torch without torch.library.get_kernel, torch's generated autograd kernel is not replaced.

AUTOGRAD_KEYS = "AutogradCPU", "AutogradCUDA", "AutogradMeta"
DTENSOR_MODULE = "torch.distributed.tensor"


def _add_autograd_kernels() -> None:
    """Replace the autograd kernels that torch generated for the operator when its gradients were registered.

    This function must be called after torch.library.register_autograd.
    """
    get_kernel = getattr(torch.library, "get_kernel", None)
    if get_kernel is not None:
        for key in AUTOGRAD_KEYS:
            _OPERATOR_LIBRARY.impl(
                "matmul", partial(_autograd_kernel, get_kernel(MATMUL_OPERATOR, key)), key, with_keyset=True
            )


def _autograd_kernel(generated: Any, keys: Any, a: Any, b: Any, *rest: Any) -> Any:
    """Return the operator's product; for tensors with tangents, return torch's own product, as fmm.matmul does."""
    if type(a) not in PLAIN_TENSORS or type(b) not in PLAIN_TENSORS:
        # if an operand is a DTensor, the program has already loaded the module of DTensors
        dtensor = getattr(sys.modules.get(DTENSOR_MODULE), "DTensor", ())
        if isinstance(a, dtensor) or isinstance(b, dtensor):
            _register_sharding()
    if not (_has_tangent(a) or _has_tangent(b)):
        return generated.call_boxed(keys, a, b, *rest)
    if rest and rest[0] not in (None, str(VENDOR)):
        raise PlanError(
            f"the plan {rest[0]} cannot run here: products are torch's own where forward gradients are wanted"
        )
    return TORCH_MATMUL(a, b)


def _has_tangent(x: Any) -> bool:
    """Return True for a dual tensor (a tensor with a tangent).

    Without the argument `level`, unpack_dual reads a Python variable of torch that compiled code does not set.
    """
    return forward_ad.unpack_dual(x, level=0).tangent is not None


@cache
def _register_sharding() -> None:
    """Register the placements of DTensors that the operator accepts as operands.

    For a product of two matrices, the placements are those of torch.mm. Operands that are stacks or vectors must be
    replicated on every device of the mesh.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def placements(a: Any, b: Any, *rest: Any) -> list[tuple[list[Any], list[Any]]]:
        ways = [(Replicate(), Replicate(), Replicate())]
        if a.ndim == b.ndim == 2:
            ways += [(Shard(0), Shard(0), Replicate()), (Shard(1), Replicate(), Shard(1))]
            ways += [(Partial(), Shard(1), Shard(0))]
        return [([c], [left, right, *[None] * len(rest)]) for c, left, right in ways]

    register_sharding(MATMUL_OPERATOR)(placements)


for _key in ("CPU", "CUDA"):
    _OPERATOR_LIBRARY.impl("matmul", _operator_product, _key)
    _OPERATOR_LIBRARY.impl("matmul", _autocast_operator(_key.lower()), f"Autocast{_key}")
torch.library.register_fake("fmm::matmul", _fake_product, lib=_OPERATOR_LIBRARY)
torch.library.register_autograd(
    "fmm::matmul", _operator_gradients, setup_context=_save_operator_context, lib=_OPERATOR_LIBRARY
)
if hasattr(torch.library, "register_vmap"):  # torch 2.5 and later
    torch.library.register_vmap("fmm::matmul", _batched_operator_product, lib=_OPERATOR_LIBRARY)
_add_autograd_kernels()
