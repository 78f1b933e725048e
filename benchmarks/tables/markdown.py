"""Results as tables: Markdown on a page, CSV in results/tables/, and the formats of their numbers."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

Row = dict[str, Any]
COMMIT = re.compile(r"\b[0-9a-f]{13,}\b")
LONG_MILLISECONDS = 0.1  # a random product that takes longer counts as long
SOURCE_COLUMNS = ("samples", "commit")  # last columns of a CSV file; a page names the CSV file instead


def load_result(path: Path) -> tuple[Row, list[Row]]:
    """Return the environment and the rows of a result file, packed or not."""
    raw = path.read_bytes()
    content = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    return content["environment"], content["rows"]


def loaded_results(results: Path, pattern: str) -> Iterator[tuple[Path, Row, list[Row]]]:
    """Yield the path, the environment and the rows of each result file that matches the pattern.

    Files with an old kernel of BLAS are left out: their baseline is too slow.
    """
    for path in sorted(results.glob(pattern)):
        environment, rows = load_result(path)
        if not ran_old_kernel(environment):
            yield path, environment, rows


def ran_old_kernel(environment: Mapping[str, Any]) -> bool:
    """Return True if BLAS ran a kernel for an older processor while the samples of this environment were measured."""
    return bool(environment.get("blas_warning"))


class LongTable(NamedTuple):
    """A table that is too long for a page: results/tables/NAME.csv has all rows, the page has some of them."""

    name: str
    columns: Sequence[str]  # without SOURCE_COLUMNS
    all_rows: Callable[[Path], Iterator[Sequence[object]]]  # each row ends with the cells of SOURCE_COLUMNS

    def csv_text(self, results: Path) -> str:
        """Return all rows as CSV, without Markdown's marks."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow((*self.columns, *SOURCE_COLUMNS))
        writer.writerows([str(cell).strip("*`") for cell in row] for row in self.all_rows(results))
        return text.getvalue()

    def page_lines(self, results: Path, is_shown: Callable[[Sequence[object]], bool]) -> Iterator[str]:
        """Yield the table of the rows that the page shows, and a link to the CSV file."""
        rows = list(self.all_rows(results))
        width = len(self.columns)
        yield from table_lines(self.columns, (row[:width] for row in rows if is_shown(row)))
        yield ""
        yield f"All {len(rows)} rows, with samples and commits: {self.link}."

    @property
    def link(self) -> str:
        """Return the link from a page of docs/ to the CSV file."""
        return f"[{self.name}.csv](../results/tables/{self.name}.csv)"


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    yield from (f"| {' | '.join(map(str, row))} |" for row in rows)


def heading_lines(path: Path, environment: Row, *more: str) -> Iterator[str]:
    """Yield the device, the file of the samples and its commit, between empty lines."""
    where = ", ".join(
        (f"`results/{path.parent.name}/{path.name}`", f"commit {short_commits(environment['commit'])}", *more)
    )
    yield from ("", f"**{machine_name(environment)}** ({where})", "")


def source_cells(path: Path, environment: Row) -> tuple[str, str]:
    """Return the cells of SOURCE_COLUMNS."""
    return f"results/{path.parent.name}/{path.name}", short_commits(environment["commit"])


def machine_name(environment: Row) -> str:
    """Return a short name of the GPU, or of the CPU with its threads."""
    if "device" in environment:
        return short_name(environment["device"])
    return f"{short_name(environment['processor'])}, {environment['blas_threads']} threads"


def short_name(device: str) -> str:
    """Return the name of a device without its vendor's marks: "H200", "Intel Xeon"."""
    return re.sub(r"\(R\)|^NVIDIA | Processor| \d+GB.*", "", device)


def short_commits(commit: str) -> str:
    """Return the first twelve digits of every commit in the text."""
    return COMMIT.sub(lambda found: found[0][:12], commit)


# Formats of numbers


def size_text(size: Sequence[int]) -> str:
    """Return the sides of a matrix or product, such as "8 x 9 x 10"; of a cube, "8³"."""
    return f"{size[0]}³" if len(size) == 3 and len(set(size)) == 1 else " x ".join(map(str, size))


def rounded_text(number: float, count: int = 3) -> str:
    """Return some significant digits, never as a power of ten."""
    rounded = float(f"{number:.{count}g}")
    return f"{rounded:.0f}" if abs(rounded) >= 1e5 else f"{rounded:g}"


def duration_text(seconds: float) -> str:
    """Return seconds from one second on, else milliseconds."""
    return f"{rounded_text(seconds)} s" if seconds > 1 else f"{rounded_text(1e3 * seconds)} ms"


def gibibytes_text(nbytes: int) -> str:
    """Return bytes in GiB."""
    return f"{nbytes / 2**30:.2f} GiB"


def median_ratio(baseline: Sequence[float], own: Sequence[float]) -> float:
    """Return the median of the ratios of each round: larger than 1 if `own` is faster."""
    return float(median(other / x for other, x in zip(baseline, own, strict=True)))


def speedup_text(baseline: Sequence[float], own: Sequence[float]) -> str:
    """Return the paired speedup in bold."""
    return f"**{median_ratio(baseline, own):.2f}**"
