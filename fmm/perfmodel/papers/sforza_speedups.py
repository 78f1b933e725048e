"""Sforza, "A Strassen-based CUDA Implementation of A^t A Matrix Multiplication": his speed-ups, printed and computed.

Of the paper's four figures the text gives the best values, which are printed here; what the algorithm saves is counted
from the steps of the level `sforza`, and what that would be worth is predicted from a device's datasheet. Measured
speed-ups come in from outside, by (type, side, depth): those of `python -m benchmarks.gram --only sforza`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import datasheet
from fmm.perfmodel.cost import cost
from fmm.perfmodel.papers.table import Cell, Table
from fmm.perfmodel.predict import quick_prediction
from fmm.problem import Problem

Measured = Mapping[tuple[str, int, int], tuple[float, float]]  # type, side, depth -> speed-up over gemm, over syrk
NOTHING: Final[Measured] = {}
CUTOFFS: Final = {"float32": 1536, "float64": 256}
SIDE: Final = 10_000  # of the paper's Figure 2
# The paper's text: best speed-ups over cuBLAS's gemm on a GTX 1050, of one level and of the recursion; the best depth.
ONE_LEVEL: Final = {"float32": 1.31, "float64": 1.33}
RECURSIVE: Final = {"float32": 1.65, "float64": 2.18}
BEST_DEPTH: Final = {"float32": 3, "float64": 4}
SIDES: Final = (2000, 2001, 4000, 4001, 8000, 8001, SIDE, SIDE + 1, 16384)
DEPTHS: Final = (1, 2, 3, 4)


def sforza_plan(dtype: str, depth: int, cutoff: bool = True) -> Plan:
    """AtA with this depth, which ends earlier where the blocks are small for the paper's CUTOFF."""
    return Plan.parse(f"sforza({depth}{f',{CUTOFFS[dtype]}' if cutoff else ''}) > vendor")


def multiplications(plan: Plan, n: int) -> float:
    """As a share of the classical product's n^3."""
    return cost(plan, n, n, n, op="gram").flops / (2 * n**3)


def sforza_depths(measured: Measured = NOTHING) -> Table:
    """Figure 2: which depth is best on 10^4 x 10^4 matrices."""
    rows: list[tuple[Cell, ...]] = []
    for dtype in CUTOFFS:
        for depth in DEPTHS:
            plan = sforza_plan(dtype, depth, cutoff=False)
            share = multiplications(plan, SIDE)
            best = "best" if BEST_DEPTH[dtype] == depth else ""
            rows.append(
                (
                    dtype,
                    depth,
                    best,
                    share,
                    1 / share,
                    *_predicted(plan, dtype, SIDE),
                    *_seen(measured, dtype, SIDE, depth),
                )
            )
    return Table(
        "sforza-depths",
        "Speed-up of AtA over gemm at n = 10000, by depth: printed best, counted, predicted, measured",
        ("type", "depth", "published", "multiplications", "at most", *PREDICTED, *MEASURED),
        tuple(rows),
        (
            "multiplications: of the plan's products over those of the classical one; at most: its inverse.",
            *NOTES,
        ),
    )


def sforza_best(measured: Measured = NOTHING) -> Table:
    """The best speed-ups that the text names, one level and recursive."""
    rows: list[tuple[Cell, ...]] = []
    for dtype in CUTOFFS:
        for what, printed, depth in (("one level", ONE_LEVEL, 1), ("recursive", RECURSIVE, BEST_DEPTH[dtype])):
            plan = sforza_plan(dtype, depth)
            found = _seen(measured, dtype, SIDE, depth)
            limit = 1 / multiplications(plan, SIDE)
            rows.append((dtype, what, depth, printed[dtype], limit, *_predicted(plan, dtype, SIDE), *found))
    return Table(
        "sforza-best",
        "The largest speed-ups of AtA over gemm: published, counted, predicted, measured",
        ("type", "algorithm", "depth", "published", "at most", *PREDICTED, *MEASURED),
        tuple(rows),
        (
            "published: at any size up to 10^4, on a GTX 1050; the others at n = 10000.",
            *NOTES,
        ),
    )


def sforza_sizes(measured: Measured = NOTHING) -> Table:
    """Figures 1, 3 and 4: by size, even and odd ones, one level and with the best depth."""
    rows: list[tuple[Cell, ...]] = []
    for dtype in CUTOFFS:
        for n in SIDES:
            for depth in (1, BEST_DEPTH[dtype]):
                plan = sforza_plan(dtype, depth)
                share = multiplications(plan, n)
                rows.append((dtype, n, depth, share, *_predicted(plan, dtype, n), *_seen(measured, dtype, n, depth)))
    return Table(
        "sforza-sizes",
        "Speed-up of AtA over gemm and over syrk by size, with the paper's cutoffs",
        ("type", "n", "depth", "multiplications", *PREDICTED, *MEASURED),
        tuple(rows),
        (
            "Odd sides cost a product of one row, and a sum of products of two: `dynamic peeling`.",
            *NOTES,
        ),
    )


PREDICTED: Final = ("GTX 1050", "H200", "H200, syrk")
MEASURED: Final = ("measured", "measured, syrk")
NOTES: Final = (
    "GTX 1050, H200: predicted from the datasheets, over gemm and (syrk) over cuBLAS's syrk with its mirror. A GTX "
    "1050 has 1/32 of its single precision's rate in double: sums cost nothing beside such products.",
    "measured: what --measured FILE names, a gram.json that `python -m benchmarks.gram --only sforza` writes.",
)


def _predicted(plan: Plan, dtype: str, n: int) -> tuple[float, float, float]:
    """Speed-ups over gemm on the paper's device and on an H200, there also over syrk with its mirror."""
    half, whole = Problem(n, n, n, dtype, op="gram"), Problem(n, n, n, dtype)
    old, new = datasheet("GTX 1050"), datasheet("H200")
    seconds = quick_prediction(plan, half, new).seconds
    over_gemm = quick_prediction(VENDOR, whole, new).seconds / seconds
    before = quick_prediction(VENDOR, whole, old).seconds / quick_prediction(plan, half, old).seconds
    return before, over_gemm, quick_prediction(VENDOR, half, new).seconds / seconds


def _seen(measured: Measured, dtype: str, n: int, depth: int) -> tuple[float | None, float | None]:
    return measured.get((dtype, n, depth), (None, None))


TABLES: Final = (sforza_depths, sforza_best, sforza_sizes)
