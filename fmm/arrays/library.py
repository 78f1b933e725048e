"""The protocol of an adapter for an array library: describe arrays, allocate memory, name the stream, call the vendor.

An adapter chooses no plan. NumPy, CuPy, torch on CUDA devices and torch on the host have one adapter each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np

Processor = Literal["cpu", "cuda"]


Span = tuple[int, int]  # byte offsets of an array's lowest address and of its end, from its first element


class Operand(NamedTuple):
    """The description of an array: all properties of the array that decide how a product is computed.

    The field `strides` is in units of elements. `strides` is None if BLAS cannot read the array, because a stride is
    not a multiple of the element size or because elements are unaligned. If `strides` is None, `span` is the byte range
    that the array occupies.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    span: Span | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)


class ProductSetting(NamedTuple):
    """The device and element type of the library's product, and reasons for which no plan runs or no plan is faster."""

    device: int  # index of the CUDA device; on the host, the number of BLAS threads
    # Element type of the product; None if the library rejects the operands' types, or casts the operands by a rule that
    # fmm does not know.
    dtype: str | None = None
    math: Literal["ieee", "tf32"] = "ieee"
    refusal: str = ""  # reason why only the library may compute the call; empty if a plan may compute it
    refuses_plans: bool = False  # True if the library must compute the call even if the caller passes a plan
    # Text that says why the library's product of these arrays is faster than any plan; empty if a plan may be faster. A
    # plan that the caller passed runs even if the library is faster.
    vendor_advantage: str = ""
    b_is_transposed_a: bool = False  # True if b is a transposed view of a, in the same memory
    # True if the library computes one triangle of A A^T and mirrors it, so that the product is symmetric bit for bit
    vendor_mirrors: bool = False
    casts_out: bool = False  # True if the result is cast to the type of `out`
    flattens_stacks: bool = True  # True if the library's stack times one matrix is one product of all rows
    # True if the library has no product of this type, so that any plan that can run is used.
    no_vendor_product: bool = False
    # True if plans may emulate this type; False if the user set the library's precision
    may_emulate: bool = True


class CallAllocations(Protocol):
    """The arrays that a call allocates: the result, copies of operands, and the workspace."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        ...

    @property
    def dtype(self) -> str:
        """Type of the result."""
        ...

    @property
    def packs(self) -> tuple[bool, bool]:
        """Two values, for A and for B; a value is True if the operand is copied into contiguous memory."""
        ...

    @property
    def copies(self) -> bool:
        """True if A or B is copied."""
        ...

    @property
    def workspace(self) -> int:
        """Bytes of temporaries."""
        ...


class Library(Protocol):
    """The adapter of one array library."""

    # ---- properties of the library

    @property
    def name(self) -> str:
        """The library's name in explanations."""
        ...

    @property
    def vendor_name(self) -> str:
        """The name that explanations use for the library's product."""
        ...

    @property
    def gemm_name(self) -> str:
        """The name of the library's function that computes alpha A B + beta C; empty if the library has none."""
        ...

    @property
    def processor(self) -> Processor:
        """The processor that multiplies the library's arrays: "cpu" or "cuda"."""
        ...

    @property
    def is_differentiable(self) -> bool:
        """True if the library's products can record gradients."""
        ...

    @property
    def out_of_memory_error(self) -> type[BaseException]:
        """The exception that the library raises when memory runs out."""
        ...

    @property
    def cached_calls(self) -> dict[Hashable, Any]:
        """The cache of prepared calls and of declined products; fmm.runtime fills it."""
        ...

    @property
    def are_torch_calls_recorded(self) -> Callable[[], bool]:
        """Function that returns True while a tracer (torch.jit.trace) or a function mode of torch records calls.

        While calls are recorded, only the vendor's product may run.
        """
        ...

    @property
    def is_tracing(self) -> Callable[[], bool] | None:
        """A faster function than `are_torch_calls_recorded`, for code that reads no property of an array but its size.

        `is_tracing` is None if the library has no tracers.
        """
        ...

    def adapter_for_matmul_options(self, options: Mapping[str, Any]) -> Self:
        """Return the adapter for a call with these options of numpy.matmul.

        Raise TypeError if the library does not support an option.
        """
        ...

    # ---- descriptions of arrays

    def call_key(self, a: Any, b: Any, out: Any) -> Hashable | None:
        """Return the cache key of a call; None if the call is not cached.

        The key has all properties of the arrays on which the choice of a plan depends. If `b` is None, the call
        multiplies `a` by its own transpose.
        """
        ...

    def array_signature(self, a: Any, b: Any, c: Any, out: Any) -> Hashable:
        """Return the shapes, strides, types and devices of these arrays; all arrays except `a` may be None.

        For arrays on a device, the signature contains all properties that `call_key` contains.
        """
        ...

    def decline_key_without_sizes(self, a: Any, b: Any) -> Hashable:
        """Return the part of a declined product's cache key that does not depend on sizes.

        The types of the arrays, for example, are in this part.
        """
        ...

    def product_setting(self, a: Any, b: Any, out: Any) -> ProductSetting:
        """Return the `ProductSetting` of these arrays: the type of the library's product, and whether plans may run."""
        ...

    def describe_operand(self, x: Any) -> Operand:
        """Return the description of an array."""
        ...

    def describe_result(self, a: Any, b: Any, shape: tuple[int, ...], dtype: str) -> Operand:
        """Return the description of the new array into which the product will be written."""
        ...

    def data_pointer(self, x: Any) -> int:
        """Return the address of the array's first element."""
        ...

    def device_number(self, x: Any) -> int:
        """Return the index of the array's CUDA device; on the host, the number of BLAS threads."""
        ...

    def can_multiply_operands(self, a: Any, b: Any) -> bool:
        """Return True if the library would multiply these operands; nothing is multiplied."""
        ...

    def free_bytes(self, number: int) -> int:
        """Return the number of bytes that can still be allocated on the device."""
        ...

    # ---- arrays made from arrays

    def wrap_foreign_arrays(self, a: Any, b: Any, out: Any) -> tuple[Any, Any, Any] | None:
        """Return the arguments with each array of a library without an adapter wrapped; None if no argument is wrapped.

        A wrapped array is an array of this library in the same memory.
        """
        ...

    def promote_operands(self, a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
        """Return the two operands and the addend (or None), converted to their common type if the library converts."""
        ...

    def transposed_view(self, x: Any) -> Any:
        """Return the transposed matrix, or stack of matrices, in the same memory."""
        ...

    def conjugated_copy(self, x: Any) -> Any:
        """Return the complex conjugate as a copy."""
        ...

    def broadcast_view(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Return a view of the array that is broadcast to this shape; None for arrays with masks or units."""
        ...

    def broadcast_copy(self, x: Any, shape: tuple[int, ...], like: Any) -> Any:
        """Return a copy of x, broadcast to this shape and converted to the type of `like`."""
        ...

    def new_zeros(self, shape: tuple[int, ...], like: Any) -> Any:
        """Return an array of zeros with this shape and the element type of `like`."""
        ...

    def copy_into(self, source: Any, out: Any) -> None:
        """Copy `source` into `out`; the types may differ if the library casts arrays when it copies them."""
        ...

    def record_array_change(self, out: Any) -> None:
        """Record that a kernel of fmm writes into `out`, for libraries that count the changes of each array."""
        ...

    # ---- the library's functions

    @property
    def fast_stack_product(self) -> Callable[..., Any]:
        """The library's fastest function for a product of two stacks of equal length.

        fmm calls this function only for torch tensors.
        """
        ...

    @property
    def fast_vendor_product(self) -> Callable[..., Any]:
        """The library's fastest function for a product of two arrays without options.

        The function for torch tensors also takes the argument `out`.
        """
        ...

    @property
    def addmm_functions(self) -> Mapping[int, Callable[[Any, Any, Any], Any]]:
        """The library's functions f(c, a, b) that return C + A B in a new array.

        The key of each function is the number of axes of A and B: 2 for matrices, 3 for stacks of matrices. If A and B
        have other numbers of axes, fmm calls `fast_vendor_gemm`.
        """
        ...

    def vendor_product(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return the library's product; results of fmm.matmul have its type, its shape and its memory order."""
        ...

    def fast_vendor_gemm(self, a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any) -> Any:
        """Return alpha A B + beta C by the library's functions, or alpha A B if C is None.

        The result is `out`, or a new array if `out` is None. `out` may overlap the other arrays.
        """
        ...

    def is_plain_product(self, a: Any, b: Any, out: Any, c: Any = None) -> bool:
        """Return True if the operands are plain arrays, and A B (or A B + C) records neither a gradient nor a trace."""
        ...

    def vendor_gemm(self, a: Any, b: Any, c: Any, alpha: Any, beta: Any, addend: Any = None) -> Any:
        """Return alpha * A B + beta * addend, computed by the library's functions.

        The returned array is C, or a new array if C is None. If `addend` is None, C holds the addend. Before the result
        is complete, the library's own functions alone write to C.
        """
        ...

    def gram_function(self, a: Any) -> Callable[[Any, Any], Any]:
        """Return the library's function that multiplies a real device array and its transposed view."""
        ...

    def gram_signature(self, a: Any) -> Hashable:
        """Return the properties of an array that decide which kernel multiplies the array and its transposed view."""
        ...

    def has_symmetric_gram(self, a: Any) -> bool:
        """Return True if the library's product of a device array and its transposed view is symmetric bit for bit.

        The first call for a shape tests a product on the device; later calls use the cached result of the test.
        """
        ...

    def write_triangle(self, product: Any, out: Any, alpha: float, beta: float, fill: str) -> None:
        """Write the lower triangle of alpha product + beta out into `out`.

        If `fill` is "full", the lower triangle is also mirrored into the upper triangle.
        """
        ...


class HostLibrary(Library, Protocol):
    """The adapter of a library with arrays that NumPy can read."""

    def as_numpy(self, x: Any) -> Any:
        """Return a NumPy view of the array's memory."""
        ...

    def new_array(self, result: Operand) -> Any:
        """Return an uninitialised array with this description."""
        ...

    def unwrap_scalar(self, c: Any) -> Any:
        """Return the product c; for two vectors, return a number if the library's own product is a number."""
        ...

    def vendor_call(self, a: Any, b: Any, out: Any) -> Callable[[], Any]:
        """Return a function without arguments that writes the library's product into `out`.

        The function is one call of a C function, so no Python signal handler can interrupt the write.
        """
        ...


class DeviceLibrary(Library, Protocol):
    """The adapter of a library with arrays on CUDA devices."""

    def allocate_arrays(self, call: CallAllocations, a: Any, b: Any, out: Any) -> tuple[int, int, int, int, Any, Any]:
        """Return the addresses of A, B, C and the workspace, the array C, and the objects that own these arrays.

        The caller must keep these objects alive until the last launch. `call.packs` has two values, for A and for B: if
        a value is True, the operand is copied. All memory is from the library's pool, on the library's current stream.
        """
        ...

    def copy_with_scratch_tail(self, x: Any, order: str, nbytes: int) -> Any:
        """Return a contiguous copy of a matrix, row-major for order "C" or column-major for order "F".

        The copy is at the beginning of an allocation of `nbytes` bytes. In the bytes behind the copy, a leaf stores a
        prepared form of the matrix.
        """
        ...

    def current_stream(self, device: int) -> tuple[int, AbstractContextManager[Any] | None]:
        """Return the current stream, and a context that selects the device (None if the device is selected already)."""
        ...


def occupied_bytes(shape: tuple[int, ...], byte_strides: tuple[int, ...], itemsize: int) -> Span:
    """Return the byte range that an array occupies, as two offsets from the array's first element."""
    reach = [(length - 1) * step for length, step in zip(shape, byte_strides, strict=True)]
    return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + itemsize


def contiguous_operand(shape: tuple[int, ...], dtype: str) -> Operand:
    """Return the description of a row-major array with this shape and type."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return Operand(tuple(shape), tuple(reversed(strides)), dtype)


def product_shape(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of a product by numpy.matmul's rules; None if the shapes do not match."""
    if not left or not right or left[-1] != (right[-2] if len(right) > 1 else right[0]):
        return None
    try:
        stack = np.broadcast_shapes(tuple(left[:-2]), tuple(right[:-2]))
    except ValueError:
        return None
    return (*stack, *left[-2:-1], *(right[-1:] if len(right) > 1 else ()))
