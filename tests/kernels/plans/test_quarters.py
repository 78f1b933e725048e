"""Quarters: integers block by block of C, so that little workspace is enough."""

from __future__ import annotations

import numpy as np
import pytest

import fmm
from fmm.dtypes import INTEGERS
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Arena, aligned_block
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.plans.explain import plan_table
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.lower import lower_level
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.kernels.plans.workspace import check_plan_type, plan_workspace_bytes
from tests.support.integers import draw_integers, with_layout

PLAN = Plan.parse("quarters > residues > bytes")


@pytest.mark.parametrize("size", [(8, 5, 6), (7, 5, 9), (1, 5, 9), (7, 5, 1), (1, 1, 1), (2, 3, 2)])
def test_blocks_of_c_are_whole_products(size: tuple[int, int, int]) -> None:
    """Each entry of C is written once, by rows of A and columns of B that are its own."""
    m, k, n = size
    steps = lower_level(PLAN, m, k, n, 1, 0)
    assert steps is not None and not steps.temporaries
    seen = np.zeros((m, n), int)
    for p in steps.products:
        a, b, c = p.left, p.right, p.dest
        assert (a.row, a.rows, a.col, a.cols) == (c.row, c.rows, 0, k)
        assert (b.col, b.cols, b.row, b.rows) == (c.col, c.cols, 0, k)
        assert c.rows and c.cols and p.plan == PLAN.inner_plan
        seen[c.row : c.row + c.rows, c.col : c.col + c.cols] += 1
    assert (seen == 1).all()


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("plan", ["quarters > digits", "quarters > quarters > digits"])
def test_products_are_numpys(dtype: str, plan: str) -> None:
    draw = np.random.default_rng(3)
    for m, k, n in ((1, 1, 1), (131, 200, 77), (2, 300, 1)):
        a, b = draw_integers(draw, dtype, (m, k), 0), draw_integers(draw, dtype, (k, n), 0)
        for how in range(3):
            found = fmm.matmul(with_layout(a, how), with_layout(b, how), plan=plan)
            np.testing.assert_array_equal(found, np.matmul(a, b))


def test_less_workspace() -> None:
    for below in ("residues > bytes", "residues > strassen > bytes"):
        whole, half, quarter = (
            plan_workspace_bytes(Plan.parse(f"{'quarters > ' * i}{below}"), 8192, 8192, 8192, 4) for i in range(3)
        )
        assert half <= 0.51 * whole and quarter <= 0.51 * half


def test_other_types_are_refused() -> None:
    for plan in ("quarters > vendor", "quarters > residues(14) > bytes"):
        with pytest.raises(PlanError, match=r"quarters is for int8 and .*, not for float64"):
            check_plan_type(Plan.parse(plan), "float64")
    with pytest.raises(PlanError, match=r"multiplies .* there, not int64"):
        check_plan_type(Plan.parse("quarters > vendor"), "int64")
    with pytest.raises(PlanError, match="unknown algorithm"):
        Plan.parse("quarters^2 > residues > bytes")


def test_explained() -> None:
    table = plan_table(PLAN, 8192, 8192, 8192, 8, dtype="int64")
    assert "blocks of C, one after the other" in table and "4096 x 8192 x 4096" in table and "72 leaf products" in table


@pytest.mark.parametrize("plan", ["quarters > digits", "quarters > quarters > digits"])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (1, 0), (2, 5)])
def test_alpha_and_beta_are_the_blocks(plan: str, dtype: str, alpha: int, beta: int) -> None:
    """Each block of C is scaled and added to by its own product: no pass over C, and no temporary for all of it.
    (The host's sums take no other factors of integers; a GPU's kernels do: test_residues.)"""
    draw = np.random.default_rng(5)
    for m, k, n in ((1, 1, 1), (13, 20, 7), (2, 30, 1)):
        a, b, c = (draw_integers(draw, dtype, x, 0) for x in ((m, k), (k, n), (m, n)))
        steps = lower_level(Plan.parse(plan), m, k, n, alpha, beta)
        assert steps is not None and not steps.temporaries and len(list(steps.products)) == len(steps.steps)
        assert {p.params for p in steps.products} == {GemmParams(alpha, beta)}
        if alpha != 1:
            continue
        expected = (np.matmul(a, b) + beta * c).astype(dtype)
        arena = Arena(aligned_block(plan_workspace_bytes(Plan.parse(plan), m, k, n, a.itemsize, alpha, beta)), a.dtype)
        execute_plan(Plan.parse(plan), a, b, c, NumpyBackend(ThreadGroup(1)), arena, alpha, beta)
        np.testing.assert_array_equal(c, expected)
