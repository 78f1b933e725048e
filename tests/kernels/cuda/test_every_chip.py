"""Recorded launches fit every kind of chip: grids, shared memory, parameters, instructions, addresses."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from benchmarks.compile_ahead import named_chip
from fmm.dtypes import DTYPES
from fmm.hardware.chip import Chip
from fmm.kernels.cuda.launch_list import DEVICE_ARCHITECTURE, MAX_PARAMETER_BYTES, Launch, LaunchList
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.plans.level import PlanError
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import chip_target
from fmm.problem import Layout, Problem
from tests.support.marks import quick_and_slow

CHIPS = {name: named_chip(name) for name in ("V100", "A100", "RTX 4090", "H200", "B200", "RTX 5090")}
LEAVES = ("tile", "f16x3", "small", "vendor3m", "tile.medium", "residues(14) > bytes", "residues > bytes", "vendor")
LEVELS = (
    *("strassen.batched.pad16", "winograd", "strassen.fused.pad4", "li-fig3.peel", "strassen^2.overlapped.pad16"),
    *("3m.batched", "scaled", "balanced", "winograd.pad16 > strassen.batched.pad16"),
)
HALVES = ("gram", "gram^2", "gram^2.tile", "gram^2.tile.outer", "gram.tile.outer > strassen", "gram > gram")
TYPES = ("float32", "float64", "bfloat16", "tf32", "complex64", "complex128", "int8", "int64")
SIDES = (1, 2, 3, 17, 64, 127, 128, 257, 1000, 4095, 4096, 8192, 16384, 65536, 65537, 131072, 200000)
LARGEST_GRID = 2**31 - 1, 65535, 65535


def drawn(rng: random.Random) -> tuple[Plan, Problem]:
    """A plan and a problem for it."""
    m, k, n = (rng.choice(SIDES) for _ in range(3))
    half = rng.random() < 0.4
    n = m if half else n
    levels = [*([rng.choice(HALVES)] if half else []), *rng.sample(LEVELS, rng.randrange(2)), rng.choice(LEAVES)]
    a, b, c = (_layout(rng, *shape) for shape in ((m, k), (k, n), (m, n)))
    b = Layout("F" if a.order == "C" else "C", a.leading) if half else b
    scalars = rng.choice([(1, 0), (1, 0), (2, -3), (0, 0.5)])
    plan, dtype = Plan.parse(" > ".join(levels)), rng.choice(TYPES)
    if half:
        return plan, Problem(m, k, n, dtype, (a, b, c), *scalars, op="gram", fill=rng.choice(["full", "lower"]))
    return plan, Problem(m, k, n, dtype, (a, b, c), *scalars)


def _layout(rng: random.Random, rows: int, cols: int) -> Layout:
    order = rng.choice(["C", "F"])
    return Layout(order, (cols if order == "C" else rows) + rng.choice([0, 0, 3, 16]))  # type: ignore[arg-type]


def faults(found: LaunchList, chip: Chip) -> Iterator[str]:
    for step in (step for step in found.steps if isinstance(step, Launch)):
        kernel = step.kernel
        if any(not 0 < x <= most for x, most in zip(step.grid, LARGEST_GRID, strict=True)):
            yield f"{step.label}: {step.grid} thread blocks"
        if kernel.shared > chip.shared_bytes_per_block or kernel.threads > 1024:
            yield f"{step.label}: {kernel.threads} threads, {kernel.shared} bytes of shared memory"
        if len(step.parameters) > MAX_PARAMETER_BYTES or len(step.parameters) % 8:
            yield f"{step.label}: {len(step.parameters)} bytes of parameters"
        if kernel.architecture not in ("", DEVICE_ARCHITECTURE) and not chip.has_warpgroups:
            yield f"{step.label}: code for {kernel.architecture}"
        if any(slot.offset < 0 or (slot.base == "W" and slot.offset > found.workspace) for slot in step.slots):
            yield f"{step.label}: an address outside its matrix"


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "count"), quick_and_slow([(0, 60)], [(seed, 600) for seed in range(1, 3)]))
def test_random_plans_can_be_launched(seed: int, count: int) -> None:
    rng, recorded = random.Random(seed), 0
    while recorded < count:
        name, alignment = (
            rng.choice(list(CHIPS)),
            rng.choice([(256, 256, 256, 256), (16, 16, 16, 256), (4, 8, 16, 256)]),
        )
        try:
            plan, problem = drawn(rng)
            least = DTYPES[problem.dtype].itemsize
            x, y, z, w = (max(place, least) for place in alignment)
            found = record_launches(plan, problem, chip_target(CHIPS[name], (x, y, z, w), rng.random() < 0.5))
        except PlanError:
            continue
        recorded += 1
        assert not list(faults(found, CHIPS[name])), (name, str(plan), problem)


def test_tma_kernels_need_shared_memory_for_their_tiles() -> None:
    """Compute capability 12.0 has the copy engine, and less than half of 9.0's shared memory."""
    problem = Problem(4096, 4096, 4096, "float32")
    for name, by_engine in {"H200": True, "B200": True, "RTX 5090": False}.items():
        chip = CHIPS[name]
        found = record_launches(Plan.parse("tile"), problem, chip_target(chip))
        assert chip.has_copy_engine and not list(faults(found, chip))
        assert found.launches[0].label.startswith("gemm_tma") == by_engine, name
