"""Cells of tables on Li, Ranka and Sahni (2011): what is printed, what is computed, and how they differ.

Closed forms are compared as polynomials, percentages after rounding to the printed digit (half away from zero; no
percentage of the paper is a tie, so half to even gives the same).
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Final

from fmm.perfmodel.papers.li.counts import Polynomial
from fmm.perfmodel.papers.table import Cell

SIZES: Final = (4096, 8192, 16384)
METHODS: Final = ("strassen", "winograd")
COLUMNS: Final = ("printed", "computed", "difference")
LEVELS: Final = {1: "one", 2: "two", 3: "three", 4: "four"}


def compared(printed: str, computed: Polynomial, variable: str = "n") -> tuple[str, str, str]:
    """The cells printed, computed, difference."""
    return printed, computed.text(variable), (computed - Polynomial.parse(printed)).text(variable)


def half_away_from_zero(x: Fraction, digits: int = 1) -> Fraction:
    """Half away from zero, to so many decimal places."""
    scaled = Decimal(x.numerator * 10**digits) / Decimal(x.denominator)
    return Fraction(int(scaled.to_integral_value(ROUND_HALF_UP)), 10**digits)


def percent_cells(printed: str | None, computed: Fraction) -> tuple[Cell, ...]:
    """Printed, computed (unrounded), and the difference of the rounded value."""
    if printed is None:
        return None, float(computed), None
    return float(printed), float(computed), float(half_away_from_zero(computed) - Fraction(printed))


def number_cells(printed: Cell, computed: int | Fraction | float) -> tuple[Cell, ...]:
    """A number in the text."""
    assert isinstance(printed, int | float | Fraction)
    return printed, computed, computed - printed
