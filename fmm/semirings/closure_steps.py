"""The steps by which a closure table is carried out on a matrix of a given size: the one description of what runs.

A round is what may run side by side: one tile to be closed, or products none of which reads or overwrites what another
one writes. The CPU's way, the GPU's launches, the counts and the prediction all read these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from fmm.kernels.algorithms.step_table import Step
from fmm.kernels.plans.sums import Place
from fmm.semirings.closure_table import Close, ClosureTable

MATRIX = "D"


class TileStep(NamedTuple):
    """A block of the diagonal that is closed as a whole."""

    place: Place


class ProductStep(NamedTuple):
    """dest = old + left right, over the semiring; `old` may be `dest`."""

    left: Place
    right: Place
    old: Place
    dest: Place


Round = TileStep | tuple[ProductStep, ...]


@dataclass(frozen=True)
class ClosureSteps:
    """All steps for an n x n matrix D in place, and the temporaries' names and sizes."""

    n: int
    rounds: tuple[Round, ...]
    temporaries: tuple[tuple[str, int, int], ...]

    @property
    def tiles(self) -> tuple[Place, ...]:
        return tuple(x.place for x in self.rounds if isinstance(x, TileStep))

    @property
    def products(self) -> tuple[ProductStep, ...]:
        return tuple(step for x in self.rounds if not isinstance(x, TileStep) for step in x)

    @property
    def additions(self) -> int:
        """Sums that are compared with the best one so far."""
        products = sum(p.left.rows * p.left.cols * p.right.cols for p in self.products)
        return products + sum(tile.rows**3 for tile in self.tiles)

    @property
    def moved(self) -> int:
        """Numbers read and written, if each step reads each of its operands once."""
        products = sum(sum(x.rows * x.cols for x in p) for p in self.products)
        return products + sum(2 * tile.rows**2 for tile in self.tiles)

    @property
    def temporary_numbers(self) -> int:
        return sum(rows * cols for _, rows, cols in self.temporaries)


@lru_cache(maxsize=64)
def closure_steps(table: ClosureTable, n: int, leaf: int) -> ClosureSteps:
    """Blocks are cut at multiples of `leaf`, as near to the middle as that goes, until they are no larger."""
    walk = _Cutting(table, leaf)
    rounds = tuple(walk.closed(Place(MATRIX, 0, 0, n, n), 0)) if n else ()
    return ClosureSteps(n, rounds, tuple((name, *size) for name, size in walk.sizes.items()))


class _Cutting:
    def __init__(self, table: ClosureTable, leaf: int) -> None:
        self.table, self.leaf = table, leaf
        self.sizes: dict[str, tuple[int, int]] = {}

    def closed(self, whole: Place, depth: int) -> Iterator[Round]:
        if whole.rows <= self.leaf:
            yield TileStep(whole)
            return
        half = self.leaf * -(-whole.rows // (2 * self.leaf))
        places = dict(zip(self.table.blocks, _quarters(whole, half), strict=True))
        together: list[ProductStep] = []
        for step in self.table.steps:
            if isinstance(step, Close):
                yield from [tuple(together)] if together else []
                together = []
                yield from self.closed(places[step.place], depth + 1)
                continue
            product = self._product(step, places, depth)
            if any(_in_the_way(product, other) for other in together):
                yield tuple(together)
                together = []
            together.append(product)
        yield from [tuple(together)] if together else []

    def _product(self, step: Step, places: dict[str, Place], depth: int) -> ProductStep:
        left, right = (places[step.bound[f]] for f in step.kernel.product or ())
        (read,), (written,) = (step.bound[f] for f in step.kernel.reads), step.writes
        if written in self.table.temporaries:
            name = f"{written}.{depth}"
            places[written] = Place(name, 0, 0, left.rows, right.cols)
            rows, cols = self.sizes.get(name, (0, 0))
            self.sizes[name] = max(rows, left.rows), max(cols, right.cols)
        return ProductStep(left, right, places[read], places[written])


def _quarters(whole: Place, half: int) -> list[Place]:
    cuts = ((0, half), (half, whole.rows - half))
    return [Place(whole.name, whole.row + r, whole.col + c, h, w) for r, h in cuts for c, w in cuts]


def _in_the_way(x: ProductStep, y: ProductStep) -> bool:
    """Does one write what the other reads or writes?"""
    return any(p.dest.shared(q) is not None for p, other in ((x, y), (y, x)) for q in other)
