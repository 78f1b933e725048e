"""Launches, as properties: every element has one thread, wide accesses are aligned, memory has one owner at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, pairwise, product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fmm.dtypes import DTYPES, STORED_TYPES
from fmm.kernels.cuda.launch_list import StreamSync
from fmm.kernels.cuda.ops import DeviceView, GemmOp, GemmOperand, operand_views
from fmm.kernels.cuda.record import LaunchRecorder, OperationList, record_operations
from fmm.kernels.cuda.sums.sum_kernel import CROSSWISE_WARP_ROWS, SUM_THREADS
from fmm.kernels.cuda.sums.sum_launch import MAX_GRID_BLOCKS, BlockArray, SumOp
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.walk import walk_plan
from fmm.problem import Layout, Problem

PLANS = tuple(
    Plan.parse(text if "vendor" in text else f"{text} > vendor")
    for text in (
        "strassen.batched.pad16",
        "winograd.batched.pad4",
        "winograd",
        "strassen^2.batched.pad16",
        "strassen.overlapped.pad16 > winograd.batched.pad4",
        "winograd.overlapped > strassen",
        "laderman.batched.pad4",
        "strassen.peel",
        "winograd.sequential",
        "hasa > winograd.pad",
        "adaptive-winograd",
        "strassen.batched.pad16 > vendor.inner",
        "winograd.pad4 > vendor.outer",
    )
)
CROSSED = PLANS[-2]
SIDE = st.integers(1, 90)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Any sizes, types, memory orders and gaps between lines."""
    m, k, n = draw(SIDE), draw(SIDE), draw(SIDE)
    layouts = []
    for rows, cols in ((m, k), (k, n), (m, n)):
        order = draw(st.sampled_from("CF"))
        layouts.append(Layout(order, (cols if order == "C" else rows) + draw(st.sampled_from((0, 1, 4, 8)))))  # type: ignore[arg-type]
    beta = draw(st.sampled_from((0, 1, 0.5)))
    return Problem(m, k, n, draw(st.sampled_from(sorted(STORED_TYPES))), tuple(layouts), 1, beta)  # type: ignore[arg-type]


def sums(tape: OperationList) -> list[SumOp]:
    return [op for op in tape.ops if isinstance(op, SumOp)]


# ---- threads


def columns(op: SumOp, access: str) -> Any:
    """Columns of each element of each thread in one row of thread blocks, as in block_sums.cuh."""
    lanes = op.kernel.vector_width
    block, thread, lane = np.ogrid[: op.grid[0], :SUM_THREADS, :lanes]
    if access == "vector":
        return ((block * SUM_THREADS + thread) * lanes + lane).ravel()
    return (block * SUM_THREADS * lanes + thread + lane * SUM_THREADS).ravel()


@given(
    rows=st.one_of(st.integers(1, 3 * MAX_GRID_BLOCKS), st.integers(1, 2**31 - 1)),
    cols=st.integers(1, 5000),
    dtype=st.sampled_from(sorted(STORED_TYPES)),
    access=st.sampled_from(("vector", "scalar")),
)
def test_every_element_has_one_thread(rows: int, cols: int, dtype: str, access: str) -> None:
    small = sums(record_operations(PLANS[0], Problem(64, 64, 64, dtype)))[-1]
    op = replace(small, rows=rows, cols=cols)
    found = columns(op, access)
    assert (np.bincount(found[found < cols], minlength=cols) == 1).all()
    _, down, deep = op.grid
    assert 1 <= down <= MAX_GRID_BLOCKS and 1 <= deep <= MAX_GRID_BLOCKS
    # Row z * down + y: each number below down * deep once, so that every row is there, and few thread blocks idle.
    assert rows <= down * deep < rows + deep


def tile(op: SumOp) -> tuple[Any, Any]:
    """Row and first column of each thread in its thread block for a transposing launch, as in block_sums.cuh."""
    thread = np.arange(SUM_THREADS)
    down = 32 // DTYPES[op.kernel.element].itemsize
    (warp, lane), across = np.divmod(thread, 32), 32 // down
    return warp % CROSSWISE_WARP_ROWS * down + lane % down, (
        warp // CROSSWISE_WARP_ROWS * across + lane // down
    ) * op.kernel.vector_width


@given(rows=st.integers(1, 300), cols=st.integers(1, 300), dtype=st.sampled_from(sorted(STORED_TYPES)))
def test_every_element_has_one_thread_in_transposing_splits(rows: int, cols: int, dtype: str) -> None:
    split = sums(record_operations(CROSSED, Problem(64, 64, 64, dtype)))[1]
    assert split.kernel.column_major
    op = replace(split, rows=rows, cols=cols)
    (across, down, deep), (height, width) = op.grid, op.kernel.tile_shape
    taken = np.zeros((down * deep * height, across * width), int)
    r, c = tile(op)
    for y, x in product(range(0, down * deep * height, height), range(0, across * width, width)):
        for lane in range(op.kernel.vector_width):
            taken[y + r, x + c + lane] += 1
    assert (taken == 1).all()
    assert 0 <= taken.shape[0] - rows < height * deep and 0 <= taken.shape[1] - cols < width


# ---- parameters


DISTANCES, SIZES = ("row", "col", "down", "right"), ("rows", "cols", "height", "width")


class CArray(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_longlong) for name in DISTANCES),
        *((name, ctypes.c_int) for name in SIZES),
    ]


def unpacked(op: SumOp) -> Any:
    """SumOp.parameters as C lays out struct Parameters."""

    class CParameters(ctypes.Structure):
        _fields_ = [
            ("arrays", CArray * op.kernel.arrays),
            ("scalars", ctypes.c_double * (2 * op.kernel.scalars + 1)),
            ("flag", ctypes.c_void_p),
            *((name, ctypes.c_int) for name in ("rows", "cols", "inner_rows", "inner_cols")),
        ]

    assert ctypes.sizeof(CParameters) == len(op.parameters)
    return CParameters.from_buffer_copy(op.parameters)


@given(problem=problems(), plan=st.sampled_from(PLANS))
def test_parameters_describe_the_launch(problem: Problem, plan: Plan) -> None:
    for op in sums(record_operations(plan, problem)):
        found = unpacked(op)
        assert (found.rows, found.cols, found.inner_rows, found.inner_cols) == (
            op.rows,
            op.cols,
            *op.smallest_block_shape,
        )
        assert [complex(*found.scalars[2 * i : 2 * i + 2]) for i in range(op.kernel.scalars)] == list(op.scalars)
        for x, packed in zip(op.arrays, found.arrays, strict=True):
            assert packed.data is None  # the backend fills in the address
            assert tuple(getattr(packed, name) for name in DISTANCES + SIZES) == x[2:]


# ---- wide accesses


@pytest.mark.slow
@given(problem=problems(), plan=st.sampled_from(PLANS))
def test_wide_accesses_are_aligned_and_inside(problem: Problem, plan: Plan) -> None:
    """With bases aligned as the launch requires, so is every thread's first byte."""
    for op in sums(record_operations(plan, problem)):
        item, lanes = DTYPES[op.kernel.element].itemsize, op.kernel.vector_width
        size, _ = op.vector_alignment
        assert size == lanes * item <= 16
        for spot in (*op.kernel.reads, *op.kernel.writes) if op.access == "vector" else ():
            x = op.arrays[spot.array]
            if spot.array in op.kernel.column_major:
                assert x.row == 1
                continue
            r, c = np.ogrid[: op.rows, : op.cols : lanes]
            first = x.offset + (spot.i * x.down + spot.j * x.right + r * x.row + c * x.col) * item
            assert x.col == 1 and (first % size == 0).all()
            # Accesses without a test: within `inner`, and in arrays whose layers are as large as the launch.
            whole = spot.array in op.kernel.unchecked
            rows, cols = (op.rows, op.cols) if whole else op.smallest_block_shape
            assert not whole or cols % lanes == 0
            if rows and cols:
                assert rows <= min(x.height, x.rows - spot.i * x.height)
                assert cols <= min(x.width, x.cols - spot.j * x.width)


# ---- memory


class Taken(NamedTuple):
    lane: int
    start: int
    stop: int


class Watched(LaunchRecorder):
    """Records which temporaries are live at each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: list[Taken] = []
        self.seen: list[tuple[Any, tuple[Taken, ...]]] = []

    def allocate(self, rows: int, cols: int, fortran: bool, dtype: str) -> DeviceView:
        # What lies beyond the top of the stack has been given back; the other lane's temporaries lie beyond it too.
        start = self.used_bytes
        self.alive = [t for t in self.alive if t.stop <= start]
        view = super().allocate(rows, cols, fortran, dtype)
        self.alive.append(Taken(self.stream, start, self.used_bytes))
        return view

    def _append_operations(self, *ops: Any) -> None:
        super()._append_operations(*ops)
        self.seen += [(op, tuple(t for t in self.alive if t.stop <= self.used_bytes)) for op in ops]


def places(op: Any, item: int) -> Iterator[tuple[str, Any, bool]]:
    """(base, the first bytes of all elements, are they written) of everything that an operation touches."""
    if isinstance(op, SumOp):
        size = DTYPES[op.kernel.element].itemsize
        for spots, written in ((op.kernel.reads, False), (op.kernel.writes, True)):
            for spot in spots:
                x: BlockArray = op.arrays[spot.array]
                rows = max(min(op.rows, x.height, x.rows - spot.i * x.height), 0)
                cols = max(min(op.cols, x.width, x.cols - spot.j * x.width), 0)
                r, c = np.ogrid[:rows, :cols]
                found = x.offset + (spot.i * x.down + spot.j * x.right + spot.part + r * x.row + c * x.col) * size
                yield x.base, found.ravel(), written
    elif isinstance(op, GemmOp):
        shapes = (op.m, op.k), (op.k, op.n), (op.m, op.n)
        for factor, shape, written in zip((op.left, op.right, op.dest), shapes, (False, False, True), strict=True):
            for i in range(op.count):
                yield factor.base, _elements(factor, i, shape, item), written


def _elements(x: GemmOperand, i: int, shape: tuple[int, int], item: int) -> Any:
    r, c = np.ogrid[: shape[0], : shape[1]]
    down, right = (x.leading, 1) if x.transposed else (1, x.leading)
    return (x.offset + (i * x.stride + r * down + c * right) * item).ravel()


@pytest.mark.slow
@given(problem=problems(), plan=st.sampled_from(PLANS))
def test_live_temporaries_do_not_overlap(problem: Problem, plan: Plan) -> None:
    """Every access to the workspace is within one live temporary, and no two live temporaries share a byte."""
    watched = Watched()
    walk_plan(plan, dict(operand_views(problem)), watched, problem.dtype, problem.alpha, problem.beta)
    assert watched.peak == record_operations(plan, problem).workspace
    for op, alive in watched.seen:
        ordered = sorted(alive, key=lambda t: t.start)
        assert all(x.stop <= y.start for x, y in pairwise(ordered))
        item = DTYPES[op.kernel.element].itemsize if isinstance(op, SumOp) else problem.itemsize
        for base, found, _ in places(op, problem.itemsize):
            if base == "W" and found.size:
                low, high = found.min(), found.max() + item
                assert any(t.start <= low and high <= t.stop for t in alive), op


@pytest.mark.slow
@given(problem=problems(), plan=st.sampled_from([p for p in PLANS if "overlapped" in str(p)]))
def test_concurrent_streams_share_nothing_written(problem: Problem, plan: Plan) -> None:
    tape = record_operations(plan, problem)
    assert tape.ops.count(StreamSync.FORK) == tape.ops.count(StreamSync.JOIN)
    together = False
    for turn, run in groupby(zip(tape.ops, tape.streams, strict=True), lambda x: isinstance(x[0], StreamSync)):
        ops = list(run)
        if turn:
            together = ops[-1][0] is StreamSync.FORK
        elif together:
            _assert_apart(ops, problem.itemsize)
        else:
            assert {lane for _, lane in ops} == {0}


def _assert_apart(ops: list[tuple[Any, int]], item: int) -> None:
    touched: dict[tuple[int, str, bool], list[Any]] = {}
    for op, lane in ops:
        for base, found, written in places(op, item):
            touched.setdefault((lane, base, written), []).append(found)
    for base, (mine, theirs), read_too in product("ABCW", ((0, 1), (1, 0)), (False, True)):
        writes, others = touched.get((mine, base, True), []), touched.get((theirs, base, not read_too), [])
        if writes and others:
            assert not np.intersect1d(np.concatenate(writes), np.concatenate(others)).size


def test_the_table_of_plans_has_every_kind_of_launch() -> None:
    """Wide and narrow accesses, and whole layers, occur in the tests above."""
    tapes = [
        record_operations(plan, Problem(*size, "float32")) for plan, size in product(PLANS, ((64,) * 3, (33,) * 3))
    ]
    ops = [op for tape in tapes for op in sums(tape)]
    assert {op.access for op in ops} == {"vector", "scalar"}
    assert any(op.kernel.unchecked for op in ops) and any(not op.kernel.unchecked for op in ops)
    assert any(tape.stream_count == 2 for tape in tapes)


@pytest.mark.parametrize("size", [(4, 4, 4), (3, 5, 2)])
def test_places_finds_every_byte_of_c(size: tuple[int, int, int]) -> None:
    """Together the operations write each element of C, and nothing outside C."""
    m, k, n = size
    tape = record_operations(PLANS[0], Problem(m, k, n, "float64"))
    written = [found for op in tape.ops for base, found, w in places(op, 8) if w and base == "C"]
    assert sorted(set(np.concatenate(written).tolist())) == [8 * i for i in range(m * n)]
