"""Early declines: send a product to the vendor, in a microsecond or less, if no plan can make the product faster.

A small product takes ten microseconds or less, and the search for a plan would take longer. A product is declined if
its operands have few bytes, if a side is short, or if a decline for the same sizes is cached.

The full path (check, prepare, decide) of fmm.gemm and fmm.gram takes 80 microseconds. If the full path declines a call,
the decline is cached for some seconds. The cache key contains the shapes, strides, types and parameters of the call. A
cached decline that no longer holds can cost speed, but never gives a wrong result: the library's own functions compute
the declined call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np

from fmm.arrays import select_library
from fmm.arrays.library import Library, Processor
from fmm.dtypes import DTYPES
from fmm.perfmodel.choose import problem_for_ranking
from fmm.perfmodel.default_calibration import BLAS_FLOPS_PER_BYTE
from fmm.problem import reduced_problem
from fmm.runtime.decisions.decide import MIN_INTEGER_PLAN_SIDE, Decision

# ---- on CUDA devices

# For a product with fewer multiply-adds than these numbers, the vendor takes less time than the launches of a plan
# take, on any device. SMALL_MULTIPLY_ADDS holds for any type, SMALL_MULTIPLY_ADDS_16_BIT for 16-bit types on tensor
# cores. SMALL_MULTIPLY_ADDS_UNALIGNED holds for 16-bit types with unaligned rows, for which vendors are several times
# slower. In unaligned bfloat16 on an H200, a plan takes 26 microseconds and the vendor 38 for 1.36 * 2^30
# multiply-adds; for 1.2 * 2^30 multiply-adds, a plan takes 42 microseconds and the vendor 31.
SMALL_MULTIPLY_ADDS, SMALL_MULTIPLY_ADDS_16_BIT, SMALL_MULTIPLY_ADDS_UNALIGNED = 1 << 29, 1 << 33, 5 << 28

# The sizes of A and B in bytes can show that a product has few multiply-adds, since bytes(A) * bytes(B) = (m k n) * k *
# itemsize^2. If k is below SHORT_INNER_SIDE, most of the product's time is the writing of C, and no plan is faster. If
# k is at least SHORT_INNER_SIDE and bytes(A) * bytes(B) is below SMALL_BYTES_PRODUCT, the product has too few
# multiply-adds for any plan.
SHORT_INNER_SIDE = 144
SMALL_BYTES_PRODUCT = SHORT_INNER_SIDE * min(SMALL_MULTIPLY_ADDS * 4**2, SMALL_MULTIPLY_ADDS_UNALIGNED * 2**2)


def is_small_on_device(m: int, k: int, n: int, itemsize: int) -> bool:
    """Return True if a product of two matrices on a CUDA device is too small for any plan."""
    work = m * k * n
    return work < SMALL_MULTIPLY_ADDS or (
        itemsize == 2 and work < (SMALL_MULTIPLY_ADDS_UNALIGNED if (k | n) & 7 else SMALL_MULTIPLY_ADDS_16_BIT)
    )


def is_declined_on_device(library: Library, a: Any, b: Any, nbytes_product: int, beta: float = 0) -> bool:
    """Return True if no plan for A B, or A B + beta C, of CuPy arrays or torch tensors is faster than the vendor.

    `nbytes_product`: the size of A in bytes times the size of B in bytes. A read of an attribute of a torch tensor
    takes at least 0.1 microseconds, so the function reads few attributes.
    """
    try:
        shape = a.shape
        k = shape[-1]
    except (IndexError, RuntimeError):  # a 0-dimensional array; a nested tensor, which has no shape
        return False
    if type(k) is not int:  # while torch.jit.trace runs, k is a tensor
        return False
    itemsize, tensors = a.itemsize, library.is_differentiable  # torch rejects operands of two types
    work = nbytes_product // (k * itemsize * (itemsize if tensors else b.itemsize))
    if work < SMALL_MULTIPLY_ADDS:
        return True
    # The limits for 16-bit types hold for floats only: tensor cores multiply no 16-bit integers. The element type of a
    # tensor is not read, since torch has no integer products on a GPU.
    is_small_16_bit = itemsize == 2 and work < SMALL_MULTIPLY_ADDS_16_BIT and (tensors or a.dtype.kind not in "iu")
    if is_small_16_bit and (work < SMALL_MULTIPLY_ADDS_UNALIGNED or not (k | b.shape[-1]) & 7):
        return True
    expiry: float | None = library.cached_calls.get((shape, b.shape, library.decline_key_without_sizes(a, b), beta))
    return expiry is not None and expiry > time.monotonic()


# ---- on the host


def smallest_side_with_plan() -> int:
    """Return the smallest side of a product for which a plan can be faster than the vendor on the host.

    One level saves an eighth of the m k n multiply-adds. The sums of one level read and write B at least once, so the
    sums move 2 k n elements or more. If m is below 16 * (bytes per element) * (flops per byte) / (flops per
    multiply-add), the pass over B takes more time than the level saves.
    """
    sides = (16 * DTYPES[t].itemsize * r / DTYPES[t].flops for t, r in BLAS_FLOPS_PER_BYTE.items())
    return int(min(sides))


MIN_PLAN_SIDE = smallest_side_with_plan()
# Smallest number of entries of A for which a plan is possible. A matrix with fewer than MIN_PLAN_ENTRIES entries has
# a side that is too short for any plan.
MIN_PLAN_ENTRIES = MIN_INTEGER_PLAN_SIDE**2


def is_small_on_host(a: Any, b: Any) -> bool:
    """Return True if a side is too short for any plan on the host, or if an operand's class is not numpy.ndarray."""
    if type(a) is not np.ndarray or type(b) is not np.ndarray:
        return True
    if a.ndim == 2 and b.ndim == 2:
        (m, k), n = a.shape, b.shape[1]
    elif a.ndim < 2 or b.ndim < 2:
        return True
    else:  # the rows of all matrices of a stack may form one product: assume that they are enough rows
        m, k, n = a.shape[0] if a.ndim == 2 else MIN_PLAN_SIDE, a.shape[-1], b.shape[-1]
    if m >= MIN_PLAN_SIDE and k >= MIN_PLAN_SIDE and n >= MIN_PLAN_SIDE:
        return False
    shortest = MIN_INTEGER_PLAN_SIDE
    return m < shortest or k < shortest or n < shortest or a.dtype.kind not in "iub"


def are_small_matrices(a: Any, b: Any) -> bool:
    """Return True if two matrices or stacks in host memory, of any library, have a side too short for any plan."""
    m = a.shape[-2] if a.ndim == 2 else MIN_PLAN_SIDE
    return bool(min(m, a.shape[-1], b.shape[-1]) < MIN_PLAN_SIDE)


# ---- products with a cached decline


class DeclineCacheLimits(NamedTuple):
    """The seconds for which a decline is cached, and the flops below which a product's decline is not cached."""

    seconds: float
    flops: int


# On the host a decline is cached for 10 seconds: a decision right after a long product takes milliseconds, since the
# product has displaced data and code from the CPU's caches. On a device a decline is cached for 1 second, as long as a
# reading of the free memory (FREE_MEMORY_SECONDS).
DECLINE_MEMORY: dict[Processor, DeclineCacheLimits] = {
    "cpu": DeclineCacheLimits(10.0, 1 << 31),
    "cuda": DeclineCacheLimits(1.0, 0),
}


def decline_key(library: Library, a: Any, b: Any, beta: float = 0) -> Hashable:
    """Return the cache key of a decline of A B + beta C: the sizes and types, without the layouts."""
    return a.shape, b.shape, library.decline_key_without_sizes(a, b), beta


def was_declined(library: Library, a: Any, b: Any, beta: float = 0) -> bool:
    """Return True if the cache has a decline of a product with the same sizes."""
    expiry: float = library.cached_calls.get(decline_key(library, a, b, beta), 0.0)
    return expiry > time.monotonic()


def remember_decline(library: Library, a: Any, b: Any, decision: Decision, beta: float = 0) -> None:
    """Cache the decline of products of these sizes, with any layouts, for the seconds in DECLINE_MEMORY."""
    memory, problem = DECLINE_MEMORY[library.processor], decision.problem
    if problem is not None and problem_for_ranking(problem, library.processor == "cuda") != reduced_problem(problem):
        return  # for the same sizes with another memory layout, a plan may be faster than the vendor
    axes = getattr(a, "ndim", 0)  # `getattr`, since an operand may be a list
    if axes != getattr(b, "ndim", 0) or axes < 2 or (axes > 2 and library.processor == "cpu"):
        return
    if library.processor == "cpu":
        if problem is None:  # torch computes all products of this type, whatever the sizes
            is_remembered = library.is_differentiable and a.shape[1] == b.shape[0]
        # If the source of a decision is "rule", a property of these arrays decided; for example, B is A's transposed
        # view. A decline with the source "rule" is not cached, because other arrays of the same sizes may not have the
        # property.
        else:
            is_remembered = decision.source != "rule"
        if not is_remembered or 2 * a.shape[0] * a.shape[1] * b.shape[1] < memory.flops:
            return
    library.cached_calls[decline_key(library, a, b, beta)] = time.monotonic() + memory.seconds


# ---- calls of gemm and gram with a cached decline

# Seconds for which the decline of a small call is cached. After CALL_DECLINE_SECONDS, the next call with the same key
# is decided again, since the config may have changed.
CALL_DECLINE_SECONDS = 1.0
# Largest magnitude of an alpha or beta of type int for which a decline is cached. torch accepts larger numbers as
# floats only.
MAX_DECLINED_FACTOR = 1 << 62
MAX_REMEMBERED_CALLS = 4096  # largest number of prepared and declined calls in a library's cache
# Calls that go to the vendor are cached only if alpha and beta have one of these types. A bool is invalid as alpha or
# beta, and a NumPy scalar could change the result's type.
PYTHON_NUMBERS = (int, float, complex)


class CallKey(NamedTuple):
    """The adapter and the cache key of a call of fmm.gemm or fmm.gram without constraints."""

    library: Library
    key: Hashable


class DeclinedCall(NamedTuple):
    """A cached decline: the library's own functions compute the calls with this key."""

    expiry: float  # time.monotonic() at which the decline expires
    params: Any  # the checked parameters: alpha, beta and others
    library: Library
    vendor_mirrors: bool  # True if the library's product of a matrix and its transpose is symmetric bit for bit


def call_key(
    library: Library | None, arrays: tuple[Any, Any, Any, Any], alpha: Any, beta: Any, *options: Hashable
) -> CallKey | None:
    """Return the key of a call.

    Return None for a traced call, for an array of a class that is not in PLAIN_TYPES, and for an alpha or beta of a
    class that is not in PYTHON_NUMBERS.

    `arrays`: a, b, c and out; a missing array is None. `options`: the operation's name and the other parameters of the
    call.
    """
    if library is None or type(alpha) not in PYTHON_NUMBERS or type(beta) not in PYTHON_NUMBERS:
        return None
    a, b, c, out = arrays
    kind = type(a)
    for x in (b, c, out):
        if x is not None and type(x) is not kind and select_library.PLAIN_TYPES.get(type(x)) is not library:
            return None
    if (is_tracing := library.is_tracing) is not None and is_tracing():
        return None
    try:
        is_without_addend = c is None and library.processor == "cuda"
        signature = library.call_key(a, b, out) if is_without_addend else library.array_signature(a, b, c, out)
        key = signature, alpha, beta, type(alpha), type(beta), options
        hash(key)
    except (TypeError, RuntimeError):  # TypeError: an option cannot be hashed; RuntimeError: a tensor has no strides
        return None
    return CallKey(library, key)


class RecurringCall(NamedTuple):
    """A checked call of fmm.gemm or fmm.gram with its key; calls with this key are later computed after few checks."""

    key: CallKey
    params: Any  # the checked parameters: alpha, beta and others
    arrays: tuple[Any, Any, Any, Any]  # a, b, c and out, as in the key
    is_large: bool  # True if the product may take longer than CALL_DECLINE_SECONDS

    def store_in_call_cache(self, cached: Hashable) -> None:
        calls = self.key.library.cached_calls
        if len(calls) >= MAX_REMEMBERED_CALLS:
            calls.clear()
        calls[self.key.key] = cached


class DeclinedGram(NamedTuple):
    """A cached decline of a product of an array and its transposed view.

    The library's function `multiply` computes a result that is symmetric bit for bit.
    """

    expiry: float  # time.monotonic() at which the decline expires
    multiply: Callable[[Any, Any], Any]  # the library's own function


def find_declined_gram_function(library: Library, a: Any, rows: bool) -> Callable[[Any, Any], Any] | None:
    """Return the library's function for A A^T of a device array; None if no decline of this product is cached.

    If `rows` is False, return the function for A^T A.
    """
    try:
        declined: DeclinedGram | None = library.cached_calls.get((library.gram_signature(a), rows))
    except RuntimeError:  # a sparse tensor has no strides, and a tensor of a transform has no address
        return None
    return declined.multiply if declined is not None and declined.expiry > time.monotonic() else None


def remember_declined_gram(library: Library, a: Any) -> None:
    """Cache the decline of the product A A^T; the result of the library's kernel is symmetric bit for bit."""
    calls = library.cached_calls
    if len(calls) >= MAX_REMEMBERED_CALLS:
        calls.clear()
    declined = DeclinedGram(time.monotonic() + CALL_DECLINE_SECONDS, library.gram_function(a))
    calls[library.gram_signature(a), True] = declined
    calls[library.gram_signature(library.transposed_view(a)), False] = declined


def remember_declined_call(call: RecurringCall | None, library: Library, vendor_mirrors: bool = False) -> None:
    """Cache the decline of the calls with this key; until the decline expires, the library computes these calls.

    A large call may take longer than CALL_DECLINE_SECONDS, so the decline of a large call is cached for the seconds in
    DECLINE_MEMORY. If `call` is None (a call without a key), nothing is cached.
    """
    if call is None:
        return
    if any(isinstance(x, int) and abs(x) > MAX_DECLINED_FACTOR for x in (call.params.alpha, call.params.beta)):
        return
    seconds = DECLINE_MEMORY[library.processor].seconds if call.is_large else CALL_DECLINE_SECONDS
    call.store_in_call_cache(DeclinedCall(time.monotonic() + seconds, call.params, library, vendor_mirrors))
