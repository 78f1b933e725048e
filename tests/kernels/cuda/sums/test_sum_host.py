"""The sum kernel compiled for the host, thread by thread: every block with its edges, and nothing outside."""

from __future__ import annotations

import ctypes
import subprocess
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fmm.kernels.algorithms.step_table import step_table_names
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.cuda.sums.sum_kernel import SUM_ENTRY_NAME, SUM_THREADS, AccessWidth, SumKernel, sum_source
from fmm.kernels.cuda.sums.sum_launch import ARRAY_STRUCT_BYTES, SumOp
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.sums import ADDEND
from fmm.problem import Layout, Problem
from tests.support.host_compiler import SANITIZER, header, required_compiler, shared_library
from tests.support.host_launch import aligned
from tests.support.marks import quick_and_slow
from tests.support.sums_on_host import for_the_host

DRIVER = r"""
extern "C" int launch(const void* parameters, int across, int down, int deep) {{
    using Parameters = fmm::Parameters<{arrays}, {scalars}>;
    gridDim = {{unsigned(across), unsigned(down), unsigned(deep)}};
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
                for (threadIdx.x = 0; threadIdx.x < {threads}; ++threadIdx.x)
                    {entry}(*static_cast<const Parameters*>(parameters));
    return sizeof(Parameters);
}}
"""
FLAGS = ("-std=c++17", "-O0", "-w", "-fno-strict-aliasing", *SANITIZER)


@pytest.fixture(scope="module")
def host() -> Any:
    """Runs a launch on the host; kernels are compiled once."""
    required_compiler()
    libraries: dict[Any, Any] = {}

    def launch(op: SumOp, bases: dict[str, int], access: AccessWidth, flag: int = 0) -> None:
        key = op.kernel, access, bool(flag)
        if key not in libraries:
            libraries[key] = _compiled(*key)
        parameters = np.frombuffer(op.parameters, np.int64).copy()
        for i, x in enumerate(op.arrays):
            parameters[7 * i] = bases[x.base] + x.offset
        parameters[-3] = flag
        assert libraries[key].launch(parameters.ctypes.data_as(ctypes.c_void_p), *op.grid) == parameters.nbytes

    return launch


def _for_the_host(kernel: SumKernel, access: AccessWidth, flag: bool) -> str:
    return header("sum_host.h") + for_the_host(sum_source(kernel, access, flag))


def _compiled(kernel: SumKernel, access: AccessWidth, flag: bool) -> Any:
    driver = DRIVER.format(arrays=kernel.arrays, scalars=kernel.scalars, entry=SUM_ENTRY_NAME, threads=SUM_THREADS)
    return shared_library(_for_the_host(kernel, access, flag) + driver, FLAGS)


class Operand(NamedTuple):
    memory: np.ndarray[Any, Any]  # bytes
    matrix: np.ndarray[Any, Any]

    @property
    def address(self) -> int:
        return self.memory.ctypes.data


def operand(rows: int, cols: int, layout: Layout, kind: Any, shift: int = 0) -> Operand:
    """A matrix of NaN bits in memory that starts `shift` elements after a multiple of 64 bytes, with a guard."""
    lines = rows if layout.order == "C" else cols
    count = lines * layout.leading
    room = aligned(count * kind.itemsize + 256)[shift * kind.itemsize :]
    flat = room[: count * kind.itemsize].view(kind).reshape(lines, layout.leading)
    return Operand(room, flat[:, :cols] if layout.order == "C" else flat[:, :rows].T)


def narrow(x: Any, kind: Any) -> Any:
    """Small integers as the type (bfloat16: the upper half of a float32)."""
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) if kind == np.uint16 else x.astype(kind)


def wide(x: Any) -> Any:
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x


SHAPES = ((64, 96, 128), (33, 18, 75), (67, 130, 5))


BATCHED, IN_TURN = "strassen.batched.pad4", "winograd"
TURNED = f"{BATCHED} > vendor.inner", f"{IN_TURN} > vendor.outer"


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("text", "dtype"),
    quick_and_slow(
        [
            (BATCHED, "float32"),
            (IN_TURN, "bfloat16"),
            (TURNED[0], "float32"),
            ("3m", "complex64"),
            ("3m.sequential", "complex128"),
        ],
        [
            (BATCHED, "float64"),
            (IN_TURN, "complex64"),
            (TURNED[1], "float64"),
            ("3m(strassen.pad4)", "complex64"),
            (BATCHED, "bfloat16"),
            (IN_TURN, "float32"),
            ("strassen^2.batched.pad16", "float32"),
            ("winograd^2.pad16", "float32"),  # lanes one after the other
            ("3m.batched.conj-b", "complex128"),
            ("3m.sequential.conj-a", "complex64"),
            ("3m > vendor.inner", "complex64"),
            ("3m > vendor.inner", "complex128"),
            ("3m(strassen.pad16).conj-a", "complex128"),
            ("3m(strassen^2.pad4)", "complex64"),
            *product(TURNED[:1], ("float64", "bfloat16")),
            *product(TURNED[1:], ("float32", "bfloat16")),
        ],
    ),
)
def test_splits_and_joins_on_the_host(text: str, dtype: str, host: Any) -> None:
    """Every block with its edges, aligned or not, row- or column-major; nothing outside a block is touched."""
    kind = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
    for (m, k, n), order, shift in product(SHAPES, "CF", (0, 1)):
        gap = 8 if order == "C" else 3
        layouts = [Layout(order, (c if order == "C" else r) + gap) for r, c in ((m, k), (k, n), (m, n))]  # type: ignore[arg-type]
        problem = Problem(m, k, n, dtype, tuple(layouts), 1, 1)  # type: ignore[arg-type]
        plan = Plan.parse(text if "vendor" in text else f"{text} > vendor")
        ops = [op for op in record_operations(plan, problem).ops if isinstance(op, SumOp)]
        for op in (*ops[:2], ops[-1]) if "vendor" in text else (ops[0], ops[-1]):
            _check_on_host(op, problem, kind, shift, host)


@pytest.mark.parametrize(
    ("text", "dtype"),
    quick_and_slow(
        [(BATCHED, "float32"), ("3m", "complex64"), ("vendor", "float64")],
        [(IN_TURN, "bfloat16"), (IN_TURN, "complex64")],
    ),
)
def test_sums_that_read_a_row_for_all_rows(text: str, dtype: str, host: Any) -> None:
    """A join with an addend outside C: a broadcast row or a matrix; copies of a column and of one number."""
    kind = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
    for (m, k, n), shift, across in product(SHAPES, (0, 1), (1, 0)):
        for down in (0, n + 8):
            layouts = tuple(Layout("C", cols + 8) for cols in (k, n, n))
            problem = Problem(m, k, n, dtype, layouts, 1, 1, addend_strides=(down, across))  # type: ignore[arg-type]
            plan = Plan.parse(text if text == "vendor" else f"{text} > vendor")
            ops = [op for op in record_operations(plan, problem).ops if isinstance(op, SumOp)]
            found = [op for op in ops if any(x.base == ADDEND for x in op.arrays)]
            assert len(found) == (0 if text == "vendor" and across else 1)
            for op in found:
                _check_on_host(op, problem, kind, shift, host)


def _check_on_host(op: SumOp, problem: Problem, kind: Any, shift: int, host: Any) -> None:
    rng = np.random.default_rng(3)
    shapes = dict(zip("ABC", zip(problem.matrix_shapes, problem.layouts, strict=True), strict=True))
    operands = {name: operand(*shape, layout, kind, shift) for name, (shape, layout) in shapes.items()}
    size = record_workspace(op, kind)
    operands["W"] = operand(1, size, Layout("C", size), kind)
    if problem.addend_strides:
        operands[ADDEND] = operand(problem.m, problem.n, Layout("C", problem.n + 8), kind, shift)
    for x in operands.values():
        x.matrix[...] = narrow(rng.integers(-3, 4, x.matrix.shape), kind)
    gaps = {name: x.memory.copy() for name, x in operands.items()}
    expected = _expected(op, operands, kind)
    access: AccessWidth = op.access if shift == 0 else "scalar"
    host(op, {name: x.address for name, x in operands.items()}, access)
    for spot, rows, cols, values in expected:
        np.testing.assert_array_equal(wide(_place(op, spot, operands, kind, rows, cols)), values)
        _place(op, spot, operands, kind, rows, cols)[...] = 0
    for name, x in operands.items():
        reference = Operand(gaps[name], None)  # type: ignore[arg-type]
        for spot, rows, cols, _ in expected:
            if op.arrays[spot.array].base == name:
                _place(op, spot, operands | {name: reference}, kind, rows, cols)[...] = 0
        assert (x.memory == gaps[name]).all(), f"{op.label} touched {name} outside its blocks"


def record_workspace(op: SumOp, kind: Any) -> int:
    """Elements of workspace that the launch can reach."""
    ends = [
        x.offset // kind.itemsize + abs(x.down) * (x.rows // max(x.height, 1)) + abs(x.row) * x.rows + x.col * x.cols
        for x in op.arrays
        if x.base == "W"
    ]
    return max(ends, default=1) + 64


def _place(op: SumOp, spot: Any, operands: dict[str, Operand], kind: Any, rows: int, cols: int) -> Any:
    x = op.arrays[spot.array]
    unit = np.dtype(op.kernel.element if kind != np.uint16 else np.uint16)
    if 0 in (rows, cols):
        return np.empty((rows, cols), unit)
    start = x.offset + (spot.i * x.down + spot.j * x.right + spot.part) * unit.itemsize
    strides = x.row * unit.itemsize, x.col * unit.itemsize
    return np.ndarray((rows, cols), unit, operands[x.base].memory, start, strides)


def _expected(op: SumOp, operands: dict[str, Operand], kind: Any) -> list[tuple[Any, int, int, Any]]:
    """Return what each output block must hold, from the coefficients alone."""
    reads = []
    for spot in op.kernel.reads:
        rows, cols = _room(op, spot)
        block = np.zeros((op.rows, op.cols), np.complex128 if op.kernel.element.startswith("complex") else np.float64)
        block[:rows, :cols] = wide(_place(op, spot, operands, kind, rows, cols))
        reads.append(block)
    found = []
    for spot, row in zip(op.kernel.writes, op.kernel.program.coefficient_matrix(), strict=True):
        total: Any = sum((float(c.real) * x for c, x in zip(row, reads, strict=True)), start=np.zeros_like(reads[0]))
        rows, cols = _room(op, spot)
        found.append((spot, rows, cols, total[:rows, :cols]))
    return found


def _room(op: SumOp, spot: Any) -> tuple[int, int]:
    x = op.arrays[spot.array]
    rows = min(op.rows, x.height, x.rows - spot.i * x.height)
    return max(rows, 0), max(min(op.cols, x.width, x.cols - spot.j * x.width), 0)


@pytest.mark.parametrize("every", quick_and_slow([8], [1]))
def test_a_sum_in_place_on_the_host(every: int, host: Any) -> None:
    """addAdd and subAdd read what they overwrite: C12 = C11 + C12 + T, C11 = C11 + C21 + T and the like."""
    names = [t for t in step_table_names() if t != "hasa"][::every]
    seen: set[SumKernel] = set()
    for name, size in product(names, ((16, 16, 16), (13, 9, 11))):
        problem = Problem(*size, "float64")
        for op in record_operations(Plan.parse(f"{name}.pad > vendor"), problem).ops:
            if isinstance(op, SumOp) and op.kernel.aliases and op.kernel not in seen:
                seen.add(op.kernel)
                _check_on_host(op, problem, np.dtype(np.float64), 0, host)
    assert len(seen) > 3


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nonfinite_results_raise_the_flag(dtype: str, bad: float, host: Any) -> None:
    kind = np.dtype(dtype)
    problem = Problem(30, 34, 38, dtype)
    op = record_operations(Plan.parse("strassen.batched.pad4 > vendor"), problem).ops[-1]
    assert isinstance(op, SumOp)
    size = record_workspace(op, kind)
    for value, raised in ((1.0, 0), (bad, 1)):
        work = operand(1, size, Layout("C", size), kind)  # NaN beside the blocks: what is never stored must not count
        for spot in op.kernel.reads:
            _place(op, spot, {"W": work}, kind, *_room(op, spot))[...] = 1
        _place(op, op.kernel.reads[3], {"W": work}, kind, *_room(op, op.kernel.reads[3]))[3, 2] = value
        result = operand(30, 38, Layout("C", 38), kind)
        flag = np.zeros(1, np.int32)
        host(op, {"W": work.address, "C": result.address}, op.access, flag.ctypes.data)
        assert flag[0] == raised


LAYOUT = r"""
#include <cstddef>
#define AT(what, byte) static_assert(offsetof(P, what) == byte, #what)
using P = fmm::Parameters<{arrays}, {scalars}>;
static_assert(sizeof(P) == {size} && sizeof(fmm::Array) == {array}, "sizes");
AT(arrays[1].data, {array}); AT(arrays[1].row, {array} + 8); AT(arrays[1].col, {array} + 16);
AT(arrays[1].down, {array} + 24); AT(arrays[1].right, {array} + 32);
AT(arrays[1].rows, {array} + 40); AT(arrays[1].cols, {array} + 44);
AT(arrays[1].height, {array} + 48); AT(arrays[1].width, {array} + 52);
AT(scalars, {arrays} * {array}); AT(flag, {flag}); AT(rows, {flag} + 8); AT(cols, {flag} + 12);
AT(inner_rows, {flag} + 16); AT(inner_cols, {flag} + 20);
"""


@pytest.mark.parametrize("wrong", [0, 8], ids=["as packed", "8 bytes off"])
def test_parameters_match_the_cuda_struct(wrong: int, tmp_path: Path) -> None:
    """The struct of block_sums.cuh has the layout of SumOp.parameters; any other does not compile."""
    op = record_operations(
        Plan.parse("strassen.batched > vendor"), Problem(40, 24, 56, "float32", alpha=0.3, beta=-7.0)
    ).ops[-1]
    assert isinstance(op, SumOp) and op.kernel.scalars == 2
    arrays, scalars = op.kernel.arrays, op.kernel.scalars
    flag = arrays * ARRAY_STRUCT_BYTES + 8 * (2 * scalars + 1) + wrong
    numbers = {
        "arrays": arrays,
        "scalars": scalars,
        "array": ARRAY_STRUCT_BYTES,
        "flag": flag,
        "size": len(op.parameters),
    }
    path = tmp_path / "layout.cpp"
    path.write_text(_for_the_host(op.kernel, "scalar", False) + LAYOUT.format(**numbers), encoding="utf-8")
    command = [required_compiler(), *FLAGS, "-c", str(path), "-o", f"{path}.o"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode == 0) == (not wrong), found.stderr
    assert not wrong or "flag" in found.stderr
