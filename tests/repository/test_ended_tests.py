"""Long runs of tests that are ended and go on: a plugin of pytest, on tests of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.ended_tests import read_outcomes

TESTS = """
import pytest

def test_good(): pass
def test_bad(): assert False
@pytest.mark.skip
def test_left_out(): pass
def test_skips(): pytest.skip("now")
@pytest.fixture
def late():
    yield
    assert False
def test_bad_after(late): pass
def test_{last}(): pass
"""
# In the place of CuPy: a device that a test loses.
CUPY = """
class runtime:
    lost = False
    @classmethod
    def deviceSynchronize(cls):
        if cls.lost: raise RuntimeError("illegal address")
class cuda: runtime = runtime
"""
LOSING = """
import cupy

def test_before(): pass
def test_loses():
    cupy.runtime.lost = True
    assert False
def test_after(): assert not cupy.runtime.lost
def test_fails(): assert False
def test_later(): assert not cupy.runtime.lost
"""


def run(folder: Path, *options: str) -> tuple[int, str]:
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
        "-p",
        "no:cacheprovider",
    )
    plugin = ("-p", "tests.support.ended_tests", "--ended-tests", str(folder / "ended.txt"))
    paths = os.pathsep.join((str(ROOT), str(folder)))
    env = {**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    found = subprocess.run(
        (*command, *plugin, *options, str(folder)), env=env, cwd=folder, text=True, capture_output=True
    )
    return found.returncode, found.stdout + found.stderr


@pytest.mark.slow
def test_what_has_ended_is_not_run_again_and_failures_count(tmp_path: Path) -> None:
    file = tmp_path / "test_these.py"
    file.write_text(TESTS.format(last="last"))
    status, said = run(tmp_path)
    found = {name.partition("::")[2]: outcome for name, outcome in read_outcomes(tmp_path / "ended.txt").items()}
    assert status == 1, said
    assert found == {
        "test_good": "passed",
        "test_bad": "failed",
        "test_left_out": "skipped",
        "test_skips": "skipped",
        "test_bad_after": "failed",
        "test_last": "passed",
    }
    file.write_text(TESTS.format(last="added"))
    status, said = run(tmp_path)
    assert status == 1 and "1 passed, 5 deselected" in said.replace("\n", " "), said
    assert "with the tests of earlier runs: 3 passed, 2 failed, 2 skipped" in said


@pytest.mark.slow
def test_nothing_left_is_no_failure_if_none_has_failed(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_good(): pass\n")
    assert run(tmp_path)[0] == 0
    status, said = run(tmp_path)
    assert status == 0 and "1 deselected" in said, said
    (tmp_path / "ended.txt").unlink()
    (tmp_path / "test_one.py").write_text("")
    assert run(tmp_path)[0] == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_test_that_hangs_each_time_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "ended.txt"
    path.write_text("begun a::b c\nbegun a::d\npassed a::d\nbegun a::b c\npas")
    assert read_outcomes(path) == {"a::d": "passed"}  # nor is a line that was torn
    with path.open("a") as file:
        file.write("\nbegun a::b c\n")
    assert read_outcomes(path)["a::b c"] == "failed"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("xdist") is None, reason="pytest-xdist is not here")
def test_a_process_that_has_lost_its_device_gives_way_to_another(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text(CUPY)
    (tmp_path / "test_losing.py").write_text(LOSING)
    status, said = run(tmp_path, "-p", "xdist", "-n", "1")
    found = {name.partition("::")[2]: outcome for name, outcome in read_outcomes(tmp_path / "ended.txt").items()}
    assert status == 1, said
    assert found == {name: "failed" if name in ("test_loses", "test_fails") else "passed" for name in found}
    assert len(found) == 5, said


@pytest.mark.slow
def test_alone_it_ends_where_the_device_is_lost(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text(CUPY)
    (tmp_path / "test_losing.py").write_text(LOSING)
    status, said = run(tmp_path)
    assert status == 1 and "the device is lost: RuntimeError: illegal address" in said, said
    assert list(read_outcomes(tmp_path / "ended.txt").values()) == ["passed", "failed"]
