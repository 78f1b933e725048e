"""float32 by three float16 products on a device: the promised error, for every kind of data and memory order."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.kernels.plans.plan import Plan
from fmm.problem import Layout, Problem

pytest.importorskip("cupy")

import cupy

from fmm.kernels.cuda.launch.device_facts import chip_of
from fmm.runtime.device_backend import DeviceBackend, recorded_for_device

pytestmark = pytest.mark.gpu

# |error| of an entry beside the norms of its row of A and its column of B: hi and lo lose 2^-22 of a number each, their
# lowest product as much; what float32 adds up is less for all but short sums.
PROMISED = 4 * 2.0**-22


@pytest.fixture(autouse=True)
def _warpgroups() -> None:
    if not chip_of(cupy.cuda.runtime.getDevice()).has_warpgroups:
        pytest.skip("only compute capability 9.0 has warpgroups that multiply")


def worst(a: Any, b: Any, c: Any) -> float:
    """The largest error beside the norms. (On the host: CuPy's own kernels take subnormal float32 for zero.)"""
    a, b, c = (x.get().astype(np.float64) for x in (a, b, c))
    norms = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=0)[None]
    off = np.abs(c - a @ b)
    return float(np.where(off == 0, 0, off / np.maximum(norms, 1e-300)).max())


def normal(shape: tuple[int, ...], seed: int = 0) -> Any:
    return cupy.random.default_rng(seed).standard_normal(shape, np.float32)


SHAPES = [
    (1, 1, 1),
    (128, 64, 128),
    (129, 65, 131),
    (1, 1000, 1),
    (1000, 1, 1000),
    (7, 5000, 9),
    (513, 1537, 1025),
    (2000, 33, 17),
    (64, 131072, 64),
    (1021, 1021, 1021),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_and_order(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    for orders in product("CF", repeat=2):
        a, b = (
            cupy.asarray(normal(s, i), order=o) for i, (s, o) in enumerate(zip(((m, k), (k, n)), orders, strict=True))
        )
        assert worst(a, b, fmm.matmul(a, b, plan="f16x3")) <= PROMISED, orders


def test_poisoned_memory_strides_and_gaps() -> None:
    """Neither what stood in the workspace nor what lies between lines has any part in C; gaps of C stay as they are."""
    m, k, n = 300, 200, 100
    memory = [cupy.full((rows + 3) * (cols + 5), cupy.nan, np.float32) for rows, cols in ((m, k), (k, n), (m, n))]
    a, b, c = (
        x.reshape(rows + 3, cols + 5)[:rows, :cols]
        for x, (rows, cols) in zip(memory, ((m, k), (k, n), (m, n)), strict=True)
    )
    a[...], b[...] = normal((m, k)), normal((k, n), 1)
    layouts = Layout("C", k + 5), Layout("C", n + 5), Layout("C", n + 5)
    launches = recorded_for_device(Plan.parse("f16x3"), Problem(m, k, n, "float32", layouts), flagged=False)
    workspace = cupy.full(launches.workspace, 255, cupy.uint8)
    DeviceBackend().run(launches, a.data.ptr, b.data.ptr, c.data.ptr, workspace.data.ptr, None)
    assert worst(a, b, c) <= PROMISED
    assert int(cupy.isnan(memory[2]).sum()) == memory[2].size - m * n


@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (0.5, 0), (-2, 3), (1, -1)])
def test_scalars(alpha: float, beta: float) -> None:
    m, k, n = 257, 190, 130
    a, b, old = normal((m, k)), normal((k, n), 1), normal((m, n), 2)
    c = old.copy()
    problem = Problem(m, k, n, "float32", alpha=alpha, beta=beta)
    launches = recorded_for_device(Plan.parse("f16x3"), problem, flagged=False)
    workspace = cupy.empty(launches.workspace, cupy.uint8)
    DeviceBackend().run(launches, a.data.ptr, b.data.ptr, c.data.ptr, workspace.data.ptr, None)
    expected = alpha * (a.astype(np.float64) @ b.astype(np.float64)) + beta * old.astype(np.float64)
    assert float(cupy.abs(c - expected).max()) <= 1e-4


def families() -> dict[str, tuple[Any, Any]]:
    m, k, n = 256, 1024, 192
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    grade = np.exp2(np.linspace(-30, 30, k))
    found = {
        "uniform": (rng.random((m, k)), rng.random((k, n))),
        "log-normal": (a * np.exp(2 * rng.standard_normal((m, k))), b * np.exp(2 * rng.standard_normal((k, n)))),
        "rows and columns": (a * np.exp2(rng.integers(-60, 60, (m, 1))), b * np.exp2(rng.integers(-60, 60, (1, n)))),
        "inner dimension, alike": (a * grade, b * grade[:, None]),
        "inner dimension, opposite": (a * grade, b / grade[:, None]),
        "huge and tiny": (a * 1e37, b * 1e-37),
        "near overflow": (a * 1e18, b * 1e17),
        "subnormal": (a * 1e-40, b * 1e30),
        "one huge entry": (np.where(rng.random((m, k)) < 1 / k, 1e20, a), b),
        "integers": (rng.integers(-(2**24), 2**24, (m, k)), rng.integers(-3, 4, (k, n))),
        "zeros": (a * 0, b),
        "some zero rows": (a * (rng.random((m, 1)) < 0.5), b * (rng.random((1, n)) < 0.5)),
    }
    return {name: (cupy.asarray(x, np.float32), cupy.asarray(y, np.float32)) for name, (x, y) in found.items()}


def test_every_kind_of_data() -> None:
    for name, (a, b) in families().items():
        assert worst(a, b, fmm.matmul(a, b, plan="f16x3")) <= PROMISED, name


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("k", [1024, 2048, 4096, 16384])
def test_no_less_accurate_than_sgemm(kind: str, k: int) -> None:
    """In the Frobenius norm; a level of Strassen's above it included. (Of few rows and columns cuBLAS adds up parts of
    the inner dimension apart, which has less error.)"""
    rng = cupy.random.default_rng(k)
    a, b = ((rng.random if kind == "uniform" else rng.standard_normal)(s, np.float32) for s in ((2048, k), (k, 2048)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    vendor, own, level = (
        float(cupy.linalg.norm(c - exact))
        for c in (a @ b, fmm.matmul(a, b, plan="f16x3"), fmm.matmul(a, b, plan="strassen.batched.pad16 > f16x3"))
    )
    assert own <= vendor and level <= vendor


@pytest.mark.parametrize("plan", ["f16x3", "strassen.batched.pad16 > f16x3", "winograd.overlapped.pad16 > f16x3"])
def test_inf_and_nan_stand_where_the_vendors_do(plan: str) -> None:
    for a_value, b_value in ((cupy.inf, 1), (cupy.nan, 1), (cupy.inf, -cupy.inf), (3e38, 3e38)):
        a, b = normal((515, 300)), normal((300, 401), 1)
        a[3, 4], b[7, 9] = a_value, b_value
        c, expected = fmm.matmul(a, b, plan=plan), a @ b
        assert bool((cupy.isnan(c) == cupy.isnan(expected)).all()), (a_value, b_value)
        assert bool((cupy.isinf(c) == cupy.isinf(expected)).all()), (a_value, b_value)


@pytest.mark.parametrize("plan", ["f16x3", "strassen.batched.pad16 > f16x3", "strassen^2.overlapped.pad16 > f16x3"])
def test_the_same_bits_every_time(plan: str) -> None:
    a, b = normal((1000, 900)), normal((900, 1100), 1)
    first = fmm.matmul(a, b, plan=plan)
    for _ in range(5):
        assert bool((fmm.matmul(a, b, plan=plan) == first).all())


def test_stacks() -> None:
    a, b = normal((3, 200, 300)), normal((3, 300, 100), 1)
    c = fmm.matmul(a, b, plan="f16x3")
    for i in range(3):
        assert worst(a[i], b[i], c[i]) <= PROMISED


def test_the_environment_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = normal((2048, 2048)), normal((2048, 2048), 1)
    monkeypatch.setenv("FMM_EMULATION", "0")
    assert fmm.explain(a, b).plan.leaf != "f16x3"
    monkeypatch.delenv("FMM_EMULATION")
    monkeypatch.setenv("FMM_TUNING_MODE", "off")
    assert fmm.explain(a, b).plan.leaf == "f16x3"
