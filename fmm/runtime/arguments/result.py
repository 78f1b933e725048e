"""The array that is given for a result."""

from __future__ import annotations

from typing import Any

import numpy as np

from fmm.arrays.library import Library
from fmm.arrays.numpy_library import NUMPY


def single(out: Any) -> Any:
    """NumPy takes `out` in a tuple of one too."""
    return out[0] if isinstance(out, tuple) and len(out) == 1 else out


def check_place(library: Library, out: Any) -> None:
    if library is NUMPY and not (out is None or isinstance(out, np.ndarray)):
        raise TypeError(f"out must be an array, not a {type(out).__name__}")
