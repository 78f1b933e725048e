"""The block strategies of this device: Huang, Yu and van de Geijn's six measured on a few shapes, and the block model's
terms fitted to that, unless the built-in ones predict it well enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fmm.hardware.chip import BlockTerms, Chip
from fmm.kernels.cuda.products.kernel_sizes import FUSED_SIZES, STRATEGIES, TUNED, TileSizes
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import chip_target
from fmm.problem import Problem
from fmm.tuner.devices.device import Run
from fmm.tuner.fit.blocks import Measured, compared_rows, fitted_constants, held_back_rows, root_mean_square
from fmm.tuner.fit.model import stage_medians
from fmm.tuner.trials.record import Size, Trial

STAGE = "blocks"
DTYPE = "float32"  # of the block model
SIZES: tuple[Size, ...] = (
    (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096),
    (8192, 1024, 256), (256, 1024, 8192), (512, 8192, 512), (4096, 128, 4096),
)  # fmt: skip
CLOSE = 0.05  # root mean square of the errors with which the built-in terms are kept
SIDES = (512, 1024, 2048, 4096, 8192)  # of the squares for which the chosen strategy is shown
PLANS: Mapping[str, Plan] = {s.name: Plan(leaf=f"tile.{s.name.lower()}") for s in (*STRATEGIES, *TUNED)}
OPEN = Plan(leaf="tile")  # leaves the strategy open


@dataclass(frozen=True)
class Blocks:
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
    return [Run(plan) for plan in PLANS.values()]


def measured_strategies(trials: Sequence[Trial]) -> list[Measured]:
    """The shapes on which all of Huang's six have a time."""
    names = {plan: name for name, plan in PLANS.items()}
    found: dict[Problem, dict[str, float]] = {}
    for o in stage_medians(trials, (STAGE,)):
        if o.run.plan in names:
            found.setdefault(o.problem, {})[names[o.run.plan]] = o.seconds
    whole = {s.name for s in STRATEGIES}
    return [Measured(STAGE, problem.size, times) for problem, times in found.items() if whole <= times.keys()]


def fitted_blocks(trials: Sequence[Trial], chip: Chip | None) -> Blocks | None:
    """What the measurements say of the model; None if there are too few."""
    shapes = measured_strategies(trials)
    return None if chip is None or len(shapes) < len(SIZES) / 2 else judged_blocks(shapes, chip)


def judged_blocks(shapes: Sequence[Measured], chip: Chip) -> Blocks:
    """The built-in terms, unless they are far off and those of a fit predict better what the fit did not see: each half
    of the shapes by the terms of the other one."""
    built_in = root_mean_square(compared_rows(shapes, chip))
    if built_in <= CLOSE:
        return Blocks(None, built_in, built_in, None, len(shapes))
    held_back = root_mean_square(held_back_rows(shapes, chip))
    own = fitted_constants(shapes, chip) if held_back < built_in else None
    return Blocks(own, min(held_back, built_in), built_in, held_back, len(shapes))


# ---- what is launched


def chosen_strategies(dtype: str, chip: Chip | None, found: Blocks | None) -> dict[str, str]:
    """The strategy with which our own kernel is launched for squares, by their side; empty where there is none."""
    if chip is None or dtype not in FUSED_SIZES:
        return {}
    own = chip if found is None or found.fitted is None else replace(chip, fitted=found.fitted)
    return {str(side): launched_strategy(Problem(side, side, side, dtype), own).name for side in SIDES}


def launched_strategy(problem: Problem, chip: Chip) -> TileSizes:
    """That of the one launch which a plan for this chip is recorded as: nobody else decides what runs."""
    (product,) = record_launches(OPEN, problem, chip_target(chip)).launches
    strategy: TileSizes = product.kernel.spec.strategy
    return strategy
