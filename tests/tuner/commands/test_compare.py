"""fmm-tune compare: equal configs agree, others are told apart, tuned shapes count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.choose import CPU_GROWTH
from fmm.perfmodel.stability import expected_growth
from fmm.tuner.cli import main
from fmm.tuner.commands.compare import SIDES
from tests.support import configs as tuned

KEY = "cpu-test-2t"


def config(folder: Path, stream: float, *entries: object, noise: float = 0.02) -> str:
    rate = {"flops": 1e11, "fill": 2500.0, "pipe": 20.0}
    section = tuned.section(*entries, calibration={"stream": stream, "rate": rate}, noise=noise)  # type: ignore[arg-type]
    return str(tuned.write(folder / "config.json", KEY, "float64", section))


def test_a_config_agrees_with_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = config(tmp_path / "one", 1e10)
    assert main(["compare", one, one]) == 0
    shapes = len(SIDES) ** 3
    said = capsys.readouterr().out
    assert f"{shapes} of {shapes} choices are equal (100.0%), the others up to 0.0% apart" in said
    assert said.splitlines()[-1].startswith("they choose alike: ")
    other = config(tmp_path / "other", 4e10)
    assert main(["compare", one, other]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("they do not choose alike: ")


def test_models_that_choose_otherwise_disagree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = config(tmp_path / "one", 1e10), config(tmp_path / "two", 4e10)
    assert main(["compare", one, two, "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert found["equal"] < 0.9 * found["shapes"] and found["worst"] > found["noise"] == 0.02
    near = config(tmp_path / "near", 1.005e10)
    assert main(["compare", one, near, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["shapes"] > found["equal"] or found["worst"] == 0


def test_certified_entries_are_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    side = SIDES[0]
    one = config(tmp_path / "one", 1e10)
    two = config(tmp_path / "two", 1e10, tuned.entry((side, side, side), "dps > vendor"))
    assert main(["compare", one, two, "--json"]) in (0, 1)
    (found,) = json.loads(capsys.readouterr().out)
    assert found["equal"] == found["shapes"] - 1 and found["worst"] > 0


def test_an_entry_that_the_runtime_would_pass_over_is_no_choice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    side, wild = SIDES[-1], "winograd^3 > winograd^2 > vendor"
    assert expected_growth(Plan.parse(wild), "float64") > CPU_GROWTH
    one = config(tmp_path / "one", 1e10)
    two = config(tmp_path / "two", 1e10, tuned.entry((side, side, side), wild))
    assert main(["compare", one, two, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["equal"] == found["shapes"]


def test_nothing_in_common(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = config(tmp_path / "one", 1e10)
    other = str(tuned.write(tmp_path / "other" / "config.json", "cpu-other-2t"))
    assert main(["compare", one, other]) == 1
    assert "no device and type in common" in capsys.readouterr().err
    assert main(["compare", one, str(tmp_path / "none.json")]) == 1
    assert "there is no config" in capsys.readouterr().err
