"""A kernel to be compiled: the function that writes its source, its arguments, and what a launch must know of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

STANDARD = ("--std=c++17",)  # options of the compiler
PARAMETER_BYTES = 4096  # as many as every driver passes to a kernel


@dataclass(frozen=True)
class Kernel:
    """A kernel: `generate(*given)` is its whole CUDA source, made only when it is needed.

    Equal kernels are compiled once.
    """

    generate: Callable[..., str]
    given: tuple[Hashable, ...]
    entry: str  # the name of the function that is launched
    threads: int  # of a thread block
    shared: int = 0  # bytes of shared memory that its launches ask for
    options: tuple[str, ...] = STANDARD
    architecture: str = ""  # such as sm_90a, if code for all devices of a capability lacks instructions; else empty

    @property
    def source(self) -> str:
        return self.generate(*self.given)

    @property
    def spec(self) -> Any:
        """The first thing of which the source is made: a description of the kernel."""
        return self.given[0]
