"""The Chinese remainder theorem in its textbook form, with Python's integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fmm.kernels.algorithms.residues import remainder_weights, symmetric_residue


def whole_number(residues: Sequence[Any]) -> Any:
    """Return the number of least absolute value that has these residues, one for each modulus. Arrays of
    Python's integers give an array."""
    known = remainder_weights(len(residues))
    total: Any = sum(r * w for r, w in zip(residues, known.weights, strict=True))
    return symmetric_residue(total, known.product)
