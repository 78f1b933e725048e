"""Leaves: who multiplies what no level of a plan cuts further. One row each, in a registry.

In a plan's text a leaf is its name, with a number right behind it if it is numbered, then its options, and last the
order in which it wants its operands: `vendor`, `lt3`, `tile.huge.plain`, `vendor.inner`. Everything that the package
asks of a leaf is a field of its row; nobody looks into the name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, Final, Literal

from fmm.kernels.plans.level import PlanLevel
from fmm.kernels.plans.old_names import todays_ending
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.registry import Registry, depends_on_rows

ORDERS = ("inner", "outer")  # in which a leaf may want the sums that it multiplies to lie
Order = Literal["", "inner", "outer"]
Multiply = Callable[[Any, Any, Any], object]  # left, right, and where their product goes
Scratch = Callable[[int, int, int, int], int]  # bytes for a batch of products m x k x n, so many
TypedScratch = Callable[[int, int, int, int, int], int]  # the same of numbers of so many bytes, which come first
MultiplyInside = Callable[[Any, Any, Any, Any, Any], object]  # the same within its scratch, on so many threads


@dataclass(frozen=True)
class LeafOption:
    """A word that may stand behind a leaf's name."""

    name: str
    types: tuple[str, ...] = ()  # the only ones that are multiplied with it; none named: all of the leaf's
    fused: bool = True  # may a fused level stand above a leaf with it?


@dataclass(frozen=True)
class Leaf:
    """One way to multiply. Types are names of fmm.dtypes, devices `cpu` and `cuda`."""

    name: str
    meaning: str  # one sentence, for whoever asks what runs
    devices: tuple[str, ...]
    types: tuple[str, ...]  # that it multiplies
    types_inside: tuple[str, ...] = ()  # that it multiplies with sums inside: of a fused level, of a step table
    types_alone: tuple[str, ...] = ()  # that it multiplies besides, where no level stands above it
    types_in_blocks: tuple[str, ...] = ()  # and where those above it only cut A, B and C
    considered: tuple[str, ...] | None = None  # types for which it is compared unasked; None: all that it multiplies
    # Of a product that is its own adjoint it computes one half alone: of these types by BLAS's syrk and herk, of a
    # matrix and its adjoint; of those by a kernel of its own, of any two factors, if the result lies row by row.
    rank_updates: tuple[str, ...] = ()
    halves: tuple[str, ...] = ()
    loose_halves: tuple[str, ...] = ()  # of these it leaves anything in the other half
    turned_halves: tuple[str, ...] = ()  # of these it is fast if both factors lie along the outer dimensions alone
    mirrors: bool = False  # may that kernel write the mirror into the other half itself?
    whole_halves: int = 0  # on a GPU up to so many rows a batch of such is a batch of whole products, which is faster
    call: str = "one launch"  # what one product is, in a table of explain
    starts: int = 1  # launches or calls of a product
    scratch: Scratch = lambda m, k, n, count: 0
    scratch_of: TypedScratch | None = None  # asked in its place, where it depends on the type
    alignment: int = 1  # it is compared unasked only where every row begins at a multiple of so many bytes
    # It is compared unasked only where no side is longer: it is made for small products, and was measured on these, so
    # that few tiles leave nothing in doubt. 0: any.
    longest: int = 0
    orders: tuple[str, ...] = ORDERS  # that may stand behind its name
    numbers: int = 0  # it stands for so many ways to multiply, each named by its number; 0: for one, without a number
    options: tuple[tuple[LeafOption, ...], ...] = ()  # groups in their order, of each of which at most one may be named
    multiply: Multiply | None = None  # on the host
    multiply_inside: MultiplyInside | None = None  # on the host, where it needs scratch and shares out its own work
    # In which forms it may end a plan (fmm.kernels.plans.candidates). `alone`: without levels; `peer`: alone, but only
    # to see whether a plan beats it too; `half`: alone, of products that are their own adjoints and of no others.
    forms: tuple[str, ...] = ("alone", "nested", "one pass")
    unprobed: tuple[str, ...] = ()  # those of them in which a tuning's probes do not measure it
    tried: int = 4  # of a numbered leaf: so many numbers are considered
    saves_products: bool = False  # fewer multiplications inside it: inf and NaN can come where the vendor has none
    relative_error: float = 1.0  # its error as a multiple of the vendor's
    # Does it multiply in another type than it is asked for? Its error is then small beside the largest numbers of a row
    # and a column, as a fast algorithm's is, and not beside each entry of the product. FMM_EMULATION=0 forbids it.
    emulates: bool = False
    norm_bound: str = ""  # of such: which share of the norms of its row and column an entry's error may be at most
    # Can it raise a device's flag where it is not certain that an entry is right beside its own size?
    checks_entries: bool = False
    # What it can keep of an operand for other products, told the bytes of a number, how many lines there are and their
    # length: bytes up to where that begins, behind the operand itself, and of what is kept. None: nothing.
    keeps: Callable[[int, int, int], tuple[int, int]] | None = None
    # May a batched level's splits write its operands at once as it wants them? They are then not read again for that,
    # but blocks are, to find how far sums reach.
    sums_prepare: bool = False
    # Under which name a calibration has its rate, if not under that of the type; `{}` stands for the type's name.
    rate: str = ""
    relative_time: float = 1.0  # its time as a multiple of the vendor's, where nothing better is known
    # Which of a calibration's formulas tells its time: the vendor's (times relative_time), or that of tiles.
    time_formula: Literal["vendor", "tiles"] = "vendor"
    below_levels: bool = False  # does it multiply only below levels that a machine does whole, with it?
    # Of such a level, with all that is below it, which ends plans as a leaf does: the leaf that it ends in, and the
    # level.
    ends_in: str = ""
    level: PlanLevel | None = None

    def room(self, itemsize: int, m: int, k: int, n: int, count: int) -> int:
        """Bytes of scratch for a batch of products of numbers of so many bytes."""
        return self.scratch_of(itemsize, m, k, n, count) if self.scratch_of else self.scratch(m, k, n, count)

    @property
    def selected_as(self) -> str:
        """The name of the leaf by which a machine finds what does it."""
        return self.ends_in or self.name

    @property
    def sums_inside(self) -> bool:
        """May sums be done inside its products?"""
        return bool(self.types_inside)

    @property
    def probed(self) -> tuple[str, ...]:
        """The forms in which a tuning's probes measure it."""
        return tuple(form for form in self.forms if form not in self.unprobed)

    @property
    def spelled(self) -> str:
        """The names it goes by, without options: `lt0 to lt31`."""
        return f"{self.name}0 to {self.name}{self.numbers - 1}" if self.numbers else self.name

    @property
    def tried_names(self) -> tuple[str, ...]:
        """As candidates name it."""
        numbers = range(min(self.tried, self.numbers))
        return tuple(f"{self.name}{number}" for number in numbers) if self.numbers else (self.name,)

    @property
    def uses(self) -> Iterator[LeafUse]:
        """Every way in which a plan may name it, those without an order first."""
        numbers: tuple[int | None, ...] = tuple(range(self.numbers)) or (None,)
        for order in ("", *self.orders):
            for number in numbers:
                for chosen in product(*((None, *group) for group in self.options)):
                    yield LeafUse(self, number, tuple(o.name for o in chosen if o), order)  # type: ignore[arg-type]


@dataclass(frozen=True)
class LeafUse:
    """A leaf as a plan names it."""

    leaf: Leaf
    number: int | None = None
    options: tuple[str, ...] = ()
    order: Order = ""

    def __str__(self) -> str:
        return f"{self.product}.{self.order}" if self.order else self.product

    @property
    def product(self) -> str:
        """Who multiplies, whatever the order of its operands."""
        return ".".join([f"{self.leaf.name}{'' if self.number is None else self.number}", *self.options])

    def types(self, sums_inside: bool = False) -> tuple[str, ...]:
        """That are multiplied, where sums are inside the products or are not."""
        found = self.leaf.types_inside if sums_inside and self.leaf.sums_inside else self.leaf.types
        for option in self._named:
            found = tuple(t for t in found if t in option.types) if option.types else found
        return found

    @property
    def fuses(self) -> bool:
        """May a fused level stand above it?"""
        return self.leaf.sums_inside and all(option.fused for option in self._named)

    @property
    def _named(self) -> list[LeafOption]:
        return [option for group in self.leaf.options for option in group if option.name in self.options]


@dataclass(frozen=True)
class Ending:
    """Levels of one kind that a machine does whole, with what is below them: their rows, which stand in the list of all
    where the leaf does that all of them end in."""

    name: str
    leaf: str
    rows: Callable[[], tuple[Leaf, ...]]


LEAVES: Final[Registry[Leaf]] = Registry("leaf")
ENDINGS: Final[Registry[Ending]] = Registry("ending")


def register_leaf(row: Leaf) -> None:
    """From now on, plans may end in it."""
    LEAVES.add(row)


def unregister_leaf(name: str) -> None:
    LEAVES.remove(name)


def register_ending(found: Ending) -> None:
    """From now on, plans may end in its rows."""
    ENDINGS.add(found)


def leaf_names() -> tuple[str, ...]:
    """The names of all leaves, without numbers and options."""
    return tuple(leaf.name for leaf in LEAVES)


@depends_on_rows
@lru_cache(maxsize=1)
def ending_rows() -> tuple[Leaf, ...]:
    """Whatever may end a plan: leaves, and levels that a machine does whole."""
    found: list[Leaf] = []
    for leaf in LEAVES:
        found += [] if leaf.below_levels else [leaf]
        found += [row for ending in ENDINGS if ending.leaf == leaf.name for row in ending.rows()]
    return tuple(found)


@depends_on_rows
@lru_cache(maxsize=1)
def leaf_uses() -> dict[str, LeafUse]:
    """Every text that names who multiplies: what a plan may end in, and what stands last in that."""
    inside = [leaf for leaf in LEAVES if leaf.below_levels]
    return {str(use): use for leaf in (*ending_rows(), *inside) for use in leaf.uses}


def leaf_use(text: str) -> LeafUse:
    """What a plan that ends in this text multiplies with; PlanError says what is valid."""
    found = leaf_uses().get(todays_ending(text)) if isinstance(text, str) else None
    if found is None:
        raise PlanError(f"unknown leaf {text!r}; valid: {valid_leaves()}")
    return found


def option_use(text: str) -> LeafUse:
    """What an option names: of a level that is done whole and its leaf, the level alone."""
    named = (row.name for row in ending_rows() if row.name == f"{text} > {row.ends_in}")
    return leaf_use(next(named, text))


def option_text(use: LeafUse) -> str:
    """As an option names it; with levels between, its whole text."""
    return str(use).removesuffix(f" > {use.leaf.ends_in}") if str(use).count(">") == 1 else str(use)


def valid_leaves() -> str:
    """All leaves in one sentence."""
    leaves = [leaf for leaf in LEAVES if not leaf.below_levels]
    simple = [leaf.spelled for leaf in leaves if not leaf.options and leaf.orders]
    text = f"{', '.join(simple)}, each with {_alternatives(ORDERS)} after it or without"
    text += "".join(f"; {leaf.spelled} without" for leaf in leaves if not leaf.options and not leaf.orders)
    for leaf in leaves:
        if leaf.options:
            first, *others = leaf.options
            names = [leaf.spelled, *(f"{leaf.spelled}.{option.name}" for option in first)]
            text += f"; {', '.join(names)} too"
            text += "".join(f", also with {_alternatives([o.name for o in group])} after the name" for group in others)
    return text + "".join(f"; below {ending.name} {ending.leaf}" for ending in ENDINGS)


def fusing_leaves() -> str:
    """Those above which a fused level may stand, in a few words."""
    found = [leaf for leaf in LEAVES if leaf.sums_inside]
    without = [o.name for leaf in found for group in leaf.options for o in group if not o.fused]
    return " or ".join(leaf.name for leaf in found) + (f" (without {_alternatives(without)})" if without else "")


def _alternatives(names: list[str] | tuple[str, ...]) -> str:
    return " or ".join(f".{name}" for name in names)
