"""Sforza, "A Strassen-based CUDA Implementation of A^t A Matrix Multiplication": where Algorithm 1 stops; speed-ups.

The text gives only the best values of the paper's four figures, which are here. The savings of the algorithm are
counted from the steps of the level `sforza`; their worth is predicted from a device's datasheet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Final

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.cost import cost
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.perfmodel.papers.table import Cell, Table
from fmm.perfmodel.predict import quick_prediction
from fmm.problem import Problem

CUTOFF: Final = 512
SHAPES: Final = ((256, 256), (512, 512), (1024, 1024), (2048, 2048), (1024, 8192), (512, 8192), (8192, 8192))


def cutoff_sum(m: int, n: int, cutoff: int) -> float:
    """Return mm + nn of Algorithm 1 for an m x n matrix A: the cutoff over the halves of its sides."""
    return cutoff / (m // 2) + cutoff / (n // 2)


def stops(m: int, n: int, cutoff: int) -> bool:
    """Return True if the recursion should end here: on blocks small for the cutoff, for which mm + nn is large."""
    return cutoff_sum(m, n, cutoff) >= 2


def stops_as_printed(m: int, n: int, cutoff: int) -> bool:
    """Return True if the recursion ends here by the printed sign."""
    return cutoff_sum(m, n, cutoff) <= 2


def sforza_stop() -> Table:
    """Return where Algorithm 1 ends by the printed rule and by the intended one."""
    columns = ("m", "n", "mm + nn", "stops as printed", "stops as meant")
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (m, n, cutoff_sum(m, n, CUTOFF), stops_as_printed(m, n, CUTOFF), stops(m, n, CUTOFF)) for m, n in SHAPES
    )
    notes = (
        "Algorithm 1 prints stop <- (mm + nn) <= 2 with mm = CUTOFF/m2 and nn = CUTOFF/n2. These grow as the blocks "
        "shrink: as printed, the largest matrices are not divided at all, and small ones for ever. Meant is >= 2.",
    )
    return Table("sforza-stop", f"Algorithm 1's cutoff criteria, CUTOFF = {CUTOFF}", columns, rows, notes)


TABLES: Final = (sforza_stop,)


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
    """Return AtA with this depth; it ends earlier on blocks that are small for the paper's CUTOFF times `scale`.

    A scale of 0 means no cutoff.
    """
    cutoff = max(int(CUTOFFS[dtype] * scale), LEAST) if scale else 0
    return Plan.parse(f"sforza({depth}{f',{cutoff}' if cutoff else ''}) > vendor")


def multiplications(plan: Plan, n: int) -> float:
    """Return the multiplications as a share of the classical product's n^3."""
    return cost(plan, n, n, n, op="gram").flops / (2 * n**3)


@cache
def speedup_limit(plan: Plan, dtype: str, n: int) -> float:
    """Return the speed-up if multiplications took all the time."""
    return 1 / multiplications(plan, n)


@cache
def predicted(name: str, base: str, plan: Plan, dtype: str, n: int) -> float:
    """Return the speed-up of the lower triangle by this plan over gemm or syrk, predicted from a datasheet."""
    triangle, whole = Problem(n, n, n, dtype, op="gram", fill="lower"), Problem(n, n, n, dtype)
    on = datasheet_calibration(name)
    before = quick_prediction(VENDOR, triangle if base == "syrk" else whole, on).seconds
    return before / quick_prediction(plan, triangle, on).seconds


COMPUTED: Final[Mapping[str, Callable[[Plan, str, int], float]]] = {
    "at most": speedup_limit,
    "GTX 1050": partial(predicted, "GTX 1050", "gemm"),
    "H200": partial(predicted, "H200", "gemm"),
    "H200, over syrk": partial(predicted, "H200", "syrk"),
}
