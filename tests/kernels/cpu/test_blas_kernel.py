"""The kernel that OpenBLAS runs: an old one is reported to the user, and no measurement is made with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fmm.kernels.cpu.blas_kernel import kernel_warning_text, processor_flags, slow_kernel_warning
from fmm.kernels.cpu.openblas import openblas_kernel
from tests.support import ROOT

OLD_KERNEL = "Nehalem"  # part of every build of OpenBLAS for x86 with several kernels
AVX512 = frozenset({"avx", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"})
AVX2 = frozenset({"avx", "avx2", "fma"})


def run_with_old_kernel(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with OPENBLAS_CORETYPE set to an old kernel."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_CORETYPE": OLD_KERNEL}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def kernels_differ() -> None:
    """Skip where OpenBLAS cannot be made to run an old kernel, or where no kernel is old."""
    found = run_with_old_kernel("-c", "from fmm.kernels.cpu.openblas import openblas_kernel as f; print(f())")
    if found.stdout.strip() != OLD_KERNEL or "avx" not in processor_flags():
        pytest.skip(f"NumPy's BLAS has no kernel {OLD_KERNEL} beside a newer one")


@pytest.mark.parametrize(
    ("kernel", "flags", "forced", "warning"),
    [
        (
            "Haswell",
            AVX512,
            "Haswell",
            "OpenBLAS runs its Haswell kernel on an AVX-512 processor: about half the speed; unset OPENBLAS_CORETYPE",
        ),
        (
            "Zen",
            AVX512,
            "",
            "OpenBLAS runs its Zen kernel on an AVX-512 processor: about half the speed; install a NumPy whose "
            "OpenBLAS has kernels for AVX-512",
        ),
        (
            "SANDYBRIDGE",
            AVX2,
            "SANDYBRIDGE",
            "OpenBLAS runs its SANDYBRIDGE kernel on an AVX2 processor: far below its speed; unset OPENBLAS_CORETYPE",
        ),
        ("SkylakeX", AVX512, "", ""),
        ("Haswell", AVX2, "Haswell", ""),
        ("neoversen1", frozenset(), "", ""),
        ("", AVX512, "", ""),
        ("Haswell", frozenset(), "Haswell", ""),
    ],
)
def test_a_kernel_older_than_the_processor_is_warned_of(
    kernel: str, flags: frozenset[str], forced: str, warning: str
) -> None:
    assert kernel_warning_text(kernel, flags, forced) == warning


def test_the_kernel_of_this_process_is_the_one_that_threadpoolctl_finds() -> None:
    info = pytest.importorskip("threadpoolctl").threadpool_info()
    names = {x["architecture"] for x in info if x["internal_api"] == "openblas"}
    assert not names or openblas_kernel() in names


@pytest.mark.slow
@pytest.mark.usefixtures("kernels_differ")
@pytest.mark.parametrize("call", ["print(fmm.explain(a, a))", "fmm.show_config()"])
def test_the_user_is_warned_of_an_old_kernel(call: str) -> None:
    done = run_with_old_kernel("-c", f"import numpy, fmm; a = numpy.ones((64, 64)); {call}")
    assert done.returncode == 0, done.stderr
    assert f"warning: OpenBLAS runs its {OLD_KERNEL} kernel on an " in done.stdout
    assert "unset OPENBLAS_CORETYPE" in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("kernels_differ")
def test_the_variable_is_ignored_while_tuning(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--dtype", "float64", "--time-limit", "0.1", "--output", str(tmp_path))
    done = run_with_old_kernel("fmm_tune.py", *options)
    assert f"OPENBLAS_CORETYPE={OLD_KERNEL} is ignored while measuring" in done.stderr
    assert "OpenBLAS runs its" not in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("kernels_differ")
def test_the_variable_is_ignored_by_benchmarks_and_their_children() -> None:
    code = "import benchmarks, os; from fmm.kernels.cpu.openblas import openblas_kernel as f; print(f(), os.environ)"
    done = run_with_old_kernel("-c", code)
    assert done.returncode == 0 and OLD_KERNEL not in done.stdout
    if not slow_kernel_warning():
        assert done.stdout.split()[0] == openblas_kernel()
