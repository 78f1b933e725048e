"""Li, Ranka and Sahni (2011): the counts that their figures and text print, beside those of fmm.

Figure 11 has the kernels, Figures 14 to 22 closed forms and reductions, sections 6 and 7 numbers in the text. Closed
forms are compared as polynomials. Percentages are compared after rounding to the printed digit, half away from zero; no
percentage of the paper is a tie, so that half to even gives the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from itertools import product
from typing import Final, Literal

from fmm.kernels.algorithms.step_table import StepTable, kernel_table, step_table
from fmm.perfmodel.papers import li_counts
from fmm.perfmodel.papers.li_counts import LEAVES, QUANTITIES, Polynomial, Quantity
from fmm.perfmodel.papers.li_counts import TABLES as STEP_TABLES
from fmm.perfmodel.papers.table import Cell, Table

SIZES: Final = (4096, 8192, 16384)
METHODS: Final = ("strassen", "winograd")
COLUMNS: Final = ("printed", "computed", "difference")
LEVELS: Final = {1: "one", 2: "two", 3: "three", 4: "four"}


def formula_cells(printed: str, computed: Polynomial, variable: str = "n") -> tuple[str, str, str]:
    """Return the cells printed, computed, difference of a closed form."""
    return printed, computed.text(variable), (computed - Polynomial.parse(printed)).text(variable)


def half_away_from_zero(x: Fraction, digits: int = 1) -> Fraction:
    """Return x rounded half away from zero to this number of decimal places."""
    scaled = Decimal(x.numerator * 10**digits) / Decimal(x.denominator)
    return Fraction(int(scaled.to_integral_value(ROUND_HALF_UP)), 10**digits)


def percent_cells(printed: str | None, computed: Fraction) -> tuple[Cell, ...]:
    """Return printed, computed (unrounded), and the difference of the rounded value."""
    if printed is None:
        return None, float(computed), None
    return float(printed), float(computed), float(half_away_from_zero(computed) - Fraction(printed))


def number_cells(printed: Cell, computed: int | Fraction | float) -> tuple[Cell, ...]:
    """Return the cells printed, computed, difference of a number."""
    assert isinstance(printed, int | float | Fraction)
    return printed, computed, computed - printed


# Figure 11: kernel, transactions, volume; for product kernels the amounts that they add to T and V.
FIGURE_11: Final[tuple[tuple[str, str, str], ...]] = (
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

GPU8: Final = ("2n^3 - n^2", "17n^3/4096 + n^2/16", "9n^3/32 + 4n^2")

# Figures 14, 17, 18, 19: levels -> method -> arithmetics, transactions, volume.
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

# Figures 15, 20, 21, 22: levels -> method -> arithmetics, transactions, volume at each of SIZES, percent.
PERCENTAGES: Final[Mapping[int, Mapping[str, tuple[tuple[str, str, str], ...]]]] = {
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

CLOSED_FORM_FIGURES: Final = {1: 14, 2: 17, 3: 18, 4: 19}
PERCENT_FIGURES: Final = {1: 15, 2: 20, 3: 21, 4: 22}


# ---- Figure 11


def li_fig11() -> Table:
    """Transactions and volume of every kernel, from what it reads and writes."""
    rows = [_kernel_row(name, q, p) for name, *both in FIGURE_11 for q, p in zip(QUANTITIES[1:], both, strict=True)]
    rows += [
        ("sgemm (CUBLAS 3.0)", q, *formula_cells(printed, LEAVES["sgemm"][q], "m"))
        for q, printed in zip(QUANTITIES[1:], ("5m^3/1024 + m^2/16", "5m^3/16 + 4m^2"), strict=True)
    ]
    notes = (
        "Product kernels after mul: what is added to T and V, mul's own transactions and volume.",
        "The last two rows are printed in section 4.",
    )
    return Table("li-fig11", "Figure 11: kernels on m x m blocks", ("kernel", "quantity", *COLUMNS), tuple(rows), notes)


def _kernel_row(name: str, quantity: Quantity, printed: str) -> tuple[Cell, ...]:
    base = LEAVES["gpu8"][quantity] if name == "mul" else Polynomial()
    found = li_counts.kernel_cost(kernel_table()[name], quantity, base)
    return name, quantity, *formula_cells(printed, found, "m")


# ---- Figures 14, 17, 18, 19 and 15, 20, 21, 22


def _closed_forms(k: int) -> Table:
    methods = {"gpu8": GPU8, **CLOSED_FORMS[k]}
    rows = tuple(
        (method, q, *formula_cells(p, li_counts.polynomial(q, method, 0 if method == "gpu8" else k)))
        for method, printed in methods.items()
        for q, p in zip(QUANTITIES, printed, strict=True)
    )
    figure = CLOSED_FORM_FIGURES[k]
    title = f"Figure {figure}: {LEVELS[k]}-level multiplication of n x n matrices"
    return Table(f"li-fig{figure}", title, ("method", "quantity", *COLUMNS), rows)


def _percentages(k: int) -> Table:
    rows = tuple(
        (n, method, q, *percent_cells(printed, li_counts.reduction(q, method, k, n)))
        for i, n in enumerate(SIZES)
        for method in METHODS
        for q, printed in zip(QUANTITIES, PERCENTAGES[k][method][i], strict=True)
    )
    figure = PERCENT_FIGURES[k]
    title = f"Figure {figure}: percent reduction relative to GPU8, {LEVELS[k]} level{'s' * (k > 1)}"
    notes = ("Section 7.2 says that A(1,n), T(1,n), V(1,n) are in Figure 15; they are in Figure 14.",) if k == 1 else ()
    return Table(f"li-fig{figure}", title, ("n", "method", "quantity", *COLUMNS), rows, notes)


def li_fig14() -> Table:
    """One level: closed forms."""
    return _closed_forms(1)


def li_fig15() -> Table:
    """One level: percent reduction."""
    return _percentages(1)


def li_fig17() -> Table:
    """Two levels: closed forms."""
    return _closed_forms(2)


def li_fig18() -> Table:
    """Three levels: closed forms."""
    return _closed_forms(3)


def li_fig19() -> Table:
    """Four levels: closed forms."""
    return _closed_forms(4)


def li_fig20() -> Table:
    """Two levels: percent reduction."""
    return _percentages(2)


def li_fig21() -> Table:
    """Three levels: percent reduction."""
    return _percentages(3)


def li_fig22() -> Table:
    """Four levels: percent reduction."""
    return _percentages(4)


# Section 6: calls of each group of kernels, then totals beside 7T and 7V, and the totals in n.
CALLS: Final = {
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
TOTALS: Final = {"strassen": ("7m^2/4", "172m^2"), "winograd": ("11m^2/8", "136m^2")}


def li_section6() -> Table:
    """One level: kernel calls, totals."""
    rows: list[tuple[Cell, ...]] = []
    for method in METHODS:
        rows += [(method, f"calls of {names}", *number_cells(n, _calls(method, names))) for names, n in CALLS[method]]
        rows.append((method, "products, the 7 of 7T and 7V", *number_cells(7, _one_level(method).products)))
        for q, printed in zip(QUANTITIES[1:], TOTALS[method], strict=True):
            beside = li_counts.table_cost(_one_level(method), q, Polynomial())
            rows.append((method, f"{q} beside the products'", *formula_cells(printed, beside, "m")))
        for q, printed in zip(QUANTITIES[1:], CLOSED_FORMS[1][method][1:], strict=True):
            rows.append((method, q, *formula_cells(printed, li_counts.polynomial(q, method, 1))))
    rows += _summary("reduction in {}, percent (about 12)", 12, (1,), SIZES[-1:])
    notes = (
        "No contradiction: 10 x 12 + 2 x 12 + 8 + 8 + 12 = 172, and (7 x 4 + 172)/4 = 50.",
        "About 12 percent holds at n = 16384; at n = 4096 volume falls by 8.5 (Strassen) and 9.3 percent (Winograd).",
    )
    return Table("li-section6", "Section 6: one level, the text", ("method", "number", *COLUMNS), tuple(rows), notes)


def _one_level(method: str) -> StepTable:
    return step_table(STEP_TABLES[method][0])


def _calls(method: str, names: str) -> int:
    found = _one_level(method).kernel_counts
    return sum(found.get(name, 0) for name in names.split(", "))


def _summary(text: str, printed: int, levels: Sequence[int], sizes: Sequence[int]) -> list[tuple[Cell, ...]]:
    """The text's rounded expectations: differences are of the whole percents."""
    found: list[tuple[Cell, ...]] = []
    for k, n, q in product(levels, sizes, QUANTITIES):
        computed = li_counts.reduction(q, "strassen", k, n)
        found.append(
            ("strassen", text.format(q), printed, float(computed), float(half_away_from_zero(computed, 0) - printed))
        )
    return found


# Section 7: per level, beside seven times the level below, in n; and the blocks read or written.
INCREMENTS: Final = {
    "strassen": ("9n^2/2", "51n^2/128", "51n^2"),
    "winograd": ("15n^2/4", "41n^2/128", "41n^2"),
}
BLOCKS: Final = {"strassen": 51, "winograd": 41}
EXPECTED: Final = ((3, 26, 33), (4, 29, 41))  # section 7.1, n = 16384: levels, least and most percent


def li_section7() -> Table:
    """More levels: recurrences, workspace, expectations."""
    rows: list[tuple[Cell, ...]] = []
    for method in METHODS:
        outer = step_table(STEP_TABLES[method][1])
        moved = sum(len(s.kernel.reads) + len(s.kernel.writes) for s in outer.steps if not s.kernel.product)
        rows.append((method, "blocks read and written in a level", *number_cells(BLOCKS[method], moved)))
        for q, printed in zip(QUANTITIES, INCREMENTS[method], strict=True):
            found = li_counts.table_cost(outer, q, Polynomial()).at_half()
            rows.append((method, f"{q} of a level", *formula_cells(printed, found)))
    rows += [_standalone("strassen", 12), _standalone("winograd", 10)]
    rows += _summary("two levels, {} (about 20)", 20, (2,), SIZES[-1:])
    for k, least, most in EXPECTED:
        rows += [_extreme(k, "least", least), _extreme(k, "most", most)]
    return Table("li-section7", "Section 7: the text", ("method", "number", *COLUMNS), tuple(rows), _SECTION_7_NOTES)


def _standalone(method: str, printed: int) -> tuple[Cell, ...]:
    outer = step_table(STEP_TABLES[method][1])
    found = sum(1 for s in outer.steps if not s.kernel.product and len(s.kernel.reads) + len(s.kernel.writes) == 3)
    return method, "kernels that read two blocks and write one", *number_cells(printed, found)


def _extreme(k: int, which: Literal["least", "most"], printed: int) -> tuple[Cell, ...]:
    found = sorted(li_counts.reduction(q, "strassen", k, SIZES[-1]) for q in QUANTITIES)
    computed = found[0 if which == "least" else -1]
    name = f"{LEVELS[k]} levels, {which} of the three percents"
    return "strassen", name, printed, float(computed), float(half_away_from_zero(computed, 0) - printed)


_SECTION_7_NOTES: Final = (
    "Winograd: 15 additions a level follow if (C12, C11) = (C11 + C12 + T1, C11 + C21 + T1) of Figure 23 forms "
    "C11 + T1 once. As printed it has four additions, not three, and A(k,n) would grow by 16n^2/4.",
    "Section 7.2 refers to Figure 15 for A(1,n), T(1,n), V(1,n); they are in Figure 14.",
    "The two-level text is consistent: T(2,n) = 7 x 35/256 + 51/128 = 347/256 n^2, V(2,n) = 7 x 50/4 + 51 = 277/2 n^2, "
    "A(2,n) = -49/16 + 126/16 + 72/16 = 149/16 n^2. Volume and transactions of Figure 23: 10 x 3 + 6 + 5 = 41.",
    "26 percent for three levels is 26.7 cut off; 'about 20' for two levels is 20.5 (volume) to 23.4 (arithmetics).",
)


FORMULA_TABLES: Final = (
    *(li_fig11, li_fig14, li_fig15, li_fig17, li_fig18, li_fig19, li_fig20, li_fig21, li_fig22),
    *(li_section6, li_section7),
)
