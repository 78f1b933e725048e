"""fmm.orthogonalize and stacks of fmm.gram on a CUDA device, beside float64 and the library's own products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fmm
from fmm.newton_schulz import hopper_iteration
from fmm.newton_schulz.coefficients import step_coefficients
from tests.support.newton_schulz import expected_result

pytest.importorskip("cupy")

import cupy

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu
SHAPES = [(256, 256), (257, 1000), (3, 384, 640), (2, 640, 384), (5, 300, 520), (2, 2, 136, 264)]


def plain(x: Any, steps: tuple[tuple[float, float, float], ...]) -> Any:
    """Return the iteration by torch's own products."""
    if x.shape[-2] > x.shape[-1]:
        return plain(x.mT, steps).mT
    x = (x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True, dtype=torch.float32)).to(x.dtype)
    for a, b, c in steps:
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def relative_error(found: Any, expected: Any) -> float:
    expected = torch.as_tensor(expected, device="cuda")
    return float((found.double() - expected).norm() / expected.norm())


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the launches at every size."""
    monkeypatch.setattr(hopper_iteration, "is_faster_by_launches", lambda *_: True)
    monkeypatch.setattr(hopper_iteration, "_prepared", {})
    monkeypatch.setattr(hopper_iteration, "_declined", set())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_errors_are_those_of_torchs_own_products(shape: tuple[int, ...], dtype: str) -> None:
    for steps, name in ((5, "muon"), (6, "polar-express")):
        x = torch.randn(shape, device="cuda").to(getattr(torch, dtype))
        expected = expected_result(x.double().cpu().numpy(), steps, name)
        room = 1.5 * relative_error(plain(x, step_coefficients(name, steps)), expected) + 1e-4
        found = fmm.orthogonalize(x, steps, name)
        assert found.shape == x.shape and found.dtype == x.dtype
        assert relative_error(found, expected) < room
        out = torch.full_like(x, float("nan"))
        assert fmm.orthogonalize(x, steps, name, out=out) is out
        assert torch.equal(out, found)
        tall = fmm.orthogonalize(x.mT, steps, name)
        assert relative_error(tall.mT, expected) < room
        same = x.clone()
        assert torch.equal(fmm.orthogonalize(same, steps, name, out=same), found)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(257, 1000), (1000, 257), (3, 384, 1040), (2, 2, 136, 264)])
def test_errors_of_pairs_of_steps(shape: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_pairs(stack: Any, steps: tuple[Any, ...], multiprocessors: int) -> tuple[Any, ...]:
        return tuple(steps[i : i + 2] for i in range(0, len(steps), 2))

    monkeypatch.setattr(hopper_iteration, "group_steps_into_pairs", in_pairs)
    for steps, name in ((4, "muon"), (5, "muon"), (6, "polar-express")):
        x = torch.randn(shape, device="cuda").to(getattr(torch, dtype))
        expected = expected_result(x.double().cpu().numpy(), steps, name)
        room = 1.5 * relative_error(plain(x, step_coefficients(name, steps)), expected) + 1e-4
        found = fmm.orthogonalize(x, steps, name)
        assert relative_error(found, expected) < room
        out = torch.full_like(x, float("nan"))
        assert fmm.orthogonalize(x, steps, name, out=out) is out and torch.equal(out, found)
        same = x.clone()
        assert torch.equal(fmm.orthogonalize(same, steps, name, out=same), found)


def test_recurring_calls_read_new_values() -> None:
    """The addresses recur, so later calls are graphs."""
    x = torch.empty(4, 256, 512, device="cuda", dtype=torch.bfloat16)
    for _ in range(6):
        x.normal_()
        expected = expected_result(x.double().cpu().numpy())
        assert relative_error(fmm.orthogonalize(x), expected) < 0.05


def test_calls_in_a_captured_graph() -> None:
    x = torch.randn(4, 256, 256, device="cuda").bfloat16()
    expected = fmm.orthogonalize(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = fmm.orthogonalize(x)
    graph.replay()
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


def test_other_streams() -> None:
    x = torch.randn(4, 256, 256, device="cuda").bfloat16()
    expected, stream = fmm.orthogonalize(x), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        found = fmm.orthogonalize(x)
    stream.synchronize()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_cupy_arrays(dtype: str) -> None:
    x = cupy.random.default_rng(0).standard_normal((3, 264, 520), cupy.float32).astype(dtype)
    found = fmm.orthogonalize(x)
    expected = expected_result(cupy.asnumpy(x))
    assert isinstance(found, cupy.ndarray) and found.dtype == x.dtype
    error = np.linalg.norm(cupy.asnumpy(found) - expected) / np.linalg.norm(expected)
    assert error < (0.01 if dtype == "float16" else 1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("shape", [(64, 512, 512), (5, 264, 136), (7, 100, 100), (2, 3, 128, 256), (1000, 100, 100)])
def test_stacks_of_gram(shape: tuple[int, ...], dtype: str) -> None:
    a = torch.randn(shape, device="cuda").to(getattr(torch, dtype))
    room = 2 * {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-20}[dtype]
    for rows in (True, False):
        wide = (a if rows else a.mT).double()
        product, magnitude = wide @ wide.mT, wide.abs() @ wide.abs().mT
        found = fmm.gram(a, rows=rows)
        assert torch.equal(found, found.mT)
        assert float(((found.double() - product).abs() / magnitude).max()) < room
        old = torch.randn_like(found)
        old = old + old.mT
        out = old.clone()
        fmm.gram(a, out=out, rows=rows, alpha=2, beta=-1.5)
        assert torch.equal(out, out.mT)
        difference = (out.double() - (2 * product - 1.5 * old.double())).abs()
        assert float((difference / (2 * magnitude + 1.5 * old.double().abs())).max()) < room
