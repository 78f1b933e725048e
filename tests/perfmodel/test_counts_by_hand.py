"""Counts, shares and error bounds computed by hand, where comparisons of two countings would both follow a mistake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fmm.kernels.algorithms.step_table import register_step_table, unregister_step_table
from fmm.kernels.cuda.products.kernel_sizes import FLOAT64_SIZES, FUSED_SIZES, H200_STRATEGIES
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import ProductRate
from fmm.perfmodel.cost import Cost, cost
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.perfmodel.papers import sforza
from fmm.perfmodel.predict import tiled_slowdown
from fmm.perfmodel.stability import classical_error_bound, error_bound
from fmm.perfmodel.work import LeafTiles, estimated_work
from fmm.problem import Fill, Problem

# ---- cost: mirrors, and levels that a leaf runs as a whole


def gram_cost(plan: str, fill: Fill, beta: int = 0) -> Cost:
    """The cost of 8 x 8 numbers of float64 = A A^T with 6 columns of A."""
    return cost(Plan.parse(plan), 8, 6, 8, 8, op="gram", fill=fill, beta=beta)


@pytest.mark.parametrize("plan", ["vendor", "gram > vendor", "gram^2 > vendor"])
def test_a_mirror_in_place_reads_the_lower_triangle_and_writes_the_upper_one(plan: str) -> None:
    """Of 8 x 8 numbers: 8 * 9 / 2 = 36 with the diagonal, 8 * 7 / 2 = 28 without."""
    lower, full = gram_cost(plan, "lower"), gram_cost(plan, "full")
    assert full.bytes_read - lower.bytes_read == 36 * 8
    assert full.bytes_written - lower.bytes_written == 28 * 8
    assert (full.launches - lower.launches, full.additions - lower.additions) == (1, 0)
    # From here on in transactions of 128 bytes: 288 bytes are 3 of them, 224 bytes are 2.
    assert full.transactions - lower.transactions == 3 + 2


def test_a_mirror_from_a_temporary_writes_the_lower_triangle_too() -> None:
    """Sforza's level computes the triangle of a temporary; adding beta C reads and adds 36 numbers more."""
    plan = "sforza(1) > vendor"
    loose, lower, updated = gram_cost(plan, "loose"), gram_cost(plan, "lower"), gram_cost(plan, "lower", 1)
    assert (lower.bytes_read - loose.bytes_read, lower.bytes_written - loose.bytes_written) == (36 * 8, 36 * 8)
    assert (lower.launches - loose.launches, lower.additions - loose.additions) == (1, 0)
    assert (updated.bytes_read - lower.bytes_read, updated.additions - lower.additions) == (36 * 8, 36)
    assert (updated.bytes_written, updated.launches) == (lower.bytes_written, lower.launches)


def test_a_whole_level_of_residues_is_counted_by_its_steps() -> None:
    """64 x 32 x 128 numbers of float64 by 14 moduli, in transactions of 128 bytes."""
    found = cost(Plan.parse("residues(14) > bytes"), 64, 32, 128, 8, 128)
    a, b, c = 64 * 32, 32 * 128, 64 * 128
    # A and B are read for their exponents, then to be split; the products are read as bytes to be joined.
    assert found.bytes_read == 2 * 8 * (a + b) + 14 * c
    # One byte for each residue and for each row's and column's exponent; C in float64.
    assert found.bytes_written == 14 * (a + b) + (64 + 128) + 8 * c
    assert found.leaf_bytes == 14 * (a + b + c)
    # Two launches for exponents, two for splits, one batch of 14 products, one join.
    assert found.launches == 6
    reads = 2 * (a + b) * 8 // 128 + 14 * c // 128
    writes = 14 * (a + b) // 128 + 8 * c // 128 + 1 + 1  # exponents take a part of a transaction each
    assert found.transactions == reads + writes + 14 * (a + b + c) // 128


# ---- estimated work: shares of the traffic and of the products


def test_sums_below_an_overlapped_level_are_those_of_the_inner_level() -> None:
    """Strassen's splits read 4 and write 5 blocks of A and of B, the join reads 7 and writes 4 of C: 29 quarters.

    In a batch all 7 operands are formed, so that 33 quarters are moved, of blocks a quarter as large in 7 products.
    """
    work = estimated_work(Plan.parse("strassen.overlapped > strassen.batched > vendor"), Problem(4096, 4096, 4096))
    outer, inner = 29.0, 7 * 33 / 4
    assert work.traffic == pytest.approx((outer + inner) * 2048**2)
    assert work.overlapped == pytest.approx(inner / (outer + inner))
    three = estimated_work(
        Plan.parse("strassen.overlapped > strassen > strassen.batched > vendor"), Problem(4096, 4096, 4096)
    )
    middle, inner = 7 * outer / 4, 49 * 33 / 16
    assert three.overlapped == pytest.approx((middle + inner) / (outer + middle + inner))


def test_only_one_level_leaves_products_that_use_the_matrices_themselves() -> None:
    """Rows of 4097 numbers begin anywhere. Of Strassen's 7 products 6 read a block of A or B, or write one of C."""
    problem = Problem(4097, 4097, 4097)
    none, one, two = (
        estimated_work(Plan.parse(f"{levels}vendor"), problem)
        for levels in ("", "strassen > ", "strassen > strassen > ")
    )
    assert (none.unaligned, none.copied) == (1.0, 0.0)
    assert (one.unaligned, one.copied) == pytest.approx((6 / 7, 1 / 7))
    assert (two.unaligned, two.copied) == (0.0, 1.0)
    outer, inner = 29.0, 7 * 29 / 4  # quarters moved by each level
    assert two.ragged == two.scalar == pytest.approx(outer / (outer + inner))


def test_the_tiles_of_the_tiled_kernel_follow_type_and_level() -> None:
    def tiles(plan: str, dtype: str) -> LeafTiles:
        found = estimated_work(Plan.parse(plan), Problem(4096, 4096, 4096, dtype)).tiles
        assert found is not None
        return found

    plain, double, fused = tiles("tile", "float32"), tiles("tile", "float64"), FUSED_SIZES["float32"]
    assert plain == LeafTiles(H200_STRATEGIES[0].m_s, H200_STRATEGIES[0].n_s)
    assert double == LeafTiles(FLOAT64_SIZES[0].m_s, FLOAT64_SIZES[0].n_s)
    small = tiles("tile.small", "float32")
    assert (small.height, small.width) == (16, 16) and small != plain
    # Strassen's seven products add up 12 blocks of A and 12 of B, and 12 blocks of C are written.
    inside = tiles("strassen.fused.pad4 > tile", "float32")
    assert inside == LeafTiles(fused.m_s, fused.n_s, 12 / 7, 12 / 7, 12 / 7, 7)


def test_each_further_block_of_c_costs_an_addition_for_each_step_of_the_inner_dimension() -> None:
    rate, k = ProductRate(1.0, 0.0, 0.0, tiled=1.0, inside=10.0), 512
    one, three = (tiled_slowdown(LeafTiles(128, 128, dest=dest), rate, 1280, k, 1280, 1) for dest in (1.0, 3.0))
    assert one == pytest.approx(1 + 30 / k)  # writing a tile takes the time of 30 steps
    assert three - one == pytest.approx(10 * 2 / k)


def test_shares_of_a_gram_are_weighted_by_multiply_adds() -> None:
    """C of 100 rows is cut twice: one product of 50 rows, and two of 25 rows, which are unaligned in float64."""
    work = estimated_work(Plan.parse("gram^2 > vendor"), Problem(100, 64, 100, op="gram", fill="lower"))
    assert sorted(leaf[:4] for leaf in work.leaves) == [(25.0, 64.0, 25.0, 2.0), (50.0, 64.0, 50.0, 1.0)]
    assert work.unaligned == pytest.approx(2 * 25**2 / (2 * 25**2 + 50**2))


def test_a_mirror_moves_every_number_of_c_once() -> None:
    """In place the lower half is read and the upper one written; from a temporary the lower half is read and written.

    Sforza's level moves 9 quarters of A and of the products in addition, in 3 passes.
    """
    lower, full = (Problem(4096, 4096, 4096, op="gram", fill=fill) for fill in ("lower", "full"))
    for text in ("vendor", "gram > vendor"):
        less, more = (estimated_work(Plan.parse(text), problem) for problem in (lower, full))
        assert (less.traffic, less.passes, more.traffic, more.passes) == (0, 0, 4096**2, 1)
    for problem in (lower, full):
        work = estimated_work(Plan.parse("sforza(1) > vendor"), problem)
        assert (work.traffic, work.passes) == ((9 + 4) * 2048**2, 4)


# ---- the datasheet's rates of residues


@pytest.mark.parametrize(("dtype", "less"), [("int64", 0), ("int32", 4)])
def test_shorter_integers_are_split_and_joined_in_less_time(dtype: str, less: int) -> None:
    """A number of 8 bytes is split and joined in the time of 28 and 33 bytes; each byte less saves 2.5 and 1 bytes.

    Each modulus adds a byte. The bandwidth and the rate of multiply-adds turn bytes into multiply-adds.
    """
    on = datasheet_calibration("H200")
    rate = on.rates[f"residues > bytes of {dtype}"]
    moduli, per_byte = 2 * on.rates["float16"].flops / rate.flops, rate.flops / 2 / on.stream
    assert rate.rows == rate.cols == pytest.approx((28 - 2.5 * less + moduli) * per_byte)
    assert rate.pipe == pytest.approx((33 - 1.0 * less + moduli) * per_byte)


@pytest.mark.parametrize("level", ["", " > strassen"])
@pytest.mark.parametrize("device", ["H200", "A100", "RTX 4090"])
def test_a_complex_number_is_joined_in_the_time_of_two_real_ones(device: str, level: str) -> None:
    """On an RTX 4090, the time is that of float64 flops, since it has few float64 units."""
    rates = datasheet_calibration(device).rates
    complex128, float64 = (rates[f"{residues}(15){level} > bytes"] for residues in ("residues2m", "residues"))
    # a complex multiply-add has 8 flops, and two int8 multiply-adds for each modulus
    assert complex128.flops == 2 * float64.flops and complex128.pipe == pytest.approx(float64.pipe)


# ---- error bounds


CANCELLING = """
name    cancelling
source  classical, with a sum that cancels
size    1 2 1
temps   T1 T2

add(A11, {second}, T1)
sub(T1, {second}, T1)
mul(T1, B11, C11)
mul(A12, B21, T2)
add(C11, T2, C11)
"""


@pytest.fixture(params=["A12", "A11"])
def cancelling(request: pytest.FixtureRequest) -> Iterator[Plan]:
    """A plan whose first product has the left operand (A11 + A12) - A12, or (A11 + A11) - A11."""
    register_step_table(CANCELLING.format(second=request.param))
    yield Plan.parse("cancelling > vendor")
    unregister_step_table("cancelling")


def test_terms_that_cancel_leave_their_rounding_and_not_their_size(cancelling: Plan) -> None:
    """The operand has the size of A11, 1, and the roundings of sums of size 2 and 1: 3.

    The products over half = k / 2 err by half^2 each, the first also by half * 3; their sum is rounded at its size, k.
    """
    half = 32
    assert error_bound(cancelling, 64, 64, 64) == 2 * classical_error_bound(half) + 3 * half + 64


# ---- Sforza's recursion


def test_sforzas_recursion_multiplies_fewer_times_than_one_level_at_every_depth() -> None:
    """The share S(d) of the classical product's multiplications follows Algorithm 1, with blocks of half the sides.

    One level has 6 products: S(1) = 6/8. At depth d the 4 grams of the diagonal blocks recurse by Algorithm 1 and the
    2 products below the diagonal by Strassen's algorithm with 7/8 of the multiplications a level:
    S(d) = 4/8 S(d-1) + 2/8 (7/8)^(d-1).
    """
    share = 1.0
    for depth in (1, 2, 3, 4):
        share = 4 / 8 * share + 2 / 8 * (7 / 8) ** (depth - 1)
        plan = sforza.sforza_plan("float64", depth, 0)
        assert sforza.multiplication_share(plan, 4096) == pytest.approx(share, rel=2e-3), depth


def test_sforzas_predicted_speedup_grows_with_the_depth() -> None:
    plans = [sforza.sforza_plan("float64", depth) for depth in (1, 2, 3, 4)]
    found = [sforza.predicted_speedup("GTX 1050", "gemm", plan, "float64", 8000) for plan in plans]
    assert found == sorted(found) and found[3] > 1.4 * found[0]
