"""The kernel for small products: run on the host by emulated threads, and compiled for every architecture."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from fmm.kernels.cuda.ops import DeviceView, GemmOp, TriangleOutput, gemm_op
from fmm.kernels.cuda.products.small_tiles import SMALL_ENTRY, SMALL_THREADS, small_kernel_source, small_launch
from tests.support.host_launch import launch_words, parameter_words, view_of
from tests.support.nvrtc import EACH_ARCHITECTURE, report
from tests.support.sums_on_host import kernel_in_turns

MORE = """
extern "C" double sqrt(double);
extern "C" double fma(double, double, double);
#define __align__(x)
"""
DRIVER = f"""
extern "C" int launch(const void* parameters, int blocks, int products) {{
    auto entry = [](const void* p) {{ {SMALL_ENTRY}(*static_cast<const fmm::SmallProduct*>(p)); }};
    run(entry, parameters, blocks, products, {SMALL_THREADS});
    return sizeof(fmm::SmallProduct);
}}
"""
Matrix = np.ndarray[Any, Any]


@cache
def on_host(*params: Any) -> Any:
    """Return the kernel of a launch, compiled for the host."""
    return kernel_in_turns(small_kernel_source(*params), DRIVER, MORE)


def launched(op: GemmOp, dtype: str, bases: dict[str, Matrix]) -> None:
    launch = small_launch(op, dtype)
    words = parameter_words(launch.parameters, launch.slots, bases)
    launch_words(on_host(*launch.kernel.source_arguments).launch, words, launch.grid[0], launch.grid[2])


def matrix(rows: int, cols: int, dtype: str, order: str, rng: np.random.Generator) -> Matrix:
    """Return small integers in memory filled with NaN; lines are not contiguous."""
    memory = np.full((rows, cols + 3) if order == "C" else (cols, rows + 3), np.nan, dtype)
    inside = memory[:, :cols] if order == "C" else memory[:, :rows].T
    inside[...] = rng.integers(-9, 9, (rows, cols))
    return inside


@pytest.mark.quick_cases()
@pytest.mark.parametrize("half", [None, "lower", "full"])
@pytest.mark.parametrize(("dtype", "orders"), [("float32", "CF"), ("float64", "FC"), ("float32", "FF")])
def test_exactly_the_requested_part(dtype: str, orders: str, half: Any) -> None:
    """Sizes around those of a tile, and exact sums of integers; everything else stays as it is."""
    rng = np.random.default_rng(3)
    for n, k in ((1, 1), (31, 33), (32, 32), (33, 7), (70, 65)):
        a, b = matrix(n, k, dtype, orders[0], rng), matrix(k, n, dtype, orders[1], rng)
        if half:  # the caller knows that it is its own adjoint: nothing above the diagonal is looked at
            b[...] = a.T
        for alpha, beta in ((1, 0), (2, -0.5)):
            c = matrix(n, n, dtype, "C", rng)
            old, memory = c.copy(), c.base
            wanted = alpha * (a @ b) + (beta * old if beta else 0)
            op = gemm_op("small", [(view_of("A", a), view_of("B", b), view_of("C", c))], dtype, alpha, beta)
            launched(replace(op, triangle=half and TriangleOutput(half)), dtype, {"A": a, "B": b, "C": c})
            below = np.tri(n, dtype=bool)
            np.testing.assert_array_equal(c[below], wanted[below])
            above = {None: wanted, "lower": old, "full": c.T}[half]
            np.testing.assert_array_equal(c[~below], above[~below])
            assert memory is not None and np.isnan(memory[:, n:]).all()


def test_no_padding_is_multiplied() -> None:
    """An inf in the last column of a partial piece stays an inf."""
    a = np.ones((40, 37), np.float32)
    a[3, 36] = np.inf
    c = np.zeros((40, 40), np.float32)
    op = gemm_op("small", [(view_of("A", a), view_of("B", a.T), view_of("C", c))], "float32")
    launched(replace(op, triangle=TriangleOutput("full")), "float32", {"A": a, "B": a, "C": c})
    np.testing.assert_array_equal(c, a @ a.T)


def test_a_batch() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.integers(-9, 9, (3, 40, 20)).astype(np.float32), rng.integers(-9, 9, (3, 20, 40)).astype(np.float32)
    c = np.zeros((3, 40, 40), np.float32)
    bases = {"A": a, "B": b, "C": c}
    views = [[view_of(x, y[i])._replace(offset=i * y[i].nbytes) for x, y in bases.items()] for i in range(3)]
    launched(gemm_op("small", [(x, y, z) for x, y, z in views], "float32"), "float32", bases)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("architecture", EACH_ARCHITECTURE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_it_compiles_for_every_architecture(dtype: str, architecture: str) -> None:
    """No register spills."""
    x = DeviceView("C", 0, 100, 100, 100, 1, dtype)
    op = gemm_op("small", [(x._replace(base="A"), x._replace(base="B"), x)], dtype)
    for half in (None, TriangleOutput("full")):
        launch = small_launch(replace(op, triangle=half), dtype)
        found = report(dtype, launch.kernel.cuda_source, architecture)
        assert found.local == 0 and found.shared <= 48 << 10
