"""fmm.linalg on torch's tensors: values, gradients and exceptions beside torch.linalg's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.linalg import solver_library
from fmm.linalg.solver_library import torch_solvers
from tests.support.solver_matrices import DTYPES, backward_error, positive_matrices, random_matrix

torch = pytest.importorskip("torch")
SIZES = (0, 1, 2, 17, 33)
pytestmark = pytest.mark.usefixtures("deep_recursion")


def tensor(x: Any, gradient: bool = False) -> Any:
    return torch.tensor(x, requires_grad=gradient)


def assert_close(found: Any, expected: Any, bits: int = 20) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape
    scale = float(expected.abs().max()) if expected.numel() else 1.0
    assert float((found - expected).abs().max() if found.numel() else 0) <= 2.0**-bits * scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_triangular_systems_are_solved_as_by_torch(n: int, dtype: str) -> None:
    a = tensor(random_matrix(n, n, dtype) + 2 * n * np.eye(n).astype(dtype))
    b = tensor(np.stack([random_matrix(n, 5, dtype, seed) for seed in (1, 2)]))
    for lower, left, unit in [(x, y, z) for x in (False, True) for y in (False, True) for z in (False, True)]:
        right = b if left else b.mT
        matrix = a / (2 * n + 1) if unit else a
        expected = torch.linalg.solve_triangular(matrix, right, upper=not lower, left=left, unitriangular=unit)
        assert_close(fmm.linalg.solve_triangular(matrix, right, 0, lower, unit, left=left), expected, 16)
        adjoint = fmm.linalg.solve_triangular(matrix.mH.resolve_conj(), right, "C", not lower, unit, left=left)
        assert_close(adjoint, expected, 16)
    assert_close(
        fmm.linalg.solve_triangular(a, b[0, :, 0]), torch.linalg.solve_triangular(a, b[0, :, :1], upper=True)[:, 0]
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_factors_and_inverses_are_those_of_torch(n: int, dtype: str) -> None:
    for name, matrix in positive_matrices(n, dtype).items():
        a = tensor(matrix)
        for upper in (False, True):
            factor = fmm.linalg.cholesky(a, upper=upper)
            product = factor.mH @ factor if upper else factor @ factor.mH
            assert_close(product, a, 18)
            assert not torch.any(factor.tril(-1) if upper else factor.triu(1))
        identity, kinds = np.eye(n, dtype=dtype), ("gen", "pos")
        allowed = 10 * backward_error(matrix, torch.linalg.inv(a).numpy(), identity)
        for kind in kinds:
            inverse = fmm.linalg.inv(a, assume_a=kind).numpy()  # type: ignore[arg-type]
            assert backward_error(matrix, inverse, identity) <= allowed + 64 * float(np.finfo(dtype).eps), (name, kind)


def test_out_takes_results() -> None:
    a = tensor(positive_matrices(17, "float64")["normal"])
    out = torch.empty(17, 17, dtype=torch.float64)
    for function in (fmm.linalg.cholesky, fmm.linalg.inv):
        expected = function(a)
        assert function(a, out=out) is out
        assert torch.equal(out, expected)
    b = a[:, :3].clone()
    expected = fmm.linalg.cho_solve((a, True), b)
    assert fmm.linalg.cho_solve((a, True), b, out=b) is b and torch.equal(b, expected)


def test_singular_and_indefinite_matrices_raise_torchs_exceptions() -> None:
    a = tensor(positive_matrices(18, "float64")["normal"])
    indefinite, singular = a.clone(), a.clone()
    indefinite[11, 11] = -1
    singular[:, 4] = 0
    for name, matrix in (("cholesky", indefinite), ("inv", singular)):
        for x in (matrix, torch.stack([a, matrix])):
            with pytest.raises(torch.linalg.LinAlgError) as expected:
                getattr(torch.linalg, name)(x)
            with pytest.raises(torch.linalg.LinAlgError) as found:
                getattr(fmm.linalg, name)(x)
            assert str(found.value) == str(expected.value)
    triangle = singular.tril()
    found = fmm.linalg.solve_triangular(triangle, a, lower=True)
    assert not torch.isfinite(found[4:]).all() and torch.isfinite(found[:4]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_orthogonal_factors_and_least_squares_are_torchs(dtype: str) -> None:
    a, b = tensor(random_matrix(40, 9, dtype)), tensor(random_matrix(40, 3, dtype, seed=1))
    q, r = fmm.linalg.qr(a)
    own_q, own_r = torch.linalg.qr(a)
    assert_close(q.abs(), own_q.abs(), 18)
    assert_close(r.abs(), own_r.abs(), 18)
    assert_close(fmm.linalg.qr(torch.stack([a, a]), "r")[1], r, 18)
    found, expected = fmm.linalg.lstsq(a, b), torch.linalg.lstsq(a, b, driver="gels")
    for x, y in zip(found, expected, strict=True):
        assert_close(x, y, 16) if y.numel() else None
        assert x.shape == y.shape and x.dtype == y.dtype
    assert_close(fmm.linalg.lstsq(a, b[:, 0]).solution, torch.linalg.lstsq(a, b[:, 0]).solution, 18)


def test_a_vector_is_solved_for_each_factor_of_a_stack() -> None:
    a, b = tensor(positive_matrices(9, "float64")["normal"]), tensor(np.arange(1.0, 10))
    stack = torch.stack([a, 2 * a])
    expected = torch.linalg.solve(stack, b)
    assert_close(fmm.linalg.cho_solve((torch.linalg.cholesky(stack), True), b), expected)
    assert_close(fmm.linalg.lu_solve(torch.linalg.lu_factor(stack), b), expected)


# ---- gradients


def gradients(function: Any, *tensors: Any) -> list[Any]:
    """Return the gradients of a weighted sum of the result's entries."""
    leaves = [x.clone().requires_grad_() for x in tensors]
    y = function(*leaves)
    weights = torch.arange(1, y.numel() + 1, dtype=torch.float64).reshape(y.shape).cos()
    (y * weights).abs().square().sum().backward()
    return [x.grad for x in leaves]


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_gradients_of_triangular_systems_are_torchs(unit: bool, left: bool, lower: bool, dtype: str) -> None:
    a = tensor(random_matrix(9, 9, dtype) / 4 + 3 * np.eye(9).astype(dtype))
    b = tensor(np.stack([random_matrix(9, 9, dtype, seed) for seed in (1, 2)]))

    def by_fmm(a: Any, b: Any) -> Any:
        return fmm.linalg.solve_triangular(a, b, 0, lower, unit, left=left)

    def by_torch(a: Any, b: Any) -> Any:
        return torch.linalg.solve_triangular(a, b, upper=not lower, left=left, unitriangular=unit)

    for found, expected in zip(gradients(by_fmm, a, b), gradients(by_torch, a, b), strict=True):
        assert_close(found, expected, 36)
    for trans, view in (("T", lambda x: x.mT), ("C", lambda x: x.mH)):
        pair = gradients(lambda a, b, t=trans: fmm.linalg.solve_triangular(a, b, t, not lower, unit, left=left), a, b)
        expected_pair = gradients(lambda a, b, v=view: by_torch(v(a), b), a, b)
        for found, expected in zip(pair, expected_pair, strict=True):
            assert_close(found, expected, 36)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("upper", [False, True])
def test_gradients_of_factors_are_torchs(upper: bool, dtype: str) -> None:
    a = tensor(np.stack([positive_matrices(n, dtype)["normal"] for n in (9, 9)]))
    (found,) = gradients(lambda x: fmm.linalg.cholesky(x, upper=upper), a)
    (expected,) = gradients(lambda x: torch.linalg.cholesky(x, upper=upper), a)
    assert_close(found, expected, 36)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_gradients_of_orthogonal_factors_are_torchs(dtype: str) -> None:
    a = tensor(np.stack([random_matrix(20, 6, dtype, seed) for seed in (1, 2)]))
    sides = tensor(random_matrix(20, 3, dtype))

    def without_signs(factors: Any) -> Any:
        q, r = factors
        return q @ (q.mH @ sides) + (r.mH @ r).sum((-1, -2))[:, None, None]

    (found,) = gradients(lambda x: without_signs(fmm.linalg.qr(x)), a)
    (expected,) = gradients(lambda x: without_signs(torch.linalg.qr(x)), a)
    assert_close(found, expected, 36)
    with pytest.raises(RuntimeError, match="mode"):
        fmm.linalg.qr(a.requires_grad_(), "r").abs().sum().backward()


def test_second_derivatives_pass_gradcheck() -> None:
    a = tensor(random_matrix(3, 3, "float64") / 4 + 3 * np.eye(3), True)
    b = tensor(random_matrix(3, 2, "float64", seed=1), True)
    solve = lambda a, b: fmm.linalg.solve_triangular(a, b, lower=True)  # noqa: E731
    assert torch.autograd.gradgradcheck(solve, (a, b))
    assert torch.autograd.gradgradcheck(lambda x: fmm.linalg.cholesky(x @ x.mT), (a,))
    tall = tensor(random_matrix(5, 3, "float64"), True)
    assert torch.autograd.gradgradcheck(fmm.linalg.qr, (tall,))


def test_inverses_with_gradients_are_torchs() -> None:
    a = tensor(positive_matrices(9, "float64")["normal"])
    for kind in ("gen", "pos"):
        (found,) = gradients(lambda x, k=kind: fmm.linalg.inv(x, assume_a=k), a)
        (expected,) = gradients(torch.linalg.inv, a)
        assert torch.equal(found, expected)


def test_traces_and_transforms_are_torchs() -> None:
    a = tensor(positive_matrices(9, "float64")["normal"])
    stack = torch.stack([a, 2 * a])
    assert_close(torch.func.vmap(fmm.linalg.cholesky)(stack), torch.linalg.cholesky(stack), 40)
    found = torch.func.vmap(lambda x: fmm.linalg.solve_triangular(x, a, lower=True))(stack)
    assert_close(found, torch.linalg.solve_triangular(stack, a, upper=False), 40)
    _, tangent = torch.func.jvp(fmm.linalg.cholesky, (a,), (a,))
    assert_close(tangent, torch.linalg.cholesky(a) / 2, 40)


@pytest.mark.parametrize("trans", "NTC")
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_solutions_from_factors_under_transforms_are_torchs(dtype: str, trans: str) -> None:
    a, b = tensor(random_matrix(9, 9, dtype)), tensor(random_matrix(9, 3, dtype, seed=1))
    stack = torch.stack([a, 2 * a.mT])
    op: Any = {"N": lambda x: x, "T": lambda x: x.mT, "C": lambda x: x.mH}[trans]
    for right in (b, b[:, 0]):
        by_fmm: Any = lambda x, y=right: fmm.linalg.lu_solve(torch.linalg.lu_factor(x), y, trans)  # noqa: E731
        by_torch: Any = lambda x, y=right: torch.linalg.solve(op(x), y)  # noqa: E731
        assert_close(torch.func.vmap(by_fmm)(stack), torch.func.vmap(by_torch)(stack), 30)
        found, expected = (torch.func.jvp(f, (a,), (a.mT.contiguous(),))[1] for f in (by_fmm, by_torch))
        assert_close(found, expected, 26)
        found, expected = (torch.func.grad(lambda x, f=f: f(x).abs().sum())(a) for f in (by_fmm, by_torch))
        assert_close(found, expected, 26)


# ---- general systems


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_general_systems_are_solved_as_by_torch(n: int, dtype: str) -> None:
    a, b = tensor(random_matrix(n, n, dtype)), tensor(random_matrix(n, 4, dtype, seed=1))
    lu, pivots = fmm.linalg.lu_factor(a)
    expected, rows = torch.linalg.lu_factor(a)
    assert_close(lu, expected, 16)
    assert pivots.dtype == torch.int32 and torch.equal(pivots, rows)
    assert_close(fmm.linalg.solve(a, b), torch.linalg.solve(a, b), 10)
    stack, vectors = torch.stack([a, a.mT]), torch.stack([b, 2 * b])
    assert_close(fmm.linalg.solve(stack, vectors), torch.linalg.solve(stack, vectors), 10)
    assert_close(fmm.linalg.solve(stack, b), torch.linalg.solve(stack, b.expand(2, n, 4)), 10)
    for trans, op in (("N", a), ("T", a.mT), ("C", a.mH)):
        assert_close(fmm.linalg.lu_solve((lu, pivots), b, trans), torch.linalg.solve(op, b), 10)
    assert_close(fmm.linalg.det(stack), torch.linalg.det(stack), 12)
    found, expected_pair = fmm.linalg.slogdet(stack), torch.linalg.slogdet(stack)
    assert_close(found.sign, expected_pair.sign, 12)
    assert_close(found.logabsdet, expected_pair.logabsdet, 12)


def test_pivots_in_any_layout_reach_the_kernel_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is launched with the address of the pivots and without their strides."""

    def read_as_kernel(library: Any, pivots: Any, origin: int) -> tuple[Any, Any]:
        return on_host(library, pivots.as_strided(pivots.shape, (1,), pivots.storage_offset()), origin)

    on_host = solver_library.TorchSolvers.moved_row_indices
    monkeypatch.setattr(solver_library.TorchSolvers, "moved_row_indices", read_as_kernel)
    a = tensor(np.stack([random_matrix(9, 9, "float64", seed) for seed in range(3)]))
    b = tensor(random_matrix(9, 2, "float64", seed=4))
    lu, pivots = torch.linalg.lu_factor(a)
    assert_close(fmm.linalg.lu_solve((lu, pivots.T.contiguous().T), b), torch.linalg.solve(a, b), 26)


def test_factors_on_a_gpu_are_solved_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver_library, "has_cupy", lambda: False)
    host = tensor(np.array([3, 2, 2, 3], np.int32))
    on_gpu: Any = SimpleNamespace(is_cuda=True, device=host.device, cpu=lambda: host)
    for found, expected in zip(
        torch_solvers().moved_row_indices(on_gpu, 0), torch_solvers().moved_row_indices(host, 0), strict=True
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("batch", [(), (3,), (2,), (2, 3), (0,)])
@pytest.mark.parametrize("kind", ["gen", "pos"])
def test_stacks_of_vectors_are_solved_as_by_torch(kind: Any, batch: tuple[int, ...]) -> None:
    a = tensor(positive_matrices(3, "float64")["normal"]).expand(*batch, 3, 3)
    b = tensor(random_matrix(3, 6, "float64")).reshape(-1)[: int(np.prod(batch)) * 3].reshape(*batch, 3)
    for right in (b, b[..., None], tensor(np.arange(1.0, 4))):
        assert_close(fmm.linalg.solve(a, right, assume_a=kind), torch.linalg.solve(a, right), 26)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_gradients_of_solutions_are_torchs(dtype: str) -> None:
    a, b = tensor(random_matrix(9, 9, dtype)), tensor(random_matrix(9, 3, dtype, seed=1))
    for right in (b, b[:, 0]):
        for found, expected in zip(
            gradients(fmm.linalg.solve, a, right), gradients(torch.linalg.solve, a, right), strict=True
        ):
            assert_close(found, expected, 26)
    for found, expected in zip(
        gradients(lambda x, y: fmm.linalg.solve(torch.stack([x, 2 * x]), y), a, b),
        gradients(lambda x, y: torch.linalg.solve(torch.stack([x, 2 * x]), y.expand(2, 9, 3)), a, b),
        strict=True,
    ):
        assert_close(found, expected, 26)
    pivots = fmm.linalg.lu_factor(a)[1]
    for found, expected in zip(
        gradients(lambda lu, y: fmm.linalg.lu_solve((lu, pivots), y), a, b),
        gradients(lambda lu, y: torch.linalg.lu_solve(lu, pivots, y), a, b),
        strict=True,
    ):
        assert_close(found, expected, 26)
    real = tensor(random_matrix(3, 3, "float64") + 2 * np.eye(3), True)
    assert torch.autograd.gradgradcheck(fmm.linalg.solve, (real, tensor(random_matrix(3, 2, "float64"), True)))


def test_factors_and_determinants_with_gradients_are_torchs() -> None:
    a = tensor(random_matrix(9, 9, "float64"))
    for name in ("lu_factor", "det", "slogdet"):
        own, theirs = getattr(fmm.linalg, name), getattr(torch.linalg, name)
        part = (lambda x: x) if name == "det" else (lambda x: x[0]) if name == "lu_factor" else (lambda x: x[1])
        (found,) = gradients(lambda x, f=own, g=part: g(f(x)), a)
        (expected,) = gradients(lambda x, f=theirs, g=part: g(f(x)), a)
        assert torch.equal(found, expected)


def test_refined_solutions_of_tensors() -> None:
    a, b = tensor(random_matrix(30, 30, "float64")), tensor(random_matrix(30, 3, "float64"))
    x, report = fmm.linalg.refined_solve(a, b)
    assert report.factors == "float32" and report.backward_error < 1e-15
    assert_close(x, torch.linalg.solve(a, b), 30)
    with pytest.raises(torch.linalg.LinAlgError):
        fmm.linalg.solve(torch.zeros(5, 5, dtype=torch.float64), b[:5], refine=True)
    with pytest.raises(RuntimeError, match="zero"):
        fmm.linalg.lu_factor(torch.zeros(5, 5))
