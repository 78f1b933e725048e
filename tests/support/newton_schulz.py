"""The Newton-Schulz iteration in float64 by its definition, and matrices with known polar factors."""

from __future__ import annotations

from typing import Any

import numpy as np

from fmm.newton_schulz.coefficients import step_coefficients

Array = np.ndarray[Any, Any]


def expected_result(x: Any, steps: int = 5, coefficients: Any = "muon") -> Array:
    """Return the result of the iteration on a stack that is divided by its Frobenius norms."""
    y = np.array(x, np.float64)
    y /= np.maximum(np.sqrt((y**2).sum((-2, -1), keepdims=True)), 1e-7)
    for a, b, c in step_coefficients(coefficients, steps):
        cube = y @ y.swapaxes(-1, -2) @ y
        y = a * y + b * cube + c * (y @ y.swapaxes(-1, -2) @ cube)
    return y


def matrix_with_singular_values(values: Array, cols: int) -> tuple[Array, Array]:
    """Return a wide matrix with these singular values, and its polar factor U V^T."""
    rng = np.random.default_rng(len(values))
    u, v = (np.linalg.qr(rng.standard_normal((n, len(values))))[0] for n in (len(values), cols))
    return (u * values) @ v.T, u @ v.T
