"""Which operands of torch's operators fmm multiplies: plain tensors, and places and numbers that torch takes as is.

And what a report counts a product of them as.
"""

from __future__ import annotations

from typing import Any

from fmm.arrays.torch_calls import PLAIN, deterministic, dispatch_keys, plain_bits, writable
from fmm.integrations.report_value import Kind


def plain_operands(a: Any, b: Any) -> bool:
    """Two plain tensors of one type on one device that torch would multiply."""
    return (
        type(a) in PLAIN
        and type(b) in PLAIN
        and a.dtype is b.dtype
        and plain_bits(dispatch_keys(a).raw_repr() | dispatch_keys(b).raw_repr())
        and a.dim() == b.dim()
        and a.shape[-1] == b.shape[-2]
        and a.shape[:-2] == b.shape[:-2]
        and a.get_device() == b.get_device()
        and not deterministic()
    )


def why_torchs(a: Any, b: Any, out: Any) -> str:
    """Why torch multiplies, where operands are not plain or `out` does not take the product."""
    return f"torch answers: {_what_is_not_plain(a, b, out)}"


def _what_is_not_plain(a: Any, b: Any, out: Any) -> str:
    if deterministic():
        return "deterministic algorithms are asked for"
    for name, x in (("the left operand", a), ("the right operand", b)):
        if type(x) not in PLAIN:
            return f"{name} is a {type(x).__name__}, not a plain tensor"
        if not plain_bits(dispatch_keys(x).raw_repr()):
            return f"{name} is not a plain tensor, or in the midst of a transform"
    if plain_operands(a, b):
        assert out is not None
        return "out is of another type or shape, or torch cannot write there as it is"
    return "the operands are of two types or on two devices, or their sizes do not match"


def takes(out: Any, a: Any, b: Any) -> bool:
    """Is it a place for the product as it is? Torch makes others fit, or says what is wrong."""
    return writable(out, a) and out.dtype is a.dtype and out.shape == (*a.shape[:-1], b.shape[-1])


def can_be_added(added: Any, a: Any, b: Any) -> bool:
    """Is it a plain tensor of the product's type and device, and of its shape or broadcast to it?"""
    shape = *a.shape[:-1], b.shape[-1]
    return (
        type(added) in PLAIN
        and added.dtype is a.dtype
        and added.get_device() == a.get_device()
        and plain_bits(dispatch_keys(added).raw_repr())
        and added.dim() <= len(shape)
        and all(x in (1, y) for x, y in zip(reversed(added.shape), reversed(shape), strict=False))
    )


def are_factors(alpha: Any, beta: Any, a: Any) -> bool:
    """Numbers by which torch would multiply such a matrix."""
    factors = alpha, beta
    return not any(isinstance(x, bool) or (isinstance(x, complex) and not a.is_complex()) for x in factors)


def kind_of_product(where: str, a: Any, b: Any) -> Kind:
    """As a report counts it."""
    return Kind(where, tuple(a.shape), tuple(b.shape), str(a.dtype).removeprefix("torch."))
