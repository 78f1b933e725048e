"""Error bounds and expected growth: the papers' formulas, the schemes behind the step tables, measured errors."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from math import log2, prod
from typing import Any

import numpy as np
import pytest

from fmm.kernels.algorithms.additions import Matrix
from fmm.kernels.algorithms.catalogue import scheme, scheme_names
from fmm.kernels.algorithms.scheme import Scheme, SchemeError
from fmm.kernels.algorithms.scheme_text import parse_scheme
from fmm.kernels.algorithms.step_table import step_table, step_table_names, table_scheme
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Arena, aligned_block
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel import data_growth
from fmm.perfmodel.data_growth import error_growth_on_data
from fmm.perfmodel.papers.dalberto import dalberto_bounds, printed_error_bounds
from fmm.perfmodel.stability import classical_error_bound, error_bound, expected_error_growth, plan_schemes
from tests.oracles import dalberto
from tests.oracles.error_bounds import (
    bound_growth,
    brent_bound,
    brent_recurrence,
    closed_bound,
    frobenius_growth,
    higham_bound,
    higham_exact,
    prefactor,
    recurrence,
    same_algorithm,
)

Array = np.ndarray[Any, Any]


def repeated(algorithm: str, levels: int) -> Plan:
    return Plan.parse(" > ".join([algorithm] * levels + ["vendor"]))


# ---- step tables


@pytest.mark.parametrize(
    ("table", "algorithm"),
    [
        ("li-fig2", "strassen"),
        ("li-fig12", "strassen"),
        ("li-fig16", "strassen"),
        ("hasa", "strassen"),
        ("li-fig3", "winograd"),
        ("li-fig13", "winograd"),
        ("li-fig23", "winograd"),
        ("adaptive-winograd", "winograd"),
    ],
)
def test_which_algorithm_a_step_table_is(table: str, algorithm: str) -> None:
    found = table_scheme(step_table(table))
    assert found.failed_brent_equation() is None
    assert same_algorithm(found, scheme(algorithm))
    other = {"strassen": "winograd", "winograd": "strassen"}[algorithm]
    assert not same_algorithm(found, scheme(other))


def test_every_step_table_is_a_matrix_multiplication() -> None:
    for name in step_table_names():
        table = step_table(name)
        found = table_scheme(table)
        assert (found.rank, found.size) == (table.product_count, table.size)
        assert found.failed_brent_equation() is None


def test_algorithms_are_compared_up_to_order_and_scale() -> None:
    strassen = scheme("strassen")
    u, v, w = (reordered(x, c) for x, c in ((strassen.u, -2), (strassen.v, 1), (strassen.w, Fraction(-1, 2))))
    swapped = Scheme("swapped", "", 2, 2, 2, u, v, w)
    assert swapped.failed_brent_equation() is None
    assert same_algorithm(swapped, strassen)
    assert same_algorithm(scheme("strassen-huang"), strassen)
    assert not same_algorithm(scheme("dps"), strassen)
    assert not same_algorithm(scheme("hk223"), scheme("hk232"))


def reordered(x: Matrix, factor: Fraction | int) -> Matrix:
    """The products in another order, each column times a factor."""
    return tuple(tuple(row[p] * factor for p in (3, 0, 1, 2, 6, 5, 4)) for row in x)


# ---- the papers' formulas


def test_the_posts_equations_have_four_slips() -> None:
    """As printed: P_3 = A_0 (B_0 + B_3), - P_2 in C_0, - P_3 and + P_5 in C_3. Any one of them alone is wrong."""
    assert parse_scheme(dalberto.THE_POST.format(**dalberto.MEANT)).rank == 7
    for wrong in (dalberto.PRINTED, *({**dalberto.MEANT, slip: dalberto.PRINTED[slip]} for slip in dalberto.PRINTED)):
        with pytest.raises(SchemeError, match="not a matrix multiplication"):
            parse_scheme(dalberto.THE_POST.format(**wrong))


def test_brents_12_and_44_follow() -> None:
    """Equation 5 for C_0 = P_0 + P_2 - P_4 + P_6: each product's operands round once or twice, each sum one to three
    times, all in units of its size, 2 or 4 times n/2."""
    sizes, operands, sums = (2, 2, 4, 4), (1, 1, 2, 2), (3, 3, 2, 1)
    by_hand = (sum(sizes), sum(x * (o + s) for x, o, s in zip(sizes, operands, sums, strict=True)))
    found = recurrence(parse_scheme(dalberto.THE_POST.format(**dalberto.MEANT)))
    assert by_hand == (12, 44)
    assert found[0] == found[3] == (12.0, 44.0)
    assert max(found[1:3]) < found[0]


@pytest.mark.parametrize("k", range(1, 20))
def test_65_is_54_padded(k: int) -> None:
    """f(n) = 5.4 n^log2(12) - 4.4 n exactly: 65 does not follow for powers of two, where 5.4 does.

    It does for the n in between: padded to the next power of two, less than 2n, the constant is 12 x 5.4 = 64.8.
    """
    n = 2**k
    exact = Fraction(54, 10) * 12**k - Fraction(44, 10) * n
    assert brent_recurrence(n) == exact
    just_above = n / 2 + 1
    assert brent_recurrence(n) < 65 * just_above ** log2(12)
    assert brent_recurrence(n) <= 5.4 * n ** log2(12) * (1 + 1e-9)


def test_equation_1_is_exactly_what_li_fig2_meets() -> None:
    """Higham's recurrence has 50 n/2 where Brent's has 44: the order of Figure 2's sums, large products first."""
    for levels in range(7):
        n = 16 * 2**levels
        assert error_bound(repeated("li-fig2", levels), n, n, n) == pytest.approx(higham_exact(n, 16), rel=1e-12)
    assert max(recurrence(scheme("strassen"))) == (12, 48)  # the executor's order, stacked
    assert error_bound(repeated("li-fig2", 1), 64, 64, 64) == 12 * 32**2 + 50 * 32


@pytest.mark.parametrize(("levels", "leaf"), [(0, 900), (1, 900), (2, 900), (3, 900), (3, 16)])
def test_equation_1s_second_line_is_only_the_leading_term(levels: int, leaf: int) -> None:
    """3^l n^2 is 5n(6^l - 1) less than the first line, not more."""
    n = leaf * 2**levels
    gap = higham_exact(n, leaf) - higham_bound(levels, n)
    assert gap == pytest.approx(5 * n * (6**levels - 1), abs=1e-3)
    assert gap < 0.02 * higham_bound(levels, n) or leaf < 900  # immaterial in the paper's sizes


@pytest.mark.parametrize(("levels", "leaf", "holds"), [(1, 11, True), (1, 10, False), (2, 11, True), (3, 11, True)])
def test_brents_4_to_the_k_holds_from_leaves_of_11(levels: int, leaf: int, holds: bool) -> None:
    """Equation 7, against the recurrence with f(leaf) = leaf^2."""
    f, n = classical_error_bound(leaf), leaf
    for _ in range(levels):
        n *= 2
        f = 44 * n // 2 + 12 * f
    assert (f <= brent_bound(levels, n)) is holds


@pytest.mark.parametrize("n", [0, -4, 3, 12])
def test_the_recurrence_needs_a_power_of_two(n: int) -> None:
    with pytest.raises(ValueError, match=f"n = {n} is not a power of two"):
        brent_recurrence(n)


# ---- walked bounds


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("name", [*scheme_names(), *step_table_names()])
def test_factors_of_the_walk_are_the_stability_factors(name: str) -> None:
    found = table_scheme(step_table(name)) if name in step_table_names() else scheme(name)
    assert max(e for e, _ in recurrence(found)) == pytest.approx(float(found.stability_factor), rel=1e-12)


@pytest.mark.parametrize("name", ["classical", "strassen", "winograd", "dps", "hk223", "hk332", "laderman"])
def test_the_walk_stays_below_the_closed_bound(name: str) -> None:
    found = scheme(name)
    for levels in range(1, 4):
        m, k, n = (8 * part**levels for part in found.size)
        assert error_bound(repeated(name, levels), m, k, n) <= closed_bound([found] * levels, k)


def test_closed_bound_by_hand() -> None:
    strassen, winograd = scheme("strassen"), scheme("winograd")
    assert prefactor(strassen) == 4 + 4  # C11: four products, M1 with two and two terms
    assert closed_bound([], 100) == 100**2
    assert closed_bound([strassen, winograd], 64) == (16 + 8 + prefactor(winograd)) * 16 * 12 * 18
    assert closed_bound([strassen, winograd], 61) == closed_bound([strassen, winograd], 64)  # as if padded


def test_levels_may_be_mixed() -> None:
    """A bound of two levels is the outer one's recurrence around the inner one's."""
    outer = max(
        e * error_bound(repeated("winograd", 1), 32, 32, 32) + r * 32 for e, r in recurrence(scheme("strassen"))
    )
    # Not equal to the last digit: a product that is computed in C is added first, in any order of the scheme.
    assert error_bound(Plan.parse("strassen > winograd > vendor"), 64, 64, 64) == pytest.approx(outer, rel=2e-3)
    assert error_bound(Plan.parse("strassen.sequential > hasa > vendor"), 64, 64, 64) < outer


@pytest.mark.parametrize(
    "text",
    [
        "strassen.batched > vendor",
        "strassen^2 > vendor",
        "winograd.peel > vendor",
        "hasa.pad > vendor",
        "li-fig16 > li-fig12 > vendor",
        "balanced(2) > strassen > vendor",
        "dps.sequential > adaptive-winograd > vendor",
        "hk233 > strassen.peel > vendor",
    ],
)
def test_measured_errors_are_within_the_bound(text: str, rng: np.random.Generator) -> None:
    """Single precision, any fringe; the bound is pessimistic, but not by more than a factor of a million."""
    plan = Plan.parse(text)
    for m, k, n in ((64, 64, 64), (67, 45, 71), (33, 30, 130)):
        a, b = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((m, k), (k, n)))
        worst = np.max(np.abs(run(plan, a, b) - a.astype(float) @ b))
        allowed = error_bound(plan, m, k, n) * 2.0**-24 * float(np.abs(a).max() * np.abs(b).max())
        assert allowed / 1e6 < worst <= allowed


def run(plan: Plan, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    c = np.empty((a.shape[0], b.shape[1]), a.dtype)
    execute_plan(plan, a, b, c, NumpyBackend(ThreadGroup(1)), Arena(aligned_block(1 << 22), a.dtype))
    return c


def test_bounds_of_sizes() -> None:
    assert error_bound(VENDOR, 3, 50, 9) == classical_error_bound(50) == 2500
    assert error_bound(repeated("strassen", 1), 0, 4, 4) == 0
    assert bound_growth(repeated("strassen", 1), 4096, 4096, 4096) == pytest.approx(3, rel=0.01)  # 12/4
    assert error_bound(repeated("strassen", 2), 63, 63, 63) <= error_bound(repeated("strassen", 2), 64, 64, 64)
    with pytest.raises(ValueError, match="k = -1"):
        error_bound(VENDOR, 1, -1, 1)


# ---- which is better


def test_winograd_is_worse_than_strassen_by_every_measure() -> None:
    for levels, n in ((1, 256), (2, 512), (3, 1024)):
        strassen, winograd = (repeated(name, levels) for name in ("strassen", "winograd"))
        assert error_bound(winograd, n, n, n) > 1.4**levels * error_bound(strassen, n, n, n)
        assert expected_error_growth(winograd) > 1.2**levels * expected_error_growth(strassen)
        assert closed_bound(plan_schemes(winograd), n) > closed_bound(plan_schemes(strassen), n)
    assert frobenius_growth(scheme("winograd")) > frobenius_growth(scheme("strassen"))


def test_dps_is_better_than_strassen_in_the_2_norm_and_on_average_only() -> None:
    """In the largest norm 13 is more than 12: a bound for the worst entries does not show what dps gains."""
    dps, strassen = scheme("dps"), scheme("strassen")
    assert expected_error_growth(repeated("dps", 1)) < 0.9 * expected_error_growth(repeated("strassen", 1))
    assert frobenius_growth(dps) < frobenius_growth(strassen)
    assert error_bound(repeated("dps", 1), 256, 256, 256) > error_bound(repeated("strassen", 1), 256, 256, 256)


@pytest.mark.parametrize(
    ("name", "growth"), [("classical", 8), ("strassen", 14.8284), ("winograd", 17.8530), ("dps", 12.2034)]
)
def test_frobenius_growth_as_published(name: str, growth: float) -> None:
    """Dumas, Pernet, Sedoglavic (2024): 14.83, 17.85, 12.2034; the classical algorithm has its eight products."""
    assert frobenius_growth(scheme(name)) == pytest.approx(growth, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "growth"),
    [
        ("vendor", 1.0),
        ("balanced(2) > vendor", 1.0),
        ("strassen > vendor", 3**0.5),
        ("li-fig12 > vendor", 3**0.5),  # a table grows as its scheme
        ("strassen^2 > vendor", 3.0),
        ("strassen > li-fig2 > vendor", 3.0),
        ("winograd > balanced(2) > hasa > vendor", 4.5**0.5 * 3**0.5),
        ("classical > vendor", 1.0),
    ],
)
def test_expected_growth_is_the_product_of_the_levels(text: str, growth: float) -> None:
    assert expected_error_growth(Plan.parse(text)) == pytest.approx(growth, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "dtype", "measured"),
    [
        ("vendor", "bfloat16", 1.0),
        ("aligned.pad16 > vendor", "bfloat16", 1.0),  # copies round nothing
        ("strassen.batched.pad16 > vendor", "bfloat16", 3.48),
        ("strassen.batched.pad16 > vendor", "float16", 3.48),
        ("strassen^2.batched.pad16 > vendor", "bfloat16", 7.05),
        ("strassen^2.batched.pad16 > vendor", "float16", 7.02),
        ("strassen^3.batched.pad16 > vendor", "bfloat16", 13.98),
        ("strassen^3.batched.pad16 > vendor", "float16", 13.76),
        ("winograd.overlapped.pad16 > vendor", "tf32", 2.62),
        ("winograd^2.pad16 > vendor", "tf32", 6.74),
    ],
)
def test_expected_growth_in_tensor_cores_as_measured(text: str, dtype: str, measured: float) -> None:
    """Relative Frobenius errors over the vendor's on an H200 (results/nvidia-h200/), aligned sizes."""
    assert expected_error_growth(Plan.parse(text), dtype) == pytest.approx(measured, rel=0.06)


def to_bfloat16(x: Array) -> Array:
    """The nearest numbers of 8 bits, as float64."""
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.rint(mantissa * 2**8), exponent - 8))


def passes(schemes: Sequence[str], a: Array, b: Array, stored: Callable[[Array], Array]) -> Array:
    """A product in which every pass rounds the numbers that it stores, and nothing else is rounded."""
    if not schemes:
        return stored(a @ b)
    x = scheme(schemes[0])
    blocks = [
        [r for band in np.vsplit(y, rows) for r in np.hsplit(band, cols)]
        for y, rows, cols in ((a, x.m, x.k), (b, x.k, x.n))
    ]
    sums = [
        [
            stored(np.asarray(sum(float(c) * y for c, y in zip(column, part, strict=True))))
            for column in zip(*u, strict=True)
        ]
        for u, part in zip((x.u, x.v), blocks, strict=True)
    ]
    products = [passes(schemes[1:], left, right, stored) for left, right in zip(*sums, strict=True)]
    out = [stored(np.asarray(sum(float(c) * p for c, p in zip(row, products, strict=True)))) for row in x.w]
    return np.block([out[i * x.n : (i + 1) * x.n] for i in range(x.m)])


@pytest.mark.parametrize("schemes", [("strassen",), ("winograd",), ("dps",), ("strassen^2",), ("strassen", "winograd")])
def test_growth_of_what_is_stored_in_16_bits_by_simulation(schemes: tuple[str, ...], rng: np.random.Generator) -> None:
    a, b = (to_bfloat16(rng.standard_normal((96, 96))) for _ in range(2))
    exact = a @ b
    errors = [np.linalg.norm(passes(names, a, b, to_bfloat16) - exact) for names in ((), schemes)]
    plan = Plan.parse(" > ".join([*schemes, "vendor"]))
    assert errors[1] / errors[0] == pytest.approx(expected_error_growth(plan, "bfloat16"), rel=0.08)


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        ("winograd > vendor", 2.60),
        ("winograd > winograd > vendor", 6.41),
        ("winograd > winograd > winograd > vendor", 14.36),
        ("strassen > strassen > strassen > vendor", 6.23),
    ],
)
def test_expected_growth_on_a_cpu_as_measured(text: str, measured: float) -> None:
    """n = 4096, normal numbers, float32, OpenBLAS on two threads, which adds up long sums in pieces: without knowing
    that, less was expected than three levels of Winograd's have."""
    plan = Plan.parse(text)
    random = prod(s.error_growth_blocked_sums for s in plan_schemes(plan))
    assert measured <= random <= 1.4 * measured and random <= expected_error_growth(plan, "float32", in_pieces=True)
    assert expected_error_growth(plan, "float32") < expected_error_growth(plan, "float32", in_pieces=True)


def test_in_pieces_compositions_grow_as_their_factors() -> None:
    one, two = (
        expected_error_growth(Plan.parse(x), in_pieces=True) for x in ("strassen > vendor", "strassen^2 > vendor")
    )
    assert (one, two) == pytest.approx((6**0.5, 6))
    assert expected_error_growth(VENDOR, in_pieces=True) == 1


@pytest.mark.parametrize(
    ("name", "in_one", "in_pieces"), [("strassen", 1.26, 2.45), ("winograd", 0.56, 1.03), ("dps", 0.68, 1.28)]
)
def test_growth_on_numbers_of_one_sign_as_measured(name: str, in_one: float, in_pieces: float) -> None:
    """Uniform in [0, 1], float32 and float64, OpenBLAS: n = 256, which it adds up in one piece, and 512 to 1536."""
    assert scheme(name).same_sign_error_growth == pytest.approx(in_one, rel=0.15)
    assert scheme(name).same_sign_error_growth_blocked == pytest.approx(in_pieces, rel=0.08)


def test_numbers_of_one_sign_decide_where_they_have_more() -> None:
    strassen, winograd = (Plan.parse(f"{x} > {x} > vendor") for x in ("strassen", "winograd"))
    assert expected_error_growth(strassen, in_pieces=True) == pytest.approx(6)
    assert expected_error_growth(winograd, in_pieces=True) == pytest.approx(
        scheme("winograd").error_growth_blocked_sums ** 2
    )
    assert expected_error_growth(strassen) == pytest.approx(scheme("strassen").error_growth ** 2)


def test_data_of_any_scale_and_kind_have_a_growth(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((2, 64, 64))
    expected = error_growth_on_data("winograd > vendor", a, b)
    assert error_growth_on_data("winograd > vendor", (1e300 * a).tolist(), 1e-300 * b) == pytest.approx(
        expected, rel=1e-9
    )
    for x in (np.ones(64), np.full((64, 64), np.inf), np.ones((63, 64))):
        with pytest.raises(ValueError, match=r"matrices with equal inner sides|inf and NaN"):
            error_growth_on_data("winograd > vendor", a, x)


@pytest.mark.parametrize("size", [(4, 0, 4), (4, 1, 4), (0, 4, 4)])
@pytest.mark.parametrize("terms", [0, 256])
def test_the_growth_on_matrices_without_whole_blocks_is_one(size: tuple[int, int, int], terms: int) -> None:
    m, k, n = size
    assert error_growth_on_data("winograd > vendor", np.ones((m, k)), np.ones((k, n)), terms) == 1.0


@pytest.mark.parametrize("terms", [1, 2])
def test_short_partial_sums_of_complex_products_do_not_become_one_sum(terms: int) -> None:
    """A real part has half as many terms in a partial sum, and at least one."""
    a, rng = np.ones((8, 8)), np.random.default_rng(0)
    whole = data_growth._classical_error_variance(a.astype(complex), a.astype(complex), terms, rng)
    real = data_growth._classical_error_variance(a, a, 1, np.random.default_rng(0))
    assert whole == pytest.approx(real)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("text", ["strassen > vendor", "winograd > winograd > vendor", "laderman > vendor"])
@pytest.mark.parametrize("data", ["normal", "positive", "kaporin"])
def test_growth_on_data(text: str, data: str, rng: np.random.Generator) -> None:
    """The estimate is within a factor of two of the measured error; the estimate for random data is not."""
    n, plan = 192, Plan.parse(text)
    if data == "kaporin":
        u, v = 1 / np.arange(n, 0, -1), np.sqrt(np.arange(1, n + 1))
        a = np.eye(n) + np.outer(u, v)
        b = np.eye(n) - np.outer(u, v) / (1 + u @ v)
    else:
        a, b = (rng.standard_normal((n, n)) if data == "normal" else rng.random((n, n)) for _ in range(2))
    a, b = a.astype(np.float32), b.astype(np.float32)
    exact = a.astype(float) @ b
    measured = np.linalg.norm(run(plan, a, b) - exact) / np.linalg.norm(run(VENDOR, a, b) - exact)
    expected = error_growth_on_data(plan, a.astype(float), b.astype(float))
    assert 0.5 < measured / expected < 2
    assert error_growth_on_data(text, a.astype(float), b.astype(float)) == expected


def of_partial_sums(a: Array, b: Array, piece: int) -> float:
    """The squares of all partial sums of a product, each formed as a matrix."""
    found, whole = 0.0, np.zeros((len(a), b.shape[1]))
    for start in range(0, a.shape[1], piece):
        part = np.zeros_like(whole)
        for i in range(start, min(start + piece, a.shape[1])):
            part += np.outer(a[:, i], b[i])
            found += float((part**2).sum())
        whole += part
        found += float((whole**2).sum())
    return found


def of_all_sums(name: str, a: Array, b: Array, piece: int) -> float:
    """Of one level: those of its products, as often as C has them, and those of the sums that put C together."""
    x = scheme(name)
    lefts, rights = (
        [block for band in np.vsplit(y, rows) for block in np.hsplit(band, cols)]
        for y, rows, cols in ((a, x.m, x.k), (b, x.k, x.n))
    )
    found = 0.0
    for r in range(x.rank):
        left = np.sum([float(x.u[i][r]) * block for i, block in enumerate(lefts)], axis=0)
        right = np.sum([float(x.v[i][r]) * block for i, block in enumerate(rights)], axis=0)
        for row in x.w:
            terms = sum(1 for c in row if c)
            found += float(row[r]) ** 2 * of_partial_sums(left, right, piece)
            found += float(row[r]) ** 2 * (terms - 1) * float(((left @ right) ** 2).sum())
    return found


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("name", ["strassen", "winograd", "hk223"])
@pytest.mark.parametrize("piece", [24, 96])
@pytest.mark.parametrize("positive", [False, True])
def test_growth_on_data_is_that_of_all_sums(
    name: str, piece: int, positive: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal up to the randomness of the vectors with which sums are estimated."""
    monkeypatch.setattr(data_growth, "RANDOM_VECTOR_COUNT", 300)
    a, b = (np.abs(x) if positive else x for x in rng.standard_normal((2, 96, 96)))
    wanted = np.sqrt(of_all_sums(name, a, b, piece) / of_partial_sums(a, b, piece))
    assert error_growth_on_data(Plan.parse(f"{name} > vendor"), a, b, piece) == pytest.approx(wanted, rel=0.05)


@pytest.mark.slow
def test_growth_on_data_of_three_real_products(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """P - Q and R - P - Q: the errors of two of them count twice. Below, each is a fast real product."""
    monkeypatch.setattr(data_growth, "RANDOM_VECTOR_COUNT", 300)
    a, b = (x + 1j * y for x, y in rng.standard_normal((2, 2, 96, 96)))
    pairs = ((a.real, b.real), (a.imag, b.imag), (a.real + a.imag, b.real + b.imag))
    of_products = {
        "3m > vendor": [of_partial_sums(*pair, 48) for pair in pairs],
        "3m > winograd > vendor": [of_all_sums("winograd", *pair, 48) for pair in pairs],
    }
    for plan, (p, q, r) in of_products.items():
        classical = sum(of_partial_sums(x, y, 24) for x in (a.real, a.imag) for y in (b.real, b.imag))
        wanted = np.sqrt((2 * p + 2 * q + r) / classical)
        assert error_growth_on_data(plan, a, b, partial_sum_terms=48) == pytest.approx(wanted, rel=0.05)


def test_growth_on_data_where_the_vendor_adds_up_all_in_one_sum(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every partial sum is rounded once; a piece as long as all of k is rounded once more, into the whole."""
    monkeypatch.setattr(data_growth, "RANDOM_VECTOR_COUNT", 300)
    monkeypatch.setattr(data_growth, "SAMPLED_SUM_STEP", 1)
    a, b = rng.standard_normal((2, 64, 64))
    last = float(((a @ b) ** 2).sum())
    whole = of_partial_sums(a, b, 64)
    found = [data_growth._classical_error_variance(a, b, piece, rng) for piece in (0, 64)]
    terms = sum(float(((a[:, :i] @ b[:i]) ** 2).sum()) for i in range(65)) - last / 2  # half of the first and last
    assert found == pytest.approx([terms, terms + last], rel=0.05)
    assert whole == pytest.approx(terms + 1.5 * last, rel=1e-9)


def test_types_grow_differently() -> None:
    """By three levels: a limit of 10 is one for float32, and no longer one for bfloat16."""
    plan = Plan.parse("strassen^3.batched.pad16 > vendor")
    growths = [expected_error_growth(plan, dtype) for dtype in ("float32", "float64", "complex64", "tf32", "bfloat16")]
    assert growths == sorted(growths) and growths[0] == growths[2] < 6 < 10 < growths[-1]


@pytest.mark.slow
def test_measured_errors_grow_in_the_expected_order(rng: np.random.Generator) -> None:
    """Root mean square errors of three levels down to 16, single precision: dps, Strassen's, Winograd's."""
    a, b = (rng.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    exact = a.astype(float) @ b
    plans = [repeated(name, 4) for name in ("dps", "strassen", "winograd")]
    measured = [float(np.sqrt(np.mean((run(plan, a, b) - exact) ** 2))) for plan in (VENDOR, *plans)]
    assert all(x < y for x, y in pairwise(measured))
    assert all(x < y for x, y in pairwise(expected_error_growth(plan) for plan in (VENDOR, *plans)))


def test_the_table_of_bounds_has_equation_1_as_it_is_written_out_elsewhere() -> None:
    for depth, n in ((0, 900), (2, 3600), (3, 7200)):
        first, second, brent = printed_error_bounds(depth, n)
        assert first == pytest.approx(higham_exact(n, 900), rel=1e-12)
        assert (second, brent) == (higham_bound(depth, n), brent_bound(depth, n))
    table = dalberto_bounds()
    printed, walked = table.column_cells("Equation 1, first line"), table.column_cells("li-fig2, walked")
    assert walked == pytest.approx(printed, rel=1e-12)
