"""Decisions for CUDA devices without arrays: fmm.plan(..., device=0)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fmm.arrays.library import Wanted
from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime.decide import Decision
from fmm.runtime.decide_gpu import decide_on, gpu
from fmm.runtime.device_call import default_limit


def plan_on(device: str | int, size: tuple[int, int, int], dtype: Any, wanted: Wanted) -> Decision:
    """The decision for a product of this size on a device: 0, "cuda" or "cuda:0"."""
    index, kind = device_index(device), type_name(dtype)
    if kind not in DTYPES:
        return Decision(VENDOR, None, f"the vendor answers: {kind} products are its own")
    try:
        facts = gpu(index)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"device={device!r} needs CuPy: pip install 'fmm-tune[cuda13]' (or cuda12)"
        ) from error
    limit = wanted.workspace if wanted.workspace is not None else _free(index)
    return decide_on(facts, Problem(*size, kind), Limits(limit, wanted.error_growth))


def device_index(device: str | int) -> int:
    """The number of a CUDA device."""
    if isinstance(device, int | np.integer) and not isinstance(device, bool) and device >= 0:
        return int(device)
    if isinstance(device, str):
        name, _, number = device.partition(":")
        if name == "cuda" and (number.isdecimal() or device == "cuda"):
            return int(number or 0)
    raise ValueError(f"unknown device {device!r}; valid: 'cpu', 'cuda', 'cuda:0', 'cuda:1', ..., or such a number")


def type_name(dtype: Any) -> str:
    """A type's name, however it is given: a name ("tf32" too), or a type of NumPy's, CuPy's or torch's."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    if type(dtype).__module__ == "torch":
        return str(dtype).removeprefix("torch.")
    return str(np.dtype(dtype).name)


def _free(index: int) -> int:
    import cupy

    from fmm.arrays.cupy_library import CUPY

    with cupy.cuda.Device(index):
        return default_limit(CUPY, index)
