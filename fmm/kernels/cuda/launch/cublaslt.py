"""cuBLASLt's candidates for a product, one by one: the leaves `lt0`, `lt1`, ..."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache, partial
from math import gcd
from typing import Any

from fmm.dtypes import DType
from fmm.kernels.cuda.launch.cublas import StreamContext, check_status, host_scalars, load_library
from fmm.kernels.cuda.launch.prepared_calls import PreparedCall
from fmm.kernels.cuda.launch_list import BASES
from fmm.kernels.cuda.ops import GemmOp, GemmOperand
from fmm.kernels.plans.plan_error import PlanError

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
def _library() -> tuple[Any, ctypes.c_void_p]:
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
        self.library, self.handle = _library()
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
