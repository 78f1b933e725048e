"""fmm.linalg on CuPy arrays and torch tensors of a CUDA device, at sizes of which the model halves the matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fmm
from fmm.linalg import solver_library
from fmm.linalg.halving_rules import BlockInversionRule
from tests.support.device_arrays import CupyLibrary, TorchLibrary
from tests.support.solver_matrices import DTYPES, backward_error, every_layout, positive_matrices, random_matrix

pytestmark = pytest.mark.gpu
LARGE = {"float32": 4096, "float64": 8192, "complex64": 4096, "complex128": 4096}


@pytest.fixture(params=[CupyLibrary, TorchLibrary], ids=["cupy", "torch"])
def library(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.mark.usefixtures("deep_recursion")
@pytest.mark.parametrize("n", [0, 1, 2, 17, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_small_systems_of_every_form_are_solved(library: Any, dtype: str, n: int) -> None:
    bound = 32 * max(n, 4) * float(np.finfo(dtype).eps)
    a, b = random_matrix(n, n, dtype) + 2 * n * np.eye(n).astype(dtype), random_matrix(n, 5, dtype, seed=1)
    for lower, trans, left in [(x, y, z) for x in (False, True) for y in "NTC" for z in (False, True)]:
        exact = np.tril(a) if lower else np.triu(a)
        op = {"N": exact, "T": exact.T, "C": exact.conj().T}[trans]
        right = b if left else np.ascontiguousarray(b.T)
        x = fmm.linalg.solve_triangular(library.array(a, dtype), library.array(right, dtype), trans, lower, left=left)
        x = library.host(x)
        assert (backward_error(op, x, b) if left else backward_error(op.T, x.T, b)) < bound
    for matrix in positive_matrices(n, dtype).values():
        for upper in (False, True):
            factor = library.host(fmm.linalg.cholesky(library.array(matrix, dtype), upper=upper))
            product = factor.conj().T @ factor if upper else factor @ factor.conj().T
            assert np.linalg.norm(product - matrix) <= bound * np.linalg.norm(matrix)
    normal, identity = positive_matrices(n, dtype)["normal"], np.eye(n)
    for kind in ("gen", "pos"):
        inverse = library.host(fmm.linalg.inv(library.array(normal, dtype), assume_a=kind))
        assert backward_error(normal, inverse, identity) < bound


@pytest.mark.usefixtures("deep_recursion")
def test_layouts_stacks_and_out(library: Any) -> None:
    a = positive_matrices(33, "float64")["normal"]
    expected = np.linalg.cholesky(a)
    for x in every_layout(a):
        found = library.host(fmm.linalg.cholesky(library.array(x)))
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    stack, out = library.array(np.stack([a, 4 * a])), library.empty((2, 33, 33), "float64")
    assert fmm.linalg.cholesky(stack, out=out) is out
    np.testing.assert_allclose(library.host(out)[1], 2 * expected, rtol=1e-10, atol=1e-12)
    functions: tuple[Any, ...] = fmm.linalg.inv, lambda x: fmm.linalg.cho_solve((x, True), x)
    for function in functions:
        np.testing.assert_allclose(library.host(function(out)[0]), library.host(function(out[0])), rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("deep_recursion")
def test_matrices_without_a_factor_are_left_to_the_library(library: Any) -> None:
    a = positive_matrices(18, "float64")["normal"]
    a[11, 11] = -1
    found: list[str] = []
    for cholesky in (library.xp.linalg.cholesky, fmm.linalg.cholesky):
        try:
            found.append(str(np.isfinite(library.host(cholesky(library.array(a)))).sum()))
        except Exception as error:
            found.append(repr(error))
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_systems_are_as_accurate_as_the_librarys(library: Any, dtype: str) -> None:
    n = LARGE[dtype]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if "complex" in dtype else 0)
    a = library.array(np.tril(x) / np.sqrt(n) + 4 * np.eye(n), dtype)
    b = library.array(x, dtype)
    s = fmm.gram(b) / n + library.array(np.eye(n), dtype)

    def residual(matrix: Any, solution: Any, right: Any) -> float:
        norm = library.xp.linalg.norm
        return float(norm(matrix @ solution - right) / (norm(matrix) * norm(solution)))

    solution = fmm.linalg.solve_triangular(a, b, lower=True)
    factor, inverse = fmm.linalg.cholesky(s), fmm.linalg.inv(s, assume_a="pos")
    identity = library.array(np.eye(n), dtype)
    eps = float(np.finfo(dtype).eps)
    assert residual(a, solution, b) < 8 * eps
    adjoint = factor.mH if library.name == "torch" else factor.conj().T
    assert residual(factor, adjoint, s) < 8 * eps
    for y in (inverse, fmm.linalg.inv(s)):
        own = residual(s, library.xp.linalg.inv(s), identity)
        assert residual(s, y, identity) < 10 * own + 8 * eps


@pytest.fixture
def blocks_of_512(monkeypatch: pytest.MonkeyPatch) -> None:
    """Factor blocks of 1024 rows, and invert blocks of 512 rows, from 1025 rows on."""
    rule = BlockInversionRule(1025, 1025, 1, 512, 512, 0.0)
    monkeypatch.setattr("fmm.linalg.inverse.POSITIVE_INVERSE_RULE", rule)
    for module in ("triangular_recursion", "cholesky_recursion"):
        monkeypatch.setattr(f"fmm.linalg.{module}.INVERTED_RULE", rule)
    monkeypatch.setattr(
        "fmm.linalg.cholesky_recursion.POSITIVE_RULE", BlockInversionRule(1025, 1025, 0, 1024, 1024, 0.0)
    )


@pytest.mark.usefixtures("blocks_of_512")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_blocks_are_factored_and_multiplied_by_inverses(library: Any, dtype: str) -> None:
    n, eps = 2500, float(np.finfo(dtype).eps)
    host, b = positive_matrices(n, dtype)["normal"], random_matrix(n, 60, dtype)
    factor = fmm.linalg.cholesky(library.array(host, dtype))
    assert not library.host(factor)[np.triu_indices(n, 1)].any()
    x = library.host(fmm.linalg.cho_solve((factor, True), library.array(b, dtype)))
    assert wide_residual(host, x, b) < 50 * eps
    host[2000, 2000] = -1
    try:
        expected = library.host(library.xp.linalg.cholesky(library.array(host, dtype)))
    except Exception as error:
        with pytest.raises(type(error)) as found:
            fmm.linalg.cholesky(library.array(host, dtype))
        assert str(found.value) == str(error)
    else:
        factor = library.host(fmm.linalg.cholesky(library.array(host, dtype)))
        assert (np.isfinite(factor) == np.isfinite(expected)).all()


@pytest.mark.usefixtures("blocks_of_512")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ill_conditioned_blocks_are_substituted(library: Any, dtype: str) -> None:
    n = 1500
    host = (np.tril(random_matrix(n, n, dtype)) / 40 + np.eye(n)).astype(dtype)
    host[4:8, 4:8] = np.tril(np.full((4, 4), 1e6), -1) + np.eye(4)  # |A^-1| |A| is far above 1e5
    b = random_matrix(n, 30, dtype)
    x = fmm.linalg.solve_triangular(library.array(host, dtype), library.array(b, dtype), lower=True)
    assert wide_residual(host, library.host(x), b) < 50 * float(np.finfo(dtype).eps)


def wide_residual(a: Any, x: Any, b: Any) -> float:
    """Return the norm of a x - b, computed in float64, over the norms of a and x."""
    a = a.astype(np.float64)
    return float(np.linalg.norm(a @ x - b) / (np.linalg.norm(a) * np.linalg.norm(x)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [4096, 4999])
def test_large_general_systems_are_as_accurate_as_the_librarys(library: Any, dtype: str, n: int) -> None:
    a, b = (library.array(random_matrix(n, columns, dtype, seed=columns), dtype) for columns in (n, 5))
    eps = float(np.finfo(dtype).eps)

    def residual(solution: Any) -> float:
        norm = library.xp.linalg.norm
        return float(norm(a @ solution - b) / (norm(a) * norm(solution)))

    own = residual(library.xp.linalg.solve(a, b))
    factors = fmm.linalg.lu_factor(a)
    for x in (fmm.linalg.solve(a, b), fmm.linalg.lu_solve(factors, b), fmm.linalg.solve(a, b, refine=True)):
        assert residual(x) < 10 * own + 8 * eps
    found, expected = fmm.linalg.slogdet(a), library.xp.linalg.slogdet(a)
    assert float(abs(found[1] - expected[1])) < 1e4 * eps * abs(float(expected[1]))
    if dtype == "float64":
        _, report = fmm.linalg.refined_solve(a, b)
        assert report.factors == "float32" and report.steps < 10


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [600, 1000, 2500, 9000, 17000])
def test_panels_have_the_librarys_pivots(library: Any, dtype: str, n: int) -> None:
    solvers = solver_library.solver_library(library.array(np.ones((2, 2)), dtype))
    a = library.array(random_matrix(n, 256, dtype), dtype)
    if not solvers.panel_width(a):
        pytest.skip("this device has no kernel for panels")
    pivots = solvers.empty_pivots(256, a)
    panel = library.array(library.host(a), dtype)
    solvers.factor_panel(panel, pivots)
    _, expected = scipy_lu(library.host(a))
    assert (library.host(pivots) == expected).mean() > 0.99  # a near tie may go either way
    lower, upper = np.tril(library.host(panel), -1), np.triu(library.host(panel)[:256])
    lower[:256] += np.eye(256)
    rows = np.arange(n)
    for i, j in enumerate(library.host(pivots).astype(int)):
        rows[[i, j]] = rows[[j, i]]
    product, exact = lower.astype(float) @ upper, library.host(a)[rows]
    assert np.linalg.norm(product - exact) < 64 * np.finfo(dtype).eps * np.linalg.norm(exact)


def scipy_lu(a: Any) -> Any:
    """Return SciPy's LU factors and pivots of a panel."""
    return pytest.importorskip("scipy.linalg").lu_factor(a)


def test_a_singular_matrix_is_left_to_the_library(library: Any) -> None:
    a = random_matrix(4096, 4096, "float32")
    a[:, 1234] = 0
    determinant = float(library.xp.linalg.det(library.array(a)))  # torch's is NaN: a product overflows before the 0
    np.testing.assert_equal(float(fmm.linalg.det(library.array(a))), determinant)
    a[:] = np.eye(4096) - np.tril(np.ones((4096, 4096)), -1)  # Wilkinson's: inverses of blocks overflow
    a[:, -1] = 1
    try:
        expected = library.host(library.xp.linalg.solve(library.array(a), library.array(a[:, :2])))
    except Exception as error:
        with pytest.raises(type(error)):
            fmm.linalg.solve(library.array(a), library.array(a[:, :2]))
    else:
        found = library.host(fmm.linalg.solve(library.array(a), library.array(a[:, :2])))
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
