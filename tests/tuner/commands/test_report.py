"""The report: every picture is drawn from a tuning of the fake device, and the page needs nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from fmm.tuner import tune
from fmm.tuner.cli import main
from fmm.tuner.commands.report import type_reports
from fmm.tuner.devices.device import CPU_EFFORTS
from fmm.tuner.devices.simulated import SimulatedDevice
from fmm.tuner.report.figures import FIGURE_STYLE
from fmm.tuner.report.overview import (
    PHONE_FIGURE_INCHES,
    PREDICTED_SPEEDUP,
    SCREEN_FIGURE_INCHES,
    VENDOR_SPEEDUP,
    all_types_caption,
    certified_square_entries,
    draw_speedups_of_types,
    speedups_frame,
    speedups_of_table_sides,
)
from fmm.tuner.report.page import (
    crossover_text,
    device_summaries,
    parameters_html,
    speedups_html_table,
    suggested_tunings,
    summary_html,
)
from fmm.tuner.report.plan_names import find_plan_texts, plan_name_meanings, split_plan_names
from fmm.tuner.report.type_figures import FIGURE_FUNCTIONS, caption_text, draw_roofline
from fmm.tuner.report.type_report import choices_on_grid
from tests.support import ROOT
from tests.support import configs as tuned

RECORDED = ROOT / "results" / "nvidia-h200" / "five-minutes" / "config.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tuning of the fake device."""
    found = tmp_path_factory.mktemp("tuning")
    (found / "shapes").write_text("6000 6000 6000\n6000 3000 6000\n")
    arguments = ["--effort", "quick", "--dtype", "float64", "--shapes", str(found / "shapes"), "--quiet"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "select_devices", lambda name: [SimulatedDevice()])
        patch.setitem(CPU_EFFORTS, "quick", tuned.SMALL)
        assert main([*arguments, "--output", str(found)]) == 0
    return found


@pytest.fixture(scope="module")
def report(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its report."""
    into = tmp_path_factory.mktemp("report")
    assert main(["report", str(folder), "--output", str(into / "out")]) == 0
    return into / "out"


@pytest.mark.slow
def test_a_report_is_drawn(report: Path) -> None:
    drawn = {p.name for p in (report / "report").iterdir()}
    stems = {"speedup", "speedup-narrow", *(f"cpu-fake-2t-float64-{name}" for name in FIGURE_FUNCTIONS)}
    assert drawn == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}
    page = (report / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == len(FIGURE_FUNCTIONS) + 2 and "<script" not in page
    assert not re.search(r'(src|href)="(?!#)(?!data:)', page), "the page is not self-contained"
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for expected in ("a fake CPU, float64", "rate.flops", "95th percentile", "6000 x 6000 x 6000"):
        assert expected in page


@pytest.mark.slow
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
    assert len(list((tmp_path / "report").iterdir())) == 2 * len(FIGURE_FUNCTIONS)
    assert len(json.loads(capsys.readouterr().out)) == 1 + 2 * len(FIGURE_FUNCTIONS)


@pytest.mark.slow
def test_a_tuning_that_is_not_used_is_drawn_and_said_to_be_none(folder: Path, tmp_path: Path) -> None:
    """All that a tuning on a busy machine leaves: nothing of its model is used, so that no curve is drawn of it."""
    shutil.copy(folder / "trials.jsonl", tmp_path / "trials.jsonl")
    found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for types in found["devices"].values():
        for section in types.values():
            section.update(doubts=["equal products differ by 20%, so much was the device disturbed"], entries=[])
    (tmp_path / "config.json").write_text(json.dumps(found), encoding="utf-8")
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "equal products differ by 20%" in page
    assert page.count('class="measured"') == 1  # the legend's
    assert page.count("fmm-tune --device cpu --dtype float64") == 1 and "No square was certified" in page


@pytest.mark.slow
@pytest.mark.parametrize("decades", [0.1, 1, 3, 9])
def test_the_roofs_names_touch_nothing(folder: Path, decades: float) -> None:
    """However close together the lines that they name are."""
    from matplotlib import rc_context
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    with rc_context(FIGURE_STYLE):
        (case,) = type_reports(folder / "config.json")
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
    drawn = [name for name in names if name.x0 > axes.get_window_extent().x1]  # not what is above or below the axes
    assert drawn or decades < 1
    assert not any(Bbox.intersection(made.legends[0].get_window_extent(), name) for name in drawn)


def test_the_first_screen_says_what_was_found(folder: Path) -> None:
    """A table of types by sizes, then what it means: from which size, how much, at which error and workspace."""
    (case,) = type_reports(folder / "config.json")
    gains = speedups_of_table_sides([case])
    sides = {gain.side: gain for gain in gains}
    assert sides[1024].kind == "vendor" and sides[1024].plan == "vendor" and max(sides) <= 2 * 6000
    assert sides[4096].kind == "predicted" and 1 < sides[4096].speedup < 1.3
    known = replace(case.tuned, entries={e.entry_key: e for e in [tuned.entry((4096, 4096, 4096), speedup=1.1)]})
    measured = {gain.side: gain for gain in speedups_of_table_sides([replace(case, tuned=known)])}[4096]
    assert (measured.kind, measured.low, measured.high) == ("measured", 1.05, 1.2)
    page = speedups_html_table([measured])
    assert '<td class="measured" data-side="4096"' in page and "1.05 to 1.20" in page
    left = speedups_html_table([replace(measured, kind="vendor")], "NumPy")
    assert ">NumPy</td>" in left
    assert list(speedups_frame(gains).columns)[:3] == ["dtype", "side", "kind"] and len(speedups_frame(gains)) == len(
        gains
    )


@pytest.mark.slow
def test_of_an_entry_that_is_passed_over_the_choice_is_shown() -> None:
    """This tuning was before `f16x3`, which fmm.matmul takes at the squares that it timed too."""
    (float32,) = (
        case for case in type_reports(ROOT / "results" / "nvidia-h200" / "config.json") if case.dtype == "float32"
    )
    found = {gain.side: gain for gain in speedups_of_table_sides([float32]) if gain.op == "product"}
    for side in (4096, 8192, 16384):
        assert float32.tuned.find_entry((side,) * 3) is not None
        assert (found[side].kind, found[side].plan.split()[-1]) == (PREDICTED_SPEEDUP, "f16x3")
        assert found[side].error_growth < 4 and found[side].speedup > 3


def test_odd_sides_have_a_row_of_their_own(folder: Path) -> None:
    """In the column of the side that is one less, with the side on which anything is faster first."""
    (case,) = type_reports(folder / "config.json")
    gains = speedups_of_table_sides([case])
    assert not any(gain.beside for gain in gains), "the fake CPU is as fast on odd sides"
    even = next(gain for gain in gains if gain.side == 4096)
    odd = [
        replace(even, side=side, beside=1, speedup=4.0, kind=kind)
        for side, kind in ((2049, VENDOR_SPEEDUP), (4097, "predicted"))
    ]
    page = speedups_html_table([*gains, *odd], starts={"float64": "4096"})
    (row,) = re.findall(r'<tr><th scope="row">float64, side \+ 1</th>(.*?)</tr>', page)
    assert ">4097</td>" in row and 'data-side="4097"' in row and "4.00" in row
    assert "side + 1: odd sides" in page and "side + 1" not in speedups_html_table(gains)
    assert '<th scope="col">4097</th>' not in page


def test_gains_beyond_all_that_was_measured_are_shown_and_named_so(folder: Path) -> None:
    """A quick tuning of a CPU measures no product that is large enough for a plan, and the model takes plans all the
    same: `fmm-tune show` and the report say the same."""
    (case,) = type_reports(folder / "config.json")
    small = tuple(t for t in case.tuning.trials if max(t.size) <= 2000)
    gains = speedups_of_table_sides(
        [replace(case, tuning=replace(case.tuning, trials=small), tuned=replace(case.tuned, entries={}))]
    )
    kinds = {gain.side: gain.kind for gain in gains}
    assert kinds == {1024: "vendor", 2048: "vendor", 4096: "beyond", 8192: "beyond"}
    assert '<td class="beyond" data-side="8192"' in speedups_html_table(gains)


def test_where_all_squares_gain_and_where_measured_ones_do(folder: Path) -> None:
    """A square below that side may be certified, of a type that gains nowhere else too."""
    (case,) = type_reports(folder / "config.json")
    gains = speedups_of_table_sides([case])
    assert crossover_text(case, 3000, gains[2:]) == "3000" and crossover_text(case, None, []) == "never"
    below = [replace(gains[1], kind="measured"), *gains[2:]]
    assert (crossover_text(case, 3000, below), crossover_text(case, None, below)) == ("3000 *", "as measured")
    assert "some smaller squares gain too" in speedups_html_table(below, starts={"float64": "3000 *"})


def test_halves_are_rows_of_their_own(folder: Path) -> None:
    """Measured ones, which say nothing of whole products: neither in the sentences nor as points of their picture."""
    (case,) = type_reports(folder / "config.json")
    half = replace(tuned.entry((4096, 4096, 4096), "gram > winograd > vendor", speedup=1.1), op="gram")
    found = replace(case, tuned=replace(case.tuned, entries={half.entry_key: half}))
    gains = speedups_of_table_sides([found])
    (gain,) = (gain for gain in gains if gain.op == "gram")
    assert (gain.side, gain.kind, gain.low, gain.plan) == (4096, "measured", 1.05, half.plan) and gain.workspace > 0
    assert "float64, gram" in speedups_html_table(gains)
    product = tuned.entry((4096, 4096, 4096), speedup=1.1)
    assert certified_square_entries(
        replace(case, tuned=replace(case.tuned, entries={half.entry_key: half, product.entry_key: product}))
    ) == [product]


def test_no_interval_is_told_that_says_nothing(folder: Path) -> None:
    """Configs of older versions have intervals of all parameters, of some from one bound to the other."""
    (case,) = type_reports(folder / "config.json")
    wide = {"rate.flops": [1e10, 1.1e10], "rate.rows": [0.1, 1e4], "rate.memory": [1e6, 1e15], "overlap": [0.0, 0.3]}
    known = {**case.section, "intervals": wide}
    rows = parameters_html(replace(case, section=known)).split("<tr>")
    loose = [name for name in wide for row in rows if f">{name}<" in row and ">not determined<" in row]
    assert loose == ["rate.rows", "rate.memory"] and "10 to 11 Gflop/s" in rows[2]


@pytest.mark.slow
def test_the_page_tells_nothing_of_the_machine_s_files(folder: Path, report: Path) -> None:
    page = (report / "report.html").read_text(encoding="utf-8")
    assert str(folder) not in page and "--output" not in page and "<details>" in page
    places = [page.index(x) for x in ("<table", "<svg", "<h2>Next</h2>", "<details>")]
    assert places == sorted(places)


@pytest.mark.slow
def test_nothing_is_wider_than_a_phone(report: Path) -> None:
    """As far as the page's text tells: the browser's width is the page's, pictures shrink, long lines wrap, and nothing
    has a width of its own in pixels."""
    page = (report / "report.html").read_text(encoding="utf-8")
    assert '<meta name="viewport" content="width=device-width' in page
    style = page[page.index("<style>") : page.index("</style>")]
    assert re.search(r"svg \{[^}]*width: 100%[^}]*height: auto", style) and "<pre" not in page
    assert "overflow-wrap: anywhere" in style and "nowrap" not in page
    assert not re.search(r"(?<![-\w])(?:min-)?width: *\d+(?:px|rem|em|pt)", style)
    pictures = re.findall(r"<svg\b[^>]*>", page)
    assert pictures and all("viewBox" in x for x in pictures), "without one a picture is cut, not made smaller"
    cells = max(row.count("<td") + row.count("<th") for row in re.findall(r"<tr>.*?</tr>", page, re.DOTALL))
    folded = ".folded tr {" in style and "@media (max-width: 40rem)" in style
    assert cells <= 5 or folded, "many columns: on a phone the table's rows are folded"


@pytest.mark.slow
def test_each_name_in_a_plan_is_explained_once(report: Path) -> None:
    """Where plans are named: in the tables, in what `fmm-tune show` says, in the pictures' legends."""
    page = unescape((report / "report.html").read_text(encoding="utf-8"))
    glossary = page[page.index("names in plans") :]
    listed = re.findall(r'<th scope="row"><code>([^<]+)</code></th>', glossary)
    assert len(listed) == len(set(listed)) and {"winograd", "vendor"} <= set(listed)
    named = {name for plan in find_plan_texts(page) for name in split_plan_names(plan)}
    assert len(named) > 2 and {name for name in named if not name.startswith("^")} <= set(listed)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("strassen^2.batched.pad16 > lt3", {"strassen", "^2, ^3", "batched", "pad16", "lt0 ... lt31"}),
        ("3m(strassen.pad16) > f16x3", {"3m", "strassen", "pad16", "f16x3"}),
        ("residues(14) > strassen > bytes", {"residues", "strassen", "bytes"}),
        ("balanced(2) > li-fig23 > vendor", {"balanced", "li-fig23", "vendor"}),
        ("gram^2 > tile.huge.inner", {"gram", "^2, ^3", "tile", "huge", "inner"}),
        ("winograd*hk223.fused.peel > tile", {"winograd", "hk223", "fused", "peel", "tile"}),
    ],
)
def test_names_of_plans(plan: str, words: set[str]) -> None:
    found = plan_name_meanings([plan])
    assert set(found) == words and all(len(text) > 10 for text in found.values())


@pytest.mark.slow
def test_what_is_worth_tuning_again_is_named_with_its_command(folder: Path) -> None:
    (case,) = type_reports(folder / "config.json")
    assert not list(suggested_tunings([case], []))
    (gain, *_) = speedups_of_table_sides([case])
    untried = [replace(gain, untried=2.0)]
    assert dict(suggested_tunings([case], untried)) == {
        "fmm-tune --device cpu --dtype float64": "measure the plans that were not tried"
    }
    rejected = replace(case, tuned=replace(case.tuned, diagnostics=("the device was busy",)))
    assert not list(suggested_tunings([rejected], untried))  # the table of the device names the command
    (older,) = device_summaries(list(type_reports(ROOT / "results" / "nvidia-h200" / "config.json")))
    assert older.failure_line.endswith("f16x3 not measured: fmm-tune --dtype float64,float32")
    assert escape(older.failure_line) in summary_html(older)


@pytest.mark.slow
def test_the_page_opens_with_the_table_of_show(report: Path, folder: Path) -> None:
    """The same cells, in the same order."""
    page = (report / "report.html").read_text(encoding="utf-8")
    (summary,) = device_summaries(list(type_reports(folder / "config.json")))
    tables = re.findall(r"<table.*?</table>", page, re.DOTALL)
    for table, html in zip((summary.speedups, summary.recursion), tables, strict=False):
        rows = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall(r"<tr>.*?</tr>", html)[1:]]
        assert [[cell.text for cell in cells] for _, cells in table.rows] == [list(map(unescape, row)) for row in rows]


@pytest.mark.slow
def test_the_caption_names_types_whose_line_goes_by_the_datasheet() -> None:
    """Of float32 an older tuning has no rate of the plan that is chosen; a later one has."""
    older, later = (
        all_types_caption([case for case in type_reports(path) if case.dtype in ("float32", "float64")], [])
        for path in (RECORDED.parents[1] / "config.json", RECORDED)
    )
    assert "float32, float64: the line includes datasheet rates" in older and "datasheet" not in later


def texts_that_touch(made: Any) -> list[tuple[str, str]]:
    """Those of a picture whose boxes overlap, or go beyond its edge."""
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    made.draw_without_rendering()
    texts = [x for x in made.findobj(Text) if x.get_visible() and x.get_text().strip()]
    ticks = [t for axes in made.axes for axis in (axes.xaxis, axes.yaxis) for t in axis.get_ticklabels(which="both")]
    drawn = {id(t) for axes in made.axes for axis in (axes.xaxis, axes.yaxis) for t in shown_labels(axis)}
    every = [x for x in texts if x not in ticks or id(x) in drawn]
    boxes = [(x.get_text(), Text.get_window_extent(x)) for x in every]
    beyond = [(text, "the edge") for text, box in boxes if box.x0 < 0 or box.x1 > made.bbox.x1 or box.y1 > made.bbox.y1]
    pairs = [(a, b) for i, (a, box) in enumerate(boxes) for b, other in boxes[:i] if Bbox.intersection(box, other)]
    return pairs + beyond


def shown_labels(axis: Any) -> list[Any]:
    """Labels of the ticks that are within the axis."""
    low, high = sorted(axis.get_view_interval())
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    return [tick.label1 for tick in ticks if low <= tick.get_loc() <= high]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FIGURE_FUNCTIONS, "wide", "narrow"])
def test_no_text_of_a_picture_touches_another(name: str, folder: Path) -> None:
    from matplotlib import rc_context

    with rc_context(FIGURE_STYLE):
        (case,) = type_reports(folder / "config.json")
        if name in FIGURE_FUNCTIONS:
            made = FIGURE_FUNCTIONS[name](case)
        else:
            made = draw_speedups_of_types(
                [case], speedups_of_table_sides([case]), SCREEN_FIGURE_INCHES if name == "wide" else PHONE_FIGURE_INCHES
            )
        assert not texts_that_touch(made)


@pytest.mark.slow
def test_pictures_and_tables_go_by_the_model_in_use() -> None:
    """Which knows, of complex numbers, what real products take that no complex tuning measures."""
    cases = {case.dtype: case for case in type_reports(RECORDED)}
    known = cases["complex64"]
    assert str(known.model_choice(4096, 4096, 4096).plan) == "3m > f16x3"
    assert any(plan.leaf_use.leaf.name == "f16x3" for plan in known.plan_map[1].values() if plan.levels)
    (gain,) = (gain for gain in speedups_of_table_sides([known]) if gain.side == 4096)
    assert dict(known.speedup_curve)[4096] == gain.speedup and gain.plan == "3m > f16x3"


@pytest.mark.slow
def test_what_was_measured_in_any_stage_is_drawn() -> None:
    """Our own kernels are measured in a stage of their own."""
    cases = {case.dtype: case for case in type_reports(RECORDED)}
    for dtype, leaf in (("float32", "f16x3"), ("float64", "residues(14) > bytes")):
        assert leaf in {str(plan) for _, plan, *_ in cases[dtype].measured_speedups}


HELD_OUT = "nvidia-h200", "nvidia-h200/five-minutes", "cpu-intel-r-xeon-r-processor-2t/quick"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("where", HELD_OUT)
def test_as_many_held_out_points_are_drawn_as_the_text_counts(where: str) -> None:
    """A first look before a tuning counts as the tuning's own, in the text and in the picture."""
    cases = list(type_reports(ROOT / "results" / where / "config.json"))
    for case in cases:
        held = [o for o in case.observations_of_stages("held out") if not o.run.plan.uses_tile_model]
        assert len(held) == case.section["error"]["time"]["count"] > 0
        assert f"{len(case.observations_of_stages('held out'))} held-out points" in caption_text(
            "predicted-measured", case
        )
    assert where != HELD_OUT[1] or all(len(case.section_trials) > len(case.tuning.trials) for case in cases)


def test_a_map_asks_where_plans_change() -> None:
    """And finds borders to the point."""
    asked: list[tuple[int, int]] = []

    def chosen(i: int, j: int) -> str:
        asked.append((i, j))
        return "large" if i + 2 * j > 70 else "vendor"

    found = choices_on_grid(chosen, 49)
    assert len(found) == 49**2 and len(asked) == len(set(asked)) < 49**2 / 3
    assert all(plan == ("large" if i + 2 * j > 70 else "vendor") for (i, j), plan in found.items())


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# A frame as wide as a screen, and how wide the page in it wants to be, with all details open.
FRAME = """<!doctype html><iframe id=f width={width} height=900 src="report.html"></iframe><script>
document.getElementById("f").onload = () => {{
  const page = document.getElementById("f").contentDocument;
  page.querySelectorAll("details").forEach(d => d.open = true);
  const wide = [...page.querySelectorAll("body *")].filter(x => x.getBoundingClientRect().right > {width} + 1);
  document.title = "wide: " + page.documentElement.scrollWidth + " " + wide.map(x => x.tagName).join(",");
}};
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 800, 1400])
def test_nothing_scrolls_sideways_in_a_browser(width: int, report: Path, tmp_path: Path) -> None:
    """On a phone, a tablet and a screen; with a screenshot of each beside the page."""
    frame, shot = report / "frame.html", report / f"report-{width}.png"
    frame.write_text(FRAME.format(width=width), encoding="utf-8")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--allow-file-access-from-files", "--disable-gpu"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000"]
    done = subprocess.run(
        [*command, "--dump-dom", frame.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    (found,) = re.findall(r"<title>wide: (\d+) ([A-Z,a-z]*)</title>", done.stdout)
    assert int(found[0]) <= width and not found[1]
    picture = f"--screenshot={shot}", f"--window-size={max(width, 500)},1200"
    subprocess.run([*command, *picture, (report / "report.html").as_uri()], timeout=120, check=True)
    assert shot.stat().st_size > 10_000


def test_nothing_to_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "none.json")]) == 1
    assert "there is no config" in capsys.readouterr().err
    path = tuned.write(tmp_path / "config.json", "cpu-a")
    assert main(["report", str(path)]) == 1
    assert "nothing to draw" in capsys.readouterr().err
