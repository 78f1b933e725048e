"""What torch does to a call besides multiplying stays torch's, on tensors that would otherwise be multiplied by a plan.

The same for tensors on the host and on a CUDA device; without torch, or without a device, what needs it is skipped.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import fmm
from fmm.arrays import detect, select_library
from fmm.arrays.select_library import PLAIN_TYPES
from fmm.kernels.plans.plan import Plan, PlanError
from tests.support import ROOT
from tests.support.torch_plans import LEVEL, N, draw_tensor, same, shards_of_one_process

torch: Any = pytest.importorskip("torch")
from fmm.runtime.torch_autograd import operator  # noqa: E402 - which loads torch

pytestmark = [
    pytest.mark.usefixtures("plans_run"),
    pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning"),  # of torch itself, which loads what it deprecates
]


def test_a_plain_product_runs_a_plan(device: str, plans_run: list[Plan]) -> None:
    """Without which the other tests here would say nothing."""
    a, b = draw_tensor(device), draw_tensor(device)
    same(fmm.matmul(a, b), a @ b)
    same(fmm.matmul(torch.nn.Parameter(a), b), a @ b)
    assert plans_run == [LEVEL] * 2


def test_what_is_left_to_torch_is_so_at_once_in_a_given_tensor_too(
    device: str, plans_run: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = draw_tensor(device), draw_tensor(device)
    out = fmm.matmul(a, b)
    plans_run.clear()
    monkeypatch.setattr("fmm.dispatch.is_declined_on_device", lambda *given: True)
    monkeypatch.setattr("fmm.dispatch.torch_functions_module", None)  # which takes several times as long
    assert fmm.matmul(a, b, out=out) is out
    same(out, a @ b)
    assert not plans_run


@pytest.mark.parametrize("left", [True, False], ids=["library", "plan"])
def test_out_may_lie_on_a_factor(device: str, left: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NumPy's may; torch alone would read what it has written."""
    if left:
        monkeypatch.setattr("fmm.dispatch.is_declined_on_device", lambda *given: True)
    a, b = draw_tensor(device), draw_tensor(device)
    wanted = a @ b
    for x, y, out in ((c := a.clone(), b, c), (a, c := b.clone(), c), (a, c := b.T.clone().T, c.T)):
        assert fmm.matmul(x, y, out=out) is out
        same(out, wanted)
    both = torch.cat([b, a @ b])
    lower, upper = both[: len(b)], both[len(b) // 2 : len(b) // 2 + len(a)]
    same(fmm.matmul(a, lower, out=upper), wanted)
    stack = torch.stack([a, a])
    same(fmm.matmul(stack, b, out=stack), torch.stack([wanted, wanted]))


def test_out_beside_a_factor_costs_no_copy(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fmm.dispatch.is_declined_on_device", lambda *given: True)
    both, b = torch.stack([draw_tensor(device), draw_tensor(device)]), draw_tensor(device)
    wanted = both[0] @ b
    monkeypatch.setattr(torch.Tensor, "copy_", None)
    same(fmm.matmul(both[0], b, out=both[1]), wanted)


# ---- who sees the calls


class Calls(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    """The functions of torch that were called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Operators(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
    """The operators that torch's dispatcher was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_torchs_function_and_nothing_else(device: str, plans_run: list[Plan]) -> None:
    a, out = draw_tensor(device), draw_tensor(device)
    with Calls() as calls:
        fmm.matmul(a, a)
        fmm.matmul(a[:8, :8], a[:8, :8])
        fmm.matmul(a, a, out)
        fmm.matmul(a, a, max_error_growth=3.0)
    names = [name for name in calls.names if name != "__getitem__"]
    assert names == ["matmul"] * 4 and not plans_run
    with Operators() as operators:
        fmm.matmul(a, a)
    assert operators.names == ["aten.mm.default"] and not plans_run
    for mode in (Calls(), Operators()):
        with mode, pytest.raises(PlanError, match="this call is torch's own"):
            fmm.matmul(a, a, plan=LEVEL)
    assert not plans_run


def test_a_mode_may_answer_in_torchs_place(plans_run: list[Plan]) -> None:
    class Answers(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return "mine" if func is torch.matmul else func(*args, **(kwargs or {}))

    with Answers():
        assert fmm.matmul(draw_tensor("cpu"), draw_tensor("cpu")) == "mine"


def test_a_default_device_keeps_nobody_from_plans(device: str, plans_run: list[Plan]) -> None:
    """torch keeps it in a mode, too; the product is where its operands are."""
    a = draw_tensor(device)
    for other in ("meta", device):
        with torch.device(other):
            c = fmm.matmul(a, a)
        assert c.device == a.device
        same(c, a @ a)
    torch.set_default_device(device)
    try:
        same(fmm.matmul(a, a), a @ a)
    finally:
        torch.set_default_device(None)
    assert plans_run == [LEVEL] * 3
    with torch.device("meta"), Calls() as calls:
        fmm.matmul(a, a)
    assert calls.names == ["matmul"] and len(plans_run) == 3


def test_a_mode_is_its_threads_own(plans_run: list[Plan]) -> None:
    a = draw_tensor("cpu")
    with Calls():
        thread = threading.Thread(target=fmm.matmul, args=(a, a))
        thread.start()
        thread.join()
    assert plans_run == [LEVEL]


def test_what_stands_for_a_tensor_answers_itself() -> None:
    class Answering:
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> str:
            return str(func.__name__)

    for pair in ((Answering(), torch.ones(3, 3)), (torch.ones(3, 3), Answering()), (Answering(), Answering())):
        assert fmm.matmul(*pair) == "matmul"


def test_a_plan_that_torch_cannot_follow_is_refused_by_the_call_and_by_its_explanation() -> None:
    """Tensors without memory are torch's own; the explanation says the same as the call."""
    a = torch.empty(64, 64, device="meta")
    pairs: tuple[tuple[Callable[..., Any], Callable[..., Any]], ...] = (
        (partial(fmm.matmul, a, a), partial(fmm.explain, a, a)),
        (partial(fmm.gemm, a, a), partial(fmm.explain_gemm, a, a)),
        (partial(fmm.gram, a), partial(fmm.explain_gram, a)),
    )
    for call, explanation in pairs:
        assert call().shape == (64, 64) and explanation().plan == Plan()
        messages = []
        for function in (call, explanation):
            with pytest.raises((PlanError, TypeError), match="here: this call is torch's own") as error:
                function(plan=LEVEL)
            messages.append((type(error.value), str(error.value)))
        assert messages[0] == messages[1]


# ---- recorded


@pytest.mark.parametrize("n", [4, N], ids=["small", "large"])
def test_a_trace_records_a_product(n: int, device: str) -> None:
    a, b, x = draw_tensor(device, n, n), draw_tensor(device, n, n), draw_tensor(device, n, n)
    with warnings.catch_warnings():
        for kind in (DeprecationWarning, FutureWarning):  # of torch.jit itself; what a trace warns of is an error
            warnings.filterwarnings("ignore", ".torch.jit", kind)
        traced = torch.jit.trace(lambda x, y: fmm.matmul(x, y), (a, b))
        with pytest.raises(PlanError, match="this call is torch's own"):
            torch.jit.trace(lambda x, y: fmm.matmul(x, y, plan=LEVEL), (a, b))
    same(traced(x, a), x @ a)
    assert "matmul" in str(traced.graph)


def test_symbolic_tracing_records_a_product(plans_run: list[Plan]) -> None:
    found = torch.fx.symbolic_trace(lambda x, y: fmm.matmul(x, y) + 1)
    calls = [node.target for node in found.graph.nodes if node.op == "call_function"]
    assert calls[0] is torch.matmul and not plans_run
    a = draw_tensor("cpu")
    same(found(a, a), a @ a + 1)
    mixed = torch.fx.symbolic_trace(lambda x: fmm.matmul(x, a))
    same(mixed(a), a @ a)


class TimesItself(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return fmm.matmul(x, x) + 1


@pytest.fixture
def no_type_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before the first of all products of tensors."""
    for known in (PLAIN_TYPES, select_library._libraries, detect._kinds_by_class):
        monkeypatch.delitem(known, torch.Tensor, raising=False)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "loose"])
@pytest.mark.parametrize("n", [4, N], ids=["small", "large"])
@pytest.mark.usefixtures("no_type_known")
def test_an_exported_program_holds_a_product(n: int, strict: bool, device: str, plans_run: list[Plan]) -> None:
    """(And torch has nothing to warn of, such as names that the call has kept.)"""
    a = draw_tensor(device, n, n)
    program = torch.export.export(TimesItself(), (a,), strict=strict)
    targets = [str(node.target) for node in program.graph.nodes]
    assert "aten.matmul.default" in targets and not plans_run
    same(program.module()(2 * a), 4 * a @ a + 1)


def test_make_fx_records_a_product(plans_run: list[Plan]) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(TimesItself())(draw_tensor("cpu")).graph
    assert "aten.mm.default" in [str(node.target) for node in graph.nodes] and not plans_run


# ---- compiled

COMPILED = """
import sys, warnings
import torch
warnings.simplefilter("error")
warnings.filterwarnings("ignore", ".torch.jit|TensorFloat32 tensor cores|Attempting to run cuBLAS")  # torch's own
import fmm
sizes, backend, device = [int(n) for n in sys.argv[1].split(",")], sys.argv[2], sys.argv[3]
def both(x, y):
    return fmm.matmul(x, x) + 1, fmm.matmul(y, y, max_error_growth=3.0)
compiled = torch.compile(both, backend=backend, fullgraph=True)
if len(sys.argv) > 4:
    fmm.matmul(torch.ones(3, 3, device=device), torch.ones(3, 3, device=device))  # fmm has met tensors before
small, large = (torch.randn(n, n, device=device) for n in sizes)
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
    for x, y in ((small, large), (large, small)):
        found = compiled(x, y)
        for ours, theirs in zip(found, (x @ x + 1, y @ y), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)
print("same")
"""


def compiled_in_a_process(*arguments: str) -> None:
    command = [sys.executable, "-c", COMPILED, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.stdout == "same\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("met", [(), ("met",)], ids=["first", "later"])
def test_compiled_functions_of_small_and_large_products_are_one_graph(met: tuple[str, ...], device: str) -> None:
    """In a process of its own, whose first product of tensors that may be."""
    compiled_in_a_process("4,1200", "aot_eager", device, *met)


@pytest.mark.slow
def test_inductor_compiles_them(device: str) -> None:
    compiled_in_a_process("4,1200", "inductor", device)


def test_a_compiled_product_is_torchs(device: str, plans_run: list[Plan]) -> None:
    a = draw_tensor(device)
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    try:
        compiled = torch.compile(TimesItself(), backend=backend, fullgraph=True)
        same(compiled(a), a @ a + 1)
        same(compiled(a[:4, :4].contiguous()), a[:4, :4] @ a[:4, :4] + 1)
    finally:
        torch.compiler.reset()
    assert graphs and not plans_run
    assert all("matmul" in str(graph.graph) for graph in graphs)


# ---- transforms and gradients


def test_transforms_of_functions_are_torchs(device: str, plans_run: list[Plan]) -> None:
    a, b = draw_tensor(device, 3, N, N), draw_tensor(device)
    same(torch.func.vmap(fmm.matmul, in_dims=(0, None))(a, b), a @ b)
    same(torch.func.grad(lambda x: fmm.matmul(x, b).sum())(b), torch.ones_like(b) @ b.mT)
    same(torch.func.functionalize(fmm.matmul)(b, b), b @ b)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, at its first forward gradient
        same(torch.func.jvp(fmm.matmul, (b, b), (b, b))[1], 2 * b @ b)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(b, b)
            same(torch.autograd.forward_ad.unpack_dual(fmm.matmul(dual, b)).tangent, b @ b)
    assert not plans_run


def test_gradients_for_many_vectors_at_once(device: str, plans_run: list[Plan]) -> None:
    """The backward pass of a plan's product, told to differentiate for a whole stack of gradients."""
    a, b = (draw_tensor(device).requires_grad_() for _ in range(2))
    stack = draw_tensor(device, 3, N, N)
    ours = torch.autograd.grad(fmm.matmul(a, b), (a, b), stack, is_grads_batched=True)
    theirs = torch.autograd.grad(a @ b, (a, b), stack, is_grads_batched=True)
    assert plans_run == [LEVEL]
    for x, y in zip(ours, theirs, strict=True):
        same(x, y)


def test_gradients_of_gradients_forward_over_backward(device: str, plans_run: list[Plan]) -> None:
    a, b, v = (draw_tensor(device) for _ in range(3))

    def found(function: Callable[..., Any]) -> Any:
        x = a.clone().requires_grad_()
        y = function(x, b)
        with torch.autograd.forward_ad.dual_level():
            seed = torch.autograd.forward_ad.make_dual(torch.ones_like(y), v)
            (gradient,) = torch.autograd.grad(y, x, seed)
            return torch.autograd.forward_ad.unpack_dual(gradient).tangent

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(found(fmm.matmul), found(torch.matmul))
    assert plans_run == [LEVEL]


def test_memory_can_be_resized_afterwards(device: str, plans_run: list[Plan]) -> None:
    """As torch does with sharded parameters, whose memory it gives back between two uses."""
    a, b = draw_tensor(device), draw_tensor(device)
    c = fmm.matmul(a, b)
    fmm.matmul(a, b, out=c)
    assert plans_run == [LEVEL, LEVEL]
    for x in (a, b, c):
        x.untyped_storage().resize_(0)


def test_checkpoints_and_hooks_see_what_is_saved(device: str, plans_run: list[Plan]) -> None:
    from torch.utils.checkpoint import checkpoint

    a, b = draw_tensor(device).requires_grad_(), draw_tensor(device)
    checkpoint(fmm.matmul, a, b, use_reentrant=False).sum().backward()
    same(a.grad, torch.ones_like(b) @ b.mT)
    saved: list[Any] = []

    def keep(x: Any) -> Any:
        saved.append(x.shape)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        fmm.matmul(a, b.clone().requires_grad_())
    assert len(saved) == 2 and len(plans_run) >= 4


# ---- out


def rejected(a: Any, b: Any, out: Any) -> None:
    """By fmm in torch's own words, with a plan and without."""
    with pytest.raises(RuntimeError) as theirs:
        torch.matmul(a, b, out=out)
    for plan in (None, LEVEL):
        with pytest.raises(type(theirs.value)) as ours:
            fmm.matmul(a, b, out, plan=plan)
        assert str(ours.value) == str(theirs.value)


def test_an_out_that_torch_rejects_is_its_error(device: str, plans_run: list[Plan]) -> None:
    a = draw_tensor(device)
    for shape in ((N, 1), (1, N), (1, 1)):
        kept = torch.zeros(shape, dtype=a.dtype, device=device)
        rejected(a, a, kept.expand(N, N))
        assert not kept.any()
    with torch.inference_mode():
        frozen = torch.zeros_like(a)
    rejected(a, a, frozen)
    rejected(a, a, torch.zeros_like(a).requires_grad_())
    rejected(a.clone().requires_grad_(), a, torch.zeros_like(a))
    assert not plans_run


def test_an_out_that_torch_writes_is_written(device: str, plans_run: list[Plan]) -> None:
    a = draw_tensor(device)
    places = [torch.zeros(2 * N, 2 * N, dtype=a.dtype, device=device)[::2, ::2], torch.zeros_like(a).mT]
    with torch.inference_mode():
        frozen = torch.zeros_like(a)
        for out in (*places, frozen):
            assert fmm.matmul(a, a, out) is out
            same(out, a @ a)
    for out in places:
        same(fmm.matmul(a, 2 * a, out), 2 * a @ a)
    assert len(plans_run) == 5
    row, one = draw_tensor(device, 1, N), torch.zeros(1, 1, dtype=a.dtype, device=device).expand(1, 1)
    same(fmm.matmul(row, row.mT, one), row @ row.mT)  # expanded to its own size: nothing overlaps


def test_products_of_the_inference_mode_are_of_it(device: str, plans_run: list[Plan]) -> None:
    a = draw_tensor(device)
    with torch.inference_mode():
        c = fmm.matmul(a, a)
    assert c.is_inference() and not fmm.matmul(a, a).is_inference()
    assert fmm.matmul(c, a).is_inference() == torch.matmul(c, a).is_inference()
    learned = a.clone().requires_grad_()
    with pytest.raises(RuntimeError) as theirs:
        torch.matmul(c, learned)
    with pytest.raises(RuntimeError) as ours:
        fmm.matmul(c, learned)
    assert str(ours.value) == str(theirs.value)
    assert plans_run


# ---- other tensors


def test_tensors_of_another_kind_are_torchs(plans_run: list[Plan]) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    a, mode = draw_tensor("cpu"), FakeTensorMode()
    mine = type("Mine", (torch.Tensor,), {})
    with mode:
        fake = torch.empty(N, N, dtype=a.dtype)
        assert type(fmm.matmul(fake, fake)) is type(fake)
    assert type(fmm.matmul(fake, fake)) is type(fake)
    assert fmm.matmul(a.to("meta"), a.to("meta")).device.type == "meta"
    assert type(fmm.matmul(a.as_subclass(mine), a)) is mine
    assert type(fmm.matmul(a, a.as_subclass(mine))) is mine
    same(fmm.matmul(a.to_sparse(), a), a @ a)
    assert fmm.matmul(torch._efficientzerotensor(N, N, dtype=a.dtype), a).count_nonzero() == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, that these are prototypes
        nested = torch.nested.nested_tensor([a, a])
        assert fmm.matmul(nested, nested).is_nested
    assert not plans_run
    out = torch.zeros_like(a).as_subclass(mine)
    assert fmm.matmul(a, a, out) is out and not plans_run
    same(out.as_subclass(torch.Tensor), a @ a)


def test_distributed_tensors_are_torchs(plans_run: list[Plan], tmp_path: Any) -> None:
    a = draw_tensor("cpu")
    with shards_of_one_process(a, tmp_path) as (left, right):
        c = fmm.matmul(left, right)
        assert type(c) is type(left)
        same(c.full_tensor(), a @ a)
    assert not plans_run


def test_deterministic_algorithms_are_torchs(device: str, plans_run: list[Plan]) -> None:
    """Which plan is chosen depends on what is free of memory and what was measured, and so do the last digits."""
    a = draw_tensor(device, dtype=torch.float32)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # cuBLAS may warn of its own settings
            assert torch.equal(fmm.matmul(a, a), torch.matmul(a, a))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not plans_run


def test_a_replaced_matmul_of_torch_does_not_call_itself(
    device: str, plans_run: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "matmul", fmm.matmul)
    a = draw_tensor(device)
    same(torch.matmul(a, a), a @ a)
    same(torch.matmul(a[:4, :4], a[:4, :4]), a[:4, :4] @ a[:4, :4])
    assert plans_run == [LEVEL]


# ---- what is kept for gradients


SAVING: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("matmul", lambda a, b: fmm.matmul(a, b, plan=LEVEL)),
    ("gemm", lambda a, b: fmm.gemm(a, b, alpha=2, plan=LEVEL)),
    ("gram", lambda a, b: fmm.gram(a, b, plan="gram > vendor")),
    ("operator", lambda a, b: operator.MATMUL_OPERATOR(a, b, str(LEVEL))),
]


@pytest.mark.parametrize("call", [call for _, call in SAVING], ids=[name for name, _ in SAVING])
def test_only_what_gradients_need_is_kept(call: Any, device: str) -> None:
    """As of torch's own product: a factor of which no gradient is asked is kept, and the other one is not. So that may
    be written over, and its memory is not held."""
    for right in (False, True):
        x, w = draw_tensor(device).requires_grad_(), draw_tensor(device)
        y = x * 1
        kept: list[Any] = []

        def noted(saved: Any, kept: list[Any] = kept) -> Any:
            kept.append(saved.data_ptr())
            return saved

        with torch.autograd.graph.saved_tensors_hooks(noted, lambda saved: saved):
            c = call(w, y) if right else call(y, w)
        assert kept == [w.data_ptr()]
        y.add_(1)
        (found,) = torch.autograd.grad(c.sum(), x)
        z = x.detach().clone().requires_grad_()
        (expected,) = torch.autograd.grad((call(w, z) if right else call(z, w)).sum(), z)
        same(found, expected)
