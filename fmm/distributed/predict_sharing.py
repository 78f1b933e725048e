"""Predict the time of a product that several devices share, and choose the fastest sharing.

The steps of a layout are simulated: the panels of the next step arrive while the current step is multiplied. All
devices are assumed to be equal, and each step lasts as long as its slowest device. The prediction ignores that
messages slow down products, that other programs use the network, and that connections must be set up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import isqrt, prod
from typing import Any, NamedTuple

import numpy as np

from fmm.distributed.layout import K_AXIS, M_AXIS, N_AXIS, CutAxes, IntArray, MeshLayout, OperandName
from fmm.distributed.quadrants import ALLOWED_CUTS, outer_level_blocks, parts_per_dimension
from fmm.hardware.links import Link, Network
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.registry import clear_on_registration
from fmm.perfmodel.cost import cost

# Plans that are candidates by default for the outer level of a shared product, as text.
DEFAULT_OUTER_LEVELS = ("winograd > vendor",)
# By default, a shared product has an outer level only if the level is predicted to save this fraction of the time. On
# two H200s (float32, side 32768), a product with a level took 1.17 times its predicted seconds, and a product without a
# level 1.04 times. With a level, more messages slow down concurrent products, and small sums run slower than large
# sums.
LEVEL_MARGIN = 0.15
# Smallest fraction of the predicted time that a one-dimensional mesh must save by computing two-dimensional blocks of
# C.
RECTANGLE_MARGIN = 0.15
# A product that is predicted to take fewer than this number of seconds is computed in one step and without a level,
# since comparing candidates takes time.
MIN_SECONDS_TO_COMPARE = 1e-3
MAX_CANDIDATES_IN_PIECES = 3  # number of candidates, the fastest in one step, that are also compared in several steps
CANDIDATE_PIECE_COUNTS = (2, 4, 8)  # candidate numbers of steps that cut rows or columns of C


ProductSeconds = Callable[[int, int, int], float]  # (m, k, n) -> seconds of an m x k by k x n product on one device


class LocalProductConditions(NamedTuple):
    """The conditions of a device's local products: bytes in use, outer level, number of steps."""

    held_bytes: float  # bytes of panels and blocks in device memory, without the operands and C
    outer_plan: Plan
    pieces: int


@dataclass(frozen=True)
class MeshDevices:
    """The devices of a mesh, all equal, and their network."""

    product_seconds: ProductSeconds
    stream: float  # bytes per second that a device reads and writes in sums
    network: Network
    itemsize: int  # bytes of an entry of A, B or C
    # Function from LocalProductConditions to `product_seconds`; None if predicted seconds do not depend on the
    # conditions.
    product_seconds_under: Callable[[LocalProductConditions], ProductSeconds] | None = None

    def mesh_devices_for_local_product(self, conditions: LocalProductConditions) -> MeshDevices:
        """Return a copy with the function `product_seconds` for products under these conditions."""
        if self.product_seconds_under is None:
            return self
        return replace(self, product_seconds=self.product_seconds_under(conditions))


@dataclass(frozen=True)
class SharingCandidate:
    """A candidate for sharing a product: layout, outer level, and the predicted seconds and bytes of a device."""

    layout: MeshLayout
    outer_plan: Plan
    products: float  # seconds of one device's products
    waiting: float  # seconds of waiting for panels
    sums: float  # seconds of the level's sums, and of adding products to C
    around: float  # seconds of redistributing A and B before the products, and C after them
    received: float  # bytes received by the device that receives the most
    memory: float  # bytes of panels and of the level's blocks
    held_bytes: float  # the share of `memory`, in bytes, that is in use during the local products
    # True if a one-dimensional mesh computes two-dimensional blocks of C and then redistributes C
    rectangle: bool = False

    @property
    def local_product_conditions(self) -> LocalProductConditions:
        """The conditions on which the predicted seconds of a device's local products depend."""
        return LocalProductConditions(self.held_bytes, self.outer_plan, self.layout.pieces)

    @property
    def predicted_seconds(self) -> float:
        """The predicted seconds of the whole shared product."""
        return self.products + self.waiting + self.sums + self.around

    def __str__(self) -> str:
        layout = self.layout
        rectangle = ", as a rectangle" if self.rectangle else ""
        axis = ("rows", "inner dimension", "columns")[layout.along]
        pieces = "in one piece" if layout.pieces == 1 else f"{layout.pieces} pieces of the {axis}"
        outer_levels = "" if self.outer_plan == VENDOR else f", below {' > '.join(map(str, self.outer_plan.levels))}"
        return f"{describe_mesh_cuts(layout)}{rectangle}, {pieces}{outer_levels}"


def describe_mesh_cuts(layout: MeshLayout) -> str:
    """Return as text how the mesh cuts the multiply-adds, for example "rows by 2, columns by 4"."""
    names = {M_AXIS: "rows", K_AXIS: "inner dimension", N_AXIS: "columns"}
    cuts = [f"{names[axis]} by {side}" for side, axis in zip(layout.mesh, layout.work, strict=True) if axis is not None]
    return ", ".join(cuts) or "everything on each"


def predict_layout(layout: MeshLayout, outer_plan: Plan, devices: MeshDevices) -> SharingCandidate:
    """Return the prediction for one candidate; raise PlanError if the outer level is impossible in the layout."""
    if outer_plan == VENDOR:
        panels = _panel_bytes(layout, devices.itemsize)
        local = devices.mesh_devices_for_local_product(LocalProductConditions(panels, VENDOR, layout.pieces))
        return replace(_predict_steps(layout, local, panels), around=_reduction_seconds(layout, devices))
    return _predict_with_level(layout, outer_plan, devices)


def rank_sharings(
    layout: MeshLayout, devices: MeshDevices, outer_plan: Sequence[Plan] | None = None
) -> tuple[SharingCandidate, ...]:
    """Return the candidates with these outer levels, sorted by predicted seconds; raise PlanError if there are none."""
    works = [
        replace(layout, work=work, pieces=1) for work in product((M_AXIS, N_AXIS, K_AXIS), repeat=len(layout.mesh))
    ]
    first = [predict_layout(candidate, VENDOR, devices) for candidate in works]
    first.sort(key=lambda sharing: sharing.predicted_seconds)
    plans = (VENDOR, *map(Plan.parse, DEFAULT_OUTER_LEVELS)) if outer_plan is None else outer_plan
    candidates, plan_error = first if VENDOR in plans else [], None
    refined = (
        first[: MAX_CANDIDATES_IN_PIECES if first[0].predicted_seconds >= MIN_SECONDS_TO_COMPARE else 0]
        if VENDOR in plans
        else first
    )
    for sharing in refined:
        for candidate, plan in product(layouts_by_step_count(sharing.layout), plans):
            if candidate.pieces == 1 and plan == VENDOR:
                continue  # already in `candidates`
            try:
                candidates.append(predict_layout(candidate, plan, devices))
            except PlanError as error:
                plan_error = error
    if refined and VENDOR in plans:
        candidates.extend(_two_dimensional_candidates(layout, devices))
    if plan_error is not None and not candidates:
        raise plan_error
    return tuple(sorted(candidates, key=lambda sharing: sharing.predicted_seconds))


def choose_sharing(ranked: Sequence[SharingCandidate], memory_limit: float) -> SharingCandidate:
    """Return the fastest candidate within `memory_limit` bytes; if none fits, the candidate with the fewest bytes.

    The plain candidate is the fastest candidate without an outer level and without a redistribution of C. A candidate
    with an outer level is chosen only if its time is shorter than the plain candidate's time by the fraction
    LEVEL_MARGIN. A candidate that redistributes C must save the fraction RECTANGLE_MARGIN of the plain candidate's
    time.
    """
    fitting = [sharing for sharing in ranked if sharing.memory <= memory_limit]
    if not fitting:
        return min(ranked, key=lambda sharing: sharing.memory)
    plain = next((sharing for sharing in fitting if sharing.outer_plan == VENDOR and not sharing.rectangle), None)
    if plain is None:
        return fitting[0]
    for sharing in fitting:
        margin = RECTANGLE_MARGIN if sharing.rectangle else LEVEL_MARGIN if sharing.outer_plan != VENDOR else 0.0
        if sharing.predicted_seconds <= (1 - margin) * plain.predicted_seconds:
            return sharing
    return plain


def layouts_by_step_count(layout: MeshLayout) -> Iterator[MeshLayout]:
    """Yield layouts with the same work per process, in one or several steps.

    Each process's part of the product is cut into smaller parts, one for each step. If the steps cut the inner
    dimension, the number of steps is the number of ranges of the inner dimension that a process holds, or twice this
    number. If the steps cut rows or columns of C, the number of steps is 2, 4 or 8. Steps that cut rows of C use the
    same panel of B; steps that cut columns of C use the same panel of A.
    """
    held = max(_part_count_along(layout.mesh, layout.a, 1), _part_count_along(layout.mesh, layout.b, 0))
    local = max(held // max(_part_count_along(layout.mesh, layout.work, K_AXIS), 1), 1)
    counts = {
        (K_AXIS, 1),
        (K_AXIS, local),
        (K_AXIS, 2 * local),
        *((axis, count) for axis in (M_AXIS, N_AXIS) for count in CANDIDATE_PIECE_COUNTS),
    }
    sides = layout.m, layout.k, layout.n
    for along, pieces in sorted(counts):
        if pieces <= sides[along]:
            yield replace(layout, pieces=pieces, along=along)


def layout_for_outer_level(layout: MeshLayout) -> MeshLayout:
    """Return the layout for an outer level: the mesh cuts A's rows as C's rows, and B's columns as C's columns."""

    def cuts_for_outer_level(operand: OperandName, cuts: CutAxes) -> CutAxes:
        table, pairs = ALLOWED_CUTS[operand], zip(cuts, layout.work, strict=True)
        return tuple(cut if cut in table[axis] else table[axis][0] for cut, axis in pairs)

    return replace(layout, a=cuts_for_outer_level("A", layout.a), b=cuts_for_outer_level("B", layout.b))


# ---- prediction of one product in steps


def _predict_steps(layout: MeshLayout, devices: MeshDevices, panels: float, product_count: int = 1) -> SharingCandidate:
    """Return the prediction of `product_count` consecutive products, each computed in the steps of this layout.

    `panels` has the bytes of received panels that a process holds.
    The panels of step i arrive after the panels of step i - 1, and after step i - 2 has freed its panels. The
    first panels of each product arrive while the previous product's last step is multiplied.
    """
    itemsize = devices.itemsize
    arrived = done = before = products = sums = 0.0
    received = np.zeros(layout.process_count, np.int64)  # entries that each process receives
    steps = []
    for step in range(layout.pieces):
        sent = layout.entries_sent_in_step(step)
        received += sent.sum(axis=0)
        steps.append((*_product_seconds(layout, step, devices), _exchange_seconds(sent, devices)))
    for seconds, adding, exchange in steps * product_count:
        arrived = max(arrived, before) + exchange
        before, done = done, max(done, arrived) + seconds + adding
        products, sums = products + seconds, sums + adding
    waiting = done - products - sums
    most_received = float(received.max()) * itemsize * product_count
    return SharingCandidate(layout, VENDOR, products, waiting, sums, 0.0, most_received, panels, panels)


def _product_seconds(layout: MeshLayout, step: int, devices: MeshDevices) -> tuple[float, float]:
    """Return the seconds of the slowest local product of a step, and of its addition to C."""
    sizes = set()
    for rank in range(layout.process_count):
        rows, inner, cols = layout.process_share_in_step(rank, step)
        sizes.add((rows.size, inner.size, cols.size))
    seconds = max(devices.product_seconds(*sides) if 0 not in sides else 0.0 for sides in sizes)
    adding = 3 * max(m * n for m, _, n in sizes) * devices.itemsize / devices.stream if layout.along == K_AXIS else 0.0
    return seconds, adding if step else 0.0


def _exchange_seconds(sent: IntArray, devices: MeshDevices) -> float:
    """Return the seconds from the start of a step's messages to the arrival of the last message.

    `sent` has the number of entries that each process (row) sends to each other process (column). Links inside hosts
    and between hosts work concurrently, and each link transfers in both directions at once.
    """
    network, ranks = devices.network, np.arange(len(sent))
    together = network.share_machine(ranks[:, None], ranks)
    loads: dict[Link, Any] = defaultdict(int)
    for used, by_link in ((network.inside, sent * together), (network.between, sent * ~together)):
        loads[used] += by_link
    return max(
        used.message_seconds(float(max(load.sum(axis=0).max(), load.sum(axis=1).max())) * devices.itemsize)
        for used, load in loads.items()
    )


def _panel_bytes(layout: MeshLayout, itemsize: int) -> float:
    """Return the largest number of bytes of received panels that a process holds in two consecutive steps."""
    last = layout.pieces - 1
    pairs = {(0, min(1, last)), (min(1, last), min(2, last))}
    most = 0
    for rank, steps in product(range(layout.process_count), pairs):
        panels = {(operand, box) for step in steps for operand, box in layout.panels_needed(rank, step).items()}
        received = (
            box for operand, box in panels if layout.blocks_held[operand].block_of_rank(rank).intersection(box) != box
        )
        most = max(most, sum(box.size for box in received))
    return most * itemsize


def _reduction_seconds(layout: MeshLayout, devices: MeshDevices) -> float:
    """Return the seconds of a reduce-scatter of C; 0 if each block of C is computed by one device alone."""
    product_count = layout.inner_dimension_process_count
    if product_count == 1:
        return 0.0
    block = _largest_block_entries(layout) * devices.itemsize
    return (
        _slowest_link(layout, devices.network).message_seconds(block * (product_count - 1) / product_count)
        + 2 * block / devices.stream
    )


def _largest_block_entries(layout: MeshLayout) -> int:
    """Return the number of entries in the largest block of C that a process computes."""
    shares = (layout.process_share(rank) for rank in range(layout.process_count))
    return max(share.rows.size * share.cols.size for share in shares)


def _slowest_link(layout: MeshLayout, network: Network) -> Link:
    return network.inside if layout.process_count <= network.together else network.between


# ---- prediction of a one-dimensional mesh that multiplies as a rectangle


def two_dimensional_layouts(layout: MeshLayout) -> Iterator[MeshLayout]:
    """Yield layouts in which the processes of a one-dimensional mesh compute two-dimensional blocks of C.

    After the product, C is redistributed so that only its rows, or only its columns, are cut. No layout is yielded if
    the number of processes does not divide the sides that the mesh cuts.
    """
    if len(layout.mesh) > 1:
        return
    ranks, (a,), (b,) = layout.process_count, layout.a, layout.b
    short = max(side for side in range(1, isqrt(ranks) + 1) if ranks % side == 0)
    held = (layout.m, layout.k, 0)[2 if a is None else a], (layout.k, layout.n, 0)[2 if b is None else b]
    for (outer, inner), side in (((M_AXIS, N_AXIS), layout.m), ((N_AXIS, M_AXIS), layout.n)):
        if short > 1 and not any(size % ranks for size in (*held, side)):
            yield replace(layout, mesh=(short, ranks // short), a=(a, a), b=(b, b), work=(outer, inner), pieces=1)


def _two_dimensional_candidates(layout: MeshLayout, devices: MeshDevices) -> list[SharingCandidate]:
    sharings = [_predict_two_dimensional_blocks(candidate, devices) for candidate in two_dimensional_layouts(layout)]
    if sharings:
        best = min(sharings, key=lambda sharing: sharing.predicted_seconds).layout
        sharings += [
            _predict_two_dimensional_blocks(candidate, devices)
            for candidate in layouts_by_step_count(best)
            if candidate.pieces > 1
        ]
    return sharings


def _predict_two_dimensional_blocks(layout: MeshLayout, devices: MeshDevices) -> SharingCandidate:
    """Return the prediction if a one-dimensional mesh computes two-dimensional blocks of C and redistributes C."""
    sharing, side = predict_layout(layout, VENDOR, devices), layout.mesh[1]
    block = _largest_block_entries(layout) * devices.itemsize
    moved = block * (1 - 1 / side)
    around = (
        sharing.around + devices.network.link_between(0, side - 1).message_seconds(moved) + 2 * block / devices.stream
    )
    memory = max(sharing.memory, 3.0 * block)  # bytes of the sent parts, the received parts, and the assembled block
    return replace(sharing, around=around, received=sharing.received + moved, memory=memory, rectangle=True)


# ---- prediction of a sharing with an outer level


def _predict_with_level(layout: MeshLayout, outer_plan: Plan, devices: MeshDevices) -> SharingCandidate:
    """Return the prediction with an outer level: a sequence of shared products of blocks, and local sums of blocks."""
    canonical = layout_for_outer_level(layout)
    cut = outer_level_blocks(canonical, outer_plan)
    itemsize, stream = devices.itemsize, devices.stream
    held = {operand: canonical.blocks_held[operand].block_of_rank(0).size for operand in canonical.blocks_held}
    share = canonical.process_share(0)
    block = share.rows.size * share.cols.size
    count, additions = level_operation_counts(outer_plan)
    summed = 3.0 * sum(x * y for x, y in zip(additions, (held["A"], held["B"], block), strict=True))
    # number of entries that the copies of blocks out of A and B, and into C, read and write
    packed = 2.0 * (held["A"] + held["B"] + block)
    panels = _panel_bytes(cut.block_layout, itemsize)
    memory = 2 * panels + packed * itemsize
    local = devices.mesh_devices_for_local_product(LocalProductConditions(memory, outer_plan, canonical.pieces))
    products = _predict_steps(cut.block_layout, local, panels, count)
    return SharingCandidate(
        canonical,
        outer_plan,
        products.products,
        products.waiting,
        sums=(summed + packed) * itemsize / stream + products.sums,
        around=_redistribution_seconds(layout, canonical, devices) + _reduction_seconds(canonical, devices),
        received=products.received,
        memory=memory,
        held_bytes=memory,
    )


@clear_on_registration
@lru_cache(maxsize=64)
def level_operation_counts(outer_plan: Plan) -> tuple[int, tuple[float, float, float]]:
    """Return the number of products of blocks in an outer level, and its additions per entry of A, of B and of C.

    The numbers of additions are derived from the cost of the smallest product, and from the costs after m, k or n is
    doubled.
    """
    parts = parts_per_dimension(outer_plan)
    m, k, n = parts
    once = cost(outer_plan, m, k, n, 1).additions
    doubled = [cost(outer_plan, *size, 1).additions for size in ((2 * m, k, n), (m, 2 * k, n), (m, k, 2 * n))]
    blocks = (m * k, k * n, m * n)  # entries of A, B and C if each block is a single entry
    # If n is doubled, the additions on B and on C double, and the additions on A do not change. The number of additions
    # on A is therefore 2 * once - doubled[2]. In the same way, the cost after doubling m gives the number of additions
    # on B, and the cost after doubling k the number of additions on C.
    additions = [
        (2 * once - more) / size for more, size in zip((doubled[2], doubled[0], doubled[1]), blocks, strict=True)
    ]
    product_count = sum(count for _, count in cost(outer_plan, m, k, n, 1).leaves)
    return product_count, (additions[0], additions[1], additions[2])


def _redistribution_seconds(layout: MeshLayout, canonical: MeshLayout, devices: MeshDevices) -> float:
    """Return the seconds of redistributing A and B from the layout of the operands to the layout of the level."""
    missing = 0
    for operand, target in canonical.blocks_held.items():
        own = layout.blocks_held[operand]
        missing += max(
            (box := target.block_of_rank(rank)).size - own.block_of_rank(rank).intersection(box).size
            for rank in range(layout.process_count)
        )
    return _slowest_link(layout, devices.network).message_seconds(missing * devices.itemsize)


def _part_count_along(mesh: Sequence[int], cuts: CutAxes, axis: int) -> int:
    return prod(side for side, cut in zip(mesh, cuts, strict=True) if cut == axis)
