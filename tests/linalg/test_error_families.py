"""Backward errors, residuals and orthogonality of solvers by products beside LAPACK's, on difficult matrices."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.solver_errors import ERRORS, FAMILIES, family_errors
from tests.support.solver_matrices import solve_everything_by_products

pytest.importorskip("scipy.linalg")
LARGEST_RATIO = 10


@pytest.mark.quick_cases()
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("function", ERRORS)
def test_errors_are_at_most_ten_times_lapacks(
    function: str, family: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    solve_everything_by_products(monkeypatch)
    errors = family_errors(np, function, family, 144, dtype)
    rounding = 4 * float(np.finfo(dtype).eps)
    assert errors["fmm"].keys() == errors["vendor"].keys()
    for name, error in errors["fmm"].items():
        assert error <= LARGEST_RATIO * errors["vendor"][name] + rounding, name
