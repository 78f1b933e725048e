"""Sforza, "A Strassen-based CUDA Implementation of A^t A Matrix Multiplication": his speed-ups, printed and computed.

Of the paper's four figures the text gives the best values, which are printed here; what the algorithm saves is counted
from the steps of the level `sforza`, and what that would be worth is predicted from a device's datasheet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Final

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.cost import cost
from fmm.perfmodel.predict import quick_prediction
from fmm.perfmodel.untuned.datasheet import datasheet
from fmm.problem import Problem

CUTOFFS: Final = {"float32": 1536, "float64": 256}
LEAST: Final = 32  # of a scaled cutoff
SIDE: Final = 10_000  # of the paper's Figure 2
# The paper's text: best speed-ups over cuBLAS's gemm on a GTX 1050, of one level and of the recursion; the best depth.
ONE_LEVEL: Final = {"float32": 1.31, "float64": 1.33}
RECURSIVE: Final = {"float32": 1.65, "float64": 2.18}
BEST_DEPTH: Final = {"float32": 3, "float64": 4}
SIDES: Final = (2000, 2001, 4000, 4001, 8000, 8001, SIDE, SIDE + 1)
DEPTHS: Final = (1, 2, 3, 4)


def sforza_plan(dtype: str, depth: int, scale: float = 1.0) -> Plan:
    """AtA with this depth, which ends earlier where the blocks are small for the paper's CUTOFF, scaled; for 0 without
    one."""
    cutoff = max(int(CUTOFFS[dtype] * scale), LEAST) if scale else 0
    return Plan.parse(f"sforza({depth}{f',{cutoff}' if cutoff else ''}) > vendor")


def multiplications(plan: Plan, n: int) -> float:
    """As a share of the classical product's n^3."""
    return cost(plan, n, n, n, op="gram").flops / (2 * n**3)


@cache
def at_most(plan: Plan, dtype: str, n: int) -> float:
    """The speed-up if multiplications were all."""
    return 1 / multiplications(plan, n)


@cache
def predicted(name: str, base: str, plan: Plan, dtype: str, n: int) -> float:
    """Speed-up of the lower half by this plan over gemm, or over syrk, by the datasheet of a device."""
    half, whole = Problem(n, n, n, dtype, op="gram", fill="lower"), Problem(n, n, n, dtype)
    on = datasheet(name)
    before = quick_prediction(VENDOR, half if base == "syrk" else whole, on).seconds
    return before / quick_prediction(plan, half, on).seconds


COMPUTED: Final[Mapping[str, Callable[[Plan, str, int], float]]] = {
    "at most": at_most,
    "GTX 1050": partial(predicted, "GTX 1050", "gemm"),
    "H200": partial(predicted, "H200", "gemm"),
    "H200, over syrk": partial(predicted, "H200", "syrk"),
}
