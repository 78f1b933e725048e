"""The product of two arrays of one library, whichever it is: by a plan where one pays, else the library's own.

A call is made ready, or found ready; then it runs, by leaner plans if memory runs out, at last by the library.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from fmm.arrays.library import Library, Processor
from fmm.kernels.plans.level_steps import Asked
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime import host_run
from fmm.runtime.decide import Decision, decide, leaner_plans
from fmm.runtime.devices import Device
from fmm.runtime.left_to_vendor import remember_vendor
from fmm.runtime.limits import NO_WISHES, Wishes
from fmm.runtime.prepare import Call, launches_on, prepare, prepared


def product_of_any(library: Library, a: Any, b: Any, out: Any, wishes: Wishes) -> Any:
    """The same, where some arrays may be of other libraries, which this one can read in place."""
    own = library.adopted(a, b, out)
    if own is None:
        return product(library, a, b, out, wishes)
    c = product(library, *own, wishes)
    return library.given_back(c, a, b) if out is None else out


def product(library: Library, a: Any, b: Any, out: Any, wishes: Wishes) -> Any:
    """What the library's own matmul returns or raises, faster where a plan pays."""
    call = prepared(library, a, b, out, wishes)
    if call.plan is None:
        return _left_to_library(library, call, a, b, out, wishes)
    if call.decision.trial is not None:
        return _runner(library.processor).measured_product(
            library, call, lambda plan: product(library, a, b, out, wishes._replace(plan=plan))
        )
    if out is not None and call.direct and call.overlap(*(library.pointer(x) for x in (a, b, out))):
        call = prepared(library, a, b, None, wishes)
    target = out if call.direct else None
    c = by_plan(library, call, a, b, target, wishes)
    if c is None:
        return library.vendor(a, b, out)
    if target is None and out is not None:
        library.copy(c, out)
        return out
    return c


def by_plan(library: Library, call: Call, a: Any, b: Any, target: Any, wishes: Wishes) -> Any:
    """C by a call's plan or a leaner one, in `target` if that is given; None if the library must multiply."""
    try:
        c = _runner(library.processor).run_call(library, call, a, b, target, wishes.plan is not None)
    except library.out_of_memory:
        c = OUT_OF_MEMORY
    if c is OUT_OF_MEMORY:  # what the failed attempt had allocated is given back now that the exception is gone
        c = _leaner_product(library, call, a, b, target, wishes)
    return c


OUT_OF_MEMORY = object()


def _leaner_product(library: Library, call: Call, a: Any, b: Any, out: Any, wishes: Wishes) -> Any:
    """C by plans with ever less workspace; None if the library must multiply."""
    for other in _leaner_calls(library, call, a, b, out, wishes):
        try:
            return _runner(library.processor).run_call(library, other, a, b, out, True)
        except library.out_of_memory:
            continue
    return None


def _leaner_calls(library: Library, call: Call, a: Any, b: Any, out: Any, wishes: Wishes) -> Iterator[Call]:
    """The same product by plans with ever less workspace."""
    problem = call.decision.problem
    assert problem is not None and call.device is not None
    asked = Asked(problem.alpha, problem.beta, problem.op, problem.fill)
    for plan in leaner_plans(problem, call.decision.plan, call.limits, call.device):
        other = prepare(library, a, b, out, wishes._replace(plan=plan, asked=asked))
        if other.plan is not None:
            yield other


def _left_to_library(library: Library, call: Call, a: Any, b: Any, out: Any, wishes: Wishes) -> Any:
    """The library's own product; PlanError if another plan was given, and the library does not reject the call."""
    if call.refused_plan:
        library.vendor(a, b)
        raise PlanError(call.refused_plan)
    if wishes is NO_WISHES and out is None:
        remember_vendor(library, a, b, call.decision)
    return library.vendor(a, b, out)


@lru_cache(maxsize=2)
def _runner(processor: Processor) -> Any:
    """The module that runs plans there; the one for devices loads CuPy."""
    if processor == "cpu":
        return host_run
    from fmm.runtime import device_run

    return device_run


# ---- explaining


def explained(library: Library, a: Any, b: Any, out: Any, wishes: Wishes) -> Decision:
    """What `product` would do, and why; nothing is computed."""
    call = prepare(library, *(library.adopted(a, b, out) or (a, b, out)), wishes)
    return replace(call.decision, kernels=kernel_lines(library, call))


def planned(problem: Problem, limits: Limits, device: Device) -> Decision:
    """What would be done with arrays that lie row by row."""
    decision = decide(problem, limits, device)
    if device.threads:
        return replace(decision, kernels=host_run.products_described(decision.plan, problem, device.threads))
    launches = launches_on(decision.plan, problem, device, False)
    return replace(decision, kernels=launches.describe() if launches else ("the vendor's product",))


def kernel_lines(library: Library, call: Call) -> tuple[str, ...]:
    """What runs, a line each."""
    if call.launches is not None:
        return call.launches.describe()
    problem = call.decision.problem
    if call.plan is not None and problem is not None and call.device is not None:
        return host_run.products_described(call.plan, problem, call.device.threads)
    on_threads = f" on {host_run.counted_words(call.setting.device, 'thread')}" if library.processor == "cpu" else ""
    reads = "" if call.decision.plan == VENDOR else ", since the plan's kernels cannot read arrays that lie like these"
    return (f"{library.vendor_name}{on_threads}{reads}",)
