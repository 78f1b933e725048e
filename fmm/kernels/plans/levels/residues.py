"""The levels `residues` and `residues2m`: products of integers, real or complex numbers, by products of bytes.

A and B are split into planes of residues modulo pairwise coprime moduli. The planes are multiplied for each modulus,
and C is reconstructed from the products. fmm.kernels.algorithms.residues proves that the reconstruction is exact.

`residues` is for integers; the type and the inner dimension determine the number of moduli. `residues(14)` is for
float64, with 14 moduli; for float32, 7 to 9 moduli are valid. The rows of A and the columns of B are first scaled by
the largest powers of two that the moduli allow, and rounded to integers. The method is scheme II of Ozaki, Uchino and
Imamura (2025), except that norms determine the scales.

`residues2m(15)` is for complex128: a complex product becomes two products of planes for each modulus, where `3m >
residues(14)` needs three. The level `residues2m` can conjugate A or B while A or B is read.

Below `residues` and `residues2m`, a plan can have one or two levels of Strassen's algorithm, and ends in the leaf
`bytes`. One leaf runs the level `residues` or `residues2m` together with all levels below it: the sums of Strassen's
levels are computed in registers, when operands are split and when C is joined, and one launch multiplies all planes.
Arithmetic below the level is modulo the moduli and never rounds. `residue_leaf_rows` returns a Leaf row for each
combination of a level, the levels below it, and the leaf `bytes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from types import MappingProxyType
from typing import Final, NamedTuple

from fmm.dtypes import DTYPES, INTEGERS
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.leaf import Leaf
from fmm.kernels.plans.level import LevelKind, PlanError, register_level
from fmm.kernels.plans.levels.complex_3m import CONJUGATION_OPTIONS, conjugation_option_names
from fmm.kernels.plans.levels.residue_planes import (
    INNER_ALGORITHM,
    INNER_LEVEL_TEXTS,
    STRASSEN_PRODUCTS,
    ReconstructFromResidues,
    integer_moduli_count,
    integer_workspace_bytes,
    planes_per_modulus,
    prepared_plane_layout,
    residue_steps,
    residue_workspace_bytes,
)
from fmm.kernels.plans.lower import LevelInLeaf
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import LevelSteps
from fmm.problem import Shape

BYTES_LEAF_NAME: Final = "bytes"
LEVEL_NAME, COMPLEX_LEVEL_NAME = "residues", "residues2m"
# By type: the valid numbers of moduli, and the largest number of levels of Strassen's algorithm below the level
# `residues`. (Two levels would not make float32 faster, and would need too many registers for complex128.)
MODULI_BY_TYPE: Final = {
    "float64": (13, 14, 15, 16),
    "float32": (7, 8, 9),
    "complex128": (14, 15, 16, 17),
    "complex64": (7, 8, 9),
}
MAX_INNER_LEVELS: Final = {"float64": 2, "float32": 1, "complex128": 1, "complex64": 1}
# Integer types that can have a level below residues: sums of two numbers fit in 64 bits. Products of 8-bit integers use
# no residues, so they have no level below residues.
TYPES_WITH_LEVEL_BELOW: Final = ("int16", "int32", "uint16", "uint32")
# The number of moduli of prepared operands, by type. Prepared operands have no level below residues, because a level
# below residues has different planes for A and for B. Only levels that conjugate no operand can read prepared operands.
PREPARED_MODULI: Final = {"float64": 14, "complex128": 15}
# The numbers of moduli that candidate plans have, by type. For complex64 on an H200, `3m` over `f16x3` takes 1.06,
# 1.17, 1.25 and 1.17 times as long as `residues2m(7)` for squares of side 1024, 2048, 4096 and 8192. `residues2m(7)` is
# no candidate: if the magnitude of the numbers varies along the inner dimension, the error of `residues2m(7)` is up to
# 10^4 times the vendor's, but the error of `f16x3` is a fifth of the vendor's (docs/numerics.md).
USUAL_MODULI: Final = {"float64": (14, 15, 16), "float32": (8,), "complex128": (15, 17), "complex64": (8,)}
# Errors as multiples of the vendor's error, by type and number of moduli, from errors measured in the Frobenius norm on
# normal data. The value is 1 for a number of moduli that is not listed. On an H200 in float64, the error with 14 moduli
# is 0.5 to 0.7 times DGEMM's error (0.03 times on uniform data), and the error with 13 moduli is 15 times as large. On
# an H100 in float64 with sides of 1024 to 8192, the error is 0.045 to 0.068 times DGEMM's error with 15 moduli, and
# 0.019 to 0.044 times with 16 moduli, where the rounding of C to float64 causes the error. On an H200 in float32, the
# error is 0.17 to 0.26 times SGEMM's error with 7 moduli, and 0.013 to 0.023 times with 8 moduli. With 9 moduli, the
# rounding of C to float32 causes most of the error. On an H100 in complex128, the error is 0.48 times ZGEMM's error
# with 15 moduli, and 0.016 to 0.032 times with 17 moduli, where the error relative to C is about 2^-54. On an H200 in
# complex64 with sides of 1024 to 8192, the error is 0.2 to 0.45 times CGEMM's error with 7 moduli (0.13 to 0.28 times
# on uniform data), and 0.02 to 0.07 times with 8 moduli. At 500 x 16384 x 600, CGEMM adds up several partial sums, and
# the error of residues is 1.34 times CGEMM's error with 7 moduli, and 0.18 times with 8 moduli.
RELATIVE_ERROR_BY_MODULI: Final = {
    "float64": {13: 11.0, 15: 0.07, 16: 0.04},
    "float32": {7: 0.3, 8: 0.02, 9: 0.02},
    "complex128": {14: 8.0, 16: 0.1, 17: 0.04},
    "complex64": {7: 1.5, 8: 0.2, 9: 0.2},
}
# The numbers of moduli that calls use by default and that the tuner's probes measure, by type. More moduli are slower.
# float32 and complex64 have the leaf `f16x3`, so only a call that requires a smaller error than the vendor's uses
# residues for these types.
DEFAULT_MODULI: Final = {"float64": 14, "complex128": 15}
# Bounds of an entry's error relative to the norms of its row of A and its column of B, by the number of moduli; k is
# the inner dimension. A scaled number is rounded by at most 1/2, and the scaled norm of a row or column is large: at
# least 2^26.2, 2^30.1, 2^34.0, 2^49.7 and 2^53.5 with 7, 8, 9, 13 and 14 moduli. For complex numbers, the scaled norm
# of a row or column is at least 2^50.7, 2^54.0, 2^57.3 and 2^59 with 14 to 17 moduli. With 15 or more moduli, the
# precision 2^-53 of float64 limits the error bounds. The rounding of C to float32 adds 2^-24 to the bound.
NORM_BOUND_BY_MODULI: Final = {
    "float32": {7: "2^-26 sqrt(k) + 2^-24", 8: "2^-30 sqrt(k) + 2^-24", 9: "2^-34 sqrt(k) + 2^-24"},
    "float64": {13: "2^-48 sqrt(k)", 14: "2^-52 sqrt(k)", 15: "2^-52 sqrt(k)", 16: "2^-52 sqrt(k)"},
    "complex128": {14: "2^-49 sqrt(k)", 15: "2^-52 sqrt(k)", 16: "2^-52 sqrt(k)", 17: "2^-52 sqrt(k)"},
    "complex64": {7: "2^-25 sqrt(k) + 2^-24", 8: "2^-28 sqrt(k) + 2^-24", 9: "2^-32 sqrt(k) + 2^-24"},
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ResiduesLevel(LevelInLeaf):
    """The level `residues(moduli)`, or `residues2m(moduli)` for complex numbers.

    For integers, `moduli` is 0: the type and the inner dimension determine the number of moduli.

    The field `saves_products` is False, although levels below residues save products: products modulo p round nothing,
    and inf and NaN are handled separately.
    """

    moduli: int
    for_complex: bool = False

    def with_conjugation(self, a: bool, b: bool) -> ResiduesLevel | None:
        """Return the level that conjugates its operands when it reads them; None for real numbers."""
        conjugates = self.conjugates[0] != a, self.conjugates[1] != b
        return residues_level(self.moduli, True, conjugates) if self.for_complex else None

    def lower_product(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        """Return the steps of a product; without moduli in the level's text, the steps have the moduli of int64."""
        return self.level_steps(plan, (m, k, n), GemmParams(alpha, beta), self.moduli_count_for("int64", k))

    def lower_product_in_leaf(
        self, plan: Plan, size: Shape, params: GemmParams, itemsize: int, dtype: str = ""
    ) -> LevelSteps:
        """Return the steps for a type of `itemsize` bytes. `dtype` must be passed for bool, which needs more moduli
        than int8.
        """
        return self.level_steps(plan, size, params, self.moduli_count_for(dtype or f"int{8 * itemsize}", size[1]))

    def moduli_count_for(self, dtype: str, k: int) -> int:
        """Return the number of moduli for a product of this type with inner dimension k."""
        return self.moduli or integer_moduli_count(dtype, k)

    def level_steps(self, plan: Plan, size: Shape, params: GemmParams, moduli: int) -> LevelSteps:
        depth, inner = recursion_depth_of_leaf(plan.leaf), Plan(leaf=BYTES_LEAF_NAME)
        return residue_steps(size, depth, params, moduli, inner, self.moduli > 0, self.for_complex)

    def describe_steps(self, steps: LevelSteps) -> str:
        joins = [step for step in steps.steps if isinstance(step, ReconstructFromResidues)]
        twice = ", of Re + j Im and of Re - j Im" if self.for_complex else ""
        return f"residues modulo {joins[0].moduli} numbers{twice}" if joins else "bytes, as they are"

    def multiplication_cost(self, steps: LevelSteps) -> float:
        """Return the cost of a multiplication of bytes, in multiplications of the product's type.

        The multiplications of bytes that replace one real multiplication (one for each modulus) together cost 1. The
        multiplications of bytes that replace one complex multiplication (two for each modulus) together cost 1/2.
        """
        moduli = next((step.moduli for step in steps.steps if isinstance(step, ReconstructFromResidues)), 1)
        return (0.25 if self.for_complex else 1) / moduli


def residues_level(
    moduli: int = 0, for_complex: bool = False, conjugates: tuple[bool, bool] = (False, False)
) -> ResiduesLevel:
    """Return the level `residues(moduli)` or `residues2m(moduli)`; raise PlanError for an invalid number of moduli."""
    name = COMPLEX_LEVEL_NAME if for_complex else LEVEL_NAME
    valid = {dtype: counts for dtype, counts in MODULI_BY_TYPE.items() if DTYPES[dtype].is_complex == for_complex}
    types = tuple(dtype for dtype, counts in valid.items() if moduli in counts)
    if not types and (moduli or for_complex):
        raise _invalid_moduli_error(name, str(moduli))
    dtype = types[0] if types else ""
    return ResiduesLevel(
        text=".".join([f"{name}({moduli})" if moduli else name, *conjugation_option_names(conjugates)]),
        moduli=moduli,
        for_complex=for_complex,
        conjugates=conjugates,
        below=f"{INNER_ALGORITHM}, or {INNER_ALGORITHM}^2 in float64, or no level, and then {BYTES_LEAF_NAME}",
        types=types or INTEGERS,
        number_below="byte",
        products=max(moduli, 1) * planes_per_modulus(for_complex),
        depth=0,
        splits=False,
        saves_products=False,
        error_growth=RELATIVE_ERROR_BY_MODULI.get(dtype, {}).get(moduli, 1.0),
    )


def _invalid_moduli_error(name: str, moduli: str) -> PlanError:
    for_complex = name == COMPLEX_LEVEL_NAME
    valid = {t: counts for t, counts in MODULI_BY_TYPE.items() if DTYPES[t].is_complex == for_complex}
    by_type = "; ".join(f"{t}: {', '.join(map(str, counts))}" for t, counts in valid.items())
    integers = "" if for_complex else "; for integers write residues alone"
    return PlanError(f"{name}({moduli}): valid numbers of moduli are {by_type}{integers}")


# ---- leaves: the level together with everything below it


class ResidueLeaf(NamedTuple):
    """The end of a plan: a level `residues`, then `depth` levels of Strassen's algorithm, then the leaf `bytes`."""

    level: ResiduesLevel
    depth: int

    @property
    def leaf_text(self) -> str:
        return " > ".join(filter(None, (str(self.level), INNER_LEVEL_TEXTS[self.depth], BYTES_LEAF_NAME)))

    @property
    def float_type(self) -> str:
        """Return the real or complex floating-point type of the product; empty for integers."""
        return self.level.types[0] if self.level.moduli and self.level.types else ""


@lru_cache(maxsize=1)
def residue_leaves() -> Mapping[str, ResidueLeaf]:
    """Return all residue leaves by their texts. Among equally fast leaves, the model chooses the first of this dict."""
    leaves = [ResidueLeaf(residues_level(), depth) for depth in (0, 1)]
    for dtype, counts in MODULI_BY_TYPE.items():
        for moduli, depth in product(counts, range(MAX_INNER_LEVELS[dtype] + 1)):
            level = residues_level(moduli, DTYPES[dtype].is_complex)
            leaves += [ResidueLeaf(each, depth) for each in _levels_with_conjugation(level)]
    return MappingProxyType({leaf.leaf_text: leaf for leaf in leaves})


def _levels_with_conjugation(level: ResiduesLevel) -> list[ResiduesLevel]:
    """Return a list: the level, and for complex numbers also the levels that conjugate A, B, or both."""
    conjugated = (level.with_conjugation(*x) for x in product((False, True), repeat=2))
    return [x for x in conjugated if x] or [level]


def recursion_depth_of_leaf(leaf: str) -> int:
    """Return the number of levels of recursion below residues in a leaf's text."""
    return residue_leaves()[leaf].depth


def residue_leaf_rows(host_product: Callable[..., object]) -> tuple[Leaf, ...]:
    """Return the registry rows of all residue leaves.

    The function `host_product` multiplies on a CPU: floating-point types only, without levels below residues.
    """
    return tuple(
        _float_leaf(leaf, host_product) if leaf.float_type else _integer_leaf(leaf)
        for leaf in residue_leaves().values()
    )


def _integer_leaf(leaf: ResidueLeaf) -> Leaf:
    types = TYPES_WITH_LEVEL_BELOW if leaf.depth else INTEGERS
    kind = "as many numbers as their type and the inner dimension need"
    return Leaf(
        leaf.leaf_text,
        f"integers, exactly, by products of 8-bit integers modulo {kind}{_strassen_product_count_text(leaf.depth)}",
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
        rate=f"{leaf.leaf_text} of {{}}",
        level=leaf.level,
        end=BYTES_LEAF_NAME,
    )


def _float_leaf(leaf: ResidueLeaf, host_product: Callable[..., object]) -> Leaf:
    level, depth, dtype = leaf.level, leaf.depth, leaf.float_type
    moduli, for_complex = level.moduli, level.for_complex
    twice = "two " if for_complex else ""
    on_host = not depth and not any(level.conjugates)
    is_prepared = moduli == PREPARED_MODULI.get(dtype) and not depth and not any(level.conjugates)
    return Leaf(
        leaf.leaf_text,
        f"{dtype} by {twice}products of 8-bit integers modulo {moduli} numbers{_strassen_product_count_text(depth)}",
        ("cpu", "cuda") if on_host else ("cuda",),
        # A level that conjugates can only multiply whole operands: below another level, an operand is a block or a sum,
        # and the kernels do not know whether it comes from A or from B.
        types=() if any(level.conjugates) else (dtype,),
        types_alone=(dtype,) if any(level.conjugates) else (),
        kernel_triangles=() if depth or dtype in ("float32", "complex64") else (dtype,),
        call_text="four launches" if depth else "three or four launches",
        launches=4,
        scratch=partial(residue_workspace_bytes, DTYPES[dtype].itemsize, moduli, depth, for_complex=for_complex),
        host_product_with_scratch=partial(host_product, moduli=moduli, for_complex=for_complex) if on_host else None,
        orders=(),
        candidate_devices=("cuda",),  # a CPU's product by residues takes about 10 times the time of BLAS's product
        # Other numbers of moduli are no candidates: with fewer moduli the product is less accurate than the vendor's,
        # and with more moduli it is slower without being more accurate. Two levels below residues are no candidate:
        # split and join take more time than the smaller number of products saves (measured on an H200 up to 16384). A
        # level that conjugates is no candidate: fmm.gemm derives this level from the chosen plan.
        forms=("alone",) if moduli in USUAL_MODULI[dtype] and depth < 2 and not any(level.conjugates) else (),
        unprobed=() if moduli == DEFAULT_MODULI.get(dtype) else ("alone",),
        for_smaller_errors=dtype not in DEFAULT_MODULI,
        relative_error=level.error_growth,
        emulates=True,
        norm_bound=NORM_BOUND_BY_MODULI[dtype][moduli],
        prepared_layout=partial(prepared_plane_layout, moduli, for_complex=for_complex) if is_prepared else None,
        rate=ResidueLeaf(residues_level(moduli, for_complex), depth).leaf_text,
        level=leaf.level,
        end=BYTES_LEAF_NAME,
    )


def _strassen_product_count_text(depth: int) -> str:
    return f", with {STRASSEN_PRODUCTS**depth} in the place of {8**depth}" if depth else ""


# ---- the text form

_RESIDUES_PATTERN = re.compile(r"(residues(?:2m)?)(?:\(([^()]*)\))?((?:\.[\w-]+)*)")


def _parse_residues_level(text: str) -> ResiduesLevel | None:
    match = _RESIDUES_PATTERN.fullmatch(text)
    if match is None:
        return None
    name, moduli, options = match[1], match[2], match[3].split(".")[1:]
    for_complex = name == COMPLEX_LEVEL_NAME
    if unknown := [option for option in options if not (for_complex and option in CONJUGATION_OPTIONS)]:
        valid = f"; valid: {', '.join(CONJUGATION_OPTIONS)}" if for_complex else ""
        raise PlanError(f"unknown option {unknown[0]!r} of {name}{valid}")
    if moduli is None and not for_complex:
        return residues_level()
    if not (moduli and moduli.isdecimal() and int(moduli)):
        raise _invalid_moduli_error(name, moduli or "")
    return residues_level(int(moduli), for_complex, ("conj-a" in options, "conj-b" in options))


register_level(LevelKind("residues", _parse_residues_level, lambda: (LEVEL_NAME, COMPLEX_LEVEL_NAME)))
