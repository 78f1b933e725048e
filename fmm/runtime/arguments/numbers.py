"""Numbers that a caller gives: sides, factors, limits."""

from __future__ import annotations

import math
import sys
from numbers import Complex, Integral, Real
from typing import Any

import numpy as np

LONGEST = sys.maxsize  # that a side of an array can be; and more bytes than any machine has


def checked_side(name: str, side: Any) -> int:
    """A side of a matrix."""
    if isinstance(side, bool) or not isinstance(side, int | np.integer) or side < 0:
        raise ValueError(f"{name} must be a whole number, 0 or more, not {in_words(side)}")
    if side > LONGEST:
        raise ValueError(f"{name} must be at most {LONGEST}, as an array's sides are, not {in_words(side)}")
    return int(side)


def checked_workspace(nbytes: Any) -> int:
    if isinstance(nbytes, bool) or not isinstance(nbytes, Integral) or nbytes < 0:
        raise ValueError(f"workspace must be a whole number of bytes, 0 or more, not {in_words(nbytes)}")
    return min(int(nbytes), LONGEST)


def checked_growth(growth: Any) -> float:
    """The limit of errors as a float; none (infinity) where it is beyond the floats."""
    real = isinstance(growth, Real) and not isinstance(growth, bool)
    try:
        number = float(growth) if real else math.nan
    except OverflowError:
        number = math.inf if growth > 0 else -math.inf
    if not number > 0:
        raise ValueError(f"max_error_growth must be a number above 0, not {in_words(growth)}")
    return number


def checked_real(name: str, value: Any) -> float:
    """A real number as Python has it, of which whole ones stay exact. (An array without axes is one.)"""
    if isinstance(value, bool) or not isinstance(value, Real) or not is_float(value):
        if _has_no_axes(value, "iuf"):
            return checked_real(name, value.item())
        raise ValueError(f"{name} must be a real number, not {in_words(value)}")
    return int(value) if isinstance(value, Integral) else float(value)


def checked_scalar(name: str, value: Any) -> complex:
    """A number as Python has it: it never changes the type of what it multiplies. (An array without axes is one.)"""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Complex) or not is_float(value):
        if _has_no_axes(value, "iufc"):
            return checked_scalar(name, value.item())
        raise ValueError(f"{name} must be a number, not {in_words(value)}")
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else complex(value)


def _has_no_axes(value: Any, kinds: str) -> bool:
    """Is it an array of one number, of one of these kinds?"""
    return isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in kinds


def is_float(value: Complex) -> bool:
    """Is the number within the floats?"""
    try:
        complex(value)
    except OverflowError:
        return False
    return True


def checked_flag(name: str, value: Any) -> bool:
    """Yes or no; a word is neither, whatever it says."""
    if not _is_flag(value):
        raise ValueError(f"{name} must be True or False, not {in_words(value)}")
    return bool(value)


def checked_progress(value: Any) -> bool:
    """Is progress to be shown? With None not: as if nothing were said."""
    if value is not None and not _is_flag(value):
        raise TypeError(f"progress must be True, False or None, not {in_words(value)}")
    return bool(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_ | int | np.integer) and value in (0, 1)


def in_words(value: Any) -> str:
    """A wrong argument, for a message; Python writes no whole numbers of some thousand digits."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a{' negative' * (value < 0)} number of {value.bit_length()} bits"
    return repr(value)
