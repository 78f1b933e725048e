"""Stacks of tensors on a device: groups of products in one launch, one at a time, or the vendor's batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import fmm
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.runtime import prepare
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.early_declines import find_declined_gram_function

torch: Any = pytest.importorskip("torch")
cupy: Any = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

BOUNDS = {"float32": 1e-5, "complex64": 1e-5, "float64": 1e-13, "complex128": 1e-13, "bfloat16": 1e-2, "float16": 2e-3}
PLANS = (
    ("float32", "f16x3"),
    ("float32", "tile"),
    ("float64", "residues(14) > bytes"),
    ("float64", "residues(14) > strassen > bytes"),
    ("complex64", "residues2m(8) > bytes"),
    ("complex128", "residues2m(15) > bytes"),
)


def random_stack(*shape: int, dtype: str) -> Any:
    return torch.randn(shape, device="cuda", dtype=getattr(torch, dtype))


def assert_close(found: Any, exact: Any, dtype: str) -> None:
    assert found.shape == exact.shape
    assert float((found - exact).abs().max() / exact.abs().max()) < BOUNDS[dtype]


@pytest.fixture
def use_plan(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that lets a plan compute each stack in groups."""
    from fmm.arrays.torch_library import TORCH

    monkeypatch.setattr(TORCH, "cached_calls", {})

    def force(plan: str, group: int) -> None:
        def decide(query: Any, work: Any, limits: Any) -> Any:
            problem = replace(work.problem, batch=group, batch_strides=work.batch_strides())
            launches = prepare.launches_on_device(Plan.parse(plan), problem, query.device, True)
            return Decision(Plan.parse(plan), problem, "forced"), launches

        monkeypatch.setattr(prepare, "_decide_stack", decide)
        TORCH.cached_calls.clear()

    return force


@pytest.mark.parametrize(("dtype", "plan"), PLANS)
def test_groups_of_products(dtype: str, plan: str, use_plan: Any) -> None:
    """Contiguous stacks, members with gaps, a broadcast operand, transposed members, odd sides; recurring calls."""
    for group, (m, k, n) in ((6, (256, 192, 320)), (2, (131, 77, 69)), (3, (64, 512, 128))):
        use_plan(plan, group)
        a, b = random_stack(6, m, k, dtype=dtype), random_stack(6, k, n, dtype=dtype)
        spread = random_stack(12, m, k, dtype=dtype)[::2]
        pairs = [(a, b), (spread, b), (a, b[:1].expand(6, k, n)), (a, random_stack(6, n, k, dtype=dtype).mT)]
        for x, y in pairs:
            for _ in range(3):
                assert_close(fmm.matmul(x, y), torch.bmm(x, y), dtype)


@pytest.mark.parametrize(("dtype", "plan"), PLANS)
def test_inf_and_nan_of_one_product(dtype: str, plan: str, use_plan: Any) -> None:
    """Products without them stay finite, and the others have them where torch has them."""
    use_plan(plan, 4)
    a, b = random_stack(4, 160, 96, dtype=dtype), random_stack(4, 96, 144, dtype=dtype)
    a[2, 5, 3], b[3, 7, 9] = float("inf"), float("nan")
    found, wanted = fmm.matmul(a, b), torch.bmm(a, b)
    if not a.is_complex():
        assert torch.equal(found.isnan(), wanted.isnan()) and torch.equal(found.isinf(), wanted.isinf())
    assert_close(found[:2], wanted[:2], dtype)
    assert not found[2, 5].isfinite().any() and found[2, 6].isfinite().all()


def test_groups_of_triangles(use_plan: Any) -> None:
    for group, n, k in ((8, 320, 192), (2, 131, 77)):
        use_plan("f16x3", group)
        x = random_stack(8, n, k, dtype="float32")
        for y in (x, x.mT.contiguous().mT):
            found = fmm.gram(y, rows=True)
            assert_close(found, torch.bmm(y, y.mT), "float32")
            assert torch.equal(found, found.mT)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_chosen_plans(dtype: str) -> None:
    for count, m, k, n in (
        (16, 512, 512, 512),
        (64, 256, 128, 256),
        (100, 100, 100, 100),
        (5, 33, 65, 17),
        (3, 1, 7, 9),
    ):
        a, b = random_stack(count, m, k, dtype=dtype), random_stack(count, k, n, dtype=dtype)
        for _ in range(3):
            assert_close(fmm.matmul(a, b), torch.bmm(a, b), dtype)
            gram = fmm.gram(a, rows=True)
            assert_close(gram, torch.bmm(a, a.mH), dtype)
            assert torch.equal(gram, gram.mH)


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("shape", [(500, 100, 100), (3, 7, 9), (2, 2, 16, 40), (48, 96)])
@pytest.mark.parametrize("module", ["torch", "cupy"])
def test_a_recurring_declined_gram_is_the_librarys_own_product(
    module: str, shape: tuple[int, ...], rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, library = random_stack(*shape, dtype="float64"), _library(module)
    x = x if module == "torch" else cupy.from_dlpack(x)
    monkeypatch.setattr(library, "cached_calls", {})
    transposed = x.swapaxes(-1, -2)
    exact = x @ transposed if rows else transposed @ x
    for _ in range(3):  # the first call decides
        found = fmm.gram(x, rows=rows)
        assert bool((found == found.swapaxes(-1, -2)).all()) and float(abs(found - exact).max()) < 1e-12
    is_declined = fmm.explain_gram(x, rows=rows).plan == VENDOR
    is_symmetric = library.has_symmetric_gram(x if rows else transposed)
    assert is_symmetric or module == "cupy"
    assert (find_declined_gram_function(library, x, rows) is not None) is (is_declined and is_symmetric)
    lower = fmm.gram(x, rows=rows, fill="lower")  # one triangle is no product of the library
    assert float(abs(lower - (torch if module == "torch" else cupy).tril(exact)).max()) < 1e-12


def _library(module: str) -> Any:
    from fmm.arrays.cupy_library import CUPY
    from fmm.arrays.torch_library import TORCH

    return TORCH if module == "torch" else CUPY


def test_a_declined_gram_under_torchs_modes() -> None:
    """Gradients, transforms, autocast and recorded calls, after the decline is cached."""
    x = random_stack(30, 20, 20, dtype="float32")
    for _ in range(2):
        fmm.gram(x, rows=True)
    exact = torch.bmm(x, x.mT)
    y = x.clone().requires_grad_()
    fmm.gram(y, rows=True).sum().backward()
    z = x.clone().requires_grad_()
    torch.bmm(z, z.mT).sum().backward()
    assert_close(y.grad, z.grad, "float32")
    assert_close(torch.func.vmap(lambda m: fmm.gram(m, rows=True))(x), exact, "float32")
    with torch.autocast("cuda", torch.bfloat16):
        assert fmm.gram(x, rows=True).dtype is torch.bmm(x, x.mT).dtype
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = fmm.gram(x, rows=True)
    graph.replay()
    assert_close(found, exact, "float32")
