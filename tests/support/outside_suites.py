"""Runs other projects' tests in a separate process, with fmm's product in place of the library's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import ROOT

THROUGH, COUNTED = "tests.support.through_fmm", "tests.support.count_outcomes"


@dataclass(frozen=True)
class Report:
    """The outcome of a test suite."""

    passed: int
    failed: list[str]
    output: str
    by_plan: int = 0
    left: dict[str, int] | None = None


def run_suite(
    arguments: tuple[str, ...], folder: Path, plan: str | None = None, through: bool = True, **environment: str
) -> Report:
    """Run pytest with these arguments in an empty folder. With `through`, fmm multiplies, by the plan if one
    is given."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    variables = {"PYTHONPATH": str(ROOT), "FMM_TUNING_MODE": "off", "FMM_TEST_REPORT": str(report), **environment}
    variables |= {} if plan is None else {"FMM_TEST_PLAN": plan}
    plugins = ["-p", "no:cacheprovider", "-p", COUNTED, *(["-p", THROUGH] if through else [])]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, *arguments]
    found = subprocess.run(command, env=os.environ | variables, cwd=folder, text=True, capture_output=True)
    assert report.exists(), found.stdout + found.stderr
    read: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return Report(**read, output=found.stdout[-8000:])
