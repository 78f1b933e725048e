"""Products by Hopper's warpgroups, on a device that has them: types, memory orders, edges, batches, beta."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest

from fmm.kernels.cuda.launch_list import Launch, StreamSync
from fmm.kernels.cuda.target import ALLOCATOR_ALIGNMENT, Alignment
from fmm.kernels.plans.plan import Plan
from fmm.problem import Layout, Problem

pytest.importorskip("cupy")

import cupy

from fmm.kernels.cuda.launch.device_facts import cuda_device_chip
from fmm.runtime.device_backend import DeviceBackend, record_plan_for_device

pytestmark = pytest.mark.gpu

# Error relative to the product of absolute values: results are rounded when stored, TF32 operands before.
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "tf32": 2.0**-9}
POISON = 0xFF


@pytest.fixture(autouse=True)
def _groups() -> None:
    if not cuda_device_chip(cupy.cuda.runtime.getDevice()).has_warpgroups:
        pytest.skip("only compute capability 9.0 has warpgroups that multiply")


def stored(x: Any, dtype: str) -> Any:
    """Return the matrix on the device, bfloat16 as its bits."""
    if dtype == "bfloat16":
        bits = x.astype(cupy.float32).view(cupy.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(cupy.uint16)
    return x.astype("float32" if dtype == "tf32" else dtype)


def wide(x: Any, dtype: str) -> Any:
    if dtype == "bfloat16":
        return (x.astype(cupy.uint32) << 16).view(cupy.float32).astype(cupy.float64)
    return x.astype(cupy.float64)


class Operand:
    """A random matrix with gaps between its lines, which must stay as they are; lines at multiples of 16 bytes, or
    not."""

    def __init__(self, shape: tuple[int, int], order: str, dtype: str, rng: Any, odd: int = 0) -> None:
        lines, length = shape if order == "C" else shape[::-1]
        values = stored(rng.standard_normal((lines, length), cupy.float32), dtype)
        leading = -(-length // 8) * 8 + 8 + odd
        self.memory = cupy.full((lines * leading + odd) * values.itemsize, POISON, cupy.uint8)
        flat = self.memory.view(values.dtype)[odd:].reshape(lines, leading)
        flat[:, :length] = values
        self.layout = Layout(order, leading)  # type: ignore[arg-type]
        self.matrix = flat[:, :length] if order == "C" else flat[:, :length].T
        self.gaps = self.memory.size - values.nbytes

    def untouched(self) -> bool:
        """Return the gaps of a matrix of zeros."""
        self.matrix[...] = 0
        return bool(int((self.memory == POISON).sum()) == self.gaps)


def check(
    plan: str, size: tuple[int, int, int], dtype: str, orders: str, alpha: float = 1, beta: float = 0, odd: int = 0
) -> None:
    m, k, n = size
    rng = cupy.random.default_rng(m * k + n)
    shapes = (m, k), (k, n), (m, n)
    a, b, c = (Operand(shape, order, dtype, rng, odd) for shape, order in zip(shapes, orders, strict=True))
    left, right, old = (wide(x.matrix, dtype) for x in (a, b, c))
    if not beta:
        c.matrix[...] = cupy.asarray(np.frombuffer(bytes([POISON] * 8), c.matrix.dtype)[0])
    tape = record_plan_for_device(
        Plan.parse(plan), Problem(m, k, n, dtype, (a.layout, b.layout, c.layout), alpha, beta)
    )
    workspace = cupy.full(max(tape.workspace, 1), POISON, cupy.uint8)
    pointers = [x.matrix.data.ptr for x in (a, b, c)]
    DeviceBackend().run_launches(tape, pointers[0], pointers[1], pointers[2], workspace.data.ptr)
    expected = alpha * (left @ right) + (beta * old if beta else 0)
    room = abs(alpha) * (abs(left) @ abs(right)) + abs(beta * old)
    worst = float((abs(wide(c.matrix, dtype) - expected) / room).max())
    assert worst <= (4 if beta else 2) * ROUNDOFF[dtype] * (10 if "strassen" in plan else 1), (
        plan,
        size,
        orders,
        worst,
    )
    assert a.untouched()
    assert b.untouched()
    assert c.untouched()


def used(plan: str, problem: Problem, alignment: Alignment = ALLOCATOR_ALIGNMENT) -> list[bool]:
    """Return True if our kernel computes each of the products."""
    steps = record_plan_for_device(Plan.parse(plan), problem, alignment=alignment).steps
    products = [step for step in steps if not isinstance(step, StreamSync) and step.does == "product"]
    assert products
    return [isinstance(step, Launch) and "gemm_wgmma" in step.label for step in products]


def picked(pick: random.Random, order: str, unit: int) -> tuple[int, int, int]:
    """Return the sizes of a product; lines of C are multiples of 16 bytes, as others are the vendor's."""
    m, k, n = (pick.randint(1, 700) for _ in range(3))
    return (m, k, -(-n // unit) * unit) if order == "C" else (-(-m // unit) * unit, k, n)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("orders", ["".join(x) for x in product("CF", repeat=3)])
def test_products_of_any_size(dtype: str, orders: str) -> None:
    pick = random.Random(dtype + orders)
    for scalars in ((1, 0), (0.5, 1), (-2, 0), (2, -0.75)):
        for _ in range(8):
            check("tile", picked(pick, orders[2], 8), dtype, orders, *scalars)
        check("tile", (2304, 520, 5000), dtype, orders, *scalars)  # more tiles than thread blocks


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "tf32"])
def test_the_vendor_does_unsupported_products(dtype: str) -> None:
    check("tile", (300, 200, 100), dtype, "CCC", 0.5, 2.0)  # rows of C that end within 16 bytes
    check("tile", (301, 203, 105), dtype, "CCC", odd=1)  # lines and bases anywhere
    check("tile", (256, 128, 101), dtype, "CFC")  # rows of C that end anywhere
    usual = Problem(512, 512, 512, dtype)
    assert used("tile", usual) == [dtype != "tf32"]
    assert used("tile", usual, (2, *ALLOCATOR_ALIGNMENT[1:])) == [False]
    assert used("tile", Problem(512, 512, 512, dtype, beta=2)) == [dtype != "tf32"]
    assert used("tile", Problem(512, 512, 512, dtype, beta=2j)) == [False]


def test_tf32_along_the_inner_dimension() -> None:
    """A by rows and B by columns, which is the layout of sums for the leaf `tile.inner`."""
    pick = random.Random(5)
    for _ in range(12):
        check("tile", picked(pick, "C", 4), "tf32", "CFC")
    check("tile", (3000, 520, 4100), "tf32", "CFC", 0.5, 1)
    check("tile", (260, 3000, 520), "tf32", "CFF")
    layouts = Layout("C", 512), Layout("F", 512), Layout("C", 512)
    assert used("tile", Problem(512, 512, 512, "tf32", layouts)) == [True]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "tf32"])
@pytest.mark.parametrize(
    "level", ["strassen.batched.pad16", "strassen^2.batched.pad16", "strassen.overlapped.pad16", "strassen.pad16"]
)
def test_leaf_products_of_plans(dtype: str, level: str) -> None:
    leaf = "tile.inner" if dtype == "tf32" else "tile"
    plan = f"{level} > {leaf}"
    for size in ((512, 384, 640), (1000, 1003, 777)):
        check(plan, size, dtype, "CCC")
    assert any(used(plan, Problem(1024, 1024, 1024, dtype)))


def test_streams_and_graphs() -> None:
    n, backend, rng = 1024, DeviceBackend(), cupy.random.default_rng(3)
    a, b = (rng.standard_normal((n, n), cupy.float32).astype(cupy.float16) for _ in "AB")
    tape, expected = (
        record_plan_for_device(Plan.parse("tile"), Problem(n, n, n, "float16")),
        backend.multiply_by_plan("tile", a, b),
    )
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    results = [cupy.full((n, n), cupy.nan, cupy.float16) for _ in range(6)]
    graphs = [backend.captured_graph(tape, a.data.ptr, b.data.ptr, c.data.ptr, 0) for c in results[3:]]
    cupy.cuda.Device().synchronize()
    for _ in range(5):
        for stream, direct, graph in zip(streams, results[:3], graphs, strict=True):
            backend.run_launches(tape, a.data.ptr, b.data.ptr, direct.data.ptr, 0, stream)
            graph.launch_graph(stream)
    cupy.cuda.Device().synchronize()
    assert all((c == expected).all() for c in results)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_few_launches(dtype: str) -> None:
    """For the sanitizers: edges of tiles."""
    check("tile", (264, 72, 136), dtype, "CCC", 0.5, 1)
    check("tile", (264, 72, 136), dtype, "CCC", 0.5, 3)
    check("tile", (130, 200, 104), dtype, "FFC")
