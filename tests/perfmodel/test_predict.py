"""Prediction and choice: the formula by hand, quick counts against exact ones, limits, speed, bad input."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from types import MappingProxyType

import pytest

from fmm.dtypes import DTYPES
from fmm.hardware.datasheets import datasheet_names
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.cuda.sums.sum_launch import SumOp
from fmm.kernels.plans.leaf import plan_leaves
from fmm.kernels.plans.levels.scheme_level import SchemeLevel
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.candidates import device_candidate_plans, gram_candidates
from fmm.perfmodel.choose import Choice, Limits, choose, few_tiles_margin, rank_candidates, required_margin
from fmm.perfmodel.default_calibration import cpu_calibration, datasheet_calibration
from fmm.perfmodel.predict import (
    SPLIT_K_STEPS,
    TILE_WRITE_STEPS,
    UNPAIRED_WRITE_FACTOR,
    WAITING_FACTOR,
    hidden_sum_share,
    predict,
    predict_from_work,
    predict_vendor,
    quick_prediction,
    tiled_slowdown,
    vendor_slowdown,
)
from fmm.perfmodel.work import LeafTiles, PlanWork, counted_work, estimated_work, estimated_workspace, sum_access_bytes
from fmm.problem import Problem
from tests.support.marks import quick_and_slow

LARGE = Limits(1 << 62, 1e9)
SIMPLE = Calibration("simple", "by hand", MappingProxyType({"float64": ProductRate(1e9, 0, 0)}), 1e9)


# ---- one prediction by hand: the worked example of docs/model.md


def test_one_prediction_by_hand() -> None:
    """One level of Strassen's algorithm on an A100, float64, 8192: T = P + S + L, from the datasheet's numbers."""
    flops, stream, launch = 0.8 * 19.5e12, 0.75 * 2039e9, 4e-6
    fill, pipe, small = 108 * 128**2 / 8, 32, stream * launch
    q = 4096**2  # numbers of a quarter of a matrix
    full_rate = 2 * 4096**3 / flops
    slowdown = 1 + fill / (7 * q) + pipe / 4096
    products = 7 * max(full_rate * slowdown, 3 * q * 8 / stream)
    traffic = (4 + 7) * q + (4 + 7) * q + (7 + 4) * q  # the splits of A and of B, the join of C
    sums = (traffic * 8 + 3 * small) / stream
    launches = launch * (1 + 3)
    vendor = 2 * 8192**3 / flops * (1 + fill / 8192**2 + pipe / 8192) + launch
    assert products + sums + launches == pytest.approx(0.065194, rel=1e-4)
    assert vendor == pytest.approx(0.070993, rel=1e-4)

    problem, calibration = Problem(8192, 8192, 8192, "float64"), datasheet_calibration("A100")
    found = predict(Plan.parse("strassen.batched.pad16 > vendor"), problem, calibration)
    assert found.products == pytest.approx(products)
    assert found.sums == pytest.approx(sums)
    assert found.launches == pytest.approx(launches)
    assert not found.hidden and not found.ends
    assert found.predicted_seconds == pytest.approx(products + sums + launches)
    assert predict_vendor(problem, calibration).predicted_seconds == pytest.approx(vendor)
    margin = required_margin(found.plan, problem, calibration)
    assert margin == pytest.approx(0.03 + 45 * 128**2 / 8192**2) and found.predicted_seconds / vendor < 1 - margin


# ---- the formula


def test_products_take_flops_over_rate() -> None:
    found = predict_from_work(
        VENDOR, Problem(10, 20, 30), PlanWork(((10, 20, 30, 5, 1),), 0, 0), replace(SIMPLE, stream=1e30)
    )
    assert found.products == pytest.approx(5 * 2 * 10 * 20 * 30 / 1e9)
    assert (found.sums, found.launches, found.hidden) == (0, 0, 0)


def test_a_thin_product_takes_as_long_as_its_memory() -> None:
    found = predict_from_work(VENDOR, Problem(1000, 1, 1000), PlanWork(((1000, 1, 1000, 1, 1),), 0, 0), SIMPLE)
    assert found.products == pytest.approx(8 * (1000 + 1000 + 1000 * 1000) / 1e9)


@pytest.mark.parametrize(
    ("rate", "together", "slowdown"),
    [
        (ProductRate(1e9, 100 * 100, 0), 1, 2.0),  # as many entries of C as fill half the device
        (ProductRate(1e9, 100 * 100, 0), 4, 1.25),  # a batch of four fills it four times better
        (ProductRate(1e9, 0, 50), 1, 1.5),  # a short inner dimension
    ],
)
def test_small_products_are_slower(rate: ProductRate, together: int, slowdown: float) -> None:
    calibration = replace(SIMPLE, rates=MappingProxyType({"float64": rate}), stream=1e30)
    found = predict_from_work(
        VENDOR, Problem(100, 100, 100), PlanWork(((100, 100, 100, together, together),), 0, 0), calibration
    )
    assert found.products == pytest.approx(together * 2e6 / 1e9 * slowdown)


@pytest.mark.parametrize(("m", "n", "together", "slowdown"), [
    (256, 128 * 132, 1, 1.0),  # a tile on each multiprocessor
    # One tile more: 33 rounds of tiles of an eighth of the size, cut in four.
    (256, 128 * 133, 1, 1.09 * 33 * 132 / 4256),
    (256, 128 * 88, 1, 1.0),  # two thirds of the tiles, each cut in three: two rounds
    (256, 128 * 66, 2, 1.0),  # of a batch of two
    (256, 128 * 33, 1, 1.0),  # a quarter of the tiles, each cut in four along the inner dimension
    (128, 128, 1, 2.06 * 0.5),  # one tile of half the size, cut
    (64, 64, 132, 1.09),  # small products in small tiles, which take longer
])  # fmt: skip
def test_whole_rounds_of_tiles(m: int, n: int, together: int, slowdown: float) -> None:
    rate = ProductRate(1e12, 1e9, 0.0, sms=132.0)
    assert vendor_slowdown(rate, m, 1 << 20, n, together) == pytest.approx(slowdown)
    assert vendor_slowdown(replace(rate, pipe=8.0), 256, 32, 128 * 132, 1) == pytest.approx(1 + 8 / 32)


def test_short_products_are_not_cut_to_fill_a_round() -> None:
    """Each part has a start of its own, of as many steps as `pipe` says."""
    rate = ProductRate(1e12, 1e9, 64.0, sms=132.0)
    long, short = (vendor_slowdown(rate, 256, k, 128 * 88, 1) for k in (1 << 20, 256))
    assert long == pytest.approx(1.0, abs=1e-3)
    assert short > 1.2


@pytest.mark.parametrize(("n", "tiles"), [(1024, 4), (1061, 5), (1281, 6)])
def test_tiles_may_be_wider_than_high(n: int, tiles: int) -> None:
    """The last one of a row of tiles is computed as a whole."""
    rate = ProductRate(1e12, 0.0, 0.0, tile=128.0, width=256.0)
    assert vendor_slowdown(rate, 1280, 4096, n, 1) == pytest.approx(256 * tiles / n)
    assert vendor_slowdown(replace(rate, slots=1e6), 1280, 4096, n, 1) == pytest.approx(1e6 * 128**2 / (1280 * n))


def test_what_each_start_takes_beside_the_product() -> None:
    plain, late = (datasheet_calibration("h200"), datasheet_calibration("h200"))
    plan = Plan.parse("residues(14) > bytes")
    own = plain.rates[plan.rate_name("float64")]
    rates = {**plain.rates, plan.rate_name("float64"): replace(own, start=1e-3)}
    problem = Problem(2048, 2048, 2048)
    late = replace(late, rates=MappingProxyType(rates))
    more = predict(plan, problem, late).predicted_seconds - predict(plan, problem, plain).predicted_seconds
    assert more == pytest.approx(1e-3 - own.start) and own.start > 0


def test_fused_products_wait_for_each_other_where_one_leaves_multiprocessors_free() -> None:
    rate = ProductRate(5e13, 1e5, 0.0, sms=132.0, tiled=1.0)
    calibration = Calibration("x", "", MappingProxyType({"float32": rate}), 1e15, batches=True)
    fused, tile = (Plan.parse(x) for x in ("strassen.fused.pad4 > tile", "tile"))
    for n, waits in ((4096, True), (8192, False)):  # 128 and 512 tiles of each product
        ratio = [predict(p, Problem(n, n, n, "float32"), calibration).products for p in (fused, tile)]
        writing = (1 + TILE_WRITE_STEPS / (n / 2)) / (1 + TILE_WRITE_STEPS / n)
        assert ratio[0] / ratio[1] == pytest.approx(0.875 * writing * (WAITING_FACTOR if waits else 1.0))


def test_sums_launches_and_overlap() -> None:
    calibration = replace(SIMPLE, small=1000.0, launch=1e-3, overlap=0.5)
    work = PlanWork(((100, 100, 100, 6, 3),), 5000, 4, overlapped=0.25)
    found = predict_from_work(VENDOR, Problem(100, 100, 100), work, calibration)
    assert found.sums == pytest.approx((5000 * 8 + 4 * 1000) / 1e9)
    assert found.launches == pytest.approx((6 / 3 + 4) * 1e-3)
    assert found.hidden == pytest.approx(0.5 * min(found.sums / 4, found.products))
    assert found.predicted_seconds == pytest.approx(found.products + found.sums + found.launches - found.hidden)
    assert found.dominant_term == max(("products", "sums", "launches"), key=lambda name: getattr(found, name))
    assert "leaves out" in str(found)
    assert found.dominant_term in str(found)


def test_nothing_is_hidden_behind_thread_blocks_that_hold_the_device() -> None:
    """Of sums below an overlapped level half is hidden by the vendor's products and our tiles, none by f16x3."""
    problem, known = Problem(8192, 8192, 8192, "float32"), replace(datasheet_calibration("h200"), overlap=0.5)
    hidden = {}
    for leaf in ("vendor", "tile", "f16x3"):
        plan = Plan.parse(f"strassen.overlapped.pad16 > strassen^2.batched.pad16 > {leaf}")
        hidden[leaf] = predict(plan, problem, known).hidden
    assert hidden["vendor"] == hidden["tile"] > 0 == hidden["f16x3"]


def test_the_row_of_f16x3_says_that_it_holds_the_device_and_no_other_does() -> None:
    """Where the vendor multiplies its planes, as on a B200, it does not."""
    assert [leaf.name for leaf in plan_leaves() if leaf.fills_device] == ["f16x3"]
    for leaf, device, share in (
        ("f16x3", "h200", 0.0),
        ("f16x3", "a100", 0.0),
        ("f16x3", "b200", 0.5),
        ("vendor", "h200", 0.5),
    ):
        plan, known = Plan.parse(f"winograd.overlapped > {leaf}"), replace(datasheet_calibration(device), overlap=0.5)
        assert known.find_rate(plan.rate_name("float32")) is not None
        assert hidden_sum_share(plan, "float32", known) == share


def test_sums_may_be_in_the_way_of_products() -> None:
    work = PlanWork(((100, 100, 100, 6, 3),), 5000, 4, overlapped=0.25)
    beside, apart = (
        predict_from_work(VENDOR, Problem(100, 100, 100), work, replace(SIMPLE, overlap=o)) for o in (-0.2, 0.0)
    )
    assert beside.predicted_seconds - apart.predicted_seconds == pytest.approx(
        0.2 * min(apart.sums / 4, apart.products)
    )
    assert "because sums and products delay each other" in str(beside) and "hidden" not in str(beside)


@pytest.mark.parametrize(
    ("plan", "n", "slower"),
    [
        ("vendor", 512, 1.0),
        ("vendor", 510, 5.0),
        ("vendor", 511, 9.0),
        ("vendor", 508, 5.0),  # rows of 8 bytes' alignment
        ("strassen.batched.pad16 > vendor", 512, 1.5),
        ("strassen.batched.pad16 > vendor", 511, 1.5),  # copies are aligned
        ("aligned.batched.pad16 > vendor", 511, 1.0),
        ("winograd.overlapped.pad16 > vendor", 511, 1 + 1 / 7 * 8.0),  # one of its products reads blocks in place
        ("winograd.overlapped.pad16 > vendor", 510, 1 + 1 / 7 * 4.0),
        ("winograd^2.pad16 > vendor", 511, 1 + 16 / 49 * 8.0),  # seven read blocks of A or B, nine write blocks of C
        ("strassen.overlapped.pad16 > strassen.batched.pad16 > vendor", 511, 1.5),
    ],
)
def test_alignment_and_batches_slow_products_down(plan: str, n: int, slower: float) -> None:
    plain = Calibration("slow memory", "", {"bfloat16": ProductRate(1e12, 0, 0)}, 1e15)
    told = replace(plain, rates={"bfloat16": ProductRate(1e12, 0, 0, unaligned=5.0, odd=9.0, batch=1.5)})
    problem = Problem(n, n, n, "bfloat16")
    before, after = (predict(Plan.parse(plan), problem, c) for c in (plain, told))
    assert after.products == pytest.approx(slower * before.products)


@pytest.mark.parametrize(
    ("k", "n", "slower"), [(508, 512, 1 + 4 * 1.5), (512, 508, 5.0), (508, 508, 5.0), (511, 512, 13.0)]
)
def test_rows_of_a_alone_that_are_not_aligned_are_a_case_of_their_own(k: int, n: int, slower: float) -> None:
    plain = Calibration("slow memory", "", {"bfloat16": ProductRate(1e12, 0, 0)}, 1e15)
    told = replace(plain, rates={"bfloat16": ProductRate(1e12, 0, 0, unaligned=5.0, odd=9.0, alone=1.5)})
    before, after = (predict_vendor(Problem(512, k, n, "bfloat16"), c) for c in (plain, told))
    assert after.products == pytest.approx(slower * before.products)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize(
    ("plan", "unaligned"),
    [
        ("vendor", 1.0),
        ("3m > vendor", 1.0),  # the real parts of a row are a row of equally many numbers
        ("3m.batched > vendor", 1.0),
        ("3m(strassen.pad16) > vendor", 0.0),  # which are padded
        ("3m > strassen.batched.pad16 > vendor", 0.0),
    ],
)
def test_rows_of_an_odd_number_of_complex_numbers_are_not_aligned(dtype: str, plan: str, unaligned: float) -> None:
    found = {n: estimated_work(Plan.parse(plan), Problem(2000, 2000, n, dtype)).unaligned for n in (2000, 2001)}
    assert found == {2000: 0.0, 2001: unaligned}


@pytest.mark.parametrize(
    ("dtype", "term", "n", "plans"),
    [
        ("bfloat16", "ragged", 8184, ("strassen", "strassen^2", "strassen^3")),  # multiples of 16 bytes, not of 64
        ("bfloat16", "scalar", 8184, ()),
        ("bfloat16", "scalar", 8190, ("strassen", "strassen^2")),  # of 4: three levels move two numbers at a time
        ("bfloat16", "scalar", 8191, ("strassen", "strassen^2", "strassen^3")),
        ("float32", "scalar", 8190, ("strassen", "strassen^2")),  # of 8
        ("float32", "scalar", 8191, ("strassen", "strassen^2", "strassen^3")),
        ("float64", "scalar", 8191, ("strassen", "strassen^2")),  # of 8: three levels move one number at a time
    ],
)
@pytest.mark.parametrize("plan", ["strassen", "strassen^2", "strassen^3"])
def test_sums_on_rows_that_begin_anywhere(dtype: str, term: str, n: int, plans: tuple[str, ...], plan: str) -> None:
    """All sums of one pass are on A, B and C; which rows are in the way depends on what its kernels move at a time."""
    smooth = Calibration("", "", {dtype: ProductRate(1e15, 0, 0)}, 1e12)
    slow = replace(smooth, **{term: 0.5})  # type: ignore[arg-type]
    plan_ = Plan.parse(f"{plan}.batched.pad16 > vendor")
    for side, factor in ((8192, 1.0), (n, 2.0 if plan in plans else 1.0)):
        before, after = (predict(plan_, Problem(side, side, side, dtype), c).sums for c in (smooth, slow))
        assert after == pytest.approx(factor * before)


@pytest.mark.parametrize(
    ("plan", "dtype", "slower"),
    [
        ("3m > vendor", "complex64", (2.0, 2.0)),
        ("3m(strassen) > vendor", "complex64", (2.0, 2.0)),
        ("3m > strassen > vendor", "complex128", (1.2, 1.8)),  # sums of real numbers below
        ("strassen > vendor", "complex64", (1.0, 1.0)),
        ("strassen > vendor", "float32", (1.0, 1.0)),
    ],
)
def test_sums_of_the_parts_of_complex_numbers(plan: str, dtype: str, slower: tuple[float, float]) -> None:
    smooth = Calibration("", "", {dtype: ProductRate(1e15, 0, 0)}, 1e12)
    before, after = (
        predict(Plan.parse(plan), Problem(2048, 2048, 2048, dtype), c).sums
        for c in (smooth, replace(smooth, parts=0.5))
    )
    assert slower[0] <= after / before <= slower[1]


def test_a_processor_that_was_not_tuned_leaves_middling_complex_products_alone() -> None:
    """As two cores with AVX-512 showed: 0.86 of the vendor's speed at 1024, 1.03 at 1500, 1.2 at 3000."""
    measured = replace(
        cpu_calibration(2),
        rates={t: ProductRate(357e9, 0, 50, 50, 50) for t in ("float32", "complex64")},
        stream=15.5e9,
    )
    seconds = [
        predict(Plan.parse("3m > vendor"), Problem(n, n, n, "complex64"), measured).predicted_seconds
        for n in (1024, 1500, 3000)
    ]
    assert seconds == pytest.approx([0.0311, 0.0807, 0.552], rel=0.08)


@pytest.mark.quick_cases()
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("plan", quick_and_slow(["strassen", "strassen^2", "winograd", "winograd^2"], ["strassen^3"]))
def test_what_sums_move_at_a_time_is_what_their_kernels_do(dtype: str, plan: str) -> None:
    batched = ".batched" if plan.startswith("strassen") else ""
    tape = record_operations(Plan.parse(f"{plan}{batched}.pad16 > vendor"), Problem(1024, 1024, 1024, dtype))
    first = Plan.parse(f"{plan} > vendor").levels[0]
    assert isinstance(first, SchemeLevel)
    kernels = [op.kernel for op in tape.ops if isinstance(op, SumOp)]
    moved = {kernel.vector_width * DTYPES[kernel.element].itemsize for kernel in kernels}
    assert moved == {sum_access_bytes(first.products, DTYPES[dtype].itemsize)}


@pytest.mark.parametrize(
    ("plan", "n", "share"),
    [
        ("vendor", 511, 0.0),
        ("aligned.batched.pad16 > vendor", 511, 1.0),
        ("aligned.batched.pad16 > vendor", 512, 0.0),  # nothing is in the way
        ("strassen.batched.pad16 > vendor", 508, 1.0),  # rows of 8 bytes' alignment
        ("winograd.overlapped.pad16 > vendor", 511, 6 / 7),  # one of its products reads blocks in place
    ],
)
def test_products_of_aligned_copies_are_a_case_of_their_own(plan: str, n: int, share: float) -> None:
    plain = Calibration("slow memory", "", {"bfloat16": ProductRate(1e12, 0, 0)}, 1e15)
    told = replace(plain, rates={"bfloat16": ProductRate(1e12, 0, 0, copied=0.9)})
    before, after = (predict(Plan.parse(plan), Problem(n, n, n, "bfloat16"), c) for c in (plain, told))
    assert after.products == pytest.approx((1 - 0.1 * share) * before.products)


LANES = replace(SIMPLE, lanes=2, idle=0.1, spin=0.2, apart=0.25)


@pytest.mark.parametrize("spin", [0.2, 1e9])
def test_two_products_at_a_time(spin: float) -> None:
    """Leaves are batches of two, the check for overflow is a sum that reads A and B, and what BLAS's threads spin takes
    at most the half of one processor of two: a third of the time without it."""
    n = 1024
    calibration = replace(LANES, spin=spin, rates={"float64": ProductRate(1e9, n * n / 4, 0, batch=1.1)})
    work = PlanWork(((n / 2, n / 2, n / 2, 7, 1),), 5e6, 4)
    found = predict_from_work(Plan.parse("winograd > vendor"), Problem(n, n, n), work, calibration)
    assert found.products == pytest.approx(7 / 4 * n**3 / 1e9 * 1.1 * (1 + 1 / 2))
    assert found.sums == pytest.approx((5e6 + 2 * n * n) * 8 / 1e9)
    assert found.ends == pytest.approx(0.1 + min(spin, (found.products + found.sums + 0.1) / 3))
    assert found.predicted_seconds == pytest.approx(found.products + found.sums + found.ends)
    assert "beginning and end" in str(found)


def test_the_vendors_product_and_small_plans_know_no_lanes() -> None:
    for n in (512, 4096):
        problem = Problem(n, n, n)
        assert predict_vendor(problem, LANES).predicted_seconds == predict_vendor(problem, SIMPLE).predicted_seconds
    plan, problem = Plan.parse("winograd > vendor"), Problem(1000, 1000, 1000)
    found, plain = (predict(plan, problem, c) for c in (LANES, SIMPLE))
    assert found.products == plain.products and found.ends == 0
    assert found.sums == pytest.approx((plain.sums + 2 * 1000**2 * 8 / 1e9) / 0.25)


@pytest.mark.slow
def test_a_device_without_lanes_is_predicted_as_before() -> None:
    told = replace(datasheet_calibration("h200"), idle=9.0, spin=9.0, apart=9.0)
    for plan in device_candidate_plans(True):
        problem = Problem(8192, 8192, 8192, "float32")
        assert predict(plan, problem, told) == predict(plan, problem, datasheet_calibration("h200"))


def test_complex_products_do_four_times_the_flops() -> None:
    calibration = datasheet_calibration("h200")
    real, complex_ = (predict_vendor(Problem(4096, 4096, 4096, t), calibration) for t in ("float64", "complex128"))
    assert complex_.products == pytest.approx(4 * real.products)


# ---- estimated counts against exact ones


PLANS = sorted(
    {*device_candidate_plans(True), *device_candidate_plans(False), Plan.parse("balanced > hasa > vendor")}, key=str
)


def test_the_estimated_work_is_exact_where_sizes_divide() -> None:
    problem = Problem(32 * 64, 32 * 64, 32 * 64)
    for plan in PLANS:
        quick, exact = estimated_work(plan, problem), counted_work(plan, problem)
        assert quick.passes == pytest.approx(exact.passes), plan
        assert quick.traffic == pytest.approx(exact.traffic), plan
        leaves = [[tuple(map(float, leaf)) for leaf in work.leaves] for work in (quick, exact)]
        assert leaves[0] == leaves[1], plan


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("n", [512, 2047, 5001])
def test_the_estimated_workspace_is_within_a_factor_of_two(n: int) -> None:
    for plan in PLANS:
        exact = plan_workspace_bytes(plan, n, n, n, 8)
        assert exact / 2 <= estimated_workspace(plan, Problem(n, n, n)) <= 2 * exact, plan


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("n", "k"), [(511, 511), (3001, 999), (8192, 8192)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_estimated_workspace_of_self_adjoint_products_is_within_a_factor_of_two(
    device: str, dtype: str, n: int, k: int
) -> None:
    """The estimate includes the leaves' scratch memory for triangles, and for batches of triangles and of products."""
    problem = Problem(n, k, n, dtype, op="gram")
    for plan in gram_candidates(device):
        if plan.accepts_type(dtype):
            exact = plan_workspace_bytes(plan, *problem.size, problem.itemsize, op="gram")
            assert exact / 2 <= estimated_workspace(plan, problem) <= 2 * exact, plan


def test_a_triangle_with_scratch_memory_is_not_chosen_without_workspace() -> None:
    problem, h200 = Problem(8192, 8192, 8192, "float32", op="gram"), datasheet_calibration("h200")
    assert choose(problem, h200, LARGE).best.workspace_bytes > 0
    assert choose(problem, h200, Limits(0, 1e9)).best.workspace_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize(("size", "first"), [((3001, 2999, 4003), 0), ((5000, 7000, 6000), 1), ((6001, 2203, 3307), 2)])
def test_the_estimated_time_is_near_the_exact_one_where_sizes_do_not_divide(
    size: tuple[int, int, int], first: int
) -> None:
    """Every plan at one of three sizes."""
    problem, calibration = Problem(*size, "float32"), datasheet_calibration("v100")
    for plan in PLANS[first::3]:
        quick = quick_prediction(plan, problem, calibration).predicted_seconds
        assert quick == pytest.approx(predict(plan, problem, calibration).predicted_seconds, rel=0.08), plan


# ---- choosing


def test_small_products_are_the_vendors_and_large_ones_are_not() -> None:
    for calibration in (cpu_calibration(2), cpu_calibration(16), *map(datasheet_calibration, ("v100", "a100", "h200"))):
        small, large = (choose(Problem(n, n, n, "float32"), calibration, LARGE) for n in (200, 40000))
        assert small.best.plan == VENDOR
        assert "no plan" in small.reason
        assert large.best.time < 0.9
        assert calibration.source in large.reason


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("name", [n for n in datasheet_names() if n not in ("C1060", "C2050", "GTX 1050")])
def test_every_datasheet_predicts_every_type_it_has(name: str) -> None:
    calibration = datasheet_calibration(name)
    for dtype in calibration.rates.keys() & DTYPES:
        found = choose(Problem(8192, 8192, 8192, dtype), calibration, LARGE)
        assert 0 < found.best.prediction.predicted_seconds < 100
        peak = calibration.rates[dtype].flops
        assert predict_vendor(Problem(8192, 8192, 8192, dtype), calibration).effective_flops <= peak


@pytest.mark.parametrize(
    ("device", "dtype", "n", "published"),
    [
        ("C1060", "float32", 16384, 23.699),  # Li et al., Figure 24: seconds of sgemm
        ("C1060", "float32", 8192, 2.966),
        ("C2050", "float64", 8192, 3.634),  # Figure 40: seconds of dgemm
        ("C2050", "float64", 4096, 0.456),
    ],
)
def test_the_cards_of_li_multiply_as_fast_as_published(device: str, dtype: str, n: int, published: float) -> None:
    found = predict_vendor(Problem(n, n, n, dtype), datasheet_calibration(device))
    assert found.predicted_seconds == pytest.approx(published, rel=0.03)


def test_the_best_is_the_fastest_of_those_within_the_limits() -> None:
    problem, calibration = Problem(16384, 16384, 16384, "float32"), datasheet_calibration("h200")
    free = choose(problem, calibration, LARGE)
    assert free.best == min(free.candidates, key=lambda c: c.time)
    less, lean = 0.99 * free.best.error_growth, free.best.workspace_bytes - 1
    for growth, space in ((less, 1 << 50), (100.0, lean), (less, lean), (100.0, 0)):
        found = choose(problem, calibration, Limits(space, growth))
        allowed = [c for c in found.candidates if c.error_growth <= growth and c.workspace_bytes <= space]
        assert found.best == min(allowed, key=lambda c: c.time)
        assert {c.plan for c in free.candidates} <= {c.plan for c in found.candidates}
        assert found.best.workspace_bytes == plan_workspace_bytes(found.best.plan, *problem.size, 4)
        assert "than allowed" in found.reason
    assert choose(problem, calibration, Limits(0, 100.0)).best.plan == VENDOR


def test_a_win_within_the_margin_is_not_taken() -> None:
    """Just where the best plan is predicted to gain less than the margin, the vendor is chosen."""
    calibration = cpu_calibration(2)
    gains = [(n, rank_candidates(Problem(n, n, n), calibration)[0]) for n in range(2000, 6000, 50)]
    narrow = [n for n, best in gains if 1 - calibration.margin < best.time < 1]
    assert narrow
    for n in narrow:
        assert choose(Problem(n, n, n), calibration, LARGE).best.plan == VENDOR


@pytest.mark.parametrize(
    ("plan", "size", "more"),
    [
        ("strassen.batched.pad16 > vendor", (1280, 4096, 1280), 0.45),  # a hundred tiles
        ("strassen.batched.pad16 > vendor", (12800, 4096, 1280), 0.045),
        ("strassen^3.batched.pad16 > vendor", (12800, 4096, 1280), 0.045),  # however small its leaf products are
        ("aligned.batched.pad16 > vendor", (1280, 4096, 1280), 0.01),  # ten tiles wide
        ("aligned.batched.pad16 > vendor", (1280, 128, 1280), 0.1),
    ],
)
def test_a_plan_must_promise_more_where_the_result_is_of_few_tiles_or_thin(
    plan: str, size: tuple[int, int, int], more: float
) -> None:
    rate = ProductRate(1e15, 0, 0, tile=128.0)
    known = Calibration("gpu", "", MappingProxyType({"float32": rate}), 1e12, batches=True, margin=0.02)
    _, found = sorted(
        rank_candidates(Problem(*size, "float32"), known, [VENDOR, Plan.parse(plan)]), key=lambda c: c.plan != VENDOR
    )
    assert found.margin == pytest.approx(0.02 + more)


def test_less_must_be_promised_where_the_vendors_rounds_are_known() -> None:
    problem = Problem(1280, 4096, 1280, "float32")
    known, rounds = (
        Calibration(
            "gpu", "", MappingProxyType({"float32": ProductRate(1e15, 0, 0, tile=128.0, sms=sms)}), 1e12, batches=True
        )
        for sms in (0.0, 132.0)
    )
    assert 0 < few_tiles_margin(problem, rounds) < 0.5 * few_tiles_margin(problem, known)


def test_preparing_operands_is_not_rounded_up_to_whole_tiles() -> None:
    """Of our own kernels: 129 columns are computed as 256; A is split once all the same. (6507 x 12429 x 149 by float16
    products was predicted 1.7 times as long as it took.)"""
    narrow, whole = Problem(1280, 4096, 129), Problem(1280, 4096, 256)
    rate = ProductRate(1e12, 0.0, 0.0, rows=1e6, cols=1e6, tile=128.0, slots=1.0)
    known = Calibration("gpu", "", MappingProxyType({"float64": rate}), 1e15, batches=True)
    computing = replace(known, rates=MappingProxyType({"float64": replace(rate, rows=0.0, cols=0.0)}))
    reading = [
        predict_vendor(p, known).predicted_seconds - predict_vendor(p, computing).predicted_seconds
        for p in (narrow, whole)
    ]
    assert predict_vendor(narrow, computing).predicted_seconds == pytest.approx(
        predict_vendor(whole, computing).predicted_seconds
    )
    # A takes 1280 x 4096 of what a flop takes a million times, B 4096 x n.
    assert reading[0] == pytest.approx(2 * 4096 * (1280 + 129) * 1e6 / 1e12)
    assert reading[1] == pytest.approx(2 * 4096 * (1280 + 256) * 1e6 / 1e12)


def test_a_tiles_start_is_hidden_behind_the_tiles_before_it() -> None:
    """Of our own kernel: a multiprocessor that computes several loads the next one while it ends the last; what it
    writes, it writes after each."""
    tiles = LeafTiles(128, 128)
    rate = ProductRate(1e12, 0.0, 64.0, tiled=1.0, sms=132.0)
    whole = 1 + TILE_WRITE_STEPS / 64
    one, eight = (tiled_slowdown(tiles, rate, 128 * 12, 64, 128 * 11, batch) - whole for batch in (1, 8))
    assert one == pytest.approx(1.0) and eight == pytest.approx(1.0 / 8)
    assert tiled_slowdown(tiles, replace(rate, sms=0.0), 128 * 12, 64, 128 * 11, 8) == pytest.approx(whole + 1), (
        "not known"
    )


def _planes_seconds(m: int, k: int, n: int, **changed: float) -> float:
    rate = replace(ProductRate(1e12, 0.0, 512.0, blocks=132.0), **changed)
    rates = MappingProxyType({"float32": ProductRate(1e12, 0.0, 0.0), "f16x3": rate})
    known = Calibration("gpu", "", rates, 1e15, batches=True)
    return predict(Plan.parse("f16x3"), Problem(m, k, n, "float32"), known).products


def test_three_products_take_whole_rounds_of_their_own_tiles() -> None:
    """66 clusters at a time compute 256 x 128 numbers each; one more takes more rounds, of narrower tiles."""
    flop = 2 / 1e12
    one = _planes_seconds(256 * 6, 640, 128 * 11)
    assert one == pytest.approx(132 * 128 * 128 * (640 + 512) * flop)
    more = _planes_seconds(256 * 6, 640, 128 * 11 + 8)
    assert 1.4 * one < more < 2 * one, "three rounds of narrow tiles"
    assert _planes_seconds(256 * 12, 640, 128 * 11) == pytest.approx(2 * one)
    assert _planes_seconds(256 * 6, 577, 128 * 11) == pytest.approx(one), "whole chunks of the inner dimension"


@pytest.mark.parametrize(("n", "singly"), [(1407, True), (1406, False), (1404, False)])
def test_rows_of_c_that_are_written_one_number_at_a_time(n: int, singly: bool) -> None:
    """As `f16x3` writes those that do not begin at multiples of eight bytes: a tile ends later."""
    end = 512 * (UNPAIRED_WRITE_FACTOR if singly else 1.0)
    assert _planes_seconds(1536, 640, n) == pytest.approx(132 * 128 * 128 * (640 + end) * 2 / 1e12)


def test_three_products_begin_late_and_read_their_operands_first() -> None:
    plain = _planes_seconds(1536, 640, 1408)
    assert _planes_seconds(1536, 640, 1408, start=1e-3) == pytest.approx(plain + 1e-3)
    reading = 2 * 640 * 1408 * 100 / 1e12  # each number of B takes as long as 100 multiply-adds
    assert _planes_seconds(1536, 640, 1408, rows=100.0) == pytest.approx(plain + reading)


def test_what_takes_longer_where_rows_are_not_aligned() -> None:
    """Multiplying does, the beginning and end of a tile by the root of it, reading operands does not."""
    for rate, more in (
        (ProductRate(1e12, 0.0, 0.0), 9.0),
        (ProductRate(1e12, 0.0, 100.0), 9 + 3.0),
        (ProductRate(1e12, 0.0, 0.0, rows=100.0), 9 + 1.0),
        (ProductRate(1e12, 1e4, 0.0), 9 * 2.0),
    ):
        assert vendor_slowdown(rate, 100, 100, 100, 1, 9.0) == pytest.approx(more)


def test_products_of_few_tiles_are_cut_where_rows_are_not_aligned() -> None:
    rate = ProductRate(1e12, 1e6, 0.0)
    assert vendor_slowdown(rate, 1000, 4 * SPLIT_K_STEPS, 1000, 1, 2.0) == pytest.approx(2 * (1 + 1 / 4))
    assert vendor_slowdown(rate, 1000, 4 * SPLIT_K_STEPS, 1000, 1) == pytest.approx(2.0)


def test_nothing_is_allocated() -> None:
    """Sizes of a petabyte are counted and chosen as quickly as any other."""
    problem = Problem(10**7, 10**7, 10**7)
    tracemalloc.start()
    found: Choice = choose(problem, datasheet_calibration("h200"), LARGE)
    predict(found.best.plan, problem, datasheet_calibration("h200"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.best.plan != VENDOR
    assert peak < 20e6


# ---- bad input


def test_bad_input_names_the_value_and_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=rf"unknown dtype 'int4'.*{', '.join(DTYPES)}"):
        Problem(1, 1, 1, "int4")
    with pytest.raises(ValueError, match=r"k must be 0 or more, not -3"):
        Problem(1, -3, 1)
    with pytest.raises(ValueError, match=r"(?i)unknown device 'h300'.*h200"):
        datasheet_calibration("h300")
    with pytest.raises(ValueError, match=r"no rate for bfloat16; it has float64"):
        predict_vendor(Problem(64, 64, 64, "bfloat16"), SIMPLE)
    with pytest.raises(ValueError, match=r"no rate for float16"):
        predict_vendor(Problem(64, 64, 64, "float16"), datasheet_calibration("c1060"))


@pytest.mark.parametrize(("level", "share"), [("strassen", 4 / 21), ("strassen^2", 16 / 147), ("strassen^3", 1.0)])
def test_three_levels_in_one_pass_write_no_planes(level: str, share: float) -> None:
    """Sums of one and two levels leave as planes: of three passes over an operand, one over its blocks is left."""
    plan, problem = Plan.parse(f"{level}.batched.pad16 > f16x3"), Problem(8192, 8192, 8192, "float32")
    seconds = []
    for rows in (0.0, 100.0):
        rates = {
            "float32": ProductRate(1e12, 0.0, 0.0),
            "f16x3": ProductRate(1e12, 0.0, 512.0, rows=rows, blocks=132.0),
        }
        known = Calibration("gpu", "", MappingProxyType(rates), 1e15, batches=True)
        seconds.append(predict(plan, problem, known).products)
    depth = {"strassen": 1, "strassen^2": 2, "strassen^3": 3}[level]
    side, products = 8192 >> depth, 7**depth
    assert seconds[1] - seconds[0] == pytest.approx(share * 100 / side * products * 2 * side**3 / 1e12)
