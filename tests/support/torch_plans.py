"""Tensors for tests, on the host or on a device, whose products run a plan at any size."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fmm.kernels.plans.plan import Plan
from fmm.runtime import matmul as product_call
from fmm.runtime import prepare
from fmm.runtime.decisions import early_declines
from fmm.runtime.decisions.decide import Decision

LEVEL = Plan.parse("strassen.batched.pad16 > vendor")
N = 64
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def usable_device(device: str) -> str:
    """Return the device, or skip the test if torch cannot use it."""
    if device == "cuda" and not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return device


def draw_tensor(device: str, *shape: int, dtype: Any = None) -> Any:
    torch: Any = sys.modules["torch"]
    return torch.randn(*(shape or (N, N)), device=device, dtype=dtype or torch.float64)


def same(ours: Any, theirs: Any) -> None:
    torch: Any = sys.modules["torch"]
    torch.testing.assert_close(ours, theirs)


class Runner:
    """Records the plans that run."""

    def __init__(self, module: ModuleType, run: list[Plan]) -> None:
        self.module, self.run = module, run

    def run_call(self, library: Any, call: Any, *rest: Any) -> Any:
        self.run.append(call.plan)
        return self.module.run_call(library, call, *rest)


@contextmanager
def plans_for_all(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Plan]]:
    """Let every product that reaches fmm have a plan, whatever its size; return the list of plans that have
    run."""
    from fmm.arrays.torch_library import TORCH, TORCH_ON_HOST

    run: list[Plan] = []
    runner = product_call._runner_module
    monkeypatch.setattr(
        prepare, "decide_plan", lambda problem, limits, device: Decision(LEVEL, problem, "for the test")
    )
    monkeypatch.setattr(prepare, "_decide_stack", lambda query, work, limits: None)  # stacks have the same plan
    for name in ("SMALL_MULTIPLY_ADDS", "SMALL_MULTIPLY_ADDS_16_BIT", "SMALL_MULTIPLY_ADDS_UNALIGNED"):
        monkeypatch.setattr(early_declines, name, 16**3)
    monkeypatch.setattr("fmm.dispatch.SMALL_BYTES_PRODUCT", 0)
    for name in ("is_small_on_host", "are_small_matrices"):
        monkeypatch.setattr(f"fmm.runtime.gemm.{name}", lambda a, b: False)
    monkeypatch.setattr(product_call, "_runner_module", lambda processor: Runner(runner(processor), run))
    for library in (TORCH, TORCH_ON_HOST):
        library.cached_calls.clear()
    yield run
    for library in (TORCH, TORCH_ON_HOST):
        library.cached_calls.clear()


@contextmanager
def shards_of_one_process(a: Any, folder: Path) -> Iterator[tuple[Any, Any]]:
    """Return the tensor twice as a DTensor, sharded over a group of one process whose store is in
    `folder`."""
    distributed: Any = pytest.importorskip("torch.distributed")
    if not distributed.is_available():
        pytest.skip("this torch was built without torch.distributed")
    from torch.distributed.tensor import Shard, distribute_tensor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
        try:
            mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
            left, right = (distribute_tensor(a, mesh, [Shard(0)]) for _ in range(2))
            yield left, right
        finally:
            distributed.destroy_process_group()
