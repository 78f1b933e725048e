"""Fit the block model's constants ("terms") to measured times of fmm's own kernel with several tile strategies.

A tile strategy is a set of tile sizes of the kernel. The tuner times the six strategies of Huang, Yu and van de Geijn
and some of fmm's own on a few shapes. If the block model with its built-in terms predicts these times well, the
built-in terms remain in use. Otherwise new constants of the block model are fitted. They are used if they
predict the times of shapes outside the fit better than the built-in terms. Near a timed shape, launches use the
strategy that was fastest on this shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import cached_property
from math import exp, log, sqrt
from statistics import mean
from typing import Any

from fmm.hardware.chip import BlockModelConstants, Chip
from fmm.kernels.cuda.products.kernel_sizes import FUSED_SIZES, H200_STRATEGIES, STRATEGIES, TMA_SIZES, TileSizes
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import GEMM_OPERANDS, OperandBlocks, Shape, chip_target, launch_seconds
from fmm.problem import Problem
from fmm.tuner.devices.device import TimedRun
from fmm.tuner.fit.model import observed_medians
from fmm.tuner.trials.record import ProductSize, Trial

BLOCK_MODEL_STAGE = "blocks"
BLOCK_MODEL_DTYPE = "float32"  # element type of the timed strategies
STRATEGY_SHAPES: tuple[ProductSize, ...] = (
    (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096),
    (8192, 1024, 256), (256, 1024, 8192), (512, 8192, 512), (4096, 128, 4096),
)  # fmt: skip
# if the root mean square error with the built-in constants is above this number, new constants are fitted
MAX_BUILT_IN_ERROR = 0.05
SHOWN_SQUARE_SIDES = (
    512,
    1024,
    2048,
    4096,
    8192,
)  # sides of square products for which a config records the strategy
STRATEGY_PLANS: Mapping[str, Plan] = {
    s.name: Plan(leaf=f"tile.{s.name.lower()}") for s in (*STRATEGIES, *H200_STRATEGIES, *TMA_SIZES)
}
# The fastest strategy on a timed shape replaces the model's choice if it takes less time by more than this fraction.
MIN_STRATEGY_GAIN = 0.02
AUTOMATIC_TILE_PLAN = Plan(leaf="tile")  # a plan without a named strategy: the block model selects the strategy


def strategy_runs(chip: Chip) -> list[TimedRun]:
    """Return one timed run for each tile strategy that the chip can launch."""
    missing = () if chip.has_copy_engine else [s.name for s in TMA_SIZES]
    return [TimedRun(plan) for name, plan in STRATEGY_PLANS.items() if name not in missing]


# ---- comparison of the model with measured times


@dataclass(frozen=True)
class StrategyTimes:
    """The median seconds of each tile strategy on one shape, by the strategy's name."""

    kind: str
    shape: Shape
    seconds: Mapping[str, float]
    operands: OperandBlocks = GEMM_OPERANDS

    @property
    def tera_flops(self) -> float:
        """Flops of the classical algorithm, 2 m k n, divided by 10^12."""
        m, k, n = self.shape
        return 2e-12 * m * k * n


def strategy_times(trials: Sequence[Trial]) -> list[StrategyTimes]:
    """Return the measured times of each shape on which all of Huang's six strategies were timed."""
    names = {plan: name for name, plan in STRATEGY_PLANS.items()}
    times: dict[Problem, dict[str, float]] = {}
    for o in observed_medians(trials, (BLOCK_MODEL_STAGE,)):
        if o.run.plan in names:
            times.setdefault(o.problem, {})[names[o.run.plan]] = o.seconds
    required = {s.name for s in STRATEGIES}
    return [
        StrategyTimes(BLOCK_MODEL_STAGE, p.size, seconds) for p, seconds in times.items() if required <= seconds.keys()
    ]


@dataclass(frozen=True)
class StrategyComparison:
    """The measured and the predicted seconds of all tile strategies on one shape."""

    measured: StrategyTimes
    modelled: Mapping[str, float]

    @cached_property
    def modelled_ranking(self) -> list[str]:
        """Names of the strategies, sorted by the time that the block model predicts, the shortest time first."""
        return sorted(self.modelled, key=lambda name: self.modelled[name])

    @cached_property
    def fastest_strategy(self) -> str:
        """Name of the strategy with the shortest measured time."""
        return min(self.modelled, key=lambda name: self.measured.seconds[name])

    @property
    def model_rank_of_fastest(self) -> int:
        """Rank (from 1) in `modelled_ranking` of the strategy with the shortest measured time."""
        return self.modelled_ranking.index(self.fastest_strategy) + 1

    @property
    def choice_regret(self) -> float:
        """(measured time of the strategy that the model ranks first) / (shortest measured time) - 1."""
        return self.measured.seconds[self.modelled_ranking[0]] / self.measured.seconds[self.fastest_strategy] - 1

    @property
    def strategy_log_errors(self) -> dict[str, float]:
        """log(predicted seconds / measured seconds) by the name of the strategy."""
        return {name: log(t / self.measured.seconds[name]) for name, t in self.modelled.items()}


def compare_strategies(
    shapes: Sequence[StrategyTimes], chip: Chip, strategies: Sequence[TileSizes] = STRATEGIES
) -> list[StrategyComparison]:
    """Return a comparison of measured and predicted times for each shape."""
    return [
        StrategyComparison(x, {s.name: launch_seconds(s, x.operands, x.shape, chip) for s in strategies})
        for x in shapes
    ]


def root_mean_square_error(comparisons: Sequence[StrategyComparison]) -> float:
    """Return the root mean square of log(predicted / measured) over all strategies and shapes."""
    return sqrt(mean(error**2 for comparison in comparisons for error in comparison.strategy_log_errors.values()))


# ---- the fit


@dataclass(frozen=True)
class BlockFit:
    """The fit of the block model on one device: its terms, with the errors of the built-in and the fitted terms.

    Errors are root mean square errors of log(predicted / measured). `fitted` is None if the built-in terms are used.
    `error` is the error of the used terms; for fitted terms it is the error in cross-validation. `held_back` is the
    error of fitted terms in cross-validation, even if the built-in terms are used; None if no terms were fitted.
    `strategies` has the fastest strategy of each timed shape.
    """

    fitted: BlockModelConstants | None
    error: float
    built_in_error: float
    held_back: float | None
    shapes: int
    strategies: tuple[tuple[ProductSize, str], ...] = ()

    @property
    def json_fields(self) -> dict[str, Any]:
        """The fit as a dictionary for a config section; the field `fitted` has the terms that are used."""
        strategies = [{"size": list(size), "strategy": name} for size, name in self.strategies]
        terms = asdict(self.fitted or BlockModelConstants())
        return {**asdict(self), "fitted": terms, "built_in": self.fitted is None, "strategies": strategies}


def fit_block_model(trials: Sequence[Trial], chip: Chip | None) -> BlockFit | None:
    """Return the block model's fit to the trials; None for a CPU, or if too few of STRATEGY_SHAPES were timed."""
    shapes = strategy_times(trials)
    if chip is None or len(shapes) < len(STRATEGY_SHAPES) / 2:
        return None
    found = select_block_terms(shapes, chip)
    return replace(found, strategies=tuple(fastest_strategies(shapes, chip_with_fit(chip, found))))


def select_block_terms(shapes: Sequence[StrategyTimes], chip: Chip) -> BlockFit:
    """Return a fit with the built-in constants, or with fitted constants if they predict better in cross-validation."""
    built_in = root_mean_square_error(compare_strategies(shapes, chip))
    if built_in <= MAX_BUILT_IN_ERROR:
        return BlockFit(None, built_in, built_in, None, len(shapes))
    held_back = root_mean_square_error(cross_validate_terms(shapes, chip))
    fitted = fit_block_terms(shapes, chip) if held_back < built_in else None
    return BlockFit(fitted, min(held_back, built_in), built_in, held_back, len(shapes))


def cross_validate_terms(shapes: Sequence[StrategyTimes], chip: Chip) -> list[StrategyComparison]:
    """Return a comparison for each shape; the terms are fitted to one half of the shapes and tested on the other."""
    first, second = split_alternately(shapes)
    comparisons: list[StrategyComparison] = []
    for seen, unseen in ((first, second), (second, first)):
        comparisons += compare_strategies(unseen, replace(chip, fitted=fit_block_terms(seen, chip)))
    return comparisons


def split_alternately(shapes: Sequence[StrategyTimes]) -> tuple[Sequence[StrategyTimes], Sequence[StrategyTimes]]:
    """Return two halves of the shapes: the shapes at even positions, and the shapes at odd positions."""
    return shapes[::2], shapes[1::2]


def fit_block_terms(shapes: Sequence[StrategyTimes], chip: Chip) -> BlockModelConstants:
    """Return the constants of the block model that minimize the sum of the squared errors log(predicted / measured).

    The fit varies the logarithms of the block model's constants ("terms"), so that the constants stay positive.
    """
    from scipy.optimize import least_squares

    names = [x.name for x in fields(BlockModelConstants)]

    def constants_from_logs(x: Sequence[float]) -> BlockModelConstants:
        return BlockModelConstants(**dict(zip(names, map(exp, x), strict=True)))

    def prediction_log_errors(x: Sequence[float]) -> list[float]:
        comparisons = compare_strategies(shapes, replace(chip, fitted=constants_from_logs(x)))
        return [error for comparison in comparisons for error in comparison.strategy_log_errors.values()]

    return constants_from_logs(
        least_squares(
            prediction_log_errors, [log(x) for x in astuple(BlockModelConstants())], diff_step=1e-3, x_scale=0.1
        ).x
    )


# ---- the strategies of launches


def chip_with_fit(chip: Chip, fit: BlockFit | None) -> Chip:
    """Return the chip with the fitted constants of the block model, and the fastest measured tile strategies."""
    return chip if fit is None else replace(chip, fitted=fit.fitted or chip.fitted, strategies=fit.strategies)


def fastest_strategies(shapes: Sequence[StrategyTimes], chip: Chip) -> Iterator[tuple[ProductSize, str]]:
    """Yield each timed shape with its fastest strategy.

    The strategy that the model chooses replaces the fastest strategy if it takes at most the fraction MIN_STRATEGY_GAIN
    more time.

    Shapes on which the model's strategy was not timed are left out.
    """
    for x in shapes:
        fastest = min(x.seconds, key=lambda name: x.seconds[name])
        modelled = launched_strategy(Problem(*x.shape, BLOCK_MODEL_DTYPE), chip).name
        if modelled in x.seconds:
            near = x.seconds[modelled] <= (1 + MIN_STRATEGY_GAIN) * x.seconds[fastest]
            yield x.shape, modelled if near else fastest


def strategies_by_side(dtype: str, chip: Chip | None, fit: BlockFit | None) -> dict[str, str]:
    """Return the tile strategy of fmm's own kernel by the side of a square; empty for types without this kernel."""
    if chip is None or dtype not in FUSED_SIZES:
        return {}
    own = chip_with_fit(chip, fit)
    return {str(side): launched_strategy(Problem(side, side, side, dtype), own).name for side in SHOWN_SQUARE_SIDES}


def launched_strategy(problem: Problem, chip: Chip) -> TileSizes:
    """Return the tile strategy that a launch of fmm's own kernel uses for this problem."""
    (product,) = record_launches(AUTOMATIC_TILE_PLAN, problem, chip_target(chip)).launches
    strategy: TileSizes = product.kernel.description.strategy
    return strategy
