"""What a first call compiles, counted: translation units, and the bytes of PTX that they become."""

from __future__ import annotations

from typing import Any

import pytest

from fmm.kernels.cuda.launch_list import Launch
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import chip_target
from fmm.problem import Problem
from fmm.semirings.closure_launches import closure_launches
from fmm.semirings.minplus_kernel import RINGS
from tests.support.chips import H200
from tests.support.marks import quick_and_slow
from tests.support.nvrtc import compile_cuda, nvrtc

# Plans of first products: sizes, operation, and limits of the units and of the largest unit's PTX. NVRTC makes about
# 200 KB of PTX in a second, and units are compiled side by side.
PRODUCTS = (
    ("f16x3", "float32", 2048, "product", 3, 160_000),
    ("strassen.batched.pad16 > f16x3", "float32", 8192, "product", 8, 160_000),
    ("tile", "float32", 2048, "product", 2, 280_000),
    ("winograd > vendor", "float64", 8192, "product", 4, 60_000),
    ("gram > vendor", "float64", 4096, "gram", 2, 60_000),
    ("gram > f16x3", "float32", 4096, "gram", 5, 160_000),
    ("residues(14) > bytes", "float64", 8192, "product", 5, 120_000),
)


def ptx_bytes(launches: tuple[Launch, ...]) -> list[int]:
    """Return the bytes of PTX of each translation unit that these launches need."""
    nvrtc()
    units = {(x.source, x.architecture or "sm_90", *x.options) for x in (launch.kernel for launch in launches)}
    return [len(compile_cuda(*unit)[1]) for unit in units]


@pytest.mark.parametrize(
    ("text", "dtype", "n", "op", "units", "most"),
    quick_and_slow(PRODUCTS[::3], [x for x in PRODUCTS if x not in PRODUCTS[::3]]),
)
def test_a_first_product_compiles_few_small_units(
    text: str, dtype: Any, n: int, op: Any, units: int, most: int
) -> None:
    problem = Problem(n, n, n, dtype, op=op)
    found = ptx_bytes(record_launches(Plan.parse(text), problem, chip_target(H200, flagged=True)).launches)
    assert len(found) <= units and max(found) <= most, found


@pytest.mark.parametrize(
    ("with_predecessors", "units", "most"), quick_and_slow([(False, 3, 210_000)], [(True, 4, 225_000)])
)
def test_first_shortest_paths_compile_few_small_units(with_predecessors: bool, units: int, most: int) -> None:
    launches = closure_launches(RINGS["float32"], 2000, with_predecessors, H200.multiprocessors).launches
    found = ptx_bytes(launches)
    assert len(found) <= units and max(found) <= most, found
