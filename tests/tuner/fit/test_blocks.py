"""The block strategies of a device: the model's terms are kept where they hold, fitted where they do not, and used."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fmm.config import files
from fmm.hardware.chip import Fitted
from fmm.kernels.cuda.products.tiles.tile_sizes import STRATEGIES
from fmm.perfmodel.block_time import GEMM, launch_seconds
from fmm.runtime.devices import chip_as_tuned
from fmm.tuner.devices.effort import EFFORTS, GPU_EFFORTS
from fmm.tuner.devices.fake import FakeDevice
from fmm.tuner.findings.conclude import concluded_section
from fmm.tuner.fit import blocks
from fmm.tuner.stages.probes import probe_strategies
from fmm.tuner.trials.journal import Journal
from fmm.tuner.trials.record import Trial
from tests.support import configs as tuned
from tests.support.chips import H200
from tests.support.devices import H200 as DEVICE

SLOWER = Fitted(wait=1600.0, far=1200.0, share=0.859, launch=2e-5)


def timed(terms: Fitted) -> list[Trial]:
    """The strategies on all shapes, on a chip for which these terms are true."""
    chip = replace(H200, fitted=terms)
    return [
        Trial("r", blocks.STAGE, size, "float32", str(blocks.PLANS[s.name]), "whole", 0, 0, 0.0,
              launch_seconds(s, GEMM, size, chip))
        for size in blocks.SIZES for s in STRATEGIES
    ]  # fmt: skip


def test_built_in_terms_are_kept_where_they_predict_well() -> None:
    found = blocks.fitted_blocks(timed(Fitted()), H200)
    assert found and found.fitted is None and found.error < 0.01 and found.shapes == len(blocks.SIZES)


def test_terms_are_fitted_where_they_do_not() -> None:
    found = blocks.fitted_blocks(timed(SLOWER), H200)
    assert found and found.fitted and found.built_in_error > blocks.CLOSE and found.error < 0.01
    assert found.fitted.wait == pytest.approx(1600, rel=0.1) and found.fitted.launch == pytest.approx(2e-5, rel=0.1)
    assert blocks.chosen_strategies("float32", H200, found) != blocks.chosen_strategies("float32", H200, None)


def test_too_few_shapes_and_other_devices_have_none() -> None:
    some = [t for t in timed(SLOWER) if t.size in blocks.SIZES[:3]]
    assert blocks.fitted_blocks(some, H200) is None and blocks.fitted_blocks(timed(SLOWER), None) is None
    assert blocks.chosen_strategies("float32", None, None) == {} == blocks.chosen_strategies("complex64", H200, None)
    assert set(blocks.chosen_strategies("float64", H200, None)) == set(map(str, blocks.SIDES))


def test_strategies_are_timed_once_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the larger efforts of a GPU alone; what was found stands in the section, and the runtime's chip has it."""
    assert not any(effort.blocks for effort in EFFORTS.values()) and not GPU_EFFORTS["coarse"].blocks
    journal = Journal("run", FakeDevice(gpu=True, chip=H200, memory=1 << 40))
    probe_strategies(journal, GPU_EFFORTS["default"])
    assert {t.plan for t in journal.recorded} == {"vendor", *map(str, blocks.PLANS.values())}
    rates = [replace(t, stage="rates", plan="vendor") for t in timed(Fitted()) if t.plan == "tile.large"]
    concluded = Journal("run", FakeDevice(gpu=True, chip=H200), [*timed(SLOWER), *rates], live=False)
    section = concluded_section(concluded, "float32")
    assert section and section["blocks"]["fitted"] and section["thresholds"]["block_strategy"]["4096"]
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path / "config.json"))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    tuned.write(tmp_path / "config.json", DEVICE.identity.key, "float32", section)
    files.forget_configs()
    chip = chip_as_tuned(DEVICE)
    assert chip and asdict(chip.fitted) == pytest.approx(section["blocks"]["fitted"])
    tuned.write(
        tmp_path / "config.json", DEVICE.identity.key, "float32", {**section, "blocks": {"fitted": {"wait": 1}}}
    )
    files.forget_configs()
    assert chip_as_tuned(DEVICE) == DEVICE.chip  # damaged: as built in
