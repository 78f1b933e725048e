"""Results as lines of Markdown: a heading, a table, and numbers as tables have them."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

Row = dict[str, Any]
COMMIT = re.compile(r"\b[0-9a-f]{13,}\b")
LONG = 0.1  # milliseconds from which a random product counts as long


def load(path: Path) -> tuple[Row, list[Row]]:
    """The environment of a result and its rows, packed or not."""
    raw = path.read_bytes()
    content = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    return content["environment"], content["rows"]


def loaded(results: Path, pattern: str) -> Iterator[tuple[Path, Row, list[Row]]]:
    """Every result of such a name, device by device: where it is, its environment and its rows."""
    for path in sorted(results.glob(pattern)):
        yield path, *load(path)


def heading(path: Path, environment: Row, *more: str) -> Iterator[str]:
    """Which device, and where the samples are; apart from a table before it."""
    where = ", ".join((f"`results/{path.parent.name}/{path.name}`", f"commit {short(environment['commit'])}", *more))
    yield ""
    yield f"**{environment['device']}** ({where})"
    yield ""


def short(commit: str) -> str:
    """A commit's first digits; where several are named, those of each."""
    return COMMIT.sub(lambda found: found[0][:12], commit)


def table(columns: Sequence[str], rows: Iterator[Sequence[object]]) -> Iterator[str]:
    """A Markdown table; plans are spelled as they are today, whenever they were measured."""
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    yield from (f"| {' | '.join(map(str, row))} |" for row in rows)


# ---- numbers in words


def times(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))


def digits(number: float) -> str:
    """Three significant digits, never as a power of ten."""
    return f"{float(f'{number:.3g}'):g}"


def space(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB"


def paired(other: Sequence[float], own: Sequence[float]) -> float:
    """The median of the ratios of each round: above 1 where `own` is faster."""
    return float(median(o / x for o, x in zip(other, own, strict=True)))


def range_of_ratios(rows: Sequence[Row], those: str) -> str:
    """Of random shapes: the least and the largest ratio, and the least of `those` that take long."""
    ratios = [row["ratio"] for row in rows]
    long = [row["ratio"] for row in rows if median(row["vendor"]) > LONG]
    spread = f"median ratios from {min(ratios):.2f} to {max(ratios):.2f}"
    return f"{spread}; of {those} over {LONG} ms ({len(long)}) from {min(long, default=1):.2f}"
