"""Running a prepared call: memory from the library's pool, the plan on its stream, and the rescue behind it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cupy_backends.cuda.api import runtime

from fmm.device_arrays import Arrays
from fmm.device_call import Call
from fmm.kernels.cupy_backend import CupyBackend
from fmm.kernels.cupy_rescue import Rescue, slot
from fmm.kernels.tape import Tape

BACKENDS = {"ieee": CupyBackend("ieee"), "tf32": CupyBackend("tf32")}
DEFAULT_STREAM = 0  # the legacy one, which cannot be captured


def run(arrays: Arrays, call: Call, a: Any, b: Any, out: Any, whatever: bool) -> Any:
    """C by the call's plan: everything that may run out of memory is allocated before the first launch.

    Left to the library, unless it is to be run `whatever` comes: on a stream that is being captured (a plan may have to
    be compiled first), and for a while after a product that had to be computed again.
    """
    device = call.setting.device
    stream = arrays.stream(device)
    with arrays.current(device, stream):
        if stream != DEFAULT_STREAM and runtime.streamIsCapturing(stream):
            return arrays.vendor(a, b, out)
        place = slot(device, stream)
        if not whatever and not place.trusted():
            return arrays.vendor(a, b, out)
        assert call.tape is not None
        a = arrays.packed(a, call.dtype) if call.packs[0] else a
        b = arrays.packed(b, call.dtype) if call.packs[1] else b
        c = arrays.empty(call.shape, call.dtype, a) if out is None else out
        workspace, kept = arrays.workspace(call.tape.workspace, a)
        p, q, r = arrays.pointer(a), arrays.pointer(b), arrays.pointer(c)
        backend, rescue = BACKENDS[call.setting.math], _rescue(call.tape, device)
        for x, y, z in call.offsets:
            backend.run(call.tape, p + x, q + y, r + z, workspace, None, place.flag)
            place.follow(rescue, p + x, q + y, r + z)
        del kept  # given back in the stream's order: what is launched next may have it
    if out is not None:
        arrays.written(out)
    return c


@lru_cache(maxsize=4096)
def _rescue(tape: Tape, device: int) -> Rescue:
    return Rescue(tape, device)
