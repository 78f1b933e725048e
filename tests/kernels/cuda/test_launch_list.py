"""Launch lists name every step, each kernel by the file of its source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from fmm.dtypes import DTYPES
from fmm.hardware.chip import Chip
from fmm.kernels.cuda.device_code.entry_source import header_text
from fmm.kernels.cuda.launch_list import ADDRESS_BASES, LaunchList, StreamSync, VendorCall
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.cuda.target import ALLOCATOR_ALIGNMENT, Alignment
from fmm.kernels.plans.leaf import LeafUse, parse_leaf, plan_leaves
from fmm.kernels.plans.levels.residues import residue_leaves
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.perfmodel.block_model import chip_target
from fmm.problem import Layout, Problem
from tests.support.chips import A100, B200, H200, V100
from tests.support.marks import quick_and_slow

SPLITS = ("block_sums, split A: ", "block_sums, split B: ")
# Splits that write float16 planes: largest numbers of blocks, exponents of sums, and the sums.
PLANE_SPLITS = tuple(
    start
    for name in "AB"
    for start in (
        f"f16_sums: largest numbers of 4 blocks of {name}",
        "f16_sums: exponents of 7 sums",
        f"f16_sums, split {name}: 7 sums of 4 blocks",
    )
)
TURNED = Layout("C", 2048), Layout("F", 2048), Layout("C", 2048)  # both operands along the inner dimension


@dataclass(frozen=True)
class Case:
    """A plan on a problem of size 2048, and the beginnings of its description's lines in order."""

    plan: str
    dtype: str
    lines: tuple[str, ...]
    on: Chip = H200
    alignment: Alignment = ALLOCATOR_ALIGNMENT
    flagged: bool = False
    given: tuple[tuple[str, Any], ...] = ()  # what else the problem says

    def recorded(self) -> LaunchList:
        problem = Problem(2048, 2048, 2048, self.dtype, **dict(self.given))
        return record_launches(Plan.parse(self.plan), problem, chip_target(self.on, self.alignment, self.flagged))


CASES = (
    # The vendor's call and cuBLASLt's candidates, alone, in a batch, beside each other.
    Case("vendor", "complex64", ("cuBLAS",)),
    Case("lt3", "float32", ("cuBLASLt, candidate 3",)),
    Case("lt3.outer", "bfloat16", ("cuBLASLt, candidate 3",)),
    Case("strassen.batched.pad16 > vendor", "float64", (*SPLITS, "cuBLAS, a batch of 7", "block_sums, join: ")),
    Case("winograd.pad16 > vendor.inner", "float16", (*SPLITS, "7 x cuBLAS", "block_sums, join: ")),
    Case(
        "strassen.batched.pad16 > lt31", "tf32", (*SPLITS, "cuBLASLt, candidate 31, a batch of 7", "block_sums, join: ")
    ),
    Case("vendor-emulated", "float64", ("cuBLAS, float64 by cuBLAS's own emulation",)),
    Case(
        "strassen.batched.pad16 > vendor-emulated",
        "float64",
        (*SPLITS, "7 x cuBLAS, float64 by cuBLAS's own emulation", "block_sums, join: "),
    ),
    # cuBLAS's complex products by three real ones, and the level that makes such products.
    Case("vendor3m", "complex64", ("cuBLAS, complex64 by three real products",)),
    Case(
        "strassen.batched.pad16 > vendor3m",
        "complex64",
        (*SPLITS, "cuBLAS, complex64 by three real products, a batch of 7", "block_sums, join: "),
    ),
    Case(
        "strassen.batched.pad16 > vendor3m",
        "complex128",
        (*SPLITS, "7 x cuBLAS, complex128 by three real products", "block_sums, join: "),
    ),
    Case(
        "3m > vendor",
        "complex64",
        (*SPLITS, "3 x cuBLAS", "block_sums, join: ", "recompute_simple: computes C again"),
        flagged=True,
    ),
    Case("3m.batched > lt2", "complex128", (*SPLITS, "cuBLASLt, candidate 2, a batch of 3", "block_sums, join: ")),
    # `tile` in float32: by the copy engine where there is one, and where operands are aligned.
    Case("tile", "float32", ("gemm_tma Deep: ",)),
    Case("tile", "float32", ("gemm_simt ",), on=A100),
    Case(
        "tile",
        "float32",
        ("gemm_simt Square: tiles of 128 x 128 x 8, one number at a time",),
        alignment=(4, 256, 256, 256),
    ),
    Case("tile.long", "float32", ("gemm_tma Long: ",)),
    Case("tile.medium.texture", "float32", ("gemm_simt Medium: ",)),
    Case("strassen.batched.pad16 > tile.half", "float32", (*SPLITS, "gemm_simt Half: ", "block_sums, join: ")),
    # Small products, of any type and layout.
    Case("small", "bfloat16", ("gemm_small, tiles of 32 x 32",), alignment=(2, 2, 2, 2)),
    Case(
        "small",
        "float64",
        ("gemm_small, tiles of 32 x 32, the lower triangle and its mirror",),
        given=(("op", "gram"),),
        on=V100,
    ),
    # With sums inside: one launch where products can take turns, else seven.
    Case("strassen.fused.pad8 > tile", "float32", ("gemm_tma Long: tiles of 256 x 128 x 8, 7 products in one launch",)),
    Case(
        "strassen.fused.pad8 > tile",
        "float32",
        (
            "gemm_simt Half: tiles of 64 x 128 x 8, adds up 2 and 2 blocks, writes 2",
            "gemm_simt Half: tiles of 64 x 128 x 8, adds up 2 and 1 blocks, writes 2",
            "2 x gemm_simt Half: tiles of 64 x 128 x 8, adds up 1 and 2 blocks, writes 2",
            "gemm_simt Half: tiles of 64 x 128 x 8, adds up 2 and 1 blocks, writes 2",
            "2 x gemm_simt Half: tiles of 64 x 128 x 8, adds up 2 and 2 blocks, writes 1",
        ),
        on=A100,
    ),
    # `tile` in float64: by instructions of a warp where there are any.
    Case("tile", "float64", ("gemm_mma_f64 Solo: ",)),
    Case("tile", "float64", ("gemm_simt Medium: ",), on=V100),
    # In types whose sums are not inside: by warpgroups, or by the vendor, and why.
    Case("tile", "float16", ("gemm_wgmma float16: ",)),
    Case("tile", "bfloat16", ("cuBLAS, not tile, because only compute capability 9.0 has its instructions",), on=A100),
    Case("tile", "float16", ("cuBLAS, not tile, because an operand does not begin at",), alignment=(2, 256, 256, 256)),
    Case("tile", "float16", ("gemm_wgmma float16: ",), given=(("beta", 2),)),
    Case(
        "tile", "float16", ("cuBLAS, not tile, because its kernel cannot compute this product",), given=(("beta", 2j),)
    ),
    Case("tile", "tf32", ("cuBLAS, not tile, because its kernel cannot compute this product",)),
    Case("tile", "tf32", ("gemm_wgmma tf32: ",), given=(("layouts", TURNED),)),
    Case("strassen.batched.pad16 > tile.inner", "tf32", (*SPLITS, "gemm_wgmma tf32: ", "block_sums, join: ")),
    # float32 by three float16 products: splitting, then multiplying. On data-center Blackwell the vendor multiplies,
    # who does not add to C in that way.
    Case("f16x3", "float32", ("f16_planes: splits A and B", "gemm_f16x3: three float16 products, tiles of")),
    Case(
        "strassen.batched.pad16 > f16x3",
        "float32",
        (*PLANE_SPLITS, "gemm_f16x3: ", "block_sums, join: ", "recompute_tiled: "),
        flagged=True,
    ),
    Case(  # whose address sums cannot read 16 bytes at a time
        "strassen.batched.pad16 > f16x3",
        "float32",
        ("block_sums, split A: ", *PLANE_SPLITS[3:], "f16_planes: splits W", "gemm_f16x3: ", "block_sums, join: "),
        alignment=(4, 256, 256, 256),
    ),
    Case("f16x3", "float32", ("f16_planes: ", "gemm_f16x3: ", "recompute_tiled: "), flagged=True),
    Case(
        "f16x3",
        "float32",
        ("f16_planes: splits A", "2 x cuBLAS, float16 products", "8 x cuBLAS, float16 products", "f16_unscale: "),
        on=B200,
    ),
    Case("f16x3", "float32", ("cuBLAS, not f16x3, because the vendor multiplies",), on=B200, given=(("beta", 1),)),
    Case("f16x3", "float32", ("f16_planes: splits A", "gemm_f16x3_mma: "), on=A100, given=(("beta", 1),)),
    Case(
        "f16x3",
        "float32",
        ("cuBLAS, not f16x3, because the instructions that split numbers need compute capability 8.0",),
        on=V100,
    ),
    # float64 by residues: measuring, splitting, multiplying, joining; integers need no measuring. Without levels below,
    # one kernel of Hopper's measures and splits lines.
    *(
        Case(
            name,
            found.float_type,
            (
                *(
                    ("residue_planes: norms of", "residue_planes: residues of A and B")
                    if found.depth
                    else ("residue_lines: norms and residues of A and B",)
                ),
                "gemm_residues: ",
                "residue_join: ",
            ),
        )
        for name, found in residue_leaves().items()
        if found.float_type
    ),
    Case(
        "residues(14) > bytes",
        "float64",
        ("cuBLAS, not residues(14) > bytes, because the instructions need compute capability 8.0",),
        on=V100,
    ),
    Case(
        "residues(14) > bytes",
        "float64",
        ("residue_planes: norms of", "residue_planes: residues of A and B", "gemm_residues_mma: ", "residue_join: "),
        on=A100,
    ),
    *(
        Case(
            name,
            "int32",
            (
                "residue_planes: trans",
                "residue_planes: residues of A and B",
                "gemm_residues: ",
                "residue_join: int32 by 10",
            ),
        )
        for name, found in residue_leaves().items()
        if not found.float_type
    ),
    # Where C may get an inf or NaN that the classical product lacks.
    Case(
        "winograd.batched.pad16 > vendor",
        "float16",
        (*SPLITS, "cuBLAS, a batch of 7", "block_sums, join: ", "recompute_simple: computes C again"),
        flagged=True,
    ),
    Case(
        "winograd > vendor",  # GEMMs write blocks of C, and raise no flag
        "float32",
        (*SPLITS, "7 x cuBLAS", "block_sums, join: ", "recompute_simple: scans C for", "recompute_tiled: "),
        flagged=True,
    ),
    Case("strassen.fused.pad8 > tile", "float32", ("gemm_tma Long: ", "recompute_tiled: "), flagged=True),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.plan} {case.dtype}")
def test_what_runs(case: Case) -> None:
    said = case.recorded().step_labels()
    assert [line[: len(start)] for line, start in zip(said, case.lines, strict=True)] == list(case.lines), said


@pytest.mark.parametrize(
    ("text", "dtype", "op", "bases"),
    [
        ("vendor", "float32", "gram", "BCW"),
        ("lt3", "float32", "product", "ABCW"),
        ("winograd.batched > vendor", "float64", "product", "W"),
        ("strassen.batched.pad16 > tile", "float32", "product", ""),
    ],
)
def test_vendor_calls_use_scratch_memory_in_the_workspace(text: str, dtype: str, op: Any, bases: str) -> None:
    """A graph keeps the address of cuBLAS's scratch memory, although no operand may be in the workspace."""
    launches = Case(text, dtype, (), given=(("op", op),)).recorded()
    assert "".join(ADDRESS_BASES[i] for i in launches.vendor_bases) == bases


ON_DEVICE = [leaf for leaf in plan_leaves() if "cuda" in leaf.devices]


def test_every_leaf_has_a_case() -> None:
    assert {Plan.parse(case.plan).leaf_use.leaf.name for case in CASES} == {x.name for x in ON_DEVICE}


# ---- every kernel of every leaf

LEVELS = ("", "strassen.batched.pad16", "winograd.pad", "strassen.fused.pad8", "li-fig12", "strassen.overlapped.pad16")
VENDORS = {"vendor": "cuBLAS", "vendor-emulated": "cuBLAS", "vendor3m": "cuBLAS", "lt": "cuBLASLt"}
# Every leaf with every option, of numbered ones the first.
USES = [use for leaf in ON_DEVICE for use in leaf.all_text_variants if not use.number and not use.order]


def lists(use: LeafUse, on: Chip) -> Iterator[LaunchList]:
    """Launch lists of all kinds of plans, on aligned and unaligned problems."""
    for level in LEVELS:
        for dtype in DTYPES:
            for side in (512, 301):
                try:
                    plan = Plan.parse(f"{level} > {use}" if level else str(use))
                    yield record_launches(plan, Problem(side, side, side, dtype), chip_target(on, flagged=True))
                except PlanError:
                    continue


# In the quick run, each leaf without options on each chip, and some of its options on one.
CHIPS = {chip.limits.capability: chip for chip in (H200, A100, V100)}
PLAIN_USES = [str(use) for use in USES if str(use) == use.leaf.name]
QUICK_USES = [*product(PLAIN_USES, CHIPS), *((str(use), H200.limits.capability) for use in USES[::8])]
OTHER_USES = [x for x in product(map(str, USES), CHIPS) if x not in QUICK_USES]


@pytest.mark.quick_cases(12)
@pytest.mark.parametrize(("text", "capability"), quick_and_slow(dict.fromkeys(QUICK_USES), OTHER_USES))
def test_every_kernel_is_named(text: str, capability: str) -> None:
    use, on = parse_leaf(text), CHIPS[capability]
    found = list(lists(use, on))
    assert found or (use.leaf.name in residue_leaves() and on is not H200)  # integers, of which no vendor has all
    for launches in found:
        steps = [step for step in launches.steps if not isinstance(step, StreamSync)]
        said = [line.split(" x ", 1) if line[0].isdigit() else ("1", line) for line in launches.step_labels()]
        assert [label for count, label in said for _ in range(int(count))] == [step.label for step in steps]
        for step in steps:
            if isinstance(step, VendorCall):
                assert isinstance(step.op, GemmOp)
                assert step.label.startswith(VENDORS[step.op.leaf_use.leaf.name])
            else:
                name = step.label.replace(",", " ").replace(":", " ").split()[0]
                warps = (
                    name == "gemm_simt" and step.kernel.description.mma_depth
                )  # of a chip that has no such instructions
                begins = header_text("gemm_mma_f64.cuh" if warps else f"{name}.cuh").splitlines()[0]
                assert step.kernel.cuda_source.startswith(begins), step.label
                assert not warps or not on.has_float64_mma
