"""Our own tiled kernel in a tuning: measured, fitted, certified, and chosen where there is no workspace to give."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from fmm.config import schema
from fmm.config.schema import Tuning
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.candidates import probed_plans
from fmm.perfmodel.choose import Limits, choose, rank_candidates
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.perfmodel.predict import TILE_WRITE_STEPS, predict, predict_vendor
from fmm.perfmodel.work import LeafTiles, estimated_work
from fmm.problem import Layout, Problem
from fmm.runtime.decisions.decide import decide_by_model, find_certified_entry
from fmm.runtime.prepare import launches_on_device
from fmm.tuner.devices.simulated import SIMULATED_IDENTITY, SimulatedDevice
from fmm.tuner.findings.conclude import conclude_section
from fmm.tuner.search.certify import entries_from_search
from fmm.tuner.stages.shapes import LADDER_SIDES, square_ladder, squares_below_ladder
from fmm.tuner.trials.journal import Journal
from fmm.tuner.trials.record import Trial
from fmm.tuner.tune_type import tune_type
from tests.support.devices import H200

FUSED, HYBRID = (p for p in probed_plans("cuda") if p.uses_tile_model)
NONE, MUCH = Limits(0, 16.0), Limits(1 << 40, 16.0)
RATE = ProductRate(5e13, 5e4, 30.0, unaligned=1.05, tiled=1.02, tiled_odd=1.3, waves=40.0, inside=0.7)
TRUTH = Calibration("fake GPU", "", MappingProxyType({"float32": RATE}), 4e12, 1e5, 3e-6, batches=True)
WANTED = (16384, 16384, 16384)


@pytest.fixture(scope="module")
def journal() -> Journal:
    device = SimulatedDevice(
        truth=TRUTH, gpu=True, memory_bytes=1 << 40, noise=0.002, identity=replace(SIMULATED_IDENTITY, key="gpu-fake")
    )
    made = Journal("run", device)
    assert not tune_type(made, "float32", device.efforts_by_name["quick"], (WANTED,)).stopped
    return made


@pytest.fixture(scope="module")
def section(journal: Journal) -> Tuning:
    return schema.read_section(conclude_section(journal, "float32"), "test", journal.device.identity, "float32")


@pytest.mark.slow
def test_a_tuning_finds_what_the_kernel_takes(journal: Journal, section: Tuning) -> None:
    known = section.calibration
    assert known is not None
    rate = known.require_rate("float32")
    assert rate.tiled == pytest.approx(RATE.tiled, rel=0.03) and rate.flops == pytest.approx(RATE.flops, rel=0.05)
    assert rate.tiled_odd == pytest.approx(RATE.tiled_odd, rel=0.05)
    assert {t.plan for t in journal.recorded if t.stage == "tiles"} == {"vendor", "tile", str(FUSED), str(HYBRID)}
    assert known.tiled_margin < 0.03  # enough was held out to know how good the formula is
    for problem in (Problem(n, n, n, "float32") for n in (3072, 8192)):
        told, truly = (predict(FUSED, problem, c).predicted_seconds for c in (known, TRUTH))
        assert told == pytest.approx(truly, rel=0.03)


@pytest.mark.slow
def test_shapes_have_an_entry_without_workspace(section: Tuning) -> None:
    """The best of all plans, and beside it the best of those for who has no memory to give."""
    problem, best, lean = Problem(*WANTED, "float32"), section.find_entry(WANTED), section.find_entry(WANTED, lean=True)
    assert best and lean and len(section.entries) == 2
    assert not best[0].lean and plan_workspace_bytes(best[1], *WANTED, 4) > 0 and lean[1] == FUSED
    decided = [find_certified_entry(problem, limits, section) for limits in (MUCH, NONE)]
    assert [d.plan for d in decided if d] == [best[1], FUSED]


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "plan"), [(("search", "certify"), "vendor"), (("search",), "vendor"), ((), None)])
def test_where_it_loses_the_vendor_is_the_best_without_workspace(
    journal: Journal, stages: tuple[str, ...], plan: str | None
) -> None:
    """Confirmed or seen in the search alone; where it was never tried, nothing is said."""
    trials = [t for t in journal.recorded if t.plan != str(FUSED) or t.stage in stages]
    slow = [replace(t, seconds=1.5 * t.seconds) if t.seconds and t.plan == str(FUSED) else t for t in trials]
    lean = [e.plan for e in entries_from_search(slow, 0.0) if e.lean]
    assert lean == ([plan] if plan else [])


@pytest.mark.slow
def test_of_shapes_too_small_for_other_plans_only_that_entry_is_known(journal: Journal) -> None:
    """Products that are small for a tuning are raced with the plan without workspace alone."""
    alone = [replace(t, size=(2048,) * 3) for t in journal.recorded if t.plan in ("vendor", str(FUSED))]
    assert [(e.plan, e.lean) for e in entries_from_search(paired(alone), 0.0)] == [(str(FUSED), True)]
    assert squares_below_ladder(28000)[0] == (3072, 3072, 3072) and squares_below_ladder(8192) == []
    assert {*squares_below_ladder(40000), *square_ladder(40000)} == {(x, x, x) for x in LADDER_SIDES if x <= 40000}


def paired(trials: list[Trial]) -> list[Trial]:
    """Without rounds of the vendor's beside other plans: in each stage, as many samples of both."""
    own = {stage: [t for t in trials if t.stage == stage and t.plan == str(FUSED)] for stage in ("search", "certify")}
    vendor = {stage: [t for t in trials if t.stage == stage and t.plan == "vendor"] for stage in own}
    return [t for stage in own for t in (*vendor[stage][-len(own[stage]) :], *own[stage])]


@pytest.mark.slow
def test_the_model_chooses_it_where_nothing_else_fits(section: Tuning) -> None:
    problem = Problem(12288, 12288, 12288, "float32")
    known, device = section.calibration, section.identity
    assert decide_by_model(problem, NONE, known, True, device).plan == FUSED
    assert plan_workspace_bytes(decide_by_model(problem, MUCH, known, True, device).plan, *problem.size, 4) > 0
    odd = Problem(12288, 12287, 12288, "float32")  # on rows that are not aligned it is too slow
    assert decide_by_model(odd, NONE, known, True, device).plan == VENDOR
    rates = MappingProxyType({"float32": replace(RATE, tiled=1.2)})
    assert decide_by_model(problem, NONE, replace(TRUTH, rates=rates), True, device).plan == VENDOR


ALONE = Plan(leaf="tile")


@pytest.mark.parametrize(("tiled_odd", "wins"), [(0.0, False), (0.95, True), (1.1, False)])
@pytest.mark.parametrize("size", [(1537, 1537, 1537), (3001, 3001, 3001), (16384, 1023, 16385)], ids=str)
def test_alone_it_wins_on_odd_sides_where_it_was_measured(
    size: tuple[int, int, int], tiled_odd: float, wins: bool
) -> None:
    """The vendor loses more there than our own kernel does."""
    rate = replace(RATE, unaligned=1.0, odd=1.0, tiled=0.9, waves=10.0, tiled_odd=tiled_odd, tile=128.0)
    known = replace(TRUTH, rates=MappingProxyType({"float32": rate}), tiled_margin=0.02)
    problem = Problem(*size, "float32")
    assert [c.plan for c in rank_candidates(problem, known) if c.plan == ALONE and c.beats_vendor] == [ALONE] * wins
    assert launches_on_device(ALONE, problem, H200, False) is not None


def test_on_a_view_whose_rows_are_worse_than_the_sides_say_it_gives_way() -> None:
    """Nobody knew of that when it was chosen."""
    rows = Layout("C", 3073)
    view = Problem(3072, 3072, 3072, "float32", (rows, rows, Layout("C", 3072)))
    assert launches_on_device(ALONE, view, H200, False) is None
    assert launches_on_device(ALONE, view, H200, True) is not None


# ---- without a tuning


def test_what_nobody_measured_is_not_chosen() -> None:
    """A datasheet and an old config say nothing of our own kernel: no workspace, no plan."""
    problem = Problem(16384, 16384, 16384, "float32")
    spelled = schema.calibration_fields(TRUTH, "float32")
    for name in ("tiled", "tiled_odd", "waves", "inside"):
        del spelled["rate"][name]
    del spelled["tiled_margin"]
    old = schema.read_calibration(spelled, "old", "float32", "GPU", "an old config")
    for known in (datasheet_calibration("h200"), old):
        assert not any(c.plan.uses_tile_model for c in rank_candidates(problem, known))
        assert choose(problem, known, NONE).best.plan == VENDOR
        assert choose(problem, known, MUCH).best.plan != VENDOR
    assert choose(problem, TRUTH, NONE).best.plan == FUSED
    assert (
        schema.read_calibration(schema.calibration_fields(TRUTH, "float32"), "new", "float32", "fake GPU", "") == TRUTH
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "complex64", "tf32"])
def test_other_types_have_no_such_plans(dtype: str) -> None:
    known = replace(TRUTH, rates=MappingProxyType({dtype: RATE}))
    assert not any(c.plan.uses_tile_model for c in rank_candidates(Problem(8192, 8192, 8192, dtype), known))


def test_its_margin_is_its_own() -> None:
    problem = Problem(16384, 16384, 16384, "float32")
    unsure = replace(TRUTH, tiled_margin=0.2)
    assert choose(problem, unsure, NONE).best.plan == VENDOR
    assert choose(problem, unsure, MUCH).best == choose(problem, TRUTH, MUCH).best


@pytest.mark.parametrize(("orders", "gap", "used"), [("CCC", 0, True), ("FCF", 8, True), ("CCC", 1, False)])
def test_arrays_whose_lines_are_not_aligned_are_the_vendors(orders: Any, gap: int, used: bool) -> None:
    """Whatever the model says of their sizes; a plan that is given runs."""
    layouts = tuple(Layout(order, 1024 + gap) for order in orders)
    problem = Problem(1024, 1024, 1024, "float32", layouts)  # type: ignore[arg-type]
    assert (launches_on_device(FUSED, problem, H200, False) is not None) == used
    assert launches_on_device(FUSED, problem, H200, True) is not None


# ---- the formula


def test_sums_inside_are_instructions() -> None:
    """No traffic, no passes, no workspace: what is added costs its share of the multiply-adds."""
    n = 4096
    problem, half = Problem(n, n, n, "float32"), n // 2
    work = estimated_work(FUSED, problem)
    assert (work.traffic, work.passes, work.leaves) == (0, 0, ((half, half, half, 7, 1),))
    assert work.tiles == LeafTiles(64, 128, 12 / 7, 12 / 7, 12 / 7, 7)
    tiles = (half // 64) * (half // 128)
    added = 5 / 7 / 128 + 5 / 7 / 64 + 5 / 7 / half
    expected = 7 * 2 * half**3 / 5e13 * 1.02 * (1 + 40 / (7 * tiles) + (30 + TILE_WRITE_STEPS) / half + 0.7 * added)
    assert predict(FUSED, problem, TRUTH).products == pytest.approx(expected)


def test_tiles_are_whole() -> None:
    """One row more than a tile has costs a row of tiles more."""
    rate = replace(RATE, waves=0.0, inside=0.0, pipe=0.0)
    known = replace(TRUTH, rates=MappingProxyType({"float32": rate}))
    plan = Plan.parse("tile.square")
    whole, more = (predict(plan, Problem(m, 4096, 4096, "float32"), known).products for m in (4096, 4097))
    assert more == pytest.approx(whole * 33 / 32)
    alone = replace(known, rates=MappingProxyType({"float32": replace(rate, fill=0.0)}))
    vendor = predict_vendor(Problem(4096, 4096, 4096, "float32"), alone).products
    assert whole == pytest.approx(1.02 * vendor * (1 + TILE_WRITE_STEPS / 4096)), "tiles write before others begin"
