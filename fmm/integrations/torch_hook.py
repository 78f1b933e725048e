"""The hook in C++ in front of torch's kernels: compiled once for each version of torch, and loaded."""

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
PATIENCE = 300  # seconds


class CompiledHook:
    """The functions of compiled_hook.cpp."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.fmm_failure.restype = ctypes.c_char_p
        self.library.fmm_least_work.argtypes = (ctypes.c_int64,) * 3

    def least_work(self, work: int, half: int, unaligned: int) -> None:
        """From how many multiply-adds on Python is asked."""
        self.library.fmm_least_work(work, half, unaligned)

    def only_now(self) -> None:
        """Said while a question is answered: that it is declined is not to be remembered."""
        self.library.fmm_only_now()

    def install(self, on_cuda: bool, operators: Sequence[tuple[str, int]]) -> str:
        """By name, and where the left operand stands; what went wrong, if anything did."""
        count = len(operators)
        names = (ctypes.c_char_p * count)(*(name.encode() for name, _ in operators))
        first = (ctypes.c_int * count)(*(place for _, place in operators))
        failed = self.library.fmm_install(int(on_cuda), count, names, first)
        return str(self.library.fmm_failure().decode()) if failed else ""

    def uninstall(self, on_cuda: bool) -> None:
        self.library.fmm_uninstall(int(on_cuda))


@lru_cache(maxsize=1)
def loaded_hook() -> CompiledHook | None:
    """The hook, compiled now if it was not before; None where there is no compiler, or none that can."""
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
    """Of what it was compiled from, and for which torch."""
    text = "\0".join([torch.__version__, *command]).encode() + SOURCE.read_bytes()
    return hashlib.sha256(text).hexdigest()[:16]


def _compile(command: list[str], path: Path) -> None:
    """Whole or not at all, however many processes begin at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        done = subprocess.run(
            [*command, "-o", str(made)], capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        if done.returncode:
            raise OSError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the compiler failed")
        os.replace(made, path)
