"""The C++ hook that torch calls before its own kernels; the hook is compiled once for each version of torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch

from fmm.config.environment import log_once
from fmm.integrations.compiled_library import CLibrarySource

CPP_SOURCE = Path(__file__).with_suffix(".cpp")


class CompiledHook:
    """The compiled functions of torch_hook.cpp."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.library.fmm_failure.restype = ctypes.c_char_p
        self.library.fmm_least_work.argtypes = (ctypes.c_int64,) * 3

    def set_min_multiply_adds(self, work: int, work_16_bit: int, work_16_bit_unaligned: int) -> None:
        """Set the smallest numbers of multiply-adds of products for which the hook calls Python.

        `work` is the number for all types except 16-bit types, `work_16_bit` the number for 16-bit types with aligned
        rows, and `work_16_bit_unaligned` the number for 16-bit types with unaligned rows.
        """
        self.library.fmm_least_work(work, work_16_bit, work_16_bit_unaligned)

    def prevent_decline_caching(self) -> None:
        """Keep the hook from caching the decline of the current product.

        Call this method only inside a Python function that the hook has called.
        """
        self.library.fmm_only_now()

    def install_operators(self, on_cuda: bool, operators: Sequence[tuple[str, int]]) -> str:
        """Install the hook for these operators, and return an error message, which is empty on success.

        Each operator is a pair: its name, and the index of the left operand in its argument list.
        """
        count = len(operators)
        names = (ctypes.c_char_p * count)(*(name.encode() for name, _ in operators))
        first = (ctypes.c_int * count)(*(index for _, index in operators))
        failed = self.library.fmm_install(int(on_cuda), count, names, first)
        return str(self.library.fmm_failure().decode()) if failed else ""

    def uninstall_operators(self, on_cuda: bool) -> None:
        self.library.fmm_uninstall(int(on_cuda))


@lru_cache(maxsize=1)
def load_compiled_hook() -> CompiledHook | None:
    """Load the hook from the cache, or compile it; return None if the hook cannot be compiled."""
    try:
        return CompiledHook(_compiled_hook_library().load_library())
    except OSError as error:
        reason = f"the hook for torch cannot be compiled ({error})"
        log_once(f"{reason}: each small product of torch waits some microseconds for Python")
        return None


def _compiled_hook_library() -> CLibrarySource:
    home = Path(torch.__file__).parent
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    options = ["-std=c++20", "-O2", "-shared", "-fPIC", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    folders = [f"-I{home}/include", f"-I{home}/include/torch/csrc/api/include", f"-L{home}/lib"]
    libraries = ["-ltorch_cpu", "-lc10"]
    version = torch.__version__
    return CLibrarySource(f"the hook for torch {version}", CPP_SOURCE, [*options, *folders], libraries, version)
