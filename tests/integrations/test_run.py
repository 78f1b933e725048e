"""python -m fmm, FMM_INSTALL, and what a report says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.integrations import run
from fmm.integrations.places import PLACES
from fmm.integrations.report import LINES, UNSEEN, Kind, Report, begin_report, end_report, expected_speedup, unseen_line
from fmm.perfmodel.choose import Candidate
from tests.support import ROOT

SCRIPT = """
import sys, numpy as np
print(__name__, sys.argv[1:], type(np.matmul).__name__, sys.path[0])
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


def test_a_script_runs_as_it_would_without(program: Path) -> None:
    done = python("-m", "fmm", "--install", "numpy", str(program), "--report", "-m", "x")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"__main__ ['--report', '-m', 'x'] Replaced {program.parent}"
    assert second == "found beside it" and not done.stderr


def test_a_module_runs_and_its_status_is_the_programs(program: Path) -> None:
    done = python("-m", "fmm", "--install", "numpy", "--report", "-m", "program", "end", cwd=program.parent)
    assert done.returncode == 3
    assert done.stdout.startswith("__main__ ['end'] Replaced")
    assert "fmm: 0 of 3 products ran by plans" in done.stderr
    assert "1  numpy.dot, float64, 4 x 5 by 5 x 6: left alone: " in done.stderr
    assert "numpy.matmul, int64, 3 x 3 by 3 x 3: left alone: NumPy answers: a side of integers" in done.stderr


def test_what_is_wrong_with_our_options_is_said(program: Path) -> None:
    for arguments, said in ((("--install", "nunpy", str(program)), "'nunpy' is none of torch"), ((), "no program")):
        done = python("-m", "fmm", *arguments)
        assert done.returncode == 2 and said in done.stderr
    done = python("-m", "fmm", "no_such_script.py")
    assert done.returncode == 2 and "can't open file" in done.stderr and "Errno 2" in done.stderr  # as Python says it


@pytest.mark.slow
def test_the_environment_installs_when_fmm_is_loaded_and_for_children(program: Path) -> None:
    code = "import fmm, numpy as np; print(type(np.matmul).__name__)"
    assert python("-c", code, FMM_INSTALL="numpy").stdout == "Replaced\n"
    assert python("-c", code).stdout == "ufunc\n"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    (program.parent / "parent.py").write_text(child)
    assert python("-m", "fmm", "--install", "numpy", str(program.parent / "parent.py")).stdout == "Replaced\n"


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
    assert "['one'] Replaced" in capsys.readouterr().out


# ---- the report


def test_a_report_counts_and_explains(eager: None, rng: np.random.Generator) -> None:
    a, numpy = rng.standard_normal((200, 200)), np  # type: Any, Any
    report = begin_report()
    try:
        with fmm.installed("numpy"):
            for _ in range(3):
                numpy.matmul(a, a)
            numpy.dot(a[:5], a)
            numpy.matmul(np.ones((2, 3)), np.ones((2, 3)).T)
            with pytest.raises(ValueError, match="mismatch"):
                numpy.matmul(a, a[:3])
    finally:
        end_report()
    text = str(report)
    assert text.startswith("fmm: ") and "of 6 products ran by plans" in text
    assert "      3  numpy.matmul, float64, 200 x 200 by 200 x 200: " in text and "times as fast is expected" in text
    assert "left alone" in text


def test_a_report_is_short_however_many_products_there_are() -> None:
    report = Report()
    decision = fmm.plan(8, 8, 8)
    for n in range(2 * LINES):
        report.note(kind_of_size(n + 1), lambda: decision)
    lines = str(report).splitlines()
    assert len(lines) == LINES + 2 and lines[-1] == f"  and {LINES} kinds of smaller products"
    assert f"{2 * LINES} x 8 by 8 x 8" in lines[1]


def test_the_last_line_says_what_was_not_seen(program: Path) -> None:
    (program.parent / "operator.py").write_text("import numpy as np; np.ones((4, 4)) @ np.ones((4, 4))")
    done = python("-m", "fmm", "--report", "--install", "numpy", str(program.parent / "operator.py"))
    first, *_, last = done.stderr.splitlines()
    assert first.startswith("fmm: 0 of 0 products ran by plans")
    assert last == (
        "  not seen: the operator @ and methods (a.dot(b)) of NumPy's arrays; "
        "calls before fmm was installed for numpy; calls of fmm's own functions, and other processes"
    )
    done = python("-m", "fmm", "--report", "--install", "cupy", "-c", "pass")  # which it does not load
    assert done.stderr.splitlines()[-1].startswith("  not seen: any product, since ")


@pytest.mark.parametrize(
    ("places", "told", "not_told"),
    [
        (["numpy"], ["@", "NumPy's", "for numpy;"], ["CuPy", "torch"]),
        (["cupy"], ["methods (a.dot(b)) of CuPy's", "for cupy;"], ["@", "NumPy", "torch"]),
        (["torch"], ["torch's products on the host", "for torch;"], ["@", "CUDA", "NumPy", "CuPy"]),
        (["torch-cpu"], ["torch's products on CUDA", "for torch;"], ["@", "host", "NumPy", "CuPy"]),
        (["torch", "torch-cpu", "numpy"], ["@", "for torch and numpy;"], ["host", "CUDA", "CuPy"]),
    ],
)
def test_only_what_is_true_of_these_libraries_is_said(places: list[str], told: list[str], not_told: list[str]) -> None:
    line = unseen_line(places)
    assert line.endswith("other processes") and "\n" not in line
    assert [part for part in told if part not in line] == [] == [part for part in not_told if part in line]


def test_every_place_has_its_words() -> None:
    assert UNSEEN.keys() == PLACES.keys()


def kind_of_size(m: int) -> Any:
    return Kind("numpy.matmul", (m, 8), (8, 8), "float64")


def test_a_report_is_printed_while_threads_go_on_multiplying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread counts a product of another kind just while a line is written."""
    report, decision = Report(), fmm.plan(8, 8, 8)
    kinds = [kind_of_size(n) for n in range(1, 9)]
    for kind in kinds[:4]:
        report.note(kind, lambda: decision)
    new = iter(kinds[4:])

    def flops(kind: Kind) -> int:
        report.note(next(new, kind), lambda: decision)
        return 1

    monkeypatch.setattr(Kind, "flops", property(flops))
    assert str(report).count("left alone: ") == 4
    assert len(report.counts) == 8


def test_the_speedup_is_the_models_or_the_tuners() -> None:
    decision = fmm.plan(4096, 4096, 4096)
    plan = fmm.Plan.parse("winograd > vendor")
    candidate = Candidate(plan, decision.considered[0].prediction, 0.8, 2.0, 0.05)
    by_model = fmm.Decision(plan, decision.problem, "", (candidate,))
    assert expected_speedup(by_model) == pytest.approx(1.25)
    assert expected_speedup(fmm.Decision(plan, decision.problem, "measured: 1.3")) is None
