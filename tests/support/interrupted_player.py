"""Plays launch lists and replays graphs with an interrupt at every step, on a driver that only records its
calls. `python -m tests.support.interrupted_player every`, with `every` a number of steps, prints the number
of interrupts. With `failures` in place of the number each call of the driver fails once instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch as patched_object

from tests.support import noting_driver
from tests.support.interrupts import StepInterrupts, time_limit
from tests.support.library_functions import Functions
from tests.support.noting_driver import (
    CublasError,
    DriverError,
    Note,
    RuntimeApiError,
    fails,
    log,
    modes,
    noted_call,
    sizes,
    words_at,
)

noting_driver.install()

from fmm.kernels.cuda.launch import cublas as our_cublas  # noqa: E402
from fmm.kernels.cuda.launch import kernel_call, player, streams  # noqa: E402
from fmm.kernels.cuda.launch.bound_calls import StatusError  # noqa: E402
from fmm.kernels.cuda.launch.compile import LoadedKernel  # noqa: E402
from fmm.kernels.cuda.record import record_launches  # noqa: E402
from fmm.kernels.plans.plan import Plan, PlanError  # noqa: E402
from fmm.perfmodel.block_model import chip_target  # noqa: E402
from fmm.problem import Problem  # noqa: E402
from fmm.runtime import run_device  # noqa: E402
from fmm.runtime.run_host import OutPartlyUpdatedError  # noqa: E402
from tests.support.chips import H200  # noqa: E402

numbers: dict[Any, int] = {}


def loaded(device: int, kernel: Any) -> LoadedKernel:
    return LoadedKernel(numbers.setdefault(kernel, 1000 + len(numbers)), None)


class SizedCall(kernel_call.KernelCall):
    def __init__(self, launch: Any, device: int) -> None:
        super().__init__(launch, device)
        sizes[self.function] = 8 * len(self.words)


def patch() -> None:
    functions = Functions(noted_call)
    for module, name, value in (
        (kernel_call, "compile_kernel", loaded),
        (player, "compile_kernels", lambda device, kernels: None),
        (player, "KernelCall", SizedCall),
        (our_cublas, "load_library", lambda name: functions),
        (streams, "create_handle", lambda: 78),
        (run_device, "cuda_device_chip", lambda device: H200),
        (run_device, "cuda_device", lambda device: None),
        (run_device, "chip_with_tuned_block_model", lambda device: None),  # a shape that no tuning contains
        (run_device, "UpdatableGraph", Graph),
    ):
        vars(module)[name] = value


# ---- lists


FILES = (
    "player.py",
    "prepared_calls.py",
    "streams.py",
    "cublas.py",
    "kernel_call.py",
    "device_run.py",
    "graphs.py",
    "interrupted_player.py",
    "noting_driver.py",
    "library_functions.py",
)
LISTS = [
    ("strassen.batched.pad16 > vendor", "float32"),
    ("winograd > vendor", "tf32"),
    ("winograd > strassen.overlapped > vendor", "float64"),
    ("li-fig3.peel > vendor", "float32"),
    ("strassen-huang.fused > tile.medium", "float32"),
    ("vendor", "float64"),
    ("vendor", "tf32"),
]
BASES = [(i << 30, 2 * i << 30, 3 * i << 30, 5 * i << 30) for i in (1, 2, 3)]


def list_of(text: str, dtype: str) -> Any:
    return record_launches(Plan.parse(text), Problem(512, 512, 512, dtype), chip_target(H200, flagged=True))


def noted(call: Callable[[], Any]) -> list[Note]:
    """Return the driver's calls of an uninterrupted call."""
    log.clear()
    call()
    return list(log)


def played(made: Any, bases: tuple[int, ...]) -> list[Note]:
    return noted(partial(made.launch_all, addresses_at(bases), 9))


def addresses_at(bases: tuple[int, ...]) -> Any:
    a, b, c, workspace = bases
    return player.Addresses(a, b, c, workspace, 1 << 20, 1 << 21)


def is_ahead(made: Any, right: list[Note]) -> int:
    """Return the number of launches that precede everything that may write C."""
    first = len(made._leading_launches)
    assert all(what[0] == "kernel" for what in right[:first])
    for launch in made.launches.launches[:first]:
        assert {slot.base for slot in launch.slots} <= {"A", "B", "W", "flag"}
    return first


# ---- an interrupt at each step


def interrupt_player(every: int) -> int:
    """Check that either all launches are made or none that writes C, and that the next call has its own
    addresses."""
    count, steps = 0, StepInterrupts(FILES[:5])
    for text, dtype in LISTS:
        for few in (0, 1000):
            player.MAX_LOOP_SLOTS = few
            made = player.Player(list_of(text, dtype), 0)
            right = [played(made, bases) for bases in BASES]
            ahead, step, turn = is_ahead(made, right[0]), 1, 0
            assert (ahead > 0) == text.endswith(" > vendor"), text
            while True:
                turn = (turn + 1) % len(BASES)
                log.clear()
                hit = steps.interrupted(partial(made.launch_all, addresses_at(BASES[turn]), 9), step)
                found = list(log)
                whole = found == right[turn]
                assert whole or (hit and len(found) <= ahead and found == right[turn][: len(found)]), (text, step)
                assert set(modes.values()) <= {0}, (text, step)
                if not hit:
                    break
                other = (turn + 1) % len(BASES)
                assert played(made, BASES[other]) == right[other], (text, step)
                count, step = count + 1, step + every
    return count


OFFSETS = ((0, 0, 0), (1 << 22, 0, 1 << 22), (1 << 23, 0, 1 << 23))


def stack_call(offsets: Any, replays: bool = False) -> Any:
    flag = SimpleNamespace(stream=9, address=1 << 20, count_address=1 << 21)
    call = SimpleNamespace(launches=list_of(*LISTS[0]), offsets=offsets, addend_offsets=(), uses_graph=replays)
    made: Any = run_device.StreamCall(call, flag, 0)  # type: ignore[arg-type]
    return made


def interrupt_stack(every: int) -> int:
    """Check that each product of a stack is launched as a whole, or none is."""
    whole, steps, count, step = stack_call(OFFSETS), StepInterrupts(FILES[:6]), 0, 1
    noted(lambda: whole.run_at_addresses(*BASES[0], 0))
    a, b, c, w = BASES[0]
    singles = [noted(partial(stack_call(OFFSETS[:1]).run_at_addresses, a + x, b + y, c + z, w)) for x, y, z in OFFSETS]
    ahead = len(next(iter(whole._players.values()))._leading_launches)
    while True:
        log.clear()
        hit = steps.interrupted(partial(whole.run_at_addresses, *BASES[0]), step)
        launched = set(launched_in_order(list(log), singles, ahead))
        assert launched in (set(), {0, 1, 2}) and (launched or hit), step
        if not hit:
            return count
        count, step = count + 1, step + every


def launched_in_order(found: list[Note], singles: list[list[Note]], ahead: int) -> Iterator[int]:
    """Return the products that were launched as a whole; all other launches ran ahead."""
    while found:
        number = next((i for i, one in enumerate(singles) if found[: len(one)] == one), None)
        if number is not None:
            yield number
            del found[: len(singles[number])]
        else:
            assert any(found[0] in one[:ahead] for one in singles), found[0]
            del found[0]


class Graph:
    """A graph whose kernels have the parameters of the last update."""

    is_updatable = True

    def __init__(self, graph: Any, kernels: Any) -> None:
        self.executable: list[bytes] = [words_at(x.parameters, x.size) for x in kernels]

    def update_parameters(self, kernels: Any) -> bool:
        for i, kernel in enumerate(kernels):
            self.executable[i] = words_at(kernel.parameters, kernel.size)
        return True


MOVED = [(*bases[:3], BASES[0][3]) for bases in BASES]  # the addresses that cuBLAS reads and writes do not change


def interrupt_replay(every: int) -> int:
    """Check that a graph is launched with one call's addresses, or not at all."""
    made, steps, count, step, turn = stack_call(OFFSETS[:1], True), StepInterrupts(FILES), 0, 1, 0
    for _ in range(5):
        made.run_at_addresses(*MOVED[0], 0)
    right = [noted(partial(made.run_at_addresses, *bases)) for bases in MOVED]
    assert [x[0][0] for x in right] == ["graph"] * 3 and len({str(x) for x in right}) == 3
    while True:
        turn = (turn + 1) % len(MOVED)
        log.clear()
        hit = steps.interrupted(partial(made.run_at_addresses, *MOVED[turn]), step)
        assert log == right[turn] or (hit and not log), step
        if not hit:
            return count
        for other in (turn, (turn + 1) % len(MOVED)):
            assert noted(partial(made.run_at_addresses, *MOVED[other])) == right[other], step
        count, step = count + 1, step + every


class FixedGraph(Graph):
    """A graph of an old driver, which cannot change the parameters of nodes."""

    is_updatable = False

    def update_parameters(self, kernels: Any) -> bool:
        return False


def replay_fixed_graph() -> int:
    """Check that a graph that cannot be updated is replayed at its own addresses, also after a call at others."""
    vars(run_device)["UpdatableGraph"] = FixedGraph
    made = stack_call(OFFSETS[:1], True)
    for _ in range(5):
        made.run_at_addresses(*MOVED[0], 0)
    turns = (MOVED[0], MOVED[1], MOVED[0])
    found = [noted(partial(made.run_at_addresses, *bases, 0))[0][0] for bases in turns]
    assert found == ["graph", "kernel", "graph"], found
    return len(found)


# ---- a call that fails


def fail_each_call() -> int:
    """Check that later calls are made after a failure: streams synchronized, modes restored, next call unchanged."""
    count = 0
    for text, dtype in LISTS:
        made = player.Player(list_of(text, dtype), 0)
        right = played(made, BASES[0])
        first = len(made._leading_launches)
        for at in range(1, len(right) + 1):
            log.clear()
            fails[:] = [at]
            try:
                made.launch_all(addresses_at(BASES[0]), 9)
            except RuntimeError:
                count += 1
            else:
                raise AssertionError(f"{text}: failure {at} raised no error")
            assert log == (right if at > first else right[:at])
            assert set(modes.values()) <= {0}
            assert played(made, BASES[1]) == played(made, BASES[1]) != right
    return count


def fail_leading_launches() -> int:
    """Check that the error status of an overlapping launch is raised before any launch that writes C."""
    launches = record_launches(
        Plan.parse("winograd > strassen.fused > tile.medium"), Problem(4096, 4096, 4096, "float32"), chip_target(H200)
    )
    vars(kernel_call)["_extended_launch_function"] = lambda: noted_call("overlapping", 700)
    made = player.Player(launches, 0)
    overlaps = [launch.overlaps for launch in launches.launches[: len(made._leading_launches)]]
    count = overlaps.index(True) + 1
    log.clear()
    try:
        made.launch_all(addresses_at(BASES[0]), 9)
    except StatusError as error:
        assert error.status == 700 and len(log) == count < len(launches.launches), len(log)
        return count
    raise AssertionError("the status raised no error")


# ---- a plan that cannot run


class NoVendor:
    """A library whose own product must not be called."""

    def allocate_arrays(self, *given: Any) -> tuple[Any, ...]:
        return (*BASES[0], None, None)

    def record_array_change(self, out: Any) -> None:
        pass

    def vendor_product(self, *given: Any) -> None:
        raise AssertionError("the vendor multiplied")


def refuse_candidates() -> int:
    """Check that a cuBLASLt without candidates is reported before anything is launched."""
    flag = SimpleNamespace(stream=9, address=1 << 20, count_address=1 << 21, prepared={}, allows_plan=lambda: True)
    vars(run_device)["stream_flag"] = lambda device, stream: flag
    library: Any = NoVendor()
    query_counts = []
    for offsets in (OFFSETS[:1], OFFSETS):
        places = {"offsets": offsets, "addend_offsets": ()}
        call: Any = SimpleNamespace(launches=list_of("lt7", "float32"), **places, uses_graph=False, plan="lt7")
        for given in (True, False):
            log.clear()
            try:
                run_device._run_on_stream(library, call, None, None, "out", given, 0, 0)
            except PlanError as error:
                assert "there is no lt7" in str(error)
            else:
                raise AssertionError("no error was raised")
            assert not [what for what in log if what[0] in ("kernel", "graph", "cublasLtMatmul")]
            query_counts.append(sum(what[0] == "cublasLtMatmulAlgoGetHeuristic" for what in log))
    assert query_counts == [1, 0, 1, 0], query_counts
    return len(query_counts)


# ---- memory that runs out


class MemoryNeededError(Exception):
    """The exception of a library when memory runs out."""


class LibraryOnNotedDriver(NoVendor):
    """A library that raises MemoryNeededError when memory runs out, and whose own product does nothing."""

    out_of_memory_error = MemoryNeededError

    def current_stream(self, device: int) -> tuple[int, None]:
        return 0, None

    def vendor_product(self, *given: Any) -> None:
        pass


def run_out_of_memory() -> int:
    """Check that an error of CUDA or cuBLAS for want of memory is the library's, unless `out` may be half updated."""
    flag = SimpleNamespace(stream=9, address=1 << 20, count_address=1 << 21, prepared={}, allows_plan=lambda: True)
    vars(run_device)["stream_flag"] = lambda device, stream: flag
    library: Any = LibraryOnNotedDriver()
    memory = [StatusError("cublasCreate", 3), StatusError("a call", 2), RuntimeApiError(2), DriverError(2)]
    others = [StatusError("cublasCreate", 14), RuntimeApiError(3), DriverError(700), CublasError(2), ValueError()]
    count = 0
    for error in (*memory, CublasError(3), MemoryError(), *others):
        is_memory = error not in others
        for out, beta in ((None, 0), ("out", 0), ("out", 1)):
            problem = Problem(512, 512, 512, "float32", beta=beta)
            launches = record_launches(Plan.parse("winograd > vendor"), problem, chip_target(H200, flagged=True))
            setting, places = SimpleNamespace(device=0), {"offsets": OFFSETS[:1], "addend_offsets": ()}
            call: Any = SimpleNamespace(setting=setting, launches=launches, **places, uses_graph=False)
            kind = (OutPartlyUpdatedError if beta else MemoryNeededError) if is_memory else type(error)
            with patched_object.object(run_device, "cached_player", raising(error)):
                try:
                    run_device.run_call(library, call, None, None, out, False)
                except kind as found:
                    assert is_memory is (found.__cause__ is error), error
                    count += 1
    return count


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        raise error

    return call


def capture_without_memory() -> int:
    """Check that a call is launched without a graph if memory for the graph's counters or its stream runs out."""
    for owner, name in ((player.Player, "new_counters"), (run_device, "take_capture_stream")):
        with patched_object.object(owner, name, raising(RuntimeApiError(2))):
            made = stack_call(OFFSETS[:1], True)
            for _ in range(5):
                assert noted(partial(made.run_at_addresses, *MOVED[0], 0))[0][0] == "kernel"
    return 2


def main(what: str) -> None:
    patch()
    with time_limit(1200):
        if what == "failures":
            print(fail_each_call())
        elif what == "leading":
            print(fail_leading_launches())
        elif what == "refusals":
            print(refuse_candidates())
        elif what == "fixed":
            print(replay_fixed_graph())
        elif what == "memory":
            print(run_out_of_memory(), capture_without_memory())
        else:
            print(interrupt_player(int(what)), interrupt_stack(int(what)), interrupt_replay(int(what)))


if __name__ == "__main__":
    main(sys.argv[1])
