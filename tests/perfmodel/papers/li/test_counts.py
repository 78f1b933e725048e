"""Li, Ranka, Sahni's counts: every printed cell against the walked step tables, the recurrences as oracles."""

from collections.abc import Callable
from fractions import Fraction

import pytest

from fmm.kernels.algorithms.step_table import kernel_table, step_table
from fmm.perfmodel.papers import li_counts, li_formulas, li_results
from fmm.perfmodel.papers.li_counts import (
    QUANTITIES,
    Polynomial,
    Quantity,
    arithmetic_count,
    count_polynomial,
    levels_by_threshold,
    percent_reduction,
    transaction_count,
    volume_bytes,
)
from fmm.perfmodel.papers.li_formulas import (
    CLOSED_FORMS,
    PRINTED_METHODS,
    PRINTED_REDUCTIONS,
    PRINTED_SIZES,
    round_half_away,
)
from fmm.perfmodel.papers.li_results import reduction_curve
from fmm.perfmodel.papers.table import PaperTable
from tests.oracles.li import recurrence

# ---- polynomials


@pytest.mark.parametrize(
    ("text", "coefficients"),
    [
        ("17n^3/4096 + n^2/16", (0, 0, Fraction(1, 16), Fraction(17, 4096))),
        ("2n^3 - n^2", (0, 0, -1, 2)),
        ("-n^2 + 5", (5, 0, -1)),  # a leading sign, a constant
        ("3n/2", (0, Fraction(3, 2))),  # a first power
        ("0", ()),
    ],
)
def test_polynomials_read_and_print(text: str, coefficients: tuple[Fraction | int, ...]) -> None:
    found = Polynomial.parse(text)
    assert found == Polynomial.from_coefficients(*coefficients)
    assert Polynomial.parse(found.formula_text("m")) == found
    assert found.formula_text() == text


def test_polynomials_compute() -> None:
    p, q = Polynomial.parse("2n^3 - n^2"), Polynomial.parse("n^2 + 1")
    assert (p + q) == Polynomial.parse("2n^3 + 1")  # the squares cancel
    assert (p - p) == Polynomial()
    assert p.with_half_argument()(6) == p(3) == 45
    assert p.with_half_argument().with_half_argument() == Polynomial.parse("n^3/32 - n^2/16")


@pytest.mark.parametrize("text", ["n^", "2n^3 + x*n", "n^3 ++ /2"])
def test_what_is_no_polynomial_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        Polynomial.parse(text)


# ---- the recurrences of section 7


@pytest.mark.parametrize("method", PRINTED_METHODS)
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_any_number_of_levels_follows_the_recurrences(method: str, quantity: Quantity) -> None:
    for k in range(9):
        assert count_polynomial(quantity, method, k) == recurrence(quantity, method, k), k


@pytest.mark.parametrize("k", CLOSED_FORMS)
@pytest.mark.parametrize("method", PRINTED_METHODS)
def test_closed_forms_of_figures_14_17_18_19(method: str, k: int) -> None:
    for quantity, printed in zip(QUANTITIES, CLOSED_FORMS[k][method], strict=True):
        assert count_polynomial(quantity, method, k) == Polynomial.parse(printed), quantity


def test_all_72_percentages() -> None:
    cells = [
        (k, n, method, q, Fraction(printed))
        for k, methods in PRINTED_REDUCTIONS.items()
        for method, rows in methods.items()
        for n, row in zip(PRINTED_SIZES, rows, strict=True)
        for q, printed in zip(QUANTITIES, row, strict=True)
    ]
    assert len(cells) == 72
    for k, n, method, q, printed in cells:
        found = percent_reduction(q, method, k, n)
        assert round_half_away(found) == printed, (k, n, method, q)
        assert round(found, 1) == printed, (k, n, method, q)  # half to even: no percentage is a tie


# ---- tables


def differences(table: PaperTable) -> list[tuple[object, ...]]:
    """Return the rows with a difference other than zero."""
    columns = [c for c in table.columns if c.endswith("difference")]
    assert columns
    return [
        row
        for i, row in enumerate(table.rows)
        if any(table.column_cells(c)[i] not in ("0", 0, 0.0, None) for c in columns)
    ]


# Tables of plans, errors and predictions, and of texts with rounded numbers.
WITHOUT_EXACT_NUMBERS = (
    "li_section6",
    "li_section7",
    "li_section8",
    "li_errors",
    "li_plans",
    "li_exchanged",
    "li_predicted",
)


@pytest.mark.parametrize(
    "make",
    [make for make in li_results.TABLE_FUNCTIONS if make.__name__ not in WITHOUT_EXACT_NUMBERS],
    ids=lambda make: make.__name__,
)
def test_every_cell_of_the_figures_matches(make: Callable[[], PaperTable]) -> None:
    table = make()
    assert table.name == make.__name__.replace("_", "-")
    assert differences(table) == []


def test_figure_11_has_every_kernel_and_quantity() -> None:
    table = li_formulas.li_fig11()
    assert len(table.rows) == 2 * 11
    assert ("mulIncIncInc", "volume", "20m^2", "20m^2", "0") in table.rows
    assert ("mul", "transactions", "17m^3/4096 + m^2/16", "17m^3/4096 + m^2/16", "0") in table.rows


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        # "about 12%" for one level: 11.5 in volume at n = 16384
        (li_formulas.li_section6, {"reduction in volume, percent (about 12)"}),
        # "about 20%" for two levels is 20.5 to 23.4; 26 for three levels is 26.7 cut off
        (
            li_formulas.li_section7,
            {*(f"two levels, {q} (about 20)" for q in QUANTITIES), "three levels, least of the three percents"},
        ),
        # 200 and 213 for one ratio, 5151.5 cut off, and two that do not follow
        (
            li_results.li_section8,
            {
                "maximum error, Strassen, four levels",
                "average error, Winograd, four levels",
                "maximum error, Strassen, one level",
                "average error, Strassen, one level",
            },
        ),
    ],
    ids=["section6", "section7", "section8"],
)
def test_the_text_differs_only_where_recorded(make: Callable[[], PaperTable], expected: set[str]) -> None:
    table = make()
    column = table.columns.index("number")
    assert {row[column] for row in differences(table)} == expected
    assert table.notes


@pytest.mark.parametrize(
    ("n", "tau2", "k"),
    [
        (2048, 4096, 0),  # tau1 = tau2/2: GPU8
        (4096, 4096, 1),
        (8192, 4096, 2),
        (16384, 4096, 3),  # section 8.1.1: three levels with tau2 = 4096, four with 2048
        (16384, 2048, 4),
        (16384, 8192, 2),  # section 7.1
    ],
)
def test_levels_of_a_threshold(n: int, tau2: int, k: int) -> None:
    assert levels_by_threshold(n, tau2) == k


def test_curves_have_the_levels_of_their_threshold() -> None:
    assert [row[:2] for row in reduction_curve("strassen", 4096)] == [
        (2048, 0),
        (4096, 1),
        (8192, 2),
        (16384, 3),
    ]
    assert reduction_curve("winograd", 2048)[-1][2:] == tuple(
        percent_reduction(q, "winograd", 4, 16384) for q in QUANTITIES
    )
    assert reduction_curve("strassen", 4096)[0][2:] == (Fraction(0),) * 3  # GPU8 against itself


# ---- values


@pytest.mark.parametrize(
    ("scheme", "k", "n", "expected"),
    [
        ("gpu8", 0, 64, 2 * 64**3 - 64**2),
        ("sgemm", 0, 64, 2 * 64**3 - 64**2),
        ("strassen", 0, 64, 2 * 64**3 - 64**2),  # no level: the leaf
        ("strassen", 1, 2, 7 + 18),  # seven scalar products
        ("winograd", 1, 2, 7 + 15),
        ("winograd", 2, 4, 49 + 7 * 15 + 15 * 4),
    ],
)
def test_arithmetics(scheme: str, k: int, n: int, expected: int) -> None:
    assert arithmetic_count(scheme, k, n) == expected


def test_transactions_and_volume_are_exact() -> None:
    assert volume_bytes("gpu8", 0, 16) == Fraction(9 * 16**3, 32) + 4 * 256
    assert transaction_count("sgemm", 0, 64) == Fraction(5 * 64**3, 1024) + 256
    assert transaction_count("strassen", 1, 128, leaf="sgemm") == 7 * transaction_count("sgemm", 0, 64) + Fraction(
        7 * 64**2, 4
    )
    assert isinstance(
        transaction_count("gpu8", 0, 8), Fraction
    )  # not a whole number of transactions: exact all the same


def test_figure_23_shares_a_sum() -> None:
    """Fifteen additions a level need C11 + T1 once; the assignments as printed would make sixteen."""
    assert li_counts.kernel_additions(kernel_table()["addAdd"]) == 3
    table = step_table("li-fig23")
    assert sum(li_counts.kernel_additions(step.kernel) for step in table.steps) == 15


@pytest.mark.parametrize(
    ("scheme", "k", "n", "words"),
    [
        ("cannon", 1, 8, "unknown scheme 'cannon'; valid: gpu8, sgemm, strassen, winograd"),
        ("strassen", 3, 12, "n = 12 does not fit k = 3 levels"),
        ("strassen", 1, 0, "n = 0"),
        ("winograd", 1, -2, "n = -2"),
        ("strassen", -1, 8, "k = -1"),
        ("gpu8", 1, 8, "gpu8 with k = 1"),
    ],
)
def test_bad_input_is_named(scheme: str, k: int, n: int, words: str) -> None:
    for function in (arithmetic_count, transaction_count, volume_bytes):
        with pytest.raises(ValueError, match=words):
            function(scheme, k, n)


def test_an_unknown_leaf_lists_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="unknown leaf 'cublas'; valid: gpu8, sgemm"):
        transaction_count("strassen", 1, 8, leaf="cublas")


@pytest.mark.parametrize(("n", "tau2"), [(0, 1), (1, 0)])
def test_levels_need_positive_sizes(n: int, tau2: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        levels_by_threshold(n, tau2)


def test_the_runs_of_figure_24_halve_a_matrix_until_it_has_tau1_rows() -> None:
    rows = li_results.li_plans().rows
    assert {(row[0], row[3]) for row in rows} == {(code, tau2) for code, _, tau2, _ in li_results.FIGURE_24_CODES}
    for _, n, tau1, tau2, plan in rows:
        assert isinstance(n, int) and isinstance(tau1, int) and 2 * tau1 == tau2
        assert str(plan).count(">") == max(0, (n // tau1).bit_length() - 1), (n, tau1)
