"""Products by residues with known bits: operands of a fixed seed, and digests of C."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np

Matrix = np.ndarray[Any, Any]
SHAPE = 65, 131, 77
# By type and level: the first 16 digits of the SHA-256 of C in row-major order, as code compiled for the host computed
# it. A GPU must compute the same.
DIGESTS: Final = {
    ("float64", "residues(13)"): "46af01d74d2bd4d0",
    ("float64", "residues(14)"): "a8632b3e32e04edd",
    ("float64", "residues(15)"): "1b8b2fe36cb638c7",
    ("float64", "residues(16)"): "fba9e1f5dc741cc6",
    ("float32", "residues(8)"): "6179e64ce2ec43a0",
    ("complex128", "residues2m(15)"): "54ce0f7dd6f52836",
    ("complex128", "residues2m(17)"): "dae815026875acdf",
    ("complex64", "residues2m(8)"): "86aff3b774a3686b",
}


def fixed_operands(dtype: str, shape: tuple[int, int, int] = SHAPE) -> tuple[Matrix, Matrix]:
    """Return normal matrices that are the same in every process."""
    (m, k, n), rng = shape, np.random.default_rng(20261128)
    found = []
    for size in ((m, k), (k, n)):
        x: Matrix = rng.standard_normal(size)
        found.append((x + 1j * rng.standard_normal(size) if dtype.startswith("complex") else x).astype(dtype))
    return found[0], found[1]


def digest(c: Matrix) -> str:
    """Return the first digits of the SHA-256 of a matrix in row-major order."""
    return hashlib.sha256(np.ascontiguousarray(c).tobytes()).hexdigest()[:16]
