"""Fixtures that let solvers recurse on small matrices."""

from __future__ import annotations

import pytest

from fmm.linalg import triangular_recursion
from fmm.linalg.halving_rules import BlockInversionRule
from tests.support.solver_matrices import solve_everything_by_products


@pytest.fixture
def deep_recursion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute everything by products, down to blocks of two rows."""
    solve_everything_by_products(monkeypatch)


@pytest.fixture
def inverted_blocks(deep_recursion: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host also multiply by inverses of blocks on the diagonal, and subtract products that have a plan."""
    monkeypatch.setattr(triangular_recursion, "INVERTED_RULE", BlockInversionRule(1, 1, 1, 4, 4, 1.0))
    monkeypatch.setattr("fmm.linalg.products.has_product_plan", lambda *_: True)
    monkeypatch.setattr(
        triangular_recursion, "triangular_block_side", lambda library, a, columns, limit: 4 if a.shape[-1] > 4 else 0
    )
    for module in ("triangular_recursion", "lu_recursion", "cholesky_recursion", "inverse", "explain_solvers"):
        monkeypatch.setattr(f"fmm.linalg.{module}.inverts_diagonal_blocks", lambda *_: True)
