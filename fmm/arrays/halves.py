"""Halves of matrices that are their own adjoints, by the functions that NumPy and CuPy have in common."""

from __future__ import annotations

from typing import Any


def adjoint(module: Any, x: Any) -> Any:
    """The transpose, in the same memory; of complex numbers conjugated, in new memory."""
    turned = module.swapaxes(x, -1, -2)
    return module.conj(turned) if x.dtype.kind == "c" else turned


def whole_factor(x: float) -> float:
    """A factor of whole numbers, as one of those if it can be."""
    return int(x) if x.is_integer() else x


def finish_half(module: Any, product: Any, out: Any, alpha: float, beta: float, fill: str) -> None:
    """The lower half of out = alpha product + beta out; with fill `full` the upper one as its adjoint. TypeError where
    out's type cannot hold that."""
    if product.dtype.kind in "iu":
        alpha, beta = whole_factor(alpha), whole_factor(beta)
    value = product if alpha == 1 else product * alpha
    if beta:
        value = value + (out if beta == 1 else out * beta)
    if value.dtype.kind == "c":
        module.einsum("...ii->...i", value).imag[...] = 0
    if fill == "full":
        module.copyto(out, module.tril(value) + adjoint(module, module.tril(value, -1)))
    else:
        module.copyto(out, value, where=module.tri(out.shape[-1], dtype=bool))
