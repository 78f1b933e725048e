"""Gram products: the levels gram and sforza, their texts, counts and results."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest

from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Arena, aligned_block
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.plans.explain import plan_table
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.levels.gram import gram_level
from fmm.kernels.plans.levels.scheme_level import level_with_options
from fmm.kernels.plans.levels.sforza import sforza_level
from fmm.kernels.plans.lower import lower_level
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.steps import Product, ProductBatch
from fmm.kernels.plans.sums import Mirror, Place, Sum
from fmm.kernels.plans.workspace import count_leaf_products, count_leaf_triangles, plan_workspace_bytes
from fmm.perfmodel.candidates import gram_candidates
from fmm.perfmodel.cost import cost
from fmm.perfmodel.stability import error_bound, expected_error_growth
from fmm.perfmodel.work import estimated_work
from fmm.problem import Fill, Operation, Problem
from fmm.runtime.decisions.decide import check_plan_is_runnable
from fmm.runtime.overflow import intermediate_growth_bound

LOOSE, FULL = GemmParams(op="gram", fill="loose"), GemmParams(op="gram")
BACKEND = NumpyBackend(ThreadGroup(1))
Matrix = np.ndarray[Any, Any]


# ---- the text


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("gram > vendor", ""),
        ("gram^1 > vendor", "gram > vendor"),
        ("gram^3 > strassen^2.batched.pad16 > vendor", ""),
        ("sforza > vendor", "sforza(1) > vendor"),
        ("sforza(3, 1536) > vendor", "sforza(3,1536) > vendor"),
        ("gram > sforza(2) > winograd > vendor", ""),
        ("gram^2.tile > strassen > vendor", ""),
        ("gram.tile.solo > gram.vendor > vendor", ""),
        ("gram.tile.outer > strassen > vendor", ""),
    ],
)
def test_plans_are_read_and_written(text: str, short: str) -> None:
    plan = Plan.parse(text)
    assert str(plan) == (short or text)
    assert Plan.parse(str(plan)) == plan and plan.is_gram_plan


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("strassen > gram > vendor", "gram cuts only Gram products"),
        ("gram^0 > vendor", "the exponent must be from 1 to 9"),
        ("gram^10 > vendor", "the exponent must be from 1 to 9"),
        ("gram.cublas > vendor", "unknown leaf 'cublas'"),
        ("sforza(7) > vendor", "1 to 6"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Plan.parse(text)


def test_a_plan_of_halves_is_for_nothing_else() -> None:
    for text in ("gram > vendor", "sforza(2) > vendor"):
        with pytest.raises(PlanError, match=r"fmm\.gram"):
            lower_level(Plan.parse(text), 8, 8, 8)
    with pytest.raises(PlanError, match="begins with gram"):
        lower_level(Plan.parse("strassen > vendor"), 8, 8, 8, 1, 0, "gram")
    with pytest.raises(PlanError, match="a matrix and its adjoint"):
        lower_level(Plan.parse("sforza > vendor"), 8, 8, 8, 1, 0, "symmetric", "loose")


def test_problems_that_are_no_halves() -> None:
    with pytest.raises(ValueError, match="square"):
        Problem(3, 4, 5, op="gram")
    with pytest.raises(ValueError, match="fill"):
        Problem(3, 4, 3, fill="lower")
    with pytest.raises(ValueError, match="fill"):
        Problem(3, 4, 3, op="gram", fill="loose")
    assert Problem(3, 4, 3, op="symmetric", fill="lower").writes_triangle


# ---- counts


@pytest.mark.parametrize(("recursion", "share"), [(1, "3/4"), (2, "19/32"), (3, "125/256"), (4, "843/2048")])
def test_sforzas_products_against_a_whole_one(recursion: int, share: str) -> None:
    """0.750, 0.594, 0.488 and 0.412 of the classical product's multiplications, for depths 1 to 4."""
    n = 256
    counts = count_leaf_products(Plan.parse(f"sforza({recursion}) > vendor"), n, n, n, FULL)
    assert Fraction(sum(m * k * j * times for (m, k, j), times in counts.items()), n**3) == Fraction(share)
    assert round(float(Fraction(share)), 3) == (0.75, 0.594, 0.488, 0.412)[recursion - 1]
    assert sum(counts.values()) == Plan.parse(f"sforza({recursion}) > vendor").levels[0].products


@pytest.mark.parametrize(
    ("text", "diagonal", "below"),
    [
        ("sforza(1) > vendor", "vendor", "vendor"),
        ("sforza(2) > vendor", "sforza(1) > vendor", "li-fig3.peel > vendor"),
        ("sforza(4) > vendor", "sforza(3) > vendor", " > ".join(["li-fig3.peel"] * 3 + ["vendor"])),
        ("sforza(3,16) > vendor", "sforza(2,16) > vendor", "li-fig3.peel > li-fig3.peel > vendor"),
        ("sforza(2) > gram > vendor", "sforza(1) > gram > vendor", "li-fig3.peel > vendor"),
        ("sforza(2) > winograd > vendor", "sforza(1) > vendor", "li-fig3.peel > winograd > vendor"),
    ],
)
def test_plans_below_sforza(text: str, diagonal: str, below: str) -> None:
    """Blocks on the diagonal recur once less, with the same cutoff; Strassen recurs once less than the level."""
    steps = lower_level(Plan.parse(text), 64, 96, 64, 1, 0, "gram", "loose")
    assert steps is not None
    assert [str(p.plan) for p in steps.products] == [diagonal] * 4 + [below] * 2
    assert {p.size for p in steps.products} == {(32, 48, 32)}


@pytest.mark.parametrize("recursion", [1, 2, 3, 6])
def test_facts_of_sforzas_recursion(recursion: int) -> None:
    """The error of the blocks below the diagonal grows by Strassen's factor for each of its levels."""
    level, strassen = sforza_level(recursion), level_with_options("li-fig3", "peel")
    assert strassen.bilinear is not None
    assert level.depth == recursion - 1
    assert level.error_growth == pytest.approx(strassen.bilinear.error_growth ** (recursion - 1))
    assert level.saves_products == (recursion > 1)


def test_explain_counts_grams_products() -> None:
    steps = lower_level(Plan.parse("gram^2 > vendor"), 64, 16, 64, 1, 0, "gram", "loose")
    assert steps is not None
    assert gram_level(2).describe_steps(steps) == "4 blocks on the diagonal, 3 products below it"


def test_sforzas_base_case() -> None:
    """Six products and three additions."""
    steps = lower_level(Plan.parse("sforza > vendor"), 6, 10, 6, 1, 0, "gram", "loose")
    assert steps is not None
    products, sums = (list(filter(lambda s: isinstance(s, kind), steps.steps)) for kind in (Product, Sum))
    assert (len(products), len(sums)) == (6, 3)
    assert steps.temporaries == (("W1", 3, 3), ("W2", 3, 3))
    assert cost(Plan.parse("sforza > vendor"), 6, 10, 6, op="gram").additions == 3 * 9


@pytest.mark.parametrize(
    ("half", "inner", "stops"), [(1536, 1536, True), (1537, 1536, False), (2000, 1200, True), (4096, 1000, False)]
)
def test_sforzas_cutoff(half: int, inner: int, stops: bool) -> None:
    """CUTOFF / m2 + CUTOFF / n2 >= 2."""
    assert sforza_level(3, 1536).is_base_case(half, inner) is stops
    assert sforza_level(1, 0).is_base_case(half, inner) and not sforza_level(2, 0).is_base_case(half, inner)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("gram^2 > vendor", 32),  # the same as BLAS's
        ("gram > strassen > vendor", 30),  # as many as RXTX
        ("gram > strassen^2 > vendor", 28.25),
        ("gram^2 > strassen > vendor", 30),
        ("gram^2 > strassen^2 > vendor", 27.25),  # the two smaller products have one level, too
    ],
)
def test_grams_products_in_blocks_of_a_quarter(text: str, share: float) -> None:
    """One product of 64 is one of blocks of a quarter of each side; a half counts as one half."""
    n = 256
    plan = Plan.parse(text)
    whole = sum(m * k * j * times for (m, k, j), times in count_leaf_products(plan, n, n, n, FULL).items())
    half = sum(m * m * k * times for (m, k, _), times in count_leaf_triangles(plan, n, n, n, FULL).items()) / 2
    assert 64 * (whole + half) / n**3 == share


def test_costs_add_up() -> None:
    n = 64
    found = cost(Plan.parse("gram^2 > vendor"), n, 32, n, op="gram")
    assert dict(found.leaves) == {(16, 32, 16): 2, (32, 32, 32): 1} and dict(found.triangles) == {(16, 32, 16): 4}
    assert found.flops == 2 * (2 * 16 * 32 * 16 + 32**3) + 4 * 2 * (16 * 17 // 2) * 32
    assert (found.bytes_read, found.bytes_written) == (8 * n * (n + 1) // 2, 8 * n * (n - 1) // 2)  # the mirror
    lower = cost(Plan.parse("gram^2 > vendor"), n, 32, n, op="gram", fill="lower")
    assert (lower.flops, lower.bytes_read, lower.workspace) == (found.flops, 0, 0)


def test_error_and_growth() -> None:
    """The level itself adds nothing; what is below it does."""
    assert expected_error_growth(Plan.parse("gram^3 > vendor")) == 1
    assert expected_error_growth(Plan.parse("gram > strassen > vendor")) == expected_error_growth(
        Plan.parse("strassen > vendor")
    )
    assert expected_error_growth(Plan.parse("sforza > vendor")) == 1
    two = expected_error_growth(Plan.parse("sforza(3) > vendor"))
    assert two == pytest.approx(expected_error_growth(Plan.parse("li-fig3.peel > li-fig3.peel > vendor")))
    assert error_bound(Plan.parse("gram^2 > vendor"), 64, 64, 64, "gram") == error_bound(VENDOR, 64, 64, 64)
    inside = error_bound(Plan.parse("winograd > vendor"), 32, 64, 32)
    assert error_bound(Plan.parse("gram > winograd > vendor"), 64, 64, 64, "gram") == inside
    assert intermediate_growth_bound(Plan.parse("gram > winograd > vendor"), 64, 64, 64, "gram") > 1
    assert intermediate_growth_bound(Plan.parse("gram^2 > vendor"), 64, 64, 64, "gram") == 1


def test_candidates_are_plans_of_halves() -> None:
    for device in ("cpu", "cuda"):
        found = gram_candidates(device)
        assert found[0] == VENDOR and len(found) == len(set(found)) > 6
        assert all(plan.is_gram_plan or plan.leaf_use.leaf.kernel_triangles for plan in found[1:])
        assert all(plan.is_gram_plan for plan in found[1:] if plan.levels)


# ---- the steps


@pytest.mark.parametrize("text", ["gram", "gram^2", "gram^3", "gram^2 > strassen", "gram > gram"])
@pytest.mark.parametrize("n", [1, 2, 5, 31, 100, 1030])
def test_every_entry_of_the_lower_half_is_computed_once(text: str, n: int) -> None:
    written = np.zeros((n, n), np.int64)

    def walk(plan: Plan, size: int, row: int, col: int, asked: GemmParams) -> None:
        steps = lower_level(plan, size, 3, size, *asked) if plan.levels else None
        if steps is None:
            written[row : row + size, col : col + size][np.tri(size, dtype=bool)] += 1
            return
        for p in steps.products:
            assert isinstance(p, Product) and p.size == (p.dest.rows, 3, p.dest.cols)
            assert (p.left.row, p.right.col) == (p.dest.row, p.dest.col)
            if p.params.op == "product":
                at = row + p.dest.row, col + p.dest.col
                written[at[0] : at[0] + p.dest.rows, at[1] : at[1] + p.dest.cols] += 1
            else:
                walk(p.plan, p.dest.rows, row + p.dest.row, col + p.dest.col, p.params)

    walk(Plan.parse(f"{text} > vendor"), n, 0, 0, LOOSE)
    np.testing.assert_array_equal(written, np.tri(n))


def test_equal_products_are_batches_and_blocks_are_aligned() -> None:
    plan = Plan.parse("gram^3 > strassen^2 > vendor")
    whole, rest = (lower_level(plan, n, 512, n, 1, 0, "gram", "loose") for n in (8192, 8192 - 200))
    assert whole is not None and rest is not None
    sizes = [len(step.products) if isinstance(step, ProductBatch) else 1 for step in whole.steps]
    assert sizes == [1, 2, 4, 8]
    sizes = [len(step.products) if isinstance(step, ProductBatch) else 1 for step in rest.steps]
    assert sizes == [1, 1, 1, 3, 1, 7, 1]  # at the edge they are smaller
    for steps in (whole, rest):
        plans = [str(p.plan) for p in steps.products]
        assert plans == ["strassen^2 > vendor", *["strassen > vendor"] * 2, *["vendor"] * 12]
        assert {p.dest.row % 64 for p in steps.products} == {0}


def test_a_smaller_product_has_a_level_less() -> None:
    for text, less in (
        ("strassen^3.batched.pad16 > vendor", "strassen^2.batched.pad16 > vendor"),
        ("strassen.overlapped.pad16 > strassen^3.batched.pad16 > vendor", "strassen^3.batched.pad16 > vendor"),
        ("balanced(2) > hasa > vendor", "balanced(2) > vendor"),
        ("winograd*hk223 > vendor", "hk223 > vendor"),
        ("vendor", "vendor"),
    ):
        assert str(Plan.parse(text).plan_with_less_recursion) == less


def test_what_is_full_is_mirrored_and_what_is_lower_is_kept() -> None:
    full = lower_level(Plan.parse("gram > vendor"), 8, 8, 8, 2, 3, "gram", "full")
    assert full is not None
    inner, mirror = full.steps
    assert isinstance(inner, Product) and inner.params == GemmParams(2, 3, "gram", "loose")
    assert mirror == Mirror(Place("C", 0, 0, 8, 8), Place("C", 0, 0, 8, 8))
    lower = lower_level(Plan.parse("sforza > vendor"), 8, 8, 8, 2, 3, "gram", "lower")
    assert lower is not None and lower.temporaries == (("D", 8, 8),)
    assert lower.steps[1] == Mirror(Place("D", 0, 0, 8, 8), Place("C", 0, 0, 8, 8), 2, 3, "lower")


# ---- what they compute


PLANS = (
    "vendor",
    "gram",
    "gram^3",
    "gram^2 > strassen^2",
    "gram > gram > winograd > winograd",
    "sforza",
    "sforza(2)",
    "sforza(3)",
    "sforza(3,4)",
    "gram > sforza(2)",
    "gram^2 > balanced(2) > hasa",
)
SIZES = ((1, 1), (5, 4), (16, 16), (33, 17), (3, 50))
UPDATES = ((1, 0), (0.5, -1.5))


def integers(rng: np.random.Generator, rows: int, cols: int, dtype: str) -> Matrix:
    """Small ones: every product and sum of them is exact."""
    x = rng.integers(-3, 4, (rows, cols)).astype(dtype)
    return x + 1j * rng.integers(-3, 4, (rows, cols)).astype(dtype) if dtype.startswith("complex") else x


def computed(plan: Plan, x: Matrix, order: str, c: Matrix, asked: GemmParams) -> None:
    """C by the plan, in memory that is full of NaN."""
    n, k = x.shape
    a = np.asarray(x, order=order)  # type: ignore[call-overload]
    b = a.conj().copy(order="K").T
    arena = Arena(aligned_block(plan_workspace_bytes(plan, n, k, n, c.itemsize, *asked)), c.dtype)
    arena.memory[:] = 255
    execute_plan(plan, a, b, c, BACKEND, arena, *asked)


@pytest.mark.quick_cases()
@pytest.mark.parametrize("text", PLANS)
@pytest.mark.parametrize(
    ("dtype", "order"), [("float64", "C"), ("float32", "F"), ("complex128", "F"), ("complex64", "C")]
)
def test_halves_on_arrays(text: str, dtype: str, order: str) -> None:
    """Exactly what is asked, whatever is in the workspace; with fill lower nothing else is written."""
    plan, rng = Plan.parse(text if text == "vendor" else f"{text} > vendor"), np.random.default_rng(2)
    fills: tuple[Fill, ...] = ("full", "lower")
    for (n, k), (alpha, beta), fill in product(SIZES, UPDATES, fills):
        x = integers(rng, n, k, dtype)
        old = integers(rng, n, n, dtype)
        old = old + old.conj().T
        c = old.copy() if beta else np.full((n, n), np.nan, dtype)
        before = c.copy()
        computed(plan, x, order, c, GemmParams(alpha, beta, "gram", fill))
        wanted = (alpha * (x @ x.conj().T) + (beta * old if beta else 0)).astype(dtype)
        below = np.tri(n, dtype=bool)
        np.testing.assert_array_equal(c[below], wanted[below], f"{n} x {k}, {alpha}, {beta}, {fill}")
        np.testing.assert_array_equal(c[~below], (wanted if fill == "full" else before)[~below])


def test_a_symmetric_product_reads_both_factors() -> None:
    """Of two matrices whose product is its own adjoint, though neither is the other's."""
    rng = np.random.default_rng(4)
    x = integers(rng, 12, 12, "float64")
    a, b = x + x.T, (x + x.T) @ (x + x.T)
    for text in ("vendor", "gram^2 > strassen > vendor"):
        plan, c = Plan.parse(text), np.full((12, 12), np.nan)
        needed = plan_workspace_bytes(plan, 12, 12, 12, 8, 1, 0, "symmetric")
        execute_plan(plan, a, b, c, BACKEND, Arena(aligned_block(needed), c.dtype), 1, 0, "symmetric", "full")
        np.testing.assert_array_equal(c, a @ b)


def test_blocks_on_the_diagonal_by_a_leaf_of_their_own() -> None:
    """And the types that it is for are the plan's."""
    plan = Plan.parse("gram^2.tile > strassen > vendor")
    steps = lower_level(plan, 64, 32, 64, *LOOSE)
    assert steps is not None
    found = {p.plan for p in steps.products if p.params.op == "gram"}
    assert found == {Plan(leaf="tile")}
    assert {str(p.plan) for p in steps.products if p.params.op == "product"} == {"strassen > vendor", "vendor"}
    assert plan.accepts_type("bfloat16") and not plan.accepts_type("complex64")
    inner = lower_level(Plan.parse("gram.tile > gram > vendor"), 64, 32, 64, *LOOSE)
    assert inner is not None and {str(p.plan) for p in inner.products if p.params.op == "gram"} == {"gram > vendor"}


@pytest.mark.parametrize("text", ["gram.vendor.outer > vendor", "gram^2.vendor.outer > strassen > vendor"])
@pytest.mark.parametrize("op", ["gram", "symmetric"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_blocks_on_the_diagonal_read_a_copy_that_lies_row_by_row(
    text: str, op: Operation, order: Literal["C", "F"]
) -> None:
    """But no copy is made of a B that lies so; what is multiplied is the same."""
    rng = np.random.default_rng(5)
    plan, x = Plan.parse(text), np.asarray(integers(rng, 13, 7, "float64"), order=order)
    made: list[str] = []

    class Noting(NumpyBackend):
        def compute_sums(self, step: Sum, reads: list[Matrix], writes: list[Matrix]) -> None:
            made.append(step.label)
            super().compute_sums(step, reads, writes)

    c, needed = np.full((13, 13), np.nan), plan_workspace_bytes(plan, 13, 7, 13, 8, 1, 0, op, "full")
    arena = Arena(aligned_block(needed), c.dtype)
    execute_plan(plan, x, x.T, c, Noting(ThreadGroup(1)), arena, 1, 0, op, "full")
    np.testing.assert_array_equal(c, x @ x.T)
    assert ("turn B" in made) == (order == "C")
    assert "row-major copy" in plan_table(plan, 13, 7, 13, 8, GemmParams(op=op))
    assert not plan.accepts_type("complex128") and error_bound(plan, 13, 7, 13, op) > 0


def test_a_cpu_runs_no_leaf_of_a_gpu() -> None:
    with pytest.raises(PlanError, match="tile is a product on a GPU"):
        check_plan_is_runnable(Plan.parse("gram.tile > vendor"), Problem(64, 32, 64, op="gram"), on_cpu=True)


@pytest.mark.parametrize("text", ["gram > vendor", "gram^2 > strassen > vendor", "sforza(2) > vendor"])
def test_readers_of_a_product_of_nothing(text: str) -> None:
    plan, size = Plan.parse(text), (0, 5, 0)
    assert plan_table(plan, *size, 8, FULL).endswith("workspace 0 B")
    assert plan_workspace_bytes(plan, *size, 8, *FULL) == cost(plan, *size, 8, op="gram").workspace == 0
    assert estimated_work(plan, Problem(*size, op="gram")).smallest_leaf_side == 0
