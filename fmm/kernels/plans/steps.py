"""Steps of a level: sums and products over named rectangles of matrices.

Steps are the only description of what a plan runs. A walk executes the steps on arrays or on symbols (to prove the
plan), or records the steps for a GPU. The workspace and the counts of a plan are computed from its steps. `lower_level`
in lower.py returns the steps of a plan's first level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from fmm.kernels.plans.gemm_params import PLAIN, GemmParams
from fmm.kernels.plans.level import PlanError
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.sums import ADDEND, OPERAND_NAMES, Mirror, Place, Sum
from fmm.problem import Shape


@dataclass(frozen=True)
class Product:
    """A step that computes dest = alpha * left * right + beta * dest with the plan `plan`."""

    left: Place
    right: Place
    dest: Place
    plan: Plan
    params: GemmParams = PLAIN
    has_addend: bool = False  # True if beta multiplies the operand ADDEND instead of dest

    @property
    def size(self) -> Shape:
        return self.left.rows, self.left.cols, self.right.cols

    @property
    def reads_dest(self) -> bool:
        """Return True if the product reads dest."""
        return self.params.beta != 0


@dataclass(frozen=True)
class ProductWithSums:
    """A product together with the sums of a step table's kernel.

    The sums in `update` read the product, and the values that blocks had before the step.
    """

    product: Product
    update: Sum

    @property
    def as_separate_steps(self) -> tuple[Sum | Product, ...]:
        """Return the product, then the sums as a separate step; only the product if the sums write nothing."""
        update = self.update.simplified_sum
        return (self.product, update) if update.writes else (self.product,)


@dataclass(frozen=True)
class ProductBatch:
    """Independent products with equal sizes, plans and parameters.

    The left operands are at equal distances in memory, and so are the right operands and the results.
    """

    products: tuple[Product, ...]

    @property
    def operand_places(self) -> tuple[tuple[Place, ...], ...]:
        """Return three tuples: the places of all left operands, of all right operands, and of all results."""
        return tuple(zip(*((p.left, p.right, p.dest) for p in self.products), strict=True))


LevelStep = Sum | Product | ProductWithSums | ProductBatch | Mirror


@dataclass(frozen=True)
class LevelSteps:
    """The steps of one level, and the level's temporaries (name, rows, columns).

    `streams` is the number of products that can run at a time. Each stream has its own temporaries below the level.
    """

    temporaries: tuple[tuple[str, int, int], ...]
    steps: tuple[LevelStep, ...]
    streams: int = 1

    def __hash__(self) -> int:
        return id(self)

    @property
    def flattened_steps(self) -> Iterator[Sum | Product | Mirror]:
        """Yield single steps: the products of a batch one by one, and a product with sums as two steps."""
        for step in self.steps:
            if isinstance(step, ProductBatch):
                yield from step.products
            elif isinstance(step, ProductWithSums):
                yield from step.as_separate_steps
            else:
                yield step

    @property
    def products(self) -> Iterator[Product]:
        return (step for step in self.flattened_steps if isinstance(step, Product))

    @property
    def in_place_product_fraction(self) -> float:
        """Return the fraction of products that use a block of A, B or C directly, without a temporary."""
        products = list(self.products)
        return sum(any(place.name in OPERAND_NAMES for place in (p.left, p.right, p.dest)) for p in products) / len(
            products
        )

    @cached_property
    def layout_operand_by_temporary(self) -> dict[str, str]:
        """Return for each temporary the operand (A, B or C) with the same memory order, row-major or column-major.

        A sum has the memory order of the first matrix that it reads; a product has the memory order of C. In a step
        table, all temporaries have the memory order of C, because a kernel can update blocks of C and temporaries at
        once only if the layouts are equal.
        """
        if any(isinstance(step, ProductWithSums) for step in self.steps):
            return {name: "C" for name, _, _ in self.temporaries}
        follows = {"A": "A", "B": "B", "C": "C"}
        for step in self.flattened_steps:
            parent = follows[step.reads[0].name] if isinstance(step, Sum) and step.reads else "C"
            for place in step.writes if isinstance(step, Sum) else (step.dest,):
                follows.setdefault(place.name, parent)
        return follows


def temporary_sizes(steps: Sequence[Sum | Product | ProductWithSums]) -> tuple[tuple[str, int, int], ...]:
    """Return (name, rows, columns) of each temporary, large enough for all rectangles that the steps write in it."""
    sizes: dict[str, tuple[int, int]] = {}
    for step in steps:
        update = step.update if isinstance(step, ProductWithSums) else step
        for place in update.writes if isinstance(update, Sum) else (update.dest,):
            if place.name not in OPERAND_NAMES:
                rows, cols = sizes.get(place.name, (0, 0))
                sizes[place.name] = max(rows, place.row + place.rows), max(cols, place.col + place.cols)
    return tuple((name, *size) for name, size in sizes.items())


# ---- memory needs: a few numbers that replace hundreds of steps


@dataclass(frozen=True)
class LevelMemoryNeeds:
    """The temporaries of a level (name, rows, columns), and the distinct products below the level."""

    temporaries: tuple[tuple[str, int, int], ...]
    products: tuple[tuple[Plan, Shape, GemmParams], ...]
    batches: tuple[tuple[Plan, Shape, int], ...] = ()  # (plan, sizes, number of products) of each batch
    streams: int = 1


def memory_needs_of_steps(steps: LevelSteps) -> LevelMemoryNeeds:
    """Return the memory needs of a level's steps."""
    products = dict.fromkeys((p.plan, p.size, p.params) for p in steps.products)
    batches = [step.products for step in steps.steps if isinstance(step, ProductBatch)]
    kinds = dict.fromkeys((x[0].plan, x[0].size, len(x)) for x in batches)
    return LevelMemoryNeeds(steps.temporaries, tuple(products), tuple(kinds), steps.streams)


# ---- steps of C = alpha A B + beta D, where D (the addend) is another matrix than C
#
# As long as no step has written a block of C, steps read the block of the addend D in place of the block of C.


@lru_cache(maxsize=1024)
def steps_with_addend(level: LevelSteps) -> LevelSteps:
    """Return the steps in which the addend D replaces the old numbers of C.

    Raise PlanError for a step that would read some blocks of the addend D and other blocks of C.
    """
    written: list[Place] = []
    steps: list[LevelStep] = []
    for step in level.steps:
        parts = step.products if isinstance(step, ProductBatch) and _reads_old_c(step, written) else (step,)
        for part in parts:
            steps.append(_step_with_addend(part, written))
            written += [place for place in _places_written_by_step(part) if place.name == "C"]
    return replace(level, steps=tuple(steps))


def _step_with_addend(step: LevelStep, written: list[Place]) -> LevelStep:
    if not _reads_old_c(step, written):
        return step
    if isinstance(step, Product):
        return replace(step, has_addend=True)
    if not isinstance(step, Sum):
        raise PlanError("the steps of this level cannot add another matrix than C")
    return replace(step, reads=tuple(replace(p, name=ADDEND) if _is_unwritten_c(p, written) else p for p in step.reads))


def _reads_old_c(step: LevelStep, written: list[Place]) -> bool:
    return any(_is_unwritten_c(place, written) for place in _places_read_by_step(step))


def _is_unwritten_c(place: Place, written: list[Place]) -> bool:
    """Return True if the place is in C and none of its elements has been written."""
    if place.name != "C" or not place.rows or not place.cols:
        return False
    met = [w for w in written if place.overlap(w) and (not place.part or not w.part or place.part == w.part)]
    if met and not any(place.is_inside(w) and w.part in (None, place.part) for w in met):
        raise PlanError("a step reads both old numbers of C and numbers that were written there")
    return not met


def _places_read_by_step(step: LevelStep) -> tuple[Place, ...]:
    if isinstance(step, Sum):
        return step.reads
    if isinstance(step, Product):
        return (step.dest,) if step.reads_dest else ()
    if isinstance(step, ProductWithSums):
        return (*_places_read_by_step(step.product), *step.update.reads[1:])
    if isinstance(step, ProductBatch):
        return tuple(place for product in step.products for place in _places_read_by_step(product))
    return (step.source, *((step.dest,) if step.beta else ()))


def _places_written_by_step(step: LevelStep) -> tuple[Place, ...]:
    if isinstance(step, Sum):
        return step.writes
    if isinstance(step, ProductWithSums):
        return step.update.writes
    if isinstance(step, ProductBatch):
        return tuple(product.dest for product in step.products)
    return (step.dest,)
