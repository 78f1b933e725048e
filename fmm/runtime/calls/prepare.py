"""A call made ready: a library is asked what its arrays are; what that comes to is kept for the next call like it."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

from fmm.arrays.library import Library, Setting, product_shape
from fmm.config.environment import is_componentwise_required, is_emulation_allowed
from fmm.config.files import current_settings
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.perfmodel.choose import Limits
from fmm.runtime import devices
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.limits import GramKey, PlanConstraints, default_workspace_bytes, workspace_valid_until
from fmm.runtime.operands import LibraryAnswersError, NotOursError
from fmm.runtime.prepare import PreparedCall, ProblemQuery, prepare_query

CALLS = 4096  # prepared calls that a library keeps


class KeptCall(NamedTuple):
    """A prepared call, until when it is good, and under which share of the free memory it was made."""

    call: PreparedCall
    until: float
    share: int = 0


def writes_there(library: Library, call: PreparedCall, a: object, b: object, out: object) -> bool:
    """Can the call's plan write into `out` itself?"""
    return call.direct and not call.overlap(*(library.pointer(x) for x in (a, b, out)))


def prepare(library: Library, a: object, b: object, out: object, constraints: PlanConstraints) -> PreparedCall:
    """Decide a call. PlanError if the caller's plan cannot run; what the library rejects is left to it."""
    setting = library.setting(a, b, out)
    why: NotOursError
    try:
        if setting.refusal:
            raise (LibraryAnswersError if setting.refuses_plans else NotOursError)(setting.refusal)
        return prepare_query(_question(library, setting, a, b, out, constraints))
    except NotOursError as reason:
        why = reason
    except PlanError as reason:
        if constraints.plan_required:
            raise
        why = NotOursError(str(reason))
    refused = ""
    if constraints.plan_required and constraints.plan != VENDOR and not isinstance(why, LibraryAnswersError):
        refused = f"the plan {constraints.plan} cannot run here: {why}"
        if library.accepts_operands(a, b):
            raise PlanError(refused)
    return PreparedCall(Decision(VENDOR, None, f"{library.name} answers: {why}"), setting, plan_refusal=refused)


def _question(
    library: Library, setting: Setting, a: object, b: object, out: object, constraints: PlanConstraints
) -> ProblemQuery:
    device = devices.get_device(library.processor, setting.device)
    free = default_workspace_bytes(library, setting.device) if constraints.workspace is None else constraints.workspace
    growth = device.error_growth if constraints.error_growth is None else constraints.error_growth
    left, right = library.operand(a), library.operand(b)
    shape, result = product_shape(left.shape, right.shape), None
    if shape is not None and setting.dtype is not None and 0 not in (*left.shape, *right.shape):
        result = library.result_operand(a, b, shape, setting.dtype)
    target = None if out is None else library.operand(out)
    componentwise = constraints.componentwise or is_componentwise_required()
    limits = Limits(free, growth, setting.emulation and is_emulation_allowed(), componentwise)
    more = constraints.asked, constraints.kept, constraints.added
    return ProblemQuery(left, right, target, setting, device, limits, constraints.plan, result, *more)


# ---- kept


Ask = Callable[[Library, Any, Any, Any, Any], PreparedCall]


def prepared(
    library: Library, a: object, b: object, out: object, constraints: PlanConstraints | GramKey, ask: Ask = prepare
) -> PreparedCall:
    """The call made ready, as it was for one like it under the same settings, if there was one.

    Without b it is the call for a matrix and its own transpose; `ask` makes it ready the first time.
    """
    found = library.call_key(a, b, out)
    if found is None:
        return ask(library, a, b, out, constraints)
    key = constraints, found, current_settings()
    kept = library.calls.get(key)
    if kept is None or kept.until < time.monotonic():
        kept = _kept(library, key, a, b, out, constraints, ask)
    call: PreparedCall = kept.call
    return call


def _kept(
    library: Library, key: Hashable, a: object, b: object, out: object, constraints: PlanConstraints | GramKey, ask: Ask
) -> KeptCall:
    """A call to be kept. Without a limit of the caller's it is good for as long as the free memory is known."""
    known: KeptCall | None = library.calls.get(key)
    if constraints.workspace is not None:
        kept = KeptCall(ask(library, a, b, out, constraints), inf)
    else:
        number = library.device_number(a)
        share = default_workspace_bytes(library, number)
        if known is None or known.share != share:
            call = ask(library, a, b, out, constraints)
            call = known.call if known is not None and _launches_alike(call, known.call) else call
        else:
            call = known.call
        kept = KeptCall(call, workspace_valid_until(library, number), share)
    if len(library.calls) >= CALLS:
        library.calls.clear()
    library.calls[key] = kept
    return kept


def _launches_alike(call: PreparedCall, known: PreparedCall) -> bool:
    """Does a device do the same for both calls, of other limits? Then the known one goes on: what stands ready for it,
    and the graphs it is replayed as, are its own."""
    same = replace(call, decision=known.decision, limits=known.limits) == known
    return same and call.launches is not None and call.decision.trial is known.decision.trial
