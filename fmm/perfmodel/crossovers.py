"""Limit the number of recursion levels by measured crossovers: tau1, tau2 and tau3 of Li, Ranka and Sahni.

A tuning measures the sides from which plans with one, two and three levels win. Up to the side tau1 candidates have no
level, up to tau2 at most one level, and up to tau3 at most two levels. The crossovers prevent losses if the model is
too optimistic about plans with many levels. A rectangular product is compared with tau1 to tau3 by its effective side
(`effective_side`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf

from fmm.kernels.plans.plan import Plan
from fmm.problem import Shape

NO_LEVEL_BOUND = 99  # a number of levels that no plan exceeds
NEVER_WINS_SIDE = float(1 << 20)  # crossover that is recorded for a number of levels that never wins
# The number of additions of blocks of A, B and C in one level of Winograd's variant of Strassen's algorithm.
ADDITIONS_A, ADDITIONS_B, ADDITIONS_C = 4, 4, 7


def effective_side(shape: Shape) -> float:
    """Return the side of the square for which one level saves the same fraction of time as for this shape.

    By Equation 2 of D'Alberto and Nicolau, the ratio of a level's additions to its saved multiplications is
    proportional to 4/n + 4/m + 7/k. If a side is 0, the result is 0.
    """
    m, k, n = shape
    if not min(shape):
        return 0.0
    additions = ADDITIONS_A / n + ADDITIONS_B / m + ADDITIONS_C / k
    return (ADDITIONS_A + ADDITIONS_B + ADDITIONS_C) / additions


@lru_cache(maxsize=1 << 14)
def count_levels(plan: Plan) -> int:
    """Return the number of a plan's recursion levels; levels such as `3m` or scaling are not counted."""
    return sum(level.depth for level in plan.levels if level.splits)


@lru_cache(maxsize=1 << 14)
def baseline_text(plan: Plan) -> str:
    """Return the text of a plan without its recursion levels, such as `vendor`, `f16x3` or `3m > vendor`."""
    return str(Plan(tuple(level for level in plan.levels if not level.splits), plan.leaf))


@dataclass(frozen=True)
class MeasuredCrossovers:
    """The crossovers tau1 to tau3, as effective sides, of all plans with one baseline; None sets no limit."""

    baseline: str  # text of the baseline, as returned by `baseline_text`
    tau1: float | None = None
    tau2: float | None = None
    tau3: float | None = None

    @property
    def crossover_sides(self) -> tuple[float | None, float | None, float | None]:
        """The crossovers tau1, tau2 and tau3 as effective sides in rows."""
        return self.tau1, self.tau2, self.tau3

    def max_levels(self, side: float) -> int:
        """Return the largest number of levels that tau1 to tau3 allow for a product with this effective side."""
        return next(
            (levels for levels, tau in enumerate(self.crossover_sides) if tau is not None and side <= tau),
            NO_LEVEL_BOUND,
        )

    def crossover_position_text(self, side: float) -> str:
        """Return as text which of tau1 to tau3 are next to an effective side; an empty text without crossovers.

        Examples
        --------
        >>> MeasuredCrossovers("vendor", 4000.0, 8300.0, 30300.0).crossover_position_text(9214)
        'effective side 9,214 is between tau2 8,300 and tau3 30,300'
        """
        if side == inf or self.crossover_sides == (None, None, None):
            return ""
        levels, named = self.max_levels(side), f"effective side {side:,.0f}"
        lower = [f"tau{i} {tau:,.0f}" for i, tau in enumerate(self.crossover_sides[:levels], 1) if tau]
        upper = self.crossover_sides[levels] if levels != NO_LEVEL_BOUND else None
        never = upper == NEVER_WINS_SIDE
        more = f"{'; ' * bool(lower)}more than {levels} level{'s' * (levels != 1)} never won" if never else ""
        if not lower:
            return more or f"{named} is up to tau{levels + 1} {upper:,.0f}"
        if upper is None or never:
            return f"{named} is above {lower[-1]}{more}"
        return f"{named} is between {lower[-1]} and tau{levels + 1} {upper:,.0f}"
