"""float64 by residues, without a GPU: the split and the join run on the host against Python's integers; registers by
NVRTC, and launches."""

from __future__ import annotations

import struct
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import prod, sqrt
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

import numpy as np
import pytest

from fmm.dtypes import DTYPES, INTEGERS, RING_TYPES
from fmm.kernels.algorithms.residues import (
    CrtWeightPieces,
    first_moduli,
    imaginary_unit,
    max_scaled_norm,
    remainder_weights,
)
from fmm.kernels.cuda.launch_list import Launch
from fmm.kernels.cuda.products.residue_planes import (
    NormExponentKernel,
    can_split_lines,
    line_split_launch,
    norm_exponent_kernel_source,
    norm_exponent_launch,
    pack_gaussian_modulus,
    pack_modulus,
    residue_split_kernel_source,
    residue_split_launch,
)
from fmm.kernels.cuda.products.residues import (
    NO_ALIGNMENT,
    RESIDUE_SIZES,
    ResidueKernel,
    integer_reconstruction_kernel_source,
    pack_crt_weights,
    reconstruction_kernel_source,
    reconstruction_launch,
    residue_preparation_launches,
    residue_product_kernel_source,
    residue_product_launch,
)
from fmm.kernels.cuda.products.tma_tiles import SM90_SHARED_BYTES
from fmm.kernels.cuda.record import record_launches, record_operations
from fmm.kernels.plans.leaf import parse_leaf
from fmm.kernels.plans.levels import residue_planes
from fmm.kernels.plans.levels.residue_planes import PlaneLayout, integer_moduli_count
from fmm.kernels.plans.levels.residues import TYPES_WITH_LEVEL_BELOW, residue_leaves
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel.block_model import chip_target
from fmm.problem import Layout, Problem
from tests.support.chips import H200, V100
from tests.support.marks import quick_and_slow
from tests.support.nvrtc import in_parallel, nvrtc, report
from tests.support.panels_on_host import play as play_clusters
from tests.support.residue_products import (
    ALIGNED,
    Matrix,
    aligned_memory,
    all_launches,
    exact_complex_product,
    exact_product,
    line_exponents,
    op_of,
    product_on_host,
)
from tests.support.residues_on_host import (
    exponents,
    joined_position,
    norm_as_on_device,
    play,
    reduced,
    split_line_by_thread,
    turned_square,
)

ONE, FAST, FASTER = (f"residues(14){below} > bytes" for below in ("", " > strassen", " > strassen^2"))
# Leaves for floating-point numbers: moduli, and levels below.
LEAVES = {text: (x.level.moduli, x.depth) for text, x in residue_leaves().items() if x.float_type}
SINGLE_LEAVES = [text for text, x in residue_leaves().items() if x.float_type == "float32"]


# ---- residues


@pytest.mark.parametrize("p", first_moduli(20))
def test_residues_of_sums_are_centred(p: int) -> None:
    """Numbers of every magnitude in 32 bits, including the extremes."""
    rng = np.random.default_rng(p)
    edges = np.array([0, 1, -1, 127, -128, 2**31 - 1, -(2**31), p // 2, -p // 2], np.int64)
    some = rng.integers(-(2**31), 2**31, 20000) >> rng.integers(0, 31, 20000)
    x = np.concatenate([edges, some, p * rng.integers(-(2**22), 2**22, 5000) + p // 2])
    found = reduced(x.astype(np.int32), p).astype(np.int64)
    assert ((found - x) % p == 0).all()
    assert (np.abs(found) <= p // 2).all() or p > 250


@pytest.mark.parametrize("p", first_moduli(20))
def test_every_sum_of_bytes_is_reduced_to_a_byte(p: int) -> None:
    """All possible sums of eight bytes times residues, in the device's float32 arithmetic."""
    number, inverse, low, high, *begins = struct.unpack("<if4i8x", pack_modulus(p))
    weights = np.frombuffer(struct.pack("<2i", low, high), np.int8).astype(int)
    most, least = (int(255 * weights[s * weights > 0].sum()) for s in (1, -1))
    assert number == p and most - least <= 2**19
    for begin in begins:
        sums = np.arange(begin + least, begin + most + 1, dtype=np.int32)
        x = sums.view(np.float32).astype(np.float64)
        assert (x >= 2**23).all() and (x < 2**24).all() and (x == np.rint(x)).all()
        # Products of two float32 numbers are exact in float64, and rounded to whole numbers as adding BIAS does.
        found = x - p * np.rint(x * np.float64(np.float32(inverse)))
        assert found.min() >= -128 and found.max() <= (128 if p == 256 else 127)  # 128 is -128 modulo 256


@pytest.mark.parametrize("p", first_moduli(20))
def test_residues_of_whole_numbers(p: int) -> None:
    rng = np.random.default_rng(p)
    some = [
        int(x) >> int(s) for x, s in zip(rng.integers(-(2**63), 2**63, 5000), rng.integers(0, 63, 5000), strict=True)
    ]
    x = [0, 1, -1, 2**63 - 1, -(2**63), 2**62, -(2**62), *some]
    found = reduced(np.array([y + 2**63 for y in x], np.uint64), p).astype(np.int64)
    assert all((int(r) - y) % p == 0 and -128 <= r <= 127 for r, y in zip(found, x, strict=True))


# ---- norms


def exact_norm_is_below(x: Matrix, norm: float) -> bool:
    return sum(Fraction(float(v)) ** 2 for v in x.ravel()) <= Fraction(norm) ** 2


@pytest.mark.parametrize("scale", [1.0, 2.0**-1070, 2.0**-540, 2.0**-480, 2.0**479, 2.0**600, 2.0**1015])
def test_norms_are_rounded_up_a_little(scale: float) -> None:
    rng = np.random.default_rng(1)
    for x in (rng.standard_normal(300), np.exp(8 * rng.standard_normal(200)), np.array([1e-3]), np.ones(7)):
        with np.errstate(over="ignore"):
            scaled = x * scale
        if not np.isfinite(scaled).all():
            continue
        norm = norm_as_on_device(scaled)
        assert exact_norm_is_below(scaled, norm)
        less = norm * (1 - 2.0**-22) - 2.0**-1072  # the last two bits of numbers that are hardly any
        assert less <= 0 or not exact_norm_is_below(scaled, less)


def test_exponents_are_the_largest_within_the_bound() -> None:
    rng, top = np.random.default_rng(2), max_scaled_norm(14, 100)
    lines = rng.standard_normal((60, 100)) * np.exp2(rng.integers(-1000, 900, (60, 1)))
    for x, e in zip(lines, exponents(lines, top), strict=True):
        norm = Fraction(norm_as_on_device(x))
        assert norm * Fraction(2) ** int(e) <= Fraction(top) < norm * Fraction(2) ** (int(e) + 1)
    special = np.zeros((3, 100))
    special[1, 5], special[2, 7] = np.inf, np.nan
    assert exponents(special, top).tolist() == [0, 1 << 20, 1 << 20]


def test_the_bound_that_norms_are_scaled_to() -> None:
    """Rounded rows and columns have norms of at most top + sqrt(k) / 2; their product is below half of the moduli's
    product."""
    for count, k, doubled in product((13, 14, 15, 16), (1, 1000, 131072), (False, True)):
        top = Fraction(max_scaled_norm(count, k, doubled)) + Fraction(sqrt(k * (1 + doubled))) / 2
        assert top**2 < Fraction(prod(first_moduli(count, doubled)), 2) * (1 - Fraction(1, 2**21))


# ---- the Chinese remainder theorem in pieces


@pytest.mark.parametrize(("name", "counts"), LEAVES.items())
def test_pieces_are_exact(name: str, counts: tuple[int, int]) -> None:
    count, levels = counts
    for_complex = residue_leaves()[name].level.for_complex
    pieces, numbers = CrtWeightPieces(count, levels, for_complex), remainder_weights(count, for_complex)
    weights = [*numbers.complex_weights] if for_complex else [numbers.weights]
    for x in (numbers.product, *(w for group in weights for w in group)):
        cut = pieces.split_number(x)[: pieces.weight_piece_count]
        assert all(0 <= c < 2**pieces.piece_bits and c == int(c) for c in cut)
        assert sum(int(c) << pieces.piece_bits * (pieces.weight_piece_count - 1 - i) for i, c in enumerate(cut)) == x
    largest = 128 * (1 + for_complex) * 4**levels * count * 2**pieces.piece_bits
    assert largest <= 2**52 and pieces.weight_piece_count <= 4
    assert len(pack_crt_weights(pieces)) == 8 * (3 + 4 + 80 * len(weights))


# ---- splitting and joining on the host


def assert_rounded(c: Matrix, a: Matrix, b: Matrix, moduli_count: int) -> None:
    """Each entry is the integer product, scaled back and rounded: within one unit in the last place."""
    exact, e, f = exact_product(a, b, moduli_count)
    precision = 24 if c.dtype == np.float32 else 53  # bits
    for i, j in np.ndindex(c.shape):
        value = Fraction(exact[i][j]) / Fraction(2) ** int(e[i] + f[j])
        assert abs(Fraction(float(c[i, j])) - value) <= abs(value) * Fraction(1, 2 ** (precision - 1)), (i, j)
        assert abs(exact[i][j]) >= 2**precision or Fraction(float(c[i, j])) == value


def type_of(leaf: str) -> str:
    return residue_leaves()[leaf].float_type


@pytest.mark.parametrize(
    "leaf",
    [
        ONE,
        "residues(13) > strassen > bytes",
        FASTER,
        "residues(16) > bytes",
        "residues(15) > strassen > bytes",
        *SINGLE_LEAVES,
    ],
)
def test_products_of_whole_numbers_are_exact(leaf: str) -> None:
    rng = np.random.default_rng(3)
    for m, k, n in ((1, 1, 1), (5, 23, 9), (18, 70, 21)):
        a, b = (rng.standard_normal(shape).astype(type_of(leaf)) for shape in ((m, k), (k, n)))
        c, _ = product_on_host(a, b, leaf)
        assert_rounded(c, a, b, LEAVES[leaf][0])


@pytest.mark.parametrize("layouts", ["".join(x) for x in product("CF", repeat=3)])
def test_every_memory_order(layouts: str) -> None:
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((7, 37)), rng.standard_normal((37, 11))
    c, _ = product_on_host(a, b, FAST, layouts)
    assert_rounded(c, a, b, 14)
    a, b = a.astype(np.float32), b.astype(np.float32)
    c, _ = product_on_host(a, b, "residues(8) > strassen > bytes", layouts)
    assert_rounded(c, a, b, 8)


@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (2, -0.5)])
@pytest.mark.parametrize("layouts", ["CFC", "FCC"])
def test_the_lower_triangle_of_a_gram_product(layouts: str, alpha: float, beta: float) -> None:
    """Equal to the whole product bit for bit; nothing above the diagonal is read or written."""
    rng = np.random.default_rng(16)
    for n, k in ((1, 3), (18, 21), (35, 9)):
        a = rng.standard_normal((n, k))
        below = np.tri(n, dtype=bool)
        c, op = product_on_host(a, np.ascontiguousarray(a.T), ONE, layouts, alpha, beta, lower_only=True)
        whole, _ = product_on_host(a, np.ascontiguousarray(a.T), ONE, layouts, alpha, beta)
        np.testing.assert_array_equal(c[below], whole[below])
        assert (c[~below] == 7).all() and op.lower_only


def test_triangles_by_tiles_on_and_below_the_diagonal() -> None:
    """About half of the tiles; all tiles with levels below, because their blocks are not symmetric."""
    for leaf, share in ((ONE, 0.6), (FAST, 1.0)):
        problem = Problem(4096, 4096, 4096, "float64", op="gram", fill="lower")
        found = record_launches(Plan.parse(leaf), problem, chip_target(H200, flagged=False))
        products = [x for x in found.launches if x.label.startswith("gemm_residues")]
        assert products and all(("lower triangle" in x.label) == (share < 1) for x in products)
        assert any(x.label.startswith("mirror_triangle") for x in found.launches) == (share == 1)
    op = op_of(Problem(4096, 4096, 4096, "float64"), ONE, NO_ALIGNMENT)
    half, whole = replace(op, lower_only=True).plane_product_op(0, 14), op.plane_product_op(0, 14)
    assert 0.5 < half.batch_cluster_tile_count / whole.batch_cluster_tile_count < 0.6


@pytest.mark.parametrize("leaf", SINGLE_LEAVES)
def test_float32_is_within_the_leafs_error(leaf: str) -> None:
    """Graded rows and columns too; an overflow raises the flag."""
    rng = np.random.default_rng(15)
    bits = {7: 26, 8: 30, 9: 34}[LEAVES[leaf][0]]
    for scale in (0, 20, 60):
        a = (rng.standard_normal((9, 50)) * np.exp2(rng.integers(-scale, scale + 1, (9, 1)))).astype(np.float32)
        b = (rng.standard_normal((50, 7)) * np.exp2(rng.integers(-scale, scale + 1, (1, 7)))).astype(np.float32)
        x, y = a.astype(np.longdouble), b.astype(np.longdouble)
        norms = np.sqrt((x * x).sum(axis=1))[:, None] * np.sqrt((y * y).sum(axis=0))[None]
        off = np.abs(product_on_host(a, b, leaf)[0] - x @ y) / norms
        assert off.max() <= 2.0**-bits * np.sqrt(50) + 2.0**-24
    huge = np.full((4, 40), 1e30, np.float32)
    assert np.isinf(product_on_host(huge, huge.T.copy(), leaf)[0]).all()


@pytest.mark.parametrize("leaf", [ONE, FASTER])
def test_small_integers_are_exact(leaf: str) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.integers(-1000, 1000, (9, 50)).astype(float), rng.integers(-1000, 1000, (50, 10)).astype(float)
    c, _ = product_on_host(a, b, leaf)
    np.testing.assert_array_equal(c, a @ b)


def test_large_integers_are_exact() -> None:
    """For norms of rows and columns below 2^54 on either side, with almost total cancellation in the sums."""
    large = np.array([[2.0**53 - 1, 2.0**53 - 3, 7], [2.0**53 - 5, 2.0**53 - 2, 3], [9, 2.0**53, 2.0**53 - 2]])
    signs = np.array([[1.0, 2, 0], [-1, -2, 1], [1, 5, -1]])
    exact = large.astype(np.int64) @ signs.astype(np.int64)
    for leaf in (ONE, FAST):
        np.testing.assert_array_equal(product_on_host(large, signs, leaf)[0], exact)
        np.testing.assert_array_equal(product_on_host(signs.T.copy(), large.T.copy(), leaf)[0], exact.T)


def test_extreme_data() -> None:
    """Equal signs, so that sums are as large as the bound allows; powers of two; one entry that dwarfs its row."""
    rng = np.random.default_rng(6)
    dwarfed = np.ones((6, 40))
    dwarfed[:, 7] = 1e17
    for a, b in (
        (np.ones((6, 40)), np.ones((40, 5))),
        (np.full((6, 40), np.nextafter(2.0, 1)), -np.full((40, 5), np.nextafter(2.0, 1))),
        (dwarfed, rng.standard_normal((40, 5))),
        (dwarfed, dwarfed.T[:, :5].copy()),
        (rng.standard_normal((6, 40)) * np.exp2(rng.integers(-500, 500, (6, 1))), rng.standard_normal((40, 5))),
    ):
        for leaf in ("residues(13) > bytes", FAST):
            c, _ = product_on_host(a, b, leaf)
            assert_rounded(c, a, b, LEAVES[leaf][0])


def test_alpha_and_beta() -> None:
    rng = np.random.default_rng(7)
    a, b = rng.integers(-99, 99, (8, 30)).astype(float), rng.integers(-99, 99, (30, 8)).astype(float)
    c, _ = product_on_host(a, b, ONE, alpha=-0.5, beta=2)
    np.testing.assert_array_equal(c, -0.5 * (a @ b) + 14)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_rows_with_inf_and_nan_raise_the_flag(value: float) -> None:
    """The rows are nan, until they are recomputed."""
    rng = np.random.default_rng(8)
    a, b = rng.integers(-9, 9, (6, 30)).astype(float), rng.integers(-9, 9, (30, 5)).astype(float)
    expected = a @ b
    a[2, 3] = b[4, 1] = value
    expected[2] = expected[:, 1] = np.nan
    c, _ = product_on_host(a, b, FAST)
    np.testing.assert_array_equal(c, expected)


def test_zero_rows() -> None:
    a, b = np.zeros((4, 20)), np.ones((20, 3))
    a[1] = 1
    c, _ = product_on_host(a, b, ONE)
    np.testing.assert_array_equal(c, a @ b)


# ---- complex numbers


COMPLEX_LEAVES = [text for text, x in residue_leaves().items() if x.level.for_complex and not any(x.level.conjugates)]
TWO = "residues2m(15) > bytes"


def gaussian(rng: np.random.Generator, shape: tuple[int, int]) -> Matrix:
    found: Matrix = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    return found


def assert_rounded_parts(c: Matrix, a: Matrix, b: Matrix, moduli_count: int) -> None:
    """Each part of an entry is the part of the product of Gaussian integers, scaled back and rounded."""
    exact, e, f = exact_complex_product(a, b, moduli_count)
    precision = 24 if c.dtype == np.complex64 else 53  # bits
    for found, wanted in zip((c.real, c.imag), exact, strict=True):
        for i, j in np.ndindex(found.shape):
            value = Fraction(wanted[i][j]) / Fraction(2) ** int(e[i] + f[j])
            assert abs(Fraction(float(found[i, j])) - value) <= abs(value) * Fraction(1, 2 ** (precision - 1)), (i, j)
            assert abs(wanted[i][j]) >= 2**precision or Fraction(float(found[i, j])) == value


@pytest.mark.parametrize("p", first_moduli(17, for_complex=True))
def test_imaginary_units(p: int) -> None:
    j = imaginary_unit(p)
    assert (
        j * j % p == p - 1 and p % 2 and all(prime % 4 == 1 for prime in range(2, p + 1) if is_prime_factor(prime, p))
    )


def is_prime_factor(x: int, of: int) -> bool:
    return of % x == 0 and all(x % y for y in range(2, x))


@pytest.mark.parametrize("p", first_moduli(17, for_complex=True))
def test_every_sum_of_a_gaussian_integer_is_reduced_to_a_byte(p: int) -> None:
    """All possible sums of sixteen bytes times residues, in the device's float32 arithmetic."""
    number, inverse, *words, first, second = struct.unpack("<if6i", pack_gaussian_modulus(p))
    weights = np.frombuffer(struct.pack("<4i", *words), np.int8).astype(int)
    assert number == p
    for begin, signs in ((first, (1, 1)), (second, (1, -1))):
        signed = weights * np.repeat(signs, 8)
        most, least = (int(255 * signed[s * signed > 0].sum()) for s in (1, -1))
        x = np.arange(begin + least, begin + most + 1, dtype=np.int32).view(np.float32).astype(np.float64)
        assert (x >= 2**23).all() and (x < 2**24).all() and (x == np.rint(x)).all()
        found = x - p * np.rint(x * np.float64(np.float32(inverse)))
        assert found.min() >= -128 and found.max() <= 127


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("leaf", COMPLEX_LEAVES)
def test_products_of_gaussian_integers_are_exact(leaf: str) -> None:
    rng = np.random.default_rng(31)
    for m, k, n in ((1, 1, 1), (5, 23, 9), (18, 70, 21)):
        a, b = (gaussian(rng, shape).astype(type_of(leaf)) for shape in ((m, k), (k, n)))
        assert_rounded_parts(product_on_host(a, b, leaf)[0], a, b, LEAVES[leaf][0])


def test_complex64_of_every_memory_order() -> None:
    rng = np.random.default_rng(37)
    a, b = gaussian(rng, (9, 37)).astype(np.complex64), gaussian(rng, (37, 70)).astype(np.complex64)
    for layouts, aligned in product(("CCC", "FCC", "CFF", "FFC"), (False, True)):
        c, _ = product_on_host(a, b, "residues2m(7) > bytes", layouts, aligned=aligned)
        assert_rounded_parts(c, a, b, 7)


@pytest.mark.quick_cases()
@pytest.mark.parametrize("layouts", ["".join(x) for x in product("CF", repeat=3)])
@pytest.mark.parametrize("conjugates", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("aligned", [False, True])
def test_conjugated_and_transposed_operands(layouts: str, conjugates: tuple[bool, bool], aligned: bool) -> None:
    rng = np.random.default_rng(32)
    for text, (m, k, n) in ((TWO, (7, 37, 11)), ("residues2m(15) > strassen > bytes", (9, 21, 34))):
        a, b = gaussian(rng, (m, k)), gaussian(rng, (k, n))
        plan = Plan.parse(text).with_conjugation(*conjugates)
        c, _ = product_on_host(a, b, str(plan), layouts, aligned=aligned)
        x, y = (v.conj() if conjugated else v for v, conjugated in zip((a, b), conjugates, strict=True))
        assert_rounded_parts(c, x, y, 15)


def test_complex_alpha_and_beta() -> None:
    rng = np.random.default_rng(33)
    a, b = (np.rint(99 * gaussian(rng, shape)) for shape in ((8, 30), (30, 8)))
    for alpha, beta in ((2 - 3j, 0), (1, 1j), (-0.5, 2 + 1j)):
        c, _ = product_on_host(a, b, TWO, alpha=alpha, beta=beta)
        np.testing.assert_array_equal(c, alpha * (a @ b) + 7 * beta)


@pytest.mark.parametrize("value", [np.inf, complex(0, -np.inf), complex(np.nan, 1), complex(1, np.nan)])
def test_complex_rows_with_inf_and_nan_raise_the_flag(value: complex) -> None:
    rng = np.random.default_rng(34)
    a, b = (np.rint(9 * gaussian(rng, shape)) for shape in ((6, 30), (30, 5)))
    expected = a @ b
    a[2, 3] = b[4, 1] = value
    expected[2] = expected[:, 1] = complex(np.nan, np.nan)
    np.testing.assert_array_equal(product_on_host(a, b, TWO)[0], expected)


def test_the_lower_triangle_of_a_hermitian_product() -> None:
    """Bit for bit as in the whole product, with a real diagonal."""
    rng = np.random.default_rng(35)
    for n, k in ((1, 3), (18, 21), (35, 9)):
        a, below = gaussian(rng, (n, k)), np.tri(n, dtype=bool)
        adjoint = np.ascontiguousarray(a.conj().T)
        c, op = product_on_host(a, adjoint, TWO, lower_only=True)
        whole, _ = product_on_host(a, adjoint, TWO)
        np.testing.assert_array_equal(c[below], whole[below])
        assert (c[~below] == 7).all() and op.lower_only and (whole.diagonal().imag == 0).all()
        np.testing.assert_array_equal(whole, whole.conj().T)


@pytest.mark.parametrize(("dtype", "leaf"), [("float64", ONE), ("complex128", TWO)])
@pytest.mark.parametrize("orders", ["CC", "FC", "FF", "CF"])
def test_a_matrix_and_its_adjoint_share_their_planes(dtype: str, leaf: str, orders: str) -> None:
    """One operand is split; the lower triangle is that of the whole product, bit for bit."""
    rng = np.random.default_rng(36)
    for n, k in ((1, 3), (18, 21), (35, 9)):
        a = gaussian(rng, (n, k)) if dtype == "complex128" else rng.standard_normal((n, k))
        adjoint, below = np.ascontiguousarray(a.conj().T), np.tri(n, dtype=bool)
        c, op = product_on_host(a, adjoint, leaf, f"{orders}C", shared=True)
        whole, _ = product_on_host(a, adjoint, leaf)
        np.testing.assert_array_equal(c[below], whole[below])
        assert (c[~below] == 7).all() and op.shares_planes and sum(x.is_prepared for x in op.operands) == 1
        assert len(op.plane_signs_by_launch) == (2 if dtype == "complex128" else 1)


def test_gram_products_split_one_operand() -> None:
    for dtype, leaf, products in (("float64", ONE, 1), ("complex128", TWO, 2)):
        problem = Problem(4096, 8192, 4096, dtype, op="gram", fill="lower")
        found = record_launches(Plan.parse(leaf), problem, chip_target(H200, flagged=False))
        labels = [x.label.split(":")[0] for x in found.launches]
        assert labels == ["residue_planes", "residue_planes", *["gemm_residues"] * products, "residue_join"]
        whole = record_launches(Plan.parse(leaf), replace(problem, op="product", fill="full"), chip_target(H200))
        assert 2 * found.launches[1].grid[0] == whole.launches[1].grid[0]
        short = record_launches(Plan.parse(leaf), replace(problem, k=2048), chip_target(H200, flagged=False))
        labels = [x.label.split(":")[0] for x in short.launches]
        assert labels == ["residue_lines", *["gemm_residues"] * products, "residue_join"]
        assert short.launches[0].grid[0] == 4096  # a thread block for each row of A


# ---- lines that one kernel measures and splits


@pytest.mark.quick_cases()
@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
@pytest.mark.parametrize(
    ("dtype", "leaf", "size"),
    [
        ("float64", ONE, (18, 70, 21)),
        ("float64", ONE, (3, 1100, 5)),
        ("complex128", "residues2m(15) > bytes", (9, 40, 19)),
        pytest.param("complex128", "residues2m(15) > bytes", (2, 1030, 3), marks=pytest.mark.slow),
        ("float32", SINGLE_LEAVES[0], (35, 300, 6)),
        ("complex64", "residues2m(8) > bytes", (17, 33, 18)),
    ],
)
@pytest.mark.parametrize("aligned", [False, True])
def test_lines_are_measured_and_split_by_one_kernel(
    dtype: str, leaf: str, size: tuple[int, int, int], orders: str, aligned: bool
) -> None:
    """Exponents and planes are those of the two kernels, bit for bit; of zeros, inf and NaN too."""
    (m, k, n), rng = size, np.random.default_rng(77)
    a, b = (
        (gaussian(rng, shape) if DTYPES[dtype].is_complex else rng.standard_normal(shape)).astype(dtype)
        for shape in ((m, k), (k, n))
    )
    a[0, k // 2], a[1], b[:, 1], b[k - 1, 2] = np.inf, 0, a.dtype.type(1e-30) * b[:, 1], np.nan
    lines = [cols if o == "C" else rows for o, (rows, cols) in zip(orders, ((m, k), (k, n)), strict=True)]
    leading = [x - x % -16 + (16 if aligned else 3) for x in lines]
    a_layout, b_layout = map(Layout, orders, leading)  # type: ignore[arg-type]
    layouts = a_layout, b_layout, Layout("C", n)
    op = op_of(Problem(m, k, n, dtype, layouts), leaf, ALIGNED if aligned else NO_ALIGNMENT)
    assert can_split_lines(op.operands, dtype)
    arrays = {name: whole_memory(x, o, step) for name, x, o, step in zip("AB", (a, b), orders, leading, strict=True)}
    moduli = op.geometry.remainder_weights.moduli
    found = []
    for fused in (False, True):
        work = aligned_memory(op.geometry.workspace_bytes, 0x81)
        memory = {name: x.reshape(-1).view(np.uint8) for name, x in arrays.items()} | {"W": work}
        if fused:
            play_clusters([line_split_launch(op.operands, dtype, (aligned, aligned), moduli)], memory)
        else:
            for side in op.operands:
                line_exponents(side, arrays, memory)
            split = residue_split_launch(op.operands, dtype, (aligned, aligned), moduli)
            play(
                split, f"fmm::residues::Split<{DTYPES[dtype].cpp}>", {name: x.ctypes.data for name, x in memory.items()}
            )
        found.append(work[: op.planes])
    for side in op.operands:
        of = slice(side.exponents, side.exponents + 4 * side.lines)
        two, one = (x[of].view(np.int32) for x in found)
        np.testing.assert_array_equal(one, two)
        lines_of = side.block[0] * side.block[1]
        begin = side.planes
        for i in range(len(moduli) * op.geometry.planes_per_modulus):
            planes = [x[begin + i * lines_of : begin + (i + 1) * lines_of].reshape(side.block) for x in found]
            finite = np.ones(side.block[0], bool)
            finite[: side.lines] = one != 1 << 20  # residues of lines that are not finite have no meaning
            np.testing.assert_array_equal(planes[1][finite], planes[0][finite])


def whole_memory(x: Matrix, order: str, leading: int) -> Matrix:
    """Return a matrix in memory of its own, with gaps of 77 between its lines."""
    held = x if order == "C" else x.T
    memory: Matrix = aligned_memory(held.shape[0] * leading * x.itemsize, 0).view(x.dtype).reshape(-1, leading)
    memory[...] = 77
    memory[:, : held.shape[1]] = held
    return memory


# ---- prepared operands


@pytest.mark.parametrize(("dtype", "leaf"), [("float64", ONE), ("complex128", TWO)])
@pytest.mark.parametrize("base", ["A", "B"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_products_of_prepared_planes(base: Any, order: Any, dtype: str, leaf: str) -> None:
    """The planes are made once, behind the matrix, which is then not read; the other operand is split as usual."""
    rng = np.random.default_rng(16)
    m, k, n = 7, 40, 18
    a, b = (gaussian(rng, shape) if dtype == "complex128" else rng.standard_normal(shape) for shape in ((m, k), (k, n)))
    x = a if base == "A" else b
    lines, length = x.shape if order == "C" else x.shape[::-1]
    layout = parse_leaf(leaf).leaf.prepared_layout
    assert layout is not None
    room, more = layout(x.itemsize, lines, length)
    memory = aligned_memory(room + more, 0x81)
    held = memory[: x.nbytes].view(x.dtype).reshape(lines, length)
    held[...] = x if order == "C" else x.T
    one = (m, k, 1) if base == "A" else (1, k, n)
    made = op_of(Problem(*one, dtype, kept_layouts(one, base, order), prepared_side=base), leaf)
    (_, split), turning = residue_preparation_launches(made, ALIGNED)
    work = {"A": memory, "B": memory, "W": aligned_memory(turning, 0x81)}
    (side,) = (replace(x, is_prepared=False) for x in made.operands if x.is_prepared)
    line_exponents(side, {base: held}, work)
    play(split, f"fmm::residues::Split<{DTYPES[dtype].cpp}>", {name: x.ctypes.data for name, x in work.items()})
    held[...] = np.nan
    problem = Problem(m, k, n, dtype, kept_layouts((m, k, n), base, order), prepared_side=base)
    op = op_of(problem, leaf)
    assert [x.is_prepared for x in op.operands] == [base == "A", base == "B"]
    arrays = {"A": a, "B": b, "C": np.zeros((m, n), dtype)}
    bytes_of = {name: v.reshape(-1).view(np.uint8) for name, v in arrays.items()} | {base: memory}
    assert not all_launches(op, arrays, {**bytes_of, "W": aligned_memory(op.geometry.workspace_bytes, 0x81)})
    np.testing.assert_array_equal(arrays["C"], product_on_host(a, b, leaf)[0])


def kept_layouts(size: tuple[int, int, int], base: str, order: Any) -> tuple[Layout, Layout, Layout]:
    m, k, n = size
    a, b, c = Layout("C", k), Layout("C", n), Layout("C", n)
    return (
        (Layout(order, k if order == "C" else m), b, c)
        if base == "A"
        else (a, Layout(order, n if order == "C" else k), c)
    )


def test_planes_are_prepared_for_one_leaf_and_side() -> None:
    problem = Problem(512, 512, 512, prepared_side="B")
    assert [x.is_prepared for x in op_of(problem, ONE).operands] == [False, True]
    assert not any(x.is_prepared for x in op_of(problem, FAST).operands)
    turned = Problem(512, 512, 512, layouts=(*problem.layouts[:2], Layout("F", 512)), prepared_side="B")
    assert not any(x.is_prepared for x in op_of(turned, ONE).operands)
    labels = [x.label for x in record_launches(Plan.parse(ONE), problem, chip_target(H200)).launches]
    assert len(labels) == 3
    both = op_of(problem, ONE)
    splits = [
        residue_split_launch(op.operands, op.dtype, (True, True), first_moduli(14)).grid[0]
        for op in (both, op_of(Problem(512, 512, 512), ONE))
    ]
    assert 2 * splits[0] == splits[1]


# ---- integers on the host


def wrapped_product(a: Matrix, b: Matrix) -> Matrix:
    """Return NumPy's product by Python's integers; for bool, whether any term is true."""
    exact = a.astype(object) @ b.astype(object)
    if a.dtype == bool:
        return np.asarray(exact.astype(bool))
    bits = 8 * a.itemsize
    return np.asarray((exact % 2**bits).astype(f"uint{bits}").view(a.dtype))


def integers(dtype: str, shape: tuple[int, int], rng: np.random.Generator) -> Matrix:
    if dtype == "bool":
        return rng.random(shape) < 0.1
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_equal_those_of_numpy(dtype: str) -> None:
    rng = np.random.default_rng(10)
    for (m, k, n), layouts in (((1, 1, 1), "CCC"), ((9, 40, 7), "CCF"), ((5, 21, 18), "FCC"), ((4, 33, 6), "CFC")):
        a, b = integers(dtype, (m, k), rng), integers(dtype, (k, n), rng)
        c, _ = product_on_host(a, b, "residues > bytes", layouts)
        np.testing.assert_array_equal(c, wrapped_product(a, b))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("layouts", ["CCC", "CFC", "FCC", "FFF", "CCF"])
def test_bytes_are_multiplied_in_place(dtype: str, layouts: str) -> None:
    """C is written at once if its lines are multiples of 16 bytes, not if m or n is no multiple of 16."""
    rng = np.random.default_rng(12)
    for m, k, n in ((16, 40, 32), (9, 33, 18)):
        a, b = integers(dtype, (m, k), rng), integers(dtype, (k, n), rng)
        c, op = product_on_host(a, b, "residues > bytes", layouts, aligned=True)
        assert [x.bytes_from for x in op.operands] == [{"inner": "source"}.get(x.along, "planes") for x in op.operands]
        assert op.writes_c == (m == 16)
        np.testing.assert_array_equal(c, wrapped_product(a, b))
        updated, op = product_on_host(a, b, "residues > bytes", layouts, alpha=3, beta=2, aligned=True)
        assert not op.writes_c
        np.testing.assert_array_equal(updated, 3 * wrapped_product(a, b) + np.full((m, n), 14, dtype))


def test_squares_of_bytes_are_transposed() -> None:
    x = np.random.default_rng(13).integers(0, 256, (4, 4), np.uint8)
    np.testing.assert_array_equal(turned_square(x), x.T)


def test_launches_of_bytes() -> None:
    """One launch, or two if an operand is transposed; as for other integers if lines begin anywhere."""
    for order, size, expected in (("C", 512, 2), ("F", 512, 1), ("C", 500, 4), ("F", 500, 3)):
        layouts = Layout("C", size), Layout(order, size), Layout("C", size)  # type: ignore[arg-type]
        found = record_launches(
            Plan.parse("residues > bytes"), Problem(size, size, size, "int8", layouts), chip_target(H200)
        )
        assert len(found.launches) == expected
        assert found.launches[-1].does == "product" and "int8 by 1 product" in found.launches[-1].label


@pytest.mark.parametrize("dtype", RING_TYPES)
def test_extreme_integers(dtype: str) -> None:
    """The smallest and the largest integers, with equal and with alternating signs."""
    info = np.iinfo(dtype)
    for x, y in ((info.min, info.min), (info.min, info.max), (info.max, info.max), (0, info.min)):
        a, b = np.full((3, 64), x, dtype), np.full((64, 4), y, dtype)
        np.testing.assert_array_equal(product_on_host(a, b, "residues > bytes")[0], wrapped_product(a, b))
        a[:, ::2] = y
        np.testing.assert_array_equal(product_on_host(a, b, "residues > bytes")[0], wrapped_product(a, b))


@pytest.mark.parametrize("dtype", TYPES_WITH_LEVEL_BELOW)
def test_levels_below_integers(dtype: str) -> None:
    """Random numbers, and numbers with the largest sums."""
    rng, info = np.random.default_rng(17), np.iinfo(dtype)
    for (m, k, n), layouts in (((1, 1, 1), "CCC"), ((9, 40, 7), "CCF"), ((5, 21, 18), "FCC")):
        a, b = integers(dtype, (m, k), rng), integers(dtype, (k, n), rng)
        np.testing.assert_array_equal(
            product_on_host(a, b, "residues > strassen > bytes", layouts)[0], wrapped_product(a, b)
        )
    for x, y in ((info.min, info.min), (info.min, info.max), (info.max, info.max)):
        a, b = np.full((4, 64), x, dtype), np.full((64, 6), y, dtype)
        np.testing.assert_array_equal(product_on_host(a, b, "residues > strassen > bytes")[0], wrapped_product(a, b))
        a[:, ::2] = y
        a[:2] = x
        np.testing.assert_array_equal(product_on_host(a, b, "residues > strassen > bytes")[0], wrapped_product(a, b))


@pytest.mark.quick_cases()
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("aligned", [False, True])
def test_blocks_of_integers(dtype: str, aligned: bool) -> None:
    """Products of views: all of the blocks of C are written, and nothing around them."""
    rng = np.random.default_rng(13)
    for (m, k, n), layouts in (((1, 1, 1), "CCC"), ((9, 40, 7), "CCF"), ((35, 21, 66), "FCC"), ((64, 48, 96), "CFC")):
        a, b = integers(dtype, (m, k), rng), integers(dtype, (k, n), rng)
        for plan in ("quarters > residues > bytes", "quarters > quarters > residues > bytes"):
            c, _ = product_on_host(a, b, plan, layouts, aligned=aligned)
            np.testing.assert_array_equal(c, wrapped_product(a, b))


@pytest.mark.quick_cases()
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
@pytest.mark.parametrize("layouts", ["CCC", "FCF"])
def test_blocks_of_integers_are_scaled_and_added_to(dtype: str, layouts: str) -> None:
    """The join scales a block and adds to it; C holds 7 before."""
    rng = np.random.default_rng(14)
    for m, k, n in ((1, 1, 1), (9, 40, 7), (34, 21, 33)):
        a, b = integers(dtype, (m, k), rng), integers(dtype, (k, n), rng)
        for plan in ("quarters > residues > bytes", "quarters > quarters > residues > bytes"):
            for alpha, beta in ((3, 2), (1, 1), (5, 0)):
                c, _ = product_on_host(a, b, plan, layouts, alpha, beta)
                np.testing.assert_array_equal(c, alpha * wrapped_product(a, b) + np.full((m, n), 7 * beta, dtype))


@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (3, 0), (3, 2), (1, 1)])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_blocks_need_no_other_kernels(dtype: str, alpha: int, beta: int) -> None:
    """Each block begins at its rows of A, its columns of B and its part of C. (A GPU has no integer sums.)"""
    size, item = (4096, 1024, 8192), DTYPES[dtype].itemsize
    problem = replace(Problem(*size, dtype), alpha=alpha, beta=beta)
    whole, blocks = (
        record_launches(Plan.parse(plan), problem, chip_target(H200))
        for plan in ("residues > bytes", "quarters > residues > bytes")
    )
    assert {x.kernel for x in blocks.launches} == {x.kernel for x in whole.launches}
    assert len(blocks.launches) == 4 * len(whole.launches)
    begins = {"A": {0, 2048 * 1024}, "B": {0, 4096}, "C": {0, 4096, 2048 * 8192, 2048 * 8192 + 4096}}
    for base, places in begins.items():
        assert {x.offset for launch in blocks.launches for x in launch.slots if x.base == base} == {
            item * place for place in places
        }


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64", "bool"])
def test_levels_below_are_for_integers_whose_sums_fit(dtype: str) -> None:
    with pytest.raises(PlanError, match="residues > strassen > bytes"):
        record_launches(Plan.parse("residues > strassen > bytes"), Problem(64, 64, 64, dtype), chip_target(H200))


def test_moduli_that_integers_need() -> None:
    assert [integer_moduli_count(x, 8192) for x in ("int8", "int16", "int32", "int64")] == [1, 6, 10, 18]
    assert integer_moduli_count("uint32", 131072) == 11 and integer_moduli_count("int64", 131072) == 19
    for dtype, k in product(INTEGERS, (1, 1000, 131072, 10**6)):
        bits = 0 if dtype == "bool" else 8 * np.dtype(dtype).itemsize - 1
        count = integer_moduli_count(dtype, k)
        assert prod(first_moduli(count)) > 2 * k * 4**bits or (np.dtype(dtype).itemsize == 1 and count == 1)
    assert prod(first_moduli(integer_moduli_count("bool", 131072))) > 2 * 131072


# ---- NVRTC


def test_products_stay_in_registers() -> None:
    """Only sm_90a has wgmma. Of three warpgroups two take registers from the third: 168 each."""
    nvrtc()
    made = op_of(Problem(512, 512, 512), ONE)
    struct_bytes = len(residue_product_launch(made, 0, first_moduli(14)).parameters)
    size = f"static_assert(sizeof(fmm::ResidueProduct) == {struct_bytes});"
    jobs = [
        (str(s), f"{residue_product_kernel_source(ResidueKernel(s))}{size}\n", "sm_90a", ("--std=c++17",))
        for s in RESIDUE_SIZES
    ]
    for s, r in zip(RESIDUE_SIZES, in_parallel(report, jobs), strict=True):
        assert r.local == 0 and r.registers == 65536 // s.thread_count // 8 * 8, r
        assert ResidueKernel(s).shared_bytes <= SM90_SHARED_BYTES


@pytest.mark.slow
def test_measuring_and_transposing_compile() -> None:
    nvrtc()
    made = op_of(Problem(512, 512, 512), ONE)
    parameters = norm_exponent_launch(made.operands, made.dtype, (True, True)).parameters
    size = f"static_assert(sizeof(fmm::residues::Operands<double>) == {len(parameters)});"
    pairs = (
        (NormExponentKernel("inner", 256, True), NormExponentKernel("outer", 0, True)),
        (NormExponentKernel("outer", 0, False), NormExponentKernel("inner", 32, False)),
        (NormExponentKernel("outer", 0, True), NormExponentKernel("outer", 0, False)),
    )
    jobs = [
        (str(x), f"{norm_exponent_kernel_source(*x, 'float64', 8)}{size}\n", "sm_90a", ("--std=c++17",)) for x in pairs
    ]
    for r in in_parallel(report, jobs):
        assert r.local == 0 and r.registers <= 64, r


@pytest.mark.parametrize(("levels", "registers"), quick_and_slow([(0, 64)], [(1, 112), (2, 128)]))
def test_splitting_and_joining_compile(levels: int, registers: int) -> None:
    """For the one architecture on which they run."""
    nvrtc()
    jobs = [
        ("split", residue_split_kernel_source(levels, True, True, "float64"), "sm_90", ("--std=c++17",)),
        ("join", reconstruction_kernel_source(levels, 14, 3, "float64"), "sm_90", ("--std=c++17",)),
    ]
    if levels < 2:
        jobs += [
            ("split", residue_split_kernel_source(levels, True, False, "float32"), "sm_90", ("--std=c++17",)),
            ("join", reconstruction_kernel_source(levels, 8, 2, "float32"), "sm_90", ("--std=c++17",)),
        ]
    for r in in_parallel(report, jobs):
        assert r.local == 0 and r.registers <= registers, r


@pytest.mark.slow
@pytest.mark.parametrize(("levels", "registers"), quick_and_slow([(0, 64)], [(1, 192)]))
def test_kernels_of_complex_numbers_compile(levels: int, registers: int) -> None:
    nvrtc()
    made = op_of(Problem(512, 512, 512, "complex128"), TWO)
    (measure, split, join) = (
        norm_exponent_launch(made.operands, made.dtype, (True, True)),
        residue_split_launch(made.operands, made.dtype, (True, True), first_moduli(15, for_complex=True)),
        reconstruction_launch(made, True),
    )
    number, cpp17 = "fmm::Complex<double>", ("--std=c++17",)

    def with_size(source: str, struct_name: str, found: Launch) -> str:
        return f"{source}static_assert(sizeof(fmm::residues::{struct_name}<{number}>) == {len(found.parameters)});\n"

    kernels = NormExponentKernel("inner", 256, True), NormExponentKernel("outer", 0, True)
    pieces = CrtWeightPieces(15, levels, for_complex=True).weight_piece_count
    jobs = [
        (
            "measure",
            with_size(norm_exponent_kernel_source(*kernels, made.dtype, 8), "Operands", measure),
            "sm_90a",
            cpp17,
        ),
        (
            "split",
            with_size(residue_split_kernel_source(levels, True, True, made.dtype), "Split", split),
            "sm_90",
            cpp17,
        ),
        ("join", with_size(reconstruction_kernel_source(levels, 15, pieces, made.dtype), "Join", join), "sm_90", cpp17),
    ]
    for r in in_parallel(report, jobs):
        assert r.local == 0 and r.registers <= (96 if r.name == "join" and not levels else registers), r


@pytest.mark.parametrize("dtype", ["int8", "int64", pytest.param("bool", marks=pytest.mark.slow)])
def test_kernels_of_integers_compile(dtype: str) -> None:
    nvrtc()
    turns, wide = NormExponentKernel("outer", 0, False), NormExponentKernel("outer", 0, True)
    jobs = [
        ("turn", norm_exponent_kernel_source(turns, wide, dtype, 8), "sm_90a", ("--std=c++17",)),
        ("split", residue_split_kernel_source(0, True, False, dtype), "sm_90", ("--std=c++17",)),
        (
            "join",
            integer_reconstruction_kernel_source(0, integer_moduli_count(dtype, 1000), dtype),
            "sm_90",
            ("--std=c++17",),
        ),
    ]
    for r in in_parallel(report, jobs):
        assert r.local == 0 and r.registers <= (128 if r.name == "turn" else 64), r  # which has 16 loads under way


# ---- launches


def test_launches() -> None:
    problem = Problem(4096, 4096, 4096)
    found = record_launches(Plan.parse(FAST), problem, chip_target(H200, flagged=True))
    labels = [launch.label for launch in found.launches]
    assert [label.split(":")[0] for label in labels[:4]] == [
        "residue_planes",
        "residue_planes",
        "gemm_residues",
        "residue_join",
    ]
    assert "float64 by 14 products of 8-bit integers" in labels[3]
    assert f"{14 * 7} products of bytes" in labels[2]
    # The join raises the flag itself, so that C is not scanned.
    assert [launch.does for launch in found.launches] == ["sums", "sums", "sums", "product", "recompute"]


def test_other_chips_leave_it_to_the_vendor() -> None:
    (call,) = record_launches(Plan.parse(ONE), Problem(512, 512, 512), chip_target(V100)).steps
    assert "the instructions need compute capability 8.0" in call.label  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_launches_of_integers(dtype: str) -> None:
    """K-major operands are not touched before the split."""
    for order, turns in (("C", True), ("F", False)):
        layouts = Layout("C", 512), Layout(order, 512), Layout("C", 512)  # type: ignore[arg-type]
        found = record_launches(
            Plan.parse("residues > bytes"), Problem(512, 512, 512, dtype, layouts), chip_target(H200)
        )
        assert len(found.launches) == (1 if dtype in ("int8", "uint8") else 3) + turns
        assert f"{dtype} by {integer_moduli_count(dtype, 512)} product" in found.launches[-1].label
    with pytest.raises(PlanError, match=f"cannot multiply {dtype}"):
        record_launches(Plan.parse("residues > bytes"), Problem(64, 64, 64, dtype), chip_target(V100))


def test_below_other_levels() -> None:
    made = op_of(Problem(1024, 1024, 1024), "strassen.batched.pad16 > residues(14) > bytes")
    assert made.geometry.count == 7 and made.plane_product_op(0, 14).count == 7 * 14


@pytest.mark.parametrize("leaf", LEAVES)
def test_parts_of_the_workspace_do_not_overlap(leaf: str) -> None:
    for size in ((100, 200, 300), (1, 1, 1), (5000, 3, 17), (16, 100000, 16)):
        found = residue_leaves()[leaf]
        g = PlaneLayout(*size, 3, *LEAVES[leaf], DTYPES[found.float_type].itemsize, found.level.for_complex)
        *starts, planes, turned, end = g.workspace_offsets
        assert all(x % 256 == 0 for x in (*starts, planes, turned))
        sizes = [*g.exponent_bytes, *(g.moduli_per_pass * x for x in g.plane_bytes[:2])]
        assert all(x + size <= y for x, size, y in zip(starts, sizes, [*starts[1:], planes], strict=True))
        assert planes + g.moduli * g.plane_bytes[2] <= (end if turned == planes else turned)
        assert turned + sum(g.transposed_bytes) <= end
        assert all(x % 16 == 0 for x in g.plane_bytes)


def test_large_products_are_split_in_groups_of_planes() -> None:
    """32768 x 32768 with two levels: one group of planes of A and B at a time, and all planes of C."""
    g = PlaneLayout(32768, 32768, 32768, 1, 14, 2)
    assert 1 <= g.moduli_per_pass < 14 and g.workspace_bytes < 75 << 30
    assert PlaneLayout(16384, 16384, 16384, 1, 14, 1).moduli_per_pass == 14
    problem = Problem(32768, 32768, 32768)
    found = record_launches(Plan.parse(FASTER), problem, chip_target(H200))
    groups = -(-14 // g.moduli_per_pass)
    assert [x.label.split(":")[0] for x in found.launches].count("gemm_residues") == groups
    assert len(found.launches) == 2 + 2 * groups


def test_groups_of_planes_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(11)
    a, b = rng.standard_normal((9, 40)), rng.standard_normal((40, 12))
    expected, _ = product_on_host(a, b, FAST)
    monkeypatch.setattr(residue_planes, "MAX_WORKSPACE_BYTES", 30000)
    plan_workspace_bytes.cache_clear()
    record_operations.cache_clear()
    c, op = product_on_host(a, b, FAST, "CFC")
    plan_workspace_bytes.cache_clear()
    assert 1 < len(op.modulus_groups) <= 14
    np.testing.assert_array_equal(c, expected)


MAP_NORESERVE = 0x4000  # of Linux; pages that nothing writes need no memory


@pytest.mark.parametrize("side", [0, 1])
def test_numbers_of_threads_have_more_than_32_bits(side: int) -> None:
    """A thread beyond the first 2^32 joins or splits its own numbers, not those of the first threads."""
    assert joined_position((1 << 24) + 1, 5, (1 << 16) + 1, 1 << 16) == [0, 1 << 16, 261]
    lines, line = (1 << 24) + 1, np.full(1024, 7, np.uint8)
    with mmap(-1, lines * line.size, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE) as memory:
        planes = np.frombuffer(memory, np.uint8)
        split_line_by_thread(side, lines - 1, 3, lines, line, planes)
        last = planes[-line.size :].copy()
        del planes
    assert (last[12:16] == 7).all() and not last[:12].any() and not last[16:].any()
