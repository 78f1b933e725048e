"""The time of a product that several devices share, and the way to share it that takes the least.

A simulation of the layout's own steps: panels of the next piece arrive while this one is multiplied. All devices are
taken for alike, and each step for as long as its slowest device needs. Left out: that sending takes multiprocessors and
memory from the products beside it, that others use the network, and the first call's setting up of connections.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import isqrt, prod

from fmm.distributed.layout import Cuts, K, Layout, M, N, Operand
from fmm.distributed.quadrants import HELD, level_parts, quadrants
from fmm.hardware.links import Link, Network
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.registry import clear_on_registration
from fmm.perfmodel.cost import cost

ABOVE = ("winograd > vendor",)  # levels above that are compared unasked
# A level above is chosen unasked only where it is predicted to save this share of the time. (On two H200s, float32 at
# 32768, one took 1.17 times the predicted seconds, the way without it 1.04 times: messages and products disturb each
# other more often, and the small sums do not reach the rate of large ones.)
LEVEL_MARGIN = 0.15
RECTANGLE_MARGIN = 0.15  # the same of a row of processes that multiplies as a rectangle
WORTH = 1e-3  # seconds from which on pieces and levels are compared: that takes some time itself
REFINED = 3  # of the ways to share the work, the fastest in one piece, that are compared in pieces too
OTHER_PIECES = (2, 4, 8)  # of rows or columns


@dataclass(frozen=True)
class Devices:
    """What the devices are, all alike: seconds of one's product of these sizes, bytes a second that its sums move, how
    they are joined, and bytes of a number."""

    product_seconds: Callable[[int, int, int], float]
    stream: float
    network: Network
    itemsize: int


@dataclass(frozen=True)
class Sharing:
    """One way to share a product: its layout, the level above it, and the predicted seconds and bytes of a device."""

    layout: Layout
    above: Plan
    products: float  # seconds of one device's products
    waiting: float  # and in which it waits for panels
    sums: float  # of the level above, and of products that are added to what C holds
    around: float  # of bringing A and B to where the level above wants them, and C to where it is wanted
    received: float  # bytes, by the device that receives most
    memory: float  # bytes of panels, and of the blocks of the level above
    rectangle: bool = False  # of the processes of a mesh of one dimension, which hold C in a row in the end

    @property
    def seconds(self) -> float:
        return self.products + self.waiting + self.sums + self.around

    def __str__(self) -> str:
        row = ", as a rectangle" if self.rectangle else ""
        return f"{described_work(self.layout)}{row}, {_pieces(self.layout)}{_above(self.above)}"


def described_work(layout: Layout) -> str:
    """By what each dimension of the mesh is cut: "rows by 2, columns by 4"."""
    names = {M: "rows", K: "inner dimension", N: "columns"}
    cuts = [f"{names[axis]} by {side}" for side, axis in zip(layout.mesh, layout.work, strict=True) if axis is not None]
    return ", ".join(cuts) or "everything on each"


def _above(plan: Plan) -> str:
    return "" if plan == VENDOR else f", below {' > '.join(map(str, plan.levels))}"


def _pieces(layout: Layout) -> str:
    if layout.pieces == 1:
        return "in one piece"
    return f"{layout.pieces} pieces of the {('rows', 'inner dimension', 'columns')[layout.along]}"


def predicted_sharing(layout: Layout, above: Plan, devices: Devices) -> Sharing:
    """What this way to share a product takes; PlanError where the level above cannot be done so."""
    if above == VENDOR:
        pipelined = _pipelined(layout, devices)
        return replace(pipelined, around=_added_up(layout, devices))
    return _below_a_level(layout, above, devices)


def ranked_sharings(layout: Layout, devices: Devices, above: Sequence[Plan] | None = None) -> tuple[Sharing, ...]:
    """The ways that are compared, from the fastest down. `above`: the levels among them; PlanError where none can be
    done."""
    works = [replace(layout, work=work, pieces=1) for work in product((M, N, K), repeat=len(layout.mesh))]
    first = [predicted_sharing(candidate, VENDOR, devices) for candidate in works]
    first.sort(key=lambda way: way.seconds)
    plans = (VENDOR, *map(Plan.parse, ABOVE)) if above is None else above
    found, refused = first if VENDOR in plans else [], None
    refined = first[: REFINED if first[0].seconds >= WORTH else 0] if VENDOR in plans else first
    for way in refined:
        for candidate, plan in product(in_pieces(way.layout), plans):
            if candidate.pieces == 1 and plan == VENDOR:
                continue  # it is there already
            try:
                found.append(predicted_sharing(candidate, plan, devices))
            except PlanError as error:
                refused = error
    if refined and VENDOR in plans:
        found.extend(_rectangle_sharings(layout, devices))
    if refused is not None and not found:
        raise refused
    return tuple(sorted(found, key=lambda way: way.seconds))


def chosen_sharing(ways: Sequence[Sharing], room: float) -> Sharing:
    """The first one, of such a list, of which no device has more than so many bytes; a level above, or a rectangle of a
    row of processes, only if it clearly wins. If none fits, the one that needs the least."""
    fitting = [way for way in ways if way.memory <= room]
    if not fitting:
        return min(ways, key=lambda way: way.memory)
    plain = next((way for way in fitting if way.above == VENDOR and not way.rectangle), None)
    if plain is None:
        return fitting[0]
    return next(way for way in fitting if way is plain or way.seconds <= (1 - _margin(way)) * plain.seconds)


def _margin(way: Sharing) -> float:
    return RECTANGLE_MARGIN if way.rectangle else LEVEL_MARGIN if way.above != VENDOR else 0.0


def in_pieces(layout: Layout) -> Iterator[Layout]:
    """The same work in pieces: of the inner dimension as many as it is held in, or twice as many; of rows or columns,
    where one operand need not be sent for."""
    held = max(_parts(layout.mesh, layout.a, 1), _parts(layout.mesh, layout.b, 0))
    every = max(held // max(_parts(layout.mesh, layout.work, K), 1), 1)
    counts = {(K, 1), (K, every), (K, 2 * every), *((axis, count) for axis in (M, N) for count in OTHER_PIECES)}
    sides = layout.m, layout.k, layout.n
    for along, pieces in sorted(counts):
        if pieces <= sides[along]:
            yield replace(layout, pieces=pieces, along=along)


def canonical_layout(layout: Layout) -> Layout:
    """The same work with A and B held as a level above wants them: A as the rows of C, B as its columns."""
    return replace(layout, a=_held_as_wanted("A", layout), b=_held_as_wanted("B", layout))


def _held_as_wanted(operand: Operand, layout: Layout) -> Cuts:
    """As it is, where that will do; else cut."""
    cuts = layout.a if operand == "A" else layout.b
    table = HELD[operand]
    pairs = zip(cuts, layout.work, strict=True)
    return tuple(cut if cut in table[axis] else table[axis][0] for cut, axis in pairs)


# ---- one product in pieces


def _pipelined(layout: Layout, devices: Devices, times: int = 1) -> Sharing:
    """Step by step: panels arrive when those before have arrived and there is room for them, which is when the product
    before the last one is done. `times`: so many such products, the panels of each sent for beside the one before."""
    size = devices.itemsize
    arrived = done = before = products = sums = 0.0
    received: dict[int, float] = defaultdict(float)
    steps = [_one_step(layout, step, devices) for step in range(layout.pieces)]
    for seconds, adding, exchange in steps * times:
        arrived = max(arrived, before) + exchange
        before, done = done, max(done, arrived) + seconds + adding
        products, sums = products + seconds, sums + adding
    for transfer in (each for step in layout.steps for each in step):
        received[transfer.dest] += transfer.box.size * size * times
    waiting = done - products - sums
    return Sharing(
        layout, VENDOR, products, waiting, sums, 0.0, max(received.values(), default=0.0), _panels(layout, size)
    )


def _one_step(layout: Layout, step: int, devices: Devices) -> tuple[float, float, float]:
    """Seconds of the slowest product, of adding it to what C holds, and until all panels are there."""
    sizes = {_sizes(layout, rank, step) for rank in range(layout.ranks)}
    seconds = max(devices.product_seconds(*sides) if 0 not in sides else 0.0 for sides in sizes)
    added = 3 * max(m * n for m, _, n in sizes) * devices.itemsize / devices.stream if layout.along == K else 0.0
    return seconds, added if step else 0.0, _exchange_seconds(layout, step, devices)


def _sizes(layout: Layout, rank: int, step: int) -> tuple[int, int, int]:
    needs = layout.needs(rank, step)
    return needs["A"].rows.size, needs["A"].cols.size, needs["B"].cols.size


def _exchange_seconds(layout: Layout, step: int, devices: Devices) -> float:
    """Until everybody has sent and received what this step wants: links inside and between work at the same time."""
    loads: dict[tuple[int, bool, str], float] = defaultdict(float)
    for transfer in layout.steps[step]:
        used = devices.network.link(transfer.source, transfer.dest)
        for rank, sends in ((transfer.source, True), (transfer.dest, False)):
            loads[rank, sends, used.name] += transfer.box.size * devices.itemsize
    links = {used.name: used for used in (devices.network.inside, devices.network.between)}
    return max((links[name].seconds(sent) for (_, _, name), sent in loads.items()), default=0.0)


def _panels(layout: Layout, itemsize: int) -> float:
    """Bytes of the panels of two steps, but for what a device holds anyway: the first two, or the next two."""
    last = layout.pieces - 1
    pairs = {(0, min(1, last)), (min(1, last), min(2, last))}
    return max(_brought_panels(layout, rank, pair) for rank in range(layout.ranks) for pair in pairs) * itemsize


def _brought_panels(layout: Layout, rank: int, steps: tuple[int, int]) -> int:
    """Numbers in the panels of these steps that a device does not hold; one that stays counts once."""
    every = {(operand, box) for step in steps for operand, box in layout.needs(rank, step).items()}
    return sum(box.size for operand, box in every if layout.holdings[operand].box(rank).shared(box) != box)


def _added_up(layout: Layout, devices: Devices) -> float:
    """Parts of C that several devices have of one block, added up so that each has an equal part of the sum."""
    times = layout.added_over
    if times == 1:
        return 0.0
    block = max(_block(layout, rank) for rank in range(layout.ranks)) * devices.itemsize
    used = _slowest(layout, devices.network)
    return used.seconds(block * (times - 1) / times) + 2 * block / devices.stream


def _block(layout: Layout, rank: int) -> int:
    share = layout.share(rank)
    return share.rows.size * share.cols.size


def _slowest(layout: Layout, network: Network) -> Link:
    return network.inside if layout.ranks <= network.together else network.between


# ---- a row of processes as a rectangle


def rectangles(layout: Layout) -> Iterator[Layout]:
    """The processes of a mesh of one dimension as rows and columns, all of which hold what they held: each computes a
    block of C, of which it has a part of the rows in the end, or of the columns. Only where all parts are of one size.
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
    found = [_as_rectangle(candidate, devices) for candidate in rectangles(layout)]
    if found:
        best = min(found, key=lambda way: way.seconds).layout
        found += [_as_rectangle(candidate, devices) for candidate in in_pieces(best) if candidate.pieces > 1]
    return found


def _as_rectangle(layout: Layout, devices: Devices) -> Sharing:
    """With the blocks of C brought to where a row of processes has them: among those that follow each other."""
    found, side = predicted_sharing(layout, VENDOR, devices), layout.mesh[1]
    block = max(_block(layout, rank) for rank in range(layout.ranks)) * devices.itemsize
    moved = block * (1 - 1 / side)
    around = found.around + devices.network.link(0, side - 1).seconds(moved) + 2 * block / devices.stream
    memory = max(found.memory, 3.0 * block)  # the parts that are sent, those that come, and all of these together
    return replace(found, around=around, received=found.received + moved, memory=memory, rectangle=True)


# ---- below a level


def _below_a_level(layout: Layout, above: Plan, devices: Devices) -> Sharing:
    """Fewer products of blocks, one after the other, and sums of what each device holds."""
    wanted = canonical_layout(layout)
    cut = quadrants(wanted, above)
    size, stream = devices.itemsize, devices.stream
    held = {operand: wanted.holdings[operand].box(0).size for operand in wanted.holdings}
    block = _block(wanted, 0)
    count, additions = level_counts(above)
    every = _pipelined(cut.block, devices, count)
    moved = 3.0 * sum(x * y for x, y in zip(additions, (held["A"], held["B"], block), strict=True))
    packed = 2.0 * (held["A"] + held["B"] + block)  # blocks are copied out of A and B, and into C
    return Sharing(
        wanted,
        above,
        every.products,
        every.waiting,
        (moved + packed) * size / stream + every.sums,
        _brought(layout, wanted, devices) + _added_up(wanted, devices),
        every.received,
        2 * every.memory + packed * size,
    )


@clear_on_registration
@lru_cache(maxsize=64)
def level_counts(above: Plan) -> tuple[int, tuple[float, float, float]]:
    """The products of blocks that levels make, and how often their additions go over A, B and C: from counts of sizes
    of which one is twice as large."""
    parts = level_parts(above)
    m, k, n = parts
    once = cost(above, m, k, n, 1).additions
    doubled = [cost(above, *size, 1).additions for size in ((2 * m, k, n), (m, 2 * k, n), (m, k, 2 * n))]
    blocks = (m * k, k * n, m * n)  # numbers in A, B, C where each block is one number
    # Twice as many rows: twice the additions of A and C, and so on.
    times = [(2 * once - more) / size for more, size in zip((doubled[2], doubled[0], doubled[1]), blocks, strict=True)]
    count = sum(times for _, times in cost(above, m, k, n, 1).leaves)
    return count, (times[0], times[1], times[2])


def _brought(layout: Layout, wanted: Layout, devices: Devices) -> float:
    """Seconds until A and B are held as the level wants them."""
    lacking = 0
    for operand, there in wanted.holdings.items():
        own = layout.holdings[operand]
        lacking += max((box := there.box(rank)).size - own.box(rank).shared(box).size for rank in range(layout.ranks))
    return _slowest(layout, devices.network).seconds(lacking * devices.itemsize)


def _parts(mesh: Sequence[int], cuts: Cuts, axis: int) -> int:
    return prod(side for side, cut in zip(mesh, cuts, strict=True) if cut == axis)
