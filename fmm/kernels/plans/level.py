"""Levels of a plan: the properties of one level, and the registry of the kinds of levels.

A level replaces a product by smaller products and by sums around them. Each kind of level is a module of plans/levels/
that registers a LevelKind. The kind parses the texts of its levels, and lists the levels that are candidates. The base
class Level has the properties that plans and the model read. fmm.kernels.plans.lower computes the steps of a level.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from fmm.dtypes import BYTE_TYPE, DTYPES
from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.plans.fused_order import count_launches
from fmm.kernels.registry import RowRegistry

# The order of a level's sums and products. `stacked`: all sums of A and B, then all products, then one pass that forms
# C (the join). `overlapped`: as `stacked`, with two products at a time. `batched`: as `stacked`, with all products in
# one batch. `sequential`: one product at a time with its sums. `fused`: as `sequential`, with the sums inside the
# leaf's kernel.
Traversal = Literal["stacked", "overlapped", "batched", "fused", "sequential"]
TRAVERSALS: tuple[Traversal, ...] = ("stacked", "overlapped", "batched", "fused", "sequential")


class PlanError(ValueError):
    """Raised if a plan's text is invalid, or if a plan cannot run on a problem."""


class LevelBlockGrid(NamedTuple):
    """How many blocks a level cuts m, k and n into, if the level's steps depend only on the sides of the blocks."""

    parts: tuple[int, int, int]
    # Block sides are multiples of this number, except at the edge; if None, block sides differ by at most 1.
    unit: int | None
    ordered: bool = False  # True if the steps also depend on which block side is the longest and which the shortest

    def has_equal_blocks(self, sides: Iterable[int]) -> bool:
        """Return True if all blocks have equal sides, also at the edge of the matrix."""
        return all(side % (parts * (self.unit or 1)) == 0 for side, parts in zip(sides, self.parts, strict=True))


class FusedProducts(NamedTuple):
    """A fused level, described for a kernel that forms all sums of the level inside the products."""

    scheme: Scheme
    # Block sides are multiples of this number, except at the edge; if None, block sides differ by at most 1.
    unit: int | None
    tasks: tuple[str, ...] = ()  # options for launches and streams: streams, atomic, variants (fused_order.py)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Level(ABC):
    """The properties of one level of a plan. Levels are equal if their texts are equal.

    Every level of a plan is also a fmm.kernels.plans.lower.LevelWithSteps. The classes Level and LevelWithSteps are
    separate to avoid a circular import: steps import plans, and plans import levels.
    """

    text: str  # the level's text in a plan

    # Fields on the products that replace one product.
    # The largest number of products that replace one product; 1 if this number depends on the sizes and the level saves
    # no multiplications.
    products: int
    depth: int = 1  # number of levels of recursion
    splits: bool = True  # True if the level's products are smaller than the problem
    # True if each product multiplies a block of A by a block of B into a block of C, without sums
    only_cuts: bool = False
    # True if the level saves multiplications, so that an inf or NaN can appear where the classical product has none
    saves_products: bool = True
    bilinear: Scheme | None = None  # the scheme or the composition of schemes that the level computes
    # the numbers of blocks along m, k and n; None if the level's counts do not depend on the block sides alone
    cut: LevelBlockGrid | None = None
    below: str = ""  # for a level that one leaf runs: a description of the texts that can follow it in a plan

    # Fields on Gram products, where C is its own adjoint.
    for_gram: bool = False  # True if the level cuts Gram products only
    # True if the level's steps leave the upper triangle of C unchanged, provided that the leaf does so too
    keeps_upper_triangle: bool = True

    # Fields on types and numbers.
    types: tuple[str, ...] | None = None  # types of products that the level computes; None: any type
    # Type of the numbers that the level's products multiply: the operands' type, the real type of a complex type, or
    # bytes.
    number_below: Literal["same", "real", "byte"] = "same"
    conjugates: tuple[bool, bool] = (False, False)  # (True if the level conjugates A, True if the level conjugates B)
    named_leaves: tuple[str, ...] = ()  # texts of leaves that the level itself names for some of its products
    # Factor by which the level increases the expected error, in addition to the error growth of the scheme `bilinear`.
    error_growth: float = 1.0
    same_sign_error_growth: float = 1.0  # factor by which the level increases the expected error on numbers of one sign
    error_note: str = ""  # a note on the error that explain prints next to the error growth

    # Fields on the order of products and sums.
    traversal: Traversal | None = None
    tasks: tuple[str, ...] = ()  # options of a fused level: streams, atomic, variants
    takes_alpha_beta: bool = False  # True if the steps compute alpha A B + beta C, False if another pass updates C
    # True if some sums are computed inside the products, provided that the leaf can form sums
    sums_inside: bool = False
    # Description of a fused level for the kernel that forms all sums inside the products; None for other levels.
    fused_products: FusedProducts | None = None

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Level) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    # ---- levels derived from the level

    @property
    def level_with_less_recursion(self) -> Level | None:
        """Return the same level with one level of recursion less; None if no recursion would be left."""
        return None

    def with_conjugation(self, a: bool, b: bool) -> Level | None:
        """Return the level that multiplies conj(A) in place of A if `a`, and conj(B) in place of B if `b`.

        Return None if the level cannot conjugate its operands: the operands must then be conjugated before the product.
        """
        return None

    # ---- numbers below the level

    def dtype_of_products(self, dtype: str) -> str:
        """Return the type of the level's products if the level computes a product of type `dtype`."""
        if self.number_below == "byte":
            return BYTE_TYPE.name
        real = DTYPES[dtype].real if self.number_below == "real" and dtype in DTYPES else None
        return real or dtype

    def itemsize_of_products(self, itemsize: int) -> int:
        """Return the bytes of a number in the level's products and temporaries."""
        if self.number_below == "byte":
            return BYTE_TYPE.itemsize
        return itemsize // 2 if self.number_below == "real" else itemsize

    @property
    def inner_multiplication_cost(self) -> float:
        """Return the cost of one multiplication below the level, in multiplications of the operands' type."""
        if self.number_below == "byte":
            return 1 / self.products
        return 0.25 if self.number_below == "real" else 1.0

    @property
    def is_complex_split(self) -> bool:
        """Return True if the level only separates real and imaginary parts, so that its products have equal sizes."""
        return self.number_below == "real" and self.bilinear is None

    # ---- how products run

    @property
    def is_run_by_leaf(self) -> bool:
        """Return True if one leaf runs the level together with everything below the level."""
        return bool(self.below)

    @property
    def stream_count(self) -> int:
        """Return the number of products that can run at a time; each stream has its own temporaries below the level."""
        return 2 if self.traversal == "overlapped" and self.products > 1 else 1

    @property
    def needs_extra_streams(self) -> bool:
        """Return True if the level needs CUDA streams in addition to the caller's stream."""
        return self.traversal == "overlapped" or "streams" in self.tasks or self.has_atomic_updates

    @property
    def is_batched(self) -> bool:
        """Return True if the level's products are one batch of equal products."""
        return self.traversal == "batched"

    @property
    def has_independent_products(self) -> bool:
        """Return True if all products run after the sums of A and B and before the sums that form C.

        If all products have equal sizes, they can therefore be one batch.
        """
        return self.takes_alpha_beta and self.traversal in ("stacked", "overlapped", "batched")

    @property
    def needs_fusing_leaf(self) -> bool:
        """Return True if the level must be directly above a leaf that forms sums inside its products."""
        return self.traversal == "fused"

    @property
    def has_fused_sums(self) -> bool:
        """Return True if all sums of the level are formed inside its products."""
        return self.fused_products is not None

    @property
    def has_atomic_updates(self) -> bool:
        """Return True if products add to C by atomic additions, in any order."""
        return "atomic" in self.tasks

    @property
    def launch_count(self) -> int:
        """Return the number of kernel launches that compute the products of a fused level."""
        return count_launches(self.bilinear, self.tasks) if self.tasks and self.bilinear else self.products


# ---- kinds of levels


class CandidateLevel(NamedTuple):
    """A level that candidate plans can have, and the names of the patterns of these plans (PlanPatterns)."""

    text: str
    forms: tuple[str, ...]
    products: int
    lean: bool = False  # True if the level needs little workspace, and comes last in the list of candidates
    above: bool = False  # True if the level changes the type of numbers, and can be above any plan for the new type


def _no_candidate_levels() -> Iterable[CandidateLevel]:
    return ()


@dataclass(frozen=True)
class LevelKind:
    """A kind of level, such as `gram` or `residues`: its parser, the first words of its texts, its candidate levels."""

    name: str
    # Returns the level that a text describes. Returns None for the text of another kind of level; raises PlanError for
    # a wrong text of this kind.
    parse: Callable[[str], Level | None]
    words: Callable[[], tuple[str, ...]]  # returns the first words of texts of this kind
    candidates: Callable[[], Iterable[CandidateLevel]] = _no_candidate_levels


LEVEL_KINDS: Final[RowRegistry[LevelKind]] = RowRegistry("kind of level")


def register_level(kind: LevelKind) -> None:
    """Register a kind of level for use in plans."""
    LEVEL_KINDS.add(kind)


def unregister_level(name: str) -> None:
    """Remove a kind of level from the registry."""
    LEVEL_KINDS.remove(name)


def parse_level(text: str) -> Level:
    """Return the level that a text describes; for an unknown name, raise PlanError with the valid names."""
    for kind in LEVEL_KINDS:
        if (level := kind.parse(text)) is not None:
            return level
    raise unknown_algorithm_error(text.partition(".")[0])


def unknown_algorithm_error(name: str) -> PlanError:
    """Return the error for a name that belongs to no kind of level; its message lists the valid names."""
    valid = ", ".join(word for kind in LEVEL_KINDS for word in kind.words())
    return PlanError(f"unknown algorithm {name!r}; valid: {valid}")
