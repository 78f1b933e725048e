"""float32 by three float16 products, beside what else is faster than cuBLAS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.tables.markdown import digits, heading, loaded, paired, table, times


def emulation(results: Path) -> Iterator[str]:
    """float32 by three float16 products, whole calls; and what else is faster than cuBLAS, with its errors."""
    for path, environment, rows in loaded(results, "*/emulation*.json"):
        drawn = json.loads(path.read_text(encoding="utf-8")).get("random", [])
        rows = [row for row in rows if row["samples"]]
        yield from heading(path, environment)
        columns = ("product", "ms", "speedup", "error, normal", "error, uniform", "plan")
        yield from table(columns, (_emulated(row) for row in rows))
        peers = list(dict.fromkeys(name for row in rows for name in row["samples"] if name not in ("fmm", "cublas")))
        if peers:
            yield from ("", "The same of others, in the same run (in brackets their errors, normal and uniform):", "")
            yield from table(
                ("m x k x n", "fmm", *peers),
                (
                    (times(row["size"]), *(_speed_and_errors(row, name) for name in ("fmm", *peers)))
                    for row in rows
                    if len(row["samples"]) > 2
                ),
            )
        if drawn:
            ratios, fast = sorted(row["ratio"] for row in drawn), sum(row["plan"] != "vendor" for row in drawn)
            least, middle, most = (f"{x:.3g}" for x in (ratios[0], median(ratios), ratios[-1]))
            yield from (
                "",
                f"{len(drawn)} random shapes, {fast} by plans: {least} of the library's speed at least, "
                f"{middle} in the middle, {most} at most.",
            )


def _emulated(row: dict[str, Any]) -> tuple[str, ...]:
    samples, kind = row["samples"], "" if row["dtype"] == "float32" else f", {row['dtype']}"
    errors = (f"{row['errors'][data]['fmm']:.2f}" if data in row["errors"] else "" for data in ("normal", "uniform"))
    name = times(row["size"]) + kind + ", half of a a^T against syrk" * row["half"]
    speedup = f"**{paired(samples['cublas'], samples['fmm']):.2f}**"
    return name, digits(1e3 * median(samples["fmm"])), speedup, *errors, f"`{row['plan']}`"


def _speed_and_errors(row: dict[str, Any], name: str) -> str:
    if name not in row["samples"]:
        return ""
    found = [row["errors"].get(data, {}).get(name) for data in ("normal", "uniform")]
    errors = [f"{x:.2g}" for x in found if x is not None]
    return f"{paired(row['samples']['cublas'], row['samples'][name]):.2f} ({', '.join(errors)})"
