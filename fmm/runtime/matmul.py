"""The product of two arrays of one library, computed by a plan if a plan is faster, else by the library's own function.

A call is prepared, or its prepared call is found in a cache, and the prepared call runs. If memory runs out, plans with
less workspace are tried; if all these plans fail, the library's own product runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from fmm.arrays.library import Library, Operand, Processor, ProductSetting, contiguous_operand
from fmm.config.schema import FIRST_PRODUCT
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime import run_host
from fmm.runtime.call_record import RECORDING_SWITCH, clear_record, record_call, record_fallback, record_measured_call
from fmm.runtime.decisions.decide import Decision, decide_plan, next_winning_plans, plans_with_less_memory
from fmm.runtime.decisions.early_declines import remember_decline
from fmm.runtime.decisions.first_product import MAX_MEASURED_SECONDS
from fmm.runtime.decisions.limits import NO_CONSTRAINTS, PlanConstraints
from fmm.runtime.devices import Device
from fmm.runtime.prepare import (
    PreparedCall,
    ProblemQuery,
    can_write_into_out,
    launches_at_addresses,
    launches_on_device,
    prepare_call,
    prepare_query,
    prepare_uncached,
)


def run_matmul_any_library(library: Library, a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Any:
    """Return the product of two arrays, which may belong to different libraries.

    `library` is an adapter that can read the memory of both arrays and of `out`.
    """
    wrap_foreign_arrays = library.wrap_foreign_arrays(a, b, out)
    if wrap_foreign_arrays is None:
        return run_matmul(library, a, b, out, constraints)
    c = run_matmul(library, *wrap_foreign_arrays, constraints)
    if out is not None:
        return out
    from fmm.arrays.cupy_library import to_callers_library  # only CuPy adopts arrays

    return to_callers_library(c, a, b)


def run_matmul(library: Library, a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Any:
    """Return the product, computed by a plan if a plan is faster, else by the library's own matmul.

    For invalid operands, the errors of the library's matmul are raised.
    """
    call = prepare_call(library, a, b, out, constraints)
    trial = call.decision.trial
    if trial is not None and trial.origin == FIRST_PRODUCT and a.ndim == b.ndim == 2:
        call = _decide_after_first_product(library, call, a, b, out, constraints)
    if call.plan is None:
        return _run_vendor(library, call, a, b, out, constraints)
    if trial is not None and trial.origin != FIRST_PRODUCT:
        c = _runner_module(library.processor).run_timed_product(
            library,
            call,
            lambda plan: run_matmul(library, a, b, out, constraints._replace(plan=plan, replaceable=True)),
        )
        if RECORDING_SWITCH.on:
            record_measured_call(call.decision)
        return c
    there = out is not None and can_write_into_out(library, call, a, b, out)
    if call.writes_out and not there:  # `out` overlaps an operand
        call = prepare_call(library, a, b, None, constraints)
        if call.plan is None:  # for example, since less memory is free than before
            return _run_vendor(library, call, a, b, out, constraints)
    target = out if there else None
    c = run_with_fallback(library, call, a, b, target, constraints)
    if c is None:
        return library.vendor_product(a, b, out)
    if target is None and out is not None:
        library.copy_into(c, out)
        return out
    return c


def _decide_after_first_product(
    library: Library, call: PreparedCall, a: Any, b: Any, out: Any, constraints: PlanConstraints
) -> PreparedCall:
    """Compare the call's plan with the vendor on leading blocks of A and B; return a call with a new decision.

    If the comparison raises an exception, the vendor computes the product. While the stream is captured, or while
    another thread runs this comparison, return the call without a comparison.
    """
    trial = call.decision.trial
    assert trial is not None
    m, k, n = trial.problem.size
    a_block, b_block = a[:m, :k], b[:k, :n]

    def multiply(plan: Plan) -> Any:
        return run_matmul(library, a_block, b_block, None, constraints._replace(plan=plan, replaceable=True))

    if trial.entry is None:
        _runner_module(library.processor).run_and_time_first_product(library, call, multiply, MAX_MEASURED_SECONDS)
        clear_record()
    if trial.entry is None:
        return call
    library.cached_calls.clear()  # calls that were prepared before the measurement
    return prepare_call(library, a, b, out, constraints)


def _run_vendor(library: Library, call: PreparedCall, a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Any:
    """Return the product, computed by the library's own function.

    If the caller passed a plan that cannot run, raise the library's own error for invalid operands, else PlanError.
    """
    if call.plan_refusal:
        library.vendor_product(a, b)
        raise PlanError(call.plan_refusal)
    if RECORDING_SWITCH.on:
        record_call(call.decision, None)
    # If no plan can compute a call with `out` (`decision.problem` is None), the decline is not cached: without this
    # `out`, a plan may be faster than the library.
    if constraints is NO_CONSTRAINTS and (out is None or call.decision.problem is not None):
        remember_decline(library, a, b, call.decision)
    return library.vendor_product(a, b, out)


# ---- running a plan, and other plans if it fails


@dataclass(frozen=True)
class PlanFailure:
    """The reason why a plan failed, and a function that yields the plans to try after the failure."""

    other_plans: Callable[[Problem, Plan, Limits, Device], Iterator[Plan]]
    reason: str = "no plan could run"


MEMORY_FAILURE = PlanFailure(plans_with_less_memory, "memory ran out")
LAYOUT_FAILURE = PlanFailure(next_winning_plans, "no plan can run on arrays with these memory layouts")


def run_with_fallback(
    library: Library,
    call: PreparedCall,
    a: Any,
    b: Any,
    target: Any,
    constraints: PlanConstraints,
    addend: Any = None,
) -> Any:
    """Return C by the call's plan; if the plan fails, by another plan; None if the library must multiply.

    `target`: the array for C; None for a new array. `addend`: an array of C's shape; None if C holds the addend.
    """
    c = _try_plan(library, call, a, b, target, constraints, addend)
    if isinstance(c, PlanFailure):  # `_try_plan` has dropped the exception, so the memory of the failed attempt is free
        failure = c
        c = _run_other_plans(library, call, a, b, target, constraints, failure, addend)
        if c is None and RECORDING_SWITCH.on:
            record_fallback(failure.reason)
            record_call(call.decision, None)
    return c


def _try_plan(
    library: Library, call: PreparedCall, a: Any, b: Any, out: Any, constraints: PlanConstraints, addend: Any
) -> Any:
    """Return C, computed by the call's plan.

    Return None if the library must multiply. Return a PlanFailure if the plan fails and the caller did not pass the
    plan.
    """
    extra = () if addend is None else (addend,)
    required = constraints.plan is not None or constraints.reproducible
    try:
        c = _runner_module(library.processor).run_call(library, call, a, b, out, required, *extra)
    except library.out_of_memory_error:
        if constraints.is_plan_required:
            raise
        return MEMORY_FAILURE
    except PlanError:  # PlanError is raised before anything is computed
        if constraints.is_plan_required:
            raise
        return LAYOUT_FAILURE
    if RECORDING_SWITCH.on:
        record_call(call.decision, None if c is None else call.plan)
    return c


def _run_other_plans(
    library: Library,
    call: PreparedCall,
    a: Any,
    b: Any,
    out: Any,
    constraints: PlanConstraints,
    failure: PlanFailure,
    addend: Any,
) -> Any:
    """Return C, computed by a plan that `failure` yields; None if all these plans fail."""
    problem = call.decision.problem
    assert problem is not None and call.device is not None
    params = GemmParams(problem.alpha, problem.beta, problem.op, problem.fill)
    try:
        for plan in failure.other_plans(problem, call.decision.plan, call.limits, call.device):
            own = constraints._replace(plan=plan, replaceable=True, params=params)
            other = prepare_call(library, a, b, out, own)
            c = failure if other.plan is None else _try_plan(library, other, a, b, out, own, addend)
            if not isinstance(c, PlanFailure):
                return c
    except MemoryError:
        pass  # choosing a plan also needs memory
    return None


def run_cached_gram(library: Library, call: PreparedCall, a: Any, out: Any) -> Any:
    """Return the product of a matrix and its transpose by a cached call without operand copies; None if the plan fails.

    To save a microsecond, no transposed view of A is created: the cached call needs only A's address.
    """
    try:
        return _runner_module(library.processor).run_call(library, call, a, a, out, False)
    except (library.out_of_memory_error, PlanError):
        return None


@lru_cache(maxsize=2)
def _runner_module(processor: Processor) -> Any:
    """Return the module that runs plans on this processor: run_host, or run_device, which imports CuPy."""
    if processor == "cpu":
        return run_host
    from fmm.runtime import run_device

    return run_device


# ---- explaining


def explain_matmul(library: Library, a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Decision:
    """Return the decision that `run_matmul` makes, with the kernels that would run; nothing is computed."""
    arrays = library.wrap_foreign_arrays(a, b, out) or (a, b, out)
    call = prepare_uncached(library, *arrays, constraints)
    return call.explained_decision(describe_kernels(library, call, *arrays))


def describe_kernels(library: Library, call: PreparedCall, a: Any, b: Any, out: Any) -> tuple[str, ...]:
    """Return the descriptions of the kernels that a call runs, one text for each kernel."""
    if call.launches is not None:
        a, b = (None if packed else library.data_pointer(x) for x, packed in zip((a, b), call.packs, strict=True))
        c = library.data_pointer(out) if call.writes_out and out is not None else None
        return launches_at_addresses(call, a, b, c).step_labels()
    problem = call.decision.problem
    if call.plan is not None and problem is not None and call.device is not None:
        return run_host.describe_products(call.plan, problem, call.device.threads)
    on_threads = f" on {run_host.count_with_noun(call.setting.device, 'thread')}" if library.processor == "cpu" else ""
    reads = ", since the plan's kernels cannot read arrays with these memory layouts"
    reads = "" if call.decision.plan == VENDOR else reads
    return (f"{library.vendor_name}{on_threads}{reads}",)


# ---- decisions for row-major operands, without arrays


def decide_without_arrays(problem: Problem, limits: Limits, device: Device, plan: Plan | None = None) -> Decision:
    """Return the decision for a product of row-major operands; `plan` is the plan to run, None to choose a plan."""
    if plan is None or 0 in problem.size:
        decision = decide_plan(problem, limits, device)
        launches = launches_on_device(decision.plan, problem, device, False)
    else:
        call = prepare_query(_row_major_query(problem, limits, device, plan, None))
        decision, launches = call.decision, call.launches
    if device.threads:
        return replace(decision, kernels=run_host.describe_products(decision.plan, problem, device.threads))
    return replace(decision, kernels=launches.step_labels() if launches else ("the vendor's product",))


def extra_bytes_of_call(problem: Problem, limits: Limits, device: Device, plan: Plan | None = None) -> int:
    """Return the number of bytes that a call needs in addition to row-major A, B and C.

    The call needs a workspace, memory for a CUDA graph, and copies for a second computation after inf or NaN.
    """
    out = contiguous_operand(problem.matrix_shapes[2], problem.stored_type)
    return prepare_query(_row_major_query(problem, limits, device, plan, out)).workspace


def _row_major_query(
    problem: Problem, limits: Limits, device: Device, plan: Plan | None, out: Operand | None
) -> ProblemQuery:
    a, b, _ = (contiguous_operand(shape, problem.stored_type) for shape in problem.matrix_shapes)
    setting = ProductSetting(0, problem.stored_type, "tf32" if problem.dtype == "tf32" else "ieee")
    params = GemmParams(problem.alpha, problem.beta, problem.op, problem.fill)
    return ProblemQuery(a, b, out, setting, device, limits, plan, params=params)
