"""Compute products by residues on the CPU, with the same bits as the kernels of a GPU.

The steps are those of kernels/cuda/device_code/residue_planes.cuh and residue_join.cuh: scale rows of A and columns of
B by powers of two, round to integers, multiply modulo each modulus, and join by the Chinese remainder theorem. The norm
of a row or column determines its power of two. The squares in a norm are added in the order of the row or column, and
the GPU kernel uses another order only where the power of two stays the same. All other sums are exact, so the bits of C
do not depend on the size of blocks, on the number of threads or on the BLAS.

BLAS multiplies residues in float32. A sum of SUM_LENGTH products of two residues is at most 2^24, which float32 holds.
C is computed in blocks, which limits the memory of the residues. In all steps except BLAS's products, each thread
processes blocks of consecutive rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from fmm.kernels.algorithms.residues import CrtWeightPieces, imaginary_unit, max_scaled_norm, symmetric_residue
from fmm.kernels.cpu.host_arrays import Array, matmul
from fmm.kernels.cpu.thread_pool import ThreadGroup

BLOCK_SIDE: Final = 2048  # largest number of rows and of columns of a block of C
SUM_LENGTH: Final = 1024  # number of products of residues, each at most 2^14, that one float32 sum adds
PANEL_NUMBERS: Final = 1 << 15  # numbers of a panel, whose float64 temporaries fit in a cache
LOW_BITS: Final = 30  # scaled integers are cut into a low part of this number of bits and a high part
# In the norm of a row, numbers larger than LARGE or smaller than SMALL in magnitude are scaled before they are squared,
# and their squares are summed separately, as in struct Squares of residue_planes.cuh.
LARGE, SMALL = 2.0**480, 2.0**-480
MAX_NORM_OF_LINE: Final = 2.0**1023  # a line with a larger norm, or with inf or NaN, has no exponent
MAX_EXPONENT_STEP: Final = 1000  # largest exponent of one multiplication by a power of two


class NonfiniteError(ArithmeticError):
    """The error raised if an operand or the result has inf or NaN, or numbers so large that norms overflow."""


def residue_product(
    left: Array, right: Array, dest: Array, memory: Array, threads: ThreadGroup, *, moduli: int, for_complex: bool
) -> None:
    """Compute dest = left * right by residues; `moduli` is the number of moduli, and `memory` is not used.

    Raise NonfiniteError if a number of an operand or of the result is not finite.
    """
    _BlockedProduct(left, right, dest, threads, CrtWeightPieces(moduli, 0, for_complex)).compute_product()


def describe_residues(dtype: str, level: str) -> str:
    """Return the text of `explain` about products of this type by this level."""
    return f"{dtype} by {level}: float32 products of residues, exact sums"


@dataclass(frozen=True)
class _BlockedProduct:
    """The product C = A B, computed in blocks of C."""

    a: Array
    b: Array
    c: Array
    threads: ThreadGroup
    pieces: CrtWeightPieces

    def compute_product(self) -> None:
        (m, k), n = self.a.shape, self.b.shape[1]
        top = max(max_scaled_norm(self.pieces.moduli, k, self.pieces.for_complex), 0.0)
        rows, columns = (self._row_scaling_exponents(x, top) for x in (self.a, self.b.T))
        for j in range(0, n, BLOCK_SIDE):
            block_columns = slice(j, min(j + BLOCK_SIDE, n))
            y = self._scaled_integer_lines(self.b.T[block_columns], columns[block_columns])
            for i in range(0, m, BLOCK_SIDE):
                block_rows = slice(i, min(i + BLOCK_SIDE, m))
                x = self._scaled_integer_lines(self.a[block_rows], rows[block_rows])
                sums = self._weighted_sums(x, y)
                by = -rows[block_rows, None] - columns[None, block_columns]
                self._store_product(sums, by, self.c[block_rows, block_columns])

    def _row_scaling_exponents(self, lines: Array, top: float) -> Array:
        found = np.empty(len(lines), np.int64)

        def find_row_exponents(band: slice) -> None:
            found[band] = scaling_exponents(row_norm_bounds(lines[band]), top)

        self._run_on_row_slices(find_row_exponents, lines.shape)
        if (found == NO_EXPONENT).any():
            raise NonfiniteError
        return found

    def _scaled_integer_lines(self, lines: Array, exponents: Array) -> Array:
        """Return scaled rows of A, or columns of B, rounded to integers in float64.

        The first dimension of the result has the real parts and, for complex products, the imaginary parts.
        """
        found = np.empty((1 + self.pieces.for_complex, *lines.shape))

        def scale_rows(band: slice) -> None:
            by = exponents[band, None]
            half = np.trunc(by / 2).astype(np.int64)  # toward zero, as in C++
            first, second = powers_of_two(half), powers_of_two(by - half)
            for to, part in zip(found[:, band], _real_and_imaginary_views(lines[band]), strict=True):
                np.multiply(part, first, out=to)
                np.multiply(to, second, out=to)
                np.rint(to, out=to)

        self._run_on_row_slices(scale_rows, lines.shape)
        return found

    def _weighted_sums(self, x: Array, y: Array) -> Array:
        """For each piece of the CRT weights, return the sum over all moduli of C's residues times this piece."""
        numbers, pieces = self.pieces.remainder_weights, self.pieces
        weights = numbers.complex_weights if pieces.for_complex else (numbers.weights,)
        (_, m, k), n = x.shape, y.shape[1]
        sums = np.zeros((len(weights), pieces.weight_piece_count, m, n))
        planes = np.empty((m, k), np.float32), np.empty((n, k), np.float32)
        found = np.empty((len(weights), m, n))  # the residues of the product, for each root of -1
        for number, p in enumerate(numbers.moduli):
            roots = (imaginary_unit(p), -imaginary_unit(p)) if pieces.for_complex else (0,)
            for root, total in zip(roots, found, strict=True):
                for lines, plane in zip((x, y), planes, strict=True):
                    self._run_on_row_slices(partial(_store_residues, lines, p, root, plane), plane.shape)
                self._multiply_planes(*planes, total, p)
            split = [pieces.split_number(w[number])[: pieces.weight_piece_count] for w in weights]
            self._run_on_row_slices(partial(_add_weighted_residues, found, split, sums), (m, n))
        return sums

    def _multiply_planes(self, left: Array, right: Array, total: Array, p: int) -> None:
        """Compute the residues of left right^T in [-p/2, p/2)."""
        part = np.empty(total.shape, np.float32)
        k = left.shape[1]
        for start in range(0, k, SUM_LENGTH):
            matmul(left[:, start : start + SUM_LENGTH], right[:, start : start + SUM_LENGTH].T, out=part)
            is_last = start + SUM_LENGTH >= k
            self._run_on_row_slices(
                partial(_add_partial_product, part, total, start == 0, p if is_last else 0), total.shape
            )

    def _store_product(self, sums: Array, exponents: Array, c: Array) -> None:
        finite: list[bool] = []

        def store_rows(band: slice) -> None:
            parts = [
                times_power_of_two(integers_from_residue_sums(x[:, band], self.pieces), exponents[band]) for x in sums
            ]
            if self.pieces.for_complex:
                re, im = parts  # the kernel multiplies by alpha = 1 + 0i, which makes -0 to +0 in some places
                parts = [re - 0.0 * im, im + 0.0 * re]
            for to, part in zip(_real_and_imaginary_views(c[band]), parts, strict=True):
                np.copyto(to, part, casting="same_kind")
                finite.append(bool(np.isfinite(to).all()))

        self._run_on_row_slices(store_rows, c.shape)
        if not all(finite):
            raise NonfiniteError

    def _run_on_row_slices(self, work: Callable[[slice], Any], shape: Sequence[int]) -> None:
        """Call `work` with slices of consecutive rows that together cover a matrix, on all threads."""
        self.threads.run_tasks([partial(_run_without_float_warnings, work, band) for band in _row_slices(*shape)])


def _run_without_float_warnings(work: Callable[[slice], Any], band: slice) -> None:
    with np.errstate(all="ignore"):  # the setting belongs to the thread
        work(band)


def _row_slices(rows: int, cols: int) -> Iterator[slice]:
    height = max(PANEL_NUMBERS // max(cols, 1), 1)
    for start in range(0, rows, height):
        yield slice(start, min(start + height, rows))


def _real_and_imaginary_views(x: Array) -> tuple[Array, ...]:
    """Return views of the real and of the imaginary parts of a complex array; a real array itself."""
    return (x.real, x.imag) if x.dtype.kind == "c" else (x,)


# ---- norms and exponents

NO_EXPONENT: Final = 1 << 20  # as NOT_FINITE in residue_planes.cuh


def row_norm_bounds(lines: Array) -> Array:
    """Return an upper bound of the 2-norm of each row, with its squares summed in the order of the row."""
    size = np.abs(np.stack(_real_and_imaginary_views(lines), axis=-1).astype(np.float64, copy=False)).reshape(
        len(lines), -1
    )
    if bool(((size <= LARGE) & ((size >= SMALL) | (size == 0))).all()):
        total = np.add.accumulate(size * size, axis=1)[:, -1]
        found = np.sqrt(total)
    else:
        is_large, is_small = size > LARGE, size < SMALL
        large, usual, small = (
            np.add.accumulate(np.where(where, size * scale, 0.0) ** 2, axis=1)[:, -1]
            for where, scale in ((is_large, 2.0**-600), (~(is_large | is_small), 1.0), (is_small, 2.0**600))
        )
        found = np.where(
            large != 0,
            np.sqrt(large + usual * 2.0**-1000 * 2.0**-200) * 2.0**600,
            np.where(usual != 0, np.sqrt(usual + small * 2.0**-1000 * 2.0**-200), np.sqrt(small) * 2.0**-600),
        )
        total = large + usual + small
    norms: Array = np.where(total == 0, 0.0, found * (1 + 2.0**-24) + 2.0**-1074)
    return norms


def scaling_exponents(norms: Array, top: float) -> Array:
    """Return for each norm the largest exponent e with norm * 2^e <= top.

    The exponent is 0 for a zero norm, and NO_EXPONENT for a norm that is too large, infinite or NaN.
    """
    fractions, exponents = np.frexp(norms)
    top_fraction, top_exponent = np.frexp(top)
    found = int(top_exponent) - exponents.astype(np.int64) - (fractions > top_fraction)
    found = np.where(norms == 0, 0, found)
    finite: Array = np.where(norms < MAX_NORM_OF_LINE, found, NO_EXPONENT)
    return finite


def powers_of_two(exponents: Array) -> Array:
    return np.ldexp(1.0, exponents.astype(np.int32))


def times_power_of_two(x: Array, exponents: Array) -> Array:
    """Return x 2^e by the same multiplications as the GPU kernel: one multiplication, and three more if e is large."""
    most = int(np.abs(exponents).max(initial=0))
    if most <= MAX_EXPONENT_STEP:
        return x * powers_of_two(exponents)
    large = np.abs(exponents) > MAX_EXPONENT_STEP
    found = x * powers_of_two(np.where(large, 0, exponents))
    rest = np.where(large, exponents, 0)
    for _ in range(3):
        step = np.clip(rest, -MAX_EXPONENT_STEP, MAX_EXPONENT_STEP)
        found, rest = found * powers_of_two(step), rest - step
    return found


# ---- residues


def _store_residues(lines: Array, p: int, root: int, plane: Array, band: slice) -> None:
    """Store the residues modulo p of scaled rows or columns as float32 numbers of magnitude at most 128.

    A complex number re + im i becomes re + root * im, where root^2 = -1 modulo p.
    """
    total = _smaller_congruent_integers(lines[0, band], p)
    if len(lines) > 1:
        imaginary = _smaller_congruent_integers(lines[1, band], p)
        np.multiply(imaginary, symmetric_residue(root, p), out=imaginary)
        np.add(total, imaginary, out=total)
    _reduce_modulo(total, p)
    np.copyto(plane[band], total, casting="same_kind")


def _smaller_congruent_integers(x: Array, p: int) -> Array:
    """Return integers below 2^39 in magnitude that are congruent to the integers x modulo p; x is below 2^61."""
    high = np.multiply(x, 2.0**-LOW_BITS)
    np.rint(high, out=high)
    low = x - high * 2.0**LOW_BITS
    np.multiply(high, float(symmetric_residue(1 << LOW_BITS, p)), out=high)
    return np.add(low, high, out=low)


def _reduce_modulo(x: Array, p: int) -> None:
    """Replace integers below 2^47 in magnitude by their residues modulo p in [-p/2, p/2).

    The quotient x / p + (p // 2 + 1/2) / p is at least 1 / (2p) away from an integer, and its rounding errors are below
    2^-10. Rounding errors therefore cannot change the floor of the quotient.
    """
    quotient = x + (p // 2 + 0.5)
    np.multiply(quotient, 1 / p, out=quotient)
    np.floor(quotient, out=quotient)
    np.multiply(quotient, float(p), out=quotient)
    np.subtract(x, quotient, out=x)


def _add_partial_product(part: Array, total: Array, first: bool, p: int, band: slice) -> None:
    """Add a product over one block of the inner dimension to `total`; then reduce `total` modulo p, unless p is 0."""
    if first:
        np.copyto(total[band], part[band])
    else:
        np.add(total[band], part[band], out=total[band])
    if p:
        _reduce_modulo(total[band], p)


def _add_weighted_residues(found: Array, split: Sequence[Sequence[float]], sums: Array, band: slice) -> None:
    """Add C's residues modulo one number times the pieces of this modulus's CRT weights; all sums are exact."""
    values = [x[band] for x in found]
    if len(values) == 2:
        values = [values[0] + values[1], values[0] - values[1]]
    work = np.empty_like(values[0])
    for value, weights, to in zip(values, split, sums, strict=True):
        for weight, total in zip(weights, to, strict=True):
            np.multiply(value, weight, out=work)
            np.add(total[band], work, out=total[band])


def integers_from_residue_sums(sums: Array, pieces: CrtWeightPieces) -> Array:
    """Return C's integers modulo M from the sums of residues times pieces of CRT weights.

    M is the product of all moduli.
    """
    unit = 2.0**pieces.piece_bits
    multiples = np.rint((sums[0] + sums[1] / unit) * pieces.inverse_moduli_product)
    high = low = np.zeros_like(multiples)
    for total, piece in zip(sums, pieces.split_number(pieces.remainder_weights.product), strict=False):
        x, y = high * unit, total - multiples * piece
        high = x + y
        part = high - x
        low = low * unit + ((x - (high - part)) + (y - part))
    value: Array = high + low
    return value
