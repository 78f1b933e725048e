"""Declined calls of fmm.gemm and fmm.gram: few functions of fmm before the library's own, and the library's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.kernels.plans.plan import VENDOR
from fmm.runtime.decisions import early_declines
from fmm.runtime.decisions.decide import Decision
from tests.support.own_calls import called_functions

MOST = 17  # functions of fmm, at some 0.1 microseconds each with what they read of an array
VENDOR_FUNCTIONS = (
    "library.vendor_product",
    "library.fast_vendor_gemm",
    "library.write_triangle",
    "library.record_array_change",
)


def overhead(call: Callable[[], object]) -> list[str]:
    """Return the functions that a declined call enters besides the adapter's calls of the library."""
    for _ in range(2):
        call()
    names = [name for name in called_functions(call) if not name.endswith(">")]
    first = next((i for i, name in enumerate(names) if name.endswith(VENDOR_FUNCTIONS)), len(names))
    return names[:first]


def operands(library: str) -> tuple[Any, Any]:
    x = np.arange(12.0).reshape(3, 4)
    if library == "numpy":
        return x, np.eye(3)
    torch: Any = pytest.importorskip("torch")
    return torch.from_numpy(x), torch.eye(3, dtype=torch.float64)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_declined_gemm_enters_few_functions(library: str) -> None:
    a, c = operands(library)
    b = a.T
    calls: dict[str, Callable[[], object]] = {
        "product": lambda: fmm.gemm(a, b),
        "factor": lambda: fmm.gemm(a, b, alpha=2.5),
        "addend": lambda: fmm.gemm(a, b, c, beta=0.5),
        "transposed": lambda: fmm.gemm(a, a, transpose_b=True),
        "stack": lambda: fmm.gemm(a[None], b[None], c, alpha=2, beta=1),
        "in place": lambda: fmm.gemm(a, b, c, beta=1, out=c),
    }
    for name, call in calls.items():
        names = overhead(call)
        assert len(names) <= MOST, (name, names)


def test_a_small_gemm_of_tensors_is_torch_s_after_few_checks() -> None:
    a, c = operands("torch")
    b = a.T
    calls: tuple[Callable[[], object], ...] = (
        lambda: fmm.gemm(a, b),
        lambda: fmm.gemm(a, b, c, beta=1),
        lambda: fmm.gemm(a, b, c[0], beta=1.0),
        lambda: fmm.gemm(a, b, c, beta=0),
        lambda: fmm.gemm(a[None], b[None]),
        lambda: fmm.gemm(a[None], b[None], c, beta=1),
    )
    for call in calls:
        names = overhead(call)
        assert len(names) <= 4, names  # fmm.gemm, run_small_gemm, and two that ask whether calls are recorded


def test_a_small_gemm_of_tensors_is_computed_or_rejected_as_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch")
    x = torch.arange(12.0).reshape(3, 4)
    square, nan = torch.eye(3), torch.full((3, 3), float("nan"))
    grad = torch.ones(3, 4, requires_grad=True)
    parameter = torch.nn.Parameter(torch.ones(4, 3))
    calls: dict[str, Callable[[], Any]] = {
        "shapes": lambda: fmm.gemm(x, x),
        "addend of another shape": lambda: fmm.gemm(x, x.T, torch.ones(2, 3), beta=1),
        "addend of a stack": lambda: fmm.gemm(x, x.T, torch.ones(2, 3, 3), beta=1),
        "addend as a column": lambda: fmm.gemm(x, x.T, torch.ones(3, 1), beta=1),
        "addend of another type": lambda: fmm.gemm(x, x.T, square.double(), beta=1),
        "factor of another type": lambda: fmm.gemm(x, x.T.double(), square, beta=1),
        "no addend": lambda: fmm.gemm(x, x.T, beta=1),
        "NaN that is not read": lambda: fmm.gemm(x, x.T, nan, beta=0),
        "vectors": lambda: fmm.gemm(x[0], x[0]),
        "a complex factor": lambda: fmm.gemm(x, x.T, alpha=1 + 0j),
        "bool": lambda: fmm.gemm(x, x.T, alpha=True),
        "a tensor as factor": lambda: fmm.gemm(x, x.T, square, beta=torch.tensor(1.0)),
        "integers": lambda: fmm.gemm(x.long(), x.T.long(), square.long(), beta=1),
        "bool matrices": lambda: fmm.gemm(x.bool(), x.T.bool(), square.bool(), beta=1),
        "bfloat16": lambda: fmm.gemm(x.bfloat16(), x.T.bfloat16(), square.bfloat16(), beta=1),
        "an array of NumPy's": lambda: fmm.gemm(x, x.T, np.eye(3), beta=1),
        "a parameter": lambda: fmm.gemm(x, parameter, square, beta=1),
        "a gradient": lambda: torch.autograd.grad(fmm.gemm(grad, x.T, square, beta=1).sum(), grad)[0],
        "empty": lambda: fmm.gemm(x[:, :0], x.T[:0], square, beta=1),
        "sparse": lambda: fmm.gemm(x, x.T.to_sparse(), square, beta=1),
        "a conjugate": lambda: fmm.gemm(x.cfloat().conj(), x.T.cfloat(), square.cfloat(), beta=1),
        "stacks": lambda: fmm.gemm(torch.stack([x, -x]), torch.stack([x.T, x.T]), square, beta=1),
        "stacks of two lengths": lambda: fmm.gemm(torch.stack([x, -x]), x.T[None], square, beta=1),
        "stacks of four axes": lambda: fmm.gemm(x[None, None], x.T[None, None], square, beta=1),
        "a larger addend of stacks": lambda: fmm.gemm(x[None], x.T[None], torch.ones(2, 3, 3), beta=1),
        "a stack and a matrix": lambda: fmm.gemm(x[None], x.T),
        "a float factor": lambda: fmm.gemm(x, x.T, square, alpha=1.0, beta=1.0),
    }

    def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
        try:
            c = call()
        except Exception as error:
            return f"{type(error).__name__}: {error}", None
        return f"{type(c).__name__} {c.dtype} {c.requires_grad}", c.detach().resolve_conj()

    fmm.gemm(x, x.T)  # torch's type is known from now on
    found = {name: outcome(call) for name, call in calls.items()}
    monkeypatch.setattr("fmm.api.run_small_gemm", lambda *arguments: None)
    for name, call in calls.items():
        text, c = outcome(call)
        assert found[name][0] == text, name
        assert c is None or torch.equal(found[name][1], c), name


def test_a_small_scaled_gemm_of_tensors_is_torch_s_after_few_checks() -> None:
    a, c = operands("torch")
    b, out = a.T, c.clone()
    calls: tuple[Callable[[], object], ...] = (
        lambda: fmm.gemm(a, b, alpha=2.5),
        lambda: fmm.gemm(a, a, transpose_b="T"),
        lambda: fmm.gemm(b, b, transpose_a=True, alpha=-1),
        lambda: fmm.gemm(a, b, c, alpha=2, beta=0.5),
        lambda: fmm.gemm(a, b, out=out),
        lambda: fmm.gemm(a, b, c, beta=1, out=out),
        lambda: fmm.gemm(a[None], b[None], c, alpha=2, beta=1),
    )
    for call in calls:
        names = overhead(call)
        assert len(names) <= 7, names
        assert "fmm.runtime.decisions.early_declines.call_key" not in names


def test_a_small_scaled_gemm_of_tensors_is_computed_or_rejected_as_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch")
    x, square, long = torch.arange(12.0).reshape(3, 4), torch.eye(3), 1 << 70
    grad, z = torch.ones(3, 4, requires_grad=True), torch.arange(9.0).reshape(3, 3).cfloat()
    recorded = torch.ones(3, 3, requires_grad=True)
    calls: dict[str, Callable[[], Any]] = {
        "alpha is 0": lambda: fmm.gemm(x, x.T, square, alpha=0, beta=2),
        "alpha is 0, shapes": lambda: fmm.gemm(x, x, alpha=0),
        "shapes": lambda: fmm.gemm(x, x, alpha=2),
        "vectors": lambda: fmm.gemm(x[0], x[0], alpha=2),
        "a stack and a matrix": lambda: fmm.gemm(x[None], x.T, alpha=2),
        "stacks of two lengths": lambda: fmm.gemm(torch.stack([x, x]), x.T[None], square, alpha=2, beta=1),
        "no addend": lambda: fmm.gemm(x, x.T, alpha=2, beta=1),
        "addend of another shape": lambda: fmm.gemm(x, x.T, torch.ones(2, 3), alpha=2, beta=1),
        "addend of another type": lambda: fmm.gemm(x, x.T, square.double(), alpha=2, beta=1),
        "addend of another type, not read": lambda: fmm.gemm(square, square, square.double(), alpha=2, out=square),
        "a row": lambda: fmm.gemm(x, x.T, square[0], alpha=2, beta=1),
        "integers": lambda: fmm.gemm(x.long(), x.T.long(), alpha=2),
        "integers and a float": lambda: fmm.gemm(x.long(), x.T.long(), alpha=2.5),
        "a large factor": lambda: fmm.gemm(x, x.T, alpha=long),
        "a complex factor": lambda: fmm.gemm(z, z, alpha=1j),
        "a complex factor of real numbers": lambda: fmm.gemm(x, x.T, alpha=1j),
        "inf": lambda: fmm.gemm(x, x.T, square, alpha=float("inf"), beta=float("nan")),
        "a conjugate": lambda: fmm.gemm(z.conj(), z, alpha=2, transpose_a=True),
        "an adjoint": lambda: fmm.gemm(z, z, alpha=2, transpose_a="C"),
        "a wrong transpose": lambda: fmm.gemm(x, x, transpose_a="B"),
        "a wrong place": lambda: fmm.gemm(x, x.T, out=torch.empty(2, 3)),
        "a place of another type": lambda: fmm.gemm(x, x.T, out=square.double()),
        "an operand as place": lambda: fmm.gemm(z, z, z, alpha=2, beta=1, out=z.clone()),
        "a gradient": lambda: torch.autograd.grad(fmm.gemm(grad, x.T, square, alpha=2, beta=1).sum(), grad)[0],
        "a gradient and a place": lambda: fmm.gemm(grad, x.T, out=torch.empty(3, 3)),
        "a gradient and an operand as place": lambda: fmm.gemm(recorded, square, alpha=2, out=square),
        "a gradient and its own place": lambda: fmm.gemm(recorded, square, square, beta=2, out=recorded),
    }

    def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
        try:
            c = call()
        except Exception as error:
            return f"{type(error).__name__}: {error}", None
        return f"{type(c).__name__} {c.dtype} {c.requires_grad}", c.detach().resolve_conj().clone()

    fmm.gemm(x, x.T)  # torch's type is known from now on
    for _ in range(2):  # an error is raised again
        square.copy_(torch.eye(3))
        found = {name: outcome(call) for name, call in calls.items()}
    square.copy_(torch.eye(3))
    monkeypatch.setattr("fmm.api.run_small_scaled_gemm", lambda *arguments: None)
    monkeypatch.setattr("fmm.api.run_cached_gemm", lambda *arguments: None)
    for name, call in calls.items():
        text, c = outcome(call)
        assert found[name][0] == text, name
        assert c is None or torch.equal(found[name][1].nan_to_num(), c.nan_to_num()), name


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_declined_gram_enters_few_functions(library: str) -> None:
    a, c = operands(library)
    calls: dict[str, Callable[[], object]] = {
        "product": lambda: fmm.gram(a, rows=True),
        "factor": lambda: fmm.gram(a, rows=True, alpha=2.5),
        "triangle": lambda: fmm.gram(a, fill="lower"),
        "two": lambda: fmm.gram(a, a.T),
        "addend": lambda: fmm.gram(a, out=c, rows=True, beta=1),
    }
    for name, call in calls.items():
        names = overhead(call)
        assert len(names) <= MOST, (name, names)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_large_declined_product_of_host_tensors_enters_few_functions(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision for a tensor on the host is found again where the next call looks for it."""
    torch: Any = pytest.importorskip("torch")
    from fmm import dispatch

    for module, name in (
        (early_declines, "SMALL_MULTIPLY_ADDS"),
        (early_declines, "SMALL_MULTIPLY_ADDS_16_BIT"),
        (dispatch, "SMALL_BYTES_PRODUCT"),
    ):
        monkeypatch.setattr(module, name, 0)
    monkeypatch.setattr(early_declines, "SMALL_MULTIPLY_ADDS_UNALIGNED", 0)
    monkeypatch.setitem(early_declines.DECLINE_MEMORY, "cpu", early_declines.DeclineCacheLimits(10.0, 0))
    monkeypatch.setattr(
        "fmm.runtime.prepare.decide_plan", lambda problem, *rest: Decision(VENDOR, problem, "", (), "model")
    )
    a = torch.ones(31, 37, dtype=getattr(torch, dtype))
    names = overhead(lambda: fmm.matmul(a, a.T.contiguous()))
    assert len(names) <= 8, names


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_large_declined_call_is_remembered_for_longer(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is too short for products that take as long."""
    monkeypatch.setattr("fmm.dispatch.SMALL_BYTES_PRODUCT", 0)
    monkeypatch.setattr(early_declines, "CALL_DECLINE_SECONDS", -1.0)
    a, _ = operands(library)
    calls: tuple[Callable[[], object], ...] = (
        lambda: fmm.gemm(a, a, alpha=3.5, transpose_b=True),
        lambda: fmm.gram(a, rows=True, alpha=3.5),
    )
    for call in calls:
        names = overhead(call)
        assert len(names) <= MOST, names


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("alpha, beta", [(1, 0), (2.5, 0), (1, 1), (-0.5, 2), (0, 1)])
def test_a_remembered_gemm_returns_the_same_bits(
    library: str, dtype: str, alpha: float, beta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With transposes, places that overlap a factor, and addends that are broadcast."""
    rng = np.random.default_rng(3)
    a, b, addend = (rng.standard_normal((4, 4)).astype(dtype) for _ in range(3))
    c: Any = addend if beta else None

    def results() -> list[Any]:
        found = []
        for ta in (False, True, "C"):
            for place in ("new", "c", "a"):
                x, y, z = (None if v is None else v.copy() for v in (a, b, c))
                if library == "torch":
                    torch: Any = pytest.importorskip("torch")
                    x, y, z = (None if v is None else torch.from_numpy(v) for v in (x, y, z))
                out = {"new": None, "c": z, "a": x}[place]
                options: dict[str, Any] = {"alpha": alpha, "beta": beta, "transpose_a": ta, "out": out}
                c_found = fmm.gemm(x, y, z, **options)
                found.append(np.array(c_found if library == "numpy" else c_found.numpy()))
            if beta:
                found.append(np.array(fmm.gemm(a, b, c[0], alpha=alpha, beta=beta)))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(early_declines, "CALL_DECLINE_SECONDS", -1.0)
        expected = results()
    results()
    for fast, slow in zip(results(), expected, strict=True):
        np.testing.assert_array_equal(fast, slow)


def test_a_remembered_answer_does_not_hide_errors_or_gradients() -> None:
    a = np.ones((3, 3))
    for _ in range(2):
        fmm.gemm(a, a, alpha=1)
        fmm.gram(a, alpha=2)
    with pytest.raises(ValueError, match="alpha must be a number"):
        fmm.gemm(a, a, alpha=True)
    with pytest.raises(ValueError, match="transpose_a"):
        fmm.gemm(a, a, transpose_a=[1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="match"):
        fmm.gemm(a, np.ones((4, 3)))
    torch: Any = pytest.importorskip("torch")
    x = torch.ones(3, 3)
    for _ in range(2):
        fmm.gemm(x, x, alpha=2)
        fmm.gram(x)
    y = torch.ones(3, 3, requires_grad=True)
    (fmm.gemm(y, x, alpha=2).sum() + fmm.gram(y).sum()).backward()
    np.testing.assert_allclose(y.grad, np.full((3, 3), 6.0 + 6.0))
