"""A plugin of pytest that writes how tests ended to the file that FMM_TEST_REPORT names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

passed: list[str] = []
failed: list[str] = []
more: dict[str, Any] = {}  # lines that other plugins add


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = report.nodeid.rpartition("/")[2].partition("::")[2]  # without the file
    if report.failed:
        failed.append(name)
    elif report.passed and report.when == "call":
        passed.append(name)


def pytest_sessionfinish() -> None:
    found = {"passed": len(passed), "failed": failed, **more}
    Path(os.environ["FMM_TEST_REPORT"]).write_text(json.dumps(found), encoding="utf-8")
