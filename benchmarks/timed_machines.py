"""The machines on which regret and default calls are timed against the vendor: this CPU, and a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from benchmarks.harness import cupy_tf32, environment_variable, gpu_seconds, host_seconds
from benchmarks.held_out import Size, element_type
from benchmarks.matrices import OWN_ARITHMETIC
from fmm.dtypes import DTYPES

Product = Callable[..., Any]  # the library's product of two matrices


class Cpu:
    """NumPy's arrays on this CPU."""

    warm_up_limit = math.inf  # seconds of a shape's first calls, after which no further plan is tried: none compiles
    max_plans = 4  # plans that are tried on a shape: a product can take many seconds

    def as_type(self, dtype: str) -> AbstractContextManager[object]:
        """Return a context in which the library multiplies numbers of this type."""
        return nullcontext()

    def operands(self, size: Size, dtype: str) -> tuple[Any, Any, Product]:
        """Return two matrices of random normal numbers, and their library's product."""
        rng, (m, k, n) = np.random.default_rng(list(size)), size
        real: Any = DTYPES[dtype].real or dtype
        parts = 2 if DTYPES[dtype].is_complex else 1
        a, b = (rng.standard_normal((rows, parts * cols), dtype=real).view(dtype) for rows, cols in ((m, k), (k, n)))
        return a, b, np.matmul

    def result_arguments(self, a: Any, b: Any) -> Mapping[str, Any]:
        """Return the result array that all calls share: new pages of memory can cost as much as a product."""
        return {"out": np.zeros((len(a), b.shape[1]), a.dtype)}

    def seconds(self, call: Callable[[], object], repeats: int) -> float:
        """Return the seconds of one of `repeats` calls."""
        return host_seconds(call, repeats)

    def free_memory(self) -> None:
        """Keep all memory, since new pages can cost as much as a product."""


class Gpu(Cpu):
    """CuPy's arrays, and torch's tensors for bfloat16, on the current GPU."""

    warm_up_limit, max_plans = 4.0, 1000

    @contextmanager
    def as_type(self, dtype: str) -> Iterator[None]:
        emulation = environment_variable("FMM_EMULATION", "0" if dtype.endswith(OWN_ARITHMETIC) else "1")
        with cupy_tf32(dtype == "tf32"), emulation:
            yield

    def operands(self, size: Size, dtype: str) -> tuple[Any, Any, Product]:
        m, k, n = size
        if dtype == "bfloat16":
            import torch

            a, b = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (k, n)))
            return a, b, torch.matmul
        import cupy

        row = DTYPES[element_type(dtype)]
        parts, real = (2, row.real) if row.is_complex else (1, row.stored_type)
        drawn = "float64" if real == "float64" else "float32"  # CuPy draws no other types
        shapes = (m, parts * k), (k, parts * n)
        a, b = (cupy.random.standard_normal(shape, dtype=drawn).astype(real, copy=False) for shape in shapes)
        return a.view(row.stored_type), b.view(row.stored_type), cupy.matmul

    def result_arguments(self, a: Any, b: Any) -> Mapping[str, Any]:
        """Return nothing: CuPy's and torch's pools keep the memory of results."""
        return {}

    def seconds(self, call: Callable[[], object], repeats: int) -> float:
        return gpu_seconds(call, repeats)

    def free_memory(self) -> None:
        """Free the pool's memory and all graphs: graphs of earlier shapes would keep new ones from being captured."""
        import cupy

        from fmm.runtime.run_device import GRAPH_CACHE

        GRAPH_CACHE.clear()
        cupy.get_default_memory_pool().free_all_blocks()
