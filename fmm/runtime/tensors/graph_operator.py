"""torch.ops.fmm.matmul: the product as an operator of torch's, of which compiled graphs know shape and gradients.

A function that calls fmm.matmul is compiled whole: a product for which a plan may pay is this operator in the graph,
any other torch's own, which the compiler may fuse with its neighbours.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fmm.arrays.torch_calls import MATMUL, PLAIN, is_compiling, is_exporting
from fmm.arrays.torch_library import HOST_TYPES, NAMES
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.runtime.decisions.left_to_vendor import SMALL
from fmm.runtime.decisions.limits import Wishes
from fmm.runtime.tensors.gradients import gradients, product, save_factors

SCHEMA = "matmul(Tensor a, Tensor b, str? plan=None, float? max_error_growth=None, int? workspace=None) -> Tensor"
_LIBRARY = torch.library.Library("fmm", "FRAGMENT")
_LIBRARY.define(SCHEMA)
OPERATOR: Any = torch.ops.fmm.matmul.default


def _multiplied(a: Any, b: Any, plan: str | None = None, growth: float | None = None, room: int | None = None) -> Any:
    with torch.no_grad():  # the operator's gradients are its own, below
        wishes = Wishes(None if plan is None else Plan.parse(plan), growth, room)
        return product(a, b, None, wishes).contiguous()


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


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("matmul", _multiplied, _key)
torch.library.register_fake("fmm::matmul", _shaped, lib=_LIBRARY)
torch.library.register_autograd("fmm::matmul", _backward, setup_context=_save, lib=_LIBRARY)


def recorded_product(a: Any, b: Any, out: Any, wishes: Wishes) -> Any:
    """For those who record torch's calls: its own function; in a compiled graph, where it may pay, the operator."""
    if out is None and not wishes.componentwise and _worth_an_operator(a, b):
        return OPERATOR(a, b, None if wishes.plan is None else str(wishes.plan), wishes.error_growth, wishes.workspace)
    if wishes.plan not in (None, VENDOR):
        return product(a, b, out, wishes)  # which says why it cannot run
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
