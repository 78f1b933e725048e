"""The Chinese remainder theorem as it is printed, by Python's integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fmm.kernels.algorithms.residues import remainder_weights, symmetric_residue


def whole_number(residues: Sequence[Any]) -> Any:
    """The number around zero that has these residues, one of each modulus; of arrays of Python's integers, an array."""
    known = remainder_weights(len(residues))
    total: Any = sum(r * w for r, w in zip(residues, known.weights, strict=True))
    return symmetric_residue(total, known.product)
