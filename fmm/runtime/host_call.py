"""fmm/runtime/host_call.py."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

import numpy as np

from fmm.kernels.cpu.arena import Arena, Array
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.side_by_side import backend_for
from fmm.kernels.cpu.thread_pool import Threads, blas_threads
from fmm.kernels.plans.memory_layout import temporary_bytes
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.workspace import workspace as plan_workspace
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime.decide import Decision, decide, leaner, smallest_side
from fmm.runtime.host_memory import borrowed
from fmm.runtime.host_operands import Operands, Options, blas_ready, result, same_memory_transposed, two_axes
from fmm.runtime.overflow import may_overflow

# Below this many rows, columns or inner products nothing is ever gained: the check that a small call pays.
SIDE = smallest_side()


def _hopeless(a: Any, b: Any) -> bool:
    """A quick no for everything small: costs less than a microsecond, and never says no to a product that could win."""
    if type(a) is not np.ndarray or type(b) is not np.ndarray:
        return True
    if a.ndim == 2 and b.ndim == 2:
        return bool(a.shape[0] < SIDE or a.shape[1] < SIDE or b.shape[1] < SIDE)
    return bool(a.ndim < 3 or a.shape[-1] < SIDE or b.ndim < 2 or b.shape[-1] < SIDE)


# Seconds for which "NumPy multiplies" is an answer that need not be asked for again, and flops below which that is not
# worth remembering. All that is cold after a long product, Python's code too: to ask again takes milliseconds then.
REMEMBERED, WORTH_REMEMBERING = 10.0, 1 << 31
_left_to_numpy: dict[tuple[Any, ...], float] = {}


def _just_left_to_numpy(a: Any, b: Any) -> bool:
    return _left_to_numpy.get((a.shape, b.shape, a.dtype, b.dtype), 0.0) > monotonic()


def _remember(call: Operands, decision: Decision) -> None:
    """Note for a moment that products of these shapes are left to NumPy."""
    a, b, problem = call.a, call.b, decision.problem
    chosen = decision.plan == VENDOR and decision.step != "rule" and a.ndim == b.ndim == 2
    if chosen and problem is not None and problem.flops >= WORTH_REMEMBERING:
        if len(_left_to_numpy) > 256:
            _left_to_numpy.clear()
        _left_to_numpy[a.shape, b.shape, a.dtype, b.dtype] = monotonic() + REMEMBERED


def _numpy_accepts(a: Any, b: Any, options: Options) -> bool:
    """Would NumPy multiply these at all? Found without multiplying."""
    try:
        replace(options, out=None).vendor(*_without_work(a, b))
    except Exception:
        return False
    return True


def _without_work(a: Any, b: Any) -> tuple[Any, Any]:
    """The call without the rows of a and the columns of b: NumPy takes or rejects it alike, and multiplies nothing."""
    a = a[..., :0, :] if type(a) is np.ndarray and a.ndim > 1 else a
    return a, b[..., :0] if type(b) is np.ndarray and b.ndim > 1 else b


def _matmul(call: Operands, options: Options, given: Plan | None, limits: Limits, usual: bool) -> Any:
    if given is None:
        decision = _decide(call, limits)
        if decision.trial is not None:
            return decision.trial.run(lambda plan: _matmul(call, options, plan, limits, False))
        if usual:
            _remember(call, decision)
        given = decision.plan
    return _computed(call, options, given, limits)


def _computed(call: Operands, options: Options, chosen: Plan, limits: Limits) -> Any:
    if (chosen == VENDOR and not call.folds) or not _computes_quietly(call):
        return options.vendor(call.a, call.b)
    fresh = options.out is None or not _direct(call, options.out)
    try:
        c = result(call, options.order) if fresh else options.out
        if not _fill(c, call, _Multiplier(chosen, limits, blas_threads())):
            return options.vendor(call.a, call.b)
    except MemoryError:
        return options.vendor(call.a, call.b)
    except BaseException:
        if not fresh:
            options.vendor(call.a, call.b)  # out is complete or untouched, whatever leaves
        raise
    if options.out is None:
        return c if c.ndim else c[()]  # two vectors: a scalar, as NumPy gives
    if fresh:
        np.copyto(options.out, c, casting=options.casting)
    return options.out


def _fill(c: Array, call: Operands, multiplier: _Multiplier) -> bool:
    """All products of a call into `c`; False as soon as one is left to the vendor."""
    products = call.products(two_axes(call, c))
    return all(multiplier.multiply(_as(a, call.dtype), _as(b, call.dtype), part) for a, b, part in products)


def _computes_quietly(call: Operands) -> bool:
    """Is there anything to multiply, and may numbers underflow unnoticed? A caller who asks to be told is NumPy's."""
    return 0 not in (*call.a.shape, *call.b.shape) and np.geterr()["under"] == "ignore"


def _decide(call: Operands, limits: Limits) -> Decision:
    problem = _problem(call.size, call.dtype)
    if min(call.a.ndim, call.b.ndim) > 1 and same_memory_transposed(call.a, call.b):
        return Decision(VENDOR, problem, "b is a transposed in place: NumPy calls syrk, which does half the work")
    return decide(problem, replace(limits, workspace=max(limits.workspace - _copied(call), 0)), blas_threads())


def _copied(call: Operands) -> int:
    """Bytes of the copies that a plan would make of operands that have another type or that BLAS cannot read."""
    items = (x[(0,) * (x.ndim - 2)] for x in (call.a, call.b) if x.ndim > 1 and x.size)
    shapes = [x.shape for x in items if x.dtype != call.dtype or not blas_ready(x)]
    return sum(temporary_bytes(rows, cols, call.dtype.itemsize) for rows, cols in shapes)


class _MayOverflowError(Exception):
    """The vendor must multiply; what a plan has done so far is written over."""


class _Multiplier:
    """Multiplies pairs of matrices by one plan, or by leaner ones once memory has run out."""

    def __init__(self, plan: Plan, limits: Limits, threads: int) -> None:
        self.plan, self.limits, self.threads = plan, limits, Threads(threads)

    def multiply(self, a: Array, b: Array, c: Array) -> bool:
        """c = a b; False if the vendor must do it, because numbers may overflow or nothing fits into the memory."""
        (m, k), n = a.shape, b.shape[1]
        problem = _problem((m, k, n), a.dtype)
        for plan in (self.plan, *leaner(problem, self.plan, self.limits, self.threads.count)):
            try:
                self._run(plan, a, b, c)
            except MemoryError:
                continue
            except _MayOverflowError:
                return False
            self.plan = plan
            return True
        return False

    def _run(self, plan: Plan, a: Array, b: Array, c: Array) -> None:
        """Everything that may run out of memory is allocated before c is touched."""
        copies = [x for x in (a, b) if not blas_ready(x)] if plan != VENDOR else []
        (m, k), n = a.shape, b.shape[1]
        extra = sum(temporary_bytes(x.shape[0], x.shape[1], x.itemsize) for x in copies)
        # What overflows in a fast plan is not the caller's doing; the vendor's product warns as NumPy does.
        quiet = np.errstate(all="ignore") if plan != VENDOR else nullcontext()
        with borrowed(plan_workspace(plan, m, k, n, a.itemsize) + extra) as memory, quiet:
            arena = Arena(memory, a.dtype)
            a, b = (self._packed(x, arena) if any(x is y for y in copies) else x for x in (a, b))
            with backend_for(self.threads.count, 2 * m * k * n if plan != VENDOR else 0) as chosen:
                chosen.first((a, b), partial(self._check, plan, a, b, chosen.threads))
                execute_plan(plan, a, b, c, chosen, arena)

    def _check(self, plan: Plan, a: Array, b: Array, threads: Threads) -> None:
        if may_overflow(plan, a, b, threads):
            raise _MayOverflowError

    def _packed(self, x: Array, arena: Arena) -> Array:
        """A copy that BLAS can read, of a view that it cannot (negative strides, or gaps along both axes)."""
        copy = arena.take(x.shape[0], x.shape[1], fortran=abs(x.strides[0]) < abs(x.strides[1]))
        np.copyto(copy, x)
        return copy


def _as(x: Array, dtype: np.dtype[Any]) -> Array:
    return x if x.dtype == dtype else x.astype(dtype)


def _direct(call: Operands, out: Array) -> bool:
    """May the plan write straight into `out`: right type, BLAS can write it, and it shares no memory with a or b?"""
    parts = two_axes(call, out)
    block = parts[(0,) * (parts.ndim - 2)] if parts.size else parts
    return (
        out.dtype == call.dtype
        and blas_ready(block)
        and not np.may_share_memory(out, call.a)
        and not np.may_share_memory(out, call.b)
    )


def _problem(size: tuple[int, int, int], dtype: np.dtype[Any]) -> Problem:
    return Problem(*size, dtype.name)
