"""NumPy arrays multiplied on a device, in small tiles."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.dtypes import DTYPES
from fmm.out_of_core import product
from tests.support.device_arrays import EPS, draw

pytestmark = pytest.mark.gpu
DTYPE_NAMES = "float32", "float64", "complex64", "float16", "int64"
SIZES = [("float32", (1, 3001, 1)), ("float64", (1023, 17, 2049))]


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the memory to a few tiles, so that slots are reused."""
    monkeypatch.setattr(product, "usable_memory_bytes", lambda machine: 2_000_000)


def close(found: Any, a: Any, b: Any, dtype: str) -> None:
    if DTYPES[dtype].exact:
        np.testing.assert_array_equal(found, np.matmul(a, b))
        return
    wide = np.complex128 if dtype.startswith("complex") else np.float64
    wanted = a.astype(wide) @ b.astype(wide)
    bound = 64 * EPS[dtype] * np.linalg.norm(a.astype(wide)) * np.linalg.norm(b.astype(wide))
    assert np.linalg.norm(found.astype(wide) - wanted) <= bound / min(a.shape[1], 64) ** 0.5 + 1e-300


@pytest.mark.parametrize(("dtype", "size"), [*((dtype, (700, 900, 500)) for dtype in DTYPE_NAMES), *SIZES])
def test_tiles_of_every_type_make_the_product(dtype: str, size: tuple[int, int, int], little_memory: None) -> None:
    m, k, n = size
    kind = np.int64 if DTYPES[dtype].exact else dtype
    a, b = (np.asarray(draw(shape) * 20).astype(kind).astype(dtype) for shape in ((m, k), (k, n)))
    close(fmm.matmul(a, b, device=0, plan="vendor"), a, b, dtype)


def test_plans_run_for_each_tile(little_memory: None) -> None:
    a, b = draw((900, 1100), seed=1), draw((1100, 700), seed=2)
    close(fmm.matmul(a, b, device=0, plan="strassen.pad16 > vendor"), a, b, "float64")


def test_views_other_types_and_an_out_are_as_numpy_has_them(little_memory: None, tmp_path: Path) -> None:
    a = np.memmap(tmp_path / "a", np.float32, "w+", shape=(600, 800))
    a[...] = draw((600, 800), "float32")
    b = np.asfortranarray(draw((1600, 500), seed=3))[::2]
    out = np.full((500, 600), np.nan).T
    assert fmm.matmul(a, b, out=out, device="cuda:0", plan="vendor") is out
    close(out, np.asarray(a), b, "float64")
    square = draw((640, 640), seed=4)
    wanted = square @ square
    fmm.matmul(square, square, out=square, device=0, plan="vendor")
    assert np.linalg.norm(square - wanted) <= 1e-12 * np.linalg.norm(wanted)


def test_inf_and_nan_stand_where_numpy_has_them(little_memory: None) -> None:
    a, b = draw((500, 600)), draw((600, 400), seed=5)
    a[3, 5], b[100, 90] = np.inf, np.nan
    with np.errstate(all="ignore"):
        wanted = a @ b
        found = fmm.matmul(a, b, device=0, plan="vendor")
    for what in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(what(found), what(wanted))


def test_the_device_gives_back_what_was_taken(little_memory: None) -> None:
    import cupy

    a, b = draw((900, 900)), draw((900, 900), seed=6)
    fmm.matmul(a, b, device=0, plan="vendor")
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    fmm.matmul(a, b, device=0, plan="vendor")
    assert pool.used_bytes() == before


@pytest.mark.parametrize("plan", ["vendor", "strassen > vendor", None])
def test_the_device_gives_no_more_memory_than_explain_says(plan: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's pool grows by the peak of a product's memory."""
    import cupy

    monkeypatch.setattr(product, "usable_memory_bytes", lambda machine: 400_000_000)
    a, b = draw((6000, 5000), "float32"), draw((5000, 7000), "float32", 7)
    pool, unit = cupy.get_default_memory_pool(), 1 << 30
    fmm.matmul(a, b, device=0, plan=plan)  # rates of copies are measured, handles made
    said = re.search(r"with the workspace ([0-9.]+) GiB", str(fmm.explain(a, b, device=0, plan=plan)))
    pool.free_all_blocks()
    before = pool.total_bytes()
    fmm.matmul(a, b, device=0, plan=plan)
    assert said and 0 < pool.total_bytes() - before <= (float(said[1]) + 0.005) * unit


def test_threads_multiply_at_once_each_on_streams_of_its_own(little_memory: None) -> None:
    """Later engines reuse the streams."""
    from fmm.out_of_core import cuda_engine

    pairs = [(draw((700, 600), seed=seed), draw((600, 500), seed=seed + 9)) for seed in range(4)]
    for _ in range(2):
        with ThreadPoolExecutor(2) as threads:
            found = list(threads.map(lambda pair: fmm.matmul(*pair, device=0, plan="vendor"), pairs))
        for c, (a, b) in zip(found, pairs, strict=True):
            close(c, a, b, "float64")
    idle = [streams[0].ptr for streams in cuda_engine._idle_streams[0]]
    assert len(set(idle)) == len(idle) <= 3
