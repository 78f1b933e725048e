"""Whether there is a CUDA device."""

from __future__ import annotations

import sys
import warnings
from functools import cache


@cache
def no_device() -> str | None:
    """Return the reason why no CUDA device can be used, or None if device 0 works."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import cupy

            cupy.cuda.Device(0).synchronize()
    except Exception as error:  # whatever the driver or the import raises, there is no device
        return f"no CUDA device: {type(error).__name__}: {error}"
    return None


def free_pooled_memory(limit: int = 2**30) -> None:
    """Return the free blocks of CuPy's and torch's memory pools to the GPU if a pool has more bytes than the limit."""
    cupy, torch = (sys.modules.get(name) for name in ("cupy", "torch"))
    if (cupy is None and torch is None) or no_device():
        return
    if cupy is not None and cupy.get_default_memory_pool().total_bytes() > limit:
        cupy.get_default_memory_pool().free_all_blocks()
    if torch is not None and torch.cuda.is_initialized() and torch.cuda.memory_reserved() > limit:
        torch.cuda.empty_cache()
