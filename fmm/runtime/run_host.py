"""Run a prepared call on the host: allocate the workspace, check for overflow, and run the plan on NumPy views.

After any exception, Ctrl-C included, `out` is either complete or unchanged. Therefore Python code that a signal could
interrupt must not write to `out`. `out` is written in one of three ways: by a worker thread while the caller waits in
one C function, by one C function that copies the result from a private array, or by NumPy's own product, which is one
C function too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import repeat
from math import prod
from typing import Any

import numpy as np

from fmm.arrays.host_memory import borrow_cached_memory
from fmm.arrays.library import HostLibrary
from fmm.dtypes import DTYPES
from fmm.kernels.cpu.exact_product import describe_digit_products
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Arena, Array
from fmm.kernels.cpu.numpy_backend import ProgressCallback
from fmm.kernels.cpu.openblas import loaded_openblas
from fmm.kernels.cpu.parallel_products import CONCURRENT_PRODUCTS, MIN_CONCURRENT_FLOPS, plan_backend
from fmm.kernels.cpu.residue_product import NonfiniteError, describe_residues
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.cpu.worker_threads import NoThreadError, run_on_worker
from fmm.kernels.plans.gemm_params import PLAIN, GemmParams
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import count_leaf_products, count_leaf_triangles
from fmm.problem import Problem, reduced_problem
from fmm.runtime.call_record import record_fallback
from fmm.runtime.decisions.decide import expected_seconds
from fmm.runtime.overflow import may_overflow
from fmm.runtime.prepare import PreparedCall
from fmm.runtime.progress import Progress, current_progress

SMALL_ARRAY_BYTES = 256 * 1024  # size in bytes; if A, B and C are all smaller, a plan runs on the caller's thread


class OutPartlyUpdatedError(RuntimeError):
    """The error raised if memory runs out while a plan adds a product to `out`; the old values of `out` are lost."""


class _VendorNeededError(Exception):
    """The error raised if the vendor must multiply, because numbers may overflow or memory is short.

    C is not complete when the error is raised.
    """


def run_call(
    library: HostLibrary, call: PreparedCall, a: Any, b: Any, out: Any, required: bool, addend: Any = None
) -> Any:
    """Return C, computed by the call's plan; None if the vendor must multiply, for example since sums may overflow.

    `required`: True if the caller passed the plan. `addend`: the addend, with C's shape; None if C holds the addend.

    If memory runs out after a product was partly added to `out`, raise OutPartlyUpdatedError: the product cannot be
    computed again.
    """
    if np.geterr()["under"] != "ignore" and not DTYPES[call.dtype].exact:
        if call.limits.reproducible:
            raise PlanError("a reproducible product cannot run while numpy.errstate reports underflow")
        record_fallback("numpy.errstate reports underflow, and a plan's sums would cause reports of their own")
        return None
    assert call.result is not None
    c = library.new_array(call.result) if out is None else out
    x, y, z = (library.as_numpy(v) for v in (a, b, c))
    if out is not None:
        library.record_array_change(out)
    multiplier = _PlanMultiplier(call, None if addend is None else library.as_numpy(addend))
    try:
        if call.plan == VENDOR and not (multiplier.writes_triangle or multiplier.has_factors):
            multiplier.compute_product(
                x, y, z
            )  # the vendor's product runs on the caller's thread, since numpy.errstate belongs to the thread
        elif out is not None and multiplier.needs_private_result:
            _compute_on_caller_thread(multiplier, x, y, z, True, required)
        elif max(x.nbytes, y.nbytes, z.nbytes) > SMALL_ARRAY_BYTES and _is_worker_thread_as_fast():
            completes = out is not None and multiplier.can_vendor_compute_c
            completion = _vendor_product_calls(library.vendor_call(a, b, out), z, multiplier) if completes else []
            _compute_on_worker(multiplier, x, y, z, completion, required)
        else:
            _compute_on_caller_thread(multiplier, x, y, z, out is not None, required)
    except _VendorNeededError as why:
        record_fallback(str(why))
        return None
    except NoThreadError:
        if not required:
            record_fallback("no thread can be started")
            return None
        _compute_on_caller_thread(multiplier, x, y, z, out is not None, required)
    if call.plan == VENDOR and _may_numpy_warn_of_overflow(call, z):
        return None
    return library.unwrap_scalar(c) if out is None else out


def run_timed_product(library: HostLibrary, call: PreparedCall, multiply: Callable[[Plan], Any]) -> Any:
    """Return a product, timed by the OnlineTrial of its shape."""
    assert call.decision.trial is not None
    return call.decision.trial.run_product(multiply)


def run_and_time_first_product(
    library: HostLibrary, call: PreparedCall, multiply: Callable[[Plan], Any], max_seconds: float
) -> None:
    """Before the first large product of an element type, run the products that compare a plan with the vendor."""
    assert call.decision.trial is not None
    call.decision.trial.run_all_products(multiply, lambda: None, max_seconds)


def _may_numpy_warn_of_overflow(call: PreparedCall, c: Array) -> bool:
    """Return True if NumPy's own product of a matrix and its transpose could warn of an overflow.

    Only the diagonal of A A^T is checked, since no other entry, and no partial sum of an entry, is larger than the
    largest entry of the diagonal.
    """
    is_numpy_gram = call.setting.b_is_transposed_a and bool(call.setting.vendor_advantage)
    return is_numpy_gram and not bool(np.isfinite(np.diagonal(c, axis1=-2, axis2=-1)).all())


# ---- the thread that writes C


def _is_worker_thread_as_fast() -> bool:
    """Return True if BLAS is as fast on a worker thread as on the caller's thread.

    An OpenBLAS with its own threads is equally fast for any calling thread. A BLAS with OpenMP is slower on a worker
    thread, since OpenMP has separate threads and settings for each calling thread.
    """
    return loaded_openblas() is not None


def _vendor_product_calls(
    multiply: Callable[[], Any], c: Array, multiplier: _PlanMultiplier
) -> list[Callable[[], Any]]:
    """Return functions that, called one after the other, compute C = alpha A B, plus or minus the addend.

    Each function is one call of a C function, and allocates no memory.
    """
    alpha, beta, addend = complex(multiplier.params.alpha), multiplier.params.beta, multiplier.addend
    steps = [multiply]
    if alpha != 1:
        steps.append(partial(np.multiply, c, c.dtype.type(alpha if c.dtype.kind == "c" else alpha.real), out=c))
    if addend is not None:
        steps.append(partial(np.add if beta == 1 else np.subtract, c, addend, out=c))
    return steps


def _compute_on_worker(
    multiplier: _PlanMultiplier, x: Array, y: Array, z: Array, completion: Sequence[Callable[[], Any]], required: bool
) -> None:
    """Compute C on a worker thread; raise NoThreadError if no thread starts.

    If the plan fails after its first write to C, the worker thread computes C by the vendor's functions in
    `completion`. The caller's thread waits for the worker thread. If memory runs out and the plan is required, the
    MemoryError is raised.
    """
    last = list(completion)

    def compute() -> None:
        try:
            multiplier.compute_product(x, y, z)
        except BaseException:
            if not multiplier.has_begun:
                last.clear()
            raise
        last.clear()

    try:
        run_on_worker(compute, last)
    except _VendorNeededError as why:
        if not last:
            raise
        record_fallback(str(why))
    except MemoryError as error:
        if multiplier.has_added:
            raise OutPartlyUpdatedError("memory ran out while a product was added to out") from error
        if required or not last:
            raise
        record_fallback("memory ran out")


def _compute_on_caller_thread(
    multiplier: _PlanMultiplier, x: Array, y: Array, z: Array, visible: bool, required: bool
) -> None:
    """Compute C on the caller's thread.

    If C is `visible` (the caller's array), the result is computed in a private array and copied into C in one C call.
    """
    if not visible:
        multiplier.compute_product(x, y, z)
        return
    call = multiplier.call
    if not required and z.nbytes > max(SMALL_ARRAY_BYTES, call.limits.workspace - call.workspace):
        raise _VendorNeededError("the workspace limit leaves no memory for a copy of the result")
    c = np.array(z) if multiplier.has_factors or multiplier.writes_triangle else np.empty_like(z)
    multiplier.compute_product(x, y, c)
    np.copyto(z, c)


class _PlanMultiplier:
    """The object that multiplies a call's matrices by the call's plan."""

    def __init__(self, call: PreparedCall, addend: Array | None = None) -> None:
        assert call.plan is not None and call.device is not None
        self.call, self.plan, self.threads = call, call.plan, ThreadGroup(call.device.threads)
        self.dtype, self.has_begun = np.dtype(call.dtype), False
        problem = call.decision.problem
        assert problem is not None
        self.params = GemmParams(problem.alpha, problem.beta, problem.op, problem.fill)
        self.writes_triangle, self.has_factors = problem.writes_triangle, problem.has_factors
        self.addend = addend  # None if C holds the addend, or if there is no addend
        self.in_place = addend is None and self.params.beta != 0
        self.has_added = False  # True if a product may have been added to C, so that C's old values are lost
        self.progress = current_progress()
        self.report: ProgressCallback | None = None

    @property
    def can_vendor_compute_c(self) -> bool:
        """True if the vendor can compute C by a few calls of C functions, without the old values of C."""
        is_simple = self.addend is None or self.params.beta in (1, -1)
        return is_simple and not self.in_place and not (self.writes_triangle and self.has_factors)

    @property
    def needs_private_result(self) -> bool:
        """True if the caller's array C must stay unchanged until the whole product is complete.

        If the plan fails, the vendor cannot complete a half-written C: it reads A and B without conjugation, and its
        product is not always symmetric bit for bit. Products by residues find inf and NaN while others are already
        added to C.
        """
        is_symmetric = self.call.setting.vendor_mirrors and self.params.fill == "full"
        is_triangle = self.writes_triangle and not self.has_factors
        adds_residues = self.in_place and self.plan.leaf_use.leaf.level is not None
        return any(self.plan.conjugated_operands) or (is_triangle and not is_symmetric) or adds_residues

    def compute_product(self, a: Array, b: Array, c: Array) -> None:
        """Compute C by the plan.

        Before the first write into C, the workspace is allocated, and `has_begun` becomes True.
        """
        # An overflow in a plan's sums is no overflow of the caller's product, so NumPy's warnings are off while a plan
        # runs, but on while the vendor multiplies.
        quiet = np.errstate(all="ignore") if self.plan != VENDOR else nullcontext()
        if self.progress is not None:
            self._begin_progress(self.progress, c.size)
        with borrow_cached_memory(self.call.workspace) as memory, quiet:
            if self.in_place:  # all products are checked for overflow before the first product is added
                for x, y, _ in _split_stack(self.call, a, b, c):
                    arena = Arena(memory, self.dtype)
                    self._check_overflow(*self._copy_operands_for_blas(x, y, arena), self.threads)
                self.has_added = True
            stack = np.ndindex(*c.shape[:-2]) if self.addend is not None else repeat(())
            for (x, y, z), index in zip(_split_stack(self.call, a, b, c), stack, strict=False):
                addend = None if self.addend is None else self.addend[index]
                self._multiply_matrices(x, y, z, Arena(memory, self.dtype), addend)

    def _multiply_matrices(self, a: Array, b: Array, c: Array, arena: Arena, addend: Array | None) -> None:
        a, b = self._copy_operands_for_blas(a, b, arena)
        # NumPy's product and leaves that need scratch memory use all threads; `flops = 0` tells the backend to run
        # nothing concurrently.
        is_alone = self.plan == VENDOR or self.plan.leaf_use.leaf.host_product_with_scratch is not None
        flops = 0 if is_alone else 2 * a.shape[0] * a.shape[1] * b.shape[1]
        with plan_backend(self.threads.count, flops, self.report) as backend:
            if not self.in_place:
                backend.run_overflow_check((a, b), partial(self._check_overflow, a, b, backend.threads))
            self.has_begun = True
            try:
                execute_plan(self.plan, a, b, c, backend, arena, *self.params, addend)
            except NonfiniteError as why:
                raise _VendorNeededError("an operand or the result has inf or NaN") from why

    def _begin_progress(self, progress: Progress, size: int) -> None:
        """Start to count the finished leaf products if the plan has several; `size` is the number of entries of C."""
        problem, device = self.call.decision.problem, self.call.device
        assert problem is not None and device is not None
        products = [kind(self.plan, *problem.size, self.params) for kind in (count_leaf_products, count_leaf_triangles)]
        count = size // (problem.m * problem.n)
        if count * sum(sum(found.values()) for found in products) > 1:
            work = sum(prod(leaf) * times for found in products for leaf, times in found.items())
            seconds = expected_seconds({self.plan}, reduced_problem(problem), self.call.limits, device)
            progress.begin_count(count * work, count * seconds)
            self.report = progress.add_done

    def _copy_operands_for_blas(self, a: Array, b: Array, arena: Arena) -> tuple[Array, Array]:
        packs = self.call.packs
        return self._copy_for_blas(a, packs[0], arena), self._copy_for_blas(b, packs[1], arena)

    def _copy_for_blas(self, x: Array, pack: bool, arena: Arena) -> Array:
        """Return the matrix, or a copy if the matrix is marked for a copy (`pack`).

        BLAS cannot read a matrix of another type, with negative strides, or with gaps along both axes. If the plan is
        NumPy's own product, only a matrix of another type is copied here; NumPy itself copies a matrix with a layout
        that BLAS cannot read.
        """
        if not pack:
            return x
        if self.plan == VENDOR and not self.writes_triangle:
            return x if x.dtype == self.dtype else x.astype(self.dtype)
        copy = arena.allocate(x.shape[0], x.shape[1], fortran=abs(x.strides[0]) < abs(x.strides[1]))
        np.copyto(copy, x, casting="unsafe")  # NumpyLibrary.product_setting has checked that this cast is allowed
        return copy

    def _check_overflow(self, a: Array, b: Array, threads: ThreadGroup) -> None:
        if DTYPES[self.call.dtype].exact:
            return  # integers are exact modulo 2**bits in any order of sums
        if self.plan.leaf_use.leaf.level is not None and not self.plan.levels:
            return  # the product by residues itself finds inf and NaN
        if self.params != PLAIN and not any(level.saves_products for level in self.plan.levels):
            return  # a plan without fast levels has the same sums as the vendor's product
        scale = max(1.0, abs(complex(self.params.alpha)))
        if self.params.beta:
            # Sums of beta C and a part of the product must not overflow where beta C and the complete product are
            # finite. If each part is below half the spacing of the type's largest numbers, no finite beta C overflows.
            scale *= 4 / float(np.finfo(self.dtype).eps)
        if may_overflow(self.plan, a, b, threads, self.params.op, self.params.fill, scale):
            raise _VendorNeededError("inf, NaN or numbers so large that sums may overflow are in its operands")


def _split_stack(call: PreparedCall, a: Array, b: Array, c: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Yield the matrices A, B and C of each product of a stack; together the products compute the whole array C."""
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
    """Return texts that say which BLAS function computes the plan's products, on how many threads."""
    if problem.writes_triangle and not plan.levels:
        return (f"BLAS's syrk or herk on {count_with_noun(threads, 'thread')}, one triangle; the other is its mirror",)
    vendor, whole = f"numpy.matmul on {count_with_noun(threads, 'thread')}", f"{problem.m} x {problem.k} x {problem.n}"
    if plan == VENDOR:
        added = ", in bands of rows, each scaled and added" if problem.has_factors else ""
        return (f"{vendor}: one product of {whole}{added}",)
    if plan.leaf_use.leaf.host_product_with_scratch is not None:
        leaf_k = min(k for _, k, _ in count_leaf_products(plan, *problem.size)) if 0 not in problem.size else 0
        level = plan.leaf_use.leaf.level
        text = (
            describe_digit_products(problem.dtype, leaf_k)
            if level is None
            else describe_residues(problem.dtype, str(level))
        )
        return (f"{vendor}; {text}",)
    library, large = loaded_openblas(), 2 * problem.m * problem.k * problem.n >= MIN_CONCURRENT_FLOPS
    if large and threads == CONCURRENT_PRODUCTS and library is not None and library.count() == threads:
        return (f"numpy.matmul on one thread, {threads} products at a time, concurrent with sums",)
    return (f"{vendor}, one product after the other, with sums in between on as many threads",)


def count_with_noun(count: int, noun: str) -> str:
    """Return "1 thread" or "2 threads"."""
    return f"{count} {noun}{'s' * (count != 1)}"
