"""fmm in the loops of numpy.matmul: every product is NumPy's in shape, type, errors and exceptions."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import fmm
from fmm.config import environment
from fmm.integrations import numpy_loops
from fmm.integrations.report import begin_report, end_report
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.runtime import run_host
from fmm.runtime.decisions import decide
from fmm.runtime.decisions.online import OnlineTrial
from tests.support.marks import quick_and_slow
from tests.support.threads import at_once

np: Any = numpy
SIDE = 96  # plans run from sides of 32 on


@pytest.fixture(autouse=True)
def has_compiler() -> None:
    try:
        numpy_loops.load_compiled_loops()
    except OSError as error:
        pytest.skip(str(error))


@pytest.fixture
def run(host_plans: list[Plan]) -> Iterator[list[Plan]]:
    """Run NumPy's products of any size by plans; collect the plans."""
    environment.log_once.cache_clear()
    with fmm.installed("numpy"):
        yield host_plans


@pytest.fixture
def usual_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Plan]]:
    """Run NumPy's products as fmm chooses on this machine; collect the plans."""
    plans: list[Plan] = []
    own = run_host.run_call

    def run_call(library: Any, call: Any, *rest: Any) -> Any:
        plans.append(call.plan)
        return own(library, call, *rest)

    monkeypatch.setattr(run_host, "run_call", run_call)
    with fmm.installed("numpy"):
        yield plans


def classical(a: Any, b: Any) -> Any:
    """Return the product by NumPy's einsum, which does not call matmul."""
    return np.einsum("...ij,...jk->...ik", a, b)


def random_array(*shape: int, dtype: Any = "f8") -> Any:
    rng = np.random.default_rng(sum(shape))
    x = rng.standard_normal(shape) * 9
    return (x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


# ---- what runs by plans


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_the_operator_runs_plans_of_each_type(dtype: str, run: list[Plan]) -> None:
    a, b = random_array(SIDE, 2 * SIDE, dtype=dtype), random_array(2 * SIDE, SIDE, dtype=dtype)
    c = a @ b
    assert len(run) == 1 and run[0] != VENDOR and c.dtype == dtype and c.flags.c_contiguous
    np.testing.assert_allclose(c, classical(a, b), rtol=1e-3, atol=1e-2)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"])
def test_the_operator_runs_plans_of_integers_exactly(dtype: str, usual_run: list[Plan]) -> None:
    a, b = random_array(300, 280, dtype=dtype), random_array(280, 260, dtype=dtype)
    c = a @ b
    assert len(usual_run) == 1 and c.dtype == dtype
    np.testing.assert_array_equal(
        c, (classical(a.astype(object), b.astype(object)) != 0) if dtype == "?" else classical(a, b)
    )


def test_an_online_measurement_times_numpys_complete_products(
    run: list[Plan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FMM_TUNING_MODE", "online")
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path))
    monkeypatch.setattr(decide, "MIN_TUNED_FLOPS", 0)
    timed, own = [], OnlineTrial.run_product

    def run_product(trial: OnlineTrial, *arguments: Any) -> Any:
        c = own(trial, *arguments)
        timed.append(c.copy())
        return c

    monkeypatch.setattr(OnlineTrial, "run_product", run_product)
    a, c = random_array(200, 200), np.empty((200, 200))
    for _ in range(4):  # the first two products are one by the plan and one by NumPy
        c[:] = np.nan
        np.matmul(a, a, out=c)
        np.testing.assert_allclose(timed[-1], classical(a, a))
        np.testing.assert_array_equal(c, timed[-1])
    assert len(timed) == 4 and len(run) == 2


def strided() -> dict[str, tuple[Any, Any]]:
    """Return pairs of operands by their layout."""
    a, b = random_array(SIDE, SIDE), random_array(2 * SIDE, 2 * SIDE)[:SIDE, :SIDE]
    stack, wide = random_array(3, SIDE, SIDE), random_array(2, 3, SIDE, 40)
    unaligned = np.frombuffer(b"." + a.tobytes(), "f8", offset=1).reshape(a.shape)
    return {
        "rows": (a, b),
        "columns": (a.T, np.asfortranarray(b)),
        "every other": (random_array(2 * SIDE, 2 * SIDE)[::2, ::2], b),
        "backwards": (a[::-1, ::-1], b[:, ::-1]),
        "stack": (stack, stack.transpose(0, 2, 1)),
        "matrix by stack": (a, stack),
        "stack by matrix": (stack, a),
        "stack of stacks": (stack[:, None][:, [0, 0]].transpose(1, 0, 2, 3), wide),
        "broadcast": (np.broadcast_to(a, (4, SIDE, SIDE)), b),
        "other byte order": (a.astype(">f8"), b),
        "two types": (a.astype("f4"), b),
        "unaligned": (unaligned, b),
        "its own transpose": (a, a.T),
    }


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("layout", strided())
def test_operands_may_have_any_layout(layout: str, run: list[Plan]) -> None:
    a, b = strided()[layout]
    expected = classical(a.astype("f8"), b.astype("f8"))
    for c in (a @ b, np.matmul(a, b, out=np.empty(expected.shape)), np.matmul(a, b, order="F")):
        assert c.shape == expected.shape and c.dtype == "f8"
        np.testing.assert_allclose(c, expected, rtol=1e-9, atol=1e-9)
    assert bool(run) == (fmm.explain(a.astype("f8"), b.astype("f8")).plan != VENDOR)


def test_out_may_overlap_an_operand_and_have_another_type(run: list[Plan]) -> None:
    a, b = random_array(SIDE, SIDE), random_array(SIDE, SIDE)
    expected = classical(a, b)
    for c in (np.empty((SIDE, SIDE), "f4"), np.empty((SIDE, SIDE), ">f8"), np.empty((2 * SIDE, SIDE))[::2]):
        assert np.matmul(a, b, out=c, casting="same_kind") is c
        np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-3)
    assert np.matmul(a, b, out=a) is a
    np.testing.assert_allclose(a, expected, rtol=1e-9, atol=1e-9)
    assert len(run) == 4


@pytest.mark.parametrize("shape", [(0, 5, 5), (5, 0, 5), (5, 5, 0), (0, 0, 0)])
def test_sizes_may_be_zero(shape: tuple[int, int, int], run: list[Plan]) -> None:
    m, k, n = shape
    c = np.ones((m, k)) @ np.ones((k, n))
    assert c.shape == (m, n) and not c.any() and not run
    assert (np.ones((0, m, k)) @ np.ones((0, k, n))).shape == (0, m, n)


def test_fmms_own_products_are_numpys(run: list[Plan]) -> None:
    """A plan's products of blocks, and the vendor's product of a caller's plan, run no other plans."""
    a = random_array(4 * SIDE, 4 * SIDE)
    np.testing.assert_array_equal(fmm.matmul(a, a, plan="vendor"), classical_by_numpy(a))
    run.clear()
    a @ a
    assert len(run) == 1
    run.clear()
    fmm.matmul(a, a, plan="winograd > vendor")
    assert len(run) == 1


def classical_by_numpy(a: Any) -> Any:
    fmm.uninstall("numpy")
    loops = numpy_loops.load_compiled_loops()
    for number in numpy_loops.DTYPES_BY_NUMBER:
        loops.set_limits(number, numpy_loops.NO_PLAN_SIDE, 0)
    try:
        return a @ a
    finally:
        numpy_loops.set_loop_size_limits()


# ---- numpy.matmul stays what others look for


def test_the_ufunc_stays_the_same_object() -> None:
    class Foreign:
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
            return ufunc is np.matmul, method

    before = np.matmul
    with fmm.installed("numpy"):
        assert np.matmul is before and type(before) is np.ufunc
        assert np.ones((2, 2)) @ Foreign() == np.matmul(Foreign(), Foreign()) == (True, "__call__")


def test_small_products_call_no_python() -> None:
    a, large = np.ones((100, 100)), np.ones((500, 500))
    called: list[str] = []
    with fmm.installed("numpy"):
        sys.setprofile(lambda frame, event, argument: called.append(frame.f_code.co_name) if event == "call" else None)
        try:
            a @ a
            a[0] @ a
            assert not called
            for _ in range(2):
                large @ large
        finally:
            sys.setprofile(None)
    assert "compute_loop_product" in called


def test_a_declined_product_is_not_decided_again_at_once() -> None:
    a = np.ones((500, 500))
    called: list[str] = []
    with fmm.installed("numpy"):
        for _ in range(2):
            a @ a
        sys.setprofile(lambda frame, event, argument: called.append(frame.f_code.co_name) if event == "call" else None)
        try:
            a @ a
        finally:
            sys.setprofile(None)
    assert not called


def test_products_of_ever_new_sizes_are_not_decided(host_plans: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    """Deciding takes as long as products of middle size; large ones are decided at once."""
    monkeypatch.setattr(numpy_loops, "FIRST_PRODUCT_WORK", 100**3)
    a = random_array(SIDE, SIDE)
    with fmm.installed("numpy"):
        for rows in range(SIDE - 20, SIDE):
            a[:rows] @ a
        assert not host_plans
        a[: SIDE - 1] @ a  # recurs
        assert len(host_plans) == 1
        np.ones((110, 100)) @ np.ones((100, 100))
        assert len(host_plans) == 2


def test_a_report_counts_products_of_new_sizes(host_plans: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_loops, "FIRST_PRODUCT_WORK", 100**3)
    a = random_array(SIDE, SIDE + 1)
    begin_report()
    try:
        with fmm.installed("numpy"):
            for _ in range(2):
                a @ a.T
            products = fmm.report().products
    finally:
        end_report()
    assert [(product.times, bool(product.outcome.plan)) for product in products] == [(1, False), (1, True)]
    assert products[0].outcome.reason == numpy_loops.FIRST_PRODUCT_REASON and len(host_plans) == 1


def loop_addresses() -> list[int]:
    """Return the addresses of numpy.matmul's loops."""
    replace = numpy_loops.numpy_function_address(numpy_loops.REPLACE_LOOP_INDEX)
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return [exchanged_loop(prototype(replace), number) for number in numpy_loops.DTYPES_BY_NUMBER]


def exchanged_loop(replace: Callable[..., int], number: int, loop: int | None = None) -> int:
    """Put another loop in place (by default none: the present one is put back), and return the one before."""
    signature, before = (ctypes.c_int * 3)(number, number, number), ctypes.c_void_p()
    assert replace(np.matmul, loop, signature, ctypes.byref(before)) == 0 and before.value
    if loop is None:
        assert replace(np.matmul, before.value, signature, ctypes.byref(ctypes.c_void_p())) == 0
    return before.value


def test_uninstalling_puts_the_very_loops_back() -> None:
    before = loop_addresses()
    for _ in range(3):
        with fmm.installed("numpy"):
            assert not set(loop_addresses()) & set(before)
        assert loop_addresses() == before


def test_a_loop_that_somebody_put_in_front_stays(run: list[Plan]) -> None:
    """It calls fmm's, which calls NumPy's, also after fmm is uninstalled and installed again."""
    address = numpy_loops.numpy_function_address(numpy_loops.REPLACE_LOOP_INDEX)
    replace = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
        address
    )
    number, a = np.dtype("f8").num, random_array(SIDE, SIDE)
    pointer = ctypes.c_void_p
    loop_type: Any = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, pointer)
    inner: list[Any] = []
    calls: list[int] = []

    def call_fmms(*arguments: Any) -> None:
        calls.append(1)
        inner[0](*arguments)

    theirs = loop_type(call_fmms)
    ours = exchanged_loop(replace, number, ctypes.cast(theirs, pointer).value)
    inner.append(loop_type(ours))
    try:
        np.testing.assert_allclose(a @ a, classical(a, a))
        assert calls and len(run) == 1
        calls.clear()
        with fmm.installed("numpy"):
            pass
        fmm.uninstall("numpy")
    finally:
        exchanged_loop(replace, number, ours)
    np.testing.assert_allclose(a @ a, classical(a, a))
    assert not calls


# ---- errors and exceptions


def test_an_error_of_fmms_leaves_the_product_to_numpy(
    run: list[Plan], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a = random_array(SIDE, SIDE)

    def fail(*arguments: Any) -> int:
        arguments[2][...] = np.nan  # half of C is written
        raise RuntimeError("a defect") if caplog.records else MemoryError

    monkeypatch.setattr(numpy_loops, "_multiply_by_plan", fail)
    monkeypatch.setattr(numpy_loops, "OWN_PACKAGES", {*numpy_loops.OWN_PACKAGES, __name__.partition(".")[0]})
    with caplog.at_level(logging.WARNING, "fmm"):
        for _ in range(4):
            np.testing.assert_allclose(a @ a, classical(a, a))
    assert [record.getMessage() for record in caplog.records] == [
        "fmm: numpy.matmul multiplies without fmm: MemoryError: ",
        "fmm: numpy.matmul multiplies without fmm: RuntimeError: a defect",
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_an_exception_of_a_signal_handler_is_raised_after_the_product(
    error: type[BaseException], run: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, c = random_array(SIDE, SIDE), np.zeros((SIDE, SIDE))

    def handler(*_: Any) -> None:
        raise error

    def interrupted(*arguments: Any) -> int:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the handler has not run")

    monkeypatch.setattr(numpy_loops, "_multiply_by_plan", interrupted)
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(error):
            np.matmul(a, a, out=c)
            for _ in range(1000):  # Python runs handlers at its next step
                pass
    finally:
        signal.signal(signal.SIGINT, before)
    np.testing.assert_allclose(c, classical(a, a))


def test_an_exception_for_another_thread_is_raised_there(run: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    a, found = random_array(SIDE, SIDE), list[Any]()

    def interrupted(*arguments: Any) -> int:
        raise KeyboardInterrupt

    def work() -> None:
        try:
            found.append(a @ a)
            for _ in range(1000):
                pass
        except KeyboardInterrupt:
            found.append("raised")

    monkeypatch.setattr(numpy_loops, "_multiply_by_plan", interrupted)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[1:] == ["raised"] or found == ["raised"]


def test_no_flag_of_floating_point_is_left_by_a_plan(run: list[Plan]) -> None:
    a = random_array(SIDE, SIDE)
    with np.errstate(all="raise"):
        np.testing.assert_allclose(a @ a, classical(a, a))


# ---- threads and processes


@pytest.mark.parametrize(("threads", "times"), quick_and_slow([(3, 2)], [(6, 8)]))
def test_many_threads_multiply_while_others_install(threads: int, times: int, host_plans: list[Plan]) -> None:
    """The interpreter switches threads 100 times as often as usual, so that few calls meet in many orders."""
    a = random_array(SIDE, SIDE)
    expected, wrong = classical(a, a), list[Any]()

    def work() -> None:
        for _ in range(times):
            with fmm.installed("numpy"):
                c = a @ a
            if not (np.allclose(c, expected) and np.allclose(a @ a, expected)):
                wrong.append(c)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 100)
    try:
        at_once([work] * threads)
    finally:
        sys.setswitchinterval(interval)
    assert not wrong and host_plans


@pytest.mark.filterwarnings("ignore")  # that a process with threads forks
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_multiplies_by_plans(run: list[Plan]) -> None:
    a = random_array(SIDE, SIDE)
    a @ a
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        before = len(run)
        good = np.allclose(a @ a, classical(a, a))
        os._exit(7 if good and len(run) == before + 1 else 1)
    assert os.waitpid(child, 0)[1] == 7 << 8
