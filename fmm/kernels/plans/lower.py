"""Lowering: the recipe of a plan's first level, from the plan and the sizes alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from fmm.kernels.algorithms import additions as programs
from fmm.kernels.algorithms.additions import Coefficient, Program
from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.algorithms.step_table import Step, StepTable
from fmm.kernels.plans.level_steps import OPERANDS, Batch, Place, Product, Recipe, Sum, Updating, whole
from fmm.kernels.plans.plan import Balanced, Level, Plan, PlanError

SCRATCH = "P'"  # a product that no place is free for; no step table can name it


@lru_cache(maxsize=4096)
def lower(plan: Plan, m: int, k: int, n: int, alpha: Coefficient = 1, beta: Coefficient = 0) -> Recipe | None:
    """The recipe of a plan's first level for C = alpha A B + beta C; None where the leaf itself does just that."""
    if not plan.levels:
        return None if (alpha, beta) == (1, 0) else _updated_leaf(plan, m, k, n, alpha, beta)
    first = plan.levels[0]
    if isinstance(first, Level) and first.traversal not in ("sequential", "fused") and first.fringe != "peel":
        return _stacked(plan, first, m, k, n, alpha, beta)
    if (alpha, beta) != (1, 0):
        return _updated(plan, m, k, n, alpha, beta)
    if isinstance(first, Balanced):
        return _balanced(plan, first, m, k, n)
    if first.fringe == "peel":
        return _peeled(plan, first, m, k, n)
    return _sequential(plan, first, m, k, n) if first.scheme else _tabled(plan, first, m, k, n)


# ---- cutting


def cuts(length: int, parts: int, unit: int | None) -> list[tuple[int, int]]:
    """(start, size) of each part: sizes differing by at most one (no unit), or all but the last ones equal."""
    if unit is None:
        small, larger = divmod(length, parts)
        sizes = [small + (i < larger) for i in range(parts)]
    else:
        full = side(length, parts, unit)
        sizes = [min(full, max(length - i * full, 0)) for i in range(parts)]
    starts = [min(sum(sizes[:i]), length) for i in range(parts)]
    return list(zip(starts, sizes, strict=True))


def side(length: int, parts: int, unit: int) -> int:
    """The side of equal blocks: enough for all, and a multiple of the unit."""
    return -(-length // (parts * unit)) * unit


def grid(name: str, rows: int, cols: int, parts: tuple[int, int], level: Level) -> list[Place]:
    """The blocks of an operand, in row-major order."""
    unit = None if level.fringe == "unequal" else level.unit
    across = cuts(cols, parts[1], unit)
    return [Place(name, r, c, h, w) for r, h in cuts(rows, parts[0], unit) for c, w in across]


# ---- schemes, stacked


def _stacked(plan: Plan, level: Level, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> Recipe:
    """All left operands in one pass over A, all right ones over B, the products, then C in one pass over them."""
    scheme, batched = _scheme(level), level.traversal == "batched"
    sides = tuple(side(x, parts, level.unit) for x, parts in zip((m, k, n), level.size, strict=True))
    a = grid("A", m, k, (scheme.m, scheme.k), level)
    b = grid("B", k, n, (scheme.k, scheme.n), level)
    c = grid("C", m, n, (scheme.m, scheme.n), level)
    shapes = (None, None) if level.fringe == "unequal" else (sides[:2], sides[1:])
    lefts, split_a = _operands("S", scheme.programs.left, scheme.u, a, shapes[0], batched)
    rights, split_b = _operands("T", scheme.programs.right, scheme.v, b, shapes[1], batched)
    products = _products(lefts, rights, plan.rest, batched)
    program = programs.updating(scheme.programs.join, alpha, beta)
    if not batched and not beta:
        products = _at_home(products, program, c)
    join = Sum("join", program, (*(p.dest for p in products), *(c if beta else ())), tuple(c))
    splits = [s for s in (split_a, split_b) if s.writes]
    middle: tuple[Product | Batch, ...] = (Batch(products),) if batched else products
    return Recipe(_temporaries([*splits, *products]), (*splits, *middle, join), level.lanes)


def _operands(
    letter: str,
    program: Program,
    matrix: programs.Matrix,
    blocks: Sequence[Place],
    shape: tuple[int, ...] | None,
    batched: bool,
) -> tuple[list[Place], Sum]:
    """Where each operand stands: a block read in place if it needs no sum, else a temporary that the split writes.

    With a `shape`, all temporaries have it, and a block at the edge that is smaller is copied too; in a batch every
    operand is copied into one tall temporary.
    """
    places: list[Place] = []
    for p, column in enumerate(zip(*matrix, strict=True)):
        parts = [b for b, c in zip(blocks, column, strict=True) if c]
        size = max(b.rows for b in parts), max(b.cols for b in parts)
        if not batched and size == (shape or size) and program.outputs[p] < program.inputs:
            places.append(blocks[program.outputs[p]])
        elif batched:
            places.append(_layer(letter, p, *(shape or size)))
        else:
            places.append(whole(f"{letter}{p + 1}", *(shape or size)))
    written = [i for i, place in enumerate(places) if place.name not in ("A", "B")]
    kept = Program(program.inputs, program.lines, tuple(program.outputs[i] for i in written))
    return places, Sum(f"split {blocks[0].name}", kept, tuple(blocks), tuple(places[i] for i in written))


def _products(lefts: Sequence[Place], rights: Sequence[Place], plan: Plan, batched: bool) -> tuple[Product, ...]:
    """Each product into a temporary; columns or rows that the other operand lacks meet only zeros."""
    products = []
    for p, (left, right) in enumerate(zip(lefts, rights, strict=True)):
        k = min(left.cols, right.rows)
        size = left.rows, right.cols
        dest = _layer("M", p, *size) if batched else whole(f"M{p + 1}", *size)
        products.append(Product(left.cropped(left.rows, k), right.cropped(k, right.cols), dest, plan))
    return tuple(products)


def _at_home(products: Sequence[Product], program: Program, blocks: Sequence[Place]) -> tuple[Product, ...]:
    """The products, as many as possible computed where a block of C belongs: the join then adds to what stands there.

    A block can be lent to a product that no line of the join reads after the block's own line. This saves memory, and
    time: a pass that writes over what it has just read need not fetch the lines that it writes.
    """
    last = {v: line for line, terms in enumerate(program.lines, program.inputs) for _, v in terms}
    homes: dict[int, Place] = {}
    for line, block in sorted(zip(program.outputs, blocks, strict=True), key=lambda pair: pair[0]):
        size = block.rows, block.cols
        lent = [
            p
            for p, product in enumerate(products)
            if p not in homes and (product.dest.rows, product.dest.cols) == size and last.get(p, line) <= line
        ]
        if lent:
            homes[max(lent, key=lambda p: last.get(p, line))] = block
    return tuple(replace(product, dest=homes.get(p, product.dest)) for p, product in enumerate(products))


def _layer(name: str, index: int, rows: int, cols: int) -> Place:
    """One of equal blocks that stand on top of each other in one tall temporary."""
    return Place(name, index * rows, 0, rows, cols)


# ---- schemes, one product at a time


def _sequential(plan: Plan, level: Level, m: int, k: int, n: int) -> Recipe:
    """For any scheme: form the two operands of a product, multiply, add it where it belongs. Three temporaries.

    (A GPU does these steps of a `fused` level in one launch a product, without the temporaries.)
    """
    scheme = _scheme(level)
    a = grid("A", m, k, (scheme.m, scheme.k), level)
    b = grid("B", k, n, (scheme.k, scheme.n), level)
    c = grid("C", m, n, (scheme.m, scheme.n), level)
    steps: list[Sum | Product] = []
    started: set[int] = set()
    for p in range(scheme.rank):
        left = _operand("S", [row[p] for row in scheme.u], a, steps)
        right = _operand("T", [row[p] for row in scheme.v], b, steps)
        width = min(left.cols, right.rows)
        dest = whole("M", left.rows, right.cols)
        steps.append(Product(left.cropped(left.rows, width), right.cropped(width, right.cols), dest, plan.rest))
        steps.append(_scatter([row[p] for row in scheme.w], dest, c, started))
    untouched = [block for i, block in enumerate(c) if i not in started]
    if untouched:
        steps.append(
            Sum(
                "clear",
                Program(0, ((),) * len(untouched), tuple(range(len(untouched)))),
                (),
                tuple(untouched),
            )
        )
    return Recipe(_temporaries(steps), tuple(steps))


def _operand(name: str, column: Sequence[Coefficient], blocks: Sequence[Place], steps: list[Sum | Product]) -> Place:
    parts = [(c, block) for c, block in zip(column, blocks, strict=True) if c]
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    place = whole(name, max(b.rows for _, b in parts), max(b.cols for _, b in parts))
    program = _one_sum(tuple(c for c, _ in parts))
    steps.append(Sum("sum", program, tuple(b for _, b in parts), (place,)))
    return place


@lru_cache(maxsize=1024)
def _one_sum(coefficients: tuple[Coefficient, ...]) -> Program:
    return programs.plain([coefficients], len(coefficients))


def _scatter(column: Sequence[Coefficient], product: Place, blocks: Sequence[Place], started: set[int]) -> Sum:
    """Add a product to the blocks of C that want it; the first time a block is met it is written, not read."""
    wanted = [i for i, c in enumerate(column) if c]
    old = [i for i in wanted if i in started]
    program = _update(tuple((column[i], i in started) for i in wanted))
    started.update(wanted)
    return Sum("add", program, (product, *(blocks[i] for i in old)), tuple(blocks[i] for i in wanted))


@lru_cache(maxsize=1024)
def _update(wanted: tuple[tuple[Coefficient, bool], ...]) -> Program:
    """One output a pair (c, old): c times input 0, plus the next of the other inputs if there is an old value."""
    lines: list[programs.Terms] = []
    inputs = 1
    for c, old in wanted:
        lines.append(((1, inputs), (c, 0)) if old else ((c, 0),))
        inputs += old
    return Program(inputs, tuple(lines), tuple(range(inputs, inputs + len(lines))))


def _temporaries(steps: Sequence[Sum | Product | Updating]) -> tuple[tuple[str, int, int], ...]:
    """Each temporary large enough for every rectangle that it holds."""
    sizes: dict[str, tuple[int, int]] = {}
    for step in steps:
        update = step.update if isinstance(step, Updating) else step
        for place in update.writes if isinstance(update, Sum) else (update.dest,):
            if place.name not in OPERANDS:
                rows, cols = sizes.get(place.name, (0, 0))
                sizes[place.name] = max(rows, place.row + place.rows), max(cols, place.col + place.cols)
    return tuple((name, *size) for name, size in sizes.items())


# ---- step tables


def _tabled(plan: Plan, level: Level, m: int, k: int, n: int) -> Recipe:
    """A paper's table with its places sized. With `pad`, a C that does not divide is computed in a padded temporary."""
    table = level.table
    assert table is not None
    parts = table.size
    shape = (m, n)
    if level.fringe != "unequal":
        shape = side(m, parts[0], level.unit) * parts[0], side(n, parts[2], level.unit) * parts[2]
    padded = shape != (m, n)
    blocks = {
        **_named(grid("A", m, k, parts[:2], level), parts[1]),
        **_named(grid("B", k, n, parts[1:], level), parts[2]),
        **_named(grid("C'" if padded else "C", *shape, (parts[0], parts[2]), level), parts[2]),
    }
    full = None if level.fringe == "unequal" else _full_sides(level, m, k, n)
    steps = _Sizing(table, blocks, plan.rest, full).run()
    if padded:
        result = whole("C'", *shape).cropped(m, n)
        steps.append(Sum("crop", _COPY, (result,), (whole("C", m, n),)))
        return Recipe((("C'", *shape), *(t for t in _temporaries(steps) if t[0] != "C'")), tuple(steps))
    return Recipe(_temporaries(steps), tuple(steps))


_COPY = Program(1, (), (0,))


def _full_sides(level: Level, m: int, k: int, n: int) -> dict[str, tuple[int, int]]:
    """Rows and columns of padded sums of A and of B: whole blocks, so that the next level's shapes are regular too."""
    rows, inner, cols = (side(x, parts, level.unit) for x, parts in zip((m, k, n), level.size, strict=True))
    return {"A": (rows, inner), "B": (inner, cols)}


def _named(blocks: Sequence[Place], columns: int) -> dict[str, Place]:
    letter = blocks[0].name[0]
    return {f"{letter}{i // columns + 1}{i % columns + 1}": block for i, block in enumerate(blocks)}


class _Sizing:
    """Walks a table once, keeping for every place the rectangle that it holds at the moment."""

    def __init__(
        self, table: StepTable, blocks: dict[str, Place], plan: Plan, full: dict[str, tuple[int, int]] | None
    ) -> None:
        self.table, self.blocks, self.plan, self.full = table, blocks, plan, full or {}
        self.held = {name: place for name, place in blocks.items() if name[0] in "AB"}
        # Is what a place holds a sum of A, a sum of B, or part of C? Only the last may be cropped to its block.
        self.kind = {name: name[0] for name in self.held}
        self.steps: list[Sum | Product | Updating] = []

    def run(self) -> list[Sum | Product | Updating]:
        for step in self.table.steps:
            self._step(step)
        return self.steps

    def _step(self, step: Step) -> None:
        sources = [self.held[step.bound[f]] for f in step.kernel.reads]
        kind = max((self.kind[step.bound[f]] for f in step.kernel.reads), default="C")
        product = self._product(step) if step.kernel.product else None
        if product is not None:
            sources.insert(0, product.dest)
            kind = "C"
        writes = []
        for name, needs in zip(step.writes, step.kernel.dependencies, strict=True):
            size = max(sources[i].rows for i in needs), max(sources[i].cols for i in needs)
            writes.append(self._place(name, *self.full.get(kind, size), kind, step))
        self._emit(product, Sum(step.kernel.name, step.kernel.program, tuple(sources), tuple(writes)))

    def _emit(self, product: Product | None, update: Sum) -> None:
        """A product by the tiled kernel does the sums on its way, if what they read and write is alike."""
        if product is None:
            self.steps += [tidied] if (tidied := update.tidied).writes else []
        elif _sums_inside(product.plan) and _alike((*update.reads[1:], *update.writes)):
            self.steps.append(Updating(product, update))
        else:
            self.steps += Updating(product, update).apart

    def _product(self, step: Step) -> Product:
        """The product; into a place that the kernel overwrites if there is one, else into scratch."""
        left, right = (self.held[step.bound[f]] for f in step.kernel.product or ())
        width = min(left.cols, right.rows)
        free = [f for f in step.kernel.writes if f not in step.kernel.reads]
        if free:
            dest = self._place(step.bound[free[0]], left.rows, right.cols, "C", step)
        else:
            dest = whole(SCRATCH, left.rows, right.cols)
        return Product(left.cropped(dest.rows, width), right.cropped(width, dest.cols), dest, self.plan)

    def _place(self, name: str, rows: int, cols: int, kind: str, step: Step) -> Place:
        block = self.blocks.get(name)
        place = whole(name, rows, cols) if block is None else block.cropped(rows, cols)
        if kind != "C" and (place.rows, place.cols) != (rows, cols):
            raise PlanError(
                f"{self.table.name} keeps a {rows} x {cols} sum in {name}, which is only {place.rows} x {place.cols}, "
                f"at {step}; use a table with temporaries of its own (hasa, adaptive-winograd) or another scheme"
            )
        self.held[name], self.kind[name] = place, kind
        return place


def _sums_inside(plan: Plan) -> bool:
    """Is it a leaf that can do sums in its products?"""
    return not plan.levels and plan.leaf_use.leaf.sums_inside


def _alike(places: Sequence[Place]) -> bool:
    """Do all lie as C does, and is each of one size, whether it is read or written?"""
    spots = {(p.name, p.row, p.col) for p in places}
    return len(spots) == len(set(places)) and not any(p.name in "AB" for p in places)


# ---- fringes, halving, alpha and beta


def _peeled(plan: Plan, level: Level, m: int, k: int, n: int) -> Recipe:
    """The largest core that divides, then three strips by the leaf, each entry of C's strips computed once."""
    core = Plan((replace(level, fringe="pad"), *plan.levels[1:]), plan.leaf)
    leaf = Plan((), plan.leaf)
    mc, kc, nc = (side - side % part for side, part in zip((m, k, n), level.size, strict=True))
    if 0 in (mc, kc, nc):
        return Recipe((), (Product(whole("A", m, k), whole("B", k, n), whole("C", m, n), leaf),))
    steps = [Product(Place("A", 0, 0, mc, kc), Place("B", 0, 0, kc, nc), Place("C", 0, 0, mc, nc), core)]
    if kc < k:
        inner = Place("A", 0, kc, mc, k - kc), Place("B", kc, 0, k - kc, nc)
        steps.append(Product(*inner, Place("C", 0, 0, mc, nc), leaf, accumulate=True))
    if nc < n:
        steps.append(
            Product(Place("A", 0, 0, mc, k), Place("B", 0, nc, k, n - nc), Place("C", 0, nc, mc, n - nc), leaf)
        )
    if mc < m:
        steps.append(Product(Place("A", mc, 0, m - mc, k), whole("B", k, n), Place("C", mc, 0, m - mc, n), leaf))
    return Recipe((), tuple(steps))


def _balanced(plan: Plan, level: Balanced, m: int, k: int, n: int) -> Recipe:
    """One halving of Table 1 (or none: then the rest of the plan does the whole)."""
    side = level.side(m, k, n)
    a, b, c = whole("A", m, k), whole("B", k, n), whole("C", m, n)
    if side is None:
        return Recipe((), (Product(a, b, c, plan.rest),))
    pieces = {"m": (2, 1, 1), "k": (1, 2, 1), "n": (1, 1, 2)}[side]
    halves = Level("classical")  # for its fringe alone: the two halves may differ by one row or column
    lefts, rights = grid("A", m, k, pieces[:2], halves), grid("B", k, n, pieces[1:], halves)
    dests = grid("C", m, n, (pieces[0], pieces[2]), halves)
    steps = [
        Product(
            lefts[i % len(lefts)],
            rights[i % len(rights)],
            dests[i % len(dests)],
            plan,
            side == "k" and i == 1,
        )
        for i in range(2)
    ]
    return Recipe((), tuple(steps))


PANEL = 1 << 20  # elements: an updating leaf computes this much of A B at a time, so that its scratch stays small


def _updated_leaf(plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> Recipe:
    """C = alpha A B + beta C in bands of rows: the leaf has no beta, and a scratch as large as C would cost more."""
    height = max(min(m, PANEL // max(n, 1)), 1)
    program = programs.updating(_COPY, alpha, beta)
    steps: list[Sum | Product] = []
    for row in range(0, m, height):
        rows = min(height, m - row)
        scratch, band = whole("P", rows, n), Place("C", row, 0, rows, n)
        steps.append(Product(Place("A", row, 0, rows, k), whole("B", k, n), scratch, plan))
        steps.append(Sum("update", program, (scratch, band) if beta else (scratch,), (band,)))
    return Recipe(_temporaries(steps), tuple(steps))


def _updated(plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> Recipe:
    """C = alpha A B + beta C around a level that uses C as scratch: the product goes to a temporary first."""
    product, c = whole("D", m, n), whole("C", m, n)
    program = programs.updating(_COPY, alpha, beta)
    update = Sum("update", program, (product, c) if beta else (product,), (c,))
    return Recipe((("D", m, n),), (Product(whole("A", m, k), whole("B", k, n), product, plan), update))


def _scheme(level: Level) -> Scheme:
    assert level.scheme is not None
    return level.scheme
