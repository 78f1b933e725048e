"""The table of products by residues in docs/benchmarks.md, from results/."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.tables.markdown import Row, digits, heading, table

NONE = "-"


def residues(results: Path) -> Iterator[str]:
    """Whole calls of fmm.matmul, default and by named plans, beside the library's product and GEMMul8."""
    columns = ("type", "n", "product", "ms", "speedup", "error, normal", "error, uniform", "TOPS of the bytes")
    for path in sorted(results.glob("*/residues*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        yield from heading(path, content["environment"])
        yield from table(columns, (row for case in content["cases"] for row in _rows(case)))


def _rows(case: Row) -> Iterator[Sequence[object]]:
    for name, samples in case["samples"].items():
        chosen = case.get("chosen", "")
        plan = chosen if name == "fmm" else name
        text = {"vendor": "cuBLAS", "fmm": f"fmm's choice: `{chosen}`"}.get(
            name, name if name.startswith("GEMM") else f"`{name}`"
        )
        rate = case["tops"].get(plan)
        errors = (_error(case["errors"].get(kind), name) for kind in ("normal", "uniform"))
        speedup = f"**{case['speedups'][name]:.2f}**"
        ms = digits(median(samples))
        yield case.get("dtype", "float64"), case["side"], text, ms, speedup, *errors, f"{rate:.0f}" if rate else NONE


def _error(found: dict[str, float] | None, name: str) -> str:
    """Beside the library's."""
    return NONE if found is None else digits(found[name] / found["vendor"])
