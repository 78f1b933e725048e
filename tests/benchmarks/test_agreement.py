"""Comparing two tunings: equal configs agree, others differ, certified entries count, thresholds are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import agreement
from benchmarks.agreement import SHOWN_DIFFERENCES, main
from fmm.config import files
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.choose import CPU_ERROR_GROWTH_LIMIT, Limits, default_error_growth_limit
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Problem
from fmm.runtime.decisions.decide import decide_by_model, decide_by_tuning
from fmm.tuner.findings.model_in_use import model_in_use
from tests.support import configs as tuned

KEY = "cpu-test-2t"
SIDES = (1000, 2048, 6000, 16384)
H200, H200_KEY = Path(__file__).parents[2] / "results" / "nvidia-h200", "cuda-9.0-132sm-nvidia-h200"


@pytest.fixture(autouse=True)
def few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "SIDES", SIDES)


def config(folder: Path, stream: float, *entries: object, noise: float = 0.02, thresholds: Any = None) -> str:
    rate = {"flops": 1e11, "fill": 2500.0, "pipe": 20.0}
    fields = {"calibration": {"stream": stream, "rate": rate}, "noise": noise, "thresholds": thresholds}
    section = tuned.section(*entries, **fields)  # type: ignore[arg-type]
    return str(tuned.write(folder / "config.json", KEY, "float64", section))


def test_a_config_agrees_with_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = config(tmp_path / "one", 1e10)
    assert main([one, one]) == 0
    shapes = len(SIDES) ** 3
    printed = capsys.readouterr().out
    assert f"{shapes} of {shapes} choices are equal (100.0%); others differ by up to 0.0%" in printed
    assert printed.splitlines()[-1].startswith("they choose alike: ")
    other = config(tmp_path / "other", 4e10)
    assert main([one, other]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("they do not choose alike: ")


def test_models_with_different_choices_disagree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = config(tmp_path / "one", 1e10), config(tmp_path / "two", 4e10)
    assert main([one, two, "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert found["equal"] < 0.9 * found["shapes"] and found["worst"] > found["noise"] == 0.02
    near = config(tmp_path / "near", 1.005e10)
    assert main([one, near, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["shapes"] > found["equal"] or found["worst"] == 0


def test_sizes_of_different_plans_are_named_the_largest_loss_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row has both plans, and the loss by the other plan that each model predicts."""
    one, two = config(tmp_path / "one", 1e10), config(tmp_path / "two", 4e10)
    assert main([one, two, "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    differences = found["differences"]
    assert len(differences) == SHOWN_DIFFERENCES < found["shapes"] - found["equal"]
    losses = [max(x["first_loss"], x["second_loss"]) for x in differences]
    assert losses == sorted(losses, reverse=True) and 0 < losses[0] <= found["worst"]
    assert all(x["first"] != x["second"] and set(x["size"]) <= set(SIDES) for x in differences)
    assert main([one, two]) == 1
    printed = capsys.readouterr().out
    assert f"where they choose otherwise, {SHOWN_DIFFERENCES} of {found['shapes'] - found['equal']} sizes" in printed
    size = " x ".join(map(str, differences[0]["size"]))
    (row,) = (line for line in printed.splitlines() if line.split("  ")[1:2] == [size])
    assert all(
        text in row
        for text in (differences[0]["first"], differences[0]["second"], f"{differences[0]['first_loss']:+.1%}")
    )
    assert main([one, one]) == 0
    assert "choose otherwise" not in capsys.readouterr().out


def test_certified_entries_are_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    side = SIDES[0]
    one = config(tmp_path / "one", 1e10)
    two = config(tmp_path / "two", 1e10, tuned.entry((side, side, side), "dps > vendor"))
    assert main([one, two, "--json"]) in (0, 1)
    (found,) = json.loads(capsys.readouterr().out)
    assert found["equal"] == found["shapes"] - 1 and found["worst"] > 0
    (differences,) = found["differences"]
    assert (
        differences["size"] == [side, side, side]
        and differences["second"] == "dps > vendor"
        and differences["second_loss"] < 0
    )


def test_an_entry_that_the_runtime_rejects_is_no_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    side, wild = SIDES[-1], "winograd^3 > winograd^2 > vendor"
    assert expected_error_growth(Plan.parse(wild), "float64") > CPU_ERROR_GROWTH_LIMIT
    one = config(tmp_path / "one", 1e10)
    two = config(tmp_path / "two", 1e10, tuned.entry((side, side, side), wild))
    assert main([one, two, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["equal"] == found["shapes"]


def test_configs_without_a_common_device_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = config(tmp_path / "one", 1e10)
    other = str(tuned.write(tmp_path / "other" / "config.json", "cpu-other-2t"))
    assert main([one, other]) == 1
    assert "no device and type in common" in capsys.readouterr().err
    assert main([one, str(tmp_path / "none.json")]) == 1
    assert "there is no config" in capsys.readouterr().err


def thresholds(intervals: dict[str, list[float | None]] | None = None, **found: float | None) -> dict[str, Any]:
    """Return thresholds as a section has them; tau1 to tau3 by their values."""
    sides = {"tau1": 2000.0, "tau2": 4000.0, "tau3": None} | {x: y for x, y in found.items() if x.startswith("tau")}
    numbers = {"alpha": 1e-9, "pi": 1e-11, "n1": 750.0} | {x: y for x, y in found.items() if x not in sides}
    return tuned.raw_thresholds(sides, **numbers, **({"intervals": intervals} if intervals else {}))


WIDE: dict[str, list[float | None]] = {"tau1": [1500.0, 2700.0], "tau3": [30000.0, None]}


@pytest.mark.parametrize(
    ("second", "printed", "code"),
    [
        (thresholds(n1=820.0), ["n1", "750", "820", "+9.3%", "agree"], 0),
        (thresholds(alpha=1.2e-9), ["alpha", "1e-09", "1.2e-09", "+20.0%", "differ"], 1),
        (thresholds(), ["tau3", "never", "never", "+0.0%", "agree"], 0),
        (thresholds(tau3=31000.0), ["tau3", "never", "31000", "differ"], 1),
        (thresholds(tau2=None), ["tau2", "4000", "never", "differ"], 1),
    ],
    ids=["near", "apart", "both never", "the second alone pays", "the first alone pays"],
)
def test_thresholds_of_both_are_in_one_row(
    second: dict[str, Any], printed: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = config(tmp_path / "one", 1e10, thresholds=thresholds())
    two = config(tmp_path / "two", 1e10, thresholds=second)
    assert main([one, two]) == code
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:8]] == ["threshold", "alpha", "pi", "n1", "tau1", "tau2", "tau3"]
    assert printed in [line.split() for line in lines]
    assert lines[-2].startswith("their thresholds do not agree: " if code else "their thresholds agree: ")
    assert lines[-1].startswith("they choose alike: ")


@pytest.mark.parametrize(
    ("interval", "agrees"), [([2600.0, 3500.0], True), ([2800.0, 3500.0], False), ([2600.0, None], True), (None, False)]
)
def test_thresholds_whose_intervals_overlap_agree(
    interval: list[float | None] | None, agrees: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """3000 is 50 % more than 2000, whose interval ends at 2700; an end of null is larger than all sides."""
    one = config(tmp_path / "one", 1e10, thresholds=thresholds(WIDE))
    two = config(tmp_path / "two", 1e10, thresholds=thresholds({"tau1": interval} if interval else None, tau1=3000.0))
    assert main([one, two]) == int(not agrees)
    assert ("agree: the intervals overlap" in capsys.readouterr().out) == agrees
    assert main([one, two, "--json"]) == int(not agrees)
    (found,) = json.loads(capsys.readouterr().out)
    (tau1,) = (x for x in found["thresholds"] if x["name"] == "tau1")
    assert (tau1["first"], tau1["second"], tau1["difference"], tau1["agrees"]) == (2000.0, 3000.0, 0.5, agrees)
    assert tau1["first_interval"] == [1500.0, 2700.0] and tau1["second_interval"] == interval


def test_thresholds_that_one_config_lacks_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = config(tmp_path / "one", 1e10, thresholds=thresholds()), config(tmp_path / "two", 1e10)
    assert main([one, two]) == 0
    printed = capsys.readouterr().out
    assert "thresholds: not in both; `fmm-tune --refit --refit-part thresholds` makes" in printed
    assert "thresholds agree" not in printed


def test_choices_are_those_of_the_runtime_by_leaves_that_no_tuning_measured_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One of two tunings of H200s is older than `f16x3`: fmm.matmul rates that leaf by the datasheet."""
    paths = [str(H200), str(H200 / "five-minutes")]
    main([*paths, "--json"])
    found = {x["dtype"]: x for x in json.loads(capsys.readouterr().out)}
    assert found["float32"]["equal"] > 0.95 * found["float32"]["shapes"]
    sections = files.read_config(H200 / "config.json")[H200_KEY]
    used = model_in_use(H200_KEY, "float32", sections)
    for row in found["float32"]["differences"]:
        limits = Limits(1 << 62, default_error_growth_limit(batches=True))
        m, k, n = row["size"]
        problem = Problem(m, k, n, "float32")
        chosen = decide_by_tuning(problem, limits, used.tuned, used.calibration, False)
        chosen = chosen or decide_by_model(problem, limits, used.calibration, True, used.tuned.identity)
        assert row["first"] == str(chosen.plan)


@pytest.mark.slow
def test_thresholds_of_unlike_leaves_are_compared_without_emulation(capsys: pytest.CaptureFixture[str]) -> None:
    """tau1 to tau3 belong to the measured leaves; the first tuning measured no leaf that emulates."""
    main([str(H200), str(H200 / "five-minutes"), "--json"])
    found = {x["dtype"]: {row["name"]: row for row in x["thresholds"]} for x in json.loads(capsys.readouterr().out)}
    assert "tau1" not in found["float32"] and found["float32"]["tau1 without emulation"]["agrees"]
    assert "tau1 without emulation" not in found["bfloat16"] and found["bfloat16"]["tau1"]["agrees"]
    assert all(found[dtype][name]["agrees"] for dtype in ("float32", "float64") for name in ("alpha", "pi", "n1"))
    main([*[str(H200 / "five-minutes")] * 2, "--json"])
    alike = {row["name"] for x in json.loads(capsys.readouterr().out) for row in x["thresholds"]}
    assert {"tau1", "tau1 without emulation"} <= alike, "both know such leaves"


def test_measured_crossovers_are_compared_by_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def with_taus(folder: str, tau: float, interval: list[float]) -> str:
        taus = {"vendor": {"tau1": tau, "tau2": None, "tau3": None}}
        found = tuned.raw_thresholds(dict.fromkeys(("tau1", "tau2", "tau3"), 5e3), alpha=2e-9, pi=1e-11, n1=3000.0)
        found |= {"measured_taus": taus, "measured_intervals": {"vendor": {"tau1": interval}}}
        return config(tmp_path / folder, 1e10, thresholds=found)

    one, near = with_taus("one", 4000.0, [3900.0, 4100.0]), with_taus("near", 4300.0, [4200.0, 4400.0])
    main([one, near])
    assert "tau1 above vendor, measured" in capsys.readouterr().out
    far = with_taus("far", 8000.0, [7000.0, 9000.0])
    assert main([one, far, "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row["agrees"] for row in found["thresholds"]}
    assert rows["tau1 above vendor, measured"] is False and "tau2 above vendor, measured" not in rows
