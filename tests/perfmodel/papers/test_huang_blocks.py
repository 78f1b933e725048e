"""The block model of Huang, Yu and van de Geijn against the numbers that their paper prints."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import cast

import pytest

from fmm.hardware.datasheets import datasheet_names, datasheet_of
from fmm.kernels.algorithms.catalogue import scheme
from fmm.kernels.cuda.products.kernel_sizes import STRATEGIES, TileSizes, named_strategy
from fmm.kernels.plans.fused_order import FIGURE_6_VARIANTS
from fmm.perfmodel import block_model
from fmm.perfmodel.block_model import GEMM_OPERANDS, OperandBlocks
from fmm.perfmodel.papers import huang, huang_blocks
from fmm.perfmodel.papers.huang import operand_counts, paper_v100
from fmm.perfmodel.papers.huang_blocks import FOOTNOTE_14_REGISTERS, FOOTNOTE_15_REGISTERS, ModelledDevice

ONE, TWO = (2, 2, 2), (4, 4, 4)  # Var#0 of one and of two levels


@pytest.fixture
def on() -> ModelledDevice:
    return paper_v100()


# ---- Figures 3 and 6


@pytest.mark.parametrize("level", [1, 2])
def test_figure_6_is_what_the_scheme_gives(level: int) -> None:
    printed = Counter({w: count for figure_level, _, w, count in FIGURE_6_VARIANTS if figure_level == level})
    assert operand_counts(level) == printed
    assert sum(printed.values()) == 7**level


def test_counts_of_the_square_need_not_form_it() -> None:
    assert huang_blocks.composed_operand_counts(operand_counts(1), operand_counts(1)) == operand_counts(2)


def test_figure_5_has_one_sign_wrong() -> None:
    """M10 = (A13 + A15)(B4 - B0): C8 and C12 gain it, C10 and C14 lose it; Figure 5 prints C14 += M10."""
    found = huang.scheme_of_equation_3(2)
    assert {c: row[10] for c, row in enumerate(found.w) if row[10]} == {8: 1, 12: 1, 10: -1, 14: -1}


def test_counts_of_other_schemes() -> None:
    winograd, classical = scheme("winograd"), scheme("classical")
    found = huang_blocks.operand_counts(winograd.u, winograd.v, winograd.w)
    assert sum(found.values()) == 7
    assert sum(w[0] * n for w, n in found.items()) == winograd.nonzero_counts[0]
    assert huang_blocks.operand_counts(classical.u, classical.v, classical.w) == Counter(
        {GEMM_OPERANDS: classical.rank}
    )


def test_counts_refuse_matrices_of_different_products() -> None:
    with pytest.raises(ValueError, match="zip"):
        huang_blocks.operand_counts([[1, 0]], [[1, 0]], [[Fraction(1)]])


def test_figure_3_threads() -> None:
    table = huang.huang_fig3()
    assert table.column_cells("t_x difference") == table.column_cells("t_y difference") == (0,) * 6
    assert table.column_cells("threads") == (64, 64, 64, 128, 128, 256)


@pytest.mark.parametrize("preset", STRATEGIES, ids=lambda s: s.name)
def test_a_warp_has_32_threads_and_a_block_whole_warps(preset: TileSizes) -> None:
    assert preset.warp_m * preset.warp_n == 32
    assert preset.threads_m % preset.warp_m == preset.threads_n % preset.warp_n == 0


def test_strategy_by_name() -> None:
    assert named_strategy("huge").m_s == 128
    with pytest.raises(ValueError, match=r"unknown strategy 'giant'.*Small.*Huge"):
        named_strategy("giant")


# ---- equations (8) to (14)


def test_counts_per_block_written_out() -> None:
    """Huge, W = (2,1,2), k = 64, by hand."""
    huge = named_strategy("Huge")
    assert block_model.tile_load_elements(huge, 64) == (128 * 64, 128 * 64)  # (8)
    assert block_model.fragment_load_elements(huge, 64) == (256 * 8 * 64, 256 * 8 * 64)  # (9)
    assert block_model.write_back_elements(huge) == 128 * 128  # (10)
    assert block_model.kernel_flops(huge, (2, 1, 2), 64) == 2 * 128 * 128 * 64 + 128 * 64 + 128 * 128  # (11)
    assert block_model.global_memory_elements(huge, (2, 1, 2), 64) == 2 * 8192 + 8192 + 2 * 16384  # (12)
    assert block_model.shared_memory_elements(huge, 64) == 2 * 131072 + 2 * 8192  # (14)


def test_operands_that_differ_by_side() -> None:
    """Tall, W = (4,1,2), k = 10, by hand: what belongs to A is not taken for B."""
    tall, w = named_strategy("Tall"), (4, 1, 2)
    assert block_model.registers_needed(tall, w) == 8 * 4 + (2 + 4) * 8 + (2 + 1) * 4  # (16)
    assert block_model.global_memory_elements(tall, w, 10) == 4 * 128 * 10 + 32 * 10 + 2 * 128 * 32
    assert block_model.kernel_flops(tall, w, 10) == 2 * 128 * 32 * 10 + 3 * 128 * 10 + 128 * 32
    assert block_model.shared_tile_elements(tall) == (128 + 32) * 8  # (17)


@pytest.mark.parametrize("preset", STRATEGIES, ids=lambda s: s.name)
@pytest.mark.parametrize("w", [GEMM_OPERANDS, ONE, TWO, (1, 4, 4), (4, 2, 2)])
def test_intensities_tend_to_their_limits(preset: TileSizes, w: OperandBlocks) -> None:
    for intensity in (huang_blocks.global_intensity, huang_blocks.shared_intensity):
        assert intensity(preset, w, 10**9) == pytest.approx(intensity(preset, w), rel=1e-5)


def test_depth_must_be_positive() -> None:
    with pytest.raises(ValueError, match="k must be positive, not 0"):
        huang_blocks.global_intensity(named_strategy("Huge"), GEMM_OPERANDS, 0)


# ---- (13) and (15) to (18)


def test_rates(on: ModelledDevice) -> None:
    assert on.flop == pytest.approx(15.67e12, rel=5e-4)  # footnote 4
    assert on.gmop == pytest.approx(1.08e12)  # footnote 12
    assert on.smop == pytest.approx(15.67e12, rel=5e-4)  # footnote 13, not Figure 9's 15.30


def test_least_tile_of_13(on: ModelledDevice) -> None:
    """58.2 is printed: 58.03 in the limit of k, 58.2 with the write-back of C at the paper's sizes."""
    assert round(huang_blocks.min_square_tile_side(GEMM_OPERANDS, on), 2) == 58.03
    assert [round(huang_blocks.min_square_tile_side(GEMM_OPERANDS, on, k), 1) for k in (7600, 8192, 10240, 13600)] == [
        58.2
    ] * 4
    assert [round(huang_blocks.min_square_tile_side(GEMM_OPERANDS, on, k), 1) for k in (7500, 13800)] == [58.3, 58.1]


@pytest.mark.parametrize("w", [GEMM_OPERANDS, ONE, (1, 2, 2), TWO, (2, 2, 4)])
@pytest.mark.parametrize("k", [None, 20480, 4096])
def test_least_tile_meets_13_exactly(on: ModelledDevice, w: OperandBlocks, k: int | None) -> None:
    """The solved form against the bound itself, on tiles just above and just below."""
    size = huang_blocks.min_square_tile_side(w, on, k)
    for tile, holds in ((int(size), False), (int(size) + 1, True)):
        square = replace(named_strategy("Huge"), m_s=tile, n_s=tile, m_r=1, n_r=1)
        assert (huang_blocks.global_intensity(square, w, k) >= huang_blocks.required_global_intensity(on)) is holds


def test_no_tile_is_large_enough_for_a_shallow_product(on: ModelledDevice) -> None:
    assert huang_blocks.min_square_tile_side(TWO, on, 64) == inf


def test_least_piece_of_15(on: ModelledDevice) -> None:
    figure_9 = replace(on, smop=huang.FIGURE_9_SHARED_BANDWIDTH)
    assert round(huang_blocks.min_square_thread_tile(128, on), 1) == 4.1  # printed; tau_smop = 15.67
    assert round(huang_blocks.min_square_thread_tile(inf, figure_9), 1) == 4.1  # or so
    assert huang_blocks.min_square_thread_tile(inf, on) == pytest.approx(4.0)
    assert round(huang_blocks.min_square_thread_tile(128, figure_9), 1) == 4.2
    assert huang_blocks.min_square_thread_tile(4, on) == inf


def test_greatest_piece_of_16(on: ModelledDevice) -> None:
    """'< 12' is printed: the roots are 12.46 at one level (12.06 with footnote 14's), 13.25 for GEMM."""
    found = [round(huang_blocks.max_square_thread_tile(w, on), 2) for w in (GEMM_OPERANDS, ONE, TWO)]
    assert found == [13.25, 12.46, 11.06]
    assert round(huang_blocks.max_square_thread_tile(ONE, on, reserved_registers=13), 2) == 12.06


@pytest.mark.parametrize(("w", "most"), [(GEMM_OPERANDS, 13), (ONE, 12), (TWO, 11)])
def test_greatest_piece_meets_16_exactly(on: ModelledDevice, w: OperandBlocks, most: int) -> None:
    for size, holds in ((most, True), (most + 1, False)):
        square = replace(named_strategy("Huge"), m_r=size, n_r=size)
        assert (block_model.registers_needed(square, w) < 255) is holds
        assert (size < huang_blocks.max_square_thread_tile(w, on)) is holds


@pytest.mark.parametrize(
    ("level", "names"),
    [(0, ["Large", "Huge"]), (1, ["Huge"]), (2, [])],  # section 5.2, each in words
)
def test_admitted_strategies(on: ModelledDevice, level: int, names: list[str]) -> None:
    assert [s.name for s in huang_blocks.admitted_strategies(STRATEGIES, operand_counts(level), on)] == names


def test_one_variant_of_two_levels_would_fit(on: ModelledDevice) -> None:
    fitting = [w for w in operand_counts(2) if huang_blocks.admitted_strategies(STRATEGIES, [w], on)]
    assert fitting == [(2, 2, 4)]


def test_bounds_17_and_18(on: ModelledDevice) -> None:
    fails = {
        (s.name, b.equation)
        for s in STRATEGIES
        for b in huang_blocks.strategy_bounds(s, GEMM_OPERANDS, on)
        if b.equation in (16, 17, 18) and not b.is_bound_met
    }
    assert fails == {("Small", 18)}  # 64 threads x 2 elements against a tile of 256
    deep = replace(named_strategy("Huge"), k_s=96)
    assert not next(
        b for b in huang_blocks.strategy_bounds(deep, GEMM_OPERANDS, on) if b.equation == 17
    ).is_bound_met  # 96 KiB


def test_section_5_4(on: ModelledDevice) -> None:
    """Direct 2-level: 'up to 160 registers', 'up to 1,900 GB/s'; 1-level adds m_R + n_R registers."""
    huge = named_strategy("Huge")
    assert block_model.registers_needed(huge, TWO) == 160
    assert on.element_bytes * on.flop / huang_blocks.global_intensity(huge, TWO) == pytest.approx(1900e9, rel=0.01)
    assert (
        block_model.registers_needed(huge, ONE) - block_model.registers_needed(huge, GEMM_OPERANDS)
        == huge.m_r + huge.n_r
    )


def test_doubles_take_twice_the_room() -> None:
    double = huang_blocks.modelled_device(datasheet_of("v100"), element_bytes=8)
    single = huang_blocks.modelled_device(datasheet_of("v100"), element_bytes=4)
    assert double.flop == single.flop / 2
    assert huang_blocks.required_global_intensity(double) == pytest.approx(
        huang_blocks.required_global_intensity(single)
    )
    huge = named_strategy("Huge")
    have = {b.equation: b.value for b in huang_blocks.strategy_bounds(huge, ONE, double)}
    assert (have[16], have[17]) == (256, 16384)
    assert huang_blocks.admitted_strategies([huge], [ONE], double) == ()  # 256 registers are not below 255
    assert FOOTNOTE_14_REGISTERS.count_before_spilling(huge, GEMM_OPERANDS, double) == 2 * 112 + 2 + 5


# ---- footnote 15


def test_footnote_15() -> None:
    table = huang.huang_footnote15()
    assert table.column_cells("computed") == table.column_cells("printed") == (2, 2, 2, 24, 20, 18)
    for row in table.rows:
        _, _, _, _, _, _, _, model, least, most = row
        assert isinstance(least, int) and isinstance(model, int) and isinstance(most, int)
        assert least <= model <= most


def test_no_other_constant_gives_footnote_15(on: ModelledDevice) -> None:
    """With one register per pointer 12 to 15 unprinted registers give Small's counts; with two, none do."""

    def reproduce(per_pointer: int) -> list[int]:
        models = {n: replace(FOOTNOTE_15_REGISTERS, per_pointer=per_pointer, unprinted=n) for n in range(64)}
        small, kernels = named_strategy("Small"), (GEMM_OPERANDS, ONE, TWO)
        found = {n: [huang_blocks.active_blocks_per_sm(small, w, on, x) for w in kernels] for n, x in models.items()}
        return [n for n, active in found.items() if active == [24, 20, 18]]

    assert reproduce(1) == [12, 13, 14, 15]
    assert reproduce(2) == []


def test_footnote_14_alone_does_not_give_footnote_15(on: ModelledDevice) -> None:
    kernels = (GEMM_OPERANDS, ONE, TWO)
    small = [huang_blocks.active_blocks_per_sm(named_strategy("Small"), w, on, FOOTNOTE_14_REGISTERS) for w in kernels]
    huge = [huang_blocks.active_blocks_per_sm(named_strategy("Huge"), w, on, FOOTNOTE_14_REGISTERS) for w in kernels]
    assert (small, huge) == ([32, 32, 20], [2, 1, 1])


# ---- (19) to (22) and Figure 10


def test_time_written_out(on: ModelledDevice) -> None:
    """Huge GEMM at 4096: 1024 tiles on 160 active blocks are 7 waves."""
    n, huge = 4096, named_strategy("Huge")
    time = huang_blocks.resource_seconds(huge, GEMM_OPERANDS, (n, n, n), on)
    assert time.flop == pytest.approx(7 * 160 * 2 * 128 * 128 * n / on.flop)
    assert time.smop == pytest.approx(7 * 160 * 4 * (2 * 2048 + 2 * 128) * n / on.smop)
    assert time.gmop == pytest.approx(1024 * 4 * (2 * 128 * n + 128 * 128) / on.gmop)
    assert (time.limiting_seconds, time.limiting_resource) == (time.flop, "flop")


def test_fringes_cost_whole_tiles(on: ModelledDevice) -> None:
    huge = named_strategy("Huge")
    assert huang_blocks.resource_seconds(huge, GEMM_OPERANDS, (129, 64, 1), on) == huang_blocks.resource_seconds(
        huge, GEMM_OPERANDS, (256, 64, 128), on
    )


def test_time_is_that_of_the_axes_in_their_order(on: ModelledDevice) -> None:
    """Shapes are (m, k, n): a deep product has few tiles."""
    tall = named_strategy("Tall")
    deep = huang_blocks.resource_seconds(tall, GEMM_OPERANDS, (128, 4096, 32), on)
    assert deep.gmop == pytest.approx(4 * block_model.global_memory_elements(tall, GEMM_OPERANDS, 4096) / on.gmop)


@pytest.mark.parametrize("shape", [(0, 1, 1), (4, -1, 4), (4, 4, 0)])
def test_sizes_must_be_positive(on: ModelledDevice, shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        huang_blocks.resource_seconds(named_strategy("Huge"), GEMM_OPERANDS, shape, on)


def test_a_kernel_that_does_not_fit_is_refused(on: ModelledDevice) -> None:
    greedy = replace(named_strategy("Huge"), m_r=4, n_r=4, k_s=200)
    with pytest.raises(ValueError, match="no block fits"):
        huang_blocks.resource_seconds(greedy, GEMM_OPERANDS, (128, 128, 128), on)


def curves(name: str) -> dict[int, tuple[float, float, float]]:
    """Size -> TFLOPS of GEMM, 1-level and 2-level."""
    rows = (row[1:] for row in huang.huang_fig10().rows if row[0] == name)
    return {cast(int, n): cast(tuple[float, float, float], tuple(values)) for n, *values in rows}


def test_figure_10_huge() -> None:
    found = curves("Huge")
    assert max(gemm for gemm, _, _ in found.values()) == pytest.approx(15.67, abs=0.01)  # tau_flop, whole waves
    assert max(one for _, one, _ in found.values()) <= 15.67 * 8 / 7  # footnote 10
    assert found[20480][1] / found[20480][0] == pytest.approx(1.136, abs=0.01)
    assert all(one > gemm for n, (gemm, one, _) in found.items() if n >= 6144)
    assert all(two < min(gemm, one) for gemm, one, two in found.values())


def test_figure_10_small() -> None:
    found = curves("Small")
    assert all(two < one < gemm for gemm, one, two in found.values())
    assert found[20480][0] == pytest.approx(16 / 4 * 1.08, abs=0.01)  # limited by (22): 16 flops per element


def test_direct_time_of_one_level_is_its_seven_products(on: ModelledDevice) -> None:
    huge, shape, half = named_strategy("Huge"), (4096, 4096, 4096), (2048, 2048, 2048)
    expected = sum(
        n * huang_blocks.resource_seconds(huge, w, half, on).limiting_seconds for w, n in operand_counts(1).items()
    )
    assert huang_blocks.direct_product_seconds(huge, operand_counts(1), (2, 2, 2), shape, on) == pytest.approx(expected)


@pytest.mark.parametrize("name", datasheet_names())
@pytest.mark.parametrize("element_bytes", [4, 8])
def test_the_model_answers_for_every_device(name: str, element_bytes: int) -> None:
    gpu = huang_blocks.modelled_device(datasheet_of(name), element_bytes)
    time = huang_blocks.resource_seconds(named_strategy("Medium"), ONE, (1000, 1000, 1000), gpu)
    assert 0 < huang_blocks.effective_tflops((1000, 1000, 1000), time.limiting_seconds) <= 1e-12 * gpu.flop


def test_every_table_has_a_name_of_its_own() -> None:
    tables = [make() for make in huang.TABLE_FUNCTIONS]
    assert len({t.name for t in tables}) == len(tables)
    assert all(t.name.startswith("huang-") and t.rows for t in tables)


def test_differences_are_computed_minus_printed() -> None:
    for table in (huang.huang_fig6(), huang.huang_bounds(), huang.huang_footnote15()):
        triples = zip(*(table.column_cells(c) for c in ("printed", "computed", "difference")), strict=True)
        for printed, computed, difference in triples:
            if printed is None:
                assert difference is None
                continue
            assert isinstance(printed, int | float) and isinstance(computed, int | float)
            assert difference == pytest.approx(computed - printed)
