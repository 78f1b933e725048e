"""Products of NumPy's arrays on a GPU: `python -m benchmarks.out_of_core --sides 32768 --out FILE`.

Beside each other, in turns: fmm.matmul with `device=`, the same product of arrays that are on the device already (if
they fit), and cuBLASXt, the vendor's own product of arrays on the host. The host's arrays are pageable, as NumPy's are.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import cupy
import numpy as np

import fmm
from fmm.out_of_core.machine import CudaMachine
from fmm.tuner.trials.environment import environment

LIBRARIES = "libcublas.so.13", "libcublas.so.12", "libcublas.so"
FUNCTIONS = {"float32": "cublasXtSgemm", "float64": "cublasXtDgemm"}
BLOCK = 8192  # side of cuBLASXt's tiles
PEER_SIDES = 32768  # up to which cuBLASXt is waited for


class Xt:
    """cuBLASXt on one device."""

    def __init__(self, device: int = 0, block: int = BLOCK) -> None:
        self.library = next(found for name in LIBRARIES if (found := _loaded(name)))
        self.handle = ctypes.c_void_p()
        devices = (ctypes.c_int * 1)(device)
        self._check(self.library.cublasXtCreate(ctypes.byref(self.handle)))
        self._check(self.library.cublasXtDeviceSelect(self.handle, 1, devices))
        self._check(self.library.cublasXtSetBlockDim(self.handle, block))

    def multiply(self, a: Any, b: Any, c: Any) -> None:
        """C = A B of matrices that lie row by row: C's transpose is B's times A's."""
        (m, k), n, kind = a.shape, b.shape[1], np.ctypeslib.as_ctypes_type(a.dtype)
        one, zero = kind(1), kind(0)
        gemm = getattr(self.library, FUNCTIONS[a.dtype.name])
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


def _loaded(name: str) -> Any:
    cupy.linalg  # noqa: B018  # which loads the library that it is to be
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def timed(action: Callable[[], object]) -> float:
    cupy.cuda.Device().synchronize()
    began = time.perf_counter()
    action()
    cupy.cuda.Device().synchronize()
    return time.perf_counter() - began


def drawn(side: int, dtype: str, seed: int) -> Any:
    """Random normal numbers, of which a strip is repeated: to draw all of them takes long."""
    strip = np.random.default_rng(seed).standard_normal((min(side, 256), side)).astype(dtype)
    found = np.empty((side, side), dtype)
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda top: fill(found[top : top + len(strip)], strip), range(0, side, len(strip))))
    return found


def fill(rows: Any, strip: Any) -> None:
    np.copyto(rows, strip[: len(rows)])


def measured(side: int, dtype: str, rounds: int, peer: bool, until: float) -> dict[str, Any]:
    a, b, c = drawn(side, dtype, 1), drawn(side, dtype, 2).T, drawn(side, dtype, 3)
    b = b if side > PEER_SIDES else np.ascontiguousarray(b)  # as cuBLASXt reads it; else its transpose lies by rows
    explained = str(fmm.explain(a, b, out=c, device=0))
    actions: dict[str, Callable[[], object]] = {"fmm": lambda: fmm.matmul(a, b, out=c, device=0)}
    first = timed(actions["fmm"])
    error = error_of(a, b, c)
    xt = Xt() if peer and side <= PEER_SIDES else None
    if xt is not None:
        actions["cuBLASXt"] = lambda: xt.multiply(a, b, c)
    seconds: dict[str, list[float]] = {name: [] for name in (*actions, "on the device")}
    for _ in range(rounds):
        for name, action in actions.items():
            if time.monotonic() < until:
                seconds[name].append(timed(action))
    if xt is not None:
        xt.close()
    cupy.get_default_memory_pool().free_all_blocks()
    rng = cupy.random.default_rng(1)
    x, y = (rng.standard_normal((side, side), dtype=dtype) for _ in range(2))
    z = cupy.empty_like(x)
    seconds["on the device"] = [timed(lambda: fmm.matmul(x, y, out=z)) for _ in range(rounds + 1)][1:]
    return {"side": side, "dtype": dtype, "first": first, "seconds": seconds, "error": error, "explained": explained}


def error_of(a: Any, b: Any, c: Any) -> float:
    """Of sampled entries, in the Frobenius norm."""
    rows, cols = (np.random.default_rng(5).integers(len(a), size=24) for _ in range(2))
    wanted = a[rows].astype(np.float64) @ b[:, cols].astype(np.float64)
    return float(np.linalg.norm(c[np.ix_(rows, cols)] - wanted) / np.linalg.norm(wanted))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", default="32768")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--time-limit", type=float, default=1e9, help="seconds after which nothing more is begun")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    until, runs = time.monotonic() + given.time_limit, []
    print("rates", CudaMachine(0).rates, flush=True)
    for dtype in given.dtypes.split(","):
        for side in map(int, given.sides.split(",")):
            if time.monotonic() > until:
                break
            runs.append(measured(side, dtype, given.rounds, not given.no_peer, until))
            told = {"runs": runs, "environment": environment(["python -m benchmarks.out_of_core --sides", given.sides])}
            given.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
            middle = {name: median(times) for name, times in runs[-1]["seconds"].items() if times}
            share = middle["on the device"] / middle["fmm"]
            peer = f", {middle['cuBLASXt'] / middle['fmm']:.2f} times cuBLASXt" if "cuBLASXt" in middle else ""
            shown = ", ".join(f"{name} {value:.3f} s" for name, value in middle.items())
            print(
                f"{dtype} {side}: {shown}; {share:.2f} of the time on the device{peer}; error {runs[-1]['error']:.1e}"
            )
            print(*[x for x in runs[-1]["explained"].splitlines() if ":" in x][:12], sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
