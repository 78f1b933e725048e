"""Counts the Python functions that a recurring call runs. `python -m tests.support.short_ways` prints one
line for each kind of call. CuPy is made of NumPy, and the driver only counts its launches. A small product on
a GPU takes the host's time, which grows with these counts; seconds would also measure whatever else the
machine does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np

from tests.support import numpy_cupy
from tests.support.library_functions import Functions

launches = [0]
alignments: list[tuple[int, ...]] = []  # alignments for which the played lists were made


def launched(*arguments: Any) -> int:
    launches[0] += 1
    return 0


def counted_call(name: str) -> Callable[..., int]:
    """Return a library's function that counts as a launch, unless it only sets the stream."""
    return (lambda *arguments: 0) if "Stream" in name else launched


def install() -> Any:
    """Replace CuPy and its driver before fmm's modules are loaded."""
    found = numpy_cupy.install()
    api, libs = (sys.modules[f"cupy_backends.cuda.{name}"] for name in ("api", "libs"))
    driver = SimpleNamespace(launchKernel=launched)
    cublas = SimpleNamespace(gemmEx=launched, getMathMode=lambda handle: 0, setMathMode=lambda handle, mode: None)
    vars(api).update(driver=driver)
    vars(libs).update(cublas=cublas, nvrtc=MagicMock())
    made: dict[str, Any] = {"": MagicMock(), ".cuda": MagicMock(), ".cuda.api.runtime": vars(api)["runtime"]}
    made |= {".cuda.api.driver": driver, ".cuda.libs.cublas": cublas, ".cuda.libs.nvrtc": MagicMock()}
    sys.modules.update({"cupy_backends" + name: module for name, module in made.items()})
    linalg = SimpleNamespace(get_compute_type=lambda dtype: 1)
    vars(sys.modules.setdefault("cupy._core", ModuleType("cupy._core")))["_routines_linalg"] = linalg
    found.zeros = lambda shape, dtype: found.ndarray(shape, dtype)
    found.cuda.alloc = lambda nbytes: SimpleNamespace(ptr=1 << 30)
    found.result_type = np.result_type
    found.ndarray.__setitem__ = lambda self, index, x: self.host.__setitem__(index, x.host)
    found.empty = found.ndarray
    found.broadcast_to = lambda x, shape: found.ndarray(np.broadcast_to(x.host, shape))
    return found


# ---- the calls


cupy = install()

import fmm  # noqa: E402
from fmm.arrays.cupy_library import CUPY  # noqa: E402
from fmm.kernels.cuda.launch import cublas, kernel_call, player, streams  # noqa: E402
from fmm.kernels.cuda.launch.compile import LoadedKernel  # noqa: E402
from fmm.runtime import devices, run_device  # noqa: E402
from fmm.runtime.decisions.limits import GramKey  # noqa: E402
from fmm.runtime.gram import TRIANGLES, _prepare_recurring_gram  # noqa: E402
from tests.support.devices import H200  # noqa: E402
from tests.support.own_calls import called_functions  # noqa: E402


def patch() -> None:
    functions = Functions(counted_call)
    for module, name, value in (
        (kernel_call, "encode_tensor_map", lambda tensor_map: np.zeros(16, np.int64)),
        (kernel_call, "compile_kernel", lambda device, kernel: LoadedKernel(1, None)),
        (player, "compile_kernels", lambda device, kernels: None),
        (cublas, "load_library", lambda name: functions),
        (streams, "create_handle", lambda: 78),
        (devices, "cuda_device", lambda index: H200),
        (run_device, "cuda_device_chip", lambda device: H200.chip),
        (run_device, "cuda_device", lambda device: H200),
    ):
        vars(module)[name] = value
    run_device.GRAPH_CACHE.calls_before_capture = 1 << 30


def draw_array(*shape: int, dtype: str = "float32") -> Any:
    return cupy.ndarray(shape, dtype)


def calls() -> Iterator[tuple[str, Callable[[], object]]]:
    small, out, tall = draw_array(64, 64), draw_array(64, 64), draw_array(3932, 72, dtype="float64")
    yield "a half by one launch", lambda: fmm.gram(small, rows=True)
    yield "the same, the lower one into a place", lambda: fmm.gram(small, None, out, rows=True, fill="lower")
    wide = draw_array(634, 2466, dtype="float64")
    narrow = draw_array(634, 634, dtype="float64")
    yield "a half by the vendor", lambda: fmm.gram(wide, None, narrow, rows=True, fill="lower")
    numbers = draw_array(60, 40, dtype="complex64")
    yield "a complex half by the vendor", lambda: fmm.gram(numbers)
    yield "a complex half of rows by the vendor", lambda: fmm.gram(numbers, rows=True)
    place = draw_array(40, 40, dtype="complex64")
    yield "a complex upper half into a place", lambda: fmm.gram(numbers, None, place, fill="upper")
    yield "a small product", lambda: fmm.matmul(small, small)
    middle = draw_array(1500, 1500, dtype="float16")
    yield "a product that is the library's by its sides", lambda: fmm.matmul(middle, middle)
    yield "a product by a plan", lambda: fmm.matmul(tall, tall.T)
    side, square = draw_array(1000, 1000), draw_array(1000, 1000)
    yield "a gemm by a plan", lambda: fmm.gemm(side, side)
    yield "a gemm by a plan with a factor", lambda: fmm.gemm(side, side, alpha=2.5)
    yield "a gemm by a plan with an addend", lambda: fmm.gemm(side, side, side, beta=1)
    yield "a gemm by a plan into its addend", lambda: fmm.gemm(side, side.T, square, beta=1, out=square)
    yield "a declined gemm", lambda: fmm.gemm(small, small)
    large = draw_array(1100, 1100, dtype="float64")
    yield "a large declined gemm", lambda: fmm.gemm(large, large)
    yield "a declined gemm of a transpose", lambda: fmm.gemm(small, small, transpose_b="T")


def recurring_complex() -> dict[str, int]:
    """Return, by memory order, for how many forms of a complex half the recurring call needs no adjoint."""
    found = {}
    for order in "CF":
        x = cupy.ndarray(np.zeros((60, 40), "complex64", order=order))  # type: ignore[call-overload]
        keys = [GramKey(rows, fill) for rows in (False, True) for fill in TRIANGLES]
        places = [draw_array(*(60 if key.rows else 40,) * 2, dtype="complex64") for key in keys]
        prepared = [_prepare_recurring_gram(CUPY, x, None, *pair) for pair in zip(places, keys, strict=True)]
        found[order] = sum(call.plan is not None for call in prepared)
    return found


def by_alignment() -> list[tuple[int, ...]]:
    """Return the alignments of the lists that are played for a matrix as the library allocates it, for one at
    another offset, and for the first again."""
    usual = draw_array(64, 64)
    moved = cupy.ndarray(np.zeros(64 * 64 + 1, np.float32)[1:].reshape(64, 64))
    play = player.Player.launch_all

    def noted(self: Any, *arguments: Any) -> None:
        alignments.append(self.launches.alignment)
        play(self, *arguments)

    vars(player)["Player"].launch_all = noted
    for x in (usual, usual, moved, usual):
        fmm.gram(x, rows=True)
    return alignments


def main() -> int:
    patch()
    found: dict[str, Any] = {}
    for name, call in calls():
        for _ in range(3):
            call()
        launches[0] = 0
        names = called_functions(call)
        found[name] = {"launches": launches[0], "functions": names}
    print(json.dumps({"calls": found, "alignments": by_alignment(), "complex": recurring_complex()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
