"""Levels: what a plan knows of any of its levels, and the registry of their kinds.

A level turns a product into smaller ones and sums around them. Its kind reads it from a plan's text; the level itself
says what the model must know of it, and which steps it becomes (fmm.kernels.plans.level_with_steps). A new kind is one
file in plans/levels/ and nothing else: what it does not say is counted from its steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.registry import Registry


class Cut(NamedTuple):
    """How a level cuts m, k and n, where that alone decides its steps."""

    parts: tuple[int, int, int]
    unit: int | None  # blocks' sides are multiples of it, but at the edge; None: they differ by at most one
    ordered: bool = False  # do its steps depend on which of the blocks' sides are the larger ones?

    def even(self, sides: Iterable[int]) -> bool:
        """Are all blocks whole?"""
        return all(side % (parts * (self.unit or 1)) == 0 for side, parts in zip(sides, self.parts, strict=True))


class FusedProducts(NamedTuple):
    """Of a level whose sums are all done inside its products: whose sums, and how its launches are made of them."""

    scheme: Scheme
    unit: int | None  # blocks' sides are multiples of it; None: they differ by at most one
    tasks: tuple[str, ...] = ()  # how products share launches and the device


class PlanLevel(ABC):
    """One level of a plan, as far as it can be told without steps: levels themselves are a LevelWithSteps each.

    Frozen, hashable, and equal to another that has the same text.
    """

    # ---- what runs

    @abstractmethod
    def __str__(self) -> str:
        """As a plan's text has it."""

    @property
    def halving(self) -> bool:
        """Does it cut products that are their own adjoints, and no others?"""
        return False

    @property
    def keeps_upper_half(self) -> bool:
        """Of a halving level: does it write nothing of C's upper half, if its leaf does not?"""
        return True

    @property
    def takes_alpha_beta(self) -> bool:
        """Do its steps scale and add themselves? Else they are only asked for A B, and a pass does the rest."""
        return False

    @property
    def types(self) -> tuple[str, ...] | None:
        """Of the products that it may be asked for; None: of any type."""
        return None

    @property
    def own_leaves(self) -> tuple[str, ...]:
        """The leaves that do some of its products, whatever is below it."""
        return ()

    def dtype_below(self, dtype: str) -> str:
        """The type of its products, where it is asked for one of this type: a level may change the numbers."""
        return dtype

    def itemsize_below(self, itemsize: int) -> int:
        """Bytes of a number in its temporaries and in its products, where it is asked for numbers of so many."""
        return itemsize

    @property
    def work_below(self) -> float:
        """A multiplication of its products' numbers, as a share of one of the numbers that it is asked for."""
        return 1.0

    @property
    def conjugates(self) -> tuple[bool, bool]:
        """Does it multiply the conjugates of A, of B?"""
        return False, False

    def conjugating(self, a: bool, b: bool) -> PlanLevel | None:
        """The level for operands of which these are to be conjugated; None where they must be conjugated before."""
        return None

    @property
    def whole(self) -> bool:
        """Does a machine do it at once with all that is below it, as it does a leaf? Then it ends a plan's levels, and
        its file registers the rows of what may be below it (fmm.kernels.plans.leaf.Ending)."""
        return False

    @property
    def below(self) -> str:
        """Of such a level: what may stand below it, in words."""
        return ""

    # ---- what becomes of a product

    @property
    @abstractmethod
    def products(self) -> int:
        """How many products it makes of one, at most; 1 if as many multiplications are left as there were."""

    @property
    def depth(self) -> int:
        """How many levels of recursion it does at once."""
        return 1

    @property
    def shallower(self) -> PlanLevel | None:
        """With one level of recursion less; None if then nothing is left of it."""
        return None

    @property
    def splits(self) -> bool:
        """Are its products smaller than the problem?"""
        return True

    @property
    def only_cuts(self) -> bool:
        """Are its products blocks of A times blocks of B, each a block of C, without any sum?"""
        return False

    @property
    def saves_products(self) -> bool:
        """Are there fewer multiplications below it? Then inf and NaN can come where the classical product has none."""
        return True

    @property
    def bilinear(self) -> Scheme | None:
        """The bilinear algorithm that it applies in one pass, a composition as one; None if it only cuts."""
        return None

    @property
    def error_growth(self) -> float:
        """By what it multiplies the expected error beside what its algorithm does."""
        return 1.0

    @property
    def positive_growth(self) -> float:
        """The same on numbers of one sign, whose sums are the larger the longer they are."""
        return 1.0

    # ---- how its products and sums are run

    @property
    def lanes(self) -> int:
        """How many of its products may run at a time, each with temporaries of its own below it."""
        return 1

    @property
    def side_by_side(self) -> bool:
        """Does it need lanes beside the caller's?"""
        return False

    @property
    def batched(self) -> bool:
        """Are its products one batch of equal ones?"""
        return False

    @property
    def independent(self) -> bool:
        """Do all its products come after its sums and before its join, so that equal ones could be one batch?"""
        return self.batched

    @property
    def needs_fusing_leaf(self) -> bool:
        """Must a leaf stand right below it that does sums inside its products?"""
        return False

    @property
    def fused(self) -> bool:
        """Are all its sums done inside its products?"""
        return self.fused_products is not None

    @property
    def sums_inside(self) -> bool:
        """Are some of its sums done inside its products, if the leaf can?"""
        return self.fused

    @property
    def atomic(self) -> bool:
        """Do its products add to C number by number, in any order?"""
        return False

    @property
    def launches(self) -> int:
        """Of a fused level, with leaves below it: how many launches its products are."""
        return self.products

    @property
    def fused_products(self) -> FusedProducts | None:
        """What a machine needs that does its sums inside its products; None where none can."""
        return None

    # ---- what the model may know of it without counting its steps

    @property
    def cut(self) -> Cut | None:
        """How the sides are cut, if that alone decides the steps: counts are then polynomials in the blocks' sides."""
        return None

    # ---- what is said of it

    @property
    def launched(self) -> str:
        """How its products share launches and the device, in a line; empty if there is nothing to say."""
        return ""

    @property
    def error_note(self) -> str:
        """What is to be said of its error besides how large it is; empty if there is nothing."""
        return ""


# ---- kinds of levels


class CandidateLevel(NamedTuple):
    """A level that is worth considering, and in which of the forms that fmm.kernels.plans.candidates lists."""

    text: str
    forms: tuple[str, ...]
    products: int  # that it makes of one
    lean: bool = False  # it needs less workspace than others, and is listed behind them
    above: bool = False  # it changes the numbers: it is put above every plan that is compared for those below it


def _nothing() -> Iterable[CandidateLevel]:
    return ()


@dataclass(frozen=True)
class LevelKind:
    """How levels of one kind are read, and which are considered unasked."""

    name: str
    parse: Callable[[str], PlanLevel | None]  # None for a text of another kind; PlanError for one that is wrong
    words: Callable[[], tuple[str, ...]]  # with which a text of this kind can begin
    considered: Callable[[], Iterable[CandidateLevel]] = _nothing


LEVEL_KINDS: Final[Registry[LevelKind]] = Registry("kind of level")


def register_level(kind: LevelKind) -> None:
    """From now on, plans may have such levels."""
    LEVEL_KINDS.add(kind)


def unregister_level(name: str) -> None:
    LEVEL_KINDS.remove(name)


def parse_level(text: str) -> PlanLevel:
    """The level of a text; PlanError says what is valid."""
    for kind in LEVEL_KINDS:
        if (found := kind.parse(text)) is not None:
            return found
    raise unknown_algorithm(text.partition(".")[0])


def unknown_algorithm(name: str) -> PlanError:
    """The error that says what levels there are."""
    valid = ", ".join(word for kind in LEVEL_KINDS for word in kind.words())
    return PlanError(f"unknown algorithm {name!r}; valid: {valid}")
