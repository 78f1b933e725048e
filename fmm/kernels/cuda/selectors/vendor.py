"""Products by the vendor's leaves, and by the vendor where a leaf of ours cannot do a product."""

from __future__ import annotations

from fmm.kernels.cuda.launch_list import Launch, VendorCall
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.target import Target
from fmm.kernels.plans.plan_error import PlanError

Selected = tuple[Launch | VendorCall, ...]  # in order
BATCHED_3M = ("complex64",)  # the types of which cuBLAS does a batch by three real products each


def select_vendor(op: GemmOp, target: Target) -> Selected:
    """The leaf `vendor`: cuBLAS's usual call."""
    return (VendorCall(op, batch_label("cuBLAS", op)),)


def select_vendor_3m(op: GemmOp, target: Target) -> Selected:
    """The leaf `vendor3m`; product by product where cuBLAS has no call for a batch."""
    label = f"cuBLAS, {op.dtype} by three real products"
    if op.dtype in BATCHED_3M or op.count == 1:
        return (VendorCall(op, batch_label(label, op)),)
    return tuple(VendorCall(one, label) for one in op.one_by_one)


def select_candidate(op: GemmOp, target: Target) -> Selected:
    """The leaves `lt0`, `lt1`, ...: one of cuBLASLt's candidates."""
    return (VendorCall(op, batch_label(f"cuBLASLt, candidate {op.use.number}", op)),)


def vendor_instead(op: GemmOp, reason: str) -> Selected:
    """The vendor's call in the place of a leaf that cannot do this product, with the reason in its label.

    Where nothing may be written beside a lower half, that is the vendor's function for one half of a matrix's product
    with its own transpose, once for each product of a batch.
    """
    label = f"cuBLAS, not {op.leaf}, because {reason}"
    if op.half is None or op.half.extent != "lower":
        return (VendorCall(op.as_vendor_gemm, batch_label(label, op)),)
    if not op.half.gram:
        raise PlanError(f"{op.leaf} cannot leave the upper half of this product as it is, because {reason}")
    return tuple(VendorCall(one.as_rank_update, label) for one in op.one_by_one)


def batch_label(label: str, op: GemmOp) -> str:
    """The label, with how many products are a batch."""
    return f"{label}, a batch of {op.count}" if op.count > 1 else label
