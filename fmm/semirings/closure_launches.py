"""A closure table's steps as launches on a CUDA device: shortest paths of a matrix D in place.

D lies row by row in memory of its own, whose rows begin at multiples of 16 bytes; so do the temporaries'. Where nodes
before the ends of the ways are asked for, D, the temporaries and these all have the same places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from fmm.hardware.chip import Chip
from fmm.kernels.cuda.launch_list import Launch
from fmm.kernels.plans.sums import Place
from fmm.semirings.closure_steps import MATRIX, ClosureSteps, ProductStep, TileStep, closure_steps
from fmm.semirings.closure_table import closure_table
from fmm.semirings.minplus_kernel import (
    WIDE,
    Rect,
    Ring,
    SemiringProduct,
    Shape,
    close_launch,
    doubling_launch,
    fastest_sizes,
    minplus_launch,
    product_clocks,
    tile_side,
)

ROOM = 256  # bytes: temporaries begin at multiples of it
ARGS = "args of "  # in front of a base's name: where the nodes stand that are noted of its numbers
ARG_BYTES = 4  # of a node
WORKSPACE, DOUBLED = "W", "doubled"


@dataclass(frozen=True, eq=False)
class ClosureLaunches:
    """All launches for a matrix, and the memory that they need."""

    steps: ClosureSteps
    launches: tuple[Launch, ...]
    numbers: int  # that the temporaries have room for
    doubled_bytes: int  # of numbers that are written twice, for rings with two numbers in a word


def padded(cols: int) -> int:
    """Numbers from one row to the next, so that every row begins at a multiple of 16 bytes whatever their type."""
    return -(-cols // WIDE) * WIDE


@lru_cache(maxsize=64)
def closure_launches(ring: Ring, n: int, noted: bool, multiprocessors: int) -> ClosureLaunches:
    """All launches for an n x n matrix; `noted`: with the nodes before the ends of the ways."""
    steps = closure_steps(closure_table(), n, tile_side(noted))
    return _Recorder(ring, steps, noted, multiprocessors).recorded()


class _Recorder:
    def __init__(self, ring: Ring, steps: ClosureSteps, noted: bool, multiprocessors: int) -> None:
        self.ring, self.steps, self.noted, self.multiprocessors = ring, steps, noted, multiprocessors
        self.places: dict[str, tuple[int, int]] = {}  # of temporaries: first number, numbers a row
        self.numbers = 0
        for name, rows, cols in steps.temporaries:
            self.places[name] = self.numbers, padded(cols)
            self.numbers += -(-rows * padded(cols) // ROOM) * ROOM
        sizes = (p.left.rows * padded(p.left.cols) for p in steps.products)
        self.doubled = max(sizes, default=0) if ring.per_word > 1 else 0

    def recorded(self) -> ClosureLaunches:
        launches = tuple(x for step in self.steps.rounds for x in self._round(step))
        return ClosureLaunches(self.steps, launches, self.numbers, 2 * self.doubled * self.ring.word_bytes)

    def _round(self, step: TileStep | tuple[ProductStep, ...]) -> Iterator[Launch]:
        if isinstance(step, TileStep):
            yield close_launch(self.ring, self._rect(step.place), self._args(step.place))
            return
        products = [self._product(p) for p in step]
        if self.ring.per_word > 1:
            for i, product in enumerate(products):
                dest = Rect(
                    DOUBLED, i * self.doubled * self.ring.word_bytes, *product.left[2:4], padded(product.left.cols)
                )
                yield doubling_launch(product.left, dest)
                products[i] = product._replace(left=dest)
        sizes = fastest_sizes(self.ring, self.noted, [product_size(p) for p in products], self.multiprocessors)
        yield minplus_launch(self.ring, sizes, products)

    def _product(self, p: ProductStep) -> SemiringProduct:
        left, right, old, dest = (self._rect(x) for x in p)
        if not self.noted:
            return SemiringProduct(left, right, dest, old)
        return SemiringProduct(left, right, dest, old, self._args(p.dest), self._args(p.old), self._args(p.right))

    def _rect(self, place: Place) -> Rect:
        return self._located(place, "", self.ring.item_bytes)

    def _args(self, place: Place) -> Rect | None:
        return self._located(place, ARGS, ARG_BYTES) if self.noted else None

    def _located(self, place: Place, prefix: str, item: int) -> Rect:
        base, first, leading = MATRIX, 0, padded(self.steps.n)
        if place.name != MATRIX:
            base, (first, leading) = WORKSPACE, self.places[place.name]
        offset = item * (first + place.row * leading + place.col)
        return Rect(prefix + base, offset, place.rows, place.cols, leading)


def product_size(p: SemiringProduct) -> tuple[int, int, int]:
    """Rows, inner dimension and columns of a product."""
    return p.left.rows, p.left.cols, p.dest.cols


# Of one step of a tile that is closed. 128 nodes: 64 numbers a thread, two instructions each, and a barrier.
STEP_CLOCKS = 510.0
WIDE_STEP_CLOCKS = 1100.0  # of float64
NOTED_STEP_CLOCKS = 500.0  # of 64 nodes, with the nodes before the ends of the ways


def product_seconds(ring: Ring, products: list[Shape], chip: Chip, noted: bool = False) -> float:
    """Of one launch."""
    sizes = fastest_sizes(ring, noted, products, chip.multiprocessors)
    return chip.fitted.launch + product_clocks(ring, noted, sizes, products, chip.multiprocessors) / chip.clock


def closure_seconds(ring: Ring, n: int, chip: Chip, noted: bool = False) -> float:
    """Of the shortest paths between n nodes; `noted`: with the nodes before their ends."""
    step_clocks = NOTED_STEP_CLOCKS if noted else WIDE_STEP_CLOCKS if ring.word_bytes > 4 else STEP_CLOCKS
    seconds = 0.0
    for step in closure_steps(closure_table(), n, tile_side(noted)).rounds:
        if isinstance(step, TileStep):
            seconds += chip.fitted.launch + step.place.rows * step_clocks / chip.clock
        else:
            seconds += product_seconds(ring, [_shape(p) for p in step], chip, noted)
    return seconds


def _shape(p: ProductStep) -> Shape:
    return p.left.rows, p.left.cols, p.dest.cols
