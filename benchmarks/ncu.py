"""Nsight Compute: a command's launches and what the device counted in each, from its CSV."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

PLACES = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
SCALES = {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}  # should it not print base units after all
UNKNOWN = re.compile(r"[Ff]ailed to find metric[s:]* ?['\"]?([\w.]+)")
ATTEMPTS = 4


class Launch(NamedTuple):
    """One launch of a kernel, and its counters by name."""

    kernel: str
    counters: Mapping[str, float]


def found() -> str | None:
    """Where ncu is: on PATH, or where CUDA puts it."""
    return shutil.which("ncu") or next((path for place in PLACES for path in sorted(glob(place))), None)


def profiled(ncu: str, command: Sequence[str], metrics: Sequence[str], seconds: float) -> str:
    """The CSV of a command that says itself where it begins and ends to be of interest.

    A metric that this ncu does not know is left out, and the command run again.
    """
    wanted, text = list(metrics), ""
    for _ in range(ATTEMPTS):
        with TemporaryDirectory() as folder:
            log = Path(folder) / "log.csv"
            options = ["--csv", "--print-units", "base", "--clock-control", "none", "--profile-from-start", "off"]
            given = [ncu, *options, "--metrics", ",".join(wanted), "--log-file", str(log), *command]
            done = subprocess.run(given, capture_output=True, text=True, timeout=seconds, check=False)
            text = "\n".join([log.read_text("utf-8") if log.exists() else "", done.stdout, done.stderr])
        unknown = set(UNKNOWN.findall(text)) & set(wanted)
        if not unknown:
            break
        wanted = [metric for metric in wanted if metric not in unknown]
    return text


def launches(text: str) -> list[Launch]:
    """In the order of the run. Both forms are read: a line for every metric, or one for every launch."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise ValueError("no CSV with a column ID")
    rows = list(csv.DictReader(lines[start:]))
    counted: dict[str, tuple[str, dict[str, float]]] = {}
    for row, name, unit, value in _values(rows):
        _, counters = counted.setdefault(row["ID"], (row["Kernel Name"], {}))
        counters[name] = value * SCALES.get(unit, 1)
    return [Launch(*counted[key]) for key in sorted(counted, key=int)]


def _values(rows: Sequence[Mapping[str, str]]) -> Iterator[tuple[Mapping[str, str], str, str, float]]:
    """Row of the launch, metric, unit, value; what is not a number (n/a) is left out."""
    if "Metric Name" in rows[0]:
        cells = [(row, row["Metric Name"], row["Metric Unit"], row["Metric Value"]) for row in rows]
    else:  # below the names is a line of units, which has no ID
        units = next((row for row in rows if not row["ID"]), {})
        metrics = [name for name in rows[0] if "__" in name]
        cells = [(row, name, units.get(name, ""), row[name]) for row in rows if row["ID"] for name in metrics]
    for row, name, unit, text in cells:
        if re.fullmatch(r"[\d,]+(\.\d+)?([eE][-+]?\d+)?", text or ""):
            yield row, name, unit, float(text.replace(",", ""))
