"""A reference interpreter of launch lists, which reads every element by its address and plays one launch
after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fmm.dtypes import DTYPES
from fmm.kernels.cpu.host_arrays import aligned_block
from fmm.kernels.cuda.launch_list import StreamSync
from fmm.kernels.cuda.ops import (
    BlockStrides,
    BlockTerm,
    DeviceView,
    GemmOp,
    GemmOperand,
    MirroredGemm,
    MirrorOp,
    RankUpdateOp,
)
from fmm.kernels.cuda.products.simt_kernel import LaunchScalar as Given
from fmm.kernels.cuda.products.simt_tiles import TileGroup, TileOp
from fmm.kernels.cuda.record import OperationList, RecordedOp
from fmm.kernels.cuda.sums.mirror_rescale import LineExponentsOp, RescaleOp
from fmm.kernels.cuda.sums.sum_kernel import BlockIndex
from fmm.kernels.cuda.sums.sum_launch import BlockArray, SumOp
from fmm.kernels.cuda.sums.sum_order import RuntimeCoefficient
from fmm.problem import Problem

Matrix = np.ndarray[Any, np.dtype[Any]]
Memory = dict[str, Matrix]  # base -> bytes
GUARD = 64  # bytes beyond the end of every buffer that no launch may read or write
POISON = 0xFF  # bytes of NaN


def play(tape: OperationList, memory: Memory, tile: Callable[[TileOp, Memory], None] | None = None) -> None:
    """Play a launch list; `tile` computes tiled products, by default the interpreter does."""
    for op in tape.ops:
        if isinstance(op, SumOp):
            _sum(op, memory)
        elif isinstance(op, GemmOp):
            _gemm(op, memory, np.dtype(DTYPES[op.dtype].stored_type))
        elif isinstance(op, MirroredGemm):
            _gemm(op.product, memory, np.dtype(DTYPES[op.product.dtype].stored_type))
            _mirror(op.mirror, memory)
        elif isinstance(op, RankUpdateOp):
            _rank(op, memory, np.dtype(DTYPES[op.dtype].stored_type))
        elif isinstance(op, MirrorOp):
            _mirror(op, memory)
        elif isinstance(op, LineExponentsOp | RescaleOp):
            _rescale(op, memory)
        elif isinstance(op, TileOp | TileGroup):
            for product in op.ops if isinstance(op, TileGroup) else (op,):
                (tile or _tile)(product, memory)


def in_stream_order(tape: OperationList, order: Sequence[int]) -> Iterator[RecordedOp]:
    """Yield the operations; between two synchronizations, all operations of one stream precede those of the next."""
    between: list[tuple[int, RecordedOp]] = []
    for op, stream in zip(tape.ops, tape.streams, strict=True):
        between.append((stream, op))
        if isinstance(op, StreamSync) or tape.stream_count == 1:
            yield from (x for first in order for at, x in between if at == first)
            between = []
    yield from (x for _, x in between)


def _sum(op: SumOp, memory: Memory) -> None:
    """Run the kernel's statements, loads and stores in their order."""
    kind = np.dtype(op.kernel.element)
    values: dict[int, Matrix] = {}
    for event in op.kernel.statements:
        if event.kind == "load":
            found = _block(op.arrays, op.kernel.reads[event.value], memory, kind, op.rows, op.cols)
            values[event.value] = np.zeros((op.rows, op.cols), kind)
            values[event.value][: found.shape[0], : found.shape[1]] = found
        elif event.kind == "store":
            place = _block(op.arrays, op.kernel.writes[event.source], memory, kind, op.rows, op.cols)
            place[...] = values[event.value][: place.shape[0], : place.shape[1]]
        else:
            before = values[event.value] if event.kind == "add" else np.zeros((op.rows, op.cols), kind)
            term = values[event.source] * _number(event.factor, op) if event.source >= 0 else 0
            values[event.value] = (before + term).astype(kind)


def _number(factor: Any, op: SumOp) -> Any:
    c = op.scalars[factor.number] if isinstance(factor, RuntimeCoefficient) else complex(factor)
    return c if op.kernel.element.startswith("complex") else c.real


def _block(arrays: tuple[BlockArray, ...], spot: BlockIndex, memory: Memory, kind: Any, rows: int, cols: int) -> Matrix:
    """Return the part of a block within the launch."""
    x = arrays[spot.array]
    rows = max(min(rows, x.height, x.rows - spot.i * x.height), 0)
    cols = max(min(cols, x.width, x.cols - spot.j * x.width), 0)
    start = x.offset + (spot.i * x.down + spot.j * x.right + spot.part) * kind.itemsize
    return _strided(memory[x.base], start, (rows, cols), (x.row, x.col), kind)


def _strided(memory: Matrix, start: int, shape: tuple[int, int], strides: tuple[int, int], kind: Any) -> Matrix:
    if 0 in shape:
        return np.empty(shape, kind)
    last = start + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) * kind.itemsize
    assert 0 <= start <= last <= memory.nbytes - GUARD - kind.itemsize, "an address outside its base"
    steps = tuple(s * kind.itemsize for s in strides)
    return np.ndarray(shape, kind, memory, start, steps)


def _gemm(op: GemmOp, memory: Memory, kind: Any) -> None:
    alpha, beta = (kind.type(x if kind.kind == "c" else complex(x).real) for x in (op.alpha, op.beta))
    for i in range(op.count):
        left = _factor(op.left, i, (op.m, op.k), memory, kind)
        right = _factor(op.right, i, (op.k, op.n), memory, kind)
        dest = _factor(op.dest, i, (op.m, op.n), memory, kind)
        old = dest if op.addend is None else _viewed(op.addend, memory)
        found = alpha * (left @ right) + (beta * old if beta else 0)
        # The lower half of a row-major matrix is the upper half of the column-major one; the other half may
        # hold anything.
        wanted: Any = np.tri(op.n, dtype=bool).T if op.triangle else np.ones(found.shape, bool)
        np.copyto(dest, found, where=wanted)
        if op.triangle_extent == "loose":
            np.copyto(dest, np.nan, where=~wanted)


def _rank(op: RankUpdateOp, memory: Memory, kind: Any) -> None:
    """Compute one triangle, column-major; the other triangle is neither read nor written."""
    shape = (op.k, op.n) if op.factor.transposed else (op.n, op.k)
    x = _factor(op.factor._replace(transposed=False), 0, shape, memory, kind)
    dest = _factor(op.dest, 0, (op.n, op.n), memory, kind)
    product = x.conj().T @ x if op.factor.transposed else x @ x.conj().T
    half = np.tri(op.n, dtype=bool).T if op.upper else np.tri(op.n, dtype=bool)
    real = kind.type(0).real.dtype.type
    old = np.where(half, dest, 0) * real(op.beta) if op.beta else 0
    np.copyto(dest, real(op.alpha) * product + old, where=half)


def _mirror(op: MirrorOp, memory: Memory) -> None:
    source, dest = (
        _strided(memory[x.base], x.offset, x.shape, x.strides, np.dtype(x.dtype)) for x in (op.source, op.dest)
    )
    lower, real = np.tri(len(dest), dtype=bool), dest.real.dtype.type
    if not op.is_in_place:
        taken = np.where(lower, source, 0) * real(op.alpha) if op.alpha else np.zeros_like(dest)
        old = np.where(lower, dest, 0) * real(op.beta) if op.beta else 0
        np.copyto(dest, taken + old, where=lower)
    if dest.dtype.kind == "c":
        np.einsum("ii->i", dest).imag[...] = 0
    if op.full:
        np.copyto(dest, dest.conj().T.copy(), where=~lower)


def _rescale(op: LineExponentsOp | RescaleOp, memory: Memory) -> None:
    """Scale by exponents that are found independently, by logarithms of integers."""
    source, dest = (_viewed(x, memory) for x in (op.source, op.dest))
    if isinstance(op, LineExponentsOp):
        lines = source if op.axis == 0 else source.T
        shifts = _exponents(op.shifts, memory)
        size = np.maximum(abs(lines.real), abs(lines.imag)) if lines.dtype.kind == "c" else abs(lines)
        each = np.where(size > 0, np.frexp(size)[1] + shifts, -9999).max(axis=1)
        found = np.where(each > -9999, each, -8192)
        dest[0] = (found - _exponents((op.against, 1), memory)) // 2 if op.against else found
        return
    by = (_exponents(op.rows, memory)[:, None] if op.rows[0] else 0) + _exponents(op.cols, memory)
    real, imag = (np.ldexp(x, np.broadcast_to(by, x.shape).astype(int)) for x in (source.real, source.imag))
    dest[...] = real + 1j * imag if dest.dtype.kind == "c" else real


def _exponents(exponents: tuple[DeviceView | None, int], memory: Memory) -> Any:
    return 0 if exponents[0] is None else exponents[1] * _viewed(exponents[0], memory)[0].real.astype(float)


def _viewed(x: DeviceView, memory: Memory) -> Matrix:
    return _strided(memory[x.base], x.offset, x.shape, x.strides, np.dtype(x.dtype))


def _factor(x: GemmOperand, i: int, shape: tuple[int, int], memory: Memory, kind: Any) -> Matrix:
    """Return the operand column-major, as BLAS reads it."""
    strides = (x.leading, 1) if x.transposed else (1, x.leading)
    return _strided(memory[x.base], x.offset + i * x.stride * kind.itemsize, shape, strides, kind)


def _tile(op: TileOp, memory: Memory) -> None:
    """Compute a product with its sums, each block in its own size, and the epilogue's lines."""
    kind, e = np.dtype(op.kernel.element), op.kernel.epilogue

    def block(piece: BlockTerm, lines: BlockStrides, outer: bool) -> Matrix:
        strides = (1, lines.leading) if outer else (lines.leading, 1)
        return _strided(memory[piece.base], piece.offset, (piece.rows, piece.cols), strides, kind)

    def whole(x: Matrix, rows: int, cols: int) -> Matrix:
        full = np.zeros((rows, cols), kind)
        full[: x.shape[0], : x.shape[1]] = x[:rows, :cols]
        return full

    def added(pieces: tuple[BlockTerm, ...], lines: BlockStrides, shape: tuple[int, int], outer: bool) -> Any:
        return sum(kind.type(piece.factor) * whole(block(piece, lines, outer), *shape) for piece in pieces)

    def number(c: Any) -> float:
        return float(getattr(op.dest[c.dest], c.name) if isinstance(c, Given) else complex(c).real)

    a, b, *lines = op.lines
    left = added(op.left, a, (op.m, op.k), op.kernel.along[0] == "outer")
    dests = [block(piece, x, False) for piece, x in zip(op.dest, lines, strict=True)]
    values = [left @ added(op.right, b, (op.k, op.n), op.kernel.along[1] == "inner")]
    values += [whole(dests[d], op.m, op.n) for d in e.reads]
    for terms in e.program.lines:
        values.append(sum(number(c) * values[v] for c, v in terms if number(c)))
    for d, v in zip(e.writes, e.program.outputs, strict=True):
        found = values[v][: dests[d].shape[0], : dests[d].shape[1]]
        dests[d][...] = dests[d] + found if e.atomic else found


def buffer(nbytes: int) -> Matrix:
    memory = aligned_block(nbytes + GUARD)
    memory[:] = POISON
    return memory


def _integer_types(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> Matrix:
    """Return small integers, so that all products and sums are exact in any order."""
    x = rng.integers(-3, 4, shape).astype(dtype)
    return x + 1j * rng.integers(-3, 4, shape) if dtype.startswith("complex") else x


def matrices(problem: Problem, rng: np.random.Generator) -> tuple[Memory, list[Matrix]]:
    memory, views = {}, []
    kind = np.dtype(problem.dtype)
    for name, (rows, cols), layout in zip("ABC", problem.matrix_shapes, problem.layouts, strict=True):
        lines = rows if layout.order == "C" else cols
        memory[name] = buffer(lines * layout.leading * kind.itemsize)
        strides = (layout.leading, 1) if layout.order == "C" else (1, layout.leading)
        view = _strided(memory[name], 0, (rows, cols), strides, kind)
        if name != "C" or problem.beta:
            view[...] = _integer_types(rng, (rows, cols), problem.dtype)
        views.append(view)
    return memory, views
