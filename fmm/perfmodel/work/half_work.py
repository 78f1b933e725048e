"""The work of a plan for a product that is its own adjoint, of which half is computed: of its parts together.

Levels that cut such a product leave halves of smaller ones, on the diagonal, and whole products below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from fmm.kernels.plans.lower import lower_level
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.steps.asked import Asked
from fmm.kernels.plans.steps.level_steps import Product, ProductBatch
from fmm.kernels.plans.steps.sums import Mirror, Sum
from fmm.kernels.registry import depends_on_rows
from fmm.perfmodel.work.product_work import OF_PRODUCTS, OF_TRAFFIC, product_work, rows_of_products
from fmm.perfmodel.work.work import Work
from fmm.problem import Problem, Shape


@depends_on_rows
@lru_cache(maxsize=4096)
def half_work(plan: Plan, problem: Problem) -> Work:
    """The parts' work together; shares are weighted by what they are shares of."""
    parts = half_parts(plan, problem)
    products = [
        (float(count), float(together), product_work(inner, Problem(*size, problem.dtype)))
        for (inner, size, together), count in parts.products.items()
    ]
    leaves = [(m, k, n, c * times, max(b, t)) for c, t, w in products for m, k, n, times, b in w.leaves]
    halves = [
        (float(m), float(k), float(c), float(t), by, loose) for ((m, k, _), t, by, loose), c in parts.halves.items()
    ]
    traffic = parts.traffic + sum(c * w.traffic for c, _, w in products)
    passes = parts.passes + sum(c * w.passes for c, _, w in products)
    rows = rows_of_products(VENDOR, problem, 1.0)
    return Work(
        tuple(leaves),
        traffic,
        passes,
        alone=any(w.alone for *_, w in products),
        tiles=next((w.tiles for *_, w in products if w.tiles), None),
        halves=tuple(halves),
        halves_unaligned=rows["unaligned"],
        halves_odd=rows["odd"],
        **_weighted(OF_TRAFFIC, [(c * w.traffic, w) for c, _, w in products], traffic),
        **_weighted(OF_PRODUCTS, [(c * _multiply_adds(w), w) for c, _, w in products], 0.0),
    )


def _multiply_adds(work: Work) -> float:
    return sum(m * k * n * times for m, k, n, times, _ in work.leaves)


def _weighted(names: Sequence[str], parts: Sequence[tuple[float, Work]], least: float) -> dict[str, float]:
    """These fields of the parts as shares of the whole: the sum of their weights, or `least` if that is more."""
    whole = max(sum(weight for weight, _ in parts), least) or 1.0
    return {name: sum(weight * getattr(work, name) for weight, work in parts) / whole for name in names}


# ---- the parts


class HalfParts:
    """What the levels that cut the product leave: whole products by plans, halves by the leaf; and their own sums."""

    def __init__(self) -> None:
        self.traffic = self.passes = 0.0
        self.held = 0.0  # the most elements that temporaries have at a time, those of levels below among them
        self.products: Counter[tuple[Plan, Shape, int]] = Counter()  # the last: how many start together
        self.halves: Counter[tuple[Shape, int, str, bool]] = Counter()  # by which leaf, and is it loose

    def walk(self, plan: Plan, size: Shape, asked: Asked, together: int = 1) -> None:
        steps = lower_level(plan, *size, *asked) if asked.op != "product" else None
        if asked.op == "product":
            self.products[plan, size, 1 if plan.levels else together] += 1
        elif steps is None:
            self.halves[size, together, plan.leaf, asked.fill == "loose"] += 1
        else:
            own = most = self.held + sum(rows * cols for _, rows, cols in steps.temporaries)
            mirrored = not plan.levels and plan.leaf_use.leaf.halves.mirrors  # by the kernel itself
            for step in steps.steps[: 1 if mirrored else None]:
                self.held = own
                self._step(step)
                most = max(most, self.held)
            self.held = most

    def _step(self, step: object) -> None:
        if isinstance(step, Product):
            self.walk(step.plan, step.size, step.asked)
        elif isinstance(step, ProductBatch):
            for product in step.products:
                self.walk(product.plan, product.size, product.asked, len(step.products))
        else:
            self.passes += 1
            self.traffic += _moved_elements(step)


def _moved_elements(step: object) -> float:
    """How many a sum or a mirror reads and writes."""
    if isinstance(step, Sum):
        return float(sum(place.rows * place.cols for place in (*step.reads, *step.writes)))
    assert isinstance(step, Mirror)
    return step.dest.rows**2 * (1.0 if step.in_place else 1.5 if step.fill == "full" else 1.0)


@depends_on_rows
@lru_cache(maxsize=4096)
def half_parts(plan: Plan, problem: Problem) -> HalfParts:
    """Kept: a plan's work and its workspace are asked for one after the other."""
    found = HalfParts()
    found.walk(plan, problem.size, Asked(1, 0, problem.op, problem.fill))
    return found
