"""torch products of a complex matrix and its adjoint, a view with a conjugate mark."""

from __future__ import annotations

from typing import Any

import pytest

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
    assert functions._matrix_of_adjoint(x, x.mH) is not None
    for a, b, rows in ((x, x.mH, True), (x.mH, x, False), (x.mT, x.conj(), True)):
        matrix, found = functions._matrix_of_adjoint(a, b)
        assert found == rows and not matrix.is_conj() and matrix.data_ptr() == x.data_ptr()
        product = matrix @ matrix.mH if rows else matrix.mH @ matrix
        torch.testing.assert_close(product, a @ b)
    for a, b in ((x, y.mH), (x, x.mT), (x.mH, x.mH.mT), (x[:, 1:], x.mH[:2]), (x.conj(), x.mH)):
        assert functions._matrix_of_adjoint(a, b) is None


def test_other_products_are_no_gram_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "run_conjugating_plan", lambda *arguments: pytest.fail("a Gram product"))
    x = on_device(torch.randn(5, 3, dtype=torch.complex128))
    recorded = x.clone().requires_grad_()
    for a, b, out in ((x, x.mT, None), (x, x.mH, torch.empty(5, 5)), (recorded, recorded.mH, None)):
        assert functions._hermitian_product(a, b, out, NO_CONSTRAINTS) is None
    assert functions._hermitian_product(x, x.mH, None, NO_CONSTRAINTS._replace(componentwise=True)) is None
