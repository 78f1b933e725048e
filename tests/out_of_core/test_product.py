"""NumPy arrays streamed through a simulated engine: NumPy's results, types, memory and errors."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.arrays.numpy_library import NUMPY, NumpyLibrary
from fmm.kernels.plans.plan import Plan
from fmm.out_of_core import machine as streaming_device
from fmm.out_of_core import product as out_of_core
from fmm.out_of_core.choose_schedule import TilesDoNotFitError
from fmm.out_of_core.machine import CudaStreamingDevice
from fmm.out_of_core.transfers import (
    BUFFERS_PER_THREAD,
    MAX_COPY_THREADS,
    CopyThreads,
    DeviceLocation,
    measure_copy_rates,
)
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.limits import NO_CONSTRAINTS, PlanConstraints
from fmm.runtime.matmul import extra_bytes_of_call
from tests.support.device_arrays import EPS, draw
from tests.support.host_engine import HostEngine, HostMachine
from tests.support.marks import quick_and_slow

WATCHDOG_SECONDS = 120  # ends a test that hangs; no test waits this long otherwise
ROOMS = [10**9, 200_000, 60_000]
TYPES = ["float32", "float64", "complex64", "complex128", "float16", "int8", "int64", "uint16"]


@pytest.fixture(autouse=True)
def every_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_of_core, "ALWAYS_FREE_BYTES", 0)
    monkeypatch.setattr("fmm.out_of_core.transfers.COPY_CHUNK_BYTES", 4096)


def streamed(a: Any, b: Any, out: Any = None, room: int = 200_000, machine: Any = None, **options: Any) -> Any:
    machine = machine or HostMachine(room)
    return out_of_core.streamed_matmul(NUMPY.adapter_for_matmul_options(options), a, b, out, machine, NO_CONSTRAINTS)


def matrix(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    return np.asarray(draw(shape, dtype, seed) * (1 if dtype == "float16" else 20)).astype(dtype)


def close(found: Any, a: Any, b: Any) -> None:
    with np.errstate(all="ignore"):
        wanted = np.matmul(a, b)
    assert (found.shape, found.dtype, type(found)) == (wanted.shape, wanted.dtype, type(wanted))
    if wanted.dtype.kind in "iu":
        np.testing.assert_array_equal(found, wanted)
    else:
        scale = np.abs(a).astype(np.float64).max() * np.abs(b).astype(np.float64).max() * a.shape[-1]
        assert np.abs(found - wanted).max() <= 4 * EPS[wanted.dtype.name] * scale


@pytest.mark.quick_cases()
@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_products_of_every_type(dtype: str, room: int) -> None:
    a, b = matrix((90, 130), dtype), matrix((130, 110), dtype, 1)
    machine = HostMachine(room)
    close(streamed(a, b, machine=machine), a, b)
    assert machine.made.sent_bytes > 0 and machine.made.finished


VIEWS: dict[str, Callable[[Any], Any]] = {
    "turned": lambda x: np.asfortranarray(x),
    "every other row": lambda x: np.repeat(x, 2, 0)[::2],
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "another byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "gaps along both axes": lambda x: np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3],
}


@pytest.mark.parametrize("name", VIEWS)
def test_arrays_may_lie_anyhow(name: str) -> None:
    a, b = matrix((90, 130), "float64"), matrix((130, 70), "float64", 1)
    view = VIEWS[name]
    close(streamed(view(a), b), a, b)
    close(streamed(a, view(b)), a, b)
    out = view(np.zeros((90, 70)))
    if out.dtype.isnative:
        assert streamed(a, b, out) is out
    close(np.ascontiguousarray(out) if out.dtype.isnative else streamed(a, b), a, b)


def test_arrays_that_are_mapped_from_files(tmp_path: Path) -> None:
    a, b, out = (np.memmap(tmp_path / name, "f4", "w+", shape=(100, 100)) for name in "abc")
    a[...], b[...] = matrix((100, 100), "float32"), matrix((100, 100), "float32", 1)
    assert streamed(a, b, out) is out
    close(np.asarray(out), np.asarray(a), np.asarray(b))


def test_explaining_says_that_files_are_not_counted(tmp_path: Path) -> None:
    """For mapped arrays and for views of one."""
    mapped: Any = np.memmap(tmp_path / "a", "f4", "w+", shape=(100, 100))
    plain, machine, words = (
        np.ones((100, 100), "f4"),
        HostMachine(200_000),
        "not predicted: reading and writing the mapped files",
    )
    for a, b, out in ((mapped, plain, None), (plain, np.asarray(mapped).T, None), (plain, plain, mapped)):
        assert words in str(out_of_core.explain_streamed_matmul(NUMPY, a, b, out, machine, NO_CONSTRAINTS))
    assert words not in str(out_of_core.explain_streamed_matmul(NUMPY, plain, plain, None, machine, NO_CONSTRAINTS))


@pytest.mark.parametrize(
    ("left", "right"),
    [((90,), (90, 70)), ((80, 90), (90,)), ((90,), (90,)), ((3, 40, 50), (50, 60)), ((2, 1, 40, 50), (3, 50, 30))],
)
def test_vectors_and_stacks(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = matrix(left, "float64"), matrix(right, "float64", 1)
    found, wanted = streamed(a, b), np.matmul(a, b)
    assert type(found) is type(wanted)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


STACK_OF_COLUMNS = np.zeros((4, 60, 40)).swapaxes(1, 2)
EXPLAINED: list[tuple[tuple[int, ...], tuple[int, ...], Any, dict[str, Any]]] = [
    ((4, 40, 50), (50, 60), None, {}),  # one product of 160 rows
    ((4, 40, 50), (50, 60), np.zeros((4, 40, 60)), {}),
    ((4, 40, 50), (50, 60), STACK_OF_COLUMNS, {}),  # four products, each with a column-major result
    ((4, 40, 50), (4, 50, 60), None, {}),
    ((90, 130), (130, 70), None, {}),
    ((90, 130), (130, 70), np.zeros((90, 70), order="F"), {}),
    ((90, 130), (130, 70), None, {"order": "F"}),
]


@pytest.mark.parametrize(("left", "right", "out", "options"), EXPLAINED)
def test_explaining_describes_the_products_that_run(
    left: tuple[int, ...], right: tuple[int, ...], out: Any, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, run, ran = matrix(left, "float64"), matrix(right, "float64", 1), out_of_core._run_schedule, []

    def run_recorded(streaming: Any, *rest: Any) -> None:
        ran.append(streaming.schedule.size)
        run(streaming, *rest)

    monkeypatch.setattr(out_of_core, "_run_schedule", run_recorded)
    adapter, machine = NUMPY.adapter_for_matmul_options(options), HostMachine(10**9)
    said = str(out_of_core.explain_streamed_matmul(adapter, a, b, out, machine, NO_CONSTRAINTS))
    streamed(a, b, out, machine=machine, **options)
    ((m, _, n),) = set(ran)
    assert f"streamed: C of {m} x {n} " in said
    assert said.count("repeated") == (len(ran) > 1) and (len(ran) == 1 or f"repeated {len(ran)} times" in said)
    assert ("column-major" in said) == (n == left[-2])


@pytest.mark.parametrize("emulation", ["0", "1"])
def test_the_variable_for_componentwise_bounds_is_the_argument(emulation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMM_EMULATION", emulation)
    a, machine = np.broadcast_to(np.float32(0), (40000, 40000)), HostMachine(1 << 35)

    def explained(constraints: PlanConstraints) -> Decision:
        return out_of_core.explain_streamed_matmul(NUMPY, a, a, None, machine, constraints)

    plain, by_argument = explained(NO_CONSTRAINTS), explained(NO_CONSTRAINTS._replace(componentwise=True))
    assert plain.plan != by_argument.plan
    assert by_argument.problem is not None and by_argument.problem.componentwise
    monkeypatch.setenv("FMM_COMPONENTWISE", "1")
    assert explained(NO_CONSTRAINTS) == by_argument


def test_explaining_allocates_no_result() -> None:
    """The result would have 16 TiB."""
    a = np.broadcast_to(np.float32(0), (1 << 21, 8))
    said = str(out_of_core.explain_streamed_matmul(NUMPY, a, a.T, None, HostMachine(1 << 37), NO_CONSTRAINTS))
    assert f"C of {1 << 21} x {1 << 21} " in said


def test_types_are_numpys() -> None:
    a, b = matrix((60, 70), "float32"), matrix((70, 50), "float64", 1)
    close(streamed(a, b), a, b)
    single = np.zeros((60, 50), "float32")
    streamed(a, b, single)
    np.testing.assert_array_equal(single, streamed(a, b).astype("float32"))
    assert streamed(a, a.T, dtype="float64").dtype == np.float64
    assert streamed(a, b, order="F").flags.f_contiguous


def test_a_result_may_overlap_an_operand() -> None:
    a = matrix((80, 80), "float64")
    wanted = a @ a
    streamed(a, a, a)
    np.testing.assert_allclose(a, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("first", [0, 30, 50, 80])
def test_a_result_may_be_a_part_of_what_the_operands_are_parts_of(first: int) -> None:
    whole = matrix((160, 80), "float64")
    wanted = whole[:80] @ whole[80:]
    out = whole[first : first + 80]
    assert streamed(whole[:80], whole[80:], out) is out
    np.testing.assert_allclose(out, wanted, rtol=1e-9, atol=1e-9)


def test_a_result_between_an_operands_rows_is_written_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Column blocks of one array share no element, though their address ranges overlap."""
    whole = matrix((80, 160), "float64")
    a, b, out = whole[:, :80], matrix((80, 80), "float64", 1), whole[:, 80:]
    wanted = a @ b
    monkeypatch.setattr(NumpyLibrary, "new_array", lambda *arguments: pytest.fail("memory for all of C"))
    assert streamed(a, b, out) is out
    np.testing.assert_allclose(out, wanted, rtol=1e-9, atol=1e-9)


def test_a_result_may_be_the_transpose_of_an_operand() -> None:
    a = matrix((80, 80), "float64")
    wanted = a @ a
    streamed(a, a, a.T)
    np.testing.assert_allclose(a.T, wanted, rtol=1e-9, atol=1e-9)


def test_files_that_cannot_be_written_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", matrix((90, 90), "float64"))
    a = np.load(tmp_path / "a.npy", mmap_mode="r")
    close(streamed(a, a), np.asarray(a), np.asarray(a))
    with pytest.raises(ValueError) as theirs:
        np.matmul(a, a, out=a)
    with pytest.raises(type(theirs.value)) as ours:
        streamed(a, a, a)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("dtype", ["float64", "complex128", "int64"])
@pytest.mark.parametrize("size", [(4, 20000, 4), (1, 50000, 1), (20000, 2, 3), (3, 2, 20000), (300, 1, 300)])
def test_sides_of_very_different_lengths(size: tuple[int, int, int], dtype: str) -> None:
    """In as many steps as there are tiles, not as many as there are rows."""
    m, k, n = size
    a, b, machine = matrix((m, k), dtype), matrix((k, n), dtype, 1), HostMachine(2_000_000)
    found = streamed(a, b, machine=machine)
    np.testing.assert_allclose(found, a @ b, rtol=1e-9, atol=1e-6)
    assert len(machine.made.workspaces) <= 64


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        (np.ones((2, 3)), np.ones((2, 3)), None),
        (np.ones((2, 3)), np.ones((3, 2)), np.ones((3, 3))),
        (np.ones((2, 3)), np.ones((3, 2)), np.ones((2, 2), int)),
        (np.ones(()), np.ones((3, 2)), None),
    ],
)
def test_what_numpy_rejects_is_rejected_as_numpy_does(a: Any, b: Any, out: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as theirs:
        np.matmul(a, b, out=out)
    with pytest.raises(type(theirs.value)) as ours:
        streamed(a, b, out)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("kind", ["longdouble", "object", "complex256"])
def test_what_the_device_does_not_take_is_numpys(kind: str) -> None:
    a, machine = np.ones((4, 4), kind), HostMachine(10**6)
    np.testing.assert_array_equal(streamed(a, a, machine=machine), a @ a)
    np.testing.assert_array_equal(streamed(a[:0], a, machine=machine), a[:0] @ a)
    assert not machine.made.allocated


# ---- memory


def test_no_more_memory_than_is_said() -> None:
    machine = HostMachine(300_000)
    a, b = matrix((120, 130), "float32"), matrix((130, 140), "float32", 1)
    said = str(out_of_core.explain_streamed_matmul(NUMPY, a, b, None, machine, NO_CONSTRAINTS))
    streamed(a, b, machine=machine)
    slots = machine.made.allocated
    assert len(slots) == 1 and slots[0] + max(machine.made.workspaces) <= 300_000
    assert f"{slots[0] / (1 << 30):.2f} GiB" in said and "predicted" in said and "120 x 140" in said


@pytest.mark.parametrize("failing", ["allocate", "reserve"])
def test_less_memory_than_it_seemed(failing: str) -> None:
    """Somebody else took it: smaller tiles are tried."""
    tries: list[str] = []

    def fails(what: str) -> None:
        if what == failing:
            tries.append(what)
            if len(tries) < 3:
                raise MemoryError

    machine = HostMachine(300_000, HostEngine(fails))
    a = matrix((120, 120), "float32")
    close(streamed(a, a, machine=machine), a, a)
    assert len(tries) == 3


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("size", "room"), [((240, 240, 240), 2_000_000), ((1200, 1000, 1400), 16_000_000)])
def test_the_largest_workspace_is_asked_for_before_the_first_tile(size: tuple[int, int, int], room: int) -> None:
    """The workspace of the required plan for its largest product is reserved, and fits beside the tiles."""
    machine, (m, k, n) = HostMachine(room), size
    a, b = matrix((m, k), "float64"), matrix((k, n), "float64", 1)
    plan = Plan.parse("strassen > vendor")
    constraints = NO_CONSTRAINTS._replace(plan=plan)
    close(out_of_core.streamed_matmul(NUMPY, a, b, None, machine, constraints), a, b)
    (reserved,), (slots,) = machine.made.reserved, machine.made.allocated
    found = [Problem(x, y, z, "float64", beta=int(adds)) for x, y, z, adds in machine.made.products]
    limits = Limits(machine.made.workspaces[0], 5.0)
    assert reserved == max(extra_bytes_of_call(problem, limits, machine.device, plan) for problem in found)
    assert reserved >= max(Decision(plan, problem, "").workspace for problem in found) > 0
    assert slots + reserved <= room
    said = str(out_of_core.explain_streamed_matmul(NUMPY, a, b, None, machine, constraints))
    assert f"with the workspace {(slots + reserved) / (1 << 30):.2f} GiB" in said


@pytest.mark.slow
def test_a_plan_for_which_there_is_too_little_memory_is_tried_with_the_smallest_tiles() -> None:
    machine, a = HostMachine(500_000), matrix((240, 240), "float64")
    constraints = NO_CONSTRAINTS._replace(plan=Plan.parse("strassen^3.pad16 > vendor"))
    close(out_of_core.streamed_matmul(NUMPY, a, a, None, machine, constraints), a, a)
    assert machine.made.allocated[0] <= 125_000


def test_far_too_little_memory() -> None:
    with pytest.raises(TilesDoNotFitError, match="too few"):
        streamed(matrix((300, 300), "float64"), matrix((300, 300), "float64"), room=2000)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", quick_and_slow(["float64"], ["complex128", "int8"]))
@pytest.mark.parametrize("size", [(4, 20001, 4), (1, 50001, 1), (20001, 2, 3), (3, 2, 20001), (64, 5000, 64)])
def test_buffers_are_no_larger_than_is_said_however_long_rows_are(
    size: tuple[int, int, int], dtype: str, order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer rows are copied in parts, and the result is the same bit for bit."""
    (m, k, n), found = size, []
    a, b = (np.asarray(matrix(x, dtype), order=order) for x in ((m, k), (k, n)))
    for chunk in (4096, 1 << 22):
        monkeypatch.setattr("fmm.out_of_core.transfers.COPY_CHUNK_BYTES", chunk)
        machine, out = HostMachine(2_000_000), np.zeros((m, n), dtype, order=order)
        found.append(streamed(a, b, out, machine=machine))
        assert (
            set(machine.made.buffers) == {chunk}
            and len(machine.made.buffers) <= 2 * BUFFERS_PER_THREAD * MAX_COPY_THREADS
        )
    np.testing.assert_array_equal(*found)


# ---- what goes wrong in the middle


@pytest.mark.parametrize("what", ["send", "fetch", "multiply"])
def test_a_failure_in_any_thread_ends_all(what: str) -> None:
    left = [5]

    def fails(now: str) -> None:
        if now == what:
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError(f"{what} failed")

    machine = HostMachine(60_000, HostEngine(fails))
    a, before = matrix((150, 150), "float64"), threading.active_count()
    with pytest.raises(RuntimeError, match=f"{what} failed"):
        streamed(a, a, machine=machine)
    assert threading.active_count() == before and machine.made.finished and not machine.made.late


def test_a_bar_where_it_is_asked_for_and_takes_long(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tqdm")
    a = matrix((100, 100), "float32")

    def shown(long: float, progress: bool) -> str:
        monkeypatch.setattr("fmm.runtime.progress.MIN_SHOWN_SECONDS", long)
        close(out_of_core.streamed_matmul(NUMPY, a, a, None, HostMachine(60_000), NO_CONSTRAINTS, progress), a, a)
        return capfd.readouterr().err

    assert "fmm.matmul" in shown(0.0, True)
    assert not shown(0.0, False) and not shown(10.0, True)


def test_ctrl_c_ends_all() -> None:
    """An interrupt ends a product wherever it waits."""
    interrupted = threading.Event()

    def interrupt_first_send(what: str) -> None:
        if what == "send" and not interrupted.is_set():
            interrupted.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.002)

    machine = HostMachine(60_000, HostEngine(interrupt_first_send))
    a, before = matrix((200, 200), "float64"), set(threading.enumerate())
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            streamed(a, a, machine=machine)
    finally:
        signal.signal(signal.SIGINT, old)
    until = time.monotonic() + WATCHDOG_SECONDS
    while set(threading.enumerate()) - before and time.monotonic() < until:
        time.sleep(0.01)  # a thread may be starting as the signal arrived; such a thread cannot be joined yet
    assert not set(threading.enumerate()) - before
    assert not machine.made.late


def test_a_matrix_is_there_when_all_of_its_chunks_are() -> None:
    """Two loads start before the first is awaited; a thread's error is raised by `wait`."""
    left = [6]  # chunks: the first matrix has four

    def fails(what: str) -> None:
        left[0] -= what == "send"
        if left[0] < 0:
            raise OSError("the array's file is gone")

    engine = HostEngine(fails)
    transfers = CopyThreads(engine, threads=1)
    a, b = matrix((32, 64), "float64"), matrix((32, 64), "float64", 1)
    (start, memory), dtype = engine.allocate_memory(2 * a.nbytes), a.dtype
    places = [DeviceLocation(start + i * a.nbytes, 64, dtype) for i in range(2)]
    loads = [transfers.start_load(x, place) for x, place in zip((a, b), places, strict=True)]
    loads[0].wait()
    assert loads[0].has_happened()
    assert (engine.matrix_at_address(places[0].address, a.shape, 64, dtype) == a).all()
    with pytest.raises(OSError, match="is gone"):
        loads[1].wait()
    transfers.close()
    del memory


def test_rates_are_measured_there_and_back() -> None:
    engine = HostEngine()
    transfers, ticks = CopyThreads(engine, threads=2), iter(range(1000))
    try:
        rates = measure_copy_rates(engine, transfers, lambda: float(next(ticks)), 1 << 20)
    finally:
        transfers.close()
    assert rates == (2.0**20, 2.0**20)


@pytest.mark.parametrize(("free", "copied"), [(1 << 30, 1 << 20), (1 << 21, 1 << 19), (100_000, 1 << 16)])
def test_rates_are_measured_with_a_fourth_of_the_free_memory_at_most(
    free: int, copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = HostMachine(free)
    monkeypatch.setattr(streaming_device, "PROBE_BYTES", 1 << 20)
    monkeypatch.setattr(CudaStreamingDevice, "free_bytes", lambda self: host.free_bytes())
    monkeypatch.setattr(CudaStreamingDevice, "open_engine", lambda self, constraints: host.open_engine(constraints))
    streaming_device._measured_cuda_rates.cache_clear()
    assert min(CudaStreamingDevice(0).copy_rates) > 0 and host.made.allocated == [copied]
    streaming_device._measured_cuda_rates.cache_clear()


# ---- the public face


def test_a_device_that_is_not_there_is_an_error_in_words() -> None:
    a = np.ones((4, 4))
    with pytest.raises((ModuleNotFoundError, ValueError), match=r"CuPy|device"):
        fmm.matmul(a, a, device=4711)
    with pytest.raises(ValueError, match="unknown device 'tpu'"):
        fmm.matmul(a, a, device="tpu")
    np.testing.assert_array_equal(fmm.matmul(a, a, device="cpu"), a @ a)
