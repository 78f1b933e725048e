"""Convert a closure table's steps to launches on a CUDA device, and predict the time of the launches.

The matrix D and the temporaries are row-major, and each row begins at a multiple of 16 bytes. For each matrix, the
predecessors are in a separate buffer with the same layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from fmm.hardware.chip import Chip
from fmm.kernels.cuda.launch_list import Launch
from fmm.kernels.plans.sums import Place
from fmm.semirings.closure_steps import CLOSED_MATRIX_NAME, CloseTileStep, ClosureSteps, ProductStep, closure_steps
from fmm.semirings.closure_table import closure_table
from fmm.semirings.minplus_kernel import (
    VECTOR_BYTES,
    DeviceMatrix,
    ProductSize,
    SemiringProduct,
    TropicalRing,
    close_tile_launch,
    duplicate_entries_launch,
    fastest_minplus_sizes,
    largest_tile_side,
    minplus_launch,
    predicted_product_cycles,
)

# Each temporary begins in the workspace at a multiple of this number of entries.
TEMPORARY_ALIGNMENT_ENTRIES = 256
ARGUMENT_BUFFER_PREFIX = "args of "  # prefix of the name of a buffer that holds predecessors
ARGUMENT_BYTES = 4  # bytes of a node index or of an index k (int32)
WORKSPACE_BUFFER, DOUBLED_BUFFER = "W", "doubled"


@dataclass(frozen=True, eq=False)
class ClosureLaunches:
    """All launches that replace a matrix by its closure, and the memory that the launches need."""

    steps: ClosureSteps
    launches: tuple[Launch, ...]
    numbers: int  # number of entries of all temporaries together
    # Bytes for copies of left operands with each entry written twice; 0 unless the kernel processes two 16-bit entries
    # in one word.
    doubled_bytes: int


@lru_cache(maxsize=64)
def closure_launches(ring: TropicalRing, n: int, with_predecessors: bool, multiprocessors: int) -> ClosureLaunches:
    """Return all launches that compute the closure of an n x n matrix."""
    steps = closure_steps(closure_table(), n, largest_tile_side(with_predecessors))
    return _ClosureLaunchBuilder(ring, steps, with_predecessors, multiprocessors).record_launches()


def padded_leading_dimension(cols: int) -> int:
    """Return the leading dimension that makes each row begin at a multiple of 16 bytes, for every element type."""
    return -(-cols // VECTOR_BYTES) * VECTOR_BYTES


class _ClosureLaunchBuilder:
    """Converts closure steps to launches, and assigns each temporary an offset in one workspace."""

    def __init__(self, ring: TropicalRing, steps: ClosureSteps, with_predecessors: bool, multiprocessors: int) -> None:
        self.ring, self.steps = ring, steps
        self.with_predecessors, self.multiprocessors = with_predecessors, multiprocessors
        # for each temporary: the index of its first entry in the workspace, and its leading dimension
        self.places: dict[str, tuple[int, int]] = {}
        self.numbers = 0
        for name, rows, cols in steps.temporaries:
            self.places[name] = self.numbers, padded_leading_dimension(cols)
            self.numbers += (
                -(-rows * padded_leading_dimension(cols) // TEMPORARY_ALIGNMENT_ENTRIES) * TEMPORARY_ALIGNMENT_ENTRIES
            )
        sizes = (p.left.rows * padded_leading_dimension(p.left.cols) for p in steps.product_steps)
        self.doubled = max(sizes, default=0) if ring.per_word > 1 else 0

    def record_launches(self) -> ClosureLaunches:
        launches = tuple(x for step in self.steps.rounds for x in self._step_round_launches(step))
        return ClosureLaunches(self.steps, launches, self.numbers, 2 * self.doubled * self.ring.word_bytes)

    def _step_round_launches(self, step: CloseTileStep | tuple[ProductStep, ...]) -> Iterator[Launch]:
        if isinstance(step, CloseTileStep):
            yield close_tile_launch(self.ring, self._device_matrix(step.place), self._predecessor_matrix(step.place))
            return
        products = [self._semiring_product(p) for p in step]
        if self.ring.per_word > 1:
            for i, product in enumerate(products):
                dest = DeviceMatrix(
                    DOUBLED_BUFFER,
                    i * self.doubled * self.ring.word_bytes,
                    *product.left[2:4],
                    padded_leading_dimension(product.left.cols),
                )
                yield duplicate_entries_launch(product.left, dest)
                products[i] = product._replace(left=dest)
        product_sizes = [(p.left.rows, p.left.cols, p.dest.cols) for p in products]
        sizes = fastest_minplus_sizes(self.ring, self.with_predecessors, product_sizes, self.multiprocessors)
        yield minplus_launch(self.ring, sizes, products)

    def _semiring_product(self, p: ProductStep) -> SemiringProduct:
        left, right, old, dest = (self._device_matrix(x) for x in p)
        if not self.with_predecessors:
            return SemiringProduct(left, right, dest, old)
        return SemiringProduct(
            left,
            right,
            dest,
            old,
            self._predecessor_matrix(p.dest),
            self._predecessor_matrix(p.old),
            self._predecessor_matrix(p.right),
        )

    def _device_matrix(self, place: Place) -> DeviceMatrix:
        return self._matrix_in_buffer(place, "", self.ring.entry_bytes)

    def _predecessor_matrix(self, place: Place) -> DeviceMatrix | None:
        return self._matrix_in_buffer(place, ARGUMENT_BUFFER_PREFIX, ARGUMENT_BYTES) if self.with_predecessors else None

    def _matrix_in_buffer(self, place: Place, prefix: str, item: int) -> DeviceMatrix:
        base, first, leading = CLOSED_MATRIX_NAME, 0, padded_leading_dimension(self.steps.n)
        if place.name != CLOSED_MATRIX_NAME:
            base, (first, leading) = WORKSPACE_BUFFER, self.places[place.name]
        offset = item * (first + place.row * leading + place.col)
        return DeviceMatrix(prefix + base, offset, place.rows, place.cols, leading)


# ---- predicted time
#
# Each launch is assumed to begin when the previous launch has ended. The prediction ignores the time of device memory,
# since a product reads each entry of its operands tens of times from the second-level cache. The prediction also
# ignores conversions of operands and results, and the lower clock frequency under load.

# Measured clock cycles for one step of the closure of a tile of 128 nodes; a tile has one step for each node. In each
# step, a thread updates 64 entries with two instructions for each entry, and then waits at a barrier.
CLOSURE_STEP_CLOCKS = 510.0
FLOAT64_CLOSURE_STEP_CLOCKS = 1100.0  # clock cycles for one step of the closure of a tile of 128 nodes in float64
PREDECESSOR_CLOSURE_STEP_CLOCKS = 500.0  # clocks of one step of the closure of a tile of 64 nodes with predecessors


def closure_seconds(ring: TropicalRing, n: int, chip: Chip, with_predecessors: bool = False) -> float:
    """Return the predicted seconds of all launches that compute the shortest paths between n nodes."""
    step_clocks = FLOAT64_CLOSURE_STEP_CLOCKS if ring.word_bytes > 4 else CLOSURE_STEP_CLOCKS
    if with_predecessors:
        step_clocks = PREDECESSOR_CLOSURE_STEP_CLOCKS
    seconds = 0.0
    for step in closure_steps(closure_table(), n, largest_tile_side(with_predecessors)).rounds:
        if isinstance(step, CloseTileStep):
            seconds += chip.fitted.launch + step.place.rows * step_clocks / chip.clock
        else:
            sizes = [(p.left.rows, p.left.cols, p.dest.cols) for p in step]
            seconds += product_seconds(ring, sizes, chip, with_predecessors)
    return seconds


def product_seconds(ring: TropicalRing, products: list[ProductSize], chip: Chip, with_arguments: bool = False) -> float:
    """Return the predicted seconds of one launch that computes these products."""
    sizes = fastest_minplus_sizes(ring, with_arguments, products, chip.multiprocessors)
    clocks = predicted_product_cycles(ring, with_arguments, sizes, products, chip.multiprocessors)
    return chip.fitted.launch + clocks / chip.clock
