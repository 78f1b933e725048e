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
from fmm.runtime.calls.answer import answer_question
from fmm.runtime.calls.operands import LibraryAnswersError, NotOursError
from fmm.runtime.calls.question import Call, Question
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.limits import HalfWishes, Wishes, good_until, memory_share

CALLS = 4096  # prepared calls that a library keeps


class KeptCall(NamedTuple):
    """A prepared call, until when it is good, and under which share of the free memory it was made."""

    call: Call
    until: float
    share: int = 0


def writes_there(library: Library, call: Call, a: object, b: object, out: object) -> bool:
    """Can the call's plan write into `out` itself?"""
    return call.direct and not call.overlap(*(library.pointer(x) for x in (a, b, out)))


def prepare(library: Library, a: object, b: object, out: object, wishes: Wishes) -> Call:
    """Decide a call. PlanError if the caller's plan cannot run; what the library rejects is left to it."""
    setting = library.setting(a, b, out)
    why: NotOursError
    try:
        if setting.refusal:
            raise (LibraryAnswersError if setting.even_with_plan else NotOursError)(setting.refusal)
        return answer_question(_question(library, setting, a, b, out, wishes))
    except NotOursError as reason:
        why = reason
    except PlanError as reason:
        if wishes.insists:
            raise
        why = NotOursError(str(reason))
    refused = ""
    if wishes.insists and wishes.plan != VENDOR and not isinstance(why, LibraryAnswersError):
        refused = f"the plan {wishes.plan} cannot run here: {why}"
        if library.accepts(a, b):
            raise PlanError(refused)
    return Call(Decision(VENDOR, None, f"{library.name} answers: {why}"), setting, refused_plan=refused)


def _question(library: Library, setting: Setting, a: object, b: object, out: object, wishes: Wishes) -> Question:
    device = devices.device_of(library.processor, setting.device)
    free = memory_share(library, setting.device) if wishes.workspace is None else wishes.workspace
    growth = device.error_growth if wishes.error_growth is None else wishes.error_growth
    left, right = library.operand(a), library.operand(b)
    shape, result = product_shape(left.shape, right.shape), None
    if shape is not None and setting.dtype is not None and 0 not in (*left.shape, *right.shape):
        result = library.result_operand(a, b, shape, setting.dtype)
    target = None if out is None else library.operand(out)
    componentwise = wishes.componentwise or is_componentwise_required()
    limits = Limits(free, growth, setting.emulation and is_emulation_allowed(), componentwise)
    more = wishes.asked, wishes.kept, wishes.added
    return Question(left, right, target, setting, device, limits, wishes.plan, result, *more)


# ---- kept


Ask = Callable[[Library, Any, Any, Any, Any], Call]


def prepared(
    library: Library, a: object, b: object, out: object, wishes: Wishes | HalfWishes, ask: Ask = prepare
) -> Call:
    """The call made ready, as it was for one like it under the same settings, if there was one.

    Without b it is the call for a matrix and its own transpose; `ask` makes it ready the first time.
    """
    found = library.call_key(a, b, out)
    if found is None:
        return ask(library, a, b, out, wishes)
    key = wishes, found, current_settings()
    kept = library.calls.get(key)
    if kept is None or kept.until < time.monotonic():
        kept = _kept(library, key, a, b, out, wishes, ask)
    call: Call = kept.call
    return call


def _kept(
    library: Library, key: Hashable, a: object, b: object, out: object, wishes: Wishes | HalfWishes, ask: Ask
) -> KeptCall:
    """A call to be kept. Without a limit of the caller's it is good for as long as the free memory is known."""
    known: KeptCall | None = library.calls.get(key)
    if wishes.workspace is not None:
        kept = KeptCall(ask(library, a, b, out, wishes), inf)
    else:
        number = library.device_number(a)
        share = memory_share(library, number)
        if known is None or known.share != share:
            call = ask(library, a, b, out, wishes)
            call = known.call if known is not None and _launches_alike(call, known.call) else call
        else:
            call = known.call
        kept = KeptCall(call, good_until(library, number), share)
    if len(library.calls) >= CALLS:
        library.calls.clear()
    library.calls[key] = kept
    return kept


def _launches_alike(call: Call, known: Call) -> bool:
    """Does a device do the same for both calls, of other limits? Then the known one goes on: what stands ready for it,
    and the graphs it is replayed as, are its own."""
    same = replace(call, decision=known.decision, limits=known.limits) == known
    return same and call.launches is not None and call.decision.trial is known.decision.trial
