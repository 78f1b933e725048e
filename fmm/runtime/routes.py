"""By which way a call is answered: by torch's, through a device, by a plan, or by the library at once.

The modules that few programs need, and those that load torch or CuPy, are loaded by the first call that goes there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fmm.arrays.kinds import array_in_words, on_device
from fmm.arrays.library import Library
from fmm.arrays.numpy_library import NAMES, NUMPY
from fmm.arrays.pick import PLAIN_TYPES, cupy_library, library_of
from fmm.dtypes import DTYPES
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.problem import OPERATIONS, Operation, Problem, Shape
from fmm.runtime import devices, matmul
from fmm.runtime.arguments.gemm import AskedGemm
from fmm.runtime.arguments.gram import AskedGram
from fmm.runtime.arguments.result import single
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.left_to_vendor import SMALL_BYTES, left_to_vendor, small_enough_for_numpy
from fmm.runtime.decisions.limits import NO_WISHES, Wishes, limits_without_arrays, memory_share
from fmm.runtime.gemm import gemm_explained, gemm_product
from fmm.runtime.gram import Half, gram_explained, gram_product, known_gram
from fmm.runtime.prepared_operand import side_note, unwrapped, wrong_side
from fmm.runtime.progress import progress_of_plans
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
        return _recorded_product(a, b, out, NO_WISHES)
    try:
        room = a.nbytes * b.nbytes
    except RuntimeError:  # sparse tensors and the like have no such numbers, and no plans
        room = 0
    if room < SMALL_BYTES or left_to_vendor(library, a, b, room):
        try:
            return library.quick_vendor(a, b) if out is None else library.vendor(a, b, out)
        except RuntimeError:
            if not library.lacks(a):
                raise
    if library.differentiable:
        return _torch_products().product(a, b, out, NO_WISHES)
    return matmul.product(library, a, b, out, NO_WISHES)


def any_product(a: Any, b: Any, out: Any, options: Mapping[str, Any], wishes: Wishes) -> Any:
    """The product of any arrays with any options."""
    try:
        return _product_of_arrays(*unwrapped(a, b, wishes), out if out is None else single(out), options)
    except (ValueError, RuntimeError) as error:  # the library's own, for shapes that do not match
        if note := side_note(a, b):
            error.add_note(note)
        raise


def _product_of_arrays(a: Any, b: Any, wishes: Wishes, out: Any, options: Mapping[str, Any]) -> Any:
    library = library_of(a, b, out).with_options(options)
    if library.watched():
        # (The first of all calls comes here; those after it do not, and torch.jit.trace compares where they went.)
        plain = wishes is NO_WISHES and not options and type(a) is type(b) in PLAIN_TYPES
        return plain_product(library, a, b, out) if plain else _recorded_product(a, b, out, wishes)
    if wishes is NO_WISHES and library.processor == "cpu" and small_enough_for_numpy(a, b):
        return library.vendor(a, b, out)
    if library.differentiable:
        return _torch_products().product(a, b, out, wishes)
    return matmul.product_of_any(library, a, b, out, wishes)


def product_on(
    device: str | int | None, a: Any, b: Any, out: Any, options: Mapping[str, Any], wishes: Wishes, progress: bool
) -> Any:
    """The product on a device: arrays on the host are streamed through it, those that are there stay there. Without a
    device it is where the arrays are."""
    machine = None if device is None else _machine_for(device, *unwrapped(a, b, wishes)[:2], single(out))
    if machine is None:
        with progress_of_plans() if progress else nullcontext():
            return any_product(a, b, out, options, wishes)
    from fmm.out_of_core import product

    x, y, _ = unwrapped(a, b, wishes)
    return product.host_product(NUMPY.with_options(options), x, y, single(out), machine, wishes, progress)


def product_explained(
    device: str | int | None, a: Any, b: Any, out: Any, options: Mapping[str, Any], wishes: Wishes
) -> Decision:
    """What `any_product` would do, or with a device `product_on`, and why."""
    if told := wrong_side(a, b):
        found = product_explained(device, *unwrapped(a, b, wishes)[:2], out, options, wishes)
        return replace(found, reason=f"{found.reason}; {told}")
    out = single(out)
    a, b, wishes = unwrapped(a, b, wishes)
    machine = None if device is None else _machine_for(device, a, b, out)
    if machine is not None:
        from fmm.out_of_core import product

        return product.explained(NUMPY.with_options(options), a, b, out, machine, wishes)
    library = library_of(a, b, out).with_options(options)
    if library.differentiable:
        from fmm.runtime.tensors import gradients

        return gradients.explained(a, b, out, wishes)
    return matmul.explained(library, a, b, out, wishes)


def _machine_for(device: str | int, a: Any, b: Any, out: Any) -> Machine | None:
    """The device through which arrays of the host are to be streamed; None if they are where they are to be."""
    on_cpu = _is_cpu(device)
    number = 0 if on_cpu else devices.cuda_index(device)
    library = library_of(a, b, out)
    if library is NUMPY:
        if on_cpu:
            return None
        _device(device, number)  # where there is none, this says so
        from fmm.out_of_core import machine

        return machine.CudaMachine(number)
    if on_device(a) is on_cpu or (not on_cpu and library.device_number(a) != number):
        raise ValueError(f"a is {array_in_words(a)}: to device={device!r} fmm.matmul moves NumPy's arrays alone")
    return None


@lru_cache(maxsize=1)
def _torch_products() -> Any:
    """The module in which torch's products begin, which loads torch."""
    from fmm.runtime.tensors import gradients

    return gradients


def _recorded_product(a: Any, b: Any, out: Any, wishes: Wishes) -> Any:
    """Of tensors, while somebody records torch's calls."""
    from fmm.runtime.tensors import graph_operator

    return graph_operator.recorded_product(a, b, out, wishes)


# ---- half of C, updates of C, semirings


def half_product(asked: AskedGram) -> Any:
    return _torch_products().gram(*asked[1:]) if asked.library.differentiable else gram_product(*asked)


@lru_cache(maxsize=8)
def known_half_product(library: Library) -> Callable[[Library, Any, Any, bool, Half], Any]:
    """Who multiplies its arrays, where little is asked; what that gives is None where the usual way must see it."""
    return _torch_products().known_gram if library.differentiable else known_gram


def half_product_explained(asked: AskedGram) -> Decision:
    if not asked.library.differentiable:
        return gram_explained(*asked)
    from fmm.runtime.tensors import gradients

    return gradients.gram_explained(*asked[1:])


def updated_product(asked: AskedGemm) -> Any:
    if not asked.library.differentiable:
        return gemm_product(*asked)
    from fmm.runtime.tensors import gemm

    return gemm.gemm(*asked[1:])


def updated_product_explained(asked: AskedGemm) -> Decision:
    if not asked.library.differentiable:
        return gemm_explained(*asked)
    from fmm.runtime.tensors import gemm

    return gemm.explained(*asked[1:])


def minplus_product(a: Any, b: Any, out: Any, maximum: bool, argmin: bool) -> Any:
    from fmm.semirings import shortest_paths

    return shortest_paths.minplus_product(a, b, single(out), maximum, argmin)


def all_shortest_paths(d: Any, out: Any, request: PathRequest) -> Any:
    from fmm.semirings import shortest_paths

    return shortest_paths.all_shortest_paths(d, single(out), request)


# ---- decisions without arrays


def planned_product(size: Shape, dtype: str, op: Operation, device: str | int, wishes: Wishes) -> Decision:
    """The decision for arrays that lie row by row on a device."""
    if not isinstance(op, str):
        raise ValueError(f"unknown operation {op!r}; valid: {', '.join(OPERATIONS)}")
    on_cpu = _is_cpu(device)
    number = blas_threads() if on_cpu else devices.cuda_index(device)
    if dtype not in (_NUMPYS if on_cpu else DTYPES):
        who = _who_has(dtype) if on_cpu else "the vendor"
        whose = f"{who}'s" if on_cpu else "its"
        if wishes.plan not in (None, VENDOR):
            raise PlanError(f"the plan {wishes.plan} cannot run here: {dtype} products are {whose} own")
        return Decision(VENDOR, None, f"{who} answers: {dtype} products are {whose} own")
    found = _device(device, number)
    room = wishes.workspace
    if room is None:
        room = memory_share(NUMPY if on_cpu else cupy_library(), number)
    growth = found.error_growth if wishes.error_growth is None else wishes.error_growth
    limits = limits_without_arrays(op, dtype, room, growth)
    problem = Problem(*size, dtype, op=op, componentwise=limits.componentwise)
    return matmul.planned(problem, limits, found, wishes.plan)


def _who_has(dtype: str) -> str:
    """The library that multiplies numbers of this type on the host."""
    return "torch" if dtype.startswith(_NOT_NUMPYS) else "NumPy"


def _is_cpu(device: object) -> bool:
    """Was the processor asked for? (An array, given by mistake, would be compared number by number.)"""
    return isinstance(device, str) and device == "cpu"


def _device(device: str | int, number: int) -> devices.Device:
    """The device of that number, by whatever name it was asked for."""
    try:
        return devices.device_of("cpu" if _is_cpu(device) else "cuda", number)
    except ModuleNotFoundError as error:
        needed = f"device={device!r} needs CuPy: pip install 'fmm-tune[cuda13]' (or cuda12)"
        raise ModuleNotFoundError(needed) from error
    except ImportError as error:
        raise ImportError(f"device={device!r} needs CuPy, which does not load: {error}") from error
