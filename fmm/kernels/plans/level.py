"""Levels of a plan: the facts of one level, and the registry of the kinds of levels.

A level replaces a product by smaller products and by sums around them. Each kind of level is one module of
plans/levels/ that registers a LevelKind: how its text is read, and which of its levels the model compares. The base
class here holds plain facts, which plans and the model read. fmm.kernels.plans.lower turns levels into steps.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from fmm.dtypes import BYTE, DTYPES
from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.plans.fused_order import count_launches
from fmm.kernels.registry import RowRegistry

# stacked: all sums, all products, one join; overlapped: as stacked, with two products at a time; batched: as stacked,
# with the products as one batch; sequential: one product at a time; fused: as sequential, with the sums inside the
# leaf's kernel.
Traversal = Literal["stacked", "overlapped", "batched", "fused", "sequential"]
TRAVERSALS: tuple[Traversal, ...] = ("stacked", "overlapped", "batched", "fused", "sequential")


class PlanError(ValueError):
    """A plan that cannot be read, or that cannot run on the given problem."""


class LevelCut(NamedTuple):
    """The number of parts of m, k and n, for a level with steps that follow from this number alone."""

    parts: tuple[int, int, int]
    # the unit of which block sides are multiples, except at the edge; None: sides differ by at most one
    unit: int | None
    ordered: bool = False  # True if the steps also depend on the order of the block sides by length

    def has_equal_blocks(self, sides: Iterable[int]) -> bool:
        """Return True if all blocks have equal sides, those at the edge included."""
        return all(side % (parts * (self.unit or 1)) == 0 for side, parts in zip(sides, self.parts, strict=True))


class FusedProducts(NamedTuple):
    """Everything a kernel needs to form all sums of a level inside its products."""

    scheme: Scheme
    # the unit of which block sides are multiples, except at the edge; None: sides differ by at most one
    unit: int | None
    tasks: tuple[str, ...] = ()  # how products share launches and streams (fmm.kernels.plans.fused_order)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Level(ABC):
    """One level of a plan. Levels are equal if their texts are equal.

    All levels are a fmm.kernels.plans.lower.LevelWithSteps. Level and LevelWithSteps are two classes to avoid a
    circular import: steps import plans, and plans import levels.
    """

    text: str  # the level's text in a plan

    # The products that replace one product
    # the largest number of products in place of one; 1 if this number depends on the sizes and no product is saved
    products: int
    depth: int = 1  # levels of recursion
    splits: bool = True  # True if products are smaller than the problem
    # True if each product is a block of A times a block of B, and gives a block of C, without sums
    only_cuts: bool = False
    # True if the level saves multiplications, so that an inf or NaN can appear where the classical product has none
    saves_products: bool = True
    bilinear: Scheme | None = None  # the algorithm, or the composition of algorithms, of one pass
    cut: LevelCut | None = None  # the parts of m, k and n; if set, counts are polynomials in the block sides
    below: str = ""  # the valid endings in words, for a level that one leaf runs with everything below it

    # Gram products, where C is its own adjoint
    for_gram: bool = False  # True if the level cuts Gram products, and no others
    # True if the steps leave the upper triangle of C unchanged, provided that the leaf does
    keeps_upper_triangle: bool = True

    # Types and numbers
    types: tuple[str, ...] | None = None  # the types of the product; None: any type
    number_below: Literal["same", "real", "byte"] = "same"  # the numbers that the inner products multiply
    conjugates: tuple[bool, bool] = (False, False)  # True for each of A and B that the level conjugates
    named_leaves: tuple[str, ...] = ()  # texts of leaves that the level itself names for some of its products
    error_growth: float = 1.0  # factor of the expected error, in addition to the growth of `bilinear`
    error_growth_one_sign: float = 1.0  # the same factor for numbers of one sign
    error_note: str = ""  # a note for users on the error, in addition to its size

    # The order of products and sums
    traversal: Traversal | None = None
    tasks: tuple[str, ...] = ()  # options of a fused level: streams, atomic, variants
    takes_alpha_beta: bool = False  # True if the steps compute alpha A B + beta C; otherwise a further pass updates C
    sums_inside: bool = False  # True if some sums are computed inside the products, provided that the leaf can
    fused_products: FusedProducts | None = None  # set if all sums are computed inside the products

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Level) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    # ---- other levels derived from it

    @property
    def shallower(self) -> Level | None:
        """The level with one recursion less; None if nothing of the level is left."""
        return None

    def with_conjugation(self, a: bool, b: bool) -> Level | None:
        """Return the level that multiplies conj(A) if `a`, and conj(B) if `b`, where this one multiplies A and B.

        The result is None if the operands must be conjugated before the product.
        """
        return None

    # ---- numbers below the level

    def dtype_below(self, dtype: str) -> str:
        """Return the type of the products below, for a product of `dtype`."""
        if self.number_below == "byte":
            return BYTE.name
        real = DTYPES[dtype].real if self.number_below == "real" and dtype in DTYPES else None
        return real or dtype

    def itemsize_below(self, itemsize: int) -> int:
        """Return the bytes of a number in the products below, and in the level's temporaries."""
        if self.number_below == "byte":
            return BYTE.itemsize
        return itemsize // 2 if self.number_below == "real" else itemsize

    @property
    def inner_multiplication_cost(self) -> float:
        """The cost of one multiplication below, in multiplications of the level's own numbers."""
        if self.number_below == "byte":
            return 1 / self.products
        return 0.25 if self.number_below == "real" else 1.0

    @property
    def is_complex_split(self) -> bool:
        """True if the level only separates real and imaginary parts, so that its products keep their sides."""
        return self.number_below == "real" and self.bilinear is None

    # ---- how products run

    @property
    def is_run_by_leaf(self) -> bool:
        """True if one leaf runs the level with everything below it: the level ends a plan."""
        return bool(self.below)

    @property
    def streams(self) -> int:
        """The number of products that may run at a time; each stream has its own temporaries below the level."""
        return 2 if self.traversal == "overlapped" and self.products > 1 else 1

    @property
    def side_by_side(self) -> bool:
        """True if the level needs streams in addition to the caller's."""
        return self.traversal == "overlapped" or "streams" in self.tasks or self.atomic

    @property
    def batched(self) -> bool:
        """True if the products are one batch of equal products."""
        return self.traversal == "batched"

    @property
    def has_independent_products(self) -> bool:
        """True if all products run after the sums and before the join, so that equal ones can be one batch."""
        return self.takes_alpha_beta and self.traversal in ("stacked", "overlapped", "batched")

    @property
    def needs_fusing_leaf(self) -> bool:
        """True if the next part of the plan must be a leaf that forms sums inside its products."""
        return self.traversal == "fused"

    @property
    def fused(self) -> bool:
        """True if all sums are formed inside the products."""
        return self.fused_products is not None

    @property
    def atomic(self) -> bool:
        """True if products add to C by atomic additions, in any order."""
        return "atomic" in self.tasks

    @property
    def launches(self) -> int:
        """The number of kernel launches of the products of a fused level above a leaf."""
        return count_launches(self.bilinear, self.tasks) if self.tasks and self.bilinear else self.products


# ---- kinds of levels


class CandidateLevel(NamedTuple):
    """A level that the model compares by itself, and the forms of its plans (fmm.perfmodel.candidates)."""

    text: str
    forms: tuple[str, ...]
    products: int
    lean: bool = False  # True if the level needs little workspace, and is listed last
    above: bool = False  # True if the level replaces the numbers by others, and every plan for these numbers may follow


def _no_candidates() -> Iterable[CandidateLevel]:
    return ()


@dataclass(frozen=True)
class LevelKind:
    """One kind of level: how its text is read, and its candidates."""

    name: str
    parse: Callable[[str], Level | None]  # None for the text of another kind; PlanError for a wrong text of this kind
    words: Callable[[], tuple[str, ...]]  # the first words of a text of this kind
    candidates: Callable[[], Iterable[CandidateLevel]] = _no_candidates


LEVEL_KINDS: Final[RowRegistry[LevelKind]] = RowRegistry("kind of level")


def register_level(kind: LevelKind) -> None:
    """Let plans contain levels of this kind."""
    LEVEL_KINDS.add(kind)


def unregister_level(name: str) -> None:
    """Remove a kind of level from the registry."""
    LEVEL_KINDS.remove(name)


def parse_level(text: str) -> Level:
    """Return the level that a text names; raise PlanError with the valid names."""
    for kind in LEVEL_KINDS:
        if (level := kind.parse(text)) is not None:
            return level
    raise unknown_algorithm_error(text.partition(".")[0])


def unknown_algorithm_error(name: str) -> PlanError:
    """Return the error for a name that no kind of level has; the message lists the valid names."""
    valid = ", ".join(word for kind in LEVEL_KINDS for word in kind.words())
    return PlanError(f"unknown algorithm {name!r}; valid: {valid}")
