"""Li, Ranka and Sahni (2011): reductions by size, beside that of the run time; and their runs as plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from fmm.perfmodel.papers.li import counts, thresholds
from fmm.perfmodel.papers.li.cells import COLUMNS, SIZES, percent_cells
from fmm.perfmodel.papers.li.closed_forms import PERCENTAGES
from fmm.perfmodel.papers.li.counts import QUANTITIES
from fmm.perfmodel.papers.table import Table

# Figure 24: seconds on the C1060 at n = 2048, 4096, 8192, 16384; only the best tau2 (4096) is printed without texture.
CURVE_SIZES: Final = (2048, *SIZES)
SECONDS: Final[Mapping[str, tuple[float, ...]]] = {
    "gpu8": (0.046, 0.361, 2.875, 22.971),
    "strassen": (0.046, 0.329, 2.344, 16.561),
    "winograd": (0.046, 0.328, 2.329, 16.425),
}
# Figure 36, four levels at n = 16384, is tau2 = 2048.
SECONDS_2048: Final = {"strassen": 16.855, "winograd": 16.555}


def reduction_curve(
    method: str, tau2: int, sizes: Sequence[int] = CURVE_SIZES
) -> tuple[tuple[int, int, Fraction, Fraction, Fraction], ...]:
    """(n, levels, percent reduction in arithmetics, transactions, volume) with tau1 = tau2/2."""
    rows = []
    for n in sizes:
        k = counts.levels(n, tau2)
        arithmetics, transactions, volume = (counts.reduction(q, method, k, n) for q in QUANTITIES)
        rows.append((n, k, arithmetics, transactions, volume))
    return tuple(rows)


def _curves(figure: int, method: str, tau2: int) -> Table:
    """A figure's analytical curves beside the same percentages where Figures 15 and 20 to 22 print them."""
    rows = []
    for i, (n, k, *percents) in enumerate(reduction_curve(method, tau2)):
        printed = PERCENTAGES[k][method][SIZES.index(n)] if k and n in SIZES else (None,) * 3
        cells = [cell for p, x in zip(printed, percents, strict=True) for cell in percent_cells(p, x)]
        rows.append((n, k, *cells, _measured(method, tau2, i)))
    columns = ("n", "levels", *(f"{q} {c}" for q in QUANTITIES for c in COLUMNS), "run time (measured)")
    title = f"Figure {figure}: percent reduction relative to GPU8, {method}, tau2 = {tau2}"
    return Table(f"li-fig{figure}", title, columns, tuple(rows), _CURVE_NOTES)


def _measured(method: str, tau2: int, i: int) -> float | None:
    """The measured reduction in run time, from Figures 24 and 36."""
    last = SECONDS_2048[method] if CURVE_SIZES[i] == SIZES[-1] else None
    seconds = SECONDS[method][i] if tau2 == 4096 else last
    return None if seconds is None else 100 * (1 - seconds / SECONDS["gpu8"][i])


_CURVE_NOTES: Final = (
    "The figure is a plot without numbers; printed are the percentages of Figures 15 and 20 to 22 for its n and k.",
    "run time: from the seconds of Figure 24 (tau2 = 4096) and Figure 36 (tau2 = 2048, n = 16384); not computed.",
)


def li_fig26() -> Table:
    """Strassen, tau2 = 4096."""
    return _curves(26, "strassen", 4096)


def li_fig27() -> Table:
    """Winograd, tau2 = 4096."""
    return _curves(27, "winograd", 4096)


def li_fig28() -> Table:
    """Strassen, tau2 = 2048."""
    return _curves(28, "strassen", 2048)


def li_fig29() -> Table:
    """Winograd, tau2 = 2048."""
    return _curves(29, "winograd", 2048)


# Figure 24: the printed code, its method, the best tau2, and the leaf that is its GPU8.
CODES: Final = (
    ("Strassen", "strassen", 4096, "tile.gpu8"),
    ("tStrassen", "strassen", 2048, "tile.gpu8.texture"),
    ("Winograd", "winograd", 4096, "tile.gpu8"),
    ("tWinograd", "winograd", 2048, "tile.gpu8.texture"),
)


def li_plans() -> Table:
    """Figure 24: each run as a plan of fmm's."""
    rows = tuple(
        (code, n, tau2 // 2, tau2, str(thresholds.plan(method, n, tau2 // 2, tau2, leaf)))
        for code, method, tau2, leaf in CODES
        for n in CURVE_SIZES
    )
    title = "Figure 24: the runs as plans; up to tau1 GPU8 alone, up to tau2 one level, else recursive"
    return Table("li-plans", title, ("code", "n", "tau1", "tau2", "plan"), rows, ())


TABLES: Final = (li_fig26, li_fig27, li_fig28, li_fig29, li_plans)
