"""Single factors of the model, each computed by hand where no test of a whole prediction would notice a change."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.digits import digit_products_for_any_input
from fmm.kernels.leaves import DIGITS_RATE
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.cost import cost, triangle_elements
from fmm.perfmodel.default_calibration import cpu_calibration, datasheet_calibration, with_integer_rates
from fmm.perfmodel.papers import dalberto, huang, li_results, recursion_points, sforza
from fmm.perfmodel.predict import (
    f16x3_slowdown,
    plane_split_slowdown,
    predict_from_work,
    quick_prediction,
    tiled_slowdown,
    vendor_slowdown,
)
from fmm.perfmodel.stability import expected_error_growth
from fmm.perfmodel.work import LeafTiles, TriangleProducts, estimated_work
from fmm.problem import Layout, Problem

H200 = datasheet_calibration("H200")


def test_operands_of_few_tiles_are_read_for_each_row_and_column_of_c() -> None:
    """Where rounds of tiles are counted, reading A and B adds rows / m + cols / n."""
    rate = ProductRate(1.0, 0.0, 32.0, sms=132.0)
    reading = replace(rate, rows=50.0, cols=20.0)
    difference = vendor_slowdown(reading, 256, 4096, 512, 1) - vendor_slowdown(rate, 256, 4096, 512, 1)
    assert difference == pytest.approx(50 / 256 + 20 / 512)


def test_sums_inside_the_tiled_kernel_are_added_for_each_tile() -> None:
    """Of 2 blocks of A and 3 of B one and two numbers are added for each of 256 columns and 128 rows of a tile."""
    rate, k = ProductRate(1.0, 0.0, 0.0, tiled=1.0, inside=10.0), 1e12
    slowdown = tiled_slowdown(LeafTiles(128, 256, left=2.0, right=3.0), rate, 1280, k, 2560, 1)
    assert slowdown == pytest.approx(1 + 10 * (1 / 256 + 2 / 128))


def test_the_tiled_kernel_takes_longer_on_unaligned_rows() -> None:
    rates = {"float32": ProductRate(1e12, 0.0, 0.0, tiled=1.0, tiled_odd=1.3)}
    on = Calibration("test", "by hand", MappingProxyType(rates), 1e15, batches=True)
    plan, problem = Plan.parse("tile"), Problem(4096, 4096, 4096, "float32")
    work = estimated_work(plan, problem)
    for share in ("unaligned", "odd"):
        unaligned: Any = {share: 1.0}
        slow = predict_from_work(plan, problem, replace(work, **unaligned), on)
        assert slow.products == pytest.approx(1.3 * predict_from_work(plan, problem, work, on).products)


@pytest.mark.parametrize(("side", "passes"), [("B", "rows"), ("A", "cols")])
def test_a_prepared_operand_is_not_read_before_the_product(side: Any, passes: str) -> None:
    plan, problem = Plan.parse("f16x3"), Problem(8192, 4096, 3072, "float32")
    prepared = quick_prediction(plan, replace(problem, prepared_side=side), H200)
    rates = {**H200.rates, "f16x3": replace(H200.rates["f16x3"], **{passes: 0.0})}
    free = quick_prediction(plan, problem, replace(H200, rates=MappingProxyType(rates)))
    assert prepared.products == pytest.approx(free.products)
    assert prepared.products < quick_prediction(plan, problem, H200).products


PLANES = ProductRate(250e12, 0.0, 500.0, rows=600.0, cols=400.0, blocks=132.0)


def test_planes_are_computed_once_for_each_operand() -> None:
    assert plane_split_slowdown(PLANES, 4096, 8192, 3000, 1) == pytest.approx(600 / 4096 + 400 / 3000)


def test_rows_longer_than_the_registers_are_read_twice() -> None:
    """Of 65536 numbers of a row of A, 16384 stay in registers: 8 bytes each are moved, and 12 bytes of the others."""
    bytes_per_number = (16384 * 8 + 49152 * 12) / 65536
    expected = 600 / 4096 + 400 / 3000 * bytes_per_number / 8
    assert plane_split_slowdown(PLANES, 4096, 65536, 3000, 1) == pytest.approx(expected)


def test_a_b_of_few_columns_is_split_by_few_thread_blocks() -> None:
    """Each of 8 thread blocks moves 12 bytes for each number in an eighth of 64 columns, at 17.5 GB/s."""
    m, k, n = 512, 65536, 64
    seconds = k * 64 * 12 / 8 / 17.5e9
    product_seconds = 2 * m * k * n / PLANES.flops
    assert plane_split_slowdown(PLANES, m, k, n, 1) == pytest.approx(seconds / product_seconds)
    assert plane_split_slowdown(PLANES, m, k, n, 2) == pytest.approx(seconds / product_seconds / 2)
    assert plane_split_slowdown(PLANES, m, k, n, 1, has_strips=False) < seconds / product_seconds / 2


def test_strips_of_columns_are_for_a_row_major_b_that_is_not_prepared() -> None:
    plan, problem = Plan.parse("f16x3"), Problem(512, 65536, 512, "float32")
    columns = replace(problem, layouts=(Layout("C", 65536), Layout("F", 65536), Layout("C", 512)))
    usual, column_major, prepared = (
        quick_prediction(plan, x, H200).products for x in (problem, columns, replace(problem, prepared_side="B"))
    )
    assert prepared < column_major < usual


def test_a_product_reads_all_planes_at_least_once() -> None:
    """128 rows of C take so few steps that reading the planes of B takes longer."""
    fast = replace(H200, rates=MappingProxyType({**H200.rates, "f16x3": replace(PLANES, rows=1e5, cols=0.0)}))
    found = quick_prediction(Plan.parse("f16x3"), Problem(128, 4096, 8192, "float32"), fast).products
    once = 2 * 128 * 4096 * 8192 / PLANES.flops * 1e5 / 128
    assert f16x3_slowdown(PLANES, 128, 4096, 8192, 1, False) < 1e5 / 128 / 3
    assert found == pytest.approx(once * (1 + 1 / 3))


@pytest.mark.parametrize("text", ["strassen.batched.pad16 > f16x3", "winograd > vendor", "strassen^2.pad16 > f16x3"])
def test_the_counted_workspace_is_that_of_the_run(text: str) -> None:
    plan = Plan.parse(text)
    assert cost(plan, 2048, 2048, 2048, 4).workspace == plan_workspace_bytes(plan, 2048, 2048, 2048, 4) > 0


@pytest.mark.parametrize("name", ["int32", "int64"])
def test_integers_by_digits_take_the_time_of_the_digits_products(name: str) -> None:
    on = cpu_calibration(2)
    digits, _ = digit_products_for_any_input(8 * DTYPES[name].itemsize, 1024)
    base, found = on.rates[digits.real], with_integer_rates(on).rates[DIGITS_RATE.format(name)]
    assert found.flops == pytest.approx(base.flops / digits.product_count)
    assert (found.pipe, found.rows, found.cols) == (base.pipe + 90, base.rows + 40, base.cols + 40)


def test_a_level_below_residues_saves_an_eighth_of_the_products() -> None:
    plain, below = H200.rates["residues(14) > bytes"], H200.rates["residues(14) > strassen > bytes"]
    assert plain.flops == pytest.approx(2 * H200.rates["float16"].flops / 14)
    assert below.flops == pytest.approx(plain.flops * 8 / 7)


def test_real_products_of_complex_numbers_on_a_cpu_are_added_in_longer_pieces() -> None:
    """Three real products have at most 1.6 (random) and 2.7 (positive numbers) times the expected error."""
    plan = Plan.parse("3m > vendor")
    (level,) = plan.levels
    expected = max(level.error_growth * 1.6, level.same_sign_error_growth * 2.7)
    assert expected_error_growth(plan, "complex128", in_pieces=True) == pytest.approx(expected)


# ---- the papers


def test_alpha_is_two_reads_and_a_write() -> None:
    on = Calibration("test", "by hand", MappingProxyType({"float64": ProductRate(1e9, 0.0, 0.0)}), 24e9)
    assert recursion_points.alpha_seconds(on, 8) == 1e-9


def test_the_printed_bounds_of_equation_1() -> None:
    first, second, brent = dalberto.printed_error_bounds(2, 3600)
    assert (first, second, brent) == (144 * (900**2 + 4500) - 5 * 3600, 9 * 3600**2, 16 * 3600**2)


def test_epsilon_follows_from_the_measured_recursion_point() -> None:
    table = dalberto.dalberto_table3()
    found = dict(zip(table.column_cells("system"), table.column_cells("epsilon"), strict=True))
    assert found["Fujitsu HAL 300"] == pytest.approx((400 - 390) / 22) and found["Fosa"] is None


def test_sforzas_recursion_saves_more_than_one_level() -> None:
    """One level takes three fourths of the multiplications; each further one takes less, so that speed-ups grow."""
    limits = [
        sforza.speedup_limit(sforza.sforza_plan("float64", depth, 0), "float64", 4096)
        for depth in sforza.COMPARED_DEPTHS
    ]
    assert limits == pytest.approx([1 / 0.750, 1 / 0.594, 1 / 0.488, 1 / 0.412], rel=2e-3)
    depths = [len(sforza.sforza_plan("float64", depth).levels) for depth in sforza.COMPARED_DEPTHS]
    assert depths == [1] * 4 and limits == sorted(limits)


def test_huangs_bandwidth_of_two_levels_is_near_what_is_printed() -> None:
    table = huang.huang_bounds()
    row = next(
        row for row in table.rows if "Huge, 2-level Var#0 (section 5.4)" in str(row[0]) and "GB/s" in str(row[0])
    )
    assert row[2] == pytest.approx(row[1], rel=0.05)


def test_expected_ratios_of_errors_grow_with_the_levels() -> None:
    table = li_results.li_exchanged()
    ratios: dict[Any, Any] = dict(
        zip(table.column_cells("levels"), table.column_cells("expected on random data"), strict=True)
    )
    assert [ratios[k] for k in (2, 3)] == [pytest.approx(ratios[1] ** k) for k in (2, 3)] and ratios[1] > 1


# ---- triangles


def triangle_seconds(on: Calibration, dtype: str, rows: float, together: float, **shares: Any) -> float:
    """The predicted seconds of one triangle by the vendor's leaf, with these shares of unaligned rows."""
    problem = Problem(4096, 4096, 4096, dtype, op="gram")
    plan = Plan.parse("vendor")
    triangles = (TriangleProducts(rows, 4096.0, 1.0, together, "vendor", False),)
    work = replace(estimated_work(plan, problem), leaves=(), triangles=triangles, **shares)
    return predict_from_work(plan, problem, work, on).products


@pytest.mark.parametrize(("share", "slower"), [("triangles_unaligned", 3.0), ("triangles_odd", 5.0)])
def test_triangles_of_a_type_without_syrk_are_whole_products_on_unaligned_rows(share: str, slower: float) -> None:
    rate = ProductRate(1e12, 0.0, 0.0, unaligned=3.0, odd=5.0)
    on = Calibration("test", "by hand", MappingProxyType({"bfloat16": rate}), 1e15, batches=True)
    aligned = triangle_seconds(on, "bfloat16", 4096.0, 1.0)
    assert aligned == pytest.approx(2 * 4096**3 / 1e12)
    assert triangle_seconds(on, "bfloat16", 4096.0, 1.0, **{share: 1.0}) == pytest.approx(slower * aligned)


def test_a_batch_of_small_triangles_is_whole_products_on_a_gpu() -> None:
    """From 1025 rows on, or one after the other, or on a CPU, each is a syrk."""
    rate = ProductRate(1e12, 0.0, 0.0, half=0.5)
    on = Calibration("test", "by hand", MappingProxyType({"float64": rate}), 1e15, batches=True)

    def share(rows: float, together: float, batches: bool = True) -> float:
        seconds = triangle_seconds(replace(on, batches=batches), "float64", rows, together)
        return seconds / (2 * rows * 4096 * rows / 1e12)

    assert share(1024.0, 4.0) == pytest.approx(1.0)
    assert share(1025.0, 4.0) == share(1024.0, 1.0) == share(1024.0, 4.0, batches=False) == pytest.approx(0.5)


def test_a_triangle_has_its_diagonal() -> None:
    assert [triangle_elements(n) for n in (0, 1, 2, 3, 4)] == [0, 1, 3, 6, 10]
    assert cost(Plan.parse("vendor"), 3, 5, 3, op="gram", fill="lower").flops == 2 * 6 * 5


def test_atomic_updates_read_c_once_for_beta() -> None:
    """Products that add to C atomically need one launch before them, which multiplies the 64 numbers of C by beta."""
    plan = Plan.parse("strassen.fused.atomic.pad4 > tile")
    counts = [cost(plan, 8, 8, 8, 4, beta=beta) for beta in (0, 1, 2)]
    assert plan.levels[0].has_atomic_updates
    assert [x.bytes_read for x in counts] == [0, 0, 4 * 64]
    assert [x.bytes_written for x in counts] == [4 * 64, 0, 4 * 64]


def test_a_thin_triangle_takes_the_time_to_read_a_and_write_c() -> None:
    rate = ProductRate(1e30, 0.0, 0.0, memory=1e6)
    on = Calibration("test", "by hand", MappingProxyType({"float64": rate}), 1e15, batches=True)
    assert triangle_seconds(on, "float64", 300.0, 1.0) == pytest.approx((300 * 4096 + 300 * 300) * 8 / 1e6)


def test_the_smallest_side_is_that_of_all_leaf_products() -> None:
    assert estimated_work(Plan.parse("vendor"), Problem(5, 7, 3)).smallest_leaf_side == 3
    assert estimated_work(Plan.parse("strassen > vendor"), Problem(80, 64, 48)).smallest_leaf_side == 24
    assert estimated_work(Plan.parse("vendor"), Problem(9, 7, 9, op="gram")).smallest_leaf_side == 7
