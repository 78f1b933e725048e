"""The shortest way of a product: two plain arrays of one library, and nothing else asked.

Products of small matrices take ten microseconds or less, so that to look at each of a call's options would be a part
of what they take. They are looked at only if there are any.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import numpy as np

from fmm.arrays.numpy_library import NUMPY
from fmm.arrays.pick import PLAIN_TYPES
from fmm.kernels.cpu.numpy_products import matmul as numpy_matmul
from fmm.runtime import matmul as library_matmul
from fmm.runtime import routes
from fmm.runtime.decisions.left_to_vendor import just_left_to_vendor, small_enough_for_numpy
from fmm.runtime.decisions.limits import NO_WISHES

P = ParamSpec("P")
ndarray = np.ndarray  # asked for at each call


def with_short_way(product: Callable[P, Any]) -> Callable[P, Any]:
    """A decorator of fmm.matmul: calls with two operands alone are answered here if their types are known."""

    @wraps(product)
    def matmul(a: Any, b: Any, /, out: Any = None, **options: Any) -> Any:
        if not options and (kind := type(a)) is type(b) and (out is None or type(out) is kind):
            if kind is ndarray:
                if small_enough_for_numpy(a, b) or just_left_to_vendor(NUMPY, a, b):
                    return numpy_matmul(a, b) if out is None else numpy_matmul(a, b, out=out)
                return library_matmul.product(NUMPY, a, b, out, NO_WISHES)
            if (known := PLAIN_TYPES.get(kind)) is not None and (out is None or known.differentiable):
                return routes.plain_product(known, a, b, out)
        return product(a, b, out, **options)

    return matmul  # type: ignore[return-value]
