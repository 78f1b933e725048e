"""Imports run one way, without circles: what pyproject.toml says of it, checked by import-linter and ruff."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

BIN = Path(sys.executable).parent
RUFF = (
    str(BIN / "ruff"),
    "check",
    "--no-cache",
    "--config",
    str(ROOT / "pyproject.toml"),
    "--output-format",
    "concise",
)


@pytest.mark.slow
def test_each_folder_imports_those_below_it_alone() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    command = [str(BIN / "lint-imports"), "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("import kernels\n", "TID251"),  # a link at the top level
        ("from perfmodel.cost import cost\n", "TID251"),
        ("def f():\n    import tuner\n", "TID251"),
    ],
)
def test_the_linter_knows_our_rules_of_imports(source: str, rule: str) -> None:
    """`make lint` has ruff check them everywhere; here, that its settings say what they are meant to."""
    command = [*RUFF, "--select", "TID251", "--stdin-filename", str(ROOT / "fmm/api_.py"), "-"]
    done = subprocess.run(command, cwd=ROOT, input=source, capture_output=True, text=True, check=False)
    assert rule in done.stdout and done.returncode == 1, done.stdout + done.stderr
