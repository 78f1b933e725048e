"""What fmm asks of an array library: to describe its arrays, to find them in memory, and its own product.

A library knows nothing of plans, and decides nothing. NumpyLibrary, CupyLibrary and the two of torch are such.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np

Processor = Literal["cpu", "cuda"]


Span = tuple[int, int]  # bytes from an array's first element to its lowest byte and beyond its highest one


class Operand(NamedTuple):
    """An array, as far as a product depends on it.

    Strides are in elements; None where they are no whole number of them, or where BLAS cannot read the array for
    another reason than its strides. Then `span` says which bytes it occupies.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    span: Span | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)


class Setting(NamedTuple):
    """Where and how a library would compute a call, and whether a plan may compute it instead."""

    device: int  # the number of a CUDA device; on the host, of the threads of the library's BLAS
    dtype: str | None = None  # of the product; None where the library rejects the pair, or has a rule of its own
    math: Literal["ieee", "tf32"] = "ieee"
    refusal: str = ""  # why only the library can compute it
    refuses_plans: bool = False  # it does so even if a plan is given, which is then not an error
    vendor_advantage: str = ""  # why its own product of these very arrays beats any plan; a plan that is given runs
    adjoint: bool = False  # is b a's transpose, in the same memory?
    mirrors: bool = False  # then: is one half of its own product the mirror of the other, bit for bit?
    casts_out: bool = False  # `out` may have another type, to which the result is then cast
    flattens_stacks: bool = True  # its own product multiplies all rows of a stack at once, where one b serves all
    lacking: bool = False  # it has no product of these types itself: any plan that can, computes it
    emulation: bool = True  # may products in another type make it? Not where the library was told which one to use


class CopiedOperands(Protocol):
    """What a call needs of its library's memory."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        ...

    @property
    def dtype(self) -> str:
        """Of the result."""
        ...

    @property
    def packs(self) -> tuple[bool, bool]:
        """Are A, B to be copied into contiguous memory?"""
        ...

    @property
    def copies(self) -> bool:
        """Is either of them?"""
        ...

    @property
    def workspace(self) -> int:
        """Bytes."""
        ...


class Library(Protocol):
    """What fmm asks of a library whose arrays it multiplies."""

    @property
    def name(self) -> str:
        """As it is called in explanations."""
        ...

    @property
    def vendor_name(self) -> str:
        """Its own product, likewise."""
        ...

    @property
    def differentiable(self) -> bool:
        """May gradients be asked of its products?"""
        ...

    @property
    def processor(self) -> Processor:
        """Where its arrays are multiplied."""
        ...

    @property
    def out_of_memory(self) -> type[BaseException]:
        """What it raises then."""
        ...

    @property
    def calls(self) -> dict[Hashable, Any]:
        """Prepared calls, and products that are known to be its own; kept here by fmm.runtime."""
        ...

    @property
    def quick_vendor(self) -> Callable[..., Any]:
        """Its own product of two plain arrays, on its shortest way; of those that are differentiable, with `out`
        too."""
        ...

    @property
    def is_observed(self) -> Callable[[], bool]:
        """Does somebody see the calls of its functions now, who is to see its own product and nothing else?"""
        ...

    @property
    def is_tracing(self) -> Callable[[], bool] | None:
        """The same for those who ask an array for nothing but its bytes; None if nobody ever does."""
        ...

    def lacks(self, x: Any) -> bool:
        """Has it no products of numbers like these at all, but raises an error?"""
        ...

    def vendor(self, a: Any, b: Any, out: Any = None) -> Any:
        """Its own product: the specification, and the answer wherever fmm has nothing better."""
        ...

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """The library for a call with these of numpy.matmul's options; TypeError if it takes none."""
        ...

    def adopt_arrays(self, a: Any, b: Any, out: Any) -> tuple[Any, Any, Any] | None:
        """Arrays of libraries that fmm does not know, as arrays of this one on the same memory; None: there are none.

        Asked at every call.
        """
        ...

    def to_callers_library(self, c: Any, a: Any, b: Any) -> Any:
        """The product of adopted arrays as an array of the library that they are from."""
        ...

    def call_key(self, a: Any, b: Any, out: Any) -> Hashable | None:
        """Everything of the arrays and settings that a prepared call depends on, cheaply; None: not to be kept.

        Without b, of a matrix and its own transpose.
        """
        ...

    def type_key(self, a: Any, b: Any) -> Hashable:
        """The little of it, besides sizes, by which a product of two matrices is known again that is left to the
        library."""
        ...

    def setting(self, a: Any, b: Any, out: Any) -> Setting: ...

    def device_number(self, x: Any) -> int:
        """Of the device that an array is on; on the host, of the threads of the library's BLAS."""
        ...

    def operand(self, x: Any) -> Operand: ...

    def result_operand(self, a: Any, b: Any, shape: tuple[int, ...], dtype: str) -> Operand:
        """The product as a new array, described."""
        ...

    def pointer(self, x: Any) -> int: ...

    def adjoint(self, x: Any) -> Any:
        """The matrix, or the stack of matrices, transposed, in the same memory; of complex numbers conjugated, in new
        memory."""
        ...

    def transposed(self, x: Any) -> Any:
        """The matrix, or the stack of matrices, transposed, in the same memory."""
        ...

    def zeros(self, shape: tuple[int, ...], like: Any) -> Any: ...

    def conjugated(self, x: Any) -> Any:
        """A copy with complex numbers conjugated."""
        ...

    def is_complex(self, x: Any) -> bool: ...

    def promote_operands(self, a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
        """Operands and what is added to their product (or None) as arrays of one type, if the library has such a
        rule."""
        ...

    def copied(self, x: Any, shape: tuple[int, ...], like: Any) -> Any:
        """A new array of this shape, and of the type of `like`, that holds x, broadcast."""
        ...

    def broadcast_view(self, x: Any, shape: tuple[int, ...]) -> Any:
        """The array, broadcast to this shape in its own memory; None if its numbers are not all there is to it."""
        ...

    @property
    def gemm_name(self) -> str:
        """Its own function for alpha a b + beta c; empty if it has none."""
        ...

    def updated(self, a: Any, b: Any, c: Any, alpha: Any, beta: Any) -> Any:
        """alpha a b + beta c by its own functions, in c, or as a new array where c is None."""
        ...

    def write_triangle(self, product: Any, out: Any, alpha: float, beta: float, fill: str) -> None:
        """The lower half of out = alpha product + beta out; with fill `full` the upper one as its adjoint."""
        ...

    def accepts_operands(self, a: Any, b: Any) -> bool:
        """Would the library multiply these at all? Found without multiplying. If not, its own error says it best."""
        ...

    def copy(self, source: Any, out: Any) -> None:
        """Into `out`, cast if the library does so."""
        ...

    def written(self, out: Any) -> None:
        """To be told that `out` is about to be written behind the library's back."""
        ...

    def free_bytes(self, number: int) -> int:
        """What can still be allocated on that device."""
        ...


class HostLibrary(Library, Protocol):
    """A library whose arrays NumPy can read."""

    def as_numpy(self, x: Any) -> Any:
        """NumPy's view of the same memory."""
        ...

    def new_array(self, result: Operand) -> Any:
        """An uninitialised array like that."""
        ...

    def returned(self, c: Any) -> Any:
        """A new product as the library returns it."""
        ...

    def vendor_call(self, a: Any, b: Any, out: Any) -> Callable[[], Any]:
        """Its own product into `out`, as a function without Python code: no signal's handler runs within."""
        ...


class DeviceLibrary(Library, Protocol):
    """A library whose arrays are on a CUDA device."""

    def allocate(self, call: CopiedOperands, a: Any, b: Any, out: Any) -> tuple[int, int, int, int, Any, Any]:
        """Addresses of A, B, C and the workspace, C itself, and what must live until the last launch.

        Copies what the call says, and allocates, in the library's own memory and on its current stream.
        """
        ...

    def copy_with_scratch_tail(self, x: Any, order: str, room: int) -> Any:
        """A copy of a matrix without gaps, rows (`C`) or columns (`F`) contiguous, at the beginning of a block of
        memory of its own of so many bytes."""
        ...

    def current_stream(self, device: int) -> tuple[int, AbstractContextManager[Any] | None]:
        """The library's current stream on the device; what makes the device the current one, None if it is."""
        ...


def occupied_bytes(shape: tuple[int, ...], steps: tuple[int, ...], itemsize: int) -> Span:
    """Which bytes an array occupies whose axes go on by so many bytes."""
    reach = [(length - 1) * step for length, step in zip(shape, steps, strict=True)]
    return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + itemsize


def contiguous(shape: tuple[int, ...], dtype: str) -> Operand:
    """An array of this shape without gaps, its last axis contiguous."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return Operand(tuple(shape), tuple(reversed(strides)), dtype)


def product_shape(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of a product, by numpy.matmul's rules; None where the shapes do not match."""
    if not left or not right or left[-1] != (right[-2] if len(right) > 1 else right[0]):
        return None
    try:
        stack = np.broadcast_shapes(tuple(left[:-2]), tuple(right[:-2]))
    except ValueError:
        return None
    return (*stack, *left[-2:-1], *(right[-1:] if len(right) > 1 else ()))
