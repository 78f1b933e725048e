"""Lowering: compute the steps of a plan's first level from the plan and the sizes of a product.

The class LevelWithSteps defines the methods of a level that lowering, the model's quick counts and explain call.
`lower_level` is the main function: it returns the steps of a level together with the steps for alpha, beta and Gram
products.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from fmm.kernels.algorithms.additions import Coefficient, program_with_alpha_beta
from fmm.kernels.plans.gemm_params import PLAIN, GemmParams
from fmm.kernels.plans.level import Level
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.kernels.plans.steps import LevelMemoryNeeds, LevelSteps, Product, temporary_sizes
from fmm.kernels.plans.sums import COPY_PROGRAM, Mirror, Place, Sum, whole_matrix
from fmm.kernels.registry import clear_on_registration
from fmm.problem import Fill, Operation, Shape

Sides = tuple[float, float, float]  # sides m, k, n; average sides if a level cuts into unequal blocks


class LevelWorkEstimate(NamedTuple):
    """A quick estimate of the number and size of a level's products and sums, as if all blocks were equal.

    The model uses estimates to rank plans within microseconds. An element is a number of the type of the level's
    operands.
    """

    products: float  # number of the level's products
    sides: Sides  # sides m, k and n of each product
    passes: int = 0  # number of passes of sums over memory
    moved: Sides = (0.0, 0.0, 0.0)  # numbers of elements of A's, of B's and of C's blocks that sums read and write
    held: Sides = (0.0, 0.0, 0.0)  # numbers of elements in temporaries as large as blocks of A, of B and of C
    in_place: float = 1.0  # fraction of products that read a block of A or B in place, or write a block of C
    sequential: bool = False  # True if the sums are small passes between the products


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LevelWithSteps(Level):
    """A level with methods that return the steps of a product and the counts of these steps."""

    @abstractmethod
    def lower_product(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        """Return the steps of C = alpha A B + beta C.

        The first level of `plan` is this level, and `plan.inner_plan` computes the level's products.
        """

    def lower_gram_triangle(self, plan: Plan, n: int, k: int, params: GemmParams) -> LevelSteps:
        """Return the steps that compute the lower triangle of an n x n Gram product.

        If params.fill is "lower", the upper triangle of C does not change; if it is "loose", the upper triangle may get
        any numbers. Only levels with `for_gram` compute Gram products; other levels raise PlanError.
        """
        raise PlanError(f"{self} does not cut Gram products")

    @property
    def has_same_steps_for_nested_plans(self) -> bool:
        """Return True if the steps for all inner plans with levels are equal, except for the plan of the products."""
        return False

    def memory_needs(self, inner: Plan, sides: Shape) -> LevelMemoryNeeds | None:
        """Return the level's temporaries and products for sides m, k, n; None if they must be found from the steps.

        The plan `inner` computes the level's products.
        """
        return None

    def estimate_level_work(self, inner: Plan, sides: Sides) -> LevelWorkEstimate | None:
        """Estimate the level's products and sums for sides m, k, n; return None if the model must count the steps.

        The plan `inner` computes the level's products. Raise PlanError for sides that the level cannot cut.
        """
        return None

    def describe_steps(self, steps: LevelSteps) -> str:
        """Return a description of these steps of the level, in a few words for explain's table."""
        sums = sum(isinstance(step, Sum) for step in steps.steps)
        return f"{sum(1 for _ in steps.products)} products, {sums} passes of sums"

    def describe_launches(self) -> str:
        """Return a line of text for explain on the launches and streams of a fused level; empty for other levels."""
        return ""


class LevelInLeaf(LevelWithSteps):
    """A level that one leaf runs together with everything below the level.

    The model counts the steps of this level and explain prints these steps, but a walk never executes the steps.
    """

    @abstractmethod
    def lower_product_in_leaf(
        self, plan: Plan, size: Shape, params: GemmParams, itemsize: int, dtype: str = ""
    ) -> LevelSteps:
        """Return the steps of a product with elements of `itemsize` bytes. The leaf of `plan` runs this level.

        `dtype` can be omitted if `itemsize` determines the steps.
        """

    @abstractmethod
    def multiplication_cost(self, steps: LevelSteps) -> float:
        """Return the cost of one multiplication in these steps, in multiplications of the operands' type."""


def require_level_with_steps(level: Level) -> LevelWithSteps:
    """Return the level itself; raise PlanError for a user's level without methods for steps."""
    if not isinstance(level, LevelWithSteps):
        raise PlanError(f"{level} has no methods that return its steps")
    return level


def level_run_by_leaf(plan: Plan) -> LevelInLeaf | None:
    """Return the level that the plan's leaf runs; None if the leaf only multiplies."""
    level = plan.leaf_use.leaf.level
    return level if isinstance(level, LevelInLeaf) else None


# If a leaf cannot apply alpha and beta, A B is computed some rows at a time, so that the scratch memory for A B stays
# small. A band (consecutive rows of A B) has about BAND_ELEMENTS numbers, and at least MIN_BAND_ROWS rows, since BLAS
# packs B again for each band. On one core, bands of 64 to 256 rows increase the time of a 4096 x 2048 x 4096 product by
# 27 to 39 %, bands of 512 rows by 14 %, and bands of 1024 rows by 2 %.
BAND_ELEMENTS, MIN_BAND_ROWS = 1 << 20, 1024


@clear_on_registration
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
    """Return the steps of a plan's first level for C = alpha A B + beta C; None if one call of the leaf computes C."""
    if op != "product":
        return _lower_gram_product(plan, n, k, GemmParams(alpha, beta, op, fill))
    plain = (alpha, beta) == (1, 0)
    if not plan.levels:
        return None if plain else _gemm_steps_in_row_bands(plan, m, k, n, alpha, beta)
    first = require_level_with_steps(plan.levels[0])
    if plain or first.takes_alpha_beta:
        return first.lower_product(plan, m, k, n, alpha, beta)
    return gemm_steps_by_temporary(plan, m, k, n, alpha, beta)


def gemm_steps_by_temporary(plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
    """Return the steps that compute A B in a temporary, and then C = alpha A B + beta C in another pass."""
    d, c = whole_matrix("D", m, n), whole_matrix("C", m, n)
    product = Product(whole_matrix("A", m, k), whole_matrix("B", k, n), d, plan)
    update = Sum("update", program_with_alpha_beta(COPY_PROGRAM, alpha, beta), (d, c) if beta else (d,), (c,))
    return LevelSteps((("D", m, n),), (product, update))


def lower_level_run_by_leaf(
    plan: Plan, m: int, k: int, n: int, itemsize: int, params: GemmParams = PLAIN, dtype: str = ""
) -> LevelSteps | None:
    """Return the steps of the level that the plan's leaf runs, for counts and for explain.

    Return None if the plan has levels above the leaf, or if the leaf runs no level. Also return None for a Gram
    product: a triangle that the leaf computes counts as one leaf product.
    """
    level = level_run_by_leaf(plan)
    if plan.levels or level is None or params.op != "product":
        return None
    return level.lower_product_in_leaf(plan, (m, k, n), params, itemsize, dtype)


def _gemm_steps_in_row_bands(plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
    """Return the steps of C = alpha A B + beta C, some rows at a time, for a leaf that cannot apply alpha and beta.

    All blocks of rows use the same scratch memory, which is smaller than C.
    """
    height = max(min(m, max(BAND_ELEMENTS // max(n, 1), MIN_BAND_ROWS)), 1)
    program = program_with_alpha_beta(COPY_PROGRAM, alpha, beta)
    steps: list[Sum | Product] = []
    for row in range(0, m, height):
        rows = min(height, m - row)
        scratch, band = whole_matrix("P", rows, n), Place("C", row, 0, rows, n)
        steps.append(Product(Place("A", row, 0, rows, k), whole_matrix("B", k, n), scratch, plan))
        steps.append(Sum("update", program, (scratch, band) if beta else (scratch,), (band,)))
    return LevelSteps(temporary_sizes(steps), tuple(steps))


def _lower_gram_product(plan: Plan, n: int, k: int, params: GemmParams) -> LevelSteps | None:
    """Return the steps of a Gram product: levels compute the lower triangle, then a mirror step completes C."""
    if plan.levels and not plan.is_gram_plan:
        raise PlanError(f"{plan} computes whole products; a plan of a Gram product begins with gram")
    a, b, c = whole_matrix("A", n, k), whole_matrix("B", k, n), whole_matrix("C", n, n)
    if params.fill == "full":
        return LevelSteps((), (Product(a, b, c, plan, params._replace(fill="loose")), Mirror(c, c)))
    if not plan.levels:
        return None
    first, plain = require_level_with_steps(plan.levels[0]), (params.alpha, params.beta) == (1, 0)
    if (plain or first.takes_alpha_beta) and (params.fill == "loose" or first.keeps_upper_triangle):
        return first.lower_gram_triangle(plan, n, k, params)
    d = whole_matrix("D", n, n)
    product = Product(a, b, d, plan, GemmParams(op=params.op, fill="loose"))
    return LevelSteps((("D", n, n),), (product, Mirror(d, c, params.alpha, params.beta, "lower")))
