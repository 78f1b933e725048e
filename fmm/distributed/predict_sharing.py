"""The predicted time of a product that several devices share, and the choice of the fastest sharing.

The layout's steps are simulated: the panels of the next step arrive while this one is multiplied. All devices are taken
to be equal, and each step takes as long as its slowest device. Left out are the multiprocessors and the memory that
messages take from concurrent products, other users of the network, and the first call's connection set-up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import isqrt, prod
from typing import NamedTuple

from fmm.distributed.layout import Cuts, K, Layout, M, N, Operand
from fmm.distributed.quadrants import ALLOWED_CUTS, level_parts, quadrants
from fmm.hardware.links import Link, Network
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.registry import clear_on_registration
from fmm.perfmodel.cost import cost

DEFAULT_LEVELS = ("winograd > vendor",)  # levels above that are candidates by default
# A level above is chosen by default only if it is predicted to save this share of the time. (On two H200s, float32 at
# 32768, a level took 1.17 times its predicted seconds, the sharing without it 1.04 times: messages and products
# interfere more often, and small sums do not run at the rate of large ones.)
LEVEL_MARGIN = 0.15
RECTANGLE_MARGIN = 0.15  # the same for a one-dimensional mesh that multiplies as a rectangle
COMPARED_SECONDS = 1e-3  # predicted seconds from which pieces and levels are compared: comparing takes time itself
REFINED_SHARINGS = 3  # of the fastest one-piece sharings, the number that are compared in pieces too
OTHER_PIECES = (2, 4, 8)  # numbers of pieces of rows or columns


ProductSeconds = Callable[[int, int, int], float]  # of one device's m x k by k x n product


class LocalConditions(NamedTuple):
    """The conditions under which a device's own products run."""

    held_bytes: float  # panels and blocks in the device's memory beside the operands and C
    above: Plan
    pieces: int


@dataclass(frozen=True)
class Devices:
    """Equal devices and their network."""

    product_seconds: ProductSeconds
    stream: float  # bytes a second that sums move
    network: Network
    itemsize: int  # bytes of a number
    product_seconds_beside: Callable[[LocalConditions], ProductSeconds] | None = None  # None: no limits

    def beside(self, conditions: LocalConditions) -> Devices:
        """Return the devices with the seconds of the products that run under these conditions."""
        if self.product_seconds_beside is None:
            return self
        return replace(self, product_seconds=self.product_seconds_beside(conditions))


@dataclass(frozen=True)
class Sharing:
    """A candidate: its layout, the level above it, and the predicted seconds and bytes of one device."""

    layout: Layout
    above: Plan
    products: float  # seconds of one device's products
    waiting: float  # seconds of waiting for panels
    sums: float  # seconds of the level's sums, and of adding products to C
    around: float  # seconds of redistributing A and B before the products, and C after them
    received: float  # bytes of the device that receives most
    memory: float  # bytes of panels and of the level's blocks
    held_bytes: float  # the part of that memory that is held while a device's own products run
    rectangle: bool = False  # a one-dimensional mesh multiplies as two-dimensional, then C is redistributed

    @property
    def conditions(self) -> LocalConditions:
        """The conditions under which a device's own products run."""
        return LocalConditions(self.held_bytes, self.above, self.layout.pieces)

    @property
    def seconds(self) -> float:
        """The predicted seconds of the product."""
        return self.products + self.waiting + self.sums + self.around

    def __str__(self) -> str:
        layout = self.layout
        rectangle = ", as a rectangle" if self.rectangle else ""
        axis = ("rows", "inner dimension", "columns")[layout.along]
        pieces = "in one piece" if layout.pieces == 1 else f"{layout.pieces} pieces of the {axis}"
        above = "" if self.above == VENDOR else f", below {' > '.join(map(str, self.above.levels))}"
        return f"{describe_work(layout)}{rectangle}, {pieces}{above}"


def describe_work(layout: Layout) -> str:
    """Return the cuts of the work as text, for example "rows by 2, columns by 4"."""
    names = {M: "rows", K: "inner dimension", N: "columns"}
    cuts = [f"{names[axis]} by {side}" for side, axis in zip(layout.mesh, layout.work, strict=True) if axis is not None]
    return ", ".join(cuts) or "everything on each"


def predict_layout(layout: Layout, above: Plan, devices: Devices) -> Sharing:
    """Return the prediction of one candidate; raise PlanError if its layout does not allow the level above."""
    if above == VENDOR:
        panels = _panel_bytes(layout, devices.itemsize)
        local = devices.beside(LocalConditions(panels, VENDOR, layout.pieces))
        return replace(_pipelined(layout, local), around=_reduction_seconds(layout, devices))
    return _below_level(layout, above, devices)


def rank_sharings(layout: Layout, devices: Devices, above: Sequence[Plan] | None = None) -> tuple[Sharing, ...]:
    """Return the candidates, the fastest first, with these levels above; raise PlanError if none is possible."""
    works = [replace(layout, work=work, pieces=1) for work in product((M, N, K), repeat=len(layout.mesh))]
    first = [predict_layout(candidate, VENDOR, devices) for candidate in works]
    first.sort(key=lambda sharing: sharing.seconds)
    plans = (VENDOR, *map(Plan.parse, DEFAULT_LEVELS)) if above is None else above
    candidates, plan_error = first if VENDOR in plans else [], None
    refined = first[: REFINED_SHARINGS if first[0].seconds >= COMPARED_SECONDS else 0] if VENDOR in plans else first
    for sharing in refined:
        for candidate, plan in product(in_pieces(sharing.layout), plans):
            if candidate.pieces == 1 and plan == VENDOR:
                continue  # among the candidates already
            try:
                candidates.append(predict_layout(candidate, plan, devices))
            except PlanError as error:
                plan_error = error
    if refined and VENDOR in plans:
        candidates.extend(_rectangle_sharings(layout, devices))
    if plan_error is not None and not candidates:
        raise plan_error
    return tuple(sorted(candidates, key=lambda sharing: sharing.seconds))


def choose_sharing(ranked: Sequence[Sharing], memory_limit: float) -> Sharing:
    """Return the fastest candidate that fits into this memory (bytes); the smallest if none fits.

    A level above, or a rectangle, must win by its margin.
    """
    fitting = [sharing for sharing in ranked if sharing.memory <= memory_limit]
    if not fitting:
        return min(ranked, key=lambda sharing: sharing.memory)
    plain = next((sharing for sharing in fitting if sharing.above == VENDOR and not sharing.rectangle), None)
    if plain is None:
        return fitting[0]
    for sharing in fitting:
        margin = RECTANGLE_MARGIN if sharing.rectangle else LEVEL_MARGIN if sharing.above != VENDOR else 0.0
        if sharing.seconds <= (1 - margin) * plain.seconds:
            return sharing
    return plain


def in_pieces(layout: Layout) -> Iterator[Layout]:
    """Yield the same work in steps.

    The inner dimension is cut into the parts that processes hold, or into twice as many; rows or columns into a few
    pieces, with which one operand's panel is constant.
    """
    held = max(_parts_along(layout.mesh, layout.a, 1), _parts_along(layout.mesh, layout.b, 0))
    local = max(held // max(_parts_along(layout.mesh, layout.work, K), 1), 1)
    counts = {(K, 1), (K, local), (K, 2 * local), *((axis, count) for axis in (M, N) for count in OTHER_PIECES)}
    sides = layout.m, layout.k, layout.n
    for along, pieces in sorted(counts):
        if pieces <= sides[along]:
            yield replace(layout, pieces=pieces, along=along)


def canonical_layout(layout: Layout) -> Layout:
    """Return the same work with the cuts that a level above needs: A like the rows of C, B like its columns."""

    def canonical_cuts(operand: Operand, cuts: Cuts) -> Cuts:
        table, pairs = ALLOWED_CUTS[operand], zip(cuts, layout.work, strict=True)
        return tuple(cut if cut in table[axis] else table[axis][0] for cut, axis in pairs)

    return replace(layout, a=canonical_cuts("A", layout.a), b=canonical_cuts("B", layout.b))


# ---- one product in steps


def _pipelined(layout: Layout, devices: Devices, times: int = 1) -> Sharing:
    """Return the prediction of `times` products in a row, each in the layout's steps.

    The panels of a step arrive after those of the step before, and once the product before the last one has freed their
    memory. The first panels of the next product arrive during the last product.
    """
    itemsize = devices.itemsize
    arrived = done = before = products = sums = 0.0
    received: dict[int, float] = defaultdict(float)
    steps = [_step_seconds(layout, step, devices) for step in range(layout.pieces)]
    for seconds, adding, exchange in steps * times:
        arrived = max(arrived, before) + exchange
        before, done = done, max(done, arrived) + seconds + adding
        products, sums = products + seconds, sums + adding
    for transfer in (each for step in layout.steps for each in step):
        received[transfer.dest] += transfer.box.size * itemsize * times
    waiting = done - products - sums
    most_received = max(received.values(), default=0.0)
    panels = _panel_bytes(layout, itemsize)
    return Sharing(layout, VENDOR, products, waiting, sums, 0.0, most_received, panels, panels)


def _step_seconds(layout: Layout, step: int, devices: Devices) -> tuple[float, float, float]:
    """Return the seconds of the slowest product, of adding it to C, and until all panels have arrived."""
    sizes = set()
    for rank in range(layout.ranks):
        panels = layout.needs(rank, step)
        sizes.add((panels["A"].rows.size, panels["A"].cols.size, panels["B"].cols.size))
    seconds = max(devices.product_seconds(*sides) if 0 not in sides else 0.0 for sides in sizes)
    adding = 3 * max(m * n for m, _, n in sizes) * devices.itemsize / devices.stream if layout.along == K else 0.0
    return seconds, adding if step else 0.0, _exchange_seconds(layout, step, devices)


def _exchange_seconds(layout: Layout, step: int, devices: Devices) -> float:
    """Return the seconds until all messages of a step have arrived.

    Links inside machines and between them work concurrently, and each link works in both directions.
    """
    loads: dict[tuple[int, bool, str], float] = defaultdict(float)
    for transfer in layout.steps[step]:
        used = devices.network.link(transfer.source, transfer.dest)
        for rank, sends in ((transfer.source, True), (transfer.dest, False)):
            loads[rank, sends, used.name] += transfer.box.size * devices.itemsize
    links = {used.name: used for used in (devices.network.inside, devices.network.between)}
    return max((links[name].seconds(sent) for (_, _, name), sent in loads.items()), default=0.0)


def _panel_bytes(layout: Layout, itemsize: int) -> float:
    """Return the most bytes of received panels of two consecutive steps: the first two steps, or the next two."""
    last = layout.pieces - 1
    pairs = {(0, min(1, last)), (min(1, last), min(2, last))}
    most = 0
    for rank, steps in product(range(layout.ranks), pairs):
        panels = {(operand, box) for step in steps for operand, box in layout.needs(rank, step).items()}
        received = (box for operand, box in panels if layout.holdings[operand].box(rank).shared(box) != box)
        most = max(most, sum(box.size for box in received))
    return most * itemsize


def _reduction_seconds(layout: Layout, devices: Devices) -> float:
    """Return the seconds of a reduce-scatter of C, if several devices compute summands of the same block."""
    times = layout.added_over
    if times == 1:
        return 0.0
    block = _largest_block(layout) * devices.itemsize
    return _slowest_link(layout, devices.network).seconds(block * (times - 1) / times) + 2 * block / devices.stream


def _largest_block(layout: Layout) -> int:
    """Return the numbers of the largest block of C."""
    shares = (layout.share(rank) for rank in range(layout.ranks))
    return max(share.rows.size * share.cols.size for share in shares)


def _slowest_link(layout: Layout, network: Network) -> Link:
    return network.inside if layout.ranks <= network.together else network.between


# ---- a one-dimensional mesh as a rectangle


def rectangles(layout: Layout) -> Iterator[Layout]:
    """Yield layouts of a one-dimensional mesh as rows and columns, with the same holdings.

    Each process computes a block of C; at the end C is cut by rows, or by columns. Only if all parts have one size.
    """
    if len(layout.mesh) > 1:
        return
    ranks, (a,), (b,) = layout.ranks, layout.a, layout.b
    short = max(side for side in range(1, isqrt(ranks) + 1) if ranks % side == 0)
    held = (layout.m, layout.k, 0)[2 if a is None else a], (layout.k, layout.n, 0)[2 if b is None else b]
    for (outer, inner), side in (((M, N), layout.m), ((N, M), layout.n)):
        if short > 1 and not any(size % ranks for size in (*held, side)):
            yield replace(layout, mesh=(short, ranks // short), a=(a, a), b=(b, b), work=(outer, inner), pieces=1)


def _rectangle_sharings(layout: Layout, devices: Devices) -> list[Sharing]:
    sharings = [_as_rectangle(candidate, devices) for candidate in rectangles(layout)]
    if sharings:
        best = min(sharings, key=lambda sharing: sharing.seconds).layout
        sharings += [_as_rectangle(candidate, devices) for candidate in in_pieces(best) if candidate.pieces > 1]
    return sharings


def _as_rectangle(layout: Layout, devices: Devices) -> Sharing:
    """Return the prediction of a rectangle; its blocks of C are redistributed among consecutive processes."""
    sharing, side = predict_layout(layout, VENDOR, devices), layout.mesh[1]
    block = _largest_block(layout) * devices.itemsize
    moved = block * (1 - 1 / side)
    around = sharing.around + devices.network.link(0, side - 1).seconds(moved) + 2 * block / devices.stream
    memory = max(sharing.memory, 3.0 * block)  # the parts sent, the parts received, and the joined block
    return replace(sharing, around=around, received=sharing.received + moved, memory=memory, rectangle=True)


# ---- below a level


def _below_level(layout: Layout, above: Plan, devices: Devices) -> Sharing:
    """Return the prediction of a level: fewer products of blocks, one after the other, and sums of local numbers."""
    canonical = canonical_layout(layout)
    cut = quadrants(canonical, above)
    itemsize, stream = devices.itemsize, devices.stream
    held = {operand: canonical.holdings[operand].box(0).size for operand in canonical.holdings}
    share = canonical.share(0)
    block = share.rows.size * share.cols.size
    count, additions = level_counts(above)
    summed = 3.0 * sum(x * y for x, y in zip(additions, (held["A"], held["B"], block), strict=True))
    packed = 2.0 * (held["A"] + held["B"] + block)  # blocks are copied out of A and B, and into C
    memory = 2 * _panel_bytes(cut.block, itemsize) + packed * itemsize
    local = devices.beside(LocalConditions(memory, above, canonical.pieces))
    products = _pipelined(cut.block, local, count)
    return Sharing(
        canonical,
        above,
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
def level_counts(above: Plan) -> tuple[int, tuple[float, float, float]]:
    """Return the number of products of blocks, and the additions of each number of A, of B and of C.

    They are derived from the costs of a size and of the sizes with one side doubled.
    """
    parts = level_parts(above)
    m, k, n = parts
    once = cost(above, m, k, n, 1).additions
    doubled = [cost(above, *size, 1).additions for size in ((2 * m, k, n), (m, 2 * k, n), (m, k, 2 * n))]
    blocks = (m * k, k * n, m * n)  # numbers in A, B, C where each block is one number
    # Doubling m doubles the additions of A and C; doubling k, those of A and B; doubling n, those of B and C.
    times = [(2 * once - more) / size for more, size in zip((doubled[2], doubled[0], doubled[1]), blocks, strict=True)]
    count = sum(times for _, times in cost(above, m, k, n, 1).leaves)
    return count, (times[0], times[1], times[2])


def _redistribution_seconds(layout: Layout, canonical: Layout, devices: Devices) -> float:
    """Return the seconds until A and B have the canonical holdings."""
    missing = 0
    for operand, target in canonical.holdings.items():
        own = layout.holdings[operand]
        missing += max((box := target.box(rank)).size - own.box(rank).shared(box).size for rank in range(layout.ranks))
    return _slowest_link(layout, devices.network).seconds(missing * devices.itemsize)


def _parts_along(mesh: Sequence[int], cuts: Cuts, axis: int) -> int:
    return prod(side for side, cut in zip(mesh, cuts, strict=True) if cut == axis)
