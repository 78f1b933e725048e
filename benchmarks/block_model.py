"""The block model against measurements: `python -m benchmarks.block_model FILE`, a file of benchmarks.blocks.

Fits the model's few constants to the times of Huang's six strategies on one half of the shapes, and judges them on the
other half and on all; then the other way round; then fits them to all: those are what fmm.perfmodel.block_model has.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import mean, median

from fmm.hardware.chip import BlockTerms, Chip
from fmm.hardware.datasheets import device
from fmm.kernels.cuda.products.kernel_sizes import STRATEGIES, TUNED
from fmm.perfmodel.block_model import GEMM, Operands
from fmm.perfmodel.papers.huang_blocks import datasheet_chip
from fmm.tuner.fit.blocks import Measured, Row, alternate_halves, compared_rows, fitted_constants, root_mean_square

SUMS: Operands = (2, 2, 2)  # of the table `fused`
OPERANDS = {"plain": GEMM, "fused": SUMS}


def read_shapes(path: Path, table: str = "plain") -> list[Measured]:
    """Shapes in the order in which they were measured, which was random."""
    found = json.loads(path.read_text(encoding="utf-8"))[table]
    return [
        Measured(x["kind"], (x["m"], x["k"], x["n"]), {s: median(t) for s, t in x["seconds"].items()}, OPERANDS[table])
        for x in found
    ]


# ---- what is printed


def judged_line(name: str, rows: Sequence[Row]) -> str:
    first, two = (sum(row.place <= most for row in rows) for most in (1, 2))
    regret = [row.regret for row in rows]
    return (
        f"{name:44} best in the first two {two}/{len(rows)}, first {first}; regret {100 * mean(regret):.1f} %, "
        f"at worst {100 * max(regret):.1f} %; error {100 * root_mean_square(rows):.1f} %"
    )


def print_report(path: Path, on: Chip) -> Iterator[str]:
    shapes, sums = read_shapes(path), read_shapes(path, "fused")
    first, second = alternate_halves(shapes)
    for name, some in (("the first half", first), ("the second half", second), ("all", shapes)):
        made = replace(on, fitted=fitted_constants(some, on))
        yield f"fitted to {name}: " + ", ".join(
            f"{x.name} {getattr(made.fitted, x.name):.3g}" for x in fields(BlockTerms)
        )
        for what, others in (("the first half", first), ("the second half", second), ("all", shapes)):
            yield "  " + judged_line(f"six strategies, {what}", compared_rows(others, made))
    yield "as fmm.perfmodel.block_model has them:"
    everything = (*STRATEGIES, *TUNED)
    for what, rows in (
        ("six strategies", compared_rows(shapes, on)),
        ("six strategies, with sums", compared_rows(sums, on)),
        ("the tuned four", compared_rows(shapes, on, TUNED)),
        ("all ten", compared_rows(shapes, on, everything)),
    ):
        yield "  " + judged_line(what, rows)
        yield from (f"      missed: {missed_line(row)}" for row in rows if row.place > 2)


def missed_line(row: Row) -> str:
    m, k, n = row.measured.shape
    return f"{m} x {k} x {n}: {row.best} is best, the model says {', '.join(row.ranking[:3])}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", default="H200", help="a datasheet's name")
    options = parser.parse_args(arguments)
    print(*print_report(options.file, datasheet_chip(device(options.device))), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
