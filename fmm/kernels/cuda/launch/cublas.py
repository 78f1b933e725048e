"""The vendor's calls on the device: cuBLAS's products and rank updates (the leaves `vendor` and `vendor3m`), and by
number cuBLASLt's candidates."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
from cupy_backends.cuda.libs import cublas as _cublas  # loads the library that CuPy uses

from fmm.dtypes import DTYPES, DType
from fmm.kernels.cuda.launch.cublas import (
    CandidateCall,
    GemmCall,
    StreamContext,
    check_status,
    host_scalars,
    line_alignment,
    load_library,
)
from fmm.kernels.cuda.launch.prepared_calls import PreparedCall
from fmm.kernels.cuda.launch_list import BASES
from fmm.kernels.cuda.ops import GemmOp, GemmOperand, RankOp

Math = Literal["ieee", "tf32"]
_Pointer = ctypes.c_void_p


def vendor_call(op: GemmOp | RankOp, divides: Mapping[str, int]) -> GemmCall:
    """The call that does a product; `divides`: by base, the power of two that divides its address."""
    element = DTYPES[op.dtype]
    if isinstance(op, RankOp):
        return _RankCall(op, element)
    candidate = op.use.number
    if candidate is None:
        functions = _FUNCTIONS_3M if op.use.leaf.name == "vendor3m" else _FUNCTIONS
        return _CublasCall(op, DTYPES[element.stored], functions[element.stored])
    alignments = [line_alignment(x, element.itemsize, divides[x.base]) for x in op.pieces]
    return CandidateCall(op, element, candidate, alignments)


# ---- cuBLAS


class _Function(NamedTuple):
    """cuBLAS's functions for products of one type, by name."""

    plain: str  # for one product
    batched: str  # for a batch of products at constant distances; empty if there is none
    any_type: bool = False  # is it for all types, so that it must be told the type?


_FUNCTIONS = {
    "float32": _Function("cublasSgemm_v2", "cublasSgemmStridedBatched"),
    "float64": _Function("cublasDgemm_v2", "cublasDgemmStridedBatched"),
    "complex64": _Function("cublasCgemm_v2", "cublasCgemmStridedBatched"),
    "complex128": _Function("cublasZgemm_v2", "cublasZgemmStridedBatched"),
    "float16": _Function("cublasGemmEx", "cublasGemmStridedBatchedEx", True),
    "bfloat16": _Function("cublasGemmEx", "cublasGemmStridedBatchedEx", True),
}
# By three real products each; a batch of complex128 comes one by one (fmm.kernels.cuda.select).
_FUNCTIONS_3M = {
    "complex64": _Function("cublasCgemm3m", "cublasCgemm3mStridedBatched"),
    "complex128": _Function("cublasZgemm3m", ""),
}
# One half of X X^H; alpha and beta are real.
_RANK_FUNCTIONS = {
    "float32": "cublasSsyrk_v2",
    "float64": "cublasDsyrk_v2",
    "complex64": "cublasCherk_v2",
    "complex128": "cublasZherk_v2",
}
_LOWER, _UPPER, _AS_IT_IS, _TRANSPOSED, _ADJOINT = 0, 1, 0, 1, 2  # CUBLAS_FILL_MODE_*, CUBLAS_OP_*
_DEFAULT_ALGORITHM = -1
_MATH: dict[str, int] = {"ieee": 0, "tf32": 3}  # CUBLAS_DEFAULT_MATH, CUBLAS_TF32_TENSOR_OP_MATH


@lru_cache(maxsize=1)
def _library() -> Any:
    """The cuBLAS that CuPy has loaded, with the types of the arguments that we pass."""
    library = load_library("libcublas")
    number, pointer = ctypes.c_int, ctypes.c_void_p
    for call in (*_FUNCTIONS.values(), *_FUNCTIONS_3M.values()):
        for name, batched in ((call.plain, False), (call.batched, True)):
            if name and hasattr(library, name):  # a cuBLAS may lack a function that nobody asks for
                getattr(library, name).argtypes = _argument_types(call.any_type, batched)
    for name in _RANK_FUNCTIONS.values():  # handle, half, transposition, n, k, alpha, A, its lines, beta, C, its lines
        sizes = [number, number, number, number]
        getattr(library, name).argtypes = [pointer, *sizes, pointer, pointer, number, pointer, pointer, number]
    library.cublasSetStream_v2.argtypes = [pointer, pointer]
    library.cublasSetWorkspace_v2.argtypes = [pointer, pointer, ctypes.c_size_t]
    return library


def _argument_types(any_type: bool, batched: bool) -> list[Any]:
    """Of cuBLAS's product: handle, two transpositions, m, n, k, alpha, A, B, beta, C; then what only some have.

    A matrix is its address, its type where any is taken, the distance of its lines, and in a batch of its layers.
    """
    number, pointer = ctypes.c_int, ctypes.c_void_p
    matrix = [pointer, *([number] if any_type else []), number, *([ctypes.c_longlong] if batched else [])]
    count, arithmetic = [number] if batched else [], [number, number] if any_type else []
    head = [pointer, number, number, number, number, number, pointer]
    return [*head, *matrix, *matrix, pointer, *matrix, *count, *arithmetic]


def cublas_version() -> int:
    """The version of cuBLAS, as cublasGetVersion says it.

    That function wants a handle, and none can be made while a stream is captured; this one needs none.
    """
    parts = []
    for number in range(3):
        value = ctypes.c_int()
        check_status(_library().cublasGetProperty(number, ctypes.byref(value)))
        parts.append(value.value)
    return parts[0] * 10000 + parts[1] * 100 + parts[2]


def math_mode(lane: StreamContext) -> int:
    """The mode that a lane's handle has now."""
    return int(_cublas.getMathMode(lane.handle))


def entering_calls(lane: StreamContext, math: Math, before: int) -> list[PreparedCall]:
    """The calls that set a lane's handle to its stream and to this mode; `before` is the mode that it has."""
    calls: list[PreparedCall] = [partial(_library().cublasSetStream_v2, lane.handle, lane.stream)]
    if before != _MATH[math]:
        calls.append(partial(_cublas.setMathMode, lane.handle, _MATH[math]))
    return calls


def leaving_calls(lane: StreamContext, math: Math, before: int) -> list[PreparedCall]:
    """The calls that set the handle back to the mode that it had."""
    return [partial(_cublas.setMathMode, lane.handle, before)] if before != _MATH[math] else []


def set_stream(lane: StreamContext) -> None:
    """Set the handle to the lane's stream. cuBLAS then forgets what memory it was given."""
    check_status(_library().cublasSetStream_v2(lane.handle, lane.stream))


def new_handle() -> int:
    """A handle of our own on the current device, which lives as long as the process."""
    handle = ctypes.c_void_p()
    check_status(_library().cublasCreate_v2(ctypes.byref(handle)))
    return int(handle.value or 0)


def memory_call(lane: StreamContext, pointer: int, size: int) -> PreparedCall:
    """The call that gives cuBLAS memory for itself, until the handle's stream is set anew.

    While a stream is captured it may allocate none.
    """
    return partial(_library().cublasSetWorkspace_v2, lane.handle, pointer, size)


class _CublasCall:
    """A product or a batch: all arguments but the handle and the three matrices' addresses stand ready."""

    def __init__(self, op: GemmOp, element: DType, call: _Function) -> None:
        batched = op.count > 1
        name = call.batched if batched else call.plain
        self.function: Callable[..., int] = _library()[name]  # without argument types: its arguments have theirs
        self.scalars = host_scalars(op, element.scalar)  # the host's copies, read at the call
        alpha, beta = self.scalars.ctypes.data, self.scalars.ctypes.data + self.scalars.itemsize

        def described(x: GemmOperand, stored: DType) -> tuple[int, ...]:
            """What a matrix's address is followed by."""
            kind = (stored.cuda_type,) if call.any_type else ()
            return *kind, x.leading, *((x.stride,) if batched else ())

        dest = described(op.dest, DTYPES[op.dest_dtype] if op.dest_dtype else element)
        count = (op.count,) if batched else ()
        arithmetic = (element.compute_type, _DEFAULT_ALGORITHM) if call.any_type else ()
        parts: tuple[tuple[int, ...], ...] = (
            (int(op.left.transposed), int(op.right.transposed), op.m, op.n, op.k, alpha),
            described(op.left, element),
            (*described(op.right, element), beta),
            (*dest, *count, *arithmetic),
        )
        types = iter(getattr(_library(), name).argtypes)

        def converted(values: tuple[int, ...]) -> list[Any]:
            next(types)  # of what stands in front of these values: the handle or an address
            return [next(types)(value) for value in values]

        self.parts = [converted(values) for values in parts]
        self.where = [(BASES.index(x.base), x.offset) for x in op.pieces]

    def prepared(self, lane: StreamContext, bases: Sequence[int]) -> PreparedCall:
        (i, x), (j, y), (k, z) = self.where
        head, left, right, dest = self.parts
        a, b, c = _Pointer(bases[i] + x), _Pointer(bases[j] + y), _Pointer(bases[k] + z)
        return partial(self.function, _Pointer(lane.handle), *head, a, *left, b, *right, c, *dest)


class _RankCall:
    """One half of a product of a matrix and its adjoint."""

    def __init__(self, op: RankOp, element: DType) -> None:
        self.function: Callable[..., int] = getattr(_library(), _RANK_FUNCTIONS[element.name])
        # The host's copies of alpha and beta, read at the call.
        self.scalars = np.array([op.alpha, op.beta], element.real or element.name)
        half, transposed = _UPPER if op.upper else _LOWER, _ADJOINT if element.is_complex else _TRANSPOSED
        operation = transposed if op.factor.transposed else _AS_IT_IS
        self.head = half, operation, op.n, op.k, self.scalars.ctypes.data
        self.beta = self.scalars.ctypes.data + self.scalars.itemsize
        self.leading = op.factor.leading, op.dest.leading
        self.where = [(BASES.index(x.base), x.offset) for x in op.pieces]

    def prepared(self, lane: StreamContext, bases: Sequence[int]) -> PreparedCall:
        (i, x), (k, z) = self.where
        factor_lines, dest_lines = self.leading
        factor, dest = bases[i] + x, bases[k] + z
        return partial(self.function, lane.handle, *self.head, factor, factor_lines, self.beta, dest, dest_lines)
