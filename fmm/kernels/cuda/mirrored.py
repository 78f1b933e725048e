"""A product that is its own adjoint, and the mirror of its half: what a kernel may do in one launch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fmm.kernels.cuda.ops import GemmOp, MirrorOp, TriangleOutput, View


@dataclass(frozen=True)
class MirroredOp:
    """A product that makes the lower half of a matrix that is its own adjoint, and the mirror that makes the rest."""

    product: GemmOp  # it leaves arbitrary numbers in the other half
    mirror: MirrorOp

    @property
    def writes_result(self) -> bool:
        """Does it write C, and not a temporary?"""
        return self.product.writes_result

    @property
    def whole(self) -> GemmOp:
        """The same by one kernel that writes both halves."""
        assert self.product.half is not None
        return replace(self.product, half=TriangleOutput("full", self.product.half.gram))


def mirrored_op(op: object, source: View, mirror: MirrorOp) -> MirroredOp | None:
    """An operation and the mirror in place that follows it, as one; None if it makes more or less than that half."""
    if not (isinstance(op, GemmOp) and op.extent == "loose" and op.count == 1 and mirror.in_place and mirror.full):
        return None
    here = (op.dest.base, op.dest.offset, op.dest.leading) == (source.base, source.offset, source.down)
    return MirroredOp(op, mirror) if here and op.m == op.n == source.rows else None
