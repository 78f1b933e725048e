"""Launch lists agree with what the device ran: compared with the nodes of a captured graph, for every leaf."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.launch_list import Launch, LaunchList, VendorCall
from fmm.kernels.plans.leaf import LeafUse, plan_leaves
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.problem import Problem

pytest.importorskip("cupy")

import cupy

from fmm.kernels.cuda.launch import graphs
from fmm.kernels.cuda.launch.compile import compile_kernel
from fmm.runtime.device_backend import DeviceBackend, compile_launch_lists, record_plan_for_device

pytestmark = pytest.mark.gpu

LEVELS = ("", "strassen.batched.pad16", "strassen.fused.pad8")
SIZES = ((256, 512, 384), (301, 277, 303))
# Whatever may end a plan, with every option, of numbered ones the first.
USES = [
    use
    for row in plan_leaves()
    for use in row.all_text_variants
    if "cuda" in row.devices and not use.number and not use.order
]


def lists(use: LeafUse) -> Iterator[LaunchList]:
    for level in LEVELS:
        for dtype, row in DTYPES.items():
            if row.exact and use.leaf is VENDOR.leaf_use.leaf:
                continue  # the library's own product of integers, of which no launch list is made
            for size in SIZES:
                try:
                    yield record_plan_for_device(
                        Plan.parse(f"{level} > {use}" if level else str(use)), Problem(*size, dtype)
                    )
                except PlanError:
                    continue


def captured(found: LaunchList) -> Counter[int]:
    """Count each kernel in the graph of a call, by the kernel's address."""
    itemsize = np.dtype(found.problem.stored_type if found.problem.stored_type != "bfloat16" else "uint16").itemsize
    sides = [x * y * itemsize for x, y in found.problem.matrix_shapes]
    memory = [cupy.zeros(max(size, 1), np.uint8) for size in (*sides, found.workspace)]
    graph = DeviceBackend().captured_graph(found, *(x.data.ptr for x in memory))
    driver = graphs._driver_functions()
    if driver is None:
        pytest.skip("the driver is older than CUDA 12: it does not say what a graph holds")
    return Counter(int(node.function or 0) for _, node in graphs._kernel_nodes(graph.graph.graph, driver))


@pytest.mark.parametrize("use", USES, ids=str)
def test_described_launches_are_the_captured_ones(use: LeafUse) -> None:
    found: list[Any] = list(lists(use))
    assert found
    compile_launch_lists(found)
    for launches in found:
        ours = [step for step in launches.steps if isinstance(step, Launch)]
        calls = [step for step in launches.steps if isinstance(step, VendorCall)]
        seen = captured(launches)
        named = Counter(compile_kernel(0, launch.kernel).address for launch in ours)
        assert {kernel: seen[kernel] for kernel in named} == named, launches.step_labels()
        theirs = seen.total() - named.total()
        # A call of the library's is one kernel or several; without a call there is no kernel but ours.
        assert theirs >= len(calls) and (calls or not theirs), (theirs, launches.step_labels())
