"""What calls of cuBLAS and of cuBLASLt have in common: where they go, their scalars, their status.

The libraries are called through ctypes: CuPy's own wrappers refuse to be captured into a graph, and are not faster if
ctypes is given arguments that are made ready.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from fmm.kernels.cuda.gemm import GemmOp
from fmm.kernels.cuda.launch.prepared_calls import PreparedCall


class Lane(NamedTuple):
    """Where a call goes: a cuBLAS handle that is set to a stream, and the event by which others wait for it."""

    handle: int
    stream: int
    event: int


class GemmCall(Protocol):
    """A GEMM with everything but the pointers filled in: `bases` are those of A, B, C and the workspace first."""

    def prepared(self, lane: Lane, bases: Sequence[int]) -> PreparedCall: ...


def scalars_of(op: GemmOp, dtype: str) -> np.ndarray[tuple[int], np.dtype[Any]]:
    """alpha and beta as the library reads them."""
    pair = np.array([op.alpha, op.beta], np.complex128)
    return (pair if np.dtype(dtype).kind == "c" else pair.real).astype(dtype)


def check_status(status: int, library: str = "cuBLAS") -> None:
    if status:
        raise RuntimeError(f"{library} failed with status {status}")


def load_library(name: str) -> Any:
    for version in (13, 12):
        try:
            return ctypes.CDLL(f"{name}.so.{version}")
        except OSError:
            continue
    raise ImportError(f"{name} 12 or 13 was not found beside CuPy")
