"""Helpers for launches on the host: aligned memory, parameters with addresses, views of arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from fmm.kernels.cuda.ops import DeviceView

Numbers = np.ndarray[Any, Any]


def aligned(count: int, dtype: Any = np.uint8, fill: Any = 255, to: int = 64) -> Numbers:
    """Return an array full of a number that starts at a multiple of `to` bytes."""
    item = np.dtype(dtype).itemsize
    room = np.full(count + to // item, fill, dtype)
    start = -room.ctypes.data % to // item
    return room[start : start + count]


def parameter_words(
    parameters: bytes, slots: Iterable[tuple[int, str, int]], bases: Mapping[str, int | Numbers]
) -> Numbers:
    """Return a launch's parameters as 8-byte words with the addresses filled in."""
    words = aligned(len(parameters) // 8, np.int64, 0)
    words[:] = np.frombuffer(parameters, np.int64)
    for word, name, offset in slots:
        base = bases[name]
        words[word] = (base if isinstance(base, int) else base.ctypes.data) + offset
    return words


def launch_words(function: Callable[..., int], words: Numbers, *shape: int) -> None:
    """Launch a kernel; `function` is its driver, which checks the size of the parameters."""
    assert function(words.ctypes.data_as(ctypes.c_void_p), *shape) == words.nbytes


def view_of(base: str, x: Numbers) -> DeviceView:
    """Return the view of a whole matrix."""
    down, right = (step // x.itemsize for step in x.strides)
    return DeviceView(base, 0, x.shape[0], x.shape[1], down, right, x.dtype.name)
