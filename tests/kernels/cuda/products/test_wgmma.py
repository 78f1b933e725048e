"""Products by Hopper's warpgroups, without a GPU: what NVRTC makes of the kernels, and what launches are told."""

from __future__ import annotations

from itertools import product

import pytest

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.gemm import GemmOp
from fmm.kernels.cuda.products.tiled import GROUP
from fmm.kernels.cuda.products.tiled_source import ENTRY, Along
from fmm.kernels.cuda.products.tma import SHARED
from fmm.kernels.cuda.products.wgmma import SIZES, WgmmaOp, lower_units, sizes_for, tiles_of, wgmma_op
from fmm.kernels.cuda.products.wgmma_source import WgmmaKernel, WgmmaSizes, wgmma_instruction, wgmma_source
from fmm.kernels.cuda.record import record_launches, record_operations
from fmm.kernels.leaves import WARPGROUPS
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.perfmodel.tile_choice import target_on
from fmm.problem import Layout, Problem
from tests.support.chips import H200
from tests.support.nvrtc import in_parallel, nvrtc, report

SMS = 132
ALONGS: tuple[tuple[Along, Along], ...] = (
    ("inner", "outer"),
    ("inner", "inner"),
    ("outer", "outer"),
    ("outer", "inner"),
)
KERNELS = [
    *(WgmmaKernel(x, SIZES[0], along) for x, along in product(("float16", "bfloat16"), ALONGS)),
    WgmmaKernel("bfloat16", SIZES[1], ("inner", "outer")),
    *(WgmmaKernel("tf32", s, ("inner", "inner")) for s in SIZES),
    *(WgmmaKernel(x, s, ("inner", "inner"), lower=True) for x, s in zip(("bfloat16", "tf32"), SIZES, strict=True)),
]


def gemm(problem: Problem, plan: str = "tile") -> GemmOp:
    op = next(op for op in record_operations(Plan.parse(plan), problem).ops if isinstance(op, GemmOp))
    assert op.use.leaf.name == "tile"
    return op


def launch(problem: Problem, plan: str = "tile") -> WgmmaOp[WgmmaKernel]:
    made = wgmma_op(gemm(problem, plan), problem.dtype, SMS)
    assert made is not None
    return made


# ---- NVRTC


def test_no_number_leaves_the_registers() -> None:
    """Only sm_90a has these instructions. Of three warpgroups two take registers from the third: 168 each."""
    nvrtc()
    told = len(launch(Problem(512, 512, 512, "float16")).parameters)
    size = f"static_assert(sizeof(fmm::Product) == {told});"
    jobs = [(str(k), f"{wgmma_source(k)}{size}\n", "sm_90a", ("--std=c++17",)) for k in KERNELS]
    for kernel, r in zip(KERNELS, in_parallel(report, jobs), strict=True):
        assert r.local == 0, r
        assert r.registers == 65536 // kernel.sizes.threads // 8 * 8, r
        assert kernel.shared <= SHARED


def test_the_instruction_names_every_register_once() -> None:
    text = "\n".join(wgmma_instruction(DTYPES["bfloat16"], 128))
    assert "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16" in text
    assert [f'"+f"(x[{i}])' in text for i in range(65)] == [True] * 64 + [False]
    assert "%64, %65, keeps, 1, 1, %67, %68;" in text  # descriptors, then which operands are turned
    assert "k8.f32.tf32.tf32" in "\n".join(wgmma_instruction(DTYPES["tf32"], 128))


# ---- launches


def test_maps_of_rows() -> None:
    """A row by row is along the inner dimension, B row by row along the outer one: 64 numbers of 16 bits are a line."""
    made = launch(Problem(1000, 520, 776, "bfloat16"))
    a, b, c = made.maps
    assert (a.length, a.lines, a.leading, a.box) == (520, 1000, 520, (64, 128))
    assert (b.length, b.lines, b.leading, b.box) == (776, 520, 776, (64, 64))
    assert (c.length, c.lines, c.leading, c.box) == (776, 1000, 776, (64, 64))
    assert [x.piece.base for x in made.maps] == ["A", "B", "C"]
    assert {x.swizzle for x in made.maps} == {128}
    assert made.kernel.along == ("inner", "outer")
    assert made.steps == 9


def test_maps_of_columns() -> None:
    layouts = Layout("F", 1000), Layout("F", 520), Layout("C", 776)
    made = launch(Problem(1000, 520, 776, "float16", layouts))
    a, b, _ = made.maps
    assert (a.length, a.lines, a.box) == (1000, 520, (64, 64))
    assert (b.length, b.lines, b.box) == (
        520,
        776,
        (64, made.kernel.sizes.n_s // 2),
    )  # two bring it
    assert made.kernel.along == ("outer", "inner")


def test_a_result_in_columns_is_the_transposed_problem() -> None:
    layouts = Layout("C", 520), Layout("C", 776), Layout("F", 1000)
    made = launch(Problem(1000, 520, 776, "float16", layouts))
    a, b, c = made.maps
    assert [x.piece.base for x in made.maps] == ["B", "A", "C"]
    assert (c.length, c.lines) == (1000, 776)
    assert made.kernel.along == ("outer", "inner")
    assert (a.piece.rows, b.piece.cols) == (776, 1000)


def test_batches_are_layers() -> None:
    made = launch(Problem(1024, 1024, 1024, "bfloat16"), "strassen.batched.pad16 > tile")
    assert {x.layers for x in made.maps} == {7}
    assert {x.layer for x in made.maps} == {512 * 512}
    assert made.units == 7 * made.tiles[0] * made.tiles[1]


def test_scalars() -> None:
    made = launch(Problem(256, 256, 256, "float16", alpha=0.5, beta=1))
    assert (made.factor, made.adds) == (0.5, True)
    for alpha, beta in ((1, 2), (1, -1), (1j, 0)):
        assert wgmma_op(gemm(Problem(256, 256, 256, "float16", alpha=alpha, beta=beta)), "float16", SMS) is None


@pytest.mark.parametrize(
    ("dtype", "layouts"),
    [
        ("float16", (Layout("C", 516), Layout("C", 512), Layout("C", 512))),
        ("float16", (Layout("C", 512), Layout("C", 516), Layout("C", 512))),
        ("float16", (Layout("C", 512), Layout("C", 512), Layout("C", 513))),
        ("tf32", (Layout("C", 512), Layout("C", 512), Layout("C", 512))),
        ("tf32", (Layout("F", 512), Layout("F", 512), Layout("C", 512))),
        ("tf32", (Layout("F", 512), Layout("C", 512), Layout("C", 512))),
    ],
)
def test_what_the_kernel_cannot_read(dtype: str, layouts: tuple[Layout, Layout, Layout]) -> None:
    """Rows that are not at multiples of 16 bytes; float32 that would have to be turned."""
    assert wgmma_op(gemm(Problem(512, 512, 512, dtype, layouts)), dtype, SMS) is None


def test_rows_of_c_that_the_engine_would_write_beyond() -> None:
    layouts = Layout("C", 64), Layout("C", 128), Layout("C", 128)
    assert wgmma_op(gemm(Problem(128, 64, 104, "float16", layouts)), "float16", SMS)
    assert wgmma_op(gemm(Problem(128, 64, 100, "float16", layouts)), "float16", SMS) is None
    columns = Layout("C", 64), Layout("C", 128), Layout("F", 128)
    assert wgmma_op(gemm(Problem(100, 64, 104, "float16", columns)), "float16", SMS) is None


def test_tf32_along_the_inner_dimension() -> None:
    made = launch(Problem(512, 512, 512, "tf32", (Layout("C", 512), Layout("F", 512), Layout("C", 512))))
    assert [x.box[0] for x in made.maps] == [32, 32, 32]
    inner = launch(Problem(1024, 1024, 1024, "tf32"), "strassen.batched.pad16 > tile.inner")
    assert inner.kernel.along == ("inner", "inner")


def test_sizes() -> None:
    """The last round of clusters is to end early."""
    assert sizes_for(8192, 8192, 1, SMS) == SIZES[0]
    for n, count in ((1024, 1), (2048, 7), (3072, 1), (4096, 1)):
        ends = {}
        for s in SIZES:
            down, across = tiles_of(n, n, s)
            ends[s] = -(-down * across * count // 66) * s.n_s
        assert ends[sizes_for(n, n, count, SMS)] <= 1.13 * min(ends.values())
    assert sizes_for(1, 1, 1, SMS) == WgmmaSizes(128, 128)


def test_a_grid_is_no_larger_than_the_device_or_the_work() -> None:
    assert launch(Problem(8192, 8192, 8192, "float16")).grid == (SMS, 1, 1)
    assert launch(Problem(104, 64, 104, "float16")).grid == (2, 1, 1)


# ---- plans


@pytest.mark.parametrize("dtype", WARPGROUPS)
def test_where_the_leaf_does_these_types(dtype: str) -> None:
    problem = Problem(256, 256, 256, dtype)
    for plan in ("tile", "tile.inner", "strassen.batched.pad16 > tile", "li-fig23 > strassen > tile.outer"):
        assert gemm(problem, plan).use.leaf.name == "tile"
    for plan in ("tile.huge", "tile.deep", "strassen.fused > tile", "li-fig12 > tile", "tile.texture"):
        with pytest.raises(PlanError, match=f"not {dtype}"):
            record_operations(Plan.parse(plan), problem)


def test_what_it_writes_raises_no_flag() -> None:
    """So C is looked at, where a plan needs that; a float32 tile raises its own."""
    plan, on = Plan.parse("balanced > tile"), target_on(H200, flagged=True)
    for dtype, scans in (("float16", 1), ("float32", 0)):
        labels = [
            x.label for x in record_launches(plan, Problem(256, 64, 64, dtype), on).launches if x.does == "recompute"
        ]
        assert sum("looks for" in label for label in labels) == scans


def test_the_entry_point() -> None:
    assert f"{ENTRY}(const __grid_constant__ fmm::Product p)" in wgmma_source(KERNELS[0])


# ---- the lower half


def lower_tile(number: int, down: int, units: int, layers: int, s: WgmmaSizes) -> tuple[int, int, int]:
    """lower_tile_of of gemm_wgmma.cuh, line by line."""
    wide, per_layer = s.cluster * s.m_s // s.n_s, units // layers
    each, within, band = GROUP * GROUP * wide, number % per_layer, 0
    while (band + 1) * GROUP < down and each * (band + 1) * (band + 2) // 2 <= within:
        band += 1
    within -= each * band * (band + 1) // 2
    first = band * GROUP
    height = min(down - first, GROUP)
    return number // per_layer, first + within % height, within // height


@pytest.mark.parametrize("s", SIZES, ids=lambda s: f"{s.m_s} x {s.n_s}")
@pytest.mark.parametrize("n", [1, 200, 257, 2048, 2049, 4000, 6144, 16384])
def test_every_tile_of_the_lower_half_is_multiplied_once(n: int, s: WgmmaSizes) -> None:
    """And of what is numbered, few are left out: a few of each group of rows."""
    down, across = tiles_of(n, n, s)
    layers, units = 2, 2 * lower_units(down, across, s)
    found = [lower_tile(number, down, units, layers, s) for number in range(units)]
    done = [(z, row, col) for z, row, col in found if col * s.n_s < (row + 1) * s.cluster * s.m_s]
    height = s.cluster * s.m_s
    wanted = {(z, r, c) for z in (0, 1) for r in range(down) for c in range(across) if c * s.n_s < (r + 1) * height}
    assert len(done) == len(set(done)) and set(done) == wanted
    assert len(found) - len(done) <= layers * -(-down // GROUP) * GROUP * GROUP * height // s.n_s


def test_one_half_of_a_product() -> None:
    """Of a result that lies row by row; the other half is mirrored. What lies in columns is multiplied whole."""
    rows = Problem(2048, 512, 2048, "bfloat16", op="symmetric")
    columns = Layout("C", 512), Layout("C", 2048), Layout("F", 2048)
    for problem, lower in ((rows, True), (Problem(2048, 512, 2048, "bfloat16", columns, op="symmetric"), False)):
        labels = [x.label for x in record_launches(Plan.parse("tile"), problem, target_on(H200)).launches]
        assert [label.split()[0].strip(":") for label in labels] == ["gemm_wgmma", "mirror_half"]
        assert ("on and below the diagonal" in labels[0]) is lower
    made = launch(Problem(8192, 512, 8192, "bfloat16", op="symmetric"))
    assert made.kernel.lower and made.units < made.tiles[0] * made.tiles[1] * 0.75
    assert launch(Problem(2048, 512, 2048, "bfloat16")).kernel.lower is False


def test_blocks_on_the_diagonal_are_a_batch_of_halves() -> None:
    found = record_launches(
        Plan.parse("gram^2 > tile"), Problem(8192, 512, 8192, "bfloat16", op="gram"), target_on(H200)
    )
    labels = [x.label for x in found.launches]
    assert ["diagonal" in label for label in labels] == [False, False, True, False]
    assert "a batch of 4, on and below the diagonal" in labels[2]
