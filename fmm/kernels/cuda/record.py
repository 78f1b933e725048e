"""fmm/kernels/cuda/record.py."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby, zip_longest

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import Program
from fmm.kernels.cuda.launch_list import Op, Tape, Turn, tiled_types
from fmm.kernels.cuda.products.fused import Blocks, Fused
from fmm.kernels.cuda.products.gemm import GemmOp
from fmm.kernels.cuda.products.tiled import strategy_of, updating_op
from fmm.kernels.cuda.sums.sum_launch import sum_op
from fmm.kernels.cuda.views import Factor, View, _columns, _distance, _transposed, operand_views
from fmm.kernels.plans.level_steps import Batch, Place, Product, Recipe, Sum, Updating
from fmm.kernels.plans.lower import grid, lower
from fmm.kernels.plans.memory_layout import leading, temporary_bytes
from fmm.kernels.plans.plan import Level, Plan, PlanError, leaf_parts
from fmm.kernels.plans.workspace import LT_SCRATCH, workspace
from fmm.problem import Problem


@lru_cache(maxsize=1024)
def record(plan: Plan, problem: Problem) -> Tape:
    """The tape of a plan; PlanError where a sum cannot be told to a GPU kernel, or the leaf is not for the type."""
    if plan.tiled and problem.dtype not in (types := tiled_types(plan)):
        raise PlanError(f"{plan}: {plan.leaf} multiplies {', '.join(types)} there, not {problem.dtype}")
    recorder = _Recorder(problem.stored)
    recorder.execute(plan, operand_views(problem), problem.alpha, problem.beta)
    return Tape(plan, problem, tuple(recorder.ops), tuple(recorder.lanes), recorder.peak)


class _Recorder:
    """Walks recipes as the executor does; its stack of temporaries is the workspace."""

    def __init__(self, dtype: str) -> None:
        self.dtype, self.itemsize = dtype, DTYPES[dtype].itemsize
        self.ops: list[Op] = []
        self.lanes: list[int] = []
        self.used = self.peak = self.lane = 0

    def _emit(self, *ops: Op) -> None:
        self.ops += ops
        self.lanes += [self.lane] * len(ops)

    def execute(self, plan: Plan, arrays: dict[str, View], alpha: complex, beta: complex) -> None:
        a, b, c = arrays["A"], arrays["B"], arrays["C"]
        if not plan.levels:
            # A leaf with alpha and beta needs no recipe of its own here: the vendor's GEMM has both.
            self._gemms(plan.leaf, [(a, b, c)], alpha, beta)
        elif plan.fused:
            self._fused(plan, arrays, alpha, beta)
        else:
            recipe = lower(plan, a.rows, a.cols, b.cols, alpha, beta)
            assert recipe is not None
            self._run(recipe, arrays)

    def _run(self, recipe: Recipe, arrays: dict[str, View]) -> None:
        mark = self.used
        along = _wished(recipe)
        for name, rows, cols in recipe.temporaries:
            operand = recipe.layouts[name]
            fortran = along[operand] if operand in along else _fortran(arrays[operand])
            arrays[name] = self._take(rows, cols, fortran)
        for overlapped, steps in groupby(recipe.steps, lambda s: recipe.lanes > 1 and isinstance(s, Product)):
            if overlapped:
                self._overlapped([s for s in steps if isinstance(s, Product)], arrays)
            else:
                for step in steps:
                    self._step(step, arrays)
        self.used = mark

    def _step(self, step: Sum | Product | Updating | Batch, arrays: dict[str, View]) -> None:
        if isinstance(step, Sum):
            self._sum(step, arrays)
        elif isinstance(step, Updating):
            self._updating(step, arrays)
        elif isinstance(step, Batch) and not step.products[0].plan.levels:
            self._gemms(step.products[0].plan.leaf, [_operands(p, arrays, self.itemsize) for p in step.products])
        else:
            for product in step.products if isinstance(step, Batch) else (step,):
                operands = dict(zip("ABC", _operands(product, arrays, self.itemsize), strict=True))
                self.execute(product.plan, operands, 1, int(product.accumulate))

    def _overlapped(self, products: Sequence[Product], arrays: dict[str, View]) -> None:
        """Independent products in turn on two lanes, each lane with temporaries of its own."""
        mark = self.used
        room = max(workspace(p.plan, *p.size, self.itemsize, 1, int(p.accumulate)) for p in products)
        self._emit(Turn.FORK)
        for i, product in enumerate(products):
            self.lane = i % 2
            self.used = mark + self.lane * room
            self._step(product, arrays)
        self.lane, self.used = 0, mark
        self._emit(Turn.JOIN)

    def _take(self, rows: int, cols: int, fortran: bool) -> View:
        offset, self.used = self.used, self.used + temporary_bytes(rows, cols, self.itemsize)
        self.peak = max(self.peak, self.used)
        along = rows if fortran else cols
        step = leading(along, self.itemsize, spaced=False)
        return View("W", offset, rows, cols, *((1, step) if fortran else (step, 1)))

    def _sum(self, step: Sum, arrays: dict[str, View]) -> None:
        reads, writes = ([(p, _view(arrays, p, self.itemsize)) for p in ps] for ps in (step.reads, step.writes))
        op = sum_op(step.label, step.program, reads, writes, self.dtype)
        if op is not None:
            self._emit(op)

    def _updating(self, step: Updating, arrays: dict[str, View]) -> None:
        """A kernel of a step table, product and all, in one launch."""
        factors, reads, writes = (
            [_view(arrays, p, self.itemsize) for p in places]
            for places in ((step.product.left, step.product.right), step.update.reads[1:], step.update.writes)
        )
        if any(x.rows and x.cols for x in writes):
            leaf = leaf_parts(step.product.plan.leaf)[0]
            self._emit(updating_op(leaf, self.dtype, factors[0], factors[1], step.update.program, reads, writes))

    def _gemms(
        self, leaf: str, products: Sequence[tuple[View, View, View]], alpha: complex = 1, beta: complex = 0
    ) -> None:
        m, k, n = products[0][0].rows, products[0][0].cols, products[0][1].cols
        if m == 0 or n == 0:
            return
        if k == 0 or alpha == 0:
            for _, _, dest in products:
                self._scale(dest, beta)
            return
        batches = (
            [products]
            if all(_distance(x, self.itemsize) is not None for x in zip(*products, strict=True))
            else [[p] for p in products]
        )
        (leaf, _), scratch = leaf_parts(leaf), self.used
        self.peak = max(self.peak, scratch + LT_SCRATCH if leaf.startswith("lt") else 0)
        self._emit(*(_gemm(leaf, batch, alpha, beta, self.itemsize, scratch) for batch in batches))

    def _fused(self, plan: Plan, arrays: dict[str, View], alpha: complex, beta: complex) -> None:
        """A scheme's products, each with its sums inside: the steps of a sequential level, without temporaries."""
        level, c = plan.levels[0], arrays["C"]
        assert isinstance(level, Level)
        (m, k, n), strategy = level.size, strategy_of(leaf_parts(plan.leaf)[0])
        parts = (m, k), (k, n), (m, n)
        grids = [grid(x, arrays[x].rows, arrays[x].cols, p, level) for x, p in zip("ABC", parts, strict=True)]
        views = [self._blocks(places, arrays) for places in grids]
        fused = Fused(level, strategy, self.dtype, Blocks(*views), complex(alpha).real, complex(beta).real)
        if fused.atomic:
            self._scale(c, beta)
        for lanes in fused.stages() if alpha else ():
            self._side_by_side(lanes)
        for i, block in enumerate(() if fused.atomic else views[2]):
            if i not in fused.begun:
                self._scale(block, beta)

    def _side_by_side(self, lanes: Sequence[Sequence[Op]]) -> None:
        """Each lane's launches in order; those of different lanes in any."""
        if len(lanes) > 1:
            self._emit(Turn.FORK)
        for launches in zip_longest(*lanes):
            for self.lane, op in enumerate(launches):
                self._emit(*([op] if op else []))
        self.lane = 0
        if len(lanes) > 1:
            self._emit(Turn.JOIN)

    def _blocks(self, places: Sequence[Place], arrays: dict[str, View]) -> list[View]:
        return [_view(arrays, place, self.itemsize) for place in places]

    def _scale(self, dest: View, beta: complex) -> None:
        """dest = beta dest: a product of nothing."""
        place = Place("C", 0, 0, dest.rows, dest.cols)
        program = Program(1, (((beta, 0),),), (1,)) if beta else Program(0, ((),), (0,))
        op = sum_op("scale", program, [(place, dest)] * program.inputs, [(place, dest)], self.dtype)
        if op is not None and beta != 1:
            self._emit(op)


def _wished(recipe: Recipe) -> dict[str, bool]:
    """Do sums of A, of B lie column by column? Where the leaf of all products says how it wants its operands.

    Along the inner dimension: A's rows, B's columns. Along the outer ones: A's columns, B's rows.
    """
    plans = {p.plan for p in recipe.products}
    wish = "" if any(plan.levels for plan in plans) else leaf_parts({plan.leaf for plan in plans}.pop())[1]
    return {"inner": {"A": False, "B": True}, "outer": {"A": True, "B": False}}.get(wish, {})


def _operands(step: Product, arrays: dict[str, View], itemsize: int) -> tuple[View, View, View]:
    left, right, dest = (_view(arrays, p, itemsize) for p in (step.left, step.right, step.dest))
    return left, right, dest


def _view(arrays: dict[str, View], place: Place, itemsize: int) -> View:
    x = arrays[place.name]
    offset = x.offset + (place.row * x.down + place.col * x.right) * itemsize
    return View(x.base, offset, place.rows, place.cols, x.down, x.right)


def _fortran(x: View) -> bool:
    return x.down < x.right


def _gemm(
    leaf: str,
    products: Sequence[tuple[View, View, View]],
    alpha: complex,
    beta: complex,
    itemsize: int,
    scratch: int,
) -> GemmOp:
    """In column-major terms a row-major C = A B is C^T = B^T A^T: the same memory, the operands swapped."""
    lefts, rights, dests = zip(*products, strict=True)
    m, n, k = lefts[0].rows, rights[0].cols, lefts[0].cols
    if not _columns(dests[0]):
        lefts, rights, dests = (tuple(_transposed(v) for v in views) for views in (rights, lefts, dests))
        m, n = n, m
    left, right, dest = (_factor(views, itemsize) for views in (lefts, rights, dests))
    return GemmOp(leaf, m, n, k, left, right, dest, len(products), alpha, beta, scratch)


def _factor(views: Sequence[View], itemsize: int) -> Factor:
    x, distance = views[0], _distance(views, itemsize)
    assert distance is not None and 1 in x.strides
    columns = _columns(x)
    return Factor(x.base, x.offset, max(x.right if columns else x.down, 1), not columns, distance)
