"""The blocks of an outer level of a shared product: every process has an equal part of each block of A, B and C.

The upper blocks of a matrix have the first half of the rows of each process, and not the upper half of the matrix's
rows. The product is correct, since rows may be assigned to blocks in any order that is the same in A and C. Columns may
be assigned in any order that is the same in B and C, and the inner dimension in any order that is the same in A and B.
Because each process holds a part of every block, a sum of blocks needs no messages. A process pads a part that is
smaller than the largest part with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from fmm.config.environment import is_componentwise_required, is_disabled
from fmm.distributed.layout import (
    K_AXIS,
    M_AXIS,
    N_AXIS,
    CutAxes,
    MeshLayout,
    OperandName,
    Span,
    mesh_coordinates,
    span_of_process,
)
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.stability import has_componentwise_bound
from fmm.request import parse_plan
from fmm.runtime.decisions.decide import Decision

LevelParts = tuple[int, int, int]  # the number of parts into which a level cuts each of m, k and n
# A dimension of the mesh cuts one axis (M, K or N) of the cube of multiply-adds. For each axis of the cube,
# ALLOWED_CUTS has the axes of A and of B that this dimension of the mesh may cut: 0 for rows, 1 for columns, None for
# no cut.
ALLOWED_CUTS: dict[OperandName, dict[int | None, tuple[int | None, ...]]] = {
    "A": {M_AXIS: (0,), K_AXIS: (1,), N_AXIS: (1, None)},
    "B": {M_AXIS: (0, None), K_AXIS: (0,), N_AXIS: (1,)},
}


@dataclass(frozen=True)
class OuterLevelBlocks:
    """The blocks of an outer level: block sizes on each process, and the layout of the shared product of two blocks."""

    whole: MeshLayout
    parts: LevelParts
    rows: int  # rows of a process's part of C, padded to a multiple of parts[0]; `cols` likewise to parts[2]
    cols: int
    # The ranges into which the mesh cuts the inner dimension. If the mesh cuts A and B into different ranges of the
    # inner dimension, `inner` has the smaller ranges.
    inner: tuple[Span, ...]
    width: int  # length of a part of the inner dimension, padded to a multiple of parts[1]

    @property
    def block_layout(self) -> MeshLayout:
        """The MeshLayout of the shared product of two blocks."""
        (m_parts, k_parts, n_parts), whole = self.parts, self.whole
        m, n = self.rows * _process_count_along(whole, M_AXIS), self.cols * _process_count_along(whole, N_AXIS)
        k = len(self.inner) * self.width
        return replace(whole, m=m // m_parts, k=k // k_parts, n=n // n_parts)

    def held_inner_range_count(self, operand: OperandName) -> int:
        """Return how many ranges of the inner dimension each process holds of A or B; empty ranges are counted."""
        cuts, axis = self._cuts_and_inner_axis(operand)
        return len(self.inner) // _part_count_along(self.whole.mesh, cuts, axis)

    def held_inner_ranges(self, operand: OperandName, place: int) -> tuple[Span, ...]:
        """Return the ranges of the inner dimension that a process holds of A or B; the first range begins at 0."""
        cuts, axis = self._cuts_and_inner_axis(operand)
        number = 0
        for side, index, cut in zip(self.whole.mesh, mesh_coordinates(place, self.whole.mesh), cuts, strict=True):
            number = number * side + index if cut == axis else number
        count = self.held_inner_range_count(operand)
        mine = self.inner[number * count : (number + 1) * count]
        return tuple(span.relative_to(mine[0]) for span in mine)

    def _cuts_and_inner_axis(self, operand: OperandName) -> tuple[CutAxes, int]:
        """Return the cuts of A or B by the dimensions of the mesh, and the operand's axis along the inner dimension."""
        return (self.whole.a, 1) if operand == "A" else (self.whole.b, 0)


def outer_level_blocks(layout: MeshLayout, plan: Plan) -> OuterLevelBlocks:
    """Return the blocks of this plan's levels; raise PlanError if the processes' parts of A, B and C do not match."""
    parts = parts_per_dimension(plan)
    shape, wanted = layout.mesh, zip(layout.a, layout.b, layout.work, strict=True)
    if not all(cut_a in ALLOWED_CUTS["A"][axis] and cut_b in ALLOWED_CUTS["B"][axis] for cut_a, cut_b, axis in wanted):
        raise PlanError("an outer level requires A cut like the rows of C, and B cut like the columns of C")
    a_parts, b_parts = _part_count_along(shape, layout.a, 1), _part_count_along(shape, layout.b, 0)
    fine, coarse = ((layout.a, 1), (layout.b, 0)) if a_parts >= b_parts else ((layout.b, 0), (layout.a, 1))
    inner = _axis_spans(layout.k, *fine, shape)
    larger = _axis_spans(layout.k, *coarse, shape)
    times = len(inner) // len(larger)
    joined = [(inner[i].start, inner[i + times - 1].stop) for i in range(0, len(inner) - times + 1, times)]
    if len(inner) % len(larger) or joined != [tuple(span) for span in larger]:
        raise PlanError(f"A and B cut the inner dimension {layout.k} into parts that do not match")
    shares = [layout.process_share(rank) for rank in range(layout.process_count)]
    rows, cols = max(s.rows.size for s in shares), max(s.cols.size for s in shares)
    width = max(span.size for span in inner)
    padded = (_round_up_to_multiple(size, part) for size, part in zip((rows, width, cols), parts, strict=True))
    rows, width, cols = padded
    return OuterLevelBlocks(layout, parts, rows, cols, inner, width)


def parts_per_dimension(plan: Plan) -> LevelParts:
    """Return the number of parts into which the plan's levels together cut each of m, k and n."""
    cuts = [level.cut.parts for level in plan.levels if level.cut]
    if len(cuts) != len(plan.levels) or plan.leaf != "vendor":
        raise PlanError(f"{plan}: an outer level is a scheme or a step table, for example 'winograd > vendor'")
    m, k, n = (prod(sides) for sides in zip((1, 1, 1), *cuts, strict=True))
    return m, k, n


def parse_outer_level(plan: Plan | Decision | str) -> Plan:
    """Return the plan of an outer level; raise PlanError for levels other than schemes and step tables."""
    levels = parse_block_levels(plan, "above")
    parts_per_dimension(levels)
    return levels


def _axis_spans(size: int, cuts: CutAxes, axis: int, mesh: Sequence[int]) -> tuple[Span, ...]:
    """Return the ranges, in order, into which a mesh cuts an axis; empty ranges are included."""
    sides = [side if cut == axis else 1 for side, cut in zip(mesh, cuts, strict=True)]
    places = (mesh_coordinates(rank, sides) for rank in range(prod(sides)))
    return tuple(span_of_process(size, axis, cuts, mesh, place) for place in places)


def _part_count_along(mesh: Sequence[int], cuts: CutAxes, axis: int) -> int:
    return prod(side for side, cut in zip(mesh, cuts, strict=True) if cut == axis)


def _process_count_along(layout: MeshLayout, axis: int) -> int:
    return _part_count_along(layout.mesh, layout.work, axis)


def _round_up_to_multiple(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def may_choose_levels() -> bool:
    """Return True unless FMM_DISABLE or FMM_COMPONENTWISE excludes levels that the caller does not name."""
    return not (is_disabled() or is_componentwise_required())


def parse_block_levels(plan: Plan | Decision | str, context: str) -> Plan:
    """Return the levels of `plan` as a Plan with the leaf `vendor`; error messages contain `context`.

    Raise PlanError for levels that cannot be applied to separate blocks: fused, complex and triangular levels. If
    FMM_COMPONENTWISE=1, also raise PlanError for levels without a componentwise error bound. The text may omit the
    leaf; the plan "vendor" has no levels.
    """
    if isinstance(plan, str) and plan != "vendor" and not plan.endswith("> vendor"):
        plan = f"{plan} > vendor"
    levels = parse_plan(plan) or VENDOR
    for level in levels.levels:
        if not level.splits or level.needs_fusing_leaf or level.itemsize_of_products(8) != 8:
            raise PlanError(f"{level} is no level {context}; valid: schemes and step tables, for example 'winograd'")
    if is_componentwise_required() and not has_componentwise_bound(levels):
        raise PlanError(f"the plan {levels} does not bound each entry's error, as FMM_COMPONENTWISE=1 requires")
    return levels
