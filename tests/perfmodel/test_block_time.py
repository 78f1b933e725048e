"""The block model in cycles: what it adds to the paper's, and its ranking of strategies against an H200's times."""

from __future__ import annotations

from dataclasses import astuple, replace
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.shipped import recorded_blocks
from fmm.hardware.chip import BlockModelConstants
from fmm.hardware.datasheets import (
    capability_limits,
    capability_names,
    datasheet_names,
    datasheet_of,
    nearest_capability,
)
from fmm.kernels.cuda.products.kernel_sizes import H200_STRATEGIES, STRATEGIES, TMA_SIZES, TileSizes, named_strategy
from fmm.perfmodel import block_model
from fmm.perfmodel.block_model import (
    GEMM_OPERANDS,
    OperandBlocks,
    OperandTile,
    fastest_float32_tile,
    launch_seconds,
    resident_blocks,
)
from fmm.perfmodel.papers.huang_blocks import datasheet_chip
from fmm.tuner.fit.blocks import (
    StrategyComparison,
    compare_strategies,
    fit_block_terms,
    root_mean_square_error,
    split_alternately,
)
from tests.support import ROOT

FILE = ROOT / "results" / "nvidia-h200" / "blocks.json"
H200 = datasheet_chip(datasheet_of("H200"))
IDEAL = BlockModelConstants(wait=0, far=0, share=1, launch=0)
EVERY = (*H200_STRATEGIES, *STRATEGIES)


# ---- from the paper's formulas


def names(found: list[TileSizes]) -> list[str]:
    return [s.name for s in found]


@pytest.mark.parametrize("s", STRATEGIES, ids=lambda s: s.name)
def test_what_nothing_is_added_to_is_the_papers(s: TileSizes, monkeypatch: pytest.MonkeyPatch) -> None:
    """(20) and (21), whole rounds: no waiting, no other instructions, lines as they lie, an unlimited memory."""
    monkeypatch.setattr(block_model, "COPY_INSTRUCTIONS", 0)
    monkeypatch.setattr(block_model, "LOOP_INSTRUCTIONS", 0)
    monkeypatch.setattr(OperandTile, "fragment_read_count", lambda *_: 0)
    monkeypatch.setattr(OperandTile, "reads_four_fragments_at_once", False)
    monkeypatch.setattr(OperandTile, "shared_memory_elements", property(lambda side: side.tile))
    on = replace(H200, fitted=IDEAL, bandwidth=1e30)
    per_sm = resident_blocks(s, GEMM_OPERANDS, on.limits)
    tiles, k = 4 * on.multiprocessors * per_sm, 4096  # four rounds
    flop = (
        tiles
        * block_model.kernel_flops(s, GEMM_OPERANDS, k)
        / (2 * on.multiprocessors * on.limits.fp32_per_clock * on.clock)
    )
    smop = tiles * 4 * block_model.shared_memory_elements(s, k) / (on.multiprocessors * 128 * on.clock)
    assert launch_seconds(s, GEMM_OPERANDS, (tiles * s.m_s, k, s.n_s), on) == pytest.approx(max(flop, smop))


@pytest.mark.parametrize("rounds", [1, 3])
def test_whole_rounds_of_tiles_by_the_copy_engine_take_the_time_of_their_multiply_adds(rounds: int) -> None:
    """Each of 132 multiprocessors computes `rounds` tiles of m_s x n_s entries, each in k multiply-adds at the rate.

    With a long k the beginning and the end of a tile take less than 2 percent.
    """
    s, k = TMA_SIZES[0], 65536
    op: Any = SimpleNamespace(m=s.m_s * 132 * rounds, n=s.n_s, k=k, count=1, kernel=SimpleNamespace(triangle=""))
    rate = s.rate * block_model.multiply_adds_per_cycle(named_strategy("Square"), (op.m, k, op.n), H200)
    expected = rounds * s.m_s * s.n_s * k / rate / H200.clock
    assert block_model.tma_product_seconds(op, s, H200) - H200.fitted.launch == pytest.approx(expected, rel=0.02)


def test_terms_written_out() -> None:
    """Huge by hand: 512 multiply-adds, 16 + 16 wide reads, 1 + 1 copies; A's fragments of four steps in 256 cycles."""
    huge = named_strategy("Huge")
    assert block_model.issue_cycles(huge, GEMM_OPERANDS, block_model.ROW_MAJOR_AXES, H200) == 512 + 32 + 2 * 5 + 50
    burst = 2 * (256 * 8 * 4 * 4 / 128 - 2 * 64)
    near = block_model.warp_wait_cycles(huge, GEMM_OPERANDS, block_model.ROW_MAJOR_AXES, H200, 1e6)
    assert near == H200.fitted.wait + burst
    assert (
        block_model.warp_wait_cycles(huge, GEMM_OPERANDS, block_model.ROW_MAJOR_AXES, H200, 2 * H200.near_l2_bytes)
        == near + H200.fitted.far / 2
    )
    cycles = 4 / 128 * (H200.fitted.share * 2 * 256 * 8 * 8 + 2 * 1024 + 1024)
    assert block_model.shared_memory_cycles(huge, GEMM_OPERANDS, block_model.ROW_MAJOR_AXES, H200) == pytest.approx(
        cycles
    )


def test_a_sum_is_copied_read_added_and_written() -> None:
    """Two blocks of A, turned: two copies of five, two reads, four additions, four stores; B's lines stay."""
    a, b = block_model.operand_tiles(named_strategy("Huge"), (2, 2, 2))
    assert (a.instructions_per_thread, b.instructions_per_thread) == (10 + 2 + 4 + 4, 10 + 2 + 4 + 1)
    assert (a.shared_memory_elements, b.shared_memory_elements) == (1024 * (2 * 4 + 1), 1024 * (4 + 1))
    assert (a.reads_four_fragments_at_once, b.reads_four_fragments_at_once) == (False, False)


def test_fewer_lanes_bind_before_slots() -> None:
    """64 lanes take two cycles for a warp's multiply-add, and other instructions go in between."""
    huge, half = named_strategy("Huge"), replace(H200, limits=capability_limits("8.0"))
    assert block_model.issue_cycles(huge, GEMM_OPERANDS, block_model.ROW_MAJOR_AXES, half) == 1024


@pytest.mark.parametrize("w", [GEMM_OPERANDS, (2, 2, 2)])
@pytest.mark.parametrize("s", EVERY, ids=lambda s: s.name)
def test_time_grows_with_every_side(s: TileSizes, w: OperandBlocks) -> None:
    shape = (1000, 1000, 1000)
    base = launch_seconds(s, w, shape, H200)
    for i in range(3):
        assert launch_seconds(s, w, (*shape[:i], 4 * shape[i], *shape[i + 1 :]), H200) > base
    assert launch_seconds(s, w, shape, H200, count=8) > base


@pytest.mark.parametrize("name", datasheet_names())
def test_every_device_with_shared_memory_enough_has_a_best(name: str) -> None:
    on = datasheet_chip(datasheet_of(name))
    fitting = [s for s in EVERY if resident_blocks(s, GEMM_OPERANDS, on.limits)]
    best = fastest_float32_tile((1000, 1000, 1000), on)
    assert launch_seconds(best, GEMM_OPERANDS, (1000, 1000, 1000), on) == min(
        launch_seconds(s, GEMM_OPERANDS, (1000, 1000, 1000), on) for s in fitting
    )


def test_what_cannot_be_launched_is_refused() -> None:
    with pytest.raises(ValueError, match="no block fits"):
        launch_seconds(
            named_strategy("Broad"),
            GEMM_OPERANDS,
            (8, 8, 8),
            replace(H200, limits=replace(H200.limits, shared_per_block=1024)),
        )


def test_a_new_capability_is_like_the_newest_before_it() -> None:
    assert nearest_capability("9.0") is capability_limits("9.0")
    assert [nearest_capability(x).capability for x in ("10.3", "12.1", "8.7", "1.0")] == [
        "10.0",
        "12.0",
        "8.6",
        capability_names()[0],
    ]


# ---- against what was measured


def test_the_record_is_whole() -> None:
    shapes = recorded_blocks(FILE)
    assert len({x.shape for x in shapes}) == len(shapes) == 40
    assert {x.kind for x in shapes} == {"square", "tall", "wide", "deep", "thin", "any"}
    assert all(set(names(list(EVERY))) <= set(x.seconds) for x in shapes)


def hits(rows: list[StrategyComparison]) -> float:
    return sum(row.model_rank_of_fastest <= 2 for row in rows) / len(rows)


def test_the_best_of_the_six_is_in_the_models_first_two() -> None:
    rows = compare_strategies(recorded_blocks(FILE), H200)
    assert hits(rows) >= 0.9, [
        (row.measured.shape, row.fastest_strategy) for row in rows if row.model_rank_of_fastest > 2
    ]
    assert sum(row.choice_regret for row in rows) / len(rows) < 0.02
    assert root_mean_square_error(rows) < 0.12


@pytest.mark.slow
@pytest.mark.parametrize("fit_to", [0, 1])
def test_it_is_on_shapes_that_the_fit_did_not_see(fit_to: int) -> None:
    halves = split_alternately(recorded_blocks(FILE))
    made = replace(H200, fitted=fit_block_terms(halves[fit_to], H200))
    assert hits(compare_strategies(halves[1 - fit_to], made)) >= 0.9


@pytest.mark.slow
def test_the_constants_are_what_the_fit_gives() -> None:
    found = fit_block_terms(recorded_blocks(FILE), H200)
    assert astuple(found) == pytest.approx(astuple(BlockModelConstants()), rel=0.02)


def test_products_with_sums_are_ranked_by_the_same_constants() -> None:
    rows = compare_strategies(recorded_blocks(FILE, "fused"), H200)
    assert len(rows) >= 10
    assert hits(rows) >= 0.9, [
        (row.measured.shape, row.fastest_strategy) for row in rows if row.model_rank_of_fastest > 2
    ]


def test_what_the_leaf_takes_is_near_the_best_of_all() -> None:
    """Ten strategies; four of them were not used in any fit."""
    shapes = recorded_blocks(FILE)
    taken = [
        x.seconds[fastest_float32_tile(x.shape, H200).name] / min(x.seconds[s.name] for s in EVERY) for x in shapes
    ]
    assert sum(taken) / len(taken) < 1.03
    assert max(taken) < 1.2


@pytest.mark.parametrize(
    ("side", "count", "measured"),
    [  # on an H200: microseconds by strategy, benchmarks/tile.py
        (512, 49, {"Square": 280, "Half": 277, "Third": 322, "Broad": 390}),
        (1536, 1, {"Square": 270, "Half": 266, "Third": 162, "Broad": 159}),
        (2048, 1, {"Square": 358, "Half": 357, "Third": 429, "Broad": 432}),
        (2560, 1, {"Square": 874, "Half": 873, "Third": 794, "Broad": 794}),
        (4096, 1, {"Square": 2768, "Half": 2771, "Third": 2822, "Broad": 3280}),
        (8192, 1, {"Square": 22054, "Half": 22227, "Third": 22327, "Broad": 23591}),
    ],
)
def test_of_the_tuned_it_is_within_three_percent_of_the_best(side: int, count: int, measured: dict[str, int]) -> None:
    assert measured[fastest_float32_tile((side, side, side), H200, count).name] <= 1.03 * min(measured.values())
