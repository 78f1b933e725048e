"""The vendor's product of plain CuPy matrices by one call of cuBLAS: what cupy.matmul computes, in half the time.

Small products take less time on the device than cupy.matmul takes on the host, so a shorter way to cuBLAS makes them
faster. The call is the very one that CuPy makes in the end, so the results are its own, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cupy
import numpy as np
from cupy_backends.cuda.api import runtime
from cupy_backends.cuda.libs import cublas

from fmm.dtypes import DTYPES, STORED, DType

try:
    from cupy._core import _routines_linalg as _linalg
except ImportError:  # a CuPy without it
    _linalg = None

USUAL, PEDANTIC, FP16, BF16, TF32 = 1, 2, 3, 6, 7  # compute types of CuPy
LARGEST = (1 << 31) - 1  # a side that fits into cuBLAS's arguments
ALGORITHM = 99  # CUBLAS_GEMM_DEFAULT_TENSOR_OP, as CuPy has it
# What cupy.matmul computes in, set by the environment or by set_compute_type.
get_compute_type: Callable[[Any], int] | None = getattr(_linalg, "get_compute_type", None)
ndarray, handle, current_device, gemm = (
    cupy.ndarray,
    cupy.cuda.device.get_cublas_handle,
    runtime.getDevice,
    cublas.gemmEx,
)


class _GemmType(NamedTuple):
    """What cuBLAS is told of a type: its number, by CuPy's compute type how to compute, and where one and zero are."""

    number: int
    computes: dict[int, int]
    one: int
    zero: int
    kept: Any  # the scalars, which must live as long as their addresses


def _gemm_type(row: DType) -> _GemmType:
    kept: Any = np.array([1, 0], row.scalar)
    single = row.scalar in ("float32", "complex64") and not row.sums_wider
    computes = {USUAL: row.compute_type} | ({TF32: DTYPES["tf32"].compute_type} if single else {})
    return _GemmType(row.cuda_type, computes, kept.ctypes.data, kept.ctypes.data + kept.itemsize, kept)


# Of the types that NumPy has a name for.
_GEMM_TYPES = {np.dtype(name): _gemm_type(DTYPES[name]) for name in STORED if name != "bfloat16"}


def cublas_product(a: Any, b: Any) -> Any:
    """a b of two plain CuPy arrays; None where cupy.matmul itself must see them."""
    dtype = a.dtype
    kind = _GEMM_TYPES.get(dtype)
    if kind is None or get_compute_type is None or b.dtype != dtype or a.ndim != 2 or b.ndim != 2:
        return None
    mode = get_compute_type(dtype)
    compute = kind.computes.get(mode)
    (m, k), (inner, n) = a.shape, b.shape
    if m == n == 1:  # an inner product, which CuPy sums up in another way
        return None
    if compute is None or k != inner or not 0 < m <= LARGEST or not 0 < n <= LARGEST or not 0 < k <= LARGEST:
        return None
    left, right = a.data, b.data
    if not (a._c_contiguous or a._f_contiguous) or not (b._c_contiguous or b._f_contiguous):
        return None
    if not left.device_id == right.device_id == current_device():
        return None
    c, number = ndarray((m, n), dtype), kind.number
    # cuBLAS counts in columns: C^T = B^T A^T, in the same memory. A single row or column is as CuPy sees it.
    of_a, rows = (0, k) if a._c_contiguous else (1, m)
    of_b, cols = (1, k) if b._f_contiguous else (0, n)
    x, y, z = right.ptr, left.ptr, c.data.ptr
    head = handle(), of_b, of_a, n, m, k, kind.one
    gemm(*head, x, number, cols, y, number, rows, kind.zero, z, number, n, compute, ALGORITHM)
    return c
