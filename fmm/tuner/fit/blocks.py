"""The block strategies of this device: Huang, Yu and van de Geijn's six measured on a few shapes, and the block model's
terms fitted to that, unless the built-in ones predict it well enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import cached_property
from math import exp, log, sqrt
from statistics import mean
from typing import Any

from fmm.hardware.chip import BlockTerms, Chip
from fmm.kernels.cuda.products.kernel_sizes import FUSED_SIZES, STRATEGIES, TUNED, TileSizes
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import GEMM, Operands, Shape, chip_target, launch_seconds
from fmm.problem import Problem
from fmm.tuner.devices.device import Run
from fmm.tuner.fit.model import observed_medians
from fmm.tuner.trials.record import Size, Trial

BLOCKS_STAGE = "blocks"
BLOCKS_DTYPE = "float32"  # of the block model
STRATEGY_SHAPES: tuple[Size, ...] = (
    (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096),
    (8192, 1024, 256), (256, 1024, 8192), (512, 8192, 512), (4096, 128, 4096),
)  # fmt: skip
MAX_BUILT_IN_ERROR = 0.05  # root mean square of the errors with which the built-in terms are kept
SHOWN_SIDES = (512, 1024, 2048, 4096, 8192)  # of the squares for which the chosen strategy is shown
STRATEGY_PLANS: Mapping[str, Plan] = {s.name: Plan(leaf=f"tile.{s.name.lower()}") for s in (*STRATEGIES, *TUNED)}
AUTOMATIC_TILES = Plan(leaf="tile")  # leaves the strategy open


@dataclass(frozen=True)
class BlockFit:
    """The block model on this device: its terms, None where the built-in ones are kept, and by how much it is off.

    `error`: with these terms; of fitted ones on shapes that the fit did not see. `held_back`: what terms of a fit are
    off by on such shapes, whether they are taken or not; None where the built-in ones are so close that there is none.
    """

    fitted: BlockTerms | None
    error: float
    built_in_error: float
    held_back: float | None
    shapes: int

    @property
    def fields(self) -> dict[str, Any]:
        """As they stand in a section."""
        return {**asdict(self), "fitted": None if self.fitted is None else asdict(self.fitted)}


def strategy_runs() -> list[Run]:
    """What is timed on each shape, beside the vendor's product."""
    return [Run(plan) for plan in STRATEGY_PLANS.values()]


def strategy_times(trials: Sequence[Trial]) -> list[StrategyTimes]:
    """The shapes on which all of Huang's six have a time."""
    names = {plan: name for name, plan in STRATEGY_PLANS.items()}
    found: dict[Problem, dict[str, float]] = {}
    for o in observed_medians(trials, (BLOCKS_STAGE,)):
        if o.run.plan in names:
            found.setdefault(o.problem, {})[names[o.run.plan]] = o.seconds
    whole = {s.name for s in STRATEGIES}
    return [
        StrategyTimes(BLOCKS_STAGE, problem.size, times) for problem, times in found.items() if whole <= times.keys()
    ]


def fit_block_model(trials: Sequence[Trial], chip: Chip | None) -> BlockFit | None:
    """What the measurements say of the model; None if there are too few."""
    shapes = strategy_times(trials)
    return None if chip is None or len(shapes) < len(STRATEGY_SHAPES) / 2 else select_block_terms(shapes, chip)


def select_block_terms(shapes: Sequence[StrategyTimes], chip: Chip) -> BlockFit:
    """The built-in terms, unless they are far off and those of a fit predict better what the fit did not see: each half
    of the shapes by the terms of the other one."""
    built_in = root_mean_square(compare_strategies(shapes, chip))
    if built_in <= MAX_BUILT_IN_ERROR:
        return BlockFit(None, built_in, built_in, None, len(shapes))
    held_back = root_mean_square(cross_validate(shapes, chip))
    own = fit_block_terms(shapes, chip) if held_back < built_in else None
    return BlockFit(own, min(held_back, built_in), built_in, held_back, len(shapes))


# ---- what is launched


def chosen_strategies(dtype: str, chip: Chip | None, found: BlockFit | None) -> dict[str, str]:
    """The strategy with which our own kernel is launched for squares, by their side; empty where there is none."""
    if chip is None or dtype not in FUSED_SIZES:
        return {}
    own = chip if found is None or found.fitted is None else replace(chip, fitted=found.fitted)
    return {str(side): launched_strategy(Problem(side, side, side, dtype), own).name for side in SHOWN_SIDES}


def launched_strategy(problem: Problem, chip: Chip) -> TileSizes:
    """That of the one launch which a plan for this chip is recorded as: nobody else decides what runs."""
    (product,) = record_launches(AUTOMATIC_TILES, problem, chip_target(chip)).launches
    strategy: TileSizes = product.kernel.spec.strategy
    return strategy


@dataclass(frozen=True)
class StrategyTimes:
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
class StrategyComparison:
    """A shape's strategies as modelled and as measured."""

    measured: StrategyTimes
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


def compare_strategies(
    shapes: Sequence[StrategyTimes], on: Chip, strategies: Sequence[TileSizes] = STRATEGIES
) -> list[StrategyComparison]:
    return [
        StrategyComparison(x, {s.name: launch_seconds(s, x.operands, x.shape, on) for s in strategies}) for x in shapes
    ]


def root_mean_square(rows: Sequence[StrategyComparison]) -> float:
    """Root mean square of all errors."""
    return sqrt(mean(error**2 for row in rows for error in row.errors.values()))


def split_alternately(shapes: Sequence[StrategyTimes]) -> tuple[Sequence[StrategyTimes], Sequence[StrategyTimes]]:
    return shapes[::2], shapes[1::2]


def cross_validate(shapes: Sequence[StrategyTimes], on: Chip) -> list[StrategyComparison]:
    """Every shape, as modelled with the constants that fit the half of the shapes in which it is not."""
    first, second = split_alternately(shapes)
    rows: list[StrategyComparison] = []
    for seen, others in ((first, second), (second, first)):
        rows += compare_strategies(others, replace(on, fitted=fit_block_terms(seen, on)))
    return rows


def fit_block_terms(shapes: Sequence[StrategyTimes], on: Chip) -> BlockTerms:
    """The constants with the least squares of errors, by their logarithms: they stay positive."""
    from scipy.optimize import least_squares

    names = [x.name for x in fields(BlockTerms)]

    def constants(x: Sequence[float]) -> BlockTerms:
        return BlockTerms(**dict(zip(names, map(exp, x), strict=True)))

    def errors(x: Sequence[float]) -> list[float]:
        rows = compare_strategies(shapes, replace(on, fitted=constants(x)))
        return [error for row in rows for error in row.errors.values()]

    return constants(least_squares(errors, [log(x) for x in astuple(BlockTerms())], diff_step=1e-3, x_scale=0.1).x)
