"""The portable kernels of f16x3 and of residues: compiled for every architecture, run on the host, and selected where
Hopper's instructions are missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from benchmarks.compile_ahead import named_chip
from fmm.dtypes import BYTE_TYPE
from fmm.hardware.chip import Chip
from fmm.kernels.algorithms.residues import first_moduli
from fmm.kernels.cuda.launch_list import Launch, VendorCall
from fmm.kernels.cuda.ops import BlockTerm
from fmm.kernels.cuda.products import residues_mma
from fmm.kernels.cuda.products.f16_planes import plane_split_kernel_source
from fmm.kernels.cuda.products.f16x3_mma import F16X3_MMA_SIZES, F16x3MmaKernel, f16x3_mma_kernel_source
from fmm.kernels.cuda.products.mma_tiles import MmaSizes, best_mma_sizes, count_tiles
from fmm.kernels.cuda.products.residue_planes import (
    NormExponentKernel,
    byte_plane_tensor_map,
    norm_exponent_kernel_source,
)
from fmm.kernels.cuda.products.residues_mma import (
    RESIDUE_MMA_SIZES,
    ByteProducts,
    ResidueMmaKernel,
    residue_mma_kernel_source,
    residue_mma_launch,
)
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.plans.level import PlanError
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import chip_target
from fmm.problem import Problem
from tests.support.chips import A100
from tests.support.host_launch import aligned
from tests.support.marks import quick_and_slow
from tests.support.mma_on_host import play
from tests.support.nvrtc import CPP17, in_parallel, nvrtc, report

Array = np.ndarray[Any, Any]
# The architectures of the chips without Hopper's instructions, with a chip of each for its shared memory; sm_90 is an
# H100 without tensor maps.
ARCHITECTURES = {
    "sm_80": "A100",
    "sm_86": "A10",
    "sm_89": "RTX 4090",
    "sm_90": "H100",
    "sm_100": "B200",
    "sm_103": "B300",
    "sm_120": "RTX 5090",
}
EACH_ARCHITECTURE = quick_and_slow(["sm_80"], [x for x in ARCHITECTURES if x != "sm_80"])
AXES = ("inner", "outer")


def with_stages(s: MmaSizes, chip: Chip) -> MmaSizes:
    return best_mma_sizes(4096, 4096, 1, chip, (s,))


def sources(chip: Chip) -> Iterator[tuple[MmaSizes, str]]:
    """The products' kernels with the sizes of a chip: every memory order, checked, triangles, long inner dimensions."""
    planes: list[dict[str, Any]] = [{"along": along} for along in product(AXES, AXES)]
    planes += [{"along": ("inner", "outer"), "checked": True}, {"along": ("inner", "inner"), "triangle": "full"}]
    planes.append({"along": ("outer", "inner"), "triangle": "lower", "checked": True})
    for s in (with_stages(x, chip) for x in F16X3_MMA_SIZES):
        yield from ((s, f16x3_mma_kernel_source(F16x3MmaKernel(s, **x))) for x in planes)
    for s in (with_stages(x, chip) for x in RESIDUE_MMA_SIZES):
        yield from ((s, residue_mma_kernel_source(ResidueMmaKernel(s, *x))) for x in product((False, True), repeat=2))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", EACH_ARCHITECTURE)
def test_products_stay_in_registers(architecture: str) -> None:
    """At most one pointer is spilled; registers and shared memory suffice for the thread blocks of a multiprocessor."""
    nvrtc()
    chip = named_chip(ARCHITECTURES[architecture])
    found = list(sources(chip))
    for (s, _), r in zip(
        found, in_parallel(report, [(str(s), text, architecture, CPP17) for s, text in found]), strict=True
    ):
        assert r.local <= 8, r
        assert -(-r.registers // 8) * 8 * s.thread_count * s.blocks <= chip.limits.registers_per_sm, r
        assert s.stages >= 2 and s.shared_bytes <= chip.shared_bytes_per_block, s


@pytest.mark.slow
@pytest.mark.parametrize("architecture", EACH_ARCHITECTURE)
def test_other_stages_compile_without_clusters(architecture: str) -> None:
    """The kernels that split and measure: no instruction of clusters or of the copy engine."""
    from tests.kernels.cuda.products.test_f16x3 import SPLITS

    nvrtc()
    pair = NormExponentKernel("outer", 0, True), NormExponentKernel("inner", 256, True)
    texts = [plane_split_kernel_source(k, rule, 1) for k in SPLITS[:2] for rule in ("default", "recorded", "balanced")]
    texts += [norm_exponent_kernel_source(*pair, dtype, 1) for dtype in ("float64", "int8", "int64")]
    assert not any("__cluster_dims__" in text.split("extern", 1)[1] for text in texts)
    for r in in_parallel(report, [(text[:40], text, architecture, CPP17) for text in texts]):
        assert r.local == 0 and r.registers <= 128, r


# ---- products of bytes on the host


@pytest.mark.slow
@pytest.mark.parametrize(
    ("m", "k", "n"), quick_and_slow([(130, 208, 272), (1, 16, 16)], [(257, 400, 48), (64, 144, 528)])
)
@pytest.mark.parametrize("sizes", RESIDUE_MMA_SIZES)
@pytest.mark.parametrize("lower_only", [False, True])
def test_products_of_bytes(
    m: int, k: int, n: int, sizes: MmaSizes, lower_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to NumPy's; lines of A are longer than the inner dimension, with numbers that must read as zero."""
    monkeypatch.setattr(residues_mma, "RESIDUE_MMA_SIZES", (sizes,))
    rng, moduli, each = np.random.default_rng(m), first_moduli(2), 2
    shapes = (4, m, k), (4, n, k), (4, m, n)
    memory = {name: aligned(int(np.prod(s)) + 64, np.int8, 77) for name, s in zip("ABC", shapes, strict=True)}
    a, b, c = (memory[x][: int(np.prod(s))].reshape(s) for x, s in zip("ABC", shapes, strict=True))
    a[...], b[...] = rng.integers(-128, 128, a.shape), rng.integers(-128, 128, b.shape)
    filled = k - 5
    maps = tuple(
        byte_plane_tensor_map(BlockTerm(x, 0, *s[1:]), 4, 1, filled if x != "C" else None)
        for x, s in zip("ABC", shapes, strict=True)
    )
    assert all(x.dtype == BYTE_TYPE.name for x in maps)
    launch = residue_mma_launch(ByteProducts(maps, m, k, n, moduli, each, lower_only), A100, "sums", "products")  # type: ignore[arg-type]
    play(launch, memory)
    for layer in range(4):
        whole = a[layer, :, :filled].astype(np.int64) @ b[layer, :, :filled].T.astype(np.int64)
        below = np.tri(m, n, dtype=bool) if lower_only else np.ones((m, n), bool)
        assert not ((c[layer] - whole) % moduli[layer // each])[below].any()
    assert (memory["C"][c.size :] == 77).all()


@pytest.mark.slow
def test_long_inner_dimensions_are_reduced_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """2^17 products of -128 and -128 are 2^31, which an int32 cannot hold."""
    monkeypatch.setattr(residues_mma, "RESIDUE_MMA_SIZES", RESIDUE_MMA_SIZES[1:])
    k = 1 << 17
    memory = {x: aligned(n, np.int8, 0x80 - 256) for x, n in (("A", k), ("B", 16 * k), ("C", 16))}
    maps = tuple(
        byte_plane_tensor_map(BlockTerm(x, 0, *s), 1, 1) for x, s in (("A", (1, k)), ("B", (16, k)), ("C", (1, 16)))
    )
    launch = residue_mma_launch(ByteProducts(maps, 1, k, 16, (251,), 1, False), A100, "sums", "one product")  # type: ignore[arg-type]
    assert launch.kernel.description.reduces
    play(launch, memory)
    assert not ((memory["C"].astype(np.int64) - (k << 14)) % 251).any()


# ---- sizes, and selection by chip


def test_sizes_let_the_last_blocks_end_early() -> None:
    assert best_mma_sizes(8192, 8192, 1, A100, F16X3_MMA_SIZES).n_s == 128
    assert best_mma_sizes(768, 768, 1, A100, F16X3_MMA_SIZES).n_s == 64
    assert best_mma_sizes(8192, 8192, 1, A100, F16X3_MMA_SIZES, True).n_s == 128
    assert [with_stages(RESIDUE_MMA_SIZES[0], named_chip(x)).stages for x in ("A100", "RTX 4090", "H100")] == [3, 2, 4]
    assert count_tiles(300, 300, F16X3_MMA_SIZES[0], True) == 6


@pytest.mark.parametrize(
    ("name", "planes", "residues"),
    [
        ("V100", "cuBLAS, not f16x3", None),
        ("A100", "gemm_f16x3_mma", "gemm_residues_mma"),
        ("RTX 4090", "gemm_f16x3_mma", "gemm_residues_mma"),
        ("RTX 5090", "gemm_f16x3_mma", "gemm_residues_mma"),
        ("H200", "gemm_f16x3:", "gemm_residues:"),
        (
            "B200",
            "cuBLAS, float16",
            "gemm_residues_mma",
        ),  # cuBLAS's float16 products have the full rate, mma.sync has not
    ],
)
def test_the_chip_selects_the_kernel(name: str, planes: str, residues: str | None) -> None:
    chip = named_chip(name)
    found = record_launches(Plan.parse("f16x3"), Problem(4096, 4096, 4096, "float32"), chip_target(chip))
    products = [x.label for x in found.steps if isinstance(x, (Launch, VendorCall)) and planes in x.label]
    assert products, found.step_labels()
    integers = Plan.parse("residues > bytes"), Problem(4096, 4096, 4096, "int64")
    if residues is None:
        with pytest.raises(PlanError, match=r"compute capability 8\.0"):
            record_launches(*integers, chip_target(chip))
    else:
        assert any(residues in x for x in record_launches(*integers, chip_target(chip)).step_labels())


def test_a_hopper_gpu_without_tensor_maps_uses_the_portable_kernels() -> None:
    chip = replace(named_chip("H100"), tensor_maps=False)
    for plan, dtype in (("f16x3", "float32"), ("residues(14) > bytes", "float64")):
        found = record_launches(Plan.parse(plan), Problem(4096, 4096, 4096, dtype), chip_target(chip))
        assert any("_mma:" in x for x in found.step_labels())
        assert all(x.kernel.architecture != "sm_90a" and not x.maps for x in found.launches)


def test_prepared_planes_are_those_of_hopper() -> None:
    """The portable kernel splits into the same layout, so levels above it write planes too."""
    problem = Problem(8192, 8192, 8192, "float32")
    found = record_launches(Plan.parse("strassen.batched.pad16 > f16x3"), problem, chip_target(A100))
    labels = [x.label.split(":")[0].split(",")[0] for x in found.launches]
    assert labels.count("f16_sums") == 6 and labels.count("gemm_f16x3_mma") == 1 and "f16_planes" not in labels
