"""CuPy's own tests of matmul, with cupy.matmul and the operator replaced by fmm.matmul, on a CUDA device.

They do not come with CuPy. FMM_CUPY_TESTS names a checkout of cupy/cupy, or a folder in it; without it they are looked
for beside the CuPy that is installed. Nothing of them is kept here.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.support.outside_suites import run_suite

pytestmark = pytest.mark.gpu

FILE = Path("tests/cupy_tests/math_tests/test_matmul.py")

# Tests that CuPy passes and fmm does not, and why: there are none.
DIFFERENCES: dict[str, str] = {}


def cupys_tests() -> Path | None:
    """The file, if there is one."""
    named, spec = os.environ.get("FMM_CUPY_TESTS"), importlib.util.find_spec("cupy")
    beside = Path(spec.origin).parent.parent if spec and spec.origin else None
    folder = Path(named).resolve() if named else beside
    if folder is None:
        return None
    found = (folder / Path(*FILE.parts[i:]) for i in range(len(FILE.parts)))
    return next((path for path in found if path.is_file()), None)


def test_cupys(tmp_path: Path) -> None:
    """Against the same tests without fmm: a CuPy of another version than its tests fails some of them itself."""
    if (path := cupys_tests()) is None:
        pytest.skip(f"CuPy's tests are not here: FMM_CUPY_TESTS names no checkout of CuPy with its {FILE}")
    options = ("-c", os.devnull, "--rootdir", str(tmp_path), "--noconftest", "--import-mode=importlib", str(path))
    theirs, ours = (run_suite(options, tmp_path, through=through) for through in (False, True))
    assert theirs.passed > 100
    assert set(ours.failed) - set(theirs.failed) == set(DIFFERENCES), ours.output
    assert ours.passed >= theirs.passed - len(DIFFERENCES)
