"""D'Alberto and Nicolau (2007), and D'Alberto's post on Brent's analysis of Strassen's algorithm."""

from __future__ import annotations

from math import ceil


def equation_2(m: int, n: int, p: int, ratio: float) -> bool:
    """As printed, with the paper's names: true if the product goes to the vendor."""
    left = ceil(m / 2) * ceil(n / 2) * ceil(p / 2)
    return left <= ratio / 2 * (5 * ceil(n / 2) * (ceil(m / 2) + ceil(p / 2)) + 3 * m * p)


# The post's equations. A name in braces marks a misprint: MEANT has the corrected text, PRINTED the printed one.
THE_POST = """
name    blog
source  D'Alberto's post: Brent's Strassen
size    2 2 2

M1 = (A11 - A12)(B22)
M2 = (A21 - A22)(B11)
M3 = (A22)(B11 + B21)
M4 = (A11)({P3})
M5 = (A11 - A22)(B22 - B11)
M6 = (A11 - A21)(B11 + B12)
M7 = (A12 - A22)(B21 + B22)

C11 = M1 {s} M3 - M5 + M7
C12 = M4 - M1
C21 = M2 + M3
C22 = - M2 {t} M4 - M5 {q} M6
"""

MEANT = {"P3": "B12 + B22", "s": "+", "t": "+", "q": "-"}
PRINTED = {"P3": "B11 + B22", "s": "-", "t": "-", "q": "+"}
