"""Li, Ranka and Sahni (2011): the steps that its figures print, its counts, and the recurrences of section 7."""

from __future__ import annotations

from fmm.perfmodel.papers import li_formulas
from fmm.perfmodel.papers.li_counts import PRODUCT_COUNTS, QUANTITIES, Polynomial, Quantity

# ---- steps, in their order

FIGURE_2 = """
C12=A21-A11 C21=B11+B12 C22=C12*C21 C12=A12-A22 C21=B21+B22 C11=C12*C21 C12=A11+A22 C21=B11+B22 T1=C12*C21 C11=T1+C11
C22=T1+C22 T2=A21+A22 C21=T2*B11 C22=C22-C21 T1=B21-B11 T2=A22*T1 C21=C21+T2 C11=C11+T2 T1=B12-B22 C12=A11*T1
C22=C22+C12 T2=A11+A12 T1=T2*B22 C12=C12+T1 C11=C11-T1
"""

FIGURE_3 = """
T1=A11-A21 T2=B22-B12 C21=T1*T2 T1=A21+A22 T2=B12-B11 C22=T1*T2 T1=T1-A11 T2=B22-T2 C11=T1*T2 T1=A12-T1 C12=T1*B22
C12=C22+C12 T1=A11*B11 C11=C11+T1 C12=C11+C12 C11=C11+C21 T2=T2-B21 C21=A22*T2 C21=C11-C21 C22=C11+C22 C11=A12*B21
C11=T1+C11
"""

FIGURE_12 = """
sub(A21,A11,C12) add(B11,B12,C21) mul(C12,C21,C22) sub(A12,A22,C12) add(B21,B22,C21) mul(C12,C21,C11) add(A11,A22,C12)
add(B11,B22,C21) mulIncInc(C12,C21,C11,C22) add(A21,A22,T2) mulStoreDec(T2,B11,C21,C22) sub(B21,B11,T1)
mulIncInc(A22,T1,C21,C11) sub(B12,B22,T1) mulStoreInc(A11,T1,C12,C22) add(A11,A12,T2) mulIncDec(T2,B22,C12,C11)
"""  # the right column

FIGURE_13 = """
sub(A11,A21,T1) sub(B22,B12,T2) mul(T1,T2,C21) add(A21,A22,T1) sub(B12,B11,T2) mul(T1,T2,C22) sub(T1,A11,T1)
sub(B22,T2,T2) mul(T1,T2,C11) sub(A12,T1,T1) mulAdd(T1,B22,C22,C12) mulIncIncInc(A11,B11,T1,C21,C11,C12)
sub(T2,B21,T2) mulSubInc(A22,T2,C11,C21,C22) mulAdd(A12,B21,T1,C11)
"""  # the right column

# ---- counts

FIGURE_11_KERNELS = {
    # kernel -> transactions beyond those of mul, in units of m^2/16 (one reads or writes one m x m matrix)
    "mul": 0,
    "mulIncInc": 3,
    "mulIncDec": 3,
    "mulStoreDec": 2,
    "mulStoreInc": 2,
    "mulAdd": 1,
    "mulIncIncInc": 5,
    "mulSubInc": 3,
}


SECTION_6 = [
    # (table, adds and subs together, the products, volume beyond that of seven products, in bytes per m^2)
    ("li-fig12", 10, {"mul": 2, "mulIncInc": 2, "mulStoreDec": 1, "mulStoreInc": 1, "mulIncDec": 1}, 172),
    ("li-fig13", 8, {"mul": 3, "mulAdd": 2, "mulIncIncInc": 1, "mulSubInc": 1}, 136),
]


SECTION_7 = [
    # (table, steps of one output, steps of two outputs, quarter-matrices read and written by them per level)
    ("li-fig16", 12, 3, 51),
    ("li-fig23", 10, 2, 41),
]


PLAIN_ADDITIONS = {"li-fig2": 18, "li-fig3": 15}


# Kernel calls as the figures print them. Figure 12: 10 add and sub, 7 products; Figure 13: 8 and 7. Figure 16: 10 sums
# of operands and 5 updates around 7 products; Figure 23: 8 and 4.
CALLS_OF_ONE_LEVEL = {"strassen": 10 + 7, "winograd": 8 + 7}
CALLS_AROUND_PRODUCTS = {"strassen": 10 + 5, "winograd": 8 + 4}


# ---- recurrences


def recurrence(quantity: Quantity, method: str, k: int) -> Polynomial:
    """Section 6's totals, then section 7: seven times the level below at n/2, plus the printed increment."""
    if k == 0:
        return PRODUCT_COUNTS["gpu8"][quantity]
    first = {
        ("strassen", "arithmetics"): "18n^2/4",
        ("strassen", "transactions"): "7n^2/16",
        ("strassen", "volume"): "172n^2/4",
        ("winograd", "arithmetics"): "15n^2/4",
        ("winograd", "transactions"): "11n^2/32",
        ("winograd", "volume"): "136n^2/4",
    }
    increment = (
        first[method, quantity] if k == 1 else li_formulas.SECTION_7_INCREMENTS[method][QUANTITIES.index(quantity)]
    )
    return recurrence(quantity, method, k - 1).with_half_argument().scaled_by(7) + Polynomial.parse(increment)
