"""Kernels of LU panels and of inverted blocks, on the host beside LAPACK, and compiled for the devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fmm.linalg import panel_launches
from fmm.linalg.panel_launches import BlockTriangularMatrix, PanelShape
from fmm.linalg.solver_library import NUMPY_SOLVERS
from tests.support.nvrtc import report
from tests.support.panels_on_host import play

Array = np.ndarray[Any, Any]
TYPES = ("float32", "float64")


@pytest.fixture
def small_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clusters of two thread blocks of one warp factor blocks of 16 columns of float32."""
    for name, value in (("CLUSTER", 2), ("FACTOR_THREADS", 32), ("ROW_CAPACITY", 64), ("REGISTER_BYTES", 64)):
        monkeypatch.setattr(panel_launches, name, value)


def reference(a: Array) -> tuple[Array, list[int]]:
    """Return L and U in one matrix, and the pivot rows, in the matrix's own precision."""
    a, pivots = a.copy(), []
    for j in range(min(a.shape)):
        column = np.abs(a[j:, j])
        pivots.append(j + int(np.argmax(column)))
        a[[j, pivots[-1]]] = a[[pivots[-1], j]]
        if a[j, j] != 0:
            a[j + 1 :, j] /= a[j, j]
            a[j + 1 :, j + 1 :] -= np.outer(a[j + 1 :, j], a[j, j + 1 :])
    return a, pivots


@pytest.mark.quick_cases()
@pytest.mark.usefixtures("small_clusters")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 5), (64, 8), (61, 37), (130, 20), (200, 9)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_panels_are_factored_as_by_lapack(order: Any, rows: int, columns: int, dtype: str) -> None:
    rng = np.random.default_rng(rows + columns)
    memory = np.full((rows + 3, columns + 5) if order == "C" else (columns + 5, rows + 3), np.nan, dtype)
    held = memory if order == "C" else memory.T
    a = held[:rows, :columns]
    a[:] = rng.integers(-4, 5, a.shape) if rows == 61 else rng.standard_normal(a.shape)  # integers: equal magnitudes
    expected, pivots = reference(a)
    found = np.full(columns, -1, np.int32)
    down, across = (step // a.itemsize for step in a.strides)
    shape = PanelShape(rows, columns, down, across, dtype)
    play(panel_launches.panel_launches(shape), {"panel": memory, "pivots": found})
    assert found.tolist() == pivots
    np.testing.assert_allclose(a, expected, rtol=0, atol=200 * np.finfo(dtype).eps * np.abs(expected).max())
    assert np.isnan(held[rows:]).all() and np.isnan(held[:, columns:]).all()


@pytest.mark.usefixtures("small_clusters")
def test_columns_of_zeros_and_nan() -> None:
    a = np.random.default_rng(0).standard_normal((40, 12))
    a[:, 3] = 0
    expected, pivots = reference(a)
    found, memory = np.empty(12, np.int32), a.copy()
    play(panel_launches.panel_launches(PanelShape(40, 12, 12, 1, "float64")), {"panel": memory, "pivots": found})
    assert found.tolist() == pivots and memory[3, 3] == 0
    np.testing.assert_allclose(memory, expected, atol=1e-12)
    a[17, 2] = np.nan
    play(panel_launches.panel_launches(PanelShape(40, 12, 12, 1, "float64")), {"panel": a, "pivots": found})
    assert found[2] == 17 and np.isnan(a[3:, 3:]).all()


@pytest.mark.slow
@pytest.mark.quick_cases()
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("lower", "unit"), [(True, False), (False, False), (True, True), (False, True)])
@pytest.mark.parametrize("known", [False, True])
def test_diagonal_blocks_are_inverted(known: bool, lower: bool, unit: bool, dtype: str) -> None:
    small = panel_launches.INVERTED_SIDE
    side, n = 2 * small, 4 * small
    full = np.random.default_rng(1).standard_normal((n, n + 4)).astype(dtype) / 16 + 3 * np.eye(n, n + 4, dtype=dtype)
    memory = {"matrix": full, "inverses": np.zeros((2, side, side), dtype)}
    form = BlockTriangularMatrix(n, n + 4, 1, dtype, side, side, 0, lower, unit)
    memory["scratch"] = np.empty(panel_launches.scratch_entry_count(form), dtype)
    if known:  # in two steps
        play(list(panel_launches.inverse_launches(form))[:1], memory)
        form = form._replace(known_side=small)
    play(panel_launches.inverse_launches(form), memory)
    for i, inverse in enumerate(memory["inverses"]):
        block = full[i * side : (i + 1) * side, i * side : (i + 1) * side]
        triangle = np.tril(block) if lower else np.triu(block)
        if unit:
            np.fill_diagonal(triangle, 1)
        tolerance = 1e-3 if dtype == "float32" else 1e-11
        np.testing.assert_allclose(inverse @ triangle, np.eye(side), atol=tolerance * np.abs(inverse).max())
        assert not np.any(np.triu(inverse, 1) if lower else np.tril(inverse, -1))


def test_exchanges_are_traced_to_their_sources() -> None:
    rng, count, origin = np.random.default_rng(2), 300, 7
    pivots = np.array([rng.integers(i, 400) + origin for i in range(count)], np.int32)
    rows = np.arange(400)
    for i, pivot in enumerate(pivots - origin):
        rows[[i, pivot]] = rows[[pivot, i]]
    found = np.full(4 * count, -1, np.int64)
    play([panel_launches.moved_row_indices_launch(count, origin)], {"pivots": pivots, "rows": found})
    np.testing.assert_array_equal(rows[found[: 2 * count]], found[2 * count :])
    moved = set(np.flatnonzero(rows != np.arange(400)).tolist())
    assert moved <= set(found[: 2 * count].tolist())
    targets, sources = NUMPY_SOLVERS.moved_row_indices(pivots, origin)
    np.testing.assert_array_equal(rows[targets], sources)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [8192, 16384, 32768])
def test_rows_stay_in_registers(rows: int, dtype: str) -> None:
    block, each = panel_launches.block_width(rows, dtype), panel_launches.rows_per_thread(rows)
    found = report("factor", panel_launches.factor_source(dtype, block, each), "sm_90")
    assert found.local <= 8 and found.registers <= 128
