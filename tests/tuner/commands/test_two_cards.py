"""fmm-tune where two cards have one chip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from benchmarks import agreement
from fmm.config import files, reader
from fmm.tuner.cli import main
from tests.support import ROOT
from tests.support import configs as tuned

SMALL, LARGE = "cuda-8.6-46sm-a-small-card", "cuda-8.6-46sm-a-large-card"
NAMES = {SMALL: "A small card", LARGE: "A large card"}
Configured = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configured:
    """A config in force with a section under each of these keys, of the card of this name."""

    def configured(names: Mapping[str, str]) -> Path:
        found = {key: tuned.section(tuned.entry(), conditions={"device": name}) for key, name in names.items()}
        devices = {key: {"float64": section} for key, section in found.items()}
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(reader.config_text(devices), encoding="utf-8")
        monkeypatch.setenv("FMM_CONFIG", str(path))
        monkeypatch.setenv("FMM_TUNING_MODE", "cache")
        files.clear_config_cache()
        return path

    return configured


def test_the_name_of_a_datasheet_finds_the_tuning_of_such_a_card(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tuning in the config, and not one of another card with the same chip; without tunings the datasheet."""
    monkeypatch.setenv("FMM_CONFIG", str(ROOT / "results" / "nvidia-h200"))
    for mode, name, is_tuned in (("cache", "h200", True), ("cache", "h100", False), ("off", "h200", False)):
        monkeypatch.setenv("FMM_TUNING_MODE", mode)
        files.clear_config_cache()
        assert main(["predict", "8192", "--dtype", "float32", "--device", name]) == 0
        head = capsys.readouterr().out.splitlines()[0]
        assert ("on NVIDIA H200 (calibrated" in head) == is_tuned and ("(datasheet, not measured)" in head) != is_tuned


def test_two_cards_have_nothing_to_compare(configured: Configured, capsys: pytest.CaptureFixture[str]) -> None:
    small, large = (configured({key: name}) for key, name in NAMES.items())
    assert agreement.main([str(small), str(large)]) == 1
    assert "the configs have no device and type in common" in capsys.readouterr().err
