"""The report: every picture is drawn from a tuning of the fake device, and the page needs nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fmm.tuner.cli import main
from fmm.tuner.commands import tune
from fmm.tuner.commands.report import PICTURES, STYLE, draw_roofline, tuned_cases
from fmm.tuner.devices.fake import FakeDevice
from fmm.tuner.effort import EFFORTS
from tests.support import configs as tuned


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tuning of the fake device."""
    found = tmp_path_factory.mktemp("tuning")
    (found / "shapes").write_text("6000 6000 6000\n6000 3000 6000\n")
    arguments = ["--effort", "quick", "--dtype", "float64", "--shapes", str(found / "shapes"), "--quiet"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "chosen_devices", lambda name: [FakeDevice()])
        patch.setitem(EFFORTS, "quick", tuned.SMALL)
        assert main([*arguments, "--output", str(found)]) == 0
    return found


def test_a_report_is_drawn(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder), "--into", str(tmp_path / "out")]) == 0
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


def test_of_a_tuning_that_was_cut_short_what_there_is_is_drawn(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No plan was measured beside the vendor yet."""
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    lines = (folder / "trials.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    trials = [(line, json.loads(line).get("trial", {})) for line in lines]
    early = [x for x, t in trials if t.get("plan") == "vendor" or t.get("part") != "whole"]
    assert 0 < len(early) < len(lines)
    (tmp_path / "trials.jsonl").write_text("".join(early), encoding="utf-8")
    assert main(["report", str(tmp_path), "--json"]) == 0
    assert len(list((tmp_path / "report").iterdir())) == 2 * (len(PICTURES) - 2)
    assert len(json.loads(capsys.readouterr().out)) == 1 + 2 * (len(PICTURES) - 2)


@pytest.mark.parametrize("decades", [0.1, 1, 3, 9])
def test_the_roofs_names_touch_nothing(folder: Path, decades: float) -> None:
    """However close together the lines that they name are."""
    from matplotlib import rc_context
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    with rc_context(STYLE):
        (case,) = tuned_cases(folder / "config.json")
        made = draw_roofline(case)
    (axes,) = made.axes
    top = axes.get_ylim()[1]
    axes.set_ylim(top / 10**decades, top)
    made.draw_without_rendering()
    names = [Text.get_window_extent(text) for text in axes.texts]
    paths = [line.get_transform().transform_path(line.get_path()) for line in axes.lines]
    assert len(names) == 2 and len(paths) > 3
    assert not any(path.intersects_bbox(name, filled=False) for path in paths for name in names)
    assert not Bbox.intersection(*names)
    assert not any(Bbox.intersection(axes.get_legend().get_window_extent(), name) for name in names)


def test_nothing_to_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "none.json")]) == 1
    assert "there is no config" in capsys.readouterr().err
    path = tuned.write(tmp_path / "config.json", "cpu-a")
    assert main(["report", str(path)]) == 1
    assert "nothing to draw" in capsys.readouterr().err
