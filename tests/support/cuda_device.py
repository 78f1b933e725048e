"""Is there a CUDA device?"""

from __future__ import annotations

import warnings
from functools import cache


@cache
def no_device() -> str | None:
    """Why no CUDA device can be used, or None when device 0 answers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import cupy

            cupy.cuda.Device(0).synchronize()
    except Exception as error:  # whatever the driver or the import raises, the answer is the same
        return f"no CUDA device: {type(error).__name__}: {error}"
    return None
