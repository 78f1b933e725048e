"""Many tunings: each has its own config and shapes; plans that seem slow are timed again, and a slow one fails."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fmm
from benchmarks import tunings
from benchmarks.__main__ import main as benchmarks_main
from fmm.config import files
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.tuner.trials.paired import PairedRoundLimits, PairedSamples
from tests.support import configs as tuned


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Shapes are small, and configs are written without measuring; return the efforts and configs of the tunings."""
    made: list[tuple[str, str]] = []

    def tune(tuning: tunings.Tuning, device: str, types: Sequence[str], config: Path) -> None:
        made.append((tuning.effort, str(config)))
        tuned.write(config, "cpu-test-2t", "float64", tuned.section(noise=0.01 * len(made)))

    monkeypatch.setattr(tunings, "tune", tune)
    monkeypatch.setattr(tunings, "SIDES", {"cpu": (32, 64)})
    return made


def run(tmp_path: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    code = benchmarks_main(["tunings", "--any-blas-kernel", "--shapes", "8", "--output", str(tmp_path), *options])
    return code, json.loads((tmp_path / "tunings.json").read_text())["rows"]


def test_each_tuning_has_its_own_config_and_shapes(
    tmp_path: Path, small: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read: list[str] = []
    explain = fmm.explain

    def explained(*operands: Any, **more: Any) -> Any:
        read.append(str(files.search_path(os.environ["FMM_CONFIG"])[0]))
        return explain(*operands, **more)

    monkeypatch.setattr(fmm, "explain", explained)
    code, rows = run(tmp_path, "--count", "2")
    assert code == 0 and [effort for effort, _ in small] == ["quick", "default"]
    assert read == [path for _, path in small for _ in range(8)] and len(set(read)) == 2
    assert len({tuple(row["size"]) for row in rows}) > 12, "the two tunings have different shapes"
    assert {row["dtype"] for row in rows} == {"float64", "float32"}
    assert all(row["plan"] == "vendor" and not row["samples"] for row in rows)
    assert "16 shapes, 0 by plans, 0 below 0.98" in capsys.readouterr().out


@pytest.mark.parametrize(("again", "expected"), [(1.02, 0), (0.9, 1)])
def test_a_slow_plan_is_timed_again(
    again: float, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = iter([Plan.parse("winograd > vendor"), *[VENDOR] * 7])
    monkeypatch.setattr(fmm, "explain", lambda *_, **__: SimpleNamespace(plan=next(plans)))
    limits: list[PairedRoundLimits] = []

    def measured(vendor: Any, candidate: Any, rounds: PairedRoundLimits) -> PairedSamples:
        limits.append(rounds)
        return PairedSamples((0.9 if rounds is tunings.ROUNDS else again,) * 3, (1.0,) * 3)

    monkeypatch.setattr(tunings, "measure_paired_rounds", measured)
    code, rows = run(tmp_path, "--count", "1")
    assert limits == [tunings.ROUNDS, tunings.MORE_ROUNDS]
    assert code == expected and rows[0]["speedup"] == again and rows[0]["samples"]["vendor"] == [again] * 3
    assert f"8 shapes, 1 by plans, {expected} below 0.98" in capsys.readouterr().out
