"""On a device: every kind of plan, type, fringe and memory order against exact or float64 references."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from fmm.kernels.algorithms.catalogue import scheme_names
from fmm.kernels.algorithms.step_table import step_table_names
from fmm.kernels.cuda.launch_list import LaunchList, StreamSync
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.cuda.sums.sum_kernel import SUM_ENTRY_NAME, sum_source
from fmm.kernels.cuda.sums.sum_launch import SumOp
from fmm.kernels.plans.plan import Plan
from fmm.problem import Layout, Problem

pytest.importorskip("cupy")

from fmm.runtime.device_backend import DeviceBackend, record_plan_for_device

pytestmark = pytest.mark.gpu

POISON = 0xFF  # bytes of NaN
GUARD = 256  # bytes beyond every array that nobody may touch
# Largest relative error. Small integers are exact in the wide types; 16-bit ones round every product and every sum.
LIMITS = {"float16": 2e-2, "bfloat16": 0.15}


@pytest.fixture(scope="module")
def cupy() -> Any:
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def backend(cupy: Any) -> Any:
    return DeviceBackend()


# ---- data


def _bfloat16(x: Any) -> Any:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _stored(x: Any, dtype: str) -> Any:
    return _bfloat16(x) if dtype == "bfloat16" else x.astype(dtype)


def _wide(x: Any, dtype: str) -> Any:
    if dtype == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.astype(np.complex128 if dtype.startswith("complex") else np.float64)


def _random_numbers(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> Any:
    x = rng.integers(-3, 4, shape).astype(np.float64)
    return _stored(x + 1j * rng.integers(-3, 4, shape) if dtype.startswith("complex") else x, dtype)


class Operand:
    """A matrix on the device inside poisoned memory: gaps between lines and the guard at the end must not change."""

    def __init__(self, cupy: Any, values: Any, layout: Layout, shift: int = 0) -> None:
        self.shape, self.dtype, self.layout = values.shape, values.dtype, layout
        self.start = shift * values.dtype.itemsize
        lines = self.shape[0] if layout.order == "C" else self.shape[1]
        self.stop = self.start + lines * layout.leading * values.dtype.itemsize
        self.memory = cupy.full(self.stop + GUARD, POISON, np.uint8)
        self.matrix = self.within(self.memory)
        self.matrix[...] = cupy.asarray(values)
        self.before = self.memory.copy()

    def within(self, memory: Any) -> Any:
        """Return the matrix as a view of the memory."""
        flat = memory[self.start : self.stop].view(self.dtype).reshape(-1, self.layout.leading)
        rows, cols = self.shape
        return flat[:, :cols] if self.layout.order == "C" else flat[:, :rows].T

    def untouched(self, but_the_matrix: bool = False) -> bool:
        found = self.memory.copy()
        if but_the_matrix:
            self.within(found)[...] = self.within(self.before)
        return bool((found == self.before).all())


def _plan(text: str) -> Plan:
    ends = "vendor" in text or text.endswith("tile")
    return Plan.parse(text if ends else f"{text} > vendor" if text else "vendor")


def _check(
    cupy: Any,
    backend: Any,
    text: str,
    size: tuple[int, int, int],
    dtype: str,
    orders: tuple[str, ...] = ("C", "C", "C"),
    gaps: tuple[int, int, int] = (0, 0, 0),
    scalars: tuple[complex, complex] = (1, 0),
    shift: int = 0,
) -> None:

    rng = np.random.default_rng(11)
    m, k, n = size
    alpha, beta = scalars
    shapes = (m, k), (k, n), (m, n)
    layouts = tuple(
        Layout(order, max(cols if order == "C" else rows, 1) + gap)  # type: ignore[arg-type]
        for (rows, cols), order, gap in zip(shapes, orders, gaps, strict=True)
    )
    values = [_random_numbers(rng, shape, dtype) for shape in shapes]
    if not beta:
        values[2].view(np.uint8)[...] = POISON
    a, b, c = (Operand(cupy, x, layout, shift) for x, layout in zip(values, layouts, strict=True))
    tape = record_plan_for_device(_plan(text), Problem(m, k, n, dtype, layouts, alpha, beta))  # type: ignore[arg-type]
    workspace = cupy.full(tape.workspace + GUARD, POISON, np.uint8)
    backend.run_launches(tape, *(x.matrix.data.ptr for x in (a, b, c)), workspace.data.ptr)
    left, right, old = (_wide(x, dtype) for x in values)
    expected = alpha * (left @ right) + (beta * old if beta else 0)
    found = _wide(cupy.asnumpy(c.matrix), dtype)
    if dtype in LIMITS:
        assert np.linalg.norm(found - expected) <= LIMITS[dtype] * np.linalg.norm(expected), (text, size)
    else:
        np.testing.assert_array_equal(found, expected, err_msg=f"{text} {size} {dtype}")
    assert a.untouched() and b.untouched() and c.untouched(but_the_matrix=True)
    assert bool((workspace[tape.workspace :] == POISON).all())


# ---- plans

FRINGES = ("", ".pad", ".peel", ".batched", ".batched.pad16")
# One product at a time: a kernel for every operand, so only of schemes with few of them.
SEQUENTIAL = tuple(
    f"{s}.sequential{fringe}" for s, fringe in product(("strassen", "winograd", "laderman"), ("", ".pad", ".peel"))
)
TABLES = tuple(product(step_table_names(), ("", ".pad")))
# These keep sums of A and B in C's blocks, so B must not be larger than C, nor A.
SCRATCH_IN_C = ("li-fig2", "li-fig12", "li-fig16")
TURNING = ("strassen.batched.pad16", "winograd", "strassen^2.batched.pad16", "winograd.pad16 > strassen.batched")
PLANS = (
    "",
    *(f"{s}{fringe}" for s, fringe in product(scheme_names(), FRINGES)),
    *SEQUENTIAL,
    *(f"{table}{fringe}" for table, fringe in TABLES if table not in SCRATCH_IN_C),
    "li-fig3.peel",
    "strassen^2",
    "strassen^2.batched.pad16",
    "winograd^2.batched",
    "strassen*laderman.batched",
    "strassen.pad16 > strassen^2.batched.pad16",
    "strassen^2.pad16 > winograd.batched.pad16",
    "strassen.batched.pad16 > strassen.batched",
    "balanced(2) > strassen.batched.pad16",
    "hasa > winograd.pad",
    *(f"{s} > {leaf}" for s in TURNING for leaf in ("vendor.inner", "vendor.outer")),
)
SIZES = ((64, 96, 160), (67, 35, 131), (5, 129, 3))
LARGE_C = ((96, 64, 160), (67, 35, 131), (13, 4, 9))


@pytest.mark.parametrize("text", PLANS)
def test_every_plan_is_exact_on_integers(text: str, cupy: Any, backend: Any) -> None:
    for size in SIZES:
        _check(cupy, backend, text, size, "float32")


@pytest.mark.parametrize("text", [f"{table}{fringe}" for table, fringe in TABLES if table in SCRATCH_IN_C])
def test_tables_that_keep_sums_in_c_are_exact_on_integers(text: str, cupy: Any, backend: Any) -> None:
    for size in LARGE_C:
        _check(cupy, backend, text, size, "float32")


FEW = ("", "strassen.batched.pad16", "winograd.pad", "li-fig3", "strassen^2.batched.pad16", "laderman.peel")
TYPED = (
    *FEW,
    *(f"winograd{fringe}" for fringe in FRINGES),
    *(f"winograd.sequential{f}" for f in ("", ".pad", ".peel")),
    *(f"strassen.batched.pad16 > {leaf}" for leaf in ("vendor.inner", "vendor.outer")),
)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "complex64", "complex128"])
@pytest.mark.parametrize("text", dict.fromkeys(TYPED))
def test_every_type(text: str, dtype: str, cupy: Any, backend: Any) -> None:
    """`shift`: operands that begin between two multiples of 16 bytes."""
    for size, shift in product(SIZES[:2], (0, 1)):
        _check(cupy, backend, text, size, dtype, shift=shift)


BY_THREE = (
    "3m",
    "3m.batched",
    "3m.overlapped",
    "3m.sequential",
    "3m > strassen^2.batched.pad16",
    "3m.overlapped > strassen.batched.pad16",
    "3m.sequential > winograd.pad16",
    "strassen.batched.pad16 > 3m",
    "li-fig3.peel > 3m",
    "3m > strassen.fused.pad4 > tile",
    "3m > vendor.inner",
    "3m(strassen.pad16)",
    "3m(strassen^2.pad16)",
    "vendor3m",
    "strassen.batched.pad16 > vendor3m",
)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("text", BY_THREE)
def test_complex_products_by_three_real_ones(text: str, dtype: str, cupy: Any, backend: Any) -> None:
    for size, shift in product(SIZES, (0, 1)):
        _check(cupy, backend, text, size, dtype, shift=shift)


@pytest.mark.parametrize("orders", list(product("CF", repeat=3)), ids="".join)
@pytest.mark.parametrize("text", ("3m", "3m.batched", "3m.sequential", "3m(strassen.pad4)", "vendor3m"))
def test_complex_products_by_three_in_all_orders(text: str, orders: tuple[str, ...], cupy: Any, backend: Any) -> None:
    for dtype, scalars in product(("complex64", "complex128"), ((1, 0), (1 - 2j, 0.5j), (-2, 1))):
        _check(cupy, backend, text, (45, 70, 99), dtype, orders, (0, 3, 8), scalars)
        _check(cupy, backend, text, (48, 64, 96), dtype, orders, (8, 8, 8), scalars)


@pytest.mark.parametrize("text", ["strassen^3.batched.pad16", "winograd^3.batched"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_three_levels_in_one_pass(text: str, dtype: str, cupy: Any, backend: Any) -> None:
    for size in ((256, 128, 384), (203, 139, 245)):
        _check(cupy, backend, text, size, dtype)


@pytest.mark.parametrize("orders", list(product("CF", repeat=3)), ids="".join)
@pytest.mark.parametrize("text", (*FEW, "winograd.batched.pad16 > vendor.inner"))
def test_memory_orders_with_gaps_and_scalars(text: str, orders: tuple[str, ...], cupy: Any, backend: Any) -> None:
    for dtype, scalars in (("float32", (-2.0, 0.5)), ("float64", (1, 1)), ("complex128", (1 - 2j, 0.5j))):
        _check(cupy, backend, text, (45, 70, 99), dtype, orders, (0, 3, 8), scalars)


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64"])
@pytest.mark.parametrize(
    "text",
    [
        "winograd.batched.pad16",
        "winograd",
        "strassen^2.batched.pad16",
        "li-fig3.pad",
        "strassen.batched > vendor.inner",
        "3m.batched",
        "3m(strassen)",
    ],
)
def test_few_launches(text: str, dtype: str, cupy: Any, backend: Any) -> None:
    """What `make gpu-check` repeats under sanitizers: arrays are allocated one by one, with nothing around them."""
    if not _plan(text).accepts_type(dtype):
        pytest.skip("for complex numbers")
    rng = np.random.default_rng(2)
    for m, k, n in ((96, 64, 160), (67, 35, 131)):
        with cupy.cuda.using_allocator(lambda size: cupy.cuda.MemoryPointer(cupy.cuda.Memory(size), 0)):
            a, b = (cupy.asarray(_random_numbers(rng, shape, dtype)) for shape in ((m, k), (k, n)))
            c = backend.multiply_by_plan(_plan(text), a, b)
            found, expected = (_wide(cupy.asnumpy(x), dtype) for x in (c, a @ b))
        assert np.linalg.norm(found - expected) <= LIMITS.get(dtype, 0) * np.linalg.norm(expected)


def test_nothing_to_do_and_products_of_nothing(cupy: Any, backend: Any) -> None:
    for size, scalars in product(((0, 5, 6), (5, 0, 6), (5, 6, 0), (1, 1, 1)), ((1, 0), (2.0, 0.5))):
        for text in ("", "strassen.batched", "li-fig3"):
            _check(cupy, backend, text, size, "float32", scalars=scalars)


BUDGET = 16  # times the vendor's own error: the project's promise
WIDER = {"float32": np.float64, "float64": np.longdouble, "float16": np.float64, "bfloat16": np.float64}
# 16-bit types round every operand of a product again: deeper plans leave the budget (winograd^3: 32 times).
SHALLOW = ("strassen", "winograd", "strassen^2")
DEEP = (*SHALLOW, "winograd^2", "strassen^3", "winograd^3")


@pytest.mark.parametrize("dtype", WIDER)
def test_errors_stay_within_the_budget(dtype: str, cupy: Any, backend: Any) -> None:
    """Normal random numbers against a product in a wider type; errors grow level by level."""
    n = 256
    rng = np.random.default_rng(5)
    a, b = (_stored(rng.standard_normal((n, n)), dtype) for _ in "AB")
    exact = _wide(a, dtype).astype(WIDER[dtype]) @ _wide(b, dtype).astype(WIDER[dtype])

    def error(text: str) -> float:
        c = backend.multiply_by_plan(text, cupy.asarray(a), cupy.asarray(b), dtype=dtype)
        return float(np.linalg.norm((_wide(cupy.asnumpy(c), dtype) - exact).astype(np.float64)))

    vendor = error("vendor")
    assert 0 < vendor < 1e-2 * float(np.linalg.norm(exact.astype(np.float64)))
    for schemes in DEEP if dtype in ("float32", "float64") else SHALLOW:
        assert error(f"{schemes}.batched.pad16 > vendor") <= BUDGET * vendor, schemes


# ---- the backend


def test_multiply_takes_any_strides(cupy: Any, backend: Any) -> None:
    a = cupy.arange(40 * 60, dtype=np.float64).reshape(40, 60) % 7
    b = cupy.arange(120 * 50, dtype=np.float64).reshape(120, 50)[::2] % 5
    wide_a = cupy.stack([a, a], axis=2).reshape(40, 120)[:, ::2]  # neither rows nor columns contiguous
    out = cupy.zeros((50, 40), np.float64).T
    for left in (a, wide_a, cupy.asfortranarray(a), a[::-1][::-1]):
        np.testing.assert_array_equal(
            backend.multiply_by_plan("strassen.batched.pad4 > vendor", left, b).get(), (a @ b).get()
        )
    assert backend.multiply_by_plan("winograd > vendor", a, b, out) is out
    np.testing.assert_array_equal(out.get(), (a @ b).get())
    view = cupy.ones((40, 100), np.float64)[:, ::2]
    backend.multiply_by_plan("winograd > vendor", a, b, view, 2.0, 3.0)
    np.testing.assert_array_equal(view.get(), (2 * (a @ b) + 3).get())


def test_a_graph_replays_the_tape(cupy: Any, backend: Any) -> None:

    n = 96
    a, b = (cupy.asarray(_random_numbers(np.random.default_rng(i), (n, n), "float32")) for i in (1, 2))
    c = cupy.empty_like(a)
    tape = record_plan_for_device(Plan.parse("strassen.batched.pad16 > vendor"), Problem(n, n, n, "float32"))
    workspace = cupy.empty(tape.workspace, np.uint8)
    pointers = a.data.ptr, b.data.ptr, c.data.ptr, workspace.data.ptr
    graph = backend.captured_graph(tape, *pointers)
    assert backend.captured_graph(tape, *pointers) is graph
    for _ in range(3):
        a += 1  # the graph reads what is there when it runs
        c.fill(0)
        graph.launch_graph()
        np.testing.assert_array_equal(c.get(), (a @ b).get())


def _own(tape: LaunchList) -> LaunchList:
    """The plan's own steps, without those that recompute C and lower the flag."""
    pairs = zip(tape.steps, tape.streams, strict=True)
    kept = [(step, lane) for step, lane in pairs if isinstance(step, StreamSync) or step.does != "recompute"]
    steps, lanes = zip(*kept, strict=True)
    return replace(tape, steps=steps, streams=lanes)


def test_the_flag_says_that_a_sum_overflowed(cupy: Any, backend: Any) -> None:

    n = 64
    a = cupy.full((n, n), 100, np.float16)
    c = cupy.empty_like(a)
    tape = _own(
        record_plan_for_device(Plan.parse("winograd.batched.pad16 > vendor"), Problem(n, n, n, "float16"), flagged=True)
    )
    workspace = cupy.empty(tape.workspace, np.uint8)
    for scale, raised in ((1, 1), (0.01, 0)):
        x = (a * np.float16(scale)).astype(np.float16)  # 64 * 100 * 100 is beyond 65504
        flag = cupy.zeros(1, np.int32)
        backend.run_launches(tape, x.data.ptr, x.data.ptr, c.data.ptr, workspace.data.ptr, flag=flag.data.ptr)
        assert int(flag[0]) == raised


def test_streams_and_threads_do_not_disturb_each_other(cupy: Any, backend: Any) -> None:

    n, failures = 160, []
    tape = record_plan_for_device(Plan.parse("strassen.batched.pad16 > vendor"), Problem(n, n, n, "float64"))

    def work(seed: int) -> None:
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            a, b = (cupy.asarray(_random_numbers(np.random.default_rng(seed + i), (n, n), "float64")) for i in (0, 1))
            workspace = cupy.empty(tape.workspace, np.uint8)
            expected = cupy.asnumpy(a) @ cupy.asnumpy(b)
            for _ in range(20):
                c = cupy.full((n, n), np.nan)
                backend.run_launches(tape, a.data.ptr, b.data.ptr, c.data.ptr, workspace.data.ptr)
                if not (cupy.asnumpy(c) == expected).all():
                    failures.append(seed)

    threads = [threading.Thread(target=work, args=(10 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_the_math_mode_is_given_back(cupy: Any) -> None:
    from cupy_backends.cuda.libs import cublas

    handle, n = cupy.cuda.device.get_cublas_handle(), 512
    a = cupy.random.standard_normal((n, n), dtype=np.float32)
    exact = a.astype(np.float64) @ a.astype(np.float64)
    errors = {}
    for mode, math in product((0, 3), ("ieee", "tf32")):
        cublas.setMathMode(handle, mode)
        try:
            kind = {"ieee": "float32", "tf32": "tf32"}[math]
            c = DeviceBackend().multiply_by_plan("strassen.batched.pad16 > vendor", a, a, dtype=kind)
            assert cublas.getMathMode(handle) == mode
        finally:
            cublas.setMathMode(handle, 0)
        errors[mode, math] = float(cupy.linalg.norm(c - exact) / cupy.linalg.norm(exact))
    assert errors[0, "ieee"] == errors[3, "ieee"] < 1e-5  # the caller's mode does not leak in
    if int(cupy.cuda.Device().compute_capability) >= 80:
        assert errors[0, "tf32"] > 1e-5


@pytest.mark.parametrize("dtype", ("float32", "complex64"))
@pytest.mark.parametrize(
    "plan", ("strassen.batched.pad16", "winograd^2.batched.pad16", "strassen.sequential", "li-fig12")
)
def test_subnormal_numbers_count(cupy: Any, backend: Any, plan: str, dtype: str) -> None:
    """CuPy compiles with -ftz=true: a plain float sum would take them for zero, and the products are not tiny."""
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((512, 512)) * scale for scale in (1e-38, 1e30))
    a, b = a.astype(dtype), b.astype(dtype)
    assert (np.abs(a.real) < np.finfo(np.float32).tiny).mean() > 0.5
    exact = _wide(a, dtype) @ _wide(b, dtype)
    found = cupy.asnumpy(backend.multiply_by_plan(f"{plan} > vendor", cupy.asarray(a), cupy.asarray(b)))
    assert np.abs(found - exact).max() < 1e-4 * np.abs(exact).max()


def test_kernels_keep_their_numbers_in_registers(cupy: Any) -> None:
    """What this device's compiler made. That of test_sum_source.py has nothing in local memory; other versions
    miss that by a few bytes here and there, which cost nothing."""
    for text, dtype in product(
        ("winograd.batched.pad16", "strassen^2.batched.pad16"), ("float32", "float64", "bfloat16")
    ):
        tape = record_operations(Plan.parse(f"{text} > vendor"), Problem(512, 512, 512, dtype))
        for op in (op for op in tape.ops if isinstance(op, SumOp)):
            kernel = cupy.RawModule(code=sum_source(op.kernel, op.access), options=("--std=c++17",)).get_function(
                SUM_ENTRY_NAME
            )
            assert kernel.local_size_bytes <= 16, (text, dtype, op.label)
