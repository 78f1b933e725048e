"""List the steps of a closure table for an n x n matrix; the host and the CUDA device execute the same steps.

A round is a set of steps that may run concurrently: the closure of one tile, or products that neither read nor
overwrite each other's results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from fmm.kernels.algorithms.step_table import TableStep
from fmm.kernels.plans.sums import Place
from fmm.semirings.closure_table import CloseStep, ClosureTable

CLOSED_MATRIX_NAME = "D"


class CloseTileStep(NamedTuple):
    """The step that replaces a small diagonal block by its closure, without cutting the block further."""

    place: Place


class ProductStep(NamedTuple):
    """The step dest = old + left * right, with the semiring's sum and product; `old` and `dest` may be one block."""

    left: Place
    right: Place
    old: Place
    dest: Place


StepRound = CloseTileStep | tuple[ProductStep, ...]


@dataclass(frozen=True)
class ClosureSteps:
    """All rounds that replace an n x n matrix D by its closure, and the name, rows and columns of each temporary."""

    n: int
    rounds: tuple[StepRound, ...]
    temporaries: tuple[tuple[str, int, int], ...]

    @property
    def closed_tiles(self) -> tuple[Place, ...]:
        return tuple(x.place for x in self.rounds if isinstance(x, CloseTileStep))

    @property
    def product_steps(self) -> tuple[ProductStep, ...]:
        return tuple(step for x in self.rounds if not isinstance(x, CloseTileStep) for step in x)

    @property
    def addition_count(self) -> int:
        """The number of sums left[i, k] + right[k, j] that the steps compute."""
        products = sum(p.left.rows * p.left.cols * p.right.cols for p in self.product_steps)
        return products + sum(tile.rows**3 for tile in self.closed_tiles)

    @property
    def moved_entry_count(self) -> int:
        """The number of entries that the steps read and write if each step reads each operand once."""
        products = sum(sum(x.rows * x.cols for x in p) for p in self.product_steps)
        return products + sum(2 * tile.rows**2 for tile in self.closed_tiles)

    @property
    def temporary_entry_count(self) -> int:
        return sum(rows * cols for _, rows, cols in self.temporaries)


@lru_cache(maxsize=64)
def closure_steps(table: ClosureTable, n: int, leaf: int) -> ClosureSteps:
    """Return the closure table's steps for an n x n matrix.

    Each diagonal block with more than `leaf` rows is cut near the middle, at a multiple of `leaf` rows.
    """
    cutting = _BlockRecursion(table, leaf)
    rounds = tuple(cutting.closure_rounds(Place(CLOSED_MATRIX_NAME, 0, 0, n, n), 0)) if n else ()
    return ClosureSteps(n, rounds, tuple((name, *size) for name, size in cutting.sizes.items()))


class _BlockRecursion:
    """The recursion over diagonal blocks; `sizes` maps each temporary to its number of rows and columns."""

    def __init__(self, table: ClosureTable, leaf: int) -> None:
        self.table, self.leaf = table, leaf
        self.sizes: dict[str, tuple[int, int]] = {}

    def closure_rounds(self, whole: Place, depth: int) -> Iterator[StepRound]:
        if whole.rows <= self.leaf:
            yield CloseTileStep(whole)
            return
        middle = self.leaf * -(-whole.rows // (2 * self.leaf))
        cuts = ((0, middle), (middle, whole.rows - middle))
        quarters = [Place(whole.name, whole.row + r, whole.col + c, h, w) for r, h in cuts for c, w in cuts]
        places = dict(zip(self.table.blocks, quarters, strict=True))
        together: list[ProductStep] = []
        for step in self.table.steps:
            if isinstance(step, CloseStep):
                yield from [tuple(together)] if together else []
                together = []
                yield from self.closure_rounds(places[step.place], depth + 1)
                continue
            product = self._product_step(step, places, depth)
            if any(_products_conflict(product, other) for other in together):
                yield tuple(together)
                together = []
            together.append(product)
        yield from [tuple(together)] if together else []

    def _product_step(self, step: TableStep, places: dict[str, Place], depth: int) -> ProductStep:
        left, right = (places[step.blocks_by_formal_parameter[f]] for f in step.kernel.product or ())
        (read,), (written,) = (step.blocks_by_formal_parameter[f] for f in step.kernel.read_blocks), step.written_blocks
        if written in self.table.temporaries:
            name = f"{written}.{depth}"
            places[written] = Place(name, 0, 0, left.rows, right.cols)
            rows, cols = self.sizes.get(name, (0, 0))
            self.sizes[name] = max(rows, left.rows), max(cols, right.cols)
        return ProductStep(left, right, places[read], places[written])


def _products_conflict(x: ProductStep, y: ProductStep) -> bool:
    """Return True if x writes a block that y reads or writes, or y writes a block that x reads or writes."""
    return any(p.dest.overlap(q) is not None for p, other in ((x, y), (y, x)) for q in other)
