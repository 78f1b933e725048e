"""Compare printed counts of Li, Ranka and Sahni (2011), sections 4 to 7, with counts computed from fmm's step tables.

The compared numbers are in Figures 11, 14, 15 and 17 to 22, and in the text of sections 6 and 7. li_counts computes
arithmetic operations A, transactions T and volume V. A closed form of the paper and the
computed count are compared as polynomials in the matrix side. A percentage is compared after rounding to the number of
digits that the paper prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from itertools import product
from typing import Final, Literal

from fmm.kernels.algorithms.step_table import StepTable, kernel_table, step_table
from fmm.perfmodel.papers import li_counts
from fmm.perfmodel.papers.li_counts import METHOD_STEP_TABLES, PRODUCT_COUNTS, QUANTITIES, Polynomial, Quantity
from fmm.perfmodel.papers.table import Cell, PaperTable

PRINTED_SIZES: Final = (4096, 8192, 16384)  # the sizes n in Figures 15 and 20 to 22
PRINTED_METHODS: Final = ("strassen", "winograd")
COMPARED_COLUMNS: Final = ("printed", "computed", "difference")
LEVEL_WORDS: Final = {1: "one", 2: "two", 3: "three", 4: "four"}


def formula_cells(printed: str, computed: Polynomial, variable: str = "n") -> tuple[str, str, str]:
    """Return three table cells for a closed form: printed, computed, and the difference of the two polynomials."""
    return printed, computed.formula_text(variable), (computed - Polynomial.parse(printed)).formula_text(variable)


def round_half_away(x: Fraction, digits: int = 1) -> Fraction:
    """Return x rounded to a number of decimal places; a tie is rounded away from zero."""
    scaled = Decimal(x.numerator * 10**digits) / Decimal(x.denominator)
    return Fraction(int(scaled.to_integral_value(ROUND_HALF_UP)), 10**digits)


def percent_cells(printed: str | None, computed: Fraction) -> tuple[Cell, ...]:
    """Return three table cells for a percentage: printed, computed and not rounded, difference after rounding."""
    if printed is None:
        return None, float(computed), None
    return float(printed), float(computed), float(round_half_away(computed) - Fraction(printed))


def number_cells(printed: Cell, computed: int | Fraction | float) -> tuple[Cell, ...]:
    """Return three table cells for a number: printed, computed, and the difference computed - printed."""
    assert isinstance(printed, int | float | Fraction)
    return printed, computed, computed - printed


# Figure 11 as printed: kernel, transactions, and volume in bytes, for m x m blocks. The rows of product kernels below
# `mul` have only the transactions and bytes in addition to those of `mul`.
FIGURE_11_KERNELS: Final[tuple[tuple[str, str, str], ...]] = (
    ("add", "3m^2/32", "12m^2"),
    ("sub", "3m^2/32", "12m^2"),
    ("mul", "17m^3/4096 + m^2/16", "9m^3/32 + 4m^2"),
    ("mulIncInc", "3m^2/16", "12m^2"),
    ("mulIncDec", "3m^2/16", "12m^2"),
    ("mulStoreDec", "m^2/8", "8m^2"),
    ("mulStoreInc", "m^2/8", "8m^2"),
    ("mulAdd", "m^2/16", "4m^2"),
    ("mulIncIncInc", "5m^2/16", "20m^2"),
    ("mulSubInc", "3m^2/16", "12m^2"),
)

# The counts of the classical product GPU8 of n x n matrices (section 4): arithmetics, transactions, volume in bytes.
GPU8_COUNTS: Final = ("2n^3 - n^2", "17n^3/4096 + n^2/16", "9n^3/32 + 4n^2")

# Figures 14, 17, 18 and 19: number of levels k -> method -> A(k, n), T(k, n), and V(k, n) in bytes.
CLOSED_FORMS: Final[Mapping[int, Mapping[str, tuple[str, str, str]]]] = {
    1: {
        "strassen": ("7n^3/4 + 11n^2/4", "119n^3/32768 + 35n^2/64", "63n^3/256 + 50n^2"),
        "winograd": ("7n^3/4 + 2n^2", "119n^3/32768 + 29n^2/64", "63n^3/256 + 41n^2"),
    },
    2: {
        "strassen": ("49n^3/32 + 149n^2/16", "833n^3/262144 + 347n^2/256", "441n^3/2048 + 277n^2/2"),
        "winograd": ("49n^3/32 + 29n^2/4", "833n^3/262144 + 285n^2/256", "441n^3/2048 + 451n^2/4"),
    },
    3: {
        "strassen": ("343n^3/256 + 1331n^2/64", "5831n^3/2097152 + 2837n^2/1024", "3087n^3/16384 + 2347n^2/8"),
        "winograd": ("343n^3/256 + 263n^2/16", "5831n^3/2097152 + 2323n^2/1024", "3087n^3/16384 + 3813n^2/16"),
    },
    4: {
        "strassen": (
            "2401n^3/2048 + 10469n^2/256",
            "40817n^3/16777216 + 21491n^2/4096",
            "21609n^3/131072 + 18061n^2/32",
        ),
        "winograd": (
            "2401n^3/2048 + 2081n^2/64",
            "40817n^3/16777216 + 17573n^2/4096",
            "21609n^3/131072 + 29315n^2/64",
        ),
    },
}

# Figures 15, 20, 21 and 22: number of levels k -> method -> reductions of A, T and V in percent for each n of
# PRINTED_SIZES.
PRINTED_REDUCTIONS: Final[Mapping[int, Mapping[str, tuple[tuple[str, str, str], ...]]]] = {
    1: {
        "strassen": (("12.5", "9.6", "8.5"), ("12.5", "11.1", "10.5"), ("12.5", "11.8", "11.5")),
        "winograd": (("12.5", "10.2", "9.3"), ("12.5", "11.3", "10.9"), ("12.5", "11.9", "11.7")),
    },
    2: {
        "strassen": (("23.3", "15.8", "11.7"), ("23.4", "19.6", "17.6"), ("23.4", "21.5", "20.5")),
        "winograd": (("23.3", "17.2", "13.9"), ("23.4", "20.3", "18.7"), ("23.4", "21.9", "21.1")),
    },
    3: {
        "strassen": (("32.7", "17.0", "7.9"), ("32.9", "25.0", "20.4"), ("32.9", "29.0", "26.7")),
        "winograd": (("32.8", "20.0", "12.6"), ("32.9", "26.5", "22.8"), ("33.0", "29.7", "27.9")),
    },
    4: {
        "strassen": (("40.9", "10.8", "-7.2"), ("41.1", "26.1", "17.0"), ("41.3", "33.7", "29.2")),
        "winograd": (("41.0", "16.5", "2.0"), ("41.2", "28.9", "21.6"), ("41.3", "35.1", "31.5")),
    },
}

# number of levels k -> number of the figure with the closed forms
CLOSED_FORM_FIGURE_NUMBERS: Final = {1: 14, 2: 17, 3: 18, 4: 19}
REDUCTION_FIGURE_NUMBERS: Final = {1: 15, 2: 20, 3: 21, 4: 22}


# ---- Figure 11


def li_fig11() -> PaperTable:
    """Return Figure 11: transactions and volume of each kernel, counted from the blocks that the kernel moves."""
    rows = [
        _kernel_row(name, q, p) for name, *both in FIGURE_11_KERNELS for q, p in zip(QUANTITIES[1:], both, strict=True)
    ]
    rows += [
        ("sgemm (CUBLAS 3.0)", q, *formula_cells(printed, PRODUCT_COUNTS["sgemm"][q], "m"))
        for q, printed in zip(QUANTITIES[1:], ("5m^3/1024 + m^2/16", "5m^3/16 + 4m^2"), strict=True)
    ]
    notes = (
        "The rows of product kernels below mul have the amounts that Figure 11 adds to T and V, the counts of mul.",
        "The last two rows are printed in section 4.",
    )
    return PaperTable(
        "li-fig11", "Figure 11: kernels on m x m blocks", ("kernel", "quantity", *COMPARED_COLUMNS), tuple(rows), notes
    )


def _kernel_row(name: str, quantity: Quantity, printed: str) -> tuple[Cell, ...]:
    base = PRODUCT_COUNTS["gpu8"][quantity] if name == "mul" else Polynomial()
    found = li_counts.kernel_count_polynomial(kernel_table()[name], quantity, base)
    return name, quantity, *formula_cells(printed, found, "m")


# ---- Figures 14, 17, 18, 19 and 15, 20, 21, 22


def _closed_form_table(k: int) -> PaperTable:
    """Return the table of the figure that prints A(k, n), T(k, n) and V(k, n) for k levels."""
    methods = {"gpu8": GPU8_COUNTS, **CLOSED_FORMS[k]}
    rows = tuple(
        (method, q, *formula_cells(p, li_counts.count_polynomial(q, method, 0 if method == "gpu8" else k)))
        for method, printed in methods.items()
        for q, p in zip(QUANTITIES, printed, strict=True)
    )
    figure = CLOSED_FORM_FIGURE_NUMBERS[k]
    title = f"Figure {figure}: {LEVEL_WORDS[k]}-level multiplication of n x n matrices"
    return PaperTable(f"li-fig{figure}", title, ("method", "quantity", *COMPARED_COLUMNS), rows)


def _li_reduction_table(k: int) -> PaperTable:
    """Return the table of the figure that prints the reductions by k levels relative to GPU8."""
    rows = tuple(
        (n, method, q, *percent_cells(printed, li_counts.percent_reduction(q, method, k, n)))
        for i, n in enumerate(PRINTED_SIZES)
        for method in PRINTED_METHODS
        for q, printed in zip(QUANTITIES, PRINTED_REDUCTIONS[k][method][i], strict=True)
    )
    figure = REDUCTION_FIGURE_NUMBERS[k]
    title = f"Figure {figure}: percent reduction relative to GPU8, {LEVEL_WORDS[k]} level{'s' * (k > 1)}"
    notes = ("Section 7.2 says that A(1,n), T(1,n), V(1,n) are in Figure 15; they are in Figure 14.",) if k == 1 else ()
    return PaperTable(f"li-fig{figure}", title, ("n", "method", "quantity", *COMPARED_COLUMNS), rows, notes)


def li_fig14() -> PaperTable:
    """Return Figure 14: the closed forms of A, T and V for one level."""
    return _closed_form_table(1)


def li_fig15() -> PaperTable:
    """Return Figure 15: the reductions of A, T and V by one level, in percent."""
    return _li_reduction_table(1)


def li_fig17() -> PaperTable:
    """Return Figure 17: the closed forms of A, T and V for two levels."""
    return _closed_form_table(2)


def li_fig18() -> PaperTable:
    """Return Figure 18: the closed forms of A, T and V for three levels."""
    return _closed_form_table(3)


def li_fig19() -> PaperTable:
    """Return Figure 19: the closed forms of A, T and V for four levels."""
    return _closed_form_table(4)


def li_fig20() -> PaperTable:
    """Return Figure 20: the reductions of A, T and V by two levels, in percent."""
    return _li_reduction_table(2)


def li_fig21() -> PaperTable:
    """Return Figure 21: the reductions of A, T and V by three levels, in percent."""
    return _li_reduction_table(3)


def li_fig22() -> PaperTable:
    """Return Figure 22: the reductions of A, T and V by four levels, in percent."""
    return _li_reduction_table(4)


# Sections 6.1 and 6.2: method -> number of calls of each kernel in one level (Figure 12 or 13).
SECTION_6_KERNEL_CALLS: Final = {
    "strassen": (
        ("add, sub", 10),
        ("mul", 2),
        ("mulIncInc", 2),
        ("mulStoreDec", 1),
        ("mulStoreInc", 1),
        ("mulIncDec", 1),
    ),
    "winograd": (("add, sub", 8), ("mul", 3), ("mulAdd", 2), ("mulIncIncInc", 1), ("mulSubInc", 1)),
}
# Sections 6.1 and 6.2: method -> transactions and bytes of volume of one level, less the counts 7T and 7V of its seven
# products of m x m blocks.
SECTION_6_EXCESS_COUNTS: Final = {"strassen": ("7m^2/4", "172m^2"), "winograd": ("11m^2/8", "136m^2")}


def li_section6() -> PaperTable:
    """Return the numbers in the text of section 6: kernel calls, totals and reductions of one level."""
    rows: list[tuple[Cell, ...]] = []
    for method in PRINTED_METHODS:
        rows += [
            (method, f"calls of {names}", *number_cells(n, _count_kernel_calls(method, names)))
            for names, n in SECTION_6_KERNEL_CALLS[method]
        ]
        rows.append((method, "products (the 7 in 7T and 7V)", *number_cells(7, _one_level_table(method).product_count)))
        for q, printed in zip(QUANTITIES[1:], SECTION_6_EXCESS_COUNTS[method], strict=True):
            without_products = li_counts.table_count_polynomial(_one_level_table(method), q, Polynomial())
            rows.append((method, f"{q} without the products", *formula_cells(printed, without_products, "m")))
        for q, printed in zip(QUANTITIES[1:], CLOSED_FORMS[1][method][1:], strict=True):
            rows.append((method, q, *formula_cells(printed, li_counts.count_polynomial(q, method, 1))))
    rows += _rounded_reduction_rows("reduction in {}, percent (about 12)", 12, (1,), PRINTED_SIZES[-1:])
    notes = (
        "The numbers agree with each other: 10 x 12 + 2 x 12 + 8 + 8 + 12 = 172, and (7 x 4 + 172)/4 = 50.",
        "The reduction is about 12 percent at n = 16384. At n = 4096 the volume falls by 8.5 (Strassen) and 9.3 "
        "percent (Winograd).",
    )
    return PaperTable(
        "li-section6", "Section 6: one level, the text", ("method", "number", *COMPARED_COLUMNS), tuple(rows), notes
    )


def _one_level_table(method: str) -> StepTable:
    """Return the step table of Figure 12 (strassen) or 13 (winograd)."""
    return step_table(METHOD_STEP_TABLES[method][0])


def _count_kernel_calls(method: str, names: str) -> int:
    """Return the number of calls of the kernels `names`, separated by commas, in one level of a method."""
    found = _one_level_table(method).kernel_counts
    return sum(found.get(name, 0) for name in names.split(", "))


def _rounded_reduction_rows(
    text: str, printed: int, levels: Sequence[int], sizes: Sequence[int]
) -> list[tuple[Cell, ...]]:
    """Return rows that compare a rounded percentage from the paper's text with the computed reductions of T, V and A.

    `text` is the name of a row; the quantity replaces {} in the name.
    """
    found: list[tuple[Cell, ...]] = []
    for k, n, q in product(levels, sizes, QUANTITIES):
        computed = li_counts.percent_reduction(q, "strassen", k, n)
        found.append(
            ("strassen", text.format(q), printed, float(computed), float(round_half_away(computed, 0) - printed))
        )
    return found


# Sections 7.1 and 7.2: method -> what the sums of a level of Figure 16 or 23 add to A, T and V of the level's seven
# products.
SECTION_7_INCREMENTS: Final = {
    "strassen": ("9n^2/2", "51n^2/128", "51n^2"),
    "winograd": ("15n^2/4", "41n^2/128", "41n^2"),
}
SECTION_7_BLOCKS: Final = {"strassen": 51, "winograd": 41}  # number of blocks that the sums of one level read and write
# Expectations for n = 16384 in section 7.1 of the paper: number of levels k, then the smallest and the largest
# reduction in percent; the paper has one reduction for each of T, V and A.
SECTION_7_EXPECTATIONS: Final = ((3, 26, 33), (4, 29, 41))


def li_section7() -> PaperTable:
    """Return the numbers in the text of section 7: terms of the recurrences, and expected reductions."""
    rows: list[tuple[Cell, ...]] = []
    for method in PRINTED_METHODS:
        outer = step_table(METHOD_STEP_TABLES[method][1])
        moved = sum(
            len(s.kernel.read_blocks) + len(s.kernel.written_blocks) for s in outer.steps if not s.kernel.product
        )
        rows.append((method, "blocks read and written in a level", *number_cells(SECTION_7_BLOCKS[method], moved)))
        for q, printed in zip(QUANTITIES, SECTION_7_INCREMENTS[method], strict=True):
            found = li_counts.table_count_polynomial(outer, q, Polynomial()).with_half_argument()
            rows.append((method, f"{q} of a level", *formula_cells(printed, found)))
    rows += [_two_block_sum_kernels_row("strassen", 12), _two_block_sum_kernels_row("winograd", 10)]
    rows += _rounded_reduction_rows("two levels, {} (about 20)", 20, (2,), PRINTED_SIZES[-1:])
    for k, least, most in SECTION_7_EXPECTATIONS:
        rows += [_extreme_reduction_row(k, "least", least), _extreme_reduction_row(k, "most", most)]
    return PaperTable(
        "li-section7", "Section 7: the text", ("method", "number", *COMPARED_COLUMNS), tuple(rows), _SECTION_7_NOTES
    )


def _two_block_sum_kernels_row(method: str, printed: int) -> tuple[Cell, ...]:
    """Return the table row for the number of sum kernels in one level that read two blocks and write one block."""
    outer = step_table(METHOD_STEP_TABLES[method][1])
    found = sum(
        1 for s in outer.steps if not s.kernel.product and len(s.kernel.read_blocks) + len(s.kernel.written_blocks) == 3
    )
    return method, "kernels that read two blocks and write one", *number_cells(printed, found)


def _extreme_reduction_row(k: int, extreme: Literal["least", "most"], printed: int) -> tuple[Cell, ...]:
    """Return the row of the smallest or the largest reduction (of T, V or A) by Strassen's method at n = 16384."""
    found = sorted(li_counts.percent_reduction(q, "strassen", k, PRINTED_SIZES[-1]) for q in QUANTITIES)
    computed = found[0 if extreme == "least" else -1]
    name = f"{LEVEL_WORDS[k]} levels, {extreme} of the three percents"
    return "strassen", name, printed, float(computed), float(round_half_away(computed, 0) - printed)


_SECTION_7_NOTES: Final = (
    "Winograd: a level has 15 additions if the step (C12, C11) = (C11 + C12 + T1, C11 + C21 + T1) of Figure 23 forms "
    "C11 + T1 once. The printed step has four additions instead of three; A(k,n) would then grow by 16n^2/4.",
    "Section 7.2 refers to Figure 15 for A(1,n), T(1,n), V(1,n); they are in Figure 14.",
    "The two-level text is consistent: T(2,n) = 7 x 35/256 + 51/128 = 347/256 n^2, V(2,n) = 7 x 50/4 + 51 = 277/2 n^2, "
    "A(2,n) = -49/16 + 126/16 + 72/16 = 149/16 n^2. Volume and transactions of Figure 23: 10 x 3 + 6 + 5 = 41.",
    "26 percent for three levels is 26.7 truncated. 'About 20' for two levels is 20.5 (volume) to 23.4 (arithmetics).",
)


FORMULA_TABLE_FUNCTIONS: Final = (
    *(li_fig11, li_fig14, li_fig15, li_fig17, li_fig18, li_fig19, li_fig20, li_fig21, li_fig22),
    *(li_section6, li_section7),
)
