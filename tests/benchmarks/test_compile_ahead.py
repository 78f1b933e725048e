"""The device's tests without a device: on NumPy's arrays, where their kernels are written to be compiled ahead."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import compile_ahead
from fmm.hardware.chip import Chip
from fmm.kernels.plans.plan import Plan
from tests.support import ROOT
from tests.support.nvrtc import compile_cuda

PYTEST_ON_NUMPY = [*compile_ahead.PYTEST_ON_NUMPY, "-p", "no:cacheprovider"]
# These tests query cuBLAS, which NumPy does not have.
DEVICES_ALONE = "not math_mode"


def run_on_numpy(folder: Path, *arguments: str) -> list[Any]:
    """Run these tests on NumPy; return the kernels that they would launch."""
    environment = {**os.environ, "FMM_KERNELS": str(folder), "PYTHONPATH": str(ROOT)}
    command = [*PYTEST_ON_NUMPY, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(path.read_text(encoding="utf-8")) for path in folder.iterdir()]


@pytest.mark.slow
def test_a_few_tests_run_on_numpy_and_their_kernels_compile(tmp_path: Path) -> None:
    few = "test_gpu_kernels.py", "products/test_gpu_wgmma.py"
    paths = [f"tests/kernels/cuda/{name}" for name in few]
    noted = run_on_numpy(tmp_path, *paths, "-k", "few_launches and not li")
    assert len(noted) > 20
    assert {x["architecture"] for x in noted} == {"", "sm_90a"}
    shortest = min(noted, key=lambda x: len(x["source"]))
    log, ptx = compile_cuda(shortest["source"], shortest["architecture"] or "sm_90", *shortest["options"])
    assert "error" not in log and "ret;" in ptx


@pytest.mark.slow
@pytest.mark.parametrize("path", ["test_gpu_kernels.py", "products/test_gpu_tiled.py"])
def test_the_tests_of_kernels_pass_on_numpy(path: str, tmp_path: Path) -> None:
    """So a mistake in these tests shows without a device."""
    assert len(run_on_numpy(tmp_path, f"tests/kernels/cuda/{path}", "-k", DEVICES_ALONE)) > 500


def test_a_chip_of_the_datasheets_is_as_a_driver_would_describe_it() -> None:
    chip = compile_ahead.named_chip("H200")
    assert isinstance(chip, Chip) and chip.compute_capability == 90 and chip.has_warpgroups
    with pytest.raises(ValueError, match="H2000"):
        compile_ahead.named_chip("H2000")


@pytest.mark.slow
def test_plans_that_raise_a_flag_are_those_of_the_tests_that_see_it() -> None:
    kernels = list(compile_ahead.flagged_kernels(compile_ahead.named_chip("H200")))
    assert len(set(kernels)) > 100
    tests = [f"tests/{x}.py" for x in ("runtime/test_gpu_matmul", "kernels/cuda/recompute/test_gpu_recompute")]
    tests.append("tests/kernels/cuda/products/test_gpu_residues.py")
    text = "".join((ROOT / path).read_text(encoding="utf-8") for path in tests)
    for plan in map(Plan.parse, compile_ahead.FLAGGED_PLANS):
        assert f'"{plan}"' in text or (plan.levels and str(plan.inner_plan) in text), plan


# The slow compilation begins; the quick one ends when the slow one has begun.
SLOW_COMPILER = """
import time

def compile_kernel(path, capability):
    if path.name == "slow":
        path.touch()
        time.sleep(60)
    while not path.with_name("slow").exists():
        time.sleep(0.01)
    print("one process compiles, one is idle", flush=True)
    return ""
"""
COMPILE_TWO = """
import signal
import sys
from pathlib import Path
import slow_compiler
from benchmarks import compile_ahead

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background start with SIGINT ignored
compile_ahead.compile_kernel = slow_compiler.compile_kernel
try:
    compile_ahead.compile_all([Path(sys.argv[1]) / "slow", Path(sys.argv[1]) / "quick"], 90)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
def test_compile_processes_end_without_a_traceback_on_ctrl_c(tmp_path: Path) -> None:
    """As at the time limit of a step of `make gpu-check`: all processes of the step are interrupted."""
    (tmp_path / "slow_compiler.py").write_text(SLOW_COMPILER)
    process = subprocess.Popen(
        [sys.executable, "-c", COMPILE_TWO, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "one process compiles, one is idle\n"
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=30) == ("interrupted\n", "")


class Cupy:
    """The part of CuPy that compiling uses: its compiler saves the code, and then loads it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compiled: list[tuple[Any, ...]] = []
        compiler = SimpleNamespace(
            _get_arch_for_options_for_nvrtc=lambda arch: arch,
            _get_max_compute_capability=lambda: "120",
            function=None,
        )

        def compile_with_cache(source: str, options: tuple[str, ...], arch: str, prepend_cupy_headers: bool) -> None:
            if "error" in source:
                raise RuntimeError("line 3: expected a ;\nand more")
            self.compiled.append((source, options, arch, prepend_cupy_headers))
            compiler.function.Module().load(b"code")

        def compile_for_architecture(source: str, architecture: str, options: tuple[str, ...]) -> bytes:
            self.compiled.append((source, options, architecture))
            return b"code"

        core = SimpleNamespace(compile_with_cache=compile_with_cache)
        ours = SimpleNamespace(compile_for_architecture=compile_for_architecture)
        for name, module in {
            "cupy": SimpleNamespace(),
            "cupy._core": SimpleNamespace(core=core),
            "cupy.cuda": SimpleNamespace(compiler=compiler),
            "fmm.kernels.cuda.launch.compile": ours,
        }.items():
            monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize(
    ("source", "architecture", "said", "compiled"),
    [
        ("a kernel", "", "", [("a kernel", ("--std=c++17",), "90", False)]),
        ("a kernel", "sm_90a", "", [("a kernel", ("--std=c++17",), "sm_90a")]),
        ("an error", "", "RuntimeError: line 3: expected a ;", []),
    ],
)
def test_a_kernel_is_compiled_for_the_chip_or_its_own_architecture(
    source: str, architecture: str, said: str, compiled: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupy, path = Cupy(monkeypatch), tmp_path / "kernel.json"
    path.write_text(json.dumps({"source": source, "options": ["--std=c++17"], "architecture": architecture}))
    assert compile_ahead.compile_kernel(path, 90) == said
    assert cupy.compiled == compiled
