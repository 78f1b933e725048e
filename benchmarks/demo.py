"""Record a command in a terminal: `python -m benchmarks demo FILE COMMAND [ARGUMENT ...]`.

    python -m benchmarks demo results/cpu-amd-epyc-2t/demo.json fmm-tune --device cpu --effort quick --dtype float64

`python -m benchmarks pages` draws the recording of fmm-tune as docs/demo.svg.

A recording is a JSON file with the command, the size of the terminal, and the chunks of output with their seconds. The
drawing plays the recording: each state of the screen is a group of lines that is visible for its time. A viewer without
animations shows the last state.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, ROOT

COLUMNS, LINES = 100, 24
RECORDING = RESULTS / "cpu-amd-epyc-2t" / "demo.json"
DRAWING = ROOT / "docs" / "demo.svg"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ERASE_LINE = re.compile(r"\x1b\[[02]?K")
FRAME_SECONDS = 0.5  # states of the screen that follow faster are one frame
LAST_SECONDS = 8.0  # the last state stays this long, then the recording plays again
MAX_STATE_SECONDS = 3.0  # a state that stays longer is shortened
FONT_SIZE, LINE_HEIGHT, CHARACTER_WIDTH, MARGIN = 13, 17, 7.83, 14


# ---- recording


def record(command: Sequence[str]) -> dict[str, Any]:
    """Run a command in a pseudo terminal; return the command, the size of the terminal, and the output with times."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": str(LINES), "NO_COLOR": "1"}
    start, chunks = time.monotonic(), list[tuple[float, str]]()
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    while output := _read_output(leader):
        text = output.decode("utf-8", "replace")
        sys.stdout.write(text)
        chunks.append((round(time.monotonic() - start, 2), text))
    os.close(leader)
    process.wait()
    return {"command": list(command), "columns": COLUMNS, "lines": LINES, "chunks": thinned(chunks)}


def thinned(chunks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return the chunks without the states of a progress line that the next state replaces within a frame."""
    kept, shown = list[tuple[float, str]](), 0.0
    for number, (seconds, text) in enumerate(chunks):
        follower = chunks[number + 1] if number + 1 < len(chunks) else (float("inf"), "")
        is_replaced = follower[1].startswith("\r") and "\n" not in text + follower[1]
        if is_replaced and seconds - shown < FRAME_SECONDS:
            continue
        kept.append((seconds, text))
        shown = seconds
    return kept


def _read_output(leader: int) -> bytes:
    """Return the next bytes of a pseudo terminal; b"" once its programs have ended."""
    try:
        return os.read(leader, 1 << 16)
    except OSError:  # Linux raises EIO where other systems return no bytes
        return b""


# ---- states of the screen


def screen_states(recording: dict[str, Any]) -> Iterator[tuple[float, list[str]]]:
    """Yield the seconds and the lines of the screen after each chunk of the output."""
    screen, line = list[str](), ""
    for seconds, text in recording["chunks"]:
        for part in re.split(r"(\r\n|\r|\n)", ERASE_LINE.sub("\r", text)):
            if part in ("\n", "\r\n"):
                screen, line = [*screen, line], ""
            elif part == "\r":
                screen, line = [*screen], "\r" + line.lstrip("\r")
            elif part := ESCAPES.sub("", part):
                line = part if line.startswith("\r") else line + part
        yield seconds, [*screen, line.lstrip("\r")]


def frames(recording: dict[str, Any]) -> list[tuple[float, list[str]]]:
    """Return the shown states: how long each one is shown, and its last lines that fit on the screen."""
    states = [(0.0, [""]), *screen_states(recording)]
    chosen = [states[0]]
    for state in states[1:]:
        if state[0] - chosen[-1][0] < FRAME_SECONDS:
            state = chosen.pop()[0], state[1]
        chosen.append(state)
    ends = [seconds for seconds, _ in chosen[1:]]
    lasting = [min(end - start, MAX_STATE_SECONDS) for (start, _), end in zip(chosen, ends, strict=False)]
    prompt = "$ " + " ".join(recording["command"])
    shown = [_visible_lines([prompt, *lines], recording) for _, lines in chosen]
    return list(zip([*lasting, LAST_SECONDS], shown, strict=True))


def _visible_lines(lines: Sequence[str], recording: dict[str, Any]) -> list[str]:
    """Return the lines that fit on the screen, cut to its width."""
    while lines and not lines[-1]:
        lines = lines[:-1]
    return [line[: recording["columns"]].rstrip() for line in lines[-recording["lines"] :]]


# ---- drawing


def svg_text(recording: dict[str, Any]) -> str:
    """Return the recording as an SVG file that plays it again and again."""
    shown = frames(recording)
    total = sum(seconds for seconds, _ in shown)
    width = round(recording["columns"] * CHARACTER_WIDTH + 2 * MARGIN)
    height = max(len(lines) for _, lines in shown) * LINE_HEIGHT + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(" ".join(recording["command"]))}">',
        _style(shown, total),
        f'<rect width="{width}" height="{height}" rx="6" fill="#16181d"/>',
    ]
    for number, (_, lines) in enumerate(shown):
        parts.append(f'<g class="f f{number}">')
        for row, line in enumerate(lines):
            if line:
                y = MARGIN + (row + 1) * LINE_HEIGHT - 4
                parts.append(f'<text x="{MARGIN}" y="{y}" xml:space="preserve">{escape(line, quote=False)}</text>')
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


def _style(shown: Sequence[tuple[float, list[str]]], total: float) -> str:
    """Return the style sheet: each frame is visible for its share of the time; without animations, the last frame."""
    font = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
    rules = [f"text {{ font: {FONT_SIZE}px {font}; fill: #d7dae0 }}", ".f { visibility: hidden }"]
    rules.append(f".f{len(shown) - 1} {{ visibility: visible }}")
    begin = 0.0
    for number, (seconds, _) in enumerate(shown):
        end = begin + seconds
        first, last = (f"{100 * x / total:.2f}%" for x in (begin, end))
        hidden = "0% { visibility: hidden } " if begin else ""
        after = f" {last}, 100% {{ visibility: hidden }}" if number < len(shown) - 1 else ""
        rules.append(f"@keyframes k{number} {{ {hidden}{first} {{ visibility: visible }}{after} }}")
        rules.append(f".f{number} {{ animation: k{number} {total:.2f}s step-end infinite }}")
        begin = end
    return "<style>\n" + "\n".join(rules) + "\n</style>"


def main(arguments: Sequence[str]) -> int:
    """Run a command, and write its recording."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the JSON file to write")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command to record")
    options = parser.parse_args(arguments)
    recording = record(options.command)
    options.file.parent.mkdir(parents=True, exist_ok=True)
    options.file.write_text(json.dumps(recording, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    return 0
