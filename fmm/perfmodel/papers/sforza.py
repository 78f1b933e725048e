"""Sforza, "A Strassen-based CUDA Implementation of A^t A Matrix Multiplication": printed speedups and computed ones.

Algorithm 1 computes the lower triangle of C = A^t A. Four products of its base case are again A^t A and recurse; two
recurse by Strassen's algorithm. The plan level `sforza` runs these steps, from which the multiplications are counted.
The text of section 3 prints only the largest values of Figures 1, 2 and 4. They are here.
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

# ---- Algorithm 1: where the recursion stops

EXAMPLE_CUTOFF: Final = 512
EXAMPLE_SHAPES: Final = ((256, 256), (512, 512), (1024, 1024), (2048, 2048), (1024, 8192), (512, 8192), (8192, 8192))


def cutoff_sum(m: int, n: int, cutoff: int) -> float:
    """Return mm + nn of Algorithm 1 for an m x n matrix A: mm = CUTOFF / (m/2), nn = CUTOFF / (n/2)."""
    return cutoff / (m // 2) + cutoff / (n // 2)


def recursion_stops(m: int, n: int, cutoff: int) -> bool:
    """Return True if Algorithm 1, with its sign corrected, stops at an m x n matrix: mm + nn >= 2."""
    return cutoff_sum(m, n, cutoff) >= 2


def recursion_stops_as_printed(m: int, n: int, cutoff: int) -> bool:
    """Return True if Algorithm 1 stops at an m x n matrix by the printed condition: mm + nn <= 2."""
    return cutoff_sum(m, n, cutoff) <= 2


def sforza_stop() -> PaperTable:
    """Return, for some shapes, whether Algorithm 1 stops by the printed condition and by the corrected one."""
    columns = ("m", "n", "mm + nn", "stops as printed", "stops as meant")
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            *(m, n, cutoff_sum(m, n, EXAMPLE_CUTOFF)),
            recursion_stops_as_printed(m, n, EXAMPLE_CUTOFF),
            recursion_stops(m, n, EXAMPLE_CUTOFF),
        )
        for m, n in EXAMPLE_SHAPES
    )
    notes = (
        "Algorithm 1 prints stop <- (mm + nn) <= 2 with mm = CUTOFF/m2 and nn = CUTOFF/n2. These grow as the blocks "
        "shrink: as printed, the largest matrices are not divided at all, and small ones for ever. Meant is >= 2.",
    )
    return PaperTable("sforza-stop", f"Algorithm 1's cutoff criteria, CUTOFF = {EXAMPLE_CUTOFF}", columns, rows, notes)


TABLE_FUNCTIONS: Final = (sforza_stop,)


# ---- section 3: speedups over cuBLAS's gemm on a GTX 1050, printed and computed

CUTOFF_ROWS: Final = {"float32": 1536, "float64": 256}  # CUTOFF in rows, by element type (section 2)
MIN_CUTOFF: Final = 32  # rows: the least cutoff that scaling may give
FIGURE_2_SIDE: Final = 10_000  # rows and columns of Figure 2's matrices
ONE_LEVEL_SPEEDUPS: Final = {"float32": 1.31, "float64": 1.33}  # largest speedups of one level
RECURSIVE_SPEEDUPS: Final = {"float32": 1.65, "float64": 2.18}  # largest speedups of the recursion
BEST_DEPTHS: Final = {"float32": 3, "float64": 4}  # levels of recursion with the largest speedup in Figure 2
COMPARED_SIDES: Final = (2000, 2001, 4000, 4001, 8000, 8001, FIGURE_2_SIDE, FIGURE_2_SIDE + 1)
COMPARED_DEPTHS: Final = (1, 2, 3, 4)


def sforza_plan(dtype: str, depth: int, scale: float = 1.0) -> Plan:
    """Return the plan of Algorithm 1 with this maximum depth and the type's CUTOFF times `scale`; 0 means no cutoff."""
    cutoff = max(int(CUTOFF_ROWS[dtype] * scale), MIN_CUTOFF) if scale else 0
    return Plan.parse(f"sforza({depth}{f',{cutoff}' if cutoff else ''}) > vendor")


def multiplication_share(plan: Plan, n: int) -> float:
    """Return the multiplications of the plan for an n x n matrix, as a share of the n^3 of a classical product."""
    return cost(plan, n, n, n, op="gram").flops / (2 * n**3)


@cache
def speedup_limit(plan: Plan, dtype: str, n: int) -> float:
    """Return the speedup over gemm if multiplications took all the time: n^3 over the plan's multiplications."""
    return 1 / multiplication_share(plan, n)


@cache
def predicted_speedup(device: str, baseline: str, plan: Plan, dtype: str, n: int) -> float:
    """Return the predicted speedup of the plan over the vendor's `gemm` or `syrk` on a device with a datasheet.

    The plan and syrk compute the lower triangle of an n x n result, gemm the whole result.
    """
    triangle, whole = Problem(n, n, n, dtype, op="gram", fill="lower"), Problem(n, n, n, dtype)
    calibration = datasheet_calibration(device)
    vendor = quick_prediction(VENDOR, triangle if baseline == "syrk" else whole, calibration)
    return vendor.predicted_seconds / quick_prediction(plan, triangle, calibration).predicted_seconds


# Columns of the tables beside Figures 1, 2 and 4: plan, element type and n -> speedup.
COMPUTED_SPEEDUPS: Final[Mapping[str, Callable[[Plan, str, int], float]]] = {
    "at most": speedup_limit,
    "GTX 1050": partial(predicted_speedup, "GTX 1050", "gemm"),
    "H200": partial(predicted_speedup, "H200", "gemm"),
    "H200, over syrk": partial(predicted_speedup, "H200", "syrk"),
}
