"""fmm.gram on torch's tensors on the host: values, gradients, and what torch does besides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import fmm

torch = pytest.importorskip("torch")

PLANS = (None, "gram > strassen > vendor")


def tensor(shape: tuple[int, ...], dtype: Any = None, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=dtype or torch.float64, generator=generator)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_values(dtype: Any, plan: str | None) -> None:
    for shape in ((30, 20), (20, 30), (2, 9, 7)):
        x = tensor(shape, dtype)
        for rows in (False, True):
            c = fmm.gram(x, rows=rows, plan=plan)
            whole = x @ x.mH if rows else x.mH @ x
            assert c.dtype == dtype and torch.equal(c, c.mH.resolve_conj())
            torch.testing.assert_close(c, whole)
        torch.testing.assert_close(fmm.gram(x.mH, plan=plan), x @ x.mH)  # a conjugate that is only marked as one


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
def test_types_that_numpy_does_not_multiply(dtype: Any) -> None:
    x = torch.arange(-30, 30).reshape(12, 5).to(dtype)
    c = fmm.gram(x)
    assert c.dtype == dtype and torch.equal(c, c.mT) and torch.equal(c, x.mT @ x)


def test_what_torch_does_not_cast_is_refused() -> None:
    """Nothing is written there; whole numbers have no fractions."""
    x, whole = tensor((6, 5)), torch.arange(30).reshape(6, 5)
    for dtype in (torch.int64, torch.float32, torch.complex128):
        out = torch.ones(5, 5, dtype=dtype)
        with pytest.raises(RuntimeError, match="out is of"):
            fmm.gram(x, out=out, fill="lower")
        assert (out == 1).all()
    with pytest.raises(RuntimeError, match="must be whole numbers"):
        fmm.gram(whole, alpha=0.5)
    assert torch.equal(fmm.gram(whole, alpha=2), 2 * whole.mT @ whole)


def test_a_whole_factor_may_be_as_large_as_a_float() -> None:
    """Of real and complex numbers; torch itself takes no whole numbers beyond 64 bits."""
    x, factor = tensor((6, 5)), 10**30
    torch.testing.assert_close(fmm.gram(x, alpha=factor), 1e30 * (x.mT @ x))
    out = torch.ones(5, 5, dtype=x.dtype)
    fmm.gram(x, out=out, fill="lower", beta=factor)
    torch.testing.assert_close(out, torch.where(out.tril() != 0, x.mT @ x + 1e30, 1.0))
    y = x.clone().requires_grad_()
    fmm.gram(y, alpha=factor).sum().backward()
    torch.testing.assert_close(y.grad, 2e30 * x.sum(1, keepdim=True).expand(6, 5))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(("rows", "fill"), [(False, "full"), (True, "full"), (False, "lower"), (True, "upper")])
def test_gradients(rows: bool, fill: Any, dtype: Any) -> None:
    """Those of a product with a symmetric matrix, of first and second order."""
    x = tensor((5, 4), dtype).requires_grad_()

    def gram(a: Any) -> Any:
        return fmm.gram(a, rows=rows, fill=fill, alpha=2)

    assert torch.autograd.gradcheck(gram, (x,))
    assert torch.autograd.gradgradcheck(gram, (x,))
    stack = tensor((2, 3, 4), dtype, 1).requires_grad_()
    assert torch.autograd.gradcheck(gram, (stack,))


def test_gradients_of_two_matrices() -> None:
    s = fmm.gram(tensor((5, 5)))
    a, b = s.clone().requires_grad_(), (s @ s).requires_grad_()
    fmm.gram(a, b).sum().backward()
    torch.testing.assert_close(a.grad, torch.ones(5, 5, dtype=s.dtype) @ b.detach().mT)
    torch.testing.assert_close(b.grad, a.detach().mT @ torch.ones(5, 5, dtype=s.dtype))


def test_out() -> None:
    x = tensor((30, 20))
    for fill, half in (("full", None), ("lower", torch.tril), ("upper", torch.triu)):
        out = torch.full((20, 20), 7.0, dtype=x.dtype)
        version = out._version
        assert fmm.gram(x, out=out, fill=fill, alpha=0.5, beta=2) is out  # type: ignore[arg-type]
        assert out._version > version
        wanted = 0.5 * x.mT @ x + 14
        torch.testing.assert_close(half(out) if half else out, half(wanted) if half else wanted)
        if half:
            assert (out[~half(torch.ones(20, 20)).bool()] == 7).all()
    needs = tensor((6, 6)).requires_grad_()
    with pytest.raises(RuntimeError):
        fmm.gram(needs, out=torch.zeros(6, 6, dtype=needs.dtype))


def test_calls_that_torch_records_or_transforms() -> None:
    """By torch's own functions: transforms of functions, autocast."""
    x = tensor((3, 6, 4))
    torch.testing.assert_close(torch.func.vmap(fmm.gram)(x), x.mT @ x)
    torch.testing.assert_close(torch.func.vmap(lambda a: fmm.gram(a, rows=True, fill="lower"))(x), (x @ x.mT).tril())
    with pytest.raises(fmm.PlanError, match=r"gram > vendor cannot run here: .*a transform"):
        torch.func.vmap(lambda a: fmm.gram(a, plan="gram > vendor"))(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fmm.gram(x.float()).dtype == torch.bfloat16
        assert "torch multiplies" in fmm.explain_gram(x.float()).reason


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class FunctionMode(torch.overrides.TorchFunctionMode):  # type: ignore[name-defined, misc]
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class DispatchMode(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[name-defined, misc]
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class Subclass(torch.Tensor):  # type: ignore[name-defined, misc]
    pass


MODES = {
    "deterministic algorithms": deterministic_algorithms,
    "autocast": lambda: torch.autocast("cpu"),
    "forward gradients": torch.autograd.forward_ad.dual_level,
    "function mode": FunctionMode,
    "dispatch mode": DispatchMode,
}


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
@pytest.mark.parametrize(
    ("fill", "alpha", "beta"), [("full", 1, 0), ("lower", 0.5, 2), ("upper", 2, 1), ("full", 0, 3)]
)
@pytest.mark.parametrize("mode", [*MODES, "compiled", "subclass", "conjugate bit"])
def test_out_of_calls_that_torch_computes(mode: str, fill: Any, alpha: float, beta: float) -> None:
    """The values are those of a plain call."""
    x = tensor((6, 5), torch.complex128 if mode == "conjugate bit" else torch.float64)
    old = x.mH @ x + 1
    expected = fmm.gram(x, out=old.clone(), fill=fill, alpha=alpha, beta=beta)

    def gram(x: Any, out: Any) -> Any:
        return fmm.gram(x, out=out, fill=fill, alpha=alpha, beta=beta)

    out = old.clone()
    if mode == "conjugate bit":
        out = old.conj().resolve_conj().conj()
        assert out.is_conj() and "negative bit" in fmm.explain_gram(x, out=out).reason
        gram(x, out)
    elif mode == "compiled":
        torch.compile(gram, backend="eager")(x, out)
    elif mode == "subclass":
        gram(x.as_subclass(Subclass), out)
    else:
        with MODES[mode]():
            assert gram(x, out) is out
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("fill", ["full", "lower", "upper"])
def test_diagonals_that_torch_computes_are_real(fill: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's product may leave imaginary parts there, as this simulated one does."""
    from fmm.arrays.torch_library import TORCH

    x = tensor((6, 5), torch.complex128)
    monkeypatch.setattr(TORCH, "vendor_product", lambda a, b, out=None: a @ b + 1e-9j)
    with FunctionMode():
        found = fmm.gram(x, fill=fill)
        out = fmm.gram(x, fill=fill, out=torch.zeros_like(found))
    for c in (found, out):
        assert not c.diagonal().imag.any() and c.diagonal().real.all()


def test_an_out_that_torch_rejects() -> None:
    """The error is torch's, or fmm's if the shapes do not match."""
    x = tensor((6, 5), torch.float32)
    for out, message in (
        (torch.ones(1, 5).expand(5, 5), "single memory location"),
        (torch.ones(5, 5, requires_grad=True), "automatic differentiation"),
    ):
        with pytest.raises(RuntimeError, match=message):
            fmm.gram(x, out=out)
        assert (out == 1).all()
    with torch.autocast("cpu"), pytest.raises(ValueError, match=r"out is \(1, 5\), the product \(5, 5\)"):
        fmm.gram(x, out=torch.ones(1, 5))


def test_it_is_explained() -> None:
    found = fmm.explain_gram(tensor((300, 200)), plan="gram > strassen > vendor")
    assert found.problem is not None and found.problem.op == "gram"
    np.testing.assert_equal(found.problem.size, (200, 300, 200))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_halves_on_the_host_are_symmetric_bit_for_bit(dtype: Any) -> None:
    """torch's own product of a matrix and its transpose is not always: of 2 x 32 in float32, say."""
    torch.manual_seed(1)
    for m, k in ((2, 32), (1, 7), (40, 130), (150, 17)):
        for _ in range(2):
            for x in (
                torch.randn(m, k, dtype=dtype),
                torch.randn(k, m, dtype=dtype).mT,
                torch.randn(2, m, k, dtype=dtype),
            ):
                for rows in (True, False):
                    expected = x @ x.mT if rows else x.mT @ x
                    for c in (fmm.gram(x, rows=rows), fmm.gram(x, out=torch.full_like(expected, torch.nan), rows=rows)):
                        assert torch.equal(c, c.mT)
                        torch.testing.assert_close(c, expected)


@pytest.mark.parametrize("fill", ["full", "lower", "upper"])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (2.5, 0), (2.0, -4.75), (-1, 1)])
def test_two_matrices_on_the_host_are_one_call_of_torchs(
    fill: Any, alpha: float, beta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole product that adds as it goes, in an array of its own, and the mirror; the other half is left alone."""
    s = torch.randn(70, 50, dtype=torch.float64)
    s = s @ s.mT
    old = torch.randn(70, 70, dtype=torch.float64)
    old = old + old.mT
    multiplied: list[str] = []
    addmm = torch.addmm

    def noted(*given: Any, **more: Any) -> Any:
        multiplied.append("addmm")
        return addmm(*given, **more)

    monkeypatch.setattr(torch, "addmm", noted)
    out = old.clone()
    assert fmm.gram(s, s, out, fill=fill, alpha=alpha, beta=beta) is out
    expected = alpha * (s @ s) + beta * old
    half = {"full": torch.ones_like, "lower": torch.tril, "upper": torch.triu}[fill](torch.ones_like(old)).bool()
    torch.testing.assert_close(out[half], expected[half])
    assert torch.equal(out[~half], old[~half])
    assert fill != "full" or torch.equal(out, out.mT)
    assert multiplied == ["addmm"] * bool(beta)


def test_whole_factors_of_floats_may_be_larger_than_torchs_whole_numbers() -> None:
    x, out = torch.ones(3, 2), torch.ones(3, 3)
    assert (fmm.gram(x, x.T, out=out, alpha=2**70, beta=1) == 2.0**71).all()
    assert (fmm.gemm(x, x.T, alpha=2**70) == 2.0**71).all()
