"""What a first call compiles, counted: translation units, and the bytes of PTX that they become."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fmm.kernels.cuda.launch_list import Kernel, Launch
from fmm.kernels.cuda.recompute.recompute import may_create_nonfinite
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import chip_target
from fmm.problem import Problem
from fmm.semirings.closure_launches import closure_launches
from fmm.semirings.minplus_kernel import TROPICAL_RINGS, graph_edges_launch
from fmm.semirings.path_request import EdgeRule
from tests.support.chips import H200
from tests.support.compiler_on_mock import compiler_on_a_mock
from tests.support.marks import quick_and_slow
from tests.support.nvrtc import compile_cuda, kernel_architecture, nvrtc

# Plans of first products: sizes, operation, and limits of the units and of the largest unit's PTX. NVRTC makes about
# 200 KB of PTX in a second, and units are compiled side by side.
PRODUCTS = (
    ("f16x3", "float32", 3000, "product", 3, 75_000),
    ("strassen.batched.pad16 > f16x3", "float32", 6000, "product", 8, 75_000),
    ("tile", "float32", 2048, "product", 2, 280_000),
    ("winograd > vendor", "float64", 8192, "product", 5, 46_000),
    ("gram > vendor", "float64", 4096, "gram", 2, 25_000),
    ("gram > f16x3", "float32", 3000, "gram", 5, 75_000),
    ("residues(14) > bytes", "float64", 6000, "product", 5, 70_000),
    ("gram > residues(14) > bytes", "float64", 6000, "gram", 8, 70_000),
    ("3m(strassen.pad16) > vendor", "complex128", 3000, "product", 5, 50_000),
    ("3m.batched > f16x3", "complex64", 3000, "product", 5, 68_000),
)


def launches_of(text: str, dtype: Any, n: int, op: Any) -> tuple[Launch, ...]:
    """Return the launches of a first product, with the kernels that compute it again."""
    plan = Plan.parse(text)
    target = chip_target(H200, flagged=may_create_nonfinite(plan))
    return record_launches(plan, Problem(n, n, n, dtype, op=op), target).launches


def ptx_bytes(launches: tuple[Launch, ...]) -> list[int]:
    """Return the bytes of PTX of each translation unit that these launches need."""
    nvrtc()
    units = {(x.cuda_source, kernel_architecture(x), *x.options) for x in (launch.kernel for launch in launches)}
    return [len(compile_cuda(*unit)[1]) for unit in units]


@pytest.mark.parametrize(
    ("text", "dtype", "n", "op", "units", "most"),
    quick_and_slow(PRODUCTS[::3], [x for x in PRODUCTS if x not in PRODUCTS[::3]]),
)
def test_a_first_product_compiles_few_small_units(
    text: str, dtype: Any, n: int, op: Any, units: int, most: int
) -> None:
    found = ptx_bytes(launches_of(text, dtype, n, op))
    assert len(found) <= units and max(found) <= most, found


@pytest.mark.parametrize(
    ("n", "with_predecessors", "units", "most"),
    quick_and_slow(
        [(1000, False, 4, 210_000)], [(1000, True, 5, 225_000), (2000, False, 4, 210_000), (2000, True, 5, 225_000)]
    ),
)
def test_first_shortest_paths_compile_few_small_units(n: int, with_predecessors: bool, units: int, most: int) -> None:
    edges = graph_edges_launch("float32", n, (n, 1), EdgeRule(float("inf"), 1e-8))
    closure = closure_launches(TROPICAL_RINGS["float32"], n, with_predecessors, H200.multiprocessors)
    found = ptx_bytes((edges, *closure.launches))
    assert len(found) <= units and max(found) <= most, found
    assert min(found) < 10_000, found  # of the edges, which the closure's kernels wait for


@pytest.mark.parametrize(("text", "dtype", "n", "op"), [x[:4] for x in PRODUCTS])
def test_the_kernels_of_a_first_product_compile_side_by_side(
    text: str, dtype: Any, n: int, op: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kernel waits in the compiler until all of them are there."""
    with compiler_on_a_mock(monkeypatch) as compiling:
        kernels = {launch.kernel for launch in launches_of(text, dtype, n, op)}
        together = threading.Barrier(len(kernels))

        def wait_for_all(kernel: Kernel) -> Any:
            together.wait(60)
            return compiling.LoadedKernel(1, None)

        monkeypatch.setattr(compiling, "_load_kernel", wait_for_all)
        compiling.compile_kernels(0, kernels)
        assert {kernel for _, kernel in compiling._loaded_kernels} == kernels
