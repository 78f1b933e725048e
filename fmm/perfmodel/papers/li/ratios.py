"""Li, Ranka and Sahni (2011), section 8: ratios of the text, computed from the numbers of its figures."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from fmm.kernels.plans.levels.scheme_text import level
from fmm.kernels.plans.lower import lower_level
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.papers.li.cells import COLUMNS, METHODS, half_away_from_zero
from fmm.perfmodel.papers.li.errors import AVERAGE, MAXIMUM
from fmm.perfmodel.papers.table import Cell, Table


def li_section8() -> Table:
    """Ratios in the text of section 8 from the numbers of its figures."""
    rows = tuple((what, *_to_the_digit(printed, x)) for what, printed, x in (*_error_ratios(), *_times()))
    notes = (
        "'13 fold' and '17 fold' for one level of Strassen do not follow from Figures 32 and 34: 3.3e-3/3.9e-4 = 8.5 "
        "and 1.1e-7/3.3e-8 = 3.3 (1.7 with Figure 34's own 6.6e-8).",
        "'200 times' and 'almost 213 fold' are the same ratio, 8.3e-2/3.9e-4 = 212.8; 5151 is 5151.5 cut off.",
        "The abstract has maximum errors 'about 2 orders of magnitude' up for both; Winograd's 1615 is three.",
        "Temporaries: two quarters a level, n^2/2 (1 + 1/4 + ...) <= 2n^2/3; three give n^2, as the text says.",
    )
    return Table("li-section8", "Section 8: ratios in the text", ("number", *COLUMNS), rows, notes)


def _to_the_digit(printed: str, computed: float) -> tuple[Cell, ...]:
    """The difference after rounding to the digits printed."""
    digits = len(printed.partition(".")[2])
    return float(printed), computed, float(half_away_from_zero(Fraction(computed), digits) - Fraction(printed))


def _error_ratios() -> tuple[tuple[str, str, float], ...]:
    smax, wmax, savg, wavg = (x[m] for x in (MAXIMUM, AVERAGE) for m in METHODS)
    return (
        ("maximum error, Strassen, four levels", "200", smax[4] / smax[0]),
        ("maximum error, Strassen, four levels (8.1.3)", "213", smax[4] / smax[0]),
        ("average error, Strassen, four levels", "424", savg[4] / savg[0]),
        ("maximum error, Winograd, four levels", "1615", wmax[4] / wmax[0]),
        ("average error, Winograd, four levels", "5151", wavg[4] / wavg[0]),
        ("maximum error, Winograd to Strassen", "7.6", wmax[4] / smax[4]),
        ("average error, Winograd to Strassen", "12", wavg[4] / savg[4]),
        ("maximum error, Strassen, one level", "13", smax[1] / smax[0]),
        ("average error, Strassen, one level", "17", savg[1] / savg[0]),
        ("temporaries of two a level over n^2, at most", "0.667", _temporaries()),
    )


def _temporaries(n: int = 64) -> float:
    """Elements of Figure 2's temporaries at all levels over n^2: one level's, then a quarter of that, and so on."""
    steps = lower_level(Plan((level("li-fig2"),)), n, n, n)
    assert steps is not None
    own = Fraction(sum(rows * cols for _, rows, cols in steps.temporaries), n * n)
    return float(own / (1 - Fraction(1, 4)))


# Section 8 and Figure 37: what, printed percent, slower and faster seconds.
SGEMM: Final = 23.699
SPEEDUPS: Final = (
    ("tStrassen over Strassen", "2.7", 16.561, 16.107),
    ("tWinograd over Winograd", "3.5", 16.425, 15.846),
    ("Strassen over sgemm", "30.1", SGEMM, 16.561),
    ("Strassen over GPU8", "27.9", 22.971, 16.561),
    ("tWinograd over sgemm", "33.1", SGEMM, 15.846),
    ("tWinograd over GPU8", "31.0", 22.971, 15.846),
    ("Strassen over sgemm, n = 8192 (8.2)", "21", 2.966, 2.344),
    ("Winograd over sgemm, n = 8192 (8.2)", "21.5", 2.966, 2.329),
    ("dStrassen over dgemm, n = 4096", "11.4", 0.456, 0.404),
    ("dWinograd over dgemm, n = 4096", "11.8", 0.456, 0.402),
    ("dStrassen over dgemm, n = 8192", "20.2", 3.634, 2.900),
    ("dWinograd over dgemm, n = 8192", "21.0", 3.634, 2.870),
)
# Figures 36 and 37: seconds at one to four levels, then speedups over sgemm and over GPU8.
FIGURE_37: Final = (
    ("Strassen", (20.223, 18.025, 16.561, 16.855), ("14.7", "23.9", "30.1", "28.9"), ("12.0", "21.5", "27.9", "26.6")),
    ("tStrassen", (20.167, 17.967, 16.374, 16.107), ("14.9", "24.2", "30.9", "32.0"), ("12.2", "21.8", "28.7", "29.9")),
    ("Winograd", (20.208, 17.970, 16.425, 16.555), ("14.7", "24.2", "30.7", "30.1"), ("12.0", "21.8", "28.5", "27.9")),
    ("tWinograd", (20.152, 17.902, 16.232, 15.846), ("15.0", "24.5", "31.5", "33.1"), ("12.3", "22.1", "29.3", "31.0")),
)


def _times() -> list[tuple[str, str, float]]:
    rows = [(f"{what}, percent", printed, 100 * (1 - fast / slow)) for what, printed, slow, fast in SPEEDUPS]
    for name, seconds, *speedups in FIGURE_37:
        for base, slow, printed in zip(("sgemm", "GPU8"), (SGEMM, 22.971), speedups, strict=True):
            for k, (fast, percent) in enumerate(zip(seconds, printed, strict=True), 1):
                rows.append((f"Figure 37: {name}, {k}-level, over {base}", percent, 100 * (1 - fast / slow)))
    return rows


TABLES: Final = (li_section8,)
