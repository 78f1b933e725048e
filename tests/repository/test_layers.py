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
        ("def f():\n    import json\n", "PLC0415"),
        ("def f():\n    from fmm.perfmodel import cost\n", "PLC0415"),
        ("import cupy\n", "TID253"),  # heavy, and not inside a function
        ("from fmm.kernels.cuda.launch import player\n", "TID253"),  # which imports CuPy
        ("def f():\n    import cupy\n\n    return cupy\n", ""),
        ("def f():\n    from fmm.kernels.cuda.launch import player\n\n    return player\n", ""),
        ("from fmm.kernels.cuda import record\n\nplan = record\n", ""),
    ],
)
def test_the_linter_knows_our_rules_of_imports(source: str, rule: str) -> None:
    """`make lint` has ruff check them everywhere; here, that its settings say what they are meant to."""
    command = [*RUFF, "--select", "PLC0415,TID251,TID253", "--stdin-filename", str(ROOT / "fmm/api_.py"), "-"]
    done = subprocess.run(command, cwd=ROOT, input=source, capture_output=True, text=True, check=False)
    assert (rule or "All checks passed") in done.stdout and done.returncode == bool(rule), done.stdout + done.stderr
