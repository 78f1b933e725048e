"""torch.ops.fmm.matmul: its shapes, its gradients, and its place in compiled graphs."""

from __future__ import annotations

from typing import Any

import pytest

import fmm
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from tests.support.torch_plans import LEVEL, N, drawn, same

torch: Any = pytest.importorskip("torch")
from fmm.runtime.tensors import graph_operator  # noqa: E402, TID253 - which loads torch

pytestmark = pytest.mark.usefixtures("plans_run")


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((5, 6), (6, 7)),
    ((2, 5, 6), (6, 7)),
    ((2, 5, 6), (2, 6, 7)),
    ((2, 1, 5, 6), (3, 6, 7)),
    ((6,), (6, 7)),
    ((5, 6), (6,)),
    ((6,), (6,)),
    ((6,), (2, 6, 7)),
    ((2, 5, 6), (6,)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_gradients_of_all_shapes(left: tuple[int, ...], right: tuple[int, ...], device: str) -> None:
    a, b = (drawn(device, *shape).requires_grad_() for shape in (left, right))
    same(torch.ops.fmm.matmul(a, b), torch.matmul(a, b))
    assert torch.autograd.gradcheck(torch.ops.fmm.matmul, (a, b), fast_mode=True)
    assert torch.autograd.gradgradcheck(torch.ops.fmm.matmul, (a, b), fast_mode=True)


def test_complex_gradients_are_conjugated(device: str) -> None:
    a, b = (drawn(device, 5, 5, dtype=torch.complex128).requires_grad_() for _ in range(2))
    assert torch.autograd.gradcheck(torch.ops.fmm.matmul, (a, b), fast_mode=True)


@pytest.mark.slow
def test_torchs_own_checks_of_an_operator(device: str) -> None:
    a, b = drawn(device, 5, 6).requires_grad_(), drawn(device, 6, 7)
    torch.library.opcheck(torch.ops.fmm.matmul.default, (a, b))
    torch.library.opcheck(torch.ops.fmm.matmul.default, (drawn(device, 2, 5, 6), b, None, 8.0, 1 << 20))


def test_it_does_as_it_is_told(device: str, plans_run: list[Plan]) -> None:
    a = drawn(device)
    same(torch.ops.fmm.matmul(a, a), a @ a)
    same(torch.ops.fmm.matmul(a, a, plan="vendor"), a @ a)
    same(torch.ops.fmm.matmul(a, a, plan="winograd > vendor"), a @ a)
    assert plans_run == [LEVEL, Plan.parse("winograd > vendor")]
    with pytest.raises(PlanError, match="nonsense"):
        torch.ops.fmm.matmul(a, a, plan="nonsense > vendor")
    with pytest.raises(RuntimeError) as theirs:
        torch.matmul(a, a[:3])
    with pytest.raises(RuntimeError) as ours:
        torch.ops.fmm.matmul(a, a[:3])
    assert str(ours.value) == str(theirs.value)


def test_the_products_of_a_compiled_function(
    device: str, plans_run: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ones are the operator, small ones torch's own; the backward pass likewise."""
    monkeypatch.setattr(graph_operator, "SMALL", N**3)
    a, small = drawn(device).requires_grad_(), drawn(device, 8, 8)
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.graph)
        return graph.forward

    def function(x: Any, y: Any) -> Any:
        return fmm.matmul(x, x).sin(), fmm.matmul(y, y), fmm.matmul(x, x, max_error_growth=3.0)

    try:
        compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=False)
        found, other, limited = compiled(a, small)
        (gradient,) = torch.autograd.grad(found.sum(), a)
    finally:
        torch.compiler.reset()
    targets = [str(node.target) for node in graphs[0].nodes if node.op == "call_function"]
    assert len(graphs) == 1
    assert sum("fmm.matmul" in target for target in targets) == 2, targets
    assert sum("built-in method matmul" in target for target in targets) == 1
    same(found, (a @ a).sin())
    same(other, small @ small)
    same(limited, a @ a)
    same(gradient, torch.autograd.grad((a @ a).sin().sum(), a)[0])
    assert len(plans_run) == 4


def test_a_size_that_changes_is_torchs_in_a_compiled_function(
    device: str, plans_run: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked of it, so that nothing is compiled again for it."""
    monkeypatch.setattr(graph_operator, "SMALL", N**3)
    x, y = drawn(device), drawn(device)
    torch._dynamo.mark_dynamic(x, 0)
    try:
        compiled = torch.compile(lambda x, y: fmm.matmul(x, y), backend="eager", fullgraph=True)
        same(compiled(x, y), x @ y)
        same(compiled(x[:5], y), x[:5] @ y)
    finally:
        torch.compiler.reset()
    assert not plans_run


def test_an_exported_program_needs_no_fmm(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_operator, "SMALL", 0)

    class Twice(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return fmm.matmul(x, x)

    for strict in (True, False):
        program = torch.export.export(Twice(), (drawn(device),), strict=strict)
        assert "fmm" not in str(program.graph)


def test_mixed_precision_is_torchs_in_a_compiled_function(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_operator, "SMALL", 0)
    x = drawn(device, dtype=torch.float32)
    try:
        compiled = torch.compile(lambda x: fmm.matmul(x, x), backend="aot_eager", fullgraph=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            assert compiled(x).dtype == torch.bfloat16
    finally:
        torch.compiler.reset()
    assert fmm.matmul(x, x, plan=VENDOR).dtype == torch.float32
