"""Whole products by residues on the host: every launch of a plan is run by code compiled for the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.residues import max_scaled_norm
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.products.residue_planes import (
    ResidueOperand,
    cpp_operand_type,
    residue_split_launch,
)
from fmm.kernels.cuda.products.residues import (
    NO_ALIGNMENT,
    ResidueOp,
    integer_reconstruction_launch,
    reconstruction_launch,
    residue_op,
)
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.plans.levels.residues import residue_leaves
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.problem import Layout, Problem
from tests.support.residues_on_host import exponents, multiplied, play

Matrix = np.ndarray[Any, Any]
SMS = 132
ALIGNED = dict.fromkeys("ABCW", 256)  # bytes that divide all addresses


def ops_of(problem: Problem, plan: str, divides: Mapping[str, int] = NO_ALIGNMENT) -> list[ResidueOp]:
    """Return the products by residues that a plan consists of."""
    found = []
    for op in record_operations(Plan.parse(plan), problem).ops:
        if isinstance(op, GemmOp):
            found.append(residue_op(op, residue_leaves()[op.leaf], SMS, divides))
    return [op for op in found if op is not None]


def op_of(problem: Problem, plan: str, divides: Mapping[str, int] = NO_ALIGNMENT) -> ResidueOp:
    return ops_of(problem, plan, divides)[0]


def aligned_memory(size: int, value: int) -> Matrix:
    raw = np.full(size + 256, value, np.uint8)
    begin = -raw.ctypes.data % 256
    return raw[begin : begin + size]


def product_on_host(
    a: Matrix,
    b: Matrix,
    leaf: str,
    layouts: str = "CCC",
    alpha: complex = 1,
    beta: complex = 0,
    aligned: bool = False,
    lower_only: bool = False,
    shared: bool = False,
) -> tuple[Matrix, ResidueOp]:
    """Return C, computed by the kernels on the host, and the first operation. Where a GPU's threads exchange
    numbers, the host does the same in another way. `leaf` is residues and the levels below, or levels without
    sums above them. `shared`: b is a's adjoint, of which only the lower triangle is computed."""
    (m, k), n = a.shape, b.shape[1]
    lines = [cols if o == "C" else rows for o, (rows, cols) in zip(layouts, ((m, k), (k, n), (m, n)), strict=True)]
    leading = [x - x % -16 + 16 if aligned else x + 3 for x in lines]
    problem = Problem(m, k, n, a.dtype.name, tuple(map(Layout, layouts, leading)), alpha, beta)  # type: ignore[arg-type]
    problem = replace(problem, op="gram", fill="lower") if shared else problem
    ops = [
        replace(op, lower_only=lower_only or shared)
        for op in ops_of(problem, leaf, ALIGNED if aligned else NO_ALIGNMENT)
    ]
    whole = []
    for x, o, step in zip((a, b, np.full((m, n), 7, a.dtype)), layouts, leading, strict=True):
        high = x.shape[0] if o == "C" else x.shape[1]
        memory = aligned_memory(high * step * x.itemsize, 0).view(a.dtype).reshape(high, step)
        memory[...] = 77
        inside = memory[:, : x.shape[1]] if o == "C" else memory[:, : x.shape[0]].T
        inside[...] = x
        whole.append((memory, inside))
    work = aligned_memory(plan_workspace_bytes(Plan.parse(leaf), m, k, n, a.itemsize), 0x81)
    arrays = {name: x for name, (x, _) in zip("ABC", whole, strict=True)}
    everything = {name: x.reshape(-1).view(np.uint8) for name, x in arrays.items()} | {"W": work}
    flag = any([all_launches(op, arrays, everything, aligned) for op in ops])
    memory, c = whole[2]
    gaps = memory[:, c.shape[1 if layouts[2] == "C" else 0] :]
    assert (gaps == gaps.dtype.type(77)).all()
    assert flag == (not np.isfinite(c).all())
    return c, ops[0]


def all_launches(op: ResidueOp, arrays: dict[str, Matrix], memory: dict[str, Matrix], aligned: bool = False) -> bool:
    """Run all launches of an operation and return True if the flag was raised. Its matrices are `arrays`,
    their bytes are in `memory`. With `aligned`, several numbers are read at a time where lines allow it."""
    bases = {name: x.ctypes.data for name, x in memory.items()}
    bases["flag"] = (flag := np.zeros(1, np.int32)).ctypes.data
    for side in op.operands:
        line_exponents(side, arrays, memory)
    first, kind = 0, DTYPES[op.dtype]
    for chosen in op.modulus_groups:
        play(
            residue_split_launch(op.operands, op.dtype, (aligned, aligned), chosen),
            f"fmm::residues::Split<{cpp_operand_type(op.dtype)}>",
            bases,
        )
        multiplied(op, first, chosen, memory)
        first += len(chosen)
    if kind.exact and not op.writes_c:
        play(integer_reconstruction_launch(op), f"fmm::residues::JoinIntegers<{kind.cpp}>", bases)
    elif not kind.exact:
        play(reconstruction_launch(op, True), f"fmm::residues::Join<{kind.cpp}>", bases)
    return bool(flag[0])


def line_exponents(side: ResidueOperand, arrays: dict[str, Matrix], memory: dict[str, Matrix]) -> None:
    """Return the exponents of lines, and the lines transposed."""
    if side.is_prepared:
        return
    g, x, work = side.geometry, arrays[side.source.base].reshape(-1), memory["W"]
    steps = (side.source.leading, 1) if side.along == "inner" else (1, side.source.leading)
    begin, shape = x[side.source.offset // x.itemsize :], (side.lines, g.k)
    lines = as_strided(begin, shape, [x.itemsize * step for step in steps])
    top = max_scaled_norm(g.moduli, g.k, g.for_complex)
    if not DTYPES[x.dtype.name].exact:
        there = memory[side.base][side.exponents : side.exponents + 4 * side.lines]
        there.view(np.int32)[:] = exponents(real_numbers(lines), top)
    if side.along == "outer":
        place, room = (side.planes, side.block[1]) if side.bytes_from else (side.transposed_copy, g.transposed_stride)
        end = place + x.itemsize * side.lines * room
        work[place:end].view(x.dtype).reshape(side.lines, room)[:, : g.k] = lines


def real_numbers(lines: Matrix) -> Matrix:
    """Rows of real numbers: of a complex number, its real and its imaginary part."""
    lines = np.ascontiguousarray(lines)
    return lines.view(lines.real.dtype) if np.iscomplexobj(lines) else lines


def scaled_integers(lines: Matrix, e: Matrix) -> list[list[int]]:
    """Real numbers scaled by powers of two and rounded, as Python's integers."""
    return [[round(Fraction(float(v)) * Fraction(2) ** int(s)) for v in row] for row, s in zip(lines, e, strict=True)]


def multiplied_integers(x: list[list[int]], y: list[list[int]]) -> list[list[int]]:
    """The scalar products of rows of x and rows of y."""
    return [[sum(p * q for p, q in zip(row, col, strict=True)) for col in y] for row in x]


def exact_product(a: Matrix, b: Matrix, moduli_count: int) -> tuple[list[list[int]], Matrix, Matrix]:
    """Return the product of the scaled and rounded rows and columns by Python's integers, and the
    exponents."""
    k = a.shape[1]
    e, f = (exponents(x, max_scaled_norm(moduli_count, k)) for x in (a, np.ascontiguousarray(b.T)))
    return multiplied_integers(scaled_integers(a, e), scaled_integers(b.T, f)), e, f


def exact_complex_product(a: Matrix, b: Matrix, moduli_count: int) -> tuple[tuple[Any, Any], Matrix, Matrix]:
    """The real and the imaginary part of the product of Gaussian integers, as Python's integers; the exponents."""
    k = a.shape[1]
    e, f = (exponents(real_numbers(x), max_scaled_norm(moduli_count, k, True)) for x in (a, b.T))
    ar, ai, br, bi = (
        np.array(scaled_integers(x, s), object) for x, s in ((a.real, e), (a.imag, e), (b.T.real, f), (b.T.imag, f))
    )
    return (ar @ br.T - ai @ bi.T, ar @ bi.T + ai @ br.T), e, f
