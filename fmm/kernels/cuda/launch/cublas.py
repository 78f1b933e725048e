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
from fmm.kernels.cuda.gemm import GemmOp
from fmm.kernels.cuda.launch.blas_library import GemmCall, Lane, check_status, load_library, scalars_of
from fmm.kernels.cuda.launch.cublaslt import CandidateCall, line_alignment
from fmm.kernels.cuda.launch.prepared_calls import PreparedCall
from fmm.kernels.cuda.launch_list import BASES
from fmm.kernels.cuda.rank import RankOp

Math = Literal["ieee", "tf32"]
_Pointer = ctypes.c_void_p


def vendor_call(op: GemmOp | RankOp, divides: Mapping[str, int]) -> GemmCall:
    """The call of a leaf product; `divides`: a power of two that divides each base's address."""
    kind = DTYPES[op.dtype]
    if isinstance(op, RankOp):
        return _RankCall(op, kind)
    number = op.use.number
    if number is None:
        functions = _FUNCTIONS_3M if op.use.leaf.name == "vendor3m" else _FUNCTIONS
        return _CublasCall(op, DTYPES[kind.stored], functions[kind.stored])
    alignments = [line_alignment(x, kind.itemsize, divides[x.base]) for x in op.pieces]
    return CandidateCall(op, kind, number, alignments)


# ---- cuBLAS


class _Function(NamedTuple):
    """The names of cuBLAS's function for one product and for a batch; does it take any type, which it must be told?"""

    plain: str
    batched: str
    any_type: bool = False


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
    i, p, q = ctypes.c_int, ctypes.c_void_p, ctypes.c_longlong
    for call in (*_FUNCTIONS.values(), *_FUNCTIONS_3M.values()):
        kind = [i] if call.any_type else []
        operand, tail = [p, *kind, i], [i, i] if kind else []
        head = [p, i, i, i, i, i, p]
        strided = [*operand, q]
        one, many = [*head, *operand, *operand, p, *operand, *tail], [*head, *strided, *strided, p, *strided, i, *tail]
        for name, types in ((call.plain, one), (call.batched, many)):
            if name and hasattr(library, name):  # a cuBLAS may lack a function that nobody asks for
                getattr(library, name).argtypes = types
    for name in _RANK_FUNCTIONS.values():
        getattr(library, name).argtypes = [p, i, i, i, i, p, p, i, p, p, i]
    library.cublasSetStream_v2.argtypes = [p, p]
    library.cublasSetWorkspace_v2.argtypes = [p, p, ctypes.c_size_t]
    return library


def cublas_version() -> int:
    """Of cuBLAS, as cublasGetVersion says it, but without a handle, which cannot be made while a stream is captured."""
    parts = []
    for number in range(3):
        value = ctypes.c_int()
        check_status(_library().cublasGetProperty(number, ctypes.byref(value)))
        parts.append(value.value)
    return parts[0] * 10000 + parts[1] * 100 + parts[2]


def math_mode(lane: Lane) -> int:
    """Of a lane's handle, now."""
    return int(_cublas.getMathMode(lane.handle))


def entering_calls(lane: Lane, math: Math, before: int) -> list[PreparedCall]:
    """By which a lane's handle is set to its stream and to this mode; `before` is the mode that it has."""
    calls: list[PreparedCall] = [partial(_library().cublasSetStream_v2, lane.handle, lane.stream)]
    if before != _MATH[math]:
        calls.append(partial(_cublas.setMathMode, lane.handle, _MATH[math]))
    return calls


def leaving_calls(lane: Lane, math: Math, before: int) -> list[PreparedCall]:
    """By which the handle is given back in the mode that it had."""
    return [partial(_cublas.setMathMode, lane.handle, before)] if before != _MATH[math] else []


def set_stream(lane: Lane) -> None:
    """What the handle is used for next goes to the lane's stream; cuBLAS forgets what memory it was given."""
    check_status(_library().cublasSetStream_v2(lane.handle, lane.stream))


def new_handle() -> int:
    """A handle of our own on the current device, which lives as long as the process."""
    handle = ctypes.c_void_p()
    check_status(_library().cublasCreate_v2(ctypes.byref(handle)))
    return int(handle.value or 0)


def memory_call(lane: Lane, pointer: int, size: int) -> PreparedCall:
    """What cuBLAS may use for itself, until the handle's stream is set anew: in a capture it may allocate nothing."""
    return partial(_library().cublasSetWorkspace_v2, lane.handle, pointer, size)


class _CublasCall:
    def __init__(self, op: GemmOp, type_: DType, call: _Function) -> None:
        name = call.plain if op.count == 1 else call.batched
        self.function: Callable[..., int] = _library()[name]  # without the types: its arguments have theirs
        self.scalars = scalars_of(op, type_.scalar)  # the host's copies, read at the call
        alpha = self.scalars.ctypes.data
        kind = (type_.cuda_type,) if call.any_type else ()
        factors = (op.left, op.right, op.dest)
        to = (DTYPES[op.dest_dtype].cuda_type,) if kind and op.dest_dtype else kind
        kinds = (kind, kind, to)
        x, y, z = (
            (*own, f.leading, *((f.stride,) if op.count > 1 else ())) for own, f in zip(kinds, factors, strict=True)
        )
        tail = (*((op.count,) if op.count > 1 else ()), *((type_.compute_type, _DEFAULT_ALGORITHM) if kind else ()))
        head = 0, int(op.left.transposed), int(op.right.transposed), op.m, op.n, op.k, alpha
        values = *head, 0, *x, 0, *y, alpha + self.scalars.itemsize, 0, *z, *tail
        made = [make(value) for make, value in zip(getattr(_library(), name).argtypes, values, strict=True)]
        a, b, c = len(head), len(head) + 1 + len(x), len(head) + 3 + len(x) + len(y)  # where the pointers stand
        self.parts = made[1:a], made[a + 1 : b], made[b + 1 : c], made[c + 1 :]
        self.where = [(BASES.index(f.base), f.offset) for f in factors]

    def prepared(self, lane: Lane, bases: Sequence[int]) -> PreparedCall:
        (i, x), (j, y), (k, z) = self.where
        head, left, right, dest = self.parts
        a, b, c = _Pointer(bases[i] + x), _Pointer(bases[j] + y), _Pointer(bases[k] + z)
        return partial(self.function, _Pointer(lane.handle), *head, a, *left, b, *right, c, *dest)


class _RankCall:
    """One half of a product of a matrix and its adjoint."""

    def __init__(self, op: RankOp, type_: DType) -> None:
        self.function: Callable[..., int] = getattr(_library(), _RANK_FUNCTIONS[type_.name])
        self.scalars = np.array([op.alpha, op.beta], type_.real or type_.name)  # the host's copies, read at the call
        turned = (_ADJOINT if type_.is_complex else _TRANSPOSED) if op.factor.transposed else _AS_IT_IS
        self.head = _UPPER if op.upper else _LOWER, turned, op.n, op.k, self.scalars.ctypes.data
        self.beta = self.scalars.ctypes.data + self.scalars.itemsize
        self.leading = op.factor.leading, op.dest.leading
        self.where = [(BASES.index(x.base), x.offset) for x in op.pieces]

    def prepared(self, lane: Lane, bases: Sequence[int]) -> PreparedCall:
        (i, x), (k, z) = self.where
        down, across = self.leading
        return partial(self.function, lane.handle, *self.head, bases[i] + x, down, self.beta, bases[k] + z, across)
