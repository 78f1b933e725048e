"""Single factors of the model, each computed by hand where no test of a whole prediction would notice a change."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.digits import safe_digit_products
from fmm.kernels.leaves import DIGITS_RATE
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.cost import cost
from fmm.perfmodel.default_calibration import cpu_calibration, datasheet_calibration, with_integer_rates
from fmm.perfmodel.papers import dalberto, huang, li_results, recursion_points, sforza
from fmm.perfmodel.predict import predict_from_work, quick_prediction, tiled_slowdown, vendor_slowdown
from fmm.perfmodel.stability import expected_error_growth
from fmm.perfmodel.work import LeafTiles, estimated_work
from fmm.problem import Problem

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
    plan, problem = Plan.parse("f16x3"), Problem(2048, 4096, 3072, "float32")
    prepared = quick_prediction(plan, replace(problem, prepared_side=side), H200)
    rates = {**H200.rates, "f16x3": replace(H200.rates["f16x3"], **{passes: 0.0})}
    free = quick_prediction(plan, problem, replace(H200, rates=MappingProxyType(rates)))
    assert prepared.products == pytest.approx(free.products)
    assert prepared.products < quick_prediction(plan, problem, H200).products


@pytest.mark.parametrize("text", ["strassen.batched.pad16 > f16x3", "winograd > vendor", "strassen^2.pad16 > f16x3"])
def test_the_counted_workspace_is_that_of_the_run(text: str) -> None:
    plan = Plan.parse(text)
    assert cost(plan, 2048, 2048, 2048, 4).workspace == plan_workspace_bytes(plan, 2048, 2048, 2048, 4) > 0


@pytest.mark.parametrize("name", ["int32", "int64"])
def test_integers_by_digits_take_the_time_of_the_digits_products(name: str) -> None:
    on = cpu_calibration(2)
    digits, _ = safe_digit_products(8 * DTYPES[name].itemsize, 1024)
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
    expected = max(level.error_growth * 1.6, level.error_growth_one_sign * 2.7)
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
