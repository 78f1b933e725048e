"""torch.ops.fmm.matmul: its shapes, its gradients, and its place in compiled graphs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

import fmm
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from tests.support.torch_plans import LEVEL, N, draw_tensor, same

torch: Any = pytest.importorskip("torch")
from fmm.runtime.torch_autograd import operator  # noqa: E402 - which loads torch

fake_tensor = import_module("torch._subclasses.fake_tensor")

pytestmark = [
    pytest.mark.usefixtures("plans_run"),
    pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning"),  # of torch itself, which loads what it deprecates
]


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
    a, b = (draw_tensor(device, *shape).requires_grad_() for shape in (left, right))
    same(torch.ops.fmm.matmul(a, b), torch.matmul(a, b))
    assert torch.autograd.gradcheck(torch.ops.fmm.matmul, (a, b), fast_mode=True)
    assert torch.autograd.gradgradcheck(torch.ops.fmm.matmul, (a, b), fast_mode=True)


def test_complex_gradients_are_conjugated(device: str) -> None:
    a, b = (draw_tensor(device, 5, 5, dtype=torch.complex128).requires_grad_() for _ in range(2))
    assert torch.autograd.gradcheck(torch.ops.fmm.matmul, (a, b), fast_mode=True)


RULED = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="this torch does not hand out its kernels")


@RULED
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_forward_gradients_of_all_shapes(left: tuple[int, ...], right: tuple[int, ...], device: str) -> None:
    """Of both operands, and of either alone; and gradients of these in turn."""
    pair = [draw_tensor(device, *shape).requires_grad_() for shape in (left, right)]
    checks: dict[str, Any] = {"fast_mode": True, "check_forward_ad": True, "check_backward_ad": False}
    assert torch.autograd.gradcheck(torch.ops.fmm.matmul, pair, **checks)
    assert torch.autograd.gradgradcheck(torch.ops.fmm.matmul, pair, fast_mode=True, check_fwd_over_rev=True)


@RULED
def test_where_forward_gradients_are_wanted_the_product_is_torchs(device: str, plans_run: list[Plan]) -> None:
    """As it is of fmm.matmul."""
    a, b, of_a = (draw_tensor(device, dtype=torch.complex128) for _ in range(3))
    for operands, tangents, expected in (((a,), (of_a,), of_a @ b), ((a, b), (of_a, a), of_a @ b + a @ a)):
        rest = () if len(operands) == 2 else (b,)
        value, found = torch.func.jvp(lambda *x, rest=rest: torch.ops.fmm.matmul(*x, *rest), operands, tangents)
        same(value, a @ b)
        same(found, expected)
    assert not plans_run
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a, of_a)
        with pytest.raises(PlanError, match=r"winograd.*forward gradients"):
            torch.ops.fmm.matmul(b, dual, plan="winograd > vendor")
        same(torch.ops.fmm.matmul(b, a), b @ a)  # without a tangent


@RULED
def test_a_compiled_function_has_forward_gradients(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "SMALL_MULTIPLY_ADDS", 0)
    a, of_a = draw_tensor(device), draw_tensor(device)

    def function(x: Any, tangent: Any) -> Any:
        return torch.func.jvp(lambda y: fmm.matmul(y, y).sin(), (x,), (tangent,))[1]

    try:
        found = torch.compile(function, backend="aot_eager")(a, of_a)
    finally:
        torch.compiler.reset()
    same(found, torch.func.jvp(lambda y: (y @ y).sin(), (a,), (of_a,))[1])


@pytest.mark.skipif(not hasattr(torch.Tag, "cudagraph_unsafe"), reason="this torch has no word for it")
def test_cuda_graphs_are_captured_around_it() -> None:
    """No plan runs while a stream is captured."""
    assert torch.Tag.cudagraph_unsafe in operator.MATMUL_OPERATOR.tags


KINDS = "float16", "bfloat16", "float32", "float64", "complex64"


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_casts_its_operands_as_those_of_mm(device: str, kind: str) -> None:
    """In a fake world too, where compilers ask."""
    dtype = getattr(torch, kind)
    a, b = draw_tensor(device, 8, 8, dtype=dtype).requires_grad_(), draw_tensor(device, 8, 8, dtype=dtype)
    with torch.autocast(device, dtype=torch.bfloat16):
        found, expected = torch.ops.fmm.matmul(a, b), torch.mm(a, b)
        with fake_tensor.FakeTensorMode() as mode:
            fake = torch.ops.fmm.matmul(mode.from_tensor(a), mode.from_tensor(b))
    same(found, expected)
    assert fake.dtype is expected.dtype
    (gradient,) = torch.autograd.grad(found.abs().sum(), a)
    same(gradient, torch.autograd.grad(expected.abs().sum(), a)[0])


def test_in_mixed_precision_a_plan_runs_on_what_it_was_cast_to(plans_run: list[Plan]) -> None:
    """float64 is not cast."""
    a = draw_tensor("cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(torch.ops.fmm.matmul(a, a), a @ a)
    assert plans_run == [LEVEL]


BATCHED = [(0, None), (None, 0), (0, 0), (-1, None), (None, 1), (1, -1)]


@pytest.mark.skipif(not hasattr(torch.library, "register_vmap"), reason="this torch's operators have no batches")
@pytest.mark.parametrize("places", BATCHED)
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_batches_of_all_shapes(
    left: tuple[int, ...], right: tuple[int, ...], places: tuple[int | None, int | None], device: str
) -> None:
    """torch.vmap over any axis of either operand, or of both."""
    pair = [draw_tensor(device, *_with_batch(shape, at)) for shape, at in zip((left, right), places, strict=True)]
    found = torch.vmap(torch.ops.fmm.matmul, in_dims=places)(*pair)
    same(found, torch.vmap(torch.matmul, in_dims=places)(*pair))


def _with_batch(shape: tuple[int, ...], at: int | None) -> tuple[int, ...]:
    """Four of them, along this axis of the whole."""
    if at is None:
        return shape
    at %= len(shape) + 1
    return (*shape[:at], 4, *shape[at:])


@pytest.mark.skipif(not hasattr(torch.library, "register_vmap"), reason="this torch's operators have no batches")
def test_a_batch_is_one_product_and_has_gradients(device: str, plans_run: list[Plan]) -> None:
    a, b = draw_tensor(device, 3, N, N).requires_grad_(), draw_tensor(device)
    found = torch.vmap(torch.ops.fmm.matmul, in_dims=(0, None))(a, b)
    assert plans_run == [LEVEL]
    (ours,), (theirs,) = (torch.autograd.grad(c.square().sum(), a) for c in (found, a @ b))
    same(ours, theirs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # of its checks
def test_torchs_own_checks_of_an_operator(device: str) -> None:
    a, b = draw_tensor(device, 5, 6).requires_grad_(), draw_tensor(device, 6, 7)
    torch.library.opcheck(torch.ops.fmm.matmul.default, (a, b))
    torch.library.opcheck(torch.ops.fmm.matmul.default, (draw_tensor(device, 2, 5, 6), b, None, 8.0, 1 << 20))


def test_it_does_as_it_is_told(device: str, plans_run: list[Plan]) -> None:
    a = draw_tensor(device)
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
    monkeypatch.setattr(operator, "SMALL_MULTIPLY_ADDS", N**3)
    a, small = draw_tensor(device).requires_grad_(), draw_tensor(device, 8, 8)
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
    monkeypatch.setattr(operator, "SMALL_MULTIPLY_ADDS", N**3)
    x, y = draw_tensor(device), draw_tensor(device)
    torch._dynamo.mark_dynamic(x, 0)
    try:
        compiled = torch.compile(lambda x, y: fmm.matmul(x, y), backend="eager", fullgraph=True)
        same(compiled(x, y), x @ y)
        same(compiled(x[:5], y), x[:5] @ y)
    finally:
        torch.compiler.reset()
    assert not plans_run


def test_an_exported_program_needs_no_fmm(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "SMALL_MULTIPLY_ADDS", 0)

    class Twice(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return fmm.matmul(x, x)

    for strict in (True, False):
        program = torch.export.export(Twice(), (draw_tensor(device),), strict=strict)
        assert "fmm" not in str(program.graph)


def test_mixed_precision_is_torchs_in_a_compiled_function(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "SMALL_MULTIPLY_ADDS", 0)
    x = draw_tensor(device, dtype=torch.float32)
    try:
        compiled = torch.compile(lambda x: fmm.matmul(x, x), backend="aot_eager", fullgraph=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            assert compiled(x).dtype == torch.bfloat16
    finally:
        torch.compiler.reset()
    assert fmm.matmul(x, x, plan=VENDOR).dtype == torch.float32
