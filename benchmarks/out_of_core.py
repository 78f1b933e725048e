"""Products of NumPy's arrays on a GPU: `python -m benchmarks out_of_core [--sides 32768] [--dtypes float32]`.

fmm.matmul with `device=` and cuBLASXt, the vendor's own product of arrays on the host, run in turn; then the same
product of arrays that are on the device already. The host's arrays are pageable, as NumPy's are. Samples go to
results/<device>/out_of_core.json.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import cupy
import numpy as np

import fmm
from benchmarks.harness import Call, Row, benchmark_parser, free_gpu_memory, machine_of, run_cases
from fmm.config.identity import processor_name
from fmm.out_of_core.machine import CudaStreamingDevice

CUBLAS_LIBRARIES = "libcublas.so.13", "libcublas.so.12", "libcublas.so"
XT_FUNCTIONS = {"float32": "cublasXtSgemm", "float64": "cublasXtDgemm"}
TILE_SIDE = 8192  # side of cuBLASXt's tiles
PEER_SIDE = 32768  # largest side for which cuBLASXt runs


class CublasXt:
    """cuBLASXt on one device, with square tiles of side `block`."""

    def __init__(self, device: int = 0, block: int = TILE_SIDE) -> None:
        self.library = next(found for name in CUBLAS_LIBRARIES if (found := load_library(name)))
        self.handle = ctypes.c_void_p()
        devices = (ctypes.c_int * 1)(device)
        self._check(self.library.cublasXtCreate(ctypes.byref(self.handle)))
        self._check(self.library.cublasXtDeviceSelect(self.handle, 1, devices))
        self._check(self.library.cublasXtSetBlockDim(self.handle, block))

    def multiply(self, a: Any, b: Any, c: Any) -> None:
        """Compute C = A B of row-major matrices as C^T = B^T A^T in column-major order."""
        (m, k), n, kind = a.shape, b.shape[1], np.ctypeslib.as_ctypes_type(a.dtype)
        one, zero = kind(1), kind(0)
        gemm = getattr(self.library, XT_FUNCTIONS[a.dtype.name])
        sizes = [ctypes.c_size_t(x) for x in (n, m, k)]
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in (b, a, c)]
        lines = [ctypes.c_size_t(x) for x in (n, k, n)]
        left, right = (pointers[0], lines[0]), (pointers[1], lines[1])
        scalars = ctypes.byref(one), ctypes.byref(zero)
        self._check(gemm(self.handle, 0, 0, *sizes, scalars[0], *left, *right, scalars[1], pointers[2], lines[2]))

    def close(self) -> None:
        self._check(self.library.cublasXtDestroy(self.handle))

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise RuntimeError(f"cuBLASXt: status {status}")


def load_library(name: str) -> Any:
    """Load a shared library; return None if there is none of this name."""
    cupy.linalg  # noqa: B018  # loads the cuBLAS that CuPy uses
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def synchronized_seconds(action: Call) -> float:
    """Return the seconds of a call until the device has ended its work."""
    cupy.cuda.Device().synchronize()
    began = time.perf_counter()
    action()
    cupy.cuda.Device().synchronize()
    return time.perf_counter() - began


def random_matrix(side: int, dtype: str, seed: int) -> Any:
    """Return a matrix of one repeated strip of random normal numbers, since drawing all numbers takes long."""
    strip = np.random.default_rng(seed).standard_normal((min(side, 256), side)).astype(dtype)
    found = np.empty((side, side), dtype)
    with ThreadPoolExecutor(16) as threads:

        def fill(top: int) -> None:
            rows = found[top : top + len(strip)]
            np.copyto(rows, strip[: len(rows)])

        list(threads.map(fill, range(0, side, len(strip))))
    return found


def measure_case(case: tuple[str, int], rounds: int, peer: bool, until: float) -> Row:
    """Measure one type and side; no call begins after `until` (time.monotonic)."""
    dtype, side = case
    a, b, c = random_matrix(side, dtype, 1), random_matrix(side, dtype, 2).T, random_matrix(side, dtype, 3)
    b = b if side > PEER_SIDE else np.ascontiguousarray(b)  # row-major, as cuBLASXt reads it; else column-major
    explained = str(fmm.explain(a, b, out=c, device=0))
    actions: dict[str, Call] = {"fmm": lambda: fmm.matmul(a, b, out=c, device=0)}
    first = synchronized_seconds(actions["fmm"])
    error = sampled_error(a, b, c)
    xt = CublasXt() if peer and side <= PEER_SIDE else None
    if xt is not None:
        actions["cuBLASXt"] = lambda: xt.multiply(a, b, c)
    seconds: dict[str, list[float]] = {name: [] for name in (*actions, "on the device")}
    for _ in range(rounds):
        for name, action in actions.items():
            if time.monotonic() < until:
                seconds[name].append(synchronized_seconds(action))
    if xt is not None:
        xt.close()
    free_gpu_memory()
    rng = cupy.random.default_rng(1)
    x, y = (rng.standard_normal((side, side), dtype=dtype) for _ in range(2))
    z = cupy.empty_like(x)
    on_device = [synchronized_seconds(lambda: fmm.matmul(x, y, out=z)) for _ in range(rounds + 1)]
    seconds["on the device"] = on_device[1:]
    return {"side": side, "dtype": dtype, "first": first, "seconds": seconds, "error": error, "explained": explained}


def sampled_error(a: Any, b: Any, c: Any) -> float:
    """Return the error of sampled entries in the Frobenius norm."""
    rows, cols = (np.random.default_rng(5).integers(len(a), size=24) for _ in range(2))
    exact = a[rows].astype(np.float64) @ b[:, cols].astype(np.float64)
    return float(np.linalg.norm(c[np.ix_(rows, cols)] - exact) / np.linalg.norm(exact))


def text_lines(row: Row) -> str:
    """Return the lines that a terminal shows for a row: the times, and how fmm ran."""
    times = {name: median(samples) for name, samples in row["seconds"].items() if samples}
    share = times["on the device"] / times["fmm"]
    peer = f", {times['cuBLASXt'] / times['fmm']:.2f} times cuBLASXt" if "cuBLASXt" in times else ""
    shown = ", ".join(f"{name} {value:.3f} s" for name, value in times.items())
    speed = f"{share:.2f} of the speed on the device{peer}"
    head = f"{row['dtype']} {row['side']}: {shown}; {speed}; error {row['error']:.1e}"
    return "\n".join([head, *[line for line in row["explained"].splitlines() if ":" in line][:12]])


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = benchmark_parser("out_of_core", __doc__, time_limit=1e9)
    add = parser.add_argument
    add("--sides", default="32768", help="separated by commas")
    add("--dtypes", default="float32", help="separated by commas")
    add("--rounds", type=int, default=3)
    add("--no-peer", action="store_true", help="leave cuBLASXt out")
    options = parser.parse_args(arguments)
    until = time.monotonic() + options.time_limit
    print("rates", CudaStreamingDevice(0).copy_rates, flush=True)
    cases = product(options.dtypes.split(","), map(int, options.sides.split(",")))
    measure = partial(measure_case, rounds=options.rounds, peer=not options.no_peer, until=until)
    run_cases(
        options,
        machine_of("0"),
        "out_of_core.json",
        cases,
        measure,
        text_lines,
        key="runs",
        processor=processor_name(),
    )
    return 0
