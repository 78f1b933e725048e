"""Compute the exact counts of Li, Ranka and Sahni (2011) for n x n matrices of float32 on a Tesla C1060.

For k levels of recursion the paper counts arithmetic operations A(k, n), memory transactions T(k, n) and volume V(k,
n). In this module the counts are polynomials in n, added up over the kernel calls of a step table. Each kernel call
counts the blocks that the kernel reads and writes. The paper's closed forms are in li_formulas.py, its recurrences in
tests/oracles/li.py; tests/perfmodel/papers/li/test_counts.py compares all three. The counts leave out time, caches and
launches. `threshold_plan` returns the plan that the paper's codes run for the thresholds tau1 and tau2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal, get_args

from fmm.kernels.algorithms import additions as programs
from fmm.kernels.algorithms.step_table import StepTable, TableKernel, step_table
from fmm.kernels.plans.plan import Plan

Quantity = Literal["arithmetics", "transactions", "volume"]
QUANTITIES: Final[tuple[Quantity, ...]] = get_args(Quantity)


# ---- exact polynomials


@dataclass(frozen=True, slots=True)
class Polynomial:
    """An exact polynomial c0 + c1 n + c2 n^2 + ..., with fractions as coefficients.

    The last coefficient is not 0, so that equal polynomials compare equal.
    """

    coefficients: tuple[Fraction, ...] = ()  # the coefficients c0, c1, c2, ...

    @staticmethod
    def from_coefficients(*coefficients: Fraction | int) -> Polynomial:
        """Return the polynomial with these coefficients of 1, n, n^2, ..."""
        found = [Fraction(c) for c in coefficients]
        while found and not found[-1]:
            found.pop()
        return Polynomial(tuple(found))

    def __add__(self, other: Polynomial) -> Polynomial:
        length = max(len(self.coefficients), len(other.coefficients))
        return Polynomial.from_coefficients(*(self[i] + other[i] for i in range(length)))

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + other.scaled_by(-1)

    def __getitem__(self, power: int) -> Fraction:
        return self.coefficients[power] if power < len(self.coefficients) else Fraction(0)

    def scaled_by(self, factor: Fraction | int) -> Polynomial:
        """Return the polynomial multiplied by a number."""
        return Polynomial.from_coefficients(*(factor * c for c in self.coefficients))

    def with_half_argument(self) -> Polynomial:
        """Return the polynomial q with q(n) = p(n/2), where p is this polynomial."""
        return Polynomial.from_coefficients(*(c / 2**i for i, c in enumerate(self.coefficients)))

    def __call__(self, n: Fraction | int) -> Fraction:
        return sum((c * Fraction(n) ** i for i, c in enumerate(self.coefficients)), Fraction(0))

    def formula_text(self, variable: str = "n") -> str:
        """Return the polynomial as text in the paper's notation, highest power first: 17n^3/4096 + n^2/16."""
        terms = [(c, power) for power, c in enumerate(self.coefficients) if c][::-1]
        words = [f"{'-' if c < 0 else '+'} {_monomial_text(abs(c), variable, power)}" for c, power in terms]
        return " ".join([words[0].replace("- ", "-").removeprefix("+ "), *words[1:]]) if words else "0"

    def __str__(self) -> str:
        return self.formula_text()

    @staticmethod
    def parse(text: str) -> Polynomial:
        """Return the polynomial of a text in the paper's notation; the variable is any single letter."""
        terms: dict[int, Fraction] = {}
        for term in text.replace("-", "+ -").split("+"):
            if term := term.replace(" ", ""):
                power, c = _parse_term(term, text)
                terms[power] = terms.get(power, Fraction(0)) + c
        return Polynomial.from_coefficients(*(terms.get(i, 0) for i in range(max(terms, default=-1) + 1)))


def _monomial_text(c: Fraction, variable: str, power: int) -> str:
    if not power:
        return str(c)
    top = "" if c.numerator == 1 else str(c.numerator)
    bottom = "" if c.denominator == 1 else f"/{c.denominator}"
    return f"{top}{variable}{'' if power == 1 else f'^{power}'}{bottom}"


_TERM_PATTERN = re.compile(r"(-?)(\d*)(?:([a-z])(?:\^(\d+))?)?(?:/(\d+))?")


def _parse_term(term: str, text: str) -> tuple[int, Fraction]:
    match = _TERM_PATTERN.fullmatch(term)
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"cannot read {text!r} as a polynomial: {term!r}")
    c = Fraction(int(match[2] or 1), int(match[5] or 1)) * (-1 if match[1] else 1)
    return int(match[4] or 1) if match[3] else 0, c


# ---- counts of kernels: sums, classical products, and products with sums inside


def _n_squared_term(c: Fraction | int) -> Polynomial:
    return Polynomial.from_coefficients(0, 0, c)


# The counts for each m x m block that `add` or `sub` reads or writes (section 5). Each of 16 threads accesses a float2
# (8 bytes) in a transaction of 128 bytes: m^2/32 transactions, 4 m^2 bytes.
SUM_BLOCK_COUNTS: Final[Mapping[Quantity, Polynomial]] = {
    "arithmetics": _n_squared_term(0),
    "transactions": _n_squared_term(Fraction(1, 32)),
    "volume": _n_squared_term(4),
}
# The counts for each m x m block that a product kernel such as mulIncInc reads or writes in addition to its A and B
# (section 5). Each of 16 threads accesses a float (4 bytes) in a transaction of 64 bytes: m^2/16 transactions, 4 m^2
# bytes.
PRODUCT_BLOCK_COUNTS: Final[Mapping[Quantity, Polynomial]] = {
    "arithmetics": _n_squared_term(0),
    "transactions": _n_squared_term(Fraction(1, 16)),
    "volume": _n_squared_term(4),
}


def _classical_product_counts(transactions: Fraction, volume: Fraction) -> Mapping[Quantity, Polynomial]:
    """Return the counts of a classical n x n product.

    Reads of A and B take `transactions` * n^3 transactions and `volume` * n^3 bytes. The counts include one write of C.
    """
    return {
        "arithmetics": Polynomial.from_coefficients(0, 0, -1, 2),
        "transactions": Polynomial.from_coefficients(0, 0, 0, transactions) + PRODUCT_BLOCK_COUNTS["transactions"],
        "volume": Polynomial.from_coefficients(0, 0, 0, volume) + PRODUCT_BLOCK_COUNTS["volume"],
    }


# Counts of the product kernels in section 4: GPU8, and sgemm of CUBLAS 3.0. GPU8 reads A in n^3/4096 transactions of
# 128 bytes and B in n^3/256 transactions of 64 bytes.
PRODUCT_COUNTS: Final[Mapping[str, Mapping[Quantity, Polynomial]]] = {
    "gpu8": _classical_product_counts(Fraction(1, 4096) + Fraction(1, 256), Fraction(128, 4096) + Fraction(64, 256)),
    "sgemm": _classical_product_counts(Fraction(5, 1024), Fraction(5, 16)),
}

# Method -> (step table of the innermost level, which has sums inside products; step table of each outer level).
METHOD_STEP_TABLES: Final[Mapping[str, tuple[str, str]]] = {
    "strassen": ("li-fig12", "li-fig16"),
    "winograd": ("li-fig13", "li-fig23"),
}
COUNTED_METHODS: Final = (*PRODUCT_COUNTS, *METHOD_STEP_TABLES)


@lru_cache(maxsize=256)
def kernel_additions(kernel: TableKernel) -> int:
    """Return the additions of a kernel for each element of a block; a sum that two outputs share is formed once.

    Section 7.2 of the paper counts 15 additions for a level of Figure 23. The kernel (C12, C11) = (C11 + C12 + T1, C11
    + C21 + T1) of Figure 23 must therefore form C11 + T1 once, with three additions instead of four.
    """
    program = kernel.addition_program
    return min(
        program.addition_count,
        programs.shared_sums_program(program.coefficient_matrix(), program.inputs).addition_count,
    )


def kernel_count_polynomial(kernel: TableKernel, quantity: Quantity, product: Polynomial) -> Polynomial:
    """Return the count of one kernel call on m x m blocks, as a polynomial in m.

    `product` is the count of a classical product of two blocks.
    """
    blocks = len(kernel.read_blocks) + len(kernel.written_blocks)
    additions = _n_squared_term(kernel_additions(kernel) if quantity == "arithmetics" else 0)
    if kernel.product is None:
        return SUM_BLOCK_COUNTS[quantity].scaled_by(blocks) + additions
    return product + PRODUCT_BLOCK_COUNTS[quantity].scaled_by(blocks - 1) + additions


def table_count_polynomial(table: StepTable, quantity: Quantity, product: Polynomial) -> Polynomial:
    """Return the count of all kernel calls of a step table on m x m blocks, as a polynomial in m."""
    counts = (kernel_count_polynomial(step.kernel, quantity, product) for step in table.steps)
    return sum(counts, Polynomial())


@lru_cache(maxsize=4096)
def count_polynomial(quantity: Quantity, scheme: str, k: int, leaf: str = "gpu8") -> Polynomial:
    """Return the count of k levels of a method as a polynomial in n; k = 0 is the product kernel `leaf`."""
    _check_arguments(scheme, k, leaf)
    if not k:
        return PRODUCT_COUNTS[scheme if scheme in PRODUCT_COUNTS else leaf][quantity]
    innermost, above = METHOD_STEP_TABLES[scheme]
    found = table_count_polynomial(step_table(innermost), quantity, PRODUCT_COUNTS[leaf][quantity]).with_half_argument()
    for _ in range(k - 1):
        found = table_count_polynomial(step_table(above), quantity, found).with_half_argument()
    return found


def _check_arguments(scheme: str, k: int, leaf: str) -> None:
    for what, value, valid in (("scheme", scheme, COUNTED_METHODS), ("leaf", leaf, tuple(PRODUCT_COUNTS))):
        if value not in valid:
            raise ValueError(f"unknown {what} {value!r}; valid: {', '.join(valid)}")
    if k < 0 or (k and scheme in PRODUCT_COUNTS):
        raise ValueError(f"{scheme} with k = {k} levels; k must be {'0' if scheme in PRODUCT_COUNTS else 'at least 0'}")


# ---- the paper's functions A(k, n), T(k, n) and V(k, n), and their reductions


def arithmetic_count(scheme: str, k: int, n: int, leaf: str = "gpu8") -> Fraction:
    """Return A(k, n), the number of additions and multiplications; a classical product has 2n^3 - n^2."""
    return _count_value("arithmetics", scheme, k, n, leaf)


def transaction_count(scheme: str, k: int, n: int, leaf: str = "gpu8") -> Fraction:
    """Return T(k, n), the number of device-memory transactions of 64 or 128 bytes."""
    return _count_value("transactions", scheme, k, n, leaf)


def volume_bytes(scheme: str, k: int, n: int, leaf: str = "gpu8") -> Fraction:
    """Return V(k, n), the volume in bytes that moves between device memory and multiprocessors."""
    return _count_value("volume", scheme, k, n, leaf)


def _count_value(quantity: Quantity, scheme: str, k: int, n: int, leaf: str) -> Fraction:
    count = count_polynomial(quantity, scheme, k, leaf)
    if n < 1 or n % 2**k:
        raise ValueError(f"n = {n} does not fit k = {k} levels: n must be a positive multiple of 2^k = {2**k}")
    return count(n)


def levels_by_threshold(n: int, tau2: int) -> int:
    """Return the number of levels that the codes of Figures 16 and 23 run on n x n matrices.

    The thresholds are tau2 and tau1 = tau2/2, as in section 8.1 of the paper.
    """
    if n < 1 or tau2 < 1:
        raise ValueError(f"n = {n} and tau2 = {tau2} must be positive")
    depth = 0
    while 2 * n > tau2 << depth:
        depth += 1
    return depth


def percent_reduction(quantity: Quantity, scheme: str, k: int, n: int) -> Fraction:
    """Return the reduction of A, T or V by k levels relative to the classical product kernel GPU8, in percent."""
    return 100 * (1 - _count_value(quantity, scheme, k, n, "gpu8") / _count_value(quantity, "gpu8", 0, n, "gpu8"))


def threshold_plan(scheme: str, n: int, tau1: int, tau2: int, leaf: str = "tile.gpu8") -> Plan:
    """Return the plan that the recursive code of a method (Figure 16 or 23) runs on n x n matrices.

    A product of at most tau1 rows is computed as one classical product by `leaf`. A product of at most tau2 rows is
    computed by one level of Figure 12 or 13, with sums inside the product kernels. A larger product is computed by one
    level of Figure 16 or 23, and the same rule applies to the level's products. For an odd n the products of a level
    have (n + 1)/2 rows, since the step tables pad. The leaf of the paper's codes tStrassen and tWinograd is
    `tile.gpu8.texture`.
    """
    if scheme not in METHOD_STEP_TABLES:
        raise ValueError(f"unknown scheme {scheme!r}; valid: {', '.join(METHOD_STEP_TABLES)}")
    if not (n >= 1 and 1 <= tau1 <= tau2):
        raise ValueError(f"n = {n}, tau1 = {tau1}, tau2 = {tau2}: sizes are positive, and tau1 is at most tau2")
    innermost, above = METHOD_STEP_TABLES[scheme]
    levels = []
    while n > tau2:
        levels.append(above)
        n = -(-n // 2)
    if n > tau1:
        levels.append(innermost)
    return Plan.parse(" > ".join([*levels, leaf]))
