"""Products that are their own adjoints, of any library's arrays: by a plan of one half, else by the library's product.

The lower half is what plans compute; an upper one is the lower one of the transposed product.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from fmm.arrays.library import Library, Setting
from fmm.arrays.numpy_library import read_in_place
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.cpu.host_arrays import matmul
from fmm.kernels.cpu.triangle_product import hermitian_product, uses_panels
from fmm.kernels.cuda.recompute.recompute import can_recompute, may_create_nonfinite
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.kernels.plans.steps.asked import Asked
from fmm.problem import Fill
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.limits import NO_CONSTRAINTS, GramKey, PlanConstraints
from fmm.runtime.matmul import describe_kernels, run_cached_gram, run_with_fallback
from fmm.runtime.operands import spans_meet
from fmm.runtime.prepare import Ask, PreparedCall, plan_call, prepare_call, writes_there

Triangle = Literal["full", "lower", "upper"]
TRIANGLES: tuple[Triangle, ...] = ("full", "lower", "upper")


class GramParams(NamedTuple):
    """What fmm.gram was asked besides its arrays."""

    rows: bool = False
    fill: Triangle = "full"
    alpha: float = 1
    beta: float = 0


class Operands(NamedTuple):
    """The factors of the product whose lower half is wanted, and a place for it; `turned`: it is the transposed one."""

    left: Any
    right: Any
    out: Any
    asked: Asked
    turned: bool


def run_gram(library: Library, a: Any, b: Any, out: Any, request: GramParams, constraints: PlanConstraints) -> Any:
    """alpha a^H a + beta out (of `rows` a a^H, with b the product a b)."""
    found = _operands(library, a, b, out, request)
    c = _computed(library, found, constraints)
    return out if out is not None else library.transposed(c) if found.turned else c


def run_recurring_gram(library: Library, a: Any, out: Any, rows: bool, fill: Triangle) -> Any:
    """The same of an array on a device, where nothing else is asked and a call like it was made a moment ago: no
    question is asked but whether memory is shared. None: the usual way."""
    if library.processor == "cpu":
        return None
    call = prepare_call(library, a, None, out, KNOWN[rows, fill], _prepare_alone)
    if call.plan is None:
        return None
    if out is not None and not _writes_beside(call, library.pointer(a), library.pointer(out)):
        return None
    try:
        return run_cached_gram(library, call, a, out)
    except Exception:  # a launch has failed: what the others wrote is written over, if the device still can
        if out is not None:
            with suppress(Exception):
                turned = library.transposed(a)
                whole = library.vendor(a, turned) if rows else library.vendor(turned, a)
                target, kept = (library.transposed(out), "lower") if fill == "upper" else (out, fill)
                library.write_triangle(whole, target, 1.0, 0.0, kept)
        raise


def _writes_beside(call: PreparedCall, a: int, out: int) -> bool:
    """Can its plan write into `out` there, which begins at this address? Both factors are in a's memory."""
    return call.direct and not spans_meet(a, call.spans[0], out, call.spans[2])


KNOWN = {(rows, fill): GramKey(rows, fill) for rows in (False, True) for fill in TRIANGLES}


def _prepare_alone(library: Library, a: Any, b: None, out: Any, constraints: GramKey) -> PreparedCall:
    """The call that does all that is asked; one without a plan where the usual way must see it."""
    if not library.is_complex(a) and (out is not None or constraints.fill == "full"):
        found = _operands(library, a, b, out, GramParams(constraints.rows, constraints.fill))
        call, chosen = _chosen(library, found, NO_CONSTRAINTS, prepare_call)
        if chosen is found and call.plan is not None and not call.copies and call.decision.trial is None:
            return call
    return PreparedCall(Decision(VENDOR, None, "the usual way"), Setting(0))


def explain_gram(
    library: Library, a: Any, b: Any, out: Any, request: GramParams, constraints: PlanConstraints
) -> Decision:
    """What `gram_product` would do, and why."""
    found = _operands(library, a, b, out, request)
    call, chosen = _chosen(library, found, constraints, plan_call)
    alone = b is None and constraints == NO_CONSTRAINTS and request == GramParams(request.rows)
    if alone and (kernel := describe_small_gram(a, request.rows, out)):
        return replace(call.decision, kernels=(kernel,))
    if call.plan is None and _is_librarys_own(call, found):
        return replace(call.decision, kernels=(f"{library.vendor_name}: BLAS's syrk, one half, and NumPy's mirror",))
    if _is_own_gemm(library, call, found, constraints) or (call.plan is None and call.setting.adjoint):
        own = library.gemm_name if call.plan is not None and found.asked.beta else library.vendor_name
        return replace(call.decision, kernels=(f"{own}: a whole product, of which one half is mirrored",))
    decision = replace(call.decision, kernels=describe_kernels(library, call, chosen.left, chosen.right, chosen.out))
    if chosen is found:
        return decision
    return replace(decision, reason=f"{decision.reason}; in an array of its own, from which what was asked is copied")


def _operands(library: Library, a: Any, b: Any, out: Any, request: GramParams) -> Operands:
    if a.ndim < 2 or (b is not None and (b.ndim < 2 or a.shape[-2] != b.shape[-1])):
        raise ValueError(f"fmm.gram wants matrices whose product is square, not {_shapes(a, b)}")
    if b is not None:
        left, right = a, b
    else:
        left, right = (a, library.adjoint(a)) if request.rows else (library.adjoint(a), a)
    if out is None and (request.beta or request.fill != "full"):
        if request.beta:
            raise ValueError("beta is a factor of out, which was not given")
        out = library.zeros(_result_shape(left, right), left)
    elif out is not None and tuple(out.shape) != _result_shape(left, right):
        raise ValueError(f"out is {tuple(out.shape)}, the product {_result_shape(left, right)}")
    if turned := request.fill == "upper":
        left, right = library.transposed(right), library.transposed(left)
        out = library.transposed(out)
    fill: Fill = "full" if request.fill == "full" else "lower"
    asked = Asked(request.alpha, request.beta, "gram" if b is None else "symmetric", fill)
    return Operands(left, right, out, asked, turned)


def _shapes(a: Any, b: Any) -> str:
    return " and ".join(str(tuple(x.shape)) for x in (a, b) if x is not None)


def _result_shape(left: Any, right: Any) -> tuple[int, ...]:
    stack = np.broadcast_shapes(tuple(left.shape[:-2]), tuple(right.shape[:-2]))
    return (*stack, left.shape[-2], left.shape[-2])


def _computed(library: Library, found: Operands, constraints: PlanConstraints) -> Any:
    """C, in `out` if that is given."""
    call, chosen = _chosen(library, found, constraints, prepare_call)
    left, right = chosen.left, chosen.right
    if call.plan_refusal:
        library.vendor(left, right)
        raise PlanError(call.plan_refusal)
    c = None
    if _is_own_gemm(library, call, found, constraints):
        return _by_own_gemm(library, found)
    if call.plan is not None:
        c = run_with_fallback(library, call, left, right, chosen.out, constraints._replace(asked=chosen.asked))
    if c is not None and chosen is found:
        return c
    if c is None and _is_librarys_own(call, found):
        return library.vendor(found.left, found.right, found.out)
    return _finished(library, found, library.vendor(left, right) if c is None else c)


def _chosen(library: Library, found: Operands, constraints: PlanConstraints, ask: Ask) -> tuple[PreparedCall, Operands]:
    """The call that is made, and what it is asked: all, or where no plan can do that in `out`, the whole product and
    nothing besides as a new array."""
    left, right, out = found[:3]
    own = constraints._replace(asked=found.asked)
    call = ask(library, left, right, out, own)
    if out is None or call.plan_refusal or _can_write_there(library, call, found):
        return call, found
    if constraints.plan is None and _predicted_time(call) > WORTH_A_COPY:
        vendors = ask(library, left, right, out, own._replace(plan=VENDOR))
        if _can_write_there(library, vendors, found):
            return vendors, found
    whole = found._replace(out=None, asked=_whole(found.asked))
    return ask(library, left, right, None, constraints._replace(asked=whole.asked)), whole


# A plan that cannot write into `out` needs another array and another pass; this share of the vendor's time leaves room
# for that. (An H200: 0.89 was predicted of a half of 8192 a side in float64, 1.04 measured with the copy.)
WORTH_A_COPY = 0.8


def _predicted_time(call: PreparedCall) -> float:
    """Of the call's plan, the vendor's being 1; 0 where a measurement says that it is faster."""
    return next((c.time for c in call.decision.candidates if c.plan == call.plan), 0.0)


def _can_write_there(library: Library, call: PreparedCall, found: Operands) -> bool:
    """Can a plan do all that is asked in `out` itself? Not where inf or NaN, or on the host an exception, could make it
    begin anew: the old numbers would be gone."""
    if call.plan is None:
        return False
    problem = call.decision.problem
    updates = problem is None or not can_recompute(problem)
    again = library.processor == "cpu" or (may_create_nonfinite(call.plan) and updates)
    kept = found.asked == _whole(found.asked) or not again
    return kept and writes_there(library, call, found.left, found.right, found.out)


def _is_librarys_own(call: PreparedCall, found: Operands) -> bool:
    """Does the library's own product compute one half, and mirror it, where it is wanted? NumPy's of a real matrix and
    its transpose in place does."""
    return found.asked == _whole(found.asked) and call.setting.mirrors


def _is_own_gemm(library: Library, call: PreparedCall, found: Operands, constraints: PlanConstraints) -> bool:
    """Is a product of two matrices, for whose half BLAS has no function, one of a library's on the host that has a BLAS
    of its own, which adds as it goes?"""
    own = library.processor == "cpu" and bool(library.gemm_name) and constraints.plan is None
    return own and call.plan == VENDOR and found.asked.op == "symmetric"


def _by_own_gemm(library: Library, found: Operands) -> Any:
    """The whole of it by the library's own function, in an array of its own, and the mirror of one half."""
    asked = found.asked
    if not asked.beta:
        return _finished(library, found, library.vendor(found.left, found.right))
    value = library.copied(found.out, tuple(found.out.shape), found.out)
    library.updated(found.left, found.right, value, asked.alpha, asked.beta)
    return _finished(library, found._replace(asked=asked._replace(alpha=1, beta=0)), value)


def _whole(asked: Asked) -> Asked:
    """All of the product, and nothing besides."""
    return Asked(op=asked.op)


def _finished(library: Library, found: Operands, product: Any) -> Any:
    """What else is asked, done to a whole product."""
    asked = found.asked
    out = product if found.out is None else found.out
    library.write_triangle(product, out, _real(asked.alpha), _real(asked.beta), asked.fill)
    library.written(out)
    return out


def _real(factor: Coefficient) -> float:
    """Whole numbers as they are: not all of them are floats."""
    return factor if isinstance(factor, int) else complex(factor).real


SMALL_SIDE = 1024  # rows and columns of the product up to which that is so
LONG_SIDE, FEW = 4096, 64  # and with an inner side of no more than the second
ndarray = np.ndarray
# NumPy has one object for each of its types; an array that has another one goes the usual way.
FLOAT64, FLOAT32, COMPLEX128, COMPLEX64 = map(np.dtype, ("float64", "float32", "complex128", "complex64"))


def small_gram(a: Any, rows: bool, out: Any) -> Any:
    """The whole product of NumPy's array and its adjoint; None: the usual way. Of a real matrix and its transpose in
    place, NumPy's own product calls BLAS's function for halves."""
    dtype = a.dtype
    if a.ndim != 2 or (a.size > SMALL_SIDE and not _has_few_rows(a, rows)):  # small ones without a second call
        return None
    if out is not None and (type(out) is not ndarray or out.dtype is not dtype or out.ndim != 2):
        return None
    try:
        if dtype is FLOAT64 or dtype is FLOAT32:
            flags = a.flags
            if not (flags.carray or (flags.forc and flags.aligned) or read_in_place(a)):
                a = a.copy()
            if out is None:
                return matmul(a, a.T) if rows else matmul(a.T, a)
            return matmul(a, a.T, out) if rows else matmul(a.T, a, out)
    except ValueError:  # `out` has another shape: the usual way says so in words of fmm's
        return None
    if dtype is COMPLEX128 or dtype is COMPLEX64:
        side = a.shape[not rows]
        return hermitian_product(a, rows, out) if out is None or out.shape == (side, side) else None
    return None


def _has_few_rows(a: Any, rows: bool) -> bool:
    """Are they so few that no plan is asked for? Certainly, of SMALL_SIDE numbers or fewer."""
    side, inner = a.shape if rows else a.shape[::-1]
    return bool(a.size <= SMALL_SIDE or side <= SMALL_SIDE or (side <= LONG_SIDE and inner <= FEW))


def describe_small_gram(a: Any, rows: bool, out: Any) -> str:
    """What computes one that is complex, or copied before, in words; none if it is not answered here."""
    if type(a) is not ndarray or a.ndim != 2 or a.dtype not in (FLOAT64, FLOAT32, COMPLEX128, COMPLEX64):
        return ""
    if not _has_few_rows(a, rows) or (out is not None and (type(out) is not ndarray or out.dtype is not a.dtype)):
        return ""
    if a.dtype.kind == "f":
        copied = not ((a.flags.forc and a.flags.aligned) or read_in_place(a))
        return "numpy.matmul of a copy: BLAS's syrk, one half, and NumPy's mirror" if copied else ""
    side, inner = a.shape if rows else a.shape[::-1]
    if uses_panels(side, inner):
        return "numpy.matmul: one half in panels of rows, each of which is mirrored"
    return "numpy.matmul: a whole product, of which one half is mirrored"
