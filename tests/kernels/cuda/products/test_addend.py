"""Products with a separate addend (alpha A B + beta D), perhaps one row for all rows: which kernels read it in place,
what
they compute, and which leaves start with a copy."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from fmm.kernels.cuda.launch_list import FLAG, Launch, VendorCall
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.products.kernel_sizes import TileSizes, named_strategy
from fmm.kernels.cuda.products.simt_kernel import COMPILER_OPTIONS, TileKernel, simt_kernel_source
from fmm.kernels.cuda.products.simt_tiles import ADDEND_EPILOGUE, TileOp, pointer_word_indices, tile_op, with_addend
from fmm.kernels.cuda.products.wgmma_tiles import wgmma_op
from fmm.kernels.cuda.record import record_launches, record_operations
from fmm.kernels.cuda.sums.sum_kernel import sum_source
from fmm.kernels.cuda.sums.sum_launch import SumOp
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.sums import ADDEND
from fmm.perfmodel.block_model import chip_target
from fmm.problem import Layout, Problem
from tests.support.chips import A100, B200, H200
from tests.support.host_compiler import required_compiler
from tests.support.marks import quick_and_slow
from tests.support.nvrtc import EACH_ARCHITECTURE, nvrtc, report
from tests.support.tiled_on_host import compiled_for_the_host, floats

SMALL = TileSizes("Warp", m_s=16, n_s=16, k_s=8, m_r=4, n_r=2, warp_m=4, warp_n=8)  # a warp: few threads to wait for
ROW = (0, 1)


def only_product(problem: Problem, leaf: str = "tile") -> GemmOp:
    (op,) = record_operations(Plan.parse(leaf), problem).ops
    assert isinstance(op, GemmOp)
    return op


def added_tile(problem: Problem) -> TileOp:
    op = only_product(problem)
    assert op.addend is not None
    return with_addend(tile_op(replace(op, addend=None), problem.dtype, SMALL), op.addend)


# ---- the tiled kernels, on the host


@pytest.mark.parametrize(("dtype", "order"), [("float32", "C"), ("float64", "C"), ("float32", "F")])
@pytest.mark.parametrize("gap", [0, 1], ids=["aligned", "gaps"])
def test_tiles_add_a_separate_addend(dtype: str, order: Any, gap: int, rng: np.random.Generator) -> None:
    """Exact on small integers; C is NaN before, and memory around C stays as it is."""
    required_compiler()
    m, k, n = (20, 12, 36) if not gap else (21, 11, 35)
    rows, cols = (m, n) if order == "C" else (n, m)  # lines, and numbers in them
    for broadcast, (alpha, beta) in product((True, False), ((1, 1), (-2, 0.5))):
        step = 0 if broadcast else cols + gap
        steps = (step, 1) if order == "C" else (1, step)
        layouts = Layout("C", k), Layout("C", n), Layout(order, cols + gap)
        op = added_tile(Problem(m, k, n, dtype, layouts, alpha, beta, addend_strides=steps))
        assert op.kernel.epilogue == ADDEND_EPILOGUE and op.access == ("scalar" if gap else "vector")
        sizes = {"A": m * k, "B": k * n, "C": rows * (cols + gap), ADDEND: (1 if broadcast else rows) * (cols + gap)}
        memory = {name: floats(size + 8, dtype) for name, size in sizes.items()}
        for name in ("A", "B", ADDEND):
            memory[name][: sizes[name]] = rng.integers(-3, 4, sizes[name])
        launch(op, memory)
        a, b = memory["A"][: m * k].reshape(m, k), memory["B"][: k * n].reshape(k, n)
        old = np.lib.stride_tricks.as_strided(memory[ADDEND], (m, n), [s * a.itemsize for s in steps])
        lines = memory["C"][: sizes["C"]].reshape(rows, cols + gap)
        c = lines[:, :cols] if order == "C" else lines[:, :cols].T
        np.testing.assert_array_equal(c, alpha * (a @ b) + beta * old)
        assert np.isnan(lines[:, cols:]).all() and np.isnan(memory["C"][sizes["C"] :]).all()


def launch(op: TileOp, memory: dict[str, Any]) -> None:
    library = compiled_for_the_host(op.kernel, op.access)
    parameters = np.frombuffer(op.parameter_bytes, np.int64).copy()
    for word, piece in zip(pointer_word_indices(op), op.all_blocks, strict=True):
        parameters[word] = memory[piece.base].ctypes.data + piece.offset
    assert library.launch(parameters.ctypes.data_as(ctypes.c_void_p), op.grid[0], 1) == parameters.nbytes


@pytest.mark.slow
@pytest.mark.parametrize("architecture", EACH_ARCHITECTURE)
@pytest.mark.parametrize(
    ("dtype", "name"),
    quick_and_slow([("float64", "Square")], [("float32", "Square"), ("float32", "Huge"), ("float64", "Huge")]),
)
def test_tiles_with_an_addend_stay_in_registers(dtype: str, name: str, architecture: str) -> None:
    """No spills, as with beta C."""
    nvrtc()
    s = named_strategy(name)
    plain, adding = (TileKernel(s, dtype, epilogue=e) for e in (TileKernel(s, dtype).epilogue, ADDEND_EPILOGUE))
    local = [
        report(name, simt_kernel_source(x, "vector"), architecture, COMPILER_OPTIONS).local for x in (plain, adding)
    ]
    assert local[1] <= local[0], local


@pytest.mark.parametrize("architecture", EACH_ARCHITECTURE)
@pytest.mark.parametrize(
    ("text", "dtype"),
    quick_and_slow(
        [("winograd > vendor", "float32")],
        [("strassen^2.batched.pad16 > vendor", x) for x in ("float32", "bfloat16", "complex64")],
    ),
)
def test_joins_with_an_addend_stay_in_registers(text: str, dtype: str, architecture: str) -> None:
    """No spills, as with beta C, and accesses of the same width."""
    nvrtc()
    found = []
    for added in (None, ROW):
        problem = Problem(1024, 1024, 1024, dtype, beta=1, addend_strides=added)
        join = record_operations(Plan.parse(text), problem).ops[-1]
        assert isinstance(join, SumOp) and join.writes_result
        r = report(text, sum_source(join.kernel, join.access, True), architecture)
        found.append((join.access, join.kernel.vector_width, r.local))
    assert found[0][:2] == found[1][:2] and found[1][2] <= found[0][2]


# ---- the warpgroups' kernel


def test_warpgroups_broadcast_a_row() -> None:
    """The addend is read with a row stride of 0, and the copy engine does not add to C."""
    plain = Problem(256, 256, 256, "bfloat16", beta=1)
    made = wgmma_op(only_product(replace(plain, addend_strides=ROW)), "bfloat16", 132)
    usual = wgmma_op(only_product(replace(plain, beta=2)), "bfloat16", 132)
    assert made is not None and usual is not None and made.kernel == usual.kernel
    at = 3 * 128 + 8  # behind the maps and the pointer: from row to row, from layer to layer, sides, how much is kept
    assert struct.unpack_from("<2q2if", made.parameter_bytes, at) == (0, 0, 256, 256, 1.0)
    assert struct.unpack_from("<2q2if", usual.parameter_bytes, at) == (256, 0, 256, 256, 2.0)
    assert (made.adds, made.keep) == (False, 1.0)
    (first,) = launches("tile", replace(plain, addend_strides=ROW))
    assert isinstance(first, Launch) and first.slots[-1].base == ADDEND
    assert not any(slot.base == "C" for slot in first.slots[3:])


def test_warpgroups_need_even_leading_dimensions() -> None:
    """With an odd leading dimension, rows do not start at pairs of numbers."""
    problem = Problem(256, 256, 256, "bfloat16", beta=1, addend_strides=(257, 1))
    assert wgmma_op(only_product(problem), "bfloat16", 132) is None
    begin, _ = launches("tile", problem)
    assert isinstance(begin, Launch) and "begin C" in begin.label


# ---- what is selected


def launches(text: str, problem: Problem, chip: Any = H200, flagged: bool = False) -> tuple[Any, ...]:
    return record_launches(Plan.parse(text), problem, chip_target(chip, flagged=flagged)).steps


def bases(step: Any) -> set[str]:
    return (
        {slot.base for slot in step.slots}
        if isinstance(step, Launch)
        else {x.base for x in step.op.operands_and_result}
    )


@pytest.mark.parametrize(
    ("text", "dtype", "chip", "begins"),
    [
        ("tile", "float64", H200, False),  # a second destination, which is read only
        ("tile", "float32", A100, False),
        ("tile", "float32", H200, True),  # the copy engine's kernel is faster, and reads only what C holds
        ("tile", "bfloat16", H200, False),
        ("tile", "bfloat16", A100, True),  # by the vendor there
        ("vendor", "float32", H200, True),
        ("f16x3", "float32", H200, False),
        ("f16x3", "float32", A100, False),
        ("f16x3", "float32", B200, True),  # by the vendor there
        ("residues(14) > bytes", "float64", H200, True),
    ],
)
def test_which_leaves_begin_with_a_copy(text: str, dtype: str, chip: Any, begins: bool) -> None:
    problem = Problem(2048, 2048, 2048, dtype, beta=1, addend_strides=ROW)
    steps = launches(text, problem, chip)
    assert [ADDEND in bases(step) for step in steps].count(True) == 1
    copies = [step for step in steps if isinstance(step, Launch) and "begin C" in step.label]
    assert len(copies) == begins
    if begins:  # and whatever multiplies then adds to what C holds
        assert ADDEND in bases(steps[0])
    assert not any(isinstance(x, VendorCall) and isinstance(x.op, GemmOp) and x.op.addend for x in steps)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "complex64"])
@pytest.mark.parametrize("text", ["strassen^2.batched.pad16 > vendor", "winograd > vendor"])
def test_joins_read_the_addend_in_place(text: str, dtype: str) -> None:
    """The launch that writes C reads the addend, with accesses of the same width; no other step reads or copies it."""
    plain, biased = (Problem(1024, 1024, 1024, dtype, beta=b, addend_strides=x) for b, x in ((0, None), (1, ROW)))
    usual, steps = launches(text, plain), launches(text, biased)
    assert len(usual) == len(steps)
    (join,) = (step for step in steps if ADDEND in bases(step))
    assert {"C", ADDEND, "W"} <= bases(join) and "join" in join.label and join.aligned


def test_recomputation_starts_from_the_addend() -> None:
    """beta applies to the addend alone: the old numbers of C do not count."""
    problem = Problem(1024, 1024, 1024, "float32", beta=1)
    text = "strassen.batched.pad16 > vendor"
    both, target = (problem, replace(problem, addend_strides=ROW)), chip_target(H200, flagged=True)
    plain, biased = (record_launches(Plan.parse(text), x, target) for x in both)
    assert len(biased.steps) == len(plain.steps) - 1 and biased.workspace < plain.workspace
    again = biased.steps[-1]
    assert isinstance(again, Launch) and again.does == "recompute"
    (old,) = (slot for slot in again.slots if slot.base == ADDEND)
    assert (old.word, struct.unpack_from("<2q", again.parameters, 8 * (old.word + 1))) == (14, ROW)
    assert any(slot.base == FLAG for slot in again.slots)
