"""The level `gram`: one triangle of C as two smaller Gram products and one product below the diagonal.

The level cuts C only, not the inner dimension. Any plan can compute the product below the diagonal. If the plan of this
product has a level of recursion, `gram` needs fewer multiplications than the best published algorithms for A A^T.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.leaf import leaf_option_text, parse_leaf_option
from fmm.kernels.plans.level import LevelKind, PlanError, register_level
from fmm.kernels.plans.lower import LevelWithSteps
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import LevelSteps, Product, ProductBatch, temporary_sizes
from fmm.kernels.plans.sums import Place, RowMajorCopy, row_major_copy_step, whole_matrix

MAX_GRAM_CUTS = 9  # largest number of halvings of C
# Block sides of at least 512 are multiples of 64, and smaller block sides of at least 128 are multiples of 16, so that
# leaf products read and write whole tiles and aligned rows.
BLOCK_UNITS, MIN_BLOCK_UNITS = (64, 16), 8


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class GramLevel(LevelWithSteps):
    """The level `gram` halves the side of C once; `gram^3` halves three times, with eight blocks on the diagonal.

    Smaller products below the diagonal have fewer levels of recursion, so that leaf products have similar sizes.

    An option of the level can name the leaf that computes the blocks on the diagonal. In `gram^2.tile > strassen >
    vendor`, all blocks on the diagonal are one launch of `tile`. In `gram.tile.outer`, the leaf `tile` reads operands
    that are contiguous along the outer dimensions: a column-major B is copied to a row-major temporary. If A is the
    transpose of B, the leaf reads both operands from the copy of B.
    """

    cuts: int  # number of halvings of C's side
    diagonal_leaf: str  # text of the leaf for blocks on the diagonal; empty for the plan's leaf

    @property
    def needs_b_copy(self) -> bool:
        """Return True if blocks on the diagonal read a row-major copy of B."""
        return bool(self.diagonal_leaf) and parse_leaf_option(self.diagonal_leaf).order == "outer"

    def lower_product(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        raise PlanError(f"{plan}: {self} cuts only products that are their own adjoints (fmm.gram)")

    def lower_gram_triangle(self, plan: Plan, n: int, k: int, params: GemmParams) -> LevelSteps:
        """Return the products below the diagonal, the largest first, and then the blocks on the diagonal.

        Products of equal sizes are a batch.
        """
        parts = 1 << self.cuts
        unit = next((unit for unit in BLOCK_UNITS if n >= MIN_BLOCK_UNITS * unit * parts), 1)
        # rows of a block on the diagonal; only the last block can be smaller
        side = max(-(-n // (parts * unit)) * unit, 1)
        inner = plan
        while inner.is_gram_plan:
            inner = inner.inner_plan
        product_params = params._replace(op="product", fill="full")
        steps: list[Product | ProductBatch] = []
        for cut in range(self.cuts):
            width = side * (parts >> cut + 1)
            corners = [(2 * i + 1) * width for i in range(1 << cut)]
            products = [
                Product(Place("A", at, 0, rows, k), Place("B", 0, at - width, k, width), dest, inner, product_params)
                for at in corners
                if (rows := min(width, n - at)) > 0
                for dest in (Place("C", at, at - width, rows, width),)
            ]
            steps += _batch_equal_products(products)
            inner = inner.plan_with_less_recursion
        diagonal = plan.inner_plan.gram_plan
        copies: list[RowMajorCopy] = []
        if self.diagonal_leaf and not diagonal.levels:
            diagonal = replace(diagonal, leaf=self.named_leaves[0])
            if self.needs_b_copy:
                copies.append(row_major_copy_step(whole_matrix("B", k, n), whole_matrix("T", k, n)))
        blocks: list[Product] = []
        for at in range(0, max(n, 1), side):  # a C without rows also has one block, an empty one
            rows = min(side, n - at)
            left, right = Place("A", at, 0, rows, k), Place("T" if copies else "B", 0, at, k, rows)
            if copies and params.op == "gram":
                left = Place("T", at, 0, rows, k, "transpose")
            blocks.append(Product(left, right, Place("C", at, at, rows, rows), diagonal, params))
        return LevelSteps(temporary_sizes(copies), (*steps, *copies, *_batch_equal_products(blocks)))

    def describe_steps(self, steps: LevelSteps) -> str:
        products = list(steps.products)
        diagonal = sum(p.params.op != "product" for p in products)
        copied = " of a row-major copy" * any(isinstance(step, RowMajorCopy) for step in steps.steps)
        return f"{diagonal} blocks on the diagonal{copied}, {len(products) - diagonal} products below it"


def _batch_equal_products(products: Sequence[Product]) -> list[Product | ProductBatch]:
    """Return the products; all products that are as large as the first product become one batch."""
    equal = [p for p in products if p.size == products[0].size]
    others: list[Product | ProductBatch] = [p for p in products if p.size != products[0].size]
    return [ProductBatch(tuple(equal)) if len(equal) > 1 else equal[0], *others] if equal else others


def gram_level(cuts: int = 1, diagonal_leaf: str = "") -> GramLevel:
    """Return the level `gram^cuts`. `diagonal_leaf` is the text of the leaf for the blocks on the diagonal."""
    if not 1 <= cuts <= MAX_GRAM_CUTS:
        raise PlanError(f"gram^{cuts}: the exponent must be from 1 to {MAX_GRAM_CUTS}")
    types = None
    use = parse_leaf_option(diagonal_leaf) if diagonal_leaf else None
    if use is not None:
        types = use.multiplied_types()
        # With `outer`, the leaf reads A as the transpose of B's copy. Complex types are excluded, because there A is
        # the conjugate transpose of B.
        if use.order == "outer":
            types = tuple(t for t in types if not DTYPES[t].is_complex)
        diagonal_leaf = leaf_option_text(use)
        if ">" in diagonal_leaf:
            raise PlanError(f"gram: the leaf of the blocks on the diagonal cannot have levels, as {diagonal_leaf} has")
    power = "gram" if cuts == 1 else f"gram^{cuts}"
    return GramLevel(
        text=f"{power}.{diagonal_leaf}" if diagonal_leaf else power,
        cuts=cuts,
        diagonal_leaf=diagonal_leaf,
        named_leaves=(str(use),) if use else (),
        types=types,
        products=(2 << cuts) - 1,
        depth=0,
        saves_products=False,
        for_gram=True,
        takes_alpha_beta=True,
    )


_GRAM_PATTERN = re.compile(r"gram(?:\^(\d+))?(?:\.(.+))?")


def _parse_gram_level(text: str) -> GramLevel | None:
    match = _GRAM_PATTERN.fullmatch(text)
    return gram_level(int(match[1] or 1), match[2] or "") if match else None


register_level(LevelKind("gram", _parse_gram_level, lambda: ("gram",)))
