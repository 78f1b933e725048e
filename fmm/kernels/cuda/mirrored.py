"""A product that is its own adjoint, and the mirror of its half: what a kernel may do in one launch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fmm.kernels.cuda.gemm import GemmOp
from fmm.kernels.cuda.sums.mirror import MirrorOp
from fmm.kernels.cuda.views import View


@dataclass(frozen=True)
class MirroredOp:
    """All of a C that is its own adjoint, of which `product` makes the lower half."""

    product: GemmOp  # after which the other half has anything
    mirror: MirrorOp

    @property
    def writes_result(self) -> bool:
        return self.product.writes_result

    @property
    def whole(self) -> GemmOp:
        """The same by the kernel alone."""
        return replace(self.product, half="full")


def mirrored_op(op: object, source: View, mirror: MirrorOp) -> MirroredOp | None:
    """Of the operation before a mirror in place, if that makes all of the half and nothing else."""
    if not (isinstance(op, GemmOp) and op.half == "loose" and op.count == 1 and mirror.in_place and mirror.full):
        return None
    here = (op.dest.base, op.dest.offset, op.dest.leading) == (source.base, source.offset, source.down)
    return MirroredOp(op, mirror) if here and op.m == op.n == source.rows else None
