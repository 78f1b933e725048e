"""Li, Ranka and Sahni (2011): what their figures print of counts, beside ours: kernels, closed forms, reductions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fmm.kernels.algorithms.table_kernel import kernel_table
from fmm.perfmodel.papers.li import counts
from fmm.perfmodel.papers.li.cells import COLUMNS, LEVELS, METHODS, SIZES, compared, percent_cells
from fmm.perfmodel.papers.li.counts import LEAVES, QUANTITIES, Polynomial, Quantity
from fmm.perfmodel.papers.table import Cell, Table

# Figure 11: kernel, transactions, volume; of product kernels what they add to T and V.
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
        ("sgemm (CUBLAS 3.0)", q, *compared(printed, LEAVES["sgemm"][q], "m"))
        for q, printed in zip(QUANTITIES[1:], ("5m^3/1024 + m^2/16", "5m^3/16 + 4m^2"), strict=True)
    ]
    notes = (
        "Product kernels after mul: what is added to T and V, mul's own transactions and volume.",
        "The last two rows are printed in section 4.",
    )
    return Table("li-fig11", "Figure 11: kernels on m x m blocks", ("kernel", "quantity", *COLUMNS), tuple(rows), notes)


def _kernel_row(name: str, quantity: Quantity, printed: str) -> tuple[Cell, ...]:
    base = LEAVES["gpu8"][quantity] if name == "mul" else Polynomial()
    found = counts.kernel_cost(kernel_table()[name], quantity, base)
    return name, quantity, *compared(printed, found, "m")


# ---- Figures 14, 17, 18, 19 and 15, 20, 21, 22


def _closed_forms(k: int) -> Table:
    methods = {"gpu8": GPU8, **CLOSED_FORMS[k]}
    rows = tuple(
        (method, q, *compared(p, counts.polynomial(q, method, 0 if method == "gpu8" else k)))
        for method, printed in methods.items()
        for q, p in zip(QUANTITIES, printed, strict=True)
    )
    figure = CLOSED_FORM_FIGURES[k]
    title = f"Figure {figure}: {LEVELS[k]}-level multiplication of n x n matrices"
    return Table(f"li-fig{figure}", title, ("method", "quantity", *COLUMNS), rows)


def _percentages(k: int) -> Table:
    rows = tuple(
        (n, method, q, *percent_cells(printed, counts.reduction(q, method, k, n)))
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


TABLES: Final = (li_fig11, li_fig14, li_fig15, li_fig17, li_fig18, li_fig19, li_fig20, li_fig21, li_fig22)
