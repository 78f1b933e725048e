"""How long calls take a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import cupy

from fmm.tuner.devices.cuda import event_milliseconds

CYCLES = 2e9  # of a second, about
SPIN = r"""
extern "C" __global__ void spin(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {}
}
"""


@lru_cache(maxsize=1)
def _kernel() -> Any:
    return cupy.RawKernel(SPIN, "spin")


def spin(seconds: float) -> None:
    """Keep the device busy for about so long."""
    _kernel()((1,), (1,), (int(seconds * CYCLES),))


def elapsed(call: Callable[[], object], repeats: int, ahead: float = 0.0) -> float:
    """Seconds of one of so many calls, by events around them; the host has `ahead` seconds to launch the first ones."""
    if ahead:
        spin(ahead)
    return event_milliseconds(lambda _: call(), repeats) / 1e3
