"""Levels: what a plan and the model know of any level, and the registry of the kinds of levels.

A level turns a product into smaller products and sums around them. Its kind reads it from a plan's text; the level
itself answers the questions of PlanLevel, and says which steps it becomes (fmm.kernels.plans.level_with_steps). A new
kind is one file in plans/levels/ and nothing else: whatever it leaves unanswered is counted from its steps.
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
    """Into how many parts a level cuts m, k and n, if its steps follow from that alone."""

    parts: tuple[int, int, int]
    unit: int | None  # the sides of blocks are multiples of it, except at the edge; None: they differ by at most one
    ordered: bool = False  # do its steps also depend on which of the blocks' sides are the longer ones?

    def even(self, sides: Iterable[int]) -> bool:
        """Do these sides divide, so that no block at the edge is smaller than the others?"""
        return all(side % (parts * (self.unit or 1)) == 0 for side, parts in zip(sides, self.parts, strict=True))


class FusedProducts(NamedTuple):
    """What a machine needs to do all of a level's sums inside its products."""

    scheme: Scheme  # whose sums
    unit: int | None  # the sides of blocks are multiples of it; None: they differ by at most one
    tasks: tuple[str, ...] = ()  # how products share launches and the device (fmm.kernels.plans.steps.fused_order)


class PlanLevel(ABC):
    """One level of a plan: everything that can be said of it without its steps.

    Levels are frozen, hashable, and equal if their texts are equal. All of them are a LevelWithSteps.
    """

    # ---- what runs

    @abstractmethod
    def __str__(self) -> str:
        """The level's text in a plan."""

    @property
    def halving(self) -> bool:
        """Does it cut only products that are their own adjoints?"""
        return False

    @property
    def keeps_upper_half(self) -> bool:
        """Asked of a halving level: does it leave C's upper half as it is, provided that its leaf does?"""
        return True

    @property
    def takes_alpha_beta(self) -> bool:
        """Can its steps compute alpha A B + beta C? Of other levels only A B is asked, and a further pass updates C."""
        return False

    @property
    def types(self) -> tuple[str, ...] | None:
        """The types of products that it may be asked for; None: any type."""
        return None

    @property
    def own_leaves(self) -> tuple[str, ...]:
        """The leaves that the level itself names for some of its products."""
        return ()

    def dtype_below(self, dtype: str) -> str:
        """The type of its products if it is asked for one of `dtype`: a level may change the numbers."""
        return dtype

    def itemsize_below(self, itemsize: int) -> int:
        """The same in bytes of a number, which its temporaries have too."""
        return itemsize

    @property
    def work_below(self) -> float:
        """What one multiplication in its products counts, in multiplications of the numbers that it is asked for."""
        return 1.0

    @property
    def splits_parts(self) -> bool:
        """Does it only take complex numbers apart, so that its products have the sides that it is asked for?"""
        return False

    @property
    def conjugates(self) -> tuple[bool, bool]:
        """Whether it multiplies the conjugate of A in A's place, and whether that of B in B's."""
        return False, False

    def conjugating(self, a: bool, b: bool) -> PlanLevel | None:
        """The level that multiplies conj(A) if `a`, and conj(B) if `b`, where this one multiplies A and B.

        None where the operands must be conjugated before the product.
        """
        return None

    @property
    def whole(self) -> bool:
        """Does a machine do the level at once with all that is below it, as it does a leaf?

        Such a level ends the levels of a plan. Its file registers the rows of what may stand below it, as a
        fmm.kernels.plans.leaf.Ending.
        """
        return False

    @property
    def below(self) -> str:
        """Asked of a whole level: in words, what may stand below it."""
        return ""

    # ---- what becomes of a product

    @property
    @abstractmethod
    def products(self) -> int:
        """The most products that it makes of one; 1 if it saves no multiplications."""

    @property
    def depth(self) -> int:
        """How many levels of recursion it does at once."""
        return 1

    @property
    def shallower(self) -> PlanLevel | None:
        """The level with one recursion less; None if nothing is left of it then."""
        return None

    @property
    def splits(self) -> bool:
        """Are its products smaller than the problem?"""
        return True

    @property
    def only_cuts(self) -> bool:
        """Is each of its products a block of A times a block of B, and the result a block of C, without any sum?"""
        return False

    @property
    def saves_products(self) -> bool:
        """Are there fewer multiplications below it than in the product itself?

        Then an inf or NaN can come out where the classical product has none.
        """
        return True

    @property
    def bilinear(self) -> Scheme | None:
        """The bilinear algorithm, or composition of such, that it applies in one pass; None if it only cuts."""
        return None

    @property
    def error_growth(self) -> float:
        """The factor by which the expected error grows, besides the growth by its bilinear algorithm."""
        return 1.0

    @property
    def positive_growth(self) -> float:
        """The same factor for numbers of one sign, whose sums grow with their length."""
        return 1.0

    # ---- how its products and sums are run

    @property
    def lanes(self) -> int:
        """How many of its products may run at a time; each lane has temporaries of its own for what is below."""
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
        """Must the plan's next part be a leaf that does sums inside its products?"""
        return False

    @property
    def fused(self) -> bool:
        """Are all its sums done inside its products?"""
        return self.fused_products is not None

    @property
    def sums_inside(self) -> bool:
        """Are some of its sums done inside its products, provided that the leaf can?"""
        return self.fused

    @property
    def atomic(self) -> bool:
        """Do its products add to C by atomic additions, in any order?"""
        return False

    @property
    def launches(self) -> int:
        """How many launches the products of a fused level are, if leaves do them."""
        return self.products

    @property
    def fused_products(self) -> FusedProducts | None:
        """What a machine needs to do all of its sums inside its products; None if that is not possible."""
        return None

    # ---- what the model may know of it without counting its steps

    @property
    def cut(self) -> Cut | None:
        """How the sides are cut, if the steps follow from that alone: counts are then polynomials in blocks' sides."""
        return None

    # ---- what is said of it

    @property
    def launched(self) -> str:
        """A line for explain: how its products share launches and the device. Empty if there is nothing to say."""
        return ""

    @property
    def error_note(self) -> str:
        """What a user should know of its error besides how large it is. Empty if there is nothing to say."""
        return ""


# ---- kinds of levels


class CandidateLevel(NamedTuple):
    """A level that plans are made of though nobody names it, and the forms of these plans
    (fmm.perfmodel.candidates)."""

    text: str
    forms: tuple[str, ...]
    products: int  # how many it makes of one
    lean: bool = False  # does it need less workspace than others? Then it is listed behind them
    above: bool = False  # does it change the numbers? Then it is put above every plan for those that it makes


def _nothing() -> Iterable[CandidateLevel]:
    return ()


@dataclass(frozen=True)
class LevelKind:
    """Levels of one kind: how they are read, and which of them are compared though nobody names them."""

    name: str
    parse: Callable[[str], PlanLevel | None]  # None for the text of another kind; PlanError if the text is wrong
    words: Callable[[], tuple[str, ...]]  # the words with which a text of this kind can begin
    considered: Callable[[], Iterable[CandidateLevel]] = _nothing


LEVEL_KINDS: Final[Registry[LevelKind]] = Registry("kind of level")


def register_level(kind: LevelKind) -> None:
    """Let plans have levels of this kind from now on."""
    LEVEL_KINDS.add(kind)


def unregister_level(name: str) -> None:
    LEVEL_KINDS.remove(name)


def parse_level(text: str) -> PlanLevel:
    """The level that a text names; a PlanError says what is valid."""
    for kind in LEVEL_KINDS:
        if (level := kind.parse(text)) is not None:
            return level
    raise unknown_algorithm(text.partition(".")[0])


def unknown_algorithm(name: str) -> PlanError:
    """The error for a name that no kind of level knows; it lists those that are known."""
    valid = ", ".join(word for kind in LEVEL_KINDS for word in kind.words())
    return PlanError(f"unknown algorithm {name!r}; valid: {valid}")
