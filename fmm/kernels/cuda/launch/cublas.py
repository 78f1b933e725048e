"""Call GEMM, gemm3m, syrk and herk of cuBLAS, and any of the algorithms that cuBLASLt's heuristic offers.

The libraries are called through ctypes, because calls through CuPy's wrappers cannot be captured into a CUDA graph. The
arguments are converted to C types once, so ctypes is as fast as CuPy's wrappers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from math import gcd
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from cupy_backends.cuda.api import runtime
from cupy_backends.cuda.libs import cublas as _cublas  # this import loads the library that CuPy uses

from fmm.dtypes import DTYPES, DType
from fmm.kernels.cuda.launch.bound_calls import BoundCall, StatusError
from fmm.kernels.cuda.launch_list import ADDRESS_BASES
from fmm.kernels.cuda.ops import GemmOp, GemmOperand, RankUpdateOp
from fmm.kernels.plans.level import PlanError


class StreamContext(NamedTuple):
    """A CUDA stream with its own cuBLAS handle and its own event."""

    handle: int  # address of the cuBLAS handle; 0 for a stream that never calls cuBLAS
    stream: int
    event: int  # address of the event on which other streams wait


class GemmCall(Protocol):
    """A product by cuBLAS or cuBLASLt; all arguments are converted to C types, except the addresses and the stream."""

    def bind_call(self, context: StreamContext, bases: Sequence[int]) -> BoundCall:
        """Bind the call to a stream and to addresses; `bases` starts with the addresses of A, B, C and workspace."""
        ...


def alpha_beta_array(op: GemmOp, dtype: str) -> np.ndarray[tuple[int], np.dtype[Any]]:
    """Return alpha and beta as an array in host memory, from which cuBLAS reads both numbers."""
    pair = np.array([op.alpha, op.beta], np.complex128)
    return (pair if np.dtype(dtype).kind == "c" else pair.real).astype(dtype)


def check_status(status: int, library: str = "cuBLAS") -> None:
    if status:
        raise StatusError(library, status)


def load_library(name: str) -> Any:
    """Return the CUDA library of the major version that CuPy uses: handles work only in the library that made them."""
    file = f"{name}.so.{runtime.runtimeGetVersion() // 1000}"
    try:
        return ctypes.CDLL(file)
    except OSError as error:
        raise ImportError(f"{file} was not found beside CuPy: install the CUDA libraries of CuPy's version") from error


MathMode = Literal["ieee", "tf32", "emulated"]
_Pointer = ctypes.c_void_p


def vendor_call(op: GemmOp | RankUpdateOp, alignment_by_base: Mapping[str, int], device: int) -> GemmCall:
    """Return the vendor's call for a product on the current device; `device` is the index of this device.

    `alignment_by_base` maps each base (A, B, C, workspace) to a power of two that divides the base's address.
    """
    element = DTYPES[op.dtype]
    if isinstance(op, RankUpdateOp):
        return _RankUpdateCall(op, element)
    candidate = op.leaf_use.number
    if candidate is None:
        functions = _GEMM3M_FUNCTIONS if op.leaf_use.leaf.name == "vendor3m" else _GEMM_FUNCTIONS
        return _CublasCall(op, DTYPES[element.stored_type], functions[element.stored_type])
    alignments = [
        operand_column_alignment(x, element.itemsize, alignment_by_base[x.base]) for x in op.operands_and_result
    ]
    return CublasLtCall(op, element, candidate, alignments, device)


# ---- cuBLAS


class _CublasFunctionNames(NamedTuple):
    """The names of cuBLAS's functions for products of one element type."""

    plain: str  # name of the function for a single product
    batched: str  # name of the function for a batch at constant strides; empty if cuBLAS has no such function
    any_type: bool = False  # True if the function takes the element type as an argument


_GEMM_FUNCTIONS = {
    "float32": _CublasFunctionNames("cublasSgemm_v2", "cublasSgemmStridedBatched"),
    "float64": _CublasFunctionNames("cublasDgemm_v2", "cublasDgemmStridedBatched"),
    "complex64": _CublasFunctionNames("cublasCgemm_v2", "cublasCgemmStridedBatched"),
    "complex128": _CublasFunctionNames("cublasZgemm_v2", "cublasZgemmStridedBatched"),
    "float16": _CublasFunctionNames("cublasGemmEx", "cublasGemmStridedBatchedEx", True),
    "bfloat16": _CublasFunctionNames("cublasGemmEx", "cublasGemmStridedBatchedEx", True),
}
# The functions that compute a complex product as three real products. cuBLAS has no batched function for complex128, so
# fmm.kernels.cuda.select splits a batch into single products.
_GEMM3M_FUNCTIONS = {
    "complex64": _CublasFunctionNames("cublasCgemm3m", "cublasCgemm3mStridedBatched"),
    "complex128": _CublasFunctionNames("cublasZgemm3m", ""),
}
# Functions that compute one triangle of X X^H, where alpha and beta are real.
_RANK_FUNCTIONS = {
    "float32": "cublasSsyrk_v2",
    "float64": "cublasDsyrk_v2",
    "complex64": "cublasCherk_v2",
    "complex128": "cublasZherk_v2",
}
_LOWER, _UPPER, _NOT_TRANSPOSED, _TRANSPOSED, _ADJOINT = 0, 1, 0, 1, 2  # CUBLAS_FILL_MODE_*, CUBLAS_OP_*
_DEFAULT_ALGORITHM = -1
# CUBLAS_DEFAULT_MATH, CUBLAS_TF32_TENSOR_OP_MATH, CUBLAS_FP64_EMULATED_FIXEDPOINT_MATH
_MATH_MODES: dict[str, int] = {"ieee": 0, "tf32": 3, "emulated": 8}
# CUBLAS_EMULATION_STRATEGY_*: by default, cuBLAS never emulates on an H100 or H200; an eager handle always does.
_DEFAULT_STRATEGY, _EAGER_STRATEGY = 0, 2
_STRATEGY_FUNCTION = "cublasSetEmulationStrategy"  # cuBLAS 13.0 update 2 and newer have this function


@lru_cache(maxsize=1)
def _cublas_library() -> Any:
    """Return the cuBLAS library that CuPy has loaded; declare the argument types of the functions that fmm calls."""
    library = load_library("libcublas")
    number, pointer = ctypes.c_int, ctypes.c_void_p
    for call in (*_GEMM_FUNCTIONS.values(), *_GEMM3M_FUNCTIONS.values()):
        for name, batched in ((call.plain, False), (call.batched, True)):
            if name and hasattr(library, name):  # some versions of cuBLAS lack some of these functions
                getattr(library, name).argtypes = _argument_types(call.any_type, batched)
    for name in _RANK_FUNCTIONS.values():  # handle, triangle, op, n, k, alpha, A, lda, beta, C, ldc
        sizes = [number, number, number, number]
        getattr(library, name).argtypes = [pointer, *sizes, pointer, pointer, number, pointer, pointer, number]
    library.cublasSetStream_v2.argtypes = [pointer, pointer]
    library.cublasSetWorkspace_v2.argtypes = [pointer, pointer, ctypes.c_size_t]
    if hasattr(library, _STRATEGY_FUNCTION):
        getattr(library, _STRATEGY_FUNCTION).argtypes = [pointer, number]
    return library


def _argument_types(any_type: bool, batched: bool) -> list[Any]:
    """Return the argument types of a GEMM: handle, two ops, m, n, k, alpha, A, B, beta, C, and optional arguments.

    Each matrix is several arguments: its address, its element type (if `any_type` is True), its leading dimension, and
    its stride in a batch (if `batched` is True). The optional arguments at the end are the number of products (if
    `batched` is True), and the compute type and the algorithm (if `any_type` is True).
    """
    number, pointer = ctypes.c_int, ctypes.c_void_p
    matrix = [pointer, *([number] if any_type else []), number, *([ctypes.c_longlong] if batched else [])]
    count, arithmetic = [number] if batched else [], [number, number] if any_type else []
    head = [pointer, number, number, number, number, number, pointer]
    return [*head, *matrix, *matrix, pointer, *matrix, *count, *arithmetic]


def cublas_version() -> int:
    """Return the version of cuBLAS as the integer that cublasGetVersion would return.

    cublasGetVersion itself needs a handle, and no handle can be created during the capture of a stream.
    """
    parts = []
    for number in range(3):
        value = ctypes.c_int()
        check_status(_cublas_library().cublasGetProperty(number, ctypes.byref(value)))
        parts.append(value.value)
    return parts[0] * 10000 + parts[1] * 100 + parts[2]


def math_mode(context: StreamContext) -> int:
    """Return the current math mode of a stream's handle."""
    return int(_cublas.getMathMode(context.handle))


def handle_setup_calls(context: StreamContext, math: MathMode, before: int) -> list[BoundCall]:
    """Return the calls that set a handle's stream and math mode; `before` is the handle's current mode."""
    calls: list[BoundCall] = [partial(_cublas_library().cublasSetStream_v2, context.handle, context.stream)]
    if before != _MATH_MODES[math]:
        calls.append(partial(_cublas.setMathMode, context.handle, _MATH_MODES[math]))
    if math == "emulated":
        calls.append(_set_emulation_strategy_call(context, _EAGER_STRATEGY))
    return calls


def _set_emulation_strategy_call(context: StreamContext, strategy: int) -> BoundCall:
    """Return the call that sets the strategy of cuBLAS's own emulation."""
    return partial(getattr(_cublas_library(), _STRATEGY_FUNCTION), context.handle, strategy)


def require_float64_emulation() -> None:
    """Raise PlanError if the loaded cuBLAS has no emulation of float64."""
    if not hasattr(_cublas_library(), _STRATEGY_FUNCTION):
        raise PlanError(
            f"cuBLAS {cublas_version()} cannot emulate float64: vendor-emulated needs cuBLAS 13.0 update 2 or newer"
        )


def math_mode_restore_calls(context: StreamContext, math: MathMode, before: int) -> list[BoundCall]:
    """Return the calls that set the handle's math mode from `math` back to `before`."""
    calls: list[BoundCall] = []
    if before != _MATH_MODES[math]:
        calls.append(partial(_cublas.setMathMode, context.handle, before))
    if math == "emulated":
        calls.append(_set_emulation_strategy_call(context, _DEFAULT_STRATEGY))
    return calls


def set_handle_stream(context: StreamContext) -> None:
    """Set the handle's stream; cublasSetStream also resets the handle's workspace."""
    check_status(_cublas_library().cublasSetStream_v2(context.handle, context.stream))


def create_handle() -> int:
    """Create a cuBLAS handle on the current device; the handle is never destroyed."""
    handle = ctypes.c_void_p()
    check_status(_cublas_library().cublasCreate_v2(ctypes.byref(handle)))
    return int(handle.value or 0)


def set_workspace_call(context: StreamContext, pointer: int, size: int) -> BoundCall:
    """Return the call that sets cuBLAS's workspace until the handle's stream is set again.

    cuBLAS cannot allocate a workspace itself during the capture of a stream.
    """
    return partial(_cublas_library().cublasSetWorkspace_v2, context.handle, pointer, size)


class _CublasCall:
    """A GEMM or a batch of GEMMs by cuBLAS; all arguments are converted to C types, except the handle and addresses."""

    def __init__(self, op: GemmOp, element: DType, call: _CublasFunctionNames) -> None:
        batched = op.count > 1
        name = call.batched if batched else call.plain
        # The arguments are converted once, below. library[name] creates a function object without argument types, so
        # ctypes does not convert the arguments again at each call.
        self.function: Callable[..., int] = _cublas_library()[name]
        self.scalars = alpha_beta_array(
            op, element.scalar
        )  # cuBLAS reads alpha and beta from this array in host memory during the call
        alpha, beta = self.scalars.ctypes.data, self.scalars.ctypes.data + self.scalars.itemsize

        def arguments_after_address(x: GemmOperand, stored: DType) -> tuple[int, ...]:
            """Return a matrix's arguments after its address: type, leading dimension and stride."""
            kind = (stored.cuda_type,) if call.any_type else ()
            return *kind, x.leading, *((x.stride,) if batched else ())

        dest = arguments_after_address(op.dest, DTYPES[op.dest_dtype] if op.dest_dtype else element)
        count = (op.count,) if batched else ()
        arithmetic = (element.compute_type, _DEFAULT_ALGORITHM) if call.any_type else ()
        parts: tuple[tuple[int, ...], ...] = (
            (int(op.left.transposed), int(op.right.transposed), op.m, op.n, op.k, alpha),
            arguments_after_address(op.left, element),
            (*arguments_after_address(op.right, element), beta),
            (*dest, *count, *arithmetic),
        )
        types = iter(getattr(_cublas_library(), name).argtypes)

        def convert_arguments(values: tuple[int, ...]) -> list[Any]:
            next(types)  # skip the argument type of the handle or address that precedes these values
            return [next(types)(value) for value in values]

        self.parts = [convert_arguments(values) for values in parts]
        self.where = [(ADDRESS_BASES.index(x.base), x.offset) for x in op.operands_and_result]

    def bind_call(self, context: StreamContext, bases: Sequence[int]) -> BoundCall:
        (i, x), (j, y), (k, z) = self.where
        head, left, right, dest = self.parts
        a, b, c = _Pointer(bases[i] + x), _Pointer(bases[j] + y), _Pointer(bases[k] + z)
        return partial(self.function, _Pointer(context.handle), *head, a, *left, b, *right, c, *dest)


class _RankUpdateCall:
    """A call of syrk or herk, which computes one triangle of the product of a matrix and its adjoint."""

    def __init__(self, op: RankUpdateOp, element: DType) -> None:
        self.function: Callable[..., int] = getattr(_cublas_library(), _RANK_FUNCTIONS[element.name])
        # alpha and beta in host memory; cuBLAS reads both numbers during the call
        self.scalars = np.array([op.alpha, op.beta], element.real or element.name)
        triangle, transposed = _UPPER if op.upper else _LOWER, _ADJOINT if element.is_complex else _TRANSPOSED
        operation = transposed if op.factor.transposed else _NOT_TRANSPOSED
        self.head = triangle, operation, op.n, op.k, self.scalars.ctypes.data
        self.beta = self.scalars.ctypes.data + self.scalars.itemsize
        self.leading = op.factor.leading, op.dest.leading
        self.where = [(ADDRESS_BASES.index(x.base), x.offset) for x in op.operands_and_result]

    def bind_call(self, context: StreamContext, bases: Sequence[int]) -> BoundCall:
        (i, x), (k, z) = self.where
        factor_lines, dest_lines = self.leading
        factor, dest = bases[i] + x, bases[k] + z
        return partial(self.function, context.handle, *self.head, factor, factor_lines, self.beta, dest, dest_lines)


# ---- cuBLASLt

REQUESTED_CANDIDATES = 32  # number of algorithms requested from cuBLASLt's heuristic

# The values that cublasLt.h defines for the attributes of descriptors.
_TRANSPOSE_A, _TRANSPOSE_B = 3, 4
_BATCH_COUNT, _BATCH_STRIDE = 5, 6
_MAX_WORKSPACE, _MIN_ALIGNMENTS = 1, (5, 6, 7, 8)
_NOT_SUPPORTED = 15  # CUBLAS_STATUS_NOT_SUPPORTED


class _LtAlgorithm(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _LtCandidate(ctypes.Structure):
    _fields_ = (
        ("algorithm", _LtAlgorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@cache
def _cublaslt_library(device: int) -> tuple[Any, ctypes.c_void_p]:
    """Return the cuBLASLt library and its handle for the current device; `device` is the index of this device.

    cuBLASLt ties a handle to the device that is current when the handle is created.
    """
    library, handle = load_library("libcublasLt"), ctypes.c_void_p()
    p = ctypes.c_void_p
    library.cublasLtMatmul.argtypes = [p] * 14 + [ctypes.c_size_t, p]
    library.cublasLtMatrixLayoutCreate.argtypes = [p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64]
    for name in ("MatrixLayout", "MatmulDesc", "MatmulPreference"):
        getattr(library, f"cublasLt{name}SetAttribute").argtypes = [p, ctypes.c_int, p, ctypes.c_size_t]
    check_status(library.cublasLtCreate(ctypes.byref(handle)), "cuBLASLt")
    return library, handle


class CublasLtCall:
    """A call of one of the algorithms that cuBLASLt's heuristic offers, chosen by its index.

    The constructor raises PlanError if cuBLASLt's heuristic offers no algorithm with this index. The call's scratch
    memory is part of the workspace, so calls on several streams never share scratch memory. cuBLASLt's descriptors are
    small and are never destroyed.
    """

    def __init__(self, op: GemmOp, types: DType, number: int, alignments: Sequence[int], device: int) -> None:
        self.types, self.scratch = types, op.scratch
        self.scratch_bytes = op.leaf_use.leaf.scratch(op.m, op.k, op.n, op.count)
        self.library, self.handle = _cublaslt_library(device)
        self.scalars = alpha_beta_array(op, types.scalar)
        shapes = (op.m, op.k), (op.k, op.n), (op.m, op.n)
        factors = (op.left, op.right, op.dest)
        self.layouts = [self._create_layout(*shape, x, op.count) for shape, x in zip(shapes, factors, strict=True)]
        self.operation = self._create_operation(op)
        self.where = [(ADDRESS_BASES.index(x.base), x.offset) for x in factors]
        self.candidate = self._request_candidate(number, alignments)
        self.algorithm = ctypes.addressof(self.candidate.algorithm)
        alpha = self.scalars.ctypes.data
        self.alpha, self.beta = alpha, alpha + self.scalars.itemsize

    def bind_call(self, context: StreamContext, bases: Sequence[int]) -> BoundCall:
        a, b, c = (bases[base] + offset for base, offset in self.where)
        x, y, z = self.layouts
        call = self.library.cublasLtMatmul
        operands = self.alpha, a, x, b, y, self.beta, c, z, c, z
        scratch = bases[3] + self.scratch, self.scratch_bytes
        return partial(call, self.handle, self.operation, *operands, self.algorithm, *scratch, context.stream)

    def _set_attribute(self, descriptor_kind: str, descriptor: ctypes.c_void_p, attribute: int, value: Any) -> None:
        """Set an attribute of a cuBLASLt descriptor of the kind MatrixLayout, MatmulDesc or
        MatmulPreference."""
        function = getattr(self.library, f"cublasLt{descriptor_kind}SetAttribute")
        check_status(function(descriptor, attribute, ctypes.byref(value), ctypes.sizeof(value)), "cuBLASLt")

    def _create_layout(self, rows: int, cols: int, x: GemmOperand, count: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        stored = (cols, rows) if x.transposed else (rows, cols)
        check_status(
            self.library.cublasLtMatrixLayoutCreate(ctypes.byref(layout), self.types.cuda_type, *stored, x.leading)
        )
        if count > 1:
            self._set_attribute("MatrixLayout", layout, _BATCH_COUNT, ctypes.c_int32(count))
            self._set_attribute("MatrixLayout", layout, _BATCH_STRIDE, ctypes.c_int64(x.stride))
        return layout

    def _create_operation(self, op: GemmOp) -> ctypes.c_void_p:
        operation = ctypes.c_void_p()
        create = self.library.cublasLtMatmulDescCreate
        check_status(create(ctypes.byref(operation), self.types.compute_type, self.types.scalar_type), "cuBLASLt")
        self._set_attribute("MatmulDesc", operation, _TRANSPOSE_A, ctypes.c_int32(op.left.transposed))
        self._set_attribute("MatmulDesc", operation, _TRANSPOSE_B, ctypes.c_int32(op.right.transposed))
        return operation

    def _request_candidate(self, number: int, alignments: Sequence[int]) -> _LtCandidate:
        preference, candidates, count = ctypes.c_void_p(), (_LtCandidate * REQUESTED_CANDIDATES)(), ctypes.c_int()
        check_status(self.library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)), "cuBLASLt")
        self._set_attribute("MatmulPreference", preference, _MAX_WORKSPACE, ctypes.c_size_t(self.scratch_bytes))
        for attribute, least in zip(_MIN_ALIGNMENTS, (*alignments, alignments[-1]), strict=True):
            self._set_attribute("MatmulPreference", preference, attribute, ctypes.c_uint32(least))
        x, y, z = self.layouts
        status = self.library.cublasLtMatmulAlgoGetHeuristic(
            self.handle, self.operation, x, y, z, z, preference, REQUESTED_CANDIDATES, candidates, ctypes.byref(count)
        )
        self.library.cublasLtMatmulPreferenceDestroy(preference)
        if status != _NOT_SUPPORTED:  # the status that the heuristic returns if it offers no algorithm
            check_status(status, "cuBLASLt")
        offered = 0 if status else count.value
        if number >= offered:
            where = f"operands with lines at multiples of {', '.join(map(str, alignments))} bytes"
            raise PlanError(f"cuBLASLt has {offered} candidates for this product of {where}: there is no lt{number}")
        return _LtCandidate.from_buffer_copy(candidates[number])


def operand_column_alignment(x: GemmOperand, itemsize: int, base_alignment: int) -> int:
    """Return a power of two that divides the address of every column of a column-major operand."""
    return gcd(base_alignment, x.offset, x.leading * itemsize, x.stride * itemsize)
