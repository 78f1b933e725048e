"""A call of fmm.gemm."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fmm.arrays.detect import check_dense, library_of
from fmm.arrays.library import Library
from fmm.arrays.numpy_library import NUMPY
from fmm.request import check_constraints, check_out, check_scalar, fit_factors, parse_plan, unwrap_out
from fmm.runtime.decisions.limits import PlanConstraints
from fmm.runtime.gemm import OPS, BlasGemmParams


class AskedGemm(NamedTuple):
    """A call of fmm.gemm, checked."""

    library: Library
    a: Any
    b: Any
    c: Any
    out: Any
    update: BlasGemmParams
    constraints: PlanConstraints


def checked_gemm(a: Any, b: Any, c: Any, out: Any, update: tuple[Any, ...], wished: tuple[Any, ...]) -> AskedGemm:
    """`update`: alpha, beta, transpose_a, transpose_b; `wished`: plan, max_error_growth, workspace."""
    given = parse_plan(wished[0])
    if given is not None:  # a plan that was explained may conjugate, which the call itself decides
        given = given.conjugating(*given.conjugates) or given
    told, constraints = _update(*update), check_constraints(given, *wished[1:])
    library, arrays = _arrays(a, b, c, out)
    a, b, c, _ = arrays
    _check_scalars(library, (a, b, c), told)
    alpha, beta = fit_factors(library, (a, b, c if told.beta else None), told.alpha, told.beta)
    return AskedGemm(library, *arrays, told._replace(alpha=alpha, beta=beta), constraints)


def _update(alpha: Any, beta: Any, transpose_a: Any, transpose_b: Any) -> BlasGemmParams:
    """What was asked besides arrays."""
    ops = []
    for name, value in (("transpose_a", transpose_a), ("transpose_b", transpose_b)):
        op = OPS.get(value) if isinstance(value, str | int | np.integer | np.bool_) else None
        if op is None:
            raise ValueError(f"{name} must be False, True or 'C', or 0, 1 or 2, not {value!r}")
        ops.append(op)
    return BlasGemmParams(check_scalar("alpha", alpha), check_scalar("beta", beta), *ops)


def _check_scalars(library: Library, arrays: tuple[Any, ...], update: BlasGemmParams) -> None:
    """Real matrices have no complex multiples."""
    if complex in (type(update.alpha), type(update.beta)):
        given = [np.asanyarray(x) if library is NUMPY else x for x in arrays if x is not None]
        if not any(library.is_complex(x) for x in given):
            raise TypeError("alpha and beta must be real numbers for real matrices")


def _arrays(a: Any, b: Any, c: Any, out: Any) -> tuple[Library, tuple[Any, Any, Any, Any]]:
    """The library whose arrays these are, and the arrays."""
    check_dense("fmm.gemm", a, b, c)
    out = unwrap_out(out)
    library = library_of(a, b, out) if c is None else library_of(a, b, c, "c")
    check_out(library, out)
    if c is not None and out is not None:
        library_of(a, b, out)
    own = library.adopt_arrays(a, b, c)
    if own is not None:
        a, b, c = own
        out = None if out is None else library.adopt_arrays(a, b, out)[2]  # type: ignore[index]
    return library, (a, b, c, out)
