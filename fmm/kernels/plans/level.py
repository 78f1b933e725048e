"""Levels: what any level of a plan can be asked, and the registry of their kinds.

A level turns a product into smaller ones and sums around them. Its kind reads it from a plan's text; the level itself
says which steps it becomes, and what the model must know of it. A new kind is one file in plans/levels/ and nothing
else: what it does not say is counted from its steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.plans.blocks import Cut
from fmm.kernels.plans.level_steps import Asked, LevelSteps, Sum
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.registry import Registry

if TYPE_CHECKING:  # a plan is made of levels, and their steps hold plans
    from fmm.kernels.plans.plan import Plan

Sides = tuple[float, float, float]  # m, k, n; parts of a whole are meant where a level cuts unevenly


class Footprint(NamedTuple):
    """What a level makes of a product, as if all its blocks were alike: enough to rank plans in microseconds."""

    products: float
    sides: Sides  # of each of them
    passes: int = 0  # of sums
    # Elements, all counted as if they were of the type that the level is asked for: those that its sums read and write
    # of A's, of B's and of C's blocks, and those of its temporaries.
    moved: Sides = (0.0, 0.0, 0.0)
    held: Sides = (0.0, 0.0, 0.0)
    in_place: float = 1.0  # the share of its products that read a block of A or B in place, or write one of C
    sequential: bool = False  # are its sums small passes between the products?


class FusedProducts(NamedTuple):
    """Of a level whose sums are all done inside its products: whose sums, and how its launches are made of them."""

    scheme: Scheme
    unit: int | None  # blocks' sides are multiples of it; None: they differ by at most one
    tasks: tuple[str, ...] = ()  # how products share launches and the device


class PlanLevel(ABC):
    """One level of a plan. Frozen, hashable, and equal to another that has the same text."""

    # ---- what runs

    @abstractmethod
    def __str__(self) -> str:
        """As a plan's text has it."""

    @abstractmethod
    def lower(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        """The steps for C = alpha A B + beta C of a plan that begins with this level; `plan.rest` is below it."""

    def lower_half(self, plan: Plan, n: int, k: int, asked: Asked) -> LevelSteps:
        """The steps for the lower half of an n x n C that is its own adjoint; only levels that are `halving` have them.

        Fill is `lower` or `loose`.
        """
        raise PlanError(f"{self} does not cut products that are their own adjoints")

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

    def footprint(self, inner: Plan, sides: Sides) -> Footprint | None:
        """At these sides, as if the plan `inner` did its products; None: its steps must be counted.

        PlanError for sides at which it cannot be done.
        """
        return None

    # ---- what is said of it

    def does(self, steps: LevelSteps) -> str:
        """In a few words, what these steps of it do."""
        sums = sum(isinstance(step, Sum) for step in steps.steps)
        return f"{sum(1 for _ in steps.products)} products, {sums} passes of sums"

    @property
    def launched(self) -> str:
        """How its products share launches and the device, in a line; empty if there is nothing to say."""
        return ""

    @property
    def error_note(self) -> str:
        """What is to be said of its error besides how large it is; empty if there is nothing."""
        return ""


class NonRecursiveLevel(PlanLevel):
    """No level of recursion: what is below it multiplies once, matrices of the same sides, and no fewer numbers.

    It prepares operands, changes the numbers or only says an order. Where one of these four answers is another, the
    level itself says so.
    """

    @property
    def products(self) -> int:
        return 1

    @property
    def depth(self) -> int:
        return 0

    @property
    def splits(self) -> bool:
        return False

    @property
    def saves_products(self) -> bool:
        return False


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
