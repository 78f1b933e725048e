"""torch.linalg's solvers while fmm is installed: values, gradients, layouts and errors beside torch's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import fmm
from tests.support.solver_matrices import positive_matrices, random_matrix, solve_everything_by_products

torch = pytest.importorskip("torch")
from fmm.integrations import torch_solvers  # noqa: E402

DTYPES = ("float64", "complex128")


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Install fmm for tensors on the host, and return the names of the operators that fmm computes."""
    solve_everything_by_products(monkeypatch)
    monkeypatch.setattr(torch_solvers, "SMALLEST_GAINING_SIDE", 2)
    names: list[str] = []

    def noting(name: str, solver: Any) -> Any:
        def note_and_solve(*operands: Any, **options: Any) -> Any:
            result = solver(*operands, **options)
            names.extend([name] if result is not None else [])
            return result

        return note_and_solve

    for name, solver in torch_solvers.TORCH_SOLVERS.items():
        monkeypatch.setitem(torch_solvers.TORCH_SOLVERS, name, noting(name, solver))
    yield names
    fmm.uninstall("torch-cpu")


def results(dtype: str) -> list[Any]:
    """Return the results and gradients of solvers."""
    matrix = torch.tensor(positive_matrices(9, dtype)["normal"])
    a = torch.stack([matrix, 2 * matrix, 3 * matrix]).requires_grad_()
    b = torch.tensor(random_matrix(9, 4, dtype)).expand(3, 9, 4).contiguous().requires_grad_()
    tall = torch.tensor(random_matrix(30, 7, dtype)).requires_grad_()
    found: list[Any] = []
    for upper in (False, True):
        factor = torch.linalg.cholesky(a, upper=upper)
        x = torch.linalg.solve_triangular(factor, b, upper=upper)
        y = torch.linalg.solve_triangular(factor, b.mT, upper=upper, left=False)
        loss = (x.abs() ** 2).sum() + y.abs().sum() + (torch.linalg.inv(a).abs() ** 3).sum()
        found += [factor, x, y, torch.linalg.inv(a), *torch.autograd.grad(loss, [a, b])]
    lu, pivots = torch.linalg.lu_factor(a)
    x = torch.linalg.solve(a, b)
    found += [lu, pivots, x, *torch.autograd.grad((x.abs() ** 2).sum() + lu.abs().sum(), [a, b])]
    skew = torch.tensor(random_matrix(9, 9, dtype)).requires_grad_()
    for matrix in (skew, skew.mT):
        x = torch.linalg.solve(matrix, b[0])
        found += [x, *torch.autograd.grad((x.abs() ** 2).sum(), [skew, b])]
    found += [torch.linalg.solve(a, b[..., 0]), torch.linalg.solve(a, b.mT, left=False)]
    q, r = torch.linalg.qr(tall)
    loss = ((q @ q.mH @ tall.detach()[:, :3].flip(0)).abs() ** 2).sum() + r.abs().sum()
    return [*found, q.abs(), r.abs(), *torch.autograd.grad(loss, tall), torch.linalg.qr(tall.detach(), "r")[1].abs()]


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_gradients_and_layouts_are_torchs(dtype: str, solved: list[str]) -> None:
    expected = results(dtype)
    assert not solved
    fmm.install("torch-cpu")
    found = results(dtype)
    assert set(solved) == set(torch_solvers.TORCH_SOLVERS)
    fmm.uninstall("torch-cpu")
    for x, y, z in zip(found, expected, results(dtype), strict=True):
        assert x.stride() == y.stride() and x.dtype == y.dtype
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-11)
        assert torch.equal(y, z)


def test_singular_and_indefinite_matrices_are_torchs(solved: list[str]) -> None:
    a = torch.tensor(positive_matrices(18, "float64")["normal"])
    indefinite, singular = torch.stack([a, a]), torch.stack([a, a])
    indefinite[1, 11, 11] = -1
    singular[1, :, 4] = 0

    def outcomes() -> list[Any]:
        infos = [torch.linalg.cholesky_ex(indefinite).info.tolist(), torch.linalg.inv_ex(singular).info.tolist()]
        infos += [torch.linalg.lu_factor_ex(singular).info.tolist()]
        solve: Any = lambda x: torch.linalg.solve(x, x)  # noqa: E731
        failing: Any = ((torch.linalg.cholesky, indefinite), (torch.linalg.inv, singular), (solve, singular))
        for function, matrix in failing:
            with pytest.raises(torch.linalg.LinAlgError) as error:
                function(matrix)
            infos.append(str(error.value))
        return infos

    expected = outcomes()
    fmm.install("torch-cpu")
    assert outcomes() == expected


def test_small_matrices_and_fmms_own_calls_are_declined(solved: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.tensor(positive_matrices(9, "float64")["normal"])
    fmm.install("torch-cpu")
    torch.linalg.cholesky(a)
    assert solved == ["linalg_cholesky_ex"]  # the blocks' factors are torch's
    monkeypatch.setattr(torch_solvers, "SMALLEST_GAINING_SIDE", 1024)
    torch.linalg.cholesky(a)
    torch.linalg.qr(torch.ones(5, 2, dtype=torch.float64))
    assert len(solved) == 1


def test_fmms_own_kernels_are_never_freed(solved: list[str]) -> None:
    """A thread may still run a kernel of fmm while another thread uninstalls fmm."""
    fmm.install("torch-cpu")
    registered = torch_solvers._registered_kernels[-len(torch_solvers.TORCH_SOLVERS) :]
    kernels = dict(zip(torch_solvers.TORCH_SOLVERS, registered, strict=True))
    a = torch.tensor(positive_matrices(9, "float64")["normal"])
    kernels["linalg_inv_ex"].call_boxed(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), a)
    assert solved == ["linalg_inv_ex"]


def test_transforms_are_torchs(solved: list[str]) -> None:
    a = torch.tensor(positive_matrices(9, "float64")["normal"])
    stack = torch.stack([a, 2 * a])
    expected = torch.func.vmap(torch.linalg.cholesky)(stack)
    fmm.install("torch-cpu")
    torch.testing.assert_close(torch.func.vmap(torch.linalg.cholesky)(stack), expected)
    _, tangent = torch.func.jvp(torch.linalg.cholesky, (a,), (a,))
    torch.testing.assert_close(tangent, torch.linalg.cholesky(a) / 2)


@pytest.mark.parametrize(
    ("a", "b", "left"),
    [
        ((9, 9), (12, 4), True),
        ((9, 9), (4, 12), False),
        ((9, 7), (9, 4), True),
        ((9, 7), (7, 4), True),
        ((9, 9), (9,), True),
        ((2, 9, 9), (3, 9, 4), True),
    ],
)
def test_wrong_shapes_of_triangular_systems_are_torchs_errors(
    a: tuple[int, ...], b: tuple[int, ...], left: bool, solved: list[str]
) -> None:
    def error() -> str:
        with pytest.raises(RuntimeError) as raised:
            torch.linalg.solve_triangular(torch.ones(a), torch.ones(b), upper=False, left=left)
        return str(raised.value)

    expected = error()
    fmm.install("torch-cpu")
    assert error() == expected and not solved


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError, ValueError], ids=lambda x: x.__name__)
def test_a_call_that_fails_is_repeated_by_torch(
    error: type[Exception], solved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*operands: Any) -> None:
        raise error("for the test")

    a = torch.tensor(positive_matrices(9, "float64")["normal"])
    expected = torch.linalg.inv(a)
    monkeypatch.setattr(torch_solvers, "invert_stacks", fail)
    fmm.install("torch-cpu")
    assert torch.equal(torch.linalg.inv(a), expected) and not solved


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
def test_the_factors_of_solve_ex_are_those_that_torchs_gradients_expect(
    dtype: str, transposed: bool, solved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions of torch that factor the transpose of a real contiguous matrix are simulated."""
    a, b = torch.tensor(random_matrix(9, 9, dtype)), torch.tensor(random_matrix(9, 4, dtype))
    solve_ex: Any = torch.ops.aten._linalg_solve_ex
    if transposed == torch_solvers.solve_ex_factors_transpose():
        expected = [solve_ex(x, b) for x in (a, a.mT)]
    else:
        factored = a.mT if transposed and dtype == "float64" else a
        expected = [(torch.linalg.solve(a, b), *torch.linalg.lu_factor_ex(factored))]
    monkeypatch.setattr(torch_solvers, "solve_ex_factors_transpose", lambda: transposed)
    fmm.install("torch-cpu")
    found = [solve_ex(x, b) for x in (a, a.mT)]
    assert solved == ["_linalg_solve_ex"] * 2
    for results_here, results_there in zip(found, expected, strict=False):
        for x, y in zip(results_here, results_there, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-11)
            assert x.stride() == y.stride()
