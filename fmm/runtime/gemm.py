"""C = alpha op(A) op(B) + beta C of any library's arrays: by a plan, whose last sums do the update, or by the library.

Every plan can do it: alpha and beta are coefficients of its last sums. What is added may be what C holds, and they are
done in place; or it lies elsewhere, one row for all of C's perhaps, and is read there. What C held is kept where a
result with inf or NaN may have to be computed again (fmm.kernels.cuda.record).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from fmm.arrays.library import Library, product_shape
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.kernels.plans.steps.asked import Asked
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.early_declines import is_small_on_host
from fmm.runtime.decisions.limits import NO_CONSTRAINTS, PlanConstraints
from fmm.runtime.matmul import describe_kernels, run_with_fallback
from fmm.runtime.operands import byte_span, spans_meet
from fmm.runtime.prepare import PreparedCall, plan_call, prepare_call, writes_there

# What SciPy's gemm, BLAS and people call it: as it is, transposed, transposed and conjugated.
OPS: dict[Hashable, str] = {0: "N", 1: "T", 2: "C", "N": "N", "T": "T", "C": "C"}  # False is 0, True is 1


class BlasGemmParams(NamedTuple):
    """What is asked besides the product; which operands are transposed or adjoint."""

    alpha: complex = 1
    beta: complex = 0
    op_a: str = "N"
    op_b: str = "N"

    @property
    def asked(self) -> Asked:
        return Asked(self.alpha, self.beta)


class Operands(NamedTuple):
    """The factors as they lie in memory, which of them are to be conjugated, and the array that C is computed in; None:
    a new one. What is added is `added`, of C's shape, which is read where it lies; or, if that is None, what the target
    holds."""

    a: Any
    b: Any
    conjugated: tuple[bool, bool]
    target: Any
    added: Any = None


def run_gemm(
    library: Library, a: Any, b: Any, c: Any, out: Any, update: BlasGemmParams, constraints: PlanConstraints
) -> Any:
    """alpha op(a) op(b) + beta c, in `out` if it is given."""
    a, b, c = library.promote_operands(a, b, c if update.beta else None)
    found = _operands(library, a, b, c, out, update)
    small = constraints is NO_CONSTRAINTS and library.processor == "cpu" and is_small_on_host(found.a, found.b)
    compute = _by_library if small else _computed
    result = compute(library, found, _with_update(library, found, update, constraints))
    if out is None or result is out:
        return result
    library.copy(result, out)
    return out


def explain_gemm(
    library: Library, a: Any, b: Any, c: Any, out: Any, update: BlasGemmParams, constraints: PlanConstraints
) -> Decision:
    """What `gemm_product` would do, and why; of C, only how it lies in memory counts."""
    a, b, c = library.promote_operands(a, b, c if update.beta else None)
    found = _explained_operands(library, a, b, c, out, update)
    if _nothing_to_multiply(found, update.alpha) and product_shape(tuple(found.a.shape), tuple(found.b.shape)):
        why = f"{library.name} answers: there is nothing to multiply"
        return Decision(VENDOR, None, why, kernels=(library.gemm_name or library.vendor_name,))
    constraints = _with_update(library, found, update, constraints)
    call = plan_call(library, found.a, found.b, found.target, constraints)
    if any(found.conjugated):
        plan = call.plan.conjugating(*found.conjugated) if call.plan is not None else None
        found = found if plan is not None else _conjugated_copies(library, found)
        constraints = constraints if plan is None else constraints._replace(plan=plan, replaceable=True)
        call = plan_call(library, found.a, found.b, found.target, constraints)
    own = library.gemm_name if call.decision.plan == VENDOR else ""
    return replace(
        call.decision, kernels=(own,) if own else describe_kernels(library, call, found.a, found.b, found.target)
    )


def transposed_operands(library: Library, a: Any, b: Any, update: BlasGemmParams) -> tuple[Any, Any, tuple[bool, bool]]:
    """Transposed in the same memory, and whether to be conjugated; ValueError for what is no matrix."""
    if min(a.ndim, b.ndim) < 2:
        raise ValueError(f"fmm.gemm wants matrices that match, not {tuple(a.shape)} and {tuple(b.shape)}")
    ops = update.op_a, update.op_b
    a, b = (x if op == "N" else library.transposed(x) for x, op in zip((a, b), ops, strict=True))
    conjugated = [op == "C" and library.is_complex(x) for x, op in zip((a, b), ops, strict=True)]
    return a, b, (conjugated[0], conjugated[1])


# ---- where C is computed


def _operands(library: Library, a: Any, b: Any, c: Any, out: Any, update: BlasGemmParams) -> Operands:
    """ValueError for shapes that do not match; the library's own error for what it does not multiply."""
    a, b, conjugated = transposed_operands(library, a, b, update)
    shape = product_shape(tuple(a.shape), tuple(b.shape))
    if shape is None:
        raise ValueError(f"fmm.gemm wants matrices that match, not {tuple(a.shape)} and {tuple(b.shape)}")
    if out is not None and tuple(out.shape) != shape:
        raise ValueError(f"out is {tuple(out.shape)}, the product {shape}")
    if not update.beta:
        return Operands(a, b, conjugated, out)
    if c is None:
        raise ValueError("beta is a factor of c, which was not given")
    _check_broadcast(tuple(c.shape), shape)
    if out is not None and _same_array(library, c, out) and not any(_meet(library, x, out) for x in (a, b)):
        return Operands(a, b, conjugated, out)
    added = readable_there(library, a, b, c, shape)
    if added is None:
        return Operands(a, b, conjugated, library.copied(c, shape, a))
    elsewhere = out is None or any(_meet(library, x, out) for x in (a, b, c))
    return Operands(a, b, conjugated, None if elsewhere else out, added)


READABLE = 16  # bytes: kernels read as many at a time


def readable_there(library: Library, a: Any, b: Any, c: Any, shape: tuple[int, ...]) -> Any:
    """What is added, broadcast to C's shape in its own memory, if plans can read it there; else None.

    Not of a stack times one matrix, which is one product of all its rows.
    """
    if tuple(a.shape[:-2]) != tuple(b.shape[:-2]) or (len(shape) > 2 and prod(shape[:-2]) == 1):
        return None
    if library.processor == "cuda" and (library.pointer(c) % READABLE or not _on_one_device(library, a, c)):
        return None
    found = library.broadcast_view(c, shape)
    return found if found is not None and library.operand(found).strides is not None else None


def _on_one_device(library: Library, a: Any, c: Any) -> bool:
    return library.device_number(a) == library.device_number(c)


def addend_strides(library: Library, added: Any) -> tuple[int, ...] | None:
    """As a question has them: zero where there is only one number along an axis."""
    if added is None:
        return None
    strides = library.operand(added).strides
    assert strides is not None
    return tuple(0 if n == 1 else step for n, step in zip(added.shape, strides, strict=True))


def gemm_constraints(library: Library, a: Any, b: Any, c: Any, out: Any, update: BlasGemmParams) -> PlanConstraints:
    """What `gemm_product` asks a prepared call for, if the caller asks for nothing else."""
    found = _explained_operands(library, a, b, c, out, update)
    return _with_update(library, found, update, NO_CONSTRAINTS)


def _with_update(
    library: Library, found: Operands, update: BlasGemmParams, constraints: PlanConstraints
) -> PlanConstraints:
    """The wishes, with alpha, beta and where what is added lies."""
    return constraints._replace(asked=update.asked, added=addend_strides(library, found.added))


def _explained_operands(library: Library, a: Any, b: Any, c: Any, out: Any, update: BlasGemmParams) -> Operands:
    """Nothing is copied to be explained."""
    found = Operands(*transposed_operands(library, a, b, update), out)
    shape = product_shape(tuple(found.a.shape), tuple(found.b.shape))
    if not update.beta or c is None or shape is None or (out is not None and _same_array(library, c, out)):
        return found
    if library.broadcast_view(c, shape) is None:  # it is copied, and its copy is where the product goes
        return found._replace(target=c)
    return found._replace(added=readable_there(library, found.a, found.b, c, shape))


def _check_broadcast(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    missing = len(wanted) - len(shape)
    if missing < 0 or any(x not in (1, y) for x, y in zip(shape, wanted[missing:], strict=True)):
        raise ValueError(f"c is {shape}, the product {wanted}: it must have that shape, or one that is broadcast to it")


def _meet(library: Library, x: Any, y: Any) -> bool:
    """May the two arrays share memory?"""
    of_x, of_y = (byte_span(library.operand(v)) for v in (x, y))
    return spans_meet(library.pointer(x), of_x, library.pointer(y), of_y)


def _same_array(library: Library, x: Any, y: Any) -> bool:
    return x is y or (library.pointer(x) == library.pointer(y) and library.operand(x) == library.operand(y))


# ---- computing it


def _computed(library: Library, found: Operands, constraints: PlanConstraints) -> Any:
    """C, in the target if that can be and it has one; else in new memory, where it can."""
    if _nothing_to_multiply(found, constraints.asked.alpha):
        return _by_library(library, found, constraints)
    call = prepare_call(library, found.a, found.b, found.target, constraints)
    if call.plan_refusal:
        library.vendor(found.a, found.b)
        raise PlanError(call.plan_refusal)
    if call.plan is None or (call.plan == VENDOR and library.gemm_name):
        return _by_library(library, found, constraints)
    there = found.target is None or writes_there(library, call, found.a, found.b, found.target)
    if not there:
        old = found.target if constraints.asked.beta and found.added is None else None
        old = library.copied(old, tuple(old.shape), found.a) if old is not None else None
        return _computed(library, found._replace(target=old), constraints)
    if any(found.conjugated):
        return _of_conjugates(library, call, found, constraints)
    c = run_with_fallback(library, call, found.a, found.b, found.target, constraints, found.added)
    return _by_library(library, found, constraints) if c is None else c


def _nothing_to_multiply(found: Operands, alpha: Coefficient) -> bool:
    """Does nothing of A and B count, be it inf or NaN? Then no plan is asked, be it given."""
    return alpha == 0 or 0 in found.a.shape


def _of_conjugates(library: Library, call: PreparedCall, found: Operands, constraints: PlanConstraints) -> Any:
    """The same where operands are to be conjugated: by the call's plan if it can do so on its way, else of copies.

    No other plan may take the place of one that conjugates: it would multiply the operands as they lie in memory.
    """
    assert call.plan is not None
    plan = call.plan.conjugating(*found.conjugated)
    if plan is None:
        return _computed(library, _conjugated_copies(library, found), constraints)
    own = constraints._replace(plan=plan, replaceable=False)
    try:
        ready = prepare_call(library, found.a, found.b, found.target, own)
        c = run_with_fallback(library, ready, found.a, found.b, found.target, own, found.added)
    except (library.out_of_memory, PlanError):
        if constraints.plan_required:
            raise
        c = None
    return _by_library(library, found, constraints) if c is None else c


def _holding(library: Library, found: Operands) -> Operands:
    """The same, the target holding what is added."""
    if found.added is None:
        return found
    if found.target is None:
        return found._replace(added=None, target=library.copied(found.added, tuple(found.added.shape), found.a))
    library.copy(found.added, found.target)
    return found._replace(added=None)


def _conjugated_copies(library: Library, found: Operands) -> Operands:
    pairs = zip((found.a, found.b), found.conjugated, strict=True)
    a, b = (library.conjugated(x) if wanted else x for x, wanted in pairs)
    return found._replace(a=a, b=b, conjugated=(False, False))


def _by_library(library: Library, found: Operands, constraints: PlanConstraints) -> Any:
    """By the library's own functions, in the target if there is one."""
    alpha, beta = constraints.asked.alpha, constraints.asked.beta
    found = _conjugated_copies(library, _holding(library, found))
    a, b = found.a, found.b
    if alpha == 0:
        a, b, alpha = a[..., :0], b[..., :0, :], 1
    c = library.updated(a, b, found.target, alpha, beta)
    if found.target is not None:
        library.written(found.target)
    return c
