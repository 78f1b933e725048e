"""The calls that set and restore cuBLAS's emulation mode, on a handle that notes them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import fmm
from fmm.kernels.plans.plan import PlanError

SCRIPT = """
from types import SimpleNamespace
from tests.support import noting_driver
noting_driver.install()
import fmm.kernels.cuda.launch.cublas as cublas
from fmm.kernels.plans.level import PlanError

calls = []
library = SimpleNamespace(
    cublasSetStream_v2=lambda handle, stream: calls.append(("stream", stream)),
    cublasSetEmulationStrategy=lambda handle, strategy: calls.append(("strategy", strategy)),
)
cublas._cublas_library = lambda: library
cublas._cublas.setMathMode = lambda handle, mode: calls.append(("mode", mode))
context = cublas.StreamContext(77, 5, 0)
for mode in ("emulated", "ieee"):
    for call in (*cublas.handle_setup_calls(context, mode, 0), *cublas.math_mode_restore_calls(context, mode, 0)):
        call()
    print(calls)
    calls.clear()
cublas.require_float64_emulation()
del library.cublasSetEmulationStrategy
cublas.cublas_version = lambda: 120900
try:
    cublas.require_float64_emulation()
except PlanError as error:
    print(error)
"""
EXPECTED = """\
[('stream', 5), ('mode', 8), ('strategy', 2), ('mode', 0), ('strategy', 0)]
[('stream', 5)]
cuBLAS 120900 cannot emulate float64: vendor-emulated needs cuBLAS 13.0 update 2 or newer
"""


def test_the_mode_is_set_for_one_list_of_launches() -> None:
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert found.stdout == EXPECTED, found.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_gpu(dtype: str) -> None:
    """Products are as accurate as a product rounded once; the vendor's later products are not emulated."""
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((700, 700)).astype(dtype) for _ in range(2))
    if dtype == "complex128":
        a, b = a + 1j * b.T, b - 1j * a
    x, y = cupy.asarray(a), cupy.asarray(b)
    before = fmm.matmul(x, y, plan="vendor")
    try:
        c = cupy.asnumpy(fmm.matmul(x, y, plan="vendor-emulated"))
    except PlanError as error:
        pytest.skip(str(error))
    exact = fmm.matmul(a, b, reproducible=True, max_error_growth=0.05)
    assert np.linalg.norm(c - exact) <= 3e-16 * np.linalg.norm(exact)
    assert bool((fmm.matmul(x, y, plan="vendor") == before).all())
