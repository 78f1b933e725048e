"""Variants: products that touch equally many blocks of A, B and C; one compiled kernel each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from fmm.kernels.algorithms.scheme import Scheme

Operands = tuple[int, int, int]  # W_A, W_B, W_C: blocks of A, B and C that a product touches

# Huang, Yu, van de Geijn 2020, Figure 6: level, variant, (W_A, W_B, W_C), count.
FIGURE_6: Final[tuple[tuple[int, int, Operands, int], ...]] = (
    (0, 0, (1, 1, 1), 1),
    (1, 0, (2, 2, 2), 1),
    (1, 1, (2, 2, 1), 2),
    (1, 2, (1, 2, 2), 2),
    (1, 3, (2, 1, 2), 2),
    (2, 0, (4, 4, 4), 1),
    (2, 1, (1, 4, 4), 4),
    (2, 2, (2, 4, 4), 4),
    (2, 3, (4, 1, 4), 4),
    (2, 4, (4, 2, 4), 4),
    (2, 5, (4, 4, 1), 4),
    (2, 6, (4, 4, 2), 4),
    (2, 7, (2, 2, 4), 8),
    (2, 8, (2, 4, 2), 8),
    (2, 9, (4, 2, 2), 8),
)
_NAMES: Final = {w: f"Var#{number}" if level else "GEMM" for level, number, w, _ in FIGURE_6}


def operands(scheme: Scheme, product: int) -> Operands:
    """How many blocks of A, B and C a product touches."""
    a, b, c = (sum(bool(row[product]) for row in matrix) for matrix in (scheme.u, scheme.v, scheme.w))
    return a, b, c


def name(w: Operands) -> str:
    """The variant as Figure 6 numbers it (its levels share no operand counts); others by their counts."""
    return _NAMES.get(w, "W({},{},{})".format(*w))


def listed(found: Iterable[Operands]) -> str:
    """The variants among products, and how many are of each: `Var#0, 2 Var#3`."""
    counts = Counter(map(name, found))
    return ", ".join(f"{count} {variant}" if count > 1 else variant for variant, count in counts.items())
