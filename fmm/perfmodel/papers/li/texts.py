"""Li, Ranka and Sahni (2011), sections 6 and 7: the numbers of the text, beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final, Literal

from fmm.kernels.algorithms.step_table import StepTable, step_table
from fmm.perfmodel.papers.li import counts
from fmm.perfmodel.papers.li.cells import COLUMNS, LEVELS, METHODS, SIZES, compared, half_away_from_zero, number_cells
from fmm.perfmodel.papers.li.closed_forms import CLOSED_FORMS
from fmm.perfmodel.papers.li.counts import QUANTITIES, Polynomial
from fmm.perfmodel.papers.li.counts import TABLES as STEP_TABLES
from fmm.perfmodel.papers.table import Cell, Table

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
            beside = counts.table_cost(_one_level(method), q, Polynomial())
            rows.append((method, f"{q} beside the products'", *compared(printed, beside, "m")))
        for q, printed in zip(QUANTITIES[1:], CLOSED_FORMS[1][method][1:], strict=True):
            rows.append((method, q, *compared(printed, counts.polynomial(q, method, 1))))
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
        computed = counts.reduction(q, "strassen", k, n)
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
            found = counts.table_cost(outer, q, Polynomial()).halved()
            rows.append((method, f"{q} of a level", *compared(printed, found)))
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
    found = sorted(counts.reduction(q, "strassen", k, SIZES[-1]) for q in QUANTITIES)
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


TABLES: Final = (li_section6, li_section7)
