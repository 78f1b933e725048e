"""torch products of a complex matrix and its adjoint, a view with a conjugate mark."""

from __future__ import annotations

from typing import Any

import pytest

import fmm
from fmm.runtime.decisions.limits import NO_CONSTRAINTS

torch = pytest.importorskip("torch")
functions = pytest.importorskip("fmm.runtime.torch_autograd.functions")


class OnDevice(torch.Tensor):  # type: ignore[misc, name-defined]
    """A tensor that says that it is on a CUDA device."""

    is_cuda = True


def on_device(x: Any) -> Any:
    return x.as_subclass(OnDevice)


def test_the_matrix_of_an_adjoint_is_found() -> None:
    x = on_device(torch.randn(5, 3, dtype=torch.complex128))
    y = on_device(torch.randn(5, 3, dtype=torch.complex128))
    assert functions._match_gram_operands(x, x.mH) is not None
    for a, b, rows in ((x, x.mH, True), (x.mH, x, False), (x.mT, x.conj(), True)):
        matrix, found = functions._match_gram_operands(a, b)
        assert found == rows and not matrix.is_conj() and matrix.data_ptr() == x.data_ptr()
        product = matrix @ matrix.mH if rows else matrix.mH @ matrix
        torch.testing.assert_close(product, a @ b)
    for a, b in ((x, y.mH), (x, x.mT), (x.mH, x.mH.mT), (x[:, 1:], x.mH[:2]), (x.conj(), x.mH)):
        assert functions._match_gram_operands(a, b) is None


def test_other_products_are_no_gram_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "run_conjugating_plan", lambda *arguments: pytest.fail("a Gram product"))
    x = on_device(torch.randn(5, 3, dtype=torch.complex128))
    recorded = x.clone().requires_grad_()
    for a, b, out in ((x, x.mT, None), (x, x.mH, torch.empty(5, 5)), (recorded, recorded.mH, None)):
        assert functions._hermitian_product(a, b, out, NO_CONSTRAINTS) is None
    assert functions._hermitian_product(x, x.mH, None, NO_CONSTRAINTS._replace(componentwise=True)) is None


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(2048, 2048), (2001, 1500), (5, 3)])
def test_products_with_an_adjoint_on_a_gpu(shape: tuple[int, int]) -> None:
    """As accurate as torch's own; the product of the chosen plan is its own adjoint, and explain names the plan."""
    x = torch.randn(*shape, dtype=torch.complex128, device="cuda")
    for a, b in ((x, x.mH), (x.mH, x), (x[:, 1:], x[:, 1:].mH)):
        c, expected = fmm.matmul(a, b), torch.matmul(a, b)
        torch.testing.assert_close(c, expected, rtol=0, atol=1e-13 * float(expected.abs().max()))
        if "conj" in str(fmm.explain(a, b).plan):
            assert bool((c == c.mH).all())
