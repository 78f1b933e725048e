"""Plugin of pytest, `-p benchmarks.forced_plan`: every product that can runs the plan in FMM_FORCED_PLAN.

No product is left to the library because it is small or would not be faster. At the end, a line prints the number of
decided products.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from fmm import dispatch
from fmm.integrations import cupy_functions, numpy_loops
from fmm.integrations.on_import import call_after_import
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import check_product_count, plan_workspace_bytes
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime import gram, prepare
from fmm.runtime.decisions import early_declines
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.devices import Device

VARIABLE = "FMM_FORCED_PLAN"
decided = 0


def force_plan(text: str) -> None:
    """Let every later product of this process run this plan, if it can."""
    plan = Plan.parse(text)

    def decide(problem: Problem, limits: Limits, device: Device) -> Decision:
        global decided
        try:
            check_product_count(plan, *problem.size)
        except PlanError as error:
            return Decision(VENDOR, problem, str(error))
        if plan_workspace_bytes(plan, *problem.size, problem.itemsize) > limits.workspace:
            return Decision(VENDOR, problem, "there is no room")
        decided += 1
        return Decision(plan, problem, f"{VARIABLE} is set")

    changes: list[tuple[Any, str, Any]] = [
        (prepare, "decide_plan", decide),
        *(
            (early_declines, name, 0)
            for name in ("SMALL_MULTIPLY_ADDS", "SMALL_MULTIPLY_ADDS_16_BIT", "SMALL_MULTIPLY_ADDS_UNALIGNED")
        ),
        (early_declines, "MIN_PLAN_SIDE", 2),
        (dispatch, "SMALL_BYTES_PRODUCT", 0),
        (early_declines, "MIN_PLAN_ENTRIES", 0),
        (numpy_loops, "FIRST_PRODUCT_WORK", 0),
        (gram, "SMALL_GRAM_MAX_ROWS", 0),
        (gram, "THIN_GRAM_MAX_ROWS", 0),
        (cupy_functions, "is_small_on_device", never_small),
    ]
    if "torch" in sys.modules:
        force_torch()
    else:
        call_after_import("torch", force_torch)
    for owner, name, value in changes:
        setattr(owner, name, value)
    numpy_loops.set_loop_size_limits()


def never_small(*sizes: Any) -> bool:
    return False


def force_torch(_: str = "") -> None:
    """Remove the limits of size in the hooks of torch, once torch is loaded."""
    folder = "fmm.integrations"
    hook = import_module(f"{folder}.torch_hook").load_compiled_hook()
    if hook is not None:
        hook.set_min_multiply_adds(0, 0, 0)
    answers: Any = import_module(f"{folder}.torch_answers")
    answers.small_enough = never_small
    dispatcher = import_module(f"{folder}.torch_install")
    for name in ("SMALL_MULTIPLY_ADDS", "SMALL_MULTIPLY_ADDS_16_BIT", "SMALL_MULTIPLY_ADDS_UNALIGNED"):
        setattr(dispatcher, name, 0)


def pytest_sessionstart(session: Any) -> None:
    if text := os.environ.get(VARIABLE, ""):
        force_plan(text)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"fmm decided {decided} kinds of products to run {os.environ.get(VARIABLE)}")
