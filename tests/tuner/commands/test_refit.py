"""fmm-tune --refit writes what the tuning wrote, from the trials alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import shipped
from fmm.config import files
from fmm.config.files import SHIPPED_CONFIG
from fmm.config.reader import config_text
from fmm.config.schema import read_thresholds
from fmm.tuner import tune
from fmm.tuner.cli import main
from fmm.tuner.devices.device import CPU_EFFORTS
from fmm.tuner.devices.simulated import SIMULATED_IDENTITY, SimulatedDevice
from tests.support import ROOT
from tests.support import configs as tuned

OLD = {"tau1": 2569.0, "tau2": 5138.1, "recursion_points": [5138.1], "epsilon": 190.3, "ratio": 152.2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tuning of the fake device."""
    found = tmp_path_factory.mktemp("tuning")
    (found / "shapes").write_text("6000 6000 6000\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "select_devices", lambda name: [SimulatedDevice()])
        patch.setitem(CPU_EFFORTS, "quick", tuned.SMALL)
        arguments = ["--effort", "quick", "--dtype", "float64", "--shapes", str(found / "shapes"), "--quiet"]
        assert main([*arguments, "--output", str(found)]) == 0
    return found


def section(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = files.read_config(path)[SIMULATED_IDENTITY.key]["float64"]
    return found


def older(folder: Path, into: Path) -> Path:
    """The same tuning with thresholds of an earlier form, its trials beside it."""
    (into / "trials.jsonl").write_bytes((folder / "trials.jsonl").read_bytes())
    known = {**section(folder / "config.json"), "thresholds": OLD}
    return tuned.write(into / "config.json", SIMULATED_IDENTITY.key, found=known)


@pytest.mark.slow
def test_a_refit_writes_the_same_section(folder: Path, tmp_path: Path) -> None:
    path = older(folder, tmp_path)
    assert main(["--refit", str(path)]) == 0
    before, after = section(folder / "config.json"), section(path)
    assert after.pop("tuned").keys() - before.pop("tuned").keys() == {"concluded"}
    assert after == before and set(before["thresholds"]["one_level"])


@pytest.mark.slow
def test_a_refit_prints_its_changes(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Margin, thresholds and entries before and after; of what is as it was that it is; the same as JSON."""
    path, known = older(folder, tmp_path), section(folder / "config.json")
    (size,) = (tuple(entry["size"]) for entry in known["entries"] if not entry["lean"])
    lost = tuned.entry((96, 96, 96), "dps > vendor")
    entries = [lost.json_fields | {"size": list(lost.size)}, *(x for x in known["entries"] if x["lean"])]
    stale = {**section(path), "calibration": {**known["calibration"], "margin": 0.5}, "entries": entries}
    tuned.write(path, SIMULATED_IDENTITY.key, found=stale)
    into = tmp_path / "other" / "config.json"
    assert main(["--refit", str(path), "--output", str(into)]) == 0
    said = capsys.readouterr().out
    margin, n1 = known["calibration"]["margin"], known["thresholds"]["n1"]
    for told in (
        f"  margin: 50.0% -> {margin:.1%}\n",
        f"  n1, one level by Equation 3: none -> {n1:.0f}\n",
        "  tau1, one level from side: none -> ",
        f"  entry {size[0]}: none -> ",
        f"  entry 96: dps > vendor ({lost.evidence_text}) -> none\n",
    ):
        assert told in said
    assert main(["--refit", str(into)]) == 0
    assert re.search(r"fitted from \d+ samples\n  unchanged\nwritten to ", capsys.readouterr().out)
    assert main(["--refit", str(path), "--json", "--output", str(tmp_path / "third.json")]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    changes = {row["name"]: (row["before"], row["after"]) for row in found["changes"]}
    assert (found["device"], found["dtype"], found["written"]) == (SIMULATED_IDENTITY.key, "float64", True)
    assert changes["margin"] == (0.5, margin) and changes["entry 96"] == (f"dps > vendor: {lost.evidence_text}", None)
    assert "calibration" in found["other_changes"] and "noise" not in found["other_changes"]


@pytest.mark.slow
def test_a_refit_of_the_thresholds_keeps_the_model(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, other = older(folder, tmp_path), tmp_path / "other" / "config.json"
    slow = {**section(path), "noise": 0.5}
    tuned.write(path, SIMULATED_IDENTITY.key, found=slow)
    assert main(["export", "--thresholds", str(path)]) == 1
    assert main(["--refit", str(path), "--refit-part", "thresholds", "--output", str(other)]) == 0
    assert section(path) == slow
    assert section(other) == {**slow, "thresholds": section(folder / "config.json")["thresholds"]}
    assert main(["export", "--thresholds", "--json", str(other)]) == 0
    assert "fitted from" in capsys.readouterr().out


@pytest.mark.slow
def test_a_refit_copies_the_trials_into_another_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where export reads them; those of another tuning there stay."""
    path, into = older(folder, tmp_path), tmp_path / "other" / "config.json"
    for said in (
        ", with the trials beside it\n",
        f"; the trials beside it belong to another config, its own are in {tmp_path}\n",
    ):
        assert main(["--refit", str(path), "--refit-part", "thresholds", "--output", str(into)]) == 0
        assert f"written to {into}{said}" in capsys.readouterr().out
    assert into.with_name("trials.jsonl").read_bytes() == path.with_name("trials.jsonl").read_bytes()
    assert main(["export", "--trials", str(into)]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 1
    into.with_name("trials.jsonl").unlink()
    assert main(["export", "--trials", str(into)]) == 1
    printed = capsys.readouterr()
    assert printed.err == f"fmm-tune: there are no trials beside {into}\n" and not printed.out


def test_a_refit_of_the_tiles_changes_nothing_else(folder: Path, tmp_path: Path) -> None:
    """A processor has none, whatever an earlier fmm wrote."""
    path, other = older(folder, tmp_path), tmp_path / "other" / "config.json"
    known = section(folder / "config.json")
    stale = {
        **known,
        "noise": 0.5,
        "thresholds": {**known["thresholds"], "alpha": 1.0, "block_strategy": {"512": "Huge"}},
    }
    tuned.write(path, SIMULATED_IDENTITY.key, found=stale)
    assert main(["--refit", str(path), "--refit-part", "blocks", "--output", str(other)]) == 0
    found = section(other)
    assert found.pop("thresholds") == {**stale.pop("thresholds"), "block_strategy": {}}
    assert found == stale and found["blocks"] is None


def test_without_trials_nothing_is_written(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tuned.write(
        tmp_path / "config.json", SIMULATED_IDENTITY.key, found={**section(folder / "config.json"), "thresholds": OLD}
    )
    before = path.read_text(encoding="utf-8")
    assert main(["--refit", str(path)]) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert "unchanged, there are no trials of it" in first and last == "nothing was written"
    assert path.read_text(encoding="utf-8") == before


def test_a_refit_that_fails_at_the_last_section_writes_none(folder: Path, tmp_path: Path) -> None:
    path = older(folder, tmp_path)
    devices = files.read_config(path)
    damaged = {**section(path), "noise": "much"}
    path.write_text(config_text({**devices, "zz": {"float64": damaged}}), encoding="utf-8")
    before = path.read_bytes()
    assert main(["--refit", str(path), "--refit-part", "thresholds"]) == 1
    assert path.read_bytes() == before


@pytest.mark.parametrize("threads", ["two", [2]])
def test_trials_with_a_damaged_number_of_threads_are_refused(
    threads: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = older(folder, tmp_path)
    trials = tmp_path / "trials.jsonl"
    header, *rest = trials.read_text(encoding="utf-8").splitlines()
    record = json.loads(header)
    record["tuning"]["conditions"]["threads"] = threads
    trials.write_text("\n".join([json.dumps(record), *rest]), encoding="utf-8")
    assert main(["--refit", str(path)]) == 1
    name = f"{SIMULATED_IDENTITY.key}, float64"
    assert capsys.readouterr().err == f"fmm-tune: {name}: the trials have no number of threads; tune it again\n"


@pytest.mark.parametrize("options", ["--dry-run", "--dtype float32", "--resume", "--device cpu --time-limit 5"])
def test_an_option_that_a_refit_does_not_have_is_refused_and_nothing_is_written(
    options: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = tmp_path / "other.json"
    assert main(["--refit", str(folder), *options.split(), "--output", str(into)]) == 2
    printed = capsys.readouterr()
    named = ", ".join(word for word in options.split() if word.startswith("--"))
    assert printed.err == f"fmm-tune: --refit measures nothing and fits every type; leave out {named}\n"
    assert not printed.out and not into.exists()


def test_a_quiet_refit_prints_nothing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = tmp_path / "other.json"
    assert main(["--refit", str(folder), "--refit-part", "blocks", "--quiet", "--output", str(into)]) == 0
    assert capsys.readouterr().out == "" and into.exists()


RECORDED = sorted((ROOT / "results").glob("*/**/config.json"))


@pytest.mark.slow
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: str(path.relative_to(ROOT / "results").parent))
def test_recorded_thresholds_are_those_of_the_recorded_trials(path: Path, tmp_path: Path) -> None:
    again = tmp_path / "config.json"
    assert main(["--refit", str(path), "--refit-part", "thresholds", "--output", str(again)]) == 0
    same_thresholds(again, path)


@pytest.mark.slow
def test_the_shipped_thresholds_are_those_of_their_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves all else of the shipped models as it is."""
    again = tmp_path / "config.json"
    again.write_bytes(SHIPPED_CONFIG.read_bytes())
    monkeypatch.setattr(shipped, "SHIPPED_CONFIG", again)
    assert shipped.main(["--thresholds"]) == 0
    same_thresholds(again, SHIPPED_CONFIG)


def same_blocks(found: dict[str, Any] | None, stands: dict[str, Any] | None) -> None:
    """Terms and errors of a fit end in other digits on another processor."""
    for one, two in ((found, stands), ((found or {}).get("fitted"), (stands or {}).get("fitted"))):
        assert (one is None) == (two is None)
        own, wanted = ({**(x or {}), "fitted": None} for x in (one, two))
        assert own.pop("strategies", []) == wanted.pop("strategies", [])
        assert own == pytest.approx(wanted)


def same_thresholds(one: Path, two: Path) -> None:
    """And all else as it was. (The ends of intervals are of models that were drawn; the tiles are of another model.)"""
    again, stored = files.read_config(one), files.read_config(two)
    for key, types in stored.items():
        for dtype, stands in types.items():
            found, there = again[key][dtype]["thresholds"], stands["thresholds"]
            if found.get("measured_taus") and "measured_taus" not in there:  # recorded before crossovers were measured
                assert {**again[key][dtype], "thresholds": there} == stands, dtype
                continue
            same_blocks(again[key][dtype].get("blocks"), blocks := stands.get("blocks"))
            rest = {"thresholds": there, **({"blocks": blocks} if "blocks" in stands else {})}
            assert {**again[key][dtype], **rest} == stands, dtype
            assert found.keys() == there.keys()
            for name in found.keys() - {"block_strategy", "intervals", "epsilon"}:
                assert found[name] == there[name], (dtype, name)
            known, before = read_thresholds(found), read_thresholds(there)
            assert known and before and known.epsilon == before.epsilon, dtype  # 0 once meant not determined, too
            assert found["intervals"].keys() == there["intervals"].keys()
            for name, ends in found["intervals"].items():
                own, wanted = (
                    [0.0 if x is None else x for x in known_ends] for known_ends in (ends, there["intervals"][name])
                )
                assert own == pytest.approx(wanted, rel=0.02), (dtype, name)
