"""A product of two arrays of NumPy's or CuPy's, counted if somebody wants a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from fmm.api import explain
from fmm.integrations.report import counted, reporting
from fmm.integrations.report_value import Kind

# Options of fmm.matmul that no library's matmul has.
OURS = frozenset(("plan", "max_error_growth", "workspace", "componentwise", "device", "progress"))


def as_matmul_takes(operands: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Can fmm.matmul stand for the library's? Of options that are fmm's alone, and of two places for the result or a
    tuple of some, the library is to say itself that it takes none."""
    if len(operands) > 2 and ("out" in options or type(operands[2]) is tuple):
        return False
    return not options or OURS.isdisjoint(options)


def array_product(where: str, product: Callable[..., Any], a: Any, b: Any, /, *rest: Any, **options: Any) -> Any:
    """What the product of the two returns or raises."""
    if not reporting():
        return product(a, b, *rest, **options)
    kind = Kind(where, a.shape, b.shape, str(computed_type(a, b, options)))
    return counted(kind, partial(product, a, b, *rest, **options), partial(explain, a, b, *rest, **options))


def computed_type(a: Any, b: Any, options: Mapping[str, Any]) -> Any:
    """The type in which the library multiplies them, whatever the type of `out` is."""
    given = options.get("dtype")
    try:
        return np.result_type(a.dtype, b.dtype) if given is None else np.dtype(given)
    except TypeError:  # the library rejects the call
        return a.dtype
