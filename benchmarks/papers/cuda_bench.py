"""A CUDA device for experiments: plans run as launch lists, and CUDA events time them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import cupy
import numpy as np

from benchmarks.papers.bench import Array, Call, chosen_plan, vendor_speed
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.problem import Problem
from fmm.runtime.device_backend import DeviceBackend, compile_launch_lists, record_plan_for_device
from fmm.tuner.devices.cuda import bfloat16_bits, mean_event_milliseconds, to_double_precision
from fmm.tuner.trials.environment import environment_record

# One accumulator per entry, in the order of k; each product is rounded before it is added.
ROW_BY_COLUMN = """
    const T* left = &a[(i / cols) * inner];
    const T* right = &b[i % cols];
    T sum = 0;
    for (long long j = 0; j < inner; ++j) sum += left[j] * right[j * cols];
    c = sum;
"""


# Threads read 16 bytes at a time, from consecutive addresses. The sums keep the compiler from removing the reads.
SHARED_READS = r"""
extern "C" __global__ void shared_reads(float* out, int rounds) {
    __shared__ float4 memory[1024];
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) memory[i] = make_float4(i, out[0], 1.f, 2.f);
    __syncthreads();
    float x = 0, y = 0, z = 0, w = 0;
    for (int r = 0; r < rounds; ++r) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const float4 v = memory[(threadIdx.x + 32 * (r + i)) & 1023];
            x += v.x; y += v.y; z += v.z; w += v.w;
        }
    }
    if (x + y + z + w == -1.f) out[0] = x;
}
"""
SHARED_ROUNDS, SHARED_THREADS, SHARED_BLOCKS = 512, 512, 4  # blocks per multiprocessor


class CudaBench:
    """The CUDA device with this number."""

    on_host = False
    side = 16384

    def __init__(self, index: int = 0) -> None:
        self.xp: Any = cupy
        self.index, self._backend = index, DeviceBackend()
        cupy.cuda.Device(index).use()

    @cached_property
    def _row_by_column(self) -> Any:
        inputs = "raw T a, raw T b, int64 inner, int64 cols"
        return cupy.ElementwiseKernel(inputs, "T c", ROW_BY_COLUMN, "row_by_column", options=("--fmad=false",))

    @property
    def name(self) -> str:
        facts = cupy.cuda.runtime.getDeviceProperties(self.index)
        return facts["name"].decode() if isinstance(facts["name"], bytes) else str(facts["name"])

    @property
    def folder(self) -> str:
        return self.name.lower().replace(" ", "-")

    def environment_record(self, command: list[str]) -> dict[str, Any]:
        runtime = cupy.cuda.runtime
        versions = {"cuda": runtime.runtimeGetVersion(), "cupy": str(cupy.__version__)}
        return {**environment_record(command), "device": self.name, **versions}

    def generator(self, seed: int) -> Any:
        return cupy.random.default_rng(seed)

    def to_storage_type(self, x: Array, dtype: str) -> Array:
        if dtype == "bfloat16":
            return bfloat16_bits(x.astype(np.float32))
        return x.astype("float32" if dtype == "tf32" else dtype)

    def to_double(self, x: Array, dtype: str) -> Array:
        return to_double_precision(x, "float32" if dtype == "tf32" else dtype)

    def multiply(self, plan: Plan, a: Array, b: Array, dtype: str = "") -> Array:
        return self._backend.multiply_by_plan(plan, a, b, dtype=dtype or None)

    def prepare(self, products: Sequence[tuple[Plan, Problem]]) -> None:
        """Compile the kernels of all these products at once."""
        found = []
        for plan, problem in products:
            with suppress(PlanError):
                found.append(record_plan_for_device(plan, problem))
        compile_launch_lists(found)

    def choose_plan(self, problem: Problem, max_error_growth: float | None = None, emulation: bool = True) -> Plan:
        return chosen_plan(problem, self.index, max_error_growth, emulation)

    @cached_property
    def speed(self) -> float:
        return vendor_speed(self, 4096)

    def row_by_column(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Return all row numbers and A B, each entry one sum in the order of k."""
        a, b = cupy.ascontiguousarray(a), cupy.ascontiguousarray(b)
        c = cupy.empty((a.shape[0], b.shape[1]), a.dtype)
        self._row_by_column(a, b, a.shape[1], b.shape[1], c)
        return cupy.arange(len(a)), c

    def call(self, plan: Plan, a: Array, b: Array) -> Call:
        sizes = a.shape[0], a.shape[1], b.shape[1]
        launches = record_plan_for_device(plan, Problem(*sizes, str(a.dtype)))
        try:
            c, room = cupy.empty((sizes[0], sizes[2]), a.dtype), cupy.empty(launches.workspace, cupy.uint8)
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise MemoryError(str(error)) from None
        addresses = a.data.ptr, b.data.ptr, c.data.ptr, room.data.ptr

        def made(operands: Any = (a, b, c, room)) -> None:
            self._backend.run_launches(launches, *addresses)

        made()
        return made

    def seconds(self, call: Call, repeats: int) -> float:
        return mean_event_milliseconds(lambda i: call(), repeats) / 1e3

    def stream(self, count: int) -> tuple[float, float]:
        x, y, z = (cupy.ones(count) for _ in range(3))
        add = partial(cupy.add, x, y, out=z)
        add()
        seconds = min(self.seconds(add, 5) for _ in range(5))
        return 24 * count / seconds, count / seconds

    def shared_memory(self) -> float | None:
        kernel, out = cupy.RawKernel(SHARED_READS, "shared_reads"), cupy.zeros(1, np.float32)
        blocks = SHARED_BLOCKS * cupy.cuda.Device().attributes["MultiProcessorCount"]
        read = partial(kernel, (blocks,), (SHARED_THREADS,), (out, np.int32(SHARED_ROUNDS)))
        read()
        seconds = min(self.seconds(read, 3) for _ in range(5))
        return float(16 * 16 * SHARED_ROUNDS * SHARED_THREADS * blocks / seconds)

    def free(self) -> None:
        cupy.get_default_memory_pool().free_all_blocks()
