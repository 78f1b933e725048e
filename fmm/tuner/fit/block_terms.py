"""The block model's terms, fitted to measured times of block strategies, and the model judged by such times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property
from math import exp, log, sqrt
from statistics import mean

from fmm.hardware.chip import BlockTerms, Chip
from fmm.kernels.cuda.products.kernel_sizes import STRATEGIES, TileSizes
from fmm.perfmodel.block_model import GEMM, Operands, Shape, launch_seconds


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


def compared_rows(shapes: Sequence[Measured], on: Chip, strategies: Sequence[TileSizes] = STRATEGIES) -> list[Row]:
    return [Row(x, {s.name: launch_seconds(s, x.operands, x.shape, on) for s in strategies}) for x in shapes]


def root_mean_square(rows: Sequence[Row]) -> float:
    """Root mean square of all errors."""
    return sqrt(mean(error**2 for row in rows for error in row.errors.values()))


def alternate_halves(shapes: Sequence[Measured]) -> tuple[Sequence[Measured], Sequence[Measured]]:
    return shapes[::2], shapes[1::2]


def held_back_rows(shapes: Sequence[Measured], on: Chip) -> list[Row]:
    """Every shape, as modelled with the constants that fit the half of the shapes in which it is not."""
    first, second = alternate_halves(shapes)
    rows: list[Row] = []
    for seen, others in ((first, second), (second, first)):
        rows += compared_rows(others, replace(on, fitted=fitted_constants(seen, on)))
    return rows


def fitted_constants(shapes: Sequence[Measured], on: Chip) -> BlockTerms:
    """The constants with the least squares of errors, by their logarithms: they stay positive."""
    from scipy.optimize import least_squares

    names = [x.name for x in fields(BlockTerms)]

    def constants(x: Sequence[float]) -> BlockTerms:
        return BlockTerms(**dict(zip(names, map(exp, x), strict=True)))

    def errors(x: Sequence[float]) -> list[float]:
        rows = compared_rows(shapes, replace(on, fitted=constants(x)))
        return [error for row in rows for error in row.errors.values()]

    return constants(least_squares(errors, [log(x) for x in astuple(BlockTerms())], diff_step=1e-3, x_scale=0.1).x)
