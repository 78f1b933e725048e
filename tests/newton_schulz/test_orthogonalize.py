"""fmm.orthogonalize on NumPy arrays: singular vectors and values, options, shapes and exceptions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fmm
from fmm.newton_schulz.coefficients import MUON, NAMED_COEFFICIENTS, step_coefficients
from tests.support.newton_schulz import expected_result, matrix_with_singular_values

SHAPES = [(1, 1), (1, 6), (6, 1), (5, 7), (64, 33), (2, 17, 40), (3, 2, 40, 17)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_results_are_those_of_the_definition(shape: tuple[int, ...], dtype: str) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    # Polynomials magnify rounding, in float16 by too much to compare; after eight steps, singular values are 1 again.
    for steps, coefficients in ((5, "muon"), (8, "polar-express"))[dtype == "float16" :]:
        expected = expected_result(x, steps, coefficients)
        found = fmm.orthogonalize(x, steps, coefficients)
        assert found.dtype == x.dtype and found.shape == x.shape
        assert np.abs(found - expected).max() <= 64 * np.finfo(dtype).eps * np.abs(expected).max()


def test_polar_express_converges_to_the_polar_factor() -> None:
    values = np.geomspace(1e-3, 1, 12)
    x, polar = matrix_with_singular_values(values, 30)
    assert np.abs(fmm.orthogonalize(x, 8, "polar-express", bound=1.0) - polar).max() < 1e-3
    assert np.abs(fmm.orthogonalize(7 * x.T, 20, "polar-express", bound=7.0) - polar.T).max() < 1e-12


def test_muons_singular_values_come_near_one() -> None:
    x, _ = matrix_with_singular_values(np.linspace(0.05, 1, 40), 50)
    values = np.linalg.svd(fmm.orthogonalize(x), compute_uv=False)
    assert values.min() > 0.6 and values.max() < 1.3


@pytest.mark.parametrize(
    ("dtype", "scale"), [("float32", 1e30), ("float32", 1e-5), ("float64", 1e150), ("float64", 1e-5)]
)
def test_large_and_small_matrices_are_scaled(dtype: str, scale: float, rng: np.random.Generator) -> None:
    x = rng.standard_normal((24, 40))
    found = fmm.orthogonalize((x * scale).astype(dtype))
    np.testing.assert_allclose(found, fmm.orthogonalize(x), atol=1e-5)


def test_a_bound_beyond_float16_scales_float16() -> None:
    x = np.full((64, 64), 3200, np.float16)  # its norm is 204800
    np.testing.assert_allclose(fmm.orthogonalize(x, bound=2.1e5), fmm.orthogonalize(x), atol=2e-3)
    assert fmm.orthogonalize(x, bound=2.1e5).any()


def test_zero_steps_scale_and_zero_matrices_stay_zero() -> None:
    x = np.array([[3.0, 0.0], [0.0, 4.0]])
    np.testing.assert_allclose(fmm.orthogonalize(x, 0), x / 5)
    np.testing.assert_allclose(fmm.orthogonalize(x, 0, bound=2), x / 2)
    assert not fmm.orthogonalize(np.zeros((2, 3, 4))).any()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 2, 3), (2, 0, 3)])
def test_empty_arrays(shape: tuple[int, ...]) -> None:
    assert fmm.orthogonalize(np.zeros(shape)).shape == shape


def test_strided_arrays_and_out() -> None:
    memory = np.random.default_rng(1).standard_normal((3, 40, 60)).astype(np.float32)
    x = memory[::2, ::3, 5::2]
    expected = expected_result(x, 5, "muon")
    out = np.full((2, 28, 14), np.nan, np.float32).swapaxes(1, 2)
    assert fmm.orthogonalize(x, out=out) is out
    np.testing.assert_allclose(out, expected, atol=1e-4)
    kept = memory.copy()
    assert fmm.orthogonalize(x, out=x) is x
    np.testing.assert_allclose(x, expected, atol=1e-4)
    memory[::2, ::3, 5::2] = kept[::2, ::3, 5::2]
    np.testing.assert_array_equal(memory, kept)


def test_lists_are_matrices() -> None:
    np.testing.assert_allclose(np.abs(fmm.orthogonalize([[0.0, 2.0]], 20, "polar-express")), [[0, 1]], atol=1e-6)


def test_coefficients_of_each_step() -> None:
    assert step_coefficients("muon", 3) == (MUON,) * 3
    express = NAMED_COEFFICIENTS["polar-express"]
    assert step_coefficients("polar-express", 10) == (*express, express[-1], express[-1])
    assert step_coefficients((1, 2, 3), 2) == ((1.0, 2.0, 3.0),) * 2
    assert step_coefficients([(1, 2, 3), np.array([4, 5, 6])], 3) == ((1, 2, 3), (4, 5, 6), (4, 5, 6))
    assert step_coefficients([(1, 2, 3), (4, 5, 6)], 1) == ((1, 2, 3),)


@pytest.mark.parametrize(
    "coefficients", ["newton", None, 3, (1, 2), (1, 2, 3, 4), [(1, 2, 3), (1, 2)], (1, 2, "3"), (1, 2, np.inf), ()]
)
def test_invalid_coefficients(coefficients: Any) -> None:
    with pytest.raises(ValueError, match="coefficients must be 'muon', 'polar-express'"):
        fmm.orthogonalize(np.eye(2), coefficients=coefficients)


@pytest.mark.parametrize("steps", [-1, 2.5, None, True, "5"])
def test_invalid_steps(steps: Any) -> None:
    with pytest.raises(ValueError, match="steps must be an integer"):
        fmm.orthogonalize(np.eye(2), steps)


@pytest.mark.parametrize("bound", [0, -1.0, np.nan, np.inf, "1", True])
def test_invalid_bounds(bound: Any) -> None:
    with pytest.raises(ValueError, match="bound must be a positive finite number"):
        fmm.orthogonalize(np.eye(2), bound=bound)


def test_invalid_arrays() -> None:
    for x in (np.zeros(3), np.float64(1), np.zeros((2, 2), complex), np.zeros((2, 2), int), [[1, 2]]):
        with pytest.raises(ValueError, match="expected a"):
            fmm.orthogonalize(x)
    for out in (np.zeros((2, 3)), np.zeros((2, 2), np.float32)):
        with pytest.raises(ValueError, match="out is"):
            fmm.orthogonalize(np.eye(2), out=out)
