"""torch's own products with a place for the result, with factors and with a summand, as its functions compute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fmm.arrays.torch_calls import MATMUL


def torch_update(a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any = None) -> Any:
    """alpha a b + beta c by torch's own functions, in `out` if that is given; they record what they do."""
    check_whole(a, alpha, beta)
    alpha, beta = (as_taken(a, factor) for factor in (alpha, beta))
    if a.dim() == b.dim() == 2:
        added = a.new_zeros(()) if c is None else c
        return torch.addmm(added, a, b, beta=beta, alpha=alpha, out=out)
    if a.dim() == b.dim() == 3 and len(a) == len(b):
        added = a.new_zeros((1, 1, 1)) if c is None else c
        return torch.baddbmm(added, a, b, beta=beta, alpha=alpha, out=out)
    value = MATMUL(a, b) * alpha
    value = value + c * beta if beta else value
    return value if out is None else out.copy_(value)


def check_whole(x: Any, *factors: Any) -> None:
    """RuntimeError, as torch.add has it, for other factors of whole numbers: torch.addmm would drop their fractions."""
    if not (x.is_floating_point() or x.is_complex()) and any(isinstance(factor, float) for factor in factors):
        raise RuntimeError("alpha and beta must be whole numbers for tensors of whole numbers")


def as_taken(x: Any, factor: Any) -> Any:
    """A factor as torch takes it: of whole numbers none beyond 64 bits, unless as a float."""
    whole = isinstance(factor, int) and (x.is_floating_point() or x.is_complex())
    return float(factor) if whole else factor


# ---- a place that may lie on a factor


def product_into(multiply: Callable[..., Any], a: Any, b: Any, out: Any) -> Any:
    """torch's product into `out`. Where that lies on a factor, which torch would overwrite as it reads it, by way of a
    new tensor, as NumPy does it."""
    if out is not a and out is not b and not _lies_on(out, a) and not _lies_on(out, b):
        return multiply(a, b, out=out)
    wants_gradients = torch.is_grad_enabled() and any(x.requires_grad for x in (a, b, out))
    c = None if wants_gradients else multiply(a, b)
    if c is None or c.shape != out.shape or c.dtype != out.dtype:
        return multiply(a, b, out=out)  # with torch's own error, or its warning that it changes the shape
    return out.copy_(c)


def _lies_on(x: Any, y: Any) -> bool:
    """Have they numbers between the same addresses? (No, where there are none.)"""
    try:
        if x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr():
            return False
        (first, end), (other, last) = _addresses(x), _addresses(y)
    except RuntimeError:  # sparse tensors and the like
        return False
    return first < last and other < end


def _addresses(x: Any) -> tuple[int, int]:
    """Of the first number, and behind the last one."""
    reach = sum((length - 1) * step for length, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else -1
    return x.data_ptr(), x.data_ptr() + (reach + 1) * x.itemsize
