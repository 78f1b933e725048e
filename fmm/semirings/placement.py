"""Choose the array library that computes a semiring call, and convert from and to the caller's library."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from fmm.arrays.detect import array_kind, is_on_device, mixed_arrays_error
from fmm.arrays.numpy_library import tensor_as_numpy
from fmm.arrays.select_library import cupy_library
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.semirings import numba_kernels
from fmm.semirings.domain import SemiringType
from fmm.semirings.host import NumpySemiring, Semiring
from fmm.semirings.numba_kernels import NumbaSemiring

COMPUTED_TYPES = ("float32", "float64", "int32", "int16")
# Smallest number of sums for which Numba is used. Numba's compilation takes seconds, once per process.
MIN_SUMS_TO_COMPILE = 128**3


class ArrayPlacement(NamedTuple):
    """The array library that computes a call, NumPy or CuPy, and conversions from and to the caller's library."""

    xp: Any
    adopt: Callable[[Any], Any]
    to_caller: Callable[[Any], Any]

    @property
    def is_on_device(self) -> bool:
        return self.xp is not np


@contextmanager
def place_arrays(**arrays: Any) -> Iterator[ArrayPlacement]:
    """Yield the placement of these arrays; for device arrays, make their device and their library's stream current."""
    present = [x for x in arrays.values() if x is not None]
    kinds = {array_kind(x) for x in present}
    if kinds <= {"host"}:
        yield ArrayPlacement(np, np.asarray, lambda x: x)
        return
    device_sides = {is_on_device(x) for x in present}
    if len(device_sides) > 1 or len(kinds - {"host"}) > 1 or any(isinstance(x, np.ndarray) for x in present):
        raise mixed_arrays_error(**arrays)
    if device_sides == {False}:
        yield ArrayPlacement(np, _numpy_of_tensor, sys.modules["torch"].from_numpy)
        return
    cupy_library()
    import cupy

    from fmm.arrays.cupy_library import stream_at_address

    if kinds != {"torch"}:
        with present[0].device if kinds == {"cupy"} else cupy.cuda.Device():
            yield ArrayPlacement(cupy, cupy.asarray, lambda x: x)
        return
    torch, number = sys.modules["torch"], present[0].device.index
    with cupy.cuda.Device(number), stream_at_address(torch.cuda.current_stream(number).cuda_stream):
        yield ArrayPlacement(cupy, lambda x: cupy.from_dlpack(x), torch.from_dlpack)


def _numpy_of_tensor(x: Any) -> Any:
    if array_kind(x) != "torch":
        return np.asarray(x)
    # for a tensor that requires gradients, x.numpy() raises torch's own exception
    return x.numpy() if x.requires_grad else tensor_as_numpy(x)


def as_readable_array(x: Any) -> Any:
    """Return a torch tensor in a form that NumPy and CuPy can read; return other arrays unchanged."""
    if array_kind(x) != "torch":
        return x
    from fmm.arrays.torch_calls import as_plain_tensor

    return as_plain_tensor(x)


def writable_target(place: ArrayPlacement, out: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return `out` as a writable array of the computing library.

    Raise ValueError if the shape or type of `out` is not that of the result, or if `out` is read-only. Raise torch's
    error if torch itself would not write to `out`.
    """
    if array_kind(out) == "host" and not isinstance(out, np.ndarray):
        raise TypeError(f"out must be an array, not {type(out).__name__}")
    # types are compared by name, since NumPy lacks some of torch's types
    out_type = str(out.dtype).removeprefix("torch.")
    if tuple(out.shape) != tuple(shape) or out_type != np.dtype(dtype).name:
        raise ValueError(f"out is {tuple(out.shape)} of {out_type}, the result {tuple(shape)} of {np.dtype(dtype)}")
    if array_kind(out) == "torch":
        from fmm.arrays.torch_calls import is_out_rejected_by_torch

        if is_out_rejected_by_torch(out):
            sys.modules["torch"].neg(out, out=out)  # raises torch's own error
        target = place.adopt(out.detach())
    else:
        target = place.adopt(out)
    if isinstance(target, np.ndarray) and not target.flags.writeable:
        raise ValueError("out is read-only")
    return target


def write_result(out: Any, target: Any, result: Any) -> Any:
    """Copy the result to `target`, the array that shares memory with `out`, and return `out`."""
    target[...] = result
    if array_kind(out) == "torch":  # a backward pass that needs the values before this write fails
        sys.modules["torch"].autograd.graph.increment_version(out)
    return out


def host_semiring(domain: SemiringType, maximum: bool, work: int) -> Semiring:
    """Return the host's fastest semiring implementation (Numba or NumPy) for `work` sums."""
    compiled = work >= MIN_SUMS_TO_COMPILE and numba_kernels.is_numba_installed()
    chosen: type[NumbaSemiring] | type[NumpySemiring] = NumbaSemiring if compiled else NumpySemiring
    return chosen(maximum and domain.sign > 0, domain.missing, blas_threads())


def load_device_module() -> Any:
    """Import and return the module for CUDA devices; the import loads CuPy."""
    from fmm.semirings import device

    return device
