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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Final, NamedTuple

from fmm.dtypes import BYTE, DTYPES, INTEGERS
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient, updating_program
from fmm.kernels.algorithms.catalogue import scheme
from fmm.kernels.algorithms.scheme import Programs
from fmm.kernels.plans.leaf import Ending, Leaf, register_ending
from fmm.kernels.plans.level import LevelKind, register_level
from fmm.kernels.plans.level_with_steps import WholeLevel
from fmm.kernels.plans.levels.residue_room import (
    EXPONENT,
    PRODUCTS,
    ResidueRoom,
    kept_room,
    residue_scratch,
    whole_moduli,
    whole_scratch,
)
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.plans.steps.asked import Asked
from fmm.kernels.plans.steps.blocks import operand_blocks
from fmm.kernels.plans.steps.level_steps import LevelSteps, Product, ProductBatch, temporary_sizes
from fmm.kernels.plans.steps.rescaling import LineExponents
from fmm.kernels.plans.steps.sums import COPY, Place, Sum, whole_matrix

LEAF: Final = "bytes"
FAST: Final = "strassen"  # the algorithm of the levels that may stand below
BELOW: Final = ("", FAST, f"{FAST}^2")  # by how many levels of recursion that are
# Modulo how many numbers, and the most levels below. With two, float32 would gain nothing.
MODULI: Final = {"float64": (13, 14, 15, 16), "float32": (7, 8, 9)}
MOST_BELOW: Final = {"float64": 2, "float32": 1}
# Integers whose sums of two fit in 64 bits, and that are more than a byte: with a level below.
SUMMED: Final = ("int16", "int32", "uint16", "uint32")
# Of which prepared operands keep planes: with levels below there would be more, and others for A than for B.
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


# ---- what it does


@dataclass(frozen=True)
class NormExponents(LineExponents):
    """The largest powers of two by which rows (axis 0) or columns (axis 1) may be scaled for so many moduli, by bounds
    of their norms."""


@dataclass(frozen=True)
class IntoPlanes(Sum):
    """The program's sums of whole numbers (float64 and float32 are scaled and rounded to such), and of each sum the
    residue modulo every number: planes of all sums modulo the first number, then of all modulo the second."""

    moduli: int = 0


@dataclass(frozen=True)
class FromPlanes(Sum):
    """C from planes in that order: sums modulo each number, and the whole numbers that have these residues, scaled
    back."""

    moduli: int = 0


@dataclass(frozen=True)
class Residues(WholeLevel):
    """Products of bytes, modulo so many numbers; 0: as many as integers need.

    What is saved below it is saved modulo p, where nothing is rounded; an inf or NaN is looked for apart.
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
        """Of a plan that ends in it; integers are taken to have 8 bytes."""
        return self.steps(plan, (m, k, n), Asked(alpha, beta), self.moduli_for("int64", k))

    def opened(
        self, plan: Plan, size: tuple[int, int, int], asked: Asked, itemsize: int, dtype: str = ""
    ) -> LevelSteps:
        """The same of numbers of so many bytes, for whoever counts or explains what is done whole; of bool, the type
        must be said."""
        return self.steps(plan, size, asked, self.moduli_for(dtype or f"int{8 * itemsize}", size[1]))

    def moduli_for(self, dtype: str, k: int) -> int:
        """Modulo how many numbers a product of this type is, with k terms to a sum."""
        return self.moduli or whole_moduli(dtype, k)

    def steps(self, plan: Plan, size: tuple[int, int, int], asked: Asked, moduli: int) -> LevelSteps:
        """Planes are as large as the device has them: each block of equal size, lines of whole 16 bytes."""
        m, k, n = size
        depth, inner = depth_below(plan.leaf), Plan(leaf=LEAF)
        whole = whole_matrix("A", m, k), whole_matrix("B", k, n), whole_matrix("C", m, n)
        if moduli == 1 and not depth and asked[:2] == (1, 0) and not self.moduli:
            return LevelSteps((), (Product(*whole, inner),))  # bytes are residues themselves
        (rows, length, cols), programs = _block(size, depth), _programs(depth)
        count = moduli * len(programs.left.outputs)
        lefts, rights, dests = (
            [Place(name, i * height, 0, height, width) for i in range(count)]
            for name, height, width in (("S", rows, length), ("T", length, cols), ("M", rows, cols))
        )
        a, b, c = (operand_blocks(x.name, x.rows, x.cols, (1 << depth, 1 << depth), 1) for x in whole)
        scales = [Place(name, 0, 0, EXPONENT, lines) for name, lines in (("E", m), ("F", n))] if self.moduli else []
        measures = [_exponents(x, axis, scale) for x, axis, scale in zip(whole, (0, 1), scales, strict=False)]
        splits = [_split(a, programs.left, lefts, moduli), _split(b, programs.right, rights, moduli)]
        products = tuple(Product(*x, inner) for x in zip(lefts, rights, dests, strict=True))
        program = updating_program(_joining(programs.join, moduli), asked.alpha, asked.beta)
        join = FromPlanes("join", program, (*dests, *(c if asked.beta else ())), tuple(c), moduli)
        return LevelSteps(
            temporary_sizes([*measures, *splits, *products]), (*measures, *splits, ProductBatch(products), join)
        )

    def does(self, steps: LevelSteps) -> str:
        joins = [step for step in steps.steps if isinstance(step, FromPlanes)]
        return f"residues modulo {joins[0].moduli} numbers" if joins else "bytes, as they are"

    def share(self, steps: LevelSteps) -> float:
        """A multiplication is one for each modulus."""
        return next((1 / step.moduli for step in steps.steps if isinstance(step, FromPlanes)), 1.0)


def _block(size: tuple[int, int, int], depth: int) -> tuple[int, int, int]:
    return ResidueRoom(*size, 1, 1, depth).block


def _exponents(source: Place, axis: int, dest: Place) -> NormExponents:
    what = f"{('rows', 'columns')[axis]} of {source.name}"
    return NormExponents(f"norms of {what}", COPY, (source,), (dest,), axis)


def _split(blocks: Sequence[Place], program: AdditionProgram, planes: Sequence[Place], moduli: int) -> IntoPlanes:
    """Sums are formed once, of whole numbers; of each of them the residues are taken."""
    again = AdditionProgram(program.inputs, program.lines, program.outputs * moduli)
    return IntoPlanes(f"residues of {blocks[0].name}", again, tuple(blocks), tuple(planes), moduli)


@lru_cache(maxsize=4)
def _programs(depth: int) -> Programs:
    return scheme(BELOW[depth]).programs if depth else Programs(COPY, COPY, COPY)


@lru_cache(maxsize=64)
def _joining(program: AdditionProgram, moduli: int) -> AdditionProgram:
    """The sums modulo every number, then those by which the Chinese remainder theorem finds C again, weights left out:
    they are no small integers."""
    inputs = program.inputs * moduli
    lines: list[tuple[tuple[Coefficient, int], ...]] = []
    found: list[list[int]] = [[] for _ in program.outputs]
    for i in range(moduli):
        number = list(range(i * program.inputs, (i + 1) * program.inputs))
        for terms in program.lines:
            lines.append(tuple((c, number[v]) for c, v in terms))
            number.append(inputs + len(lines) - 1)
        for values, v in zip(found, program.outputs, strict=True):
            values.append(number[v])
    first = inputs + len(lines)
    lines += [tuple((1, v) for v in values) for values in found]
    return AdditionProgram(inputs, tuple(lines), tuple(range(first, first + len(found))))


# ---- the rows that end plans


class ResidueEnding(NamedTuple):
    """What a plan may end in: the level, and so many levels of recursion below it."""

    level: Residues
    depth: int

    @property
    def text(self) -> str:
        return " > ".join(filter(None, (str(self.level), BELOW[self.depth], LEAF)))

    @property
    def dtype(self) -> str:
        """The floating point type that it is for; none for integers."""
        return self.level.types[0] if self.level.moduli else ""


def _endings() -> Iterator[ResidueEnding]:
    """Everything that there are kernels for, in the order in which equally fast plans are preferred."""
    yield from (ResidueEnding(Residues(), depth) for depth in (0, 1))
    for dtype, counts in MODULI.items():
        for moduli in counts:
            yield from (ResidueEnding(Residues(moduli), depth) for depth in range(MOST_BELOW[dtype] + 1))


@lru_cache(maxsize=1)
def residue_endings() -> Mapping[str, ResidueEnding]:
    """By their texts."""
    return MappingProxyType({found.text: found for found in _endings()})


def depth_below(ending: str) -> int:
    """Levels of recursion below the residues of an ending."""
    return residue_endings()[ending].depth


def _row(found: ResidueEnding) -> Leaf:
    level, depth, dtype = found.level, found.depth, found.dtype
    kind = f"{level.moduli} numbers" if dtype else "as many numbers as their type and the inner dimension need"
    fewer = f", with {PRODUCTS**depth} in the place of {8**depth}" if depth else ""
    common = Leaf(
        found.text,
        f"{dtype or 'integers, exactly,'} by products of 8-bit integers modulo {kind}{fewer}",
        ("cuda",),
        level.types if dtype else (),
        call="four launches" if dtype else "one to four launches",
        starts=4,
        orders=(),
        forms=("alone",),
        unprobed=("alone",),
        ends_in=LEAF,
        level=level,
        rate=found.text if dtype else f"{found.text} of {{}}",
    )
    return _for_floats(common, level, depth, dtype) if dtype else _for_integers(common, depth)


def _for_integers(common: Leaf, depth: int) -> Leaf:
    types = SUMMED if depth else INTEGERS
    return replace(common, types_alone=types, types_in_blocks=types, scratch_of=partial(whole_scratch, depth))


def _for_floats(common: Leaf, level: Residues, depth: int, dtype: str) -> Leaf:
    moduli = level.moduli
    return replace(
        common,
        scratch=partial(residue_scratch, DTYPES[dtype].itemsize, moduli, depth),
        # Fewer than the usual are less accurate than the vendor, more are slower. With two levels less is multiplied,
        # but splitting and joining take longer by more than that (an H200, up to 16384): for who names them.
        forms=("alone",) if moduli in USUAL_MODULI[dtype] and depth < 2 else (),
        halves=() if depth or dtype != "float64" else (dtype,),
        unprobed=("alone",) if dtype == "float32" else (),  # for who asks for less than the vendor's error
        relative_error=level.error_growth,
        emulates=True,
        norm_bound=BOUNDS[moduli],
        keeps=partial(kept_room, moduli) if moduli == KEPT_MODULI and not depth else None,
    )


def _rows() -> tuple[Leaf, ...]:
    return tuple(_row(found) for found in residue_endings().values())


# ---- the text form

_TEXT = re.compile(r"residues(?:\((\d+)\))?")


def _parse(text: str) -> Residues | None:
    match = _TEXT.fullmatch(text)
    return Residues(int(match[1] or 0)) if match else None


register_level(LevelKind("residues", _parse, lambda: ("residues",)))
register_ending(Ending("residues", LEAF, _rows))
