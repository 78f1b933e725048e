"""Products that no plan makes faster, recognised in a microsecond or less and left to the vendor.

A small product takes ten microseconds or less: to look for a plan would cost more than it. It is recognised in three
ways: by the bytes of its operands, by their sides, and because such a product was left to the vendor a moment ago.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from fmm.arrays.library import Library, Processor
from fmm.dtypes import DTYPES
from fmm.perfmodel.choose import ranking_problem
from fmm.perfmodel.default_calibration import FLOPS_PER_BYTE
from fmm.problem import without_layouts
from fmm.runtime.decisions.decide import SMALLEST_INTEGER_SIDE, Decision

# ---- on CUDA devices

# Products with fewer multiply-adds take less time, on any device, than the launches of a plan: SMALL of any type;
# SMALL_HALF of 16-bit types, which tensor cores multiply faster; SMALL_UNALIGNED of 16-bit types whose rows are not
# aligned, which vendors multiply several times slower.
SMALL, SMALL_16_BIT, SMALL_16_BIT_UNALIGNED = 1 << 29, 1 << 33, 1 << 31

# The same without a look at the sides: the bytes of A times those of B are the multiply-adds times the inner side times
# the square of an item's bytes. Where the inner side is below SHORT_SIDE, a product waits for its result to be written,
# so that no plan makes it faster; where it is not, there are fewer than SMALL (of 2 bytes: SMALL_UNALIGNED)
# multiply-adds.
SHORT_SIDE = 144
SMALL_BYTES = SHORT_SIDE * min(SMALL * 4**2, SMALL_16_BIT_UNALIGNED * 2**2)


def is_small_on_device(m: int, k: int, n: int, itemsize: int) -> bool:
    """On a CUDA device: is a product of two matrices so small that no plan makes it faster?"""
    work = m * k * n
    return work < SMALL or (itemsize == 2 and work < (SMALL_16_BIT_UNALIGNED if (k | n) & 7 else SMALL_16_BIT))


def is_declined_on_device(library: Library, a: Any, b: Any, room: int) -> bool:
    """On a CUDA device: is the product of the two the vendor's for certain? `room`: the bytes of A times those of B.

    (Each number that torch is asked for takes a tenth of a microsecond or more: as few are as will do.)
    """
    try:
        shape = a.shape
        k = shape[-1]
    except (IndexError, RuntimeError):  # a number; nested tensors have no shape
        return False
    if type(k) is not int:  # but a tensor, of which torch.jit.trace takes note
        return False
    itemsize, tensors = a.itemsize, library.differentiable  # of one type, or torch rejects them
    work = room // (k * itemsize * (itemsize if tensors else b.itemsize))
    if work < SMALL:
        return True
    # The vendor's tensor cores multiply halves, and no integers (of which torch has no products at all).
    halves = itemsize == 2 and work < SMALL_16_BIT and (tensors or a.dtype.kind not in "iu")
    if halves and (work < SMALL_16_BIT_UNALIGNED or not (k | b.shape[-1]) & 7):
        return True
    known: float | None = library.calls.get((room, shape, b.ndim, library.type_key(a, b)))
    return known is not None and known > time.monotonic()


# ---- on the host


def smallest_side() -> int:
    """A side below which no plan can win, whatever the other sides are.

    One level saves an eighth of the m k n multiply-adds, and its sums at least read and write B once, 2 k n elements:
    below 16 times (bytes an element) times (flops a byte) / (flops a multiply-add) for m, that pass alone costs more.
    """
    sides = (16 * DTYPES[t].itemsize * r / DTYPES[t].flops for t, r in FLOPS_PER_BYTE.items())
    return int(min(sides))


SMALLEST_SIDE = smallest_side()


def is_small_on_host(a: Any, b: Any) -> bool:
    """On the host: is a side so small that no plan makes the product faster? What is no plain array is NumPy's too."""
    if type(a) is not np.ndarray or type(b) is not np.ndarray:
        return True
    if a.ndim == 2 and b.ndim == 2:
        (m, k), n = a.shape, b.shape[1]
    elif a.ndim < 3 or b.ndim < 2:
        return True
    else:  # a stack, of whose rows there are many together
        m, k, n = SMALLEST_SIDE, a.shape[-1], b.shape[-1]
    if m >= SMALLEST_SIDE and k >= SMALLEST_SIDE and n >= SMALLEST_SIDE:
        return False
    return (
        m < SMALLEST_INTEGER_SIDE or k < SMALLEST_INTEGER_SIDE or n < SMALLEST_INTEGER_SIDE or a.dtype.kind not in "iub"
    )


# ---- remembered


class Memory(NamedTuple):
    """For how many seconds a product is remembered as the vendor's, and from how many flops on that is worth while."""

    seconds: float
    flops: int


# On the host for long: after a long product no cache has what a decision needs, Python's code included, so that to
# decide again takes milliseconds. On a device for as long as its free memory is taken for known.
REMEMBERED: dict[Processor, Memory] = {"cpu": Memory(10.0, 1 << 31), "cuda": Memory(1.0, 0)}


def decline_key(library: Library, a: Any, b: Any) -> Hashable:
    """By which it is remembered. B's sides follow from the bytes, or else do not match."""
    return a.nbytes * b.nbytes, a.shape, b.ndim, library.type_key(a, b)


def was_declined(library: Library, a: Any, b: Any) -> bool:
    """Was a product like this one left to the library a moment ago?"""
    until: float = library.calls.get(decline_key(library, a, b), 0.0)
    return until > time.monotonic()


def remember_decline(library: Library, a: Any, b: Any, decision: Decision) -> None:
    """From now on, for a moment, products of matrices of these sizes are the library's, however they lie in memory."""
    memory, problem = REMEMBERED[library.processor], decision.problem
    if problem is not None and ranking_problem(problem, library.processor == "cuda") != without_layouts(problem):
        return  # another plan may be faster where they lie otherwise
    if not getattr(a, "ndim", 0) == getattr(b, "ndim", 0) == 2:  # a list, say
        return
    # On the host a rule may be about these very arrays: that one is the other's transpose, say.
    if library.processor == "cpu" and (decision.source == "rule" or problem is None or problem.flops < memory.flops):
        return
    library.calls[decline_key(library, a, b)] = time.monotonic() + memory.seconds


FEW_NUMBERS = SMALLEST_INTEGER_SIDE**2  # entries of A; with fewer, a side is too short for any plan on the host
