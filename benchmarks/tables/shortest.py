"""Tables of docs/shortest_paths.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import ceil, log2
from pathlib import Path
from statistics import median

from benchmarks.tables.markdown import Row, load_result, rounded_text, table_lines
from fmm.hardware.chip import Chip
from fmm.hardware.datasheets import datasheet_of
from fmm.perfmodel.papers.huang_blocks import datasheet_chip
from fmm.semirings.closure_launches import closure_seconds
from fmm.semirings.minplus_kernel import TROPICAL_RINGS

CALLERS = {
    "float32": "float32, normal numbers",
    "float32 >= 0": "float32, none negative",
    "int32": "int32, none negative",
    "int32 signed": "int32",
    "int16": "int16, none negative",
    "float64": "float64",
    "tropical-gemm float32": "tropical-gemm's kernel, float32",
}


MINIMA_PER_CLOCK = 64  # minima of two numbers per clock of a Hopper multiprocessor
LENGTH_LIMITS = (1, 3, 5, 6, 7, 8, 10, 100)
STRASSEN_SHARE = 7 / 8  # ratio of the products with one level of Strassen to those without
RESIDUE_BITS = 8
SEIDEL_PRODUCTS = 3  # int8 products of a doubling in Seidel's algorithm


def peak_sums() -> float:
    """Return the largest number of sums a second, if each sum takes one minimum of two numbers."""
    chip = datasheet_of("H200")
    return MINIMA_PER_CLOCK * chip.sms * 1e6 * chip.boost_mhz


def minplus_bound(results: Path) -> Iterator[str]:
    """Yield the bound of the datasheet in a sentence."""
    chip = datasheet_of("H200")
    product, paths = (rounded_text(1e3 * n**3 / peak_sums()) for n in (4096, 8192))
    yield (
        f"{chip.sms} multiprocessors at {chip.boost_mhz / 1e3:.2f} GHz have {peak_sums() / 1e12:.1f} 10^12 "
        "sums a second: "
        f"{product} ms for a product of 4096, {paths} ms for paths between 8192 nodes."
    )


def minplus_products(results: Path) -> Iterator[str]:
    """Yield whole calls of fmm.minplus on an H200, by size."""
    rows = _minplus_rows(results)
    columns = ("ms (10^12 sums a second, of the bound)", *(str(row["n"]) for row in rows))
    yield from table_lines(columns, (_product_row(way, rows) for way in CALLERS))


def _minplus_rows(results: Path) -> list[Row]:
    return [row for row in load_result(results / "nvidia-h200" / "shortest_paths.json")[1] if row["what"] == "minplus"]


def _product_row(way: str, rows: list[Row]) -> tuple[str, ...]:
    found = [(row["n"], median(row["samples"][way])) for row in rows]
    rates = [(1e3 * seconds, n**3 / seconds) for n, seconds in found]
    return CALLERS[way], *(f"{rounded_text(ms)} ({rate / 1e12:.1f}, {rate / peak_sums():.0%})" for ms, rate in rates)


def ring_products(results: Path) -> Iterator[str]:
    """Yield predicted times of integer min-plus products by int8 products over a ring, and measured times."""
    columns = ("lengths up to", "int8 products", "ms", "ms, a level of Strassen's", "in int16, ms")
    yield from table_lines(columns, _ring_rows(results / "nvidia-h200"))


def _ring_rows(folder: Path) -> Iterator[tuple[object, ...]]:
    (byte,) = (r for r in load_result(folder / "integers.json")[1] if r["dtype"] == "int8" and r["equal"])
    n, seconds = byte["side"], median(byte["candidate"])
    (product,) = (row for row in _minplus_rows(folder.parent) if row["n"] == n)
    (paths,) = (row for row in load_result(folder / "shortest_paths-whole.json")[1] if row["n"] == n)
    counts = {str(most): ceil((2 * most + 1) * log2(n + 1) / RESIDUE_BITS) for most in LENGTH_LIMITS}
    for lengths, count in counts.items():
        yield _ring_row(f"{lengths}, n = {n}", count, seconds, product["samples"]["int16"])
    yield _ring_row(
        f"no lengths, Seidel's paths, n = {n}", SEIDEL_PRODUCTS * ceil(log2(n)), seconds, paths["samples"]["int16"]
    )


def _ring_row(what: str, count: int, seconds: float, direct_seconds: list[float]) -> tuple[object, ...]:
    through = (rounded_text(1e3 * share * count * seconds) for share in (1.0, STRASSEN_SHARE))
    return what, count, *through, rounded_text(1e3 * median(direct_seconds))


def shortest_paths(results: Path) -> Iterator[str]:
    """Yield launches of shortest paths on an H200, and their predicted times."""
    content = json.loads((results / "nvidia-h200" / "tiles" / "minplus.json").read_text(encoding="utf-8"))
    columns = ("nodes", "type", "ms", "10^12 sums a second", "launches", "predicted, ms")
    chip = datasheet_chip(datasheet_of("H200"))
    yield from table_lines(columns, (_path_row(row, chip) for row in content["closures"]))


def _path_row(row: Row, chip: Chip) -> tuple[object, ...]:
    n, seconds = row["n"], row["seconds"]
    predicted = closure_seconds(TROPICAL_RINGS[row["ring"]], n, chip)
    rate = f"{n**3 / seconds / 1e12:.1f}"
    return n, row["ring"], rounded_text(1e3 * seconds), rate, row["launches"], rounded_text(1e3 * predicted)


def whole_path_calls(results: Path) -> Iterator[str]:
    """Yield whole calls of fmm.shortest_paths on an H200."""
    rows = [
        row for row in load_result(results / "nvidia-h200" / "shortest_paths-whole.json")[1] if row["what"] == "paths"
    ]
    columns = ("ms (and 10^12 sums a second)", *(str(row["n"]) for row in rows))
    ways = dict.fromkeys(way for row in rows for way in row["samples"])
    yield from table_lines(columns, ((way, *(_whole_call(row, way) for row in rows)) for way in ways))


def _whole_call(row: Row, way: str) -> str:
    if way not in row["samples"]:
        return ""
    seconds = median(row["samples"][way])
    return f"{rounded_text(1e3 * seconds)} ({row['n'] ** 3 / seconds / 1e12:.1f})"


def paths_on_cpu(results: Path) -> Iterator[str]:
    """Yield the times of fmm.shortest_paths and of SciPy's floyd_warshall on each CPU."""
    columns = ("on", "nodes", "type", "SciPy, s", "compiled, s", "NumPy alone, s")
    rows = []
    for path in sorted(results.glob("cpu-*/shortest_paths.json")):
        where, found = load_result(path)
        for row in found:
            times = [rounded_text(median(row["samples"][way])) for way in ("scipy", "compiled", "numpy")]
            rows.append((where["processor"], row["n"], row["dtype"], *times))
    yield from table_lines(columns, iter(rows))
