"""Every figure and table of the five sources, and its counterpart in fmm."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from fmm.perfmodel.papers.table import Table

Done = Literal["measured", "measurable", "computed", "runs", "not measured"]


class Entry(NamedTuple):
    """A figure or table of a source; `see` names its tables and figures here, or the part of fmm that it became."""

    source: str
    figure: str
    what: str
    done: Done
    see: str  # names, separated by blanks, if it can be measured or is computed; else a sentence
    on: str = ""  # on which devices it was measured, as far as there are samples in results/


LI, HUANG, DALBERTO, SFORZA, POSTS, OWN = (
    "Li, Ranka, Sahni", "Huang, Yu, van de Geijn", "D'Alberto, Nicolau", "Sforza", "D'Alberto's posts", "fmm",
)  # fmt: skip

CPU, H200, BOTH = "CPU", "H200", "CPU, H200"

ENTRIES: Final = (
    Entry(LI, "Figure 1", "blocks of A, B and C", "runs", "the blocks of every scheme <2,2,2>"),
    Entry(LI, "Figure 2", "steps of Strassen's algorithm", "runs", "the step table li-fig2"),
    Entry(LI, "Figure 3", "steps of Winograd's variant (Douglas et al.)", "runs", "the step table li-fig3"),
    Entry(LI, "Figures 4 to 6", "the hardware of a C1060", "not measured", "pictures; its datasheet is a row"),
    Entry(LI, "Figures 7 to 9", "the code of GPU8", "runs", "the leaf tile.gpu8, by our kernel with its block"),
    Entry(LI, "Figure 10", "a kernel that adds two matrices", "runs", "the sum kernel"),
    Entry(LI, "Figure 11", "transactions and volume of the kernels", "computed", "li-fig11"),
    Entry(LI, "Figure 12", "one-level Strassen by these kernels", "runs", "the step table li-fig12"),
    Entry(LI, "Figure 13", "one-level Winograd by these kernels", "runs", "the step table li-fig13"),
    Entry(LI, "Figure 14", "one level: counts", "computed", "li-fig14 li-section6"),
    Entry(LI, "Figure 15", "one level: reductions", "computed", "li-fig15"),
    Entry(LI, "Figure 16", "Strassen, recursive", "runs", "the step table li-fig16"),
    Entry(LI, "Figures 17 to 19", "two to four levels: counts", "computed", "li-fig17 li-fig18 li-fig19 li-section7"),
    Entry(LI, "Figures 20 to 22", "two to four levels: reductions", "computed", "li-fig20 li-fig21 li-fig22"),
    Entry(LI, "Figure 23", "Winograd, recursive", "runs", "the step table li-fig23"),
    Entry(LI, "Figures 24, 25", "run time by size", "measured", "li-fig24 li-plans", BOTH),
    Entry(LI, "section 8.1.1", "the best threshold", "measured", "li-tau2 li-tau2-best", BOTH),
    Entry(
        LI,
        "Figures 26 to 29",
        "reductions beside that of time",
        "measured",
        "li-fig26 li-fig27 li-fig28 li-fig29",
        BOTH,
    ),
    Entry(LI, "Figure 30", "largest errors by size", "measured", "li-fig30", BOTH),
    Entry(LI, "Figure 31", "mean errors by size", "measured", "li-fig31", BOTH),
    Entry(LI, "Figures 32, 33", "largest errors by levels", "measured", "li-fig32 li-errors li-exchanged", BOTH),
    Entry(LI, "Figures 34, 35", "mean errors by levels", "measured", "li-fig34 li-errors li-exchanged", BOTH),
    Entry(LI, "Figure 36", "run time by levels", "measured", "li-fig36 li-section8", BOTH),
    Entry(LI, "Figures 37 to 39", "speedups by levels", "measured", "li-fig37 li-section8", BOTH),
    Entry(
        LI, "Figures 40 to 42", "double precision: time and speedup", "measured", "li-fig40 li-fig42 li-section8", BOTH
    ),
    Entry(LI, "Figure 43", "double precision: errors", "measured", "li-fig43", BOTH),
    Entry(LI, "Figure 44", "double precision: errors of random matrices", "measured", "li-fig44 li-exchanged", BOTH),
    Entry(HUANG, "Figure 1", "break-even points", "measured", "huang-fig1", BOTH),
    Entry(HUANG, "Figure 2", "memory and threads of CUDA", "not measured", "a picture"),
    Entry(HUANG, "Figure 3", "block sizes of CUTLASS", "computed", "huang-fig3"),
    Entry(HUANG, "Figure 4", "the product with sums inside", "runs", "a fused level above the leaf tile"),
    Entry(HUANG, "Figure 5", "the 49 products of two levels", "computed", "huang-fig6"),
    Entry(HUANG, "Figure 6", "operands and variants", "computed", "huang-fig6"),
    Entry(HUANG, "Figure 7", "products on two streams", "computed", "huang-fig7"),
    Entry(HUANG, "Figure 8", "three sweeps of sizes", "measured", "huang-fig8", BOTH),
    Entry(HUANG, "Figure 9", "rates of the machine", "measured", "huang-fig9 huang-bounds", BOTH),
    Entry(HUANG, "Figure 10", "modelled and measured rates", "measured", "huang-fig10", H200),
    Entry(HUANG, "section 5.2", "which strategies are admitted", "computed", "huang-admitted huang-footnote15"),
    Entry(DALBERTO, "Table 1", "Balanced", "runs", "the level balanced(2)"),
    Entry(DALBERTO, "Figure 1", "blocks that differ by a row or column", "runs", "the fringe unequal"),
    Entry(DALBERTO, "Table 2", "HASA", "runs", "the step table hasa"),
    Entry(
        DALBERTO, "Figure 2", "errors against Priest's summation", "measured", "dalberto-fig2 dalberto-fig2-ratio", BOTH
    ),
    Entry(
        DALBERTO, "Figures 3 to 5", "Balanced, HASA, dynamic", "measured", "dalberto-fig3 dalberto-fig3-average", BOTH
    ),
    Entry(DALBERTO, "Equation 1", "error bounds", "computed", "dalberto-bounds"),
    Entry(DALBERTO, "Equations 2, 3", "when to recurse", "measured", "dalberto-n1", BOTH),
    Entry(DALBERTO, "Table 3", "recursion points of 17 systems", "computed", "dalberto-table3"),
    Entry(
        DALBERTO,
        "Figures 6 to 9",
        "S-1, S-2, S-3 and HASA on squares",
        "measured",
        "dalberto-fig6 dalberto-n1",
        BOTH,
    ),
    Entry(SFORZA, "Algorithm 1", "AtA", "computed", "sforza-stop"),
    Entry(SFORZA, "Figure 1", "one level by size", "measurable", "sforza-sizes sforza-best"),
    Entry(SFORZA, "Figure 2", "speedup by depth", "measurable", "sforza-depths sforza-best"),
    Entry(SFORZA, "Figure 3", "time by size", "measurable", "sforza-seconds"),
    Entry(SFORZA, "Figure 4", "speedup by size", "measurable", "sforza-sizes"),
    Entry(POSTS, "Brent's Strassen", "the equations, with their slips", "runs", "the scheme strassen, proved"),
    Entry(POSTS, "Equations 1 to 7", "Brent's bound and its 4^l", "computed", "dalberto-bounds"),
    Entry(POSTS, "Adaptive Winograd", "a schedule with S, T, P, U", "runs", "the step table adaptive-winograd"),
    Entry(
        POSTS, "R-Kleene, 1(a) to (c)", "all-pairs shortest paths", "runs", "fmm.shortest_paths; no times are printed"
    ),
    Entry(POSTS, "3M", "complex products by three real ones", "runs", "the level 3m"),
    Entry(OWN, "error contract", "expected and measured growth", "measured", "error-growth error-growth-worst", CPU),
    Entry(OWN, "variants", "which scheme errs how much", "measured", "error-variants", BOTH),
    Entry(OWN, "scaling", "powers of two before a fast product", "measured", "error-scaled", BOTH),
    Entry(OWN, "budget", "max_error_growth on random problems", "measured", "error-budget", CPU),
)


def named_in(entries: Iterable[Entry] = ENTRIES) -> frozenset[str]:
    """Return the names of tables and figures in `see`."""
    with_names = ("measured", "measurable", "computed")
    return frozenset(name for x in entries if x.done in with_names for name in x.see.split())


# The prefixes of the names of a source's figures.
PREFIXES: Final = {"li": LI, "huang": HUANG, "dalberto": DALBERTO, "sforza": SFORZA}
FIGURE_NAME: Final = re.compile(r"(?P<source>[a-z]+)-(?P<kind>fig|table)(?P<number>\d+)")
KINDS: Final = {"fig": "Figure", "table": "Table"}


def entry_of(name: str) -> Entry | None:
    """Return the line of a figure or table by its name in the paper, such as li-fig33; None if there is none."""
    found = FIGURE_NAME.fullmatch(name)
    if found is None or found["source"] not in PREFIXES:
        return None
    for entry in ENTRIES:
        if entry.source == PREFIXES[found["source"]] and entry.figure.startswith(KINDS[found["kind"]]):
            first, *last = map(int, re.findall(r"\d+", entry.figure))
            if first <= int(found["number"]) <= (last or [first])[-1]:
                return entry
    return None


def shown_by(name: str) -> str | None:
    """Return the name of the table that shows a figure of a paper; None if there is no such figure.

    A figure that is neither computed nor measured has a table under its own name: its line in the list.
    """
    entry = entry_of(name)
    if entry is None:
        return None
    return entry.see.split()[0] if named_in([entry]) else name


def entry_table(name: str) -> Table:
    """Return the line of a figure that is neither computed nor measured, as a table."""
    entry = entry_of(name)
    assert entry is not None, name
    return Table(name, f"{entry.source}, {entry.figure}: {entry.what}", COLUMNS, (entry,), NOTES[:1])


COLUMNS: Final = ("source", "figure", "what it shows", "done", "see", "measured on")
NOTES: Final = (
    "measured: there are samples in results/, and `python -m benchmarks papers NAME --measure` takes new ones. "
    "measurable: the same without samples so far. computed: `fmm-tune paper NAME` prints what follows from the model. "
    "runs: it is an algorithm or a kernel, which any plan may name.",
    "in part: of some sizes or codes; `python -m benchmarks papers missing` lists the incomplete experiments.",
)


def inventory() -> Table:
    """Return the list as a table."""
    what = "every figure and table of the five sources, and what was done about it"
    return Table("paper", what, COLUMNS, ENTRIES, NOTES)
