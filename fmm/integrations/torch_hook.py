"""The C++ hook in front of torch's kernels: compiled once for each version of torch, and loaded."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch

from fmm.config.environment import log_once
from fmm.kernels.long_waits import log_if_slow

SOURCE = Path(__file__).with_suffix(".cpp")
COMPILE_TIMEOUT = 300  # seconds


class CompiledHook:
    """The functions of torch_hook.cpp."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.fmm_failure.restype = ctypes.c_char_p
        self.library.fmm_least_work.argtypes = (ctypes.c_int64,) * 3

    def least_work(self, work: int, work_16_bit: int, work_16_bit_unaligned: int) -> None:
        """Set the multiply-adds from which the hook calls Python."""
        self.library.fmm_least_work(work, work_16_bit, work_16_bit_unaligned)

    def only_now(self) -> None:
        """Tell the hook, during a call of Python, not to remember a decline."""
        self.library.fmm_only_now()

    def install(self, on_cuda: bool, operators: Sequence[tuple[str, int]]) -> str:
        """Install operators (name, index of the left operand); return the error, empty on success."""
        count = len(operators)
        names = (ctypes.c_char_p * count)(*(name.encode() for name, _ in operators))
        first = (ctypes.c_int * count)(*(index for _, index in operators))
        failed = self.library.fmm_install(int(on_cuda), count, names, first)
        return str(self.library.fmm_failure().decode()) if failed else ""

    def uninstall(self, on_cuda: bool) -> None:
        self.library.fmm_uninstall(int(on_cuda))


@lru_cache(maxsize=1)
def loaded_hook() -> CompiledHook | None:
    """Return the hook, compiled if no cached one exists; None if no compiler can compile it."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    command = _command(compiler or "")
    path = cache_folder() / f"torch-hook-{_fingerprint(command)}.so"
    try:
        if not path.exists():
            if compiler is None:
                log_once("no C++ compiler is found: each small product of torch waits some microseconds for Python")
                return None
            with log_if_slow(f"the hook for torch {torch.__version__} is being compiled, once for this version"):
                _compile(command, path)
        return CompiledHook(path)
    except (OSError, subprocess.SubprocessError) as error:
        log_once(f"the hook for torch cannot be compiled; each small product waits for Python ({error})")
        return None


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "fmm"


def _command(compiler: str) -> list[str]:
    home = Path(torch.__file__).parent
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    options = ["-std=c++20", "-O2", "-shared", "-fPIC", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    folders = [f"-I{home}/include", f"-I{home}/include/torch/csrc/api/include", f"-L{home}/lib"]
    return [compiler, *options, *folders, str(SOURCE), "-ltorch_cpu", "-lc10"]


def _fingerprint(command: list[str]) -> str:
    """Return a hash of the source, the compiler's command and torch's version."""
    text = "\0".join([torch.__version__, *command]).encode() + SOURCE.read_bytes()
    return hashlib.sha256(text).hexdigest()[:16]


def _compile(command: list[str], path: Path) -> None:
    """Compile to `path` atomically; several processes may compile at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        output = Path(folder) / path.name
        done = subprocess.run(
            [*command, "-o", str(output)], capture_output=True, text=True, check=False, timeout=COMPILE_TIMEOUT
        )
        if done.returncode:
            raise OSError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the compiler failed")
        os.replace(output, path)
