"""C = alpha A B + beta D with a D that C does not hold: the same numbers on the host and from launch lists, whatever
the plan, and nobody reads what C held."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from fmm.kernels.algorithms.additions import AdditionProgram
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Arena, aligned_block
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.cuda.sums.sum_launch import SumOp
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.kernels.plans.steps import LevelSteps, Product, steps_with_addend
from fmm.kernels.plans.sums import ADDEND, COPY_PROGRAM, Place, Sum, whole_matrix
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.problem import Layout, Problem
from tests.support.launch_lists import buffer, matrices, play
from tests.support.marks import quick_and_slow

PLANS = (
    "vendor",
    "winograd > vendor",
    "strassen^2.batched.pad16 > vendor",
    "strassen.overlapped > winograd > vendor",
    "strassen.sequential > vendor",
    "winograd.peel > vendor",
    "li-fig3 > vendor",
    "balanced > strassen > vendor",
    "scaled > strassen > vendor",
)
ON_DEVICES = (
    *PLANS,
    "tile",
    "strassen.batched.pad16 > tile",
    "strassen.fused > tile",
    "strassen.fused.atomic > tile",
    "li-fig3 > tile",
    "f16x3",
)
COMPLEX = ("3m > vendor", "3m.sequential > winograd > vendor", "winograd > vendor", "vendor")
# As strides over rows and columns: a matrix, a row for all rows, a column for all columns, one number.
KINDS = ((1, 1), (0, 1), (1, 0), (0, 0))


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Small ones, so that every sum and product of them is exact."""
    x = rng.integers(-3, 4, shape).astype(dtype)
    return x + 1j * rng.integers(-3, 4, shape).astype(dtype) if dtype.startswith("complex") else x


def drawn_added(rng: np.random.Generator, m: int, n: int, kind: tuple[int, int], dtype: str) -> Any:
    return np.broadcast_to(integers(rng, (m if kind[0] else 1, n if kind[1] else 1), dtype), (m, n))


def on_host(plan: Plan, a: Any, b: Any, c: Any, added: Any, alpha: float, beta: float) -> None:
    (m, k), n = a.shape, b.shape[1]
    arena = Arena(aligned_block(plan_workspace_bytes(plan, m, k, n, c.itemsize, alpha, beta) + 64), c.dtype)
    execute_plan(plan, a, b, c, NumpyBackend(ThreadGroup(1)), arena, alpha, beta, addend=added)


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize(
    ("text", "dtype"),
    [*((text, "float64") for text in PLANS), *((text, "complex128") for text in COMPLEX)],
)
def test_the_host_adds_what_lies_elsewhere(text: str, dtype: str, rng: np.random.Generator) -> None:
    plan, asked = Plan.parse(text), (((1, 1), "C"), ((-2, 0.5), "C"), ((1, 1), "F"), ((-2, 0.5), "F"))
    sizes = (37, 23, 41), (1, 5, 3), (64, 64, 64)
    for (m, k, n), kind, ((alpha, beta), order) in product(sizes, KINDS, asked):
        a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
        added = drawn_added(rng, m, n, kind, dtype)
        c = np.full((m, n), np.nan, dtype, order=order)  # type: ignore[call-overload]
        before = added.copy()
        on_host(plan, a, b, c, added, alpha, beta)
        np.testing.assert_array_equal(c, alpha * (a @ b) + beta * before)
        np.testing.assert_array_equal(added, before)


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize(
    ("text", "dtype"),
    quick_and_slow(
        [*((text, "float32") for text in ON_DEVICES), ("3m > vendor", "complex64")],
        [*((text, "complex64") for text in COMPLEX[1:]), ("winograd > tile", "float64")],
    ),
)
def test_launch_lists_add_what_lies_elsewhere(text: str, dtype: str, rng: np.random.Generator) -> None:
    """C is poisoned, and stays as it was beside its matrix; only one number, or column, for all is copied first."""
    plan, (m, k, n) = Plan.parse(text), (50, 34, 66)
    for order, kind, (alpha, beta) in product("CF", KINDS, ((1, 1), (-2, 0.5))):
        c_layout = Layout("C", n + 3) if order == "C" else Layout("F", m + 3)
        layouts = Layout("C", k), Layout("C", n), c_layout
        steps = n * kind[0], kind[1]
        problem = Problem(m, k, n, dtype, layouts, alpha, beta, addend_strides=steps)
        memory, (a, b, c) = matrices(problem, rng)
        memory["C"][...] = 0xFF
        added = drawn_added(rng, m, n, kind, dtype)
        memory[ADDEND] = buffer(m * n * added.itemsize)
        flat = memory[ADDEND][: m * n * added.itemsize].view(added.dtype)
        np.lib.stride_tricks.as_strided(flat, (m, n), [s * added.itemsize for s in steps])[...] = added
        tape = record_operations(plan, problem)
        memory["W"] = buffer(tape.workspace)
        outside = memory["C"].copy()
        play(tape, memory)
        np.testing.assert_array_equal(c, alpha * (a @ b) + beta * added)
        c[...] = np.ndarray(c.shape, c.dtype, outside, 0, c.strides)
        assert (memory["C"] == outside).all(), "something beside C was written"


def writes_of_c(problem: Problem, text: str) -> int:
    """By how many operations C is written."""
    ops = record_operations(Plan.parse(text), problem).ops
    return sum(op.writes_result for op in ops if isinstance(op, SumOp | GemmOp))


@pytest.mark.parametrize("text", ["winograd > vendor", "strassen^2.batched.pad16 > f16x3", "tile", "f16x3"])
def test_a_row_for_all_rows_costs_no_pass(text: str) -> None:
    """As many operations as without it, one of which writes C. (Which leaf begins with a copy is a chip's matter.)"""
    plain = Problem(256, 256, 256, "float32")
    biased = Problem(256, 256, 256, "float32", beta=1, addend_strides=(0, 1))
    counts = [len(record_operations(Plan.parse(text), p).ops) for p in (plain, biased)]
    assert counts[0] == counts[1]
    assert writes_of_c(biased, text) == 1


def test_a_block_that_was_written_is_read_there() -> None:
    """Of two products added to one block, only the first adds to what lies elsewhere."""
    leaf, c = Plan.parse("vendor"), whole_matrix("C", 4, 4)
    first = Product(whole_matrix("A", 4, 2), whole_matrix("B", 2, 4), c, leaf, GemmParams(1, 1))
    second = Product(Place("A", 0, 2, 4, 2), Place("B", 2, 0, 2, 4), c, leaf, GemmParams(1, 1))
    assert [p.has_addend for p in steps_with_addend(LevelSteps((), (first, second))).products] == [True, False]
    copy = Sum("copy", COPY_PROGRAM, (c,), (whole_matrix("M", 4, 4),))
    (found, *_) = steps_with_addend(LevelSteps((("M", 4, 4),), (copy, first))).steps
    assert isinstance(found, Sum) and found.reads[0].name == ADDEND


def test_real_and_imaginary_parts_are_different_numbers() -> None:
    """Where the real parts have been written, the imaginary ones are still the old ones."""
    parts = [whole_matrix("C", 4, 4, part) for part in ("re", "im")]
    program = AdditionProgram(2, (((1, 0), (1, 1)),), (2,))
    steps = tuple(Sum("add", program, (whole_matrix("M", 4, 4), p), (p,)) for p in (*parts, parts[0]))
    found = steps_with_addend(LevelSteps((("M", 4, 4),), steps)).steps
    assert [s.reads[1].name for s in found if isinstance(s, Sum)] == [ADDEND, ADDEND, "C"]


def test_old_and_new_numbers_at_once_are_refused() -> None:
    half = Sum("write", COPY_PROGRAM, (whole_matrix("M", 4, 4),), (Place("C", 0, 0, 2, 4),))
    whole = Sum("read", COPY_PROGRAM, (whole_matrix("C", 4, 4),), (whole_matrix("M", 4, 4),))
    with pytest.raises(PlanError, match="both old numbers of C and"):
        steps_with_addend(LevelSteps((("M", 4, 4),), (half, whole)))


def test_only_whole_products_with_beta_are_added_to_something() -> None:
    for wrong in ({"beta": 0}, {"beta": 1, "op": "gram"}):
        with pytest.raises(ValueError, match="an addend outside C needs beta"):
            Problem(8, 8, 8, addend_strides=(0, 1), **wrong)
