"""Configs and trials with values of the wrong type: a command ends in one line that names the field."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from fmm.tuner.cli import main
from fmm.tuner.trials.record import TrialFile
from tests.support import ROOT
from tests.support.marks import quick_and_slow

RECORDED = ROOT / "results" / "nvidia-h200" / "five-minutes" / "config.json"
WRONG: tuple[Any, ...] = ("x", 10**400, {"median": "x"}, [-1, [None]])
PLACE = tuple[str | int, ...]


def places(value: Any, place: PLACE = ()) -> Iterator[PLACE]:
    """Yield the place of every value in a document; of a list, of its first two values."""
    if place:
        yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for name, found in inner:
        yield from places(found, (*place, name))


def with_value(document: Any, place: PLACE, value: Any) -> Any:
    """Return a copy with another value at a place."""
    found = inner = copy.deepcopy(document)
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    return found


def damaged_configs() -> Iterator[tuple[str, str]]:
    """Yield the damaged place and the text of each config."""
    document = json.loads(RECORDED.read_text(encoding="utf-8"))
    ((key, types), *_) = document["devices"].items()
    section = types["float32"]
    section["entries"] = section["entries"][:1]
    for place in places(section):
        for value in WRONG:
            damaged = {**document, "devices": {key: {"float32": with_value(section, place, value)}}}
            yield f"{place}: {value!r}", json.dumps(damaged)


COMMANDS = (
    pytest.param(["show"], marks=pytest.mark.slow),
    ["export"],
    pytest.param(["export", "--thresholds"], marks=pytest.mark.slow),
    pytest.param(["export", "--format", "t1"], marks=pytest.mark.slow),
)


@pytest.mark.parametrize("every", quick_and_slow([10], [1]))
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_damaged_config_is_one_line(
    command: list[str], every: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    refused = 0
    for place, text in islice(damaged_configs(), 0, None, every):
        path.write_text(text, encoding="utf-8")
        code = main([*command, str(path)])  # a traceback fails the test
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 if code else len(lines) <= 1, (place, lines)
        refused += code
    assert refused > 100 / every


@pytest.mark.slow
def test_what_a_command_refuses_verify_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    for place, text in damaged_configs():
        path.write_text(text, encoding="utf-8")
        if main(["show", str(path)]):
            assert main(["verify", str(path)]) == 1, place
    capsys.readouterr()


def damaged_trials() -> Iterator[dict[str, Any]]:
    """Yield a line with a wrong value in each of its fields."""
    trial = {
        "run": "r", "stage": "search", "size": [8, 8, 8], "dtype": "float64", "plan": "vendor", "part": "all",
        "twin": 0, "seed": 1, "elapsed": 1.0, "seconds": 1.0, "failed": "why", "op": "product",
    }  # fmt: skip
    for place in places(trial):
        for value in WRONG:
            yield {"trial": with_value(trial, place, value)}
    for name in ("run", "size", "plan"):
        yield {"trial": {key: value for key, value in trial.items() if key != name}}
    header = {
        "run": "s", "device": "cpu", "versions": {"numpy": "2"}, "conditions": {}, "settings": {}, "command": "c",
        "started": "now",
    }  # fmt: skip
    for name in header:
        for wrong in (5, [5]):
            yield {"tuning": {**header, name: wrong}}
    yield {"finished": {"run": [1]}}
    yield {"finished": {}}


def test_damaged_trials_are_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line of the log names the first one; whole lines are read as before."""
    whole = TrialFile(RECORDED.with_name("trials.jsonl")).read_tunings()
    file = TrialFile(tmp_path / "trials.jsonl")
    for tuning in whole[:1]:
        file.add_header(tuning.header)
        for trial in tuning.trials[:20]:
            file.add_trial(trial)
    file.close()
    with open(file.path, "a", encoding="utf-8") as out:
        for record in damaged_trials():
            out.write(json.dumps(record) + "\n")
        out.write('{"trial": ' + "[" * 100_000 + "\n")
    (found,) = TrialFile(file.path).read_tunings()
    assert found.header == whole[0].header and found.trials == whole[0].trials[:20]
    assert caplog.text.count("damaged lines of") == 1
    (tmp_path / "config.json").write_text(RECORDED.read_text(encoding="utf-8"), encoding="utf-8")
    assert main(["export", str(tmp_path), "--trials"]) in (0, 1)
    assert main(["export", str(tmp_path), "--format", "t4"]) == 0
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"garbage", gzip.compress(b"a line")[:-4]], ids=["garbage", "truncated"])
@pytest.mark.parametrize("command", [["--refit"], ["export", "--trials"], ["export", "--format", "t4"]], ids=" ".join)
def test_damaged_compressed_trials_are_named(
    command: list[str], content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_bytes(RECORDED.read_bytes())
    (tmp_path / "trials.jsonl.gz").write_bytes(content)
    assert main([*command, str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"fmm-tune: {tmp_path / 'trials.jsonl.gz'} cannot be read: ")
    assert printed.err.count("\n") == 1 and not printed.out
