"""UpdatableGraph on a simulated driver: which node is which kernel, and which parameters it gets."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from fmm.kernels.cuda.launch.graphs import KERNEL_NODE_TYPE, KernelNode, UpdatableGraph, _DriverFunctions

SPLIT, JOIN, GEMM, MEMSET = 0x100, 0x200, 0x300, 2
Launch = tuple[int, int]  # a function, and the number that is its parameter


class Memory:
    """Parameters as a launch has them: a pointer to a pointer to the bytes."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def kernel(self, function: int, number: int) -> KernelNode:
        value = ctypes.create_string_buffer(struct.pack("<q", number), 8)
        pointer = ctypes.c_void_p(ctypes.addressof(value))
        self.kept += value, pointer
        return KernelNode(function, ctypes.addressof(pointer), 8)


class Driver:
    """What the driver knows: each node's kind, function and parameter; what was written, in order."""

    def __init__(self, nodes: Sequence[tuple[int, int, int]], fails_at: int = -1) -> None:
        self.memory, self.fails_at = Memory(), fails_at
        self.nodes = {10 + i: node for i, node in enumerate(nodes)}
        self.written: list[tuple[int, int, int]] = []

    def calls(self) -> _DriverFunctions:
        return _DriverFunctions(self.list, self.kind, self.read, self.write)

    def list(self, graph: Any, handles: Any, count: Any) -> int:
        assert graph.value == 1
        count._obj.value = len(self.nodes)
        for i, handle in enumerate(self.nodes if handles is not None else ()):
            handles[i] = handle
        return 0

    def kind(self, handle: Any, kind: Any) -> int:
        kind._obj.value = self.nodes[handle.value][0]
        return 0

    def read(self, handle: Any, node: Any) -> int:
        kind, function, number = self.nodes[handle.value]
        assert kind == KERNEL_NODE_TYPE
        node._obj.function, node._obj.parameters = function, self.memory.kernel(function, number).parameters
        return 0

    def write(self, executable: Any, handle: Any, node: Any) -> int:
        assert executable.value == 2
        if len(self.written) == self.fails_at:
            return 1
        value = ctypes.c_void_p.from_address(node._obj.parameters).value
        (number,) = struct.unpack("<q", ctypes.string_at(value or 0, 8))
        self.written.append((handle.value, node._obj.function, number))
        return 0


GRAPH = SimpleNamespace(graph=1, graphExec=2)
# In the driver's order, which is nobody's promise. Two kernels have one function; another one's parameter is alike.
NODES = (
    (KERNEL_NODE_TYPE, JOIN, 7),
    (KERNEL_NODE_TYPE, GEMM, 5),
    (KERNEL_NODE_TYPE, SPLIT, 6),
    (MEMSET, 0, 0),
    (KERNEL_NODE_TYPE, SPLIT, 5),
)
CAPTURED = ((SPLIT, 5), (SPLIT, 6), (JOIN, 7))
OTHERS = ((SPLIT, 50), (SPLIT, 60), (JOIN, 70))


def kernels(launches: Sequence[Launch], memory: Memory) -> Iterator[KernelNode]:
    """Yield kernels one by one; drawing the next one invalidates the last one's parameters."""
    for function, number in launches:
        yield memory.kernel(function, number)
        memory.kept[-2].raw = struct.pack("<q", -1)


def test_each_kernel_gets_its_new_parameters() -> None:
    driver, memory = Driver(NODES), Memory()
    graph = UpdatableGraph(GRAPH, kernels(CAPTURED, memory), driver.calls())
    assert graph.update_parameters(kernels(OTHERS, memory))
    assert driver.written == [(14, SPLIT, 50), (12, SPLIT, 60), (10, JOIN, 70)]


def test_a_kernel_that_is_not_in_the_graph_makes_it_immovable() -> None:
    memory = Memory()
    for launches in (((SPLIT, 5), (SPLIT, 5)), ((JOIN, 5),), ((SPLIT, 4), (JOIN, 7))):
        driver = Driver(NODES)
        graph = UpdatableGraph(GRAPH, kernels(launches, memory), driver.calls())
        assert not graph.update_parameters(kernels(launches, memory))
        assert driver.written == []


@pytest.mark.parametrize("fails_at", range(3))
def test_a_driver_that_refuses_is_not_called_again(fails_at: int) -> None:
    driver, memory = Driver(NODES, fails_at), Memory()
    graph = UpdatableGraph(GRAPH, kernels(CAPTURED, memory), driver.calls())
    assert [graph.update_parameters(kernels(OTHERS, memory)) for _ in range(3)] == [False] * 3
    assert len(driver.written) == fails_at


def test_the_number_of_kernels_must_not_change() -> None:
    driver, memory = Driver(NODES), Memory()
    graph = UpdatableGraph(GRAPH, kernels(CAPTURED, memory), driver.calls())
    with pytest.raises(ValueError, match="zip"):
        graph.update_parameters(kernels(OTHERS[:2], memory))
