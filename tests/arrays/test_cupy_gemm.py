"""The vendor's product of CuPy's arrays by one call of cuBLAS: what it is told, on a CuPy that is made of NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from tests.support import numpy_cupy

MODULE = "fmm.arrays.cupy_library"


class Block:
    """Device memory, as CuPy's arrays have it."""

    def __init__(self, ptr: int, device: int = 0) -> None:
        self.ptr, self.device_id = ptr, device


class Matrix:
    """As much of a CuPy array as the call reads."""

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, ptr: int = 3 << 20, device: int = 0, order: str = "C"
    ) -> None:
        self.shape, self.dtype, self.ndim = shape, np.dtype(dtype), len(shape)
        self.data, either = Block(ptr, device), min(shape, default=1) <= 1
        self._c_contiguous, self._f_contiguous = order == "C" or either, order == "F" or either


@pytest.fixture
def gemm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module that calls cuBLAS, with a handle and a function that only note the call; no device."""
    with numpy_cupy.in_place(MODULE):
        yield noting(import_module(MODULE), monkeypatch)


def noting(cupy_gemm: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(cupy_gemm, "cublas_gemm", lambda *values: calls.append(values))
    monkeypatch.setattr(cupy_gemm, "cublas_handle", lambda: 42)
    monkeypatch.setattr(cupy_gemm, "current_device", lambda: 0)
    monkeypatch.setattr(cupy_gemm, "ndarray", lambda shape, dtype: Matrix(shape, dtype, 7 << 20))
    modes: dict[Any, int] = {}
    monkeypatch.setattr(cupy_gemm, "get_compute_type", lambda dtype: modes.get(dtype, cupy_gemm.COMPUTE_DEFAULT))
    return cupy_gemm, calls, modes


@pytest.mark.parametrize(
    ("dtype", "mode", "number", "compute"),
    [
        ("float16", 1, 2, 68),
        ("float32", 1, 0, 68),
        ("float32", 7, 0, 77),
        ("float64", 1, 1, 70),
        ("complex64", 1, 4, 68),
        ("complex64", 7, 4, 77),
        ("complex128", 1, 5, 70),
    ],
)
def test_one_call_of_cublas_as_cupy_makes_it(gemm: Any, dtype: str, mode: int, number: int, compute: int) -> None:
    """C^T = B^T A^T in columns, the numbers of cublas_api.h, one and zero in the type of the sums."""
    module, calls, modes = gemm
    modes[np.dtype(dtype)] = mode
    a, b = Matrix((5, 7), dtype, 1 << 20), Matrix((7, 3), dtype, 2 << 20)
    c = module.cublas_product(a, b)
    (call,) = calls
    one, zero = call[6], call[13]
    operands = (2 << 20, number, 3, 1 << 20, number, 7), (c.data.ptr, number, 3)
    assert call == (42, 0, 0, 3, 5, 7, one, *operands[0], zero, *operands[1], compute, 99)
    scalar = np.dtype("float32" if dtype == "float16" else dtype)
    values = [np.frombuffer(ctypes.string_at(p, scalar.itemsize), scalar)[0] for p in (one, zero)]
    assert values == [1, 0] and c.shape == (5, 3) and c.dtype == np.dtype(dtype)


@pytest.mark.parametrize(("k", "n", "turned", "step"), [(7, 3, 0, 3), (7, 1, 1, 7), (1, 3, 1, 1)])
def test_one_row_or_column_is_read_as_cupy_reads_it(gemm: Any, k: int, n: int, turned: int, step: int) -> None:
    """Another kernel, so that other bits would come out, though the memory is the same."""
    module, calls, _ = gemm
    module.cublas_product(Matrix((5, k), "float32"), Matrix((k, n), "float32"))
    (call,) = calls
    assert (call[1], call[9], call[12]) == (turned, step, k)


@pytest.mark.parametrize(("of_a", "of_b"), [("C", "F"), ("F", "C"), ("F", "F")])
def test_transposed_operands_are_read_where_they_are(gemm: Any, of_a: str, of_b: str) -> None:
    """A product with a transpose, x @ x.T say, is one call too: what cuBLAS is told is what these memories hold."""
    module, calls, _ = gemm
    module.cublas_product(Matrix((5, 7), "float32", order=of_a), Matrix((7, 3), "float32", order=of_b))
    (call,) = calls
    (turned, flipped, *size), cols, rows = call[1:6], call[9], call[12]
    assert size == [3, 5, 7]
    assert (turned, cols) == ((0, 3) if of_b == "C" else (1, 7))
    assert (flipped, rows) == ((0, 7) if of_a == "C" else (1, 5))


def test_what_one_call_cannot_do_is_cupys(gemm: Any) -> None:
    module, calls, modes = gemm
    x = Matrix((6, 6), "float32")
    row, column = Matrix((1, 6), "float16"), Matrix((6, 1), "float16")
    refused = [
        (x, Matrix((6, 6), "float64")),
        (x, Matrix((5, 6), "float32")),
        (x, Matrix((6,), "float32")),
        (x, Matrix((6, 0), "float32")),
        (x, Matrix((6, 6), "float32", order="")),
        (Matrix((6, 6), "float32", order=""), x),
        (x, Matrix((6, 6), "float32", device=1)),
        (Matrix((6, 6), "int32"), Matrix((6, 6), "int32")),
        (row, column),  # an inner product, which CuPy sums up in another way
        (Matrix((1, 6), "float32"), Matrix((6, 1), "float32")),
    ]
    assert all(module.cublas_product(a, b) is None for a, b in refused)
    for mode in (module.COMPUTE_PEDANTIC, module.COMPUTE_FP16, module.COMPUTE_BF16):
        modes[np.dtype("float32")] = mode
        assert module.cublas_product(x, x) is None
    assert not calls
