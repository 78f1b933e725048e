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

MOST_LETTERS = 1000  # of a plan's text: some forty levels, as many as no product has


@dataclass(frozen=True)
class Plan:
    """Levels from the outermost inwards, and the leaf that multiplies below the last of them.

    `leaf` may also be the text of a level that a machine does whole, with all that is below it. Such a level may be
    given among the levels too: it then becomes part of the leaf.
    """

    levels: tuple[PlanLevel, ...] = ()
    leaf: str = "vendor"
    leaf_use: LeafUse = field(init=False, repr=False, compare=False)  # the registered leaf that the text `leaf` names

    def __post_init__(self) -> None:
        if any(level.whole for level in self.levels):
            self._end_in_whole_level()
        object.__setattr__(self, "leaf_use", leaf_use(self.leaf))
        object.__setattr__(self, "leaf", str(self.leaf_use))  # in today's spelling, if an old name was given
        self._check_lanes()
        self._check_halving_levels()
        self._check_fused_level()

    def _end_in_whole_level(self) -> None:
        """Move the first level that is done whole, and all below it, into the text of the leaf."""
        first_whole = next(i for i, level in enumerate(self.levels) if level.whole)
        ending = " > ".join([*map(str, self.levels[first_whole:]), self.leaf])
        if ending not in leaf_uses():
            raise PlanError(f"below {self.levels[first_whole]} there may be {self.levels[first_whole].below}")
        object.__setattr__(self, "levels", self.levels[:first_whole])
        object.__setattr__(self, "leaf", ending)

    def _check_lanes(self) -> None:
        """A machine has lanes for the products of one level only."""
        with_lanes = [level for level in self.levels if level.side_by_side]
        if len(with_lanes) > 1:
            manner = "side by side" if with_lanes[1].needs_fusing_leaf else "overlapped"
            raise PlanError(f"{with_lanes[1]} below {with_lanes[0]}: only one level of a plan can be {manner}")

    def _check_halving_levels(self) -> None:
        """Levels that cut products that are their own adjoints stand above all other levels."""
        halving = [level.halving for level in self.levels]
        if halving != sorted(halving, reverse=True):
            last = self.levels[len(halving) - 1 - halving[::-1].index(True)]
            raise PlanError(f"{last} cuts only products that are their own adjoints, of which no other level makes any")

    def _check_fused_level(self) -> None:
        """A fused level stands right above a leaf that can do its sums."""
        fused = [level for level in self.levels if level.needs_fusing_leaf]
        if fused and (fused[0] is not self.levels[-1] or not self.leaf_use.fuses):
            raise PlanError(f"{fused[0]}: only the last level can be fused, into the leaf {fusing_leaves()}")

    # ---- plans for parts of it

    @property
    def rest(self) -> Plan:
        """The plan by which the first level's products are done: this one without its first level."""
        return _rest(self)

    @property
    def half(self) -> Plan:
        """The plan for a product that is its own adjoint: only the levels that cut such products, and the leaf."""
        return _half(self)

    @property
    def shallower(self) -> Plan:
        """The plan with one level of recursion less, taken from the outermost level that recurs.

        A plan without recursion is returned as it is.
        """
        return _shallower(self)

    def conjugating(self, a: bool, b: bool) -> Plan | None:
        """The plan that multiplies conj(A) if `a`, and conj(B) if `b`, where this one multiplies A and B.

        None where the operands must be conjugated before the product.
        """
        first = self.levels[0].conjugating(a, b) if self.levels else None
        return None if first is None else replace(self, levels=(first, *self.levels[1:]))

    # ---- what its levels and leaves do

    @property
    def leaf_uses(self) -> tuple[LeafUse, ...]:
        """The leaf at the end, and those that levels name for some of their products."""
        return self.leaf_use, *(leaf_use(leaf) for level in self.levels for leaf in level.own_leaves)

    @property
    def emulates(self) -> bool:
        """Does any of its leaves multiply in another type than the plan is asked for?"""
        return any(use.leaf.error.emulates for use in self.leaf_uses)

    @property
    def halving(self) -> bool:
        """Is this a plan for products that are their own adjoints, and for no others?"""
        return bool(self.levels) and self.levels[0].halving

    @property
    def conjugates(self) -> tuple[bool, bool]:
        """Whether the plan multiplies the conjugate of A in A's place, and whether that of B in B's."""
        a, b = (any(level.conjugates[i] for level in self.levels) for i in (0, 1))
        return a, b

    @property
    def depth(self) -> int:
        """The number of levels of recursion; a composition of f schemes counts as f."""
        return sum(level.depth for level in self.levels)

    @property
    def fused(self) -> bool:
        """Are the sums of the first level done inside its products?"""
        return bool(self.levels) and self.levels[0].fused

    @property
    def timed_by_tiles(self) -> bool:
        """Does the model predict the time of its leaf products from the tiles in which they are computed?"""
        return self.leaf_use.leaf.time.formula == "tiles"

    @cached_property
    def splits(self) -> bool:
        """Are its leaf products smaller than the problem?"""
        return any(level.splits for level in self.levels)

    @cached_property
    def batched(self) -> bool:
        """Are its leaf products a batch, which reads and writes nothing but temporaries?"""
        return any(level.batched for level in self.levels)

    # ---- types

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The types of the products that the leaf can do below these levels.

        Where the last level wants its sums inside the leaf's products, only types count for which the leaf does that.
        """
        leaf = self.leaf_use.leaf
        multiplied = self.leaf_use.types(bool(self.levels) and self.levels[-1].sums_inside)
        if not self.levels:
            return *multiplied, *leaf.types.alone
        only_cut = all(level.only_cuts for level in self.levels)
        return (*multiplied, *leaf.types.in_blocks) if only_cut else multiplied

    def leaf_type(self, dtype: str) -> str:
        """The type that the leaf multiplies if the plan is asked for a product of `dtype`: levels may change it."""
        for level in self.levels:
            dtype = level.dtype_below(dtype)
        return dtype

    def takes_type(self, dtype: str) -> bool:
        """Can the plan be asked for a product of `dtype`: does each level take the type that the one above it makes,
        and the leaf the last one?"""
        for level in self.levels:
            if level.types is not None and dtype not in level.types:
                return False
            dtype = level.dtype_below(dtype)
        return dtype in self.types

    def type_inside(self, dtype: str, products: Iterable[Plan]) -> str:
        """The type of the first level's temporaries and products, where the plan is asked for `dtype`.

        `products`: the plans of these products. A level may hand a product to the whole plan again, and then changes
        nothing.
        """
        return dtype if not self.levels or self in products else self.levels[0].dtype_below(dtype)

    def itemsize_inside(self, itemsize: int, products: Iterable[Plan]) -> int:
        """The same as `type_inside`, in bytes of a number."""
        return itemsize if not self.levels or self in products else self.levels[0].itemsize_below(itemsize)

    def rate_name(self, dtype: str) -> str:
        """The name under which a calibration holds the rate of the leaf's products."""
        multiplied = self.leaf_type(dtype)
        return self.leaf_use.leaf.time.rate.format(multiplied) or multiplied

    def considered_for(self, dtype: str) -> bool:
        """Is the plan compared for this type even if nobody names it?"""
        return self.takes_type(dtype) and self.leaf_type(dtype) in self._considered_types

    @cached_property
    def _considered_types(self) -> frozenset[str]:
        considered = self.leaf_use.leaf.candidacy.types
        return frozenset(t for t in self.types if considered is None or t in considered)

    # ---- its text

    def __str__(self) -> str:
        return " > ".join([*map(str, self.levels), self.leaf])

    def __reduce__(self) -> tuple[Callable[[str], Plan], tuple[str]]:
        """Plans are pickled as their texts: another process parses them with its own registries."""
        return Plan.parse, (str(self),)

    @staticmethod
    def parse(text: str) -> Plan:
        """The plan that `text` describes; a PlanError says what is wrong with the text and what is valid."""
        if not isinstance(text, str):
            raise PlanError(f"a plan is a text such as 'winograd > vendor', not {text!r}")
        if len(text) > MOST_LETTERS:
            raise PlanError(
                f"a plan is a text of at most {MOST_LETTERS} letters, not of {len(text)}: {text[:40]!r} ..."
            )
        return _parse(text)


VENDOR = Plan()


@lru_cache(maxsize=4096)
def _rest(plan: Plan) -> Plan:
    return replace(plan, levels=plan.levels[1:])


@lru_cache(maxsize=4096)
def _shallower(plan: Plan) -> Plan:
    outermost = next((i for i, level in enumerate(plan.levels) if level.depth), None)
    if outermost is None:
        return plan
    less = plan.levels[outermost].shallower
    return replace(plan, levels=(*plan.levels[:outermost], *([less] if less else []), *plan.levels[outermost + 1 :]))


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
        if meant is None:
            raise
        upper = " (plans are in lower case)" if text != text.lower() and _can_be_read(text.lower()) else ""
        raise PlanError(f"did you mean {meant!r}{upper}? {error}") from None


def _can_be_read(text: str) -> bool:
    try:
        _read(text)
    except PlanError:
        return False
    return True


def _read(text: str) -> Plan:
    *level_texts, leaf = (part.strip() for part in text.split(">"))
    if todays_ending(leaf) not in leaf_uses():
        raise PlanError(f"{text!r} ends in {leaf!r}; a plan ends in its leaf: {valid_leaves()}")
    levels = tuple(_parse_level(part, text) for part in level_texts)
    if leaf_use(leaf).leaf.below_levels and not any(level.whole for level in levels):
        kinds = " or ".join(ending.name for ending in ENDINGS if ending.leaf == leaf)
        raise PlanError(f"{text!r}: {leaf} multiplies only below {kinds}; other leaves: {valid_leaves()}")
    try:
        return Plan(levels, leaf)
    except PlanError as error:
        raise PlanError(f"{text!r}: {error}") from None


def _parse_level(part: str, text: str) -> PlanLevel:
    try:
        return parse_level(part)
    except ValueError as error:
        raise PlanError(f"{text!r}: {error}") from None
