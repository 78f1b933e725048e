"""The report: every picture is drawn from a tuning of the fake device, and the page needs nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fmm.tuner import tuning
from fmm.tuner.cli import main
from fmm.tuner.effort import EFFORTS
from fmm.tuner.fake_device import FakeDevice
from fmm.tuner.report import PICTURES
from tests import tuned


def test_a_report_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tuning, "chosen", lambda name: [FakeDevice()])
    monkeypatch.setitem(EFFORTS, "quick", tuned.SMALL)
    (tmp_path / "shapes").write_text("6000 6000 6000\n6000 3000 6000\n")
    arguments = ["--effort", "quick", "--dtype", "float64", "--shapes", str(tmp_path / "shapes"), "--quiet"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    assert main(["report", str(tmp_path), "--into", str(tmp_path / "out")]) == 0
    assert f"written: {tmp_path / 'out' / 'report.html'} and {2 * len(PICTURES)} pictures" in capsys.readouterr().out
    drawn = {p.name for p in (tmp_path / "out" / "report").iterdir()}
    assert drawn == {f"cpu-fake-2t-float64-{name}.{kind}" for name in PICTURES for kind in ("png", "svg")}
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == len(PICTURES) and "<script" not in page
    assert not re.search(r'(src|href)="(?!#)(?!data:)', page), "the page is not self-contained"
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for expected in ("a fake CPU, float64", "rate.flops", "95th percentile", "6000 x 6000 x 6000"):
        assert expected in page
    assert main(["report", str(tmp_path), "--json", "--into", str(tmp_path / "out")]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1 + 2 * len(PICTURES)


def test_nothing_to_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "none.json")]) == 1
    assert "there is no config" in capsys.readouterr().err
    path = tuned.write(tmp_path / "config.json", "cpu-a")
    assert main(["report", str(path)]) == 1
    assert "nothing to draw" in capsys.readouterr().err
