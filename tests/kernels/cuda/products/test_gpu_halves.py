"""Tiles on and below the diagonal on a device, every array allocated by itself: for the sanitizers too."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.runtime.gram import Half

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu

ROUNDOFF = {"float16": 2.0**-10, "float32": 2.0**-20, "float64": 2.0**-48}


def arrays(n: int, k: int, dtype: str) -> tuple[Any, Any]:
    """A matrix, and a symmetric one as old numbers."""
    rng = np.random.default_rng(n + k)
    old = rng.standard_normal((n, n))
    return cupy.asarray(rng.standard_normal((n, k)).astype(dtype)), cupy.asarray((old + old.T).astype(dtype))


@pytest.mark.parametrize("plan", ["tile", "gram.tile > vendor"])
@pytest.mark.parametrize("dtype", ROUNDOFF)
def test_few_launches_of_halves(dtype: str, plan: str) -> None:
    """More tiles than one, edges of tiles, the mirror, updates; rows that are aligned and others."""
    asked: tuple[tuple[Half, float], ...] = ("full", 0), ("lower", 2), ("full", -1)
    for (n, k), rows, (fill, beta) in product(((264, 72), (137, 19)), (True, False), asked):
        with cupy.cuda.using_allocator(lambda size: cupy.cuda.MemoryPointer(cupy.cuda.Memory(size), 0)):
            a, out = arrays(n, k, dtype)
            wide, old = (cupy.asnumpy(x).astype(np.float64) for x in (a, out))
            x = a if rows else cupy.ascontiguousarray(a.T)
            found = cupy.asnumpy(fmm.gram(x, out=out, rows=rows, fill=fill, beta=beta, plan=plan)).astype(np.float64)
        wanted, below = wide @ wide.T + beta * old, np.tri(n, dtype=bool)
        assert np.abs(found - wanted)[below].max() <= ROUNDOFF[dtype] * np.abs(wanted).max() * 4
        np.testing.assert_array_equal(found[~below], (found.T if fill == "full" else old)[~below])
