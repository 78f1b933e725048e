"""What NumPy's library and CuPy's do by functions that both have, under the same names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, Self

import numpy as np

from fmm.arrays import host_memory
from fmm.arrays.library import Operand, Processor, Setting, contiguous_operand, occupied_bytes
from fmm.dtypes import DTYPES, INTEGERS, STORED
from fmm.kernels.cpu.host_arrays import Array, dot, matmul
from fmm.kernels.cpu.thread_pool import blas_threads


class NumpyLike(ABC):
    """That part of a library (`fmm.arrays.library`); `module` is NumPy or CuPy."""

    module: Any

    @abstractmethod
    def vendor(self, a: Any, b: Any, out: Any = None) -> Any:
        """Its own product."""

    def lacks(self, x: Any) -> bool:
        return False

    def is_observed(self) -> bool:
        return False

    # ---- other arrays of an array

    def transposed(self, x: Any) -> Any:
        return x.T if x.ndim == 2 else self.module.swapaxes(x, -1, -2)

    def adjoint(self, x: Any) -> Any:
        """The transpose, in the same memory; of complex numbers conjugated, in new memory."""
        turned = self.transposed(x)
        return self.module.conj(turned) if x.dtype.kind == "c" else turned

    def conjugated(self, x: Any) -> Any:
        return self.module.conj(x)

    def is_complex(self, x: Any) -> bool:
        return bool(x.dtype.kind == "c")

    def zeros(self, shape: tuple[int, ...], like: Any) -> Any:
        return self.module.zeros(shape, like.dtype)

    def broadcast_view(self, x: Any, shape: tuple[int, ...]) -> Any:
        return self.module.broadcast_to(x, shape)

    def copied(self, x: Any, shape: tuple[int, ...], like: Any) -> Any:
        made = self.module.empty(shape, like.dtype)
        made[...] = x
        return made

    def promote_operands(self, a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
        """In the type that holds them all; what has it already stays as it is."""
        if c is None:
            return a, b, c
        common = self.module.result_type(a.dtype, b.dtype, c.dtype)
        x, y, z = (v if v.dtype == common else v.astype(common) for v in (a, b, c))
        return x, y, z

    # ---- where no plan runs

    def updated(self, a: Any, b: Any, c: Any, alpha: Any, beta: Any) -> Any:
        """alpha a b + beta c in c, or as a new array where there is none; c is only read where beta is not zero."""
        product = self.vendor(a, b)
        value = product if alpha == 1 else self.module.multiply(product, alpha, out=product if product.ndim else None)
        if c is None:
            return value
        if beta:
            value = self.module.add(value, c if beta == 1 else c * beta)
        self.module.copyto(c, value)
        return c

    def write_triangle(self, product: Any, out: Any, alpha: float, beta: float, fill: str) -> None:
        """The lower half of out = alpha product + beta out; with fill `full` the upper one as its adjoint. TypeError
        where out's type cannot hold that."""
        module = self.module
        kind = product.dtype.kind
        alpha, beta = (as_integer_factor(x) if kind in "iub" else float(x) for x in (alpha, beta))
        if kind == "b" == out.dtype.kind:  # NumPy's or-and, of which there are no other multiples
            alpha, beta = bool(alpha), bool(beta)
        value = product if alpha == 1 else product * alpha
        if beta:
            value = value + (out if beta == 1 else out * beta)
        if value.dtype.kind == "c":
            module.einsum("...ii->...i", value).imag[...] = 0
        if fill == "full":
            module.copyto(out, module.tril(value) + self.adjoint(module.tril(value, -1)))
        else:
            module.copyto(out, value, where=module.tri(out.shape[-1], dtype=bool))


def as_integer_factor(x: float) -> float:
    """A factor of whole numbers, as one of those if it can be."""
    return int(x) if isinstance(x, int) or x.is_integer() else x


def to_numpy(x: Any) -> Any:
    """NumPy's array as it is; of CuPy's, a copy."""
    return x if isinstance(x, np.ndarray) else x.get()


BLAS_TYPES = tuple(np.dtype(name) for name in STORED if not DTYPES[name].sums_wider)  # that NumPy's BLAS multiplies
INTEGER_TYPES = tuple(np.dtype(name) for name in INTEGERS)  # that NumPy multiplies in loops of its own
NAMES = {dtype: dtype.name for dtype in (*BLAS_TYPES, *INTEGER_TYPES)}
CHARS = frozenset(dtype.char for dtype in NAMES)  # NumPy has other names of types that are the same (`long long`)
CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")
UNDERSTOOD = {"casting", "order", "dtype"}  # options that plans can obey; others are NumPy's
NO_OPTIONS: Mapping[str, Any] = {}
SYRK = "b is a transposed in place: NumPy calls syrk, which does half the work"

ndarray = np.ndarray
PLAIN = ndarray, np.memmap  # of which nothing but numbers is wanted; others have masks, or results of their own kind


class NumpyLibrary(NumpyLike):
    """NumPy, as a library of `fmm.arrays.library`; with the options of numpy.matmul that a call has."""

    module = np
    name, vendor_name = "NumPy", "numpy.matmul"
    differentiable, gemm_name = False, ""
    is_tracing = None
    processor: Processor = "cpu"
    out_of_memory: type[BaseException] = MemoryError
    calls: dict[Hashable, Any]

    def __init__(self, options: Mapping[str, Any] = NO_OPTIONS) -> None:
        self.options = options
        self.casting: Any = options.get("casting", "same_kind")
        self.order: Any = options.get("order", "K")
        self.calls = {}
        self.keeps_calls = options.keys() <= {"casting", "order"}

    def with_options(self, options: Mapping[str, Any]) -> Self:
        if not options:
            return self
        made = type(self)(options)
        if made.keeps_calls:
            made.calls = self.calls
        return made

    def quick_vendor(self, a: Any, b: Any) -> Any:
        return matmul(a, b)

    def vendor(self, a: Any, b: Any, out: Any = None) -> Any:
        return matmul(a, b, out=out, **self.options)

    def vendor_call(self, a: Any, b: Any, out: Any) -> Callable[[], Any]:
        return partial(matmul, a, b, out=out, **self.options)

    def adopt_arrays(self, a: Any, b: Any, out: Any) -> None:
        """NumPy itself reads what is no array of its own."""

    def to_callers_library(self, c: Any, a: Any, b: Any) -> Any:
        return c

    def call_key(self, a: Any, b: Any, out: Any) -> Hashable | None:
        if not self.keeps_calls or type(a) is not ndarray or type(b) is not ndarray:
            return None
        if type(self.casting) is not str or type(self.order) is not str:
            return None
        options = blas_threads(), self.casting, self.order, same_memory_transposed(a, b)
        if out is None:
            return *options, *_laid_out(a), *_laid_out(b)
        if type(out) is not ndarray:
            return None
        return *options, *_laid_out(a), *_laid_out(b), *_laid_out(out), out.flags.writeable

    def type_key(self, a: Any, b: Any) -> Hashable:
        return a.dtype, b.dtype

    def setting(self, a: Any, b: Any, out: Any) -> Setting:
        number = blas_threads()
        if others := self.options.keys() - UNDERSTOOD:
            return Setting(number, refusal=f"{', '.join(n for n in self.options if n in others)} was given")
        if type(a) is not ndarray or type(b) is not ndarray:
            what = f"operands are {type(a).__name__} and {type(b).__name__}"
            return Setting(number, refusal=f"{what}, not plain arrays")
        dtype, refusal, refuses_plans = self._common_type(a, b)
        if not refusal and (refusal := self._refused_out(out, dtype)):
            refuses_plans = True
        adjoint = dtype in BLAS_TYPES and same_memory_transposed(a, b)
        return Setting(
            number,
            NAMES.get(dtype),
            refusal=refusal,
            refuses_plans=refuses_plans,
            vendor_advantage=SYRK if adjoint and is_blas_readable(a) else "",
            adjoint=adjoint,
            mirrors=adjoint and is_blas_readable(a),
            casts_out=True,
            flattens_stacks=False,
        )

    def _common_type(self, a: Array, b: Array) -> tuple[np.dtype[Any], str, bool]:
        """The type of the product; why NumPy alone can compute it, if so, and whether even if a plan is given."""
        given, dtype = self.options.get("dtype"), a.dtype
        try:
            dtype = np.result_type(a.dtype, b.dtype) if given is None else np.dtype(given)
        except TypeError as error:
            return dtype, str(error), False
        if given is not None and not dtype.isnative:
            return dtype, "NumPy takes only native types as dtype", False
        dtype = dtype.newbyteorder("=")
        if dtype not in NAMES or dtype.char not in CHARS:
            return dtype, f"{dtype} products are NumPy's own", False
        if self.casting not in CASTINGS or self.order not in tuple("CFAK"):
            return dtype, f"casting={self.casting!r} or order={self.order!r} is for NumPy to judge", False
        if not all(np.can_cast(x.dtype, dtype, self.casting) for x in (a, b)):
            return dtype, f"cannot cast to {dtype} with casting {self.casting!r}", False
        whole = dtype in INTEGER_TYPES and all(x.dtype.kind in "iub" for x in (a, b))  # the lowest bits are kept
        if not whole and not all(np.can_cast(x.dtype, dtype, "safe") for x in (a, b)):
            return dtype, f"a cast to {dtype} can lose numbers, of which NumPy warns", True
        return dtype, "", False

    def _refused_out(self, out: Any, dtype: np.dtype[Any]) -> str:
        """Why NumPy alone can write the product there, if so; its shape is compared later."""
        if out is None:
            return ""
        if type(out) is not ndarray:
            return f"out is a {type(out).__name__}"
        if not out.flags.writeable or not np.can_cast(dtype, out.dtype, self.casting):
            return "out has another shape, cannot be written or cannot hold the result"
        return ""

    def device_number(self, x: Any) -> int:
        return blas_threads()

    def operand(self, x: Any) -> Operand:
        """The array as plans see it. Numbers in another byte order count as another type."""
        item, dtype = x.itemsize, x.dtype
        whole = x.flags.aligned and not any(step % item for step in x.strides)
        name = NAMES.get(dtype) or dtype.str
        if not whole:
            return Operand(x.shape, None, name, occupied_bytes(x.shape, x.strides, item))
        return Operand(x.shape, tuple(step // item for step in x.strides), name)

    def result_operand(self, a: Any, b: Any, shape: tuple[int, ...], dtype: str) -> Operand:
        """As numpy.matmul lays it out in memory."""
        fortran = self.order == "F" or (self.order == "A" and all(x.flags.f_contiguous for x in (a, b)))
        if fortran:
            turned = contiguous_operand(shape[::-1], dtype)
            return turned._replace(shape=shape, strides=turned.strides and turned.strides[::-1])
        if self.order in ("C", "A") or max(a.ndim, b.ndim) <= 2 or 0 in shape:
            return contiguous_operand(shape, dtype)
        # NumPy lays the stack's axes out as it would those of an elementwise result: one of an entry of each item tells
        # their order in memory.
        batch = np.logical_or(*(x[..., 0, 0] if x.ndim > 1 else x[0] for x in (a, b)), order="K")
        axes = sorted(range(batch.ndim), key=lambda axis: -batch.strides[axis])
        strides, step = [0] * len(shape), 1
        for axis in reversed([*axes, *range(batch.ndim, len(shape))]):
            strides[axis], step = step, step * shape[axis]
        return Operand(shape, tuple(strides), dtype)

    def broadcast_view(self, x: Any, shape: tuple[int, ...]) -> Any:
        return np.broadcast_to(x, shape) if type(x) in PLAIN else None

    def copied(self, x: Any, shape: tuple[int, ...], like: Any) -> Any:
        if type(x) in PLAIN:
            return super().copied(x, shape, like)
        made = np.empty_like(x, like.dtype, shape=shape)  # masked where x is; a matrix, if x is one
        made[...] = x
        return made

    def pointer(self, x: Any) -> int:
        return int(x.__array_interface__["data"][0])

    def promote_operands(self, a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
        return super().promote_operands(np.asanyarray(a), np.asanyarray(b), None if c is None else np.asanyarray(c))

    def accepts_operands(self, a: Any, b: Any) -> bool:
        """Asked of the operands without a's rows and b's columns: NumPy takes or rejects them alike."""
        a, b = (np.asarray(x) if isinstance(x, list | tuple) else x for x in (a, b))
        a = a[..., :0, :] if type(a) is ndarray and a.ndim > 1 else a
        b = b[..., :0] if type(b) is ndarray and b.ndim > 1 else b
        try:
            self.vendor(a, b)
        except Exception:
            return False
        return True

    def copy(self, source: Any, out: Any) -> None:
        np.copyto(out, source, casting=self.casting)

    def written(self, out: Any) -> None:
        pass

    def free_bytes(self, number: int) -> int:
        return host_memory.available_bytes()

    def as_numpy(self, x: Any) -> Any:
        return x

    def new_array(self, result: Operand) -> Any:
        """It owns its memory, unlike a transposed view: it can be resized."""
        dtype, strides = np.dtype(result.dtype), result.strides or ()
        return np.ndarray(result.shape, dtype, strides=[step * dtype.itemsize for step in strides])

    def returned(self, c: Any) -> Any:
        """The product of two vectors is a number, as NumPy returns it."""
        return c if c.ndim else c[()]


def _laid_out(x: Array) -> tuple[Any, ...]:
    """What a prepared call depends on of an array. (Types of NumPy can be equal and not the same: `long long` has
    a number of its own.)"""
    return x.shape, x.strides, x.dtype, x.dtype.num, x.flags.aligned


def same_memory_transposed(a: Array, b: Array) -> bool:
    """Is b the transpose of a, in place?"""
    if a.ndim < 2 or a.ndim != b.ndim:
        return False
    turned = a.T if a.ndim == 2 else np.swapaxes(a, -1, -2)
    if turned.shape != b.shape or turned.strides != b.strides:
        return False
    return bool(a.__array_interface__["data"][0] == b.__array_interface__["data"][0])


def is_blas_readable(x: Array) -> bool:
    """Can NumPy's BLAS read the matrix, or those of a stack, where they lie? If not, NumPy copies both operands, and no
    longer notices that one is the transpose of the other."""
    (rows, cols), (down, right), item = x.shape[-2:], x.strides[-2:], x.itemsize
    by_rows = right == item and down >= cols * item and down % item == 0
    by_columns = down == item and right >= rows * item and right % item == 0
    return bool(x.flags.aligned and (by_rows or by_columns))


class _TensorMemory:
    """A tensor's memory, of which NumPy makes an array. The array keeps this object alive, and so the tensor."""

    def __init__(self, tensor: Any) -> None:
        itemsize = tensor.element_size()
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "strides": tuple(step * itemsize for step in tensor.stride()),
            "typestr": np.dtype(str(tensor.dtype).removeprefix("torch.")).str,
            "data": (tensor.data_ptr(), False),
        }


def tensor_as_numpy(x: Any) -> Array:
    """NumPy's array of the memory of a plain tensor. (After torch's own `x.numpy()` nobody can resize the tensor's
    storage any more, as torch itself does with sharded parameters.)"""
    if x.is_conj() or x.is_neg():
        return x.detach().numpy()  # type: ignore[no-any-return]  # torch's exception: its memory holds other numbers
    return np.asarray(_TensorMemory(x))


NUMPY = NumpyLibrary()


class NumpyDot(NumpyLibrary):
    """The same, where numpy.dot was called with two matrices: its warnings and exceptions are in words of its own."""

    vendor_name = "numpy.dot"

    def __init__(self) -> None:
        super().__init__()
        self.calls = NUMPY.calls  # plans are the same

    def vendor(self, a: Any, b: Any, out: Any = None) -> Any:
        return dot(a, b, out)

    def vendor_call(self, a: Any, b: Any, out: Any) -> Callable[[], Any]:
        return partial(dot, a, b, out)


NUMPY_DOT = NumpyDot()
