"""Min-plus and max-plus products of NumPy and CuPy arrays and torch tensors: fmm.minplus."""

from __future__ import annotations

from typing import Any

import numpy as np

from fmm.arrays.detect import check_dense
from fmm.semirings import placement
from fmm.semirings.domain import (
    choose_semiring_without_overflow,
    convert_from_semiring_type,
    convert_to_semiring_type,
    no_edge_value,
)
from fmm.semirings.host import BestIndexRecord
from fmm.semirings.placement import (
    COMPUTED_TYPES,
    ArrayPlacement,
    as_readable_array,
    host_semiring,
    writable_target,
    write_result,
)


def minplus_product(a: Any, b: Any, out: Any, maximum: bool, with_arguments: bool) -> Any:
    """Return the smallest (or greatest) sums a[i, k] + b[k, j] over k.

    If `with_arguments` is True, also return the first index k with the best sum of each entry.
    """
    check_dense("fmm.minplus", a, b)
    with placement.place_arrays(a=a, b=b, out=out) as place:
        x, y = place.adopt(as_readable_array(a)), place.adopt(as_readable_array(b))
        dtype = _result_type(x, y)
        x, y = _as_result_type(place.xp, x, a, dtype, maximum), _as_result_type(place.xp, y, b, dtype, maximum)
        target = None if out is None else writable_target(place, out, (x.shape[0], y.shape[1]), dtype)
        values, args = _compute_product(place, x, y, maximum, with_arguments)
        result = place.to_caller(values) if target is None else write_result(out, target, values)
        return (result, place.to_caller(args)) if with_arguments else result


def _result_type(x: Any, y: Any) -> Any:
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[0]:
        raise ValueError(f"fmm.minplus takes an m x k and a k x n matrix, not {x.shape} and {y.shape}")
    dtype = np.result_type(x.dtype, y.dtype)
    if dtype.kind not in "biuf":
        raise TypeError(
            f"fmm.minplus takes real numbers and computes in {', '.join(COMPUTED_TYPES)}, not in {dtype.name}"
        )
    return dtype if dtype.name in COMPUTED_TYPES else np.dtype(np.float64)


def _as_result_type(xp: Any, values: Any, original: Any, dtype: Any, maximum: bool) -> Any:
    """Return the values in the result's type.

    Entries that mean "no edge" in the computed type, and masked entries, become the "no edge" value of the result's
    type.
    """
    result = values.astype(dtype, copy=False)
    if values.dtype != dtype and values.dtype.name in COMPUTED_TYPES and values.dtype.kind != "f":
        is_missing = values == no_edge_value(values.dtype, maximum)
        result = xp.where(is_missing, no_edge_value(dtype, maximum), result)
    if not isinstance(original, np.ma.MaskedArray):
        return result
    return np.where(np.ma.getmaskarray(original), no_edge_value(result.dtype, maximum), result)


def _compute_product(place: ArrayPlacement, x: Any, y: Any, maximum: bool, with_arguments: bool) -> tuple[Any, Any]:
    xp, dtype, shape = place.xp, x.dtype, (x.shape[0], y.shape[1])
    if 0 in (*shape, x.shape[1]):
        return xp.full(shape, no_edge_value(dtype, maximum), dtype), xp.full(shape, -1, np.int32)
    work = x.shape[0] * x.shape[1] * y.shape[1]
    domain = choose_semiring_without_overflow(
        xp, (x, y), maximum, place.is_on_device, with_arguments, terms=2, work=work
    )
    left, right = (convert_to_semiring_type(v, domain, maximum) for v in (x, y))
    if place.is_on_device:
        values, args = placement.load_device_module().device_product(domain.ring, left, right, with_arguments)
    else:
        values, args = np.empty(shape, left.dtype), np.empty(shape, np.int32) if with_arguments else None
        semiring = host_semiring(domain, maximum, work)
        arguments = None if args is None else BestIndexRecord(args)
        semiring.multiply_and_add(np.ascontiguousarray(left), np.ascontiguousarray(right), None, values, arguments)
    result = convert_from_semiring_type(xp, values, domain, dtype, maximum)
    if with_arguments and result.dtype != values.dtype and dtype.kind == "i":
        # a saturated sum means "no edge", so its entry gets the index -1
        args[result == no_edge_value(dtype, maximum)] = -1
    return result, args
