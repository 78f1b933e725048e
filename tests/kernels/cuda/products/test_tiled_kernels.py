"""The step tables' product kernels as instances of the tiled kernel: each on the host, and its registers by NVRTC."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from fmm.kernels.algorithms.step_table import PRODUCT_SYMBOL, TableKernel, kernel_table
from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME
from fmm.kernels.cuda.ops import DeviceView, GemmOp
from fmm.kernels.cuda.products.fused import tile_op_with_fused_sums
from fmm.kernels.cuda.products.kernel_sizes import ALL_STRATEGIES, GPU8_SIZES, TileSizes, named_strategy
from fmm.kernels.cuda.products.simt_kernel import (
    COMPILER_OPTIONS,
    MemoryAccess,
    TileKernel,
    adding_epilogue,
    simt_kernel_source,
)
from fmm.kernels.cuda.products.simt_kernel import CopyPath as Way
from fmm.kernels.cuda.products.simt_tiles import LEAF_PATHS, TileOp, leaf_copy_paths, leaf_strategy
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.plans.leaf import parse_leaf
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.perfmodel.block_model import BLOCK_MODEL, fastest_float32_tile
from fmm.problem import Problem
from tests.support.chips import H200
from tests.support.host_compiler import required_compiler
from tests.support.host_launch import launch_words
from tests.support.launch_lists import play
from tests.support.nvrtc import EACH_ARCHITECTURE, compile_cuda, nvrtc, report
from tests.support.tiled_on_host import DRIVER, Memory, floats, tile_words, tiled_library
from tests.support.tiles import tiled_product

PRODUCTS = {name: kernel for name, kernel in kernel_table().items() if kernel.product}
SMALL = TileSizes("Warp", m_s=16, n_s=16, k_s=8, m_r=4, n_r=2, warp_m=4, warp_n=8)  # a warp: few threads to wait for
SIZES = ((21, 11, 35), (16, 8, 32), (3, 0, 5), (1, 9, 1))  # m, k, n
WAYS: tuple[tuple[Way, Way], ...] = (("async", "async"), *LEAF_PATHS.values())


# ---- on the host


class Host:
    """Kernels in one library, so that the template is compiled once."""

    def __init__(self, kernels: list[tuple[TileKernel, MemoryAccess]]) -> None:
        required_compiler()
        template = simt_kernel_source(*kernels[0]).partition("struct Product {")[0]
        parts = [template, *(self._part(i, *kernel) for i, kernel in enumerate(kernels))]
        self.library, self.numbers = tiled_library("".join(parts)), {k: i for i, k in enumerate(kernels)}

    def _part(self, number: int, made: TileKernel, access: MemoryAccess) -> str:
        stub = "struct Product {" + simt_kernel_source(made, access).partition("struct Product {")[2]
        counts = ", ".join(map(str, (*made.block_counts, made.products)))
        driver = DRIVER.format(
            params=f"fmm::Parameters<Number, {counts}>", threads=made.strategy.thread_count, entry=ENTRY_NAME
        )
        return re.sub(rf"\b(Product|Number|{ENTRY_NAME}|launch)\b", rf"\g<1>{number}", stub + driver)

    def launch(self, op: TileOp, memory: Memory, access: MemoryAccess) -> None:
        function = getattr(self.library, f"launch{self.numbers[op.kernel, access]}")
        launch_words(function, tile_words(op, memory), op.grid[0], 1)


def operation(
    kernel: TableKernel, size: tuple[int, int, int], gap: int, way: tuple[Way, Way] = WAYS[0], dtype: str = "float32"
) -> TileOp:
    """Return the kernel's TileOp on separate matrices, each with its own leading dimension."""
    m, k, n = size
    assert kernel.product
    left, right = kernel.product
    shapes = {f: (m, n) for f in kernel.formals} | {left: (m, k), right: (k, n)}
    views = {f: DeviceView(f, 0, r, c, c + gap + 4 * i, 1, dtype) for i, (f, (r, c)) in enumerate(shapes.items())}
    reads, writes = ([views[f] for f in names] for names in (kernel.read_blocks, kernel.written_blocks))
    op = tile_op_with_fused_sums(
        parse_leaf("tile"), dtype, views[left], views[right], kernel.addition_program, reads, writes
    )
    return replace(op, kernel=replace(op.kernel, strategy=SMALL, paths=way), open_strategy=False)


def expected(kernel: TableKernel, values: dict[str, Any]) -> dict[str, Any]:
    """Compute the assignments one after the other, as in the table of kernels."""
    assert kernel.product
    values, (left, right) = dict(values), kernel.product
    values[PRODUCT_SYMBOL] = values[left].astype(np.float64) @ values[right]
    for target, terms in kernel.assignments:
        values[target] = sum(complex(c).real * values[name] for c, name in terms)
    return values


def check(kernel: TableKernel, op: TileOp, host: Host, access: MemoryAccess) -> None:
    """Exact on small integers; unwritten numbers stay as they are, and write-only numbers were NaN."""
    rng, memory, views = np.random.default_rng(3), {}, {}
    old = {piece.base for piece in (*op.left, *op.right)} | set(kernel.read_blocks)
    lines = {piece.base: x.leading for piece, x in zip(op.all_blocks, op.lines, strict=True)}
    for piece in op.all_blocks:
        memory[piece.base] = floats(piece.rows * lines[piece.base] + 64)
        rows = memory[piece.base][: piece.rows * lines[piece.base]].reshape(piece.rows, lines[piece.base])
        views[piece.base] = rows[:, : piece.cols]
        if piece.base in old:
            views[piece.base][...] = rng.integers(-3, 4, (piece.rows, piece.cols))
    before = {name: x.copy() for name, x in memory.items()}
    wanted = expected(kernel, {name: x.copy() for name, x in views.items()})
    host.launch(op, memory, access)
    for name, view in views.items():
        np.testing.assert_array_equal(view, wanted[name], err_msg=f"{kernel.name} {name}")
        view[...] = np.nan
    for name, x in memory.items():  # beside the blocks nothing was touched
        np.testing.assert_array_equal(np.isnan(x) | (x == before[name]), True)


ACCESSES: tuple[MemoryAccess, ...] = ("scalar", "vector")
STAGED = "mulSubInc"  # the kernel that is tried with every way to shared memory


@pytest.fixture(scope="module")
def host() -> Host:
    variants = [(kernel, WAYS[0]) for kernel in PRODUCTS.values()] + [(PRODUCTS[STAGED], way) for way in WAYS[1:]]
    # float64 kernels first: only their template includes all headers.
    made = [operation(kernel, SIZES[0], 0, WAYS[0], "float64").kernel for kernel in PRODUCTS.values()]
    made += [operation(kernel, SIZES[0], 0, way).kernel for kernel, way in variants]
    return Host(list(product(dict.fromkeys(made), ACCESSES)))


@pytest.mark.parametrize(("name", "way"), [*((name, WAYS[0]) for name in PRODUCTS), *((STAGED, w) for w in WAYS[1:])])
def test_every_product_kernel_on_the_host(name: str, way: tuple[Way, Way], host: Host) -> None:
    """Whole tiles, edges, empty products; a leading dimension for every block; aligned and not."""
    for size in SIZES:
        check(PRODUCTS[name], operation(PRODUCTS[name], size, 1, way), host, "scalar")
    m, k, n = SIZES[0]
    fours = operation(PRODUCTS[name], (m, k // 4 * 4, n // 4 * 4), 4, way)
    assert fours.access == "vector"
    check(PRODUCTS[name], fours, host, "vector")


@pytest.mark.parametrize("size", [(16, 16, 16), (13, 11, 15)])
@pytest.mark.parametrize("text", ["li-fig12", "li-fig13", "li-fig16 > li-fig12", "li-fig23 > li-fig13"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_papers_codes_on_the_host(dtype: str, text: str, size: tuple[int, int, int], host: Host) -> None:
    """A whole plan: the products by the kernels compiled for the host, the sums by the interpreter."""
    problem = Problem(*size, dtype)
    tape = record_operations(Plan.parse(f"{text} > tile"), problem)
    rng, views = np.random.default_rng(6), {}
    memory = {name: floats(1024).view(np.uint8) for name in "ABC"} | {"W": floats(tape.workspace).view(np.uint8)}
    for name, shape in zip("ABC", problem.matrix_shapes, strict=True):
        views[name] = np.ndarray(shape, dtype, memory[name])
    for name in "AB":
        views[name][...] = rng.integers(-3, 4, views[name].shape)

    def tile(op: TileOp, memory: Memory) -> None:
        host.launch(replace(op, kernel=replace(op.kernel, strategy=SMALL)), memory, op.access)

    play(tape, memory, tile)
    np.testing.assert_array_equal(views["C"], views["A"] @ views["B"])


# ---- NVRTC


@pytest.mark.slow
@pytest.mark.parametrize("architecture", EACH_ARCHITECTURE)
def test_product_kernels_stay_in_registers(architecture: str) -> None:
    """The most demanding kernel: on each architecture by GPU8 as in the paper's texture codes, and once by a tuned
    strategy."""
    nvrtc()
    op = operation(PRODUCTS["mulIncIncInc"], SIZES[1], 0)
    kernels = [replace(op.kernel, strategy=GPU8_SIZES, paths=LEAF_PATHS["texture"])]
    if architecture == "sm_90":
        kernels.append(replace(op.kernel, strategy=named_strategy("Square")))
    for kernel in kernels:
        s = kernel.strategy
        r = report(s.name, simt_kernel_source(kernel, "vector"), architecture, COMPILER_OPTIONS)
        assert r.local == 0 and r.registers >= s.m_r * s.n_r, r


@pytest.mark.parametrize(("way", "loads"), [("async", 0), ("plain", 0), ("texture", 1)])
def test_only_texture_reads_by_the_read_only_path(way: Way, loads: int) -> None:
    """Only tiles that go through registers are loaded this way; all others are copied asynchronously."""
    made = TileKernel(SMALL, "float32", paths=(way, way))
    _, ptx = compile_cuda(simt_kernel_source(made, "vector"), "compute_90", *COMPILER_OPTIONS)
    assert ("ld.global.nc.v4" in ptx) == bool(loads) and ("cp.async.cg" in ptx) == (way == "async")


# ---- plans


def test_leaves_name_the_copy_path() -> None:
    for leaf, s, paths in (
        ("tile.gpu8.texture", GPU8_SIZES, ("texture", "plain")),
        ("tile.plain", None, ("plain", "plain")),
        ("tile.gpu8", GPU8_SIZES, WAYS[0]),
    ):
        assert (leaf_strategy(parse_leaf(leaf)), leaf_copy_paths(parse_leaf(leaf))) == (s, paths)
        (gemm,) = record_operations(Plan.parse(leaf), Problem(32, 32, 32, "float32")).ops
        assert isinstance(gemm, GemmOp) and tiled_product(gemm, "float32").kernel.paths == paths
        ops = record_operations(Plan.parse(f"li-fig13 > {leaf}"), Problem(32, 32, 32, "float32")).ops
        assert {op.kernel.paths for op in ops if isinstance(op, TileOp)} == {paths}
    with pytest.raises(PlanError, match=r"without \.plain or \.texture"):
        Plan.parse("strassen.fused > tile.half.texture")


def test_an_open_strategy_is_chosen_for_the_device() -> None:
    op = next(
        x
        for x in record_operations(Plan.parse("li-fig12 > tile"), Problem(8192, 8192, 8192, "float32")).ops
        if isinstance(x, TileOp)
    )
    for chip in (H200, replace(H200, multiprocessors=1)):
        expected = fastest_float32_tile((4096, 4096, 4096), chip)
        assert op.open_strategy and BLOCK_MODEL.fastest_tile_sizes(op, chip) == expected
    fixed = replace(op, open_strategy=False)
    assert not fixed.open_strategy


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("mul", ((1, 0),)),
        ("mulIncInc", ((1, 1), (1, 1))),
        ("mulIncDec", ((1, 1), (-1, 1))),
        ("mulStoreDec", ((1, 0), (-1, 1))),
        ("mulStoreInc", ((1, 0), (1, 1))),
        ("mulAdd", None),  # what it reads it does not write
        ("mulIncIncInc", None),
        ("mulSubInc", None),
    ],
)
def test_kernels_that_differ_in_coefficients_are_one(name: str, pairs: tuple[tuple[int, int], ...] | None) -> None:
    op = operation(PRODUCTS[name], SIZES[0], 0)
    assert (op.kernel.epilogue == adding_epilogue(len(op.dest))) == (pairs is not None)
    assert pairs is None or tuple((x.factor, x.keep) for x in op.dest) == pairs


def test_gpu8_is_the_papers_thread_block() -> None:
    """Section 4: 16 x 8 threads compute 16 x 128 numbers, each thread a column; and it fits on every chip."""
    assert (GPU8_SIZES.m_s, GPU8_SIZES.n_s, GPU8_SIZES.thread_count) == (16, 128, 16 * 8)
    assert (GPU8_SIZES.m_r, GPU8_SIZES.n_r, GPU8_SIZES.warp_n) == (16, 1, 32)
    assert TileKernel(GPU8_SIZES, "float32").shared_bytes <= 48 << 10 and GPU8_SIZES in ALL_STRATEGIES
