"""Products that many GPUs share, on paper: `python -m benchmarks.scaling` writes the tables of docs/scaling.md.

No GPU is needed: fmm.distributed.plan simulates every way to share a product, with the H200's calibration that ships
with fmm and the figures of fmm/hardware/links.csv. It takes some minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import fmm.distributed
from benchmarks.tables.markdown import table
from fmm.config.locate import SHIPPED
from fmm.kernels.plans.plan import VENDOR
from fmm.runtime.decisions.sharing import SharedDecision

PAGE = Path(__file__).parents[1] / "docs/scaling.md"
MARK = re.compile(r"(<!-- scaling: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
MESHES: dict[int, tuple[tuple[int, ...], ...]] = {
    2: ((2,),),
    4: ((4,), (2, 2)),
    8: ((8,), (2, 4)),
    64: ((8, 8),),
    256: ((16, 16),),
}
PLAIN = "float32, FMM_EMULATION=0"
COLUMNS = (
    *("type", "n", "GPUs", "mesh", "shared"),
    *("predicted", "one GPU", "of ideal", "received", "level above", "taken"),
)


class Row(NamedTuple):
    """A product of n x n matrices, and by how many."""

    kind: str
    n: int
    gpus: int

    @property
    def label(self) -> tuple[str, str, str]:
        return self.kind, str(self.n), str(self.gpus)


TABLES = {
    "one_machine": [
        Row(kind, n, gpus)
        for kind, sides in (
            ("float32", (32768, 65536)),
            (PLAIN, (32768, 65536)),
            ("float64", (32768, 65536)),
            ("bfloat16", (32768, 98304)),
        )
        for n in sides
        for gpus in (2, 4, 8)
    ],
    "machines": [
        Row(kind, n, gpus)
        for kind in ("float32", PLAIN, "float64", "bfloat16")
        for n, gpus in ((131072, 64), (262144, 256))
    ],
}


def decided(row: Row) -> SharedDecision:
    """The fastest way on any mesh of so many."""
    os.environ["FMM_EMULATION"] = "0" if row.kind == PLAIN else "1"
    dtype = row.kind.split(",")[0]
    found = [fmm.distributed.plan(row.n, row.n, row.n, mesh=mesh, dtype=dtype) for mesh in MESHES[row.gpus]]
    return min(found, key=lambda way: way.best.seconds)


def cells(row: Row) -> Sequence[str]:
    """A line of a table. Level above: the time of the best way with one over the best without; taken: is it chosen
    unasked, for which it is to be clearly faster?"""
    found = decided(row)
    best, layout = found.best, found.best.layout
    with_level, without = (
        min(way.seconds for way in found.considered if (way.above == VENDOR) == plain) for plain in (False, True)
    )
    shared = str(best).replace(", in one piece", "")
    mesh = " x ".join(map(str, layout.mesh))
    times = [f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s" for value in (best.seconds, found.alone)]
    ideal = f"{found.speedup / row.gpus:.2f}"
    level = f"{with_level / without:.2f}"
    level = f"**{level}**" if float(level) < 1 else level
    taken = "no" if best.above == VENDOR else "yes"
    return *row.label, mesh, shared, *times, ideal, f"{best.received / 2**30:.3g} GiB", level, taken


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(arguments)
    os.environ["FMM_CONFIG"] = str(SHIPPED)
    tables = {name: "\n".join(table(COLUMNS, map(cells, rows))) for name, rows in TABLES.items()}
    page = PAGE.read_text(encoding="utf-8")  # only now: it may have been edited meanwhile
    PAGE.write_text(MARK.sub(lambda mark: f"{mark[1]}{tables[mark[2]]}\n{mark[3]}", page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
