"""The parts of a leaf's row, one noun each: its types, its halves, its names, what a product by it takes, its error.

Types are names of fmm.dtypes. A product that is its own adjoint (A times A's adjoint, say) is called a half here, since
one half of it is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from fmm.kernels.plans.level import PlanLevel

Order = Literal["inner", "outer"]  # the dimension along which a leaf may want both operands of a product contiguous
ORDERS: Final[tuple[Order, ...]] = ("inner", "outer")
Multiply = Callable[[Any, Any, Any], object]  # multiply(left, right, dest)
MultiplyInside = Callable[[Any, Any, Any, Any, Any], object]  # multiply(left, right, dest, scratch, threads)
Scratch = Callable[[int, int, int, int], int]  # scratch(m, k, n, count): bytes for a batch of `count` products
TypedScratch = Callable[[int, int, int, int, int], int]  # scratch(itemsize, m, k, n, count)
KeptRoom = Callable[[int, int, int], tuple[int, int]]  # kept(itemsize, lines, length): where it begins, its bytes


@dataclass(frozen=True)
class LeafTypes:
    """Which types it multiplies."""

    below: tuple[str, ...]  # below any levels
    inside: tuple[str, ...] = ()  # with sums inside its products, as fused levels and step tables want them
    alone: tuple[str, ...] = ()  # further ones, where no level stands above it
    in_blocks: tuple[str, ...] = ()  # further ones, where all levels above it only cut A, B and C into blocks


@dataclass(frozen=True)
class LeafHalves:
    """Of which types it computes halves for less than whole products, and how."""

    by_blas: tuple[str, ...] = ()  # of which BLAS has a function for one half: syrk or herk
    by_kernel: tuple[str, ...] = ()  # whose halves its own kernel computes, if the result lies row by row
    loose: tuple[str, ...] = ()  # of which such a kernel leaves arbitrary numbers in the other half
    mirrors: bool = False  # can that kernel also write the other half?
    whole_rows: int = 0  # rows up to which a GPU does a batch of halves faster as a batch of whole products


@dataclass(frozen=True)
class LeafCall:
    """What one product by it takes."""

    text: str = "one launch"  # what explain's table says of it
    starts: int = 1  # launches or calls
    scratch: Scratch = lambda m, k, n, count: 0  # bytes of workspace
    scratch_of: TypedScratch | None = None  # replaces `scratch` if the bytes depend on the type

    def room(self, itemsize: int, m: int, k: int, n: int, count: int) -> int:
        """Bytes of workspace that a batch of `count` products takes, of numbers of `itemsize` bytes."""
        return self.scratch_of(itemsize, m, k, n, count) if self.scratch_of else self.scratch(m, k, n, count)


@dataclass(frozen=True)
class LeafOption:
    """A word that may stand behind a leaf's name."""

    name: str
    types: tuple[str, ...] = ()  # the only types that the leaf multiplies with this option; empty: all of the leaf's
    fused: bool = True  # may a fused level stand above a leaf with this option?
    searched: bool = False  # does a tuner's search name it? (Candidates never do.)


@dataclass(frozen=True)
class LeafNames:
    """What may stand behind its name in a plan."""

    orders: tuple[Order, ...] = ORDERS
    numbers: int = 0  # the name stands for so many ways to multiply, each named by its number; 0: one, without number
    options: tuple[tuple[LeafOption, ...], ...] = ()  # groups in their order; a plan names at most one word of each


@dataclass(frozen=True)
class LeafOnHost:
    """How the host multiplies by it."""

    multiply: Multiply | None = None
    multiply_inside: MultiplyInside | None = None  # if it needs scratch, and shares out its work among threads itself


@dataclass(frozen=True)
class LeafCandidacy:
    """When it is compared though nobody names it."""

    types: tuple[str, ...] | None = None  # for which it is compared; None: all that it multiplies
    alignment: int = 1  # it is compared only where every row begins at a multiple of so many bytes
    # It is compared only where no side is longer: it is made for small products, and was measured on these, so that few
    # tiles leave nothing in doubt. 0: there is no such limit.
    longest: int = 0
    # The forms of plans that it may end (fmm.perfmodel.candidates). `alone`: without levels; `peer`: alone, but
    # only to see whether a plan beats it too; `half`: alone, and only for products that are their own adjoints.
    forms: tuple[str, ...] = ("alone", "nested", "one pass")
    unprobed: tuple[str, ...] = ()  # those forms in which a tuning's probes do not measure it
    tried: int = 4  # how many numbers of a numbered leaf are compared

    @property
    def probed(self) -> tuple[str, ...]:
        """The forms in which a tuning's probes measure it."""
        return tuple(form for form in self.forms if form not in self.unprobed)


@dataclass(frozen=True)
class LeafError:
    """How far it is from the exact product."""

    saves_products: bool = False  # does it multiply less inside? Then inf and NaN can come where the vendor has none
    relative: float = 1.0  # its error as a multiple of the vendor's
    # Does it multiply in another type than it is asked for? Its error is then small beside the largest numbers of a row
    # and a column, as a fast algorithm's is, and not beside each entry of the product. FMM_EMULATION=0 forbids it.
    emulates: bool = False
    norm_bound: str = ""  # if it emulates: an entry's error is at most this share of the norms of its row and column
    checks_entries: bool = False  # can it raise a device's flag where an entry may be wrong beside its own size?


@dataclass(frozen=True)
class LeafPreparation:
    """What of its operands may be made before the product."""

    keeps: KeptRoom | None = None  # where it can keep, behind an operand, what it made of it; None: it keeps nothing
    # Can the sums of a batched level above it write its operands in the form that it wants? They are then not read
    # again for that, but the blocks are, to find how far sums reach.
    by_sums: bool = False


@dataclass(frozen=True)
class LeafTime:
    """How the model predicts its time."""

    rate: str = ""  # the name of its rate in a calibration, `{}` standing for the type's name; empty: the type's name
    relative: float = 1.0  # its time as a multiple of the vendor's, where nothing better is known
    formula: Literal["vendor", "tiles"] = "vendor"  # the vendor's formula (times `relative`), or that of tiles
    slow_columns: tuple[str, ...] = ()  # types of which it takes far longer where B lies column by column
    # Do the thread blocks of its own kernel hold every multiprocessor until the last tile is done? Then no sums run
    # beside its products.
    fills_device: bool = False


@dataclass(frozen=True)
class LevelAndLeaf:
    """A level that a machine does whole, with all that is below it, and the leaf at its end."""

    level: PlanLevel
    leaf: str
