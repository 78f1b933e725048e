"""The matrices on which errors are measured: each family has the property of its name."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.matrices import FAMILIES, kaporin_matrices, matrices_of_family


def test_kaporins_matrices_are_each_others_inverse() -> None:
    a, b = kaporin_matrices(np, 60, "float64")
    assert np.abs(a @ b - np.eye(60)).max() < 1e-13
    assert a[59, 59] == 1 + np.sqrt(60.0) and a.dtype == np.float64
    assert kaporin_matrices(np, 60, "float32")[1].dtype == np.float32


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_what_they_are_called(name: str) -> None:
    a, b = matrices_of_family(np, np.random.default_rng(1), FAMILIES[name], 48, False)
    c, _ = matrices_of_family(np, np.random.default_rng(1), FAMILIES[name], 48, True)
    assert a.shape == b.shape == (48, 48) and a.dtype == np.float64 and c.dtype == np.complex128
    assert np.isfinite(a).all() and np.isfinite(b).all()
