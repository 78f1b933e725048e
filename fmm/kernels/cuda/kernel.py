"""A kernel to be compiled: who writes its source, from what, and what a launch of it must know."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

STANDARD = ("--std=c++17",)  # options of the compiler
PARAMETER_BYTES = 4096  # that every driver passes to a kernel


@dataclass(frozen=True)
class Kernel:
    """Equal kernels are compiled once. `generate(*given)` is the whole CUDA source, made only when it is needed."""

    generate: Callable[..., str]
    given: tuple[Hashable, ...]
    entry: str
    threads: int  # of a thread block
    shared: int = 0  # bytes of shared memory that its launches ask for
    options: tuple[str, ...] = STANDARD
    architecture: str = ""  # such as "sm_90a", where code for all devices of a capability lacks the instructions

    @property
    def source(self) -> str:
        return self.generate(*self.given)

    @property
    def spec(self) -> Any:
        """The description from which the source is made."""
        return self.given[0]
