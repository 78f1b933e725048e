"""`numpy.matmul = fmm.matmul`, and the same for CuPy and torch: fmm still finds the libraries' own functions.

Each in a process of its own, since a name in a library is everybody's.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

OWN_NAMES = ("np", "numpy", "cupy", "torch")
REPLACED = ("matmul", "dot")
# Modules that say which functions are the libraries' own, or replace them; and what runs in processes of its own.
WHO_MAY = ("fmm/arrays/cupy_library.py", "fmm/integrations/cupy_functions.py", "benchmarks/cpu.py")

NUMPY = """
import numpy as np, fmm
rng = np.random.default_rng(0)
a, small, ints = rng.standard_normal((300, 200)), rng.standard_normal((5, 6)), np.arange(12).reshape(3, 4)
e, f = a.T @ a, small.T @ small
np.matmul = np.dot = fmm.matmul
out = np.empty((200, 200))
for options in ({}, {"plan": "winograd > vendor"}, {"plan": "vendor"}, {"order": "F"}, {"dtype": "f8"}, {"out": out},
                {"plan": "strassen > winograd > vendor", "out": out}, {"axes": [(0, 1)] * 3}, {"workspace": 0}):
    assert np.allclose(np.matmul(a.T, a, **options), e), options
assert np.allclose(np.matmul(small.T, small), f)
assert np.matmul(ints, ints.T).tolist() == (ints @ ints.T).tolist()
assert np.matmul([[1, 2]], [[3], [4]]).tolist() == [[11]] and np.dot([1.0, 2.0], [3.0, 4.0]) == 11
with np.errstate(all="ignore"):  # what may overflow is NumPy's own product
    assert np.isinf(np.matmul(np.full((64, 64), 1e300), np.full((64, 64), 1e300), plan="winograd > vendor")).all()
try: np.matmul(small, small)
except ValueError as error: assert "mismatch in its core dimension" in str(error)
else: raise AssertionError("no error")
print("done")
"""

# What a plan that only a guess proposes costs besides: the processor's rates are measured first.
PROBE = """
import numpy as np
import fmm
from fmm.runtime.probe import probed_calibration
np.matmul = np.dot = fmm.matmul
assert probed_calibration(1, "float64").rates
print("done")
"""

TORCH = """
import torch, fmm
if {first}: fmm.matmul(torch.ones(2, 2), torch.ones(2, 2))
a, small = torch.randn(700, 600, dtype=torch.float64), torch.randn(5, 6)
e, f = a.T @ a, small.T @ small
torch.matmul = fmm.matmul
out = torch.empty(600, 600, dtype=torch.float64)
for options in ({{}}, {{"plan": "winograd > vendor"}}, {{"plan": "vendor"}}, {{"out": out}}, {{"workspace": 0}}):
    torch.testing.assert_close(torch.matmul(a.T, a, **options), e)
torch.testing.assert_close(torch.matmul(small.T, small), f)
grown = torch.matmul(small.T.requires_grad_(), small)
assert type(grown.grad_fn).__name__ == "MmBackward0"
try: torch.matmul(small, small)
except RuntimeError as error: assert "shapes cannot be multiplied" in str(error)
else: raise AssertionError("no error")
print("done")
"""

CUPY = """
import numpy as np
from tests.support import numpy_cupy
cupy = numpy_cupy.install()
import fmm
from fmm.runtime import devices
from tests.support.devices import H200
devices.cuda_device = lambda index: H200
a = cupy.ndarray(np.ones((4, 4)))
if {first}: fmm.matmul(a, a)
cupy.matmul = fmm.matmul
for x in (a, a):
    assert cupy.matmul(x, x).host.tolist() == [[4.0] * 4] * 4
    assert cupy.matmul(x, x, axes=[(0, 1)] * 3).host.tolist() == [[4.0] * 4] * 4
    assert cupy.matmul(x, x, cupy.ndarray((4, 4))).host.tolist() == [[4.0] * 4] * 4
assert len(cupy.calls) == 6 + {first}
print("done")
"""


def run(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FMM_TUNING_MODE": "off"}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, text=True, capture_output=True, timeout=120
    )
    return found.stdout.strip() or found.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("code", [NUMPY, pytest.param(PROBE, marks=pytest.mark.slow)], ids=["products", "probe"])
def test_numpys(code: str) -> None:
    assert run(code) == "done"


@pytest.mark.parametrize("first", [0, 1], ids=["before torch's first tensor", "after it"])
def test_torchs(first: int) -> None:
    pytest.importorskip("torch")
    assert run(TORCH.format(first=first)) == "done"


@pytest.mark.slow
@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("first", [0, 1], ids=["before CuPy's first array", "after it"])
def test_cupys(first: int) -> None:
    assert run(CUPY.format(first=first)) == "done"


def replaceable(path: Path) -> list[str]:
    """Where a module asks a library for a function by a name that users replace."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        if node.attr in REPLACED and node.value.id in OWN_NAMES:
            found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.value.id}.{node.attr}")
    return found


@pytest.mark.slow
def test_no_module_asks_for_a_name_that_users_replace() -> None:
    """NumPy's own products are in fmm.kernels.cpu.host_arrays."""
    modules = [path for path in (ROOT / "fmm").rglob("*.py") if str(path.relative_to(ROOT)) not in WHO_MAY]
    assert len(modules) > 100
    assert not [place for path in modules for place in replaceable(path)]
