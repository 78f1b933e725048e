"""Products by Hopper's warpgroups, without a GPU: registers by NVRTC, and parameters of launches."""

from __future__ import annotations

from itertools import product

import pytest

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME
from fmm.kernels.cuda.ops import GemmOp, MirroredGemm
from fmm.kernels.cuda.products.tiling import ContiguousAxis
from fmm.kernels.cuda.products.wgmma_tiles import (
    TRIANGLE_SIZES,
    WGMMA_SIZES,
    WgmmaKernel,
    WgmmaOp,
    WgmmaSizes,
    best_wgmma_sizes,
    cluster_tile_grid,
    wgmma_instructions,
    wgmma_kernel_source,
    wgmma_op,
)
from fmm.kernels.cuda.record import record_launches, record_operations
from fmm.kernels.leaves import WARPGROUP_TYPES
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.perfmodel.block_model import chip_target
from fmm.problem import Layout, Problem
from tests.support.chips import H200
from tests.support.nvrtc import check_warpgroups, nvrtc

SMS = 132
ALONGS: tuple[tuple[ContiguousAxis, ContiguousAxis], ...] = (
    ("inner", "outer"),
    ("inner", "inner"),
    ("outer", "outer"),
    ("outer", "inner"),
)
# Every type, size, layout and triangle; `make test` compiles those of MIXED, which have each type once.
KERNELS = [
    *(WgmmaKernel(x, WGMMA_SIZES[0], along) for x, along in product(("float16", "bfloat16"), ALONGS)),
    WgmmaKernel("bfloat16", WGMMA_SIZES[1], ("inner", "outer")),
    *(WgmmaKernel("tf32", s, ("inner", "inner")) for s in WGMMA_SIZES),
    WgmmaKernel("tf32", WGMMA_SIZES[1], ("inner", "inner"), triangle="loose"),
    *(WgmmaKernel("bfloat16", s, ("inner", "inner"), triangle="full") for s in TRIANGLE_SIZES),
    WgmmaKernel("float16", TRIANGLE_SIZES[-1], ("outer", "outer"), triangle="full"),
]
MIXED = [
    WgmmaKernel("bfloat16", WGMMA_SIZES[0], ("outer", "inner")),
    WgmmaKernel("tf32", WGMMA_SIZES[1], ("inner", "inner"), triangle="loose"),
    WgmmaKernel("float16", TRIANGLE_SIZES[-1], ("outer", "outer"), triangle="full"),
]


def gemm(problem: Problem, plan: str = "tile") -> GemmOp:
    op = next(op for op in record_operations(Plan.parse(plan), problem).ops if isinstance(op, GemmOp))
    assert op.leaf_use.leaf.name == "tile"
    return op


def launch(problem: Problem, plan: str = "tile") -> WgmmaOp[WgmmaKernel]:
    made = wgmma_op(gemm(problem, plan), problem.dtype, SMS)
    assert made is not None
    return made


# ---- NVRTC


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [MIXED, pytest.param(KERNELS, marks=pytest.mark.slow)], ids=["mixed", "all"])
def test_products_stay_in_registers(kernels: list[WgmmaKernel]) -> None:
    """Of three warpgroups two take registers from the third: 168 each."""
    nvrtc()
    struct_bytes = len(launch(Problem(512, 512, 512, "float16")).parameter_bytes)
    check_warpgroups(kernels, wgmma_kernel_source, f"static_assert(sizeof(fmm::Product) == {struct_bytes});")


def test_the_instructions_of_a_tile_name_every_register_once() -> None:
    text = "\n".join(wgmma_instructions(DTYPES["bfloat16"], 128))
    assert text.count("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16") == 4
    assert [text.count(f'"+f"(x[{i}])') for i in range(65)] == [1] * 64 + [0]
    # descriptors, whether to add, signs, and which operands are transposed
    assert text.count("a, b, keeps, 1, 1, %67, %68;") == 1 and text.count("a, b, adds, 1, 1, %67, %68;") == 3
    assert [f"add.s64 a, %64, %{69 + 2 * i}; add.s64 b, %65, %{70 + 2 * i};" in text for i in range(4)] == [True] * 4
    assert text.count("asm volatile") == 1 and "multiply_low" not in text
    assert "k8.f32.tf32.tf32" in "\n".join(wgmma_instructions(DTYPES["tf32"], 128))


def test_products_of_planes_alternate_between_the_low_planes() -> None:
    text = "\n".join(wgmma_instructions(DTYPES["float16"], 128, planes=True)).partition("multiply_low")[2]
    assert text.count("wgmma.mma_async") == 8 and text.count("asm volatile") == 1
    for k in range(4):
        offsets = (f"{k} * NEXT_A + 0", f"{k} * NEXT_B + LOW_B", f"{k} * NEXT_A + LOW_A", f"{k} * NEXT_B + 0")
        assert ", ".join(f'"n"({x})' for x in offsets) in text


# ---- launches


def test_maps_of_rows() -> None:
    """A by rows is K-major, B by rows is MN-major: 64 numbers of 16 bits are a line."""
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


def test_a_column_major_result_is_the_transposed_problem() -> None:
    layouts = Layout("C", 520), Layout("C", 776), Layout("F", 1000)
    made = launch(Problem(1000, 520, 776, "float16", layouts))
    a, b, c = made.maps
    assert [x.piece.base for x in made.maps] == ["B", "A", "C"]
    assert (c.length, c.lines) == (1000, 776)
    assert made.kernel.along == ("outer", "inner")
    assert (a.piece.rows, b.piece.cols) == (776, 1000)


def test_batches_are_layers_of_the_maps() -> None:
    made = launch(Problem(1024, 1024, 1024, "bfloat16"), "strassen.batched.pad16 > tile")
    assert {x.layers for x in made.maps} == {7}
    assert {x.layer for x in made.maps} == {512 * 512}
    assert made.batch_cluster_tile_count == 7 * made.tiles[0] * made.tiles[1]


def test_scalars() -> None:
    made = launch(Problem(256, 256, 256, "float16", alpha=0.5, beta=1))
    assert (made.factor, made.adds) == (0.5, True)
    kept = launch(Problem(256, 256, 256, "float16", alpha=-0.5, beta=2))
    assert (kept.factor, kept.adds, kept.keep, kept.sides) == (-0.5, False, -4, (256, 256))
    for alpha, beta in ((1, 1j), (1, 1e30), (1j, 0)):
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
def test_operands_that_the_kernel_cannot_read(dtype: str, layouts: tuple[Layout, Layout, Layout]) -> None:
    """Rows that are not at multiples of 16 bytes; float32 that would have to be transposed."""
    assert wgmma_op(gemm(Problem(512, 512, 512, dtype, layouts)), dtype, SMS) is None


def test_rows_of_c_that_the_copy_engine_would_overrun() -> None:
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
    """The chosen sizes let the last round of clusters end early."""
    assert best_wgmma_sizes(8192, 8192, 1, SMS) == WGMMA_SIZES[0]
    for n, count in ((1024, 1), (2048, 7), (3072, 1), (4096, 1)):
        ends = {}
        for s in WGMMA_SIZES:
            down, across = cluster_tile_grid(n, n, s)
            ends[s] = -(-down * across * count // 66) * s.n_s
        assert ends[best_wgmma_sizes(n, n, count, SMS)] <= 1.13 * min(ends.values())
    assert best_wgmma_sizes(1, 1, 1, SMS) == WgmmaSizes(128, 128)


def test_a_grid_is_no_larger_than_the_device_or_the_work() -> None:
    assert launch(Problem(8192, 8192, 8192, "float16")).grid == (SMS, 1, 1)
    assert launch(Problem(104, 64, 104, "float16")).grid == (2, 1, 1)


# ---- plans


@pytest.mark.parametrize("dtype", WARPGROUP_TYPES)
def test_chips_on_which_the_leaf_does_these_types(dtype: str) -> None:
    problem = Problem(256, 256, 256, dtype)
    for plan in ("tile", "tile.inner", "strassen.batched.pad16 > tile", "li-fig23 > strassen > tile.outer"):
        assert gemm(problem, plan).leaf_use.leaf.name == "tile"
    for plan in ("tile.huge", "tile.deep", "strassen.fused > tile", "li-fig12 > tile", "tile.texture"):
        with pytest.raises(PlanError, match=f"not {dtype}"):
            record_operations(Plan.parse(plan), problem)


def test_it_raises_no_flag() -> None:
    """C is scanned if a plan needs the flag; a float32 tile raises the flag itself."""
    plan, on = Plan.parse("balanced > tile"), chip_target(H200, flagged=True)
    for dtype, scans in (("float16", 1), ("float32", 0)):
        labels = [
            x.label for x in record_launches(plan, Problem(256, 64, 64, dtype), on).launches if x.does == "recompute"
        ]
        assert sum("scans C" in label for label in labels) == scans


def test_the_entry_point() -> None:
    assert f"{ENTRY_NAME}(const __grid_constant__ fmm::Product p)" in wgmma_kernel_source(KERNELS[0])


# ---- the lower triangle


def test_one_triangle_of_a_product() -> None:
    """A row-major result with its mirror in the same launch; of a column-major one all is multiplied."""
    rows = Problem(2048, 512, 2048, "bfloat16", op="symmetric")
    columns = Layout("C", 512), Layout("C", 2048), Layout("F", 2048)
    (label,) = launch_labels(rows)
    assert label.endswith("on and below the diagonal, and its mirror")
    labels = launch_labels(Problem(2048, 512, 2048, "bfloat16", columns, op="symmetric"))
    assert [x.split()[0].strip(":") for x in labels] == ["gemm_wgmma", "mirror_triangle"] and "diagonal" not in labels[
        0
    ]
    made = launch(Problem(8192, 512, 8192, "bfloat16", op="symmetric", fill="lower"), "gram > tile")
    assert made.kernel.triangle is None and made.batch_cluster_tile_count == made.tiles[0] * made.tiles[1]


def launch_labels(problem: Problem) -> list[str]:
    return [x.label for x in record_launches(Plan.parse("tile"), problem, chip_target(H200)).launches]


def test_products_that_cannot_be_mirrored_at_once() -> None:
    """TF32, which no instruction transposes; rows that end within 16 bytes, which are the vendor's."""
    rows = Layout("C", 512), Layout("F", 512), Layout("C", 2048)
    labels = launch_labels(Problem(2048, 512, 2048, "tf32", rows, op="gram"))
    assert "on and below the diagonal" in labels[0] and labels[1].startswith("mirror_triangle")
    (mirror,) = launch_labels(Problem(1001, 512, 1001, "bfloat16", op="gram"))
    assert mirror.startswith("mirror_triangle")


def test_an_update_of_a_triangle_reads_the_old_numbers() -> None:
    """In the same launch: numbers are complete before they are mirrored, so the copy engine does not add."""
    problem = Problem(2048, 512, 2048, "bfloat16", alpha=2, beta=1, op="symmetric")
    (op,) = record_operations(Plan.parse("tile"), problem).ops
    assert isinstance(op, MirroredGemm)
    made = wgmma_op(op.as_full_product, "bfloat16", SMS)
    assert made is not None and (made.factor, made.adds, made.keep) == (2, False, 0.5)
    (found,) = record_launches(Plan.parse("tile"), problem, chip_target(H200)).launches
    assert [slot.base for slot in found.slots] == ["A", "B", "C", "C"]


def test_diagonal_blocks_are_a_batch_of_triangles() -> None:
    found = record_launches(
        Plan.parse("gram^2 > tile"), Problem(8192, 512, 8192, "bfloat16", op="gram"), chip_target(H200)
    )
    labels = [x.label for x in found.launches]
    assert ["diagonal" in label for label in labels] == [False, False, True, False]
    assert "a batch of 4, on and below the diagonal" in labels[2]
