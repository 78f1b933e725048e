"""A call on device arrays made ready: what is decided, which matrices it multiplies, and the tape that does it.

A pure function of shapes, strides, types and settings: nothing here touches a device, or knows a library.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from fmm.arrays.library import Operand, Setting
from fmm.dtypes import DTYPES
from fmm.kernels.cuda.launch_list import LaunchList
from fmm.kernels.cuda.recompute.recompute import may_differ
from fmm.kernels.cuda.record import operations, record
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import GRAPH_SCRATCH, check_depth
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.tile_choice import target_on
from fmm.problem import Layout, Problem
from fmm.runtime.decide import Decision
from fmm.runtime.decide_gpu import Gpu, decide_on, gpu

RECURRING_OPS, RECURRING_WORK = 64, 1 << 36  # sums and products, multiply-adds
Span = tuple[int, int]  # bytes from an array's first element to its lowest byte and beyond its highest one


class NotOursError(Exception):
    """A call that the library answers, or rejects, itself; the argument says why."""


@dataclass(frozen=True)
class Call:
    """A call made ready. Without a tape it is the library's own product."""

    decision: Decision
    setting: Setting
    limits: Limits
    tape: LaunchList | None = None
    shape: tuple[int, ...] = ()
    dtype: str = ""
    packs: tuple[bool, bool] = (False, False)  # A, B: copied, because BLAS cannot take them as they are
    direct: bool = False  # the plan may write into `out`, unless that overlaps an operand
    offsets: tuple[tuple[int, int, int], ...] = ()  # of A, B and C in bytes, one product each
    spans: tuple[Span, Span, Span] = ((0, 0), (0, 0), (0, 0))
    copies: bool = False  # is anything packed?
    workspace: int = 0  # bytes
    recurs: bool = False  # worth capturing as a graph, once it has come again and again

    def overlap(self, a: int, b: int, c: int) -> bool:
        """With these pointers, does C share memory with an operand?"""
        (a0, a1), (b0, b1), (c0, c1) = self.spans
        return (c + c0 < a + a1 and a + a0 < c + c1) or (c + c0 < b + b1 and b + b0 < c + c1)


@dataclass(frozen=True)
class Question:
    """What is asked: two arrays, a place for their product, and what the caller wants."""

    a: Operand
    b: Operand
    out: Operand | None
    dtype: str | None  # of the product; None where the library rejects the pair of types
    setting: Setting
    limits: Limits
    plan: Plan | None = None


def answer(asked: Question) -> Call:
    """The call that answers it; NotOursError where only the library can, PlanError where a given plan cannot run."""
    shape = product_shape(asked.a, asked.b)
    dtype = _type(asked, shape)
    left, right = _two_axes(asked.a, asked.b)
    packs = _layout(left) is None or left.dtype != dtype, _layout(right) is None or right.dtype != dtype
    left, right = (fresh(x.shape, dtype) if pack else x for x, pack in zip((left, right), packs, strict=True))
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    result = fresh((*batch, left.shape[-2], right.shape[-1]), dtype)
    direct = asked.out is not None and asked.out.shape == result.shape and _writable(asked.out)
    if direct and asked.out is not None:
        result = asked.out
    work = _products(left, right, result)
    copied = sum(prod(x.shape) for x, pack in zip((left, right), packs, strict=True) if pack)
    limits = replace(asked.limits, workspace=max(asked.limits.workspace - copied * work.problem(dtype).itemsize, 0))
    decision, tape = _decided(asked, work, dtype, limits)
    spans = _span(left), _span(right), _span(result)
    needed, recurs = 0, False
    if tape:
        vendors = GRAPH_SCRATCH * tape.vendor_lanes
        recurs = _recurs(tape, work) and scratch(tape) + vendors <= limits.workspace
        needed = scratch(tape) + vendors if recurs else tape.workspace
    return Call(
        decision,
        asked.setting,
        limits,
        tape,
        shape,
        dtype,
        packs,
        direct,
        work.offsets,
        spans,
        any(packs),
        needed,
        recurs,
    )


def _recurs(tape: LaunchList, work: Work) -> bool:
    """Would a graph start noticeably earlier than its launches? Few of them, the vendor's calls among them, of about 3
    milliseconds at most."""
    count, ops = len(work.offsets), operations(tape.plan, tape.problem).ops
    return tape.lanes_used == 1 and len(ops) * count <= RECURRING_OPS and prod(work.size) * count <= RECURRING_WORK


def scratch(tape: LaunchList) -> int:
    """Where cuBLAS's own memory begins in the workspace of a call that may be captured."""
    return -(-tape.workspace // 256) * 256


def product_shape(a: Operand, b: Operand) -> tuple[int, ...]:
    if a.ndim == 0 or b.ndim == 0 or a.shape[-1] != (b.shape[-2] if b.ndim > 1 else b.shape[0]):
        raise NotOursError(f"shapes {tuple(a.shape)} and {tuple(b.shape)} do not match")
    try:
        batch = np.broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    except ValueError:
        raise NotOursError(f"shapes {tuple(a.shape)} and {tuple(b.shape)} do not match") from None
    return (*batch, *(a.shape[-2:-1] if a.ndim > 1 else ()), *(b.shape[-1:] if b.ndim > 1 else ()))


def _type(asked: Question, shape: tuple[int, ...]) -> str:
    if asked.dtype is None or asked.dtype not in DTYPES:
        raise NotOursError(f"products of {asked.a.dtype} and {asked.b.dtype} are its own")
    if asked.out is not None and (asked.out.shape != shape or asked.out.dtype != asked.dtype):
        raise NotOursError("out has another shape or type than the product")
    if 0 in (*asked.a.shape, *asked.b.shape):
        raise NotOursError("there is nothing to multiply")
    return asked.dtype


def _decided(asked: Question, work: Work, dtype: str, limits: Limits) -> tuple[Decision, LaunchList | None]:
    """The plan and its tape. What a tape takes counts, should it be more than the model thought."""
    kind = "tf32" if asked.setting.math == "tf32" else dtype
    problem, recorded = Problem(*work.size, kind), work.problem(kind)
    device = gpu(asked.setting.device)
    if asked.plan is not None:
        check_depth(asked.plan, *work.size)
        return Decision(asked.plan, problem, "this plan was given"), _recorded(asked.plan, recorded, device, True)
    while True:
        decision = decide_on(device, problem, limits)
        tape = _recorded(decision.plan, recorded, device, False)
        if tape is None or tape.workspace <= limits.workspace:
            return decision, tape
        limits = replace(limits, workspace=min(decision.workspace, limits.workspace) - 1)


def _recorded(plan: Plan, problem: Problem, device: Gpu, given: bool) -> LaunchList | None:
    if plan == VENDOR:
        return None
    assert device.chip is not None
    try:
        launches = record(plan, problem, target_on(device.chip, flagged=may_differ(plan)))
    except PlanError:
        if given:
            raise
        return None  # a sum of more blocks than a launch can name
    # Our own kernel was measured, and is known to be worth while, on lines that are aligned.
    return launches if given or launches.reads_aligned else None


# ---- layouts


def fresh(shape: tuple[int, ...], dtype: str) -> Operand:
    """An array of this shape as a new one lies in memory: the last axis contiguous, no gaps."""
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return Operand(tuple(shape), tuple(strides), dtype)


def _layout(x: Operand) -> Layout | None:
    """How its matrices lie in memory; None if neither their rows nor their columns are contiguous."""
    if x.strides is None:
        return None
    (rows, cols), (down, right) = x.shape[-2:], x.strides[-2:]
    if (cols <= 1 or right == 1) and (rows <= 1 or down >= cols):
        return Layout("C", max(down if rows > 1 else cols, cols, 1))
    if (rows <= 1 or down == 1) and (cols <= 1 or right >= rows):
        return Layout("F", max(right if cols > 1 else rows, rows, 1))
    return None


def _writable(x: Operand) -> bool:
    """Can a plan write it in place: matrices that BLAS can write, none twice in the same place?"""
    return _layout(x) is not None and x.strides is not None and 0 not in _steps(x, x.shape[:-2])


def _two_axes(a: Operand, b: Operand) -> tuple[Operand, Operand]:
    """Vectors as a matrix of one row, or of one column."""
    if a.ndim == 1:
        a = a._replace(shape=(1, *a.shape), strides=a.strides and (a.shape[0], *a.strides))
    if b.ndim == 1:
        b = b._replace(shape=(*b.shape, 1), strides=b.strides and (*b.strides, 1))
    return a, b


def _span(x: Operand) -> Span:
    assert x.strides is not None
    reach = [(length - 1) * step for length, step in zip(x.shape, x.strides, strict=True)]
    item = DTYPES[x.dtype].itemsize
    return sum(min(r, 0) for r in reach) * item, (sum(max(r, 0) for r in reach) + 1) * item


# ---- the matrices of a product of stacks


class Work(NamedTuple):
    """Equal products: their size, the layouts of their matrices, and where each one's lie."""

    size: tuple[int, int, int]
    layouts: tuple[Layout, Layout, Layout]
    offsets: tuple[tuple[int, int, int], ...]

    def problem(self, dtype: str) -> Problem:
        return Problem(*self.size, dtype, self.layouts)


def _products(a: Operand, b: Operand, c: Operand) -> Work:
    """All rows of a stack at once where there is one b for all of them; else one product for each item."""
    if a.ndim > 2 and prod(b.shape[:-2]) == 1:
        tall, result = _folded(a), _folded(c)
        if tall is not None and result is not None:
            a, b, c = tall, b._replace(shape=b.shape[-2:], strides=b.strides and b.strides[-2:]), result
    (m, k), n, batch = a.shape[-2:], b.shape[-1], c.shape[:-2]
    layouts = [found for x in (a, b, c) if (found := _layout(x)) is not None]
    places = zip(*(_places(x, batch) for x in (a, b, c)), strict=True)
    return Work((m, k, n), (layouts[0], layouts[1], layouts[2]), tuple(places))


def _folded(x: Operand) -> Operand | None:
    """The stack as one tall matrix, without moving anything; None if its rows are not equally far apart."""
    assert x.strides is not None
    axes = [(length, step) for length, step in zip(x.shape[:-1], x.strides[:-1], strict=True) if length != 1]
    if any(outer != inner * length for (_, outer), (length, inner) in pairwise(axes)):
        return None
    down = axes[-1][1] if axes else x.shape[-1]
    tall = Operand((prod(x.shape[:-1]), x.shape[-1]), (down, x.strides[-1]), x.dtype)
    return tall if _layout(tall) is not None else None


def _places(x: Operand, batch: tuple[int, ...]) -> Iterator[int]:
    """Where each item's matrix begins, in bytes."""
    steps, item = _steps(x, batch), DTYPES[x.dtype].itemsize
    for index in np.ndindex(*batch):
        yield sum(i * step for i, step in zip(index, steps, strict=True)) * item


def _steps(x: Operand, batch: tuple[int, ...]) -> list[int]:
    """The strides of the batch axes: 0 where one matrix serves all items; any number where there is one item."""
    assert x.strides is not None
    missing = len(batch) - (x.ndim - 2)
    own = [0] * missing + [0 if length == 1 else step for length, step in zip(x.shape, x.strides, strict=True)][:-2]
    return [1 if length == 1 else step for length, step in zip(batch, own, strict=True)]
