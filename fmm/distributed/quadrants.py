"""A level of a plan above a shared product: the same part of every block of A, B and C on every process.

What a level calls the first half of the rows is not the upper half of the matrix: it is the first half of the rows that
each process has. Of which rows a half consists does not matter, as long as A and C agree; of columns B and C, of the
inner dimension A and B. So sums of blocks are sums of what a process holds, and nothing is sent for them. Parts that
are not as large as the others count as padded with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from fmm.distributed.layout import Cuts, K, Layout, M, N, Operand, Span, coordinate_of, cut_span
from fmm.kernels.plans.plan import Plan, PlanError

Parts = tuple[int, int, int]  # into how many a level cuts m, k and n
# What a dimension of the mesh may cut of A and B, by what it cuts of the work: axis 0, 1, or neither.
HELD: dict[Operand, dict[int | None, tuple[int | None, ...]]] = {
    "A": {M: (0,), K: (1,), N: (1, None)},
    "B": {M: (0, None), K: (0,), N: (1,)},
}


@dataclass(frozen=True)
class Quadrants:
    """The blocks of a level above: how wide what each process has of an axis is cut, and how a product of blocks is
    shared."""

    whole: Layout
    parts: Parts
    rows: int  # of a process's part of C, padded
    cols: int
    inner: tuple[Span, ...]  # the inner dimension in parts that nobody's holdings cut
    width: int  # of such a part, padded

    @property
    def block(self) -> Layout:
        """How each product of blocks is shared."""
        (m_parts, k_parts, n_parts), whole = self.parts, self.whole
        m, n = self.rows * _shared_by(whole, M), self.cols * _shared_by(whole, N)
        k = len(self.inner) * self.width
        return replace(whole, m=m // m_parts, k=k // k_parts, n=n // n_parts)

    def count(self, operand: Operand) -> int:
        """How many parts of the inner dimension each process has of A or B, with empty ones."""
        cuts, axis = self._inner_cuts(operand)
        return len(self.inner) // _cut_into(self.whole.mesh, cuts, axis)

    def groups(self, operand: Operand, place: int) -> tuple[Span, ...]:
        """The parts of the inner dimension that a process has of A or B, counted from the first one's beginning."""
        cuts, axis = self._inner_cuts(operand)
        number = 0
        for side, where, cut in zip(self.whole.mesh, coordinate_of(place, self.whole.mesh), cuts, strict=True):
            number = number * side + where if cut == axis else number
        count = self.count(operand)
        mine = self.inner[number * count : (number + 1) * count]
        return tuple(span.within(mine[0]) for span in mine)

    def _inner_cuts(self, operand: Operand) -> tuple[Cuts, int]:
        return (self.whole.a, 1) if operand == "A" else (self.whole.b, 0)


def quadrants(layout: Layout, plan: Plan) -> Quadrants:
    """The blocks of this plan's levels; PlanError if what processes hold cannot be cut alike."""
    parts = level_parts(plan)
    shape, wanted = layout.mesh, zip(layout.a, layout.b, layout.work, strict=True)
    if not all(cut_a in HELD["A"][axis] and cut_b in HELD["B"][axis] for cut_a, cut_b, axis in wanted):
        raise PlanError("a level above wants A cut as the rows of C are, and B as its columns")
    a_parts, b_parts = _cut_into(shape, layout.a, 1), _cut_into(shape, layout.b, 0)
    fine, coarse = ((layout.a, 1), (layout.b, 0)) if a_parts >= b_parts else ((layout.b, 0), (layout.a, 1))
    inner = _axis_spans(layout.k, *fine, shape)
    larger = _axis_spans(layout.k, *coarse, shape)
    times = len(inner) // len(larger)
    joined = [(inner[i].start, inner[i + times - 1].stop) for i in range(0, len(inner) - times + 1, times)]
    if len(inner) % len(larger) or joined != [tuple(span) for span in larger]:
        raise PlanError(f"A and B cut the inner dimension {layout.k} into parts that do not match")
    shares = [layout.share(rank) for rank in range(layout.ranks)]
    rows, cols = max(s.rows.size for s in shares), max(s.cols.size for s in shares)
    width = max(span.size for span in inner)
    padded = (_multiple(size, part) for size, part in zip((rows, width, cols), parts, strict=True))
    rows, width, cols = padded
    return Quadrants(layout, parts, rows, cols, inner, width)


def level_parts(plan: Plan) -> Parts:
    """Into how many parts its levels together cut each axis."""
    cuts = [level.cut.parts for level in plan.levels if level.cut]
    if len(cuts) != len(plan.levels) or plan.leaf != "vendor":
        raise PlanError(f"{plan}: above a shared product only schemes and step tables, such as 'winograd > vendor'")
    m, k, n = (prod(sides) for sides in zip((1, 1, 1), *cuts, strict=True))
    return m, k, n


def level_above(text: str) -> Plan:
    """The levels that a text names, such as "winograd"; "vendor" for none. PlanError for what is no level above."""
    found = levels_over_blocks(text, "above")
    level_parts(found)
    return found


def _axis_spans(size: int, cuts: Cuts, axis: int, mesh: Sequence[int]) -> tuple[Span, ...]:
    """All parts into which a mesh cuts an axis, in order, with empty ones."""
    sides = [side if cut == axis else 1 for side, cut in zip(mesh, cuts, strict=True)]
    every = (coordinate_of(rank, sides) for rank in range(prod(sides)))
    return tuple(cut_span(size, axis, cuts, mesh, where) for where in every)


def _cut_into(mesh: Sequence[int], cuts: Cuts, axis: int) -> int:
    return prod(side for side, cut in zip(mesh, cuts, strict=True) if cut == axis)


def _shared_by(layout: Layout, axis: int) -> int:
    return _cut_into(layout.mesh, layout.work, axis)


def _multiple(size: int, of: int) -> int:
    return -(-size // of) * of


def levels_over_blocks(text: str, where: str) -> Plan:
    """The levels that a text names, such as "winograd"; "vendor" for none. `where` they are to be is for messages.

    PlanError for what only numbers can do: kernels with sums inside, real parts, halves.
    """
    found = Plan.parse(text if text == "vendor" or text.endswith("> vendor") else f"{text} > vendor")
    for level in found.levels:
        if not level.splits or level.needs_fusing_leaf or level.itemsize_below(8) != 8:
            raise PlanError(f"{level} is no level {where}; valid: schemes and step tables, such as 'winograd'")
    return found
