"""fmm.orthogonalize on torch's tensors, and the optimizer of examples/muon.py beside torch.optim.Muon."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fmm
from tests.support import ROOT
from tests.support.newton_schulz import expected_result

torch = pytest.importorskip("torch")
SHAPES = [(1, 1), (5, 7), (64, 33), (2, 17, 40), (3, 2, 40, 17)]


def random_tensor(shape: tuple[int, ...], dtype: Any) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_results_are_those_of_the_definition(shape: tuple[int, ...], dtype: str) -> None:
    x = random_tensor(shape, getattr(torch, dtype))
    found = fmm.orthogonalize(x, 6, "polar-express")
    expected = expected_result(x.double().numpy(), 6, "polar-express")
    assert found.dtype == x.dtype and found.shape == x.shape
    assert np.abs(found.double().numpy() - expected).max() <= 32 * torch.finfo(x.dtype).eps


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_large_matrices_are_scaled(dtype: str) -> None:
    x = torch.randn(24, 40, dtype=torch.float64)
    scale = 1e150 if dtype == "float64" else 2.0**100
    kind = getattr(torch, dtype)
    torch.testing.assert_close(
        fmm.orthogonalize((x * scale).to(kind)), fmm.orthogonalize(x.to(kind)), rtol=0, atol=0.01
    )


def test_out_and_strides() -> None:
    x = random_tensor((3, 40, 60), torch.float32)[::2, ::3, 5::2]
    expected = fmm.orthogonalize(x.contiguous())
    out = torch.empty(2, 28, 14).mT
    assert fmm.orthogonalize(x, out=out) is out
    torch.testing.assert_close(out, expected)
    assert fmm.orthogonalize(x, out=x) is x
    torch.testing.assert_close(x, expected)


def test_gradients() -> None:
    x = random_tensor((3, 4), torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda y: fmm.orthogonalize(y, 2), x)


def test_large_matrices_may_be_multiplied_by_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fmm.newton_schulz.orthogonalization.MIN_PLAN_SIDE", 1)
    for shape in SHAPES:
        x = random_tensor(shape, torch.float64)
        np.testing.assert_allclose(fmm.orthogonalize(x).numpy(), expected_result(x.numpy()), atol=1e-10)


def test_calls_that_torch_records_or_transforms_are_torchs_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fmm.newton_schulz.orthogonalization.MIN_PLAN_SIDE", 1)
    x = random_tensor((2, 9, 14), torch.float64)
    expected = fmm.orthogonalize(x)
    torch.testing.assert_close(torch.vmap(fmm.orthogonalize)(x), expected)
    torch.use_deterministic_algorithms(True)
    found = fmm.orthogonalize(x)
    torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(found, expected)
    with torch.autograd.forward_ad.dual_level():
        torch.testing.assert_close(fmm.orthogonalize(x), expected)
    assert fmm.orthogonalize(x.as_subclass(type("Subclass", (torch.Tensor,), {}))).shape == x.shape
    with torch.autocast("cpu"):
        assert fmm.orthogonalize(x.float()).shape == x.shape


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_a_compiled_program_has_no_graph_break(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = random_tensor((2, 24, 40), getattr(torch, dtype))
    monkeypatch.setattr("fmm.newton_schulz.orthogonalization.MIN_PLAN_SIDE", 1)
    compiled = torch.compile(lambda y: fmm.orthogonalize(y), backend="eager", fullgraph=True)
    found = compiled(x)
    torch.testing.assert_close(found, fmm.orthogonalize(x))


def test_invalid_arrays() -> None:
    for x in (torch.zeros(3), torch.zeros(2, 2, dtype=torch.complex64), torch.zeros(2, 2, dtype=torch.int32)):
        with pytest.raises(ValueError, match="expected a"):
            fmm.orthogonalize(x)
    with pytest.raises(ValueError, match="out is"):
        fmm.orthogonalize(torch.eye(2), out=torch.zeros(2, 2).bfloat16())
    with pytest.raises(TypeError, match="moves nothing"):
        fmm.orthogonalize(torch.eye(2), out=np.zeros((2, 2), np.float32))


# ---- the optimizer


@pytest.fixture(scope="module")
def example() -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location("muon_example", ROOT / "examples" / "muon.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


needs_torchs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no torch.optim.Muon")


@needs_torchs_muon
@pytest.mark.parametrize("options", [{}, {"nesterov": False, "momentum": 0.8}, {"weight_decay": 0.0, "ns_steps": 3}])
def test_updates_are_those_of_torchs_muon(example: Any, options: dict[str, Any]) -> None:
    """Gradients are equal in both, so the parameters differ by the rounding of bfloat16 alone."""
    shapes = [(24, 40), (24, 40), (40, 24), (16, 16), (24, 40)]
    updates = {}
    for name, optimizer in (("fmm", example.Muon), ("torch", torch.optim.Muon)):
        params = [torch.nn.Parameter(random_tensor(shape, torch.float32)) for shape in shapes]
        begin = [p.detach().clone() for p in params]
        made = optimizer(params, lr=0.1, **options)
        for step in range(3):
            for i, p in enumerate(params):
                torch.manual_seed(10 * step + i)
                p.grad = torch.randn_like(p) if i < 4 or step else None
            made.step()
        updates[name] = [p.detach() - x for p, x in zip(params, begin, strict=True)]
    for found, expected in zip(updates["fmm"], updates["torch"], strict=True):
        assert float((found - expected).norm() / expected.norm()) < 0.03


@needs_torchs_muon
def test_a_transformer_trains_as_with_torchs_muon(example: Any) -> None:
    losses = {
        name: example.train(lambda p, make=make: make(p, lr=0.02), 40, 16, "cpu")
        for name, make in (("fmm", example.Muon), ("torch", torch.optim.Muon))
    }
    assert losses["fmm"][0] == losses["torch"][0]
    ends = {name: np.mean(x[-5:]) for name, x in losses.items()}
    assert ends["fmm"] < 0.5 * losses["fmm"][0]
    assert abs(ends["fmm"] - ends["torch"]) < 0.1 * ends["torch"] + 0.02


def test_stacks_of_matrices_are_parameters(example: Any) -> None:
    stack = torch.nn.Parameter(random_tensor((3, 8, 12), torch.float32))
    matrices = [torch.nn.Parameter(x.clone()) for x in stack.detach()]
    stack.grad = torch.ones_like(stack) * torch.arange(1.0, 4.0)[:, None, None]
    for x, gradient in zip(matrices, stack.grad, strict=True):
        x.grad = gradient
    example.Muon([stack]).step()
    example.Muon(matrices).step()
    torch.testing.assert_close(stack.detach(), torch.stack([x.detach() for x in matrices]), rtol=1e-3, atol=1e-5)


def test_vectors_are_refused(example: Any) -> None:
    with pytest.raises(ValueError, match="not the shape"):
        example.Muon([torch.nn.Parameter(torch.zeros(3))])


def test_a_bound_of_the_norm_gives_torchs_own_steps() -> None:
    """In bfloat16 the products are torch's own here, in the order of torch.optim.Muon."""
    muon = pytest.importorskip("torch.optim._muon")
    for shape in ((24, 40), (40, 24)):
        x = random_tensor(shape, torch.bfloat16)
        expected = muon._zeropower_via_newtonschulz(x.clone(), (3.4445, -4.7750, 2.0315), 5, 1e-7)
        assert torch.equal(fmm.orthogonalize(x, bound=float(x.norm())), expected)
