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

ORDERS = ("inner", "outer")  # the dimension along which a leaf may want both operands of its products to be contiguous
Order = Literal["", "inner", "outer"]  # "": as the operands or the sums happen to lie
Multiply = Callable[[Any, Any, Any], object]  # multiply(left, right, dest)
MultiplyInside = Callable[[Any, Any, Any, Any, Any], object]  # multiply(left, right, dest, scratch, threads)
Scratch = Callable[[int, int, int, int], int]  # scratch(m, k, n, count): bytes for a batch of `count` products
TypedScratch = Callable[[int, int, int, int, int], int]  # scratch(itemsize, m, k, n, count)
KeptRoom = Callable[[int, int, int], tuple[int, int]]  # kept(itemsize, lines, length): where it begins, its bytes


@dataclass(frozen=True)
class LeafOption:
    """A word that may stand behind a leaf's name."""

    name: str
    types: tuple[str, ...] = ()  # the only types that the leaf multiplies with this option; empty: all of the leaf's
    fused: bool = True  # may a fused level stand above a leaf with this option?


@dataclass(frozen=True)
class Leaf:
    """One way to multiply: a row of the registry.

    Types are names of fmm.dtypes; devices are `cpu` and `cuda`. A product that is its own adjoint (A times A's adjoint,
    say) is called a half here, since one half of it is enough.
    """

    name: str
    meaning: str  # one sentence that explains it to a user
    devices: tuple[str, ...]

    # ---- which types it multiplies

    types: tuple[str, ...]  # below any levels
    types_inside: tuple[str, ...] = ()  # with sums inside its products, as fused levels and step tables want them
    types_alone: tuple[str, ...] = ()  # further ones, where no level stands above it
    types_in_blocks: tuple[str, ...] = ()  # further ones, where all levels above it only cut A, B and C into blocks

    # ---- halves

    rank_updates: tuple[str, ...] = ()  # types whose product with the own adjoint it halves by BLAS's syrk and herk
    halves: tuple[str, ...] = ()  # types whose halves its own kernel computes, if the result lies row by row
    loose_halves: tuple[str, ...] = ()  # types of which such a kernel leaves arbitrary numbers in the other half
    turned_halves: tuple[str, ...] = ()  # types whose halves are fast only if both operands lie along outer dimensions
    mirrors: bool = False  # can that kernel also write the other half?
    whole_halves: int = 0  # rows up to which a GPU does a batch of halves faster as a batch of whole products

    # ---- what one product takes

    call: str = "one launch"  # what explain's table says of one product
    starts: int = 1  # launches or calls that one product takes
    scratch: Scratch = lambda m, k, n, count: 0  # bytes of workspace
    scratch_of: TypedScratch | None = None  # replaces `scratch` if the bytes depend on the type

    # ---- how a plan may name it

    orders: tuple[str, ...] = ORDERS  # the orders that may stand behind its name
    numbers: int = 0  # the name stands for so many ways to multiply, each named by its number; 0: one, without number
    options: tuple[tuple[LeafOption, ...], ...] = ()  # groups in their order; a plan names at most one word of each

    # ---- how the host multiplies by it

    multiply: Multiply | None = None
    multiply_inside: MultiplyInside | None = None  # if it needs scratch, and shares out its work among threads itself

    # ---- when it is compared though nobody names it

    considered: tuple[str, ...] | None = None  # the types for which it is compared; None: all that it multiplies
    alignment: int = 1  # it is compared only where every row begins at a multiple of so many bytes
    # It is compared only where no side is longer: it is made for small products, and was measured on these, so that few
    # tiles leave nothing in doubt. 0: there is no such limit.
    longest: int = 0
    # The forms of plans that it may end (fmm.kernels.plans.candidates). `alone`: without levels; `peer`: alone, but
    # only to see whether a plan beats it too; `half`: alone, and only for products that are their own adjoints.
    forms: tuple[str, ...] = ("alone", "nested", "one pass")
    unprobed: tuple[str, ...] = ()  # those forms in which a tuning's probes do not measure it
    tried: int = 4  # how many numbers of a numbered leaf are compared

    # ---- its errors

    saves_products: bool = False  # does it multiply less inside? Then inf and NaN can come where the vendor has none
    relative_error: float = 1.0  # its error as a multiple of the vendor's
    # Does it multiply in another type than it is asked for? Its error is then small beside the largest numbers of a row
    # and a column, as a fast algorithm's is, and not beside each entry of the product. FMM_EMULATION=0 forbids it.
    emulates: bool = False
    norm_bound: str = ""  # if it emulates: an entry's error is at most this share of the norms of its row and column
    checks_entries: bool = False  # can it raise a device's flag where an entry may be wrong beside its own size?

    # ---- what of its operands may be made beforehand

    keeps: KeptRoom | None = None  # where it can keep, behind an operand, what it made of it; None: it keeps nothing
    # Can the sums of a batched level above it write its operands in the form that it wants? They are then not read
    # again for that, but the blocks are, to find how far sums reach.
    sums_prepare: bool = False

    # ---- how the model predicts its time

    rate: str = ""  # the name of its rate in a calibration, `{}` standing for the type's name; empty: the type's name
    relative_time: float = 1.0  # its time as a multiple of the vendor's, where nothing better is known
    time_formula: Literal["vendor", "tiles"] = "vendor"  # the vendor's formula (times relative_time), or that of tiles

    # ---- levels that a machine does whole

    below_levels: bool = False  # does it multiply only below such a level, which a machine does together with it?
    # The row may stand for such a level and all that is below it, which end a plan as a leaf does. Then this is the
    # leaf at its end, and the level.
    ends_in: str = ""
    level: PlanLevel | None = None

    def room(self, itemsize: int, m: int, k: int, n: int, count: int) -> int:
        """Bytes of workspace that a batch of `count` products takes, of numbers of `itemsize` bytes."""
        return self.scratch_of(itemsize, m, k, n, count) if self.scratch_of else self.scratch(m, k, n, count)

    @property
    def selected_as(self) -> str:
        """The leaf's name under which a machine looks up how to do it: that at its end, if it stands for a level."""
        return self.ends_in or self.name

    @property
    def sums_inside(self) -> bool:
        """Can it do sums inside its products?"""
        return bool(self.types_inside)

    @property
    def probed(self) -> tuple[str, ...]:
        """The forms in which a tuning's probes measure it."""
        return tuple(form for form in self.forms if form not in self.unprobed)

    @property
    def spelled(self) -> str:
        """Its names without options, as a message lists them: `lt0 to lt31`."""
        return f"{self.name}0 to {self.name}{self.numbers - 1}" if self.numbers else self.name

    @property
    def tried_names(self) -> tuple[str, ...]:
        """The names under which candidates have it: the first few, if it is numbered."""
        numbers = range(min(self.tried, self.numbers))
        return tuple(f"{self.name}{number}" for number in numbers) if self.numbers else (self.name,)

    @property
    def uses(self) -> Iterator[LeafUse]:
        """Every way in which a plan may name it; those without an order come first."""
        numbers: tuple[int | None, ...] = tuple(range(self.numbers)) or (None,)
        for order in ("", *self.orders):
            for number in numbers:
                for chosen in product(*((None, *group) for group in self.options)):
                    yield LeafUse(self, number, tuple(o.name for o in chosen if o), order)  # type: ignore[arg-type]


@dataclass(frozen=True)
class LeafUse:
    """A leaf as a plan names it: with a number, options and an order, where these are given."""

    leaf: Leaf
    number: int | None = None
    options: tuple[str, ...] = ()
    order: Order = ""

    def __str__(self) -> str:
        return f"{self.product}.{self.order}" if self.order else self.product

    @property
    def product(self) -> str:
        """The text without the order of its operands: it says who multiplies."""
        return ".".join([f"{self.leaf.name}{'' if self.number is None else self.number}", *self.options])

    def types(self, sums_inside: bool = False) -> tuple[str, ...]:
        """The types that are multiplied with these options; with sums inside the products, if that is asked."""
        multiplied = self.leaf.types_inside if sums_inside and self.leaf.sums_inside else self.leaf.types
        for option in self._named_options:
            multiplied = tuple(t for t in multiplied if t in option.types) if option.types else multiplied
        return multiplied

    @property
    def fuses(self) -> bool:
        """May a fused level stand above it?"""
        return self.leaf.sums_inside and all(option.fused for option in self._named_options)

    @property
    def _named_options(self) -> list[LeafOption]:
        return [option for group in self.leaf.options for option in group if option.name in self.options]


@dataclass(frozen=True)
class Ending:
    """Levels of one kind that a machine does whole, together with all that is below them.

    To a plan they are leaves: `rows` makes a row of each. In lists these rows take the place of `leaf`, in which all of
    them end.
    """

    name: str
    leaf: str
    rows: Callable[[], tuple[Leaf, ...]]


LEAVES: Final[Registry[Leaf]] = Registry("leaf")
ENDINGS: Final[Registry[Ending]] = Registry("ending")


def register_leaf(row: Leaf) -> None:
    """Let plans end in this leaf from now on."""
    LEAVES.add(row)


def unregister_leaf(name: str) -> None:
    LEAVES.remove(name)


def register_ending(ending: Ending) -> None:
    """Let plans end in these levels from now on."""
    ENDINGS.add(ending)


def leaf_names() -> tuple[str, ...]:
    """The names of all leaves, without numbers and options."""
    return tuple(leaf.name for leaf in LEAVES)


@depends_on_rows
@lru_cache(maxsize=1)
def ending_rows() -> tuple[Leaf, ...]:
    """The rows of everything that may end a plan: leaves, and levels that a machine does whole."""
    rows: list[Leaf] = []
    for leaf in LEAVES:
        rows += [] if leaf.below_levels else [leaf]
        rows += [row for ending in ENDINGS if ending.leaf == leaf.name for row in ending.rows()]
    return tuple(rows)


@depends_on_rows
@lru_cache(maxsize=1)
def leaf_uses() -> dict[str, LeafUse]:
    """By its text, everything that multiplies: what may end a plan, and the leaves at the end of whole levels."""
    only_below_levels = [leaf for leaf in LEAVES if leaf.below_levels]
    return {str(use): use for leaf in (*ending_rows(), *only_below_levels) for use in leaf.uses}


def leaf_use(text: str) -> LeafUse:
    """The leaf that this end of a plan's text names; a PlanError says what is valid."""
    use = leaf_uses().get(todays_ending(text)) if isinstance(text, str) else None
    if use is None:
        raise PlanError(f"unknown leaf {text!r}; valid: {valid_leaves()}")
    return use


def option_use(text: str) -> LeafUse:
    """The leaf that a level's option names: `residues(14)` is short for `residues(14) > bytes` there."""
    full_names = (row.name for row in ending_rows() if row.name == f"{text} > {row.ends_in}")
    return leaf_use(next(full_names, text))


def option_text(use: LeafUse) -> str:
    """The text by which a level's option names this leaf: the short one where `option_use` understands it."""
    return str(use).removesuffix(f" > {use.leaf.ends_in}") if str(use).count(">") == 1 else str(use)


def valid_leaves() -> str:
    """All leaves that a plan may name, in one sentence."""
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
    """The leaves above which a fused level may stand, in a few words."""
    leaves = [leaf for leaf in LEAVES if leaf.sums_inside]
    without = [o.name for leaf in leaves for group in leaf.options for o in group if not o.fused]
    return " or ".join(leaf.name for leaf in leaves) + (f" (without {_alternatives(without)})" if without else "")


def _alternatives(names: list[str] | tuple[str, ...]) -> str:
    return " or ".join(f".{name}" for name in names)
