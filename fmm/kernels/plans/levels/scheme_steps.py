"""The steps of a scheme's level: all sums first, or one product at a time; and the strips that are peeled off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from fmm.kernels.algorithms import additions as programs
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient
from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps.asked import ADDED
from fmm.kernels.plans.steps.blocks import block_side, operand_blocks
from fmm.kernels.plans.steps.level_steps import LevelSteps, Product, ProductBatch, temporary_sizes
from fmm.kernels.plans.steps.sums import Place, Sum, whole_matrix
from fmm.problem import Shape


def _operand_blocks(scheme: Scheme, unit: int | None, sides: Shape) -> tuple[list[Place], list[Place], list[Place]]:
    """The blocks of A, of B and of C."""
    m, k, n = sides
    a, b = operand_blocks("A", m, k, (scheme.m, scheme.k), unit), operand_blocks("B", k, n, (scheme.k, scheme.n), unit)
    return a, b, operand_blocks("C", m, n, (scheme.m, scheme.n), unit)


# ---- all sums first, then the products, then the join


def stacked_steps(
    scheme: Scheme, unit: int | None, inner: Plan, sides: Shape, alpha: Coefficient, beta: Coefficient, batched: bool
) -> LevelSteps:
    """All left operands in one pass over A, all right ones over B, the products, then C in one pass over them."""
    a, b, c = _operand_blocks(scheme, unit, sides)
    left_shape = right_shape = None
    if unit is not None:
        m, k, n = (block_side(length, parts, unit) for length, parts in zip(sides, scheme.size, strict=True))
        left_shape, right_shape = (m, k), (k, n)
    lefts, split_a = _operands("S", scheme.programs.left, scheme.u, a, left_shape, batched)
    rights, split_b = _operands("T", scheme.programs.right, scheme.v, b, right_shape, batched)
    products = _products(lefts, rights, inner, batched)
    program = programs.updating_program(scheme.programs.join, alpha, beta)
    if not batched and not beta:
        products = _at_home(products, program, c)
    join = Sum("join", program, (*(p.dest for p in products), *(c if beta else ())), tuple(c))
    splits = [s for s in (split_a, split_b) if s.writes]
    middle: tuple[Product | ProductBatch, ...] = (ProductBatch(products),) if batched else products
    return LevelSteps(temporary_sizes([*splits, *products]), (*splits, *middle, join))


def _operands(
    letter: str,
    program: AdditionProgram,
    matrix: programs.Matrix,
    blocks: Sequence[Place],
    shape: tuple[int, int] | None,
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
            places.append(whole_matrix(f"{letter}{p + 1}", *(shape or size)))
    written = [i for i, place in enumerate(places) if place.name not in ("A", "B")]
    kept = AdditionProgram(program.inputs, program.lines, tuple(program.outputs[i] for i in written))
    return places, Sum(f"split {blocks[0].name}", kept, tuple(blocks), tuple(places[i] for i in written))


def _products(lefts: Sequence[Place], rights: Sequence[Place], plan: Plan, batched: bool) -> tuple[Product, ...]:
    """Each product into a temporary; columns or rows that the other operand lacks meet only zeros."""
    products = []
    for p, (left, right) in enumerate(zip(lefts, rights, strict=True)):
        k = min(left.cols, right.rows)
        size = left.rows, right.cols
        dest = _layer("M", p, *size) if batched else whole_matrix(f"M{p + 1}", *size)
        products.append(Product(left.cropped(left.rows, k), right.cropped(k, right.cols), dest, plan))
    return tuple(products)


def _at_home(products: Sequence[Product], program: AdditionProgram, blocks: Sequence[Place]) -> tuple[Product, ...]:
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


# ---- one product at a time


def sequential_steps(scheme: Scheme, unit: int | None, inner: Plan, sides: Shape) -> LevelSteps:
    """For any scheme: form the two operands of a product, multiply, add it where it belongs. Three temporaries.

    (A GPU does these steps of a `fused` level in one launch a product, without the temporaries.)
    """
    a, b, c = _operand_blocks(scheme, unit, sides)
    steps: list[Sum | Product] = []
    started: set[int] = set()
    for p in range(scheme.rank):
        left = _operand("S", [row[p] for row in scheme.u], a, steps)
        right = _operand("T", [row[p] for row in scheme.v], b, steps)
        width = min(left.cols, right.rows)
        dest = whole_matrix("M", left.rows, right.cols)
        steps.append(Product(left.cropped(left.rows, width), right.cropped(width, right.cols), dest, inner))
        steps.append(_scatter([row[p] for row in scheme.w], dest, c, started))
    untouched = [block for i, block in enumerate(c) if i not in started]
    if untouched:
        program = AdditionProgram(0, ((),) * len(untouched), tuple(range(len(untouched))))
        steps.append(Sum("clear", program, (), tuple(untouched)))
    return LevelSteps(temporary_sizes(steps), tuple(steps))


def _operand(name: str, column: Sequence[Coefficient], blocks: Sequence[Place], steps: list[Sum | Product]) -> Place:
    parts = [(c, block) for c, block in zip(column, blocks, strict=True) if c]
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    place = whole_matrix(name, max(b.rows for _, b in parts), max(b.cols for _, b in parts))
    program = _one_sum(tuple(c for c, _ in parts))
    steps.append(Sum("sum", program, tuple(b for _, b in parts), (place,)))
    return place


@lru_cache(maxsize=1024)
def _one_sum(coefficients: tuple[Coefficient, ...]) -> AdditionProgram:
    return programs.separate_sums([coefficients], len(coefficients))


def _scatter(column: Sequence[Coefficient], product: Place, blocks: Sequence[Place], started: set[int]) -> Sum:
    """Add a product to the blocks of C that want it; the first time a block is met it is written, not read."""
    wanted = [i for i, c in enumerate(column) if c]
    old = [i for i in wanted if i in started]
    program = _update(tuple((column[i], i in started) for i in wanted))
    started.update(wanted)
    return Sum("add", program, (product, *(blocks[i] for i in old)), tuple(blocks[i] for i in wanted))


@lru_cache(maxsize=1024)
def _update(wanted: tuple[tuple[Coefficient, bool], ...]) -> AdditionProgram:
    """One output a pair (c, old): c times input 0, plus the next of the other inputs if there is an old value."""
    lines: list[programs.Terms] = []
    inputs = 1
    for c, old in wanted:
        lines.append(((1, inputs), (c, 0)) if old else ((c, 0),))
        inputs += old
    return AdditionProgram(inputs, tuple(lines), tuple(range(inputs, inputs + len(lines))))


# ---- the fringe peeled off


def peeled_steps(core: Plan, parts: Shape, sides: Shape) -> LevelSteps:
    """The largest core that divides, then three strips by the leaf, each entry of C's strips computed once."""
    leaf, (m, k, n) = replace(core, levels=()), sides
    mc, kc, nc = (side - side % part for side, part in zip(sides, parts, strict=True))
    if 0 in (mc, kc, nc):
        return LevelSteps(
            (), (Product(whole_matrix("A", m, k), whole_matrix("B", k, n), whole_matrix("C", m, n), leaf),)
        )
    steps = [Product(Place("A", 0, 0, mc, kc), Place("B", 0, 0, kc, nc), Place("C", 0, 0, mc, nc), core)]
    if kc < k:
        inner = Place("A", 0, kc, mc, k - kc), Place("B", kc, 0, k - kc, nc)
        steps.append(Product(*inner, Place("C", 0, 0, mc, nc), leaf, ADDED))
    if nc < n:
        right = Place("A", 0, 0, mc, k), Place("B", 0, nc, k, n - nc)
        steps.append(Product(*right, Place("C", 0, nc, mc, n - nc), leaf))
    if mc < m:
        below = Place("A", mc, 0, m - mc, k), whole_matrix("B", k, n)
        steps.append(Product(*below, Place("C", mc, 0, m - mc, n), leaf))
    return LevelSteps((), tuple(steps))
