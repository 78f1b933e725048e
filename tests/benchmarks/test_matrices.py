"""Random matrices of the benchmarks, and the errors of their products."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.matrices import random_matrix, relative_error, stored_type


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "float16"])
@pytest.mark.parametrize("lower", [False, True])
def test_the_error_of_a_product_is_relative_and_near_rounding(dtype: str, lower: bool) -> None:
    a, b = (random_matrix("numpy", shape, dtype, seed=seed) for seed, shape in enumerate([(70, 50), (50, 70)]))
    assert a.dtype == dtype and abs(abs(a).std() - 1) < 0.6
    c = a @ b
    rounding = np.finfo(dtype).eps
    assert 0 < relative_error(a, b, c, lower) < 20 * rounding
    worse = (1.25 * c).astype(dtype)
    assert relative_error(a, b, worse, lower) == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_outside_the_triangle_do_not_count(dtype: str) -> None:
    a = random_matrix("numpy", (40, 30), dtype)
    c = np.tril(a @ a.T)
    assert relative_error(a, a.T, c, lower=True) < 1e-5 < relative_error(a, a.T, c)


def test_uniform_numbers_are_in_their_interval_and_seeds_differ() -> None:
    x, y = (random_matrix("numpy", (50, 50), "float32", "uniform", seed) for seed in (1, 2))
    assert x.min() >= 0 and x.max() <= 1 and (x != y).any()


def test_the_arithmetic_of_a_type_is_no_type_of_its_own() -> None:
    assert [stored_type(x) for x in ("tf32", "float32-ieee", "bfloat16")] == ["float32", "float32", "bfloat16"]
