"""A plugin of pytest that runs other projects' tests with fmm's products, by a plan wherever it can run.

`FMM_TEST_PLAN="winograd > vendor" python -m pytest -p tests.support.through_fmm <their tests>`. It replaces
the functions of NumPy and (if installed) CuPy before the tests are imported, and `operator.matmul` for their
arrays. Products that the plan cannot compute, and all products if the variable is not set, are computed by
fmm.matmul without a plan. At the end the plugin prints how many products the plan computed, and why it did
not compute the others.
"""

from __future__ import annotations

import importlib.util
import operator
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.kernels.plans.plan import PlanError
from fmm.runtime import run_host
from tests.support import count_outcomes

PLAN = os.environ.get("FMM_TEST_PLAN")
CANNOT, REJECTED, OVERFLOW = "cannot run here: ", "the library rejects the call", "the numbers may overflow"

runs: Counter[str] = Counter()  # the number of all prepared calls, and of those that a plan computed
left: Counter[str] = Counter()


class ProductByFmm:
    """fmm.matmul by the plan. It is not a function, since a class of tests would make a function its
    method."""

    __name__ = "matmul"

    def __call__(self, *arrays: Any, **options: Any) -> Any:
        if PLAN is None:
            return fmm.matmul(*arrays, **options)
        before = runs["all"]
        try:
            found = fmm.matmul(*arrays, plan=PLAN, **options)
        except PlanError as error:
            left[str(error).partition(CANNOT)[2]] += 1
            return fmm.matmul(*arrays, **options)
        except Exception:
            left[REJECTED] += 1
            raise
        if runs["all"] == before:
            left[fmm.explain(*arrays, plan=PLAN, **options).reason] += 1
        return found


THROUGH = ProductByFmm()


class OperatorByFmm:
    """Replaces operator.matmul for two plain arrays of one library."""

    def __init__(self, array_types: tuple[type, ...]) -> None:
        self.array_types, self.own = array_types, operator.matmul

    def __call__(self, a: Any, b: Any) -> Any:
        return THROUGH(a, b) if type(a) is type(b) and type(a) in self.array_types else self.own(a, b)


def count_runs(module: Any) -> None:
    """Let a module that runs prepared calls count those that a plan computed."""
    run_call: Callable[..., Any] = module.run_call

    def counting(*call: Any) -> Any:
        found = run_call(*call)
        runs["all"] += 1
        if found is None:
            left[OVERFLOW] += 1
        else:
            runs["by plan"] += 1
        return found

    module.run_call = counting


def install() -> None:
    types: tuple[type, ...] = (np.ndarray,)
    vars(np)["matmul"] = vars(np.linalg)["matmul"] = THROUGH
    count_runs(run_host)
    if importlib.util.find_spec("cupy"):
        import cupy

        from fmm.runtime import run_device

        types = (*types, cupy.ndarray)
        vars(cupy)["matmul"] = THROUGH
        count_runs(run_device)
    vars(operator)["matmul"] = OperatorByFmm(types)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"products by the plan {PLAN}: {runs['by plan']}")
    for reason, count in left.most_common():
        terminalreporter.write_line(f"{count} others: {reason}")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    count_outcomes.more.update(by_plan=runs["by plan"], left=left)


install()
