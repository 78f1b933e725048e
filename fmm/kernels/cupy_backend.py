"""The CuPy backend: replays tapes on a CUDA device. Sums by the kernel of cuda/sum.cuh, products by cuBLAS.

The library is called through ctypes: CuPy's own wrappers refuse to be captured into a graph, and are not faster.
Handle, memory, stream and compiled code are CuPy's, so that both share them.
"""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import cupy
import numpy as np
from cupy_backends.cuda.api import driver
from cupy_backends.cuda.libs import cublas as _cublas  # noqa: F401  loads the library that CuPy uses

from fmm.kernels import cuda_source
from fmm.kernels.cuda_source import ENTRY, ROWS, WARP, Access, SumKernel
from fmm.kernels.plan import Plan
from fmm.kernels.tape import BASES, GemmOp, Layout, Problem, SumOp, Tape, record

Math = Literal["ieee", "tf32"]
Pointers = tuple[int, int, int, int]  # of A, B, C and the workspace
LAUNCH = driver.launchKernel
OPTIONS = ("--std=c++17",)
GRAPHS = 16  # graphs kept by a backend
GRAPH_SCRATCH = 32 << 20  # bytes: what cuBLAS documents for Hopper; a captured call may not allocate its own


# ---- kernels


@lru_cache(maxsize=1024)
def _function(device: int, kernel: SumKernel, access: Access, flag: bool) -> tuple[int, Any]:
    """The address of a compiled kernel on the current device, and what keeps it loaded."""
    module = cupy.RawModule(code=cuda_source.source(kernel, access, flag), options=OPTIONS)
    function = module.get_function(ENTRY)
    return function.kernel.ptr, (module, function)


def _compiled(device: int, wanted: set[tuple[SumKernel, Access, bool]]) -> None:
    """Compile what is not there yet, all at once: three levels in one pass take the compiler ten seconds and more."""

    def compile_(key: tuple[SumKernel, Access, bool]) -> None:
        with cupy.cuda.Device(device):
            _function(device, *key)

    if len(wanted) == 1:
        compile_(next(iter(wanted)))
    elif wanted:
        with ThreadPoolExecutor(min(len(wanted), 8)) as pool:
            list(pool.map(compile_, wanted))


# ---- cuBLAS


class _Call(NamedTuple):
    """A GEMM of one type: the names of the plain and the batched function, and the type of its scalars."""

    plain: str
    batched: str
    scalar: Any
    kind: int = -1  # cudaDataType of the operands, for the functions that take any


_GEMMS = {
    "float32": _Call("cublasSgemm_v2", "cublasSgemmStridedBatched", np.float32),
    "float64": _Call("cublasDgemm_v2", "cublasDgemmStridedBatched", np.float64),
    "complex64": _Call("cublasCgemm_v2", "cublasCgemmStridedBatched", np.complex64),
    "complex128": _Call("cublasZgemm_v2", "cublasZgemmStridedBatched", np.complex128),
    "float16": _Call("cublasGemmEx", "cublasGemmStridedBatchedEx", np.float32, 2),
    "bfloat16": _Call("cublasGemmEx", "cublasGemmStridedBatchedEx", np.float32, 14),
}
_COMPUTE_32F, _DEFAULT_ALGORITHM = 68, -1
_MATH: dict[str, int] = {"ieee": 0, "tf32": 3}  # CUBLAS_DEFAULT_MATH, CUBLAS_TF32_TENSOR_OP_MATH


@lru_cache(maxsize=1)
def _library() -> Any:
    """The cuBLAS that CuPy has loaded, with the types of the arguments that we pass."""
    for name in ("libcublas.so.13", "libcublas.so.12"):
        try:
            library = ctypes.CDLL(name)
            break
        except OSError:
            continue
    else:
        raise ImportError("cuBLAS 12 or 13 was not found beside CuPy")
    i, p, q = ctypes.c_int, ctypes.c_void_p, ctypes.c_longlong
    for call in _GEMMS.values():
        kind = [i] if call.kind >= 0 else []
        operand, tail = [p, *kind, i], [i, i] if kind else []
        head = [p, i, i, i, i, i, p]
        getattr(library, call.plain).argtypes = [*head, *operand, *operand, p, *operand, *tail]
        strided = [*operand, q]
        getattr(library, call.batched).argtypes = [*head, *strided, *strided, p, *strided, i, *tail]
    library.cublasSetStream_v2.argtypes = [p, p]
    library.cublasSetWorkspace_v2.argtypes = [p, p, ctypes.c_size_t]
    library.cublasSetMathMode.argtypes = [p, i]
    library.cublasGetMathMode.argtypes = [p, p]
    return library


def _checked(status: int) -> None:
    if status:
        raise RuntimeError(f"cuBLAS failed with status {status}")


@contextmanager
def _blas(stream: int, math: Math) -> Iterator[int]:
    """This thread's handle, on this stream and in this mode; the mode is given back as it was."""
    library, handle = _library(), cupy.cuda.device.get_cublas_handle()
    before = ctypes.c_int()
    _checked(library.cublasGetMathMode(handle, ctypes.byref(before)))
    _checked(library.cublasSetStream_v2(handle, stream))
    changed = before.value != _MATH[math]
    if changed:
        _checked(library.cublasSetMathMode(handle, _MATH[math]))
    try:
        yield handle
    finally:
        if changed:
            _checked(library.cublasSetMathMode(handle, before.value))


class _Gemm:
    """A GEMM call with everything but the pointers filled in."""

    def __init__(self, op: GemmOp, dtype: str) -> None:
        call = _GEMMS[dtype]
        self.function: Callable[..., int] = getattr(_library(), call.plain if op.count == 1 else call.batched)
        self.scalars = np.array([op.alpha, op.beta]).astype(call.scalar)  # the host's copies, read at the call
        alpha = self.scalars.ctypes.data
        kind = (call.kind,) if call.kind >= 0 else ()
        self.head = int(op.left.transposed), int(op.right.transposed), op.m, op.n, op.k, alpha
        factors = (op.left, op.right, op.dest)
        strides = [(x.stride,) if op.count > 1 else () for x in factors]
        self.rest = [(*kind, x.leading, *s) for x, s in zip(factors, strides, strict=True)]
        self.beta = alpha + self.scalars.itemsize
        self.tail = (*((op.count,) if op.count > 1 else ()), *((_COMPUTE_32F, _DEFAULT_ALGORITHM) if kind else ()))
        self.where = [(BASES.index(x.base), x.offset) for x in factors]

    def __call__(self, handle: int, bases: Pointers) -> None:
        left, right, dest = (bases[base] + offset for base, offset in self.where)
        x, y, z = self.rest
        _checked(self.function(handle, *self.head, left, *x, right, *y, self.beta, dest, *z, *self.tail))


# ---- replaying


class _Buffer(threading.local):
    """A thread's own parameter blocks of one tape: the driver copies them when it is called."""

    def __init__(self, blocks: list[bytes]) -> None:
        starts = np.cumsum([0, *(len(b) for b in blocks)])
        self.words = np.frombuffer(b"".join(blocks), np.int64).copy() if blocks else np.empty(0, np.int64)
        self.pointers = self.words.ctypes.data + starts[:-1].astype(np.int64)
        self.addresses = [self.pointers.ctypes.data + 8 * i for i in range(len(blocks))]
        self.bases: tuple[int, ...] | None = None


class _Player:
    """A tape made ready for one device: compiled kernels, parameter blocks, cuBLAS calls."""

    def __init__(self, tape: Tape, device: int, flagged: bool) -> None:
        self.tape, self.device, self.flagged = tape, device, flagged
        sums = [op for op in tape.ops if isinstance(op, SumOp)]
        blocks = [op.parameters for op in sums]
        starts = np.cumsum([0, *(len(b) for b in blocks)])[:-1] // 8
        slots = [
            (int(start) + 7 * i, x) for start, op in zip(starts, sums, strict=True) for i, x in enumerate(op.arrays)
        ]
        ends = [
            int(start) + 7 * len(op.arrays) + 2 * len(op.scalars) + 1 for start, op in zip(starts, sums, strict=True)
        ]
        self.slots = np.array([slot for slot, _ in slots] + ends, np.intp)
        self.which = np.array([BASES.index(x.base) for _, x in slots] + [len(BASES)] * len(ends), np.intp)
        self.offsets = np.array([x.offset for _, x in slots] + [0] * len(ends), np.int64)
        self.buffer = _Buffer(blocks)
        self.gemms = {i: _Gemm(op, tape.problem.dtype) for i, op in enumerate(tape.ops) if isinstance(op, GemmOp)}
        self.calls: dict[tuple[int, ...], list[Any]] = {}

    def play(self, bases: Pointers, flag: int, stream: int, handle: int) -> None:
        """Every launch and call of the tape, in order, on the stream."""
        low = (bases[0] & 15, bases[1] & 15, bases[2] & 15, bases[3] & 15)
        calls = self.calls.get(low)
        if calls is None:
            calls = self.calls[low] = self._calls(low)
        buffer = self.buffer
        known = (*bases, flag)
        if buffer.bases != known:
            buffer.words[self.slots] = np.array(known, np.int64)[self.which] + self.offsets
            buffer.bases = known
        addresses = iter(buffer.addresses)
        for call in calls:
            if type(call) is tuple:
                LAUNCH(*call, stream, next(addresses), 0)
            else:
                call(handle, bases)

    def _calls(self, low: tuple[int, ...]) -> list[Any]:
        aligned = dict(zip(BASES, low, strict=True))
        keys = {i: self._key(op, aligned) for i, op in enumerate(self.tape.ops) if isinstance(op, SumOp)}
        _compiled(self.device, set(keys.values()))
        calls: list[Any] = []
        for i, op in enumerate(self.tape.ops):
            if isinstance(op, SumOp):
                calls.append((_function(self.device, *keys[i])[0], *op.grid, WARP, ROWS, 1, 0))
            else:
                calls.append(self.gemms[i])
        return calls

    def _key(self, op: SumOp, low: dict[str, int]) -> tuple[SumKernel, Access, bool]:
        size, bases = op.alignment
        fits = all(low[base] % size == 0 for base in bases)
        return op.kernel, op.access if fits else "scalar", self.flagged and op.writes_result


@lru_cache(maxsize=1024)
def _player(tape: Tape, device: int, flagged: bool) -> _Player:
    return _Player(tape, device, flagged)


class Graph(NamedTuple):
    """A captured tape: its memory must stay where it is."""

    graph: Any
    scratch: Any

    def launch(self, stream: Any = None) -> None:
        self.graph.launch(stream)


@dataclass(frozen=True)
class CupyBackend:
    """Runs tapes on CuPy's current device and stream; `math` says whether float32 products may use TF32."""

    math: Math = "ieee"
    _graphs: OrderedDict[Any, Graph] = field(default_factory=OrderedDict, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def run(self, tape: Tape, a: int, b: int, c: int, workspace: int, stream: Any = None, flag: int = 0) -> None:
        """C = alpha A B + beta C on device pointers; `flag`: an int that becomes 1 if a sum gives C inf or NaN."""
        if stream is not None:
            with stream:
                self.run(tape, a, b, c, workspace, None, flag)
            return
        pointer = cupy.cuda.get_current_stream().ptr
        player = _player(tape, cupy.cuda.runtime.getDevice(), bool(flag))
        with _blas(pointer, self.math) as handle:
            player.play((a, b, c, workspace), flag, pointer, handle)

    def graph(self, tape: Tape, a: int, b: int, c: int, workspace: int) -> Graph:
        """The tape on these pointers as a CUDA graph; one launch replays it all. The newest few are kept."""
        key = (tape, cupy.cuda.runtime.getDevice(), a, b, c, workspace)
        with self._lock:
            if key in self._graphs:
                self._graphs.move_to_end(key)
                return self._graphs[key]
            made = self._graphs[key] = self._capture(tape, (a, b, c, workspace))
            if len(self._graphs) > GRAPHS:
                self._graphs.popitem(last=False)
            return made

    def _capture(self, tape: Tape, bases: Pointers) -> Graph:
        player = _player(tape, cupy.cuda.runtime.getDevice(), False)
        player._calls(tuple(p & 15 for p in bases))  # compiled before, not during the capture
        scratch = cupy.empty(GRAPH_SCRATCH, cupy.uint8)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            try:
                with _blas(stream.ptr, self.math) as handle:
                    _checked(_library().cublasSetWorkspace_v2(handle, scratch.data.ptr, scratch.nbytes))
                    player.play(bases, 0, stream.ptr, handle)
            finally:
                captured = stream.end_capture()
        return Graph(captured, scratch)

    def multiply(
        self,
        plan: Plan | str,
        a: Any,
        b: Any,
        out: Any = None,
        alpha: complex = 1,
        beta: complex = 0,
        dtype: str | None = None,
    ) -> Any:
        """alpha a b + beta out on CuPy matrices; `dtype="bfloat16"` reads 16-bit integers as bfloat16."""
        kind = dtype or str(a.dtype)
        a, b = _packed(a), _packed(b)
        c = out if out is not None else cupy.empty((a.shape[0], b.shape[1]), a.dtype)
        target = c if layout(c) else cupy.ascontiguousarray(c)
        layouts = tuple(x for x in map(layout, (a, b, target)) if x)
        problem = Problem(a.shape[0], a.shape[1], b.shape[1], kind, layouts, alpha, beta)  # type: ignore[arg-type]
        tape = record(Plan.parse(plan) if isinstance(plan, str) else plan, problem)
        workspace = cupy.empty(tape.workspace, cupy.uint8)
        self.run(tape, a.data.ptr, b.data.ptr, target.data.ptr, workspace.data.ptr)
        if target is not c:
            c[...] = target
        return c


def layout(x: Any) -> Layout | None:
    """How a matrix lies in memory; None if neither its rows nor its columns are contiguous, or they overlap."""
    (rows, cols), (down, right), item = x.shape, x.strides, x.itemsize
    if (cols <= 1 or right == item) and (rows <= 1 or (down % item == 0 and down >= cols * item)):
        return Layout("C", max(down // item if rows > 1 else cols, cols, 1))
    if (rows <= 1 or down == item) and (cols <= 1 or (right % item == 0 and right >= rows * item)):
        return Layout("F", max(right // item if cols > 1 else rows, rows, 1))
    return None


def _packed(x: Any) -> Any:
    return x if layout(x) else cupy.ascontiguousarray(x)
