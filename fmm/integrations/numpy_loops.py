"""Installation of fmm in numpy.matmul and `@`: new inner loops in NumPy's own ufunc, for types that plans support.

The ufunc object itself stays, so other libraries recognize numpy.matmul. NumPy checks, casts and allocates the arrays.
The compiled loops (numpy_loops.cpp) call NumPy's own loops for small products and `compute_loop_product` for large
products.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from fmm.arrays.numpy_library import BLAS_DTYPES, INTEGER_DTYPES, NUMPY, TYPE_NAMES, NumpyLibrary
from fmm.config.environment import log_once
from fmm.integrations.compiled_library import CLibrarySource
from fmm.integrations.report import (
    ProductKind,
    ProductOutcome,
    count_outcome,
    count_product,
    is_reporting,
    register_counting_callback,
)
from fmm.kernels.cpu.host_arrays import matmul as numpy_matmul
from fmm.kernels.cpu.worker_threads import after_fork_in_child
from fmm.runtime.decisions import early_declines
from fmm.runtime.decisions.decide import MIN_INTEGER_PLAN_SIDE
from fmm.runtime.decisions.limits import NO_CONSTRAINTS
from fmm.runtime.matmul import explain_matmul, run_matmul
from fmm.runtime.prepare import prepare_call

CPP_SOURCE = Path(__file__).with_suffix(".cpp")
NO_PLAN_SIDE = 0  # as the smallest side of a type, this value means that NumPy computes all products of the type
# From this number of multiply-adds on, fmm chooses a plan at the first product of new sizes. NumPy computes a smaller
# first product, and fmm chooses a plan at the second product of the same sizes. The choice of a plan takes about a
# millisecond; a product with FIRST_PRODUCT_WORK multiply-adds takes far longer. The number is smaller for integers,
# since NumPy multiplies integers more slowly.
FIRST_PRODUCT_WORK, FIRST_INTEGER_PRODUCT_WORK = 1 << 31, 1 << 24
# fmm's calls run only functions of OWN_PACKAGES. If a traceback contains a function of another package, the exception
# came from a signal handler.
OWN_PACKAGES = {"fmm", "numpy", "scipy", "numba", "llvmlite", *sys.stdlib_module_names}
REPLACE_LOOP_INDEX = 30  # index of PyUFunc_ReplaceLoopBySignature in the table of NumPy's C functions for ufuncs
DTYPES_BY_NUMBER: dict[int, np.dtype[Any]] = {dtype.num: dtype for dtype in TYPE_NAMES}

FIRST_PRODUCT_REASON = "NumPy computes the first product of these sizes, since a decision might take longer"
# Return values of `compute_loop_product`. Unless `compute_loop_product` returns WRITTEN, NumPy's own loop computes the
# product. After DECLINED, the compiled loops do not call `compute_loop_product` for products of the same sizes for one
# second. After DECLINED_NOW, the compiled loops call `compute_loop_product` for the next product.
DECLINED, WRITTEN, DECLINED_NOW = range(3)

_installed_loops: list[CompiledLoops] = []  # the installed loops, at most one


def install() -> Callable[[], None]:
    """Put fmm's loops into numpy.matmul, and return the function that removes them.

    Raise OSError if the loops cannot be compiled.
    """
    loops = load_compiled_loops()
    _installed_loops.append(loops)
    stop_watching = register_counting_callback(set_loop_size_limits)

    def undo_installation() -> None:
        stop_watching()
        _installed_loops.remove(loops)
        for number in DTYPES_BY_NUMBER:
            loops.set_limits(number, NO_PLAN_SIDE, 0.0)
        loops.restore_loops()

    try:
        set_loop_size_limits()
        loops.replace_loops()
    except BaseException:  # Ctrl-C
        undo_installation()
        raise
    return undo_installation


def set_loop_size_limits() -> None:
    """Set the smallest sizes of products for which the compiled loops call Python.

    While a report counts products, the smallest size is 1.
    """
    limits = (
        (BLAS_DTYPES, early_declines.MIN_PLAN_SIDE, FIRST_PRODUCT_WORK),
        (INTEGER_DTYPES, MIN_INTEGER_PLAN_SIDE, FIRST_INTEGER_PRODUCT_WORK),
    )
    for loops in _installed_loops:
        loops.set_call_always(is_reporting())
        for types, side, work in limits:
            for dtype in types:
                loops.set_limits(dtype.num, 1 if is_reporting() else side, work)


# ---- the compiled loops


class CompiledLoops:
    """The functions of numpy_loops.cpp, and the element types for which numpy.matmul has fmm's loops at present."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.fmm_limits.argtypes = ctypes.c_int, ctypes.c_int64, ctypes.c_double
        library.fmm_main_thread.argtypes = (ctypes.c_ulong,)
        library.fmm_python_function.argtypes = (ctypes.py_object,)
        self.set_limits, self.set_call_always = library.fmm_limits, library.fmm_call_always
        self._set_main_thread = library.fmm_main_thread
        exchange = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.py_object)  # under the GIL
        self._replace, self._restore = exchange(("fmm_replace", library)), exchange(("fmm_restore", library))
        self._replace_loop = numpy_function_address(REPLACE_LOOP_INDEX)
        self._replaced: set[int] = set()  # NumPy's type numbers of the element types whose loops are replaced
        library.fmm_python_function(compute_loop_product)
        self._store_main_thread_id()
        after_fork_in_child(self._store_main_thread_id)

    def _store_main_thread_id(self) -> None:
        self._set_main_thread(threading.main_thread().ident)

    def replace_loops(self) -> None:
        """Replace NumPy's loop by fmm's loop for each element type that plans support.

        For the products that fmm declines, fmm's loop calls NumPy's loop.
        """
        for number in DTYPES_BY_NUMBER.keys() - self._replaced:
            if self._replace(number, self._replace_loop, numpy_matmul) == 0:
                self._replaced.add(number)

    def restore_loops(self) -> None:
        """Restore NumPy's loops.

        If another package replaced fmm's loop, the package's loop stays and calls fmm's loop.
        """
        self._replaced = {x for x in self._replaced if self._restore(x, self._replace_loop, numpy_matmul)}


@lru_cache(maxsize=1)
def load_compiled_loops() -> CompiledLoops:
    """Load the loops from the cache, or compile them; raise OSError if the loops cannot be compiled."""
    if not isinstance(numpy_matmul, np.ufunc):
        raise OSError("numpy.matmul is not NumPy's own")
    options = ["-std=c++17", "-O2", "-shared", "-fPIC"]
    options += ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    return CompiledLoops(
        CLibrarySource("fmm's loop for numpy.matmul", CPP_SOURCE, options).load_library(needs_cache=False)
    )


def numpy_function_address(number: int) -> int:
    """Return the address of the function with this index in the table of NumPy's C interface for ufuncs."""
    core = "numpy._core" if "numpy._core" in sys.modules else "numpy.core"  # NumPy 1.26
    capsule = sys.modules[f"{core}._multiarray_umath"]._UFUNC_API
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.argtypes, get_pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    table = ctypes.cast(get_pointer(capsule, None), ctypes.POINTER(ctypes.c_void_p))
    return table[number] or 0


# ---- the products that the loops hand over


def compute_loop_product(
    number: int,
    pays: bool,
    addresses: tuple[int, int, int],
    sizes: tuple[int, int, int, int],
    steps: tuple[int, ...],
) -> int:
    """Compute a stack of products into C with a plan and return WRITTEN.

    Return DECLINED or DECLINED_NOW if NumPy's own loop must compute the stack.

    If `pays` is False, choosing a plan may take longer than the product, so no plan is chosen. An active report still
    counts the product.

    Exceptions of signal handlers pass through this function, and the compiled loop raises them when the product is
    complete. Any other exception is an error of fmm: it is logged, and NumPy's loop computes the product.
    """
    try:
        if _is_called_by_fmm():
            return DECLINED_NOW
        a, b, c = _loop_operands(DTYPES_BY_NUMBER[number], addresses, sizes, steps)
        return _compute_and_count(a, b, c, pays)
    except Exception as error:
        if _is_from_signal_handler(error.__traceback__):
            raise
        log_once(f"numpy.matmul multiplies without fmm: {type(error).__name__}: {error}")
        return DECLINED_NOW


def _is_called_by_fmm() -> bool:
    """Return True if fmm itself called numpy.matmul, to compute the vendor's product.

    Since NumPy's loops are written in C and have no Python frame, the caller of numpy.matmul is the frame before the
    frame of `compute_loop_product`.
    """
    caller = sys._getframe(1).f_back
    return caller is not None and str(caller.f_globals.get("__name__", "")).startswith("fmm.")


def _is_from_signal_handler(trace: TracebackType | None) -> bool:
    """Return True if the traceback has a function outside OWN_PACKAGES: a signal handler that ran inside fmm."""
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in OWN_PACKAGES:
            return True
        trace = trace.tb_next
    return False


def _loop_operands(
    dtype: np.dtype[Any], addresses: tuple[int, int, int], sizes: tuple[int, int, int, int], steps: tuple[int, ...]
) -> list[Any]:
    """Return A, B and C, each as a view of the loop's memory: a matrix or a stack of matrices."""
    count, m, k, n = sizes
    shapes: list[tuple[int, ...]] = [(m, k), (k, n), (m, n)]
    has_one_b = steps[1] == 0 != steps[0]  # all matrices A are multiplied by one matrix B
    arrays = []
    for i, (address, shape) in enumerate(zip(addresses, shapes, strict=True)):
        strides = steps[3 + 2 * i : 5 + 2 * i]
        if count > 1 and not (i == 1 and has_one_b):
            shape, strides = (count, *shape), (steps[i], *strides)
        arrays.append(np.asarray(_LoopOperandMemory(address, shape, strides, dtype)))
    return arrays


class _LoopOperandMemory:
    """Memory that NumPy passed to a loop, with the array interface, so that NumPy can view the memory as an array."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "strides": strides,
            "typestr": dtype.str,
            "data": (address, False),
        }


def _compute_and_count(a: Any, b: Any, c: Any, pays: bool) -> int:
    """Compute C = A B if a plan is faster than NumPy, and count the product if a report is active."""
    if not is_reporting():
        return _multiply_by_plan(a, b, c) if pays else DECLINED_NOW
    kind = ProductKind("numpy.matmul", a.shape, b.shape, a.dtype.name)
    if not (pays or early_declines.is_small_on_host(a, b)):
        count_outcome(kind, ProductOutcome("", FIRST_PRODUCT_REASON))
        return DECLINED_NOW
    answer: int = count_product(
        kind, partial(_multiply_by_plan, a, b, c), partial(explain_matmul, NUMPY, a, b, c, NO_CONSTRAINTS)
    )
    # The report must count every product. After DECLINED, the compiled loops would not call this function for the next
    # product of the same sizes.
    return DECLINED_NOW if answer == DECLINED else answer


def _multiply_by_plan(a: Any, b: Any, c: Any) -> int:
    if early_declines.is_small_on_host(a, b) or early_declines.was_declined(NUMPY, a, b):
        return DECLINED
    library = LoopLibrary()
    call = prepare_call(library, a, b, c, NO_CONSTRAINTS)
    # An online measurement times complete products, so the adapter NUMPY also computes the vendor's products.
    run_matmul(library if call.decision.trial is None else NUMPY, a, b, c, NO_CONSTRAINTS)
    if library.is_declined:
        return DECLINED if call.plan is None else DECLINED_NOW
    return WRITTEN


class LoopLibrary(NumpyLibrary):
    """The NumPy adapter for products inside a loop of numpy.matmul.

    The method `vendor_product` computes nothing: it records that NumPy's own loop must multiply.
    """

    def __init__(self) -> None:
        super().__init__()
        # the adapter NUMPY runs the same plans, so both adapters share their prepared calls
        self.cached_calls = NUMPY.cached_calls
        self.is_declined = False

    def vendor_product(self, a: Any, b: Any, out: Any = None) -> Any:
        self.is_declined = True
        return out

    def vendor_call(self, a: Any, b: Any, out: Any) -> Callable[[], Any]:
        return partial(self.vendor_product, a, b, out)
