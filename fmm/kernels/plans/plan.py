"""Plans: levels from the outermost inwards, then the leaf that multiplies. A plan is one line of text.

The text form joins levels and leaf by " > ", for example `winograd^2 > li-fig3.peel > vendor`.

One leaf can run a level together with everything below it, for example `residues(14) > strassen > bytes`. The text of a
leaf that runs a level contains the text of the level: the leaf of the plan `3m > residues(14) > bytes` is `residues(14)
> bytes`.

The texts of levels are defined in fmm.kernels.plans.levels, and the texts of leaves in fmm.kernels.leaves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property, lru_cache

from fmm.kernels.plans.leaf import (
    LEAF_FAMILIES,
    LeafUse,
    fusing_leaves_text,
    leaves_by_text,
    parse_leaf,
    valid_leaves_text,
)
from fmm.kernels.plans.level import LEVEL_KINDS, Level, parse_level
from fmm.kernels.plans.level import PlanError as PlanError
from fmm.kernels.registry import clear_on_registration

MAX_TEXT_LENGTH = 1000  # largest number of characters in a plan's text: enough for about 40 levels


@dataclass(frozen=True)
class Plan:
    """A plan of a product: levels from the outermost inwards, and the leaf that multiplies below the last level.

    If one leaf runs a level together with everything below the level, the field `leaf` is the whole text from this
    level on. The constructor also accepts this level in `levels`, and then moves the level and all later levels into
    the text of the leaf.
    """

    levels: tuple[Level, ...] = ()
    leaf: str = "vendor"
    leaf_use: LeafUse = field(init=False, repr=False, compare=False)  # the registered leaf of the text `leaf`

    def __post_init__(self) -> None:
        if any(level.is_run_by_leaf for level in self.levels):
            self._move_levels_into_leaf_text()
        object.__setattr__(self, "leaf_use", parse_leaf(self.leaf))
        self._check_order_of_levels()

    def _move_levels_into_leaf_text(self) -> None:
        """Move a level that one leaf runs, and all later levels, from `levels` into the text `leaf`."""
        first = next(i for i, level in enumerate(self.levels) if level.is_run_by_leaf)
        ending = " > ".join([*map(str, self.levels[first:]), self.leaf])
        if ending not in leaves_by_text():
            raise PlanError(f"below {self.levels[first]} there may be {self.levels[first].below}")
        object.__setattr__(self, "levels", self.levels[:first])
        object.__setattr__(self, "leaf", ending)

    def _check_order_of_levels(self) -> None:
        """Raise PlanError if the plan's levels cannot have this order above the plan's leaf."""
        with_streams = [level for level in self.levels if level.needs_extra_streams]
        if len(with_streams) > 1:
            manner = "run products concurrently" if with_streams[1].needs_fusing_leaf else "be overlapped"
            raise PlanError(f"{with_streams[1]} below {with_streams[0]}: only one level of a plan can {manner}")
        for_gram = [level.for_gram for level in self.levels]
        if for_gram != sorted(for_gram, reverse=True):
            last = self.levels[len(for_gram) - 1 - for_gram[::-1].index(True)]
            raise PlanError(f"{last} cuts only Gram products (A times its adjoint): it must be above all other levels")
        fused = [level for level in self.levels if level.needs_fusing_leaf]
        if fused and (fused[0] is not self.levels[-1] or not self.leaf_use.can_fuse_last_level):
            raise PlanError(f"{fused[0]}: only the last level can be fused, into the leaf {fusing_leaves_text()}")

    # ---- plans derived from the plan

    @property
    def inner_plan(self) -> Plan:
        """Return the plan without its first level: the plan of the first level's products."""
        return _without_first_level(self)

    @property
    def gram_plan(self) -> Plan:
        """Return the plan with only those of its levels that cut Gram products (A times its adjoint)."""
        return _with_gram_levels_only(self)

    @property
    def plan_with_less_recursion(self) -> Plan:
        """Return the plan with one recursion less in its outermost recursive level; if no level recurs, the plan."""
        return _with_one_recursion_less(self)

    def with_conjugation(self, a: bool, b: bool) -> Plan | None:
        """Return the plan that multiplies conj(A) in place of A if `a`, and conj(B) in place of B if `b`.

        Return None if the plan cannot conjugate its operands: the operands must then be conjugated before the product.
        """
        level = self.levels[0] if self.levels else self.leaf_use.leaf.level
        first = level.with_conjugation(a, b) if level else None
        if first is None:
            return None
        if not self.levels:
            return replace(self, leaf=self.leaf.replace(str(level), str(first), 1))
        return replace(self, levels=(first, *self.levels[1:]))

    # ---- facts of the plan's levels and leaves

    @property
    def all_leaves(self) -> tuple[LeafUse, ...]:
        """Return the leaf at the end of the plan, and the leaves that levels name for some of their products."""
        return self.leaf_use, *(parse_leaf(leaf) for level in self.levels for leaf in level.named_leaves)

    @property
    def uses_emulation(self) -> bool:
        """Return True if one of the plan's leaves multiplies in another type than the product's."""
        return any(use.leaf.emulates for use in self.all_leaves)

    @property
    def is_for_smaller_errors(self) -> bool:
        """Return True if the plan is a candidate only for a call that requires a smaller error than the vendor's."""
        return any(use.leaf.for_smaller_errors for use in self.all_leaves)

    @property
    def is_gram_plan(self) -> bool:
        """Return True for a plan that computes Gram products only."""
        return bool(self.levels) and self.levels[0].for_gram

    @property
    def conjugated_operands(self) -> tuple[bool, bool]:
        """Return two booleans, for A and for B: True if the plan conjugates the matrix."""
        leaf_level = self.leaf_use.leaf.level
        levels = (*self.levels, leaf_level) if leaf_level else self.levels
        a, b = (any(level.conjugates[i] for level in levels) for i in (0, 1))
        return a, b

    @property
    def depth(self) -> int:
        """Return the number of levels of recursion. A composition of f schemes counts as f levels."""
        return sum(level.depth for level in self.levels)

    @property
    def is_fused(self) -> bool:
        """Return True if all sums of the first level are formed inside its products."""
        return bool(self.levels) and self.levels[0].has_fused_sums

    @property
    def uses_tile_model(self) -> bool:
        """Return True if the model predicts the time of leaf products from the tiles of their kernel."""
        return self.leaf_use.leaf.time_formula == "tiles"

    @cached_property
    def has_smaller_products(self) -> bool:
        """Return True if the leaf products are smaller than the problem."""
        return any(level.splits for level in self.levels)

    @cached_property
    def is_batched(self) -> bool:
        """Return True if the leaf products are a batch that reads and writes temporaries only."""
        return any(level.is_batched for level in self.levels)

    # ---- types of numbers

    @cached_property
    def leaf_types(self) -> tuple[str, ...]:
        """Return the types that the leaf multiplies below the plan's levels.

        If the last level needs sums inside the leaf's products, the result has only the types for which the leaf can
        form sums.
        """
        leaf = self.leaf_use.leaf
        multiplied = self.leaf_use.multiplied_types(bool(self.levels) and self.levels[-1].sums_inside)
        if not self.levels:
            return *multiplied, *leaf.types_alone
        only_cut = all(level.only_cuts for level in self.levels)
        return (*multiplied, *leaf.types_in_blocks) if only_cut else multiplied

    def leaf_type(self, dtype: str) -> str:
        """Return the type of the leaf products in a product of `dtype`; levels can change the type."""
        for level in self.levels:
            dtype = level.dtype_of_products(dtype)
        return dtype

    def accepts_type(self, dtype: str) -> bool:
        """Return True if the plan can compute a product of `dtype`."""
        for level in self.levels:
            if level.types is not None and dtype not in level.types:
                return False
            dtype = level.dtype_of_products(dtype)
        return dtype in self.leaf_types

    def dtype_in_first_level(self, dtype: str, products: Iterable[Plan]) -> str:
        """Return the type of the first level's temporaries and products, in a product of `dtype`.

        `products` are the plans of the products in the first level's steps. If a product has the whole plan again (in
        `balanced`, and if a separate pass adds beta C), temporaries and products have the type `dtype`.
        """
        return dtype if not self.levels or self in products else self.levels[0].dtype_of_products(dtype)

    def inner_itemsize(self, itemsize: int, products: Iterable[Plan]) -> int:
        """Return the bytes of a number in the first level's temporaries and products.

        `itemsize` is the bytes of a number in the whole product; `products` are the plans of the first level's
        products.
        """
        return itemsize if not self.levels or self in products else self.levels[0].itemsize_of_products(itemsize)

    def rate_name(self, dtype: str) -> str:
        """Return the name of the leaf's rate in a calibration, for a product of `dtype`."""
        multiplied = self.leaf_type(dtype)
        return self.leaf_use.leaf.rate.format(multiplied) or multiplied

    def is_candidate_for(self, dtype: str) -> bool:
        """Return True if the plan is one of the model's candidates for products of `dtype`."""
        return self.accepts_type(dtype) and self.leaf_type(dtype) in self._candidate_dtypes

    @cached_property
    def _candidate_dtypes(self) -> frozenset[str]:
        types = self.leaf_use.leaf.candidate_types
        return frozenset(t for t in self.leaf_types if types is None or t in types)

    # ---- the plan's text

    def __str__(self) -> str:
        return " > ".join([*map(str, self.levels), self.leaf])

    def __reduce__(self) -> tuple[Callable[[str], Plan], tuple[str]]:
        """Pickle a plan as its text; the process that unpickles it parses the text with its own registries."""
        return Plan.parse, (str(self),)

    @staticmethod
    def parse(text: str) -> Plan:
        """Return the plan of this text.

        Raises
        ------
        PlanError
            The text is no plan. The message names the error, and the valid texts or the text that was probably meant.

        Examples
        --------
        >>> import fmm.kernels
        >>> plan = Plan.parse("winograd^2 > li-fig3.peel > vendor")
        >>> plan.depth, plan.leaf, str(plan.inner_plan)
        (3, 'vendor', 'li-fig3.peel > vendor')
        """
        if not isinstance(text, str):
            raise PlanError(f"a plan is a text such as 'winograd > vendor', not {text!r}")
        if len(text) > MAX_TEXT_LENGTH:
            raise PlanError(
                f"a plan is a text of at most {MAX_TEXT_LENGTH} letters, not of {len(text)}: {text[:40]!r} ..."
            )
        return _parse_plan(text)


VENDOR = Plan()


@lru_cache(maxsize=4096)
def _without_first_level(plan: Plan) -> Plan:
    return replace(plan, levels=plan.levels[1:])


@lru_cache(maxsize=4096)
def _with_one_recursion_less(plan: Plan) -> Plan:
    outermost = next((i for i, level in enumerate(plan.levels) if level.depth), None)
    if outermost is None:
        return plan
    less = plan.levels[outermost].level_with_less_recursion
    return replace(plan, levels=(*plan.levels[:outermost], *([less] if less else []), *plan.levels[outermost + 1 :]))


@lru_cache(maxsize=4096)
def _with_gram_levels_only(plan: Plan) -> Plan:
    return replace(plan, levels=tuple(level for level in plan.levels if level.for_gram))


# ---- parsing


@clear_on_registration
@lru_cache(maxsize=4096)
def _parse_plan(text: str) -> Plan:
    try:
        return _plan_from_text(text)
    except PlanError as error:
        meant = next((near for near in _similar_texts(text) if near != text and _is_plan_text(near)), None)
        if meant is None:
            raise
        upper = " (plans are in lower case)" if text != text.lower() and _is_plan_text(text.lower()) else ""
        raise PlanError(f"{error}; did you mean {meant!r}{upper}?") from None


def _plan_from_text(text: str) -> Plan:
    *level_texts, leaf = (part.strip() for part in text.split(">"))
    if leaf not in leaves_by_text():
        raise PlanError(f"{text!r} ends in {leaf!r}; a plan ends in its leaf: {valid_leaves_text()}")
    try:
        levels = tuple(map(parse_level, level_texts))
        if parse_leaf(leaf).leaf.only_below_levels and not any(level.is_run_by_leaf for level in levels):
            kinds = " or ".join(family.name for family in LEAF_FAMILIES if family.end == leaf)
            raise PlanError(f"{leaf} multiplies only below {kinds}; other leaves: {valid_leaves_text()}")
        return Plan(levels, leaf)
    except ValueError as error:
        raise PlanError(f"{text!r}: {error}") from None


def _is_plan_text(text: str) -> bool:
    try:
        _plan_from_text(text)
    except PlanError:
        return False
    return True


# matches a name at the beginning of a level, or after the `*` of a composition
_NAME_PATTERN = re.compile(r"(^|\*\s*)([\w-]+)")
_SEPARATOR_PATTERN = re.compile(r"\s*[-=]*>\s*|\s*→\s*|(?<![*\s])\s+(?![*\s])")


def _similar_texts(text: str) -> Iterator[str]:
    """Yield valid texts of plans that are similar to an invalid text: the nearest valid names replace wrong names."""
    parts = [part for part in _SEPARATOR_PATTERN.split(text.strip().strip("'\"").lower()) if part]
    if not parts:
        return
    above = [_with_nearest_names(level) for level in parts[:-1]]
    leaf = get_close_matches(parts[-1], leaves_by_text(), 1)
    if leaf:
        yield " > ".join([*above, *leaf])
    yield " > ".join([*above, _with_nearest_names(parts[-1]), VENDOR.leaf])


def _with_nearest_names(level: str) -> str:
    words = [word for kind in LEVEL_KINDS for word in kind.words()]

    def nearest_name(found: re.Match[str]) -> str:
        return found[1] + next(iter(get_close_matches(found[2], words, 1)), found[2])

    return _NAME_PATTERN.sub(nearest_name, level)
