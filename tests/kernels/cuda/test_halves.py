"""Products that are their own adjoints as launches: played element by element, and the kernels chosen."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from fmm.kernels.cuda.launch_list import FLAG, Launch, VendorCall
from fmm.kernels.cuda.ops import DeviceView, GemmOp, MirrorOp, RankUpdateOp, rank_update_op
from fmm.kernels.cuda.record import record_launches, record_operations
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.perfmodel.block_model import chip_target
from fmm.problem import Fill, Layout, Operation, Problem
from tests.support.chips import H200, V100
from tests.support.launch_lists import GUARD, POISON, buffer, matrices, play


def problem(
    n: int, k: int, dtype: str, order: str, dest: str, op: Operation = "gram", fill: Fill = "full", **more: Any
) -> Problem:
    """A has this layout; B is its transpose or has the same layout."""
    a = Layout("C", k + 1) if order == "C" else Layout("F", n + 2)
    b = Layout("F", k + 1) if order == "C" else Layout("C", n + 2)
    return Problem(n, k, n, dtype, (a, b, Layout(dest, n + 3)), op=op, fill=fill, **more)  # type: ignore[arg-type]


FILLS: tuple[Fill, ...] = ("full", "lower")
PLANS = (
    "vendor",
    "tile",
    "f16x3",
    "small",
    "gram^3 > vendor",
    "gram^2 > strassen.batched.pad4 > vendor",
    "gram^2.tile > strassen.batched.pad4 > vendor",
    "gram^2.tile.outer > vendor",
    "sforza(2) > vendor",
)


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("text", PLANS)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_launches_compute_the_triangle(text: str, dtype: str) -> None:
    """Exact; only the triangle of C and the workspace are written."""
    rng = np.random.default_rng(3)
    plan, fills = Plan.parse(text), FILLS
    if not plan.accepts_type(dtype):
        pytest.skip(f"{text} is not for {dtype}")
    cases = product([(1, 1), (29, 12)], "CF", "CF", fills, [(1, 0), (2, -3)])
    for (n, k), order, dest, fill, (alpha, beta) in cases:
        asked = problem(n, k, dtype, order, dest, fill=fill, alpha=alpha, beta=beta)
        memory, (a, b, c) = matrices(asked, rng)
        b[...] = a.conj().T
        if beta:
            c[...] = c + c.conj().T
        before = c.copy()
        tape = record_operations(plan, asked)
        memory["W"] = buffer(tape.workspace)
        play(tape, memory)
        old = np.where(np.isnan(before), 0, before)
        wanted, below = alpha * (a @ a.conj().T) + beta * old, np.tri(n, dtype=bool)
        np.testing.assert_array_equal(c[below], wanted[below])
        np.testing.assert_array_equal(c[~below], (wanted if fill == "full" else before)[~below])
        assert all((x[-GUARD:] == POISON).all() for x in memory.values())


def views(
    rows: int, cols: int, left: str, right: str, dest: str, dtype: str
) -> tuple[DeviceView, DeviceView, DeviceView]:
    def view(base: str, shape: tuple[int, int], order: str) -> DeviceView:
        strides = (shape[1] + 1, 1) if order == "C" else (1, shape[0] + 1)
        return DeviceView(base, 64, *shape, *strides, dtype)

    return view("A", (rows, cols), left), view("B", (cols, rows), right), view("C", (rows, rows), dest)


@pytest.mark.parametrize(
    ("orders", "factor", "transposed", "upper"),
    [
        ("CFC", "A", True, True),  # C^T = B^T A^T, of which A^T lies column by column
        ("FCC", "B", False, True),
        ("CFF", "B", True, False),
        ("FCF", "A", False, False),
        ("CCC", "B", False, True),
        ("FFF", "A", False, False),
    ],
)
def test_the_factor_that_blas_can_read(orders: str, factor: str, transposed: bool, upper: bool) -> None:
    found = rank_update_op("vendor", "float32", *views(6, 4, orders[0], orders[1], orders[2], "float32"), 1, 0)
    assert found is not None
    assert (found.factor.base, found.factor.transposed, found.upper) == (factor, transposed, upper)
    assert (found.n, found.k, found.dest.base) == (6, 4, "C")


def test_blas_can_read_neither_factor() -> None:
    assert rank_update_op("vendor", "complex64", *views(6, 4, "F", "F", "C", "complex64"), 1, 0) is None


def steps(text: str, asked: Problem, flagged: bool = True) -> list[Any]:
    return list(record_launches(Plan.parse(text), asked, chip_target(H200, flagged=flagged)).steps)


def test_float32_is_syrk_and_a_mirror() -> None:
    asked = problem(2048, 512, "float32", "C", "C")
    rank, mirror = steps("vendor", asked, flagged=False)
    assert isinstance(rank, VendorCall) and isinstance(rank.op, RankUpdateOp) and "syrk" in rank.label
    assert isinstance(mirror, Launch) and mirror.label.startswith("mirror_triangle") and mirror.does == "sums"
    assert mirror.grid == (64 * 65 // 2, 1, 1)
    (herk, _) = steps("vendor", problem(2048, 512, "complex64", "C", "C"), flagged=False)
    assert "herk" in herk.label


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_lower_triangle_falls_back_to_syrk(order: str) -> None:
    """On chips where the leaf's kernels write all of C: syrk, as in the plan `vendor`, for each product of a batch."""
    cases = ("f16x3", "float32", 1), ("gram^2 > f16x3", "float32", 4), ("residues(14) > bytes", "float64", 1)
    for plan, dtype, count in cases:
        asked = problem(2048, 512, dtype, order, "C", fill="lower", alpha=2, beta=-1)
        found = record_launches(Plan.parse(plan), asked, chip_target(V100)).steps
        ranks = [x.op for x in found if isinstance(x, VendorCall) and isinstance(x.op, RankUpdateOp)]
        usual = record_operations(Plan.parse("gram^2 > vendor" if count > 1 else "vendor"), asked).ops
        assert ranks == [op for op in usual if isinstance(op, RankUpdateOp)] and len(ranks) == count
        assert all("because" in x.label for x in found if isinstance(x, VendorCall) and x.op in ranks)
    # Of two matrices it has no half.
    other = problem(2048, 512, "float32", order, "C", "symmetric", fill="lower")
    with pytest.raises(PlanError, match="f16x3 cannot leave the upper triangle"):
        record_launches(Plan.parse("f16x3"), other, chip_target(V100))
    assert any(
        "on and below" in x for x in record_launches(Plan.parse("f16x3"), other, chip_target(H200)).step_labels()
    )


@pytest.mark.parametrize(("leaf", "dtype"), [("f16x3", "float32"), ("tile", "float64"), ("tile", "bfloat16")])
def test_a_column_major_triangle_uses_a_temporary(leaf: str, dtype: str) -> None:
    """The tiled kernel still writes one triangle, row-major, in a temporary."""
    found = steps(leaf, problem(2048, 511, dtype, "C", "F", fill="lower"), flagged=False)
    labels = [x.label for x in found]
    assert "on and below the diagonal" in labels[-2] and labels[-1].startswith(
        "mirror_triangle: the lower triangle, from"
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "tf32"])
def test_types_without_syrk(dtype: str) -> None:
    """Whole products of the diagonal blocks, as one batch; a lone lower triangle goes through a temporary."""
    asked = problem(4096, 1024, dtype, "C", "C")
    found = record_operations(Plan.parse("gram^2 > vendor"), asked)
    assert [type(op) for op in found.ops] == [GemmOp, GemmOp, GemmOp, MirrorOp] and found.workspace == 0
    assert [op.count for op in found.ops if isinstance(op, GemmOp)] == [1, 2, 4]
    lower = record_operations(Plan.parse("gram^2 > vendor"), problem(4096, 1024, dtype, "C", "C", fill="lower"))
    assert [type(op) for op in lower.ops[2:]] == [GemmOp, MirrorOp] * 4
    assert 0 < lower.workspace <= 1024 * 1040 * 4


def test_small_triangles_are_one_batch_of_whole_products() -> None:
    small = record_operations(Plan.parse("gram^3 > vendor"), problem(4096, 1024, "float32", "C", "C"))
    assert [op.count for op in small.ops if isinstance(op, GemmOp)] == [1, 2, 4, 8]
    large = record_operations(Plan.parse("gram > vendor"), problem(4096, 1024, "float32", "C", "C"))
    assert [type(op) for op in large.ops] == [GemmOp, RankUpdateOp, RankUpdateOp, MirrorOp]


def test_two_factors_never_use_syrk() -> None:
    found = record_operations(Plan.parse("gram > vendor"), problem(4096, 1024, "float32", "C", "C", "symmetric"))
    assert not any(isinstance(op, RankUpdateOp) for op in found.ops)


def test_the_mirror_checks_for_inf_and_nan() -> None:
    """No other pass over C checks, and nothing checks the recomputed product."""
    found = steps("gram > strassen > vendor", problem(4096, 1024, "float32", "C", "C"))
    labels = [step.label for step in found]
    assert not any("scans C for inf" in label for label in labels) and "computes C again" in labels[-1]
    mirror = next(step for step in found if step.label.startswith("mirror_triangle"))
    assert any(slot.base == FLAG for slot in mirror.slots)


def test_complex_recomputed_products_are_mirrored_again() -> None:
    labels = [s.label for s in steps("gram > strassen > vendor", problem(4096, 1024, "complex64", "C", "C"))]
    assert "computes C again" in labels[-2] and labels[-1].startswith("mirror_triangle")


@pytest.mark.parametrize(("dtype", "how"), [("float32", "tiled"), ("float64", "simple"), ("complex64", "simple")])
def test_a_lone_triangle_is_recomputed_alone(dtype: str, how: str) -> None:
    """The vendor's result is scanned first; a complex diagonal is made real again."""
    labels = [s.label for s in steps("gram > strassen > vendor", problem(4096, 1024, dtype, "C", "C", fill="lower"))]
    again = [i for i, label in enumerate(labels) if "computes C again" in label]
    assert len(again) == 1 and labels[again[0]].startswith(f"recompute_{how}")
    assert "scans C for inf" in labels[again[0] - 1]
    assert [label.startswith("mirror_triangle") for label in labels[again[0] + 1 :]] == [True] * (dtype == "complex64")


def test_an_update_of_a_triangle_is_not_recomputed() -> None:
    """The old C is overwritten, so such products are computed in another place."""
    for more in ({"beta": 1}, {"alpha": 2}, {"alpha": 2, "fill": "lower"}):
        found = steps("gram > strassen > vendor", problem(4096, 1024, "float32", "C", "C", **more))
        assert not any("computes C again" in step.label for step in found)


@pytest.mark.parametrize(
    "text", ["gram > vendor", "gram^2.tile > strassen.batched.pad16 > vendor", "sforza(2) > vendor"]
)
@pytest.mark.parametrize("beta", [0, 2])
def test_empty_products_launch_nothing(text: str, beta: int) -> None:
    found = record_launches(Plan.parse(text), Problem(0, 5, 0, "float32", op="gram", beta=beta), chip_target(H200))
    assert not found.steps
