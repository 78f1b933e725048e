"""The shortest ways of products: plain arrays of one library, and nothing else asked but numpy.matmul's own options.

Products of small matrices take ten microseconds or less, so that to look at each of a call's options would be a part
of what they take. They are looked at only if there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from types import NoneType
from typing import Any, ParamSpec

import numpy as np

from fmm.arrays.detect import PLAIN_TYPES
from fmm.arrays.numpy_library import BLAS_TYPES, NUMPY
from fmm.dispatch import known_half_product, plain_product
from fmm.kernels.cpu.host_arrays import matmul as numpy_matmul
from fmm.request import NOT_GIVEN, matmul_options, missing_operands
from fmm.runtime import matmul as library_matmul
from fmm.runtime.decisions.decide import SMALLEST_INTEGER_SIDE
from fmm.runtime.decisions.early_declines import is_small_on_host, was_declined
from fmm.runtime.decisions.limits import NO_CONSTRAINTS
from fmm.runtime.gram import TRIANGLES, small_gram

P = ParamSpec("P")
USUAL: Mapping[str, Any] = {"casting": "same_kind", "order": "K", "dtype": None}  # options of numpy.matmul's
USUAL_OR_WISHES = frozenset((*USUAL, "plan", "max_error_growth", "workspace"))
ndarray = np.ndarray  # asked for at each call
FULL = TRIANGLES[0]  # the very string, as Python has but one of what programs spell out
FEW_NUMBERS = SMALLEST_INTEGER_SIDE**2  # in A: one of its sides is so small that no plan makes the product faster


def with_short_way(product: Callable[P, Any]) -> Callable[P, Any]:
    """A decorator of fmm.matmul: calls with two operands of one known type are answered here, if nothing else is asked
    or, of NumPy's arrays, numpy.matmul's own options alone."""

    @wraps(product)
    def matmul(a: Any = NOT_GIVEN, b: Any = NOT_GIVEN, /, out: Any = None, **options: Any) -> Any:
        if (kind := type(a)) is type(b) and (out is None or type(out) is kind):
            if kind is ndarray:
                if not options:
                    if a.size < FEW_NUMBERS or is_small_on_host(a, b) or was_declined(NUMPY, a, b):
                        return numpy_matmul(a, b) if out is None else numpy_matmul(a, b, out)
                    return library_matmul.run_matmul(NUMPY, a, b, out, NO_CONSTRAINTS)
                if (asked := numpy_options(options)) is not None:
                    return product_with_options(a, b, out, asked)
            elif not options and (known := PLAIN_TYPES.get(kind)) is not None and (out is None or known.differentiable):
                return plain_product(known, a, b, out)
        if b is NOT_GIVEN:
            raise missing_operands("matmul", ("a", "b"), (a, b), options)
        return product(a, b, out, **options)

    return matmul  # type: ignore[return-value]


def numpy_options(options: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Those of numpy.matmul's options that are given; None where something else is asked for too."""
    if options.keys() <= USUAL.keys():
        return options
    if not options.keys() <= USUAL_OR_WISHES:
        return None
    nothing_wished = options.get("plan") is options.get("max_error_growth") is options.get("workspace") is None
    return {name: value for name, value in options.items() if name in USUAL} if nothing_wished else None


def product_with_options(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> Any:
    """The product of two plain arrays of NumPy's with some of numpy.matmul's options."""
    if a.size < FEW_NUMBERS or is_small_on_host(a, b):
        return numpy_matmul(a, b, out, **options)
    library = NUMPY.with_options(matmul_options(**{**USUAL, **options}, more={}))
    return library_matmul.run_matmul(library, a, b, out, NO_CONSTRAINTS)


def with_short_half(product: Callable[P, Any]) -> Callable[P, Any]:
    """A decorator of fmm.gram: of one matrix alone, few rows of NumPy's are answered here, and a device's calls that
    were made a moment ago."""

    @wraps(product)
    def gram(
        a: Any = NOT_GIVEN, b: Any = None, /, out: Any = None, *, rows: Any = False, fill: Any = FULL, **options: Any
    ) -> Any:
        if b is None and not options and (rows is True or rows is False):
            c = None
            if (kind := type(a)) is ndarray:
                c = small_gram(a, rows, out) if fill is FULL else None
            elif (known := PLAIN_TYPES.get(kind)) is None or type(out) not in (kind, NoneType):
                pass
            elif type(fill) is str and fill in TRIANGLES:
                c = known_half_product(known)(known, a, out, rows, fill)  # type: ignore[arg-type]
            if c is not None:
                return c
        if a is NOT_GIVEN:
            raise missing_operands("gram", ("a",), (a,), options)
        return product(a, b, out, rows=rows, fill=fill, **options)

    return gram  # type: ignore[return-value]


def with_short_update(product: Callable[P, Any]) -> Callable[P, Any]:
    """A decorator of fmm.gemm: the plain product of two small matrices of NumPy's is answered here."""

    @wraps(product)
    def gemm(a: Any = NOT_GIVEN, b: Any = NOT_GIVEN, c: Any = None, /, *, out: Any = None, **options: Any) -> Any:
        if c is None and not options and type(a) is ndarray is type(b) and a.ndim == 2 == b.ndim:
            known = (dtype := a.dtype) is b.dtype and dtype in BLAS_TYPES
            fits = out is None or (type(out) is ndarray and out.dtype is dtype and out.shape == (len(a), b.shape[1]))
            fits = fits and a.shape[1] == len(b)
            if known and fits and (a.size < FEW_NUMBERS or is_small_on_host(a, b)):
                return numpy_matmul(a, b, out)
        if b is NOT_GIVEN:
            raise missing_operands("gemm", ("a", "b"), (a, b), options)
        return product(a, b, c, out=out, **options)

    return gemm  # type: ignore[return-value]
