"""Stacks of products that are their own adjoints: one launch, the vendor's batch, or one matrix after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fmm.arrays.library import Operand, ProductSetting, contiguous_operand
from fmm.config import files
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.cuda.target import ALLOCATOR_ALIGNMENT
from fmm.kernels.plans.gemm_params import PLAIN, GemmParams
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.perfmodel.block_model import chip_target
from fmm.perfmodel.choose import Limits
from fmm.problem import Layout, Problem
from fmm.runtime.decisions.stacks import MAX_GROUP_BYTES
from fmm.runtime.prepare import PreparedCall, ProblemQuery, prepare_query
from tests.kernels.cuda.products.test_wgmma_kernels import POISON, bits_of, numbers_of
from tests.support import configs
from tests.support.devices import H200
from tests.support.host_launch import aligned
from tests.support.warpgroups_on_host import play


def prepared(
    shape: tuple[int, ...],
    dtype: str = "bfloat16",
    params: GemmParams = GemmParams(op="gram"),  # noqa: B008
    strides: tuple[int, ...] | None = None,
    **changed: Any,
) -> PreparedCall:
    """Return the prepared call for a stack times its transposes."""
    a = Operand(shape, strides or contiguous_operand(shape, dtype).strides, dtype)
    assert a.strides is not None
    *stack, n, k = range(len(shape))
    order = (*stack, k, n)
    b = Operand(tuple(shape[i] for i in order), tuple(a.strides[i] for i in order), dtype)
    out = contiguous_operand((*shape[:-2], shape[-2], shape[-2]), dtype) if params.beta else None
    setting = ProductSetting(0, dtype, b_is_transposed_a=True)
    limits = Limits(1 << 33, **changed)
    return prepare_query(ProblemQuery(a, b, out, setting, H200, limits, params=params))


@pytest.mark.parametrize(
    "shape", [(16, 2048, 2048), (64, 1024, 1024), (2, 6, 1024, 1024), (24, 768, 3072), (8, 2048, 8192)]
)
def test_a_stack_of_half_precision_matrices_is_one_launch(shape: tuple[int, ...]) -> None:
    for params in (GemmParams(op="gram"), GemmParams(2, -0.5, "gram"), GemmParams(2, -0.5, "symmetric")):
        assert_one_launch(prepared(shape, params=params), shape)


def assert_one_launch(call: PreparedCall, shape: tuple[int, ...]) -> None:
    assert call.launches is not None and call.offsets == ((0, 0, 0),)
    (launch,) = call.launches.launches
    assert "gemm_wgmma" in launch.label and "and its mirror" in launch.label
    assert launch.maps[0][1].layers == np.prod(shape[:-2])
    assert not call.uses_graph and call.workspace == 0 and "one launch" in call.decision.reason


@pytest.mark.parametrize("shape", [(64, 512, 512), (48, 256, 1024), (200, 256, 256), (2, 3, 256, 1024)])
def test_the_vendor_is_measured_to_be_faster_for_small_triangles(shape: tuple[int, ...]) -> None:
    """Where the library's product needs no mirror."""
    assert prepared(shape).plan is None
    for params in (GemmParams(2, -0.5, "gram"), GemmParams(op="symmetric")):
        assert_one_launch(prepared(shape, params=params), shape)


def test_strided_and_broadcast_stacks() -> None:
    call = prepared((64, 1024, 512), strides=(3 * 1024 * 520, 520, 1))
    assert call.launches is not None and call.launches.problem.batch_strides == (1597440, 1597440, 1048576)
    call = prepared((64, 1024, 512), strides=(0, 512, 1))  # each product is equal
    assert call.launches is not None and call.launches.problem.batch_strides == (0, 0, 1048576)
    call = prepared((8, 8, 1024, 512), strides=(10 * 524288, 524288, 512, 1))  # no constant distance
    assert call.launches is None or call.launches.problem.batch_strides is None
    call = prepared((64, 1024, 512), strides=(-524288, 512, 1))  # x[::-1], which no tensor map describes
    assert call.launches is None or call.launches.problem.batch_strides is None


def test_the_vendor_multiplies_small_matrices_as_one_batch() -> None:
    for shape, dtype in (
        ((1000, 100, 100), "bfloat16"),
        ((1000, 100, 100), "float32"),
        ((512, 200, 300), "float64"),
        ((50, 30, 30), "float64"),
    ):
        call = prepared(shape, dtype)
        assert call.plan is None and call.launches is None


@pytest.mark.slow
def test_triangles_of_float32_share_launches() -> None:
    for shape in ((64, 1024, 1024), (24, 768, 3072), (64, 512, 512), (16, 2048, 2048)):
        call = prepared(shape, "float32")
        assert call.launches is not None and len(call.offsets) == 1
        split, product, _ = call.launches.launches
        assert "splits A" in split.label and "mirror" in product.label and f"batch of {shape[0]}" in product.label
    assert prepared((64, 1024, 1024), "float32", emulation=False).offsets != ((0, 0, 0),)


def test_triangles_of_large_matrices_are_separate_where_a_batch_is_slower() -> None:
    call = prepared((8, 4096, 4096), "float64")
    assert call.plan is not None and len(call.offsets) == 8
    assert prepared((49, 1626, 264), "float64").plan is None  # the vendor's batch


def test_other_calls_are_not_stacked() -> None:
    assert prepared((1, 512, 512)).offsets == ((0, 0, 0),)
    for call in (
        prepared((4, 2048, 2048), params=GemmParams(op="gram", fill="lower")),
        prepared((4, 2048, 2048), componentwise=True),
        prepared((4, 2048, 2048), "complex64"),
    ):
        assert call.launches is None or len(call.offsets) == 4


def test_matmul_by_the_own_transpose_needs_a_gain() -> None:
    call = prepared((16, 2048, 2048), params=PLAIN)
    assert call.launches is not None and call.launches.problem.batch == 16
    assert prepared((64, 512, 512), params=PLAIN).launches is None  # predicted to be slower than the vendor


def products(shape: tuple[int, ...], b: tuple[int, ...], dtype: str = "float32", **changed: Any) -> PreparedCall:
    """Return the prepared call for the products of two contiguous stacks."""
    left, right = (Operand(x, contiguous_operand(x, dtype).strides, dtype) for x in (shape, b))
    limits = Limits(changed.pop("workspace", 1 << 34), **changed)
    return prepare_query(ProblemQuery(left, right, None, ProductSetting(0, dtype), H200, limits))


def test_groups_of_products_share_launches() -> None:
    """A group divides the stack, and its workspace is limited."""
    for count, group in ((64, 64), (300, 150), (7, 7), (257, 1)):
        call = products((count, 1024, 1024), (count, 1024, 1024))
        assert call.launches is not None and call.launches.problem.batch == group
        assert len(call.offsets) == count // group
        assert call.offsets[-1] == (4 * 1024**2 * (count - group),) * 3
        assert call.launches.workspace <= MAX_GROUP_BYTES
        recompute = call.launches.launches[-1]
        assert "recompute" in recompute.label and recompute.parameters[-8:] == group.to_bytes(8, "little")


def test_stacks_that_the_vendor_multiplies() -> None:
    for shape, dtype in (((1000, 100, 100), "float32"), ((64, 512, 512), "float64"), ((64, 512, 512), "bfloat16")):
        call = products(shape, shape, dtype)
        assert call.plan is None and call.launches is None
    emulated = products((64, 1024, 1024), (64, 1024, 1024))
    assert emulated.plan is not None and emulated.plan.uses_emulation
    assert products((64, 1024, 1024), (64, 1024, 1024), emulation=False).plan is None


def test_products_that_fill_few_of_their_tiles_share_no_launch() -> None:
    few = products((27, 136, 1656), (27, 1656, 280), "complex64", error_growth=0.2)
    assert few.plan is not None and len(few.offsets) == 27
    assert len(products((10, 400, 768), (10, 768, 296), "complex64", error_growth=0.2).offsets) == 1


def test_stacks_of_complex64_are_by_residues_only_for_errors_below_the_vendors() -> None:
    assert products((64, 512, 512), (64, 512, 512), "complex64").plan is None
    call = products((64, 512, 512), (64, 512, 512), "complex64", error_growth=0.2)
    assert str(call.plan) == "residues2m(8) > bytes" and call.offsets == ((0, 0, 0),)


@pytest.mark.parametrize(("dtype", "growth"), [("float64", 0.1), ("float32", 0.05), ("complex64", 0.2)])
@pytest.mark.parametrize("shape", [(64, 128, 128), (27, 136, 136)])
def test_the_vendor_multiplies_no_stack_that_needs_a_smaller_error(
    shape: tuple[int, ...], dtype: str, growth: float
) -> None:
    """Although its batch is faster."""
    call = products(shape, shape, dtype, error_growth=growth)
    assert call.plan is not None and call.decision.error_growth <= growth
    assert products(shape, shape, dtype, error_growth=1e-9).plan is None  # no plan is so accurate


def test_one_matrix_for_a_whole_stack_is_one_tall_product() -> None:
    call = products((64, 1024, 1024), (1024, 1024))
    assert call.flattens_stack and len(call.offsets) == 1


@pytest.mark.parametrize(
    ("mode", "plan"), [("cache", "strassen.batched.pad16 > vendor"), ("hasa", "hasa > vendor")], ids=["entry", "hasa"]
)
def test_the_plan_for_one_matrix_computes_each_matrix_of_a_stack(
    mode: str, plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if an entry or Equation 2 chose the plan, and the decision has no candidates."""
    entry = configs.entry((8192, 8192, 8192), plan, speedup=1.3, low=1.3, high=1.3, verified=True)
    rate = {"flops": 5e13, "fill": 7e5, "pipe": 60.0}
    measured = {"stream": 4e12, "batches": True, "margin": 0.02, "rate": rate}
    thresholds = configs.raw_thresholds(
        dict.fromkeys(("tau1", "tau2", "tau3"), 1.0), alpha=2e-14, pi=2e-14, n1=3000.0, epsilon=20.0
    )
    section = configs.section(entry, calibration=measured, failed=["f16x3"], thresholds=thresholds)
    path = configs.write(tmp_path / "config.json", H200.identity.key, "float32", section)
    monkeypatch.setenv("FMM_TUNING_MODE", mode)
    monkeypatch.setenv("FMM_CONFIG", str(path))
    files.clear_config_cache()
    call = products((4, 8192, 8192), (4, 8192, 8192))
    assert str(call.plan) == plan and len(call.offsets) == 4


def test_unaligned_addresses_have_no_single_launch() -> None:
    problem = prepared((4, 512, 512)).decision.problem
    assert problem is not None and H200.chip is not None
    with pytest.raises(PlanError, match="one launch"):
        record_launches(Plan.parse("tile"), problem, chip_target(H200.chip, (2, *ALLOCATOR_ALIGNMENT[1:])))
    with pytest.raises(PlanError, match="without levels"):
        record_launches(Plan.parse("gram > tile"), problem, chip_target(H200.chip))


def test_only_complete_results_are_batches() -> None:
    for options in ({"beta": 1}, {"op": "gram", "fill": "lower"}):
        with pytest.raises(ValueError, match="a batch writes complete results"):
            Problem(8, 8, 8, batch=2, batch_strides=(64, 64, 64), **options)


@pytest.mark.slow
def test_the_emulated_launch_of_a_stack() -> None:
    """alpha A A^T + beta C for matrices with gaps between them."""
    rng, count, n, k = np.random.default_rng(6), 3, 24, 16
    x = rng.integers(-2, 3, (count, n, k))
    old = rng.integers(-8, 9, (count, n, n))
    old = old + old.swapaxes(1, 2)
    layouts, strides = (Layout("C", k), Layout("F", k), Layout("C", n)), (n * k + 8, n * k + 8, n * n)
    problem = Problem(n, k, n, "float16", layouts, 2, -1, "gram", count, batch_strides=strides)
    assert H200.chip is not None
    (launch,) = record_launches(Plan.parse("tile"), problem, chip_target(H200.chip)).launches
    memory = {"A": aligned(count * (n * k + 8), np.uint16, POISON["float16"]), "C": aligned(old.size, np.uint16)}
    memory["A"].reshape(count, -1)[:, : n * k] = bits_of(x, "float16").reshape(count, -1)
    memory["B"] = memory["A"]
    memory["C"][:] = bits_of(old, "float16").ravel()
    play(launch, memory)
    np.testing.assert_array_equal(numbers_of(memory["C"], "float16").reshape(old.shape), 2 * x @ x.swapaxes(1, 2) - old)
