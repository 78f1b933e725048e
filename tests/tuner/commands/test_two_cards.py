"""fmm-tune where two cards have one chip, and where an earlier fmm filed what it knew of both under one key."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fmm.config import files, reader
from fmm.config.identity import Identity
from fmm.config.schema import Tuned
from fmm.tuner import tune as commands_tune
from fmm.tuner.cli import main
from fmm.tuner.commands.export import with_predictions
from fmm.tuner.devices.device import EFFORTS
from fmm.tuner.devices.simulated import SimulatedDevice
from fmm.tuner.trials.record import Header, Trials, Tuning, tuning_of
from tests.support import ROOT
from tests.support import configs as tuned

OLDER = "cuda-8.6-46sm"
SMALL, LARGE = f"{OLDER}-a-small-card", f"{OLDER}-a-large-card"
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


def test_an_older_key_is_understood_where_one_card_has_it(
    configured: Configured, capsys: pytest.CaptureFixture[str]
) -> None:
    configured({SMALL: NAMES[SMALL]})
    told = []
    for name in (SMALL, OLDER):
        assert main(["predict", "3000", "--device", name, "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1] and told[0]["device"] == NAMES[SMALL]
    configured(NAMES)
    assert main(["predict", "3000", "--device", OLDER]) == 2
    said = capsys.readouterr().err
    assert f"unknown device '{OLDER}'; valid: " in said and SMALL in said and LARGE in said


def test_a_datasheet_names_the_card_that_is_tuned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the key of that card, not by another's with the same chip."""
    monkeypatch.setenv("FMM_CONFIG", str(ROOT / "results" / "nvidia-h200"))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    files.clear_config_cache()
    for name, known in (("h200", True), ("h100", False)):
        assert main(["predict", "8192", "--dtype", "float32", "--device", name]) == 0
        told = "on a NVIDIA H200 fmm.matmul goes by a tuning of such a card: `--device cuda-9.0-132sm-nvidia-h200`"
        assert (told in capsys.readouterr().out) == known


def test_two_cards_have_nothing_to_compare(configured: Configured, capsys: pytest.CaptureFixture[str]) -> None:
    small, large, older = (configured({key: name}) for key, name in (*NAMES.items(), (OLDER, NAMES[SMALL])))
    assert main(["compare", str(small), str(large)]) == 1
    assert "the configs have no device and type in common" in capsys.readouterr().err
    assert main(["compare", str(small), str(older)]) == 0
    assert f"{SMALL}, float64: " in capsys.readouterr().out


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_commands_name_a_card_by_todays_key(
    command: str, configured: Configured, capsys: pytest.CaptureFixture[str]
) -> None:
    path = configured({OLDER: NAMES[SMALL]})
    assert main([command, str(path)]) == 0
    said = capsys.readouterr().out
    assert SMALL in said and OLDER not in said.replace(SMALL, "")


# ---- trials


def header(run: str, memory: int | None, device: str = OLDER) -> Header:
    settings = {"dtype": "float64", "effort": "default", "shapes": []}
    return Header(run, device, {"cuda": "13"}, {} if memory is None else {"memory": memory}, settings, "", "")


def test_trials_of_an_older_key_are_of_the_card_with_as_much_memory() -> None:
    """Where neither the key nor the section tells which; where its memory is known."""
    tunings = [Tuning(header(str(memory), memory), (), True) for memory in (40, 80, None)]
    for memory, run in ((40, "40"), (80, "80"), (None, "None")):
        own = tunings[:2] if memory else tunings
        found = tuning_of(own, LARGE, "float64", {"conditions": {"memory": memory}, "tuned": None})
        assert found is not None and found.header.run == run
    assert tuning_of(tunings[:2], LARGE, "float64", {"conditions": {"memory": 60}, "tuned": None}) is None
    named = {"conditions": None, "tuned": {"run": "40"}}
    assert tuning_of(tunings, LARGE, "float64", named) is tunings[0]
    assert tuning_of(tunings, f"{OLDER}h", "float64", named) is None
    assert tuning_of([Tuning(header("other", 80, SMALL), (), True)], LARGE, "float64", named) is None


@pytest.mark.parametrize(("recorded", "tunings"), [(80, 1), (None, 1), (40, 2)])
def test_a_tuning_of_an_older_key_is_resumed(
    recorded: int | None, tunings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the card that it was of: one with other memory begins anew. Its section has today's key."""
    device = SimulatedDevice(identity=Identity(LARGE, NAMES[LARGE], {"numpy": "0"}), conditions={"memory": 80})
    monkeypatch.setattr(commands_tune, "chosen_devices", lambda name: [device])
    monkeypatch.setitem(EFFORTS, "quick", replace(tuned.SMALL, most=60))
    arguments = ["--dtype", "float64", "--effort", "quick", "--quiet", "--output", str(tmp_path)]
    assert main([*arguments, "--time-limit", "1e-9"]) == 1
    file = Trials(tmp_path / "trials.jsonl")
    (begun,) = file.tunings()
    file.path.unlink()
    conditions = {**begun.header.conditions, "memory": recorded}
    file.header(replace(begun.header, device=OLDER, conditions=conditions))
    file.close()
    assert main([*arguments, "--resume"]) == 0
    assert len(file.tunings()) == tunings and file.tunings()[0].finished == (tunings == 1)
    assert list(files.read_config(tmp_path / "config.json")) == [LARGE]


def test_trials_of_an_older_key_are_predicted_where_one_card_has_it() -> None:
    pandas = pytest.importorskip("pandas")
    columns = ("device", "dtype", "m", "k", "n", "plan", "part", "twin", "op")
    row = (OLDER, "float64", 4096, 4096, 4096, "vendor", "whole", 0, "product")
    trials, truth = pandas.DataFrame([row], columns=columns), SimulatedDevice().truth
    sections = {(key, "float64"): Tuned(Identity(key, name), "float64", truth, {}) for key, name in NAMES.items()}
    one = {(SMALL, "float64"): sections[SMALL, "float64"]}
    assert with_predictions(trials, one)["predicted"][0] > 0
    assert with_predictions(trials, sections)["predicted"].isna().all()
