"""Recomputing tiled products on a CUDA device: inf and NaN as CuPy has them, without waiting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.config import files
from fmm.kernels.cuda.launch.graphs import CALLS_BEFORE_CAPTURE
from fmm.kernels.cuda.launch_list import StreamSync
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.problem import Problem
from fmm.runtime import devices
from tests.support import configs as tuned
from tests.support.device_arrays import CORRUPTIONS, CupyLibrary, Gate, close, draw, same_places

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

FUSED = "strassen.fused.pad4 > tile"
PLANS = (FUSED, f"strassen.pad4 > {FUSED}", "strassen.batched.pad16 > tile.half", "winograd.fused > tile.medium")
SIZES = ((300, 264, 280), (257, 131, 301))
IDLE = 10e-6  # seconds at most of a rescue that has nothing to do: a small launch


@pytest.fixture
def library() -> Any:
    return CupyLibrary()


@pytest.fixture
def slot() -> Iterator[Any]:
    """This thread's flag on a new current stream."""
    from fmm.kernels.cuda.recompute import flags

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        yield flags.stream_flag(0, stream.ptr)
        stream.synchronize()


@pytest.mark.parametrize("corrupt", CORRUPTIONS)
@pytest.mark.parametrize("plan", PLANS)
def test_inf_and_nan_are_where_cupy_has_them(plan: str, corrupt: Any, library: Any, slot: Any) -> None:
    """Row-major and column-major, aligned and not; each product is recomputed once."""
    for m, k, n in SIZES:
        x, y = draw((m, k), "float32"), draw((k, n), "float32", 1)
        corrupt(x, y)
        a, b = library.array(x, "float32"), library.array(y, "float32")
        expected = library.matmul(a, b)
        shifted = [cupy.empty(v.size + 1, np.float32)[1:].reshape(v.shape) for v in (a, b)]
        for whole, v in zip(shifted, (a, b), strict=True):
            whole[...] = v
        pairs = [(a, b), tuple(shifted), (cupy.asfortranarray(a), b), (cupy.asfortranarray(a), cupy.asfortranarray(b))]
        for left, right in pairs:
            cupy.cuda.get_current_stream().synchronize()
            before = slot.recomputed_count
            same_places(library, fmm.matmul(left, right, plan=plan), expected)
            assert slot.recomputed_count == before + 1
        out = library.empty((n, m), "float32").T
        same_places(library, fmm.matmul(a, b, out, plan=plan), expected)


@pytest.mark.parametrize("plan", PLANS)
def test_overflowing_sums_are_recomputed_and_finite_data_are_not(plan: str, library: Any, slot: Any) -> None:
    ones = np.ones((256, 256))
    a, b = library.array(ones * 3e38, "float32"), library.array(ones / 512, "float32")
    same_places(library, fmm.matmul(a, b, plan=plan), library.matmul(a, b))
    cupy.cuda.get_current_stream().synchronize()
    rescues = slot.recomputed_count
    assert rescues == 1
    a, b = library.array(draw((256, 256)), "float32"), library.array(draw((256, 256), seed=1), "float32")
    for _ in range(5):
        close(library, fmm.matmul(a, b, plan=plan), a, b, "float32")
    cupy.cuda.get_current_stream().synchronize()
    assert slot.recomputed_count == rescues


def test_an_inf_times_a_subnormal_number_is_an_inf(library: Any, slot: Any) -> None:
    x, y = np.zeros((256, 256)), np.zeros((256, 256))
    x[3, 5], y[5, 9] = np.inf, 1e-40
    a, b = library.array(x, "float32"), library.array(y, "float32")
    found = fmm.matmul(a, b, plan=FUSED)
    assert np.isposinf(library.host(found)[3, 9])
    same_places(library, found, library.matmul(a, b))


@pytest.mark.parametrize("plan", PLANS)
def test_replayed_graphs_recompute_too(plan: str, library: Any, slot: Any) -> None:
    a, b = (library.array(draw((300, 300), seed=i), "float32") for i in range(2))
    out = library.empty((300, 300), "float32")
    for _ in range(2 * CALLS_BEFORE_CAPTURE):
        fmm.matmul(a, b, out, plan=plan)
    close(library, out, a, b, "float32")
    a[7, 9] = np.inf
    fmm.matmul(a, b, out, plan=plan)
    same_places(library, out, library.matmul(a, b))


def test_nothing_waits_for_the_device(library: Any) -> None:
    a, b = (library.array(draw((320, 320), seed=i), "float32") for i in range(2))
    a[1, 1] = np.inf
    stream, gate = cupy.cuda.Stream(non_blocking=True), Gate()
    with stream:
        fmm.matmul(a, b, plan=FUSED)  # compiles and loads
        stream.synchronize()
        try:
            gate.close(library, stream)
            found = fmm.matmul(a, b, plan=FUSED)
            assert not stream.done, "a call waited for the device"
        finally:
            gate.open()
        stream.synchronize()
    same_places(library, found, library.matmul(a, b))


def test_an_idle_recompute_takes_almost_no_time(slot: Any) -> None:
    from benchmarks.harness import gpu_seconds
    from fmm.runtime.device_backend import DeviceBackend, record_plan_for_device

    side, backend = 4096, DeviceBackend()
    whole = record_plan_for_device(Plan.parse(FUSED), Problem(side, side, side, "float32"), flagged=True)
    steps = tuple(step for step in whole.steps if not isinstance(step, StreamSync) and step.does == "recompute")
    launches = replace(whole, steps=steps, streams=(0,) * len(steps))
    a, b, c = (cupy.empty((side, side), np.float32).data.ptr for _ in range(3))

    def again() -> None:
        backend.run_launches(launches, a, b, c, 0, None, slot.address, slot.count_address)

    again()
    spent = min(gpu_seconds(again, 100, 0.01) for _ in range(20))
    assert spent < IDLE, f"{spent * 1e6:.1f} microseconds"
    assert slot.recomputed_count == 0


# ---- without workspace


def told(path: Path, **rate: float) -> None:
    """Write a config in which products are slow and nothing else takes time."""
    numbers = {"flops": 1e6, "fill": 0.0, "pipe": 0.0, **rate}
    known = {"stream": 1e18, "margin": 0.02, "tiled_margin": 0.02, "batches": True, "rate": numbers}
    versions = dict(devices.cuda_device(0).identity.versions)
    tuned.write(
        path, devices.cuda_device(0).identity.key, "float32", tuned.section(calibration=known, versions=versions)
    )


@pytest.mark.parametrize("tiled", [0.0, 1.0], ids=["never measured", "as fast as the vendor"])
def test_without_workspace_our_own_kernel_is_used_where_it_was_measured(
    tiled: float, library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path / "config.json", tiled=tiled)
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path / "config.json"))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    files.clear_config_cache()
    a, b = (library.array(draw((2048, 2048), seed=i), "float32") for i in range(2))
    decision = fmm.explain(a, b, workspace=0)
    assert decision.plan == (Plan.parse(FUSED) if tiled else VENDOR) and decision.workspace == 0
    assert fmm.explain(a, b).workspace > 0
    close(library, fmm.matmul(a, b, workspace=0), a, b, "float32")
    a[5, 6] = np.inf
    same_places(library, fmm.matmul(a, b, workspace=0), library.matmul(a, b))
    files.clear_config_cache()
