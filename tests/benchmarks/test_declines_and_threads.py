"""The benchmarks of declined calls and of many threads, on a fake clock, and their tables."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import declines, threads
from benchmarks.declines import Case, ComparedCalls, all_cases, decline_row, measure_case
from benchmarks.harness import recorded_failure
from benchmarks.tables import products
from fmm.kernels.plans.plan import Plan

MATMUL = Case("fmm.matmul", "numpy", "float64", 64)


class Decided:
    """A decision for a plan."""

    def __init__(self, plan: str) -> None:
        self.plan = Plan.parse(plan)


def fake_pair(extra: float, plan: str = "vendor") -> tuple[ComparedCalls, Any]:
    """Return two calls, and a clock on which the library's takes 3 us and fmm's `extra` us more."""
    vendor, own = (lambda: "vendor"), (lambda: "fmm")
    seconds = {"vendor": 3e-6, "fmm": (3 + extra) * 1e-6}
    return ComparedCalls(vendor, own, lambda: Decided(plan)), lambda call, repeats: seconds[call()]


@pytest.mark.parametrize(("extra", "within"), [(0.5, True), (1.9, True), (2.5, False), (-1.0, True)])
def test_the_extra_time_of_a_declined_call_is_compared_with_the_budget(extra: float, within: bool) -> None:
    pair, clock = fake_pair(extra)
    row = measure_case(MATMUL, 5, clock, lambda case: pair)
    assert row["vendor_microseconds"] == pytest.approx(3.0)
    assert row["extra_microseconds"] == pytest.approx(extra)
    assert row["within_budget"] is within and len(row["samples"]["fmm"]) == 5


def test_the_median_is_of_the_differences_of_each_round() -> None:
    row = decline_row(MATMUL, {"vendor": [1.0, 10.0, 100.0], "fmm": [2.0, 11.0, 101.0]})
    assert row["extra_microseconds"] == 1.0, "drift meets both calls"


def test_a_call_that_runs_a_plan_is_named_and_has_no_budget() -> None:
    pair, clock = fake_pair(9.0, plan="winograd > vendor")
    row = recorded_failure(lambda case: measure_case(case, 3, clock, lambda _: pair), asdict)(MATMUL)
    assert row["plan"] == "winograd > vendor" and row["within_budget"]
    assert declines.text_line(row).endswith("+9.00 us  by winograd > vendor")


@pytest.mark.parametrize("function", ["matmul", "operator @"])
def test_a_plan_under_the_hook_is_named_as_that_of_the_same_call(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fmm.explain", lambda a, b: Decided("winograd > vendor"))
    row = measure_case(Case(function, "numpy", "float64", 8, hooked=True), 2, lambda call, repeats: 1e-6)
    assert row["plan"] == "winograd > vendor" and row["within_budget"]


def test_every_function_library_type_and_size_is_a_case() -> None:
    cases = all_cases(["numpy", "torch-cpu"], (8, 64))
    assert len(set(cases)) == len(cases) == (4 + 2) * 4 * 2 + (4 + 4) * 4 * 2
    assert {case.function for case in cases if case.hooked} == {"matmul", "operator @", "addmm", "bmm"}


@pytest.mark.parametrize("function", declines.CALLS_OF_FUNCTION)
@pytest.mark.parametrize("dtype", declines.TYPES["numpy"])
def test_both_calls_of_a_case_have_the_same_result(function: str, dtype: str) -> None:
    pair = declines.CALLS_OF_FUNCTION[function](Case(function, "numpy", dtype, 8))
    vendor: Any = pair.vendor()
    assert abs(vendor - pair.own()).max() <= 1e-3 * abs(vendor).max()


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True)
    environment = {"processor": "a processor", "blas_threads": 2, "commit": "abc"}
    path.write_text(json.dumps({"environment": environment, "rows": rows}), encoding="utf-8")


def test_the_table_of_declines_has_the_median_and_the_largest_extra_time(tmp_path: Path) -> None:
    rows = [
        {**decline_row(MATMUL, {"vendor": [1.0], "fmm": [1.0 + extra]}), "failure": ""} for extra in (0.5, 1.0, 2.5)
    ]
    write_rows(tmp_path / "machine" / "declines.json", [*rows, {"failure": "not declined"}])
    _, _, line, *_ = products.declined_calls(tmp_path)
    assert line == "| a processor, 2 threads | numpy | fmm.matmul | 3 | +1.00 | +2.50 | 1 |"
    assert len(products.DECLINES.csv_text(tmp_path).splitlines()) == 4
    assert list(products.declined_calls(tmp_path / "nothing")) == ["No results yet."]


# Threads


def test_the_calls_of_all_threads_run_at_once() -> None:
    both = threading.Barrier(3, timeout=60)
    with threads.concurrent_call([both.wait] * 3) as at_once:
        at_once()
        at_once()


def test_an_error_of_a_thread_is_raised() -> None:
    def fail() -> None:
        raise ValueError("wrong")

    with threads.concurrent_call([fail, lambda: None]) as at_once, pytest.raises(ValueError, match="wrong"):
        at_once()


@pytest.mark.parametrize(("at_once", "within"), [(1.05, True), (1.5, False)])
def test_the_ratio_of_threads_is_compared_with_the_goal(at_once: float, within: bool, tmp_path: Path) -> None:
    times = iter([1.0, at_once])
    case = threads.Case(4, "winograd > vendor", "float64", 16)
    row = threads.measure_case(case, 1, lambda call, repeats: (call(), next(times))[1])
    ratio = row["ratio"]
    assert ratio in (pytest.approx(at_once), pytest.approx(1 / at_once)), "the rounds are shuffled"
    row = threads.thread_row(case, {"one by one": [1.0, 2.0], "at once": [at_once, 2 * at_once]})
    assert row["ratio"] == pytest.approx(at_once) and row["within_goal"] is within
    write_rows(tmp_path / "machine" / "threads.json", [{**row, "failure": ""}])
    assert list(products.concurrent_products(tmp_path))[-1] == f"| winograd > vendor | float64 | 16 | {at_once:.2f} |"
    assert ("above" in threads.text_line({**row, "failure": ""})) is not within
