"""The error contract: no growth exceeds the promise, on small products and in all samples; budgets are met."""

from __future__ import annotations

import pytest

from benchmarks.papers import error_budget
from benchmarks.papers.error_growth import HOST_TYPES, growth_rows, host_plans, plans_on, promised_growth
from benchmarks.papers.experiment import Results, read_results
from fmm.kernels.algorithms.catalogue import scheme_names
from fmm.kernels.algorithms.step_table import step_table_names
from fmm.kernels.plans.plan import VENDOR, Plan
from tests.support.laboratory import BENCH, sample_files

FAMILIES_SHOWN = ("normal", "uniform [0,1]", "Kaporin", "graded")
PLANS = tuple(
    map(Plan.parse, ("strassen > vendor", "winograd > winograd > vendor", "dps.sequential > vendor", "hasa > vendor"))
)


THREE_PRODUCTS = Plan.parse("3m > strassen > vendor")


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_the_contract_holds_on_small_products(dtype: str) -> None:
    plans = (*PLANS, *((THREE_PRODUCTS,) if dtype[0] == "c" else ()))
    rows = growth_rows(BENCH, 64, [dtype], (1,), plans, FAMILIES_SHOWN)
    found = {tuple(row["key"]): row for row in rows}
    assert len(found) == 4 * len(plans)
    for row in found.values():
        assert row["growth"][0] <= promised_growth(row["on data"]) <= 12 * row["growth"][0]


def test_the_contract_holds_in_all_samples() -> None:
    """The promise is never below the measured median, and at most ten times as large."""
    paths = sample_files("error-growth")
    assert paths
    for results in map(read_results, paths):
        measured, on_data = results.numbers("growth"), results.numbers("on data")
        assert len(on_data) > 1000
        for key, x in on_data.items():
            assert measured[key] <= promised_growth(x) <= 10 * measured[key], key


# Factors by which measured growth exceeds the growth expected without the data, as the figure states.
EXCESS = {"normal": 1.03, "uniform [0,1]": 1.03, "uniform [-1,1]": 1.03, "low rank": 1.03, "graded": 1.6, "Kaporin": 11}


def test_what_the_contracts_figure_says() -> None:
    for results in map(read_results, sample_files("error-growth")):
        measured, expected, on_data = (results.numbers(x) for x in ("growth", "expected", "on data"))
        excess: dict[str, float] = {}
        for key, x in measured.items():
            excess[str(key[2])] = max(excess.get(str(key[2]), 0), x / expected[key])
        assert set(excess) == set(EXCESS) and all(x <= EXCESS[family] for family, x in excess.items()), excess
        assert max(promised_growth(x) / measured[key] for key, x in on_data.items()) < 8
        assert {key[1] for key in measured} == set(HOST_TYPES)


def test_all_budgets_were_kept_in_all_samples() -> None:
    paths = sample_files("error-budget")
    assert paths
    for results in map(read_results, paths):
        assert len(results.rows) == error_budget.PROBLEM_COUNT and not error_budget.broken_budgets(results)


def test_all_schemes_and_tables_are_in_the_experiment() -> None:
    names = {plan.split(" > ")[0].partition(".")[0] for plan in host_plans(520)}
    assert names == {*scheme_names(), *step_table_names()}
    assert "strassen > strassen > strassen > strassen > vendor" in host_plans(512)
    assert "laderman > laderman > laderman > vendor" in host_plans(520)
    for dtype in HOST_TYPES:
        assert all(plan.accepts_type(dtype) for plan in plans_on(True, dtype, 256))
    assert Plan.parse("3m > vendor") in plans_on(True, "complex64", 256)


def test_budgets_are_kept() -> None:
    rows = {tuple(row["key"]): row for row in error_budget.budget_rows(BENCH, 200, 12)}
    assert len(rows) == 12 and {key[1] for key in rows} == {"product", "gram"}
    assert not error_budget.broken_budgets(Results((), 1.0, rows))
    assert any(str(key[-1]) != str(VENDOR) for key in rows)
