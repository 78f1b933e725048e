"""Compiled sums give NumPy's results bit for bit, whatever the address and the strides."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from fmm.kernels.cpu import compiled_sums, numpy_backend
from fmm.kernels.cpu.compiled_sums import compiled_sum_tasks
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Arena, aligned_block
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.workspace import plan_workspace_bytes

pytest.importorskip("llvmlite", reason="llvmlite is not installed")

Array = np.ndarray[Any, np.dtype[Any]]
LEVELS = ["winograd", "winograd^2", "strassen > winograd", "smirnov336", "li-fig3"]
PLANS = [f"{levels} > vendor" for levels in LEVELS]
# Squares, sides that no level divides, rows and columns that are short, rows that begin nowhere in particular.
SIZES = [(64, 64, 64), (96, 128, 160), (65, 67, 71), (200, 12, 12), (12, 12, 200)]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Blocks of any size are compiled; how many tasks each sum became."""
    counts: list[int] = []

    def counted(*arguments: Any) -> Any:
        found = compiled_sum_tasks(*arguments)
        counts.append(len(found))
        return found

    monkeypatch.setattr(compiled_sums, "MIN_BLOCK_ELEMENTS", 1)
    monkeypatch.setattr(numpy_backend, "compiled_sum_tasks", counted)
    return counts


def product(plan: Plan, a: Array, b: Array, old: Array | None = None, alpha: complex = 1, beta: complex = 0) -> Array:
    """alpha A B + beta old."""
    c = np.full((len(a), b.shape[1]), np.nan, a.dtype) if old is None else old.copy()
    memory = aligned_block(plan_workspace_bytes(plan, len(a), len(b), b.shape[1], a.itemsize, alpha, beta))
    memory.fill(0xFF)  # NaN
    execute_plan(plan, a, b, c, NumpyBackend(ThreadGroup(1)), Arena(memory, a.dtype), alpha, beta)
    return c


def drawn(shape: tuple[int, int], dtype: str, seed: int) -> Array:
    rng, kind = np.random.default_rng(seed), np.dtype(dtype)
    if kind.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(kind)
    return rng.standard_normal(shape).astype(kind)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("plan", PLANS)
def test_results_are_numpys(plan: str, dtype: str, compiled: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, (m, k, n) in enumerate(SIZES):
        a, b = drawn((m, k), dtype, seed), drawn((k, n), dtype, 100 + seed)
        found = product(Plan.parse(plan), a, b)
        assert any(compiled), "nothing was compiled"
        with monkeypatch.context() as patch:
            patch.setattr(numpy_backend, "compiled_sum_tasks", lambda *_: [])
            assert np.array_equal(found, product(Plan.parse(plan), a, b))


@pytest.mark.parametrize("past", [False, True], ids=["through caches", "past caches"])
def test_operands_of_any_layout(past: bool, compiled: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Transposed operands, gaps between rows, gaps between numbers, and negative strides."""
    monkeypatch.setattr(compiled_sums, "MIN_STREAMED_BYTES", 0 if past else 1 << 40)
    whole = drawn((260, 390), "float64", 7)
    views = [whole[:128, :130], whole[1:131, 1:129].T, whole[:256:2, 3:131], whole[:128, :260:2], whole[127::-1, :128]]
    for a in views:
        b = drawn((a.shape[1], 96), "float64", 8)
        found = product(Plan.parse("winograd > vendor"), a, b)
        with monkeypatch.context() as patch:
            patch.setattr(numpy_backend, "compiled_sum_tasks", lambda *_: [])
            assert np.array_equal(found, product(Plan.parse("winograd > vendor"), a, b))


def test_streaming_stores_write_whole_cache_lines(compiled: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Streaming stores need every result's rows to begin on cache lines; all is written when the call returns."""
    asked: list[bool] = []
    usual = compiled_sums.compiled_function

    def noted(schedule: Any, count: int, kind: str, past: bool, pairs: Any) -> Any:
        asked.append(past)
        return usual(schedule, count, kind, past, pairs)

    monkeypatch.setattr(compiled_sums, "MIN_STREAMED_BYTES", 0)
    monkeypatch.setattr(compiled_sums, "compiled_function", noted)
    for side in (64, 66):
        a, b = drawn((side, side), "float64", 1), drawn((side, side), "float64", 2)
        product(Plan.parse("winograd > vendor"), a, b)
    assert True in asked, "temporaries begin on lines"
    a = drawn((66, 66), "float32", 3)
    asked.clear()
    c = np.empty((66, 66), np.float32)
    assert c.strides[0] % compiled_sums.CACHE_LINE_BYTES
    memory = aligned_block(plan_workspace_bytes(Plan.parse("strassen > vendor"), 66, 66, 66, 4))
    execute_plan(Plan.parse("strassen > vendor"), a, a, c, NumpyBackend(ThreadGroup(1)), Arena(memory, a.dtype))
    assert False in asked, "C's rows do not"


@pytest.mark.parametrize("past", [False, True], ids=["through caches", "past caches"])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("levels", ["3m", "3m.conj-a", "3m.conj-b > winograd", "3m.sequential", "winograd > 3m"])
def test_real_and_imaginary_parts(
    levels: str, dtype: str, past: bool, compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are separated and joined in registers, with coefficients too; a single part is left to NumPy."""
    monkeypatch.setattr(compiled_sums, "MIN_STREAMED_BYTES", 0 if past else 1 << 40)
    plan = Plan.parse(f"{levels} > vendor")
    for seed, (m, k, n) in enumerate(SIZES):
        a, b, old = (drawn(shape, dtype, 10 * seed + i) for i, shape in enumerate(((m, k), (k, n), (m, n))))
        for alpha, beta in ((1, 0), (1 - 2j, 0.5 + 1j), (-1, 1)):
            compiled.clear()
            found = product(plan, a, b, old, alpha, beta)
            assert any(compiled), "nothing was compiled"
            with monkeypatch.context() as patch:
                patch.setattr(numpy_backend, "compiled_sum_tasks", lambda *_: [])
                assert np.array_equal(found, product(plan, a, b, old, alpha, beta))


def test_pairs_of_parts_belong_to_one_matrix() -> None:
    z, other = np.zeros((8, 8), complex), np.zeros((8, 8), complex)
    parts = {0: z.real, 1: z.imag, 2: other.real, 3: other.imag}
    found = compiled_sums.complex_part_pairs
    assert found(parts, (2, 3)) == ((0, 1), (2, 3))
    assert found({0: z.imag, 1: z.real}, ()) == (), "the wrong way round"
    assert found({0: z.real, 1: other.imag}, ()) == (), "of two matrices"
    assert found({0: z.real, 1: z.imag}, (1,)) == (), "one is read, one written"
    assert found({0: z.real, 2: z.imag}, ()) == (), "not one after the other"
    assert found({0: z[:, ::2], 1: z[:, 1::2]}, ()) == (), "every second complex number"


# Sums are compiled before the address space is limited, or only after; each plan has sums of its own.
AT_THE_LIMIT = """
import resource, sys
import numpy as np
import fmm
from fmm.kernels.cpu import compiled_sums
compiled_sums.MIN_BLOCK_ELEMENTS = 1
a = np.ones((96, 96))
fmm.matmul(a, a, plan="strassen > vendor" if sys.argv[1] == "warm" else "vendor")
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
limit = used + int(sys.argv[2]) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for plan in ("strassen > vendor", "winograd^2 > vendor", "smirnov336 > vendor"):
    assert (fmm.matmul(a, a, plan=plan) == 96).all()
print(compiled_sums.compiled_function.cache_info().currsize)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and limits the address space")
@pytest.mark.parametrize(("start", "mebibytes"), [("warm", 4), ("warm", 8), ("cold", 8), ("cold", 160)])
def test_without_address_space_numpy_adds(start: str, mebibytes: int) -> None:
    """LLVM would abort the process; sums that were compiled before still run."""
    variables = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", AT_THE_LIMIT, start, str(mebibytes)]
    found = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert found.returncode == 0, found.stderr
    assert (int(found.stdout) > 0) == (start == "warm")
