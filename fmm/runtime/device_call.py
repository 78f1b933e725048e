"""Products of device arrays: a call is prepared once for its shapes, layouts and settings, and then replayed.

A prepared call holds nothing that changes, so threads and streams share it; the result and the workspace come from the
library's own pool at each call.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from importlib import import_module
from math import inf
from time import monotonic
from typing import Any, NamedTuple

from fmm.arrays.library import ANYTHING, Arrays, Wanted
from fmm.config.files import token
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.perfmodel.choose import Limits
from fmm.runtime.decide import Decision
from fmm.runtime.decide_gpu import gpu, leaner_on
from fmm.runtime.prepare import Call, NotOursError, Question, answer, product_shape

SHARE = 0.5  # of a device's free memory that a workspace may take, unless the caller says otherwise
LIFETIME = 1.0  # seconds for which the free memory is taken for known
CALLS = 4096  # prepared calls that are kept


_shares: dict[tuple[str, int], tuple[float, int]] = {}  # until when each is good, and the share


class Kept(NamedTuple):
    """A prepared call, until when it is good, and under which share of the free memory it was made."""

    call: Call
    until: float
    share: int = 0


def product(arrays: Arrays, a: Any, b: Any, out: Any, wanted: Wanted) -> Any:
    """The product of two arrays of one library, by a plan where one pays."""
    call = prepared(arrays, a, b, out, wanted)
    if call.decision.trial is not None:
        return _runner().measured(arrays, call, lambda p: product(arrays, a, b, out, wanted._replace(plan=p)))
    if call.tape is None:
        if wanted is ANYTHING and out is None:
            arrays.calls[arrays.short(a, b)] = monotonic() + LIFETIME
        return arrays.vendor(a, b, out)
    if out is not None and not (call.direct and not call.overlap(*(arrays.pointer(x) for x in (a, b, out)))):
        arrays.copy(product(arrays, a, b, None, wanted), out)
        return out
    try:
        return _runner().run(arrays, call, a, b, out, wanted.plan is not None)
    except arrays.out_of_memory:
        pass  # what the failed attempt had allocated is given back when the exception is gone
    return _leaner(arrays, call, a, b, out, wanted)


def lost(arrays: Arrays, short: Hashable) -> bool:
    """Was a product like this one left to the library a moment ago? A quick no, good for as long as the free memory
    is known."""
    until: float = arrays.calls.get(short, 0.0)
    return until > monotonic()


@lru_cache(maxsize=1)
def _runner() -> Any:
    """The module that launches kernels, which loads CuPy."""
    return import_module("fmm.runtime.device_run")


def _leaner(arrays: Arrays, call: Call, a: Any, b: Any, out: Any, wanted: Wanted) -> Any:
    """The product by plans with ever less workspace, at last by the library's own."""
    problem = call.decision.problem
    assert problem is not None
    for plan in leaner_on(gpu(call.setting.device), problem, call.decision.plan, call.limits):
        other = prepare(arrays, a, b, out, wanted._replace(plan=plan))
        try:
            if other.tape is not None:
                return _runner().run(arrays, other, a, b, out, True)
        except arrays.out_of_memory:
            continue
    return arrays.vendor(a, b, out)


def explained(arrays: Arrays, a: Any, b: Any, out: Any, wanted: Wanted) -> Decision:
    """What `product` would do, and why; nothing is computed."""
    return prepare(arrays, a, b, out, wanted).decision


# ---- preparing


def prepared(arrays: Arrays, a: Any, b: Any, out: Any, wanted: Wanted) -> Call:
    """The call made ready, from the cache if one like it was made before under the same settings."""
    key = arrays.key(a, b, out, wanted), token()
    kept = arrays.calls.get(key)
    if kept is None or kept.until < monotonic():
        kept = _kept(arrays, key, a, b, out, wanted)
    return kept.call


def _kept(arrays: Arrays, key: Hashable, a: Any, b: Any, out: Any, wanted: Wanted) -> Kept:
    """A call into the cache. Without a limit of the caller's it is good for as long as the free memory is known."""
    known: Kept | None = arrays.calls.get(key)
    if wanted.workspace is not None:
        kept = Kept(prepare(arrays, a, b, out, wanted), inf)
    else:
        device = arrays.device(a)
        share = default_limit(arrays, device)
        same = known is not None and known.share == share
        call = known.call if same and known else prepare(arrays, a, b, out, wanted)
        kept = Kept(call, _shares[arrays.name, device][0], share)
    if len(arrays.calls) >= CALLS:
        arrays.calls.clear()
    arrays.calls[key] = kept
    return kept


def prepare(arrays: Arrays, a: Any, b: Any, out: Any, wanted: Wanted) -> Call:
    """Decide a call. PlanError if a plan was given that cannot run; what the library rejects is left to it."""
    setting = arrays.setting(a, b, out)
    limit = default_limit(arrays, setting.device) if wanted.workspace is None else wanted.workspace
    limits = Limits(limit, wanted.error_growth)
    try:
        if setting.refusal:
            raise NotOursError(setting.refusal)
        pair, target = (arrays.operand(a), arrays.operand(b)), None if out is None else arrays.operand(out)
        return answer(Question(*pair, target, arrays.common_type(*pair), setting, limits, wanted.plan))
    except NotOursError as reason:
        if wanted.plan is not None and wanted.plan != VENDOR and _accepted(arrays, a, b):
            raise PlanError(f"the plan {wanted.plan} cannot run here: {reason}") from None
        return Call(Decision(VENDOR, None, f"{arrays.name} answers: {reason}"), setting, limits)


def _accepted(arrays: Arrays, a: Any, b: Any) -> bool:
    """Would the library multiply these at all? If not, its own exception says it better than ours."""
    try:
        pair = arrays.operand(a), arrays.operand(b)
        return 0 not in product_shape(*pair) and arrays.common_type(*pair) is not None
    except (NotOursError, AttributeError):
        return False


def default_limit(arrays: Arrays, device: int) -> int:
    """Bytes that a workspace may take if the caller names no limit: the device is asked at most once a second.

    Rounded down, so that the calls prepared under it are found again.
    """
    known, now = _shares.get((arrays.name, device)), monotonic()
    if known is None or known[0] < now:
        limit = max(int(arrays.free_bytes(device) * SHARE), 0)
        step = 1 << max(limit.bit_length() - 3, 0)
        known = _shares[arrays.name, device] = now + LIFETIME, limit // step * step
    return known[1]
