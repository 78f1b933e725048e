"""The block model on one device: fit its terms to measured times of the tile strategies of fmm's own kernel.

Huang, Yu and van de Geijn's six strategies are timed on a few shapes. The built-in terms are taken if they predict
these times well; otherwise terms are fitted, and taken if they predict better on shapes that the fit did not see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import cached_property
from math import exp, log, sqrt
from statistics import mean
from typing import Any

from fmm.hardware.chip import BlockModelConstants, Chip
from fmm.kernels.cuda.products.kernel_sizes import FUSED_SIZES, H200_STRATEGIES, STRATEGIES, TileSizes
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import GEMM_OPERANDS, OperandBlocks, Shape, chip_target, launch_seconds
from fmm.problem import Problem
from fmm.tuner.devices.device import Run
from fmm.tuner.fit.model import observed_medians
from fmm.tuner.trials.record import Size, Trial

BLOCKS_STAGE = "blocks"
BLOCKS_DTYPE = "float32"  # the element type of the block model
STRATEGY_SHAPES: tuple[Size, ...] = (
    (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096),
    (8192, 1024, 256), (256, 1024, 8192), (512, 8192, 512), (4096, 128, 4096),
)  # fmt: skip
MAX_BUILT_IN_ERROR = 0.05  # root mean square error up to which the built-in terms are taken without a fit
SHOWN_SIDES = (512, 1024, 2048, 4096, 8192)  # sides of the squares for which a tuning shows the launched strategy
STRATEGY_PLANS: Mapping[str, Plan] = {
    s.name: Plan(leaf=f"tile.{s.name.lower()}") for s in (*STRATEGIES, *H200_STRATEGIES)
}
AUTOMATIC_TILE_PLAN = Plan(leaf="tile")  # the block model selects the strategy


def strategy_runs() -> list[Run]:
    """Return the runs that are timed on each shape beside the vendor's product."""
    return [Run(plan) for plan in STRATEGY_PLANS.values()]


# ---- comparison of the model with measured times


@dataclass(frozen=True)
class StrategyTimes:
    """Median seconds of each strategy on one shape, by the strategy's name."""

    kind: str
    shape: Shape
    seconds: Mapping[str, float]
    operands: OperandBlocks = GEMM_OPERANDS

    @property
    def tera_flops(self) -> float:
        """Classical flops, in 10^12."""
        m, k, n = self.shape
        return 2e-12 * m * k * n


def strategy_times(trials: Sequence[Trial]) -> list[StrategyTimes]:
    """Return the measured times of each shape on which all of Huang's six strategies were timed."""
    names = {plan: name for name, plan in STRATEGY_PLANS.items()}
    times: dict[Problem, dict[str, float]] = {}
    for o in observed_medians(trials, (BLOCKS_STAGE,)):
        if o.run.plan in names:
            times.setdefault(o.problem, {})[names[o.run.plan]] = o.seconds
    required = {s.name for s in STRATEGIES}
    return [StrategyTimes(BLOCKS_STAGE, p.size, seconds) for p, seconds in times.items() if required <= seconds.keys()]


@dataclass(frozen=True)
class StrategyComparison:
    """Measured and modelled seconds of the strategies on one shape."""

    measured: StrategyTimes
    modelled: Mapping[str, float]

    @cached_property
    def ranking(self) -> list[str]:
        """The strategies by modelled time, the fastest first."""
        return sorted(self.modelled, key=lambda name: self.modelled[name])

    @cached_property
    def best(self) -> str:
        """The strategy with the shortest measured time."""
        return min(self.modelled, key=lambda name: self.measured.seconds[name])

    @property
    def place(self) -> int:
        """The rank that the model gives to the measured best, from 1."""
        return self.ranking.index(self.best) + 1

    @property
    def regret(self) -> float:
        """The measured time of the model's choice over the best, minus 1."""
        return self.measured.seconds[self.ranking[0]] / self.measured.seconds[self.best] - 1

    @property
    def errors(self) -> dict[str, float]:
        """log(modelled / measured) of each strategy."""
        return {name: log(t / self.measured.seconds[name]) for name, t in self.modelled.items()}


def compare_strategies(
    shapes: Sequence[StrategyTimes], chip: Chip, strategies: Sequence[TileSizes] = STRATEGIES
) -> list[StrategyComparison]:
    """Return the comparison of measured and modelled times on each shape."""
    return [
        StrategyComparison(x, {s.name: launch_seconds(s, x.operands, x.shape, chip) for s in strategies})
        for x in shapes
    ]


def root_mean_square(comparisons: Sequence[StrategyComparison]) -> float:
    """Return the root mean square of the errors of all strategies on all shapes."""
    return sqrt(mean(error**2 for comparison in comparisons for error in comparison.errors.values()))


# ---- the fit


@dataclass(frozen=True)
class BlockFit:
    """The block model's terms on one device, and their root mean square errors.

    `fitted` is None where the built-in terms are taken. `error` is the error of the terms that are taken, of fitted
    ones by cross-validation. `held_back` is the cross-validation error of fitted terms, taken or not; None without a
    fit.
    """

    fitted: BlockModelConstants | None
    error: float
    built_in_error: float
    held_back: float | None
    shapes: int

    @property
    def fields(self) -> dict[str, Any]:
        """The fit as it is written to a section of a config."""
        return {**asdict(self), "fitted": None if self.fitted is None else asdict(self.fitted)}


def fit_block_model(trials: Sequence[Trial], chip: Chip | None) -> BlockFit | None:
    """Return the block model's fit to the trials; None without a chip, or with fewer than half of the shapes."""
    shapes = strategy_times(trials)
    return None if chip is None or len(shapes) < len(STRATEGY_SHAPES) / 2 else select_block_terms(shapes, chip)


def select_block_terms(shapes: Sequence[StrategyTimes], chip: Chip) -> BlockFit:
    """Return the built-in terms, or fitted terms if these predict better in cross-validation."""
    built_in = root_mean_square(compare_strategies(shapes, chip))
    if built_in <= MAX_BUILT_IN_ERROR:
        return BlockFit(None, built_in, built_in, None, len(shapes))
    held_back = root_mean_square(cross_validate(shapes, chip))
    fitted = fit_block_terms(shapes, chip) if held_back < built_in else None
    return BlockFit(fitted, min(held_back, built_in), built_in, held_back, len(shapes))


def cross_validate(shapes: Sequence[StrategyTimes], chip: Chip) -> list[StrategyComparison]:
    """Return the comparison on each shape, modelled with terms that were fitted to the other half of the shapes."""
    first, second = split_alternately(shapes)
    comparisons: list[StrategyComparison] = []
    for seen, unseen in ((first, second), (second, first)):
        comparisons += compare_strategies(unseen, replace(chip, fitted=fit_block_terms(seen, chip)))
    return comparisons


def split_alternately(shapes: Sequence[StrategyTimes]) -> tuple[Sequence[StrategyTimes], Sequence[StrategyTimes]]:
    """Return every second shape from the first on, and from the second on."""
    return shapes[::2], shapes[1::2]


def fit_block_terms(shapes: Sequence[StrategyTimes], chip: Chip) -> BlockModelConstants:
    """Return the terms with the least squares of errors; their logarithms are varied, so that they stay positive."""
    from scipy.optimize import least_squares

    names = [x.name for x in fields(BlockModelConstants)]

    def terms(x: Sequence[float]) -> BlockModelConstants:
        return BlockModelConstants(**dict(zip(names, map(exp, x), strict=True)))

    def errors(x: Sequence[float]) -> list[float]:
        comparisons = compare_strategies(shapes, replace(chip, fitted=terms(x)))
        return [error for comparison in comparisons for error in comparison.errors.values()]

    return terms(least_squares(errors, [log(x) for x in astuple(BlockModelConstants())], diff_step=1e-3, x_scale=0.1).x)


# ---- the strategies of launches


def chosen_strategies(dtype: str, chip: Chip | None, fit: BlockFit | None) -> dict[str, str]:
    """Return the strategy with which fmm's own kernel is launched for squares, by side; empty without such a kernel."""
    if chip is None or dtype not in FUSED_SIZES:
        return {}
    own = chip if fit is None or fit.fitted is None else replace(chip, fitted=fit.fitted)
    return {str(side): launched_strategy(Problem(side, side, side, dtype), own).name for side in SHOWN_SIDES}


def launched_strategy(problem: Problem, chip: Chip) -> TileSizes:
    """Return the strategy of the recorded launch of fmm's own kernel for this problem."""
    (product,) = record_launches(AUTOMATIC_TILE_PLAN, problem, chip_target(chip)).launches
    strategy: TileSizes = product.kernel.spec.strategy
    return strategy
