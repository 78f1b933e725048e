"""The block model against measurements: `python -m fmm.tuner.fit.block_terms FILE`, a file of benchmarks.blocks.

Fits the model's few constants to the times of Huang's six strategies on one half of the shapes, and judges them on the
other half and on all; then the other way round; then fits them to all: those are what fmm.perfmodel.block_time has.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property
from math import exp, log, sqrt
from pathlib import Path
from statistics import mean, median

from fmm.hardware.chip import Chip, Fitted
from fmm.hardware.datasheets import device
from fmm.kernels.cuda.products.tiles.tile_sizes import STRATEGIES, TUNED, TileSizes
from fmm.perfmodel.block_time import GEMM, Operands, Shape, launch_seconds
from fmm.perfmodel.papers.huang_blocks import datasheet_chip

SUMS: Operands = (2, 2, 2)  # of the table `fused`
OPERANDS = {"plain": GEMM, "fused": SUMS}


@dataclass(frozen=True)
class Measured:
    """Median seconds of every strategy on one shape."""

    kind: str
    shape: Shape
    seconds: Mapping[str, float]
    operands: Operands = GEMM

    @property
    def tera(self) -> float:
        """Classical flops, in 10^12."""
        m, k, n = self.shape
        return 2e-12 * m * k * n


@dataclass(frozen=True)
class Row:
    """A shape's strategies as modelled and as measured."""

    measured: Measured
    modelled: Mapping[str, float]

    @cached_property
    def ranking(self) -> list[str]:
        """The model's, the fastest first."""
        return sorted(self.modelled, key=lambda name: self.modelled[name])

    @cached_property
    def best(self) -> str:
        return min(self.modelled, key=lambda name: self.measured.seconds[name])

    @property
    def place(self) -> int:
        """Of the measured best in the model's ranking, from 1."""
        return self.ranking.index(self.best) + 1

    @property
    def regret(self) -> float:
        """What the model's choice takes longer than the best."""
        return self.measured.seconds[self.ranking[0]] / self.measured.seconds[self.best] - 1

    @property
    def errors(self) -> dict[str, float]:
        """log(modelled / measured)."""
        return {name: log(t / self.measured.seconds[name]) for name, t in self.modelled.items()}


def read_shapes(path: Path, table: str = "plain") -> list[Measured]:
    """Shapes in the order in which they were measured, which was random."""
    found = json.loads(path.read_text(encoding="utf-8"))[table]
    return [
        Measured(x["kind"], (x["m"], x["k"], x["n"]), {s: median(t) for s, t in x["seconds"].items()}, OPERANDS[table])
        for x in found
    ]


def compared_rows(shapes: Sequence[Measured], on: Chip, strategies: Sequence[TileSizes] = STRATEGIES) -> list[Row]:
    return [Row(x, {s.name: launch_seconds(s, x.operands, x.shape, on) for s in strategies}) for x in shapes]


def root_mean_square(rows: Sequence[Row]) -> float:
    """Root mean square of all errors."""
    return sqrt(mean(error**2 for row in rows for error in row.errors.values()))


def fitted_constants(shapes: Sequence[Measured], on: Chip) -> Fitted:
    """The constants with the least squares of errors, by their logarithms: they stay positive."""
    from scipy.optimize import least_squares

    names = [x.name for x in fields(Fitted)]

    def constants(x: Sequence[float]) -> Fitted:
        return Fitted(**dict(zip(names, map(exp, x), strict=True)))

    def errors(x: Sequence[float]) -> list[float]:
        rows = compared_rows(shapes, replace(on, fitted=constants(x)))
        return [error for row in rows for error in row.errors.values()]

    return constants(least_squares(errors, [log(x) for x in astuple(Fitted())], diff_step=1e-3, x_scale=0.1).x)


def alternate_halves(shapes: Sequence[Measured]) -> tuple[Sequence[Measured], Sequence[Measured]]:
    return shapes[::2], shapes[1::2]


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
        yield f"fitted to {name}: " + ", ".join(f"{x.name} {getattr(made.fitted, x.name):.3g}" for x in fields(Fitted))
        for what, others in (("the first half", first), ("the second half", second), ("all", shapes)):
            yield "  " + judged_line(f"six strategies, {what}", compared_rows(others, made))
    yield "as fmm.perfmodel.block_time has them:"
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
