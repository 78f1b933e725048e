"""Plans: small immutable trees from the whole product down to the leaf that multiplies.

Text form, outermost level first, levels joined by " > ":

    winograd^2 > li-fig3.peel > vendor          balanced(2) > hasa > vendor          vendor

Some levels a machine does whole, with all that is below them (`residues(14) > strassen > bytes`). Such a level ends a
plan: in `3m > residues(14) > bytes`, all behind `3m` multiplies as a leaf does, and that text is in the leaf's place.

What the text of a level may say, its kind knows (fmm.kernels.plans.levels); of a leaf, its row (fmm.kernels.leaves).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from fmm.kernels.plans.leaf import ENDINGS, LeafUse, fusing_leaves, leaf_use, leaf_uses, valid_leaves
from fmm.kernels.plans.level import PlanLevel, parse_level
from fmm.kernels.plans.likely_plan import likely_plan
from fmm.kernels.plans.old_names import todays_ending
from fmm.kernels.plans.plan_error import PlanError as PlanError
from fmm.kernels.registry import depends_on_rows


@dataclass(frozen=True)
class Plan:
    """Levels from the outermost inwards, then the leaf, or a level that is done whole, with what is below it. (Such
    levels may be given as levels, too.)"""

    levels: tuple[PlanLevel, ...] = ()
    leaf: str = "vendor"
    leaf_use: LeafUse = field(init=False, repr=False, compare=False)  # what that text says

    def __post_init__(self) -> None:
        if any(level.whole for level in self.levels):
            self._end_in_whole_level()
        object.__setattr__(self, "leaf_use", leaf_use(self.leaf))
        object.__setattr__(self, "leaf", str(self.leaf_use))  # as it is spelled today
        lanes = [level for level in self.levels if level.side_by_side]
        if len(lanes) > 1:
            what = "side by side" if lanes[1].needs_fusing_leaf else "overlapped"
            raise PlanError(f"{lanes[1]} below {lanes[0]}: only one level of a plan can be {what}")
        halving = [level.halving for level in self.levels]
        if halving != sorted(halving, reverse=True):
            last = self.levels[len(halving) - 1 - halving[::-1].index(True)]
            raise PlanError(f"{last} cuts only products that are their own adjoints, of which no other level makes any")
        fused = [level for level in self.levels if level.needs_fusing_leaf]
        if fused and (fused[0] is not self.levels[-1] or not self.leaf_use.fuses):
            raise PlanError(f"{fused[0]}: only the last level can be fused, into the leaf {fusing_leaves()}")

    def _end_in_whole_level(self) -> None:
        at = next(i for i, level in enumerate(self.levels) if level.whole)
        ending = " > ".join([*map(str, self.levels[at:]), self.leaf])
        if ending not in leaf_uses():
            raise PlanError(f"below {self.levels[at]} there may be {self.levels[at].below}")
        object.__setattr__(self, "levels", self.levels[:at])
        object.__setattr__(self, "leaf", ending)

    @property
    def rest(self) -> Plan:
        """The plan of the products of the first level."""
        return _rest(self)

    @property
    def leaf_uses(self) -> tuple[LeafUse, ...]:
        """All leaves that it multiplies with."""
        return self.leaf_use, *(leaf_use(leaf) for level in self.levels for leaf in level.own_leaves)

    @property
    def emulates(self) -> bool:
        """Does it multiply in another type than it is asked for, if only blocks on the diagonal?"""
        return any(use.leaf.emulates for use in self.leaf_uses)

    @property
    def halving(self) -> bool:
        """Is it a plan of products that are their own adjoints, and of no others?"""
        return bool(self.levels) and self.levels[0].halving

    @property
    def half(self) -> Plan:
        """The plan of the products below it that are their own adjoints: levels that cut such ones, then the leaf."""
        return _half(self)

    @property
    def shallower(self) -> Plan:
        """With one level of recursion less, taken from the outermost level that has any; the same if none has."""
        return _shallower(self)

    @property
    def fused(self) -> bool:
        """Are the sums of the first level done inside its products?"""
        return bool(self.levels) and self.levels[0].fused

    @property
    def timed_by_tiles(self) -> bool:
        """Is the time of its leaf products predicted from the tiles in which they are computed?"""
        return self.leaf_use.leaf.time_formula == "tiles"

    @cached_property
    def splits(self) -> bool:
        """Are its leaf products smaller than the problem?"""
        return any(level.splits for level in self.levels)

    @cached_property
    def batched(self) -> bool:
        """Are its leaf products a batch, which reads and writes nothing but temporaries?"""
        return any(level.batched for level in self.levels)

    @cached_property
    def types(self) -> tuple[str, ...]:
        """That the leaf multiplies, with sums inside its products if the last level wants them there."""
        found = self.leaf_use.types(bool(self.levels) and self.levels[-1].sums_inside)
        leaf = self.leaf_use.leaf
        if not self.levels:
            return *found, *leaf.types_alone
        return (*found, *leaf.types_in_blocks) if all(level.only_cuts for level in self.levels) else found

    def leaf_type(self, dtype: str) -> str:
        """What its leaf multiplies, where the plan is asked for a product of this type."""
        for step in self.levels:
            dtype = step.dtype_below(dtype)
        return dtype

    def takes_type(self, dtype: str) -> bool:
        """Can each of its levels be asked for what comes to it, and its leaf multiply what is left?"""
        for step in self.levels:
            if step.types is not None and dtype not in step.types:
                return False
            dtype = step.dtype_below(dtype)
        return dtype in self.types

    def type_inside(self, dtype: str, products: Iterable[Plan]) -> str:
        """Of the first level's temporaries and products, which are done by these plans."""
        return dtype if not self.levels or self in products else self.levels[0].dtype_below(dtype)

    def rate_name(self, dtype: str) -> str:
        """Under which name a calibration has the rate of its leaf's products."""
        kind = self.leaf_type(dtype)
        return self.leaf_use.leaf.rate.format(kind) or kind

    def itemsize_inside(self, itemsize: int, products: Iterable[Plan]) -> int:
        """Bytes of a number in the first level's temporaries and in its products, which are done by these plans."""
        return itemsize if not self.levels or self in products else self.levels[0].itemsize_below(itemsize)

    @property
    def conjugates(self) -> tuple[bool, bool]:
        """Does it multiply the conjugates of A, of B?"""
        a, b = (any(level.conjugates[i] for level in self.levels) for i in (0, 1))
        return a, b

    def conjugating(self, a: bool, b: bool) -> Plan | None:
        """The plan for operands of which these are to be conjugated; None where they must be conjugated before."""
        first = self.levels[0].conjugating(a, b) if self.levels else None
        return None if first is None else replace(self, levels=(first, *self.levels[1:]))

    def considered_for(self, dtype: str) -> bool:
        """Is it compared for this type without anybody's asking for it?"""
        return self.takes_type(dtype) and self.leaf_type(dtype) in self._considered

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

    def __reduce__(self) -> tuple[Callable[[str], Plan], tuple[str]]:
        """Pickled as its text, so that other processes have it."""
        return Plan.parse, (str(self),)

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


@lru_cache(maxsize=4096)
def _shallower(plan: Plan) -> Plan:
    at = next((i for i, level in enumerate(plan.levels) if level.depth), None)
    if at is None:
        return plan
    less = plan.levels[at].shallower
    return replace(plan, levels=(*plan.levels[:at], *([less] if less else []), *plan.levels[at + 1 :]))


@lru_cache(maxsize=4096)
def _half(plan: Plan) -> Plan:
    return replace(plan, levels=tuple(level for level in plan.levels if level.halving))


@depends_on_rows
@lru_cache(maxsize=4096)
def _parse(text: str) -> Plan:
    try:
        return _read(text)
    except PlanError as error:
        meant = likely_plan(text, _can_be_read)
        raise PlanError(f"{error}. Did you mean {meant!r}?" if meant else str(error)) from None


def _can_be_read(text: str) -> bool:
    try:
        _read(text)
    except PlanError:
        return False
    return True


def _read(text: str) -> Plan:
    *levels, leaf = (part.strip() for part in text.split(">"))
    if todays_ending(leaf) not in leaf_uses():
        raise PlanError(f"{text!r} ends in {leaf!r}; a plan ends in its leaf: {valid_leaves()}")
    found = tuple(_parse_level(part, text) for part in levels)
    if leaf_use(leaf).leaf.below_levels and not any(level.whole for level in found):
        kinds = " or ".join(ending.name for ending in ENDINGS if ending.leaf == leaf)
        raise PlanError(f"{text!r}: {leaf} multiplies only below {kinds}; other leaves: {valid_leaves()}")
    try:
        return Plan(found, leaf)
    except PlanError as error:
        raise PlanError(f"{text!r}: {error}") from None


def _parse_level(part: str, text: str) -> PlanLevel:
    try:
        return parse_level(part)
    except ValueError as error:
        raise PlanError(f"{text!r}: {error}") from None
