"""The programs in examples/: each says how it is run and what it needs, and runs where that is there."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SMALL = {
    "muon.py": ("--steps", "2", "--width", "16"),
    "numpy_products.py": ("--side", "64"),
    "newton_schulz.py": ("--rows", "64", "--cols", "64", "--rounds", "1"),
    "scf.py": ("--molecules", "2"),
}
NEEDS = {"muon.py": "torch", "newton_schulz.py": "torch", "scf.py": "scipy"}  # besides NumPy


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_says_how_it_is_run_and_what_it_needs(path: Path) -> None:
    text = path.read_text(encoding="utf-8").split('"""')[1]
    assert f"python examples/{path.name}" in text
    assert re.search(r"\bNeeds (NumPy alone|torch|SciPy)", text)


def _marked(path: Path) -> Any:
    """What loads torch takes seconds."""
    loads = path.name in NEEDS and importlib.util.find_spec(NEEDS[path.name]) is not None
    return pytest.param(path, id=path.name, marks=[pytest.mark.slow] if loads else [])


@pytest.mark.parametrize("path", [_marked(path) for path in EXAMPLES])
def test_an_example_runs(path: Path) -> None:
    """Or says in one line what is missing."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FMM_TUNING_MODE": "off"}
    command = [sys.executable, str(path), *SMALL[path.name]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    missing = NEEDS.get(path.name)
    if missing is None or importlib.util.find_spec(missing) is not None:
        assert done.returncode == 0 and not done.stderr and done.stdout, done.stderr
    else:
        assert done.returncode == 1 and done.stderr == f"examples/{path.name} needs {missing}: pip install {missing}\n"
