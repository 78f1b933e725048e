"""The tiled recompute kernel without a GPU: flag down, nothing changes; flag up, all is recomputed."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fmm.kernels.cuda.launch_list import FLAG, HOST_COUNT, Launch
from fmm.kernels.cuda.products.kernel_sizes import FUSED_SIZES
from fmm.kernels.cuda.products.simt_kernel import (
    COMPILER_OPTIONS,
    MemoryAccess,
    TileKernel,
    adding_epilogue,
    simt_kernel_source,
)
from fmm.kernels.cuda.products.simt_tiles import TileOp, pointer_word_indices
from fmm.kernels.cuda.recompute.recompute import (
    TILED_STRATEGIES,
    may_create_nonfinite,
    recompute_launches,
    tiled_recompute_op,
)
from fmm.kernels.cuda.record import record_launches, record_operations
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import chip_target
from fmm.problem import Layout, Problem
from tests.support.chips import H200
from tests.support.host_compiler import required_compiler
from tests.support.marks import quick_and_slow
from tests.support.nvrtc import EACH_ARCHITECTURE, compile_cuda, kernel_architecture, nvrtc, report
from tests.support.tiled_on_host import compiled_for_the_host, floats

M, K, N = 131, 21, 260  # two tiles by three
BLOCKS = 4  # thread blocks, fewer than tiles
TINY = np.float32(1e-40)  # subnormal


class Slot:
    """struct Slot of nonfinite_flag.cuh, and the host's count."""

    def __init__(self, up: bool) -> None:
        self.words = np.array([up, 0, 0, 0], np.uint32)
        self.count = np.zeros(1, np.uint32)

    @property
    def seen(self) -> list[int]:
        return [*self.words[:3].tolist(), int(self.count[0])]


@pytest.fixture(scope="module")
def host() -> Any:
    """Runs a recompute launch on the host."""
    required_compiler()

    def launch(kernel: TileKernel, access: Any, words: Any, blocks: int) -> None:
        library = compiled_for_the_host(kernel, access)
        assert library.launch(words.ctypes.data_as(ctypes.c_void_p), blocks, 1) == words.nbytes

    return launch


def problem(orders: str, gap: int, m: int = M, k: int = K, n: int = N) -> Problem:
    shapes = (m, k), (k, n), (m, n)
    sides = (cols if order == "C" else rows for order, (rows, cols) in zip(orders, shapes, strict=True))
    layouts = [Layout(order, side + gap) for order, side in zip(orders, sides, strict=True)]  # type: ignore[arg-type]
    return Problem(m, k, n, "float32", (layouts[0], layouts[1], layouts[2]))


class Arrays:
    """A, B and C of a problem in memory full of NaN, `shift` elements behind a multiple of 64 bytes."""

    def __init__(self, of: Problem, shift: int) -> None:
        self.memory, self.views = [], []
        for (rows, cols), x in zip(of.matrix_shapes, of.layouts, strict=True):
            lines, length = (rows, cols) if x.order == "C" else (cols, rows)
            whole = floats(lines * x.leading + shift)
            part = whole[shift:].reshape(lines, x.leading)[:, :length]
            self.memory.append(whole)
            self.views.append(part if x.order == "C" else part.T)
        self.bases = tuple(x.ctypes.data + 4 * shift for x in self.memory)


def relaunch(of: Problem) -> Launch:
    (found,) = recompute_launches(of, False, H200, dict.fromkeys("ABCW", 256))
    return found


def rescued(of: Problem, arrays: Arrays, slot: Slot | None, host: Any, shift: int) -> None:
    launch = relaunch(of)
    words = np.frombuffer(launch.parameters, np.int64).copy()
    flag, count = (x.ctypes.data if x is not None else 0 for x in ((slot.words, slot.count) if slot else (None, None)))
    known = {**dict(zip("ABC", arrays.bases, strict=True)), FLAG: flag, HOST_COUNT: count}
    for x in launch.slots:
        words[x.word] = known[x.base] + x.offset
    kernel, access = launch.kernel.source_arguments
    host(kernel, "scalar" if shift % 4 else access, words, min(BLOCKS, launch.grid[0]))


CASES = (("CCC", 0, 0), ("CCC", 3, 0), ("FCF", 1, 3))


@pytest.mark.parametrize(("orders", "gap", "shift"), CASES)
def test_without_a_flag_nothing_changes(orders: str, gap: int, shift: int, host: Any) -> None:
    of, slot = problem(orders, gap), Slot(up=False)
    arrays = Arrays(of, shift)
    for x in arrays.views[:2]:
        x[...] = 1
    rescued(of, arrays, slot, host, shift)
    assert np.isnan(arrays.memory[2]).all() and slot.seen == [0, 0, 0, 0]


@pytest.mark.parametrize(("orders", "gap", "shift"), CASES)
def test_a_raised_flag_recomputes_as_numpy_does(orders: str, gap: int, shift: int, host: Any) -> None:
    """Exact, with inf and NaN where they belong; the flag is lowered and every recomputation counted."""
    of, slot = problem(orders, gap), Slot(up=True)
    arrays, rng = Arrays(of, shift), np.random.default_rng(3)
    a, b, c = arrays.views
    for x in (a, b):
        x[...] = rng.integers(-3, 4, x.shape)
    a[5, 3], b[0, 7], a[130, 20] = np.inf, np.nan, -np.inf
    b[3, 9] = TINY  # which times inf is an inf, but not if it is taken for zero
    with np.errstate(all="ignore"):
        expected = np.einsum("ik,kj->ij", a, b)
    assert np.isinf(expected[5, 9]) and np.isnan(expected[:, 7]).all()
    for rescues in (1, 2):
        c[...] = np.nan
        slot.words[0] = 1
        rescued(of, arrays, slot, host, shift)
        np.testing.assert_array_equal(c, expected)
        assert slot.seen == [0, 0, rescues, rescues]
    c[...] = np.nan
    assert np.isnan(arrays.memory[2]).all()  # nothing beside C


@pytest.mark.parametrize(("orders", "gap"), [("CFC", 1), ("FCC", 4)])
def test_one_triangle_is_recomputed_alone(orders: str, gap: int, host: Any) -> None:
    """The other triangle is not touched."""
    of, slot = replace(problem(orders, gap, M, K, M), op="gram", fill="lower"), Slot(up=True)
    arrays = Arrays(of, 0)
    a, b, c = arrays.views
    a[...] = np.random.default_rng(3).integers(-3, 4, a.shape)
    a[130, 20] = np.inf
    b[...] = a.T
    with np.errstate(all="ignore"):
        expected = np.einsum("ik,kj->ij", a, b)
    rescued(of, arrays, slot, host, 0)
    below = np.tri(M, dtype=bool)
    np.testing.assert_array_equal(c, np.where(below, expected, np.nan))
    assert slot.seen == [0, 0, 1, 1]


def test_all_products_of_a_batch_are_recomputed(host: Any) -> None:
    """Products with gaps between them, and one B for all; numbers between the products stay."""
    count, gap, (m, k, n) = 3, 5, (130, 21, 40)
    batch = Problem(m, k, n, "float32", batch=count, batch_strides=(m * k + gap, 0, m * n + gap))
    launch, slot = relaunch(batch), Slot(up=True)
    memory = floats(count * (m * k + gap)), floats(k * n), floats(count * (m * n + gap))
    rng = np.random.default_rng(4)
    a, c = memory[0].reshape(count, -1)[:, : m * k], memory[2].reshape(count, -1)[:, : m * n]
    a[...], memory[1][:] = rng.integers(-3, 4, a.shape), rng.integers(-3, 4, k * n)
    a[1, 7] = np.inf
    words = np.frombuffer(launch.parameters, np.int64).copy()
    addresses = dict(zip("ABC", (x.ctypes.data for x in memory), strict=True))
    addresses |= {FLAG: slot.words.ctypes.data, HOST_COUNT: slot.count.ctypes.data}
    for x in launch.slots:
        words[x.word] = addresses[x.base] + x.offset
    host(*launch.kernel.source_arguments, words, min(BLOCKS, launch.grid[0]))
    with np.errstate(all="ignore"):
        expected = np.einsum("bik,kj->bij", a.reshape(count, m, k), memory[1].reshape(k, n))
    np.testing.assert_array_equal(c.reshape(count, m, n), expected)
    assert np.isnan(memory[2].reshape(count, -1)[:, m * n :]).all() and slot.seen == [0, 0, 1, 1]


def test_a_kernel_without_a_flag_always_computes(host: Any) -> None:
    of = problem("CCC", 0)
    arrays = Arrays(of, 0)
    for x in arrays.views[:2]:
        x[...] = 2
    rescued(of, arrays, None, host, 0)
    assert (arrays.views[2] == 4 * K).all()


def test_a_recompute_fills_the_device_once() -> None:
    """As many thread blocks as are resident; a small product has fewer tiles."""
    large, small = (relaunch(Problem(n, n, n, "float32")) for n in (8192, 200))
    assert large.grid == (132 * TILED_STRATEGIES["float32"].blocks, 1, 1) and small.grid == (4, 1, 1)
    tf32 = tiled_recompute_op(Problem(64, 64, 64, "tf32"))
    assert tf32.kernel.element == "float32" and tf32.kernel.flag == "obeys"


@pytest.mark.parametrize(
    ("plan", "wanted", "scanned"),
    [
        ("vendor", False, False),
        ("aligned.batched.pad16 > vendor", False, False),
        ("strassen.batched.pad16 > vendor", True, False),  # its sums write C
        ("li-fig3.peel > vendor", True, True),  # products of the vendor's do, which raise no flag
        ("li-fig3.peel > tile", True, False),  # ours do
        ("strassen.fused > tile", True, False),
        ("strassen > strassen.fused > tile", True, False),
        ("strassen.fused.atomic > tile", True, True),  # nobody sees what is added atomically
    ],
)
def test_which_plans_recompute_and_which_scan_first(plan: str, wanted: bool, scanned: bool) -> None:
    assert may_create_nonfinite(Plan.parse(plan)) == wanted
    launches = record_launches(
        Plan.parse(plan), Problem(133, 140, 150, "float32"), chip_target(H200, flagged=True)
    ).launches
    again = [launch.label for launch in launches if launch.does == "recompute"]
    assert ["scans C" in label for label in again] == ([True, False] if scanned else [False])


# ---- products that raise the flag


PEAK = np.float32(3e38)
RAISED: dict[str, dict[tuple[int, int, int], Any]] = {  # A or B, row, column: value
    "finite": {},
    "inf": {(0, 2, 3): np.inf},
    "NaN": {(1, 8, 11): np.nan},
    "overflow": {(0, 1, 1): PEAK, (1, 1, 4): 2},
}


@pytest.mark.parametrize("data", RAISED)
def test_fused_products_raise_the_flag_of_what_they_store(data: str, host: Any) -> None:
    of = problem("CCC", 3, 22, 18, 26)
    arrays, flag = Arrays(of, 0), np.zeros(1, np.int32)
    for x in arrays.views[:2]:
        x[...] = 1
    for (which, i, j), value in RAISED[data].items():
        arrays.views[which][i, j] = value
    arrays.views[2][...] = 0
    first, second = record_operations(Plan.parse("strassen.fused > tile.medium"), of).ops[:2]
    assert isinstance(first, TileOp) and isinstance(second, TileOp)
    assert {piece.keep for op in (first, second) for piece in op.dest} == {0, 1}  # stored, and added
    for op in (first, second):
        assert op.writes_result
        words = np.frombuffer(op.parameter_bytes, np.int64).copy()
        for word, piece in zip(pointer_word_indices(op), op.all_blocks, strict=True):
            words[word] = arrays.bases["ABC".index(piece.base)] + piece.offset
        words[-1] = flag.ctypes.data
        host(replace(op.kernel, flag="raises"), op.access, words, op.grid[0])
    assert flag[0] == (data != "finite") == (not np.isfinite(arrays.views[2]).all())


# ---- NVRTC


@pytest.mark.parametrize("architecture", EACH_ARCHITECTURE)
def test_recompute_kernels_stay_in_registers(architecture: str) -> None:
    nvrtc()
    rows, columns = (tiled_recompute_op(problem(orders, 0)).kernel for orders in ("CCC", "FFC"))
    wanted: list[tuple[TileKernel, MemoryAccess]] = [(rows, "vector")]
    if architecture == "sm_90":
        wanted += [(rows, "scalar"), (columns, "vector")]
    for kernel, access in wanted:
        r = report(f"{access} {architecture}", simt_kernel_source(kernel, access), architecture, COMPILER_OPTIONS)
        assert r.local == 0, r


@pytest.mark.parametrize("architecture", quick_and_slow(["sm_90"], ["sm_80"]))
def test_products_that_raise_the_flag_stay_in_registers(architecture: str) -> None:
    nvrtc()
    kernel = TileKernel(replace(FUSED_SIZES["float32"], stages=2), "float32", 2, 2, adding_epilogue(2), flag="raises")
    r = report(architecture, simt_kernel_source(kernel, "vector"), architecture, COMPILER_OPTIONS)
    assert r.local == 0, r


@pytest.mark.parametrize("dtype", TILED_STRATEGIES)
def test_recompute_kernels_keep_subnormal_numbers(dtype: str) -> None:
    """CuPy compiles with -ftz=true, which no option of fmm's undoes."""
    text = simt_kernel_source(tiled_recompute_op(Problem(64, 64, 64, dtype)).kernel, "vector")
    _, ptx = compile_cuda(text, "compute_90", "--std=c++17", "-ftz=true")
    assert "fma.rn.f" in ptx
    assert set(re.findall(r"\w+[.\w]*\.ftz[.\w]*", ptx)) <= {"setp.eq.ftz.f32"}  # is anything of C kept?


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integers_are_never_recomputed(dtype: str) -> None:
    """They have no inf or NaN: no kernel has a flag, and all launches compile."""
    plan, of = Plan.parse("residues > bytes"), Problem(300, 40, 70, dtype)
    launches, plain = (record_launches(plan, of, chip_target(H200, flagged=flagged)) for flagged in (True, False))
    assert [x.kernel for x in launches.launches] == [x.kernel for x in plain.launches]
    assert not any(slot.base in (FLAG, HOST_COUNT) for launch in launches.launches for slot in launch.slots)
    nvrtc()
    for kernel in {launch.kernel for launch in launches.launches}:
        compile_cuda(kernel.cuda_source, kernel_architecture(kernel), *kernel.options)
