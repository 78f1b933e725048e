"""What of a level's steps says how much memory they need: a few numbers, where the steps may be hundreds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps.asked import Asked
from fmm.kernels.plans.steps.level_steps import LevelSteps, ProductBatch
from fmm.problem import Shape


@dataclass(frozen=True)
class Needed:
    """The temporaries of a level (name, rows, columns), and the products below it, each kind once."""

    temporaries: tuple[tuple[str, int, int], ...]
    products: tuple[tuple[Plan, Shape, Asked], ...]
    batches: tuple[tuple[Plan, Shape, int], ...] = ()  # the last: how many products
    lanes: int = 1

    def by(self, plan: Plan) -> Needed:
        """The same where this plan, which has levels of its own, does all products."""
        products = dict.fromkeys((plan, size, asked) for _, size, asked in self.products)
        batches = tuple((plan, size, count) for _, size, count in self.batches)
        return replace(self, products=tuple(products), batches=batches)


def needed_for(steps: LevelSteps) -> Needed:
    products = dict.fromkeys((p.plan, p.size, p.asked) for p in steps.products)
    batches = [step.products for step in steps.steps if isinstance(step, ProductBatch)]
    kinds = dict.fromkeys((x[0].plan, x[0].size, len(x)) for x in batches)
    return Needed(steps.temporaries, tuple(products), tuple(kinds), steps.lanes)
