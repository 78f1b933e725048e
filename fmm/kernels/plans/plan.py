"""Plans: small immutable trees from the whole product down to the leaf that multiplies.

Text form, outermost level first, levels joined by " > ":

    winograd^2 > li-fig3.peel > vendor          balanced(2) > hasa > vendor          vendor

A level is a scheme (or a composition of schemes, done in one pass) or a step table, then its options after dots. A
scheme is traversed `stacked` (the default: all sums first, then the products, then the join), `overlapped` (the same,
on a GPU two products at a time, so that the sums of one run beside the other's leaf products), `batched` (the same,
every operand in a block of its own, the products as one batch), `fused` (on a GPU, one product at a time, its sums
inside the kernel of the leaf `tile`: no temporaries) or `sequential` (one product at a time, three temporaries); a step
table has its own order. A fused level's products may also run side by side: on two `streams`, as far as they write
different blocks, or all of them, adding to C by `atomic` updates (whose order, and with it C's last bits, differ from
run to run); and products of equally many blocks (`variants`) may start as one launch. Fringes: `unequal` (blocks differ
by one row or column, sums are as if padded), `pad` (equal blocks, zeros beyond the edge are virtual; `pad16`: sides are
multiples of 16) or `peel` (the core that divides, then thin strips).

Leaves: `vendor` (BLAS as it comes) or, on a GPU, `lt0`, `lt1`, ... (so many-th candidate of cuBLASLt's own list for the
product) and `tile` (this package's own kernel: of float32 and float64, and of 16-bit numbers and TF32, without sums
inside, by Hopper's warpgroups; what these cannot read is the vendor's. `tile.huge` and the like: of float32 and float64
by another of its strategies; with `.plain` behind it, tiles come to shared memory through registers, with `.texture`
those of the left operand by loads of the read-only path: Li, Ranka and Sahni's tStrassen and tWinograd).
With `.inner` after it, the sums of the last level are written so that both operands of a leaf product are contiguous
along its inner dimension; with `.outer`, along the outer ones. (A CPU's sums are always written as A and B lie in
memory, for all leaves.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from fmm.kernels.plans.leaf import LeafUse, fusing_leaves, leaf_use, leaf_uses, valid_leaves
from fmm.kernels.plans.level import PlanLevel, parse_level
from fmm.kernels.plans.levels.balanced import Balanced as Balanced
from fmm.kernels.plans.levels.scheme_level import Level as Level
from fmm.kernels.plans.levels.scheme_level import level as level
from fmm.kernels.plans.levels.scheme_options import FRINGES as FRINGES
from fmm.kernels.plans.levels.scheme_options import UNITS as UNITS
from fmm.kernels.plans.plan_error import PlanError as PlanError
from fmm.kernels.registry import depends_on_rows


@dataclass(frozen=True)
class Plan:
    """Levels from the outermost inwards, then the leaf."""

    levels: tuple[PlanLevel, ...] = ()
    leaf: str = "vendor"
    leaf_use: LeafUse = field(init=False, repr=False, compare=False)  # what that text says

    def __post_init__(self) -> None:
        object.__setattr__(self, "leaf_use", leaf_use(self.leaf))
        lanes = [level for level in self.levels if level.side_by_side]
        if len(lanes) > 1:
            what = "side by side" if lanes[1].needs_fusing_leaf else "overlapped"
            raise PlanError(f"{lanes[1]} below {lanes[0]}: only one level of a plan can be {what}")
        fused = [level for level in self.levels if level.needs_fusing_leaf]
        if fused and (fused[0] is not self.levels[-1] or not self.leaf_use.fuses):
            raise PlanError(f"{fused[0]}: only the last level can be fused, into the leaf {fusing_leaves()}")

    @property
    def rest(self) -> Plan:
        """The plan of the products of the first level."""
        return _rest(self)

    @property
    def fused(self) -> bool:
        """Are the sums of the first level done inside its products?"""
        return bool(self.levels) and self.levels[0].fused

    @property
    def timed_by_tiles(self) -> bool:
        """Is the time of its leaf products told by the tiles in which they are computed?"""
        return self.leaf_use.leaf.time_formula == "tiles"

    @cached_property
    def types(self) -> tuple[str, ...]:
        """That the leaf multiplies, with sums inside its products if the last level wants them there."""
        return self.leaf_use.types(bool(self.levels) and self.levels[-1].sums_inside)

    def leaf_type(self, dtype: str) -> str:
        """What its leaf multiplies, where the plan is asked for a product of this type."""
        for step in self.levels:
            dtype = step.dtype_below(dtype)
        return dtype

    def itemsize_inside(self, itemsize: int, products: Iterable[Plan]) -> int:
        """Bytes of a number in the first level's temporaries and in its products, which are done by these plans."""
        return itemsize if not self.levels or self in products else self.levels[0].itemsize_below(itemsize)

    def considered_for(self, dtype: str) -> bool:
        """Is it compared for this type without anybody's asking for it?"""
        return self.leaf_type(dtype) in self._considered

    @cached_property
    def _considered(self) -> frozenset[str]:
        considered = self.leaf_use.leaf.considered
        return frozenset(t for t in self.types if considered is None or t in considered)

    @property
    def depth(self) -> int:
        """Levels of recursion, a composition of f factors counted as f."""
        return sum(level.depth for level in self.levels)

    def __str__(self) -> str:
        return " > ".join([*map(str, self.levels), self.leaf])

    @staticmethod
    def parse(text: str) -> Plan:
        """The plan that `text` describes; PlanError says what is wrong and what is valid."""
        if not isinstance(text, str):
            raise PlanError(f"a plan is a text such as 'winograd > vendor', not {text!r}")
        return _parse(text)


VENDOR = Plan()


@lru_cache(maxsize=4096)
def _rest(plan: Plan) -> Plan:
    return replace(plan, levels=plan.levels[1:])


@depends_on_rows
@lru_cache(maxsize=4096)
def _parse(text: str) -> Plan:
    *levels, leaf = (part.strip() for part in text.split(">"))
    if leaf not in leaf_uses():
        raise PlanError(f"{text!r} ends in {leaf!r}; a plan ends in its leaf: {valid_leaves()}")
    found = tuple(_parse_level(part, text) for part in levels)
    try:
        return Plan(found, leaf)
    except PlanError as error:
        raise PlanError(f"{text!r}: {error}") from None


def _parse_level(part: str, text: str) -> PlanLevel:
    try:
        return parse_level(part)
    except ValueError as error:
        raise PlanError(f"{text!r}: {error}") from None
