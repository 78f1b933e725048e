"""Predicted products of many GPUs: `python -m benchmarks scaling` writes the tables of docs/scaling.md.

No GPU is needed: fmm.distributed.plan predicts every sharing of a product, by the shipped calibration of the H200 and
the rates in fmm/hardware/links.csv. It takes some minutes.
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
from benchmarks.tables.markdown import table_lines
from fmm.config.files import SHIPPED_CONFIG
from fmm.distributed.decide_sharing import SharedDecision
from fmm.distributed.predict_sharing import SharingCandidate
from fmm.kernels.plans.plan import VENDOR

PAGE = Path(__file__).parents[1] / "docs/scaling.md"
MARK = re.compile(r"(<!-- scaling: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
MESHES: dict[int, tuple[tuple[int, ...], ...]] = {
    2: ((2,),),
    4: ((4,), (2, 2)),
    8: ((8,), (2, 4)),
    64: ((8, 8),),
    256: ((16, 16),),
}
FLOAT32_IEEE = "float32, FMM_EMULATION=0"
COLUMNS = (
    *("type", "n", "GPUs", "mesh", "shared"),
    *("predicted", "one GPU", "of ideal", "received", "outer level", "taken"),
)
RECTANGLE_COLUMNS = (
    *("type", "n", "GPUs", "as a row", "predicted", "as a rectangle", "predicted, as a rectangle"),
    *("of the row's time", "taken"),
)


class Row(NamedTuple):
    """A product of n x n matrices on a number of GPUs."""

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
            (FLOAT32_IEEE, (32768, 65536)),
            ("float64", (32768, 65536)),
            ("bfloat16", (32768, 98304)),
        )
        for n in sides
        for gpus in (2, 4, 8)
    ],
    "machines": [
        Row(kind, n, gpus)
        for kind in ("float32", FLOAT32_IEEE, "float64", "bfloat16")
        for n, gpus in ((131072, 64), (262144, 256))
    ],
    "rectangles": [
        Row(kind, n, gpus)
        for kind, n, every in (
            ("float32", 65536, (4, 8, 16, 32)),
            (FLOAT32_IEEE, 65536, (4, 8, 16, 32)),
            ("float64", 65536, (8, 16)),
            ("bfloat16", 98304, (8, 16, 32)),
        )
        for gpus in every
    ],
}


def decision_on(row: Row, mesh: int | tuple[int, ...]) -> SharedDecision:
    """Return the decision on a mesh."""
    os.environ["FMM_EMULATION"] = "0" if row.kind == FLOAT32_IEEE else "1"
    return fmm.distributed.plan(row.n, row.n, row.n, mesh=mesh, dtype=row.kind.split(",")[0])


def fastest_decision(row: Row) -> SharedDecision:
    """Return the decision on the fastest mesh of this number of GPUs."""
    return min((decision_on(row, mesh) for mesh in MESHES[row.gpus]), key=lambda way: way.best.predicted_seconds)


def mesh_cells(row: Row) -> Sequence[str]:
    """Return a line of a table.

    "Outer level" is the time of the best sharing with a level over the best without; "taken" tells if fmm chooses the
    level.
    """
    found = fastest_decision(row)
    best, layout = found.best, found.best.layout
    with_level, without = (
        min(way.predicted_seconds for way in found.candidates if (way.outer_plan == VENDOR) == plain)
        for plain in (False, True)
    )
    shared = _sharing_text(best)
    mesh = " x ".join(map(str, layout.mesh))
    times = [_time_text(value) for value in (best.predicted_seconds, found.single_device_seconds)]
    ideal = f"{found.speedup / row.gpus:.2f}"
    level = f"{with_level / without:.2f}"
    level = f"**{level}**" if float(level) < 1 else level
    taken = "no" if best.outer_plan == VENDOR else "yes"
    return *row.label, mesh, shared, *times, ideal, f"{best.received / 2**30:.3g} GiB", level, taken


def rectangle_cells(row: Row) -> Sequence[str]:
    """Return a line for a mesh of one dimension: the best row, the best rectangle, and whether fmm takes it."""
    found = decision_on(row, row.gpus)
    plain, rectangle = (
        min(
            (way for way in found.candidates if way.rectangle == wanted and way.outer_plan == VENDOR), key=_seconds_text
        )
        for wanted in (False, True)
    )
    texts = [text for way in (plain, rectangle) for text in (_sharing_text(way), _time_text(way.predicted_seconds))]
    share = f"{rectangle.predicted_seconds / plain.predicted_seconds:.2f}"
    return *row.label, *texts, share, "yes" if found.best.rectangle else "no"


def _seconds_text(way: SharingCandidate) -> float:
    return way.predicted_seconds


def _sharing_text(way: SharingCandidate) -> str:
    return str(way).replace(", in one piece", "").replace(", as a rectangle", "")


def _time_text(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


# By table: the names of its columns, and the function that makes a line.
TABLE_FORMS = {name: (COLUMNS, mesh_cells) for name in TABLES} | {"rectangles": (RECTANGLE_COLUMNS, rectangle_cells)}


def main(arguments: Sequence[str]) -> int:
    """Write the tables; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(arguments)
    os.environ["FMM_CONFIG"] = str(SHIPPED_CONFIG)
    tables = {
        name: "\n".join(table_lines(TABLE_FORMS[name][0], map(TABLE_FORMS[name][1], rows)))
        for name, rows in TABLES.items()
    }
    page = PAGE.read_text(encoding="utf-8")  # read now: the page may have been edited during the prediction
    PAGE.write_text(MARK.sub(lambda mark: f"{mark[1]}{tables[mark[2]]}\n{mark[3]}", page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
