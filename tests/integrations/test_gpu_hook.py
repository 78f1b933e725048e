"""torch with fmm installed, on a CUDA device: what declined calls cost, mixed precision, sharded tensors, capture."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fmm
from fmm.integrations.report import begin_report, end_report

pytestmark = pytest.mark.gpu
torch: Any = pytest.importorskip("torch")
DECLINED = 1.5e-6  # seconds that a declined call may cost the host


@pytest.fixture(autouse=True)
def usable() -> None:
    if not torch.cuda.is_available() or not hasattr(torch.library, "get_kernel"):
        pytest.skip("this torch has no CUDA, or does not hand out its kernels")


@pytest.fixture
def installed() -> Iterator[None]:
    with fmm.installed("torch"):
        yield


def drawn(*shape: int, dtype: Any = None) -> Any:
    return torch.randn(*shape, device="cuda", dtype=dtype or torch.float32)


def relative(found: Any, expected: Any) -> float:
    x, y = found.detach().double(), expected.detach().double()
    return float((x - y).norm() / y.norm())


def seconds_of_a_call(call: Callable[[], Any], calls: int = 300) -> float:
    """The host's; the device has little to do."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    taken = (time.perf_counter() - began) / calls
    torch.cuda.synchronize()
    return taken


def test_large_products_run_plans_in_forward_and_backward_passes(installed: None) -> None:
    layer = torch.nn.Linear(8192, 8192, device="cuda")
    x = drawn(8192, 8192).requires_grad_()
    report = begin_report()
    try:
        y = layer(x)
        y.backward(torch.ones_like(y))
    finally:
        end_report()
    assert "by 8192 x 8192" in str(report)
    if "H200" in torch.cuda.get_device_name():
        assert not str(report).startswith("fmm: 0 of"), str(report)
    w, b = layer.weight.detach(), layer.bias.detach()
    assert relative(y[:64], x.detach()[:64].double() @ w.double().mT + b.double()) < 1e-4
    assert relative(x.grad[:64], w.double().sum(0).expand(64, -1)) < 1e-3


def test_mixed_precision_is_below_autocast(installed: None) -> None:
    layer, x = torch.nn.Linear(2048, 2048, device="cuda"), drawn(2048, 2048)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16 and relative(y, layer(x).detach()) < 2e-2


def test_a_captured_graph_holds_torchs_products(installed: None) -> None:
    a, b = drawn(6144, 6144), drawn(6144, 6144)
    torch.mm(a, b)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.mm(a, b)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = torch.mm(a, b)
    a.copy_(drawn(6144, 6144))
    graph.replay()
    assert relative(c[:64], a[:64].double() @ b.double()) < 1e-4


def test_inf_and_nan_are_where_torch_has_them(installed: None) -> None:
    a, b = drawn(6144, 6144), drawn(6144, 6144)
    a[3, 5], b[7, 9] = float("inf"), float("nan")
    found = torch.mm(a, b)
    expected = fmm.matmul(a, b, plan="vendor")
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isposinf(), expected.isposinf())


def test_half_precision_with_rows_that_are_not_aligned(installed: None) -> None:
    """Where plans pay most: a vocabulary of an odd size."""
    x, w = drawn(2048, 4096, dtype=torch.bfloat16), drawn(4096, 8193, dtype=torch.bfloat16)
    bias = drawn(8193, dtype=torch.bfloat16)
    for found in (torch.mm(x, w), torch.addmm(bias, x, w) - bias):
        assert relative(found[:64], x[:64].double() @ w.double()) < 5e-2
