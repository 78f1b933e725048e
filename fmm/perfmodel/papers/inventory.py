"""List every figure and table of the five sources, and state whether fmm computes, measures or runs each figure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from fmm.perfmodel.papers.table import PaperTable

EntryStatus = Literal["measured", "measurable", "computed", "runs", "not measured"]


class PaperFigure(NamedTuple):
    """A figure or table of a source, and whether fmm computes, measures or runs the figure."""

    source: str
    figure: str
    what: str
    done: EntryStatus
    # names of tables, separated by blanks, if fmm computes or measures the figure; else a text about the part of fmm
    see: str
    on: str = ""  # devices with samples of the figure in results/


LI, HUANG, DALBERTO, SFORZA, DALBERTO_POSTS, FMM_ITSELF = (
    "Li, Ranka, Sahni", "Huang, Yu, van de Geijn", "D'Alberto, Nicolau", "Sforza", "D'Alberto's posts", "fmm",
)  # fmt: skip

CPU, H200, CPU_AND_H200, H200_IN_PART = "CPU", "H200", "CPU, H200", "H200 in part"

INVENTORY_ROWS: Final = (
    PaperFigure(LI, "Figure 1", "blocks of A, B and C", "runs", "the blocks of every scheme <2,2,2>"),
    PaperFigure(LI, "Figure 2", "steps of Strassen's algorithm", "runs", "the step table li-fig2"),
    PaperFigure(LI, "Figure 3", "steps of Winograd's variant (Douglas et al.)", "runs", "the step table li-fig3"),
    PaperFigure(LI, "Figures 4 to 6", "the hardware of a C1060", "not measured", "pictures; its datasheet is a row"),
    PaperFigure(LI, "Figures 7 to 9", "the code of GPU8", "runs", "the leaf tile.gpu8, by our kernel with its block"),
    PaperFigure(LI, "Figure 10", "a kernel that adds two matrices", "runs", "the sum kernel"),
    PaperFigure(LI, "Figure 11", "transactions and volume of the kernels", "computed", "li-fig11"),
    PaperFigure(LI, "Figure 12", "one-level Strassen by these kernels", "runs", "the step table li-fig12"),
    PaperFigure(LI, "Figure 13", "one-level Winograd by these kernels", "runs", "the step table li-fig13"),
    PaperFigure(LI, "Figure 14", "one level: counts", "computed", "li-fig14 li-section6"),
    PaperFigure(LI, "Figure 15", "one level: reductions", "computed", "li-fig15"),
    PaperFigure(LI, "Figure 16", "Strassen, recursive", "runs", "the step table li-fig16"),
    PaperFigure(
        LI, "Figures 17 to 19", "two to four levels: counts", "computed", "li-fig17 li-fig18 li-fig19 li-section7"
    ),
    PaperFigure(LI, "Figures 20 to 22", "two to four levels: reductions", "computed", "li-fig20 li-fig21 li-fig22"),
    PaperFigure(LI, "Figure 23", "Winograd, recursive", "runs", "the step table li-fig23"),
    PaperFigure(LI, "Figures 24, 25", "run time by size", "measured", "li-fig24 li-plans li-predicted", CPU_AND_H200),
    PaperFigure(LI, "section 8.1.1", "the best threshold", "measured", "li-tau2 li-tau2-best", CPU_AND_H200),
    PaperFigure(
        LI,
        "Figures 26 to 29",
        "reductions beside that of time",
        "measured",
        "li-fig26 li-fig27 li-fig28 li-fig29",
        CPU_AND_H200,
    ),
    PaperFigure(LI, "Figure 30", "largest errors by size", "measured", "li-fig30", CPU_AND_H200),
    PaperFigure(LI, "Figure 31", "mean errors by size", "measured", "li-fig31", CPU_AND_H200),
    PaperFigure(
        LI, "Figures 32, 33", "largest errors by levels", "measured", "li-fig32 li-errors li-exchanged", CPU_AND_H200
    ),
    PaperFigure(
        LI, "Figures 34, 35", "mean errors by levels", "measured", "li-fig34 li-errors li-exchanged", CPU_AND_H200
    ),
    PaperFigure(LI, "Figure 36", "run time by levels", "measured", "li-fig36 li-section8", CPU_AND_H200),
    PaperFigure(LI, "Figures 37 to 39", "speedups by levels", "measured", "li-fig37 li-section8", CPU_AND_H200),
    PaperFigure(
        LI,
        "Figures 40 to 42",
        "double precision: time and speedup",
        "measured",
        "li-fig40 li-fig42 li-section8",
        CPU_AND_H200,
    ),
    PaperFigure(LI, "Figure 43", "double precision: errors", "measured", "li-fig43", CPU_AND_H200),
    PaperFigure(
        LI,
        "Figure 44",
        "double precision: errors of random matrices",
        "measured",
        "li-fig44 li-exchanged",
        CPU_AND_H200,
    ),
    PaperFigure(HUANG, "Figure 1", "break-even points", "measured", "huang-fig1", CPU_AND_H200),
    PaperFigure(HUANG, "Figure 2", "memory and threads of CUDA", "not measured", "a picture"),
    PaperFigure(HUANG, "Figure 3", "block sizes of CUTLASS", "computed", "huang-fig3"),
    PaperFigure(HUANG, "Figure 4", "the product with sums inside", "runs", "a fused level above the leaf tile"),
    PaperFigure(HUANG, "Figure 5", "the 49 products of two levels", "computed", "huang-fig6"),
    PaperFigure(HUANG, "Figure 6", "operands and variants", "computed", "huang-fig6"),
    PaperFigure(HUANG, "Figure 7", "products on two streams", "computed", "huang-fig7"),
    PaperFigure(HUANG, "Figure 8", "three sweeps of sizes", "measured", "huang-fig8", CPU_AND_H200),
    PaperFigure(HUANG, "Figure 9", "rates of the machine", "measured", "huang-fig9 huang-bounds", CPU_AND_H200),
    PaperFigure(HUANG, "Figure 10", "modelled and measured rates", "measured", "huang-fig10", H200),
    PaperFigure(HUANG, "section 5.2", "which strategies are admitted", "computed", "huang-admitted huang-footnote15"),
    PaperFigure(DALBERTO, "Table 1", "Balanced", "runs", "the level balanced(2)"),
    PaperFigure(DALBERTO, "Figure 1", "blocks that differ by a row or column", "runs", "the fringe unequal"),
    PaperFigure(DALBERTO, "Table 2", "HASA", "runs", "the step table hasa"),
    PaperFigure(
        DALBERTO,
        "Figure 2",
        "errors against Priest's summation",
        "measured",
        "dalberto-fig2 dalberto-fig2-ratio",
        CPU_AND_H200,
    ),
    PaperFigure(
        DALBERTO,
        "Figures 3 to 5",
        "Balanced, HASA, dynamic",
        "measured",
        "dalberto-fig3 dalberto-fig3-average",
        CPU_AND_H200,
    ),
    PaperFigure(DALBERTO, "Equation 1", "error bounds", "computed", "dalberto-bounds"),
    PaperFigure(DALBERTO, "Equations 2, 3", "when to recurse", "measured", "dalberto-n1", CPU_AND_H200),
    PaperFigure(DALBERTO, "Table 3", "recursion points of 17 systems", "computed", "dalberto-table3"),
    PaperFigure(
        DALBERTO,
        "Figures 6 to 9",
        "S-1, S-2, S-3 and HASA on squares",
        "measured",
        "dalberto-fig6 dalberto-n1",
        CPU_AND_H200,
    ),
    PaperFigure(SFORZA, "Algorithm 1", "AtA", "computed", "sforza-stop"),
    PaperFigure(SFORZA, "Figure 1", "one level by size", "measured", "sforza-sizes sforza-best", H200_IN_PART),
    PaperFigure(SFORZA, "Figure 2", "speedup by depth", "measured", "sforza-depths sforza-best", H200_IN_PART),
    PaperFigure(SFORZA, "Figure 3", "time by size", "measured", "sforza-seconds", H200_IN_PART),
    PaperFigure(SFORZA, "Figure 4", "speedup by size", "measured", "sforza-sizes", H200_IN_PART),
    PaperFigure(
        DALBERTO_POSTS, "Brent's Strassen", "the equations, with their slips", "runs", "the scheme strassen, proved"
    ),
    PaperFigure(DALBERTO_POSTS, "Equations 2 and 7", "Brent's bound and its 4^l", "computed", "dalberto-bounds"),
    PaperFigure(DALBERTO_POSTS, "Equations 1, 3 to 6", "the recurrence of the bound", "runs", "error_bound, proved"),
    PaperFigure(
        DALBERTO_POSTS, "Adaptive Winograd", "a schedule with S, T, P, U", "runs", "the step table adaptive-winograd"
    ),
    PaperFigure(
        DALBERTO_POSTS,
        "R-Kleene, 1(a) to (c)",
        "all-pairs shortest paths",
        "runs",
        "fmm.shortest_paths; no times are printed",
    ),
    PaperFigure(DALBERTO_POSTS, "3M", "complex products by three real ones", "runs", "the level 3m"),
    PaperFigure(FMM_ITSELF, "the papers' machines", "published numbers beside predictions", "computed", "cards"),
    PaperFigure(
        FMM_ITSELF, "error contract", "expected and measured growth", "measured", "error-growth error-growth-worst", CPU
    ),
    PaperFigure(FMM_ITSELF, "variants", "which scheme errs how much", "measured", "error-variants", CPU_AND_H200),
    PaperFigure(FMM_ITSELF, "scaling", "powers of two before a fast product", "measured", "error-scaled", CPU_AND_H200),
    PaperFigure(FMM_ITSELF, "budget", "max_error_growth on random problems", "measured", "error-budget", CPU),
)


def table_names(entries: Iterable[PaperFigure] = INVENTORY_ROWS) -> frozenset[str]:
    """Return the names of the tables that fmm prints for these entries of the inventory, from the field `see`."""
    with_names = ("measured", "measurable", "computed")
    return frozenset(name for x in entries if x.done in with_names for name in x.see.split())


# A figure's name, such as li-fig33, has the prefix of the source, then `fig` or `table`, and the number in the source.
SOURCE_PREFIXES: Final = {"li": LI, "huang": HUANG, "dalberto": DALBERTO, "sforza": SFORZA}
FIGURE_NAME_PATTERN: Final = re.compile(r"(?P<source>[a-z]+)-(?P<kind>fig|table)(?P<number>\d+)")
FIGURE_KIND_WORDS: Final = {"fig": "Figure", "table": "Table"}


def find_paper_figure(name: str) -> PaperFigure | None:
    """Return the entry of a figure or table by its name, such as li-fig33; None if the source has no such figure."""
    found = FIGURE_NAME_PATTERN.fullmatch(name)
    if found is None or found["source"] not in SOURCE_PREFIXES:
        return None
    for entry in INVENTORY_ROWS:
        if entry.source == SOURCE_PREFIXES[found["source"]] and entry.figure.startswith(
            FIGURE_KIND_WORDS[found["kind"]]
        ):
            first, *last = map(int, re.findall(r"\d+", entry.figure))
            if first <= int(found["number"]) <= (last or [first])[-1]:
                return entry
    return None


def table_name_of_figure(name: str) -> str | None:
    """Return the name of the table that shows a figure; None if the source has no such figure.

    A figure that is neither computed nor measured has a table under the figure's name with the entry as the only row.
    """
    entry = find_paper_figure(name)
    if entry is None:
        return None
    return entry.see.split()[0] if table_names([entry]) else name


def figure_status_table(name: str) -> PaperTable:
    """Return a table with the entry of a figure that is neither computed nor measured."""
    entry = find_paper_figure(name)
    assert entry is not None, name
    return PaperTable(
        name, f"{entry.source}, {entry.figure}: {entry.what}", INVENTORY_COLUMNS, (entry,), INVENTORY_NOTES[:1]
    )


INVENTORY_COLUMNS: Final = ("source", "figure", "what it shows", "done", "see", "measured on")
INVENTORY_NOTES: Final = (
    "measured: results/ has samples, and `python -m benchmarks papers NAME --measure` takes new samples. measurable: "
    "the command can measure the figure, but results/ has no samples yet. computed: `fmm-tune paper NAME` prints "
    "numbers that follow from the model. runs: fmm has the figure's algorithm, kernel or rule, and tests prove it.",
    "in part: only some sizes or codes were measured; `python -m benchmarks papers missing` lists incomplete "
    "experiments.",
)


def inventory_table() -> PaperTable:
    """Return a table of all entries."""
    what = "every figure and table of the five sources, and whether fmm computes, measures or runs it"
    return PaperTable("paper", what, INVENTORY_COLUMNS, INVENTORY_ROWS, INVENTORY_NOTES)
