"""CUDA graphs of recurring calls: when a call is captured, and how its graph is replayed on other arrays.

`GraphCaptures` and `GraphCache` decide which calls are captured and how many captures are held; a function `make`
captures a call. A capture holds no memory of the captured call. The key of a capture contains everything on which the
capture depends; each call compares the key.

`MovableGraph` gives the kernels of a captured graph other parameters, so that one graph serves all arrays of a shape. A
kernel is found in the graph by its function and by the bytes of its parameters at capture. cuBLAS's own kernels are not
found and keep their parameters, so their memory must have the addresses that it had at capture.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

# The call at which capturing pays: two may be chance, and a capture takes as long as some calls.
CALLS_BEFORE_CAPTURE = 3
MAX_CAPTURES = 64  # largest number of captures of all threads together
MAX_COUNTED_KEYS = 64  # largest number of keys of one call, counted or captured
_NOT_CAPTURED: Final = object()


# ---- which calls are captured


class GraphCache:
    """The captures of all threads, at most `limit`; the oldest is dropped first.

    There is no lock, which an exception at the wrong moment could leave shut. Each step is one C function; an exception
    between two steps at most leaves a capture that no call finds.
    """

    def __init__(self, limit: int = MAX_CAPTURES) -> None:
        self.limit, self.calls_before_capture = limit, CALLS_BEFORE_CAPTURE
        self._oldest_first: deque[tuple[GraphCaptures, Hashable]] = deque()

    def add(self, owner: GraphCaptures, key: Hashable, captured: Any) -> None:
        """Hold a capture for a key of this owner, and drop the oldest capture beyond the limit."""
        self._oldest_first.append((owner, key))
        owner.captured[key] = captured
        while len(self._oldest_first) > self.limit and self._drop_oldest():
            # a program with more recurring calls than the limit must not capture them again and again
            self.calls_before_capture *= 2

    def clear(self) -> int:
        """Drop all captures and return their number."""
        count = 0
        while self._drop_oldest():
            count += 1
        self.calls_before_capture = CALLS_BEFORE_CAPTURE
        return count

    def _drop_oldest(self) -> bool:
        try:
            owner, key = self._oldest_first.popleft()
        except IndexError:
            return False
        owner.captured.pop(key, None)
        return True


class GraphCaptures:
    """The captures of one call, on one stream and in one thread. A key holds everything that a capture depends on."""

    def __init__(self, make: Callable[..., Any], cache: GraphCache) -> None:
        """`make` captures a call; it returns None for a call that cannot be captured, and is not called again."""
        self.make, self.cache = make, cache
        self.captured: dict[Hashable, Any] = {}  # captures by key; None for a key that cannot be captured
        self.counts: dict[Hashable, int] = {}  # numbers of calls of keys that are not captured yet

    def find(self, key: Hashable, *arguments: Any) -> Any:
        """Return the capture for this key; `make` captures it from these arguments once the key has recurred.

        The result is None if the call must be made without a graph.
        """
        captured = self.captured.get(key, _NOT_CAPTURED)
        return captured if captured is not _NOT_CAPTURED else self._count_call(key, arguments)

    def _count_call(self, key: Hashable, arguments: tuple[Any, ...]) -> Any:
        """Count a call of a key that is not captured, and capture the CALLS_BEFORE_CAPTURE-th call."""
        count = self.counts.get(key, 0) + 1
        if count < self.cache.calls_before_capture:
            if len(self.counts) + len(self.captured) >= MAX_COUNTED_KEYS and key not in self.counts:
                self.counts.clear()
            self.counts[key] = count
            return None
        captured = self.make(*arguments)
        self.counts.pop(key, None)
        if captured is None:
            self.captured[key] = None
        else:
            self.cache.add(self, key, captured)
        return captured


# ---- a graph with replaceable kernel parameters


class KernelNode(NamedTuple):
    """A launch of one of fmm's kernels, which have one parameter each."""

    function: int  # the kernel's address
    parameters: int  # address of the pointer to the parameter
    size: int  # bytes of the parameter


class _KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


KERNEL_NODE = 0  # CU_GRAPH_NODE_TYPE_KERNEL
_MatchedNodes = list[tuple[ctypes.c_void_p, _KernelNodeParams, Any]]


class _DriverFunctions(NamedTuple):
    """Functions of the CUDA driver that CuPy does not wrap."""

    nodes: Any  # cuGraphGetNodes
    kind: Any  # cuGraphNodeGetType
    read: Any  # cuGraphKernelNodeGetParams_v2
    write: Any  # cuGraphExecKernelNodeSetParams_v2


@lru_cache(maxsize=1)
def _driver_calls() -> _DriverFunctions | None:
    """Return the driver's calls; None where the driver is older than they are (CUDA 12)."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        return _DriverFunctions(
            library.cuGraphGetNodes,
            library.cuGraphNodeGetType,
            library.cuGraphKernelNodeGetParams_v2,
            library.cuGraphExecKernelNodeSetParams_v2,
        )
    except (OSError, AttributeError):
        return None


class MovableGraph:
    """A captured graph, with the node of each of fmm's kernels in launch order."""

    def __init__(self, graph: Any, kernels: Iterable[KernelNode], driver: _DriverFunctions | None = None) -> None:
        """`kernels`: fmm's kernels with their parameters at capture; an item is valid until the next one is taken."""
        self.graph, self.executable = graph, graph.graphExec
        self.driver = driver or _driver_calls()
        self.nodes = None if self.driver is None else _matching_nodes(_kernel_nodes(graph.graph, self.driver), kernels)

    def move(self, kernels: Iterable[KernelNode]) -> bool:
        """Give the kernels other parameters, in launch order.

        Return False after a failure, which may leave new parameters in some kernels and old ones in others.
        """
        if self.driver is None or self.nodes is None:
            return False
        write, executable = self.driver.write, ctypes.c_void_p(self.executable)
        for (handle, node, place), kernel in zip(self.nodes, kernels, strict=True):
            node.parameters = kernel.parameters
            if write(executable, handle, place):
                self.nodes = None
                return False
        return True


def _kernel_nodes(graph: int, driver: _DriverFunctions) -> list[tuple[int, _KernelNodeParams]]:
    """Return the handle and the captured parameters of each kernel in the graph."""
    count = ctypes.c_size_t()
    if driver.nodes(ctypes.c_void_p(graph), None, ctypes.byref(count)):
        return []
    handles = (ctypes.c_void_p * count.value)()
    driver.nodes(ctypes.c_void_p(graph), handles, ctypes.byref(count))
    nodes = []
    for handle in handles:
        kind, node = ctypes.c_int(-1), _KernelNodeParams()
        driver.kind(ctypes.c_void_p(handle), ctypes.byref(kind))
        if kind.value == KERNEL_NODE and not driver.read(ctypes.c_void_p(handle), ctypes.byref(node)):
            nodes.append((int(handle or 0), node))
    return nodes


def _matching_nodes(nodes: list[tuple[int, _KernelNodeParams]], kernels: Iterable[KernelNode]) -> _MatchedNodes | None:
    """Remove fmm's kernels from `nodes` and return them in launch order; None if one is missing."""
    claimed: _MatchedNodes = []
    for kernel in kernels:
        wanted = _parameter_bytes(kernel.parameters, kernel.size)
        for i, (handle, node) in enumerate(nodes):
            if node.function == kernel.function and _parameter_bytes(node.parameters, kernel.size) == wanted:
                del nodes[i]
                claimed.append((ctypes.c_void_p(handle), node, ctypes.byref(node)))
                break
        else:
            return None
    return claimed


def _parameter_bytes(pointers: int, size: int) -> bytes:
    """Return the bytes of a launch's one parameter; `pointers` is the address of the pointer to it."""
    return ctypes.string_at(ctypes.c_void_p.from_address(pointers).value or 0, size)
