"""Compiles kernels' sources with the host's C++ compiler; headers replace the functions that only a GPU
has."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled_cache import cached_file

COMPILER = shutil.which("g++") or shutil.which("clang++")
# A wide access that is not aligned works on this machine and fails on a GPU: the sanitizer makes it fail here too,
# by an illegal instruction: what would be said takes half of the compiler's time.
SANITIZER = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")
HEADERS = Path(__file__).parent / "host_cuda"


def required_compiler() -> str:
    if COMPILER is None:
        pytest.skip("no C++ compiler (g++ or clang++) for the kernel's source on the host")
    return COMPILER


def header(name: str) -> str:
    return (HEADERS / name).read_text(encoding="utf-8")


@cache
def _version() -> str:
    return subprocess.run([required_compiler(), "--version"], check=True, capture_output=True, text=True).stdout


def compiled_file(name: str, text: str, flags: tuple[str, ...]) -> Path:
    """Return the path of a compiled program or shared library, from the cache if it was made before."""

    def compiled(path: Path) -> None:
        source = path.with_suffix(".cpp")
        source.write_text(text, encoding="utf-8")
        subprocess.run([required_compiler(), *flags, str(source), "-o", str(path)], check=True)

    return cached_file(name, (_version(), *flags, text), compiled)


def shared_library(text: str, flags: tuple[str, ...], mode: int = ctypes.DEFAULT_MODE) -> Any:
    """Compile and load a shared library. It is linked with no other library, which saves two fifths of the
    time: Python has already loaded the C library that it needs."""
    return ctypes.CDLL(str(compiled_file("kernel.so", text, ("-shared", "-fPIC", "-nostdlib", *flags))), mode)
