"""Products as candidates of Inductor's, where torch.compile autotunes."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import fmm
from fmm.kernels.plans.plan import Plan
from tests.support.torch_plans import drawn

torch: Any = pytest.importorskip("torch")


pytestmark = pytest.mark.usefixtures("plans_run")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of modules of torch, as Inductor loads them
def test_inductor_times_the_candidate_and_may_take_it(
    device: str, plans_run: list[Plan], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    a, b = drawn(device, 512, 512, dtype=torch.float32), drawn(device, 512, 512, dtype=torch.float32)
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
