"""What is chosen for structured products on an H200 that is not tuned, beside what was measured there."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log
from pathlib import Path
from statistics import median

import pytest

from benchmarks.held_out import HELD_OUT_FILE_NAME, recorded_rows
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.choose import COUNTED_ROUNDS_MARGIN_SHARE, Limits, choose, few_tiles_margin
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.perfmodel.predict import predict_vendor, quick_prediction
from fmm.perfmodel.stability import has_componentwise_bound
from fmm.problem import VALID_FILLS, Operation, Problem

H200 = datasheet_calibration("H200")
LIMITS = Limits(60 << 30, 16, emulation=False)
RESULTS = Path(__file__).parents[2] / "results"
SHORT_SECONDS = 6e-5  # shorter calls are mostly the time of the host
HALF = Problem(8192, 8192, 8192, "float32", op="gram", fill="lower")


def chosen(n: int, dtype: str, op: Operation = "product", device: str = "H200") -> str:
    return str(choose(Problem(n, n, n, dtype, op=op), datasheet_calibration(device), LIMITS).best.plan)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("n", "plan"),
    [
        (2048, "vendor"),  # a call costs the host about as long as the product takes
        (4096, "tile"),
        (8192, "tile"),
        (16384, "tile"),
        (32768, "gram^2.tile > strassen^3.batched.pad16 > vendor"),
    ],
)
def test_halves_of_16_bit_numbers(n: int, plan: str) -> None:
    """The fastest of those in results/nvidia-h200/gram-plans.json."""
    assert chosen(n, "bfloat16", "gram") == plan


def test_nothing_is_known_of_tiles_elsewhere() -> None:
    for n in (4096, 16384):
        assert "tile" not in chosen(n, "bfloat16", "gram", "A100")
        assert ".tile" not in chosen(n, "float32", "gram", "A100")


def test_tiles_of_float32_read_a_turned_copy() -> None:
    """Without it they are taken to be no faster than a whole product, and are not compared."""
    assert ".tile.outer >" in chosen(16384, "float32", "gram")
    considered = {str(c.plan) for c in choose(Problem(8192, 8192, 8192, "float32", op="gram"), H200, LIMITS).candidates}
    assert not any("gram.tile >" in plan for plan in considered)
    halves = [
        quick_prediction(Plan.parse(f"gram.tile{x} > vendor"), HALF, H200).predicted_seconds for x in ("", ".outer")
    ]
    assert halves[0] > 1.2 * halves[1]


def test_blocks_of_other_types_are_not_turned() -> None:
    for dtype in ("float64", "bfloat16"):
        found = choose(Problem(8192, 8192, 8192, dtype, op="gram"), H200, LIMITS).candidates
        assert not any(".outer" in str(c.plan) for c in found)


def test_several_halves_of_the_vendors_take_longer_than_one() -> None:
    """0.65 of the time of the whole products was measured of two with 4096 rows of 8192, 0.51 of one of 8192."""
    two, one = (quick_prediction(Plan.parse(text), HALF, H200).products for text in ("gram > vendor", "vendor"))
    whole = quick_prediction(Plan.parse("vendor"), Problem(8192, 8192, 8192, "float32"), H200).products
    below = quick_prediction(Plan.parse("vendor"), Problem(4096, 8192, 4096, "float32"), H200).products
    assert one / whole == pytest.approx(0.51, abs=0.02)
    assert (two - below) / (2 * below) == pytest.approx(0.65, abs=0.06)


def test_a_half_of_16_bit_numbers_that_must_keep_the_other_one() -> None:
    """The kernel writes more than the lower half: a whole product of the tiles' is what that costs."""
    full, lower = (Problem(8192, 8192, 8192, "bfloat16", op="gram", fill=fill) for fill in ("full", "lower"))
    plan = Plan.parse("tile")
    assert quick_prediction(plan, lower, H200).products > 1.5 * quick_prediction(plan, full, H200).products


@pytest.mark.parametrize(
    ("n", "plan"), [(2048, "3m(strassen.pad16) > vendor"), (4096, "3m(strassen^2.pad16) > vendor")]
)
def test_complex_products(n: int, plan: str) -> None:
    """1.26 times cuBLAS's speed at 2048, where three products alone are 1.21 times."""
    assert chosen(n, "complex128") == plan


def test_what_few_tiles_leave_in_doubt() -> None:
    """Of complex numbers C has twice as many, in whole waves; of a half half as many."""
    of = {dtype: few_tiles_margin(Problem(2048, 2048, 2048, dtype), H200) for dtype in ("float64", "complex128")}
    assert COUNTED_ROUNDS_MARGIN_SHARE * of["float64"] == pytest.approx(2 * of["complex128"])
    half = few_tiles_margin(Problem(2048, 2048, 2048, "float64", op="gram"), H200)
    assert half == pytest.approx(2 * of["float64"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_that_are_not_aligned_are_slow_in_halves_too(dtype: str) -> None:
    """The vendor has no function for one triangle of these: it computes the whole product, and fmm mirrors it."""
    for n, k in ((4002, 246), (16933, 355), (2346, 3380)):
        half, whole = Problem(n, k, n, dtype, op="gram"), Problem(n, k, n, dtype)
        vendor = Plan.parse("vendor")
        assert (
            quick_prediction(vendor, half, H200).predicted_seconds
            >= quick_prediction(vendor, whole, H200).predicted_seconds
        )


@pytest.mark.parametrize("size", [(5048, 2716), (6244, 4360)])
def test_halves_of_middle_size_are_left_to_syrk(size: tuple[int, int]) -> None:
    """Cuts were 8 and 9 % slower there, where the model saw 7 and 8 % less time."""
    n, k = size
    assert str(choose(Problem(n, k, n, "float64", op="gram", fill="lower"), H200, LIMITS).best.plan) == "vendor"


@pytest.mark.parametrize("size", [(272, 4558, 3224), (318, 9050, 4772)])
def test_three_products_of_few_rows_and_a_long_inner_side(size: tuple[int, int, int]) -> None:
    """The vendor cuts these products along the inner dimension: three products of fmm took 12 and 2 % more time."""
    best = choose(Problem(*size, "complex128"), H200, LIMITS).best.plan
    assert not best.levels and best.leaf_use.leaf.name in ("vendor", "vendor3m")


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize(("sheet", "folder"), [("H200", "nvidia-h200"), ("H100", "nvidia-h100-80gb-hbm3")])
def test_the_vendor_s_thin_complex_products_are_predicted(dtype: str, sheet: str, folder: str) -> None:
    """Without whole waves of small tiles, a tenth of the predictions is more than 1.7 times the measured time."""
    device, errors = datasheet_calibration(sheet), []
    for row in recorded_rows(RESULTS / folder / HELD_OUT_FILE_NAME):
        if row.dtype == dtype and row.kind == "thin" and (seconds := median(row.seconds["vendor"])) > SHORT_SECONDS:
            errors.append(abs(log(predict_vendor(Problem(*row.size, dtype), device).predicted_seconds / seconds)))
    assert len(errors) > 30 and sorted(errors)[round(0.9 * len(errors))] < 0.2 and median(errors) < 0.1


def test_cublas_s_product_by_three_is_chosen_where_thin_rows_are_not_aligned() -> None:
    """On an H100 it has 1.3 to 1.5 times the speed of cuBLAS's usual product for these shapes."""
    device = datasheet_calibration("H100")
    for size in ((309, 12337, 4459), (497, 14723, 3299), (647, 4327, 1495), (3803, 10975, 807)):
        assert str(choose(Problem(*size, "complex128"), device, LIMITS).best.plan) == "vendor3m"


def test_halves_by_residues_are_no_candidates_without_emulation() -> None:
    """Nor blocks on the diagonal by them: there they are chosen alone, where emulation is allowed."""
    problem = Problem(8192, 8192, 8192, "float64", op="gram", fill="lower")
    assert str(choose(problem, H200, replace(LIMITS, emulation=True)).best.plan) == "residues(14) > bytes"
    found = choose(problem, H200, LIMITS)
    assert not found.best.plan.uses_emulation and not any(".oz" in str(c.plan) for c in found.candidates)
    plan = Plan.parse("gram.residues(14) > vendor")
    assert plan.uses_emulation and not has_componentwise_bound(plan) and not LIMITS.allows_plan(plan, 1.0)


# ---- small halves


RECORDED = Path(__file__).parents[2] / "results" / "nvidia-h200" / "host-transposed.json"
SMALL = Plan.parse("small")


def recorded_call(dtype: str, n: int, call: str) -> float:
    """Seconds of a recurring call there, the median of its rounds."""
    rows = [r for r in json.loads(RECORDED.read_text())["rows"] if (r["dtype"], r["n"]) == (dtype, n) and call in r]
    return float(median(rows[0][call])) / 1e6


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_what_a_launch_of_the_leaf_for_small_halves_takes(dtype: str) -> None:
    """At 512 the device takes longer than the processor's call does, at 256 it does not."""
    for n, call in ((512, H200.call_of_leaf), (256, H200.call_of_small)):
        taken = quick_prediction(SMALL, Problem(n, n, n, dtype, op="gram"), H200).predicted_seconds
        assert taken < call
        if n == 512:
            assert taken == pytest.approx(recorded_call(dtype, n, "fmm.gram"), rel=0.05)


@pytest.mark.quick_cases()
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("device", ["H200", "A100", "V100"])
def test_small_halves_are_one_launch(dtype: str, device: str) -> None:
    if dtype not in datasheet_calibration(device).rates:
        return
    for n, k in ((1, 1), (31, 470), (480, 3), (257, 258), (480, 480)):
        for fill in VALID_FILLS:
            found = choose(Problem(n, k, n, dtype, op="gram", fill=fill), datasheet_calibration(device), LIMITS)
            assert found.best.plan == SMALL and found.best.time < 1
    for size in ((481, 30, 481), (30, 481, 30)):
        considered = choose(Problem(*size, dtype, op="gram"), datasheet_calibration(device), LIMITS).candidates
        assert SMALL not in [c.plan for c in considered]


def test_small_halves_are_no_products_and_no_blocks_of_larger_ones() -> None:
    for problem in (Problem(256, 256, 256, "float32"), Problem(4096, 4096, 4096, "float32", op="gram")):
        assert not any("small" in str(c.plan) for c in choose(problem, H200, LIMITS).candidates)


# ---- what the vendor's own halves take


def test_syrk_is_slow_where_the_inner_side_is_short() -> None:
    vendor = Plan.parse("vendor")

    def times_the_whole(n: int, k: int, dtype: str) -> float:
        half, whole = (quick_prediction(vendor, Problem(n, k, n, dtype, op=op), H200) for op in ("gram", "product"))
        return half.predicted_seconds / whole.predicted_seconds

    assert times_the_whole(3020, 170, "float32") == pytest.approx(2.2, rel=0.1)
    assert times_the_whole(3932, 72, "float32") == pytest.approx(2.4, rel=0.1)
    assert times_the_whole(4096, 255, "float64") > 1 > 1 / 1.4 > times_the_whole(16933, 355, "float64")
    for n, seconds in ((8192, 11.0e-3), (16384, 85.3e-3)):
        lower = quick_prediction(vendor, Problem(n, n, n, "float32", op="gram", fill="lower"), H200)
        assert lower.predicted_seconds == pytest.approx(seconds, rel=0.05)  # results/nvidia-h200/gram-plans.json
