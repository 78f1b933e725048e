"""Products of device arrays: a call is prepared once for its shapes, layouts and settings, and then replayed.

A prepared call holds nothing that changes, so threads and streams share it; the result and the workspace come from the
library's own pool at each call.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Any

from fmm.decision import Decision
from fmm.device_arrays import Arrays, Wanted
from fmm.device_call import Call, NotOursError, Question, answer, product_shape
from fmm.device_decision import gpu, leaner_on
from fmm.kernels.plan import VENDOR, PlanError
from fmm.perfmodel.choose import Limits

SHARE = 0.5  # of a device's free memory that a workspace may take, unless the caller says otherwise
LIFETIME = 1.0  # seconds for which the free memory is taken for known
CALLS = 4096  # prepared calls that are kept


_calls: dict[Hashable, Call] = {}
_shares: dict[tuple[str, int], tuple[float, int]] = {}  # until when each is good, and the share


def product(arrays: Arrays, a: Any, b: Any, out: Any, wanted: Wanted) -> Any:
    """The product of two arrays of one library, by a plan where one pays."""
    if wanted.plan is None and arrays.tiny(a, b):
        return arrays.vendor(a, b, out)
    call = prepared(arrays, a, b, out, wanted)
    if call.tape is None:
        return arrays.vendor(a, b, out)
    if out is not None and not (call.direct and not call.overlap(*(arrays.pointer(x) for x in (a, b, out)))):
        arrays.copy(product(arrays, a, b, None, wanted), out)
        return out
    from fmm.device_run import run

    try:
        return run(arrays, call, a, b, out, wanted.plan is not None)
    except arrays.out_of_memory:
        pass  # what the failed attempt had allocated is given back when the exception is gone
    return _leaner(arrays, call, a, b, out, wanted)


def _leaner(arrays: Arrays, call: Call, a: Any, b: Any, out: Any, wanted: Wanted) -> Any:
    """The product by plans with ever less workspace, at last by the library's own."""
    from fmm.device_run import run

    problem = call.decision.problem
    assert problem is not None
    for plan in leaner_on(gpu(call.setting.device), problem, call.decision.plan, call.limits):
        other = prepare(arrays, a, b, out, wanted._replace(plan=plan))
        try:
            if other.tape is not None:
                return run(arrays, other, a, b, out, True)
        except arrays.out_of_memory:
            continue
    return arrays.vendor(a, b, out)


def explained(arrays: Arrays, a: Any, b: Any, out: Any, wanted: Wanted) -> Decision:
    """What `product` would do, and why; nothing is computed."""
    return prepare(arrays, a, b, out, wanted).decision


# ---- preparing


def prepared(arrays: Arrays, a: Any, b: Any, out: Any, wanted: Wanted) -> Call:
    """The call made ready, from the cache if one like it was made before."""
    plan, growth, limit = wanted
    if limit is None:
        limit = default_limit(arrays, arrays.device(a))
    key = arrays.name, arrays.key(a, b, out), plan, growth, limit
    call = _calls.get(key)
    if call is None:
        call = prepare(arrays, a, b, out, Wanted(plan, growth, limit))
        if len(_calls) >= CALLS:
            _calls.clear()
        _calls[key] = call
    return call


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
    known, now = _shares.get((arrays.name, device)), time.monotonic()
    if known is None or known[0] < now:
        limit = max(int(arrays.free_bytes(device) * SHARE), 0)
        step = 1 << max(limit.bit_length() - 3, 0)
        known = _shares[arrays.name, device] = now + LIFETIME, limit // step * step
    return known[1]
