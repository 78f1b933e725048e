"""What torch.library has no place for, of the operator torch.ops.fmm.matmul: forward-mode gradients, and DTensors.

A kernel of ours stands at autograd's keys before the one that torch has made of the operator's gradients, which would
drop tangents silently.
"""

from __future__ import annotations

import sys
from functools import cache, partial
from typing import Any

import torch
from torch.autograd import forward_ad

from fmm.arrays.torch_calls import MATMUL, PLAIN
from fmm.kernels.plans.plan import VENDOR, PlanError

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
