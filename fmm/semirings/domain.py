"""Choose the ring (number type and semiring) of a product, and convert arrays to the ring and back.

Products of floating-point arrays are computed in the type of the arrays. Integers saturate: a sum beyond the type's
range becomes the nearest integer in the range. In min-plus the type's largest integer means "no edge", in max-plus its
smallest integer. Since the kernels use no saturating instructions, the values of integer arrays are read first, and a
ring is chosen in which no sum can overflow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

MAX_INT32_RING_MAGNITUDE = 1 << 28  # largest magnitude of an entry in the ring "int32" (tropical_rings.cuh)
# float32 arrays are tested for negative entries only if a product has at least this number of sums. The kernel for
# arrays without negative entries takes 20 % less time, but testing for negative entries needs a pass over memory and a
# wait for the device.
MIN_SUMS_FOR_SIGN_TEST = 2048**3


class SemiringType(NamedTuple):
    """A ring's name, array type, and value for "no edge"; if `sign` is -1, the conversion negates all entries."""

    ring: str
    dtype: str
    missing: Any
    sign: int = 1


def no_edge_value(dtype: Any, maximum: bool) -> Any:
    """Return the value that means "no edge" in a user's array."""
    numpy_type = np.dtype(dtype)
    if numpy_type.kind == "f":
        return numpy_type.type(-np.inf if maximum else np.inf)
    limits = np.iinfo(numpy_type)
    return numpy_type.type(limits.min if maximum else limits.max)


def choose_semiring_without_overflow(
    xp: Any, arrays: tuple[Any, ...], maximum: bool, device: bool, with_arguments: bool, terms: int, work: int
) -> SemiringType:
    """Return the ring with the fastest kernels among the rings in which no sum of these arrays overflows.

    The arrays, one or two, have the same type. The caller computes `work` sums, each of at most `terms` entries of the
    arrays.
    """
    dtype = arrays[0].dtype
    if dtype.kind == "f":
        tests_sign = device and dtype == np.float32 and not maximum and work >= MIN_SUMS_FOR_SIGN_TEST
        suffix = ", greatest" if maximum else ", none negative" if tests_sign and _is_nonnegative(arrays) else ""
        return SemiringType(f"{dtype.name}{suffix}", dtype.name, no_edge_value(dtype, maximum))
    natural = not maximum and _is_nonnegative(arrays)
    if natural and (dtype == np.int32 or (with_arguments and device)):
        return SemiringType("int32, none negative", "uint32", np.uint32(2**31 - 1))
    if natural:
        return SemiringType("int16, none negative", "uint16", np.uint16(2**15 - 1))
    sign = -1 if maximum else 1
    if device and all(_largest_magnitude(xp, x, maximum) * terms <= 2 * MAX_INT32_RING_MAGNITUDE for x in arrays):
        return SemiringType("int32", "int32", np.int32(2**30 - 1), sign)
    return SemiringType("float64", "float64", np.float64(np.inf), sign)  # float64 adds integers of these types exactly


def _is_nonnegative(arrays: tuple[Any, ...]) -> bool:
    """Return True if no entry is negative or NaN; the test waits for the device."""
    return all(float(x.min()) >= 0 for x in arrays if x.size)


def _largest_magnitude(xp: Any, x: Any, maximum: bool) -> int:
    if x.size == 0 or x.dtype == np.int16:
        return 1 << 15
    edges = xp.where(x == no_edge_value(x.dtype, maximum), x.dtype.type(0), x)
    return max(int(edges.max()), -int(edges.min()))


def convert_to_semiring_type(x: Any, domain: SemiringType, maximum: bool) -> Any:
    """Return x in the array type of the ring; a view if the bits do not change."""
    missing = no_edge_value(x.dtype, maximum)
    if x.dtype == domain.dtype and missing == domain.missing:
        return x
    if domain.dtype == f"u{x.dtype.name}":
        return x.view(domain.dtype)
    values = x.astype(domain.dtype)
    if domain.sign < 0:
        values *= values.dtype.type(-1)
    values[x == missing] = domain.missing
    return values


def convert_from_semiring_type(xp: Any, x: Any, domain: SemiringType, dtype: Any, maximum: bool) -> Any:
    """Return a result in the user's type `dtype`; integers beyond the type's range saturate."""
    target = np.dtype(dtype)
    if x.dtype == target and no_edge_value(target, maximum) == domain.missing:
        return x
    if domain.dtype == f"u{target.name}":
        return x.view(target)
    limits = np.iinfo(target)
    values = x if domain.sign > 0 else -x
    least = values.dtype.type(max(limits.min, 0) if x.dtype.kind == "u" else limits.min)
    result = xp.clip(values, least, limits.max).astype(target)
    result[x >= domain.missing] = no_edge_value(target, maximum)
    return result
