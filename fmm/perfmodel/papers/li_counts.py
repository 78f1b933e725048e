"""Exact counts of Li, Ranka, Sahni (2011) on the Tesla C1060: arithmetics A, transactions T and volume V.

The counts come from walking step tables, kernel by kernel, with the blocks that each kernel reads and writes. The
paper's closed forms and recurrences appear in the tests only. Counts are polynomials in the size of square matrices, in
single precision. Left out: time, caches and launches. `threshold_plan` is the plan that their codes run for given
thresholds tau1 and tau2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal, get_args

from fmm.kernels.algorithms import additions as programs
from fmm.kernels.algorithms.step_table import Kernel, StepTable, step_table
from fmm.kernels.plans.plan import Plan

Quantity = Literal["arithmetics", "transactions", "volume"]
QUANTITIES: Final[tuple[Quantity, ...]] = get_args(Quantity)


# ---- exact polynomials


@dataclass(frozen=True, slots=True)
class Polynomial:
    """c0 + c1 n + c2 n^2 + ..., exact; no trailing zeros, so that equal polynomials are equal values."""

    coefficients: tuple[Fraction, ...] = ()

    @staticmethod
    def of(*coefficients: Fraction | int) -> Polynomial:
        """Return the polynomial with these coefficients of 1, n, n^2, ..."""
        found = [Fraction(c) for c in coefficients]
        while found and not found[-1]:
            found.pop()
        return Polynomial(tuple(found))

    def __add__(self, other: Polynomial) -> Polynomial:
        length = max(len(self.coefficients), len(other.coefficients))
        return Polynomial.of(*(self[i] + other[i] for i in range(length)))

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + other.times(-1)

    def __getitem__(self, power: int) -> Fraction:
        return self.coefficients[power] if power < len(self.coefficients) else Fraction(0)

    def times(self, factor: Fraction | int) -> Polynomial:
        """Return the polynomial times a number."""
        return Polynomial.of(*(factor * c for c in self.coefficients))

    def at_half(self) -> Polynomial:
        """Return the polynomial in n whose value is this one's at n/2."""
        return Polynomial.of(*(c / 2**i for i, c in enumerate(self.coefficients)))

    def __call__(self, n: Fraction | int) -> Fraction:
        return sum((c * Fraction(n) ** i for i, c in enumerate(self.coefficients)), Fraction(0))

    def text(self, variable: str = "n") -> str:
        """Return the text as the paper prints it, highest power first: 17n^3/4096 + n^2/16."""
        terms = [(c, power) for power, c in enumerate(self.coefficients) if c][::-1]
        words = [f"{'-' if c < 0 else '+'} {_monomial(abs(c), variable, power)}" for c, power in terms]
        return " ".join([words[0].replace("- ", "-").removeprefix("+ "), *words[1:]]) if words else "0"

    def __str__(self) -> str:
        return self.text()

    @staticmethod
    def parse(text: str) -> Polynomial:
        """Return the polynomial of the paper's notation, in any one-letter variable."""
        terms: dict[int, Fraction] = {}
        for term in text.replace("-", "+ -").split("+"):
            if term := term.replace(" ", ""):
                power, c = _parse_term(term, text)
                terms[power] = terms.get(power, Fraction(0)) + c
        return Polynomial.of(*(terms.get(i, 0) for i in range(max(terms, default=-1) + 1)))


def _monomial(c: Fraction, variable: str, power: int) -> str:
    if not power:
        return str(c)
    top = "" if c.numerator == 1 else str(c.numerator)
    bottom = "" if c.denominator == 1 else f"/{c.denominator}"
    return f"{top}{variable}{'' if power == 1 else f'^{power}'}{bottom}"


_TERM = re.compile(r"(-?)(\d*)(?:([a-z])(?:\^(\d+))?)?(?:/(\d+))?")


def _parse_term(term: str, text: str) -> tuple[int, Fraction]:
    match = _TERM.fullmatch(term)
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"cannot read {text!r} as a polynomial: {term!r}")
    c = Fraction(int(match[2] or 1), int(match[5] or 1)) * (-1 if match[1] else 1)
    return int(match[4] or 1) if match[3] else 0, c


# ---- the cost of leaves and kernels


def _square(c: Fraction | int) -> Polynomial:
    return Polynomial.of(0, 0, c)


# Per block that an elementwise kernel reads or writes: float2, 16 threads, so 128-byte transactions (section 5, add).
ELEMENTWISE: Final[Mapping[Quantity, Polynomial]] = {
    "arithmetics": _square(0),
    "transactions": _square(Fraction(1, 32)),
    "volume": _square(4),
}
# Per further block that a product kernel reads or writes: floats, so 64-byte transactions (section 5, mulIncInc).
FUSED: Final[Mapping[Quantity, Polynomial]] = {
    "arithmetics": _square(0),
    "transactions": _square(Fraction(1, 16)),
    "volume": _square(4),
}


def _leaf(transactions: Fraction, volume: Fraction) -> Mapping[Quantity, Polynomial]:
    """Return the cost of a classical product: reads of A and B grow like n^3; C is written once, as when fused."""
    return {
        "arithmetics": Polynomial.of(0, 0, -1, 2),
        "transactions": Polynomial.of(0, 0, 0, transactions) + FUSED["transactions"],
        "volume": Polynomial.of(0, 0, 0, volume) + FUSED["volume"],
    }


# Section 4. GPU8 reads A in 128-byte transactions (n^3/4096) and B in 64-byte ones (n^3/256).
LEAVES: Final[Mapping[str, Mapping[Quantity, Polynomial]]] = {
    "gpu8": _leaf(Fraction(1, 4096) + Fraction(1, 256), Fraction(128, 4096) + Fraction(64, 256)),
    "sgemm": _leaf(Fraction(5, 1024), Fraction(5, 16)),
}

# The step table of the innermost level, with fused kernels, and that of every level above it.
TABLES: Final[Mapping[str, tuple[str, str]]] = {
    "strassen": ("li-fig12", "li-fig16"),
    "winograd": ("li-fig13", "li-fig23"),
}
SCHEMES: Final = (*LEAVES, *TABLES)


@lru_cache(maxsize=256)
def kernel_additions(kernel: Kernel) -> int:
    """Return the additions per element; a sum that two outputs share is formed once.

    Li et al. count 15 additions for a level of Figure 23, so (C12, C11) = (C11 + C12 + T1, C11 + C21 + T1) must form
    C11 + T1 once: three additions, where the assignments as printed have four.
    """
    program = kernel.program
    return min(program.additions, programs.shared_sums(program.matrix(), program.inputs).additions)


def kernel_cost(kernel: Kernel, quantity: Quantity, product: Polynomial) -> Polynomial:
    """Return the cost of one call of a kernel on m x m blocks, as a polynomial in m; `product` is a plain product's."""
    blocks = len(kernel.reads) + len(kernel.writes)
    additions = _square(kernel_additions(kernel) if quantity == "arithmetics" else 0)
    if kernel.product is None:
        return ELEMENTWISE[quantity].times(blocks) + additions
    return product + FUSED[quantity].times(blocks - 1) + additions


def table_cost(table: StepTable, quantity: Quantity, product: Polynomial) -> Polynomial:
    """Return the cost of all steps of a table on blocks of size m."""
    costs = (kernel_cost(step.kernel, quantity, product) for step in table.steps)
    return sum(costs, Polynomial())


@lru_cache(maxsize=4096)
def polynomial(quantity: Quantity, scheme: str, k: int, leaf: str = "gpu8") -> Polynomial:
    """Return the cost of k levels of a scheme over n x n matrices, as a polynomial in n."""
    _check_arguments(scheme, k, leaf)
    if not k:
        return LEAVES[scheme if scheme in LEAVES else leaf][quantity]
    innermost, above = TABLES[scheme]
    found = table_cost(step_table(innermost), quantity, LEAVES[leaf][quantity]).at_half()
    for _ in range(k - 1):
        found = table_cost(step_table(above), quantity, found).at_half()
    return found


def _check_arguments(scheme: str, k: int, leaf: str) -> None:
    for what, value, valid in (("scheme", scheme, SCHEMES), ("leaf", leaf, tuple(LEAVES))):
        if value not in valid:
            raise ValueError(f"unknown {what} {value!r}; valid: {', '.join(valid)}")
    if k < 0 or (k and scheme in LEAVES):
        raise ValueError(f"{scheme} with k = {k} levels; k must be {'0' if scheme in LEAVES else 'at least 0'}")


# ---- the paper's three functions


def A(scheme: str, k: int, n: int, leaf: str = "gpu8") -> Fraction:  # noqa: N802
    """Return A(k, n), arithmetics: additions and multiplications, 2n^3 - n^2 for a classical product."""
    return _at("arithmetics", scheme, k, n, leaf)


def T(scheme: str, k: int, n: int, leaf: str = "gpu8") -> Fraction:  # noqa: N802
    """Return T(k, n), the device-memory transactions of 64 or 128 bytes."""
    return _at("transactions", scheme, k, n, leaf)


def V(scheme: str, k: int, n: int, leaf: str = "gpu8") -> Fraction:  # noqa: N802
    """Return V(k, n), the bytes between device memory and multiprocessors."""
    return _at("volume", scheme, k, n, leaf)


def _at(quantity: Quantity, scheme: str, k: int, n: int, leaf: str) -> Fraction:
    count = polynomial(quantity, scheme, k, leaf)
    if n < 1 or n % 2**k:
        raise ValueError(f"n = {n} does not fit k = {k} levels: n must be a positive multiple of 2^k = {2**k}")
    return count(n)


def levels(n: int, tau2: int) -> int:
    """Return the levels that Figures 16 and 23 run on n x n matrices, with tau1 = tau2/2 as in section 8.1."""
    if n < 1 or tau2 < 1:
        raise ValueError(f"n = {n} and tau2 = {tau2} must be positive")
    depth = 0
    while 2 * n > tau2 << depth:
        depth += 1
    return depth


def reduction(quantity: Quantity, scheme: str, k: int, n: int) -> Fraction:
    """Return the percentage saved relative to GPU8."""
    return 100 * (1 - _at(quantity, scheme, k, n, "gpu8") / _at(quantity, "gpu8", 0, n, "gpu8"))


def threshold_plan(scheme: str, n: int, tau1: int, tau2: int, leaf: str = "tile.gpu8") -> Plan:
    """Return the plan that their recursive codes `strassen` and `winograd` (Figures 16 and 23) run on n x n matrices.

    Up to tau1 a product is the leaf's alone; up to tau2 it is one level with the product kernels of section 5, Figure
    12 or 13; above, it is a level of Figure 16 or 23, whose products follow the same rule. (For an odd n they have half
    of n + 1: the tables pad.) `tile.gpu8.texture` is the leaf of their tStrassen and tWinograd.
    """
    if scheme not in TABLES:
        raise ValueError(f"unknown scheme {scheme!r}; valid: {', '.join(TABLES)}")
    if not (n >= 1 and 1 <= tau1 <= tau2):
        raise ValueError(f"n = {n}, tau1 = {tau1}, tau2 = {tau2}: sizes are positive, and tau1 is at most tau2")
    innermost, above = TABLES[scheme]
    levels = []
    while n > tau2:
        levels.append(above)
        n = -(-n // 2)
    if n > tau1:
        levels.append(innermost)
    return Plan.parse(" > ".join([*levels, leaf]))
