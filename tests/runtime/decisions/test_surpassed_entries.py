"""An entry from before a leaf: it says nothing against that leaf, where that is predicted to be far faster."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fmm.config import environment, files, reader
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime.decisions.decide import Decision, decide_plan
from fmm.tuner.cli import main
from fmm.tuner.findings.model_in_use import (
    NO_MEMORY_REASON,
    UNTIMED_REASON,
    UNVERIFIED_REASON,
    decide_square,
    model_in_use,
)
from tests.support import configs
from tests.support.devices import H200

SIDE = 8192
PROBLEM = Problem(SIDE, SIDE, SIDE, "float32")
OLD = "strassen.batched.pad16 > vendor"
KNOWN = {"stream": 4e12, "batches": True, "margin": 0.02, "rate": {"flops": 5e13, "fill": 7e5, "pipe": 60.0}}
LIMITS = Limits(1 << 36, 16.0)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only config that is looked at."""
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path / "config.json"))
    environment.log_once.cache_clear()
    yield tmp_path / "config.json"
    files.clear_config_cache()


def section(plan: str = OLD, speedup: float = 1.3, verified: bool = True, **more: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"speedup": speedup, "low": speedup, "high": speedup, "verified": verified}
    entry = configs.entry(size=(SIDE, SIDE, SIDE), plan=plan, **known)
    return configs.section(entry, **{"calibration": KNOWN, **more})


def decided(path: Path, found: dict[str, Any], limits: Limits = LIMITS) -> Decision:
    path.write_text(reader.config_text({H200.identity.key: {"float32": found}}), encoding="utf-8")
    files.clear_config_cache()
    return decide_plan(PROBLEM, limits, H200)


@pytest.mark.parametrize(("plan", "speedup"), [(OLD, 1.3), ("vendor", 1.02)])
def test_a_leaf_that_the_tuning_did_not_know_comes_before_its_entry(
    path: Path, plan: str, speedup: float, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = decided(path, section(plan, speedup))
    assert found.plan.leaf == "f16x3" and found.source == "calibrated model"
    assert "is older than the leaf f16x3" in found.reason and "tune again" in found.reason
    assert "tune again" in caplog.text


@pytest.mark.parametrize(("plan", "speedup", "expected"), [(OLD, 3.6, 3.6), ("vendor", 3.6, 1.0)])
def test_the_speedup_of_a_decision_by_an_entry_is_the_entrys(
    path: Path, plan: str, speedup: float, expected: float
) -> None:
    found = decided(path, section(plan, speedup, failed=["f16x3"]))
    assert found.by_entry and found.speedup == expected


MEASURED = {**KNOWN, "leaf_rates": {"f16x3": {"flops": 2.4e14, "fill": 2.7e5, "pipe": 512.0}}}


@pytest.mark.parametrize(
    ("found", "limits"),
    [
        (section(speedup=3.6), LIMITS),  # not far enough
        (section(calibration=MEASURED), LIMITS),  # it was measured, and was not certified
        (section(failed=["f16x3"]), LIMITS),  # it was tried, and does not work
        (section(), Limits(1 << 36, 16.0, emulation=False)),  # nobody may take it
        (section(doubts=["it was disturbed"]), LIMITS),  # the model is not used at all
    ],
    ids=["as fast", "measured", "failed", "not allowed", "doubted"],
)
def test_else_the_entry_answers(path: Path, found: dict[str, Any], limits: Limits) -> None:
    assert decided(path, found, limits).source in ("certified entry", "datasheet model")
    assert "is older than" not in decided(path, found, limits).reason


def test_show_tells_what_is_done() -> None:
    key = H200.identity.key
    old, well = (section(speedup=x, conditions={"device": H200.identity.name}) for x in (1.3, 3.6))
    for raw, leaf, known in ((old, "f16x3", "predicted"), (well, "vendor", "measured")):
        answer = decide_square(model_in_use(key, "float32", {"float32": raw}), SIDE)
        assert answer is not None and (answer.plan.leaf, answer.speedup_basis) == (leaf, known)


def predicted(path: Path, found: dict[str, Any], capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """What `fmm-tune predict` prints as JSON of the same product by that config."""
    named = {**found, "conditions": {"device": H200.identity.name}}
    path.write_text(reader.config_text({H200.identity.key: {"float32": named}}), encoding="utf-8")
    files.clear_config_cache()
    arguments = ["predict", str(SIDE), "--dtype", "float32", "--device", H200.identity.key, "--json", *options]
    assert main(arguments) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


BEFORE = "is older than the leaf f16x3"


@pytest.mark.parametrize(
    ("found", "options", "by_entry", "why"),
    [
        (section(), (), False, UNTIMED_REASON),
        (section(speedup=3.6), (), True, ""),
        (section("vendor", 1.0, calibration=MEASURED), (), True, ""),
        (section(calibration=MEASURED), ("--workspace", "0"), False, NO_MEMORY_REASON),
        (section(calibration=MEASURED), ("--max-error-growth", "1.5"), False, "the expected error exceeds the limit"),
        (section(calibration=MEASURED, verified=False), (), False, UNVERIFIED_REASON),
    ],
    ids=["surpassed", "as fast", "nothing gained", "no room", "too much error", "not verified"],
)
def test_predict_tells_what_is_done_and_why(
    found: dict[str, Any], options: tuple[str, ...], by_entry: bool, why: str, path: Path, capsys: Any
) -> None:
    """The plan is that of fmm.matmul, by the same limits; of an entry that it passes over it says why."""
    told = predicted(path, found, capsys, *options)
    limits = Limits(told["workspace_limit"], told["error_growth_limit"])
    decision = decide_plan(PROBLEM, limits, H200)
    assert told["chosen"]["plan"] == str(decision.plan) and decision.by_entry == by_entry
    assert bool(told["measured"]) == by_entry and bool(told["passed_over"]) != by_entry
    assert why in told["passed_over"] and (BEFORE in told["reason"]) == (why == UNTIMED_REASON)
    assert told["reason"] == decision.reason
