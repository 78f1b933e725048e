"""Record a plan as a launch list: walk the plan on a recorder, then select the kernels of each operation for the chip.

The function `record_launches` walks the plan and selects the kernels. The offset of every temporary in the workspace is
fixed when the plan is recorded, because the steps of a level depend only on the sizes of the product. Temporaries are
allocated like a stack.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import Literal, NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient
from fmm.kernels.cuda.launch_list import FLAG, Launch, LaunchList, LaunchStep, StreamSync
from fmm.kernels.cuda.ops import (
    NO_PREPARED_OPERANDS,
    DeviceView,
    GemmOp,
    MirroredGemm,
    MirrorOp,
    PreparedOperands,
    RankUpdateOp,
    TriangleOutput,
    addend_view,
    distance_between_views,
    gemm_op,
    has_matching_layout,
    is_column_major,
    mirrored_gemm,
    operand_views,
    product_views,
    rank_update_op,
)
from fmm.kernels.cuda.products.f16_sums import PlaneSums
from fmm.kernels.cuda.products.fused import FusedLaunches, ProductBlocks, tile_op_with_fused_sums
from fmm.kernels.cuda.products.simt_tiles import TileGroup, TileOp, leaf_strategy
from fmm.kernels.cuda.recompute.recompute import can_recompute, recompute_launches
from fmm.kernels.cuda.select import fuse_plane_sums, preparation_launches, select_launches
from fmm.kernels.cuda.sums.mirror_rescale import ScalingOp, scaling_op
from fmm.kernels.cuda.sums.sum_launch import SumOp, copy_op, sum_op
from fmm.kernels.cuda.target import ChipTarget
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.leaf import parse_leaf
from fmm.kernels.plans.level import PlanError
from fmm.kernels.plans.memory_layout import ALIGN_BYTES, leading_dimension, round_up, temporary_bytes
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import LevelSteps, Product, ProductWithSums
from fmm.kernels.plans.sums import ADDEND, Mirror, Place, RescaledCopy, RowOrColumnExponents, Sum, operand_blocks
from fmm.kernels.plans.walk import Operands, ProductMatrices, walk_plan
from fmm.kernels.plans.workspace import check_plan_type, plan_workspace_bytes
from fmm.kernels.registry import clear_on_registration
from fmm.problem import Problem

RecordedOp = (
    SumOp | PlaneSums | MirrorOp | ScalingOp | GemmOp | MirroredGemm | RankUpdateOp | TileOp | TileGroup | StreamSync
)


@dataclass(frozen=True, eq=False)
class OperationList:
    """The operations of one plan for one problem. Operations do not depend on the chip."""

    plan: Plan
    problem: Problem
    ops: tuple[RecordedOp, ...]
    streams: tuple[int, ...]  # index of each operation's stream
    workspace: int  # bytes of workspace

    @cached_property
    def stream_count(self) -> int:
        """The number of streams that the operations use."""
        return max(self.streams, default=0) + 1


@clear_on_registration
@lru_cache(maxsize=1024)
def record_launches(plan: Plan, problem: Problem, target: ChipTarget) -> LaunchList:
    """Return the launch list of a plan on a target.

    Raise PlanError if no kernel can compute one of the plan's sums, or if the plan's leaf does not support the element
    type.
    """
    wanted = record_operations(plan, problem)
    if problem.element_type.exact:  # integers have no inf or NaN
        target = replace(target, flagged=False)
    steps: list[LaunchStep] = []
    streams: list[int] = []
    recomputes = target.flagged and can_recompute(problem)
    addend, workspace_bytes = addend_view(problem), wanted.workspace
    if recomputes and problem.beta and addend is None:
        addend, workspace_bytes = _saved_c_view(problem, wanted.workspace)
        copy = copy_op("keep C", operand_views(problem)["C"], addend)
        steps += select_launches(copy, target) if copy is not None else ()
        streams += [0] * len(steps)
    unflagged = False  # True if C contains numbers that no kernel has checked for inf and NaN
    for op, stream in zip(fuse_plane_sums(wanted.ops, target), wanted.streams, strict=True):
        selected = (op,) if isinstance(op, StreamSync) else select_launches(op, target)
        if recomputes and _is_mirrored_after_recompute(problem) and _is_mirror_of_checked_c(op, selected, unflagged):
            selected = selected[:-1]  # omit this mirror of C: the launches that recompute C end with the same mirror
        steps += selected
        streams += [stream] * len(selected)
        unflagged = (unflagged and not _mirrors_lower_triangle(op)) or _writes_c_without_flag(op, selected)
    if recomputes:
        # A plan that is one GEMM and saves no multiplications needs no scan: its inf and NaN are in the same entries as
        # the vendor's.
        scanned = unflagged and (len(wanted.ops) > 1 or plan.leaf_use.leaf.saves_products)
        recomputing = _recompute_steps(plan, problem, scanned, target, addend)
        steps += recomputing
        streams += [0] * len(recomputing)
    return LaunchList(plan, problem, tuple(steps), tuple(streams), workspace_bytes, target.alignment)


@clear_on_registration
@lru_cache(maxsize=256)
def record_preparation(plan: Plan, problem: Problem, target: ChipTarget) -> LaunchList | None:
    """Return launches that prepare the operand `problem.prepared_side`; None if the leaf cannot prepare operands."""
    products = [op for op in record_operations(plan, problem).ops if isinstance(op, GemmOp)]
    launches, workspace_bytes = preparation_launches(products[0], target) if products else ((), 0)
    streams = (0,) * len(launches)
    return LaunchList(plan, problem, launches, streams, workspace_bytes, target.alignment) if launches else None


@clear_on_registration
@lru_cache(maxsize=1024)
def record_operations(plan: Plan, problem: Problem) -> OperationList:
    """Return the operations of a plan for a problem. The operations are the same for all chips."""
    check_plan_type(plan, problem.dtype, "cuda")
    # `fmm.prepare` converts complete operands only, but a leaf below a level multiplies blocks of operands.
    prepared_matrix = None if plan.levels else problem.prepared_side
    recorder = LaunchRecorder(problem.componentwise, prepared_matrix)
    operands, addend = dict(operand_views(problem)), addend_view(problem)
    if problem.batch_strides is not None:
        recorder.multiply_stack(plan, problem)
        return OperationList(plan, problem, tuple(recorder.ops), tuple(recorder.streams), recorder.peak)
    if addend is not None and has_matching_layout(addend, operands["C"]):
        operands[ADDEND] = addend
    elif addend is not None:
        recorder.copy_addend(addend, operands["C"])
    walk_plan(plan, operands, recorder, problem.dtype, problem.alpha, problem.beta, problem.op, problem.fill)
    return OperationList(plan, problem, tuple(recorder.ops), tuple(recorder.streams), recorder.peak)


# ---- recomputing a product with an inf or NaN


def _saved_c_view(problem: Problem, workspace_bytes: int) -> tuple[DeviceView, int]:
    """Return the view of a copy of the old C, and the size in bytes of a workspace that has this copy at its end.

    If the product is recomputed, beta multiplies this copy.
    """
    c = operand_views(problem)["C"]
    fortran = is_column_major(c)
    step = leading_dimension(c.rows if fortran else c.cols, c.itemsize, avoid_cache_conflicts=False)
    strides, start = (1, step) if fortran else (step, 1), round_up(workspace_bytes, ALIGN_BYTES)
    copy = DeviceView("W", start, c.rows, c.cols, *strides, c.dtype)
    return copy, start + temporary_bytes(c.rows, c.cols, c.itemsize)


def _recompute_steps(
    plan: Plan, problem: Problem, is_unchecked: bool, target: ChipTarget, addend: DeviceView | None
) -> tuple[LaunchStep, ...]:
    """Return the launches that recompute the product.

    If `is_unchecked` is True, the first launch scans C for inf and NaN.
    """
    launches = recompute_launches(
        problem, is_unchecked, target.chip, target.alignment_by_base, addend, plan.conjugated_operands
    )
    if not _is_mirrored_after_recompute(problem):
        return launches
    c = operand_views(problem)["C"]
    mirror = MirrorOp(c, c, full=problem.fill == "full")
    return *launches, *select_launches(mirror, replace(target, flagged=False))


def _is_mirrored_after_recompute(problem: Problem) -> bool:
    """Return True if C is mirrored after the recomputation.

    A recomputed complex C is not exactly Hermitian: its triangles differ by rounding errors, and its diagonal has small
    imaginary parts. The mirror corrects both.
    """
    return problem.writes_triangle and problem.element_type.is_complex


def _is_mirror_of_checked_c(op: RecordedOp, steps: Sequence[LaunchStep], unflagged: bool) -> bool:
    """Return True if the last step mirrors the complete C in place after the kernels that wrote C have checked C.

    C is checked if every kernel that wrote C raises the flag for an inf or NaN.
    """
    mirror = op.mirror if isinstance(op, MirroredGemm) else op
    if not (isinstance(mirror, MirrorOp) and _mirrors_lower_triangle(op) and mirror.is_in_place):
        return False
    if mirror is op:
        return not unflagged
    return len(steps) > 1 and not unflagged and not _writes_c_without_flag(op, steps[:-1])


def _mirrors_lower_triangle(op: RecordedOp) -> bool:
    """Return True if the operation mirrors C's lower triangle into the upper triangle.

    The mirror kernel reads all of C's lower triangle, and raises the flag for an inf or NaN in it.
    """
    mirror = op.mirror if isinstance(op, MirroredGemm) else op
    return isinstance(mirror, MirrorOp) and mirror.full and mirror.writes_result


def _writes_c_without_flag(op: RecordedOp, steps: Sequence[LaunchStep]) -> bool:
    """Return True if the operation writes C by a step that cannot raise the flag: a vendor call or atomic additions.

    A `MirroredGemm` is judged by its last step alone, because this step writes the complete C.
    """
    if isinstance(op, StreamSync) or not op.writes_result:
        return False
    if isinstance(op, MirroredGemm):
        steps = steps[-1:]
    if isinstance(op, TileOp | TileGroup) and op.kernel.epilogue.atomic:
        return True
    writing = [x for x in steps if not isinstance(x, StreamSync) and x.does == "product"] or steps
    return not all(isinstance(step, Launch) and any(slot.base == FLAG for slot in step.slots) for step in writing)


# ---- the recorder


class _RecordedSum(NamedTuple):
    """A step of sums, and the operation that was recorded when the step first occurred."""

    step: Sum  # this reference keeps Python from reusing the step's id, which is in the cache key
    origins: dict[str, int]  # for each base, the offset in bytes of the first view that the step reads or writes
    op: SumOp | None  # None if the step writes nothing


class LaunchRecorder:
    """The machine that records the operations of a walk, and allocates temporaries as a stack in the workspace."""

    leaves_apply_alpha_beta = True

    def __init__(self, componentwise: bool = False, prepared_matrix: Literal["A", "B"] | None = None) -> None:
        """Create an empty recorder.

        If `componentwise` is True, products have a componentwise error bound. `prepared_matrix` is the matrix that
        `fmm.prepare` has converted.
        """
        self.componentwise = componentwise
        self.prepared = PreparedOperands(prepared_matrix) if prepared_matrix else NO_PREPARED_OPERANDS
        self.ops: list[RecordedOp] = []
        self.streams: list[int] = []
        self.used_bytes = self.peak = self.stream = 0
        self._sums: dict[Hashable, _RecordedSum] = {}

    def _append_operations(self, *ops: RecordedOp) -> None:
        self.ops += ops
        self.streams += [self.stream] * len(ops)

    # ---- memory

    def allocate(self, rows: int, cols: int, fortran: bool, dtype: str) -> DeviceView:
        stored = DTYPES[DTYPES[dtype].stored_type]
        offset, self.used_bytes = self.used_bytes, self.used_bytes + temporary_bytes(rows, cols, stored.itemsize)
        self.peak = max(self.peak, self.used_bytes)
        step = leading_dimension(rows if fortran else cols, stored.itemsize, avoid_cache_conflicts=False)
        return DeviceView("W", offset, rows, cols, *((1, step) if fortran else (step, 1)), stored.name)

    def free_temporaries_since(self, mark: int) -> None:
        self.used_bytes = mark

    def submatrix(self, x: DeviceView, place: Place) -> DeviceView:
        return x.block_view(place)

    # ---- sums

    def column_major_by_operand(self, steps: LevelSteps) -> Mapping[str, bool]:
        return column_major_by_operand(steps)

    def compute_sums(self, step: Sum, reads: Sequence[DeviceView], writes: Sequence[DeviceView]) -> None:
        if isinstance(step, RowOrColumnExponents | RescaledCopy):
            self._append_operations(scaling_op(step, reads, writes[0]))
        elif (op := self._sum_op(step, reads, writes)) is not None:
            self._append_operations(op)

    def _sum_op(self, step: Sum, reads: Sequence[DeviceView], writes: Sequence[DeviceView]) -> SumOp | None:
        """Return the operation that computes a step of sums; None if the step writes nothing.

        If the step has been recorded before, return the earlier operation with new offsets. An inner level repeats each
        step hundreds of times, and `sum_op` takes milliseconds for a step with hundreds of blocks.
        """
        origins: dict[str, int] = {}
        for view in (*reads, *writes):
            origins.setdefault(view.base, view.offset)
        key = id(step), *((v.base, v.offset - origins[v.base], v[2:]) for v in (*reads, *writes))
        if key not in self._sums:
            placed = (list(zip(step.reads, reads, strict=True)), list(zip(step.writes, writes, strict=True)))
            self._sums[key] = _RecordedSum(step, origins, sum_op(step.label, step.program, *placed))
        _, first_origins, op = self._sums[key]
        if op is None or first_origins == origins:
            return op
        shifted = (x._replace(offset=x.offset + origins[x.base] - first_origins[x.base]) for x in op.arrays)
        return replace(op, arrays=tuple(shifted))

    def copy_addend(self, addend: DeviceView, dest: DeviceView) -> None:
        """Record a copy of the addend to the result, for kernels that cannot read the addend in place."""
        if (op := copy_op("begin C", addend, dest)) is not None:
            self._append_operations(op)

    def _record_c_scaling(self, dest: DeviceView, beta: Coefficient) -> None:
        """Record dest = beta dest. If k = 0 or alpha = 0, this scaling is the complete GEMM."""
        place = Place("C", 0, 0, dest.rows, dest.cols)
        program = AdditionProgram(1, (((beta, 0),),), (1,)) if beta else AdditionProgram(0, ((),), (0,))
        op = sum_op("scale", program, [(place, dest)] * program.inputs, [(place, dest)])
        if op is not None and beta != 1:
            self._append_operations(op)

    # ---- products

    def multiply(
        self, leaf: str, products: Sequence[ProductMatrices], dtype: str, alpha: Coefficient, beta: Coefficient
    ) -> None:
        m, k, n = products[0][0].rows, products[0][0].cols, products[0][1].cols
        if m == 0 or n == 0:
            return
        if k == 0 or alpha == 0:
            for _, _, dest in products:
                self._record_c_scaling(dest, beta)
            return
        evenly_spaced = all(distance_between_views(x) is not None for x in zip(*products, strict=True))
        for batch in [products] if evenly_spaced else [[p] for p in products]:
            self._record_gemm(leaf, batch, dtype, alpha, beta)

    def multiply_with_addend(
        self, leaf: str, product: ProductMatrices, addend: DeviceView, dtype: str, alpha: Coefficient, beta: Coefficient
    ) -> None:
        (m, k), n, dest = product[0].shape, product[1].cols, product[2]
        if m == 0 or n == 0:
            return
        if k == 0 or alpha == 0:
            self.copy_addend(addend, dest)
            self._record_c_scaling(dest, beta)
            return
        self._record_gemm(leaf, [product], dtype, alpha, beta, addend)

    def _record_gemm(
        self, leaf: str, batch: Sequence[ProductMatrices], dtype: str, alpha: Coefficient, beta: Coefficient,
        addend: DeviceView | None = None,
    ) -> None:  # fmt: skip
        """Record a batch of products by a leaf. In the workspace, the leaf's scratch memory follows the temporaries."""
        (m, k), n = batch[0][0].shape, batch[0][1].cols
        scratch = parse_leaf(leaf).leaf.workspace_bytes(DTYPES[dtype].itemsize, m, k, n, len(batch))
        self.peak = max(self.peak, self.used_bytes + scratch)
        op = gemm_op(leaf, batch, dtype, complex(alpha), complex(beta), self.used_bytes, addend)
        self._append_operations(replace(op, checked=self.componentwise, prepared=self.prepared))

    # ---- results that are their own adjoints

    def multiply_stack(self, plan: Plan, problem: Problem) -> None:
        """Record a batch of products as one operation, which writes both triangles of a symmetric result."""
        if plan.levels:
            raise PlanError(f"{plan}: one launch for a stack needs a plan without levels")
        if problem.writes_triangle and not plan.leaf_use.leaf.mirrors:
            raise PlanError(f"{plan}: no kernel of this plan mirrors the triangles of a stack")
        self.multiply(plan.leaf, product_views(problem), problem.dtype, problem.alpha, problem.beta)
        if problem.writes_triangle:
            both = TriangleOutput("full", problem.op == "gram")
            self.ops = [replace(op, triangle=both) if isinstance(op, GemmOp) else op for op in self.ops]

    def multiply_triangle(self, leaf: str, products: Sequence[ProductMatrices], dtype: str, params: GemmParams) -> None:
        """Record products of which only the lower triangle is needed.

        The products are computed by syrk, by the leaf's kernel, or as complete products. A batch of small triangles is
        recorded as one batch of complete products, because one launch is faster than many.
        """
        dest, k = products[0][2], products[0][0].cols
        alpha, beta = complex(params.alpha).real, complex(params.beta).real
        if not dest.rows:
            return
        if k == 0 or alpha == 0:
            for _, _, dest in products:
                self._append_operations(MirrorOp(dest, dest, 0, beta, full=False))
            return
        row = parse_leaf(leaf).leaf
        as_whole_products = params.fill == "loose" and len(products) > 1 and dest.rows <= row.whole_product_rows
        if params.op == "gram" and dtype in row.blas_triangles and not as_whole_products:
            ranks = [rank_update_op(leaf, dtype, *triple, alpha, beta) for triple in products]
            if all(ranks):
                self._append_operations(*(op for op in ranks if op))
                return
        row_major = not is_column_major(dest)
        if params.fill == "loose" or (dtype in row.kernel_triangles and row_major):
            first = len(self.ops)
            self.multiply(leaf, products, dtype, alpha, beta)
            if row_major:
                self._write_only_lower_triangles(first, params)
        else:
            self._record_triangles_by_temporaries(leaf, products, dtype, params)

    def _record_triangles_by_temporaries(
        self, leaf: str, products: Sequence[ProductMatrices], dtype: str, params: GemmParams
    ) -> None:
        """Record each product into a temporary, then a copy of the temporary's lower triangle to the result.

        The temporary is row-major if the leaf's kernel writes triangles, because this kernel needs a row-major result.
        """
        row, (alpha, beta) = parse_leaf(leaf).leaf, (complex(x).real for x in (params.alpha, params.beta))
        has_kernel = dtype in (*row.kernel_triangles, *row.loose_triangles)
        for left, right, dest in products:
            mark, first = self.used_bytes, len(self.ops)
            temporary = self.allocate(dest.rows, dest.cols, is_column_major(dest) and not has_kernel, dtype)
            self.multiply(leaf, [(left, right, temporary)], dtype, 1, 0)
            if has_kernel:
                self._write_only_lower_triangles(first, params._replace(fill="loose"))
            self._append_operations(MirrorOp(temporary, dest, alpha, beta, full=False))
            self.free_temporaries_since(mark)

    def _write_only_lower_triangles(self, first: int, params: GemmParams) -> None:
        """Change the recorded products from index `first` on: each writes only the lower triangle of its result."""
        triangle = TriangleOutput("loose" if params.fill == "loose" else "lower", params.op == "gram")
        products = self.ops[first:]
        self.ops[first:] = [replace(op, triangle=triangle) if isinstance(op, GemmOp) else op for op in products]

    def mirror_triangle(self, step: Mirror, source: DeviceView, dest: DeviceView) -> None:
        if not dest.rows:
            return
        op = MirrorOp(source, dest, complex(step.alpha).real, complex(step.beta).real, step.fill == "full")
        if self.ops and (both := mirrored_gemm(self.ops[-1], source, op)):
            self.ops[-1] = both
        else:
            self._append_operations(op)

    # ---- products whose kernels form sums

    def multiply_and_update(self, step: ProductWithSums, operands: Operands) -> bool:
        """Record one launch that computes a product and adds the product to one or more blocks of C."""
        factors, reads, writes = (
            [self.submatrix(operands[p.name], p) for p in places]
            for places in ((step.product.left, step.product.right), step.update.reads[1:], step.update.writes)
        )
        if any(x.rows and x.cols for x in writes):
            use = step.product.plan.leaf_use
            self._append_operations(
                tile_op_with_fused_sums(
                    use, writes[0].dtype, factors[0], factors[1], step.update.program, reads, writes
                )
            )
        return True

    def run_fused_level(self, plan: Plan, operands: Operands, alpha: Coefficient, beta: Coefficient) -> bool:
        """Record the products of a fused level; the kernel of each product forms its sums without temporaries."""
        level, strategy = plan.levels[0].fused_products, leaf_strategy(plan.leaf_use)
        if level is None:
            return False
        if ADDEND in operands:
            self.copy_addend(operands[ADDEND], operands["C"])
        m, k, n = level.scheme.size
        grids = zip("ABC", ((m, k), (k, n), (m, n)), strict=True)
        places = [operand_blocks(x, operands[x].rows, operands[x].cols, grid, level.unit) for x, grid in grids]
        views = [[self.submatrix(operands[p.name], p) for p in blocks] for blocks in places]
        dtype = operands["C"].dtype
        fused = FusedLaunches(level, strategy, dtype, ProductBlocks(*views), complex(alpha).real, complex(beta).real)
        if fused.adds_atomically:
            self._record_c_scaling(operands["C"], beta)
        for streams in fused.launches_by_stage() if alpha else ():
            self._record_on_streams(streams)
        for i, block in enumerate(() if fused.adds_atomically else views[2]):
            if i not in fused.written:
                self._record_c_scaling(block, beta)
        return True

    # ---- streams

    def run_concurrently(self, products: Sequence[Product], dtype: str, run: Callable[[Product], None]) -> None:
        """Record products that do not depend on each other, alternately on two streams.

        Each stream has its own temporaries.
        """
        mark, itemsize = self.used_bytes, DTYPES[dtype].itemsize
        stream_bytes = max(plan_workspace_bytes(p.plan, *p.size, itemsize, *p.params) for p in products)
        self._append_operations(StreamSync.FORK)
        for i, product in enumerate(products):
            self.stream = i % 2
            self.used_bytes = mark + self.stream * stream_bytes
            run(product)
        self.stream, self.used_bytes = 0, mark
        self._append_operations(StreamSync.JOIN)

    def _record_on_streams(self, streams: Sequence[Sequence[RecordedOp]]) -> None:
        """Record lists of concurrent operations, one list for each stream; a single list runs on the current stream."""
        if len(streams) == 1:
            self._append_operations(*streams[0])
            return
        self._append_operations(StreamSync.FORK)
        for ops in zip_longest(*streams):
            for self.stream, op in enumerate(ops):
                self._append_operations(*([op] if op else []))
        self.stream = 0
        self._append_operations(StreamSync.JOIN)


def column_major_by_operand(steps: LevelSteps) -> dict[str, bool]:
    """Map each of "A" and "B" to True (sums of the operand's blocks are stored column-major) or to False (row-major).

    The mapping is empty if the products have levels, or if their leaf has no preferred layout. For a leaf that prefers
    operands contiguous along the inner dimension k, sums are row-major for A and column-major for B. For a leaf that
    prefers operands contiguous along the outer dimensions m and n, sums are column-major for A and row-major for B.
    """
    plans = {p.plan for p in steps.products}
    if any(plan.levels for plan in plans):
        return {}
    preferred = plans.pop().leaf_use.order
    if preferred is None:
        return {}
    return {"A": False, "B": True} if preferred == "inner" else {"A": True, "B": False}
