"""Leaves: who multiplies what no level of a plan cuts further. One row each, in a registry.

In a plan's text a leaf is its name, with a number right behind it if it is numbered, then its options, and last the
order in which it wants its operands: `vendor`, `lt3`, `tile.huge.plain`, `vendor.inner`. Everything that the package
asks of a leaf is a field of its row, in the part (fmm.kernels.plans.leaf_parts) that it belongs to; nobody looks into
the name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Final

from fmm.kernels.plans.leaf_parts import (
    ORDERS,
    LeafCall,
    LeafCandidacy,
    LeafError,
    LeafHalves,
    LeafNames,
    LeafOnHost,
    LeafOption,
    LeafPreparation,
    LeafTime,
    LeafTypes,
    LevelAndLeaf,
    Order,
)
from fmm.kernels.plans.old_names import todays_ending
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.registry import Registry, depends_on_rows


@dataclass(frozen=True)
class Leaf:
    """One way to multiply: a row of the registry. Devices are `cpu` and `cuda`."""

    name: str
    meaning: str  # one sentence that explains it to a user
    devices: tuple[str, ...]
    types: LeafTypes
    halves: LeafHalves = field(default_factory=LeafHalves)
    call: LeafCall = field(default_factory=LeafCall)
    names: LeafNames = field(default_factory=LeafNames)
    host: LeafOnHost = field(default_factory=LeafOnHost)
    candidacy: LeafCandidacy = field(default_factory=LeafCandidacy)
    error: LeafError = field(default_factory=LeafError)
    preparation: LeafPreparation = field(default_factory=LeafPreparation)
    time: LeafTime = field(default_factory=LeafTime)
    below_levels: bool = False  # does it multiply only below a level that a machine does whole, together with it?
    # The row may stand for such a level and all that is below it, which end a plan as a leaf does.
    stands_for: LevelAndLeaf | None = None

    @property
    def selected_as(self) -> str:
        """The leaf's name under which a machine looks up how to do it: that at its end, if it stands for a level."""
        return self.stands_for.leaf if self.stands_for else self.name

    @property
    def sums_inside(self) -> bool:
        """Can it do sums inside its products?"""
        return bool(self.types.inside)

    @property
    def spelled(self) -> str:
        """Its names without options, as a message lists them: `lt0 to lt31`."""
        numbers = self.names.numbers
        return f"{self.name}0 to {self.name}{numbers - 1}" if numbers else self.name

    @property
    def of_library(self) -> bool:
        """Is it a product of the vendor's library?"""
        return not (self.time.rate or self.below_levels) and self.time.formula == "vendor"

    @property
    def tried_names(self) -> tuple[str, ...]:
        """The names under which candidates have it: the first few, if it is numbered."""
        if not self.names.numbers:
            return (self.name,)
        return tuple(f"{self.name}{number}" for number in range(min(self.candidacy.tried, self.names.numbers)))

    @property
    def searched_names(self) -> tuple[str, ...]:
        """The names under which a tuner's search has it: those of candidates, and each with options besides."""
        options = [option.name for group in self.names.options for option in group if option.searched]
        return (*self.tried_names, *(f"{name}.{option}" for name in self.tried_names for option in options))

    @property
    def uses(self) -> Iterator[LeafUse]:
        """Every way in which a plan may name it; those without an order come first."""
        numbers: tuple[int | None, ...] = tuple(range(self.names.numbers)) or (None,)
        for order in (None, *self.names.orders):
            for number in numbers:
                for chosen in product(*((None, *group) for group in self.names.options)):
                    yield LeafUse(self, number, tuple(o.name for o in chosen if o), order)


@dataclass(frozen=True)
class LeafUse:
    """A leaf as a plan names it: with a number, options and an order, where these are given."""

    leaf: Leaf
    number: int | None = None
    options: tuple[str, ...] = ()
    order: Order | None = None  # None: as the operands or the sums happen to lie

    def __str__(self) -> str:
        return f"{self.product}.{self.order}" if self.order else self.product

    @property
    def product(self) -> str:
        """The text without the order of its operands: it says who multiplies."""
        return ".".join([f"{self.leaf.name}{'' if self.number is None else self.number}", *self.options])

    def types(self, sums_inside: bool = False) -> tuple[str, ...]:
        """The types that are multiplied with these options; with sums inside the products, if that is asked."""
        multiplied = self.leaf.types.inside if sums_inside and self.leaf.sums_inside else self.leaf.types.below
        for option in self._named_options:
            multiplied = tuple(t for t in multiplied if t in option.types) if option.types else multiplied
        return multiplied

    @property
    def fuses(self) -> bool:
        """May a fused level stand above it?"""
        return self.leaf.sums_inside and all(option.fused for option in self._named_options)

    @property
    def _named_options(self) -> list[LeafOption]:
        return [option for group in self.leaf.names.options for option in group if option.name in self.options]


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
    whole = (row for row in ending_rows() if row.stands_for)
    full_names = (row.name for row in whole if row.name == f"{text} > {row.selected_as}")
    return leaf_use(next(full_names, text))


def option_text(use: LeafUse) -> str:
    """The text by which a level's option names this leaf: the short one where `option_use` understands it."""
    return str(use).removesuffix(f" > {use.leaf.selected_as}") if str(use).count(">") == 1 else str(use)


def valid_leaves() -> str:
    """All leaves that a plan may name, in one sentence."""
    leaves = [leaf for leaf in LEAVES if not leaf.below_levels]
    simple = [leaf.spelled for leaf in leaves if not leaf.names.options and leaf.names.orders]
    text = f"{', '.join(simple)}, each with {_alternatives(ORDERS)} after it or without"
    text += "".join(f"; {leaf.spelled} without" for leaf in leaves if not leaf.names.options and not leaf.names.orders)
    for leaf in leaves:
        if leaf.names.options:
            first, *others = leaf.names.options
            names = [leaf.spelled, *(f"{leaf.spelled}.{option.name}" for option in first)]
            text += f"; {', '.join(names)} too"
            text += "".join(f", also with {_alternatives([o.name for o in group])} after the name" for group in others)
    return text + "".join(f"; below {ending.name} {ending.leaf}" for ending in ENDINGS)


def fusing_leaves() -> str:
    """The leaves above which a fused level may stand, in a few words."""
    leaves = [leaf for leaf in LEAVES if leaf.sums_inside]
    without = [o.name for leaf in leaves for group in leaf.names.options for o in group if not o.fused]
    return " or ".join(leaf.name for leaf in leaves) + (f" (without {_alternatives(without)})" if without else "")


def _alternatives(names: list[str] | tuple[str, ...]) -> str:
    return " or ".join(f".{name}" for name in names)
