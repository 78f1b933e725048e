"""What calls of cuBLAS and of cuBLASLt have in common: where they go, their scalars, their status.

The libraries are called through ctypes: CuPy's own wrappers refuse to be captured into a graph, and are not faster if
ctypes is given arguments that are made ready.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from math import gcd
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from cupy_backends.cuda.libs import cublas as _cublas  # loads the library that CuPy uses

from fmm.dtypes import DTYPES, DType
from fmm.kernels.cuda.launch.prepared_calls import PreparedCall
from fmm.kernels.cuda.launch_list import BASES
from fmm.kernels.cuda.ops import GemmOp, GemmOperand, RankOp
from fmm.kernels.plans.plan_error import PlanError


class StreamContext(NamedTuple):
    """Where a call goes."""

    handle: int  # of cuBLAS
    stream: int
    event: int  # by which other lanes wait for this one


class GemmCall(Protocol):
    """A product by the vendor, all of whose arguments stand ready but the addresses and where it goes."""

    def prepared(self, lane: StreamContext, bases: Sequence[int]) -> PreparedCall:
        """The call on a lane. `bases` begins with the addresses of A, B, C and the workspace."""
        ...


def host_scalars(op: GemmOp, dtype: str) -> np.ndarray[tuple[int], np.dtype[Any]]:
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


def setup_calls(lane: StreamContext, math: Math, before: int) -> list[PreparedCall]:
    """The calls that set a lane's handle to its stream and to this mode; `before` is the mode that it has."""
    calls: list[PreparedCall] = [partial(_library().cublasSetStream_v2, lane.handle, lane.stream)]
    if before != _MATH[math]:
        calls.append(partial(_cublas.setMathMode, lane.handle, _MATH[math]))
    return calls


def restore_calls(lane: StreamContext, math: Math, before: int) -> list[PreparedCall]:
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


def workspace_call(lane: StreamContext, pointer: int, size: int) -> PreparedCall:
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


CANDIDATES = 32  # that cuBLASLt is asked for

# Numbers of attributes in cublasLt.h.
_TRANSPOSE_A, _TRANSPOSE_B = 3, 4
_BATCH_COUNT, _BATCH_STRIDE = 5, 6
_MAX_WORKSPACE, _LEAST_ALIGNMENT = 1, (5, 6, 7, 8)
_NOT_SUPPORTED = 15  # CUBLAS_STATUS_NOT_SUPPORTED


class _Algorithm(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _Candidate(ctypes.Structure):
    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@lru_cache(maxsize=1)
def _lt_library() -> tuple[Any, ctypes.c_void_p]:
    library, handle = load_library("libcublasLt"), ctypes.c_void_p()
    p = ctypes.c_void_p
    library.cublasLtMatmul.argtypes = [p] * 14 + [ctypes.c_size_t, p]
    library.cublasLtMatrixLayoutCreate.argtypes = [p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64]
    for name in ("MatrixLayout", "MatmulDesc", "MatmulPreference"):
        getattr(library, f"cublasLt{name}SetAttribute").argtypes = [p, ctypes.c_int, p, ctypes.c_size_t]
    check_status(library.cublasLtCreate(ctypes.byref(handle)), "cuBLASLt")
    return library, handle


class CandidateCall:
    """One candidate of cuBLASLt's heuristic; PlanError if it has not so many.

    The call's scratch is part of the workspace, so that calls on many streams are safe. What cuBLASLt is told of the
    matrices is small, and kept until the process ends.
    """

    def __init__(self, op: GemmOp, types: DType, number: int, alignments: Sequence[int]) -> None:
        self.types, self.scratch = types, op.scratch
        self.room = op.use.leaf.call.scratch(op.m, op.k, op.n, op.count)
        self.library, self.handle = _lt_library()
        self.scalars = host_scalars(op, types.scalar)
        shapes = (op.m, op.k), (op.k, op.n), (op.m, op.n)
        factors = (op.left, op.right, op.dest)
        self.layouts = [self._layout(*shape, x, op.count) for shape, x in zip(shapes, factors, strict=True)]
        self.operation = self._operation(op)
        self.where = [(BASES.index(x.base), x.offset) for x in factors]
        self.candidate = self._candidate(number, alignments)
        self.algorithm = ctypes.addressof(self.candidate.algorithm)
        alpha = self.scalars.ctypes.data
        self.alpha, self.beta = alpha, alpha + self.scalars.itemsize

    def prepared(self, lane: StreamContext, bases: Sequence[int]) -> PreparedCall:
        a, b, c = (bases[base] + offset for base, offset in self.where)
        x, y, z = self.layouts
        call = self.library.cublasLtMatmul
        operands = self.alpha, a, x, b, y, self.beta, c, z, c, z
        scratch = bases[3] + self.scratch, self.room
        return partial(call, self.handle, self.operation, *operands, self.algorithm, *scratch, lane.stream)

    def _set(self, noun: str, described: ctypes.c_void_p, attribute: int, value: Any) -> None:
        """Set an attribute of one of cuBLASLt's descriptions: a MatrixLayout, a MatmulDesc or a MatmulPreference."""
        function = getattr(self.library, f"cublasLt{noun}SetAttribute")
        check_status(function(described, attribute, ctypes.byref(value), ctypes.sizeof(value)), "cuBLASLt")

    def _layout(self, rows: int, cols: int, x: GemmOperand, count: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        stored = (cols, rows) if x.transposed else (rows, cols)
        check_status(
            self.library.cublasLtMatrixLayoutCreate(ctypes.byref(layout), self.types.cuda_type, *stored, x.leading)
        )
        if count > 1:
            self._set("MatrixLayout", layout, _BATCH_COUNT, ctypes.c_int32(count))
            self._set("MatrixLayout", layout, _BATCH_STRIDE, ctypes.c_int64(x.stride))
        return layout

    def _operation(self, op: GemmOp) -> ctypes.c_void_p:
        operation = ctypes.c_void_p()
        create = self.library.cublasLtMatmulDescCreate
        check_status(create(ctypes.byref(operation), self.types.compute_type, self.types.scalar_type), "cuBLASLt")
        self._set("MatmulDesc", operation, _TRANSPOSE_A, ctypes.c_int32(op.left.transposed))
        self._set("MatmulDesc", operation, _TRANSPOSE_B, ctypes.c_int32(op.right.transposed))
        return operation

    def _candidate(self, number: int, alignments: Sequence[int]) -> _Candidate:
        preference, candidates, count = ctypes.c_void_p(), (_Candidate * CANDIDATES)(), ctypes.c_int()
        check_status(self.library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)), "cuBLASLt")
        self._set("MatmulPreference", preference, _MAX_WORKSPACE, ctypes.c_size_t(self.room))
        for attribute, least in zip(_LEAST_ALIGNMENT, (*alignments, alignments[-1]), strict=True):
            self._set("MatmulPreference", preference, attribute, ctypes.c_uint32(least))
        x, y, z = self.layouts
        status = self.library.cublasLtMatmulAlgoGetHeuristic(
            self.handle, self.operation, x, y, z, z, preference, CANDIDATES, candidates, ctypes.byref(count)
        )
        self.library.cublasLtMatmulPreferenceDestroy(preference)
        if status != _NOT_SUPPORTED:  # it says so where it has no candidate at all
            check_status(status, "cuBLASLt")
        offered = 0 if status else count.value
        if number >= offered:
            where = f"operands whose lines begin at multiples of {', '.join(map(str, alignments))} bytes"
            raise PlanError(f"cuBLASLt has {offered} candidates for this product of {where}: there is no lt{number}")
        return _Candidate.from_buffer_copy(candidates[number])


def line_alignment(x: GemmOperand, itemsize: int, divides: int) -> int:
    """The power of two that divides the addresses of all lines of an operand, if `divides` does its base's address."""
    return gcd(divides, x.offset, x.leading * itemsize, x.stride * itemsize)
