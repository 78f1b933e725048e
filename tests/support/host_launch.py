"""What launches on the host have in common: aligned memory, parameters with addresses in them, views of arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from fmm.kernels.cuda.ops import View

Numbers = np.ndarray[Any, Any]


def aligned(count: int, dtype: Any = np.uint8, fill: Any = 255, to: int = 64) -> Numbers:
    """So many times a number, from a multiple of `to` bytes on."""
    item = np.dtype(dtype).itemsize
    room = np.full(count + to // item, fill, dtype)
    start = -room.ctypes.data % to // item
    return room[start : start + count]


def told_words(parameters: bytes, slots: Iterable[tuple[int, str, int]], bases: Mapping[str, int | Numbers]) -> Numbers:
    """A launch's parameters as words of 8 bytes, with addresses in their places."""
    words = aligned(len(parameters) // 8, np.int64, 0)
    words[:] = np.frombuffer(parameters, np.int64)
    for word, name, offset in slots:
        base = bases[name]
        words[word] = (base if isinstance(base, int) else base.ctypes.data) + offset
    return words


def launch_words(function: Callable[..., int], words: Numbers, *shape: int) -> None:
    """`function`: the kernel's driver, which says how many bytes its parameters have."""
    assert function(words.ctypes.data_as(ctypes.c_void_p), *shape) == words.nbytes


def view_of(base: str, x: Numbers) -> View:
    """A whole matrix, as it lies."""
    down, right = (step // x.itemsize for step in x.strides)
    return View(base, 0, x.shape[0], x.shape[1], down, right, x.dtype.name)
