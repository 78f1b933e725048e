"""Is a caller's budget of error kept? Random problems, each with a limit, against the vendor's own error.

fmm.matmul(..., max_error_growth=) is asked as a user asks it. Where no plan pays, which is so for small products, the
vendor answers and nothing is shown; there, and in every other problem anyhow, one of the deepest candidates that the
limit admits is run by its name.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import fmm
from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.choose import Limits, candidates
from fmm.perfmodel.stability import expected_growth
from fmm.tuner.laboratory.bench import Bench
from fmm.tuner.laboratory.figure import Experiment, Figure, Numbers, Results, Row
from fmm.tuner.laboratory.growth import error_of
from fmm.tuner.laboratory.matrices import Array
from fmm.tuner.laboratory.precise import reference

SIDE: Final = 8192
PROBLEMS: Final = 200
LARGEST: Final = 12.0  # of the budgets, the smallest of which is 1
TYPES: Final = ("float32", "float64", "complex64", "complex128")
DATA: Final = ("normal", "uniform [-1,1]", "uniform [0,1]")
HUGE: Final = 1 << 50


def deepest_within(budget: float, size: tuple[int, int, int], dtype: str, on_host: bool, pick: random.Random) -> Plan:
    """One of the candidates that the budget admits and that leave leaf products of 32 and more; the vendor if none."""
    limits = Limits(HUGE, budget)
    found = [
        plan
        for plan in candidates(not on_host)
        if plan.considered_for(dtype)
        and limits.allow(plan, expected_growth(plan, dtype, on_host))
        and _large(plan, size)
    ]
    found.sort(key=lambda plan: expected_growth(plan, dtype, on_host))
    return found[-1 - pick.randrange(min(3, len(found)))] if found else VENDOR


def _large(plan: Plan, size: tuple[int, int, int]) -> bool:
    return bool(min(size) >= 32 * 2**plan.depth)


def _drawn(bench: Bench, data: str, dtype: str, shape: tuple[int, int], seed: int) -> Array:
    rng = bench.generator(seed)

    def real() -> Array:
        if data == DATA[0]:
            return rng.standard_normal(shape)
        return rng.random(shape) if data == DATA[2] else 2 * rng.random(shape) - 1

    found = real() + 1j * real() if DTYPES[dtype].is_complex else real()
    return bench.stored(found, dtype)


class Asked(NamedTuple):
    """A random problem, what fmm chooses for it, and what is run."""

    number: int
    size: tuple[int, int, int]
    dtype: str
    data: str
    budget: float
    chosen: Plan
    plan: Plan


def asked_problems(bench: Bench, side: int, count: int) -> list[Asked]:
    """The same ones every time."""
    pick = random.Random(21)
    found = []
    for number in range(count):
        m, k, n = (pick.randint(max(side // 8, 8), side) for _ in range(3))
        dtype, data, budget = pick.choice(TYPES), pick.choice(DATA), round(pick.uniform(1, LARGEST), 1)
        device = "cpu" if bench.on_host else 0
        chosen = fmm.plan(m, k, n, dtype=dtype, device=device, max_error_growth=budget).plan
        asked = number % 2 == 0 and chosen != VENDOR
        plan = chosen if asked else deepest_within(budget, (m, k, n), dtype, bench.on_host, pick)
        found.append(Asked(number, (m, k, n), dtype, data, budget, chosen, plan))
    return found


def budget_rows(bench: Bench, side: int, count: int) -> Iterator[Row]:
    """A row for each problem: what was asked, what ran, and the error over the vendor's."""
    problems = asked_problems(bench, side, count)
    for dtype in TYPES:
        plans = list(dict.fromkeys(x.plan for x in problems if x.dtype == dtype and x.plan != x.chosen))
        bench.prepare(plans, [(side, side, side)], dtype)
    for x in problems:
        (m, k, n), dtype = x.size, x.dtype
        a = _drawn(bench, x.data, dtype, (m, k), 2 * x.number)
        b = _drawn(bench, x.data, dtype, (k, n), 2 * x.number + 1)
        left, right = (bench.widened(y, dtype) for y in (a, b))
        exact = reference(bench.xp, left, right, DTYPES[dtype].unit_roundoff)
        try:
            by_name = x.plan != x.chosen
            own = bench.multiply(x.plan, a, b) if by_name else fmm.matmul(a, b, max_error_growth=x.budget)
        except PlanError:
            continue
        errors = [error_of(bench, exact, c, dtype) for c in (own, bench.multiply(VENDOR, a, b))]
        growth = errors[0] / errors[1]
        key = [x.number, f"{m} x {k} x {n}", dtype, x.data, x.budget, str(x.plan)]
        yield {"key": key, "growth": growth, "share": growth / x.budget, "chosen": not by_name}


def _measure(bench: Bench, scale: float) -> Iterator[Row]:
    side = max(int(SIDE * scale), 64)
    yield from budget_rows(bench, min(side, 1024) if bench.on_host else side, PROBLEMS)


EXPERIMENT: Final = Experiment("error-budget", ("number", "size", "type", "data", "budget", "plan"), SIDE, _measure)


def _share(results: Results) -> Numbers:
    return results.numbers("share")


def _growth(results: Results) -> Numbers:
    return results.numbers("growth")


def draw_shares(axes: Any, results: Results) -> None:
    """The problems by the share of the budget that their error takes."""
    shares = sorted(_share(results).values())
    axes.plot(range(1, len(shares) + 1), shares, "o", ms=3, color="#0072B2")
    axes.axhline(1, color="#222222", lw=0.8)
    axes.set(xlabel="problems", ylabel="error as a share of the budget", ylim=(0, None))


FIGURES: Final[tuple[Figure, ...]] = (
    Figure(
        "error-budget",
        "max_error_growth on random problems: the error over the vendor's, and as a share of the budget",
        EXPERIMENT,
        {"measured": _growth, "share of the budget": _share},
        "The budget is kept in all of them: no share is above 1.",
        x="number",
        unit="error over the vendor's",
        draw=draw_shares,
    ),
)


def broken(results: Results) -> list[Any]:
    """The problems whose error was above the budget, beyond the noise of comparing two roundings."""
    return [key for key, share in _share(results).items() if share > 1 + NOISE]


NOISE: Final = 0.02
