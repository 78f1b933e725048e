"""fmm.matmul: numpy.matmul's contract, a fast plan where one pays, NumPy itself everywhere else."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from time import monotonic
from typing import Any

import numpy as np

from fmm.decision import Decision, decide, leaner, smallest_side
from fmm.device.arrays import ANYTHING, EXACT, TINY_BYTES, Wanted, arrays_of
from fmm.guard import may_overflow
from fmm.kernels.arena import Arena, Array
from fmm.kernels.executor import execute
from fmm.kernels.flow import backend
from fmm.kernels.needs import check_depth, temporary_bytes
from fmm.kernels.needs import workspace as plan_workspace
from fmm.kernels.plan import VENDOR, Plan, PlanError, leaf_parts
from fmm.kernels.threads import Threads, blas_threads
from fmm.memory import borrowed, default_limit
from fmm.operands import (
    NotOursError,
    NumPyAnswersError,
    Operands,
    Options,
    blas_ready,
    operands,
    result,
    same_memory_transposed,
    two_axes,
)
from fmm.perfmodel.choose import CPU_GROWTH, Limits
from fmm.perfmodel.problem import Problem

# Below this many rows, columns or inner products nothing is ever gained: the check that a small call pays.
SIDE = smallest_side()
NO_OPTIONS: dict[str, Any] = {}
ndarray = np.ndarray  # asked for at each call


def matmul(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    plan: Plan | Decision | str | None = None,
    max_error_growth: float | None = None,
    workspace: int | None = None,
    **more: Any,
) -> Any:
    """The matrix product of two arrays, as numpy.matmul computes it, but faster where a fast algorithm pays.

    a, b, out, casting, order and dtype are numpy.matmul's own, with its results, shapes and exceptions; where any of
    its other options is given (subok, axes, signature, ...), the library answers itself. CuPy arrays and torch tensors
    (and other arrays on a CUDA device, through CuPy) are multiplied where they are, on the current stream, with the
    results and exceptions of cupy.matmul and torch.matmul.

    plan
        Run this plan (a text such as "winograd > vendor", a Plan, or what fmm.plan returned) instead of choosing one.
    max_error_growth
        Choose only plans whose expected error is at most this multiple of the vendor's own (10 unless given; 16 on
        CUDA devices).
    workspace
        Choose only plans that need at most this many bytes of temporaries (half of the free memory unless given).
    """
    kind = type(a)
    if kind is not ndarray or type(b) is not ndarray or (out is not None and type(out) is not ndarray):
        library = EXACT.get(kind)
        if (
            library is not None
            and type(b) is kind
            and out is None
            and plan is None
            and max_error_growth is None
            and workspace is None
            and dtype is None
            and order == "K"
            and casting == "same_kind"
        ):
            try:  # products of small matrices take ten microseconds or less: an answer in a fraction of one
                tiny = a.nbytes * b.nbytes < TINY_BYTES
            except RuntimeError:  # sparse tensors have no such numbers
                tiny = False
            return library.mm(a, b) if tiny else library.plain(a, b)
        if out is not None:
            out = _single(out)
        arrays = arrays_of(a, b, out)
        if arrays is not None:
            wanted = ANYTHING
            if plan is not None or max_error_growth is not None or workspace is not None:
                wanted = _wanted(plan, max_error_growth, workspace)
            if dtype is None and order == "K" and casting == "same_kind" and not more:
                return arrays.matmul(a, b, out, NO_OPTIONS, wanted)
            return arrays.matmul(a, b, out, _options(casting, order, dtype) | more, wanted)
    if more:
        _refuse_beside(more, plan)
        return np.matmul(a, b, out=out, **_options(casting, order, dtype), **more)
    unlimited = plan is None and max_error_growth is None and workspace is None
    if unlimited and (_hopeless(a, b) or (dtype is None and _just_left_to_numpy(a, b))):
        if dtype is None and order == "K" and casting == "same_kind":
            return np.matmul(a, b) if out is None else np.matmul(a, b, out=out)
        return np.matmul(a, b, out=out, casting=casting, order=order, dtype=dtype)
    options = Options(_single(out), casting, order, dtype)
    limits, given = _limits(max_error_growth, workspace), _given(plan)
    try:
        call = operands(a, b, options)
    except NotOursError as reason:
        why = reason
    else:
        _check_plan(given, call.size)
        return _matmul(call, options, given, limits, unlimited and dtype is None)
    _refuse(given, why, a, b, options)
    return options.vendor(a, b)


def _check_plan(given: Plan | None, size: tuple[int, int, int]) -> None:
    if given is None:
        return
    product, _ = leaf_parts(given.leaf)  # how its operands lie is a wish that a CPU's sums need not hear
    if product != "vendor":
        raise PlanError(f"the plan {given} cannot run here: {product} is a product on a GPU")
    check_depth(given, *size)


def _refuse_beside(more: dict[str, Any], plan: Plan | Decision | str | None) -> None:
    """PlanError for a plan that was given together with options that only NumPy knows."""
    given = _given(plan)
    if given not in (None, VENDOR):
        raise PlanError(f"the plan {given} cannot run here: {', '.join(more)} was given")


def _refuse(given: Plan | None, why: NotOursError, a: Any, b: Any, options: Options) -> None:
    """PlanError for a plan that was given and cannot run, or NumPy's own exception for what it would not multiply."""
    if given in (None, VENDOR) or isinstance(why, NumPyAnswersError):
        return
    if not _numpy_accepts(a, b, options):
        replace(options, out=None).vendor(a, b)  # its own exception, with the shapes
    raise PlanError(f"the plan {given} cannot run here: {why}")


def explain(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    plan: Plan | Decision | str | None = None,
    max_error_growth: float | None = None,
    workspace: int | None = None,
    **more: Any,
) -> Decision:
    """What fmm.matmul would do with this call, and why. Nothing is computed (overflow is only seen when it is)."""
    out = _single(out)
    if (arrays := arrays_of(a, b, out)) is not None:
        wanted = _wanted(plan, max_error_growth, workspace)
        return arrays.explain(a, b, out, _options(casting, order, dtype) | more, wanted)
    limits, given, options = _limits(max_error_growth, workspace), _given(plan), Options(out, casting, order, dtype)
    if more:
        _refuse_beside(more, given)
        return Decision(VENDOR, None, f"NumPy answers: {', '.join(more)} was given")
    try:
        call = operands(a, b, options)
    except NotOursError as reason:
        _refuse(given, reason, a, b, options)
        return Decision(VENDOR, None, f"NumPy answers: {reason}")
    if given is None:
        return _decide(call, limits)
    _check_plan(given, call.size)
    return Decision(given, _problem(call.size, call.dtype), "this plan was given")


def plan(
    m: int,
    k: int,
    n: int,
    *,
    dtype: Any = np.float64,
    device: str | int = "cpu",
    max_error_growth: float | None = None,
    workspace: int | None = None,
) -> Decision:
    """The decision for an m x k by k x n product, without arrays; `device` is "cpu", or the number of a CUDA device."""
    for name, side in (("m", m), ("k", k), ("n", n)):
        if not isinstance(side, int | np.integer) or side < 0:
            raise ValueError(f"{name} must be a whole number, 0 or more, not {side!r}")
    limits = _limits(max_error_growth, workspace)
    if device != "cpu":
        from fmm.device.plan import plan_on

        return plan_on(device, (int(m), int(k), int(n)), dtype, _wanted(None, max_error_growth, workspace))
    kind = np.dtype(dtype).newbyteorder("=")
    if kind not in (np.dtype(t) for t in "fdFD"):
        return Decision(VENDOR, None, f"NumPy answers: {kind} products are NumPy's own")
    return decide(_problem((int(m), int(k), int(n)), kind), limits, blas_threads())


def _options(casting: Any, order: Any, dtype: Any) -> dict[str, Any]:
    """Those of numpy.matmul's options that were given, by name."""
    given = {"casting": (casting, "same_kind"), "order": (order, "K"), "dtype": (dtype, None)}
    return {name: value for name, (value, usual) in given.items() if value is not usual}


def _wanted(plan: Plan | Decision | str | None, max_error_growth: Any, workspace: Any) -> Wanted:
    """The same wishes for a product on a device, whose free memory is asked for only when it is needed."""
    growth = ANYTHING.error_growth if max_error_growth is None else max_error_growth
    checked = _limits(growth, 0 if workspace is None else workspace)
    return Wanted(_given(plan), checked.error_growth, None if workspace is None else checked.workspace)


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
            with backend(self.threads.count, 2 * m * k * n if plan != VENDOR else 0) as chosen:
                chosen.first((a, b), partial(self._check, plan, a, b, chosen.threads))
                execute(plan, a, b, c, chosen, arena)

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


def _limits(max_error_growth: Any, workspace: Any) -> Limits:
    growth: Any = CPU_GROWTH if max_error_growth is None else max_error_growth
    if isinstance(growth, bool) or not isinstance(growth, Real) or not float(growth) >= 1:
        raise ValueError(f"max_error_growth must be a number, 1 or more, not {growth!r}")
    if workspace is not None and (isinstance(workspace, bool) or not isinstance(workspace, Integral) or workspace < 0):
        raise ValueError(f"workspace must be a whole number of bytes, 0 or more, not {workspace!r}")
    return Limits(default_limit() if workspace is None else int(workspace), float(growth))


def _single(out: Any) -> Any:
    """NumPy takes `out` in a tuple of one too."""
    return out[0] if isinstance(out, tuple) and len(out) == 1 else out


def _given(plan: Plan | Decision | str | None) -> Plan | None:
    if plan is None or isinstance(plan, Plan):
        return plan
    return plan.plan if isinstance(plan, Decision) else Plan.parse(plan)
