"""The steps of a step table's level: the paper's order, with its places sized."""

from __future__ import annotations

from collections.abc import Sequence

from fmm.kernels.algorithms.step_table import Step, StepTable
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.plans.steps.blocks import block_side, operand_blocks
from fmm.kernels.plans.steps.level_steps import LevelSteps, Product, ProductWithSums, temporary_sizes
from fmm.kernels.plans.steps.sums import COPY, Place, Sum, whole_matrix
from fmm.problem import Shape

SCRATCH = "P'"  # a product that no place is free for; no step table can name it


def table_steps(table: StepTable, unit: int | None, inner: Plan, sides: Shape) -> LevelSteps:
    """A paper's table with its places sized. Where blocks are padded, a C that does not divide is computed in a padded
    temporary."""
    parts, (m, k, n) = table.size, sides
    shape, full = (m, n), {}
    if unit is not None:
        # Padded sums of A and of B are whole blocks, so that the next level's shapes are regular too.
        rows, columns, across = (block_side(x, part, unit) for x, part in zip(sides, parts, strict=True))
        shape, full = (rows * parts[0], across * parts[2]), {"A": (rows, columns), "B": (columns, across)}
    padded = shape != (m, n)
    named = {
        **_named(operand_blocks("A", m, k, parts[:2], unit), parts[1]),
        **_named(operand_blocks("B", k, n, parts[1:], unit), parts[2]),
        **_named(operand_blocks("C'" if padded else "C", *shape, (parts[0], parts[2]), unit), parts[2]),
    }
    steps = _Sizing(table, named, inner, full).run()
    if padded:
        result = whole_matrix("C'", *shape).cropped(m, n)
        steps.append(Sum("crop", COPY, (result,), (whole_matrix("C", m, n),)))
        return LevelSteps((("C'", *shape), *(t for t in temporary_sizes(steps) if t[0] != "C'")), tuple(steps))
    return LevelSteps(temporary_sizes(steps), tuple(steps))


def _named(blocks: Sequence[Place], columns: int) -> dict[str, Place]:
    letter = blocks[0].name[0]
    return {f"{letter}{i // columns + 1}{i % columns + 1}": block for i, block in enumerate(blocks)}


class _Sizing:
    """Walks a table once, keeping for every place the rectangle that it holds at the moment."""

    def __init__(
        self, table: StepTable, blocks: dict[str, Place], plan: Plan, full: dict[str, tuple[int, int]]
    ) -> None:
        self.table, self.blocks, self.plan, self.full = table, blocks, plan, full
        self.held = {name: place for name, place in blocks.items() if name[0] in "AB"}
        # Is what a place holds a sum of A, a sum of B, or part of C? Only the last may be cropped to its block.
        self.kind = {name: name[0] for name in self.held}
        self.steps: list[Sum | Product | ProductWithSums] = []

    def run(self) -> list[Sum | Product | ProductWithSums]:
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
            self.steps.append(ProductWithSums(product, update))
        else:
            self.steps += ProductWithSums(product, update).apart

    def _product(self, step: Step) -> Product:
        """The product; into a place that the kernel overwrites if there is one, else into scratch."""
        left, right = (self.held[step.bound[f]] for f in step.kernel.product or ())
        width = min(left.cols, right.rows)
        free = [f for f in step.kernel.writes if f not in step.kernel.reads]
        if free:
            dest = self._place(step.bound[free[0]], left.rows, right.cols, "C", step)
        else:
            dest = whole_matrix(SCRATCH, left.rows, right.cols)
        return Product(left.cropped(dest.rows, width), right.cropped(width, dest.cols), dest, self.plan)

    def _place(self, name: str, rows: int, cols: int, kind: str, step: Step) -> Place:
        block = self.blocks.get(name)
        place = whole_matrix(name, rows, cols) if block is None else block.cropped(rows, cols)
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
