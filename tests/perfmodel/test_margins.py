"""By how much plans must win, rule by rule, on devices that are a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.choose import (
    COMPLEX_F16X3_MARGIN_SHARE,
    COUNTED_ROUNDS_MARGIN_SHARE,
    FEW_TILES_MARGIN,
    MIN_COMPLEX_TILE_SIDE,
    OTHER_TYPE_MARGIN_SHARE,
    SHORTEST_COMPLEX_SIDES,
    SHORTEST_EMULATED_SIDES,
    SHORTEST_TILED_SIDES,
    TRIANGLE_CUT_MARGIN,
    few_tiles_margin,
    filter_candidates,
    required_margin,
)
from fmm.problem import Problem, Shape

MARGIN, TILED = 0.01, 0.08
SIDE, TILE = 12800, 128.0
TILES = (SIDE / TILE) ** 2


def device(gpu: bool, sms: float = 0.0, tile: float = TILE) -> Calibration:
    rate = ProductRate(1e12, 0.0, 0.0, tile=tile if gpu else 1.0, sms=sms, tiled=1.0)
    rates = MappingProxyType(dict.fromkeys(("float32", "float64", "complex64"), rate))
    return Calibration("test", "test", rates, 1e12, batches=gpu, margin=MARGIN, tiled_margin=TILED)


def product(dtype: str = "float32", **more: str) -> Problem:
    return Problem(SIDE, SIDE, SIDE, dtype, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plan", "needed"),
    [
        ("strassen > vendor", MARGIN),
        ("strassen.fused.pad4 > tile", TILED),  # by fmm's own kernel, whose predicted time is less certain
        ("strassen.batched.pad16 > f16x3", TILED),  # by a leaf with a rate of its own
        ("tile", 0.0),  # no sums that the model could be wrong about
        ("vendor", MARGIN),
    ],
)
def test_the_margin_of_a_device_without_tiles(plan: str, needed: float) -> None:
    assert required_margin(Plan.parse(plan), product(), device(gpu=False)) == needed


def test_few_tiles_ask_for_more() -> None:
    """On a GPU the margin of a plan with levels grows as C has fewer tiles; less if the vendor's rounds are counted."""
    plan = Plan.parse("strassen.batched.pad16 > vendor")
    assert required_margin(plan, product(), device(gpu=True)) == pytest.approx(MARGIN + FEW_TILES_MARGIN / TILES)
    known = required_margin(plan, product(), device(gpu=True, sms=132.0))
    assert known == pytest.approx(MARGIN + COUNTED_ROUNDS_MARGIN_SHARE * FEW_TILES_MARGIN / TILES)
    assert required_margin(VENDOR, product(), device(gpu=True)) == MARGIN


def test_complex_numbers_have_twice_the_tiles_and_halves_half() -> None:
    on = device(gpu=True)
    assert few_tiles_margin(product("complex64"), on) == pytest.approx(FEW_TILES_MARGIN / TILES / 2)
    assert few_tiles_margin(product(op="gram"), on) == pytest.approx(2 * FEW_TILES_MARGIN / TILES)
    assert few_tiles_margin(Problem(0, 5, 7, "float32"), on) == 0.0
    assert few_tiles_margin(product(), device(gpu=False)) == 0.0


def test_smaller_tiles_of_complex_numbers_are_not_more_of_them() -> None:
    """Of real ones the doubt was settled with the tiles that fits had found."""
    (half, whole), one = (
        (device(gpu=True, tile=MIN_COMPLEX_TILE_SIDE / 2), device(gpu=True, tile=MIN_COMPLEX_TILE_SIDE)),
        product("complex64"),
    )
    assert few_tiles_margin(one, half) == few_tiles_margin(one, whole) > 0
    assert few_tiles_margin(product(), half) == few_tiles_margin(product(), whole) / 4


def test_other_numbers_without_a_cut_ask_for_a_share_of_it() -> None:
    """Three real products of a complex one: of whole sides, in another type."""
    plan = Plan.parse("3m > vendor")
    wanted = MARGIN + OTHER_TYPE_MARGIN_SHARE * FEW_TILES_MARGIN / TILES / 2
    assert required_margin(plan, product("complex64"), device(gpu=True)) == pytest.approx(wanted)


@pytest.mark.parametrize("plan", ["3m.batched > f16x3", "3m(strassen.pad16) > f16x3"])
@pytest.mark.parametrize("k", [512, 2048])
def test_complex_products_by_f16x3_ask_for_less(plan: str, k: int) -> None:
    """An error of the vendor's predicted time seldom changes the choice of a plan that is predicted to take half."""
    on, problem = device(gpu=True), Problem(512, k, 512, "complex64")
    on = replace(
        on, rates=MappingProxyType({**on.rates, "f16x3": ProductRate(3e12, 0.0, 0.0, tile=TILE, blocks=132.0)})
    )
    share = required_margin(Plan.parse(plan), problem, on) - TILED
    assert share == pytest.approx(COMPLEX_F16X3_MARGIN_SHARE * few_tiles_margin(problem, on))


def test_cuts_of_one_half_ask_for_more_on_a_gpu() -> None:
    plan, half = Plan.parse("gram > vendor"), product(op="gram")
    assert required_margin(plan, half, device(gpu=True)) == pytest.approx(
        MARGIN + TRIANGLE_CUT_MARGIN + 2 * FEW_TILES_MARGIN / TILES
    )
    assert required_margin(plan, half, device(gpu=False)) == MARGIN


def test_blocks_on_the_diagonal_that_read_turned_copies_are_known_better() -> None:
    plan = Plan.parse("gram.tile.outer > vendor")
    wanted = MARGIN + 2 * FEW_TILES_MARGIN / TILES
    assert required_margin(plan, product(op="gram"), device(gpu=True)) == pytest.approx(wanted)


def test_the_vendors_own_half_is_no_cut() -> None:
    """The vendor's triangle may replace the whole product, so few tiles ask for more."""
    wanted = MARGIN + 2 * FEW_TILES_MARGIN / TILES
    assert required_margin(VENDOR, product(op="gram"), device(gpu=True)) == pytest.approx(wanted)
    assert required_margin(VENDOR, product(op="gram"), device(gpu=False)) == MARGIN


@pytest.mark.parametrize(
    ("size", "predicted", "pays"),
    [
        ((129, 3141, 1607), 0.699, False),  # 0.72 of the vendor's speed was measured
        ((129, 3141, 1607), 0.638, False),  # 0.69 on an H100, with its prediction
        ((153, 4145, 2549), 0.757, False),  # 0.93
        ((153, 4145, 2549), 0.732, False),  # 0.79 on an H100
        ((203, 8023, 1971), 0.884, False),  # 0.83
        ((205, 10491, 5421), 0.831, False),  # 0.97
        ((201, 6369, 7079), 0.817, True),  # 1.16
        ((4543, 207, 16599), 0.799, True),  # 1.24
        ((14559, 10457, 213), 0.812, True),  # 1.33
    ],
    ids=str,
)
def test_thin_tf32_products_are_copied_only_where_that_was_faster(
    size: tuple[int, int, int], predicted: float, pays: bool
) -> None:
    """Times of an H200 (results/nvidia-h200/held-out.jsonl.gz), predicted by its calibration, with its margin."""
    on = device(gpu=True)
    on = replace(on, margin=0.08, rates=MappingProxyType({"tf32": on.rates["float32"]}))
    margin = required_margin(Plan.parse("aligned.batched.pad16 > vendor"), Problem(*size, "tf32"), on)
    assert (predicted <= 1 - margin) is pays


def test_thin_bfloat16_products_are_still_copied() -> None:
    problem, plan = Problem(131, 4000, 3001, "bfloat16"), Plan.parse("aligned.batched.pad16 > vendor")
    tf32 = replace(problem, dtype="tf32")
    on = device(gpu=True)
    on = replace(on, rates=MappingProxyType({t: next(iter(on.rates.values())) for t in ("bfloat16", "tf32")}))
    assert required_margin(plan, tf32, on) - required_margin(plan, problem, on) == pytest.approx(
        8e5 / 131**3 - 12.8 / 131
    )


@pytest.mark.parametrize(
    ("plan", "shortest"),
    [
        ("3m > vendor", SHORTEST_COMPLEX_SIDES),
        ("f16x3", SHORTEST_EMULATED_SIDES),
        ("tile", SHORTEST_TILED_SIDES),
        ("3m > f16x3", SHORTEST_COMPLEX_SIDES),
    ],
)
def test_a_product_that_is_too_thin_for_the_model_is_the_vendors_on_a_gpu(plan: str, shortest: Shape) -> None:
    dtype = "complex64" if plan.startswith("3m") else "float32"
    emulated = replace(device(gpu=True).rates["float32"], blocks=132.0)
    gpu = replace(device(gpu=True), rates=MappingProxyType({**device(gpu=True).rates, "f16x3": emulated}))
    plans = [VENDOR, Plan.parse(plan)]

    def accepted(sides: Sequence[int], calibration: Calibration) -> list[Plan]:
        m, k, n = sides
        return list(filter_candidates(Problem(m, k, n, dtype), calibration, plans))

    long = [max(side, 20000) for side in shortest]
    for i, side in enumerate(shortest):
        thin, allowed = [*long], [*long]
        thin[i], allowed[i] = side - 4 if side else 64, max(side, 64)
        assert accepted(thin, gpu) == ([VENDOR] if side else plans)
        assert accepted(allowed, gpu) == plans


def test_no_side_is_too_short_for_complex_products_on_a_cpu() -> None:
    plans = [VENDOR, Plan.parse("3m > vendor")]
    assert list(filter_candidates(Problem(16, 20000, 20000, "complex64"), device(gpu=False), plans)) == plans
