"""torch.ops.fmm.matmul: the product as an operator of torch's, of which compiled graphs know shape and gradients.

A function that calls fmm.matmul is compiled whole: a product for which a plan may pay is this operator in the graph,
any other torch's own, which the compiler may fuse with its neighbours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fmm.arrays.torch_calls import MATMUL, PLAIN, is_compiling, is_exporting
from fmm.arrays.torch_library import HOST_TYPES, NAMES
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.runtime.decisions.early_declines import SMALL
from fmm.runtime.decisions.limits import PlanConstraints
from fmm.runtime.torch_autograd.functions import gradients, matmul_tensors, save_factors

SCHEMA = "matmul(Tensor a, Tensor b, str? plan=None, float? max_error_growth=None, int? workspace=None) -> Tensor"
# While a stream is captured no plan runs (fmm/runtime/run_device.py), so Inductor is to leave the operator
# between the CUDA graphs that it captures; a torch older than that word captures it, as torch's own product.
TAGS = tuple(getattr(torch.Tag, name) for name in ("cudagraph_unsafe",) if hasattr(torch.Tag, name))
_LIBRARY = torch.library.Library("fmm", "FRAGMENT")
_LIBRARY.define(SCHEMA, tags=TAGS)
OPERATOR: Any = torch.ops.fmm.matmul.default


def _multiplied(a: Any, b: Any, plan: str | None = None, growth: float | None = None, room: int | None = None) -> Any:
    with torch.no_grad():  # the operator's gradients are its own, below
        constraints = PlanConstraints(None if plan is None else Plan.parse(plan), growth, room)
        return matmul_tensors(a, b, None, constraints).contiguous()


def _shaped(a: Any, b: Any, plan: str | None = None, growth: float | None = None, room: int | None = None) -> Any:
    return a.new_empty(MATMUL(a, b).shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, _, *rest = inputs  # a plan that was given was meant for this product's size
    save_factors(ctx, a, b)
    ctx.rest = rest


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    """Vectors are matrices of one row, or of one column."""
    (a, b), (of_a, of_b), rest = ctx.saved_tensors, ctx.shapes, ctx.rest
    rows = a[None, :] if a is not None and len(of_a) == 1 else a
    columns = b[:, None] if b is not None and len(of_b) == 1 else b
    shapes = of_a if len(of_a) > 1 else (1, *of_a), of_b if len(of_b) > 1 else (*of_b, 1)
    if len(of_a) == 1:
        grad = grad.unsqueeze(-1 if len(of_b) == 1 else -2)
    if len(of_b) == 1:
        grad = grad.unsqueeze(-1)
    needed = ctx.needs_input_grad
    found = gradients((rows, columns), shapes, grad, needed, lambda x, y: OPERATOR(x, y, None, *rest))
    left, right = (None if g is None else g.reshape(of) for g, of in zip(found, (of_a, of_b), strict=True))
    return left, right, None, None, None


def _under_autocast(kind: str) -> Callable[..., Any]:
    """The operator of tensors of this kind of device in mixed precision: cast as torch.mm's are."""

    def multiplied(a: Any, b: Any, *rest: Any) -> Any:
        chosen = torch.get_autocast_dtype(kind)
        with torch.autocast(kind, enabled=False):
            return OPERATOR(*(x.to(chosen) if _is_cast(x, kind) else x for x in (a, b)), *rest)

    return multiplied


def _is_cast(x: Any, kind: str) -> bool:
    return bool(x.is_floating_point() and x.dtype is not torch.float64 and x.device.type == kind)


def _of_batches(info: Any, places: tuple[int | None, ...], a: Any, b: Any, *rest: Any) -> tuple[Any, int]:
    """The products of torch.vmap: a stack's, whose first axis is the batch, by the broadcasting of torch.matmul."""
    at_a, at_b, *_ = places
    of_a, of_b = a.dim() - (at_a is not None), b.dim() - (at_b is not None)
    axes = max(of_a, of_b, 2)
    row, column = of_a == 1, of_b == 1
    found = OPERATOR(
        _stacked(a, at_a, axes, -2 if row else None), _stacked(b, at_b, axes, -1 if column else None), *rest
    )
    found = found.squeeze(-1) if column else found
    return (found.squeeze(-1 if column else -2) if row else found), 0


def _stacked(x: Any, at: int | None, axes: int, lacking: int | None) -> Any:
    """A matrix of a vector; the batch in front, if there is one, and behind it as many axes as both operands have."""
    x = x if at is None else x.movedim(at, 0)
    x = x if lacking is None else x.unsqueeze(lacking)
    while at is not None and x.dim() <= axes:
        x = x.unsqueeze(1)
    return x


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("matmul", _multiplied, _key)
    _LIBRARY.impl("matmul", _under_autocast(_key.lower()), f"Autocast{_key}")
torch.library.register_fake("fmm::matmul", _shaped, lib=_LIBRARY)
torch.library.register_autograd("fmm::matmul", _backward, setup_context=_save, lib=_LIBRARY)
if hasattr(torch.library, "register_vmap"):  # torch 2.5 and later
    torch.library.register_vmap("fmm::matmul", _of_batches, lib=_LIBRARY)


def traced_matmul(a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Any:
    """For those who record torch's calls: its own function; in a compiled graph, where it may pay, the operator."""
    if out is None and not constraints.componentwise and _worth_an_operator(a, b):
        return OPERATOR(
            a,
            b,
            None if constraints.plan is None else str(constraints.plan),
            constraints.error_growth,
            constraints.workspace,
        )
    if constraints.plan not in (None, VENDOR):
        return matmul_tensors(a, b, out, constraints)  # which says why it cannot run
    return MATMUL(a, b) if out is None else MATMUL(a, b, out=out)


def _worth_an_operator(a: Any, b: Any) -> bool:
    """Is a graph compiled, and are these operands that it knows to be large? An exported program is to need no fmm."""
    if not is_compiling() or is_exporting() or type(a) not in PLAIN or type(b) not in PLAIN:
        return False
    if a.dtype is not b.dtype or min(a.dim(), b.dim()) < 2 or a.device != b.device:
        return False
    kind = a.device.type
    if kind not in ("cpu", "cuda") or a.dtype not in (NAMES if kind == "cuda" else HOST_TYPES):
        return False
    if torch.is_autocast_enabled(kind):
        return False
    return bool(statically_known_true(a.shape[-2] * a.shape[-1] * b.shape[-1] >= SMALL))


KEYS = "AutogradCPU", "AutogradCUDA", "AutogradMeta"
TENSORS = "torch.distributed.tensor"


def add_rules(operator: Any, library: Any) -> None:
    """Once the operator has gradients. A torch that does not hand out its kernels has neither."""
    get_kernel = getattr(torch.library, "get_kernel", None)
    if get_kernel is not None:
        for key in KEYS:
            library.impl("matmul", partial(_ruled, operator, get_kernel(operator, key)), key, with_keyset=True)


def _ruled(operator: Any, own: Any, keys: Any, a: Any, b: Any, *rest: Any) -> Any:
    """torch's own product of tensors that have tangents, as fmm.matmul has it."""
    if (type(a) not in PLAIN or type(b) not in PLAIN) and _is_sharded(a, b):
        _add_sharding(operator)
    if not (_has_tangent(a) or _has_tangent(b)):
        return own.call_boxed(keys, a, b, *rest)
    if rest and rest[0] not in (None, str(VENDOR)):
        raise PlanError(
            f"the plan {rest[0]} cannot run here: products are torch's own where forward gradients are wanted"
        )
    return MATMUL(a, b)


def _has_tangent(x: Any) -> bool:
    """Also in compiled code, which enters the level of forward gradients without a word to torch's Python."""
    return forward_ad.unpack_dual(x, level=0).tangent is not None


def _is_sharded(a: Any, b: Any) -> bool:
    """Is one a DTensor? Then that module has been loaded."""
    kind = getattr(sys.modules.get(TENSORS), "DTensor", ())
    return isinstance(a, kind) or isinstance(b, kind)


@cache
def _add_sharding(operator: Any) -> None:
    """The placements of torch.mm for two matrices: of the product and the operands. Stacks and vectors are gathered."""
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def placements(a: Any, b: Any, *rest: Any) -> list[tuple[list[Any], list[Any]]]:
        ways = [(Replicate(), Replicate(), Replicate())]
        if a.ndim == b.ndim == 2:
            ways += [(Shard(0), Shard(0), Replicate()), (Shard(1), Replicate(), Shard(1))]
            ways += [(Partial(), Shard(1), Shard(0))]
        return [([c], [left, right, *[None] * len(rest)]) for c, left, right in ways]

    register_sharding(operator)(placements)


add_rules(OPERATOR, _LIBRARY)
