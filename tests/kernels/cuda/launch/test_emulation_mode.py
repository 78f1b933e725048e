"""The calls that set and restore cuBLAS's emulation mode, on a handle that notes them."""

from __future__ import annotations

import subprocess
import sys

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
cublas.check_emulation()
del library.cublasSetEmulationStrategy
cublas.cublas_version = lambda: 120900
try:
    cublas.check_emulation()
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
