"""Check max_error_growth: random problems, each with a limit, against the vendor's own error.

fmm.matmul and fmm.gram get the limit as a user passes it. For small products fmm chooses the vendor under any limit,
which shows nothing. So in these problems, and in every second problem, one of the deepest candidates within the limit
runs instead.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any, Final, NamedTuple

import fmm
from benchmarks.papers.bench import Bench
from benchmarks.papers.error_growth import REFERENCE_PRODUCTS, frobenius_error, rounded_to_five_digits
from benchmarks.papers.experiment import Experiment, ExperimentPart, Numbers, Results, Row
from benchmarks.papers.figure import Figure
from benchmarks.papers.matrices import Array, reference_product
from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.candidates import device_candidate_plans
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Problem

SIDE: Final = 8192
PROBLEM_COUNT: Final = 200
LARGEST_BUDGET: Final = 12.0  # largest budget; the smallest is 1
TYPES: Final = ("float32", "float64", "complex64", "complex128")
DATA: Final = ("normal", "uniform [-1,1]", "uniform [0,1]")
UNLIMITED: Final = 1 << 50


def deepest_within(budget: float, problem: Problem, on_host: bool, pick: random.Random) -> Plan:
    """Return one of the deepest candidates within the budget with leaf products of side 32 and more.

    Return the vendor if no candidate is within the budget.
    """
    limits, dtype = Limits(UNLIMITED, budget), problem.dtype
    found = [
        plan
        for plan in device_candidate_plans(not on_host, problem.writes_triangle)
        if plan.is_candidate_for(dtype)
        and limits.allows_plan(plan, expected_error_growth(plan, dtype, on_host))
        and _has_large_leaves(plan, problem.size)
    ]
    found.sort(key=lambda plan: expected_error_growth(plan, dtype, on_host))
    return found[-1 - pick.randrange(min(3, len(found)))] if found else VENDOR


def _has_large_leaves(plan: Plan, size: tuple[int, int, int]) -> bool:
    return bool(min(size) >= 32 * 2**plan.depth)


def _random_matrix(bench: Bench, data: str, dtype: str, shape: tuple[int, int], seed: int) -> Array:
    rng = bench.generator(seed)

    def real() -> Array:
        if data == DATA[0]:
            return rng.standard_normal(shape)
        return rng.random(shape) if data == DATA[2] else 2 * rng.random(shape) - 1

    found = real() + 1j * real() if DTYPES[dtype].is_complex else real()
    return bench.to_storage_type(found, dtype)


class BudgetCase(NamedTuple):
    """A random problem, its budget, fmm's choice, and the plan that runs."""

    number: int
    problem: Problem
    data: str
    budget: float
    chosen: Plan
    plan: Plan

    @property
    def is_named(self) -> bool:
        return self.plan != self.chosen


def budget_cases(bench: Bench, side: int, count: int) -> list[BudgetCase]:
    """Return the same problems every time; every fourth is a matrix times its own adjoint."""
    found = []
    for number in range(count):
        pick = random.Random(number)  # one for each problem: a device's choice does not change the other problems
        m, k, n = (pick.randint(max(side // 8, 8), side) for _ in range(3))
        dtype, data, budget = pick.choice(TYPES), pick.choice(DATA), round(pick.uniform(1, LARGEST_BUDGET), 1)
        gram = number % 4 == 3
        problem = Problem(n, k, n, dtype, op="gram") if gram else Problem(m, k, n, dtype)
        chosen = bench.choose_plan(problem, budget)
        as_user = number % 2 == 0 and chosen != VENDOR
        plan = chosen if as_user else deepest_within(budget, problem, bench.on_host, pick)
        found.append(BudgetCase(number, problem, data, budget, chosen, plan))
    return found


def budget_row(bench: Bench, x: BudgetCase) -> Row:
    """Return the problem, the plan that ran, and its error over the vendor's."""
    (m, k, n), dtype = x.problem.size, x.problem.dtype
    key = [x.number, x.problem.op, f"{m} x {k} x {n}", dtype, x.data, x.budget, str(x.plan)]
    b = _random_matrix(bench, x.data, dtype, (k, n), 2 * x.number + 1)
    a = b.conj().T if x.problem.op == "gram" else _random_matrix(bench, x.data, dtype, (m, k), 2 * x.number)
    left, right = (bench.to_double(y, dtype) for y in (a, b))
    exact = reference_product(bench.xp, left, right, DTYPES[dtype].unit_roundoff)
    try:
        own, vendor = (frobenius_error(bench, exact, c, dtype) for c in _computed_results(bench, x, a, b))
    except PlanError as error:
        return {"key": key, "failed": str(error)}
    growth = rounded_to_five_digits(own / vendor)
    return {"key": key, "growth": growth, "share": rounded_to_five_digits(growth / x.budget), "chosen": not x.is_named}


def _computed_results(bench: Bench, x: BudgetCase, a: Array, b: Array) -> tuple[Array, Array]:
    """Return the result by the plan or with the budget, and the vendor's result."""
    options: dict[str, Any] = {"plan": x.plan} if x.is_named else {"max_error_growth": x.budget}
    if x.problem.op == "gram":
        return fmm.gram(b, **options), fmm.gram(b, plan=VENDOR)
    vendor = bench.multiply(VENDOR, a, b)
    return bench.multiply(x.plan, a, b) if x.is_named else fmm.matmul(a, b, **options), vendor


def budget_rows(bench: Bench, side: int, count: int) -> Iterator[Row]:
    """Yield a row for each problem."""
    return (budget_row(bench, x) for x in budget_cases(bench, side, count))


def _budget_parts(bench: Bench, scale: float) -> Iterator[ExperimentPart]:
    """Yield a part for each problem."""
    side = max(int(SIDE * scale), 64)
    for x in budget_cases(bench, min(side, 1024) if bench.on_host else side, PROBLEM_COUNT):
        products = ((x.plan, x.problem),) if x.is_named and x.problem.op == "product" else ()
        yield ExperimentPart(
            (x.number,), partial(_budget_part_rows, bench, x), products, 2.0 * prod(x.problem.size) * REFERENCE_PRODUCTS
        )


def _budget_part_rows(bench: Bench, x: BudgetCase) -> Iterator[Row]:
    yield budget_row(bench, x)


EXPERIMENT: Final = Experiment(
    "error-budget", ("number", "operation", "size", "type", "data", "budget", "plan"), SIDE, _budget_parts, ("number",)
)


def _budget_shares(results: Results) -> Numbers:
    return results.numbers("share")


def _error_growths(results: Results) -> Numbers:
    return results.numbers("growth")


def draw_shares(axes: Any, results: Results) -> None:
    """Draw the problems by their error as a share of the budget."""
    shares = sorted(_budget_shares(results).values())
    axes.plot(range(1, len(shares) + 1), shares, "o", ms=3, color="#0072B2")
    axes.axhline(1, color="#222222", lw=0.8)
    axes.set(xlabel="problems", ylabel="error as a share of the budget", ylim=(0, None))


FIGURES: Final[tuple[Figure, ...]] = (
    Figure(
        "error-budget",
        "max_error_growth on random problems: the error over the vendor's, and as a share of the budget",
        EXPERIMENT,
        {"measured": _error_growths, "share of the budget": _budget_shares},
        "All of them meet the budget: no share is above 1.",
        x="number",
        unit="error over the vendor's",
        draw=draw_shares,
    ),
)


def broken_budgets(results: Results) -> list[Any]:
    """Return the problems with an error beyond the budget and beyond the noise of comparing two roundings."""
    return [key for key, share in _budget_shares(results).items() if share > 1 + COMPARISON_NOISE]


COMPARISON_NOISE: Final = 0.02
