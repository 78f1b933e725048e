"""python -m fmm, its options, and FMM_INSTALL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fmm
from fmm.integrations import run
from tests.support import ROOT

SCRIPT = """
import sys, numpy as np
print(__name__, sys.argv[1:], type(np.dot).__name__, sys.path[0])
np.matmul(np.ones((4, 5)), np.ones((5, 6)))
np.dot(np.ones((4, 5)), np.ones((5, 6)))
np.matmul(np.ones((3, 3), int), np.ones((3, 3), int))
import beside
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("print('found beside it')\nimport sys\nif 'end' in sys.argv: sys.exit(3)")
    return tmp_path / "program.py"


def python(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FMM_TUNING_MODE": "off", **environment}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_script_runs_as_it_would_without(program: Path) -> None:
    done = python("-m", "fmm", "--install", "numpy", str(program), "--report", "-m", "x")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"__main__ ['--report', '-m', 'x'] ReplacementFunction {program.parent}"
    assert second == "found beside it" and not done.stderr


@pytest.mark.slow
def test_a_module_runs_and_its_status_is_the_programs(program: Path) -> None:
    done = python("-m", "fmm", "--install", "numpy", "--report", "-m", "program", "end", cwd=program.parent)
    assert done.returncode == 3
    assert done.stdout.startswith("__main__ ['end'] ReplacementFunction")
    assert "fmm: 0 of 3 products ran by plans" in done.stderr
    assert "1  numpy.dot, float64, 4 x 5 by 5 x 6: no plan: " in done.stderr
    assert "numpy.matmul, int64, 3 x 3 by 3 x 3: no plan: NumPy multiplies: a side of integers" in done.stderr


@pytest.mark.slow
def test_what_is_wrong_with_our_options_is_said(program: Path) -> None:
    cases: list[tuple[tuple[str, ...], str]] = [
        (("--install", "nunpy", str(program)), "'nunpy' is none of torch"),
        (("--install", "", str(program)), "--install: nothing is named; valid: torch, torch-cpu, torch-inductor, cupy"),
        (("--install", " , ", str(program)), "nothing is named"),
        (("--rep", str(program)), "unrecognized arguments"),
        (("--report", "--install", "numpy"), "no program"),
        (("--report=", str(program)), "--report=: no file is named"),
        ((), "no program"),
        (("--verbose", str(program)), "options of --version"),
        (("--json",), "options of --version"),
    ]
    for arguments, said in cases:
        done = python("-m", "fmm", *arguments)
        assert done.returncode == 2 and said in done.stderr
    done = python("-m", "fmm", "no_such_script.py")
    assert done.returncode == 2 and "can't open file" in done.stderr and "Errno 2" in done.stderr  # as Python says it


def test_the_version_is_printed_in_three_ways(capsys: pytest.CaptureFixture[str]) -> None:
    """Without installing fmm anywhere, and without a program."""
    printed = []
    for options in (["--version"], ["--version", "--verbose"], ["--version", "--json"]):
        assert run.main(options) == 0
        printed.append(capsys.readouterr().out)
    short, verbose, as_json = printed
    assert short == f"fmm {fmm.__version__}\n"
    assert verbose.startswith(f"fmm {fmm.__version__}") and "\nBLAS: " in verbose
    assert json.loads(as_json)["fmm"]["version"] == fmm.__version__
    assert type(np.dot).__name__ == "_ArrayFunctionDispatcher"


CLOSED_STREAMS = [
    ("--version --json | true", 141, "", ""),
    ("--version > /dev/full", 1, "", "fmm: cannot write the output: No space left on device\n"),
    ("--version >&-", 0, "", ""),
    ("--install numpy - <&-", 0, "", ""),
    ("--report --install numpy -c 'print(1)' 2>&-", 0, "1\n", ""),
]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(("line", "code", "out", "err"), CLOSED_STREAMS, ids=[line for line, *_ in CLOSED_STREAMS])
def test_closed_and_full_streams_show_no_traceback(line: str, code: int, out: str, err: str) -> None:
    command = f'set -o pipefail; "{sys.executable}" -u -m fmm {line}'
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FMM_TUNING_MODE": "off"}
    done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


@pytest.mark.slow
def test_the_environment_installs_when_fmm_is_loaded_and_for_children(program: Path) -> None:
    code = "import fmm, numpy as np; print(type(np.dot).__name__)"
    assert python("-c", code, FMM_INSTALL="numpy").stdout == "ReplacementFunction\n"
    assert python("-c", code).stdout == "_ArrayFunctionDispatcher\n"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    (program.parent / "parent.py").write_text(child)
    assert (
        python("-m", "fmm", "--install", "numpy", str(program.parent / "parent.py")).stdout == "ReplacementFunction\n"
    )


@pytest.mark.slow
def test_libraries_that_a_program_does_not_load_are_not_loaded(program: Path) -> None:
    (program.parent / "small.py").write_text(
        "import sys; print(sorted({'torch', 'cupy'} & {name for name in sys.modules}))"
    )
    assert python("-m", "fmm", str(program.parent / "small.py")).stdout == "[]\n"


def test_run_in_this_process(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fmm", "--install", "numpy", str(program), "one"])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("FMM_INSTALL", "")
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    try:
        assert run.main() == 0
    finally:
        fmm.uninstall()
        sys.modules.pop("beside", None)
    assert "['one'] ReplacementFunction" in capsys.readouterr().out
