"""Other projects' tests with fmm and without: a test that fails only with fmm is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import outside
from benchmarks.outside import Suite, compared_outcomes

TESTS = """
import numpy as np

def test_product():
    a = np.arange(64.0).reshape(8, 8)
    assert np.matmul(a, a).shape == (8, 8)

def test_wrong_anyway():
    assert False

def test_that_fmm_breaks():
    assert type(np.dot).__name__ == "_ArrayFunctionDispatcher"

def test_another_one():
    assert False
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_of_theirs.py").write_text(TESTS)
    monkeypatch.setitem(outside.SUITES, "theirs", Suite("numpy", "tests", ("test_of_theirs.py",), "not another"))
    return tmp_path


@pytest.mark.slow
def test_what_fails_only_with_fmm_is_found(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = checkout / "out.json"
    code = outside.main(["theirs", str(checkout), "--output", str(out), "--plan", "strassen>vendor"])
    report: dict[str, Any] = json.loads(out.read_text())
    assert code == 1 and report["plan"] == "strassen > vendor"
    assert report["without fmm"] == {"passed": 2, "failed": 1}
    assert report["with fmm"] == {"passed": 1, "failed": 2}
    assert report["worse with fmm"] == ["test_of_theirs::test_that_fmm_breaks"]
    said = capfd.readouterr().out
    assert "fmm decided 1 kinds of products to run strassen > vendor" in said
    assert "only with fmm: test_of_theirs::test_that_fmm_breaks" in said


def test_a_test_that_does_not_run_with_fmm_is_worse() -> None:
    found = compared_outcomes({"a": "passed", "b": "skipped", "c": "passed"}, {"a": "skipped", "b": "skipped"})
    assert found["worse with fmm"] == ["a", "c"]


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        outside.main(["torch", str(tmp_path), "--output", str(tmp_path / "out.json")])
    assert "has no folder test" in capsys.readouterr().err


def test_a_suite_without_a_passing_test_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test").mkdir()
    out = tmp_path / "out.json"
    monkeypatch.setattr(outside, "run_suite", lambda *arguments: {"test_mm": "failed", "test_bmm": "skipped"})
    assert outside.main(["torch", str(tmp_path), "--output", str(out)]) == 1
    assert "no test of torch passed even without fmm" in capsys.readouterr().out
    assert json.loads(out.read_text())["worse with fmm"] == []
