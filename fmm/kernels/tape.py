"""Tapes: a whole plan, all levels, as a straight list of kernel launches and GEMM calls with their addresses.

A recipe depends on sizes only, and temporaries are taken like a stack, so every address is known beforehand as a base
(A, B, C or the workspace) and an offset. A tape is made once for a problem and then replayed: the calls cost what the
driver takes, and nothing more. It is made by the same walk over the same recipes as the executor's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, lru_cache
from itertools import groupby, pairwise, zip_longest
from typing import Any, Literal, NamedTuple

from fmm.kernels.cuda_source import ELEMENTS, Access, Scalar, Spot, SumKernel
from fmm.kernels.fused import Blocks, Fused
from fmm.kernels.lowering import grid, lower
from fmm.kernels.needs import LT_SCRATCH, leading, temporary_bytes, workspace
from fmm.kernels.plan import Level, Plan, PlanError, leaf_parts
from fmm.kernels.program import Program
from fmm.kernels.recipe import Batch, Place, Product, Recipe, Sum, Updating
from fmm.kernels.strategy import SUMMING
from fmm.kernels.tile import PARAMETER_BYTES, Several, TileOp, strategy_of, updating_op

BASES = ("A", "B", "C", "W")  # W: the workspace
ARRAY_BYTES = 56  # of struct Array in cuda/sum.cuh
TILED = tuple(SUMMING)  # types that the leaf `tile` multiplies, with sums inside if there are any
GROUPED = ("float16", "bfloat16", "tf32")  # and those that it multiplies as they are, by Hopper's warpgroups
# Those that it multiplies faster than the vendor: no other is considered unasked. (On an H200 float64 has 0.95 of
# cuBLAS's speed, and 0.78 with its sums inside; TF32, which needs sums that are turned, less than cuBLASLt's best.)
PAYING = ("float32", "float16", "bfloat16")
GRID = 65535  # thread blocks along the second and third axis of a grid


class Layout(NamedTuple):
    """How a matrix lies in memory: rows (`C`) or columns (`F`) contiguous, the next one `leading` elements further."""

    order: Literal["C", "F"]
    leading: int


class View(NamedTuple):
    """A rectangle of memory; strides in elements of the problem's type, the offset from the base in bytes."""

    base: str
    offset: int
    rows: int
    cols: int
    down: int  # from one row to the next
    right: int  # from one column to the next

    @property
    def strides(self) -> tuple[int, int]:
        return self.down, self.right


class Array(NamedTuple):
    """What a kernel is told of one of its arrays: a grid of blocks of a matrix, or equal layers. In elements."""

    base: str
    offset: int  # bytes
    row: int
    col: int
    down: int  # from one block to the one below it
    right: int  # from one block to the one right of it
    rows: int  # valid ones of the whole array
    cols: int
    height: int  # of a block
    width: int


@dataclass(frozen=True)
class SumOp:
    """One launch of a sum kernel."""

    label: str
    kernel: SumKernel
    arrays: tuple[Array, ...]
    scalars: tuple[complex, ...]
    rows: int
    cols: int

    def __hash__(self) -> int:
        return id(self)

    @cached_property
    def inner(self) -> tuple[int, int]:
        """Rows and columns within which every block of this launch is whole."""
        rooms = [_room(self.arrays[s.array], s) for s in (*self.kernel.reads, *self.kernel.writes)]
        return max(min(r for r, _ in rooms), 0), max(min(c for _, c in rooms), 0)

    @cached_property
    def parameters(self) -> bytes:
        """struct Parameters of cuda/sum.cuh, its pointers null: the arrays' come first in each array."""
        arrays = b"".join(struct.pack("<q4q4i", 0, *x[2:]) for x in self.arrays)
        scalars = [part for c in self.scalars for part in (c.real, c.imag)]
        sizes = self.rows, self.cols, *self.inner
        return arrays + struct.pack(f"<{len(scalars) + 1}dq4i", *scalars, 0.0, 0, *sizes)

    @property
    def writes_result(self) -> bool:
        return any(self.arrays[spot.array].base == "C" for spot in self.kernel.writes)

    @cached_property
    def access(self) -> Access:
        """`vector` where every block is aligned, if the bases of its arrays are."""
        lanes = self.kernel.lanes
        size = lanes * ELEMENTS[self.kernel.element].itemsize
        fits = all(
            x.col == 1 and x.offset % size == 0 and not any(step % lanes for step in (x.row, x.down, x.right))
            for i, x in enumerate(self.arrays)
            if i not in self.kernel.tall
        )
        return "vector" if fits and lanes > 1 else "scalar"

    @cached_property
    def alignment(self) -> tuple[int, frozenset[str]]:
        """What `vector` asks of the bases: a multiple of so many bytes, of these."""
        bases = frozenset(x.base for i, x in enumerate(self.arrays) if i not in self.kernel.tall)
        return self.kernel.lanes * ELEMENTS[self.kernel.element].itemsize, bases

    @cached_property
    def grid(self) -> tuple[int, int, int]:
        """Thread blocks side by side and below each other; a very tall launch is folded into the third axis."""
        height, width = self.kernel.tile
        down = -(-self.rows // height)
        deep = -(-down // GRID)
        return -(-self.cols // width), -(-down // deep), deep


def _room(array: Array, spot: Spot) -> tuple[int, int]:
    return (
        min(array.height, array.rows - spot.i * array.height),
        min(array.width, array.cols - spot.j * array.width),
    )


def _holds(array: Array, spot: Spot, rows: int, cols: int) -> bool:
    room = _room(array, spot)
    return room[0] >= rows and room[1] >= cols


class Factor(NamedTuple):
    """One operand of a GEMM as BLAS sees it, column by column."""

    base: str
    offset: int  # bytes
    leading: int
    transposed: bool
    stride: int  # elements from one of a batch to the next


@dataclass(frozen=True)
class GemmOp:
    """`count` products dest = alpha left right + beta dest, in BLAS's column-major terms."""

    leaf: str
    m: int
    n: int
    k: int
    left: Factor
    right: Factor
    dest: Factor
    count: int = 1
    alpha: complex = 1
    beta: complex = 0
    scratch: int = 0  # where in the workspace a leaf of cuBLASLt has its own

    @property
    def pieces(self) -> tuple[Factor, Factor, Factor]:
        """Everything that it is given."""
        return self.left, self.right, self.dest

    @property
    def writes_result(self) -> bool:
        return self.dest.base == "C"


class Turn(Enum):
    """Where lanes wait for each other: all others for the first, then the first for all others."""

    FORK = "fork"
    JOIN = "join"


Op = SumOp | GemmOp | TileOp | Several | Turn


@dataclass(frozen=True)
class Problem:
    """C = alpha A B + beta C, with everything that a tape depends on."""

    m: int
    k: int
    n: int
    dtype: str
    layouts: tuple[Layout, Layout, Layout]
    alpha: complex = 1
    beta: complex = 0

    def __post_init__(self) -> None:
        if self.dtype not in (*ELEMENTS, "tf32"):
            raise PlanError(f"unknown type {self.dtype!r}; valid: {', '.join((*ELEMENTS, 'tf32'))}")
        for name, layout, (rows, cols) in zip("ABC", self.layouts, self.shapes, strict=True):
            least = cols if layout.order == "C" else rows
            if layout.order not in ("C", "F") or layout.leading < max(least, 1):
                raise PlanError(f"{name} is {rows} x {cols}: its layout cannot be {layout}")

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        return (self.m, self.k), (self.k, self.n), (self.m, self.n)

    @property
    def views(self) -> dict[str, View]:
        """Each operand whole, by name."""
        return {
            name: View(name, 0, *shape, *((lay.leading, 1) if lay.order == "C" else (1, lay.leading)))
            for name, shape, lay in zip("ABC", self.shapes, self.layouts, strict=True)
        }

    @property
    def stored(self) -> str:
        """The type of the numbers in memory: TF32 is only how cuBLAS multiplies float32."""
        return "float32" if self.dtype == "tf32" else self.dtype

    @property
    def itemsize(self) -> int:
        return ELEMENTS[self.stored].itemsize

    @staticmethod
    def contiguous(m: int, k: int, n: int, dtype: str, alpha: complex = 1, beta: complex = 0) -> Problem:
        """The problem on row-major arrays without gaps."""
        layouts = Layout("C", max(k, 1)), Layout("C", max(n, 1)), Layout("C", max(n, 1))
        return Problem(m, k, n, dtype, layouts, alpha, beta)


@dataclass(frozen=True)
class Tape:
    """The operations of one plan on one problem, on which lane each is, and the bytes of workspace they use."""

    plan: Plan
    problem: Problem
    ops: tuple[Op, ...]
    lanes: tuple[int, ...]
    workspace: int

    @cached_property
    def lanes_used(self) -> int:
        return max(self.lanes, default=0) + 1

    @cached_property
    def vendor_lanes(self) -> int:
        """The first so many lanes call cuBLAS, or may."""
        pairs = zip(self.ops, self.lanes, strict=True)
        return max((lane for op, lane in pairs if isinstance(op, GemmOp)), default=-1) + 1

    def __hash__(self) -> int:
        return id(self)


@lru_cache(maxsize=1024)
def record(plan: Plan, problem: Problem) -> Tape:
    """The tape of a plan; PlanError where a sum cannot be told to a GPU kernel, or the leaf is not for the type."""
    if plan.tiled and problem.dtype not in (types := tiled_types(plan)):
        raise PlanError(f"{plan}: {plan.leaf} multiplies {', '.join(types)} there, not {problem.dtype}")
    recorder = _Recorder(problem.stored)
    recorder.execute(plan, problem.views, problem.alpha, problem.beta)
    return Tape(plan, problem, tuple(recorder.ops), tuple(recorder.lanes), recorder.peak)


def pays(plan: Plan, dtype: str) -> bool:
    """Is a plan's leaf `tile` considered unasked for this type?"""
    return dtype in PAYING and dtype in tiled_types(plan)


def tiled_types(plan: Plan) -> tuple[str, ...]:
    """The types that a plan's leaf `tile` multiplies."""
    leaf, last = leaf_parts(plan.leaf)[0], plan.levels[-1] if plan.levels else None
    inside = isinstance(last, Level) and (last.fused or last.table is not None)
    named = strategy_of(leaf)
    return named.types if named else TILED if inside or leaf != "tile" else (*TILED, *GROUPED)


class _Recorder:
    """Walks recipes as the executor does; its stack of temporaries is the workspace."""

    def __init__(self, dtype: str) -> None:
        self.dtype, self.itemsize = dtype, ELEMENTS[dtype].itemsize
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


# ---- products


def _distance(views: Sequence[View], itemsize: int) -> int | None:
    """The constant distance, in elements, between views that are alike; None if there is none."""
    if any(v._replace(offset=0) != views[0]._replace(offset=0) for v in views):
        return None
    steps = {y.offset - x.offset for x, y in pairwise(views)} or {0}
    return steps.pop() // itemsize if len(steps) == 1 else None


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


def _columns(x: View) -> bool:
    """Are its columns contiguous?"""
    return x.down == 1 and (x.right != 1 or x.rows == 1)


def _transposed(x: View) -> View:
    return View(x.base, x.offset, x.cols, x.rows, x.right, x.down)


def _factor(views: Sequence[View], itemsize: int) -> Factor:
    x, distance = views[0], _distance(views, itemsize)
    assert distance is not None and 1 in x.strides
    columns = _columns(x)
    return Factor(x.base, x.offset, max(x.right if columns else x.down, 1), not columns, distance)


# ---- sums


Placed = tuple[Place, View]


def sum_op(label: str, program: Program, reads: Sequence[Placed], writes: Sequence[Placed], dtype: str) -> SumOp | None:
    """The launch that does a step of sums; None where there is nothing to write."""
    rows, cols = max(v.rows for _, v in writes), max(v.cols for _, v in writes)
    if rows == 0 or cols == 0:
        return None
    lines, scalars = _launch_scalars(program)
    # Along what is contiguous; a split that turns its blocks writes more than it reads, so what it writes decides.
    if all(_columns(v) for _, v in writes):
        reads, writes = ([_flipped(placed) for placed in side] for side in (reads, writes))
        rows, cols = cols, rows
    arrays, spots, batches = _Fitting((*reads, *writes), ELEMENTS[dtype].itemsize).run()
    element = dtype
    if dtype.startswith("complex") and not any(c.imag for c in scalars) and all(x.col == 1 for x in arrays):
        # Real coefficients: a complex matrix is a real one with twice the columns, at half the registers a value.
        element, cols = {"complex64": "float32", "complex128": "float64"}[dtype], 2 * cols
        arrays = [_doubled(x) for x in arrays]
    if len(arrays) * ARRAY_BYTES + 16 * len(scalars) + 64 > PARAMETER_BYTES:
        raise PlanError(f"{label}: {len(arrays)} unequal blocks in one pass; on a GPU this level needs pad or peel")
    aliases = _aliases(reads, writes)
    whole = frozenset(a for a in batches if all(_holds(arrays[a], s, rows, cols) for s in spots if s.array == a))
    shape = spots[: len(reads)], spots[len(reads) :], aliases, len(arrays)
    kernel = _interned(SumKernel(lines, len(scalars), *shape, whole, element, _tall(arrays, *shape[:2])))
    if cols % kernel.lanes:
        kernel = _interned(replace(kernel, whole=frozenset()))
    return SumOp(label, kernel, tuple(arrays), scalars, rows, cols)


@lru_cache(maxsize=4096)
def _interned(kernel: SumKernel) -> SumKernel:
    """One object for equal kernels: what is known of it (its order, its lanes) is found once."""
    return kernel


# Coefficients that stand in the code: those of the schemes. Others come with the launch, so that a new alpha or beta
# costs no compilation. By value, since equal plans share a recipe whether alpha was 2 or 2.0.
LITERALS = frozenset(sign * 2.0**e for e in range(-4, 5) for sign in (1, -1))


def _launch_scalars(program: Program) -> tuple[Program, tuple[complex, ...]]:
    """The program with Scalars for the coefficients that come with the launch, and their values."""
    found: dict[complex, Any] = {}
    for c in (complex(c) for terms in program.lines for c, _ in terms):
        if c not in LITERALS:
            found.setdefault(c, Scalar(len(found)))
    if not found:
        return program, ()
    lines = tuple(tuple((found.get(complex(c), c), v) for c, v in terms) for terms in program.lines)
    return Program(program.inputs, lines, program.outputs), tuple(found)


def _tall(arrays: Sequence[Array], reads: Sequence[Spot], writes: Sequence[Spot]) -> frozenset[int]:
    """The arrays that are read, if they lie column by column and all that is written row by row; else none."""
    read, written = ({spot.array for spot in side} for side in (reads, writes))
    turned = all(arrays[a].col == 1 for a in written) and all(arrays[a].col != 1 == arrays[a].row for a in read)
    return frozenset(read) if turned else frozenset()


def _aliases(reads: Sequence[Placed], writes: Sequence[Placed]) -> tuple[tuple[int, int], ...]:
    starts: dict[tuple[str, int], list[int]] = {}
    for i, (_, v) in enumerate(reads):
        starts.setdefault((v.base, v.offset), []).append(i)
    return tuple((o, i) for o, (_, w) in enumerate(writes) for i in starts.get((w.base, w.offset), ()))


def _flipped(placed: Placed) -> Placed:
    """The same place of the transposed problem, whose fast index runs along the contiguous columns."""
    p, v = placed
    return Place(p.name, p.col, p.row, p.cols, p.rows), _transposed(v)


def _doubled(x: Array) -> Array:
    return x._replace(row=2 * x.row, down=2 * x.down, right=2 * x.right, cols=2 * x.cols, width=2 * x.width)


class _Fitting:
    """Finds few arrays that hold all places of a step: grids of blocks, equal layers, or a block on its own."""

    def __init__(self, placed: Sequence[Placed], itemsize: int) -> None:
        self.placed, self.itemsize = placed, itemsize
        self.arrays: list[Array] = []
        self.batches: list[int] = []  # arrays that hold several temporaries
        self.spots: list[Spot | None] = [None] * len(placed)

    def run(self) -> tuple[list[Array], tuple[Spot, ...], list[int]]:
        names: dict[str, list[int]] = {}
        for i, (place, _) in enumerate(self.placed):
            names.setdefault(place.name, []).append(i)
        alone = [i for members in names.values() if not self._grid(members) for i in members]
        for run in self._layers(sorted(alone)):
            self._stack(run)
        return self.arrays, tuple(s for s in self.spots if s is not None), self.batches

    def _grid(self, members: Sequence[int]) -> bool:
        """Places of one matrix, all at multiples of one block's size, none shorter than its edge demands."""
        places = [self.placed[i][0] for i in members]
        height, width = max(max(p.rows for p in places), 1), max(max(p.cols for p in places), 1)
        rows, cols = max(p.row + p.rows for p in places), max(p.col + p.cols for p in places)
        if len({(p.row, p.col) for p in places}) < 2:
            return False
        for p in places:
            there = min(height, rows - p.row), min(width, cols - p.col)
            misplaced = p.row % height or p.col % width or there != (p.rows, p.cols)
            if misplaced and p.rows and p.cols:
                return False
        place, view = self.placed[members[0]]
        offset = view.offset - (place.row * view.down + place.col * view.right) * self.itemsize
        blocks = height * view.down, width * view.right
        if place.name not in "ABC":
            self.batches.append(len(self.arrays))
        self.arrays.append(Array(view.base, offset, *view.strides, *blocks, rows, cols, height, width))
        for i, p in zip(members, places, strict=True):
            self.spots[i] = Spot(len(self.arrays) - 1, -(-p.row // height), -(-p.col // width))
        return True

    def _layers(self, members: Sequence[int]) -> Iterator[list[int]]:
        """Runs of equal blocks at equal distances; the same block met again joins the run that has it."""
        run: list[int] = []
        for i in members:
            if run and not self._continues(run, i):
                yield run
                run = []
            run.append(i)
        if run:
            yield run

    def _continues(self, run: Sequence[int], i: int) -> bool:
        nearest = [self.placed[j][1] for j in (*run[:2], *run[-1:], i)]
        first, last = (_distance(pair, self.itemsize) for pair in (nearest[:2], nearest[-2:]))
        return last not in (None, 0) and (len(run) == 1 or first == last)

    def _stack(self, run: Sequence[int]) -> None:
        views = [self.placed[i][1] for i in run]
        v, distance = views[0], _distance(views, self.itemsize) or 0
        array = Array(v.base, v.offset, *v.strides, distance, 0, v.rows * len(run), v.cols, v.rows, v.cols)
        if len(run) > 1:
            self.batches.append(len(self.arrays))
        self.arrays.append(array)
        for layer, i in enumerate(run):
            self.spots[i] = Spot(len(self.arrays) - 1, layer, 0)
