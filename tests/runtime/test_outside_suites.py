"""Other projects' own tests of matmul, with every product that a plan can run computed by one.

NumPy's come with NumPy. Those of the array API standard are read from a checkout of data-apis/array-api-tests, whose
folder FMM_ARRAY_API_TESTS names; nothing of either is kept here. CuPy's run in `make gpu-check`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.outside_suites import Report, run_suite

pytestmark = pytest.mark.slow

PLANS = (
    "winograd > vendor",  # stacked, with copies of the fringe
    "li-fig3 > strassen > vendor",  # two levels, the outer one of which uses C as scratch
    "laderman.peel > vendor",  # thirds, and products of strips
    "digits",  # integers and bool
)

NUMPY = "numpy._core.tests.test_multiarray"
# Without TestMatmulInplace: `a @= b` calls no function that can be replaced.
NUMPYS = "(TestMatmul and not TestMatmulInplace) or test_matmul_axes"
ARRAY_API = tuple(f"array_api_tests/test_{name}.py" for name in ("linalg", "signatures", "has_names"))

# Tests that fail with a plan and pass without, and why: (suite, plan, test). Both read whole numbers, or numbers of
# which they ask for shapes and types alone, so that no rounding shows and none differs.
DIFFERENCES: Mapping[tuple[str, str, str], str] = {}

# What the plan does not compute although it is given, by what fmm says of it, and why that is as it should be.
NOT_BY_PLAN: Mapping[str, str] = {
    r"\S+ products have no plan": "objects, float16 and long double: BLAS has no such product",
    r"vendor multiplies [\w, ]+ there, not (u?int\d+; [\w> .-]*digits does|bool)": "integers have another leaf",
    r"digits multiplies [\w, ]+ there, not (float|complex)\d+; vendor does": "floating point numbers have other leaves",
    r"there is nothing to multiply": "an empty product is zeros, or has no entry at all",
    r"the library rejects the call": "shapes that do not match, and an out that cannot hold the result: NumPy's error",
    r"the numbers may overflow": "entries near the largest number, for which the vendor multiplies (docs/limits.md)",
    r"axes was passed": "an option that only NumPy knows",
    r"operands are \w+ and \w+, not plain arrays": "subclasses and numbers are NumPy's",
    r"NumPy multiplies: there is nothing to multiply": "the same with a plan, which is no error",
    r"NumPy multiplies: a cast to \S+ can lose numbers, of which NumPy warns": "NumPy warns, so it must compute",
}


def check(suite: str, plan: str | None, report: Report) -> None:
    """Nothing differs, and nothing was left to NumPy, but for what the tables explain."""
    expected = {test for of, by, test in DIFFERENCES if (of, by) == (suite, plan)}
    assert set(report.failed) == expected, report.output
    unexplained = [
        reason for reason in report.left or () if not any(re.fullmatch(known, reason) for known in NOT_BY_PLAN)
    ]
    assert not unexplained


@pytest.mark.parametrize("plan", [None, *PLANS])
def test_numpys(plan: str | None, tmp_path: Path) -> None:
    """TestMatmul and TestMatmulOperator: numpy.matmul and, for plain arrays, operator.matmul are fmm's."""
    arguments = ("-c", os.devnull, "--rootdir", str(tmp_path), "--pyargs", NUMPY, "-k", NUMPYS)
    report = run_suite(arguments, tmp_path, plan=plan)
    check("numpy", plan, report)
    assert report.passed >= 60
    # (Products of `long long`, a type beside int64, are NumPy's own.)
    assert report.by_plan >= {None: 0, "digits": 370}.get(plan, 400)


@pytest.mark.parametrize("plan", [None, *PLANS])
def test_the_array_api_standards(plan: str | None, tmp_path: Path) -> None:
    """Shapes, types and errors. Most of the shapes that they draw do not match, or are empty: few products are made."""
    folder = os.environ.get("FMM_ARRAY_API_TESTS", "")
    if not (Path(folder) / ARRAY_API[0]).is_file():
        pytest.skip("FMM_ARRAY_API_TESTS names no checkout of array-api-tests (test_array_standard.py has a table)")
    files = [str(Path(folder).resolve() / name) for name in ARRAY_API]
    options = ("-k", "matmul", "--max-examples", "1000", "--disable-deadline")
    report = run_suite((*files, *options), tmp_path, plan=plan, ARRAY_API_TESTS_MODULE="numpy")
    check("array-api-tests", plan, report)
    assert report.passed >= 4


def test_the_tables_are_of_what_is_run() -> None:
    assert all(suite in ("numpy", "array-api-tests") and plan in PLANS for suite, plan, _ in DIFFERENCES)
    assert all(NOT_BY_PLAN.values()) and all(DIFFERENCES.values())
