"""Residues: a product of integers, float64 or float32 by products of bytes.

The operands become planes of residues modulo pairwise coprime numbers, planes are multiplied modulo each number, and C
is reconstructed from the products (fmm.kernels.algorithms.residues proves that nothing is lost). `residues` is for
integers, modulo as many numbers as their type and the inner dimension need. `residues(14)` is for float64: rows and
columns are scaled by powers of two, as far as 14 numbers allow, and rounded to integers. This is scheme II of Ozaki,
Uchino and Imamura (2025), with bounds by norms; float32 takes 7 to 9 numbers.

Below the level, arithmetic is modulo p and never rounds: one or two levels of Strassen's algorithm, and the leaf
`bytes`. The sums of these levels are computed in registers while operands are split and while C is joined. One launch
multiplies all planes and reduces its sums to bytes. One leaf therefore runs this level with everything below it: the
level ends a plan, and this module makes a Leaf row of the level.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Final, NamedTuple

from fmm.dtypes import DTYPES, INTEGERS
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.leaf import Leaf, LeafFamily, register_leaf_family
from fmm.kernels.plans.level import LevelKind, PlanError, register_level
from fmm.kernels.plans.levels.residue_planes import (
    INNER_ALGORITHM,
    INNER_LEVEL_TEXTS,
    STRASSEN_PRODUCTS,
    JoinFromPlanes,
    integer_moduli_count,
    integer_workspace_bytes,
    prepared_plane_layout,
    residue_steps,
    residue_workspace_bytes,
)
from fmm.kernels.plans.lower import LevelInLeaf
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import LevelSteps
from fmm.problem import Shape

BYTES_LEAF: Final = "bytes"
# By type: the valid numbers of moduli, and the largest number of inner levels. (With two levels below, float32 would
# gain nothing.)
MODULI_BY_TYPE: Final = {"float64": (13, 14, 15, 16), "float32": (7, 8, 9)}
MAX_INNER_LEVELS: Final = {"float64": 2, "float32": 1}
# Integers that allow a level below: sums of two fit in 64 bits, and they are larger than a byte.
TYPES_WITH_LEVEL_BELOW: Final = ("int16", "int32", "uint16", "uint32")
# The number of moduli of prepared operands. Prepared operands have no level below: with levels the planes of A and of B
# would differ.
PREPARED_MODULI: Final = 14
# Errors relative to DGEMM's and SGEMM's, in the Frobenius norm, on normal data on an H200. In float64: 0.5 to 0.7 with
# 14 moduli; one modulus more or less is a factor of 15. (On uniform data: 0.03.) In float32: 0.17 to 0.26 with 7 moduli
# and 0.013 to 0.023 with 8; with more moduli, the rounding of C dominates.
USUAL_MODULI: Final = {"float64": (14,), "float32": (8,)}
RELATIVE_ERRORS: Final = {13: 11.0, 7: 0.3, 8: 0.02, 9: 0.02}
# Norms have at least 2^49.7, 2^53.5, ... units, and each operand's number is off by at most half a unit (2^26.2,
# 2^30.1, 2^34.0 with 7, 8 and 9 moduli); a float64 number itself ends at 2^-53, a float32 number at 2^-24.
ERROR_BOUNDS: Final = {
    **{7: "2^-26 sqrt(k) + 2^-24", 8: "2^-30 sqrt(k) + 2^-24", 9: "2^-34 sqrt(k) + 2^-24"},
    **{13: "2^-48 sqrt(k)", 14: "2^-52 sqrt(k)", 15: "2^-52 sqrt(k)", 16: "2^-52 sqrt(k)"},
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ResiduesLevel(LevelInLeaf):
    """The level `residues(moduli)`; `residues` has moduli 0: as many as the integers need.

    The level counts as one that saves no products: inner levels save products modulo p, where nothing is rounded, and
    inf and NaN are handled separately.
    """

    moduli: int

    def lower(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        """Return the steps of a plan that ends in this level; integers are taken to have 8 bytes."""
        return self.steps(plan, (m, k, n), GemmParams(alpha, beta), self.moduli_count_for("int64", k))

    def lower_product_in_leaf(
        self, plan: Plan, size: Shape, params: GemmParams, itemsize: int, dtype: str = ""
    ) -> LevelSteps:
        """Return the steps for numbers of `itemsize` bytes. bool needs its `dtype`."""
        return self.steps(plan, size, params, self.moduli_count_for(dtype or f"int{8 * itemsize}", size[1]))

    def moduli_count_for(self, dtype: str, k: int) -> int:
        """Return the number of moduli for a product of this type, with k terms in a sum."""
        return self.moduli or integer_moduli_count(dtype, k)

    def steps(self, plan: Plan, size: Shape, params: GemmParams, moduli: int) -> LevelSteps:
        """Return the steps modulo `moduli` numbers, of a plan that ends in this level."""
        return residue_steps(
            size, inner_depth(plan.leaf), params, moduli, Plan(leaf=BYTES_LEAF), scaled=self.moduli > 0
        )

    def describe(self, steps: LevelSteps) -> str:
        joins = [step for step in steps.steps if isinstance(step, JoinFromPlanes)]
        return f"residues modulo {joins[0].moduli} numbers" if joins else "bytes, as they are"

    def multiplication_cost(self, steps: LevelSteps) -> float:
        """One multiplication is a product of bytes for each modulus."""
        return next((1 / step.moduli for step in steps.steps if isinstance(step, JoinFromPlanes)), 1.0)


def residues_level(moduli: int = 0) -> ResiduesLevel:
    """Return the level `residues(moduli)`; raise PlanError for an invalid number of moduli."""
    valid = [count for counts in MODULI_BY_TYPE.values() for count in counts]
    if moduli and moduli not in valid:
        raise _invalid_moduli(str(moduli))
    return ResiduesLevel(
        text=f"residues({moduli})" if moduli else "residues",
        moduli=moduli,
        below=f"{INNER_ALGORITHM}, or {INNER_ALGORITHM}^2 in float64, or no level, and then {BYTES_LEAF}",
        types=next(((dtype,) for dtype, counts in MODULI_BY_TYPE.items() if moduli in counts), INTEGERS),
        number_below="byte",
        products=max(moduli, 1),
        depth=0,
        splits=False,
        saves_products=False,
        error_growth=RELATIVE_ERRORS.get(moduli, 1.0),
    )


def _invalid_moduli(moduli: str) -> PlanError:
    by_type = "; ".join(f"{t}: {', '.join(map(str, counts))}" for t, counts in MODULI_BY_TYPE.items())
    return PlanError(f"residues({moduli}): valid numbers of moduli are {by_type}; for integers write residues alone")


# ---- the leaves that plans may end in


class ResidueLeaf(NamedTuple):
    """An end of plans: the level, `depth` levels of recursion below it, and the leaf `bytes`."""

    level: ResiduesLevel
    depth: int

    @property
    def text(self) -> str:
        return " > ".join(filter(None, (str(self.level), INNER_LEVEL_TEXTS[self.depth], BYTES_LEAF)))

    @property
    def dtype(self) -> str:
        """The floating point type; empty for integers."""
        return self.level.types[0] if self.level.moduli and self.level.types else ""


@lru_cache(maxsize=1)
def residue_leaves() -> Mapping[str, ResidueLeaf]:
    """Return all ends with kernels, by their texts, in the order of preference among equally fast plans."""
    leaves = [ResidueLeaf(residues_level(), depth) for depth in (0, 1)]
    for dtype, counts in MODULI_BY_TYPE.items():
        for moduli in counts:
            leaves += [ResidueLeaf(residues_level(moduli), depth) for depth in range(MAX_INNER_LEVELS[dtype] + 1)]
    return MappingProxyType({leaf.text: leaf for leaf in leaves})


def inner_depth(leaf: str) -> int:
    """Return the number of levels of recursion below the residues, in a leaf of this text."""
    return residue_leaves()[leaf].depth


def _residue_leaf_rows() -> tuple[Leaf, ...]:
    return tuple(_float_leaf(leaf) if leaf.dtype else _integer_leaf(leaf) for leaf in residue_leaves().values())


def _integer_leaf(leaf: ResidueLeaf) -> Leaf:
    types = TYPES_WITH_LEVEL_BELOW if leaf.depth else INTEGERS
    kind = "as many numbers as their type and the inner dimension need"
    return Leaf(
        leaf.text,
        f"integers, exactly, by products of 8-bit integers modulo {kind}{_saved_products_text(leaf.depth)}",
        ("cuda",),
        types=(),
        types_alone=types,
        types_in_blocks=types,
        call_text="one to four launches",
        launches=4,
        typed_scratch=partial(integer_workspace_bytes, leaf.depth),
        orders=(),
        forms=("alone",),
        unprobed=("alone",),
        rate=f"{leaf.text} of {{}}",
        level=leaf.level,
        end=BYTES_LEAF,
    )


def _float_leaf(leaf: ResidueLeaf) -> Leaf:
    moduli, depth, dtype = leaf.level.moduli, leaf.depth, leaf.dtype
    return Leaf(
        leaf.text,
        f"{dtype} by products of 8-bit integers modulo {moduli} numbers{_saved_products_text(depth)}",
        ("cuda",),
        types=(dtype,),
        kernel_triangles=() if depth or dtype != "float64" else (dtype,),
        call_text="four launches",
        launches=4,
        scratch=partial(residue_workspace_bytes, DTYPES[dtype].itemsize, moduli, depth),
        orders=(),
        # With fewer moduli than usual, the product is less accurate than the vendor's; with more, it is slower. Two
        # inner levels are no candidates: they save less time in products than they add in splitting and joining
        # (measured on an H200, up to 16384).
        forms=("alone",) if moduli in USUAL_MODULI[dtype] and depth < 2 else (),
        # Probes do not measure float32 by residues, which serves calls that require less than the vendor's error.
        unprobed=("alone",) if dtype == "float32" else (),
        relative_error=leaf.level.error_growth,
        emulates=True,
        norm_bound=ERROR_BOUNDS[moduli],
        prepared_layout=partial(prepared_plane_layout, moduli) if moduli == PREPARED_MODULI and not depth else None,
        rate=leaf.text,
        level=leaf.level,
        end=BYTES_LEAF,
    )


def _saved_products_text(depth: int) -> str:
    return f", with {STRASSEN_PRODUCTS**depth} in the place of {8**depth}" if depth else ""


# ---- the text form

_TEXT = re.compile(r"residues(?:\(([^()]*)\))?")


def _parse(text: str) -> ResiduesLevel | None:
    match = _TEXT.fullmatch(text)
    if match is None or match[1] is None:
        return residues_level() if match else None
    if not (match[1].isdecimal() and int(match[1])):
        raise _invalid_moduli(match[1])
    return residues_level(int(match[1]))


register_level(LevelKind("residues", _parse, lambda: ("residues",)))
register_leaf_family(LeafFamily("residues", BYTES_LEAF, _residue_leaf_rows))
