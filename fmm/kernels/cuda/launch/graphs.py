"""Replays: calls that recur are captured, and from then on replayed as a whole.

This module knows nothing of graphs: `make` captures a call, and whatever it returns is kept and handed out. What is
kept holds no memory of the call's. What it depends on is compared at each call, so it does not matter what became of it
in between.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

REPEATS = 3  # the call at which capturing pays: twice could be a chance, and it takes as long as some calls
CAPTURES = 64  # captured calls that are kept in all
COUNTED = 64  # keys of one call that are counted or captured
_NOT_CAPTURED: Final = object()


class GraphCache:
    """Keeps so many captured calls, of all threads; the oldest goes first.

    There is no lock, which an exception at the wrong moment might leave shut: each step is one of C's, and whatever
    comes between two of them leaves at most a call that is not found again.
    """

    def __init__(self, limit: int = CAPTURES) -> None:
        self.limit, self.repeats = limit, REPEATS
        self._oldest_first: deque[tuple[Replays, Hashable]] = deque()

    def add(self, owner: Replays, key: Hashable, captured: Any) -> None:
        """Keep what was captured for a key of this owner's, and forget the oldest if there are too many."""
        self._oldest_first.append((owner, key))
        owner.captured[key] = captured
        while len(self._oldest_first) > self.limit and self._forget_oldest():
            self.repeats *= 2  # a program with so many calls should not capture them in turns

    def clear(self) -> int:
        """Forget all; returns how many there were."""
        count = 0
        while self._forget_oldest():
            count += 1
        self.repeats = REPEATS
        return count

    def _forget_oldest(self) -> bool:
        try:
            owner, key = self._oldest_first.popleft()
        except IndexError:
            return False
        owner.captured.pop(key, None)
        return True


class Replays:
    """The captures of one call, on one stream and in one thread. A key says everything that a capture depends on."""

    def __init__(self, make: Callable[..., Any], cache: GraphCache) -> None:
        """`make` returns None for a call that cannot be captured, and is not asked again."""
        self.make, self.cache = make, cache
        self.captured: dict[Hashable, Any] = {}  # None for what cannot be captured
        self.counts: dict[Hashable, int] = {}  # how often other keys have come

    def made(self, key: Hashable) -> Any:
        """What was captured for this key; None if nothing was, or if it is kept no longer."""
        return self.captured.get(key)

    def find(self, key: Hashable, *arguments: Any) -> Any:
        """What was captured for this key, now at the latest, by `make` from these arguments.

        None if the call must be made as any other.
        """
        captured = self.captured.get(key, _NOT_CAPTURED)
        return captured if captured is not _NOT_CAPTURED else self._counted(key, arguments)

    def _counted(self, key: Hashable, arguments: tuple[Any, ...]) -> Any:
        """Count a key that is not captured, and capture it if it has come often enough."""
        count = self.counts.get(key, 0) + 1
        if count < self.cache.repeats:
            if len(self.counts) + len(self.captured) >= COUNTED and key not in self.counts:
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


class KernelNode(NamedTuple):
    """A launch of one of our own kernels, which has one parameter."""

    function: int  # the kernel's address
    parameters: int  # where the pointer to the parameter stands
    size: int  # bytes of the parameter


class _Node(ctypes.Structure):
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


class _Driver(NamedTuple):
    """The calls of the CUDA driver that CuPy has no names for."""

    nodes: Any  # cuGraphGetNodes
    kind: Any  # cuGraphNodeGetType
    read: Any  # cuGraphKernelNodeGetParams_v2
    write: Any  # cuGraphExecKernelNodeSetParams_v2


@lru_cache(maxsize=1)
def _driver_calls() -> _Driver | None:
    """None where the driver is older than these calls (CUDA 12)."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        return _Driver(
            library.cuGraphGetNodes,
            library.cuGraphNodeGetType,
            library.cuGraphKernelNodeGetParams_v2,
            library.cuGraphExecKernelNodeSetParams_v2,
        )
    except (OSError, AttributeError):
        return None


class MovableGraph:
    """A graph, and for each of our kernels in it, in their order, how the driver is told its new parameters."""

    def __init__(self, graph: Any, kernels: Iterable[KernelNode], driver: _Driver | None = None) -> None:
        """`kernels`: our kernels with their parameters as they were captured; each may be gone when the next comes."""
        self.graph, self.executable = graph, graph.graphExec
        self.driver = driver or _driver_calls()
        self.nodes = None if self.driver is None else _matching_nodes(_kernel_nodes(graph.graph, self.driver), kernels)

    def move(self, kernels: Iterable[KernelNode]) -> bool:
        """Give the kernels other parameters, in their first order.

        False if that is not possible: some may have new parameters then, and others their old ones.
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


_Claimed = list[tuple[ctypes.c_void_p, _Node, Any]]


def _kernel_nodes(graph: int, driver: _Driver) -> list[tuple[int, _Node]]:
    """The graph's kernels: the handle of each, and what was captured of it."""
    count = ctypes.c_size_t()
    if driver.nodes(ctypes.c_void_p(graph), None, ctypes.byref(count)):
        return []
    handles = (ctypes.c_void_p * count.value)()
    driver.nodes(ctypes.c_void_p(graph), handles, ctypes.byref(count))
    nodes = []
    for handle in handles:
        kind, node = ctypes.c_int(-1), _Node()
        driver.kind(ctypes.c_void_p(handle), ctypes.byref(kind))
        if kind.value == KERNEL_NODE and not driver.read(ctypes.c_void_p(handle), ctypes.byref(node)):
            nodes.append((int(handle or 0), node))
    return nodes


def _matching_nodes(nodes: list[tuple[int, _Node]], kernels: Iterable[KernelNode]) -> _Claimed | None:
    """Take our kernels' nodes out of `nodes`, in the kernels' order; None if one of them is not there."""
    claimed: _Claimed = []
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
    """The bytes of a launch's one parameter: `pointers` is where the pointer to it stands."""
    return ctypes.string_at(ctypes.c_void_p.from_address(pointers).value or 0, size)
