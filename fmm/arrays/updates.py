"""C = alpha P + beta C by the functions that NumPy and CuPy have in common: what a library does where no plan runs."""

from __future__ import annotations

from typing import Any


def updated(module: Any, product: Any, c: Any, alpha: Any, beta: Any) -> Any:
    """In c, or as a new array where there is none; c is only read where beta is not zero."""
    value = product if alpha == 1 else module.multiply(product, alpha, out=product if product.ndim else None)
    if c is None:
        return value
    if beta:
        value = module.add(value, c if beta == 1 else c * beta)
    module.copyto(c, value)
    return c


def copied(module: Any, x: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A new array of this shape and type that holds x, broadcast."""
    made = module.empty(shape, dtype)
    made[...] = x
    return made


def promoted(module: Any, a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
    """In the type that holds them all; what has it already stays as it is."""
    if c is None:
        return a, b, c
    common = module.result_type(a.dtype, b.dtype, c.dtype)
    x, y, z = (v if v.dtype == common else v.astype(common) for v in (a, b, c))
    return x, y, z
