"""Device arrays: whose they are, told without importing the libraries that make them.

CuPy arrays and torch tensors are known by the module of their type; anything else on a CUDA device by the attributes of
the two protocols for exchanging arrays. What a library does with its arrays is behind `Arrays`, one class per library.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.choose import GPU_GROWTH
from fmm.runtime.decide import Decision

if TYPE_CHECKING:
    from fmm.runtime.prepare import Call

Kind = Literal["host", "cupy", "torch", "other"]
DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged


class Operand(NamedTuple):
    """What a call depends on of one array; strides in elements, None where they are no whole number of them."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str

    @property
    def ndim(self) -> int:
        return len(self.shape)


class Setting(NamedTuple):
    """Where and in which arithmetic a library would compute a call; `refusal` says why only it can."""

    device: int
    math: Literal["ieee", "tf32"] = "ieee"
    refusal: str = ""


class Wanted(NamedTuple):
    """What the caller asks of a plan; a workspace of None is a share of what is free."""

    plan: Plan | None = None
    error_growth: float = GPU_GROWTH
    workspace: int | None = None


ANYTHING = Wanted()
# Multiply-adds that take less time on any device than the launches of a plan, or that no plan makes faster: of 16-bit
# types (in tensor cores), and of those whose rows are not aligned, which vendors multiply several times slower.
TINY, TINY_HALF, TINY_RAGGED = 1 << 29, 1 << 33, 1 << 31


# The same without a look at the sides: the bytes of A times those of B are the multiply-adds times the inner side times
# the square of an item's bytes. Where the inner side is under SHORT, a product waits for its result to be written, so
# that no plan makes it faster; where it is not, there are fewer than TINY (of 2 bytes: TINY_RAGGED) multiply-adds.
SHORT = 144
TINY_BYTES = SHORT * min(TINY * 4**2, TINY_RAGGED * 2**2)


def hopeless(m: int, k: int, n: int, itemsize: int) -> bool:
    """A quick no for a product of matrices, in a fraction of a microsecond."""
    work = m * k * n
    return work < TINY or (itemsize == 2 and work < (TINY_RAGGED if (k | n) & 7 else TINY_HALF))


class Arrays(Protocol):
    """What fmm asks of a library whose arrays it multiplies."""

    name: str
    out_of_memory: type[BaseException]
    calls: dict[Hashable, Any]  # prepared ones, kept by multiply

    def matmul(self, a: Any, b: Any, out: Any, options: dict[str, Any], wanted: Wanted) -> Any:
        """The product, whatever the arrays are; `options` are those of numpy.matmul that were given."""

    def plain(self, a: Any, b: Any) -> Any:
        """`matmul` of two arrays whose types stand in EXACT, without `out`, options or wishes."""

    @property
    def mm(self) -> Callable[[Any, Any], Any]:
        """The library's own product of two such arrays, on its shortest way."""
        ...

    def explain(self, a: Any, b: Any, out: Any, options: dict[str, Any], wanted: Wanted) -> Decision:
        """What `matmul` would do, and why."""
        ...

    def vendor(self, a: Any, b: Any, out: Any = None, /, **options: Any) -> Any:
        """The library's own product: the specification, and the answer wherever fmm has nothing better."""

    def key(self, a: Any, b: Any, out: Any, wanted: Wanted) -> Hashable:
        """Everything that a prepared call depends on, cheaply."""
        ...

    def short(self, a: Any, b: Any) -> Hashable:
        """The little of `key` by which a product of two matrices is known again that no plan makes faster."""
        ...

    def device(self, x: Any) -> int:
        """The number of the device that an array is on."""
        ...

    def setting(self, a: Any, b: Any, out: Any) -> Setting: ...

    def operand(self, x: Any) -> Operand: ...

    def pointer(self, x: Any) -> int: ...

    def common_type(self, a: Operand, b: Operand) -> str | None:
        """The type of the product, or None where the library rejects the pair or has a rule of its own."""
        ...

    def places(self, call: Call, a: Any, b: Any, out: Any) -> tuple[int, int, int, int, Any, Any]:
        """Addresses of A, B, C and the workspace, C itself, and what must live until the last launch.

        Copies what the call says, and allocates, in the library's own memory and on its current stream.
        """
        ...

    def copy(self, source: Any, out: Any) -> None: ...

    def free_bytes(self, device: int) -> int:
        """What can still be allocated on the device."""
        ...

    def current(self, device: int) -> tuple[int, AbstractContextManager[Any] | None]:
        """The library's current stream on the device; what makes the device the current one, None if it is."""
        ...

    def written(self, out: Any) -> None:
        """To be told that `out` was written behind the library's back."""


EXACT: dict[type, Arrays] = {}  # the plain types of libraries that have been used, which no subclass stands for


# ---- whose array is it


_kinds: dict[type, Kind | None] = {np.ndarray: "host", list: "host", tuple: "host", int: "host", float: "host"}


def kind_of(x: Any) -> Kind:
    """Whose array `x` is. Types are judged once; one that might be on a device or not is asked each time."""
    cls = type(x)
    if cls not in _kinds:
        _kinds[cls] = _kind_of_type(cls)
    return _kinds[cls] or ("other" if on_cuda(x) else "host")


def _kind_of_type(cls: type) -> Kind | None:
    """By the modules that the type and its ancestors come from; None: only the object itself can tell."""
    for base in cls.__mro__:
        root = base.__module__.partition(".")[0]
        if base.__name__ == "ndarray" and root in ("numpy", "cupy"):
            return "host" if root == "numpy" else "cupy"
        if base.__name__ in ("Tensor", "TensorBase") and root == "torch":
            return "torch"
    return "host" if issubclass(cls, np.generic) else None


def on_cuda(x: Any) -> bool:
    """Does one of the protocols say that the object is in CUDA memory?"""
    try:
        if getattr(x, "__cuda_array_interface__", None) is not None:
            return True
        ask = getattr(x, "__dlpack_device__", None)
        return ask is not None and ask()[0] in DLPACK_CUDA
    except Exception:  # an attribute that raises says no in its own way: sparse arrays, arrays on another device
        return False


def arrays_of(a: Any, b: Any, out: Any = None) -> Arrays | None:
    """The library whose arrays these are; None if NumPy answers. TypeError where they are of different kinds."""
    cls = type(a)
    known = _plain.get(cls)
    if known is not None and type(b) is cls and (out is None or type(out) is cls):
        return known
    found = _judged(a, b, out)
    if found is not None and type(b) is cls and kind_of(a) in ("cupy", "torch"):
        _plain[cls] = found
    return found


_plain: dict[type, Arrays] = {}  # types of which two are always their library's


def _judged(a: Any, b: Any, out: Any) -> Arrays | None:
    given = (a, b) if out is None else (a, b, out)
    kinds = {kind_of(x) for x in given}
    if kinds == {"host"}:
        return None
    if "torch" not in kinds:
        if any(isinstance(x, np.ndarray) for x in given):
            raise mixed(a, b, out)
        return _cupy(a, b, out)
    if kinds == {"torch"} or not any(isinstance(x, np.ndarray) or kind_of(x) in ("cupy", "other") for x in given):
        from fmm.arrays.torch_library import TORCH

        return TORCH
    if any(on_device(x) for x in given):
        raise mixed(a, b, out)
    return None  # torch's host tensors among NumPy's arrays: NumPy reads both


def _cupy(a: Any, b: Any, out: Any) -> Arrays:
    try:
        from fmm.arrays.cupy_library import CUPY
    except ImportError as error:
        raise TypeError(f"a is {described(a)}, b is {described(b)}: fmm.matmul needs CuPy to read them") from error
    return CUPY


def on_device(x: Any) -> bool:
    """Is it an array in a device's memory?"""
    kind = kind_of(x)
    return kind in ("cupy", "other") or (kind == "torch" and x.device.type == "cuda")


def two_devices(a: Any, b: Any, out: Any = None) -> ValueError:
    """The error for arrays on different devices, all of them named."""
    return ValueError(f"{_named(a, b, out)}: fmm.matmul moves nothing between devices")


def mixed(a: Any, b: Any, out: Any) -> TypeError:
    """The error for arrays of different kinds, all of them named."""
    return TypeError(f"{_named(a, b, out)}: fmm.matmul moves nothing between host and device, or between libraries")


def _named(a: Any, b: Any, out: Any) -> str:
    named = {"a": a, "b": b} | ({} if out is None else {"out": out})
    return ", ".join(f"{name} is {described(x)}" for name, x in named.items())


def described(x: Any) -> str:
    """An array in words: whose it is, and where."""
    kind = kind_of(x)
    if kind == "cupy":
        return f"a CuPy array on cuda:{x.data.device_id}"
    if kind == "torch":
        return f"a torch tensor on {x.device}"
    if isinstance(x, np.ndarray):
        return "a NumPy array on the host"
    where = " on a CUDA device" if kind == "other" else ""
    return f"a {type(x).__module__.partition('.')[0]} {type(x).__name__}{where}"
