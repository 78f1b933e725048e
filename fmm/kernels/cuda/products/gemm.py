"""fmm/kernels/cuda/products/gemm.py."""

from __future__ import annotations

from dataclasses import dataclass

from fmm.kernels.cuda.views import Factor


@dataclass(frozen=True)
class GemmOp:
    """`count` products dest = alpha left right + beta dest, in BLAS's column-major terms."""

    leaf: str
    m: int
    n: int
    k: int
    left: Factor
    right: Factor
    dest: Factor
    count: int = 1
    alpha: complex = 1
    beta: complex = 0
    scratch: int = 0  # where in the workspace a leaf of cuBLASLt has its own

    @property
    def pieces(self) -> tuple[Factor, Factor, Factor]:
        """Everything that it is given."""
        return self.left, self.right, self.dest

    @property
    def writes_result(self) -> bool:
        return self.dest.base == "C"
