"""The kernels of first products compile with the oldest NVRTC of CUDA 12 and of CUDA 13, with the options of the
runtime.

Other tests use the newest NVRTC, which accepts more: before 13.5, generic lambdas are host functions without the option
-default-device.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import zipfile
from collections.abc import Callable
from ctypes import byref, c_char_p, c_size_t, c_void_p, create_string_buffer
from pathlib import Path

import pytest

from tests.kernels.cuda.test_first_call import PRODUCTS, launches_of
from tests.support.compiled_cache import cached_file
from tests.support.compiler_on_mock import compiler_on_a_mock
from tests.support.nvrtc import in_parallel, kernel_architecture

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


def compiler(requirement: str, folder: Path) -> Callable[..., str]:
    """Return a function of a source, its architecture and options that returns the compiler's errors."""
    with zipfile.ZipFile(nvrtc_wheel(requirement)) as wheel:
        wheel.extractall(folder)
    # NVRTC opens its builtins by their name, and finds the library that is loaded already.
    ctypes.CDLL(str(next(folder.rglob("libnvrtc-builtins.so*"))), ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(next(folder.rglob("libnvrtc.so*"))))

    def errors(source: str, architecture: str, *options: str) -> str:
        program, size = c_void_p(), c_size_t()
        flags = [x.encode() for x in (f"--gpu-architecture={architecture}", *options)]
        assert not library.nvrtcCreateProgram(byref(program), source.encode(), b"kernel.cu", 0, None, None)
        failed = library.nvrtcCompileProgram(program, len(flags), (c_char_p * len(flags))(*flags))
        library.nvrtcGetProgramLogSize(program, byref(size))
        log = create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        library.nvrtcDestroyProgram(byref(program))
        return log.value.decode(errors="replace") if failed else ""

    return errors


@pytest.mark.slow
@pytest.mark.parametrize("version", OLDEST)
def test_kernels_compile_with_the_oldest_compilers(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = compiler(OLDEST[version], tmp_path)
    with compiler_on_a_mock(monkeypatch) as module:
        options = module.ALWAYS_OPTIONS
    launches = [x for text, dtype, n, op, *_ in PRODUCTS for x in launches_of(text, dtype, n, op)]
    kernels = {(x.kernel.cuda_source, kernel_architecture(x.kernel), *options, *x.kernel.options) for x in launches}
    assert len(kernels) >= 20
    found = in_parallel(errors, sorted(kernels))
    assert not any(found), next(x for x in found if x)
