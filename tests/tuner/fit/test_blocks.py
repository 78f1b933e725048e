"""The block strategies of a device: the model's terms are kept where they hold, fitted where they do not, and used."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from math import exp
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compile_ahead import named_chip
from benchmarks.shipped import recorded_blocks
from fmm.config import files
from fmm.config.files import SHIPPED_CONFIG
from fmm.config.schema import read_strategies, read_thresholds
from fmm.hardware.chip import BlockModelConstants, Chip
from fmm.hardware.datasheets import datasheet_of
from fmm.kernels.cuda.products.kernel_sizes import H200_STRATEGIES, STRATEGIES, TileSizes
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import GEMM_OPERANDS, chip_target, launch_seconds
from fmm.perfmodel.papers.huang_blocks import datasheet_chip
from fmm.problem import Problem
from fmm.runtime.devices import calibration_from_datasheet, chip_with_tuned_block_model
from fmm.tuner.devices.device import CPU_EFFORTS, GPU_EFFORTS
from fmm.tuner.devices.simulated import SimulatedDevice
from fmm.tuner.findings.conclude import conclude_section
from fmm.tuner.findings.model_in_use import device_name
from fmm.tuner.fit import blocks
from fmm.tuner.fit.blocks import compare_strategies, fit_block_terms, root_mean_square_error
from fmm.tuner.stages.probes import probe_strategies
from fmm.tuner.trials.journal import Journal
from fmm.tuner.trials.record import Trial
from tests.support import ROOT
from tests.support import configs as tuned
from tests.support.chips import A100, H200
from tests.support.devices import H200 as DEVICE

SLOWER = BlockModelConstants(wait=1600.0, far=1200.0, share=0.859, launch=2e-5)


def timed(terms: BlockModelConstants) -> list[Trial]:
    """The strategies on all shapes, on a chip for which these terms are true."""
    return timed_on(replace(H200, fitted=terms), STRATEGIES)


def timed_on(chip: Chip, strategies: Sequence[TileSizes]) -> list[Trial]:
    return [
        Trial("r", blocks.BLOCK_MODEL_STAGE, size, "float32", str(blocks.STRATEGY_PLANS[s.name]), "whole", 0, 0, 0.0,
              launch_seconds(s, GEMM_OPERANDS, size, chip))
        for size in blocks.STRATEGY_SHAPES for s in strategies
    ]  # fmt: skip


def test_built_in_terms_are_kept_where_they_predict_well() -> None:
    found = blocks.fit_block_model(timed(BlockModelConstants()), H200)
    assert found and found.fitted is None and found.error < 0.01 and found.shapes == len(blocks.STRATEGY_SHAPES)


def test_terms_are_fitted_where_they_do_not() -> None:
    found = blocks.fit_block_model(timed(SLOWER), H200)
    assert found and found.fitted and found.built_in_error > blocks.MAX_BUILT_IN_ERROR and found.error < 0.01
    assert found.fitted.wait == pytest.approx(1600, rel=0.1) and found.fitted.launch == pytest.approx(2e-5, rel=0.1)
    assert blocks.strategies_by_side("float32", A100, found) != blocks.strategies_by_side("float32", A100, None)


SCATTER = 0.08  # of single times: more than the built-in terms may be off by, and nothing that terms could explain


@pytest.mark.parametrize("seed", range(3))
def test_a_fit_to_noise_is_not_taken(seed: int) -> None:
    """On what it sees it is closer than the built-in terms, which are true here; on what it does not see it is not."""
    rng = random.Random(seed)
    noisy = [replace(t, seconds=(t.seconds or 0.0) * exp(rng.gauss(0, SCATTER))) for t in timed(BlockModelConstants())]
    found, shapes = blocks.fit_block_model(noisy, H200), blocks.strategy_times(noisy)
    assert found and found.fitted is None and found.held_back is not None
    own = replace(H200, fitted=fit_block_terms(shapes, H200))
    seen = root_mean_square_error(compare_strategies(shapes, own))
    assert seen < found.error == found.built_in_error <= found.held_back and found.error > blocks.MAX_BUILT_IN_ERROR


def test_what_the_strategies_on_record_say() -> None:
    """Forty shapes on an H200, all of which the built-in terms were fitted to: these are off by more than what they are
    kept for unasked, and a fit to half of the shapes by still more on the other half."""
    found = blocks.select_block_terms(recorded_blocks(ROOT / "results" / "nvidia-h200" / "blocks.json"), H200)
    assert found.shapes == 40 and found.fitted is None
    assert found.error == found.built_in_error == pytest.approx(0.093, abs=0.0005)
    assert found.held_back == pytest.approx(0.1075, abs=0.0005)
    shipped = files.read_config(SHIPPED_CONFIG)["cuda-9.0-132sm-nvidia-h200"]["float32"]["blocks"]
    errors = {name: pytest.approx(getattr(found, name)) for name in ("error", "built_in_error", "held_back")}
    assert shipped == {**found.json_fields, **errors}


def test_too_few_shapes_and_other_devices_have_none() -> None:
    some = [t for t in timed(SLOWER) if t.size in blocks.STRATEGY_SHAPES[:3]]
    assert blocks.fit_block_model(some, H200) is None and blocks.fit_block_model(timed(SLOWER), None) is None
    assert blocks.strategies_by_side("float32", None, None) == {} == blocks.strategies_by_side("complex64", H200, None)
    assert set(blocks.strategies_by_side("float64", H200, None)) == set(map(str, blocks.SHOWN_SQUARE_SIDES))


@pytest.mark.slow
def test_strategies_are_timed_once_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the larger efforts of a GPU alone; what was found stands in the section, and the runtime's chip has it."""
    assert not any(effort.blocks for effort in CPU_EFFORTS.values()) and not GPU_EFFORTS["coarse"].blocks
    journal = Journal("run", SimulatedDevice(gpu=True, chip=H200, memory_bytes=1 << 40))
    probe_strategies(journal, GPU_EFFORTS["default"])
    assert {t.plan for t in journal.recorded} == {"vendor", *map(str, blocks.STRATEGY_PLANS.values())}
    rates = [replace(t, stage="rates", plan="vendor") for t in timed(BlockModelConstants()) if t.plan == "tile.large"]
    concluded = Journal("run", SimulatedDevice(gpu=True, chip=H200), [*timed(SLOWER), *rates], is_live=False)
    section = conclude_section(concluded, "float32")
    assert section and section["blocks"]["fitted"] and section["thresholds"]["block_strategy"]["4096"]
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path / "config.json"))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    tuned.write(tmp_path / "config.json", DEVICE.identity.key, "float32", section)
    files.clear_config_cache()
    chip = chip_with_tuned_block_model(DEVICE)
    assert chip and asdict(chip.fitted) == pytest.approx(section["blocks"]["fitted"])
    assert section["blocks"]["built_in"] is False and chip.strategies == (((512, 512, 512), "Small"),)
    tuned.write(
        tmp_path / "config.json", DEVICE.identity.key, "float32", {**section, "blocks": {"fitted": {"wait": 1}}}
    )
    files.clear_config_cache()
    assert chip_with_tuned_block_model(DEVICE) == DEVICE.chip  # damaged: as built in


# ---- a measured strategy is what is launched


def timed_with(fastest: str, by: float = 2.0) -> list[Trial]:
    """The strategies on all shapes as the built-in terms predict them, but one of them is faster."""
    fast, trials = str(blocks.STRATEGY_PLANS[fastest]), timed_on(A100, (*STRATEGIES, *H200_STRATEGIES))
    return [replace(t, seconds=(t.seconds or 0.0) / (by if t.plan == fast else 1.0)) for t in trials]


def labels(chip: Chip, size: tuple[int, int, int], dtype: str = "float32", plan: str = "tile") -> list[str]:
    return list(record_launches(Plan.parse(plan), Problem(*size, dtype), chip_target(chip)).step_labels())


@pytest.mark.parametrize("fastest", ["Tall", "Wide"])
def test_the_strategy_that_was_fastest_is_launched_near_the_shapes_that_were_timed(fastest: str) -> None:
    found = blocks.fit_block_model(timed_with(fastest, by=50.0), A100)
    assert found is not None and dict(found.strategies) == dict.fromkeys(blocks.STRATEGY_SHAPES, fastest)
    own = blocks.chip_with_fit(A100, found)
    for size in (*blocks.STRATEGY_SHAPES, (600, 500, 450), (7000, 1200, 230)):
        assert f" {fastest}:" in labels(own, size)[0] and f" {fastest}:" not in labels(A100, size)[0], size
    for size in (
        (20000, 20000, 20000),
        (1448, 1448, 1448),
        (4096, 4096, 512),
    ):  # no such shape was timed: the model decides
        assert labels(own, size) == labels(replace(own, strategies=()), size)
    assert labels(own, (1024, 1024, 1024), "float64") == labels(A100, (1024, 1024, 1024), "float64")
    fused = "strassen.fused > tile"
    assert labels(own, (1024, 1024, 1024), plan=fused) == labels(A100, (1024, 1024, 1024), plan=fused)


def test_a_strategy_within_the_noise_of_the_model_s_choice_is_not_taken() -> None:
    chosen = blocks.launched_strategy(Problem(1024, 1024, 1024, "float32"), A100).name
    for seconds, expected in (
        ({chosen: 1.0, "Large": 0.99}, [chosen]),
        ({chosen: 1.0, "Large": 0.9}, ["Large"]),
        ({"Huge": 1.0, "Large": 0.9}, []),  # the model's choice was not timed: nothing is known against it
    ):
        shape = blocks.StrategyTimes(blocks.BLOCK_MODEL_STAGE, (1024, 1024, 1024), seconds)
        assert [name for _, name in blocks.fastest_strategies([shape], A100)] == expected


def test_editing_a_strategy_in_the_config_changes_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = tuned.section()
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path / "config.json"))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    for name in ("Large", "Huge", "Deep", "Long"):
        found = {"fitted": None, "strategies": [{"size": [1024, 1024, 1024], "strategy": name}]}
        tuned.write(tmp_path / "config.json", DEVICE.identity.key, "float32", {**section, "blocks": found})
        files.clear_config_cache()
        chip = chip_with_tuned_block_model(DEVICE)
        assert chip is not None and f" {name}:" in labels(chip, (1000, 1024, 900))[0]
    damaged = {"fitted": None, "strategies": [{"size": [1024, 1024], "strategy": "Nobody"}]}
    tuned.write(tmp_path / "config.json", DEVICE.identity.key, "float32", {**section, "blocks": damaged})
    files.clear_config_cache()
    assert chip_with_tuned_block_model(DEVICE) == DEVICE.chip


# ---- what is shown is what is launched


def launched(dtype: str, side: int, chip: Chip) -> str:
    """The strategy of the tile's launch, from the line that `fmm.explain` prints of it."""
    (line,) = record_launches(Plan.parse("tile"), Problem(side, side, side, dtype), chip_target(chip)).step_labels()
    kernel, name = line.partition(":")[0].split()
    assert kernel.startswith("gemm_")
    return name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["V100", "A100", "RTX 4090", "H100", "H200", "B200", "RTX 5090"])
def test_the_strategy_that_is_shown_is_the_one_that_is_launched(name: str, dtype: str) -> None:
    chip, slower = named_chip(name), blocks.BlockFit(SLOWER, 0.0, 0.0, 0.0, 8)
    for found in (None, slower):
        own = chip if found is None else replace(chip, fitted=SLOWER)
        shown = blocks.strategies_by_side(dtype, chip, found)
        assert shown == {str(side): launched(dtype, side, own) for side in blocks.SHOWN_SQUARE_SIDES}


def test_hopper_takes_the_copy_engine_s_tiles() -> None:
    """Which the block model alone does not choose among: it is asked for the other kernel."""
    assert blocks.strategies_by_side("float32", H200, None) == {"512": "Small"} | {
        str(side): "Deep" for side in blocks.SHOWN_SQUARE_SIDES[1:]
    }


def recorded_sections() -> Iterator[Any]:
    for path in (SHIPPED_CONFIG, *sorted((ROOT / "results").glob("*/**/config.json"))):
        for key, types in files.read_config(path).items():
            for dtype, raw in types.items():
                if key.startswith("cuda") and read_thresholds(raw["thresholds"]) is not None:
                    yield pytest.param(key, dtype, raw, id=f"{path.parent.relative_to(ROOT)}-{dtype}")


@pytest.mark.parametrize(("key", "dtype", "raw"), list(recorded_sections()))
def test_what_is_on_record_is_what_is_launched(key: str, dtype: str, raw: dict[str, Any]) -> None:
    """`fmm-tune --refit --refit-part blocks` and `python -m benchmarks.shipped --blocks` write it."""
    guess = calibration_from_datasheet(key, device_name(key, raw))
    found = raw.get("blocks") or {}
    assert guess is not None and found.get("built_in", True)
    measured = read_strategies(found.get("strategies"))
    chip = replace(datasheet_chip(datasheet_of(guess.name)), strategies=measured)
    assert raw["thresholds"]["block_strategy"] == blocks.strategies_by_side(dtype, chip, None)


def test_an_h100_launches_the_strategies_that_were_measured_on_one() -> None:
    path = ROOT / "results" / "nvidia-h100-80gb-hbm3" / "blocks.json"
    chip = datasheet_chip(datasheet_of("H100"))
    shapes = recorded_blocks(path)
    shipped = files.read_config(SHIPPED_CONFIG)["cuda-9.0-132sm-nvidia-h100-80gb-hbm3"]["float32"]["blocks"]
    assert dict(read_strategies(shipped["strategies"])) == dict(blocks.fastest_strategies(shapes, chip))
    assert " Long:" in labels(replace(chip, strategies=read_strategies(shipped["strategies"])), (1024, 1024, 1024))[0]
