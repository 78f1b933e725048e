"""fmm.matmul: numpy.matmul's contract, a fast plan where one pays, NumPy itself everywhere else."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from fmm.arrays.library import ANYTHING, EXACT, TINY_BYTES, Wanted, arrays_of
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import check_depth
from fmm.perfmodel.choose import CPU_GROWTH, Limits
from fmm.runtime.decide import Decision, decide
from fmm.runtime.host_call import _decide, _hopeless, _just_left_to_numpy, _matmul, _numpy_accepts, _problem
from fmm.runtime.host_memory import default_limit
from fmm.runtime.host_operands import NotOursError, NumPyAnswersError, Options, operands

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
    use = given.leaf_use  # how its operands lie is a wish that a CPU's sums need not hear
    if "cpu" not in use.leaf.devices:
        raise PlanError(f"the plan {given} cannot run here: {use.product} is a product on a GPU")
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
        from fmm.runtime.plan_gpu import plan_on

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
