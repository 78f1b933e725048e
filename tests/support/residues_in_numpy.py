"""Products of real matrices by residues in NumPy's float64 operations, for bits that do not depend on kernels.

It repeats what kernels/cuda/device_code/residue_planes.cuh and residue_join.cuh compute, without their tiles, levels
and groups of threads. All steps are exact, except the norms and the last additions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fmm.kernels.algorithms.residues import CrtWeightPieces, max_scaled_norm

Matrix = np.ndarray[Any, Any]


def product_by_residues(a: Matrix, b: Matrix, moduli: int) -> Matrix:
    """Return a @ b by the residues of float64 or float32 matrices of ordinary magnitudes, without zero rows."""
    pieces = CrtWeightPieces(moduli, 0)
    top = max_scaled_norm(moduli, a.shape[1])
    rows, columns = line_exponents(a, top), line_exponents(b.T, top)
    x, y = scaled_integers(a, rows), scaled_integers(b.T, columns)
    sums = np.zeros((pieces.weight_piece_count, len(a), b.shape[1]))
    for p, weight in zip(pieces.remainder_weights.moduli, pieces.remainder_weights.weights, strict=True):
        products = centred_residues(x, p).astype(np.float64) @ centred_residues(y, p).T.astype(np.float64)
        residues = centred_residues(products.astype(np.int64), p)
        for total, piece in zip(sums, pieces.split_number(weight), strict=False):
            total += residues * piece
    c: Matrix = np.ldexp(integers_from_residue_sums(sums, pieces), -rows[:, None] - columns).astype(a.dtype)
    return c


def line_exponents(lines: Matrix, top: float) -> Matrix:
    """Return the largest exponents e with |line| 2^e <= top, with the small margin of the kernels."""
    norms = np.sqrt((lines.astype(np.float64) ** 2).sum(axis=1)) * (1 + 2.0**-24) + 2.0**-1074
    (fractions, exponents), (top_fraction, top_exponent) = np.frexp(norms), np.frexp(top)
    found: Matrix = top_exponent - exponents - (fractions > top_fraction)
    return found


def scaled_integers(lines: Matrix, exponents: Matrix) -> Matrix:
    found: Matrix = np.rint(np.ldexp(lines.astype(np.float64), exponents[:, None])).astype(np.int64)
    return found


def centred_residues(x: Matrix, p: int) -> Matrix:
    """Return the residues of integers in [-p/2, p/2)."""
    half = p // 2
    found: Matrix = (x + half) % p - half
    return found


def integers_from_residue_sums(sums: Matrix, pieces: CrtWeightPieces) -> Matrix:
    """Return the integers that the sums over the pieces represent, minus multiples of M; rounded once or twice."""
    unit, product = 2.0**pieces.piece_bits, pieces.remainder_weights.product
    inverse = 2 ** (pieces.piece_bits * (pieces.weight_piece_count - 1)) / product
    multiples = np.rint((sums[0] + sums[1] / unit) * inverse)
    high: Matrix = np.zeros_like(multiples)
    low: Matrix = high
    for total, piece in zip(sums, pieces.split_number(product), strict=False):
        x, y = high * unit, total - multiples * piece
        high = x + y
        part = high - x
        low = low * unit + ((x - (high - part)) + (y - part))
    value: Matrix = high + low
    return value
