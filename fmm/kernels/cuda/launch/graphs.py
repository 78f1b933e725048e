"""Capture recurring calls into CUDA graphs, and replay a graph on other arrays.

`GraphCaptures` decides which calls are captured, and `GraphCache` limits the number of captures. A capture keeps no
array of the captured call alive. The key of a call contains everything on which the call's graph depends, so calls with
equal keys use the same capture.

`UpdatableGraph` sets new parameters of fmm's kernels in a captured graph, so one graph serves all arrays of the same
shape. A node of the graph belongs to one of fmm's kernels if the node has the kernel's function and the same bytes of
parameters. cuBLAS's own kernels keep their captured parameters, so their operands must have the same addresses as in
the captured call.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

# The third call with the same key is captured. A call that occurs twice need not occur again, and a capture takes as
# long as several calls.
CALLS_BEFORE_CAPTURE = 3
MAX_CAPTURES = 64  # largest total number of captures in all threads
# largest number of keys of counted calls in a `GraphCaptures`, and of keys that cannot be captured
MAX_COUNTED_KEYS = 64
_NOT_CAPTURED: Final = object()


# ---- which calls are captured


class GraphCache:
    """A cache of the captures of all threads, at most `limit` captures; the oldest capture is dropped first.

    The cache uses no lock, because an exception from a signal handler could leave a lock locked. Each access to the
    cache is one call of a C function. At worst, an exception between two accesses leaves one capture uncounted.
    """

    def __init__(self, limit: int = MAX_CAPTURES) -> None:
        self.limit, self.calls_before_capture = limit, CALLS_BEFORE_CAPTURE
        self._oldest_first: deque[tuple[GraphCaptures, Hashable]] = deque()

    def add_capture(self, owner: GraphCaptures, key: Hashable, captured: Any) -> None:
        """Store a capture for a key of these `GraphCaptures`.

        If the cache then holds more than `limit` captures, drop the oldest captures.
        """
        self._oldest_first.append((owner, key))
        owner.captured[key] = captured
        while len(self._oldest_first) > self.limit and self._drop_oldest():
            # Capture less often from now on: a program that repeats more calls than the cache can hold would otherwise
            # capture the same calls again and again.
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
    """The captures of one prepared call on one stream in one thread."""

    def __init__(self, capture_call: Callable[..., Any], cache: GraphCache) -> None:
        """Create an empty cache.

        `capture_call` returns a call's capture, or None if the call cannot be captured. If `capture_call` has returned
        None, later calls with the same key are not captured, until MAX_COUNTED_KEYS other keys cannot be captured.
        """
        self.make, self.cache = capture_call, cache
        self.captured: dict[Hashable, Any] = {}  # captures by key; None for a key that cannot be captured
        self.counts: dict[Hashable, int] = {}  # number of calls for each key without a capture
        self._not_capturable: deque[Hashable] = deque()  # keys that cannot be captured, the oldest first

    def find_capture(self, key: Hashable, *arguments: Any) -> Any:
        """Return the capture for this key; None if the call must be made without a graph.

        A call is captured when its key has occurred `calls_before_capture` times, which includes this call.
        """
        captured = self.captured.get(key, _NOT_CAPTURED)
        return captured if captured is not _NOT_CAPTURED else self._capture_after_enough_calls(key, arguments)

    def _capture_after_enough_calls(self, key: Hashable, arguments: tuple[Any, ...]) -> Any:
        """Count a call whose key has no capture; capture the call when the count reaches `calls_before_capture`."""
        count = self.counts.get(key, 0) + 1
        if count < self.cache.calls_before_capture:
            if len(self.counts) >= MAX_COUNTED_KEYS and key not in self.counts:
                self.counts.clear()
            self.counts[key] = count
            return None
        captured = self.make(*arguments)
        self.counts.pop(key, None)
        if captured is None:
            self.captured[key] = None
            self._not_capturable.append(key)
            if len(self._not_capturable) > MAX_COUNTED_KEYS:
                self.captured.pop(self._not_capturable.popleft(), None)
        else:
            self.cache.add_capture(self, key, captured)
        return captured


# ---- a graph with replaceable kernel parameters


class KernelNode(NamedTuple):
    """A launch of one of fmm's kernels in a graph; each kernel has one parameter, a struct."""

    function: int  # address of the kernel's function
    parameters: int  # address of the pointer to the parameter struct
    size: int  # size of the parameter struct in bytes


class _KernelNodeParams(ctypes.Structure):
    """The driver's struct CUDA_KERNEL_NODE_PARAMS_v2."""

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


KERNEL_NODE_TYPE = 0  # CU_GRAPH_NODE_TYPE_KERNEL
_MatchedNodes = list[tuple[ctypes.c_void_p, _KernelNodeParams, Any]]


class _DriverFunctions(NamedTuple):
    """Functions of the CUDA driver that CuPy does not wrap."""

    nodes: Any  # cuGraphGetNodes
    kind: Any  # cuGraphNodeGetType
    read: Any  # cuGraphKernelNodeGetParams_v2
    write: Any  # cuGraphExecKernelNodeSetParams_v2


@lru_cache(maxsize=1)
def _driver_functions() -> _DriverFunctions | None:
    """Return the driver's functions for graph nodes; None if the driver is older than CUDA 12."""
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


class UpdatableGraph:
    """A captured CUDA graph, and the nodes of fmm's kernels in this graph, in launch order."""

    def __init__(self, graph: Any, kernels: Iterable[KernelNode], driver: _DriverFunctions | None = None) -> None:
        """Find the nodes of fmm's kernels in the graph.

        `kernels` yields fmm's kernels with their captured parameters; the memory of these parameters may be reused for
        the next kernel that is yielded.
        """
        self.graph, self.executable = graph, graph.graphExec
        self.driver = driver or _driver_functions()
        self.nodes = (
            None if self.driver is None else _match_kernel_nodes(_kernel_nodes(graph.graph, self.driver), kernels)
        )

    @property
    def is_updatable(self) -> bool:
        """True if the driver can set parameters, and the nodes of all fmm's kernels were found.

        False after a failed update.
        """
        return self.nodes is not None

    def update_parameters(self, kernels: Iterable[KernelNode]) -> bool:
        """Set these parameters in the graph's nodes of fmm's kernels, in launch order; return True on success.

        After a failure, some kernels may have new parameters and others old parameters.
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
        if kind.value == KERNEL_NODE_TYPE and not driver.read(ctypes.c_void_p(handle), ctypes.byref(node)):
            nodes.append((int(handle or 0), node))
    return nodes


def _match_kernel_nodes(
    nodes: list[tuple[int, _KernelNodeParams]], kernels: Iterable[KernelNode]
) -> _MatchedNodes | None:
    """Return the nodes of fmm's kernels in launch order, and remove them from `nodes`; None if a kernel has no node."""
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
    """Return the bytes of a launch's parameter struct; `pointers` is the address of a pointer to this struct."""
    return ctypes.string_at(ctypes.c_void_p.from_address(pointers).value or 0, size)
