"""FMM_INSTALL in a program that does not import fmm: the line that Python reads at its start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support import ROOT

FILES = ROOT / "fmm" / "integrations"
LOADED = "print(sorted({'numpy', 'fmm', 'importlib.util', 'typing'} & (set(sys.modules) - before)))"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder with the files as an installed wheel has them."""
    for name in ("fmm_install.pth", "fmm_install.py"):
        shutil.copy(FILES / name, tmp_path)
    (tmp_path / "fmm").symlink_to(ROOT / "fmm")
    return tmp_path


def python(site: Path, program: str, install: str = "numpy") -> subprocess.CompletedProcess[str]:
    """Run a program that has this folder among its packages, and no other files that Python reads at its start."""
    env = {**os.environ, "PYTHONPATH": str(Path(np.__file__).parents[1])}
    start = f"import site, sys; before = set(sys.modules); site.addsitedir({str(site)!r})\n"
    command = [sys.executable, "-S", "-c", start + program]
    done = subprocess.run(
        command,
        cwd=site,
        env={**env, "FMM_INSTALL": install, "FMM_TUNING_MODE": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_program_without_numpy_loads_nothing(site: Path) -> None:
    done = python(site, f"import json; {LOADED}")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_without_the_variable_nothing_waits(site: Path) -> None:
    done = python(site, "print('fmm_install' in sys.modules)", install="")
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_fmm_is_installed_once_numpy_is_loaded(site: Path) -> None:
    shows = "print(type(numpy.dot).__name__, numpy.__loader__ is numpy.__spec__.loader, len(sys.meta_path) - finders)"
    done = python(site, f"finders = len(sys.meta_path); import numpy; {shows}")
    assert done.stdout == "ReplacementFunction True -1\n"


@pytest.mark.slow
def test_a_library_that_loads_numpy_itself_is_installed_too(site: Path) -> None:
    (site / "torch.py").write_text("import numpy\nproduct = numpy.dot\n")
    done = python(site, "import torch; print(type(torch.product).__name__)")
    assert done.stdout == "ReplacementFunction\n"


@pytest.mark.slow
def test_a_library_that_has_loaded_numpy_is_known_to_be_loaded(site: Path) -> None:
    """torch is a target itself, and loads NumPy before it is loaded."""
    (site / "torch.py").write_text("import numpy\n__version__ = '0'\n")
    done = python(site, "import torch", install="torch")
    assert done.stderr.startswith("fmm: nothing is installed for torch: ")


@pytest.mark.slow
def test_a_program_that_imports_fmm_first_has_it_installed(site: Path) -> None:
    """fmm imports NumPy, whose import loads the hook, while fmm itself is being imported."""
    done = python(site, "import fmm, numpy; print(type(numpy.dot).__name__)")
    assert done.stdout == "ReplacementFunction\n" and "cannot be imported" not in done.stderr


@pytest.mark.slow
def test_an_import_that_fails_is_tried_again(site: Path) -> None:
    (site / "cupy.py").write_text("raise ImportError('no device')\n")
    program = "try:\n    import cupy\nexcept ImportError as error:\n    print(error)\n"
    assert (
        python(site, f"{program}import numpy; print(type(numpy.dot).__name__)").stdout
        == "no device\nReplacementFunction\n"
    )


@pytest.mark.slow
def test_an_unknown_name_is_one_line(site: Path) -> None:
    done = python(site, "import numpy; print(1)", install="nunpy")
    assert done.stdout == "1\n" and done.stderr.startswith("fmm: FMM_INSTALL: fmm cannot be installed in 'nunpy'; ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("defect", ["missing", "broken"])
def test_without_a_working_fmm_the_program_runs(defect: str, site: Path) -> None:
    (site / "fmm").unlink()
    if defect == "broken":
        (site / "fmm.py").write_text("1 / 0\n")
    done = python(site, "import numpy; print(1)")
    assert done.stdout == "1\n" and done.stderr.count("\n") == 1
    assert done.stderr.startswith("fmm: FMM_INSTALL is set, but fmm cannot be imported: ")


@pytest.mark.slow
def test_a_line_that_is_left_alone_says_nothing(site: Path) -> None:
    (site / "fmm_install.py").unlink()
    done = python(site, "import numpy; print(1)")
    others = [line for line in done.stderr.splitlines() if "is being compiled" not in line]  # on a busy machine
    assert (done.stdout, others) == ("1\n", [])
