"""What NumPy's library and CuPy's do by functions that both have, under the same names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np


class NumpyLike(ABC):
    """That part of a library (`fmm.arrays.library`); `module` is NumPy or CuPy."""

    module: Any

    @abstractmethod
    def vendor(self, a: Any, b: Any, out: Any = None) -> Any:
        """Its own product."""

    def lacks(self, x: Any) -> bool:
        return False

    def watched(self) -> bool:
        return False

    # ---- other arrays of an array

    def transposed(self, x: Any) -> Any:
        return x.T if x.ndim == 2 else self.module.swapaxes(x, -1, -2)

    def adjoint(self, x: Any) -> Any:
        """The transpose, in the same memory; of complex numbers conjugated, in new memory."""
        turned = self.transposed(x)
        return self.module.conj(turned) if x.dtype.kind == "c" else turned

    def conjugated(self, x: Any) -> Any:
        return self.module.conj(x)

    def is_complex(self, x: Any) -> bool:
        return bool(x.dtype.kind == "c")

    def zeros(self, shape: tuple[int, ...], like: Any) -> Any:
        return self.module.zeros(shape, like.dtype)

    def broadcast_view(self, x: Any, shape: tuple[int, ...]) -> Any:
        return self.module.broadcast_to(x, shape)

    def copied(self, x: Any, shape: tuple[int, ...], like: Any) -> Any:
        made = self.module.empty(shape, like.dtype)
        made[...] = x
        return made

    def promote_operands(self, a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
        """In the type that holds them all; what has it already stays as it is."""
        if c is None:
            return a, b, c
        common = self.module.result_type(a.dtype, b.dtype, c.dtype)
        x, y, z = (v if v.dtype == common else v.astype(common) for v in (a, b, c))
        return x, y, z

    # ---- where no plan runs

    def updated(self, a: Any, b: Any, c: Any, alpha: Any, beta: Any) -> Any:
        """alpha a b + beta c in c, or as a new array where there is none; c is only read where beta is not zero."""
        product = self.vendor(a, b)
        value = product if alpha == 1 else self.module.multiply(product, alpha, out=product if product.ndim else None)
        if c is None:
            return value
        if beta:
            value = self.module.add(value, c if beta == 1 else c * beta)
        self.module.copyto(c, value)
        return c

    def write_triangle(self, product: Any, out: Any, alpha: float, beta: float, fill: str) -> None:
        """The lower half of out = alpha product + beta out; with fill `full` the upper one as its adjoint. TypeError
        where out's type cannot hold that."""
        module = self.module
        kind = product.dtype.kind
        alpha, beta = (whole_factor(x) if kind in "iub" else float(x) for x in (alpha, beta))
        if kind == "b" == out.dtype.kind:  # NumPy's or-and, of which there are no other multiples
            alpha, beta = bool(alpha), bool(beta)
        value = product if alpha == 1 else product * alpha
        if beta:
            value = value + (out if beta == 1 else out * beta)
        if value.dtype.kind == "c":
            module.einsum("...ii->...i", value).imag[...] = 0
        if fill == "full":
            module.copyto(out, module.tril(value) + self.adjoint(module.tril(value, -1)))
        else:
            module.copyto(out, value, where=module.tri(out.shape[-1], dtype=bool))


def whole_factor(x: float) -> float:
    """A factor of whole numbers, as one of those if it can be."""
    return int(x) if isinstance(x, int) or x.is_integer() else x


def on_host(x: Any) -> Any:
    """NumPy's array as it is; of CuPy's, a copy."""
    return x if isinstance(x, np.ndarray) else x.get()
