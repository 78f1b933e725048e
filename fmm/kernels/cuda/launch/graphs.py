"""Captured launches whose kernels can be given other parameters: a CUDA graph that serves all arrays of one shape.

A kernel is known again in the graph by its function and by the bytes of its parameters as they were captured. What is
not claimed (cuBLAS's own kernels) stays as it was captured, so its memory must be where it was then.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple


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
