"""A call of fmm.gram."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fmm.arrays.kinds import check_dense, type_name
from fmm.arrays.library import Library
from fmm.arrays.numpy_library import NUMPY
from fmm.arrays.pick import library_of
from fmm.dtypes import INTEGERS
from fmm.runtime.arguments.factors import fitting_factors
from fmm.runtime.arguments.numbers import checked_flag, checked_real
from fmm.runtime.arguments.result import check_place, single
from fmm.runtime.arguments.wishes import checked_wishes
from fmm.runtime.decisions.limits import Wishes
from fmm.runtime.gram import HALVES, GramRequest


class AskedGram(NamedTuple):
    """A call of fmm.gram, checked."""

    library: Library
    a: Any
    b: Any
    out: Any
    request: GramRequest
    wishes: Wishes


def checked_gram(a: Any, b: Any, out: Any, request: tuple[Any, ...], wished: tuple[Any, ...]) -> AskedGram:
    """`request`: rows, fill, alpha, beta; `wished`: plan, max_error_growth, workspace."""
    wishes, asked = checked_wishes(*wished), _request(b, *request)
    library, a, b, out = _arrays(a, b, out)
    if out is None or type_name(out.dtype) in INTEGERS:
        alpha, beta = fitting_factors(library, (a, b), asked.alpha, asked.beta)
        asked = asked._replace(alpha=alpha, beta=beta)
    return AskedGram(library, a, b, out, asked, wishes)


def _request(b: Any, rows: Any, fill: Any, alpha: Any, beta: Any) -> GramRequest:
    if not isinstance(fill, str) or fill not in HALVES:
        raise ValueError(f"fill must be one of {', '.join(HALVES)}, not {fill!r}")
    factors = checked_real("alpha", alpha), checked_real("beta", beta)
    rows = checked_flag("rows", rows)
    if rows and b is not None:
        raise ValueError("rows says which product of one matrix is meant: there is another one, b")
    return GramRequest(rows, fill, *factors)


def _arrays(a: Any, b: Any, out: Any) -> tuple[Library, Any, Any, Any]:
    """The library whose arrays these are, and the arrays; what NumPy makes arrays of, as such."""
    check_dense("fmm.gram", a, b)
    out = out if out is None else single(out)
    library: Library = library_of(a, a if b is None else b, out)
    check_place(library, out)
    if library is NUMPY:
        a, b = np.asanyarray(a), None if b is None else np.asanyarray(b)
    elif (own := library.adopted(a, a if b is None else b, out)) is not None:
        a, b, out = own[0], None if b is None else own[1], own[2]
    return library, a, b, out
