"""The machines on which products are timed beside the vendor's: this CPU, and a GPU."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np

from benchmarks.held_out import OWN, Size
from benchmarks.tried_plans import element_type, tried_plans
from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime.decisions.decide import decide_plan
from fmm.runtime.devices import cuda_device
from fmm.tuner.devices.compile_ahead import call_jobs, run_workers

PATIENCE = 4.0  # seconds of first calls, which compile; later plans of the shape are left out
WORKSPACE_LIMIT = 32 << 30  # bytes; kernels of plans that need more are not compiled ahead
COMPILED_SHAPES = 240  # shapes whose kernels are compiled ahead: more are not measured in a minute
Shape = tuple[str, str, Size]  # type, kind, sides


class Machine(Protocol):
    """A machine on which products are timed."""

    def as_type(self, dtype: str) -> AbstractContextManager[object]:
        """Return a context in which the library multiplies numbers of this type."""

    patience: float  # seconds of first calls after which no other plan is tried on a shape
    most: int  # plans that are tried on a shape

    def operands(self, size: Size, dtype: str) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
        """Return random normal matrices, and their library's product."""

    def place(self, a: Any, b: Any) -> Mapping[str, Any]:
        """Return the keyword arguments that name a result array, if calls share one."""

    def seconds(self, call: Callable[[], object], repeats: int) -> float:
        """Return the seconds of one of `repeats` calls."""

    def make_ready(self, wanted: Sequence[Shape], seconds: float, whole: bool) -> None:
        """Compile the kernels of these shapes for at most `seconds`."""

    def forget(self) -> None:
        """Give memory back."""


class Cpu:
    patience, most = math.inf, 4  # nothing is compiled; a product can take many seconds

    def as_type(self, dtype: str) -> AbstractContextManager[object]:
        return nullcontext()

    def operands(self, size: Size, dtype: str) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
        rng, (m, k, n) = np.random.default_rng(list(size)), size
        real: Any = DTYPES[dtype].real or dtype
        parts = 2 if DTYPES[dtype].is_complex else 1
        a, b = (rng.standard_normal((rows, parts * cols), dtype=real).view(dtype) for rows, cols in ((m, k), (k, n)))
        return a, b, np.matmul

    def place(self, a: Any, b: Any) -> Mapping[str, Any]:
        """Return one array for all calls: fresh pages of a virtual machine can take as long as the product."""
        return {"out": np.zeros((len(a), b.shape[1]), a.dtype)}

    def seconds(self, call: Callable[[], object], repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats

    def make_ready(self, wanted: Sequence[Shape], seconds: float, whole: bool) -> None:
        pass

    def forget(self) -> None:
        """Keep all memory: fresh pages take as long as a product."""


class Gpu:
    """CuPy's arrays, and torch's tensors for bfloat16."""

    patience, most = PATIENCE, 1000

    @contextmanager
    def as_type(self, dtype: str) -> Iterator[None]:
        import cupy

        before = os.environ.get("FMM_EMULATION")
        try:
            cupy._core.set_compute_type(cupy.float32, 7 if dtype == "tf32" else 1)
            os.environ["FMM_EMULATION"] = "0" if dtype.endswith(OWN) else "1"
            yield
        finally:
            cupy._core.set_compute_type(cupy.float32, 1)
            os.environ.pop("FMM_EMULATION")
            if before is not None:
                os.environ["FMM_EMULATION"] = before

    def operands(self, size: Size, dtype: str) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
        m, k, n = size
        if dtype == "bfloat16":
            import torch

            a, b = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (k, n)))
            return a, b, torch.matmul
        import cupy

        row = DTYPES[element_type(dtype)]
        parts, real = (2, row.real) if row.is_complex else (1, row.stored)
        drawn = "float64" if real == "float64" else "float32"  # CuPy draws no other types
        shapes = (m, parts * k), (k, parts * n)
        a, b = (cupy.random.standard_normal(shape, dtype=drawn).astype(real, copy=False) for shape in shapes)
        return a.view(row.stored), b.view(row.stored), cupy.matmul

    def place(self, a: Any, b: Any) -> Mapping[str, Any]:
        return {}

    def seconds(self, call: Callable[[], object], repeats: int) -> float:
        from benchmarks.harness import gpu_seconds

        return gpu_seconds(call, repeats)

    def make_ready(self, wanted: Sequence[Shape], seconds: float, whole: bool) -> None:
        calls, device = list[tuple[str, Plan, Size]](), cuda_device(0)
        for dtype, _, size in wanted[:COMPILED_SHAPES]:
            limits = Limits(WORKSPACE_LIMIT, device.error_growth, emulation=not dtype.endswith(OWN))
            with self.as_type(dtype):
                decision = decide_plan(Problem(*size, element_type(dtype)), limits, device)
            tried = tried_plans("cuda", size, dtype, decision, whole)
            calls += [(element_type(dtype), plan, size) for plan in tried]
        with run_workers(0, list(call_jobs(calls))) as ahead:
            ahead.wait_for_all(seconds)

    def forget(self) -> None:
        import cupy

        from fmm.runtime.run_device import GRAPHS

        GRAPHS.clear()  # with this many plans, graphs of the last shapes would no longer be replayed
        cupy.get_default_memory_pool().free_all_blocks()
