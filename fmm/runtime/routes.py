"""By which way a call is answered: by torch's, through a device, by a plan, or by the library at once.

The modules that few programs need, and those that load torch or CuPy, are loaded by the first call that goes there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fmm.arrays.detect import PLAIN_TYPES, cupy_library, describe_array, library_of, on_device
from fmm.arrays.library import Library
from fmm.arrays.numpy_library import NAMES, NUMPY
from fmm.dtypes import DTYPES
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.problem import OPERATIONS, Operation, Problem, Shape
from fmm.request import GemmRequest, GramRequest, unwrap_out
from fmm.runtime import devices, matmul
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.early_declines import SMALL_BYTES, is_declined_on_device, is_small_on_host
from fmm.runtime.decisions.limits import NO_CONSTRAINTS, PlanConstraints, default_workspace_bytes, limits_without_arrays
from fmm.runtime.gemm import explain_gemm, run_gemm
from fmm.runtime.gram import Triangle, explain_gram, run_gram, run_recurring_gram
from fmm.runtime.prepared_operand import other_side_note, unwrap_operands, wrong_side_note
from fmm.runtime.progress import plan_progress
from fmm.semirings.path_request import PathRequest

if TYPE_CHECKING:
    from fmm.out_of_core.machine import Machine

_NUMPYS = tuple(NAMES.values())
_NOT_NUMPYS = "bfloat16", "tf32", "complex32", "float4", "float8"  # names begin so of types that torch alone has


# ---- products


def plain_product(library: Library, a: Any, b: Any, out: Any = None) -> Any:
    """The product of two of CuPy's arrays, or of torch's tensors, of which nothing else is asked.

    (Where `out` is, torch asks itself; CuPy does not, so that its calls with `out` go another way.)
    """
    if (watched := library.quickly_watched) is not None and watched():
        return _recorded_product(a, b, out, NO_CONSTRAINTS)
    try:
        room = a.nbytes * b.nbytes
    except RuntimeError:  # sparse tensors and the like have no such numbers, and no plans
        room = 0
    if room < SMALL_BYTES or is_declined_on_device(library, a, b, room):
        try:
            return library.quick_vendor(a, b) if out is None else library.vendor(a, b, out)
        except RuntimeError:
            if not library.lacks(a):
                raise
    if library.differentiable:
        return _torch_products().product(a, b, out, NO_CONSTRAINTS)
    return matmul.run_matmul(library, a, b, out, NO_CONSTRAINTS)


def any_product(a: Any, b: Any, out: Any, options: Mapping[str, Any], constraints: PlanConstraints) -> Any:
    """The product of any arrays with any options."""
    try:
        return _product_of_arrays(*unwrap_operands(a, b, constraints), out if out is None else unwrap_out(out), options)
    except (ValueError, RuntimeError) as error:  # the library's own, for shapes that do not match
        if note := other_side_note(a, b):
            error.add_note(note)
        raise


def _product_of_arrays(a: Any, b: Any, constraints: PlanConstraints, out: Any, options: Mapping[str, Any]) -> Any:
    library = library_of(a, b, out).with_options(options)
    if library.watched():
        # (The first of all calls comes here; those after it do not, and torch.jit.trace compares where they went.)
        plain = constraints is NO_CONSTRAINTS and not options and type(a) is type(b) in PLAIN_TYPES
        return plain_product(library, a, b, out) if plain else _recorded_product(a, b, out, constraints)
    if constraints is NO_CONSTRAINTS and library.processor == "cpu" and is_small_on_host(a, b):
        return library.vendor(a, b, out)
    if library.differentiable:
        return _torch_products().product(a, b, out, constraints)
    return matmul.run_matmul_any_library(library, a, b, out, constraints)


def product_on(
    device: str | int | None,
    a: Any,
    b: Any,
    out: Any,
    options: Mapping[str, Any],
    constraints: PlanConstraints,
    progress: bool,
) -> Any:
    """The product on a device: arrays on the host are streamed through it, those that are there stay there. Without a
    device it is where the arrays are."""
    machine = None if device is None else _machine_for(device, *unwrap_operands(a, b, constraints)[:2], unwrap_out(out))
    if machine is None:
        with plan_progress() if progress else nullcontext():
            return any_product(a, b, out, options, constraints)
    from fmm.out_of_core import product

    x, y, _ = unwrap_operands(a, b, constraints)
    return product.streamed_matmul(NUMPY.with_options(options), x, y, unwrap_out(out), machine, constraints, progress)


def product_explained(
    device: str | int | None, a: Any, b: Any, out: Any, options: Mapping[str, Any], constraints: PlanConstraints
) -> Decision:
    """What `any_product` would do, or with a device `product_on`, and why."""
    if told := wrong_side_note(a, b):
        found = product_explained(device, *unwrap_operands(a, b, constraints)[:2], out, options, constraints)
        return replace(found, reason=f"{found.reason}; {told}")
    out = unwrap_out(out)
    a, b, constraints = unwrap_operands(a, b, constraints)
    machine = None if device is None else _machine_for(device, a, b, out)
    if machine is not None:
        from fmm.out_of_core import product

        return product.explain_streamed_matmul(NUMPY.with_options(options), a, b, out, machine, constraints)
    library = library_of(a, b, out).with_options(options)
    if library.differentiable:
        from fmm.runtime.torch_autograd import functions

        return functions.explain_tensors(a, b, out, constraints)
    return matmul.explain_matmul(library, a, b, out, constraints)


def _machine_for(device: str | int, a: Any, b: Any, out: Any) -> Machine | None:
    """The device through which arrays of the host are to be streamed; None if they are where they are to be."""
    on_cpu = _is_cpu(device)
    number = 0 if on_cpu else devices.parse_cuda_index(device)
    library = library_of(a, b, out)
    if library is NUMPY:
        if on_cpu:
            return None
        _device(device, number)  # where there is none, this says so
        from fmm.out_of_core import machine

        return machine.CudaMachine(number)
    if on_device(a) is on_cpu or (not on_cpu and library.device_number(a) != number):
        raise ValueError(f"a is {describe_array(a)}: to device={device!r} fmm.matmul moves NumPy's arrays alone")
    return None


@lru_cache(maxsize=1)
def _torch_products() -> Any:
    """The module in which torch's products begin, which loads torch."""
    from fmm.runtime.torch_autograd import functions

    return functions


def _recorded_product(a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Any:
    """Of tensors, while somebody records torch's calls."""
    from fmm.runtime.torch_autograd import operator

    return operator.recorded_product(a, b, out, constraints)


# ---- half of C, updates of C, semirings


def half_product(asked: GramRequest) -> Any:
    return _torch_products().gram(*asked[1:]) if asked.library.differentiable else run_gram(*asked)


@lru_cache(maxsize=8)
def known_half_product(library: Library) -> Callable[[Library, Any, Any, bool, Triangle], Any]:
    """Who multiplies its arrays, where little is asked; what that gives is None where the usual way must see it."""
    return _torch_products().known_gram if library.differentiable else run_recurring_gram


def half_product_explained(asked: GramRequest) -> Decision:
    if not asked.library.differentiable:
        return explain_gram(*asked)
    from fmm.runtime.torch_autograd import functions

    return functions.explain_gram_tensors(*asked[1:])


def updated_product(asked: GemmRequest) -> Any:
    if not asked.library.differentiable:
        return run_gemm(*asked)
    from fmm.runtime.torch_autograd import functions

    return functions.gemm_tensors(*asked[1:])


def updated_product_explained(asked: GemmRequest) -> Decision:
    if not asked.library.differentiable:
        return explain_gemm(*asked)
    from fmm.runtime.torch_autograd import functions

    return functions.explain_gemm_tensors(*asked[1:])


def minplus_product(a: Any, b: Any, out: Any, maximum: bool, argmin: bool) -> Any:
    from fmm.semirings import minplus

    return minplus.minplus_product(a, b, unwrap_out(out), maximum, argmin)


def all_shortest_paths(d: Any, out: Any, request: PathRequest) -> Any:
    from fmm.semirings import shortest_paths

    return shortest_paths.all_shortest_paths(d, unwrap_out(out), request)


# ---- decisions without arrays


def planned_product(
    size: Shape, dtype: str, op: Operation, device: str | int, constraints: PlanConstraints
) -> Decision:
    """The decision for arrays that lie row by row on a device."""
    if not isinstance(op, str):
        raise ValueError(f"unknown operation {op!r}; valid: {', '.join(OPERATIONS)}")
    on_cpu = _is_cpu(device)
    number = blas_threads() if on_cpu else devices.parse_cuda_index(device)
    if dtype not in (_NUMPYS if on_cpu else DTYPES):
        who = _who_has(dtype) if on_cpu else "the vendor"
        whose = f"{who}'s" if on_cpu else "its"
        if constraints.plan not in (None, VENDOR):
            raise PlanError(f"the plan {constraints.plan} cannot run here: {dtype} products are {whose} own")
        return Decision(VENDOR, None, f"{who} answers: {dtype} products are {whose} own")
    found = _device(device, number)
    room = constraints.workspace
    if room is None:
        room = default_workspace_bytes(NUMPY if on_cpu else cupy_library(), number)
    growth = found.error_growth if constraints.error_growth is None else constraints.error_growth
    limits = limits_without_arrays(op, dtype, room, growth)
    problem = Problem(*size, dtype, op=op, componentwise=limits.componentwise)
    return matmul.decide_without_arrays(problem, limits, found, constraints.plan)


def _who_has(dtype: str) -> str:
    """The library that multiplies numbers of this type on the host."""
    return "torch" if dtype.startswith(_NOT_NUMPYS) else "NumPy"


def _is_cpu(device: object) -> bool:
    """Was the processor asked for? (An array, given by mistake, would be compared number by number.)"""
    return isinstance(device, str) and device == "cpu"


def _device(device: str | int, number: int) -> devices.Device:
    """The device of that number, by whatever name it was asked for."""
    try:
        return devices.get_device("cpu" if _is_cpu(device) else "cuda", number)
    except ModuleNotFoundError as error:
        needed = f"device={device!r} needs CuPy: pip install 'fmm-tune[cuda13]' (or cuda12)"
        raise ModuleNotFoundError(needed) from error
    except ImportError as error:
        raise ImportError(f"device={device!r} needs CuPy, which does not load: {error}") from error
