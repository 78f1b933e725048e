"""The steps of a level: sums and products over named rectangles. The one description of what runs.

A walk does them on arrays or notes them for a GPU, `workspace` and the counters read them, and the symbolic proof does
them on symbols. `lower_level` in lower.py finds the steps of a plan's first level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps.asked import PLAIN, Asked
from fmm.kernels.plans.steps.sums import OPERANDS, Mirror, Place, Sum


@dataclass(frozen=True)
class Product:
    """dest = alpha left right + beta dest, by a plan of its own."""

    left: Place
    right: Place
    dest: Place
    plan: Plan
    asked: Asked = PLAIN
    apart: bool = False  # is what beta multiplies another matrix than dest (fmm.kernels.plans.steps.added_apart)?

    @property
    def size(self) -> tuple[int, int, int]:
        return self.left.rows, self.left.cols, self.right.cols

    @property
    def accumulate(self) -> bool:
        """Does it read what stands in dest?"""
        return self.asked.beta != 0


@dataclass(frozen=True)
class ProductWithSums:
    """A product, and at once what a step table's kernel makes of it: `update` reads it first, then old values."""

    product: Product
    update: Sum

    @property
    def apart(self) -> tuple[Sum | Product, ...]:
        """The same in two steps, for which the product needs the temporary that it names."""
        update = self.update.tidied
        return (self.product, update) if update.writes else (self.product,)


@dataclass(frozen=True)
class ProductBatch:
    """Independent products of one size by one plan, of which the same is asked.

    Their operands, and their results, stand at constant distances.
    """

    products: tuple[Product, ...]

    @property
    def places(self) -> tuple[tuple[Place, ...], ...]:
        """All left operands, all right ones, all results."""
        return tuple(zip(*((p.left, p.right, p.dest) for p in self.products), strict=True))


@dataclass(frozen=True)
class LevelSteps:
    """The steps of one level, and the temporaries they need (name -> rows, columns).

    `lanes`: how many of its products may run at a time, each with temporaries of its own below it.
    """

    temporaries: tuple[tuple[str, int, int], ...]
    steps: tuple[Sum | Product | ProductWithSums | ProductBatch | Mirror, ...]
    lanes: int = 1

    def __hash__(self) -> int:
        return id(self)

    @property
    def flat(self) -> Iterator[Sum | Product | Mirror]:
        """The steps with everything taken apart."""
        for step in self.steps:
            if isinstance(step, ProductBatch):
                yield from step.products
            elif isinstance(step, ProductWithSums):
                yield from step.apart
            else:
                yield step

    @property
    def products(self) -> Iterator[Product]:
        return (step for step in self.flat if isinstance(step, Product))

    @property
    def in_place(self) -> float:
        """The share of its products that read a block of A or B in place, or write one of C."""
        products = list(self.products)
        return sum(any(place.name in OPERANDS for place in (p.left, p.right, p.dest)) for p in products) / len(products)

    @cached_property
    def layouts(self) -> dict[str, str]:
        """By temporary, the operand whose memory order it should follow: the one that it is first formed from.

        If kernels update several places at once, all temporaries follow C, since those places must lie alike.
        """
        if any(isinstance(step, ProductWithSums) for step in self.steps):
            return {name: "C" for name, _, _ in self.temporaries}
        follows = {"A": "A", "B": "B", "C": "C"}
        for step in self.flat:
            parent = follows[step.reads[0].name] if isinstance(step, Sum) and step.reads else "C"
            for place in step.writes if isinstance(step, Sum) else (step.dest,):
                follows.setdefault(place.name, parent)
        return follows


def temporary_sizes(steps: Sequence[Sum | Product | ProductWithSums]) -> tuple[tuple[str, int, int], ...]:
    """Each temporary large enough for every rectangle that it holds."""
    sizes: dict[str, tuple[int, int]] = {}
    for step in steps:
        update = step.update if isinstance(step, ProductWithSums) else step
        for place in update.writes if isinstance(update, Sum) else (update.dest,):
            if place.name not in OPERANDS:
                rows, cols = sizes.get(place.name, (0, 0))
                sizes[place.name] = max(rows, place.row + place.rows), max(cols, place.col + place.cols)
    return tuple((name, *size) for name, size in sizes.items())
