"""The product of two arrays of one library, whichever it is: by a plan where one pays, else the library's own.

A call is made ready, or found ready; then it runs, by leaner plans if memory runs out, at last by the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from fmm.arrays.library import Library, Operand, Processor, Setting, contiguous
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.steps.asked import Asked
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime import run_host
from fmm.runtime.call_record import RECORDING, record_call, record_fallback, record_measured_call
from fmm.runtime.decisions.decide import Decision, decide_plan, next_plans, smaller_plans
from fmm.runtime.decisions.early_declines import remember_decline
from fmm.runtime.decisions.limits import NO_CONSTRAINTS, PlanConstraints
from fmm.runtime.devices import Device
from fmm.runtime.prepare import (
    PreparedCall,
    ProblemQuery,
    launches_at,
    launches_on,
    plan_call,
    prepare_call,
    prepare_query,
    writes_there,
)


def run_matmul_any_library(library: Library, a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Any:
    """The same, where some arrays may be of other libraries, which this one can read in place."""
    own = library.adopt_arrays(a, b, out)
    if own is None:
        return run_matmul(library, a, b, out, constraints)
    c = run_matmul(library, *own, constraints)
    return library.to_callers_library(c, a, b) if out is None else out


def run_matmul(library: Library, a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Any:
    """What the library's own matmul returns or raises, faster where a plan pays."""
    call = prepare_call(library, a, b, out, constraints)
    if call.plan is None:
        return _left_to_library(library, call, a, b, out, constraints)
    if call.decision.trial is not None:
        c = _runner(library.processor).measured_product(
            library,
            call,
            lambda plan: run_matmul(library, a, b, out, constraints._replace(plan=plan, replaceable=True)),
        )
        if RECORDING.on:
            record_measured_call(call.decision)
        return c
    there = out is not None and writes_there(library, call, a, b, out)
    if call.direct and not there:  # `out` overlaps an operand
        call = prepare_call(library, a, b, None, constraints)
    target = out if there else None
    c = run_with_fallback(library, call, a, b, target, constraints)
    if c is None:
        return library.vendor(a, b, out)
    if target is None and out is not None:
        library.copy(c, out)
        return out
    return c


def run_with_fallback(
    library: Library, call: PreparedCall, a: Any, b: Any, target: Any, constraints: PlanConstraints, added: Any = None
) -> Any:
    """C by a call's plan or another one, in `target` if that is given; None if the library must multiply.

    `added`: what is added, of C's shape, where C does not hold it (then `wishes.added` are its strides).
    """
    c = _attempt(library, call, a, b, target, constraints, added)
    if isinstance(c, Failure):  # what the failed attempt had allocated is given back now that the exception is gone
        failed = c
        c = _product_instead(library, call, a, b, target, constraints, failed, added)
        if c is None and RECORDING.on:
            record_fallback(failed.why)
            record_call(call.decision, None)
    return c


def run_cached_gram(library: Library, call: PreparedCall, a: Any, out: Any) -> Any:
    """Of a matrix and its transpose in place, by a call that copies neither and so asks for their address alone (to
    make a transposed view takes a microsecond); None: the usual way."""
    try:
        return _runner(library.processor).run_call(library, call, a, a, out, False)
    except (library.out_of_memory, PlanError):
        return None


@dataclass(frozen=True)
class Failure:
    """Why a plan gave no product: what is tried instead of it."""

    plans_instead: Callable[[Problem, Plan, Limits, Device], Iterator[Plan]]
    why: str = "no plan could run"


OUT_OF_MEMORY = Failure(smaller_plans, "memory ran out")
CANNOT_RUN = Failure(next_plans, "no plan can run on arrays that lie like these")


def _attempt(
    library: Library, call: PreparedCall, a: Any, b: Any, out: Any, constraints: PlanConstraints, added: Any
) -> Any:
    """C by the call's plan, None if the library must multiply, or a Failure, unless the caller insists on the plan."""
    more = () if added is None else (added,)
    try:
        c = _runner(library.processor).run_call(library, call, a, b, out, constraints.plan is not None, *more)
    except library.out_of_memory:
        if constraints.plan_required:
            raise
        return OUT_OF_MEMORY
    except PlanError:  # nothing is computed before it is raised
        if constraints.plan_required:
            raise
        return CANNOT_RUN
    if RECORDING.on:
        record_call(call.decision, None if c is None else call.plan)
    return c


def _product_instead(
    library: Library,
    call: PreparedCall,
    a: Any,
    b: Any,
    out: Any,
    constraints: PlanConstraints,
    failed: Failure,
    added: Any,
) -> Any:
    """C by other plans of the model's; None if the library must multiply."""
    problem = call.decision.problem
    assert problem is not None and call.device is not None
    asked = Asked(problem.alpha, problem.beta, problem.op, problem.fill)
    try:
        for plan in failed.plans_instead(problem, call.decision.plan, call.limits, call.device):
            own = constraints._replace(plan=plan, replaceable=True, asked=asked)
            other = prepare_call(library, a, b, out, own)
            c = failed if other.plan is None else _attempt(library, other, a, b, out, own, added)
            if not isinstance(c, Failure):
                return c
    except MemoryError:
        pass  # to find a plan takes memory too
    return None


def _left_to_library(
    library: Library, call: PreparedCall, a: Any, b: Any, out: Any, constraints: PlanConstraints
) -> Any:
    """The library's own product; PlanError if another plan was given, and the library does not reject the call."""
    if call.plan_refusal:
        library.vendor(a, b)
        raise PlanError(call.plan_refusal)
    if RECORDING.on:
        record_call(call.decision, None)
    if constraints is NO_CONSTRAINTS and (
        out is None or call.decision.problem is not None
    ):  # not because `out` is no usual one
        remember_decline(library, a, b, call.decision)
    return library.vendor(a, b, out)


@lru_cache(maxsize=2)
def _runner(processor: Processor) -> Any:
    """The module that runs plans there; the one for devices loads CuPy."""
    if processor == "cpu":
        return run_host
    from fmm.runtime import run_device

    return run_device


# ---- explaining


def explain_matmul(library: Library, a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Decision:
    """What `product` would do, and why; nothing is computed."""
    own = library.adopt_arrays(a, b, out) or (a, b, out)
    call = plan_call(library, *own, constraints)
    return replace(call.decision, kernels=describe_kernels(library, call, *own))


def decide_without_arrays(problem: Problem, limits: Limits, device: Device, given: Plan | None = None) -> Decision:
    """What would be done with arrays that lie row by row: by the plan that was given, if one was."""
    if given is None or 0 in problem.size:
        decision = decide_plan(problem, limits, device)
        launches = launches_on(decision.plan, problem, device, False)
    else:
        call = prepare_query(_question(problem, limits, device, given, None))
        decision, launches = call.decision, call.launches
    if device.threads:
        return replace(decision, kernels=run_host.describe_products(decision.plan, problem, device.threads))
    return replace(decision, kernels=launches.describe() if launches else ("the vendor's product",))


def planned_call_bytes(problem: Problem, limits: Limits, device: Device, given: Plan | None = None) -> int:
    """Bytes that a call takes beside A, B and C, which lie row by row: its plan's workspace, and what it is captured
    and computed again with."""
    out = contiguous(problem.shapes[2], problem.stored)
    return prepare_query(_question(problem, limits, device, given, out)).workspace


def _question(
    problem: Problem, limits: Limits, device: Device, given: Plan | None, out: Operand | None
) -> ProblemQuery:
    a, b, _ = (contiguous(shape, problem.stored) for shape in problem.shapes)
    setting = Setting(0, problem.stored, "tf32" if problem.dtype == "tf32" else "ieee")
    asked = Asked(problem.alpha, problem.beta, problem.op, problem.fill)
    return ProblemQuery(a, b, out, setting, device, limits, given, asked=asked)


def describe_kernels(library: Library, call: PreparedCall, a: Any, b: Any, out: Any) -> tuple[str, ...]:
    """What runs, a line each."""
    if call.launches is not None:
        a, b = (None if packed else library.pointer(x) for x, packed in zip((a, b), call.packs, strict=True))
        return launches_at(call, a, b, library.pointer(out) if call.direct and out is not None else None).describe()
    problem = call.decision.problem
    if call.plan is not None and problem is not None and call.device is not None:
        return run_host.describe_products(call.plan, problem, call.device.threads)
    on_threads = f" on {run_host.count_noun(call.setting.device, 'thread')}" if library.processor == "cpu" else ""
    reads = "" if call.decision.plan == VENDOR else ", since the plan's kernels cannot read arrays that lie like these"
    return (f"{library.vendor_name}{on_threads}{reads}",)
