"""Lowering: the steps of a plan's first level, from the plan and the sizes alone."""

from __future__ import annotations

from functools import lru_cache

from fmm.kernels.algorithms.additions import Coefficient, updating_program
from fmm.kernels.plans.level_steps import COPY, LevelSteps, Place, Product, Sum, temporary_sizes, whole_matrix
from fmm.kernels.plans.plan import Plan
from fmm.kernels.registry import depends_on_rows

PANEL = 1 << 20  # elements: an updating leaf computes this much of A B at a time, so that its scratch stays small


@depends_on_rows
@lru_cache(maxsize=4096)
def lower_level(plan: Plan, m: int, k: int, n: int, alpha: Coefficient = 1, beta: Coefficient = 0) -> LevelSteps | None:
    """The steps of a plan's first level for C = alpha A B + beta C; None where the leaf itself does just that."""
    if not plan.levels:
        return None if (alpha, beta) == (1, 0) else _updated_leaf(plan, m, k, n, alpha, beta)
    first = plan.levels[0]
    if (alpha, beta) != (1, 0) and not first.takes_alpha_beta:
        return _updated(plan, m, k, n, alpha, beta)
    return first.lower(plan, m, k, n, alpha, beta)


def _updated_leaf(plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
    """C = alpha A B + beta C in bands of rows: the leaf has no beta, and a scratch as large as C would cost more."""
    height = max(min(m, PANEL // max(n, 1)), 1)
    program = updating_program(COPY, alpha, beta)
    steps: list[Sum | Product] = []
    for row in range(0, m, height):
        rows = min(height, m - row)
        scratch, band = whole_matrix("P", rows, n), Place("C", row, 0, rows, n)
        steps.append(Product(Place("A", row, 0, rows, k), whole_matrix("B", k, n), scratch, plan))
        steps.append(Sum("update", program, (scratch, band) if beta else (scratch,), (band,)))
    return LevelSteps(temporary_sizes(steps), tuple(steps))


def _updated(plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
    """C = alpha A B + beta C around a level that uses C as scratch: the product goes to a temporary first."""
    product, c = whole_matrix("D", m, n), whole_matrix("C", m, n)
    update = Sum("update", updating_program(COPY, alpha, beta), (product, c) if beta else (product,), (c,))
    return LevelSteps(
        (("D", m, n),), (Product(whole_matrix("A", m, k), whole_matrix("B", k, n), product, plan), update)
    )
