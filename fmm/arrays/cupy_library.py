"""CuPy's arrays as fmm multiplies them, and every other array on a CUDA device, which CuPy can read in place."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import runtime

from fmm.arrays import cupy_gemm
from fmm.arrays.cupy_gemm import BF16, FP16, PEDANTIC, TF32, get_compute_type
from fmm.arrays.library import ANYTHING, EXACT, Operand, Setting, Wanted, hopeless, kind_of, two_devices
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.runtime.decide import Decision
from fmm.runtime.device_call import explained, lost, product
from fmm.runtime.prepare import Call

ndarray, alloc, get_current_stream = cupy.ndarray, cupy.cuda.alloc, cupy.cuda.get_current_stream
getDevice = runtime.getDevice  # noqa: N816
FAST = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
_TYPES = {name: np.dtype(name) for name in FAST if name != "bfloat16"}  # of that NumPy itself knows nothing


class CupyArrays:
    """CuPy's side of `arrays.Arrays`."""

    name = "CuPy"
    out_of_memory: type[BaseException] = cupy.cuda.memory.OutOfMemoryError

    def __init__(self) -> None:
        self.calls: dict[Hashable, Any] = {}

    def plain(self, a: Any, b: Any) -> Any:
        if a.ndim == b.ndim == 2:
            (m, k), (_, n) = a.shape, b.shape
            if hopeless(m, k, n, a.itemsize) or lost(self, self.short(a, b)):
                return self.mm(a, b)
        return product(self, a, b, None, ANYTHING)

    def mm(self, a: Any, b: Any) -> Any:
        found = cupy_gemm.product(a, b)
        if found is not None:
            return found
        if a.data.device_id != b.data.device_id:
            raise two_devices(a, b)
        return cupy.matmul(a, b)

    def matmul(self, a: Any, b: Any, out: Any, options: dict[str, Any], wanted: Wanted) -> Any:
        if type(a) is ndarray and type(b) is ndarray and (out is None or type(out) is ndarray) and not options:
            if out is None and wanted is ANYTHING:
                return self.plain(a, b)
            return product(self, a, b, out, wanted)
        return self._unusual(a, b, out, options, wanted)

    def _unusual(self, a: Any, b: Any, out: Any, options: dict[str, Any], wanted: Wanted) -> Any:
        """Arrays of other libraries, subclasses, lists, and options, of which CuPy says itself what they mean."""
        x, y, z = (as_cupy(v) if kind_of(v) == "other" else v for v in (a, b, out))
        if options or any(type(v) is not ndarray for v in (x, y, z) if v is not None):
            if wanted.plan is not None and wanted.plan != VENDOR:
                raise PlanError(
                    f"the plan {wanted.plan} cannot run here: {', '.join(options) or 'this call'} is CuPy's own"
                )
            c = self.vendor(x, y, z, **options)
        else:
            c = self.matmul(x, y, z, options, wanted)
        if z is not out:
            return out
        return c if out is not None else given_back(c, next((v for v in (a, b) if kind_of(v) == "other"), a))

    def explain(self, a: Any, b: Any, out: Any, options: dict[str, Any], wanted: Wanted) -> Decision:
        if options:
            return Decision(VENDOR, None, f"CuPy answers: {', '.join(options)} was given")
        x, y, z = (as_cupy(v) if kind_of(v) == "other" else v for v in (a, b, out))
        return explained(self, x, y, z, wanted)

    def vendor(self, a: Any, b: Any, out: Any = None, /, **options: Any) -> Any:
        if options or out is not None:
            return cupy.matmul(a, b, out=out, **options)
        return self.mm(a, b) if type(a) is type(b) is ndarray else cupy.matmul(a, b)

    def short(self, a: Any, b: Any) -> Hashable:
        dtype = a.dtype
        return a.shape, b.shape, dtype, get_compute_type(dtype) if get_compute_type and dtype.kind in "fc" else 0

    def key(self, a: Any, b: Any, out: Any, wanted: Wanted) -> Hashable:
        dtype = a.dtype
        mode = get_compute_type(dtype) if get_compute_type is not None and dtype.kind in "fc" else 0
        where = getDevice(), a.data.device_id, b.data.device_id
        if out is None:
            return wanted, mode, a.shape, a.strides, dtype, b.shape, b.strides, b.dtype, where
        target = out.shape, out.strides, out.dtype, out.data.device_id
        return wanted, mode, a.shape, a.strides, dtype, b.shape, b.strides, b.dtype, where, target

    def device(self, x: Any) -> int:
        return int(x.data.device_id)

    def setting(self, a: Any, b: Any, out: Any) -> Setting:
        current = getDevice()
        if all(type(x) is ndarray for x in (a, b, out) if x is not None):
            if len({x.data.device_id for x in (a, b, out) if x is not None}) > 1:
                raise two_devices(a, b, out)
        else:
            return Setting(current, refusal="these are not all plain CuPy arrays")
        if any(x.data.device_id != current for x in (a, b, out) if x is not None):
            return Setting(current, refusal=f"the arrays are not on the current device, cuda:{current}")
        dtype = np.promote_types(a.dtype, b.dtype) if a.dtype != b.dtype else a.dtype
        mode = get_compute_type(dtype) if get_compute_type is not None and dtype.name in FAST else 0
        if mode == TF32 and dtype.name == "float32":
            return Setting(current, "tf32")
        unusual = mode in (PEDANTIC, FP16, BF16, TF32)
        return Setting(current, refusal=f"CuPy's compute type for {dtype.name} is set" if unusual else "")

    def operand(self, x: Any) -> Operand:
        item = x.itemsize
        whole = not any(step % item for step in x.strides) and x.data.ptr % item == 0
        return Operand(x.shape, tuple(step // item for step in x.strides) if whole else None, x.dtype.name)

    def pointer(self, x: Any) -> int:
        return int(x.data.ptr)

    def common_type(self, a: Operand, b: Operand) -> str | None:
        if a.dtype == b.dtype:
            return a.dtype
        if "bfloat16" in (a.dtype, b.dtype):
            return None
        return np.promote_types(a.dtype, b.dtype).name

    def places(self, call: Call, a: Any, b: Any, out: Any) -> tuple[int, int, int, int, Any, Any]:
        dtype = _TYPES.get(call.dtype, a.dtype)
        if call.copies:
            a, b = (x.astype(dtype, order="C") if pack else x for x, pack in zip((a, b), call.packs, strict=True))
        c = ndarray(call.shape, dtype) if out is None else out
        memory = alloc(call.workspace)
        return a.data.ptr, b.data.ptr, c.data.ptr, memory.ptr, c, (a, b, memory)

    def copy(self, source: Any, out: Any) -> None:
        out[...] = source

    def free_bytes(self, device: int) -> int:
        pool = cupy.get_default_memory_pool()
        kept = pool.free_bytes()
        free = int(runtime.memGetInfo()[0] + kept)
        limit = int(pool.get_limit())
        return min(free, limit - int(pool.used_bytes())) if limit else free

    def current(self, device: int) -> tuple[int, AbstractContextManager[Any] | None]:
        return get_current_stream().ptr, None

    def written(self, out: Any) -> None:
        pass


CUPY = CupyArrays()
EXACT[ndarray] = CUPY


# ---- arrays of other libraries


def as_cupy(x: Any) -> Any:
    """A CuPy array on the same memory. DLPack first: it orders the two libraries' streams without waiting."""
    if isinstance(x, cupy.ndarray):
        return x
    return cupy.from_dlpack(x) if hasattr(x, "__dlpack__") else cupy.asarray(x)


def given_back(c: Any, like: Any) -> Any:
    """The result as the kind of array that was given, where we know how to make one."""
    give = _GIVERS.get(type(like).__module__.partition(".")[0])
    return give(c) if give else c


def _numba(c: Any) -> Any:
    from numba import cuda  # type: ignore[import-not-found]

    return cuda.as_cuda_array(c)


def _jax(c: Any) -> Any:
    from jax import dlpack  # type: ignore[import-not-found]

    return dlpack.from_dlpack(c)


_GIVERS: dict[str, Callable[[Any], Any]] = {"numba": _numba, "jax": _jax, "jaxlib": _jax}
