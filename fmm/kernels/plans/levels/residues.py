"""Residues: a level that has a product of integers, float64 or float32 done by products of bytes.

The operands become planes of residues modulo pairwise coprime numbers, planes are multiplied modulo each number, and C
is put together from the products (fmm.kernels.algorithms.residues says why nothing is lost). `residues` is for
integers, modulo as many numbers as their type and the inner dimension need. `residues(14)` is for float64: rows and
columns are scaled by powers of two, as far as 14 such numbers allow, and rounded to integers before. This is scheme II
of Ozaki, Uchino and Imamura (2025), with bounds by norms; float32 takes 7 to 9 numbers.

Below it stands what is done modulo p, where nothing is ever rounded: one or two levels of Strassen's algorithm, and
`bytes`, who multiplies. Their sums are formed as residues are split off and as C is put together, in registers, and all
planes are multiplied in one launch that reduces its sums to bytes. So a machine does this level whole, with all that is
below it, as it does a leaf: it ends a plan, and the row made of it here says what the others ask of a leaf.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Final, NamedTuple

from fmm.dtypes import BYTE, DTYPES, INTEGERS
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.leaf import Ending, Leaf, register_ending
from fmm.kernels.plans.leaf_parts import (
    LeafCall,
    LeafCandidacy,
    LeafError,
    LeafHalves,
    LeafNames,
    LeafPreparation,
    LeafTime,
    LeafTypes,
    LevelAndLeaf,
)
from fmm.kernels.plans.level import LevelKind, register_level
from fmm.kernels.plans.level_with_steps import WholeLevel
from fmm.kernels.plans.levels.residue_room import (
    PRODUCTS,
    kept_room,
    residue_scratch,
    whole_moduli,
    whole_scratch,
)
from fmm.kernels.plans.levels.residue_steps import BELOW, FAST, FromPlanes, residue_steps
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.plans.steps.asked import Asked
from fmm.kernels.plans.steps.level_steps import LevelSteps
from fmm.problem import Shape

LEAF: Final = "bytes"
# By type, the numbers of moduli that there are, and the most levels below. (With two, float32 would gain nothing.)
MODULI: Final = {"float64": (13, 14, 15, 16), "float32": (7, 8, 9)}
MOST_BELOW: Final = {"float64": 2, "float32": 1}
# The integers for which there may be a level below: sums of two fit in 64 bits, and they are more than a byte.
SUMMED: Final = ("int16", "int32", "uint16", "uint32")
# The number of moduli with which prepared operands keep planes, if no level is below: with levels there would be more
# planes, and others for A than for B.
KEPT_MODULI: Final = 14
# Errors against DGEMM's and SGEMM's, in the Frobenius norm, on normal data on an H200: 0.5 to 0.7 with 14 moduli; every
# one more or less is a factor of 15. (Uniform data: 0.03.) Of float32 0.17 to 0.26 with 7 and 0.013 to 0.023 with 8;
# with more no less than rounding C takes.
USUAL_MODULI: Final = {"float64": (14,), "float32": (8,)}
ERRORS: Final = {13: 11.0, 7: 0.3, 8: 0.02, 9: 0.02}
# Norms have at least 2^49.7, 2^53.5, ... units, of which either operand's number loses half a one (2^26.2, 2^30.1,
# 2^34.0 with 7, 8 and 9 moduli); what is known of a float64 number ends at 2^-53, of a float32 number at 2^-24.
BOUNDS: Final = {
    **{7: "2^-26 sqrt(k) + 2^-24", 8: "2^-30 sqrt(k) + 2^-24", 9: "2^-34 sqrt(k) + 2^-24"},
    **{13: "2^-48 sqrt(k)", 14: "2^-52 sqrt(k)", 15: "2^-52 sqrt(k)", 16: "2^-52 sqrt(k)"},
}


@dataclass(frozen=True)
class Residues(WholeLevel):
    """The level `residues(moduli)`, or `residues` with as many moduli as integers need, which is 0 here.

    What the levels below save is saved modulo p, where nothing is rounded, and inf and NaN are looked for apart. So it
    counts as a level that saves no products.
    """

    moduli: int = 0

    def __post_init__(self) -> None:
        known = [count for counts in MODULI.values() for count in counts]
        if self.moduli and self.moduli not in known:
            valid = "; ".join(f"{t}: {', '.join(map(str, counts))}" for t, counts in MODULI.items())
            raise PlanError(
                f"residues({self.moduli}): modulo how many numbers, by type: {valid}; integers: none is said"
            )

    def __str__(self) -> str:
        return f"residues({self.moduli})" if self.moduli else "residues"

    @property
    def below(self) -> str:
        return f"{FAST}, or {FAST}^2 in float64, or no level, and then {LEAF}"

    @property
    def types(self) -> tuple[str, ...]:
        return next(((dtype,) for dtype, counts in MODULI.items() if self.moduli in counts), INTEGERS)

    def dtype_below(self, dtype: str) -> str:
        return BYTE.name

    def itemsize_below(self, itemsize: int) -> int:
        return BYTE.itemsize

    @property
    def work_below(self) -> float:
        return 1 / max(self.moduli, 1)

    @property
    def products(self) -> int:
        return max(self.moduli, 1)

    @property
    def error_growth(self) -> float:
        return ERRORS.get(self.moduli, 1.0)

    # ---- what it comes to

    def lower(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        """The steps of a plan that ends in it; integers are taken to have 8 bytes."""
        return self.steps(plan, (m, k, n), Asked(alpha, beta), self.moduli_for("int64", k))

    def opened(
        self, plan: Plan, size: tuple[int, int, int], asked: Asked, itemsize: int, dtype: str = ""
    ) -> LevelSteps:
        """The same for numbers of so many bytes, for whoever counts or explains what is done whole.

        `dtype` must be given for bool, and may be for others.
        """
        return self.steps(plan, size, asked, self.moduli_for(dtype or f"int{8 * itemsize}", size[1]))

    def moduli_for(self, dtype: str, k: int) -> int:
        """The number of moduli for a product of this type, with k terms to a sum."""
        return self.moduli or whole_moduli(dtype, k)

    def steps(self, plan: Plan, size: Shape, asked: Asked, moduli: int) -> LevelSteps:
        """The steps modulo so many numbers, of a plan that ends in this level."""
        return residue_steps(size, depth_below(plan.leaf), asked, moduli, Plan(leaf=LEAF), scaled=self.moduli > 0)

    def does(self, steps: LevelSteps) -> str:
        joins = [step for step in steps.steps if isinstance(step, FromPlanes)]
        return f"residues modulo {joins[0].moduli} numbers" if joins else "bytes, as they are"

    def share(self, steps: LevelSteps) -> float:
        """One multiplication is as many products of bytes as there are moduli."""
        return next((1 / step.moduli for step in steps.steps if isinstance(step, FromPlanes)), 1.0)


# ---- the rows that end plans


class ResidueEnding(NamedTuple):
    """An end of plans: the level, so many levels of recursion below it, and the leaf."""

    level: Residues
    depth: int

    @property
    def text(self) -> str:
        return " > ".join(filter(None, (str(self.level), BELOW[self.depth], LEAF)))

    @property
    def dtype(self) -> str:
        """The floating point type that it is for; empty if it is for integers."""
        return self.level.types[0] if self.level.moduli else ""


def _endings() -> Iterator[ResidueEnding]:
    """All endings that there are kernels for, in the order in which equally fast plans are preferred."""
    yield from (ResidueEnding(Residues(), depth) for depth in (0, 1))
    for dtype, counts in MODULI.items():
        for moduli in counts:
            yield from (ResidueEnding(Residues(moduli), depth) for depth in range(MOST_BELOW[dtype] + 1))


@lru_cache(maxsize=1)
def residue_endings() -> Mapping[str, ResidueEnding]:
    """All endings, by their texts."""
    return MappingProxyType({ending.text: ending for ending in _endings()})


def depth_below(ending: str) -> int:
    """The number of levels of recursion below the residues, in an ending of this text."""
    return residue_endings()[ending].depth


def _row(ending: ResidueEnding) -> Leaf:
    level, depth, dtype = ending.level, ending.depth, ending.dtype
    kind = f"{level.moduli} numbers" if dtype else "as many numbers as their type and the inner dimension need"
    fewer = f", with {PRODUCTS**depth} in the place of {8**depth}" if depth else ""
    common = Leaf(
        ending.text,
        f"{dtype or 'integers, exactly,'} by products of 8-bit integers modulo {kind}{fewer}",
        ("cuda",),
        LeafTypes(level.types if dtype else ()),
        call=LeafCall("four launches" if dtype else "one to four launches", starts=4),
        names=LeafNames(orders=()),
        candidacy=LeafCandidacy(forms=("alone",), unprobed=("alone",)),
        time=LeafTime(ending.text if dtype else f"{ending.text} of {{}}"),
        stands_for=LevelAndLeaf(level, LEAF),
    )
    return _for_floats(common, level, depth, dtype) if dtype else _for_integers(common, depth)


def _for_integers(common: Leaf, depth: int) -> Leaf:
    types = SUMMED if depth else INTEGERS
    call = replace(common.call, scratch_of=partial(whole_scratch, depth))
    return replace(common, types=LeafTypes((), alone=types, in_blocks=types), call=call)


def _for_floats(common: Leaf, level: Residues, depth: int, dtype: str) -> Leaf:
    moduli = level.moduli
    keeps = partial(kept_room, moduli) if moduli == KEPT_MODULI and not depth else None
    return replace(
        common,
        halves=LeafHalves(by_kernel=() if depth or dtype != "float64" else (dtype,)),
        call=replace(common.call, scratch=partial(residue_scratch, DTYPES[dtype].itemsize, moduli, depth)),
        candidacy=LeafCandidacy(
            # Fewer than the usual are less accurate than the vendor, more are slower. With two levels less is
            # multiplied, but splitting and joining take longer by more than that (an H200, up to 16384): for who names
            # them.
            forms=("alone",) if moduli in USUAL_MODULI[dtype] and depth < 2 else (),
            unprobed=("alone",) if dtype == "float32" else (),  # for who asks for less than the vendor's error
        ),
        error=LeafError(relative=level.error_growth, emulates=True, norm_bound=BOUNDS[moduli]),
        preparation=LeafPreparation(keeps),
    )


def _rows() -> tuple[Leaf, ...]:
    return tuple(_row(ending) for ending in residue_endings().values())


# ---- the text form

_TEXT = re.compile(r"residues(?:\((\d+)\))?")


def _parse(text: str) -> Residues | None:
    match = _TEXT.fullmatch(text)
    return Residues(int(match[1] or 0)) if match else None


register_level(LevelKind("residues", _parse, lambda: ("residues",)))
register_ending(Ending("residues", LEAF, _rows))
