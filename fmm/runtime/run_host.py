"""Running a prepared call on the host: a workspace, the check for overflow, and the plan on NumPy's views."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import repeat
from math import prod
from typing import Any

import numpy as np

from fmm.arrays.host_memory import borrowed_block
from fmm.arrays.library import HostLibrary
from fmm.dtypes import DTYPES
from fmm.kernels.cpu.exact_product import describe_digits
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Arena, Array
from fmm.kernels.cpu.numpy_backend import ProgressCallback
from fmm.kernels.cpu.openblas import loaded_openblas
from fmm.kernels.cpu.parallel_products import CONCURRENT_PRODUCTS, MIN_CONCURRENT_FLOPS, backend_for
from fmm.kernels.cpu.thread_pool import Threads
from fmm.kernels.cpu.worker_threads import NoThreadError, run_on_worker
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.steps.asked import PLAIN, Asked
from fmm.kernels.plans.workspace import leaf_halves, leaf_products
from fmm.problem import Problem, without_layouts
from fmm.runtime.call_record import record_fallback
from fmm.runtime.decisions.decide import expected_seconds
from fmm.runtime.overflow import may_overflow
from fmm.runtime.prepare import PreparedCall
from fmm.runtime.progress import Progress, current_progress

SMALL = 256 * 1024  # bytes of each operand and of the product, below which a plan gains nothing from a second thread


class PartlyAddedError(RuntimeError):
    """Memory ran out while a product was added to an array, which nobody can restore."""


class _LeftToVendorError(Exception):
    """The vendor must multiply, since numbers may overflow, or for want of room; what has been done is written over."""


def run_call(library: HostLibrary, call: PreparedCall, a: Any, b: Any, out: Any, given: bool, added: Any = None) -> Any:
    """C by the call's plan; None if the vendor must multiply, because numbers may overflow. `added`: what is added,
    where C does not hold it, of C's shape.

    `out` is complete or untouched, whatever leaves. So nothing that a signal could interrupt writes there: a thread of
    ours does, for which the caller waits within one call of C, or a copy from an array that nobody else sees. (NumPy's
    own product is one call of C too.)

    (What is added to `out` itself cannot be begun anew: if memory runs out in its middle, PartlyAddedError says so.)
    """
    if np.geterr()["under"] != "ignore" and not DTYPES[call.dtype].exact:
        record_fallback("numpy.errstate asks to be told of underflow, and a plan's sums have their own")
        return None
    assert call.result is not None
    c = library.new_array(call.result) if out is None else out
    x, y, z = (library.as_numpy(v) for v in (a, b, c))
    if out is not None:
        library.written(out)
    multiplier = _Multiplier(call, None if added is None else library.as_numpy(added))
    try:
        if call.plan == VENDOR and not (multiplier.half or multiplier.updates):
            multiplier.fill(x, y, z)  # one product, which hears of the caller's settings (numpy.errstate)
        elif max(x.nbytes, y.nbytes, z.nbytes) > SMALL and _products_run_anywhere():
            completes = out is not None and multiplier.can_be_completed
            whole = _whole_by_vendor(library.vendor_call(a, b, out), z, multiplier) if completes else []
            _fill_apart(multiplier, x, y, z, whole, given)
        else:
            _fill_here(multiplier, x, y, z, out is not None, given)
    except _LeftToVendorError as why:
        record_fallback(str(why))
        return None
    except NoThreadError:
        if not given:
            record_fallback("no thread can be started")
            return None
        _fill_here(multiplier, x, y, z, out is not None, given)
    if call.plan == VENDOR and _numpy_might_warn(call, z):
        return None
    return library.returned(c) if out is None else out


def _numpy_might_warn(call: PreparedCall, c: Array) -> bool:
    """Might NumPy's own product of a matrix and its transpose, which calls the same function of BLAS, warn of an
    overflow? It is enough to look at the diagonal: no other entry is larger, nor is any part of its sum."""
    numpys = call.setting.adjoint and bool(call.setting.vendor_advantage)
    return numpys and not bool(np.isfinite(np.diagonal(c, axis1=-2, axis2=-1)).all())


def _whole_by_vendor(multiply: Callable[[], Any], c: Array, multiplier: _Multiplier) -> list[Callable[[], Any]]:
    """C = alpha A B, or that and D, or without D, in steps each of which is one call of C and allocates nothing."""
    alpha, beta, added = complex(multiplier.asked.alpha), multiplier.asked.beta, multiplier.apart
    steps = [multiply]
    if alpha != 1:
        steps.append(partial(np.multiply, c, c.dtype.type(alpha if c.dtype.kind == "c" else alpha.real), out=c))
    if added is not None:
        steps.append(partial(np.add if beta == 1 else np.subtract, c, added, out=c))
    return steps


def _products_run_anywhere() -> bool:
    """Are products on a thread of ours as fast as on the caller's, and obey the same limits? Those of an OpenBLAS with
    threads of its own. OpenMP has other threads, and other settings, for each thread that calls."""
    return loaded_openblas() is not None


def _fill_apart(
    multiplier: _Multiplier, x: Array, y: Array, z: Array, whole: Sequence[Callable[[], Any]], given: bool
) -> None:
    """C filled in a thread of ours; NoThreadError if there is none. `whole`: what completes a C that the caller sees,
    in the same call of C, if the plan ends in its middle. Who gave the plan hears of the memory that it lacked."""
    last = list(whole)

    def work() -> None:
        try:
            multiplier.fill(x, y, z)
        except BaseException:
            if not multiplier.begun:
                last.clear()
            raise
        last.clear()

    try:
        run_on_worker(work, last)
    except _LeftToVendorError as why:
        if not last:
            raise
        record_fallback(str(why))
    except MemoryError as error:
        if multiplier.added:
            raise PartlyAddedError("memory ran out while a product was added to out") from error
        if given or not last:
            raise
        record_fallback("memory ran out")


def _fill_here(multiplier: _Multiplier, x: Array, y: Array, z: Array, seen: bool, given: bool) -> None:
    """C filled on the caller's thread; one that the caller has `seen` is computed beside it, and copied in one call of
    C."""
    if not seen:
        multiplier.fill(x, y, z)
        return
    call = multiplier.call
    if not given and z.nbytes > max(SMALL, call.limits.workspace - call.workspace):
        raise _LeftToVendorError("there is no room to compute the result beside its place")
    c = np.array(z) if multiplier.updates or multiplier.half else np.empty_like(z)
    multiplier.fill(x, y, c)
    np.copyto(z, c)


def run_trial(library: HostLibrary, call: PreparedCall, multiply: Callable[[Plan], Any]) -> Any:
    """A product that takes part in its shape's measurement."""
    assert call.decision.trial is not None
    return call.decision.trial.run(multiply)


class _Multiplier:
    """Multiplies the matrices of a call by its plan."""

    def __init__(self, call: PreparedCall, added: Array | None = None) -> None:
        assert call.plan is not None and call.device is not None
        self.call, self.plan, self.threads = call, call.plan, Threads(call.device.threads)
        self.dtype, self.begun = np.dtype(call.dtype), False
        problem = call.decision.problem
        assert problem is not None
        self.asked = Asked(problem.alpha, problem.beta, problem.op, problem.fill)
        self.half, self.updates = problem.writes_triangle, problem.updates
        self.apart = added  # what is added, where that is not what C holds
        self.in_place = added is None and self.asked.beta != 0
        self.added = False  # has anything been added to what C held?
        self.progress = current_progress()
        self.told: ProgressCallback | None = None

    @property
    def can_be_completed(self) -> bool:
        """Can the vendor compute C at any time, in a few calls of C? Not if its old numbers count."""
        simple = self.apart is None or self.asked.beta in (1, -1)
        return simple and not self.in_place and not (self.half and self.updates)

    def fill(self, a: Array, b: Array, c: Array) -> None:
        """Everything that is needed of the workspace is allocated before c is touched, from when on it is `begun`."""
        # What overflows in a fast plan is not the caller's doing; the vendor's product warns as NumPy does.
        quiet = np.errstate(all="ignore") if self.plan != VENDOR else nullcontext()
        if self.progress is not None:
            self._begin_progress(self.progress, c.size)
        with borrowed_block(self.call.workspace) as memory, quiet:
            if self.in_place:  # before anything is added to any of the products' C
                for x, y, _ in _products(self.call, a, b, c):
                    arena = Arena(memory, self.dtype)
                    self._check(*self._both_readable(x, y, arena), self.threads)
                self.added = True
            stack = np.ndindex(*c.shape[:-2]) if self.apart is not None else repeat(())
            for (x, y, z), index in zip(_products(self.call, a, b, c), stack, strict=False):
                added = None if self.apart is None else self.apart[index]
                self._multiply(x, y, z, Arena(memory, self.dtype), added)

    def _multiply(self, a: Array, b: Array, c: Array, arena: Arena, added: Array | None) -> None:
        a, b = self._both_readable(a, b, arena)
        # Leaves that share out their own work run one after the other.
        shared = self.plan == VENDOR or self.plan.leaf_use.leaf.host.multiply_inside is not None
        flops = 0 if shared else 2 * a.shape[0] * a.shape[1] * b.shape[1]
        with backend_for(self.threads.count, flops, self.told) as chosen:
            if not self.in_place:
                chosen.first((a, b), partial(self._check, a, b, chosen.threads))
            self.begun = True
            execute_plan(self.plan, a, b, c, chosen, arena, *self.asked, added)

    def _begin_progress(self, progress: Progress, size: int) -> None:
        """It hears of each leaf's product; not of one that is alone, which ends with all else. `size`: of C."""
        problem, device = self.call.decision.problem, self.call.device
        assert problem is not None and device is not None
        products = [kind(self.plan, *problem.size, self.asked) for kind in (leaf_products, leaf_halves)]
        count = size // (problem.m * problem.n)
        if count * sum(sum(found.values()) for found in products) > 1:
            work = sum(prod(leaf) * times for found in products for leaf, times in found.items())
            seconds = expected_seconds({self.plan}, without_layouts(problem), self.call.limits, device)
            progress.begin(count * work, count * seconds)
            self.told = progress.add

    def _both_readable(self, a: Array, b: Array, arena: Arena) -> tuple[Array, Array]:
        packs = self.call.packs
        return self._readable(a, packs[0], arena), self._readable(b, packs[1], arena)

    def _readable(self, x: Array, pack: bool, arena: Arena) -> Array:
        """The matrix as BLAS can read it: copied, if it has another type, negative strides or gaps along both axes."""
        if not pack:
            return x
        if self.plan == VENDOR and not self.half:
            return x if x.dtype == self.dtype else x.astype(self.dtype)
        copy = arena.take(x.shape[0], x.shape[1], fortran=abs(x.strides[0]) < abs(x.strides[1]))
        np.copyto(copy, x, casting="unsafe")  # whether it may be cast was asked before
        return copy

    def _check(self, a: Array, b: Array, threads: Threads) -> None:
        if DTYPES[self.call.dtype].exact:
            return  # what is beyond the type is cut off, in any order
        if self.asked != PLAIN and not any(level.saves_products for level in self.plan.levels):
            return  # nothing is added up that the vendor does not add up
        scale = max(1.0, abs(complex(self.asked.alpha)))
        if may_overflow(self.plan, a, b, threads, self.asked.op, self.asked.fill, scale):
            raise _LeftToVendorError("inf, NaN or numbers so large that sums may overflow are in its operands")


def _products(call: PreparedCall, a: Array, b: Array, c: Array) -> Iterator[tuple[Array, Array, Array]]:
    """The products of two matrices that together fill c."""
    if a.ndim == 1:
        c = np.expand_dims(c, -1 if b.ndim == 1 else -2)
    if b.ndim == 1:
        c = np.expand_dims(c, -1)
    a, b = a if a.ndim > 1 else a[None, :], b if b.ndim > 1 else b[:, None]
    if call.flattens_stack:
        yield a.reshape(-1, a.shape[-1]), b.reshape(b.shape[-2:]), c.reshape(-1, c.shape[-1])
        return
    stack = c.shape[:-2]
    a, b = (np.broadcast_to(x, stack + x.shape[-2:]) for x in (a, b))
    for index in np.ndindex(*stack):
        yield a[index], b[index], c[index]


# ---- explaining


def describe_products(plan: Plan, problem: Problem, threads: int) -> tuple[str, ...]:
    """What really multiplies, a line each."""
    if problem.writes_triangle and not plan.levels:
        return (f"BLAS's syrk or herk on {count_noun(threads, 'thread')}, one half; the other is its mirror",)
    vendor, whole = f"numpy.matmul on {count_noun(threads, 'thread')}", f"{problem.m} x {problem.k} x {problem.n}"
    if plan == VENDOR:
        added = ", in bands of rows, each scaled and added" if problem.updates else ""
        return (f"{vendor}: one product of {whole}{added}",)
    if plan.leaf_use.leaf.host.multiply_inside is not None:
        leaf_k = min(k for _, k, _ in leaf_products(plan, *problem.size)) if 0 not in problem.size else 0
        return (f"{vendor}; {describe_digits(problem.dtype, leaf_k)}",)
    library, large = loaded_openblas(), 2 * problem.m * problem.k * problem.n >= MIN_CONCURRENT_FLOPS
    if large and threads == CONCURRENT_PRODUCTS and library is not None and library.count() == threads:
        return (f"numpy.matmul on one thread, {threads} products side by side; the sums beside them",)
    return (f"{vendor}, one product after the other; the sums in between, on as many threads",)


def count_noun(count: int, what: str) -> str:
    """1 thread, 2 threads."""
    return f"{count} {what}{'s' * (count != 1)}"
