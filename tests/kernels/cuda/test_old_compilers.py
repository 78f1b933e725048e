"""The kernels of first products compile with the oldest NVRTC of CUDA 12 and of CUDA 13, with the options of the
runtime.

Other tests use the newest NVRTC, which accepts more: before 13.5, generic lambdas are host functions without the option
-default-device.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.kernels.cuda.test_first_call import PRODUCTS, launches_of
from tests.support import ROOT
from tests.support.compiled_cache import cached_file
from tests.support.compiler_on_mock import compiler_on_a_mock
from tests.support.nvrtc import kernel_architecture

OLDEST = {12: "nvidia-cuda-nvrtc-cu12==12.0.76", 13: "nvidia-cuda-nvrtc==13.0.48"}


def nvrtc_wheel(requirement: str) -> Path:
    """Return the wheel that holds this NVRTC, or skip the test if the package index does not answer."""

    def download(path: Path) -> None:
        folder = path.parent / "downloaded"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        ended = subprocess.run([*command, "--only-binary", ":all:", "--dest", folder, requirement], capture_output=True)
        wheels = list(folder.glob("*.whl"))
        if ended.returncode or not wheels:
            pytest.skip(f"pip does not find {requirement}: {ended.stderr.decode(errors='replace')[-300:]}")
        wheels[0].replace(path)

    return cached_file("nvrtc.whl", (requirement,), download)


def compile_errors(library: Path, sources: list[tuple[str, ...]]) -> list[str]:
    """Return the errors of each source with its architecture and options. Another process compiles: two versions
    of one library have the same name, and a process that has loaded one gets it for the other.
    """
    command = [sys.executable, "-m", "tests.support.compile_with_library", str(library)]
    ended = subprocess.run(command, cwd=ROOT, input=json.dumps(sources), capture_output=True, text=True)
    assert not ended.returncode, ended.stderr[-2000:]
    errors: list[str] = json.loads(ended.stdout)
    return errors


@pytest.mark.slow
@pytest.mark.parametrize("version", OLDEST)
def test_kernels_compile_with_the_oldest_compilers(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(nvrtc_wheel(OLDEST[version])) as wheel:
        wheel.extractall(tmp_path)
    with compiler_on_a_mock(monkeypatch) as module:
        options = module.ALWAYS_OPTIONS
    launches = [x for text, dtype, n, op, *_ in PRODUCTS for x in launches_of(text, dtype, n, op)]
    kernels = {(x.kernel.cuda_source, kernel_architecture(x.kernel), *options, *x.kernel.options) for x in launches}
    assert len(kernels) >= 20
    errors = compile_errors(next(tmp_path.rglob("libnvrtc.so*")), sorted(kernels))
    assert len(errors) == len(kernels) and not any(errors), next(filter(None, errors))
