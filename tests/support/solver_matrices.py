"""Matrices on which solvers may go wrong, and backward errors of solutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fmm import api
from fmm.linalg import halving_rules, qr_factors, solver_library
from fmm.linalg.halving_rules import BlockInversionRule, HalvingRule, SmallestProductSides

Array = np.ndarray[Any, Any]
DTYPES = ("float32", "float64", "complex64", "complex128")
SIZES = (0, 1, 2, 3, 17, 64)
SPLIT_RULES = (
    "triangular_recursion.TRIANGULAR_RULE",
    "cholesky_recursion.CHOLESKY_RULE",
    "inverse.TRIANGULAR_RULE",
    "lu_recursion.HOST_LU_RULE",
)


def solve_everything_by_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halve every matrix down to blocks of 2 or 4 rows and panels of 4 columns; factor tall ones by Cholesky QR."""
    monkeypatch.setattr(halving_rules, "product_speedup", lambda *_: 2.0)
    monkeypatch.setattr(halving_rules, "UNMEASURED_SMALLEST", 1)
    monkeypatch.setattr(solver_library, "PANEL_WIDTH", 4)
    for name in SPLIT_RULES:
        monkeypatch.setattr(f"fmm.linalg.{name}", HalvingRule(2, 1.0))
    monkeypatch.setattr("fmm.linalg.cholesky_recursion.POSITIVE_RULE", BlockInversionRule(1, 1, 0, 4, 4, 1.0))
    for name in ("lu_recursion.LU_SIDES", "inverse.INVERSE_SIDES"):
        monkeypatch.setattr(f"fmm.linalg.{name}", SmallestProductSides(4, 4))
    monkeypatch.setattr("fmm.linalg.inverse.POSITIVE_INVERSE_RULE", BlockInversionRule(1, 1, 0, 4, 4, 1.0))
    monkeypatch.setattr("fmm.linalg.cholesky_recursion.INVERTED_RULE", BlockInversionRule(1, 1, 1, 2, 2, 1.0))
    monkeypatch.setattr(qr_factors, "is_cholesky_qr_faster", lambda m, n, *_: m >= n)


def noted_products(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each following product of fmm appends its function's name."""
    called: list[str] = []

    def noting(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def multiply(*operands: Any, **options: Any) -> Any:
            called.append(name)
            return own(*operands, **options)

        return multiply

    for name in ("gemm", "gram", "matmul"):
        monkeypatch.setattr(f"fmm.api.{name}", noting(name, getattr(api, name)))
    return called


def matrix_of_condition(m: int, n: int, condition: float, dtype: str) -> Array:
    """Return a tall matrix with singular values from 1 down to 1 / condition."""
    u, _, v = np.linalg.svd(random_matrix(m, n, "complex128" if "complex" in dtype else "float64"), full_matrices=False)
    return np.asarray((u * np.geomspace(1, 1 / condition, n)) @ v).astype(dtype)


def random_matrix(m: int, n: int, dtype: str, seed: int = 0) -> Array:
    """Return a matrix of normal numbers."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((m, n)) + (1j * rng.standard_normal((m, n)) if "complex" in dtype else 0)
    return x.astype(dtype)


def triangular_matrices(n: int, dtype: str) -> dict[str, Array]:
    """Return full matrices of which either triangle is a factor of a system that has a solution in range."""
    a = random_matrix(n, n, dtype) + 2 * np.sqrt(n) * np.eye(n, dtype=dtype)
    grades = np.exp2(np.linspace(-10, 10, n)).astype(dtype)
    near_singular = a.copy()
    near_singular[n // 2 :, n // 2 :] *= np.array(1e-6, dtype)
    found = {"normal": a, "graded rows": a * grades[:, None], "graded columns": a * grades}
    found |= {"near singular": near_singular, "diagonal": np.diag(grades)}
    return {name: a.astype(dtype) for name, a in found.items()}


def positive_matrices(n: int, dtype: str) -> dict[str, Array]:
    """Return Hermitian positive definite matrices, well and badly conditioned."""
    x = random_matrix(n, n, dtype).astype(np.result_type(dtype, "float64"))
    identity = np.eye(n)
    grades = np.exp2(np.linspace(-6, 6, n))
    normal = x @ x.conj().T / max(n, 1) + identity
    shift = 64 * max(n, 1) * float(np.finfo(dtype).eps)
    low_rank = x[:, : n // 2] @ x[:, : n // 2].conj().T / max(n, 1) + shift * identity
    found = {"normal": normal, "graded": grades[:, None] * normal * grades, "near singular": low_rank}
    return {name: a.astype(dtype) for name, a in found.items()}


def general_matrices(n: int, dtype: str) -> dict[str, Array]:
    """Return square matrices, well and badly conditioned, among them the one with the largest growth of pivots."""
    normal = random_matrix(n, n, dtype)
    grades = np.exp2(np.linspace(-8, 8, n))
    growth, k = normal.real + 8 * np.eye(n), min(n, 16)
    growth[:k, :k] = np.eye(k) - np.tril(np.ones((k, k)), -1)  # Wilkinson's: the last column doubles in each step
    growth[:k, k:] = growth[k:, :k] = 0
    growth[:k, k - 1 : k] = 1
    rows, columns = np.indices((n, n))
    hilbert = 1 / (rows + columns + 1.0) + np.sqrt(float(np.finfo(dtype).eps)) * np.eye(n)
    singular = normal.copy()
    singular[:, n // 2 : n // 2 + 1] = 0
    found = {"normal": normal, "graded": grades[:, None] * normal, "growth": growth}
    found |= {"Hilbert": hilbert, "singular": singular, "integers": np.round(2 * normal.real) + 3 * np.eye(n)}
    return {name: np.ascontiguousarray(a.astype(dtype)) for name, a in found.items()}


def every_layout(x: Array) -> Iterator[Array]:
    """Yield a matrix in row-major and column-major order, with gaps, backward, and read-only."""
    yield x
    yield np.asfortranarray(x)
    gaps = np.zeros((2 * x.shape[0], 3 * x.shape[1]), x.dtype)
    gaps[::2, ::3] = x
    yield gaps[::2, ::3]
    yield np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1]
    frozen = x.copy()
    frozen.flags.writeable = False
    yield frozen


def backward_error(a: Array, x: Array, b: Array) -> float:
    """Return the norm of b - a x beside the norms of a, x and b, column by column, computed in higher precision."""
    if x.size == 0:
        return 0.0
    wide_a, wide_x, wide_b = (np.asarray(y).astype(np.result_type(y.dtype, "longdouble")) for y in (a, x, b))
    residual = np.linalg.norm(wide_b - wide_a @ wide_x, axis=0)
    scale = np.linalg.norm(wide_a) * np.linalg.norm(wide_x, axis=0) + np.linalg.norm(wide_b, axis=0)
    return float(np.max(residual / scale))
