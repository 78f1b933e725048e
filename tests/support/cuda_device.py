"""Whether there is a CUDA device."""

from __future__ import annotations

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
