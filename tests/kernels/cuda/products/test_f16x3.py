"""float32 by three float16 products, without a GPU: registers by NVRTC, layout of planes, launches, choice."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from fmm.config.identity import Identity
from fmm.config.schema import calibration_fields, read_calibration
from fmm.hardware.chip import Chip
from fmm.kernels.cuda.launch_list import Launch, VendorCall
from fmm.kernels.cuda.ops import GemmOp, GemmOperand
from fmm.kernels.cuda.products.f16_planes import (
    SCALING_RULES,
    SPLIT_THREADS,
    STRIP_POSITIONS,
    OperandPlanes,
    SplitKernel,
    balance_decision_kernel_source,
    plane_split_kernel_source,
)
from fmm.kernels.cuda.products.f16x3 import (
    F16X3_SIZES,
    F16x3Kernel,
    F16x3Op,
    f16x3_kernel_source,
    f16x3_op,
    undo_scaling_kernel_source,
    vendor_f16x3_steps,
)
from fmm.kernels.cuda.products.kernel_sizes import PLANE_CHUNK_LENGTH, PLANES_PER_OPERAND, f16x3_workspace
from fmm.kernels.cuda.products.tiling import ContiguousAxis
from fmm.kernels.cuda.products.wgmma_tiles import best_wgmma_sizes, cluster_tile_grid
from fmm.kernels.cuda.record import record_launches, record_operations
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel.block_model import chip_target
from fmm.perfmodel.choose import Limits, choose
from fmm.perfmodel.default_calibration import datasheet_calibration, f16x3_rate_on_vendor_gemm
from fmm.perfmodel.predict import quick_prediction
from fmm.problem import Layout, Problem
from fmm.runtime.devices import Device
from fmm.runtime.prepare import launches_on_device
from tests.support.chips import A100, B200, H200
from tests.support.nvrtc import check_warpgroups, compile_cuda, flushes_subnormals, in_parallel, nvrtc, report

Array = np.ndarray[Any, Any]
SMS = 132
CONTIGUOUS_AXES: tuple[ContiguousAxis, ...] = ("inner", "outer")
PRODUCTS = [F16x3Kernel(F16X3_SIZES[0], along) for along in product(CONTIGUOUS_AXES, CONTIGUOUS_AXES)] + [
    F16x3Kernel(F16X3_SIZES[1], ("inner", "outer")),
    F16x3Kernel(F16X3_SIZES[2], ("inner", "outer")),
    F16x3Kernel(F16X3_SIZES[0], ("inner", "outer"), checked=True),
    *(F16x3Kernel(F16X3_SIZES[0], ("inner", "inner"), triangle=half) for half in ("lower", "full")),
]
NOTHING = dict.fromkeys("ABCW", 256)  # alignment of all addresses
SPLITS = [
    (SplitKernel("inner", 256, 16, True), SplitKernel("outer", 0, 0, True)),
    (SplitKernel("outer", 0, 0, False), SplitKernel("inner", 32, 8, False)),
]


def operation(problem: Problem, plan: str = "f16x3") -> F16x3Op:
    op = next(op for op in record_operations(Plan.parse(plan), problem).ops if isinstance(op, GemmOp))
    made = f16x3_op(op, SMS)
    assert made is not None
    return made


# ---- NVRTC


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [(PRODUCTS[1], PRODUCTS[-1]), pytest.param(PRODUCTS, marks=pytest.mark.slow)])
def test_products_stay_in_registers(kernels: Sequence[F16x3Kernel]) -> None:
    """Two warpgroups hold three sums of 64 numbers for each thread, in all registers that setmaxnreg can give them."""
    nvrtc()
    struct_bytes = len(operation(Problem(512, 512, 512, "float32")).parameter_bytes)
    check_warpgroups(kernels, f16x3_kernel_source, f"static_assert(sizeof(fmm::Product3) == {struct_bytes});")


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_splits_leave_registers_for_many_threads(most: int) -> None:
    """No spills; at most this many registers for every pair of operands."""
    nvrtc()
    usual, checked = (
        operation(Problem(512, 512, 512, "float32", componentwise=componentwise)) for componentwise in (False, True)
    )
    kernels = usual.left.split_kernel(NOTHING), usual.right.split_kernel(NOTHING)
    assert checked.spread is not None
    both = sum(len(x.pack_parameters(kernel, 8)) for x, kernel in zip((usual.left, usual.right), kernels, strict=True))
    noted = len(checked.spread.pack_parameters(kernels, 8)[0])
    rules = [rule for rule in SCALING_RULES if rule != "separate"]  # which is for other chips
    sizes = {rule: f"static_assert(sizeof(Operands) == {both if rule == 'default' else noted});" for rule in rules}
    jobs = [(f"{k}{r}", f"{plane_split_kernel_source(k, r, 8)}{sizes[r]}\n") for k in SPLITS[:most] for r in rules]
    jobs += [(str(k), f"{plane_split_kernel_source((k[0],), 'default', 8)}\n") for k in SPLITS[:most]]
    size_check = f"static_assert(sizeof(fmm::planes::Balance) == {noted + 8});"
    jobs += [
        (f"{x}{y}", f"{balance_decision_kernel_source(x, y)}{size_check}\n")
        for x, y in list(product(CONTIGUOUS_AXES, CONTIGUOUS_AXES))[:most]
    ]
    for r in in_parallel(report, [(*job, "sm_90a", ("--std=c++17",)) for job in jobs]):
        assert r.local == 0 and r.registers <= 96, r


# ---- the splitting itself


@pytest.mark.parametrize("spread", [0, 10, 25, 60])
def test_two_float16_hold_a_row_of_float32(spread: int) -> None:
    """The split of f16_planes.cuh loses at most 2^-22 of each number, or 2^-50 of the row's largest."""
    rng = np.random.default_rng(spread)
    x = (rng.standard_normal((64, 256)) * 2.0 ** rng.uniform(-spread, 0, (64, 256))).astype(np.float32)
    most = np.abs(x).max(axis=1, keepdims=True)
    e = 14 - np.floor(np.log2(most)).astype(np.int64)
    scaled = np.ldexp(x.astype(np.float64), e)
    hi = scaled.astype(np.float32).astype(np.float16)
    lo = ((scaled - hi.astype(np.float64)) * 2048).astype(np.float32).astype(np.float16)
    assert np.isfinite(hi).all() and np.isfinite(lo).all()
    back = np.ldexp(hi.astype(np.float64) + lo.astype(np.float64) / 2048, -e)
    assert (np.abs(back - x) <= np.maximum(2.0**-22 * np.abs(x), 2.0**-50 * most)).all()


# ---- planes


@pytest.mark.parametrize("size", [(1, 1, 1), (64, 64, 64), (300, 200, 100), (129, 65, 1)])
@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_planes_do_not_overlap_and_fit_in_the_workspace(size: tuple[int, int, int], orders: str) -> None:
    m, k, n = size
    sides = (m, k), (k, n)
    layouts = [Layout(o, s[1] if o == "C" else s[0]) for o, s in zip(orders, sides, strict=True)]  # type: ignore[arg-type]
    problem = Problem(m, k, n, "float32", (layouts[0], layouts[1], Layout("C", n)))
    op = operation(problem)
    places = []
    for x, outer in ((op.left, m), (op.right, n)):
        places += [
            (x.offset, x.offset + 4 * x.count * x.lines * x.line_pitch),
            (x.exponents_offset, x.exponents_offset + 4 * outer),
        ]
        assert x.line_pitch % PLANE_CHUNK_LENGTH == 0 and x.line_pitch >= x.length and x.offset % 256 == 0
    for (_, end), (begin, _) in pairwise(places):
        assert end <= begin
    assert places[-1][1] <= f16x3_workspace(m, k, n, 1) == plan_workspace_bytes(Plan.parse("f16x3"), m, k, n, 4)


@pytest.mark.parametrize(
    "plan",
    ["f16x3", "strassen.batched.pad16 > f16x3", "strassen^2.batched.pad16 > f16x3", "strassen.overlapped > f16x3"],
)
@pytest.mark.parametrize("size", [(512, 512, 512), (1003, 777, 1201)])
def test_the_predicted_workspace_is_the_recorded_one(plan: str, size: tuple[int, int, int]) -> None:
    """Equal up to alignment: a recorder packs rows, a count pads them."""
    problem = Problem(*size, "float32")
    recorded = record_launches(Plan.parse(plan), problem, chip_target(H200)).workspace
    counted = plan_workspace_bytes(Plan.parse(plan), *size, 4)
    assert 0.9 * counted <= recorded <= counted


def test_a_batch_is_split_and_multiplied_at_once() -> None:
    """The case where splits do not write planes, because 16 bytes of a row cannot be read at a time."""
    found = record_launches(
        Plan.parse("strassen.batched.pad16 > f16x3"), Problem(2050, 2050, 2050, "float32"), chip_target(H200)
    )
    labels = [step.label for step in found.steps if isinstance(step, Launch)]
    assert sum("f16_planes" in label for label in labels) == 1
    assert sum("gemm_f16x3" in label and "a batch of 7" in label for label in labels) == 1


def test_kernel_parameters() -> None:
    op = operation(Problem(300, 200, 100, "float32", alpha=2, beta=-1))
    lines = 2 * 128 + 5 * 8  # behind the maps and the pointers
    assert struct.unpack_from("<3q", op.parameter_bytes, lines) == (100, 0, 100)
    m, n, steps, down, across, _, units = struct.unpack_from("<7i", op.parameter_bytes, lines + 3 * 8)
    assert (m, n, steps) == (300, 100, 4) and units == down * across == op.batch_cluster_tile_count
    assert struct.unpack_from("<2f", op.parameter_bytes, lines + 3 * 8 + 28) == (2, -1)
    a, b = op.tensor_maps
    assert (a.length, a.lines, a.box) == (PLANES_PER_OPERAND * 256, 300, (64, op.kernel.sizes.m_s))
    assert (b.length, b.lines, b.box) == (PLANES_PER_OPERAND * 128, 200, (64, 64))
    assert f16x3_op(gemm(Problem(8, 8, 8, "float32", alpha=1j)), SMS) is None


def gemm(problem: Problem) -> GemmOp:
    return next(op for op in record_operations(Plan.parse("f16x3"), problem).ops if isinstance(op, GemmOp))


@pytest.mark.parametrize(("lines", "length"), [(1, 1), (7, 5000), (4096, 64), (1000, 1024), (3, 100_000)])
def test_every_line_has_threads(lines: int, length: int) -> None:
    """A thread's register loads never exceed its share of a line."""
    x = OperandPlanes(GemmOperand("A", 0, length, False, 0), "inner", lines, length, 3, 0)
    kernel = x.split_kernel(NOTHING)
    assert x.thread_block_count(kernel, 8) * (SPLIT_THREADS // kernel.group) >= 3 * lines
    assert (kernel.register_loads - 1) * 4 * kernel.group < x.line_pitch
    strips = OperandPlanes(GemmOperand("A", 0, length, False, 0), "outer", lines, length, 3, 0)
    kernel, positions = strips.split_kernel(NOTHING), 3 * strips.line_pitch
    assert strips.thread_block_count(kernel, 8) == positions // PLANE_CHUNK_LENGTH * 8
    assert strips.thread_block_count(kernel, 1) == positions // STRIP_POSITIONS


# ---- by the vendor's products of planes


@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
@pytest.mark.parametrize(("m", "k", "n"), [(300, 1000, 200), (65, 256, 129), (7, 5, 3)])
def test_the_vendors_products_of_planes(m: int, k: int, n: int, orders: str) -> None:
    """Computed in NumPy on planes with the split's layout: every product reads the correct numbers."""
    sides = (m, k), (k, n)
    layouts = [Layout(o, s[1] if o == "C" else s[0]) for o, s in zip(orders, sides, strict=True)]  # type: ignore[arg-type]
    op = gemm(Problem(m, k, n, "float32", (layouts[0], layouts[1], Layout("C", n)), alpha=-2))
    rng = np.random.default_rng(m)
    matrices = {"A": rng.standard_normal((m, k)), "B": rng.standard_normal((k, n))}
    steps = vendor_f16x3_steps(op, SMS, NOTHING, True)
    assert not isinstance(steps, str)
    split, *calls, end = steps
    assert isinstance(split, Launch) and isinstance(end, Launch) and "__cluster_dims__" not in split.kernel.cuda_source
    memory = np.full(f16x3_workspace(m, k, n, 1) // 2, np.nan, np.float16)
    places = {split.slots[i].base: split.slots[i + 1].offset for i in (0, 3)}  # where the planes of A, of B begin
    for i, (name, x) in enumerate(matrices.items()):
        lines_in_memory = x if orders[i] == "C" else x.T
        at = places[name]
        room = -(-lines_in_memory.shape[1] // PLANE_CHUNK_LENGTH) * PLANE_CHUNK_LENGTH
        hi = lines_in_memory.astype(np.float16)
        for part in (hi, ((lines_in_memory - hi) * 2048).astype(np.float16)):
            lines = memory[at // 2 : at // 2 + len(lines_in_memory) * room].reshape(len(lines_in_memory), room)
            lines[:, : lines_in_memory.shape[1]] = part
            at += 2 * len(lines_in_memory) * room
    c = np.full((m, n), np.nan)
    for call in calls:
        assert isinstance(call, VendorCall) and isinstance(call.op, GemmOp)
        left, right = (_as_blas_reads(memory, x, *s) for x, s in _factors(call.op))
        old = call.op.beta.real * c.T if call.op.beta else 0
        c = (call.op.alpha.real * (left @ right) + old).T
    np.testing.assert_allclose(c, matrices["A"] @ matrices["B"], atol=1e-4)
    assert struct.unpack_from("<f", end.parameters, 7 * 8 + 3 * 4) == (-2,)


def _factors(op: GemmOp) -> tuple[tuple[GemmOperand, tuple[int, int]], tuple[GemmOperand, tuple[int, int]]]:
    return (op.left, (op.m, op.k)), (op.right, (op.k, op.n))


def _as_blas_reads(memory: Array, x: GemmOperand, rows: int, cols: int) -> Array:
    """Return a column-major matrix, or its transpose."""
    lines, length = (rows, cols) if x.transposed else (cols, rows)
    start = x.offset // 2
    found = np.lib.stride_tricks.as_strided(memory[start:], (lines, length), (2 * x.leading, 2)).astype(np.float64)
    return found if x.transposed else found.T


def test_products_that_the_vendor_cannot_do_alone() -> None:
    for problem in (
        Problem(300, 200, 100, "float32", beta=1),
        Problem(300, 200, 100, "float32", componentwise=True),
    ):
        assert isinstance(vendor_f16x3_steps(gemm(problem), SMS, NOTHING, True), str)
    found = record_launches(Plan.parse("f16x3"), Problem(300, 200, 100, "float32", beta=1), chip_target(B200))
    assert any("not f16x3, because" in line for line in found.step_labels())


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture",
    ["sm_80", *(pytest.param(a, marks=pytest.mark.slow) for a in ("sm_89", "sm_90", "sm_100", "sm_120"))],
)
def test_kernels_for_other_chips_compile(architecture: str) -> None:
    sources = [plane_split_kernel_source(k, "separate", 1) for k in SPLITS] + [undo_scaling_kernel_source()]
    for r in in_parallel(report, [(text[:40], text, architecture, ("--std=c++17",)) for text in sources]):
        assert r.local == 0 and r.registers <= 128, r


@pytest.mark.parametrize(
    "text",
    [plane_split_kernel_source(SPLITS[0], "separate", 1), undo_scaling_kernel_source()],
    ids=["split", "unscale"],
)
def test_kernels_for_other_chips_keep_subnormal_numbers(text: str) -> None:
    """CuPy compiles with -ftz=true, and no option of ours undoes it: numbers of about 2^-126 would be lost."""
    _, ptx = compile_cuda(text, "compute_80", "--std=c++17", "-ftz=true")
    assert "mul.rn.f32" in ptx
    assert re.findall(r"\w+[.\w]*\.ftz[.\w]*", ptx) == []


@pytest.mark.parametrize("on", [A100, H200], ids=["A100", "H200"])
@pytest.mark.parametrize("componentwise", [False, True])
def test_splits_of_every_chip_keep_subnormal_numbers(componentwise: bool, on: Chip) -> None:
    problem = Problem(600, 600, 600, "float32", componentwise=componentwise)
    launches = record_launches(Plan.parse("f16x3"), problem, chip_target(on, flagged=True)).launches
    splits = {x.kernel for x in launches if x.kernel.generate is plane_split_kernel_source}
    assert len(splits) == 1 + componentwise and not any(map(flushes_subnormals, splits))


def test_sizes() -> None:
    """The chosen sizes let the last round of clusters end early."""
    assert best_wgmma_sizes(8192, 8192, 1, SMS, F16X3_SIZES) == F16X3_SIZES[0]
    assert best_wgmma_sizes(128, 8192, 1, SMS, F16X3_SIZES).cluster == 1
    for n in (1024, 1536, 3000, 4096):
        ends = {}
        for s in F16X3_SIZES:
            down, across = cluster_tile_grid(n, n, s)
            ends[s] = -(-down * across // (SMS // s.cluster)) * s.n_s
        assert ends[best_wgmma_sizes(n, n, 1, SMS, F16X3_SIZES)] <= 1.2 * min(ends.values())


# ---- its place


def chosen(n: int, limits: Limits, name: str = "h200") -> Plan:
    return choose(Problem(n, n, n, "float32"), datasheet_calibration(name), limits).best.plan


def test_sizes_at_which_f16x3_is_chosen() -> None:
    """From about 1000 rows on, if the float16 products are fast enough; where the vendor multiplies the planes, from a
    few thousand on. Never if emulation is forbidden or the error of the vendor is required."""
    free = Limits(1 << 36, 16.0)
    for n in (1024, 2048, 4096, 8192, 16384):
        assert chosen(n, free).leaf == "f16x3"
        assert chosen(n, Limits(1 << 36, 16.0, emulation=False)).leaf != "f16x3"
        strict = chosen(n, Limits(1 << 36, 1.0))
        assert strict == VENDOR or not strict.leaf_use.leaf.emulates
        for name in ("rtx4090", "rtx5090", "v100"):
            assert chosen(n, free, name).leaf != "f16x3", name
        for name, least in (("a100", 1024), ("b200", 2048)):
            assert (chosen(n, free, name).leaf == "f16x3") == (n >= least), name
            assert chosen(n, Limits(1 << 36, 16.0, emulation=False), name).leaf != "f16x3", name
    assert chosen(256, free) == VENDOR
    assert choose(Problem(8192, 8192, 8192, "float64"), datasheet_calibration("h200"), free).best.plan.leaf != "f16x3"


def test_two_launches_cost_one_start_on_a_slow_host() -> None:
    """On a host that is slow to start products, a product that takes the device half of the time is not left to the
    vendor."""
    slow = replace(datasheet_calibration("h200"), host=38e-6)
    problem = Problem(1024, 1024, 1024, "float32")
    own, vendor = (quick_prediction(Plan.parse(leaf), problem, slow).predicted_seconds for leaf in ("f16x3", "vendor"))
    assert own < 45e-6 < vendor
    assert choose(problem, slow, Limits(1 << 36, 16.0)).best.plan.leaf == "f16x3"


def test_planes_written_by_splits_save_passes() -> None:
    """Of two passes over A and three over B, one each remains: that over the blocks in the sums."""
    of_chip = datasheet_calibration("h200")
    rate = replace(of_chip.rates["f16x3"], batch=1.0)  # what batches cost besides is left out
    calibration = replace(of_chip, rates={**of_chip.rates, "f16x3": rate})
    faster = replace(rate, rows=rate.rows / 2, cols=rate.cols / 2)
    half = replace(calibration, rates={**calibration.rates, "f16x3": faster})
    problem = Problem(16384, 16384, 16384, "float32")

    def lost(text: str) -> float:
        usual, less = (quick_prediction(Plan.parse(text), problem, x).products for x in (calibration, half))
        return usual - less

    turns, batch, two = (f"strassen{x}.pad16 > f16x3" for x in (".overlapped", ".batched", "^2.batched"))
    assert lost(batch) == pytest.approx(lost(turns) * 2 * 4 / (5 * 7))
    assert lost(two) == pytest.approx(lost(turns) * 7 / 4 * 2 * 16 / (5 * 49))


def test_how_fast_the_vendors_products_of_planes_are() -> None:
    """The model's time agrees with the one measured on an H200 at 1024, 4096 and 8192, relative to SGEMM."""
    calibration = datasheet_calibration("h200")
    planes = f16x3_rate_on_vendor_gemm(calibration.rates["float16"], calibration.stream)
    other = replace(calibration, rates={**calibration.rates, "f16x3": planes})
    for n, measured in ((1024, 0.61), (4096, 1.79), (8192, 2.21)):
        problem = Problem(n, n, n, "float32")
        own, vendor = (
            quick_prediction(Plan.parse(leaf), problem, other).predicted_seconds for leaf in ("f16x3", "vendor")
        )
        assert 0.85 * measured <= vendor / own <= 1.05 * measured


@pytest.mark.parametrize("changes", [{"beta": 1}, {"componentwise": True}])
def test_f16x3_is_not_chosen_on_chips_without_it(changes: Any) -> None:
    """If the vendor cannot multiply planes either, no message says that it would."""
    problem = Problem(4096, 4096, 4096, "float32", **changes)
    b200 = Device(Identity("cuda-10.0-148sm-b200", "B200"), datasheet_calibration("b200"), chip=B200)
    assert launches_on_device(Plan.parse("f16x3"), problem, b200, False) is None
    assert launches_on_device(Plan.parse("f16x3"), problem, b200, True) is not None


def test_the_reason_why_f16x3_is_not_chosen() -> None:
    problem = Problem(8192, 8192, 8192, "float32")
    assert (
        "other types" in choose(problem, datasheet_calibration("h200"), Limits(1 << 36, 16.0, emulation=False)).reason
    )


def test_a_config_keeps_its_rate() -> None:
    calibration = datasheet_calibration("h200")
    fields = calibration_fields(calibration, "float32")
    assert set(fields["leaf_rates"]) == set(calibration.rates) - {"float32"}
    read = read_calibration(fields, "here", "float32", calibration.name, calibration.source)
    assert read.rates["f16x3"] == calibration.rates["f16x3"] and read.rates["float32"] == calibration.rates["float32"]
