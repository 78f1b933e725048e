"""Leaves: the kernels that multiply below all levels of a plan. Each leaf is a row of a registry.

The text of a leaf consists of its name, a number for numbered leaves, options, and an operand order: `vendor`, `lt3`,
`tile.huge.plain`, `vendor.inner`. All properties of a leaf are fields of its row; none is read from its name.

A Gram product, such as a matrix times its adjoint, is its own adjoint, so only one triangle must be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, Final, Literal

from fmm.kernels.plans.level import Level, PlanError
from fmm.kernels.registry import RowRegistry, clear_on_registration

OperandOrder = Literal["inner", "outer"]  # both operands of a leaf product are contiguous along this dimension
OPERAND_ORDERS: Final[tuple[OperandOrder, ...]] = ("inner", "outer")
HostProductFunction = Callable[[Any, Any, Any], object]  # called as multiply(left, right, dest)
HostProductWithScratchFunction = Callable[
    [Any, Any, Any, Any, Any], object
]  # called as multiply(left, right, dest, scratch, threads)
# Function scratch(m, k, n, count): returns the bytes of workspace for a batch of `count` m x k x n products.
ScratchFunction = Callable[[int, int, int, int], int]
TypedScratchFunction = Callable[[int, int, int, int, int], int]  # called as scratch(itemsize, m, k, n, count)
# Function layout(itemsize, number of rows of A or columns of B, inner dimension): returns the offset and the bytes of
# the prepared data behind an operand in memory.
PreparedLayoutFunction = Callable[[int, int, int], tuple[int, int]]


@dataclass(frozen=True)
class LeafOption:
    """An option of a leaf: a word that can follow the leaf's name in a plan's text."""

    name: str
    types: tuple[str, ...] = ()  # types that the leaf multiplies with this option; empty: all types of the leaf
    fused: bool = True  # True if the last level above a leaf with this option can be fused
    searched: bool = False  # True if the tuner's search tries the option; the model's candidates have no options


def _zero_scratch_bytes(m: int, k: int, n: int, count: int) -> int:
    return 0


@dataclass(frozen=True)
class Leaf:
    """A kernel that multiplies, and its properties. Devices are `cpu` and `cuda`; types are names of fmm.dtypes."""

    name: str
    meaning: str  # description of the leaf for users
    devices: tuple[str, ...]

    # Fields on the types that the leaf multiplies.
    types: tuple[str, ...]  # types that the leaf multiplies, also below levels of any kind
    # types for which the leaf's kernel can form the sums of fused levels and of step tables
    types_with_sums: tuple[str, ...] = ()
    types_alone: tuple[str, ...] = ()  # further types that the leaf multiplies in plans without levels
    # further types that the leaf multiplies below levels that only cut A, B and C into blocks
    types_in_blocks: tuple[str, ...] = ()

    # Fields on Gram products, and the ways in which the leaf can compute one triangle.
    blas_triangles: tuple[str, ...] = ()  # types with a BLAS function for one triangle: syrk or herk
    kernel_triangles: tuple[str, ...] = ()  # types with a kernel for one triangle of a row-major C
    # types with a kernel for one triangle of C that leaves arbitrary numbers in the other triangle
    loose_triangles: tuple[str, ...] = ()
    mirrors: bool = False  # True if the triangle kernel can also write the other triangle
    # Up to this number of rows, a GPU computes a batch of Gram products faster as whole products than as triangles.
    whole_product_rows: int = 0

    # Fields on the execution of a leaf's product.
    call_text: str = "one launch"  # text for one product in explain's table
    launches: int = 1  # number of launches or library calls of one product
    scratch: ScratchFunction = _zero_scratch_bytes  # function that returns the bytes of workspace
    typed_scratch: TypedScratchFunction | None = None  # function in place of `scratch` if the bytes depend on the type
    host_product: HostProductFunction | None = None  # function that multiplies on the CPU; None: numpy.matmul
    # Function in place of `host_product` for a leaf that needs scratch memory and starts its own threads.
    host_product_with_scratch: HostProductWithScratchFunction | None = None

    # Fields on the leaf's text in a plan.
    orders: tuple[OperandOrder, ...] = OPERAND_ORDERS
    numbers: int = 0  # for numbered leaves, a number from 0 to `numbers` - 1 follows the name; 0: not numbered
    # The text of a leaf names at most one option of each group, in the order of the groups.
    options: tuple[tuple[LeafOption, ...], ...] = ()

    # Fields on the conditions under which the leaf is a candidate.
    candidate_types: tuple[str, ...] | None = None  # types for which the leaf is a candidate; None: all types
    candidate_devices: tuple[str, ...] | None = None  # devices on which the leaf is a candidate; None: all devices
    alignment: int = 1  # bytes; the leaf is a candidate only if every row begins at a multiple of this number
    # The leaf is a candidate only if no side of the product is longer than `longest`, because the leaf's rate is
    # measured only up to this length; 0: no limit.
    longest: int = 0
    # True if the leaf is a candidate only for a call that requires a smaller error than the vendor's: a call with
    # max_error_growth below 1.
    for_smaller_errors: bool = False
    # Names of the patterns of candidate plans that end in the leaf (PlanPatterns in fmm.perfmodel.candidates).
    forms: tuple[str, ...] = ("alone", "nested", "one pass")
    unprobed: tuple[str, ...] = ()  # the `forms` in which the tuner's probes do not measure the leaf
    tried: int = 4  # for numbered leaves: only the numbers 0 to `tried` - 1 are candidates

    # Fields on the error of the leaf.
    # True if the leaf saves multiplications, so that an inf or NaN can appear where the vendor's product has none
    saves_products: bool = False
    relative_error: float = 1.0  # error as a multiple of the vendor's error
    # True if the leaf multiplies in another type (emulation). The error of emulation is bounded relative to the norms
    # of a row and a column, and not relative to each entry. FMM_EMULATION=0 forbids leaves that emulate.
    emulates: bool = False
    norm_bound: str = ""  # for emulation: bound of an entry's error relative to the norms of its row and column
    # True if the leaf can raise a device flag when the relative error of an entry may be too large
    checks_entries: bool = False

    # Fields on the preparation of operands before the product.
    # Function that returns the offset and the bytes of the prepared data behind an operand; None for a leaf that
    # prepares nothing.
    prepared_layout: PreparedLayoutFunction | None = None
    prepared_by_sums: bool = False  # True if the sums of a batched level can write prepared operands

    # Fields on the predicted time.
    rate: str = ""  # name of the leaf's rate in a calibration, with `{}` for the type; empty: the type's name
    # Factor of the leaf's predicted time; a leaf without a rate in the calibration has the vendor's rate.
    relative_time: float = 1.0
    time_formula: Literal["vendor", "tiles"] = "vendor"
    slow_columns: tuple[str, ...] = ()  # types for which a product with a column-major B takes far longer
    # True if the leaf's thread blocks occupy every multiprocessor to the end of the product, so that concurrent sums
    # wait
    fills_device: bool = False

    # A leaf can run a level together with everything below it, such as `residues(14) > bytes`.
    # True if the leaf can only follow a level that one leaf runs, as `bytes` follows `residues`
    only_below_levels: bool = False
    level: Level | None = None  # the level that the leaf runs, such as `residues(14)`; None for other leaves
    end: str = ""  # the name after the last `>` in the text of such a leaf, such as `bytes`; empty for other leaves

    def is_candidate_on(self, device: str) -> bool:
        """Return True if plans that the model compares on this device may end in the leaf."""
        return device in (self.devices if self.candidate_devices is None else self.candidate_devices)

    @property
    def kernel_leaf_name(self) -> str:
        """Return the leaf's name for the selection of kernels: `bytes` for every leaf that ends in `bytes`."""
        return self.end or self.name

    @property
    def can_compute_sums(self) -> bool:
        """Return True if the leaf can compute sums inside its products."""
        return bool(self.types_with_sums)

    @property
    def name_in_messages(self) -> str:
        """Return the leaf's name without options, as in messages; for a numbered leaf, its names (`lt0 to lt31`)."""
        return f"{self.name}0 to {self.name}{self.numbers - 1}" if self.numbers else self.name

    @property
    def is_vendor_product(self) -> bool:
        """Return True if the leaf calls a product function of the vendor's library."""
        return not (self.rate or self.only_below_levels) and self.time_formula == "vendor"

    @property
    def probed_plan_forms(self) -> tuple[str, ...]:
        """Return the patterns of candidate plans in which the tuner's probes measure the leaf."""
        return tuple(form for form in self.forms if form not in self.unprobed)

    @property
    def candidate_names(self) -> tuple[str, ...]:
        """Return the leaf's names in candidate plans; a numbered leaf has several names, such as lt0 to lt3."""
        if not self.numbers:
            return (self.name,)
        return tuple(f"{self.name}{number}" for number in range(min(self.tried, self.numbers)))

    @property
    def names_in_tuner_search(self) -> tuple[str, ...]:
        """Return the leaf's names in the tuner's search: the names of candidates, without and with each option."""
        options = [option.name for group in self.options for option in group if option.searched]
        return (*self.candidate_names, *(f"{name}.{option}" for name in self.candidate_names for option in options))

    @property
    def all_text_variants(self) -> Iterator[LeafUse]:
        """Yield a LeafUse for every text of the leaf in a plan; texts without an operand order come first."""
        numbers: tuple[int | None, ...] = tuple(range(self.numbers)) or (None,)
        for order in (None, *self.orders):
            for number in numbers:
                for chosen in product(*((None, *group) for group in self.options)):
                    yield LeafUse(self, number, tuple(o.name for o in chosen if o), order)

    def workspace_bytes(self, itemsize: int, m: int, k: int, n: int, count: int) -> int:
        """Return the bytes of workspace for a batch of `count` products of numbers with `itemsize` bytes."""
        return self.typed_scratch(itemsize, m, k, n, count) if self.typed_scratch else self.scratch(m, k, n, count)


@dataclass(frozen=True)
class LeafUse:
    """A leaf with the number, the options and the operand order that a plan's text names."""

    leaf: Leaf
    number: int | None = None
    options: tuple[str, ...] = ()
    order: OperandOrder | None = None  # operand order; None: operands have any layout

    def __str__(self) -> str:
        return f"{self.kernel_text}.{self.order}" if self.order else self.kernel_text

    @property
    def kernel_text(self) -> str:
        """Return the leaf's text without the operand order: the name of the kernel."""
        return ".".join([f"{self.leaf.name}{'' if self.number is None else self.number}", *self.options])

    def multiplied_types(self, sums_inside: bool = False) -> tuple[str, ...]:
        """Return the types that the leaf multiplies with the options in its text.

        If `sums_inside` is True, return only the types for which the leaf's kernel can form sums.
        """
        multiplied = self.leaf.types_with_sums if sums_inside and self.leaf.can_compute_sums else self.leaf.types
        for option in self._options_named_in_text:
            multiplied = tuple(t for t in multiplied if t in option.types) if option.types else multiplied
        return multiplied

    @property
    def can_fuse_last_level(self) -> bool:
        """Return True if the last level above the leaf can be fused."""
        return self.leaf.can_compute_sums and all(option.fused for option in self._options_named_in_text)

    @property
    def _options_named_in_text(self) -> list[LeafOption]:
        return [option for group in self.leaf.options for option in group if option.name in self.options]


@dataclass(frozen=True)
class LeafFamily:
    """A family of leaves: each leaf runs one level (such as `residues(14)`) together with everything below this level.

    The function `leaves` returns the leaves of the family. The texts of all leaves of a family end in the same leaf,
    `end`.
    """

    name: str
    end: str
    leaves: Callable[[], tuple[Leaf, ...]]


LEAVES: Final[RowRegistry[Leaf]] = RowRegistry("leaf")
LEAF_FAMILIES: Final[RowRegistry[LeafFamily]] = RowRegistry("leaf family")


def register_leaf(row: Leaf) -> None:
    """Register a leaf for use at the end of plans."""
    LEAVES.add(row)


def unregister_leaf(name: str) -> None:
    """Remove a leaf from the registry."""
    LEAVES.remove(name)


def register_leaf_family(family: LeafFamily) -> None:
    """Register a family of leaves for use at the end of plans."""
    LEAF_FAMILIES.add(family)


def leaf_names() -> tuple[str, ...]:
    """Return the names of all leaves, without numbers and options."""
    return tuple(leaf.name for leaf in LEAVES)


@clear_on_registration
@lru_cache(maxsize=1)
def plan_leaves() -> tuple[Leaf, ...]:
    """Return the rows of all leaves in which a plan can end, including the leaves of families."""
    rows: list[Leaf] = []
    for leaf in LEAVES:
        rows += [] if leaf.only_below_levels else [leaf]
        rows += [row for family in LEAF_FAMILIES if family.end == leaf.name for row in family.leaves()]
    return tuple(rows)


@clear_on_registration
@lru_cache(maxsize=1)
def leaves_by_text() -> dict[str, LeafUse]:
    """Return a dict from the text of each valid leaf, such as `vendor` or `bytes`, to the leaf."""
    only_below_levels = [leaf for leaf in LEAVES if leaf.only_below_levels]
    return {str(use): use for leaf in (*plan_leaves(), *only_below_levels) for use in leaf.all_text_variants}


def parse_leaf(text: str) -> LeafUse:
    """Return the leaf that a text names; for an unknown text, raise PlanError with the valid leaves."""
    use = leaves_by_text().get(text) if isinstance(text, str) else None
    if use is None:
        raise PlanError(f"unknown leaf {text!r}; valid: {valid_leaves_text()}")
    return use


def parse_leaf_option(text: str) -> LeafUse:
    """Return the leaf that a level's option names. The option `residues(14)` is short for `residues(14) > bytes`."""
    family_rows = (row for row in plan_leaves() if row.level)
    full_names = (row.name for row in family_rows if row.name == f"{text} > {row.end}")
    return parse_leaf(next(full_names, text))


def leaf_option_text(use: LeafUse) -> str:
    """Return the text by which a level's option names this leaf: a short text (`parse_leaf_option`) if there is one."""
    return str(use).removesuffix(f" > {use.leaf.kernel_leaf_name}") if str(use).count(">") == 1 else str(use)


def valid_leaves_text() -> str:
    """Return a sentence that lists all leaves that a plan can name."""
    leaves = [leaf for leaf in LEAVES if not leaf.only_below_levels]
    simple = [leaf.name_in_messages for leaf in leaves if not leaf.options and leaf.orders]
    text = f"{', '.join(simple)}, each with {_join_with_or(OPERAND_ORDERS)} after it or without"
    text += "".join(f"; {leaf.name_in_messages} without" for leaf in leaves if not leaf.options and not leaf.orders)
    for leaf in leaves:
        if leaf.options:
            first, *others = leaf.options
            names = [leaf.name_in_messages, *(f"{leaf.name_in_messages}.{option.name}" for option in first)]
            text += f"; {', '.join(names)} too"
            text += "".join(f", also with {_join_with_or([o.name for o in group])} after the name" for group in others)
    return text + "".join(f"; below {family.name} {family.end}" for family in LEAF_FAMILIES)


def fusing_leaves_text() -> str:
    """Return the text of the leaves that can be below a fused level."""
    leaves = [leaf for leaf in LEAVES if leaf.can_compute_sums]
    without = [o.name for leaf in leaves for group in leaf.options for o in group if not o.fused]
    return " or ".join(leaf.name for leaf in leaves) + (f" (without {_join_with_or(without)})" if without else "")


def _join_with_or(names: Sequence[str]) -> str:
    return " or ".join(f".{name}" for name in names)
