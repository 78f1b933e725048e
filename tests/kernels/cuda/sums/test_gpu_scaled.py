"""Products of scaled matrices on a CUDA device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fmm

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cupy() -> Any:
    return pytest.importorskip("cupy")


def graded(dtype: str, wide: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(9)
    a, b = (rng.standard_normal((*s, 2)) @ [1, 1j if dtype[0] == "c" else 0] for s in ((300, 257), (257, 410)))
    a, b = (x if dtype[0] == "c" else x.real for x in (a, b))
    along = np.exp2(np.linspace(-wide, wide, 257).round())
    down, right = (np.exp2(rng.integers(-wide, wide + 1, count).astype(float)) for count in (300, 410))
    return (a * along * down[:, None]).astype(dtype), (b / along[:, None] * right).astype(dtype)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("dtype", "wide"), [("float32", 12), ("float64", 40), ("complex64", 12), ("complex128", 40)])
def test_badly_scaled_data_keep_their_digits(cupy: Any, dtype: str, wide: int, order: str) -> None:
    a, b = graded(dtype, wide)
    exact, size = a.astype(np.clongdouble) @ b.astype(np.clongdouble), abs(a).astype(float) @ abs(b).astype(float)
    x, y = (cupy.asarray(v, order=order) for v in (a, b))
    found = {}
    for level in ("", "scaled > "):
        c = fmm.matmul(x, y, plan=f"{level}winograd.batched.pad16 > vendor")
        found[level] = float((abs(c.get() - exact) / size).max() / np.finfo(dtype).eps)
    assert found["scaled > "] < 100 < 1000 < found[""]


def test_an_inf_stays_where_the_vendor_has_it(cupy: Any) -> None:
    a, b = (x.astype(np.float32) for x in graded("float32", 3))
    a[7, 20], b[30, 11] = np.inf, np.nan
    x, y = cupy.asarray(a), cupy.asarray(b)
    found, wanted = fmm.matmul(x, y, plan="scaled > winograd.batched.pad16 > vendor"), x @ y
    for same in (cupy.isnan, cupy.isinf):
        assert bool((same(found) == same(wanted)).all())
