"""Operands: a call of matmul in NumPy's terms, reduced to two-dimensional products that a plan can run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fmm.kernels.cpu.arena import Array

FAST = tuple(np.dtype(t) for t in "fdFD")


class NotOursError(Exception):
    """A call that NumPy answers itself, or rejects; the argument says why."""


class NumPyAnswersError(NotOursError):
    """A product that plans could run, but what is asked besides, a cast or a kind of `out`, is NumPy's own: it answers
    even if a plan is given."""


@dataclass(frozen=True)
class Options:
    """The options of numpy.matmul, as given."""

    out: Any = None
    casting: Any = "same_kind"
    order: Any = "K"
    dtype: Any = None

    def vendor(self, a: Any, b: Any) -> Any:
        """numpy.matmul itself: the specification, and the answer wherever fmm has nothing better."""
        return np.matmul(a, b, out=self.out, casting=self.casting, order=self.order, dtype=self.dtype)


@dataclass(frozen=True)
class Operands:
    """Two arrays of one fast type with matching shapes, and the shape of their product."""

    a: Array
    b: Array
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size(self) -> tuple[int, int, int]:
        """(m, k, n) of one product: all rows at once where b is the same for all."""
        m, k, n = _rows(self.a), self.a.shape[-1], _columns(self.b)
        return (m * _batch(self.a), k, n) if self.folds else (m, k, n)

    @property
    def folds(self) -> bool:
        """Is a stack of a's times one b a single product of all their rows, without moving them?"""
        return self.a.ndim > 2 and _batch(self.b) == 1 and stacked_rows(self.a)

    def products(self, c: Array) -> Iterator[tuple[Array, Array, Array]]:
        """The 2-D products (a, b, c) that together fill `c`, which has the batch dimensions and two more."""
        a, b = self.a if self.a.ndim > 1 else self.a[None, :], self.b if self.b.ndim > 1 else self.b[:, None]
        if self.folds and stacked_rows(c):
            b = b.reshape(b.shape[-2:])
            yield a.reshape(-1, a.shape[-1]), b, c.reshape(-1, c.shape[-1])
            return
        batch = c.shape[:-2]
        a, b = (np.broadcast_to(x, batch + x.shape[-2:]) for x in (a, b))
        for index in np.ndindex(*batch):
            yield a[index], b[index], c[index]


def operands(a: Any, b: Any, options: Options) -> Operands:
    """Check that a call is one that plans can run; NotOursError (or, later, NumPy itself) says why not."""
    if type(a) is not np.ndarray or type(b) is not np.ndarray:
        raise NotOursError(f"operands are {type(a).__name__} and {type(b).__name__}, not plain arrays")
    dtype = _common_type(a, b, options)
    shape = _product_shape(a, b)
    _check_out(options, dtype, shape)
    return Operands(a, b, dtype, shape)


def _common_type(a: Array, b: Array, options: Options) -> np.dtype[Any]:
    try:
        dtype = np.dtype(options.dtype) if options.dtype is not None else np.result_type(a.dtype, b.dtype)
    except TypeError as error:
        raise NotOursError(str(error)) from None
    if options.dtype is not None and not dtype.isnative:
        raise NotOursError("NumPy takes only native types as dtype")
    dtype = dtype.newbyteorder("=")
    if dtype not in FAST:
        raise NotOursError(f"{dtype} products are NumPy's own")
    if options.casting not in ("no", "equiv", "safe", "same_kind", "unsafe") or options.order not in tuple("CFAK"):
        raise NotOursError("an option that NumPy rejects")
    if not all(np.can_cast(x.dtype, dtype, options.casting) for x in (a, b)):
        raise NotOursError(f"cannot cast to {dtype} with casting {options.casting!r}")
    if not all(np.can_cast(x.dtype, dtype, "safe") for x in (a, b)):
        raise NumPyAnswersError(f"a cast to {dtype} can lose numbers, of which NumPy warns")
    return dtype


def _product_shape(a: Array, b: Array) -> tuple[int, ...]:
    if a.ndim == 0 or b.ndim == 0 or a.shape[-1] != (b.shape[-2] if b.ndim > 1 else b.shape[0]):
        raise NotOursError(f"shapes {a.shape} and {b.shape} do not match")
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise NotOursError(f"shapes {a.shape} and {b.shape} do not match") from None
    return batch + (a.shape[-2:-1] if a.ndim > 1 else ()) + (b.shape[-1:] if b.ndim > 1 else ())


def _check_out(options: Options, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    out = options.out
    if out is None:
        return
    if type(out) is not np.ndarray:
        raise NumPyAnswersError(f"out is a {type(out).__name__}")
    if out.shape != shape or not out.flags.writeable or not np.can_cast(dtype, out.dtype, options.casting):
        raise NumPyAnswersError("out has another shape, cannot be written or cannot hold the result")


def result(call: Operands, order: str) -> Array:
    """A new array for the product, laid out in memory as numpy.matmul lays it out."""
    fortran = order == "F" or (order == "A" and all(x.flags.f_contiguous for x in (call.a, call.b)))
    if fortran or order in ("C", "A") or max(call.a.ndim, call.b.ndim) <= 2 or 0 in call.shape:
        return np.empty(call.shape, call.dtype, order="F" if fortran else "C")
    # NumPy keeps the order of the batch axes in memory; an elementwise result for one entry of each item has it too.
    batch = np.logical_or(*(x[..., 0, 0] if x.ndim > 1 else x[0] for x in (call.a, call.b)), order="K")
    axes = sorted(range(batch.ndim), key=lambda axis: -batch.strides[axis])
    strides, step = [0] * len(call.shape), call.dtype.itemsize
    for axis in reversed([*axes, *range(batch.ndim, len(call.shape))]):
        strides[axis], step = step, step * call.shape[axis]
    return np.ndarray(call.shape, call.dtype, strides=strides)  # unlike a transposed view, it owns its memory


def two_axes(call: Operands, c: Array) -> Array:
    """The result with the axes put back that 1-D operands drop."""
    c = c if call.a.ndim > 1 else np.expand_dims(c, -1 if call.b.ndim == 1 else -2)
    return c if call.b.ndim > 1 else np.expand_dims(c, -1)


def stacked_rows(x: Array) -> bool:
    """Do the leading axes and the rows collapse to one axis without a copy?"""
    axes = [(length, stride) for length, stride in zip(x.shape[:-1], x.strides[:-1], strict=True) if length != 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(axes))


def blas_ready(x: Array) -> bool:
    """Can BLAS read (or write) this two-dimensional view in place: one axis contiguous, the other not overlapping?"""
    if x.dtype not in FAST or not x.flags.aligned:
        return False
    (rows, cols), item = x.shape, x.itemsize
    near, far, length = (x.strides[1], x.strides[0], cols) if x.strides[1] == item else (*x.strides, rows)
    return bool(near == item and far >= length * item and far % item == 0)


def same_memory_transposed(a: Array, b: Array) -> bool:
    """Is b the transpose of a, in place? Then numpy calls syrk, which does half the work of a product."""
    turned = np.swapaxes(a, -1, -2)
    start, other = (x.__array_interface__["data"][0] for x in (a, b))
    return bool(start == other and turned.shape == b.shape and turned.strides == b.strides)


def _rows(a: Array) -> int:
    return a.shape[-2] if a.ndim > 1 else 1


def _columns(b: Array) -> int:
    return b.shape[-1] if b.ndim > 1 else 1


def _batch(x: Array) -> int:
    return int(np.prod(x.shape[:-2], dtype=np.int64)) if x.ndim > 2 else 1
