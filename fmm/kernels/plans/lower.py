"""Lowering: the steps of a plan's first level, from the plan and the sizes alone."""

from __future__ import annotations

from functools import lru_cache

from fmm.kernels.algorithms.additions import Coefficient, updating_program
from fmm.kernels.plans.level_with_steps import whole_level, with_steps
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.kernels.plans.steps.asked import PLAIN, Asked
from fmm.kernels.plans.steps.level_steps import LevelSteps, Product, temporary_sizes
from fmm.kernels.plans.steps.sums import COPY, Mirror, Place, Sum, whole_matrix
from fmm.kernels.registry import depends_on_rows
from fmm.problem import Fill, Operation

# A leaf that cannot update C computes A B in bands of rows, each of about BAND_ELEMENTS numbers, so that its scratch
# stays small; but of no fewer than LEAST_BAND_ROWS rows, since BLAS packs B anew for each band. (One core, 4096 x 2048
# x 4096 in bands of 64 to 256 rows: 1.27 to 1.39 times the time of all at once, of 512 rows 1.14, of 1024 rows 1.02.)
BAND_ELEMENTS, LEAST_BAND_ROWS = 1 << 20, 1024


@depends_on_rows
@lru_cache(maxsize=4096)
def lower_level(
    plan: Plan,
    m: int,
    k: int,
    n: int,
    alpha: Coefficient = 1,
    beta: Coefficient = 0,
    op: Operation = "product",
    fill: Fill = "full",
) -> LevelSteps | None:
    """The steps of a plan's first level for C = alpha A B + beta C; None where the leaf itself does just that."""
    if op != "product":
        return _lower_half(plan, n, k, Asked(alpha, beta, op, fill))
    if not plan.levels:
        return None if (alpha, beta) == (1, 0) else _updated_leaf(plan, m, k, n, alpha, beta)
    first = with_steps(plan.levels[0])
    if (alpha, beta) != (1, 0) and not first.takes_alpha_beta:
        return _updated(plan, m, k, n, alpha, beta)
    return first.lower(plan, m, k, n, alpha, beta)


def opened_level(
    plan: Plan, m: int, k: int, n: int, itemsize: int, asked: Asked = PLAIN, dtype: str = ""
) -> LevelSteps | None:
    """The steps of a level that a machine does whole, for whoever counts or explains them.

    None for a plan that does not consist of such a level alone, and for one half of a product: that is counted and
    explained as one operation.
    """
    level = whole_level(plan)
    if plan.levels or level is None or asked.op != "product":
        return None
    return level.opened(plan, (m, k, n), asked, itemsize, dtype)


def _updated_leaf(plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
    """C = alpha A B + beta C in bands of rows: the leaf has no beta, and a scratch as large as C would cost more."""
    height = max(min(m, max(BAND_ELEMENTS // max(n, 1), LEAST_BAND_ROWS)), 1)
    program = updating_program(COPY, alpha, beta)
    steps: list[Sum | Product] = []
    for row in range(0, m, height):
        rows = min(height, m - row)
        scratch, band = whole_matrix("P", rows, n), Place("C", row, 0, rows, n)
        steps.append(Product(Place("A", row, 0, rows, k), whole_matrix("B", k, n), scratch, plan))
        steps.append(Sum("update", program, (scratch, band) if beta else (scratch,), (band,)))
    return LevelSteps(temporary_sizes(steps), tuple(steps))


def _updated(plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
    """C = alpha A B + beta C for a level that computes A B only: the product goes to a temporary first."""
    product, c = whole_matrix("D", m, n), whole_matrix("C", m, n)
    update = Sum("update", updating_program(COPY, alpha, beta), (product, c) if beta else (product,), (c,))
    return LevelSteps(
        (("D", m, n),), (Product(whole_matrix("A", m, k), whole_matrix("B", k, n), product, plan), update)
    )


# ---- products that are their own adjoints


def _lower_half(plan: Plan, n: int, k: int, asked: Asked) -> LevelSteps | None:
    """The steps of a product that is its own adjoint: levels compute its lower half, and a mirror does the rest."""
    if plan.levels and not plan.halving:
        raise PlanError(f"{plan} computes whole products; a plan of a product that is its own adjoint begins with gram")
    if asked.fill == "full":
        c = whole_matrix("C", n, n)
        return LevelSteps((), (_half_product(plan, n, k, c, asked._replace(fill="loose")), Mirror(c, c)))
    if not plan.levels:
        return None
    first, plain = with_steps(plan.levels[0]), (asked.alpha, asked.beta) == (1, 0)
    if (plain or first.takes_alpha_beta) and (asked.fill == "loose" or first.keeps_upper_half):
        return first.lower_half(plan, n, k, asked)
    d = whole_matrix("D", n, n)
    product = _half_product(plan, n, k, d, Asked(op=asked.op, fill="loose"))
    update = Mirror(d, whole_matrix("C", n, n), asked.alpha, asked.beta, "lower")
    return LevelSteps((("D", n, n),), (product, update))


def _half_product(plan: Plan, n: int, k: int, dest: Place, asked: Asked) -> Product:
    return Product(whole_matrix("A", n, k), whole_matrix("B", k, n), dest, plan, asked)
