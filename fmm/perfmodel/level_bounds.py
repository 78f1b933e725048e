"""Bounds on the number of recursion levels, from measured crossovers: tau1, tau2 and tau3 of Li, Ranka and Sahni.

A tuning measures from which side on plans with one, two and three levels win. Up to tau1 plans without levels are
candidates, up to tau2 plans with at most one level, up to tau3 with at most two. Within the bound the model chooses, so
that a model that is too optimistic about deep plans cannot lose time. A rectangle is compared by its effective side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fmm.kernels.plans.plan import Plan
from fmm.problem import Shape

NO_LEVEL_BOUND = 99  # number of levels that no plan exceeds
NEVER_WINS_SIDE = float(1 << 20)  # the crossover of a number of levels that wins at no size
# Additions of blocks of A, B and C in one level of Winograd's variant of Strassen's algorithm.
ADDITIONS_A, ADDITIONS_B, ADDITIONS_C = 4, 4, 7


def effective_side(shape: Shape) -> float:
    """Return the side of the square product for which one level gains the same share of the time as for this shape.

    By Equation 2 of D'Alberto and Nicolau, the ratio of a level's additions to its saved multiplications is
    proportional to 4/n + 4/m + 7/k. An empty product has the effective side 0.
    """
    m, k, n = shape
    if not min(shape):
        return 0.0
    additions = ADDITIONS_A / n + ADDITIONS_B / m + ADDITIONS_C / k
    return (ADDITIONS_A + ADDITIONS_B + ADDITIONS_C) / additions


@lru_cache(maxsize=1 << 14)
def count_levels(plan: Plan) -> int:
    """Return the number of levels of recursion of a plan; levels such as `3m` or scaling are not counted."""
    return sum(level.depth for level in plan.levels if level.splits)


@lru_cache(maxsize=1 << 14)
def baseline_text(plan: Plan) -> str:
    """Return the plan without its levels of recursion, as text: `vendor`, `f16x3`, `3m > vendor`."""
    return str(Plan(tuple(level for level in plan.levels if not level.splits), plan.leaf))


@dataclass(frozen=True)
class LevelBounds:
    """The crossovers of plans above one baseline, as effective sides; None: not measured, no bound."""

    baseline: str  # baseline_of the plans
    tau1: float | None = None
    tau2: float | None = None
    tau3: float | None = None

    @property
    def crossover_sides(self) -> tuple[float | None, float | None, float | None]:
        """tau1, tau2 and tau3."""
        return self.tau1, self.tau2, self.tau3

    def max_levels(self, side: float) -> int:
        """Return the largest number of levels for a product with this effective side."""
        return next(
            (levels for levels, tau in enumerate(self.crossover_sides) if tau is not None and side <= tau),
            NO_LEVEL_BOUND,
        )

    def bound_text(self, side: float) -> str:
        """Return the bound for a product with this effective side in words, with the crossovers that decide."""
        levels, named = self.max_levels(side), f"effective side {side:,.0f}"
        if levels == NO_LEVEL_BOUND:
            highest = next((i for i in (2, 1, 0) if self.crossover_sides[i] is not None), None)
            return "" if highest is None else f"{named} is above tau{highest + 1} {self.crossover_sides[highest]:,.0f}"
        below = f"tau{levels + 1} {self.crossover_sides[levels]:,.0f}"
        if self.crossover_sides[levels] == NEVER_WINS_SIDE:
            return f"at most {levels} level{'s' * (levels != 1)}: more never won in the tuning"
        lower = self.crossover_sides[levels - 1] if levels else None
        if lower is None:
            return f"at most {levels} levels: {named} is up to {below}"
        return f"at most {levels} level{'s' * (levels != 1)}: {named} is between tau{levels} {lower:,.0f} and {below}"
