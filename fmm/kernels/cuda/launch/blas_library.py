"""What calls of cuBLAS and of cuBLASLt have in common: where they go, their scalars, their status.

The libraries are called through ctypes: CuPy's own wrappers refuse to be captured into a graph, and are not faster if
ctypes is given arguments that are made ready.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from fmm.kernels.cuda.launch.prepared_calls import PreparedCall
from fmm.kernels.cuda.ops import GemmOp


class Lane(NamedTuple):
    """Where a call goes."""

    handle: int  # of cuBLAS
    stream: int
    event: int  # by which other lanes wait for this one


class GemmCall(Protocol):
    """A product by the vendor, all of whose arguments stand ready but the addresses and where it goes."""

    def prepared(self, lane: Lane, bases: Sequence[int]) -> PreparedCall:
        """The call on a lane. `bases` begins with the addresses of A, B, C and the workspace."""
        ...


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
