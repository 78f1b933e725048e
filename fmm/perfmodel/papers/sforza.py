"""Compare the printed and computed speedups of Sforza, "A Strassen-based CUDA Implementation of A^t A ...".

Algorithm 1 computes the lower triangle of C = A^t A. Four products of one level of Algorithm 1 are again A^t A and
recurse; two products recurse by Strassen's algorithm. The plan level `sforza` runs the steps of Algorithm 1; the
multiplications are counted from these steps. This module has the largest values of Figures 1, 2 and 4, as printed in
section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Final

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.cost import cost
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.perfmodel.papers.table import Cell, PaperTable
from fmm.perfmodel.predict import quick_prediction
from fmm.problem import Problem

# ---- Algorithm 1: the condition that stops the recursion

EXAMPLE_CUTOFF: Final = 512
EXAMPLE_SHAPES: Final = ((256, 256), (512, 512), (1024, 1024), (2048, 2048), (1024, 8192), (512, 8192), (8192, 8192))


def algorithm_1_cutoff_sum(m: int, n: int, cutoff: int) -> float:
    """Return mm + nn of Algorithm 1 for an m x n matrix A, with mm = CUTOFF / (m/2) and nn = CUTOFF / (n/2)."""
    return cutoff / (m // 2) + cutoff / (n // 2)


def does_recursion_stop(m: int, n: int, cutoff: int) -> bool:
    """Return True if Algorithm 1 stops at m x n by the corrected condition algorithm_1_cutoff_sum >= 2."""
    return algorithm_1_cutoff_sum(m, n, cutoff) >= 2


def does_recursion_stop_as_printed(m: int, n: int, cutoff: int) -> bool:
    """Return True if Algorithm 1 stops at m x n by the printed condition algorithm_1_cutoff_sum <= 2."""
    return algorithm_1_cutoff_sum(m, n, cutoff) <= 2


def sforza_stop() -> PaperTable:
    """Return a table of shapes: does Algorithm 1 stop by the printed condition, and by the corrected one?"""
    columns = ("m", "n", "mm + nn", "stops as printed", "stops as meant")
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            *(m, n, algorithm_1_cutoff_sum(m, n, EXAMPLE_CUTOFF)),
            does_recursion_stop_as_printed(m, n, EXAMPLE_CUTOFF),
            does_recursion_stop(m, n, EXAMPLE_CUTOFF),
        )
        for m, n in EXAMPLE_SHAPES
    )
    notes = (
        "Algorithm 1 prints stop <- (mm + nn) <= 2 with mm = CUTOFF/m2 and nn = CUTOFF/n2. mm and nn grow as the "
        "blocks shrink: by the printed condition, the largest matrices are never divided, and small matrices are "
        "divided down to the last level. The correct condition is >= 2.",
    )
    return PaperTable("sforza-stop", f"Algorithm 1's cutoff criteria, CUTOFF = {EXAMPLE_CUTOFF}", columns, rows, notes)


TABLE_FUNCTIONS: Final = (sforza_stop,)


# ---- section 3: speedups over cuBLAS's gemm on a GTX 1050, printed and computed

CUTOFF_ROWS: Final = {"float32": 1536, "float64": 256}  # the paper's CUTOFF in rows by element type (section 2)
MIN_CUTOFF: Final = 32  # smallest cutoff in rows that a scale factor may give
FIGURE_2_SIDE: Final = 10_000  # number of rows and columns of Figure 2's matrices
ONE_LEVEL_SPEEDUPS: Final = {"float32": 1.31, "float64": 1.33}  # largest printed speedups of one level, by element type
# largest printed speedups of the recursion, by element type
RECURSIVE_SPEEDUPS: Final = {"float32": 1.65, "float64": 2.18}
# number of levels with the largest speedup in Figure 2, by element type
BEST_DEPTHS: Final = {"float32": 3, "float64": 4}
COMPARED_SIDES: Final = (2000, 2001, 4000, 4001, 8000, 8001, FIGURE_2_SIDE, FIGURE_2_SIDE + 1)
COMPARED_DEPTHS: Final = (1, 2, 3, 4)


def sforza_plan(dtype: str, depth: int, scale: float = 1.0) -> Plan:
    """Return the plan of Algorithm 1 with a maximum depth and the type's CUTOFF times `scale`; 0 means no cutoff."""
    cutoff = max(int(CUTOFF_ROWS[dtype] * scale), MIN_CUTOFF) if scale else 0
    return Plan.parse(f"sforza({depth}{f',{cutoff}' if cutoff else ''}) > vendor")


def multiplication_share(plan: Plan, n: int) -> float:
    """Return the multiplications of a plan for an n x n matrix as a share of a classical product's n^3."""
    return cost(plan, n, n, n, op="gram").flops / (2 * n**3)


@cache
def speedup_limit(plan: Plan, dtype: str, n: int) -> float:
    """Return n^3 divided by the plan's multiplications: the speedup over gemm if only multiplications took time."""
    return 1 / multiplication_share(plan, n)


@cache
def predicted_speedup(device: str, baseline: str, plan: Plan, dtype: str, n: int) -> float:
    """Return the predicted speedup of the plan over the vendor's `gemm` or `syrk` on a device with a datasheet.

    The plan and syrk compute the lower triangle of an n x n result; gemm computes the whole result.
    """
    triangle, whole = Problem(n, n, n, dtype, op="gram", fill="lower"), Problem(n, n, n, dtype)
    calibration = datasheet_calibration(device)
    vendor = quick_prediction(VENDOR, triangle if baseline == "syrk" else whole, calibration)
    return vendor.predicted_seconds / quick_prediction(plan, triangle, calibration).predicted_seconds


# The computed columns of the tables for Figures 1, 2 and 4: name -> function of plan, element type and n.
COMPUTED_SPEEDUPS: Final[Mapping[str, Callable[[Plan, str, int], float]]] = {
    "at most": speedup_limit,
    "GTX 1050": partial(predicted_speedup, "GTX 1050", "gemm"),
    "H200": partial(predicted_speedup, "H200", "gemm"),
    "H200, over syrk": partial(predicted_speedup, "H200", "syrk"),
}
