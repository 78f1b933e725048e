"""Recordings of a terminal, and their drawings."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks import demo, pages

PROGRAM = r"""
import sys, time
for percent in (10, 20, 90):
    print(f"\r{percent}% <done> & so on", end="", flush=True)
    time.sleep(0.02)
print("\r\x1b[K\x1b[1mtuned\x1b[0m\n  float32  1.5")
"""


@pytest.fixture(scope="module")
def recording() -> dict[str, Any]:
    return demo.record([sys.executable, "-c", PROGRAM])


def test_a_recording_has_what_a_program_prints_in_a_terminal(recording: dict[str, Any]) -> None:
    *_, (seconds, last) = demo.screen_states(recording)
    assert last == ["tuned", "  float32  1.5", ""] and seconds >= 0.06
    assert json.loads(json.dumps(recording))["columns"] == demo.COLUMNS


def test_states_that_the_next_one_replaces_are_left_out() -> None:
    chunks = [(0.1, "\r1%"), (0.2, "\r2%"), (0.7, "\r3%"), (0.8, "\r4%"), (0.9, "\rdone\n"), (1.0, "next\n")]
    assert demo.thinned(chunks) == [(0.7, "\r3%"), (0.8, "\r4%"), (0.9, "\rdone\n"), (1.0, "next\n")]
    assert demo.thinned([]) == []


def test_a_drawing_plays_each_frame_and_ends_with_the_last(recording: dict[str, Any]) -> None:
    chunks = [(1.0, "\r10% <a> & b"), (20.0, "\r90%"), (21.0, "\r   \rdone\r\n"), (21.1, "x" * 200 + "\n")]
    content = {**recording, "command": ["tune", "--all"], "chunks": chunks}
    shown = demo.frames(content)
    assert [lines for _, lines in shown] == [
        ["$ tune --all"],
        ["$ tune --all", "10% <a> & b"],
        ["$ tune --all", "90%"],
        ["$ tune --all", "done", "x" * demo.COLUMNS],
    ]
    assert [seconds for seconds, _ in shown] == [1.0, demo.MAX_STATE_SECONDS, 1.0, demo.LAST_SECONDS]
    root = ElementTree.fromstring(demo.svg_text(content))
    groups = [x for x in root.iter() if x.tag.endswith("}g")]
    assert len(groups) == 4 and [x.text for x in groups[1]] == ["$ tune --all", "10% <a> & b"]
    style = next(x.text for x in root if x.tag.endswith("}style"))
    assert style is not None and re.findall(r"\.f(\d) \{ visibility: visible", style) == ["3"]


def test_long_output_scrolls() -> None:
    content = {"command": ["c"], "columns": 80, "lines": 5, "chunks": [(0.0, "".join(f"{i}\n" for i in range(9)))]}
    assert demo.frames(content)[-1][1] == ["4", "5", "6", "7", "8"]


@pytest.mark.slow
def test_the_command_records_and_pages_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a" / "demo.json"
    assert demo.main([str(file), sys.executable, "-c", "print('hello')"]) == 0
    monkeypatch.setattr(demo, "RECORDING", file)
    assert "hello" in dict(pages.generated_files())[demo.DRAWING]
