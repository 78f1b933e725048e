"""Products as candidates of Inductor's, where torch.compile autotunes."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import fmm
from fmm.integrations.report import begin_report, end_report
from fmm.kernels.plans.plan import Plan
from tests.support.torch_plans import LEVEL, draw_tensor, same

torch: Any = pytest.importorskip("torch")
from fmm.integrations import torch_inductor  # noqa: E402 - which loads torch

pytestmark = pytest.mark.usefixtures("plans_run")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of modules of torch, as Inductor loads them
def test_inductor_times_the_candidate_and_may_take_it(
    device: str, plans_run: list[Plan], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    a, b = draw_tensor(device, 512, 512, dtype=torch.float32), draw_tensor(device, 512, 512, dtype=torch.float32)
    options = {"max_autotune": True, "max_autotune_gemm_backends": "ATEN", "autotune_local_cache": False}
    with fmm.installed("torch-inductor"):
        assert len(sys.modules["torch._inductor.config"].external_matmul) == 1
        try:
            compiled = torch.compile(lambda x, y: torch.mm(x, y), options=options, fullgraph=True)
            found = compiled(a, b)
        finally:
            torch.compiler.reset()
    torch.testing.assert_close(found, a @ b, rtol=1e-3, atol=1e-3)
    assert plans_run
    assert not sys.modules["torch._inductor.config"].external_matmul
    assert hasattr(sys.modules["torch._inductor.select_algorithm"].extern_kernels, "fmm_product")
    with fmm.installed("torch-inductor"):  # a second time
        assert len(sys.modules["torch._inductor.config"].external_matmul) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_report_counts_what_compiled_code_asks_for(
    device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Each product once, however often Inductor tried the candidate on numbers of its own."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    a = draw_tensor(device, 512, 512, dtype=torch.float32)
    options = {"max_autotune": True, "max_autotune_gemm_backends": "ATEN", "autotune_local_cache": False}
    small, own = a[:32, :32].contiguous(), torch_inductor.fmm_product
    tried: list[bool] = []

    def quick_when_tried(x: Any, y: Any, *, out: Any) -> Any:
        tried.append(torch_inductor._is_compiling_here())
        return own(small, small, out=small.clone()) if tried[-1] else own(x, y, out=out)

    counts = begin_report()
    try:
        with fmm.installed("torch-inductor"):
            kernels = sys.modules["torch._inductor.select_algorithm"].extern_kernels
            monkeypatch.setattr(kernels, "fmm_product", quick_when_tried)
            compiled = torch.compile(lambda x, y: torch.mm(x, y), options=options, fullgraph=True)
            for _ in range(3):
                compiled(a, a)
    finally:
        end_report()
        torch.compiler.reset()
    assert True in tried and tried.count(False) == 3
    assert counts.build_report().calls == 3 and "512 x 512 by 512 x 512" in str(counts.build_report())
    torch_inductor.fmm_product(a, a, out=torch.empty_like(a))  # nobody counts any more
    assert counts.build_report().calls == 3


def test_products_of_the_candidate_are_counted_by_what_answered_them(device: str, plans_run: list[Plan]) -> None:
    a = draw_tensor(device)
    found, resized = torch.empty_like(a), a.new_empty(0)
    counts = begin_report()
    try:
        for out in (found, found, resized):
            torch_inductor.fmm_product(a, a, out=out)
    finally:
        end_report()
    same(found, a @ a)
    same(resized, a @ a)
    assert plans_run == [LEVEL, LEVEL]
    report = counts.build_report()
    assert (report.calls, report.by_plans) == (3, 2)
    assert "2  torch.compile, mm, float64, 64 x 64 by 64 x 64: strassen.batched.pad16 > vendor: for the test" in str(
        report
    )
    assert "no plan: torch multiplies: out has another type or shape" in str(report)
