"""The tables of docs/shortest_paths.md, from results/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.tables.markdown import Row, digits, load, table
from fmm.hardware.chip import Chip
from fmm.hardware.datasheets import device
from fmm.kernels.cuda.products.semirings.minplus import RINGS
from fmm.perfmodel.closure_time import closure_seconds
from fmm.perfmodel.papers.huang_blocks import datasheet_chip

WHO = {
    "float32": "float32, normal numbers",
    "float32 >= 0": "float32, none negative",
    "int32": "int32, none negative",
    "int32 signed": "int32",
    "int16": "int16, none negative",
    "float64": "float64",
    "tropical-gemm float32": "tropical-gemm's kernel, float32",
}


def minplus_products(results: Path) -> Iterator[str]:
    """Whole calls of fmm.minplus on an H200, by size."""
    rows = [row for row in load(results / "nvidia-h200" / "shortest_paths.json")[1] if row["what"] == "minplus"]
    columns = ("ms (and 10^12 sums a second)", *(str(row["n"]) for row in rows))
    yield from table(columns, (_product_row(way, rows) for way in WHO))


def _product_row(way: str, rows: list[Row]) -> tuple[str, ...]:
    found = [(row["n"], median(row["samples"][way])) for row in rows]
    return WHO[way], *(f"{digits(1e3 * seconds)} ({n**3 / seconds / 1e12:.1f})" for n, seconds in found)


def shortest_paths(results: Path) -> Iterator[str]:
    """Shortest paths on an H200 as launches, beside what is predicted."""
    content = json.loads((results / "nvidia-h200" / "tiles" / "minplus.json").read_text(encoding="utf-8"))
    columns = ("nodes", "type", "ms", "10^12 sums a second", "launches", "predicted, ms")
    chip = datasheet_chip(device("H200"))
    yield from table(columns, (_path_row(row, chip) for row in content["closures"]))


def _path_row(row: Row, chip: Chip) -> tuple[object, ...]:
    n, seconds = row["n"], row["seconds"]
    predicted = closure_seconds(RINGS[row["ring"]], n, chip)
    rate = f"{n**3 / seconds / 1e12:.1f}"
    return n, row["ring"], digits(1e3 * seconds), rate, row["launches"], digits(1e3 * predicted)


def whole_calls(results: Path) -> Iterator[str]:
    """fmm.shortest_paths on an H200, whole calls."""
    rows = [row for row in load(results / "nvidia-h200" / "shortest_paths-whole.json")[1] if row["what"] == "paths"]
    columns = ("ms (and 10^12 sums a second)", *(str(row["n"]) for row in rows))
    ways = dict.fromkeys(way for row in rows for way in row["samples"])
    yield from table(columns, ((way, *(_whole_call(row, way) for row in rows)) for way in ways))


def _whole_call(row: Row, way: str) -> str:
    if way not in row["samples"]:
        return ""
    seconds = median(row["samples"][way])
    return f"{digits(1e3 * seconds)} ({row['n'] ** 3 / seconds / 1e12:.1f})"


def paths_on_cpu(results: Path) -> Iterator[str]:
    """fmm.shortest_paths beside SciPy's floyd_warshall, on each CPU."""
    columns = ("on", "nodes", "type", "SciPy, s", "compiled, s", "NumPy alone, s")
    rows = []
    for path in sorted(results.glob("cpu-*/shortest_paths.json")):
        where, found = load(path)
        for row in found:
            times = [digits(median(row["samples"][way])) for way in ("scipy", "compiled", "numpy")]
            rows.append((where["processor"], row["n"], row["dtype"], *times))
    yield from table(columns, iter(rows))
