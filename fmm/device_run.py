"""Running a prepared call: memory from the library's pool, the plan on its stream, and the rescue behind it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from cupy_backends.cuda.api import runtime

from fmm.device_arrays import Arrays
from fmm.device_call import Call
from fmm.kernels import cupy_rescue
from fmm.kernels.cupy_backend import CupyBackend
from fmm.kernels.cupy_rescue import Rescue, slot
from fmm.kernels.plan import VENDOR, Plan
from fmm.kernels.tape import Tape

BACKEND = CupyBackend()
DEFAULT_STREAM = 0  # the legacy one, which cannot be captured


def run(arrays: Arrays, call: Call, a: Any, b: Any, out: Any, whatever: bool) -> Any:
    """C by the call's plan, on the library's current stream; `whatever`: even after products that had to be rescued."""
    device = call.setting.device
    stream, context = arrays.current(device)
    if context is None:
        return _run(arrays, call, a, b, out, whatever, device, stream)
    with context:
        return _run(arrays, call, a, b, out, whatever, device, stream)


def _run(arrays: Arrays, call: Call, a: Any, b: Any, out: Any, whatever: bool, device: int, stream: int) -> Any:
    """Everything that may run out of memory is allocated before the first launch."""
    if stream != DEFAULT_STREAM and runtime.streamIsCapturing(stream):
        return arrays.vendor(a, b, out)  # a plan may have to be compiled first, and its memory is not the graph's
    place, tape = slot(device, stream), call.tape
    if not (whatever or place.trusted()):
        return arrays.vendor(a, b, out)
    assert tape is not None
    p, q, r, workspace, c, kept = arrays.places(call, a, b, out)
    rescue = _rescue(tape, device)
    flag = place.flag if rescue is not None else 0
    for x, y, z in call.offsets:
        BACKEND.run(tape, p + x, q + y, r + z, workspace, None, flag)
        if rescue is not None:
            place.follow(rescue, p + x, q + y, r + z)
    del kept  # given back in the stream's order: what is launched next may have it
    if out is not None:
        arrays.written(out)
    return c


def measured(arrays: Arrays, call: Call, multiply: Callable[[Plan], Any]) -> Any:
    """A product that takes part in its shape's measurement; within a graph's capture nothing can be measured."""
    stream, _ = arrays.current(call.setting.device)
    if stream != DEFAULT_STREAM and runtime.streamIsCapturing(stream):
        return multiply(VENDOR)
    assert call.decision.trial is not None
    return call.decision.trial.run(multiply, lambda: runtime.streamSynchronize(stream))


@lru_cache(maxsize=4096)
def _rescue(tape: Tape, device: int) -> Rescue | None:
    return Rescue(tape, device) if cupy_rescue.needed(tape) else None
