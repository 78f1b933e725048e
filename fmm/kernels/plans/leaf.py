"""Leaves: the kernels that multiply below all levels of a plan. Each leaf is a row of a registry.

In a plan's text a leaf is its name, then a number if the leaf is numbered, its options, and the operand order:
`vendor`, `lt3`, `tile.huge.plain`, `vendor.inner`. All properties of a leaf are fields of its row; no code parses a
leaf's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, Final, Literal

from fmm.kernels.plans.level import Level, PlanError
from fmm.kernels.registry import RowRegistry, clear_on_registration

Order = Literal["inner", "outer"]  # the dimension along which a leaf reads both operands contiguously
OPERAND_ORDERS: Final[tuple[Order, ...]] = ("inner", "outer")
HostProductFunction = Callable[[Any, Any, Any], object]  # multiply(left, right, dest)
HostProductWithScratchFunction = Callable[
    [Any, Any, Any, Any, Any], object
]  # multiply(left, right, dest, scratch, threads)
ScratchFunction = Callable[[int, int, int, int], int]  # scratch(m, k, n, count): bytes for a batch of `count` products
TypedScratchFunction = Callable[[int, int, int, int, int], int]  # scratch(itemsize, m, k, n, count)
PreparedLayoutFunction = Callable[[int, int, int], tuple[int, int]]  # layout(itemsize, lines, length): (offset, bytes)


@dataclass(frozen=True)
class LeafOption:
    """A word that may follow a leaf's name in a plan's text."""

    name: str
    types: tuple[str, ...] = ()  # the types that the leaf multiplies with this option; empty: all types of the leaf
    fused: bool = True  # True if the last level above a leaf with this option may be fused
    searched: bool = False  # True if the tuner's search tries the option (candidates have no options)


def _no_scratch_bytes(m: int, k: int, n: int, count: int) -> int:
    return 0


@dataclass(frozen=True)
class Leaf:
    """One kernel that multiplies. Devices are `cpu` and `cuda`; types are names of fmm.dtypes.

    A Gram product is a product that is its own adjoint, as A times the adjoint of A: one triangle of C is enough.
    """

    name: str
    meaning: str  # description for users, one sentence
    devices: tuple[str, ...]

    # Types that the leaf multiplies
    types: tuple[str, ...]  # types below any levels
    types_with_sums: tuple[str, ...] = ()  # types with sums inside the products, for fused levels and step tables
    types_alone: tuple[str, ...] = ()  # further types, in plans without levels
    types_in_blocks: tuple[str, ...] = ()  # further types, below levels that only cut A, B and C into blocks

    # Gram products of which the leaf computes one triangle
    blas_triangles: tuple[str, ...] = ()  # types with a BLAS function for one triangle: syrk or herk
    kernel_triangles: tuple[str, ...] = ()  # types with a kernel for one triangle of a row-major C
    loose_triangles: tuple[str, ...] = ()  # types with a kernel that leaves arbitrary numbers in the other triangle
    mirrors: bool = False  # True if the triangle kernel can also write the other triangle
    # number of rows up to which a GPU multiplies a batch of Gram products faster as whole products
    whole_product_rows: int = 0

    # One product by the leaf
    call_text: str = "one launch"  # the text for one product in explain's table
    launches: int = 1  # number of launches or library calls
    scratch: ScratchFunction = _no_scratch_bytes  # function that returns the bytes of workspace
    typed_scratch: TypedScratchFunction | None = None  # function instead of `scratch` if the bytes depend on the type
    host_product: HostProductFunction | None = None
    # True if the leaf uses scratch and threads of its own
    host_product_with_scratch: HostProductWithScratchFunction | None = None

    # The leaf's text in a plan
    orders: tuple[Order, ...] = OPERAND_ORDERS
    numbers: int = 0  # numbers 0 to below this limit may follow the name; 0: the leaf has no number
    # groups of options in the order of the text; a plan names at most one option of each group
    options: tuple[tuple[LeafOption, ...], ...] = ()

    # When the leaf is a candidate
    candidate_types: tuple[str, ...] | None = None  # types for which the leaf is a candidate; None: all types
    alignment: int = 1  # bytes; the leaf is a candidate only if every row begins at a multiple of this number
    # The leaf is a candidate only if no side is longer; 0: no limit. The rate was measured only on products up to this
    # side.
    longest: int = 0
    # The forms of plans that the leaf may end (fmm.perfmodel.candidates). `alone`: plans without levels; `peer`:
    # without levels, as a baseline that a plan must beat; `half`: without levels, for Gram products only.
    forms: tuple[str, ...] = ("alone", "nested", "one pass")
    unprobed: tuple[str, ...] = ()  # forms in which the tuner's probes do not measure the leaf
    tried: int = 4  # number of candidates of a numbered leaf: those with the smallest numbers

    # Error
    # True if the leaf saves multiplications, so that an inf or NaN can appear where the vendor has none
    saves_products: bool = False
    relative_error: float = 1.0  # error as a multiple of the vendor's
    # True if the leaf multiplies in another type. The error of emulation is small relative to the largest numbers of a
    # row and a column, and not relative to each entry. FMM_EMULATION=0 forbids such leaves.
    emulates: bool = False
    norm_bound: str = ""  # if the leaf emulates: the error of an entry relative to the norms of its row and column
    # True if the leaf can raise a device flag where an entry may have too large a relative error
    checks_entries: bool = False

    # Preparation of operands before the product
    # offset and bytes of the prepared data after an operand; None without prepared data
    prepared_layout: PreparedLayoutFunction | None = None
    prepared_by_sums: bool = False  # True if the sums of a batched level can write the leaf's operands in prepared form

    # Predicted time
    rate: str = ""  # name of the leaf's rate in a calibration, with `{}` for the type; empty: the type's name
    # factor on the time that the rate predicts; for a leaf without its own rate: time as a multiple of the vendor's
    relative_time: float = 1.0
    time_formula: Literal["vendor", "tiles"] = "vendor"
    slow_columns: tuple[str, ...] = ()  # types for which a column-major B takes far longer
    # True if thread blocks occupy every multiprocessor to the end, so that no sums run concurrently
    fills_device: bool = False

    only_below_levels: bool = False  # True if the leaf multiplies only as part of a level that one leaf runs
    # A row may represent a level with everything below it, down to the leaf `end`.
    level: Level | None = None
    end: str = ""

    @property
    def kernel_leaf_name(self) -> str:
        """The leaf name under which a device selects kernels."""
        return self.end or self.name

    @property
    def sums_inside(self) -> bool:
        """True if the leaf can compute sums inside its products."""
        return bool(self.types_with_sums)

    @property
    def displayed_name(self) -> str:
        """The leaf's names without options, as messages list them: `lt0 to lt31`."""
        return f"{self.name}0 to {self.name}{self.numbers - 1}" if self.numbers else self.name

    @property
    def is_vendor_product(self) -> bool:
        """True for a product of the vendor's library."""
        return not (self.rate or self.only_below_levels) and self.time_formula == "vendor"

    @property
    def probed_forms(self) -> tuple[str, ...]:
        """The forms in which the tuner's probes measure the leaf."""
        return tuple(form for form in self.forms if form not in self.unprobed)

    @property
    def candidate_names(self) -> tuple[str, ...]:
        """The leaf's names in candidates: the first few of a numbered leaf."""
        if not self.numbers:
            return (self.name,)
        return tuple(f"{self.name}{number}" for number in range(min(self.tried, self.numbers)))

    @property
    def searched_names(self) -> tuple[str, ...]:
        """The leaf's names in the tuner's search: those of candidates, without options and with each option."""
        options = [option.name for group in self.options for option in group if option.searched]
        return (*self.candidate_names, *(f"{name}.{option}" for name in self.candidate_names for option in options))

    @property
    def uses(self) -> Iterator[LeafUse]:
        """Every text by which a plan may name the leaf; texts without an operand order come first."""
        numbers: tuple[int | None, ...] = tuple(range(self.numbers)) or (None,)
        for order in (None, *self.orders):
            for number in numbers:
                for chosen in product(*((None, *group) for group in self.options)):
                    yield LeafUse(self, number, tuple(o.name for o in chosen if o), order)

    def workspace_bytes(self, itemsize: int, m: int, k: int, n: int, count: int) -> int:
        """Return the workspace of a batch of `count` products of numbers of `itemsize` bytes."""
        return self.typed_scratch(itemsize, m, k, n, count) if self.typed_scratch else self.scratch(m, k, n, count)


@dataclass(frozen=True)
class LeafUse:
    """A leaf as a plan names it: with its number, options and operand order, if any."""

    leaf: Leaf
    number: int | None = None
    options: tuple[str, ...] = ()
    order: Order | None = None  # operand order; None for that of the operands or of the sums

    def __str__(self) -> str:
        return f"{self.product}.{self.order}" if self.order else self.product

    @property
    def product(self) -> str:
        """The text without the operand order: it names the kernel."""
        return ".".join([f"{self.leaf.name}{'' if self.number is None else self.number}", *self.options])

    def types(self, sums_inside: bool = False) -> tuple[str, ...]:
        """Return the types that the leaf multiplies with these options; with `sums_inside`, with sums in its kernel."""
        multiplied = self.leaf.types_with_sums if sums_inside and self.leaf.sums_inside else self.leaf.types
        for option in self._named_options:
            multiplied = tuple(t for t in multiplied if t in option.types) if option.types else multiplied
        return multiplied

    @property
    def can_fuse_last_level(self) -> bool:
        """True if the last level above the leaf may be fused."""
        return self.leaf.sums_inside and all(option.fused for option in self._named_options)

    @property
    def _named_options(self) -> list[LeafOption]:
        return [option for group in self.leaf.options for option in group if option.name in self.options]


@dataclass(frozen=True)
class LeafFamily:
    """Levels of one kind, each of which one leaf runs with everything below it.

    A plan treats the levels of a family as leaves: `leaves` makes a row of each level. In lists of leaves these rows
    replace `end`, the leaf at the end of all levels of the family.
    """

    name: str
    end: str
    leaves: Callable[[], tuple[Leaf, ...]]


LEAVES: Final[RowRegistry[Leaf]] = RowRegistry("leaf")
LEAF_FAMILIES: Final[RowRegistry[LeafFamily]] = RowRegistry("leaf family")


def register_leaf(row: Leaf) -> None:
    """Let plans end in this leaf."""
    LEAVES.add(row)


def unregister_leaf(name: str) -> None:
    """Remove a leaf from the registry."""
    LEAVES.remove(name)


def register_leaf_family(family: LeafFamily) -> None:
    """Let plans end in these levels."""
    LEAF_FAMILIES.add(family)


def leaf_names() -> tuple[str, ...]:
    """Return the names of all leaves, without numbers and options."""
    return tuple(leaf.name for leaf in LEAVES)


@clear_on_registration
@lru_cache(maxsize=1)
def plan_leaves() -> tuple[Leaf, ...]:
    """Return every row that may end a plan: leaves, and levels that one leaf runs with everything below them."""
    rows: list[Leaf] = []
    for leaf in LEAVES:
        rows += [] if leaf.only_below_levels else [leaf]
        rows += [row for family in LEAF_FAMILIES if family.end == leaf.name for row in family.leaves()]
    return tuple(rows)


@clear_on_registration
@lru_cache(maxsize=1)
def leaf_uses() -> dict[str, LeafUse]:
    """Return everything that multiplies, by its text: the endings of plans, and the leaves inside leaf families."""
    only_below_levels = [leaf for leaf in LEAVES if leaf.only_below_levels]
    return {str(use): use for leaf in (*plan_leaves(), *only_below_levels) for use in leaf.uses}


def leaf_use(text: str) -> LeafUse:
    """Return the leaf that this end of a plan's text names; raise PlanError with the valid leaves."""
    use = leaf_uses().get(text) if isinstance(text, str) else None
    if use is None:
        raise PlanError(f"unknown leaf {text!r}; valid: {valid_leaves_text()}")
    return use


def leaf_of_option(text: str) -> LeafUse:
    """Return the leaf that a level's option names. In an option `residues(14)` is short for `residues(14) > bytes`."""
    family_rows = (row for row in plan_leaves() if row.level)
    full_names = (row.name for row in family_rows if row.name == f"{text} > {row.end}")
    return leaf_use(next(full_names, text))


def leaf_option_text(use: LeafUse) -> str:
    """Return the text of this leaf in a level's option: the short one where `leaf_of_option` understands it."""
    return str(use).removesuffix(f" > {use.leaf.kernel_leaf_name}") if str(use).count(">") == 1 else str(use)


def valid_leaves_text() -> str:
    """Return all leaves that a plan may name, in one sentence."""
    leaves = [leaf for leaf in LEAVES if not leaf.only_below_levels]
    simple = [leaf.displayed_name for leaf in leaves if not leaf.options and leaf.orders]
    text = f"{', '.join(simple)}, each with {_join_with_or(OPERAND_ORDERS)} after it or without"
    text += "".join(f"; {leaf.displayed_name} without" for leaf in leaves if not leaf.options and not leaf.orders)
    for leaf in leaves:
        if leaf.options:
            first, *others = leaf.options
            names = [leaf.displayed_name, *(f"{leaf.displayed_name}.{option.name}" for option in first)]
            text += f"; {', '.join(names)} too"
            text += "".join(f", also with {_join_with_or([o.name for o in group])} after the name" for group in others)
    return text + "".join(f"; below {family.name} {family.end}" for family in LEAF_FAMILIES)


def fusing_leaves_text() -> str:
    """Return the leaves above which a fused level may stand, in a few words."""
    leaves = [leaf for leaf in LEAVES if leaf.sums_inside]
    without = [o.name for leaf in leaves for group in leaf.options for o in group if not o.fused]
    return " or ".join(leaf.name for leaf in leaves) + (f" (without {_join_with_or(without)})" if without else "")


def _join_with_or(names: Sequence[str]) -> str:
    return " or ".join(f".{name}" for name in names)
