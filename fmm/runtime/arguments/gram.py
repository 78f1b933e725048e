"""A call of fmm.gram."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fmm.arrays.detect import check_dense, library_of, type_name
from fmm.arrays.library import Library
from fmm.arrays.numpy_library import NUMPY
from fmm.dtypes import INTEGERS
from fmm.request import check_constraints, check_flag, check_out, check_real, fit_factors, unwrap_out
from fmm.runtime.decisions.limits import PlanConstraints
from fmm.runtime.gram import TRIANGLES, GramParams


class AskedGram(NamedTuple):
    """A call of fmm.gram, checked."""

    library: Library
    a: Any
    b: Any
    out: Any
    request: GramParams
    constraints: PlanConstraints


def checked_gram(a: Any, b: Any, out: Any, request: tuple[Any, ...], wished: tuple[Any, ...]) -> AskedGram:
    """`request`: rows, fill, alpha, beta; `wished`: plan, max_error_growth, workspace."""
    constraints, asked = check_constraints(*wished), _request(b, *request)
    library, a, b, out = _arrays(a, b, out)
    if out is None or type_name(out.dtype) in INTEGERS:
        alpha, beta = fit_factors(library, (a, b), asked.alpha, asked.beta)
        asked = asked._replace(alpha=alpha, beta=beta)
    return AskedGram(library, a, b, out, asked, constraints)


def _request(b: Any, rows: Any, fill: Any, alpha: Any, beta: Any) -> GramParams:
    if not isinstance(fill, str) or fill not in TRIANGLES:
        raise ValueError(f"fill must be one of {', '.join(TRIANGLES)}, not {fill!r}")
    factors = check_real("alpha", alpha), check_real("beta", beta)
    rows = check_flag("rows", rows)
    if rows and b is not None:
        raise ValueError("rows says which product of one matrix is meant: there is another one, b")
    return GramParams(rows, fill, *factors)


def _arrays(a: Any, b: Any, out: Any) -> tuple[Library, Any, Any, Any]:
    """The library whose arrays these are, and the arrays; what NumPy makes arrays of, as such."""
    check_dense("fmm.gram", a, b)
    out = out if out is None else unwrap_out(out)
    library: Library = library_of(a, a if b is None else b, out)
    check_out(library, out)
    if library is NUMPY:
        a, b = np.asanyarray(a), None if b is None else np.asanyarray(b)
    elif (own := library.adopt_arrays(a, a if b is None else b, out)) is not None:
        a, b, out = own[0], None if b is None else own[1], own[2]
    return library, a, b, out
