"""Tensor contractions as sequences of matrix products: fmm.einsum, fmm.tensordot and fmm.multi_dot."""

from fmm.contractions.einsum import einsum, multi_dot, tensordot, transpose

__all__ = ["einsum", "multi_dot", "tensordot", "transpose"]
