"""Run the Newton-Schulz iteration of a CuPy or torch stack by the launches of hopper_launches.py.

Each step, or pair of steps, reads the array that the previous step wrote, and writes a second array. If the kernels can
write `out`, `out` is the array that the last step writes.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any

from fmm.arrays.detect import array_kind, is_on_device, type_name
from fmm.arrays.library import DeviceLibrary
from fmm.arrays.select_library import library_of
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES
from fmm.kernels.plans.memory_layout import round_up
from fmm.newton_schulz.coefficients import StepCoefficients
from fmm.newton_schulz.hopper_launches import (
    SIDE_UNIT,
    Stack,
    group_steps_into_pairs,
    is_faster_by_launches,
    iteration_launches,
)
from fmm.newton_schulz.scaling import scaled_array, scaled_tensor

HALF_TYPES = ("bfloat16", "float16")


def orthogonalize_on_hopper(x: Any, coefficients: tuple[StepCoefficients, ...], bound: float | None, out: Any) -> Any:
    """Return the orthogonalized stack (`out` if passed); None if the launches cannot compute it or would be slower."""
    if type_name(x.dtype) not in HALF_TYPES or not is_on_device(x) or not _is_plain(x, out):
        return None
    rows, cols = (round_up(side, SIDE_UNIT) for side in x.shape[-2:])
    stack = Stack(prod(x.shape[:-2]), rows, cols, type_name(x.dtype))
    library: Any = library_of(x, x)
    device = library.device_number(x)
    if (stack, coefficients, device) in _declined:
        return None
    stream, context = library.current_stream(device)
    with context or nullcontext():
        prepared = _cached_iteration(stack, coefficients, device, stream)
        return None if prepared is None else prepared.run(library, x, bound, out, stream)


def _is_plain(x: Any, out: Any) -> bool:
    """Return True if torch does not record operations on x and `out`: no gradient, trace or dispatch mode is active."""
    if array_kind(x) != "torch":
        return True
    from fmm.arrays.torch_calls import is_plain_call

    is_recorded = sys.modules["torch"].is_grad_enabled() and x.requires_grad
    return is_plain_call(x, x, out) and not (is_recorded or x.is_conj() or x.is_neg())


# ---- the launches of one signature

_Signature = tuple[Stack, tuple[StepCoefficients, ...], int]  # the last number is the device's index
_prepared: dict[_Signature, PreparedIteration] = {}
_declined: set[_Signature] = set()  # signatures for which `_prepare_iteration` returned None
MAX_CACHED = 1024  # largest number of signatures in `_prepared` and in `_declined`


def _cached_iteration(
    stack: Stack, coefficients: tuple[StepCoefficients, ...], device: int, stream: int
) -> PreparedIteration | None:
    """Return the cached iteration of this signature, prepared on a miss; None if products of arrays are faster.

    While the caller captures the stream in a CUDA graph, no kernel can be loaded, and cuBLAS has no memory that
    outlives the capture. During a capture, the function returns None if the iteration is not cached or calls cuBLAS.
    """
    try:
        from cupy_backends.cuda.api import runtime
    except ImportError:
        return None
    key, is_capturing = (stack, coefficients, device), bool(stream) and runtime.streamIsCapturing(stream)
    found = _prepared.get(key)
    if found is not None:
        return None if is_capturing and found.launches.calls_vendor else found
    if is_capturing:
        return None
    found = _prepare_iteration(stack, coefficients, device)
    cache: Any = _declined if found is None else _prepared
    if len(cache) >= MAX_CACHED:
        cache.clear()
    if found is None:
        _declined.add(key)
    else:
        _prepared[key] = found
    return found


def _prepare_iteration(
    stack: Stack, coefficients: tuple[StepCoefficients, ...], device: int
) -> PreparedIteration | None:
    from fmm.kernels.cuda.launch.device_facts import cuda_device_chip
    from fmm.newton_schulz.recurring_launches import RecurringLaunches

    chip = cuda_device_chip(device)
    if not coefficients or not chip.has_warpgroups or not is_faster_by_launches(stack, chip.multiprocessors):
        return None
    units = group_steps_into_pairs(stack, coefficients, chip.multiprocessors)
    launches = iteration_launches(stack, units, chip.multiprocessors)
    return PreparedIteration(stack, len(units), RecurringLaunches(launches, device)) if launches else None


@dataclass(frozen=True)
class PreparedIteration:
    """The launches of all steps, compiled for a device; `run` passes the addresses of the arrays."""

    stack: Stack
    writes: int  # number of steps or pairs of steps; each writes one array of the shape of x
    launches: Any  # the RecurringLaunches

    def run(self, library: DeviceLibrary, x: Any, bound: float | None, out: Any, stream: int) -> Any:
        """Return the orthogonalized stack: in `out` if `out` was passed, else in a new array."""
        rows, cols = x.shape[-2:]
        is_padded = (self.stack.rows, self.stack.cols) != (rows, cols)
        shape = (*x.shape[:-2], self.stack.rows, self.stack.cols)
        writes_out = (
            out is not None and not is_padded and self._reads_x_before_out(x, out) and _is_writable(library, out)
        )
        workspace = _new_array(x, (self.launches.workspace // 2,))
        result = out if writes_out else _new_array(x, shape, is_padded)
        other = _new_array(x, shape, is_padded)
        first, second = (other, result) if self.writes % 2 else (result, other)
        scale = scaled_tensor if array_kind(x) == "torch" else scaled_array
        scale(x, bound, first[..., :rows, :cols] if is_padded else first)
        a, c, w = (library.data_pointer(y) for y in (first, second, workspace))
        self.launches.launch_all((a, a, c, w), stream)
        if writes_out:
            library.record_array_change(out)
            return out
        if is_padded:
            result = _without_padding(result, rows, cols)
        if out is None:
            return result
        library.copy_into(result, out)
        return out

    def _reads_x_before_out(self, x: Any, out: Any) -> bool:
        """Return True if all of x is read before `out` is written, or if `out` is x itself."""
        return self.writes % 2 == 1 or out is x


def _without_padding(x: Any, rows: int, cols: int) -> Any:
    """Return a contiguous copy of the first `rows` rows and `cols` columns of each matrix."""
    part = x[..., :rows, :cols]
    return part.contiguous() if array_kind(x) == "torch" else part.copy()


def _is_writable(library: DeviceLibrary, out: Any) -> bool:
    """Return True if the kernels can write `out`: it is contiguous, and its address is a multiple of 16 bytes."""
    is_contiguous = out.is_contiguous() if array_kind(out) == "torch" else out.flags.c_contiguous
    return bool(is_contiguous) and library.data_pointer(out) % VECTOR_BYTES == 0


def _new_array(like: Any, shape: tuple[int, ...], zeros: bool = False) -> Any:
    """Return a new array of the library, type and device of `like`."""
    if array_kind(like) == "torch":
        return like.new_zeros(shape) if zeros else like.new_empty(shape)
    module = sys.modules["cupy"]
    return (module.zeros if zeros else module.empty)(shape, like.dtype)
