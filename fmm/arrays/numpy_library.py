"""The adapter for NumPy arrays, and its base class, which CuPy's adapter shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from fmm.arrays import host_memory
from fmm.arrays.library import Operand, Processor, ProductSetting, contiguous_operand, occupied_bytes
from fmm.dtypes import DTYPES, INTEGERS, STORED_TYPES
from fmm.kernels.cpu.host_arrays import Array, dot, matmul
from fmm.kernels.cpu.thread_pool import blas_threads


class NumpyLikeLibrary(ABC):
    """Base class of NumPy's and CuPy's adapters; its methods use only functions that both libraries have.

    The attribute `module` is the package numpy or cupy.
    """

    module: Any
    addmm_functions: Mapping[int, Callable[[Any, Any, Any], Any]] = MappingProxyType({})

    @abstractmethod
    def vendor_product(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return the library's product."""

    def are_torch_calls_recorded(self) -> bool:
        return False

    def is_plain_product(self, a: Any, b: Any, out: Any, c: Any = None) -> bool:
        return True

    # ---- arrays made from arrays

    def transposed_view(self, x: Any) -> Any:
        return x.T if x.ndim == 2 else self.module.swapaxes(x, -1, -2)

    def conjugated_copy(self, x: Any) -> Any:
        return self.module.conj(x)

    def new_zeros(self, shape: tuple[int, ...], like: Any) -> Any:
        return self.module.zeros(shape, like.dtype.newbyteorder("="))

    def broadcast_view(self, x: Any, shape: tuple[int, ...]) -> Any:
        return self.module.broadcast_to(x, shape)

    def broadcast_copy(self, x: Any, shape: tuple[int, ...], like: Any) -> Any:
        copy = self.module.empty(shape, like.dtype.newbyteorder("="))
        copy[...] = x
        return copy

    def promote_operands(self, a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
        """Return the operands and the addend in their common type; arrays that have this type are not copied."""
        if c is None:
            return a, b, c
        common = self.module.result_type(a.dtype, b.dtype, c.dtype)
        x, y, z = (v if v.dtype == common else v.astype(common) for v in (a, b, c))
        return x, y, z

    # ---- the library's functions

    def vendor_gemm(self, a: Any, b: Any, c: Any, alpha: Any, beta: Any, addend: Any = None) -> Any:
        """Return alpha A B + beta addend, in C or as a new array; the addend is read only if beta is not 0."""
        product = self.vendor_product(a, b)
        value = product if alpha == 1 else self.module.multiply(product, alpha, out=product if product.ndim else None)
        if c is None:
            return value
        if beta:
            addend = c if addend is None else addend
            value = self.module.add(value, addend if beta == 1 else addend * beta)
        self.module.copyto(c, value)
        return c

    def fast_vendor_gemm(self, a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any) -> Any:
        if alpha == 0:  # if alpha is 0, A and B are not read
            a, b, alpha = a[..., :0], b[..., :0, :], 1
        value = self.vendor_product(a, b)
        if alpha != 1:
            self.module.multiply(value, alpha, out=value)
        if c is not None:
            self.module.add(value, c if beta == 1 else c * beta, out=value)
        if out is None:
            return value
        out[...] = value
        return out

    def fast_stack_product(self, a: Any, b: Any) -> Any:
        return self.vendor_product(a, b)

    def gram_function(self, a: Any) -> Callable[[Any, Any], Any]:
        return self.vendor_product

    def gram_signature(self, a: Any) -> Hashable:
        return a.shape, a.strides, a.dtype

    def has_symmetric_gram(self, a: Any) -> bool:
        return False

    def write_triangle(self, product: Any, out: Any, alpha: float, beta: float, fill: str) -> None:
        """Write the lower triangle of `alpha * product + beta * out` to `out`; if `fill` is "full", mirror it too.

        Raise TypeError if the type of `out` cannot hold the result.
        """
        module = self.module
        kind = product.dtype.kind
        alpha, beta = (scalar_as_int_if_integral(x) if kind in "iub" else float(x) for x in (alpha, beta))
        if kind == "b" == out.dtype.kind:  # alpha and beta are True or False
            alpha, beta = bool(alpha), bool(beta)
        value = product if alpha == 1 else product * alpha
        if beta:
            value = value + (out if beta == 1 else out * beta)
        if value.dtype.kind == "c":
            module.einsum("...ii->...i", value).imag[...] = 0
        if fill == "full":
            mirror = self.transposed_view(module.tril(value, -1))
            mirror = module.conj(mirror) if mirror.dtype.kind == "c" else mirror
            module.copyto(out, module.tril(value) + mirror)
        else:
            module.copyto(out, value, where=module.tri(out.shape[-1], dtype=bool))


def scalar_as_int_if_integral(x: float) -> float:
    """Return alpha or beta of an integer product as an int, if the number is an integer."""
    return int(x) if isinstance(x, int) or x.is_integer() else x


def to_numpy(x: Any) -> Any:
    """Return a NumPy array unchanged; copy a CuPy array to the host."""
    return x if isinstance(x, np.ndarray) else x.get()


# Element types for which NumPy's product calls BLAS.
BLAS_DTYPES = tuple(np.dtype(name) for name in STORED_TYPES if not DTYPES[name].sums_wider)
INTEGER_DTYPES = tuple(np.dtype(name) for name in INTEGERS)  # element types that NumPy multiplies by its own loops
TYPE_NAMES = {dtype: dtype.name for dtype in (*BLAS_DTYPES, *INTEGER_DTYPES)}
DTYPE_CHARS = frozenset(dtype.char for dtype in TYPE_NAMES)  # without `long long`, which has the same name as `long`
VALID_CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")
# options of numpy.matmul that plans support; with any other option NumPy multiplies
OPTIONS_OF_PLANS = {"casting", "order", "dtype"}
NO_OPTIONS: Mapping[str, Any] = {}
SYRK_ADVANTAGE_REASON = "b is a transposed in place: NumPy calls syrk, which does half the work"

ndarray = np.ndarray
PLAIN_ARRAY_CLASSES = ndarray, np.memmap  # other subclasses have masks, or products of their own class


def make_order_sensitive_values(x: Any) -> Any:
    """Change x in place so that the product of x and its transpose shows a kernel's order of additions; return x.

    The first half of each row replaces the second half, multiplied by -1 in every second row. The exact dot product of
    two neighbouring rows is then 0, since the terms of the second halves cancel the terms of the first halves. The
    computed dot product is a rounding error, which depends on the order of the additions.
    """
    half = x.shape[-1] // 2
    x[..., half:] = 0
    x[..., half : 2 * half] = x[..., :half]
    x[..., 1::2, half:] *= -1
    return x


class NumpyLibrary(NumpyLikeLibrary):
    """The adapter for NumPy arrays, with the options of one numpy.matmul call."""

    module = np
    name, vendor_name = "NumPy", "numpy.matmul"
    is_differentiable, gemm_name = False, ""
    is_tracing = None
    processor: Processor = "cpu"
    out_of_memory_error: type[BaseException] = MemoryError
    cached_calls: dict[Hashable, Any]

    def __init__(self, options: Mapping[str, Any] = NO_OPTIONS) -> None:
        self.options = options
        self.casting: Any = options.get("casting", "same_kind")
        self.order: Any = options.get("order", "K")
        self.cached_calls = {}
        self.caches_calls = options.keys() <= {"casting", "order"}

    def adapter_for_matmul_options(self, options: Mapping[str, Any]) -> Self:
        if not options:
            return self
        library = type(self)(options)
        if library.caches_calls:
            library.cached_calls = self.cached_calls
        return library

    def fast_vendor_product(self, a: Any, b: Any) -> Any:
        return matmul(a, b)

    def vendor_product(self, a: Any, b: Any, out: Any = None) -> Any:
        return matmul(a, b, out=out, **self.options)

    def fast_vendor_gemm(self, a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any) -> Any:
        return matmul(a, b, out) if c is None and alpha == 1 else super().fast_vendor_gemm(a, b, c, alpha, beta, out)

    def vendor_call(self, a: Any, b: Any, out: Any) -> Callable[[], Any]:
        return partial(matmul, a, b, out=out, **self.options)

    def wrap_foreign_arrays(self, a: Any, b: Any, out: Any) -> None:
        """Return None, since NumPy itself converts operands of other libraries."""

    def call_key(self, a: Any, b: Any, out: Any) -> Hashable | None:
        if not self.caches_calls or type(a) is not ndarray or type(b) is not ndarray:
            return None
        if type(self.casting) is not str or type(self.order) is not str:
            return None
        options = blas_threads(), self.casting, self.order, same_memory_transposed(a, b)
        if out is None:
            return *options, *_layout_key(a), *_layout_key(b)
        if type(out) is not ndarray:
            return None
        return *options, *_layout_key(a), *_layout_key(b), *_layout_key(out), out.flags.writeable

    def array_signature(self, a: Any, b: Any, c: Any, out: Any) -> Hashable:
        of_b = None if b is None else (b.shape, b.strides, b.dtype)
        of_c = None if c is None else (c.shape, c.dtype)
        return a.shape, a.strides, a.dtype, of_b, of_c, None if out is None else (out.shape, out.dtype)

    def decline_key_without_sizes(self, a: Any, b: Any) -> Hashable:
        return a.dtype, b.dtype

    def product_setting(self, a: Any, b: Any, out: Any) -> ProductSetting:
        number = blas_threads()
        if others := self.options.keys() - OPTIONS_OF_PLANS:
            return ProductSetting(number, refusal=f"{', '.join(n for n in self.options if n in others)} was passed")
        if type(a) is not ndarray or type(b) is not ndarray:
            classes = f"{type(a).__name__} and {type(b).__name__}"
            return ProductSetting(number, refusal=f"operands are {classes}, not plain arrays")
        dtype, refusal, refuses_plans = self._common_type(a, b)
        if not refusal and (refusal := self._out_decline_reason(out, dtype)):
            refuses_plans = True
        b_is_transposed_a = dtype in BLAS_DTYPES and same_memory_transposed(a, b)
        calls_syrk = b_is_transposed_a and is_blas_readable(a)
        return ProductSetting(
            number,
            TYPE_NAMES.get(dtype),
            refusal=refusal,
            refuses_plans=refuses_plans,
            vendor_advantage=SYRK_ADVANTAGE_REASON if calls_syrk else "",
            b_is_transposed_a=b_is_transposed_a,
            vendor_mirrors=calls_syrk,
            casts_out=True,
            flattens_stacks=False,
        )

    def _common_type(self, a: Array, b: Array) -> tuple[np.dtype[Any], str, bool]:
        """Return three values: the element type of the product, a reason, and `refuses_plans`.

        The reason is a text that says why only NumPy can compute the product; it is empty if a plan can compute the
        product. `refuses_plans` is True if NumPy must compute the product even if the caller passes a plan.
        """
        requested, dtype = self.options.get("dtype"), a.dtype
        try:
            dtype = np.result_type(a.dtype, b.dtype) if requested is None else np.dtype(requested)
        except TypeError as error:
            return dtype, str(error), False
        if requested is not None and not dtype.isnative:
            return dtype, "NumPy takes only native types as dtype", False
        dtype = dtype.newbyteorder("=")
        if dtype not in TYPE_NAMES or dtype.char not in DTYPE_CHARS:
            return dtype, f"{dtype} products have no plan", False
        if self.casting not in VALID_CASTINGS or self.order not in tuple("CFAK"):
            return dtype, f"casting={self.casting!r} or order={self.order!r} is unknown: NumPy raises its error", False
        if not all(np.can_cast(x.dtype, dtype, self.casting) for x in (a, b)):
            return dtype, f"cannot cast to {dtype} with casting {self.casting!r}", False
        is_integer = dtype in INTEGER_DTYPES and all(x.dtype.kind in "iub" for x in (a, b))  # exact modulo 2**bits
        if not is_integer and not all(np.can_cast(x.dtype, dtype, "safe") for x in (a, b)):
            return dtype, f"a cast to {dtype} can lose numbers, and NumPy then warns", True
        return dtype, "", False

    def _out_decline_reason(self, out: Any, dtype: np.dtype[Any]) -> str:
        """Return the reason why only NumPy can write into `out`; return an empty text if a plan can write into `out`.

        The shape of `out` is not checked.
        """
        if out is None:
            return ""
        if type(out) is not ndarray:
            return f"out is a {type(out).__name__}"
        if not out.flags.writeable or not np.can_cast(dtype, out.dtype, self.casting):
            return "out has another shape, cannot be written or cannot hold the result"
        return ""

    def device_number(self, x: Any) -> int:
        return blas_threads()

    def describe_operand(self, x: Any) -> Operand:
        """Return the description of an array; the type name also tells whether the byte order is native."""
        item, dtype = x.itemsize, x.dtype
        is_aligned = x.flags.aligned and not any(step % item for step in x.strides)
        name = TYPE_NAMES.get(dtype) or dtype.str
        if not is_aligned:
            return Operand(x.shape, None, name, occupied_bytes(x.shape, x.strides, item))
        return Operand(x.shape, tuple(step // item for step in x.strides), name)

    def describe_result(self, a: Any, b: Any, shape: tuple[int, ...], dtype: str) -> Operand:
        """Return the description of the new array for the product; its memory order is that of numpy.matmul."""
        fortran = self.order == "F" or (self.order == "A" and all(x.flags.f_contiguous for x in (a, b)))
        if fortran:
            transpose = contiguous_operand(shape[::-1], dtype)
            return transpose._replace(shape=shape, strides=transpose.strides and transpose.strides[::-1])
        if self.order in ("C", "A") or max(a.ndim, b.ndim) <= 2 or 0 in shape:
            return contiguous_operand(shape, dtype)
        # numpy.matmul orders the axes of a stack of products in memory as an elementwise operation does, so an
        # elementwise operation on one entry of each matrix shows the order of the axes.
        batch = np.logical_or(*(x[..., 0, 0] if x.ndim > 1 else x[0] for x in (a, b)), order="K")
        axes = sorted(range(batch.ndim), key=lambda axis: -batch.strides[axis])
        strides, step = [0] * len(shape), 1
        for axis in reversed([*axes, *range(batch.ndim, len(shape))]):
            strides[axis], step = step, step * shape[axis]
        return Operand(shape, tuple(strides), dtype)

    def broadcast_view(self, x: Any, shape: tuple[int, ...]) -> Any:
        return np.broadcast_to(x, shape) if type(x) in PLAIN_ARRAY_CLASSES else None

    def broadcast_copy(self, x: Any, shape: tuple[int, ...], like: Any) -> Any:
        if type(x) in PLAIN_ARRAY_CLASSES:
            return super().broadcast_copy(x, shape, like)
        copy = np.empty_like(x, like.dtype, shape=shape)  # the copy has x's class, for example a masked array
        copy[...] = x
        return copy

    def data_pointer(self, x: Any) -> int:
        return int(x.__array_interface__["data"][0])

    def promote_operands(self, a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
        return super().promote_operands(np.asanyarray(a), np.asanyarray(b), None if c is None else np.asanyarray(c))

    def can_multiply_operands(self, a: Any, b: Any) -> bool:
        """Return True if NumPy can multiply the operands; the test multiplies 0 rows of A by 0 columns of B."""
        a, b = (np.asarray(x) if isinstance(x, list | tuple) else x for x in (a, b))
        a = a[..., :0, :] if type(a) is ndarray and a.ndim > 1 else a
        b = b[..., :0] if type(b) is ndarray and b.ndim > 1 else b
        try:
            self.vendor_product(a, b)
        except Exception:
            return False
        return True

    def copy_into(self, source: Any, out: Any) -> None:
        np.copyto(out, source, casting=self.casting)

    def record_array_change(self, out: Any) -> None:
        pass

    def free_bytes(self, number: int) -> int:
        return host_memory.available_bytes()

    def as_numpy(self, x: Any) -> Any:
        return x

    def new_array(self, result: Operand) -> Any:
        """Return an uninitialised array that owns its memory, so that programs can resize it like NumPy's results."""
        dtype, strides = np.dtype(result.dtype), result.strides or ()
        return np.ndarray(result.shape, dtype, strides=[step * dtype.itemsize for step in strides])

    def unwrap_scalar(self, c: Any) -> Any:
        """Return the product c; if c is a product of two vectors, return a number, as NumPy does."""
        return c if c.ndim else c[()]


def _layout_key(x: Array) -> tuple[Any, ...]:
    """Return the properties of an array that a prepared call depends on.

    The properties include NumPy's type number, since types that compare equal can have different type numbers (`long`
    and `long long`).
    """
    return x.shape, x.strides, x.dtype, x.dtype.num, x.flags.aligned


def same_memory_transposed(a: Array, b: Array) -> bool:
    """Return True if `b` is a transposed view of `a`, in the same memory and of the same element type."""
    if a.ndim < 2 or a.ndim != b.ndim or a.dtype != b.dtype:
        return False
    transpose = a.T if a.ndim == 2 else np.swapaxes(a, -1, -2)
    if transpose.shape != b.shape or transpose.strides != b.strides:
        return False
    return bool(a.__array_interface__["data"][0] == b.__array_interface__["data"][0])


def is_blas_readable(x: Array) -> bool:
    """Return True if NumPy's BLAS can read the matrices without a copy.

    BLAS reads only the native byte order. If BLAS cannot read A, NumPy copies A and its transposed view separately, and
    then calls gemm instead of syrk.
    """
    (rows, cols), (down, right), item = x.shape[-2:], x.strides[-2:], x.itemsize
    row_major = right == item and down >= cols * item and down % item == 0
    column_major = down == item and right >= rows * item and right % item == 0
    return bool(x.flags.aligned and x.dtype.isnative and (row_major or column_major))


class _TensorMemory:
    """The array interface of a tensor's memory.

    A NumPy array of the tensor's memory keeps this object alive, and this object keeps the tensor alive.
    """

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
    """Return a NumPy array that shares the memory of a strided tensor.

    torch's own `x.numpy()` is not called, because it forbids later changes of the storage's size, and torch resizes the
    storage of sharded parameters.
    """
    if x.is_conj() or x.is_neg():
        # x.numpy() raises torch's error, since this memory holds numbers that are not yet conjugated or negated
        return x.detach().numpy()  # type: ignore[no-any-return]
    return np.asarray(_TensorMemory(x))


NUMPY = NumpyLibrary()


class NumpyDotLibrary(NumpyLibrary):
    """The adapter for numpy.dot of two matrices; warnings and errors name numpy.dot."""

    vendor_name = "numpy.dot"

    def __init__(self) -> None:
        super().__init__()
        self.cached_calls = NUMPY.cached_calls  # shares NUMPY's prepared calls: both run the same plans

    def vendor_product(self, a: Any, b: Any, out: Any = None) -> Any:
        return dot(a, b, out)

    def vendor_call(self, a: Any, b: Any, out: Any) -> Callable[[], Any]:
        return partial(dot, a, b, out)


NUMPY_DOT = NumpyDotLibrary()
