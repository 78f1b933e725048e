"""The table of products that several GPUs shared, from results/*/distributed.json."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.tables.markdown import Row, digits, loaded, paired, table, times

WHO = {
    "torch": "torch's own product",
    "hook": "torch's, with fmm installed",
    "hook-ieee": "torch's, with fmm installed, `FMM_EMULATION=0`",
    "shared": "`fmm.distributed.matmul`",
    "shared-ieee": "`fmm.distributed.matmul`, `FMM_EMULATION=0`",
    "shared-level": '`fmm.distributed.matmul(..., plan="winograd")`',
    "alone": "a GPU's own part, all there",
}
PREDICTED = re.compile(r"^predicted: (\S+) s", re.MULTILINE)
COLUMNS = ("on", "type", "n", "who", "ms", "predicted, ms", "speedup over torch's", "of own part")


def several_gpus(results: Path) -> Iterator[str]:
    """Medians, and of the ratios of each round; beside what no sharing can beat."""
    yield from table(COLUMNS, _rows(results))


def _rows(results: Path) -> Iterator[tuple[object, ...]]:
    for _, environment, rows in loaded(results, "*/distributed.json"):
        where = f"{environment['gpus']} x {environment['device']}"
        for row in rows:
            taken = {who: seconds for who, seconds in row["seconds"].items() if seconds}
            for who, seconds in taken.items():
                beside = "alone" in taken and who in ("hook", "shared", "shared-level")
                own = f"{paired(taken['alone'], seconds):.2f}" if beside else ""
                speedup = f"**{paired(taken['torch'], seconds):.2f}**" if "torch" in taken and who != "torch" else ""
                expected = _predicted(row["ways"].get(who, ()))
                time = digits(1e3 * median(seconds))
                yield where, row["dtype"], size(row), WHO[who], time, expected, speedup, own


def _predicted(way: Sequence[str]) -> str:
    """Milliseconds, of the lines that explain a way to share a product."""
    found = PREDICTED.search("\n".join(way))
    return digits(1e3 * float(found[1])) if found else ""


def size(row: Row) -> str:
    """Of square matrices, which are sharded by rows unless it says blocks."""
    mesh = row.get("mesh", ())
    return f"{row['n']} in blocks on {times(mesh)}" if len(mesh) > 1 else str(row["n"])
