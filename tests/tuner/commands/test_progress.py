"""The progress bar says what is left and what was gained so far; and a first pass over all types is soon over."""

from __future__ import annotations

from argparse import Namespace
from io import StringIO
from pathlib import Path
from types import MappingProxyType

import pytest

from fmm.tuner.devices.cpu import CpuDevice
from fmm.tuner.devices.device import CPU_EFFORTS, GPU_EFFORTS
from fmm.tuner.devices.simulated import SimulatedDevice
from fmm.tuner.progress import ProgressBar, best_speedup_text, duration_text, open_progress
from fmm.tuner.tune import JobTimeLimit, TuningJob, tune_job
from tests.support import configs as tuned
from tests.support.configs import SMALL


class Line:
    """What tqdm would show."""

    def __init__(self, total: float) -> None:
        self.total, self.n, self.label, self.rest = total, 0.0, "", ""
        self.said = list[str]()  # behind the bar, one after the other

    def set_description_str(self, text: str, refresh: bool = True) -> None:
        self.label = text

    def set_postfix_str(self, text: str) -> None:
        self.rest = text
        self.said.append(text)


def test_the_bar_tells_what_is_left_and_what_was_gained() -> None:
    line = Line(total=200.0)
    bar = ProgressBar(line)
    bar.begin_element_type("float32 (coarse):", 50.0)
    bar.show_sample("probe", 30.0)
    assert (line.n, line.label, line.rest) == (30.0, "float32 (coarse): probe", "about 3 min left")
    gained = tuned.section(tuned.entry((4096, 4096, 4096), speedup=1.26))
    bar.end_element_type("float32", gained)
    bar.begin_element_type("float64 (coarse):", 50.0)
    bar.show_sample("search", 80.0)  # longer than planned: the bar waits, and does not run ahead
    assert line.n == 100.0 and line.rest == "about 100 s left; speedup: float32 1.26 at 4096"
    bar.end_element_type("float64", None)
    bar.end_element_type("float32", tuned.section(tuned.entry((8192, 8192, 8192), speedup=1.4)))
    bar.begin_element_type("float32 (default):", 100.0)
    assert line.rest == "about 100 s left; speedup: float32 1.40 at 8192"


def test_what_has_a_second_go_is_planned_for() -> None:
    """What is left is what the type that begins takes, and all behind it, whatever was planned at first."""
    line = Line(total=90.0)
    bar = ProgressBar(line, limit=200.0)
    bar.set_remaining_seconds(60.0)
    bar.begin_element_type("float32 (coarse):", 30.0)
    bar.show_sample("rates", 10.0)
    bar.set_remaining_seconds(60.0)
    bar.begin_element_type("float32 (coarse):", 30.0)  # again, for its kernels are there
    assert line.total == 120.0 and line.rest == "about 90 s left"
    bar.set_remaining_seconds(500.0)
    bar.begin_element_type("float64 (coarse):", 30.0)
    assert line.total == 200.0, "the limit"


def test_the_bar_ends_at_the_time_limit() -> None:
    """tqdm warns if the bar's value exceeds its total."""
    line = Line(total=60.0)
    bar = ProgressBar(line, limit=60.0)
    for dtype in ("float32", "float64"):
        bar.set_remaining_seconds(0.0)
        bar.begin_element_type(f"{dtype} (default):", 50.0)
        bar.show_sample("search", 49.0)
        assert line.n <= line.total
    assert line.n == line.total == 60.0 and line.rest == "about 0 s left"


def test_no_gain_is_no_text() -> None:
    slow_sums = {"stream": 1e5, "margin": 0.02, "rate": {"flops": 1e12, "fill": 0.0, "pipe": 0.0}}
    nothing = (
        None,
        tuned.section(calibration=slow_sums),
        tuned.section(doubts=["the noise was not measured"]),
        {**tuned.section(calibration=None), "entries": [{"plan": "vendor"}]},
    )
    assert [best_speedup_text(section, "float64") for section in nothing] == [""] * 4
    assert duration_text(-3) == "0 s" and duration_text(119) == "119 s" and duration_text(180) == "3 min"


def test_where_nothing_was_certified_the_model_says_what_is_gained() -> None:
    """A quick tuning of a CPU measures no product that is large enough for an entry."""
    assert best_speedup_text(tuned.section(), "float64") == "from 256"


class SmallEffort(SimulatedDevice):
    """A tuning of it is over in a moment."""

    efforts_by_name = MappingProxyType({"small": SMALL})


@pytest.mark.slow
def test_the_bar_tells_what_was_gained_while_a_type_is_tuned(tmp_path: Path) -> None:
    """By the model as soon as there is one, then by each plan that was certified; and again where one is faster."""
    line = Line(total=60.0)
    bar = ProgressBar(line)
    sizes = (4096, 4096, 4096), (6000, 6000, 6000), (8192, 8192, 8192)
    job = TuningJob(SmallEffort(), "float64", sizes, "small")
    options = Namespace(resume=False, json=False, quiet=True, verbose=False, time_limit=None)
    assert tune_job(job, tmp_path / "config.json", options, JobTimeLimit(SMALL.most), bar).code == 0
    gains = list(dict.fromkeys(text.partition("; speedup: ")[2] for text in line.said))
    bar.begin_element_type("float32 (small):", 60.0)
    assert gains[0] == "" and gains[1].startswith("float64 from ")
    assert len(gains) >= 4 and all(" at " in gain for gain in gains[2:])
    assert line.rest.endswith(f"; speedup: {gains[-1]}")


def test_what_was_gained_so_far_gives_way_to_how_it_ended() -> None:
    """Of a type that is tuned again, what an earlier pass gained stands unless the later one gains something."""
    line = Line(total=100.0)
    bar = ProgressBar(line)
    bar.end_element_type("float32", tuned.section(tuned.entry((4096, 4096, 4096), speedup=1.2)))
    bar.begin_element_type("float32 (default):", 100.0)
    bar.show_speedup_so_far("float32", lambda: tuned.section(tuned.entry((8192, 8192, 8192), speedup=1.4)))
    assert line.rest == "about 100 s left; speedup: float32 1.40 at 8192"
    bar.show_speedup_so_far("float32", lambda: None)
    assert line.rest == "about 100 s left; speedup: float32 1.20 at 4096"
    bar.show_speedup_so_far("float32", lambda: tuned.section(tuned.entry((8192, 8192, 8192), speedup=1.4)))
    bar.end_element_type("float32", None)
    bar.show_sample("", 0.0)
    assert line.rest == "about 100 s left; speedup: float32 1.20 at 4096"


def test_what_is_expected_is_no_more_than_may_be() -> None:
    """Samples are most of a tuning's time, but not all of it."""
    for effort, planned in CPU_EFFORTS.items():
        expected = TuningJob(CpuDevice(), "float64", (), effort).expected_seconds
        assert planned.seconds < expected <= planned.most


class Screen(StringIO):
    """stderr, on a terminal or not."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(("terminal", "shown"), [(True, True), (True, False), (False, True), (False, False)])
def test_only_who_looks_sees_a_bar(terminal: bool, shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(terminal)
    monkeypatch.setattr("sys.stderr", screen)
    with open_progress([60.0, 600.0], 240.0, shown) as progress:
        progress.begin_element_type("float32:", 60.0)
        progress.show_sample("probe", 30.0)
        progress.end_element_type("float32", None)
        progress.begin_element_type("float64:", 600.0)
    if terminal and shown:
        assert "float32: probe" in screen.getvalue()
        assert "about 4 min left" in screen.getvalue() and "about 10 min" not in screen.getvalue()  # the limit
    else:
        assert screen.getvalue() == ""


def test_a_first_pass_over_all_types_takes_a_minute_and_a_half_on_a_cpu_and_one_on_a_gpu() -> None:
    assert len(CpuDevice().dtypes) * CPU_EFFORTS["coarse"].most <= 90 and CPU_EFFORTS["coarse"] == CPU_EFFORTS["quick"]
    assert 7 * GPU_EFFORTS["coarse"].most <= 60
    for efforts in (CPU_EFFORTS, GPU_EFFORTS):
        assert list(efforts) == ["coarse", "quick", "default", "full"]
