"""Errors of Li, Ranka and Sahni's codes on Kaporin's matrices, whose product is the identity: |C - I|.

Those of forming A and B in working precision are among them.
"""

from __future__ import annotations

from typing import Any

from benchmarks.papers.bench import Bench
from benchmarks.papers.li_codes import CPU, GPU8, METHODS, li_plan
from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.stability import error_bound


def off_identity(xp: Any, c: Any, rows: Any = None) -> dict[str, float]:
    """The largest and the mean |C - I|, of all rows or of these; C is overwritten."""
    at = xp.arange(len(c)) if rows is None else rows
    c[xp.arange(len(c)), at] -= 1
    off = abs(c)
    return {"maximum": float(off.max()), "average": float(off.mean(dtype="float64"))}


def code_plan(code: str, depth: int, bench: Bench) -> Plan | None:
    """Of one of the paper's codes; None of the sums in the order of k, which no plan has."""
    if code == CPU:
        return None
    return li_plan(code, depth) if code in METHODS else Plan.parse(_leaf(code, bench))


def _leaf(code: str, bench: Bench) -> str:
    return "tile.gpu8" if code == GPU8 and not bench.on_host else "vendor"


def code_errors(bench: Bench, code: str, depth: int, pair: tuple[Any, Any]) -> dict[str, float]:
    """|C - I| of one of the paper's codes."""
    plan = code_plan(code, depth, bench)
    if plan is None:
        rows, found = bench.row_by_column(*pair)
        return off_identity(bench.xp, found, rows)
    return off_identity(bench.xp, bench.multiply(plan, *pair))


def kaporin_bound(code: str, depth: int, n: int, dtype: str) -> float:
    """The a-priori bound of the product alone, f u |A| |B|, on Kaporin's matrices; forming them is not in it."""
    i = [float(x) for x in range(1, n + 1)]
    inner = sum(x**0.5 / (n + 1 - x) for x in i)
    largest = (1 + n**0.5) * max(1.0, n**0.5 / (1 + inner))  # the last entry of A; of B the diagonal or the last row
    plan = li_plan(code, depth) if code in METHODS else VENDOR
    return float(error_bound(plan, n, n, n) * DTYPES[dtype].unit_roundoff * largest)
