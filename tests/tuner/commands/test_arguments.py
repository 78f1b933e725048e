"""Arguments of fmm-tune that name nothing are errors with exit code 2, and a page may be named by its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fmm.tuner.cli import main
from tests.support import ROOT

RECORDED = ROOT / "results" / "cpu-intel-r-xeon-r-processor-2t" / "quick" / "config.json"


@pytest.mark.parametrize(
    "arguments",
    [["--output", ""], ["show", ""], ["report", ""], ["report", "--output", ""], ["--shapes", ""], ["--refit", ""]],
)
def test_an_empty_name_is_an_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2 and "the name is empty" in capsys.readouterr().err


@pytest.mark.parametrize("types", ["", "float64,", "float23"])
def test_an_unknown_type_is_an_error_and_nothing_is_measured(types: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--dtype", types]) == 2
    message = capsys.readouterr().err
    assert f"unknown dtype {types.split(',')[-1]!r}; valid: float32, float64, " in message


def test_a_part_of_a_refit_starts_no_tuning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--refit-part", "thresholds"])
    assert ended.value.code == 2 and "--refit-part is an option of --refit" in capsys.readouterr().err


@pytest.mark.slow
def test_a_page_named_by_its_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "x.html"
    assert main(["report", str(RECORDED), "--output", str(page)]) == 0
    assert page.is_file() and (tmp_path / "report").is_dir()
