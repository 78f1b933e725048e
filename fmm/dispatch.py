"""Dispatch of checked public calls to autograd, to host streaming, to the vendor, or to fmm.runtime, which plans calls.

Modules that few programs need, and modules that load torch or CuPy, are imported at the first call that needs them.

Each of these checks can decline a call, in this order. If a check declines a call, the vendor (the library's own
function) computes the call. Checks 1 to 4 are fast, because they look for no plan.

1. fmm.api declines calls before it checks the arguments.

   * fmm.matmul declines NumPy arrays by `MIN_PLAN_ENTRIES`, `is_small_on_host` and cached declines (`was_declined`).

   * fmm.gemm declines NumPy arrays by `is_small_on_host`, and other arrays by `run_small_gemm` and
     `run_small_scaled_gemm`. `run_cached_gemm` looks up the cached declines and the cached plans of fmm.gemm.

   * fmm.gram declines NumPy arrays by `run_small_gram`, and other arrays by cached declines (`run_declined_gram`).

2. This module declines calls of fmm.matmul. While torch records calls, `_traced_matmul` replaces check 2.

   * `multiply_without_options` declines CuPy arrays and torch tensors by `SMALL_BYTES_PRODUCT` and
     `is_declined_on_device`.

   * `multiply_with_options` declines NumPy arrays by `MIN_PLAN_ENTRIES` and `is_small_on_host`.

   * `_multiply_on_own_device` declines arrays by `is_small_on_host`.

3. fmm.runtime.torch_autograd.functions leaves calls to torch if `is_plain_call` returns False.
   `explain_torch_fallback` names the reason. Calls that record gradients are also left to torch if an operand is a
   vector or `out` was passed.

4. fmm.gemm and fmm.gram decline calls with alpha = 0 or empty operands (`gemm._is_empty_product`,
   `gram._compute_gram`).

   * On the host they also decline small matrices (`gemm._has_small_matrices`, `gram._has_few_product_rows`).

5. fmm.runtime.prepare declines calls that no plan can compute.

   * `prepare_uncached` declines a call for the reason `ProductSetting.refusal` of the library's adapter.

   * `_checked_result_operand` declines a call because of its shapes, types or `out`, or because the product is empty.

   * `_decide_launches` declines a call for which the vendor has an advantage, for example NumPy's syrk
     (`ProductSetting.vendor_advantage`).

6. `fmm.runtime.decisions.decide.decide_plan` declines a call in one of these cases.

   * FMM_DISABLE is set (`is_disabled`).

   * `_decide_integers` declines an integer product with a side below `MIN_INTEGER_PLAN_SIDE` on the host.

   * `arithmetic_variables_unlike_tuning` finds environment variables that change the vendor's arithmetic, and no tuning
     was measured with these variables.

   * `_decide_by_equation_2` declines a call if the rule of HASA (D'Alberto and Nicolau's algorithm) finds no level.
     With FMM_TUNING_MODE=hasa this rule replaces `decide_by_tuning` and `decide_by_model`.

   * `decide_by_tuning` declines a call if the certified entry of the shape has the vendor as its plan.

   * `decide_by_model` declines a call if the device is unknown, or if the calibration has no rate for the type.

7. `fmm.perfmodel.choose.pick_candidate` declines a call if no candidate within the limits beats the vendor by its
   margin.

8. `_decide_launches` declines a call on a device if neither the decided plan nor a plan of `next_winning_plans` has
   launches within the workspace limit.

9. The functions that run a plan decline a call for reasons that are found only at the run.

   * `run_host.run_call` declines a call if numbers may overflow (`may_overflow`), if numpy.errstate reports underflow,
     or if no worker thread is free.

   * `run_device.run_call` declines a call if the stream is being captured, or if recent results had inf or NaN.

   * `matmul.run_with_fallback` declines a call if memory ran out for every plan.

If the caller passed a plan, checks 1, 2, 6, 7, `vendor_advantage` and the small matrices of check 4 are skipped. Checks
3, 5 and 8 raise PlanError for a call with a plan; check 5 declines the call if the product is empty. Check 9 declines a
call with a plan only because of `may_overflow` or numpy.errstate.

Host arrays that are streamed through a GPU (`device=`) skip all checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from fmm.arrays.detect import describe_array, is_on_device, type_name
from fmm.arrays.library import Library
from fmm.arrays.numpy_library import NUMPY, TYPE_NAMES
from fmm.arrays.select_library import PLAIN_TYPES, cupy_library, library_of
from fmm.dtypes import DTYPES, INTEGERS
from fmm.kernels.cpu.host_arrays import matmul as numpy_matmul
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.perfmodel.choose import Limits
from fmm.problem import OPERATIONS, Operation, Problem, Shape
from fmm.request import GemmRequest, GramRequest, MatmulRequest, matmul_options
from fmm.runtime import devices, matmul
from fmm.runtime.decisions import early_declines
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.early_declines import (
    SMALL_BYTES_PRODUCT,
    CallKey,
    RecurringCall,
    is_declined_on_device,
    is_small_on_host,
)
from fmm.runtime.decisions.limits import (
    NO_CONSTRAINTS,
    PlanConstraints,
    default_workspace_bytes,
    limits_without_arrays,
)
from fmm.runtime.gemm import explain_gemm as explain_array_gemm
from fmm.runtime.gemm import run_gemm
from fmm.runtime.gram import Triangle, run_gram, run_recurring_gram
from fmm.runtime.gram import explain_gram as explain_array_gram
from fmm.runtime.prepared_operand import shape_error_note, unwrap_operands, wrong_side_note
from fmm.runtime.progress import show_plan_progress

if TYPE_CHECKING:
    from fmm.out_of_core.machine import StreamingDevice


# ---- matmul


def multiply_without_options(library: Library, a: Any, b: Any, out: Any = None) -> Any:
    """Return the product of two CuPy arrays or torch tensors, without options or constraints.

    Only calls with torch tensors may pass `out`. Small products and products declined before go to the vendor after few
    checks: the remaining checks would take longer than a small product.
    """
    if (is_tracing := library.is_tracing) is not None and is_tracing():
        return _traced_matmul(a, b, out, NO_CONSTRAINTS)
    try:
        nbytes_product = a.nbytes * b.nbytes
    except RuntimeError:  # sparse tensors have no size in bytes; no plan multiplies them
        nbytes_product = 0
    if nbytes_product < SMALL_BYTES_PRODUCT or is_declined_on_device(library, a, b, nbytes_product):
        try:
            if out is not None:
                return library.vendor_product(a, b, out)
            if library.is_differentiable and a.ndim == 3 == b.ndim and nbytes_product:
                try:
                    return library.fast_stack_product(a, b)
                except RuntimeError:  # the stacks have different lengths, which the product below may accept
                    return library.fast_vendor_product(a, b)
            return library.fast_vendor_product(a, b)
        except RuntimeError:
            if not (library.is_differentiable and a.is_cuda and type_name(a.dtype) in INTEGERS):
                raise  # torch has no integer products on CUDA devices
    if library.is_differentiable:
        return torch_functions_module().matmul_tensors(a, b, out, NO_CONSTRAINTS)
    return matmul.run_matmul(library, a, b, out, NO_CONSTRAINTS)


def multiply_with_options(a: Any, b: Any, out: Any, casting: Any, order: Any, dtype: Any) -> Any:
    """Return the product of two numpy.ndarray objects, with numpy.matmul's options casting, order and dtype."""
    if a.size < early_declines.MIN_PLAN_ENTRIES or is_small_on_host(a, b):
        return numpy_matmul(a, b, out, casting=casting, order=order, dtype=dtype)
    library = NUMPY.adapter_for_matmul_options(matmul_options(casting, order, dtype, {}))
    return matmul.run_matmul(library, a, b, out, NO_CONSTRAINTS)


def dispatch_matmul(request: MatmulRequest) -> Any:
    """Return the product of a checked fmm.matmul call."""
    if request.device is not None and (machine := _streaming_device(request)) is not None:
        from fmm.out_of_core import product

        _refuse_reproducible_streaming(request)
        a, b, _ = unwrap_operands(request.a, request.b, request.constraints)
        library = NUMPY.adapter_for_matmul_options(request.options)
        return product.streamed_matmul(library, a, b, request.out, machine, request.constraints, request.progress)
    if not request.progress:
        return _multiply_on_own_device(request)
    with show_plan_progress():
        return _multiply_on_own_device(request)


def _multiply_on_own_device(request: MatmulRequest) -> Any:
    """Return the product of a checked call, computed on the device that holds the arrays."""
    try:
        a, b, constraints = unwrap_operands(request.a, request.b, request.constraints)
        library = library_of(a, b, request.out).adapter_for_matmul_options(request.options)
        if library.are_torch_calls_recorded():
            # torch.jit.trace traces a function twice and compares the two traces. The first fmm.matmul call of a
            # process runs this function, but later calls run multiply_without_options. Calling multiply_without_options
            # here makes both traces equal.
            plain = constraints is NO_CONSTRAINTS and not request.options and type(a) is type(b) in PLAIN_TYPES
            if plain:
                return multiply_without_options(library, a, b, request.out)
            return _traced_matmul(a, b, request.out, constraints)
        if constraints is NO_CONSTRAINTS and library.processor == "cpu" and is_small_on_host(a, b):
            return library.vendor_product(a, b, request.out)
        if library.is_differentiable:
            return torch_functions_module().matmul_tensors(a, b, request.out, constraints)
        return matmul.run_matmul_any_library(library, a, b, request.out, constraints)
    except (ValueError, RuntimeError) as error:  # the library's own error, with a note if the shapes do not match
        if note := shape_error_note(request.a, request.b):
            error.add_note(note)
        raise


def dispatch_explain_matmul(request: MatmulRequest) -> Decision:
    """Return the decision that `dispatch_matmul` makes for this request; nothing is computed."""
    if note := wrong_side_note(request.a, request.b):
        a, b, _ = unwrap_operands(request.a, request.b, request.constraints)
        decision = dispatch_explain_matmul(request._replace(a=a, b=b))
        return replace(decision, reason=f"{decision.reason}; {note}")
    machine = None if request.device is None else _streaming_device(request)
    a, b, constraints = unwrap_operands(request.a, request.b, request.constraints)
    if machine is not None:
        from fmm.out_of_core import product

        _refuse_reproducible_streaming(request)
        return product.explain_streamed_matmul(
            NUMPY.adapter_for_matmul_options(request.options), a, b, request.out, machine, constraints
        )
    library = library_of(a, b, request.out).adapter_for_matmul_options(request.options)
    if library.is_differentiable:
        explained: Decision = torch_functions_module().explain_tensors(a, b, request.out, constraints)
        return explained
    return matmul.explain_matmul(library, a, b, request.out, constraints)


def _refuse_reproducible_streaming(request: MatmulRequest) -> None:
    """Raise ValueError for reproducible=True: a streamed product adds several products, and each addition rounds."""
    if request.constraints.reproducible:
        raise ValueError(
            f"reproducible=True cannot stream NumPy arrays through device={request.device!r}: pass arrays on the device"
        )


def _streaming_device(request: MatmulRequest) -> StreamingDevice | None:
    """Return the CUDA device through which host arrays are streamed; None if the arrays are already on the device."""
    device = request.device
    assert device is not None
    a, b, _ = unwrap_operands(request.a, request.b, request.constraints)
    on_cpu = _is_cpu_name(device)
    number = 0 if on_cpu else devices.parse_cuda_index(device)
    library = library_of(a, b, request.out)
    if library is NUMPY:
        if on_cpu:
            return None
        _find_device(device, number)  # raises an error if the device does not exist
        from fmm.out_of_core import machine

        return machine.CudaStreamingDevice(number)
    if is_on_device(a) is on_cpu or (not on_cpu and library.device_number(a) != number):
        raise ValueError(f"a is {describe_array(a)}: with device={device!r} fmm.matmul moves NumPy arrays only")
    return None


@lru_cache(maxsize=1)
def torch_functions_module() -> Any:
    """Return the module fmm.runtime.torch_autograd.functions; the first call imports torch."""
    from fmm.runtime.torch_autograd import functions

    return functions


def _traced_matmul(a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Any:
    from fmm.runtime.torch_autograd import operator

    return operator.traced_matmul(a, b, out, constraints)


# ---- gram and gemm


def dispatch_gram(request: GramRequest, key: CallKey | None = None) -> Any:
    """Return the product of a checked fmm.gram call.

    If the library computes the call, the decline is cached under `key`.
    """
    request = _request_with_call_key(request, key, None)
    return (
        torch_functions_module().gram_tensors(*request[1:]) if request.library.is_differentiable else run_gram(*request)
    )


@lru_cache(maxsize=8)
def recurring_gram_function(library: Library) -> Callable[[Library, Any, Any, bool, Triangle], Any]:
    """Return the function that runs a cached fmm.gram call of one array.

    The function returns None if the complete path of fmm.gram must compute the product.
    """
    return torch_functions_module().recurring_gram_tensors if library.is_differentiable else run_recurring_gram


def dispatch_explain_gram(request: GramRequest) -> Decision:
    """Return the decision that `dispatch_gram` makes for this request; nothing is computed."""
    if not request.library.is_differentiable:
        return explain_array_gram(*request[:-1])
    decision: Decision = torch_functions_module().explain_gram_tensors(*request[1:-1])
    return decision


def dispatch_gemm(request: GemmRequest, key: CallKey | None = None) -> Any:
    """Return the result of a checked fmm.gemm call.

    The decline of the call, or its plan on a device, is cached under `key`.
    """
    request = _request_with_call_key(request, key, request.c)
    return (
        torch_functions_module().gemm_tensors(*request[1:]) if request.library.is_differentiable else run_gemm(*request)
    )


def dispatch_explain_gemm(request: GemmRequest) -> Decision:
    """Return the decision that `dispatch_gemm` makes for this request; nothing is computed."""
    if not request.library.is_differentiable:
        return explain_array_gemm(*request[:-1])
    decision: Decision = torch_functions_module().explain_gemm_tensors(*request[1:-1])
    return decision


RequestT = TypeVar("RequestT", GemmRequest, GramRequest)


def _request_with_call_key(request: RequestT, key: CallKey | None, c: Any) -> RequestT:
    """Return the request with the key under which its decline or plan is cached, if all operands have one type."""
    arrays = request.a, request.b, c, request.out
    if key is None or any(x is not None and x.dtype != request.a.dtype for x in arrays):
        return request
    a, b = request.a, request.a if request.b is None else request.b
    try:
        is_large = a.nbytes * b.nbytes >= SMALL_BYTES_PRODUCT
    except RuntimeError:  # sparse tensors have no size in bytes; no plan multiplies them
        return request
    return request._replace(recurring=RecurringCall(key, request.params, arrays, is_large))


# ---- decisions without arrays

_NUMPY_TYPES = tuple(TYPE_NAMES.values())
# The prefixes of the names of element types that torch has and NumPy lacks.
_TORCH_TYPE_PREFIXES = "bfloat16", "tf32", "complex32", "float4", "float8"


def plan_without_arrays(
    size: Shape, dtype: str, op: Operation, device: str | int, constraints: PlanConstraints
) -> Decision:
    """Return the decision for a product of row-major arrays; `size` is (m, k, n)."""
    if not isinstance(op, str) or op not in OPERATIONS:
        raise ValueError(f"unknown operation {op!r}; valid: {', '.join(OPERATIONS)}")
    on_cpu = _is_cpu_name(device)
    number = blas_threads() if on_cpu else devices.parse_cuda_index(device)
    if dtype not in (_NUMPY_TYPES if on_cpu else DTYPES):
        return _fallback_decision(dtype, on_cpu, constraints)
    found = _find_device(device, number)
    workspace = constraints.workspace
    if workspace is None:
        workspace = default_workspace_bytes(NUMPY if on_cpu else cupy_library(), number)
    growth = found.error_growth if constraints.error_growth is None else constraints.error_growth
    limits: Limits = limits_without_arrays(op, dtype, workspace, growth)
    problem = Problem(*size, dtype, op=op, componentwise=limits.componentwise and op == "product")
    return matmul.decide_without_arrays(problem, limits, found, constraints.plan)


def _fallback_decision(dtype: str, on_cpu: bool, constraints: PlanConstraints) -> Decision:
    """Return the decision for the vendor, for an element type that no plan multiplies."""
    library = ("torch" if dtype.startswith(_TORCH_TYPE_PREFIXES) else "NumPy") if on_cpu else "the vendor"
    if constraints.plan not in (None, VENDOR):
        raise PlanError(f"the plan {constraints.plan} cannot run here: {dtype} products have no plan")
    return Decision(VENDOR, None, f"{library} multiplies: {dtype} products have no plan")


def _is_cpu_name(device: object) -> bool:
    """Return True for the text "cpu"; the type is checked first, since `array == "cpu"` would compare every entry."""
    return isinstance(device, str) and device == "cpu"


def _find_device(device: str | int, number: int) -> devices.Device:
    """Return the device with this index; error messages show `device` as the caller wrote it."""
    try:
        return devices.get_device("cpu" if _is_cpu_name(device) else "cuda", number)
    except ModuleNotFoundError as error:
        needed = f"device={device!r} needs CuPy: pip install '.[cuda13]' (or cuda12) in fmm's clone"
        raise ModuleNotFoundError(needed) from error
    except ImportError as error:
        raise ImportError(f"device={device!r} needs CuPy, which does not load: {error}") from error
