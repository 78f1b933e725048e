"""The steps of a product by residues: measuring, splitting into planes, products of planes, joining."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient, updating_program
from fmm.kernels.algorithms.catalogue import scheme
from fmm.kernels.algorithms.scheme_programs import Programs
from fmm.kernels.plans.levels.residue_room import EXPONENT, ResidueRoom
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps.asked import Asked
from fmm.kernels.plans.steps.blocks import operand_blocks
from fmm.kernels.plans.steps.level_steps import LevelSteps, Product, ProductBatch, temporary_sizes
from fmm.kernels.plans.steps.rescaling import LineExponents
from fmm.kernels.plans.steps.sums import COPY, Place, Sum, whole_matrix
from fmm.problem import Shape

FAST: Final = "strassen"  # the algorithm of the levels of recursion that may stand below residues
BELOW: Final = ("", FAST, f"{FAST}^2")  # by the number of these levels


@dataclass(frozen=True)
class NormExponents(LineExponents):
    """The largest powers of two by which rows (axis 0) or columns (axis 1) may be scaled, found from their norms."""


@dataclass(frozen=True)
class IntoPlanes(Sum):
    """Sums of whole numbers, and the residues of each sum: a plane for every sum and modulus.

    float64 and float32 numbers are scaled and rounded to whole ones before. Planes of all sums modulo the first number
    come first, then those modulo the second.
    """

    moduli: int = 0


@dataclass(frozen=True)
class FromPlanes(Sum):
    """C from planes of products in the same order: sums of them modulo each number, and then the whole numbers that
    have these residues, scaled back."""

    moduli: int = 0


def residue_steps(size: Shape, depth: int, asked: Asked, moduli: int, inner: Plan, scaled: bool) -> LevelSteps:
    """The steps modulo so many numbers, with `depth` levels of recursion below, and products of bytes by `inner`.

    `scaled`: are the numbers to be scaled and rounded to whole ones? Planes are as large as a device has them: all
    blocks of equal size, in lines of whole 16 bytes.
    """
    m, k, n = size
    whole = whole_matrix("A", m, k), whole_matrix("B", k, n), whole_matrix("C", m, n)
    if moduli == 1 and not depth and asked[:2] == (1, 0) and not scaled:
        return LevelSteps((), (Product(*whole, inner),))  # bytes are residues themselves
    (rows, length, cols), programs = ResidueRoom(*size, 1, 1, depth).block, _programs(depth)
    count = moduli * len(programs.left.outputs)
    lefts, rights, dests = (
        [Place(name, i * height, 0, height, width) for i in range(count)]
        for name, height, width in (("S", rows, length), ("T", length, cols), ("M", rows, cols))
    )
    a, b, c = (operand_blocks(x.name, x.rows, x.cols, (1 << depth, 1 << depth), 1) for x in whole)
    exponents = [Place(name, 0, 0, EXPONENT, lines) for name, lines in (("E", m), ("F", n))] if scaled else []
    measures = [_exponents(x, axis, dest) for x, axis, dest in zip(whole, (0, 1), exponents, strict=False)]
    splits = [_split(a, programs.left, lefts, moduli), _split(b, programs.right, rights, moduli)]
    products = tuple(Product(*x, inner) for x in zip(lefts, rights, dests, strict=True))
    program = updating_program(_joining(programs.join, moduli), asked.alpha, asked.beta)
    join = FromPlanes("join", program, (*dests, *(c if asked.beta else ())), tuple(c), moduli)
    temporaries = temporary_sizes([*measures, *splits, *products])
    return LevelSteps(temporaries, (*measures, *splits, ProductBatch(products), join))


def _exponents(source: Place, axis: int, dest: Place) -> NormExponents:
    what = f"{('rows', 'columns')[axis]} of {source.name}"
    return NormExponents(f"norms of {what}", COPY, (source,), (dest,), axis)


def _split(blocks: Sequence[Place], program: AdditionProgram, planes: Sequence[Place], moduli: int) -> IntoPlanes:
    """The step that forms each sum once, and takes its residues."""
    again = AdditionProgram(program.inputs, program.lines, program.outputs * moduli)
    return IntoPlanes(f"residues of {blocks[0].name}", again, tuple(blocks), tuple(planes), moduli)


@lru_cache(maxsize=4)
def _programs(depth: int) -> Programs:
    return scheme(BELOW[depth]).programs if depth else Programs(COPY, COPY, COPY)


@lru_cache(maxsize=64)
def _joining(program: AdditionProgram, moduli: int) -> AdditionProgram:
    """The sums modulo every number, then those by which the Chinese remainder theorem finds C again.

    The latter have weights, which are no small integers, and are left out.
    """
    inputs = program.inputs * moduli
    lines: list[tuple[tuple[Coefficient, int], ...]] = []
    residues: list[list[int]] = [[] for _ in program.outputs]  # of each block of C, a value for every modulus
    for i in range(moduli):
        number = list(range(i * program.inputs, (i + 1) * program.inputs))
        for terms in program.lines:
            lines.append(tuple((c, number[v]) for c, v in terms))
            number.append(inputs + len(lines) - 1)
        for values, v in zip(residues, program.outputs, strict=True):
            values.append(number[v])
    first = inputs + len(lines)
    lines += [tuple((1, v) for v in values) for values in residues]
    return AdditionProgram(inputs, tuple(lines), tuple(range(first, first + len(residues))))
