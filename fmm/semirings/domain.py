"""In which numbers a product over a semiring is computed.

Floats are computed as they are. Whole numbers are saturated: the largest one of a type stands for "no edge" (the
smallest one, of max-plus), and a sum beyond the type's range is the nearest number that it has. None of the rings
saturates by an instruction of its own; so the numbers are looked at first, and go to a ring in which no sum can
overflow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

LIMIT = 1 << 28  # of the ring "int32": tropical_rings.cuh
# Sums from which on it pays to look whether floats are negative: a fifth less time, for a pass and a wait.
WORTH_A_LOOK = 2048**3


class Domain(NamedTuple):
    """A ring by its name, the type of the arrays it works on, and its own "no edge"; with a negative sign, numbers are
    turned around, so that the greatest is the least."""

    ring: str
    dtype: str
    none: Any
    sign: int = 1


def none_of(dtype: Any, greatest: bool) -> Any:
    """What stands for "no edge" in arrays of users."""
    found = np.dtype(dtype)
    if found.kind == "f":
        return found.type(-np.inf if greatest else np.inf)
    limits = np.iinfo(found)
    return found.type(limits.min if greatest else limits.max)


def chosen_domain(
    xp: Any, arrays: tuple[Any, ...], greatest: bool, device: bool, args: bool, terms: int, work: int
) -> Domain:
    """For sums of so many `terms` of one or two arrays, which are of one type; `args`: with places noted; `work`: sums
    in all."""
    dtype = arrays[0].dtype
    if dtype.kind == "f":
        looks = device and dtype == np.float32 and not greatest and work >= WORTH_A_LOOK
        more = ", greatest" if greatest else ", none negative" if looks and _none_negative(xp, arrays) else ""
        return Domain(f"{dtype.name}{more}", dtype.name, none_of(dtype, greatest))
    natural = not greatest and _none_negative(xp, arrays)
    if natural and (dtype == np.int32 or (args and device)):
        return Domain("int32, none negative", "uint32", np.uint32(2**31 - 1))
    if natural:
        return Domain("int16, none negative", "uint16", np.uint16(2**15 - 1))
    sign = -1 if greatest else 1
    if device and all(_largest_size(xp, x, greatest) * terms <= 2 * LIMIT for x in arrays):
        return Domain("int32", "int32", np.int32(2**30 - 1), sign)
    return Domain("float64", "float64", np.float64(np.inf), sign)  # which adds whole numbers up exactly


def _none_negative(xp: Any, arrays: tuple[Any, ...]) -> bool:
    """The device is waited for once. (NaN counts as negative.)"""
    least = [x.min() for x in arrays if x.size]
    return not least or bool(xp.minimum(least[0], least[-1]) >= 0)


def _largest_size(xp: Any, x: Any, greatest: bool) -> int:
    if x.size == 0 or x.dtype == np.int16:
        return 1 << 15
    edges = xp.where(x == none_of(x.dtype, greatest), x.dtype.type(0), x)
    return max(int(edges.max()), -int(edges.min()))


def to_domain(x: Any, domain: Domain, greatest: bool) -> Any:
    """An array in the domain's numbers; in the same memory if they are the same bits."""
    if x.dtype == domain.dtype and none_of(x.dtype, greatest) == domain.none:
        return x
    if domain.dtype == f"u{x.dtype.name}":
        return x.view(domain.dtype)
    found = x.astype(domain.dtype)
    if domain.sign < 0:
        found *= found.dtype.type(-1)
    found[x == none_of(x.dtype, greatest)] = domain.none
    return found


def from_domain(xp: Any, x: Any, domain: Domain, dtype: Any, greatest: bool) -> Any:
    """Such a result in the users' type."""
    target = np.dtype(dtype)
    if x.dtype == target and none_of(target, greatest) == domain.none:
        return x
    if domain.dtype == f"u{target.name}":
        return x.view(target)
    limits = np.iinfo(target)
    found = x if domain.sign > 0 else -x
    inside = xp.clip(found, found.dtype.type(max(limits.min, 0) if x.dtype.kind == "u" else limits.min), limits.max)
    inside = inside.astype(target)
    inside[x >= domain.none] = none_of(target, greatest)
    return inside
