"""Splits that write float16 planes, without a GPU: which splits can, their registers by NVRTC, and their planes on the
host."""

from __future__ import annotations

import re
import struct
from itertools import product
from typing import Any

import numpy as np
import pytest

from fmm.hardware.chip import Chip
from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME
from fmm.kernels.cuda.launch_list import Launch
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.products.f16_sums import EXTENT_THREADS, PlaneSums, find_plane_sums, plane_sum_launches
from fmm.kernels.cuda.products.kernel_sizes import PLANE_CHUNK_LENGTH
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.cuda.select import fuse_plane_sums
from fmm.kernels.cuda.sums.sum_kernel import SUM_THREADS
from fmm.kernels.cuda.sums.sum_launch import SumOp
from fmm.kernels.cuda.target import ALLOCATOR_ALIGNMENT
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import chip_target
from fmm.problem import Layout, Problem
from tests.support.chips import B200, H200, V100
from tests.support.host_compiler import header, required_compiler, shared_library
from tests.support.host_launch import aligned, launch_words, parameter_words
from tests.support.nvrtc import in_parallel, nvrtc, report
from tests.support.sums_on_host import FLAGS, for_the_host

Array = np.ndarray[Any, Any]
DIVIDES = dict.fromkeys("ABCW", 256)


def splits(plan: str, problem: Problem, chip: Chip = H200) -> list[PlaneSums]:
    """Return the splits of a plan that write planes."""
    ops = record_operations(Plan.parse(f"{plan} > f16x3"), problem).ops
    return [op for op in fuse_plane_sums(ops, chip_target(chip)) if isinstance(op, PlaneSums)]


def square(n: int, **changes: Any) -> Problem:
    return Problem(n, n, n, "float32", **changes)


# The number of splits of a plan that write planes.
CASES = [
    ("strassen.batched.pad16", square(1024), 2),
    ("strassen^2.batched.pad16", square(1024), 2),
    ("winograd.batched.pad16", square(1040), 2),  # blocks of 528: the planes' lines are longer
    ("winograd.overlapped.pad16 > strassen.batched.pad16", square(1024), 14),
    ("strassen.batched.pad16 > strassen.batched.pad16", square(1024), 14),
    ("strassen.batched.pad16", Problem(1024, 1026, 1024, "float32"), 1),  # A's rows do not begin at 16 bytes
    ("strassen.batched.pad16", square(1026), 0),
    ("strassen.overlapped.pad16", square(1024), 0),  # one product after the other reads blocks where they are
    ("strassen.pad16", square(1024), 0),
    ("strassen.batched.pad16", square(1024, componentwise=True), 0),  # what is noted of numbers, only a split notes
]


@pytest.mark.parametrize(("plan", "problem", "count"), CASES)
def test_which_splits_write_planes(plan: str, problem: Problem, count: int) -> None:
    assert len(splits(plan, problem)) == count


def test_other_splits_write_no_planes() -> None:
    ops = record_operations(Plan.parse("strassen.batched.pad16 > f16x3"), square(1024)).ops
    assert fuse_plane_sums(ops, chip_target(V100)) == list(ops)
    assert [x.separate for x in fuse_plane_sums(ops, chip_target(B200)) if isinstance(x, PlaneSums)] == [True, True]
    assert fuse_plane_sums(ops, chip_target(H200, (4, 4, 256, 256))) == list(ops)
    split, other = (op for op in ops[:2] if isinstance(op, SumOp))
    gemm = next(op for op in ops if isinstance(op, GemmOp))
    assert find_plane_sums(split, gemm, DIVIDES) is not None
    # Products of another operand, or of fewer.
    elsewhere = [op for op in record_operations(Plan.parse("strassen.batched.pad16 > f16x3"), square(2048)).ops[:2]]
    assert find_plane_sums(elsewhere[1], gemm, DIVIDES) is None  # type: ignore[arg-type]
    assert ALLOCATOR_ALIGNMENT and other is not split


SLOW = pytest.mark.slow
COMPILED = [
    ("strassen", "sm_90a"),
    *(pytest.param(f"strassen^{depth}", "sm_90a", marks=SLOW) for depth in (2, 3)),
    *(pytest.param("strassen^2", name, marks=SLOW) for name in ("sm_80", "sm_89", "sm_100", "sm_120")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("level", "architecture"), COMPILED)
def test_sums_stay_in_registers(level: str, architecture: str) -> None:
    nvrtc()
    made = splits(f"{level}.batched.pad16", square(1024), H200 if architecture == "sm_90a" else B200)
    found = [x for op in made for x in plane_sum_launches(op, DIVIDES)]
    struct_names = (
        "fmm::planes::Extent",
        "fmm::planes::Bounds<{}>",
        "fmm::planes::PlaneSumParams<fmm::Parameters<2, 0>>",
    )
    jobs = []
    for i, launch in enumerate(found):
        name = struct_names[i % 3].format(struct.unpack_from("<i", launch.parameters, 16)[0] and launch.grid[1])
        size = f"static_assert(sizeof({name}) == {len(launch.parameters)});"
        jobs.append((launch.label, f"{launch.kernel.cuda_source}{size}\n", architecture, ("--std=c++17",)))
    for r in in_parallel(report, jobs):
        assert r.local == 0, r


# ---- on the host

DRIVER = r"""
extern "C" int launch(const void* parameters, int across, int down, int threads) {{
    gridDim = {{unsigned(across), unsigned(down), 1}};
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
            for (threadIdx.x = 0; threadIdx.x < unsigned(threads); ++threadIdx.x)
                {entry}(*static_cast<const {params}*>(parameters));
    return sizeof({params});
}}
"""


def run_on_host(launch: Launch, bases: dict[str, Array]) -> None:
    text = for_the_host(launch.kernel.cuda_source)
    params = re.search(r"const __grid_constant__ ([\w:<>, ]+) p\)", text)
    assert params is not None
    driver = DRIVER.format(entry=ENTRY_NAME, params=params[1])
    before = "".join(map(header, ("sum_host.h", "single_threads.h", "f16_host.h")))
    library = shared_library(before + text + driver, FLAGS)
    words = parameter_words(launch.parameters, launch.slots, bases)
    launch_words(library.launch, words, *launch.grid[:2], launch.kernel.threads)


def largest(op: PlaneSums, x: Array) -> Array:
    """The result of the first launch: bits of the largest magnitudes, by block and line or position."""
    a, (down, across) = op.source_array, op.block_counts
    found = np.zeros((down * across, a.height if op.is_k_major else a.width), np.float32)
    for i, j in product(range(down), range(across)):
        block = np.abs(x[i * a.height : (i + 1) * a.height, j * a.width : (j + 1) * a.width])
        most = block.max(axis=1 if op.is_k_major else 0, initial=0)
        found[i * across + j, : len(most)] = most
    return found.view(np.int32)


HOST_CASES = [
    ((264, 300, 136), "CC", H200),
    pytest.param((264, 300, 136), "FF", H200, marks=SLOW),
    pytest.param((64, 516, 260), "CF", H200, marks=SLOW),
    pytest.param((64, 516, 260), "FC", B200, marks=SLOW),
]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "orders", "chip"), HOST_CASES)
def test_planes_on_the_host(size: tuple[int, int, int], orders: str, chip: Chip) -> None:
    """Exponents for which no number overflows, and hi and lo of each number; zeros follow the ends of lines."""
    required_compiler()
    m, k, n = size
    sides = (m, k), (k, n)
    layouts = [Layout(o, s[1] if o == "C" else s[0]) for o, s in zip(orders, sides, strict=True)]  # type: ignore[arg-type]
    problem = Problem(m, k, n, "float32", (*layouts, Layout("C", n)))  # type: ignore[arg-type]
    rng = np.random.default_rng(m)
    for op, name, side, order in zip(splits("strassen.batched.pad16", problem, chip), "AB", sides, orders, strict=True):
        x = (rng.standard_normal(side) * 2.0 ** rng.integers(-9, 9, side)).astype(np.float32)
        lines_in_memory = np.ascontiguousarray(x if order == "C" else x.T)  # line by line
        _, bound, sums = plane_sum_launches(op, DIVIDES)
        operations = record_operations(Plan.parse("strassen.batched.pad16 > f16x3"), problem)
        memory = {name: aligned(lines_in_memory.nbytes), "W": aligned(operations.workspace)}
        memory[name][:] = lines_in_memory.view(np.uint8).ravel()
        found = largest(op, lines_in_memory)
        start = op.planes.source.offset
        memory["W"][start : start + found.nbytes] = found.view(np.uint8).ravel()
        run_on_host(bound, memory)
        run_on_host(sums, memory)
        _check_planes(op, lines_in_memory, memory["W"])


def _check_planes(op: PlaneSums, lines_in_memory: Array, memory: Array) -> None:
    a, planes, (_, across) = op.source_array, op.planes, op.block_counts
    height, width = planes.lines, planes.length
    padded = np.zeros((op.block_counts[0] * a.height, across * a.width))
    padded[: lines_in_memory.shape[0], : lines_in_memory.shape[1]] = lines_in_memory
    blocks = [padded[s.i * a.height :, s.j * a.width :][:height, :width] for s in op.split.kernel.reads]
    exponents = (
        memory[planes.exponents_offset :].view(np.int32)[: planes.count * planes.outer_size].reshape(planes.count, -1)
    )
    half = memory[planes.offset :][: 4 * planes.count * height * planes.line_pitch].view(np.float16).astype(np.float64)
    if op.separate:
        hi, lo = half.reshape(2, planes.count, height, planes.line_pitch)
    else:
        half = half.reshape(planes.count, height, planes.line_pitch // PLANE_CHUNK_LENGTH, 2, PLANE_CHUNK_LENGTH)
        hi, lo = (half[:, :, :, i].reshape(planes.count, height, planes.line_pitch) for i in (0, 1))
    assert not hi[:, :, width:].any() and not lo[:, :, width:].any()
    for p, row in enumerate(op.split.kernel.program.coefficient_matrix()):
        total = (
            np.sum([float(c.real) * x for c, x in zip(row, blocks, strict=True)], axis=0)
            .astype(np.float32)
            .astype(np.float64)
        )
        e = exponents[p][:, None] if op.is_k_major else exponents[p][None]
        scaled = np.ldexp(total.astype(np.float64), e)
        assert 2.0**11 <= np.abs(scaled).max() < 2.0**15
        np.testing.assert_allclose((hi + lo / 2048)[p, :, :width], scaled, rtol=2.0**-21, atol=2.0**-35)


def test_a_thread_block_has_the_kernels_threads() -> None:
    (op, _) = splits("strassen.batched.pad16", square(1024))
    assert [x.kernel.threads for x in plane_sum_launches(op, DIVIDES)] == [EXTENT_THREADS, EXTENT_THREADS, SUM_THREADS]
