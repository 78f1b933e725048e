"""Threads that share one stream, on a driver that knows graphs, contexts and loaded code: `python -m
tests.support.stream_sharers CHECK`. Each check interleaves its threads at a chosen step of the driver, so it
always meets the case.

The driver raises `MisuseError` where CUDA's behaviour is undefined: a call without a current context, a graph that is
destroyed or that two threads use at once, and a kernel whose code was unloaded.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

from tests.support import noting_driver
from tests.support.interrupts import time_limit
from tests.support.library_functions import Functions
from tests.support.noting_driver import noted_call, sizes, words_at
from tests.support.numpy_cupy import PinnedMemory
from tests.support.threads import at_once

noting_driver.install()

import cupy  # noqa: E402

from fmm.kernels.cuda.launch import compile as compiler  # noqa: E402
from fmm.kernels.cuda.launch import cublas, graphs, kernel_call, player, streams  # noqa: E402
from fmm.kernels.cuda.launch.compile import LoadedKernel  # noqa: E402
from fmm.kernels.cuda.record import record_launches  # noqa: E402
from fmm.kernels.plans.plan import Plan  # noqa: E402
from fmm.perfmodel.block_model import chip_target  # noqa: E402
from fmm.problem import Problem  # noqa: E402
from fmm.runtime import run_device  # noqa: E402
from tests.support.chips import H200  # noqa: E402

STREAM = 9
WORKSPACE = 7 << 40
PLANS = ("strassen.batched.pad16 > tile", "winograd > tile")


class MisuseError(AssertionError):
    """Something whose effect CUDA does not define."""


# ---- contexts and code


class Contexts(threading.local):
    """The threads that have a current context: calls of CUDA's runtime create one, calls of the driver need
    one."""

    current = False

    def attach(self, *arguments: Any) -> None:
        self.current = True

    def require(self) -> None:
        if not self.current:
            raise MisuseError("the driver was called without a current context")


class Module:
    """Loaded code."""


contexts = Contexts()
code: dict[int, weakref.ref[Module]] = {}  # by address
loads: list[Any] = []  # kernels, in the order of their compilations
at_load: list[Callable[[], None]] = []  # called while a kernel is being compiled


def load(kernel: Any) -> LoadedKernel:
    address, module = 1000 + len(loads), Module()
    loads.append(kernel)
    code[address] = weakref.ref(module)
    for step in at_load:
        step()
    return LoadedKernel(address, module)


def launch_kernel(function: int, *shape_and_more: int) -> None:
    contexts.require()
    require_code(function)
    *_, stream, pointers, _ = shape_and_more
    words = words_at(pointers, sizes[function])
    if stream in capturing:
        capturing[stream].append((function, words))
    else:
        launched.append((threading.get_ident(), ((function, words),)))


def require_code(function: int) -> None:
    if code[function]() is None:
        raise MisuseError("the code of a kernel is unloaded")


class SizedCall(kernel_call.KernelCall):
    def __init__(self, launch: Any, device: int) -> None:
        super().__init__(launch, device)
        sizes[self.function] = 8 * len(self.words)


# ---- graphs

Kernels = tuple[tuple[int, bytes], ...]  # functions and the words of their parameters
capturing: dict[int, list[tuple[int, bytes]]] = {}
launched: list[tuple[int, Kernels]] = []  # threads, and what each started
executables: dict[int, Executable] = {}
at_write: list[Callable[[], Any]] = []  # called while a node's parameters are being set


class Executable:
    """An executable graph, which one thread may use at a time, as long as it is not destroyed."""

    def __init__(self, kernels: list[tuple[int, bytes]]) -> None:
        self.kernels, self.alive, self.lock = kernels, True, threading.Lock()

    @contextmanager
    def used(self) -> Iterator[None]:
        if not self.alive or not self.lock.acquire(blocking=False):
            raise MisuseError("the graph is destroyed, or in use by another thread")
        try:
            yield
        finally:
            self.lock.release()
        if not self.alive:
            raise MisuseError("the graph was destroyed while it was in use")


class CapturedGraph:
    """CuPy's graph, which destroys the driver's graph when it is no longer referenced."""

    def __init__(self, kernels: list[tuple[int, bytes]]) -> None:
        self.graph = self.graphExec = 1 + len(executables)
        executables[self.graphExec] = executable = Executable(list(kernels))
        weakref.finalize(self, setattr, executable, "alive", False)


class Stream(noting_driver.Numbered):
    """A stream; `created` and `destroyed` count all of them."""

    created = destroyed = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        Stream.created += 1

    def __del__(self) -> None:
        Stream.destroyed += 1

    def begin_capture(self) -> None:
        capturing[self.ptr] = []

    def end_capture(self) -> Any:
        contexts.attach()
        return CapturedGraph(capturing.pop(self.ptr))


memory: list[Any] = []  # parameters of nodes as the driver returns them


def list_nodes(graph: Any, handles: Any, count: Any) -> int:
    kernels = executables[graph.value].kernels
    count._obj.value = len(kernels)
    for i in range(len(kernels) if handles is not None else 0):
        handles[i] = graph.value << 20 | i
    return 0


def read_node(handle: Any, node: Any) -> int:
    function, words = executables[handle.value >> 20].kernels[handle.value & 0xFFFFF]
    value = ctypes.create_string_buffer(words, len(words))
    pointer = ctypes.c_void_p(ctypes.addressof(value))
    memory.extend((value, pointer))
    node._obj.function, node._obj.parameters = function, ctypes.addressof(pointer)
    return 0


def write_node(executable: Any, handle: Any, node: Any) -> int:
    contexts.require()
    found = executables[executable.value]
    with found.used():
        function = node._obj.function
        require_code(function)
        for step in at_write:
            step()
        found.kernels[handle.value & 0xFFFFF] = function, words_at(node._obj.parameters, sizes[function])
    return 0


def launch_graph(executable: int, stream: int) -> None:
    contexts.attach()
    with executables[executable].used():
        launched.append((threading.get_ident(), tuple(executables[executable].kernels)))


def kernel_type(handle: Any, kind: Any) -> int:
    kind._obj.value = graphs.KERNEL_NODE_TYPE
    return 0


def patch() -> None:
    functions, runtime = Functions(noted_call), cupy.cuda.runtime
    for name in ("setDevice", "memsetAsync", "memGetInfo", "streamSynchronize"):
        setattr(runtime, name, contexts.attach)
    runtime.graphLaunch, runtime.streamIsCapturing = launch_graph, lambda stream: False
    cupy.cuda.Stream, cupy.cuda.alloc_pinned_memory, cupy.cuda.Device = Stream, PinnedMemory, nullcontext
    driver = graphs._DriverFunctions(list_nodes, kernel_type, read_node, write_node)
    for module, name, value in (
        (compiler, "_load_kernel", load),
        (kernel_call, "launch_kernel", launch_kernel),
        (player, "KernelCall", SizedCall),
        (cublas, "load_library", lambda name: functions),
        (streams, "create_handle", lambda: 78),
        (graphs, "_driver_functions", lambda: driver),
        (run_device, "cuda_device_chip", lambda device: H200),
        (run_device, "cuda_device", lambda device: None),
        (run_device, "chip_with_tuned_block_model", lambda device: None),
    ):
        vars(module)[name] = value


# ---- calls


class Operands:
    """A library whose arrays are addresses; each call names its own."""

    def allocate_arrays(self, call: Any, a: int, b: int, out: int) -> tuple[Any, ...]:
        return a, b, out, WORKSPACE, out, None

    def record_array_change(self, out: int) -> None:
        pass


def prepared_call(text: str, side: int = 512) -> Any:
    launches = record_launches(Plan.parse(text), Problem(side, side, side, "float32"), chip_target(H200, flagged=True))
    return SimpleNamespace(launches=launches, offsets=((0, 0, 0),), addend_offsets=(), uses_graph=True, plan=text)


def multiply(call: Any, address: int) -> Kernels:
    """Run the call on operands at these addresses and return what this thread has started for it."""
    library: Any = Operands()
    before = len(launched)
    a, b, c = address, address + (1 << 30), address + (2 << 30)
    run_device._run_on_stream(library, call, a, b, c, True, 0, STREAM)
    own = [kernels for thread, kernels in launched[before:] if thread == threading.get_ident()]
    return tuple(kernel for kernels in own for kernel in kernels)


def expected(call: Any, address: int) -> set[int]:
    """Return the words that hold an address of this call's operands."""
    return {address + (i << 30) for i in range(3)}


def check_addresses(call: Any, address: int, kernels: Kernels) -> None:
    """Check that these kernels have A, B and C of this call and of no other."""
    assert len(kernels) == len(call.launches.launches), "not every kernel was started"
    words = {int.from_bytes(words[i : i + 8], "little") for _, words in kernels for i in range(0, len(words), 8)}
    operands = {word for word in words if 1 << 43 <= word < 1 << 46}
    assert {word >> 40 for word in operands} == {address >> 40}, "a kernel has another call's operands"


ADDRESSES = [i << 43 for i in (1, 2, 3, 4)]


def multiply_until_replayed(call: Any, addresses: list[int], times: int = 6) -> None:
    for i in range(times):
        address = addresses[i % len(addresses)]
        check_addresses(call, address, multiply(call, address))


# ---- checks


def check_handed_over_graphs() -> None:
    """Check that a thread that takes over an ended thread's graphs has a context when it first updates
    one."""
    call = prepared_call(PLANS[0])
    at_once([partial(multiply_until_replayed, call, ADDRESSES[:1])])
    assert len(executables) == 1
    at_once([partial(multiply_until_replayed, call, ADDRESSES[1:])])
    assert len(executables) == 1, "the second thread did not take over the first one's graph"


def check_evicted_graphs() -> None:
    """Check that graphs that are evicted while their thread updates them live until they are launched."""
    call = prepared_call(PLANS[0])

    def replay_evicted() -> None:
        multiply_until_replayed(call, ADDRESSES[:1])
        at_write.append(lambda: at_once([run_device.GRAPH_CACHE.clear]))
        check_addresses(call, ADDRESSES[1], multiply(call, ADDRESSES[1]))
        at_write.clear()

    at_once([replay_evicted])
    assert not run_device.GRAPH_CACHE.clear()


def check_interleaved_moves() -> None:
    """Check two threads that update and launch graphs of the same call in turns, one node at a time."""
    call, barrier = prepared_call(PLANS[1]), threading.Barrier(2, timeout=60)

    def replay(addresses: list[int]) -> None:
        multiply_until_replayed(call, addresses[:1])
        if barrier.wait() == 0:
            at_write.append(barrier.wait)
        barrier.wait()
        for _ in range(3):
            for address in reversed(addresses):
                check_addresses(call, address, multiply(call, address))

    at_once([partial(replay, ADDRESSES[:2]), partial(replay, ADDRESSES[2:])])
    at_write.clear()
    assert len(executables) == 2


def check_code_of_launches() -> None:
    """Check that code stays loaded while launches use it, however many other kernels are compiled."""
    compiler.MAX_LOADED_KERNELS = 1
    calls = [prepared_call(text, side) for text in PLANS for side in (512, 768)]

    def work() -> None:
        for _ in range(6):
            for call in calls:
                multiply_until_replayed(call, ADDRESSES[:2], 2)

    at_once([work])
    assert len(compiler._loaded_kernels) == 1


def check_one_compilation() -> None:
    """Check that threads that need the same kernels at the same time compile each kernel once."""
    call, barrier = prepared_call(PLANS[0]), threading.Barrier(2)

    def meet() -> None:
        try:
            barrier.wait(0.5)  # no other thread comes, since it waits for this compilation
        except threading.BrokenBarrierError:
            barrier.reset()

    at_load.append(meet)
    kernel = call.launches.launches[0].kernel
    first, second = at_once([partial(compiler.compile_kernel, 0, kernel)] * 2)
    assert loads == [kernel] and first is second and not compiler._compile_locks


def check_capture_streams() -> None:
    """Check that captures share streams that live as long as the process, since a thread that ends meanwhile
    waits for the device."""
    call = prepared_call(PLANS[0])
    for _ in range(5):
        at_once([partial(multiply_until_replayed, call, ADDRESSES[:1])])
        assert run_device.GRAPH_CACHE.clear()
    assert len(executables) == 5 and (Stream.created, Stream.destroyed) == (1, 0)


def check_preparation_memory() -> None:
    """Check that the workspace of a preparation is allocated for the library's stream, not for CuPy's current stream.

    CuPy reuses freed memory in the order of the stream for which the memory is allocated.
    """
    current, found = [0], list[int]()

    @contextmanager
    def external_stream(foreign: Any) -> Iterator[None]:
        current.append(foreign.__cuda_stream__()[1])
        yield
        current.pop()

    def allocate(nbytes: int) -> Any:
        found.append(current[-1])
        return SimpleNamespace(ptr=WORKSPACE)

    vars(cupy.cuda).update(alloc=allocate, get_current_stream=None)
    cupy.cuda.Stream.from_external = external_stream
    library: Any = SimpleNamespace(current_stream=lambda device: (STREAM, nullcontext()))
    run_device.run_operand_preparation(library, prepared_call(PLANS[0]).launches, ADDRESSES[0], 0)
    assert found == [STREAM] and current == [0] and launched


CHECKS = {
    "preparation": check_preparation_memory,
    "capture-streams": check_capture_streams,
    "handed-over": check_handed_over_graphs,
    "evicted": check_evicted_graphs,
    "interleaved": check_interleaved_moves,
    "code": check_code_of_launches,
    "compile-once": check_one_compilation,
}


def main(name: str) -> None:
    patch()
    with time_limit(300):
        CHECKS[name]()
    print("ok")


if __name__ == "__main__":
    main(sys.argv[1])
