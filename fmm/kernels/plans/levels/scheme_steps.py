"""Compute the steps of a level: a scheme (stacked or sequential), a step table, or the products of a peeled fringe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from fmm.kernels.algorithms import additions as programs
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient
from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.algorithms.step_table import StepTable, TableStep
from fmm.kernels.plans.gemm_params import ACCUMULATE
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.kernels.plans.steps import LevelSteps, Product, ProductBatch, ProductWithSums, temporary_sizes
from fmm.kernels.plans.sums import COPY_PROGRAM, Place, Sum, block_side, operand_blocks, whole_matrix
from fmm.problem import Shape


def _blocks_of_operands(scheme: Scheme, unit: int | None, sides: Shape) -> tuple[list[Place], list[Place], list[Place]]:
    """Return three lists: the blocks of A, of B and of C."""
    m, k, n = sides
    a, b = operand_blocks("A", m, k, (scheme.m, scheme.k), unit), operand_blocks("B", k, n, (scheme.k, scheme.n), unit)
    return a, b, operand_blocks("C", m, n, (scheme.m, scheme.n), unit)


# ---- all sums first, then the products, then the join


def split_multiply_join_steps(
    scheme: Scheme, unit: int | None, inner: Plan, sides: Shape, alpha: Coefficient, beta: Coefficient, batched: bool
) -> LevelSteps:
    """Return the steps in order: a pass over A, a pass over B, the products, and the join (a pass that forms C)."""
    a, b, c = _blocks_of_operands(scheme, unit, sides)
    left_shape = right_shape = None
    if unit is not None:
        m, k, n = (block_side(length, parts, unit) for length, parts in zip(sides, scheme.size, strict=True))
        left_shape, right_shape = (m, k), (k, n)
    lefts, split_a = _split_step("S", scheme.addition_programs.left, scheme.u, a, left_shape, batched)
    rights, split_b = _split_step("T", scheme.addition_programs.right, scheme.v, b, right_shape, batched)
    products: list[Product] = []
    for p, (left, right) in enumerate(zip(lefts, rights, strict=True)):
        width = min(left.cols, right.rows)  # inner dimension; beyond this width, one of the operands is zero
        size = left.rows, right.cols
        dest = _block_of_tall_temporary("M", p, *size) if batched else whole_matrix(f"M{p + 1}", *size)
        products.append(
            Product(left.cropped_place(left.rows, width), right.cropped_place(width, right.cols), dest, inner)
        )
    program = programs.program_with_alpha_beta(scheme.addition_programs.join, alpha, beta)
    if not batched and not beta:
        products = _place_products_in_c(products, program, c)
    join = Sum("join", program, (*(p.dest for p in products), *(c if beta else ())), tuple(c))
    splits = [s for s in (split_a, split_b) if s.writes]
    middle: tuple[Product | ProductBatch, ...] = (ProductBatch(tuple(products)),) if batched else tuple(products)
    return LevelSteps(temporary_sizes([*splits, *products]), (*splits, *middle, join))


def _split_step(
    letter: str,
    program: AdditionProgram,
    matrix: programs.Matrix,
    blocks: Sequence[Place],
    shape: tuple[int, int] | None,
    batched: bool,
) -> tuple[list[Place], Sum]:
    """Return the places of the operands, and the step that forms the operands in one pass.

    If an operand is a block of A or B, it is read in place. If `shape` is not None, all temporaries have this shape,
    and smaller blocks at the edge are copied to temporaries. For a batch, all operands are copied into one tall
    temporary.
    """
    places: list[Place] = []
    for p, column in enumerate(zip(*matrix, strict=True)):
        parts = [b for b, c in zip(blocks, column, strict=True) if c]
        size = max(b.rows for b in parts), max(b.cols for b in parts)
        if not batched and size == (shape or size) and program.outputs[p] < program.inputs:
            places.append(blocks[program.outputs[p]])
        elif batched:
            places.append(_block_of_tall_temporary(letter, p, *(shape or size)))
        else:
            places.append(whole_matrix(f"{letter}{p + 1}", *(shape or size)))
    written = [i for i, place in enumerate(places) if place.name not in ("A", "B")]
    sums = AdditionProgram(program.inputs, program.lines, tuple(program.outputs[i] for i in written))
    return places, Sum(f"split {blocks[0].name}", sums, tuple(blocks), tuple(places[i] for i in written))


def _place_products_in_c(
    products: Sequence[Product], program: AdditionProgram, blocks: Sequence[Place]
) -> list[Product]:
    """Return the products; as many as possible have a block of C as their destination.

    A block of C can hold a product until the join computes the block; later lines of the join must not read this
    product. A product in C needs no temporary. Products in C also save time: the join overwrites numbers that the join
    has just read, and the cache lines of these numbers are still in the cache.
    """
    last = {v: line for line, terms in enumerate(program.lines, program.inputs) for _, v in terms}
    homes: dict[int, Place] = {}
    for line, block in sorted(zip(program.outputs, blocks, strict=True), key=lambda pair: pair[0]):
        size = block.rows, block.cols
        fitting = [
            p
            for p, product in enumerate(products)
            if p not in homes and (product.dest.rows, product.dest.cols) == size and last.get(p, line) <= line
        ]
        if fitting:
            homes[max(fitting, key=lambda p: last.get(p, line))] = block
    return [replace(product, dest=homes.get(p, product.dest)) for p, product in enumerate(products)]


def _block_of_tall_temporary(name: str, index: int, rows: int, cols: int) -> Place:
    """Return block `index` of one tall temporary that consists of equal blocks, one below the other."""
    return Place(name, index * rows, 0, rows, cols)


# ---- one product at a time


def sequential_steps(scheme: Scheme, unit: int | None, inner: Plan, sides: Shape) -> LevelSteps:
    """Return for each product the sums that are its operands, the product, and its addition to C.

    The steps need three temporaries. For a `fused` level on a GPU, one launch runs all steps of a product, without
    temporaries.
    """
    a, b, c = _blocks_of_operands(scheme, unit, sides)
    steps: list[Sum | Product] = []
    started: set[int] = set()
    for p in range(scheme.rank):
        left = _operand_place_or_sum_step("S", [row[p] for row in scheme.u], a, steps)
        right = _operand_place_or_sum_step("T", [row[p] for row in scheme.v], b, steps)
        width = min(left.cols, right.rows)
        dest = whole_matrix("M", left.rows, right.cols)
        steps.append(Product(left.cropped_place(left.rows, width), right.cropped_place(width, right.cols), dest, inner))
        steps.append(_accumulate_product_step([row[p] for row in scheme.w], dest, c, started))
    untouched = [block for i, block in enumerate(c) if i not in started]
    if untouched:
        program = AdditionProgram(0, ((),) * len(untouched), tuple(range(len(untouched))))
        steps.append(Sum("clear", program, (), tuple(untouched)))
    return LevelSteps(temporary_sizes(steps), tuple(steps))


def _operand_place_or_sum_step(
    name: str, column: Sequence[Coefficient], blocks: Sequence[Place], steps: list[Sum | Product]
) -> Place:
    """Return the place of an operand; if the operand is a sum, append the step that forms the sum to `steps`."""
    parts = [(c, block) for c, block in zip(column, blocks, strict=True) if c]
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    place = whole_matrix(name, max(b.rows for _, b in parts), max(b.cols for _, b in parts))
    program = _single_sum_program(tuple(c for c, _ in parts))
    steps.append(Sum("sum", program, tuple(b for _, b in parts), (place,)))
    return place


@lru_cache(maxsize=1024)
def _single_sum_program(coefficients: tuple[Coefficient, ...]) -> AdditionProgram:
    return programs.separate_sums_program([coefficients], len(coefficients))


def _accumulate_product_step(
    column: Sequence[Coefficient], product: Place, blocks: Sequence[Place], started: set[int]
) -> Sum:
    """Return the step that adds a product to blocks of C; the first product for a block overwrites the block."""
    wanted = [i for i, c in enumerate(column) if c]
    old = [i for i in wanted if i in started]
    program = _accumulate_product_program(tuple((column[i], i in started) for i in wanted))
    started.update(wanted)
    return Sum("add", program, (product, *(blocks[i] for i in old)), tuple(blocks[i] for i in wanted))


@lru_cache(maxsize=1024)
def _accumulate_product_program(wanted: tuple[tuple[Coefficient, bool], ...]) -> AdditionProgram:
    """Return a program with one output for each (c, old): c times input 0, plus an old value if `old` is True."""
    lines: list[programs.Terms] = []
    inputs = 1
    for c, old in wanted:
        lines.append(((1, inputs), (c, 0)) if old else ((c, 0),))
        inputs += old
    return AdditionProgram(inputs, tuple(lines), tuple(range(inputs, inputs + len(lines))))


# ---- steps of a step table

SCRATCH_NAME = "P'"  # temporary for a product to which the table gives no place; no step table can declare this name


def steps_of_step_table(table: StepTable, unit: int | None, inner: Plan, sides: Shape) -> LevelSteps:
    """Return the steps of a step table, with the sizes of all places.

    With padded blocks, C is computed in a padded temporary if the blocks of C are not equal.
    """
    parts, (m, k, n) = table.size, sides
    shape, full = (m, n), {}
    if unit is not None:
        # Padded sums of A and of B have the size of whole blocks, so that the blocks of the next level are also equal.
        rows, columns, across = (block_side(x, part, unit) for x, part in zip(sides, parts, strict=True))
        shape, full = (rows * parts[0], across * parts[2]), {"A": (rows, columns), "B": (columns, across)}
    padded = shape != (m, n)
    blocks: dict[str, Place] = {}
    for name, size, grid in (("A", (m, k), parts[:2]), ("B", (k, n), parts[1:]), ("C", shape, (parts[0], parts[2]))):
        places = operand_blocks("C'" if padded and name == "C" else name, *size, (grid[0], grid[1]), unit)
        blocks |= {f"{name}{i // grid[1] + 1}{i % grid[1] + 1}": place for i, place in enumerate(places)}
    steps = _TableLowering(table, blocks, inner, full).lower_steps()
    if padded:
        result = whole_matrix("C'", *shape).cropped_place(m, n)
        steps.append(Sum("crop", COPY_PROGRAM, (result,), (whole_matrix("C", m, n),)))
        return LevelSteps((("C'", *shape), *(t for t in temporary_sizes(steps) if t[0] != "C'")), tuple(steps))
    return LevelSteps(temporary_sizes(steps), tuple(steps))


class _TableLowering:
    """Computes the steps of a step table, and the size of each block or temporary after each step."""

    def __init__(
        self, table: StepTable, blocks: dict[str, Place], plan: Plan, full: dict[str, tuple[int, int]]
    ) -> None:
        self.table, self.blocks, self.plan, self.full = table, blocks, plan, full
        self.held = {name: place for name, place in blocks.items() if name[0] in "AB"}
        # Each place holds a sum of blocks of A, a sum of blocks of B, or numbers of C. A sum of blocks of A or B that
        # does not fit into its place is an error; numbers of C are cropped.
        self.kind = {name: name[0] for name in self.held}
        self.steps: list[Sum | Product | ProductWithSums] = []

    def lower_steps(self) -> list[Sum | Product | ProductWithSums]:
        for step in self.table.steps:
            self._lower_step(step)
        return self.steps

    def _lower_step(self, step: TableStep) -> None:
        sources = [self.held[step.blocks_by_formal_parameter[f]] for f in step.kernel.read_blocks]
        kind = max((self.kind[step.blocks_by_formal_parameter[f]] for f in step.kernel.read_blocks), default="C")
        product = self._lower_product(step) if step.kernel.product else None
        if product is not None:
            sources.insert(0, product.dest)
            kind = "C"
        writes = []
        for name, needs in zip(step.written_blocks, step.kernel.write_dependencies, strict=True):
            size = max(sources[i].rows for i in needs), max(sources[i].cols for i in needs)
            writes.append(self._place_of_block(name, *self.full.get(kind, size), kind, step))
        update = Sum(step.kernel.name, step.kernel.addition_program, tuple(sources), tuple(writes))
        if product is None:
            self.steps += [simplified_sum] if (simplified_sum := update.simplified_sum).writes else []
        elif self._can_fuse((*update.reads[1:], *update.writes)):
            self.steps.append(ProductWithSums(product, update))
        else:
            self.steps += ProductWithSums(product, update).as_separate_steps

    def _lower_product(self, step: TableStep) -> Product:
        """Return the step's product; its destination is a place that the kernel only writes, or else scratch memory."""
        left, right = (self.held[step.blocks_by_formal_parameter[f]] for f in step.kernel.product or ())
        width = min(left.cols, right.rows)
        free = [f for f in step.kernel.written_blocks if f not in step.kernel.read_blocks]
        if free:
            dest = self._place_of_block(step.blocks_by_formal_parameter[free[0]], left.rows, right.cols, "C", step)
        else:
            dest = whole_matrix(SCRATCH_NAME, left.rows, right.cols)
        return Product(left.cropped_place(dest.rows, width), right.cropped_place(width, dest.cols), dest, self.plan)

    def _place_of_block(self, name: str, rows: int, cols: int, kind: str, step: TableStep) -> Place:
        block = self.blocks.get(name)
        place = whole_matrix(name, rows, cols) if block is None else block.cropped_place(rows, cols)
        if kind != "C" and (place.rows, place.cols) != (rows, cols):
            raise PlanError(
                f"{self.table.name} keeps a {rows} x {cols} sum in {name}, which is only {place.rows} x {place.cols}, "
                f"at {step}; use a table with temporaries of its own (hasa, adaptive-winograd) or another scheme"
            )
        self.held[name], self.kind[name] = place, kind
        return place

    def _can_fuse(self, places: Sequence[Place]) -> bool:
        """Return True if the leaf's kernel can form the sums that read and write these places.

        The kernel cannot form sums that read or write blocks of A or B, or that read and write one place with two
        sizes.
        """
        if self.plan.levels or not self.plan.leaf_use.leaf.can_compute_sums:
            return False
        corners = {(p.name, p.row, p.col) for p in places}
        return len(corners) == len(set(places)) and not any(p.name in "AB" for p in places)


# ---- the fringe `peel`


def core_and_strip_steps(core: Plan, parts: Shape, sides: Shape) -> LevelSteps:
    """Return the product of the core (the part of equal blocks), then up to three products of the strips at the edge.

    The plan `core` computes the product of the core; the leaf of this plan computes the other products.
    """
    leaf, (m, k, n) = replace(core, levels=()), sides
    mc, kc, nc = (side - side % part for side, part in zip(sides, parts, strict=True))
    if 0 in (mc, kc, nc):
        return LevelSteps(
            (), (Product(whole_matrix("A", m, k), whole_matrix("B", k, n), whole_matrix("C", m, n), leaf),)
        )
    steps = [Product(Place("A", 0, 0, mc, kc), Place("B", 0, 0, kc, nc), Place("C", 0, 0, mc, nc), core)]
    if kc < k:
        inner = Place("A", 0, kc, mc, k - kc), Place("B", kc, 0, k - kc, nc)
        steps.append(Product(*inner, Place("C", 0, 0, mc, nc), leaf, ACCUMULATE))
    if nc < n:
        right = Place("A", 0, 0, mc, k), Place("B", 0, nc, k, n - nc)
        steps.append(Product(*right, Place("C", 0, nc, mc, n - nc), leaf))
    if mc < m:
        below = Place("A", mc, 0, m - mc, k), whole_matrix("B", k, n)
        steps.append(Product(*below, Place("C", mc, 0, m - mc, n), leaf))
    return LevelSteps((), tuple(steps))
